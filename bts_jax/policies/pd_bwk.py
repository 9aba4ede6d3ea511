"""PD-BwK: optimistic reward over pessimistic cost."""

from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies.index import ArmStatistics, choose, over
from bts_jax.pytrees import pytree


class PDBwKState(NamedTuple):
    arms: ArmStatistics
    nu: jax.Array  # ν


@pytree
class PDBwK:
    """The variant of PD-BwK (Badanidiyuru et al., FOCS 2013) in Xia et al. (IJCAI 2015).

    Pull the arm with the largest

        min{r̄_i + φ(r̄_i, n_i), 1} / max{c̄_i − φ(c̄_i, n_i), 0},   φ(x, n) = √(νx/n) + ν/n,   ν = scale · log(BK).

    Told in advance: the budget B.

    Where the paper is silent: an arm whose denominator is 0 is explored before the others (see `index.choose`).

    Args:
        scale: the factor in ν; 0.25 in the paper.

    Example:
        >>> PDBwK(scale=0.1)  # explores less than the paper's
        PDBwK(scale=0.1)
    """

    told: ClassVar[tuple[str, ...]] = ("budget",)
    ignores_no_pull: ClassVar[bool] = True

    scale: ArrayLike = 0.25

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 0, 1e6)

    def init(self, problem: Problem) -> PDBwKState:
        nu = jnp.maximum(self.scale * jnp.log(problem.budget * problem.num_arms), 0).astype(jnp.float32)
        return PDBwKState(arms=ArmStatistics.zeros(problem.num_arms, partial(self.index, nu)), nu=nu)

    def __call__(self, state: PDBwKState, key: jax.Array) -> tuple[jax.Array, PDBwKState]:
        return choose(state.arms.kept, state.arms.pulls), state

    def index(self, nu: jax.Array, n: jax.Array, reward_mean: jax.Array, cost_mean: jax.Array) -> jax.Array:
        """An arm's index, which changes only when it is pulled."""
        confident_reward = jnp.minimum(reward_mean + self._radius(nu, reward_mean, n), 1)
        return over(confident_reward, cost_mean - self._radius(nu, cost_mean, n))

    def update(
        self, state: PDBwKState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> PDBwKState:
        return state._replace(arms=state.arms.record(arm, reward, cost, partial(self.index, state.nu)))

    @staticmethod
    def _radius(nu: jax.Array, x: jax.Array, n: jax.Array) -> jax.Array:
        return jnp.sqrt(nu * x / n) + nu / n
