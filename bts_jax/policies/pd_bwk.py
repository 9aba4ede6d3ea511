"""PD-BwK: optimistic reward over pessimistic cost."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies.index import ArmStatistics, IndexPolicy, over
from bts_jax.pytrees import pytree


@pytree
class PDBwK(IndexPolicy):
    """The variant of PD-BwK (Badanidiyuru et al., FOCS 2013) in Xia et al. (IJCAI 2015).

    Pull the arm with the largest

        min{r̄_i + φ(r̄_i, n_i), 1} / max{c̄_i − φ(c̄_i, n_i), 0},   φ(x, n) = √(νx/n) + ν/n,   ν = scale · log(BK).

    Told in advance: the budget B.

    Guarantee: none known to us for this variant.

    Where the paper is silent: an arm whose denominator is 0 is explored before the others (see `index.choose`).

    Args:
        scale: the factor in ν; 0.25 in the paper.

    Example:
        >>> PDBwK(scale=0.1)  # explores less than the paper's
        PDBwK(scale=0.1)
    """

    told: ClassVar[tuple[str, ...]] = ("budget",)

    scale: ArrayLike = 0.25

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 0, 1e6)

    def init(self, problem: Problem) -> ArmStatistics:
        nu = jnp.maximum(self.scale * jnp.log(problem.budget * problem.num_arms), 0).astype(jnp.float32)
        return ArmStatistics.zeros(problem.num_arms, partial(self.keep, nu))._replace(fact=nu)

    def keep(self, nu: jax.Array, n: jax.Array, reward_mean: jax.Array, cost_mean: jax.Array) -> jax.Array:
        """An arm's index, which changes only when it is pulled."""
        confident_reward = jnp.minimum(reward_mean + self._radius(nu, reward_mean, n), 1)
        return over(confident_reward, cost_mean - self._radius(nu, cost_mean, n))

    def update(
        self, state: ArmStatistics, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> ArmStatistics:
        return state.record(arm, reward, cost, partial(self.keep, state.fact))

    @staticmethod
    def _radius(nu: jax.Array, x: jax.Array, n: jax.Array) -> jax.Array:
        return jnp.sqrt(nu * x / n) + nu / n
