"""UCB-B2C: UCB-B2 for rewards and costs that may be correlated."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.policies.index import ArmStatistics, IndexPolicy, over
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

LEAST_VARIANCE = 1e-9  # of the costs; below, ω is 0


@pytree
class UCBB2C(IndexPolicy):
    """UCB-B2C (Cayci et al., AISTATS 2020): UCB-B2 for rewards and costs that may be correlated.

    The part of the reward that the cost predicts, ω_i c, adds nothing to the uncertainty of the
    ratio. In round t, pull the arm with the largest

        r̂_i + 1.4 (ε_i + max{r̂_i − ω_i, 0} η_i) / c̄_i,   r̂_i = r̄_i / c̄_i,   ω_i = W_i / V_i^c,
        ε_i = √(2 (V_i^r − ω_i² V_i^c) α ln t / n_i) + 3 (1 + ω̄) α ln t / n_i,
        η_i = √(2 V_i^c α ln t / n_i) + 3α ln t / n_i,

    with the averages, the variances V_i and the covariances W_i that were observed. An arm is
    explored before the others (see `index.choose`) unless it passes a test of stability: η_i < r̄_i
    with `reward_test = 1`, or η_i < c̄_i (λ − 1)/λ with `reward_test = 0`.

    Reference: Cayci, Eryilmaz and Srikant, "Budget-Constrained Bandits over General Cost and
    Reward Distributions", AISTATS 2020, Section 6.2.

    Side information: none.

    Guarantee: regret O(ln B) in the source, for α > 2, the source's test (`reward_test = 0`), and
    an ω̄ that is an upper bound on the absolute values of all ω_i. For other settings we know of
    none.

    Deviations from the source: the rule is taken from the public program dimassores/cbandits, which
    has α = 2.1, λ = 1.28 and ω̄ = 2, and costs of at least a known amount. Here α is 2.01 as in
    `UCBB2`, and an arm with c̄_i = 0 is explored first. The test of the reward is that of `UCBB2`,
    of which the program of Heyden et al. (KDD 2024) is the source. On 8 random bandits with ten
    arms, with means from 0.1 to 0.9 and a budget of 30,000, it has 0.4 times the regret of the
    source's test; ω̄ = 1 has 0.95 times the regret of ω̄ = 2. With budgets of 1,000 no arm passes
    either test, and the arms are pulled in turn. Variances are divided by n and not by n − 1. Where
    costs do not vary, ω_i is 0.

    Args:
        alpha: α, which determines the confidence.
        stability: λ > 1, which determines how precisely the cost must be known if `reward_test` is
            0.
        reward_test: 1 to compare η_i with r̄_i, 0 to compare it with c̄_i (λ − 1)/λ.
        omega: ω̄, from 0 to 10⁶.

    Example:
        >>> UCBB2C(reward_test=0)  # with the test of Cayci et al.
        UCBB2C(alpha=2.01, stability=1.28, reward_test=0.0, omega=2.0)
    """

    bounded_costs: ClassVar[bool] = True
    variances: ClassVar[bool] = True
    products: ClassVar[bool] = True

    alpha: ArrayLike = 2.01
    stability: ArrayLike = 1.28
    reward_test: ArrayLike = 1.0
    omega: ArrayLike = 2.0

    def _check(self) -> None:
        checks.hyperparameter(self, "alpha", 0, 1e6)
        checks.hyperparameter(self, "stability", 1, 1e6, low_excluded=True)
        checks.switch(self, "reward_test")
        checks.hyperparameter(self, "omega", 0, 1e6)

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        reward, cost, n = state.reward_mean, state.cost_mean, state.n
        ratio = over(reward, cost)
        # V = x̄(1 − x̄) − (the average of x(1 − x)). The average is 0 for Bernoulli feedback.
        reward_variance = jnp.maximum(reward * (1 - reward) - state.reward_rest, 0)
        cost_variance = jnp.maximum(cost * (1 - cost) - state.cost_rest, 0)
        covariance = state.product_mean - reward * cost
        varies = cost_variance > LEAST_VARIANCE
        slope = jnp.where(varies, covariance / jnp.where(varies, cost_variance, 1), 0)
        rest_variance = jnp.maximum(reward_variance - slope * slope * cost_variance, 0)

        level = self.alpha * jnp.log((state.rounds + 1).astype(jnp.float32)) / n
        reward_radius = jnp.sqrt(2 * rest_variance * level) + 3 * (1 + self.omega) * level
        cost_radius = jnp.sqrt(2 * cost_variance * level) + 3 * level
        slack = 1.4 * over(reward_radius + jnp.maximum(ratio - slope, 0) * cost_radius, cost)
        known = 1 - 1 / jnp.asarray(self.stability, jnp.float32)
        limit = jnp.where(checks.is_on(self.reward_test), reward, known * cost)
        return jnp.where(cost_radius < limit, ratio + slack, jnp.inf)
