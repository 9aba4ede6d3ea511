"""Exact sums of rewards and costs.

A float32 running sum stops being right after about 10⁷ pulls, and 0.1 is not a binary number: ten pulls at 0.1 each
should spend a budget of 1 exactly. So money is counted here in whole coins, `UNIT` = 15 120 000 = 2⁷·3³·5⁴·7 to the
unit. Tenths, hundredths, thousandths, ten-thousandths, quarters, thirds, sevenths, … are whole numbers of coins,
sums of them are exact, and since `UNIT` < 2²⁴ the float32 nearest to j/m rounds to the right number of coins whenever m divides
`UNIT`. Any other value is rounded to the nearest coin, which is what float32 does to numbers near 1.
"""

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
        """The sum that equals `value` ≥ 0, to the nearest coin."""
        value = jnp.asarray(value)
        if jnp.issubdtype(value.dtype, jnp.integer):
            return cls(whole=value.astype(jnp.int32), rest=jnp.zeros_like(value, dtype=jnp.int32))
        whole = jnp.floor(value)
        return cls(whole=whole.astype(jnp.int32), rest=jnp.zeros_like(whole, dtype=jnp.int32)).add(coins(value - whole))

    def add(self, amount: jax.Array) -> "Sum":
        """This sum and `amount` coins, −UNIT ≤ amount ≤ UNIT."""
        rest = self.rest + amount
        carry = (rest >= UNIT).astype(jnp.int32) - (rest < 0).astype(jnp.int32)
        return Sum(whole=self.whole + carry, rest=rest - carry * UNIT)

    def value(self) -> jax.Array:
        """The nearest float32, give or take one rounding."""
        return self.whole.astype(jnp.float32) + self.rest.astype(jnp.float32) / jnp.float32(UNIT)

    def reaches(self, other: "Sum") -> jax.Array:
        """Whether this sum is at least `other`."""
        return (self.whole > other.whole) | ((self.whole == other.whole) & (self.rest >= other.rest))


def coins(value: ArrayLike) -> jax.Array:
    """A number in [0, 1] as a whole number of coins."""
    return jnp.round(jnp.asarray(value, jnp.float32) * UNIT).astype(jnp.int32)
