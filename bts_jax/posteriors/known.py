"""`Known`: means that are known in advance, such as a price list that applies exactly."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax.contract import Problem
from bts_jax.pytrees import pytree

SMALLEST = 1e-25  # so that the ratios of arms that cost nothing are finite, and can be compared


@pytree
class Known:
    """Expected costs that are known, such as fixed prices. There is nothing to learn: every draw is the expected cost.

    The policy then has the mean costs of the bandit as side information: `Known` takes no numbers. For prices that are known
    only roughly, use `Gamma(mean=prices, strength=...)`. If an arm costs nothing and time is limited, use it with `TSUpdate`,
    which knows the value of time.

    Example:
        >>> from bts_jax import BTS, contract
        >>> contract.side_info(BTS(cost=Known()))
        ('cost_mean',)
    """

    requires: ClassVar[tuple[str, ...]] = ("cost_mean",)
    bounded: ClassVar[bool] = False

    def init(self, problem: Problem) -> jax.Array:
        return jnp.asarray(problem.required("cost_mean"), jnp.float32)

    def draw(self, state: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.maximum(state, SMALLEST)

    def record(self, state: jax.Array, arm: jax.Array, value: jax.Array, word: jax.Array) -> jax.Array:
        return state
