"""Beta posteriors that are matched to the mean and the variance of the values."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.posteriors.beta import Beta
from bts_jax.posteriors.moments import Moments
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

LARGEST_SUM = 1e7  # of the two shapes


@pytree
class MatchedBeta(Beta):
    """Beta posteriors of values in [0, 1] without Bernoulli trials: values that vary less leave
    less doubt.

    The mean of an arm is drawn from the Beta distribution that has the mean m and the variance v of
    the Bayesian bootstrap,

        θ ~ Beta(m k, (1 − m) k),   k = sharpness · (m (1 − m) / v − 1),   v = M₂ / (n (n + 1)),

    where n is the number of the arm's values, m their average, and M₂ the sum of their squared
    distances from it. The prior counts as values, too: α values of 1, and β of 0. For values that
    are 0 or 1, this is `Beta(α, β)` up to rounding, as long as n is below 10⁷.

    Reference: ours. With α = β = 1, the Bayesian bootstrap has one optimistic value, as in
    non-parametric Thompson sampling (Riou and Honda, "Bandit Algorithms Based on Thompson Sampling
    for Bounded Reward Distributions", ALT 2020), and one pessimistic value. `Dirichlet` draws are
    about as good, and cost several times as much.

    Args:
        alpha, beta: as for `Beta`.
        sharpness: how much more certain draws are than the values say. With 1 they are a posterior.
            With 2 their variance is about half as large: the policy explores less, and loses more
            runs.

    Example:
        >>> MatchedBeta(alpha=2)
        MatchedBeta(alpha=2.0, beta=1.0, sharpness=1.0)
    """

    learnable: ClassVar[dict[str, tuple[float, float]]] = Beta.learnable

    sharpness: ArrayLike = 1.0

    def _check(self) -> None:
        super()._check()
        checks.hyperparameter(self, "sharpness", 0, 1000, low_excluded=True)

    def init(self, problem: Problem) -> Moments:  # type: ignore[override]
        checks.fits_arms(self, problem.num_arms)
        ones, zeros = (
            jnp.broadcast_to(jnp.asarray(x, jnp.float32), (problem.num_arms,))
            for x in (self.alpha, self.beta)
        )
        count = ones + zeros
        return Moments.of(count, mean=ones / count, squares=ones * zeros / count)

    def record(self, state: Moments, arm: jax.Array, value: jax.Array, word: jax.Array) -> Moments:  # type: ignore[override]
        return state.record(arm, value)

    def shapes(self, state: Moments) -> tuple[jax.Array, jax.Array]:  # type: ignore[override]
        """The parameters of the arms' Beta distributions. [K] each"""
        mean = state.mean
        total = jnp.maximum(mean * (1 - mean) / state.variance - 1, state.count)
        total = jnp.minimum(total * self.sharpness, LARGEST_SUM)
        return mean * total, (1 - mean) * total
