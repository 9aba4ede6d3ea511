"""Bernoulli arms: rewards and costs are 0 or 1 (the paper's Section 2)."""

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.bandits.arms import Arms, check_num_arms, check_range
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class Bernoulli(Arms):
    """Arms whose reward and cost are independent Bernoulli trials.

    With cost = 1 for every arm this is the classical bandit, and the budget is the number of
    rounds. With several resources, the costs of a pull are independent trials, too.

    Args:
        reward: expected reward of each arm, in [0, 1]. [K]
        cost: expected cost of each arm, in [0, 1]. [K], or [K, d] for d resources

    Example:
        >>> bandit = Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9])
        >>> bandit.ratio.tolist(), int(bandit.best_arm)
        ([2.0, 1.0], 0)
        >>> Bernoulli(reward=[0.5, 0.9], cost=[[0.25, 0.1], [0.9, 0.2]]).num_resources
        2
    """

    all_or_nothing: ClassVar[bool] = True  # a cost is 0 or the largest cost

    reward: ArrayLike  # [K]
    cost: ArrayLike  # [K] or [K, d]

    def _check(self) -> None:
        self._canonicalize(vectors=("cost",), reward=1, cost=1)

    @property
    def reward_mean(self) -> jax.Array:
        return jnp.asarray(self.reward)

    @property
    def cost_mean(self) -> jax.Array:
        return jnp.asarray(self.cost)

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        cost = self.cost_mean[arm]
        if cost.ndim:
            words = random.several_bits(key, 1 + len(cost))
            return trial(words[0], self.reward_mean[arm]), trial(words[1:], cost)
        words = random.bits(key)
        return trial(words[0], self.reward_mean[arm]), trial(words[1], cost)

    @classmethod
    def random(
        cls,
        key: jax.Array,
        num_arms: int,
        *,
        reward_range: tuple[float, float] = (0.0, 1.0),
        cost_range: tuple[float, float] = (0.01, 1.0),
        num_resources: int | None = None,
    ) -> "Bernoulli":
        """Draws a random instance. The means are uniform in the given ranges.

        Costs start at 0.01 by default, so that no arm is nearly free and every game ends. With
        `num_resources` = d, each arm has d costs.
        """
        check_range("reward_range", reward_range)
        check_range("cost_range", cost_range)
        check_num_arms(
            num_arms,
            1 if num_resources is None else checks.whole("num_resources", num_resources, 1),
        )
        checks.key(key)
        resources = () if num_resources is None else (num_resources,)
        reward, cost = random_means(key, (num_arms,), resources, reward_range, cost_range)
        return cls(reward=reward, cost=cost)

    @classmethod
    def with_gaps(
        cls, gaps: ArrayLike, *, ratio: float = 1.0, cost: ArrayLike = 0.5
    ) -> "Bernoulli":
        """Creates the instance with these gaps Δ: the ratio of expected reward to expected cost of
        arm i is ρ* − Δ_i.

        Args:
            gaps: the gap of each arm; 0 for the best arms, and at most ρ* for the others. [K]
            ratio: ρ*, the ratio of the best arm.
            cost: expected cost of each arm, or one number for all arms; ρ* times the cost is at
                most 1. [K]

        Example:
            >>> Bernoulli.with_gaps([0, 0.25, 0.5], ratio=1.5).ratio.tolist()
            [1.5, 1.25, 1.0]
        """
        remedy = "give a gap for each arm, 0 for the best arm and at most its ratio for the others"
        gap = checks.numbers("gaps", gaps, remedy)
        best = _number("ratio", ratio, "give one positive number")
        checks.require("ratio", best, 0 < best < np.inf, "give one positive number")
        checks.require("gaps", gap, (gap >= 0) & (gap <= best), remedy)
        if gap.ndim != 1 or not len(gap) or gap.min() > 0:
            raise ValueError(f"gaps = {gaps!r} has no 0 or is not a list: {remedy}")
        costs = checks.numbers("cost", cost, "give numbers in [0, 1]")
        if costs.shape not in ((), gap.shape):
            raise ValueError(
                f"cost has shape {costs.shape}, and there are {len(gap)} gaps: give one number, or "
                "one per arm"
            )
        costs = np.broadcast_to(costs, gap.shape)
        remedy = (
            "give a smaller ratio or smaller costs: an expected reward is at most 1, and the "
            f"ratio is {best:g}"
        )
        checks.require("cost", costs, (best - gap) * costs <= 1, remedy)
        return cls(reward=(best - gap) * costs, cost=costs)

    @classmethod
    def hard(
        cls,
        num_arms: int,
        budget: float,
        *,
        scale: float = 1.0,
        ratio: float = 1.0,
        cost: float = 0.5,
    ) -> "Bernoulli":
        """Creates an instance that is hard for every policy with this budget: all gaps but the last
        are √(K ln B / B).

        With this gap it is hardly possible to distinguish K arms from the best arm within the
        budget. Each pull of a wrong arm loses about as much as is possible under this condition.
        The best arm is the last one, because ties go to the first arm.

        Args:
            num_arms: K.
            budget: B, above 1.
            scale: a factor of the gap.
            ratio, cost: as for `with_gaps`; all arms have the same cost.

        Example:
            >>> [round(ratio, 3) for ratio in Bernoulli.hard(3, 1000).ratio.tolist()]
            [0.856, 0.856, 1.0]
        """
        check_num_arms(num_arms)
        remedy = "give one number above 1"
        amount, best, factor = (
            _number(name, value, remedy if name == "budget" else "give one number")
            for name, value in (("budget", budget), ("ratio", ratio), ("scale", scale))
        )
        checks.require("budget", amount, 1 < amount < np.inf, remedy)
        gap = factor * float(np.sqrt(num_arms * np.log(amount) / amount))
        if not 0 < gap <= best:
            raise ValueError(
                f"budget = {amount:g} makes the gap {gap:.3g}, which must be above 0 and at most "
                f"the ratio, {best:g}: give a larger budget or another scale"
            )
        return cls.with_gaps(np.array([gap] * (num_arms - 1) + [0.0]), ratio=ratio, cost=cost)


@partial(jax.jit, static_argnums=(1, 2))  # one program instead of one for each operation
def random_means(
    key: jax.Array, arms: tuple, resources: tuple, reward_range: Any, cost_range: Any
) -> tuple:
    """Expected rewards and costs, uniform in their ranges. `arms`: (K,); `resources`: () or (d,)"""
    key_reward, key_cost = jax.random.split(key)
    return (
        jax.random.uniform(key_reward, arms, jnp.float32, *reward_range),
        jax.random.uniform(key_cost, (*arms, *resources), jnp.float32, *cost_range),
    )


def _number(name: str, value: Any, remedy: str) -> float:
    number = checks.numbers(name, value, remedy)
    if number.ndim:
        raise ValueError(f"{name} has shape {number.shape}: {remedy}")
    return float(number)


def trial(word: jax.Array, probability: jax.Array) -> jax.Array:
    """Returns 0 or 1. Returns NaN, which ends the run, if `probability` is not in [0, 1]."""
    success = random.happens(word, probability).astype(jnp.float32)
    return jnp.where((probability >= 0) & (probability <= 1), success, jnp.nan)
