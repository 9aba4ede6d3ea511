"""ω-UCB and ω*-UCB: optimistic reward over optimistic cost, with asymmetric confidence intervals."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.policies.index import ArmStatistics, IndexPolicy, over
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class Side(NamedTuple):
    mean: jax.Array  # [K] x̄
    variance: jax.Array  # [K] x̄(1 − x̄)
    scale: jax.Array  # [K] η̂/n


def interval(side: Side, z_square: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Returns the ends (ω₋, ω₊) of Wilson's interval, the set of x with n(x − x̄)² ≤ z² x(1 − x).

    The computation has no cancellation: ω₋ is exactly 0 where x̄ is 0.
    """
    q = z_square * side.scale
    # ω₊ = u / (1 + q); and since ω₋ ω₊ = x̄² / (1 + q), ω₋ = x̄² / u.
    u = side.mean + q / 2 + jnp.sqrt(q * (side.variance + q / 4))
    return over(side.mean * side.mean, u), jnp.minimum(u / (1 + q), 1)


class _Omega(IndexPolicy):
    rho: ArrayLike

    def _check(self) -> None:
        checks.hyperparameter(self, "rho", 0, 1e6, low_excluded=True)

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        z_square = 2 * self.rho * jnp.log((state.rounds + 2).astype(jnp.float32))
        reward, cost = self.sides(state)
        return over(interval(reward, z_square)[1], interval(cost, z_square)[0])

    def sides(self, state: ArmStatistics) -> tuple[Side, Side]:
        """Returns the quantities from which the intervals of reward and cost are computed."""
        raise NotImplementedError


@pytree
class OmegaUCB(_Omega):
    """ω-UCB (Heyden et al., KDD 2024): optimistic reward over optimistic cost, with asymmetric confidence intervals.

    In round t, pull the arm with the largest ω₊(r̄_i) / ω₋(c̄_i), where ω₋ and ω₊ are the ends of Wilson's interval,

        ω_±(x̄) = Bq / 2A ± √((Bq / 2A)² − C / A),   A = n + z²,   Bq = 2n x̄ + z²,   C = n x̄²,   z = √(2ρ ln(t + 1)).

    Reference: Heyden et al., "Budgeted Multi-Armed Bandits with Asymmetric Confidence Intervals", KDD 2024.

    Side information: none.

    Guarantee: regret O(ln B) in the source for ρ ≥ 1. For the default ρ = 1/4 there is no logarithmic bound.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull, and explores too much or
    too little if most costs are far below it.

    Deviations from the source: the source does not define the index for ω₋(c̄_i) = 0, where the arm has not cost anything yet.
    Here it is infinite, and the arm is explored before the others (see `index.choose`).

    Args:
        rho: ρ > 0, which determines the width of the intervals; 1/4 and 1 in the source.

    Example:
        >>> OmegaUCB(rho=1.0)  # the wider of the source's two intervals
        OmegaUCB(rho=1.0)
    """

    bounded_costs: ClassVar[bool] = True

    rho: ArrayLike = 1 / 4

    def sides(self, state: ArmStatistics) -> tuple[Side, Side]:
        def side(x: jax.Array) -> Side:
            return Side(mean=x, variance=x * (1 - x), scale=1 / state.n)

        return side(state.reward_mean), side(state.cost_mean)


@pytree
class OmegaStarUCB(_Omega):
    """ω*-UCB (Heyden et al., KDD 2024): ω-UCB with narrower intervals where feedback varies less than Bernoulli feedback.

    As ω-UCB, but with η̂z² in place of z², where

        η̂ = min{1, s² / [n/(n − 1) · x̄(1 − x̄)]}   after 30 or more pulls of the arm, and 1 before,

    and s² is the sample variance of the arm's rewards or of its costs. On Bernoulli arms η̂ = 1, and this is ω-UCB.

    Reference: Heyden et al., "Budgeted Multi-Armed Bandits with Asymmetric Confidence Intervals", KDD 2024.

    Side information: none.

    Guarantee: that of ω-UCB on Bernoulli arms, where the two are the same: O(ln B) for ρ ≥ 1. None known to us on other arms.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull, and explores too much or
    too little if most costs are far below it.

    Deviations from the source: the source leaves two cases open. Here η̂ = 1 where x̄ is 0 or 1. An arm with ω₋(c̄_i) = 0,
    which has not cost anything yet, has an infinite index and is explored before the others (see `index.choose`).

    Args:
        rho: ρ > 0, which determines the width of the intervals; 1/4 and 1 in the source.

    Example:
        >>> OmegaStarUCB(rho=1.0)  # the wider of the source's two intervals
        OmegaStarUCB(rho=1.0)
    """

    variances: ClassVar[bool] = True
    bounded_costs: ClassVar[bool] = True

    rho: ArrayLike = 1 / 4

    def sides(self, state: ArmStatistics) -> tuple[Side, Side]:
        def side(x: jax.Array, rest: jax.Array) -> Side:
            # s² (n − 1)/n = x̄(1 − x̄) − (the average of x(1 − x)). The average is 0 for Bernoulli feedback.
            variance = x * (1 - x)
            eta = jnp.where(variance > 0, 1 - rest / jnp.where(variance > 0, variance, 1), 1)
            return Side(mean=x, variance=variance, scale=jnp.where(state.n >= 30, jnp.clip(eta, 0, 1), 1) / state.n)

        return side(state.reward_mean, state.reward_rest), side(state.cost_mean, state.cost_rest)
