"""Arms with dependent reward and cost: any joint distribution on {0, 1}² (the paper's future work
3).
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.bandits.arms import Arms, check_correlation
from bts_jax.bandits.bernoulli import Bernoulli, trial
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

SLACK = 1e-5  # tolerance for rounding: a correlation may be exactly at its limit


@pytree
class Correlated(Arms):
    """Arms with Bernoulli rewards and costs. The reward and the cost of one pull are correlated.

    The probability that both are 1 is μ^r μ^c + φ σ^r σ^c, where φ is the correlation and σ^r, σ^c
    are the standard deviations. It lies between max{0, μ^r + μ^c − 1} and min{μ^r, μ^c} (Fréchet),
    so the means limit the correlation: see `limits`. With φ = 0 these are Bernoulli arms, with
    common random numbers: the same key gives the same reward and cost as for `Bernoulli`.

    Args:
        reward: expected reward of each arm, in [0, 1]. [K]
        cost: expected cost of each arm, in [0, 1]. [K]
        correlation: correlation of the reward and cost of each arm, or one number for all arms; 0
            where reward or cost never varies. [K]

    Example:
        >>> bandit = Correlated(reward=[0.5, 0.75], cost=[0.5, 0.25], correlation=[1, -1])
        >>> bandit.probs.tolist()  # of (reward, cost) = (0, 0), (0, 1), (1, 0) and (1, 1)
        [[0.5, 0.0, 0.0, 0.5], [0.0, 0.25, 0.75, 0.0]]
    """

    all_or_nothing: ClassVar[bool] = True  # a cost is 0 or the largest cost

    reward: ArrayLike  # [K]
    cost: ArrayLike  # [K]
    correlation: ArrayLike  # [K]

    def _check(self) -> None:
        self._canonicalize(reward=1, cost=1)
        self._spread("correlation", jnp.shape(self.reward_mean))
        self._canonicalize("correlations", -1, 1, correlation=1)
        if not checks.is_concrete([self.reward, self.cost, self.correlation]):
            return
        reward, cost, given = (
            np.asarray(x, np.float64) for x in (self.reward, self.cost, self.correlation)
        )
        low, high = _limits(np, reward, cost)
        wrong = np.argwhere((given < low - SLACK) | (given > high + SLACK))
        if len(wrong):
            at = tuple(wrong[0])
            raise ValueError(
                f"correlation[{', '.join(map(str, at))}] = {given[at]:g} is not allowed: with "
                f"reward {reward[at]:g} and cost {cost[at]:g}, give a number in [{low[at]:.6g}, "
                f"{high[at]:.6g}]"
            )

    @property
    def reward_mean(self) -> jax.Array:
        return jnp.asarray(self.reward)

    @property
    def cost_mean(self) -> jax.Array:
        return jnp.asarray(self.cost)

    @property
    def limits(self) -> tuple[jax.Array, jax.Array]:
        """The smallest and the largest correlation that each arm's means allow. [K] each"""
        return _limits(jnp, self.reward_mean, self.cost_mean)

    @property
    def probs(self) -> jax.Array:
        """The probabilities of (reward, cost) = (0, 0), (0, 1), (1, 0), (1, 1). [K, 4]"""
        reward, cost, correlation = self.reward_mean, self.cost_mean, jnp.asarray(self.correlation)
        both = reward * cost + correlation * jnp.sqrt(reward * (1 - reward) * (cost * (1 - cost)))
        both = jnp.clip(both, jnp.maximum(reward + cost - 1, 0), jnp.minimum(reward, cost))
        return jnp.stack([1 - reward - cost + both, cost - both, reward - both, both], -1)

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        words = random.bits(key)
        mean, cost, correlation = (
            self.reward_mean[arm],
            self.cost_mean[arm],
            jnp.asarray(self.correlation)[arm],
        )
        reward = trial(words[0], mean)
        # The expected cost given the reward: μ^c + φ σ^c (reward − μ^r) / σ^r.
        miss = 1 - mean
        odds = jnp.where(reward > 0, miss, mean) / jnp.where(
            reward > 0, mean, jnp.where(miss > 0, miss, 1)
        )
        shift = correlation * jnp.sqrt(cost * (1 - cost) * odds)
        chance = cost + jnp.where(reward > 0, shift, -shift)
        nearest = jnp.clip(chance, 0, 1)
        return reward, trial(words[1], jnp.where(abs(chance - nearest) < 1e-3, nearest, jnp.nan))

    @classmethod
    def from_probs(cls, probs: ArrayLike) -> "Correlated":
        """Creates arms from the probabilities of (reward, cost) = (0, 0), (0, 1), (1, 0), (1, 1),
        which sum to 1. [K, 4]
        """
        remedy = "give four probabilities for each arm, with the sum 1"
        table = checks.numbers("probs", probs, remedy)
        if table.ndim < 2 or table.shape[-1] != 4:
            raise ValueError(f"probs has shape {table.shape}: {remedy}")
        checks.require("probs", table, (table >= 0) & (table <= 1), remedy)
        checks.require("the sum of probs", table.sum(-1), abs(table.sum(-1) - 1) < 1e-5, remedy)
        neither, paid, won, both = np.moveaxis(table / table.sum(-1, keepdims=True), -1, 0)
        reward, cost = won + both, paid + both
        spread = np.sqrt((won + both) * (neither + paid) * (paid + both) * (neither + won))
        correlation = np.where(
            spread > 0, (both * neither - won * paid) / np.where(spread > 0, spread, 1), 0
        )
        return cls(
            reward=np.minimum(reward, 1),
            cost=np.minimum(cost, 1),
            correlation=np.clip(correlation, -1, 1),
        )

    @classmethod
    def random(
        cls,
        key: jax.Array,
        num_arms: int,
        *,
        correlation: float = 0.5,
        reward_range: tuple[float, float] = (0.0, 1.0),
        cost_range: tuple[float, float] = (0.01, 1.0),
    ) -> "Correlated":
        """Draws a random instance with the means of `Bernoulli.random` and this correlation, or the
        nearest that they allow.

        With ±1 the reward and cost of an arm are as dependent as possible: the value 1 of one of
        them determines the other.
        """
        check_correlation(correlation)
        means = Bernoulli.random(key, num_arms, reward_range=reward_range, cost_range=cost_range)
        low, high = _limits(jnp, means.reward_mean, means.cost_mean)
        return cls(
            reward=means.reward,
            cost=means.cost,
            correlation=jnp.clip(jnp.float32(correlation), low, high),
        )


def _limits(xp: Any, reward: Any, cost: Any) -> tuple[Any, Any]:
    """Returns Fréchet's limits of the correlation. Both are 0 where reward or cost never varies."""
    varies = (reward > 0) & (reward < 1) & (cost > 0) & (cost < 1)
    reward, cost = xp.where(varies, reward, 0.5), xp.where(varies, cost, 0.5)
    together, apart = (
        reward * cost / ((1 - reward) * (1 - cost)),
        reward * (1 - cost) / (cost * (1 - reward)),
    )
    low, high = (xp.sqrt(xp.minimum(odds, 1 / odds)) for odds in (together, apart))
    return xp.where(varies, -low, 0), xp.where(varies, high, 0)
