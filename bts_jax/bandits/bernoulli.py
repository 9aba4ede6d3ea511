"""Bernoulli arms: rewards and costs are 0 or 1 (the paper's Section 2)."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax import checks, random
from bts_jax.bandits.arms import Arms, check_num_arms, check_range
from bts_jax.pytrees import pytree


@pytree
class Bernoulli(Arms):
    """Arms whose reward and cost are independent Bernoulli trials.

    With cost = 1 for every arm this is the classical bandit, played for as many rounds as the budget.

    Args:
        reward: expected reward of each arm, in [0, 1]. [K]
        cost: expected cost of each arm, in [0, 1]. [K]

    Example:
        >>> bandit = Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9])
        >>> bandit.ratio.tolist(), int(bandit.best_arm)
        ([2.0, 1.0], 0)
    """

    reward: ArrayLike  # [K]
    cost: ArrayLike  # [K]

    def _check(self) -> None:
        self._settle(reward=1, cost=1)

    @property
    def reward_mean(self) -> jax.Array:
        return jnp.asarray(self.reward)

    @property
    def cost_mean(self) -> jax.Array:
        return jnp.asarray(self.cost)

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        luck = random.settled(random.bits(key))
        return _trial(luck[0], self.reward_mean[arm]), _trial(luck[1], self.cost_mean[arm])

    @classmethod
    def random(
        cls,
        key: jax.Array,
        num_arms: int,
        *,
        reward_range: tuple[float, float] = (0.0, 1.0),
        cost_range: tuple[float, float] = (0.01, 1.0),
    ) -> "Bernoulli":
        """A random instance: means drawn uniformly from the given ranges.

        Costs start at 0.01 by default, so that no arm is all but free and every game ends.
        """
        check_range("reward_range", reward_range)
        check_range("cost_range", cost_range)
        check_num_arms(num_arms)
        checks.key(key)
        key_reward, key_cost = jax.random.split(key)
        return cls(
            reward=jax.random.uniform(key_reward, (num_arms,), jnp.float32, *reward_range),
            cost=jax.random.uniform(key_cost, (num_arms,), jnp.float32, *cost_range),
        )


def _trial(word: jax.Array, probability: jax.Array) -> jax.Array:
    """0 or 1; NaN if that is no probability, which ends the run."""
    success = random.happens(word, probability).astype(jnp.float32)
    return jnp.where((probability >= 0) & (probability <= 1), success, jnp.nan)
