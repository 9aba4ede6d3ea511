"""Gamma posteriors: positive amounts of any size, such as costs in dollars."""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.posteriors import logs
from bts_jax.posteriors.moments import Moments
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

SMALLEST_SHAPE, LARGEST_SHAPE = 1.0, 1e7
MOST_VARIATION = 1e3
SMALLEST = 1e-25  # a draw is never 0, so that ratios are finite


@pytree
class Gamma:
    """Gamma posteriors of amounts that are not negative. They need no scale: in another unit, the
    decisions are the same.

    The mean of an arm is drawn from the Gamma distribution that has the mean m and the variance of
    the Bayesian bootstrap,

        θ ~ m · Gamma(k) / k,   k = sharpness · m² n (n + 1) / M₂,

    where n is the number of the arm's amounts, m their average, and M₂ the sum of their squared
    distances from it. The prior counts as amounts, too. (k is above 1 for all amounts that are not
    negative. A smaller k, from a prior with a large variation, counts as 1.)

    - The default prior is half an amount of 0. It is optimistic, and needs no scale. If all arms
      cost something, `BTS` then pulls every arm once first, so give another prior if one pull of an
      arm can cost more than the budget. A larger strength of this prior, with `mean = 0`, makes the
      policy more optimistic.
    - A price list, as in `Gamma(mean=[0.001, 0.03], strength=5)`, counts as much as five observed
      amounts of each arm, whose average is the listed price. Their standard deviation is
      `variation` times the price.
    - `Gamma.from_log` makes the prior from amounts that were observed before.

    If an arm was pulled and has cost nothing, its draw is E · m_max / (n + 1), where m_max is the
    largest average cost of an arm and E a standard exponential draw. While no arm has cost
    anything, arms with few pulls are preferred.

    If costs are 0 or 1, and hardly ever 1, `Beta` has less regret (notebook 10).

    Reference: ours. The Bayesian bootstrap with an optimistic value is the posterior of
    non-parametric Thompson sampling (Riou and Honda, "Bandit Algorithms Based on Thompson Sampling
    for Bounded Reward Distributions", ALT 2020). That posterior needs all observed amounts. This
    one has its first two moments, and stores four numbers for each arm. Notebook 10 compares it
    with others: on each law of the costs another posterior is best, and this one is close to it on
    most.

    Args:
        mean: the prior mean, in the unit of the amounts: one number for all arms, or a list with
            one for each. [K]
        strength: the number of amounts for which the prior counts, in the same way. [K]
        variation: the standard deviation of the prior's amounts, in multiples of the mean, in the
            same way. [K]
        sharpness: how much more certain draws are than the amounts say, as for `MatchedBeta`.

    Example:
        >>> # a price list that counts as five pulls of each arm
        >>> Gamma(mean=[0.001, 0.03], strength=5)
        Gamma(mean=(0.001, 0.03), strength=5.0, variation=1.0, sharpness=1.0)
    """

    bounded: ClassVar[bool] = False
    learnable: ClassVar[dict[str, tuple[float, float]]] = {"strength": (0.01, 100.0)}

    mean: ArrayLike = 0.0
    strength: ArrayLike = 0.5
    variation: ArrayLike = 1.0
    sharpness: ArrayLike = 1.0

    def _check(self) -> None:
        checks.per_arm(self, "mean", 0, 1e9)
        checks.per_arm(self, "strength", 0, 1e6, low_excluded=True)
        checks.per_arm(self, "variation", 0, MOST_VARIATION)
        checks.hyperparameter(self, "sharpness", 0, 1000, low_excluded=True)

    def init(self, problem: Problem) -> Moments:
        checks.fits_arms(self, problem.num_arms)
        scale = 1.0 if problem.scale is None else problem.scale
        count, mean, variation = (
            jnp.broadcast_to(jnp.asarray(x, jnp.float32), (problem.num_arms,))
            for x in (self.strength, self.mean, self.variation)
        )
        mean = mean / scale
        return Moments.of(count, mean, squares=count * (variation * mean) ** 2)

    def draw(self, state: Moments, key: jax.Array) -> jax.Array:
        n, mean = state.count, state.mean
        varies = state.squares > 0  # equal amounts have an infinite k
        # In this order, because m² may be too small for float32. The inner `where` keeps
        # derivatives finite.
        shape = mean / jnp.where(varies, state.squares, 1) * mean * (n * (n + 1)) * self.sharpness
        shape = jnp.where(varies, jnp.clip(shape, SMALLEST_SHAPE, LARGEST_SHAPE), LARGEST_SHAPE)
        shape = jnp.where(mean > 0, shape, 1)
        rare = jnp.where(n > jnp.asarray(self.strength, jnp.float32), mean.max() / (n + 1), 0)
        draw = jnp.where(mean > 0, mean / shape, rare) * random.gamma(key, shape)
        return jnp.maximum(draw, SMALLEST * (n + 1))

    def record(self, state: Moments, arm: jax.Array, value: jax.Array, word: jax.Array) -> Moments:
        return state.record(arm, value)

    @classmethod
    def from_log(
        cls, values: Any, *, arms: Sequence[str] | None = None, strength: float = 20.0
    ) -> "Gamma":
        """A prior from a log of amounts, for example of last month.

        The prior of an arm counts as many amounts as the log has for it, but at most `strength`, so
        that new amounts soon count more. The first draws vary as the mean of the whole log does.
        One more amount whose variation is 1 is added to the variation of the log, so that a few
        equal amounts are not taken for certain. An arm without amounts has the default prior.

        Args:
            values: a list of amounts for each arm, in the order of the arms; or a mapping from
                names to such lists, with `arms`. An arm may have none.
            arms: the names of the arms in the order of the bandit, such as `bandit.arms`; for a
                mapping.
            strength: the largest number of amounts that the log of an arm counts for.

        Example:
            >>> log = {"b": [0.02, 0.02, 0.02], "a": [1, 3]}
            >>> prior = Gamma.from_log(log, arms=["a", "b"], strength=2)
            >>> prior.mean, prior.strength, prior.variation
            ((2.0, 0.02), (2.0, 2.0), (0.707107, 0.433013))
        """
        columns = logs.columns(values, arms, "give finite amounts of at least 0")
        most = logs.strength_of(strength)
        means = [float(column.mean()) if len(column) else 0.0 for column in columns]
        spreads = [
            float(column.var()) / mean**2 if mean else 1.0
            for column, mean in zip(columns, means, strict=True)
        ]
        strengths = [min(len(column), most) or 0.5 for column in columns]
        # A log of n amounts with the relative variance v has k = (n + 1) / v. The prior has the
        # same k.
        variations = [
            min(
                ((n * spread + 1) / (n + 1) * (strength + 1) / (n + 1)) ** 0.5 if n else 1.0,
                MOST_VARIATION,
            )
            for n, spread, strength in zip(map(len, columns), spreads, strengths, strict=True)
        ]
        return cls(
            mean=np.array(means),
            strength=np.array(strengths, float),
            variation=np.round(variations, 6),
        )
