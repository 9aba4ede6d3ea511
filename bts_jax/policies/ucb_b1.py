"""UCB-B1: an upper confidence bound on the ratio for known variances of reward and cost."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies.index import ArmStatistics, IndexPolicy, over
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

SPREAD = 2.0  # L: the radius of a variance V is √(L V α ln t / n)


@pytree
class UCBB1(IndexPolicy):
    """UCB-B1 (Cayci et al., AISTATS 2020): a confidence bound on the ratio for known variances.

    Let V_i^r, V_i^c and ω_i V_i^c be the variances of the reward and of the cost of one pull, and
    their covariance. In round t, pull the arm with the largest

        r̂_i + 1.4 (ε_i + (r̂_i − ω_i) η_i) / c̄_i,   r̂_i = r̄_i / c̄_i,
        ε_i = √(2 (V_i^r − ω_i² V_i^c) α ln t / n_i) + 2Mα ln t / (3n_i),
        η_i = √(2 V_i^c α ln t / n_i) + 2Mα ln t / (3n_i),

    where M is 1 for values in [0, 1], and 0 for jointly normal ones. An arm is explored first (see
    `index.choose`) unless it passes a test of stability: η_i < r̄_i with `reward_test = 1`, or
    η_i < c̄_i (λ − 1)/λ with `reward_test = 0`.

    Reference: Cayci, Eryilmaz and Srikant, "Budget-Constrained Bandits over General Cost and
    Reward Distributions", AISTATS 2020.

    Side information: the variances and covariances, as hyperparameters. By default they are the
    largest variance of values in [0, 1], and 0: then the policy has none.

    Guarantee: regret O(ln B) in the source, for α > 2, the source's test (`reward_test = 0`), M =
    1, and the true variances and covariances. For other settings we know of none.

    Deviations from the source: the rule is taken from the public program dimassores/cbandits, which
    has α = 2.1, λ = 1.28, and M = 0 unless told otherwise, which is for jointly normal rewards and
    costs. Here α is 2.01 as in `UCBB2`, and an arm with c̄_i = 0 is explored first. The test of the
    reward is that of `UCBB2`, of which the program of Heyden et al. (KDD 2024) is the source. On 8
    random bandits with ten arms, with means from 0.1 to 0.9 and a budget of 30,000, it has 0.4
    times the regret of the source's test. M = 1 has 1.35 times the regret of M = 0, which is the
    default.

    Args:
        reward_variance: V^r, from 0 to 1/4: one number for all arms, or a list with one for each.
            [K]
        cost_variance: V^c, in the same way. [K]
        covariance: of reward and cost, from −1/4 to 1/4, in the same way. [K]
        largest: M, from 0 to 1.
        alpha: α, which determines the confidence.
        stability: λ > 1, which determines how precisely the cost must be known if `reward_test` is
            0.
        reward_test: 1 to compare η_i with r̄_i, 0 to compare it with c̄_i (λ − 1)/λ.

    Example:
        >>> UCBB1(reward_variance=[0.1, 0.2], cost_variance=0.05).reward_variance
        (0.1, 0.2)
    """

    bounded_costs: ClassVar[bool] = True

    reward_variance: ArrayLike = 0.25
    cost_variance: ArrayLike = 0.25
    covariance: ArrayLike = 0.0
    largest: ArrayLike = 0.0
    alpha: ArrayLike = 2.01
    stability: ArrayLike = 1.28
    reward_test: ArrayLike = 1.0

    def _check(self) -> None:
        checks.per_arm(self, "reward_variance", 0, 0.25)
        checks.per_arm(self, "cost_variance", 0, 0.25)
        checks.per_arm(self, "covariance", -0.25, 0.25)
        checks.hyperparameter(self, "largest", 0, 1)
        checks.hyperparameter(self, "alpha", 0, 1e6)
        checks.hyperparameter(self, "stability", 1, 1e6, low_excluded=True)
        checks.switch(self, "reward_test")

    def side_info(self, problem: Problem) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The variance of the reward that the cost does not predict, that of the cost, and ω. [K]
        each
        """
        checks.fits_arms(self, problem.num_arms)
        variance, cost_variance, covariance = (
            jnp.broadcast_to(jnp.asarray(value, jnp.float32), (problem.num_arms,))
            for value in (self.reward_variance, self.cost_variance, self.covariance)
        )
        varies = cost_variance > 0
        slope = jnp.where(varies, covariance / jnp.where(varies, cost_variance, 1), 0)
        rest = jnp.maximum(variance - slope * slope * cost_variance, 0)
        return rest, cost_variance, slope

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        rest_variance, cost_variance, slope = state.side_info
        reward, cost = state.reward_mean, state.cost_mean
        ratio = over(reward, cost)
        level = self.alpha * jnp.log((state.rounds + 1).astype(jnp.float32)) / state.n
        most = (2 / 3) * self.largest * level
        reward_radius = jnp.sqrt(SPREAD * rest_variance * level) + most
        cost_radius = jnp.sqrt(SPREAD * cost_variance * level) + most
        slack = 1.4 * over(reward_radius + (ratio - slope) * cost_radius, cost)
        known = 1 - 1 / jnp.asarray(self.stability, jnp.float32)
        limit = jnp.where(checks.is_on(self.reward_test), reward, known * cost)
        return jnp.where(cost_radius < limit, ratio + slack, jnp.inf)
