"""ε-first: explores with a fixed fraction of the budget, then commits to one arm."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies.index import ArmStatistics
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class KahanSum(NamedTuple):
    """A float32 sum with the error of its last rounding (Kahan, 1965). So ten costs of 0.1 are 1,
    after any number of costs.
    """

    total: jax.Array
    excess: jax.Array  # how much `total` is too large

    def add(self, amount: jax.Array) -> "KahanSum":
        less = amount - self.excess
        total = self.total + less
        return KahanSum(total, (total - self.total) - less)


class EpsilonFirstState(NamedTuple):
    arms: ArmStatistics  # of the exploration phase; frozen at the commitment
    spent: "KahanSum"  # during the exploration
    allowance: jax.Array  # εB
    committed: jax.Array  # the arm of the commitment; −1 during exploration


@pytree
class EpsilonFirst:
    """ε-first (Tran-Thanh et al., AAAI 2010), as the baseline in Xia et al. (IJCAI 2015).

    Pull the arms in turn until a fraction ε of the budget is spent. Then commit: until the end,
    pull

        argmax_i r̄_i / c̄_i

    with the averages of the exploration phase.

    Reference: Tran-Thanh et al., "Epsilon-First Policies for Budget-Limited Multi-Armed Bandits",
    AAAI 2010.

    Side information: the budget.

    Guarantee: regret O(B^⅔) in the source, for costs that are fixed and known and an ε that
    decreases as B^(−⅓). With a fixed ε, as here, regret is linear in B, because the exploration
    alone spends a fraction ε of the budget.

    Deviations from the source: Xia et al. leave some points open. Here every arm is pulled at least
    once, even if this costs more than εB. The averages are frozen at the commitment, because the
    paper mentions runs that "cannot identify" the best arm.

    The commitment is final, so it uses the plain ratio and does not explore. The ratio of an arm
    that has earned something and cost nothing is infinite. Among several such arms the policy
    commits to the one with the largest r̄_i, as if all of them had the same tiny cost. The ratio of
    an arm that has neither earned nor cost anything is 0. Ties go to the arm with the lowest
    number.

    Args:
        epsilon: the fraction ε of the budget for exploration, in (0, 1); 0.1 in the paper.

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
            spent=KahanSum(jnp.float32(0), jnp.float32(0)),
            # Slightly less than εB: rounding must not make 0.3 · 50 larger than 15.
            allowance=jnp.float32(self.epsilon * problem.required("budget"))
            * jnp.float32(1 - 2**-21),
            committed=jnp.int32(-1),
        )

    def __call__(
        self, state: EpsilonFirstState, key: jax.Array
    ) -> tuple[jax.Array, EpsilonFirstState]:
        arms, num_arms = state.arms, state.arms.pulls.shape[0]
        # The arms are pulled in turn, so each was pulled at least once after K rounds.
        explored = (state.spent.total >= state.allowance) & (arms.rounds >= num_arms)
        # The ratio. For an arm without costs it is 10³⁸ r̄, which is above every finite ratio
        # unless r̄ = 0.
        costs = arms.cost_mean > 0
        ratio = jnp.where(
            costs,
            arms.reward_mean / jnp.where(costs, arms.cost_mean, 1),
            arms.reward_mean * jnp.float32(1e38),
        )
        best = jnp.argmax(ratio).astype(jnp.int32)
        committed = jnp.where((state.committed < 0) & explored, best, state.committed)
        return jnp.where(committed < 0, arms.rounds % num_arms, committed), state._replace(
            committed=committed
        )

    def update(
        self,
        state: EpsilonFirstState,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> EpsilonFirstState:
        exploring = state.committed < 0
        arms = state.arms.record(arm, reward, cost)
        return state._replace(
            arms=jax.tree.map(lambda new, old: jnp.where(exploring, new, old), arms, state.arms),
            spent=state.spent.add(jnp.where(exploring, cost, 0)),
        )
