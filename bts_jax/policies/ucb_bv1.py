"""UCB-BV1: an upper confidence bound for variable costs, given a lower bound on them."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies.index import ArmStatistics, choose, over
from bts_jax.pytrees import pytree
from bts_jax.random import rounded, settled


class Kept(NamedTuple):
    ratio: jax.Array  # [K] r̄/c̄, infinite for c̄ = 0
    width: jax.Array  # [K] 1/√n


class UCBBV1State(NamedTuple):
    arms: ArmStatistics
    min_cost: jax.Array  # λ


@pytree
class UCBBV1:
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

    told: ClassVar[tuple[str, ...]] = ("min_cost",)
    ignores_no_pull: ClassVar[bool] = True

    min_cost: ArrayLike | None = None

    def _check(self) -> None:
        if self.min_cost is not None:
            checks.hyperparameter(self, "min_cost", 0, 1, low_excluded=True)

    def init(self, problem: Problem) -> UCBBV1State:
        min_cost = problem.min_cost if self.min_cost is None else self.min_cost
        return UCBBV1State(arms=ArmStatistics.zeros(problem.num_arms, self.keep), min_cost=jnp.asarray(min_cost, jnp.float32))

    def __call__(self, state: UCBBV1State, key: jax.Array) -> tuple[jax.Array, UCBBV1State]:
        return choose(self.index(state), state.arms.pulls), state

    def index(self, state: UCBBV1State) -> jax.Array:
        """The index of each arm. [K]"""
        arms, floor = state.arms, state.min_cost
        log_t = jnp.log(jnp.maximum(arms.rounds, 1).astype(jnp.float32))
        e = rounded(settled(jnp.sqrt(log_t)) * arms.kept.width)
        return arms.kept.ratio + over(settled(1 + 1 / floor) * e, floor - e)

    @staticmethod
    def keep(n: jax.Array, reward_mean: jax.Array, cost_mean: jax.Array) -> Kept:
        return Kept(ratio=over(reward_mean, cost_mean), width=1 / jnp.sqrt(n))

    def update(
        self, state: UCBBV1State, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> UCBBV1State:
        return state._replace(arms=state.arms.record(arm, reward, cost, self.keep))
