"""PrimalDualBwK: confidence bounds and prices of the resources."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.policies.confidence import Bounds
from bts_jax.policies.index import choose, over
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class PrimalDualBwKState(NamedTuple):
    bounds: Bounds
    prices: resources.Prices


@pytree
class PrimalDualBwK:
    """PD-BwK as published (Badanidiyuru, Kleinberg and Slivkins, FOCS 2013, Algorithm 2), for
    several resources.

    Pull the arm with the largest ratio of an upper confidence bound on its reward to the price of
    its lower confidence bounds on costs,

        min{r̄_i + φ(r̄_i, n_i), 1} / Σ_j λ_j max{c̄_ij − φ(c̄_ij, n_i), 0} / B_j,
        φ(x, n) = √(νx/n) + ν/n.

    The prices λ_j begin equal. After each pull they are multiplied by (1 + ε)^(B ℓ_j / B_j), where
    ℓ_j is the lower confidence bound on the cost of the pulled arm and B the smallest budget, with
    ε = √(ln d / B). The budget of time counts as the number of rounds. Each arm is pulled once
    first, while the prices stay equal.

    Reference: Badanidiyuru, Kleinberg and Slivkins, "Bandits with Knapsacks", FOCS 2013 (Journal of
    the ACM 2018).

    Side information: the budgets. The time of a pull is known, if time is a resource.

    Guarantee: regret O(√(K OPT) + OPT √(K/B)) up to logarithms, for the ν of the source.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the source has ν = Θ(log(dKT)) and leaves the constant open. Here ν
    = scale · log(dKB). The default factor was chosen on problems of their own: it has the least
    regret at a budget of 1,000, on the kinds of problems of notebook 09. On shops it has a fifth to
    a quarter of the regret of 0.25, the factor of Xia et al. (IJCAI 2015). With one resource and
    that factor, the policy is their variant, `PDBwK`. The source multiplies costs by B / B_j and
    then takes confidence bounds. Here the bounds are multiplied by B / B_j, which makes them closer
    to the average. Arms whose price is 0 are pulled first, the one with the fewest pulls before the
    others.

    Args:
        scale: the factor in ν.

    Example:
        >>> PrimalDualBwK(scale=0.1)  # explores less
        PrimalDualBwK(scale=0.1)
    """

    requires: ClassVar[tuple[str, ...]] = ("budget",)
    several_resources: ClassVar[bool] = True
    bounded_costs: ClassVar[bool] = True

    scale: ArrayLike = 0.02

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 0, 1e6)

    def init(self, problem: Problem) -> PrimalDualBwKState:
        return PrimalDualBwKState(
            Bounds.zeros(problem, self.scale), resources.Prices.equal(problem)
        )

    def __call__(
        self, state: PrimalDualBwKState, key: jax.Array
    ) -> tuple[jax.Array, PrimalDualBwKState]:
        index = over(state.bounds.reward, state.prices.of(list(state.bounds.cost.T)))
        return choose(index, state.bounds.arms.pulls), state

    def update(
        self,
        state: PrimalDualBwKState,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> PrimalDualBwKState:
        # Prices rise after the first pulls.
        known = jnp.where(state.bounds.arms.pulls[arm] > 0, state.bounds.cost[arm], 0)
        return PrimalDualBwKState(state.bounds.record(arm, reward, cost), state.prices.after(known))
