"""GreedyKUBE: KUBE as published, which solves a knapsack problem in every round."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.policies.index import ArmStatistics, choose
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

SLACK = 1e-6  # by which rounding may make a cost too large


class GreedyKUBEState(NamedTuple):
    arms: ArmStatistics
    cost: jax.Array  # [K] μ^c
    left: resources.Left  # of the budget


@pytree
class GreedyKUBE:
    """KUBE as published (Tran-Thanh et al., AAAI 2012), for arms whose costs are known.

    In round t, let u_i = r̄_i + √(scale · ln t / n_i). Fill the rest of the budget greedily: take
    the arm with the largest u_i / μ_i^c as often as the rest of the budget allows, then the next
    one, and so on. This gives numbers of pulls m_i. Pull arm i with probability m_i / Σ m.

    Reference: Tran-Thanh et al., "Knapsack Based Optimal Policies for Budget-Limited Multi-Armed
    Bandits", AAAI 2012. The greedy solution is the density-ordered greedy heuristic.
    `FractionalKUBE` is the source's simpler variant, which always takes the first arm. `KUBE` is
    the variant of Xia et al. (IJCAI 2015), which estimates costs.

    Side information: the budget, and the expected costs μ^c.

    Guarantee: regret O(ln B) in the source, for costs that are fixed and known.

    Deviations from the source: the source assumes fixed costs. Here costs may be random, and the
    formula uses their means. An arm that never costs anything is pulled before the others (see
    `index.choose`). If the rest of the budget is less than the mean cost of every arm, the arm with
    the largest u_i / μ_i^c is pulled.

    Args:
        scale: the factor of the logarithm; 2 in the source.

    Example:
        >>> GreedyKUBE(scale=0.5)  # explores less than the source's
        GreedyKUBE(scale=0.5)
    """

    requires: ClassVar[tuple[str, ...]] = ("budget", "cost_mean")

    scale: ArrayLike = 2.0

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 0, 1e6)

    def init(self, problem: Problem) -> GreedyKUBEState:
        budget, cost = (
            jnp.asarray(problem.required(name), jnp.float32) for name in ("budget", "cost_mean")
        )
        return GreedyKUBEState(
            ArmStatistics.zeros(problem.num_arms), cost, resources.Left.all(budget)
        )

    def __call__(self, state: GreedyKUBEState, key: jax.Array) -> tuple[jax.Array, GreedyKUBEState]:
        arms, cost = state.arms, state.cost
        log_t = jnp.log((arms.rounds + 1).astype(jnp.float32))
        upper = arms.reward_mean + jnp.sqrt(self.scale * log_t) * (1 / jnp.sqrt(arms.n))
        first = (arms.pulls == 0) | ~(cost > 0)
        price = jnp.where(cost > 0, cost, 1)
        order = jnp.argsort(-upper / price)

        def take(left: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
            count = jnp.floor(left / price[arm] * (1 + SLACK))
            return jnp.maximum(left - count * price[arm], 0), count

        _, counts = lax.scan(take, jnp.maximum(state.left.amount, 0), order)
        drawn = order[resources.draw(random.bits(key)[0], counts)].astype(jnp.int32)
        return jnp.where(
            first.any(), choose(jnp.where(first, jnp.inf, 0), arms.pulls), drawn
        ), state

    def update(
        self,
        state: GreedyKUBEState,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> GreedyKUBEState:
        return state._replace(
            arms=state.arms.record(arm, reward, cost), left=state.left.after(cost)
        )
