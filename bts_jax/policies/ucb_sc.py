"""UCB-SC+: the largest ratio over a disc around the average reward and cost."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax import random
from bts_jax.policies.index import ArmStatistics, IndexPolicy, over
from bts_jax.pytrees import pytree


@pytree
class UCBSCPlus(IndexPolicy):
    """UCB-SC+ (Watanabe et al., IEICE 2018): the largest ratio over a disc around the average
    reward and cost.

    In round t, pull the arm with the largest

        (r̄_i + α_i c̄_i) / (c̄_i − α_i r̄_i),   α_i = √(a_i / (r̄_i² + c̄_i² − a_i)),
        a_i = ln(t / n_i) / (2n_i).

    This is the largest x/y over the disc of radius √a_i around (r̄_i, c̄_i). It is computed as the
    slope of the disc's tangent, [r̄c̄ + √a √(r̄² + c̄² − a)] / (c̄² − a). Both are equal, but the
    second has no cancellation.

    Reference: Watanabe et al., IEICE 2018.

    Side information: none.

    Guarantee: none known to us.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the source does not define the index for c̄_i ≤ √a_i. Here it is
    infinite, and the arm is explored before the others (see `index.choose`).

    Example:
        >>> UCBSCPlus()  # nothing to choose
        UCBSCPlus()
    """

    bounded_costs: ClassVar[bool] = True

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        reward, cost, scale = state.reward_mean, state.cost_mean, 1 / state.n
        t = (state.rounds + 1).astype(jnp.float32)
        log = jnp.maximum(random.log(t * scale), 0)
        radius = jnp.sqrt(0.5 * log * scale)
        power = (cost - radius) * (cost + radius)  # c̄² − a
        tangent = jnp.sqrt(jnp.maximum(reward * reward + power, 0))
        return over(reward * cost + radius * tangent, power)
