"""UCB-BV2: an upper confidence bound for variable costs, with a lower bound on them taken from what was seen."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bts_jax.policies.index import ArmStatistics, IndexPolicy, over
from bts_jax.pytrees import pytree
from bts_jax.random import rounded, settled


class Kept(NamedTuple):
    ratio: jax.Array  # [K] r̄/c̄, infinite for c̄ = 0
    width: jax.Array  # [K] 1/√n
    cost: jax.Array  # [K] c̄


@pytree
class UCBBV2(IndexPolicy):
    """UCB-BV2 (Ding et al., AAAI 2013).

    In round t, pull the arm with the largest

        r̄_i / c̄_i + (1/λ_t) · (1 + 1/(λ_t − e_i)) · e_i,   e_i = √(ln(t − 1) / n_i),   λ_t = min_j c̄_j.

    Told in advance: nothing. It is UCB-BV1 with an estimate in place of the lower bound on the costs. (The introduction of Xia
    et al. 2015 says of both that they need the smallest expected cost. That is so for UCB-BV1 alone.)

    Where the source is silent: an arm with e_i ≥ λ_t has an infinite index, and is explored before the others (see
    `index.choose`). So the arms are pulled in turn as long as one of them has not cost anything yet.

    Example:
        >>> UCBBV2()  # nothing to choose
        UCBBV2()
    """

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        arms: Kept = state.kept
        log_t = jnp.log(jnp.maximum(state.rounds, 1).astype(jnp.float32))
        e = rounded(settled(jnp.sqrt(log_t)) * arms.width)
        floor = settled(arms.cost.min())
        return arms.ratio + rounded((e + over(e, floor - e)) * over(jnp.float32(1), floor))

    @staticmethod
    def keep(n: jax.Array, reward_mean: jax.Array, cost_mean: jax.Array) -> Kept:
        return Kept(ratio=over(reward_mean, cost_mean), width=1 / jnp.sqrt(n), cost=cost_mean)
