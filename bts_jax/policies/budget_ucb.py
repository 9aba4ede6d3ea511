"""Budget-UCB: an upper confidence bound on the ratio, given a lower bound on the costs."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax.policies.index import ArmStatistics, FloorPolicy, over
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class BudgetUCB(FloorPolicy):
    """Budget-UCB (Xia et al., ACML 2015): an upper confidence bound on the ratio, given a lower
    bound on the costs.

    In round t, pull the arm with the largest

        r̄_i / c̄_i + e_i / c̄_i + (e_i / c̄_i) · min{r̄_i + e_i, 1} / max{c̄_i − e_i, λ},
        e_i = √(2 ln(t − 1) / n_i).

    Reference: Xia et al., "Budgeted Bandit Problems with Continuous Random Costs", ACML 2015.

    Side information: λ, a lower bound on the expected costs.

    Guarantee: regret O(ln B) in the source, if λ is a lower bound on the expected costs.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the source does not define the index for c̄_i = 0. Here it is
    infinite, and the arm is explored before the others (see `index.choose`). If λ = 0, as on a
    bandit with an arm that never costs anything, the same holds for every arm with c̄_i ≤ e_i.

    Args:
        min_cost: λ > 0; by default the bandit's smallest expected cost.

    Example:
        >>> BudgetUCB(min_cost=0.1)  # whatever the bandit's smallest expected cost is
        BudgetUCB(min_cost=0.1)
    """

    bounded_costs: ClassVar[bool] = True

    min_cost: ArrayLike | None = None

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        log_t = jnp.log(jnp.maximum(state.rounds, 1).astype(jnp.float32))
        e = jnp.sqrt(2 * log_t) * (1 / jnp.sqrt(state.n))
        dearest = over(
            jnp.minimum(state.reward_mean + e, 1), jnp.maximum(state.cost_mean - e, state.side_info)
        )
        # Without uncertainty (e = 0) there is no slack, even if the ratio is infinite.
        slack = jnp.where(e > 0, e * dearest, 0)
        return over(state.reward_mean + e + slack, state.cost_mean)
