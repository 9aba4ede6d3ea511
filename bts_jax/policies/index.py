"""What index policies share: the statistics of the arms, and how the largest index is chosen."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax.random import settled
from bts_jax.sums import Sum, coins


class ArmStatistics(NamedTuple):
    """How often each arm was pulled, and what it earned and cost."""

    pulls: jax.Array  # [K] int32, n
    rewards: Sum  # [K]
    costs: Sum  # [K]

    @classmethod
    def zeros(cls, num_arms: int) -> "ArmStatistics":
        shape = (num_arms,)
        return cls(pulls=jnp.zeros(shape, jnp.int32), rewards=Sum.zeros(shape), costs=Sum.zeros(shape))

    def record(self, arm: jax.Array, reward: jax.Array, cost: jax.Array) -> "ArmStatistics":
        """These statistics and one more pull."""
        hit = jnp.arange(self.pulls.shape[0]) == arm
        return ArmStatistics(
            pulls=self.pulls + hit,
            rewards=self.rewards.add(jnp.where(hit, coins(reward), 0)),
            costs=self.costs.add(jnp.where(hit, coins(cost), 0)),
        )

    @property
    def rounds(self) -> jax.Array:
        """Pulls of all arms together; t − 1 in round t."""
        return self.pulls.sum(dtype=jnp.int32)

    @property
    def n(self) -> jax.Array:
        """Pulls as float32, 1 for an arm that was never pulled: its index is replaced anyway. [K]"""
        return jnp.maximum(self.pulls, 1).astype(jnp.float32)

    @property
    def reward_mean(self) -> jax.Array:
        """Average reward r̄, 0 before the first pull. [K]"""
        return self.rewards.value() / self.n

    @property
    def cost_mean(self) -> jax.Array:
        """Average cost c̄, 0 before the first pull. [K]"""
        return self.costs.value() / self.n


def over(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """The quotient, infinite where the denominator is not positive."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), jnp.inf)


def choose(index: jax.Array, pulls: jax.Array) -> jax.Array:
    """The arm with the largest index, the lowest number among equals.

    An infinite index, and that of an arm never pulled, means "explore me": such arms go first, the least pulled of them
    before the others. So every arm is pulled once before any index counts, in the order of their numbers.
    """
    index = settled(index)
    explore = (pulls == 0) | (index == jnp.inf)
    least_pulled = lax.argmin(jnp.where(explore, pulls, jnp.iinfo(jnp.int32).max), 0, jnp.int32)
    return jnp.where(explore.any(), least_pulled, lax.argmax(index, 0, jnp.int32))
