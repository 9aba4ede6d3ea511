"""Exact sums of rewards and costs, in fixed point.

A float32 running sum becomes inexact after about 10⁷ pulls. Also, 0.1 is not exact in binary, but
ten pulls at 0.1 must spend a budget of 1 exactly. So amounts are counted in whole quanta. A unit
has `UNIT` = 15 120 000 = 2⁷·3³·5⁴·7 quanta. Tenths, hundredths, thousandths, ten-thousandths,
quarters, thirds and sevenths are whole numbers of quanta, and their sums are exact. `UNIT` is below
2²⁴. So, if m divides `UNIT`, the float32 nearest to j/m rounds to the correct number of quanta.

Any other value is rounded to the nearest quantum, 6.6·10⁻⁸, as float32 itself rounds numbers near
1. Very small deterministic costs lose precision: a cost of 10⁻⁵ is counted 0.14% too low, a cost of
10⁻⁶ 0.8% too low, and a cost below half a quantum is counted as 0. Random costs are rounded up as
often as down.

Amounts in another unit, such as dollars, have a known maximum, the scale. The whole part of a sum
then counts not dollars but multiples of a larger amount, the whole, which is at least the scale and
has `UNIT` quanta (`Resolution`). Its size is chosen so that cents are whole numbers of quanta for
scales up to $130,000, and dollars for scales up to $8 million.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax.contract import LARGEST_SCALE, SMALLEST_SCALE
from bts_jax.engine.passes.rounding import round_product

UNIT = 15_120_000
LARGEST = 2**31 - 2  # the largest whole part that a sum can hold and still take one more pull


class Sum(NamedTuple):
    """An exact sum, `whole + rest / UNIT`, of numbers in [0, 1]. The fields may be arrays."""

    whole: jax.Array  # int32
    rest: jax.Array  # int32, in [0, UNIT)

    @classmethod
    def zeros(cls, shape: tuple[int, ...] = ()) -> "Sum":
        return cls(whole=jnp.zeros(shape, jnp.int32), rest=jnp.zeros(shape, jnp.int32))

    @classmethod
    def of(cls, value: Any, xp: Any = jnp) -> "Sum":
        """Converts a number ≥ 0 to a sum. `xp` is the array library to use, `jax.numpy` or `numpy`.

        An integer is exact. A float32 is converted to the number with the fewest decimals, up to
        four, of which it is the nearest float32: 12.2 becomes 12.2, although its float32 is
        12.19999981. If there is no such number, it is rounded to the nearest quantum.
        """
        value = xp.asarray(value)
        if xp.issubdtype(value.dtype, np.integer):
            return cls(whole=value.astype(np.int32), rest=xp.zeros_like(value, dtype=np.int32))
        value = value.astype(np.float32)
        floor = xp.floor(value)
        start = cls(whole=_integers(floor, xp), rest=xp.zeros_like(floor, dtype=np.int32))
        total = start.add(quantize(value - floor, xp))
        for scale in (10_000, 1_000, 100, 10):
            decimal = start.add(
                _integers(xp.round((value - floor) * np.float32(scale)), xp) * (UNIT // scale)
            )
            total = jax.tree.map(partial(xp.where, decimal.value(xp=xp) == value), decimal, total)
        return total

    def add(self, amount: jax.Array) -> "Sum":
        """This sum plus `amount` quanta, where −UNIT ≤ amount ≤ UNIT."""
        rest = self.rest + amount
        carry = (rest >= UNIT).astype(np.int32) - (rest < 0).astype(np.int32)
        return Sum(whole=self.whole + carry, rest=rest - carry * UNIT)

    def value(self, resolution: "Resolution | None" = None, xp: Any = jnp) -> jax.Array:
        """The nearest float32, up to one rounding; or up to two roundings in the unit of the
        `resolution`.
        """
        if resolution is not None:
            whole = round_product(
                self.whole.astype(jnp.float32) * resolution.times.astype(jnp.float32)
            )
            per = (UNIT // resolution.times).astype(jnp.float32)
            return (whole + self.rest.astype(jnp.float32) / per) / resolution.parts.astype(
                jnp.float32
            )
        # XLA replaces a division by a constant with a multiplication, which rounds differently. So
        # the divisor is not constant.
        unit = xp.where(self.rest < 0, np.float32(1), np.float32(UNIT))
        return self.whole.astype(np.float32) + self.rest.astype(np.float32) / unit

    def reaches(self, other: "Sum") -> jax.Array:
        """Whether this sum is at least `other`."""
        return (self.whole > other.whole) | (
            (self.whole == other.whole) & (self.rest >= other.rest)
        )


def quantize(value: Any, xp: Any = jnp) -> jax.Array:
    """A number in [0, 1] as a whole number of quanta."""
    return _integers(xp.round(xp.asarray(value, np.float32) * np.float32(UNIT)), xp)


def _integers(value: Any, xp: Any) -> Any:
    """Whole numbers as int32. As in XLA, numbers out of range become the nearest int32, and NaN
    becomes 0.
    """
    if xp is not jnp:
        value = xp.clip(xp.nan_to_num(value.astype(np.float64)), -(2**31), 2**31 - 1)
    return value.astype(np.int32)


# Sums of amounts whose maximum is not 1.


class Resolution(NamedTuple):
    """How amounts in [0, scale] are counted: a whole is `times` units, or a unit divided by
    `parts`.
    """

    scale: jax.Array  # float32, the largest amount of one pull
    times: jax.Array  # int32, 1 for scales up to 1
    parts: jax.Array  # int32, 1 for scales above 1/2

    @classmethod
    def of(cls, scale: Any, xp: Any = jnp) -> "Resolution":
        """The resolution for a scale. `xp` is the array library to use, `jax.numpy` or `numpy`."""
        scale = xp.asarray(scale, np.float32)
        place = xp.minimum((scale[..., None] > _SCALES).sum(-1, dtype=np.int32), len(_SCALES) - 1)
        return cls(scale=scale, times=xp.asarray(_TIMES)[place], parts=xp.asarray(_PARTS)[place])

    @property
    def possible(self) -> jax.Array:
        """Whether amounts with this scale can be counted."""
        return (self.scale >= SMALLEST_SCALE) & (self.scale <= LARGEST_SCALE)

    @property
    def per_unit(self) -> jax.Array:
        """The number of quanta in a unit. It is exact in float32."""
        return (UNIT // self.times).astype(np.float32) * self.parts.astype(np.float32)

    def quantize(self, amount: jax.Array) -> jax.Array:
        """An amount in [0, scale] as a whole number of quanta."""
        # Separate, so that the product is small and its rounding error negligible.
        whole = jnp.floor(amount)
        return whole.astype(jnp.int32) * (UNIT // self.times) + jnp.round(
            (amount - whole) * self.per_unit
        ).astype(jnp.int32)

    def counted(self, sum: Sum) -> Sum:
        """Converts a sum of units to a sum of wholes of this resolution."""
        part = UNIT // self.parts
        whole = sum.whole // self.times * self.parts + sum.rest // part
        rest = (sum.rest % part * self.parts + self.times // 2) // self.times
        return Sum(whole, sum.whole % self.times * (UNIT // self.times)).add(rest)


def _decimals(number: int) -> int:
    return next(count for count in range(9) if number % 10 ** (count + 1))


def _sizes() -> list[tuple[int, int]]:
    """The possible sizes of a whole as (times, parts), the smallest first.

    A whole of several units is omitted if there is a whole, up to four times as large, whose quanta
    represent more decimals of a unit.
    """
    divisors = sorted(
        2**a * 3**b * 5**c * 7**d
        for a in range(8)
        for b in range(4)
        for c in range(5)
        for d in range(2)
    )
    decimals = {number: _decimals(UNIT // number) for number in divisors}
    times = [
        number
        for number in divisors
        if number == 1
        or decimals[number]
        == max(decimals[other] for other in divisors if number <= other <= 4 * number)
    ]
    # UNIT · parts is exact in float32, and parts divides UNIT.
    parts = [2**a * 10**b for b in range(4) for a in range(4)] + [16_000]
    return [*((1, number) for number in parts[:0:-1]), *((number, 1) for number in times)]


def _sizes_by_scale() -> dict[float, tuple[int, int]]:
    """Maps the largest scale of each size of a whole to that size.

    The error of a float32 is up to 2⁻²⁵ times the power of two above it. The error of its product
    with the number of quanta in a unit is half its last place. If the sum of both errors is below
    half a quantum, the number of quanta is correct.
    """
    table: dict[float, tuple[int, int]] = {}
    for times, parts in _sizes():
        size, per_unit = times / parts, UNIT // times * parts
        most = next(
            e
            for e in range(25, -40, -1)
            if size >= 2.0 ** (e - 1)
            and all(
                2.0 ** (b - 25) * per_unit + _half_place(min(2.0**b, 1) * per_unit) < 0.5
                for b in range(e, e - 8, -1)
            )
        )
        table.setdefault(1.0 if size == 1 else min(size, 2.0**most), (times, parts))
    return table


def _half_place(product: float) -> float:
    """Half the last place of a float32 below `product`. Numbers from 2²³ on do not count: there,
    float32 has only integers.
    """
    return 2.0 ** (math.floor(math.log2(min(product, 2**23) * (1 - 2**-30))) - 24)


_TIMES, _PARTS = (
    np.array(column, np.int32) for column in zip(*_sizes_by_scale().values(), strict=True)
)
_SCALES = np.array(list(_sizes_by_scale()), np.float32)
