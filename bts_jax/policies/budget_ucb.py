"""Budget-UCB: an upper confidence bound on the ratio, given a lower bound on the costs."""

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
    reward: jax.Array  # [K] r̄
    cost: jax.Array  # [K] c̄
    width: jax.Array  # [K] 1/√n


class BudgetUCBState(NamedTuple):
    arms: ArmStatistics
    min_cost: jax.Array  # λ


@pytree
class BudgetUCB:
    """Budget-UCB (Xia et al., ACML 2015).

    In round t, pull the arm with the largest

        r̄_i / c̄_i + e_i / c̄_i + (e_i / c̄_i) · min{r̄_i + e_i, 1} / max{c̄_i − e_i, λ},   e_i = √(2 ln(t − 1) / n_i).

    Told in advance: λ, a lower bound on the expected costs.

    Where the source is silent: an arm with c̄_i = 0 has an infinite index, and is explored before the others (see
    `index.choose`); so has every arm whose c̄_i ≤ e_i if λ = 0, as on a bandit with an arm that never costs anything.

    Args:
        min_cost: λ > 0; the bandit's smallest expected cost unless it is given.

    Example:
        >>> BudgetUCB(min_cost=0.1)  # whatever the bandit's smallest expected cost is
        BudgetUCB(min_cost=0.1)
    """

    told: ClassVar[tuple[str, ...]] = ("min_cost",)
    ignores_no_pull: ClassVar[bool] = True

    min_cost: ArrayLike | None = None

    def _check(self) -> None:
        if self.min_cost is not None:
            checks.hyperparameter(self, "min_cost", 0, 1, low_excluded=True)

    def init(self, problem: Problem) -> BudgetUCBState:
        min_cost = problem.min_cost if self.min_cost is None else self.min_cost
        arms = ArmStatistics.zeros(problem.num_arms, self.keep)
        return BudgetUCBState(arms=arms, min_cost=jnp.asarray(min_cost, jnp.float32))

    def __call__(self, state: BudgetUCBState, key: jax.Array) -> tuple[jax.Array, BudgetUCBState]:
        return choose(self.index(state), state.arms.pulls), state

    def index(self, state: BudgetUCBState) -> jax.Array:
        """The index of each arm. [K]"""
        arms: Kept = state.arms.kept
        log_t = jnp.log(jnp.maximum(state.arms.rounds, 1).astype(jnp.float32))
        e = rounded(settled(jnp.sqrt(2 * log_t)) * arms.width)
        dearest = over(jnp.minimum(arms.reward + e, 1), jnp.maximum(arms.cost - e, state.min_cost))
        # Where nothing is uncertain, e = 0, an infinite ratio does not count.
        slack = jnp.where(e > 0, rounded(e * dearest), 0)
        return over(arms.reward + e + slack, arms.cost)

    @staticmethod
    def keep(n: jax.Array, reward_mean: jax.Array, cost_mean: jax.Array) -> Kept:
        return Kept(reward=reward_mean, cost=cost_mean, width=1 / jnp.sqrt(n))

    def update(
        self, state: BudgetUCBState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> BudgetUCBState:
        return state._replace(arms=state.arms.record(arm, reward, cost, self.keep))
