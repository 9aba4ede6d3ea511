"""Soft elimination: the probability of an arm decreases as the evidence against it grows."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.policies.index import ArmStatistics
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class SoftElimination:
    """Soft elimination (SoftElim of Boutilier et al., NeurIPS 2020), adapted to budgets.

    Pull arm i with a probability proportional to

        exp(−2 n_i δ_i² / scale²),   δ_i = ĉ_i (ρ̂* − ρ̂_i) / (ρ̂* + 1),   ρ̂_i = r̂_i / ĉ_i,
        ρ̂* = max_j ρ̂_j.

    δ_i is the error that both estimates of arm i, reward and cost, must have for its ratio to be
    the best. It is δ_i(γ) of Xia et al. (IJCAI 2015) at γ = 1.

    Reference: Boutilier et al., "Differentiable Meta-Learning of Bandit Policies", NeurIPS 2020.

    Side information: none.

    Guarantee: none known to us for budgets. (The guarantee of the source is for bandits without
    costs.)

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the source has the gap between mean rewards in place of δ_i. The
    source pulls every arm once first. Here the estimates have a uniform prior instead, r̂ = (Σ
    rewards + 1) / (n + 2) and ĉ in the same way. They are never undefined or zero, and an arm that
    was never pulled has the same probability as the best arm.

    Args:
        scale: the amount of exploration, from 0.001 to 1000; 1 in the source, before learning.

    Example:
        >>> SoftElimination(scale=0.2)  # about what `bts_jax.learn.fit` finds in notebook 05
        SoftElimination(scale=0.2)
    """

    requires: ClassVar[tuple[str, ...]] = ()
    softmax: ClassVar[bool] = True
    learnable: ClassVar[dict[str, tuple[float, float]]] = {"scale": (0.01, 100.0)}
    bounded_costs: ClassVar[bool] = True

    scale: ArrayLike = 1.0

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 1e-3, 1e3)

    def init(self, problem: Problem) -> ArmStatistics:
        return ArmStatistics.zeros(problem.num_arms)

    def __call__(self, state: ArmStatistics, key: jax.Array) -> tuple[jax.Array, ArmStatistics]:
        noise = random.gumbel(random.bits(key, state.pulls.shape)[0])
        return lax.argmax(self.logits(state, key) + noise, 0, jnp.int32), state

    def logits(self, state: ArmStatistics, key: jax.Array) -> jax.Array:
        """Returns the logarithm of the probability of each arm, up to a constant. [K]"""
        n = state.pulls.astype(jnp.float32)
        reward, cost = ((n * mean + 1) / (n + 2) for mean in (state.reward_mean, state.cost_mean))
        ratio = reward / cost
        best = ratio.max()
        gap = cost * (best - ratio) / (best + 1)
        return -(gap * gap) * (2 / (self.scale * self.scale) * n)

    def update(
        self,
        state: ArmStatistics,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> ArmStatistics:
        return state.record(arm, reward, cost)
