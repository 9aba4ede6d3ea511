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
    reward_mean: jax.Array  # [K] float32, r̄; 0 before the first pull
    cost_mean: jax.Array  # [K] float32, c̄; 0 before the first pull
    rounds: jax.Array  # int32, pulls of all arms together; t − 1 in round t

    @classmethod
    def zeros(cls, num_arms: int) -> "ArmStatistics":
        shape = (num_arms,)
        none = jnp.zeros(shape, jnp.float32)
        return cls(jnp.zeros(shape, jnp.int32), Sum.zeros(shape), Sum.zeros(shape), none, none, jnp.int32(0))

    def record(self, arm: jax.Array, reward: jax.Array, cost: jax.Array) -> "ArmStatistics":
        """These statistics and one more pull; none if the arm is −1."""
        # Only one arm changes: its numbers are worked out once, and put in their places.
        at = jnp.maximum(arm, 0)
        pulls = self.pulls[at] + 1
        rewards = Sum(self.rewards.whole[at], self.rewards.rest[at]).add(coins(reward))
        costs = Sum(self.costs.whole[at], self.costs.rest[at]).add(coins(cost))
        n = pulls.astype(jnp.float32)
        new = settled(ArmStatistics(pulls, rewards, costs, rewards.value() / n, costs.value() / n, self.rounds))
        hit = jnp.arange(self.pulls.shape[0]) == arm
        arms = jax.tree.map(lambda new, old: jnp.where(hit, new, old), new._replace(rounds=()), self._replace(rounds=()))
        return arms._replace(rounds=self.rounds + (arm >= 0))

    @property
    def n(self) -> jax.Array:
        """Pulls as float32, 1 for an arm that was never pulled: its index is replaced anyway. [K]"""
        return jnp.maximum(self.pulls, 1).astype(jnp.float32)


def over(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """The quotient, infinite where the denominator is not positive."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), jnp.inf)


def choose(index: jax.Array, pulls: jax.Array) -> jax.Array:
    """The arm with the largest index, the lowest number among equals.

    An infinite index, and that of an arm never pulled, means "explore me": such arms go first, the least pulled of them
    before the others. So every arm is pulled once before any index counts, in the order of their numbers.
    """
    # One number per arm decides, and one pass over the arms: floats in the order of their bits, and above all finite ones
    # those that are to be explored. (There is room for 2²³ pulls: more count as that many.)
    bits = lax.bitcast_convert_type(index, jnp.int32)
    ordered = bits ^ ((bits >> 31) & jnp.int32(0x7FFFFFFF))
    explore = (pulls == 0) | ~(index < jnp.inf)
    rank = jnp.where(explore, jnp.int32(0x7FFFFFFF) - jnp.minimum(pulls, jnp.int32(0x7FFFFF)), ordered)
    return lax.argmax(settled(rank), 0, jnp.int32)
