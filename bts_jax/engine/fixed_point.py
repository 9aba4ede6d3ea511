"""Exact sums of rewards and costs.

A float32 running sum stops being right after about 10⁷ pulls, and 0.1 is not a binary number: ten pulls at 0.1 each
should spend a budget of 1 exactly. So money is counted here in whole coins, `UNIT` = 15 120 000 = 2⁷·3³·5⁴·7 to the
unit. Tenths, hundredths, thousandths, ten-thousandths, quarters, thirds, sevenths, … are whole numbers of coins,
sums of them are exact, and since `UNIT` < 2²⁴ the float32 nearest to j/m rounds to the right number of coins whenever m divides
`UNIT`.

Any other value is rounded to the nearest coin, 6.6·10⁻⁸, as float32 itself does to numbers near 1. Small values lose more
by it than they would in float32: a pull that always costs 10⁻⁵ is counted 0.14% too low, one of 10⁻⁶ 0.8%, and one below
half a coin costs nothing. Random costs are rounded up as often as down.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

UNIT = 15_120_000
LARGEST = 2**31 - 2  # the largest whole part that a sum can hold and still take one more pull


class Sum(NamedTuple):
    """An exact sum, `whole + rest / UNIT`, of numbers in [0, 1]; arrays of sums have arrays for fields."""

    whole: jax.Array  # int32
    rest: jax.Array  # int32, in [0, UNIT)

    @classmethod
    def zeros(cls, shape: tuple[int, ...] = ()) -> "Sum":
        return cls(whole=jnp.zeros(shape, jnp.int32), rest=jnp.zeros(shape, jnp.int32))

    @classmethod
    def of(cls, value: ArrayLike) -> "Sum":
        """The sum that a number ≥ 0 stands for.

        A whole number is taken as it is. A float32 stands for the number with the fewest decimals, up to four, that it is
        nearest to: 12.2 is 12.2, though float32 has 12.19999981. Failing that, it is rounded to the nearest coin.
        """
        value = jnp.asarray(value)
        if jnp.issubdtype(value.dtype, jnp.integer):
            return cls(whole=value.astype(jnp.int32), rest=jnp.zeros_like(value, dtype=jnp.int32))
        value = value.astype(jnp.float32)
        floor = jnp.floor(value)
        start = cls(whole=floor.astype(jnp.int32), rest=jnp.zeros_like(floor, dtype=jnp.int32))
        total = start.add(coins(value - floor))
        for scale in (10_000, 1_000, 100, 10):
            decimal = start.add(jnp.round((value - floor) * scale).astype(jnp.int32) * (UNIT // scale))
            total = jax.tree.map(partial(jnp.where, decimal.value() == value), decimal, total)
        return total

    def add(self, amount: jax.Array) -> "Sum":
        """This sum and `amount` coins, −UNIT ≤ amount ≤ UNIT."""
        rest = self.rest + amount
        carry = (rest >= UNIT).astype(jnp.int32) - (rest < 0).astype(jnp.int32)
        return Sum(whole=self.whole + carry, rest=rest - carry * UNIT)

    def value(self) -> jax.Array:
        """The nearest float32, give or take one rounding."""
        # XLA replaces a quotient by a constant with a product, which rounds differently: so the divisor is no constant.
        unit = jnp.where(self.rest < 0, jnp.float32(1), jnp.float32(UNIT))
        return self.whole.astype(jnp.float32) + self.rest.astype(jnp.float32) / unit

    def reaches(self, other: "Sum") -> jax.Array:
        """Whether this sum is at least `other`."""
        return (self.whole > other.whole) | ((self.whole == other.whole) & (self.rest >= other.rest))


def coins(value: ArrayLike) -> jax.Array:
    """A number in [0, 1] as a whole number of coins."""
    return jnp.round(jnp.asarray(value, jnp.float32) * UNIT).astype(jnp.int32)
