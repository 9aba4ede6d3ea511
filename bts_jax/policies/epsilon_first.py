"""ε-first: explore for a fixed share of the budget, then commit."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.engine.fixed_point import Sum, quantize
from bts_jax.policies.index import ArmStatistics
from bts_jax.pytrees import pytree


class EpsilonFirstState(NamedTuple):
    arms: ArmStatistics  # of the exploration alone: frozen once committed
    spent: Sum  # during the exploration
    allowance: Sum  # εB
    committed: jax.Array  # the arm pulled ever after, −1 while exploring


@pytree
class EpsilonFirst:
    """ε-first (Tran-Thanh et al., AAAI 2010), as a baseline of Xia et al. (IJCAI 2015).

    Pull the arms in turn until a share ε of the budget is spent, then commit: pull

        argmax_i r̄_i / c̄_i

    to the end, the averages being those of the exploration.

    Side information: the budget.

    Guarantee: regret O(B^⅔) in the source, for costs that are fixed and known and an ε that shrinks as B^(−⅓). With a fixed
    ε, as here, regret is linear in B: the exploration alone takes a share ε of the budget.

    Where the paper is silent: every arm is pulled at least once, even when that costs more than εB. The averages are
    frozen at the commitment, since the paper speaks of runs that "cannot identify" the best arm.

    A commitment is for good, so it takes the ratio as it is, and does not explore. The ratio of an arm that has earned
    something and cost nothing is infinite; of several such arms the one with the largest r̄_i is taken, as if each had cost
    the same tiny amount. The ratio of an arm that has neither earned nor cost anything is 0. Of equal arms the lowest number
    is taken.

    Args:
        epsilon: the share ε of the budget to explore with, in (0, 1); 0.1 in the paper.

    Example:
        >>> EpsilonFirst(epsilon=0.2)  # explores with a fifth of the budget
        EpsilonFirst(epsilon=0.2)
    """

    requires: ClassVar[tuple[str, ...]] = ("budget",)

    epsilon: ArrayLike = 0.1

    def _check(self) -> None:
        checks.hyperparameter(self, "epsilon", 0, 1, low_excluded=True, high_excluded=True)

    def init(self, problem: Problem) -> EpsilonFirstState:
        return EpsilonFirstState(
            arms=ArmStatistics.zeros(problem.num_arms),
            spent=Sum.zeros(),
            # A hair less than εB: rounding must not make 0.3 of 50 more than 15.
            allowance=Sum.of(jnp.float32(self.epsilon * problem.budget) * jnp.float32(1 - 2**-21)),
            committed=jnp.int32(-1),
        )

    def __call__(self, state: EpsilonFirstState, key: jax.Array) -> tuple[jax.Array, EpsilonFirstState]:
        arms = state.arms
        explored = state.spent.reaches(state.allowance) & (arms.pulls > 0).all()
        # The largest ratio; where nothing was paid 10³⁸ r̄, which is above every ratio unless r̄ = 0.
        costs = arms.cost_mean > 0
        ratio = jnp.where(costs, arms.reward_mean / jnp.where(costs, arms.cost_mean, 1), arms.reward_mean * jnp.float32(1e38))
        best = lax.argmax(ratio, 0, jnp.int32)
        committed = jnp.where((state.committed < 0) & explored, best, state.committed)
        turn = arms.rounds % arms.pulls.shape[0]
        return jnp.where(committed < 0, turn, committed), state._replace(committed=committed)

    def update(
        self, state: EpsilonFirstState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> EpsilonFirstState:
        exploring = state.committed < 0
        arms = state.arms.record(arm, reward, cost)
        return state._replace(
            arms=jax.tree.map(lambda new, old: jnp.where(exploring, new, old), arms, state.arms),
            spent=state.spent.add(jnp.where(exploring, quantize(cost), 0)),
        )
