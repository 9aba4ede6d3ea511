"""UCBBwK: a linear program of confidence bounds."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.policies.confidence import Bounds
from bts_jax.policies.index import choose
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class UCBBwKState(NamedTuple):
    bounds: Bounds
    budget: jax.Array  # [d]


@pytree
class UCBBwK:
    """UCB-BwK (Agrawal and Devanur, EC 2014, Section 4), for several resources.

    In each round, solve the linear program

        maximize Σ_i u_i x_i   subject to   Σ_i ℓ_ij x_i ≤ (1 − shrink) B_j,   x ≥ 0

    with the upper confidence bounds u on the rewards and the lower confidence bounds ℓ on the costs
    of `PrimalDualBwK`. Pull arm i with probability x_i / Σ x. Each arm is pulled once first.

    Reference: Agrawal and Devanur, "Bandits with Concave Rewards and Convex Knapsacks", EC 2014.

    Side information: the budgets. The time of a pull is known, if time is a resource.

    Guarantee: none known to us for the default `shrink`. With the ν and the shrink of the source
    the regret is O(√(K OPT) + OPT √(K/B)) up to logarithms.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the source leaves constants open; here ν = scale · log(dKB), and the
    default factor was chosen on the same problems as that of `PrimalDualBwK`. The source reduces
    all budgets except time by ε = √(νK/B) + log(T) νK/B, so that they last until the end. For ten
    arms and a budget of 1,000 this ε is about 1/2, and half of the budget would be lost. Here
    `shrink` is 0 by default, and a run ends when a budget is used up. The source pulls no arm with
    probability 1 − Σ x; here such rounds are left out, and `WithNull` adds an arm that does
    nothing. Arms whose bounds on all costs are 0 are pulled first, the one with the fewest pulls
    before the others.

    Args:
        scale: the factor in ν.
        shrink: the part of each budget, except time, that the linear program leaves aside.

    Example:
        >>> UCBBwK(scale=0.1, shrink=0.05)  # explores less, and saves a twentieth of the budgets
        UCBBwK(scale=0.1, shrink=0.05)
    """

    requires: ClassVar[tuple[str, ...]] = ("budget",)
    several_resources: ClassVar[bool] = True
    bounded_costs: ClassVar[bool] = True

    scale: ArrayLike = 0.01
    shrink: ArrayLike = 0.0

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 0, 1e6)
        checks.hyperparameter(self, "shrink", 0, 1, high_excluded=True)

    def init(self, problem: Problem) -> UCBBwKState:
        budget = resources.budgets(problem)
        smaller = budget * (1 - jnp.asarray(self.shrink, jnp.float32))
        if problem.time_cost is not None:
            smaller = smaller.at[-1].set(budget[-1])
        return UCBBwKState(Bounds.zeros(problem, self.scale), smaller)

    def __call__(self, state: UCBBwKState, key: jax.Array) -> tuple[jax.Array, UCBBwKState]:
        reward, cost, pulls = state.bounds.reward, state.bounds.cost, state.bounds.arms.pulls
        free = ~(cost > 0).any(-1)  # such an arm would make the program unbounded
        mix = resources.solve(jnp.where(free, 0, reward), cost, state.budget)
        arm = mix.choose(random.bits(key)[0], reward)
        explore = free | (pulls == 0)
        return jnp.where(explore.any(), choose(jnp.where(explore, jnp.inf, 0), pulls), arm), state

    def update(
        self, state: UCBBwKState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> UCBBwKState:
        return state._replace(bounds=state.bounds.record(arm, reward, cost))
