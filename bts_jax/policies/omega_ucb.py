"""ω-UCB, ω*-UCB and patient ω-UCB: optimistic reward over optimistic cost, with asymmetric
confidence intervals.
"""

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
        z_square = 2 * self.widths(state) * jnp.log((state.rounds + 2).astype(jnp.float32))
        reward, cost = self.sides(state)
        return over(interval(reward, z_square)[1], interval(cost, z_square)[0])

    def widths(self, state: ArmStatistics) -> ArrayLike:
        """ρ, one number or one for each arm. [] or [K]"""
        return self.rho

    def sides(self, state: ArmStatistics) -> tuple[Side, Side]:
        """Returns the quantities from which the intervals of reward and cost are computed."""
        raise NotImplementedError


@pytree
class OmegaUCB(_Omega):
    """ω-UCB (Heyden et al., KDD 2024): optimistic reward over optimistic cost, with asymmetric
    confidence intervals.

    In round t, pull the arm with the largest ω₊(r̄_i) / ω₋(c̄_i), where ω₋ and ω₊ are the ends of
    Wilson's interval,

        ω_±(x̄) = Bq / 2A ± √((Bq / 2A)² − C / A),   A = n + z²,   Bq = 2n x̄ + z²,   C = n x̄²,
        z = √(2ρ ln(t + 1)).

    Reference: Heyden et al., "Budgeted Multi-Armed Bandits with Asymmetric Confidence Intervals",
    KDD 2024.

    Side information: none.

    Guarantee: regret O(ln B) in the source for ρ ≥ 1. For the default ρ = 1/4 there is no
    logarithmic bound.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the source does not define the index for ω₋(c̄_i) = 0, where the arm
    has not cost anything yet. Here it is infinite, and the arm is explored before the others (see
    `index.choose`).

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
    """ω*-UCB (Heyden et al., KDD 2024): ω-UCB with narrower intervals where feedback varies less
    than Bernoulli feedback.

    As ω-UCB, but with η̂z² in place of z², where

        η̂ = min{1, s² / [n/(n − 1) · x̄(1 − x̄)]}   after 30 or more pulls of the arm, and 1 before,

    and s² is the sample variance of the arm's rewards or of its costs. On Bernoulli arms η̂ = 1,
    and this is ω-UCB.

    Reference: Heyden et al., "Budgeted Multi-Armed Bandits with Asymmetric Confidence Intervals",
    KDD 2024.

    Side information: none.

    Guarantee: that of ω-UCB on Bernoulli arms, where the two are the same: O(ln B) for ρ ≥ 1. None
    known to us on other arms.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the source leaves two cases open. Here η̂ = 1 where x̄ is 0 or 1. An
    arm with ω₋(c̄_i) = 0, which has not cost anything yet, has an infinite index and is explored
    before the others (see `index.choose`).

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
            # s² (n − 1)/n = x̄(1 − x̄) − (the average of x(1 − x)). The average is 0 for Bernoulli
            # feedback.
            variance = x * (1 - x)
            eta = jnp.where(variance > 0, 1 - rest / jnp.where(variance > 0, variance, 1), 1)
            return Side(
                mean=x,
                variance=variance,
                scale=jnp.where(state.n >= 30, jnp.clip(eta, 0, 1), 1) / state.n,
            )

        return side(state.reward_mean, state.reward_rest), side(state.cost_mean, state.cost_rest)


@pytree
class PatientOmegaUCB(_Omega):
    """Patient ω-UCB: a greedier ω*-UCB that is patient with arms it hardly knows. Ours.

    As ω*-UCB, with another η̂ and with a ρ_i of its own for each arm:

        η̂ = 1 − n / (n + doubt) · (1 − s² / [x̄(1 − x̄)]),
        ρ_i = ρ · (1 + (patience − 1) · spell / (C_i / η̂_i^c + spell)),

    where s² is the variance of the arm's n rewards or costs so far, C_i is what was paid for the
    arm, and η̂_i^c is the η̂ of its costs. Where x̄ is 0 or 1, η̂ = 1.

    The ideas:

    - With ρ = 1/4, ω*-UCB explores less than any policy with a logarithmic regret must. Its median
      regret is small for this reason, and its mean is large, because it loses some runs: a cheap
      arm has paid off early, and the best arm was given up after a few pulls. Patience with an arm
      that is hardly known is cheap, and saves many of these runs. Afterwards the intervals can be
      narrower than those of ω*-UCB.
    - What is known about an arm grows with C_i / η̂, the number of Bernoulli costs that would say
      as much as its costs do. So patience ends soon for arms whose costs vary little.
    - Narrower intervals begin with the first pulls, and not after 30 of them. `doubt` pulls count
      as Bernoulli.

    Reference: ours, after Heyden et al., KDD 2024. The constants were chosen on random problems
    (notebook 07).

    Side information: none.

    Guarantee: none. As for ω*-UCB with its default ρ, regret may grow faster than logarithmically.

    Largest cost: as for ω*-UCB. C_i is in multiples of the largest cost of one pull.

    Args:
        rho: ρ > 0, which determines the width of the intervals in the long run.
        patience: how many times larger ρ_i is at first, at least 1.
        spell: after how much cost half of the patience is gone, positive.
        doubt: after how many pulls the observed variance counts half, positive.

    Example:
        >>> PatientOmegaUCB(patience=8, spell=1)  # more patient, for a shorter time
        PatientOmegaUCB(rho=0.125, patience=8.0, spell=1.0, doubt=5.0)
    """

    variances: ClassVar[bool] = True
    bounded_costs: ClassVar[bool] = True

    rho: ArrayLike = 1 / 8
    patience: ArrayLike = 6.0
    spell: ArrayLike = 2.0
    doubt: ArrayLike = 5.0

    def _check(self) -> None:
        super()._check()
        checks.hyperparameter(self, "patience", 1, 1000)
        checks.hyperparameter(self, "spell", 0, 1e6, low_excluded=True)
        checks.hyperparameter(self, "doubt", 0, 1e6, low_excluded=True)

    def widths(self, state: ArmStatistics) -> ArrayLike:
        known = over(state.totals[1], self.eta(state, state.cost_mean, state.cost_rest))
        return self.rho * (1 + (jnp.asarray(self.patience) - 1) * self.spell / (known + self.spell))

    def sides(self, state: ArmStatistics) -> tuple[Side, Side]:
        def side(x: jax.Array, rest: jax.Array) -> Side:
            return Side(mean=x, variance=x * (1 - x), scale=self.eta(state, x, rest) / state.n)

        return side(state.reward_mean, state.reward_rest), side(state.cost_mean, state.cost_rest)

    def eta(self, state: ArmStatistics, x: jax.Array, rest: jax.Array) -> jax.Array:
        """η̂ of the rewards or of the costs, from their average and that of x(1 − x). [K]"""
        variance = x * (1 - x)
        less = jnp.where(variance > 0, rest / jnp.where(variance > 0, variance, 1), 0)
        return jnp.clip(1 - state.n / (state.n + self.doubt) * less, 0, 1)
