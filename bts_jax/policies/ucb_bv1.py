"""UCB-BV1: an upper confidence bound for variable costs, given a lower bound on them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax.policies.index import ArmStatistics, FloorPolicy, over
from bts_jax.pytrees import pytree
from bts_jax.random import rounded, settled


class Kept(NamedTuple):
    ratio: jax.Array  # [K] r̄/c̄, infinite for c̄ = 0
    width: jax.Array  # [K] 1/√n


@pytree
class UCBBV1(FloorPolicy):
    """UCB-BV1 (Ding et al., AAAI 2013).

    In round t, pull the arm with the largest

        r̄_i / c̄_i + (1 + 1/λ) · e_i / (λ − e_i),   e_i = √(ln(t − 1) / n_i).

    Told in advance: λ, a lower bound on the expected costs.

    Where the source is silent: an arm with e_i ≥ λ or c̄_i = 0 has an infinite index, and is explored before the others
    (see `index.choose`).

    Args:
        min_cost: λ > 0; the bandit's smallest expected cost unless it is given.

    Example:
        >>> UCBBV1(min_cost=0.1)  # whatever the bandit's smallest expected cost is
        UCBBV1(min_cost=0.1)
    """

    min_cost: ArrayLike | None = None

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        arms, floor = state.kept, state.fact
        log_t = jnp.log(jnp.maximum(state.rounds, 1).astype(jnp.float32))
        e = rounded(settled(jnp.sqrt(log_t)) * arms.width)
        return arms.ratio + over(settled(1 + 1 / floor) * e, floor - e)

    @staticmethod
    def keep(n: jax.Array, reward_mean: jax.Array, cost_mean: jax.Array) -> Kept:
        return Kept(ratio=over(reward_mean, cost_mean), width=1 / jnp.sqrt(n))
