"""Tempered BTS: budgeted Thompson sampling with a posterior that is sharper or flatter than the
Bayesian posterior.
"""

from typing import ClassVar

from bts_jax import checks
from bts_jax.policies.thompson import LargestRatio
from bts_jax.posteriors.tempered_beta import TemperedBeta, check_power
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class TemperedBTS(LargestRatio):
    """BTS (Xia et al., IJCAI 2015) with the likelihood raised to a power κ_t, which may depend on
    the number of pulls t.

    `BTS` with the posteriors `TemperedBeta`: for every arm i

        θ_i^r ~ Beta(κ_t S_i^r + α^r, κ_t F_i^r + β^r),
        θ_i^c ~ Beta(κ_t S_i^c + α^c, κ_t F_i^c + β^c),

        κ_t = 1 + (κ − 1) (1 + t/h)^(−d),

    where t is the number of pulls of all arms so far. With κ > 1 the posterior is sharper than the
    Bayesian posterior, and the policy explores less. With κ < 1 it explores more.

    - κ = 1 is `BTS`, bit for bit, for all h and d.
    - d = 0, the default, is a constant power: κ_t = κ.
    - d > 0 is a schedule: κ_t goes from κ to 1. Half of its excess over 1 is left after h (2^(1/d)
      − 1) pulls. In the long run the policy becomes BTS.

    A constant κ > 1 that is good for one budget gains less, or loses, at a much larger budget: the
    policy settles on an arm before it knows enough. With d > 0 this effect ends as κ_t approaches
    1. Good values of κ, h, d and the prior counts depend on the problems and on the budget.
    `bts_jax.learn.fit` learns them. By default it learns κ and the prior counts. It also learns the
    schedule if it starts with d > 0 and is given `ranges=TemperedBTS.learnable_schedule`. It learns
    nothing about budgets larger than the given one, so learn at the largest budget that matters
    (notebook 05).

    Reference: Xia et al., "Thompson Sampling for Budgeted Multi-Armed Bandits", IJCAI 2015, for
    BTS.

    Side information: none.

    Guarantee: that of `BTS` for κ = 1 and uniform priors, which are the default. For other settings
    we know of no guarantee.

    Deviations from the source: the power κ_t is ours.

    Args:
        reward_alpha, reward_beta: prior successes and failures of rewards; see
            `bts_jax.posteriors.TemperedBeta`.
        cost_alpha, cost_beta: the same for costs.
        sharpness: κ, from 0.01 to 100.
        horizon: h, from 1 to 10⁹ pulls.
        decay: d, from 0 to 10.

    Example:
        >>> import jax, bts_jax
        >>> bandit = bts_jax.Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9])
        >>> run = bts_jax.simulate(TemperedBTS(sharpness=3.0), bandit, 100, jax.random.key(0))
        >>> run.cost.tolist()
        [100.0]
        >>> schedule = TemperedBTS(sharpness=5.0, horizon=100.0, decay=1.0)
        >>> # 1 + 4 / (1 + t/100)
        >>> [round(float(schedule.reward.power(t)), 2) for t in (0, 100, 300, 9900)]
        [5.0, 3.0, 2.0, 1.04]
    """

    learnable: ClassVar[dict[str, tuple[float, float]]] = dict.fromkeys(
        ("reward_alpha", "reward_beta", "cost_alpha", "cost_beta"), (0.5, 1000.0)
    ) | {"sharpness": (0.05, 50.0)}
    learnable_schedule: ClassVar[dict[str, tuple[float, float]]] = learnable | {
        "horizon": (10.0, 1e6),
        "decay": (0.05, 5.0),
    }

    reward_alpha: ArrayLike = 1.0
    reward_beta: ArrayLike = 1.0
    cost_alpha: ArrayLike = 1.0
    cost_beta: ArrayLike = 1.0
    sharpness: ArrayLike = 1.0
    horizon: ArrayLike = 1000.0
    decay: ArrayLike = 0.0

    def _check(self) -> None:
        for name in ("reward_alpha", "reward_beta", "cost_alpha", "cost_beta"):
            checks.hyperparameter(self, name, 0.5, 1e7)
        check_power(self)

    @property
    def reward(self) -> TemperedBeta:
        """The posterior of expected rewards."""
        return TemperedBeta(
            self.reward_alpha, self.reward_beta, self.sharpness, self.horizon, self.decay
        )

    @property
    def cost(self) -> TemperedBeta:
        """The posterior of expected costs."""
        return TemperedBeta(
            self.cost_alpha, self.cost_beta, self.sharpness, self.horizon, self.decay
        )
