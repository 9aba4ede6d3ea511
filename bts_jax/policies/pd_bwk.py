"""PD-BwK: an upper confidence bound on the reward over a lower confidence bound on the cost."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies.index import ArmStatistics, IndexPolicy, over
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class PDBwK(IndexPolicy):
    """PD-BwK (Badanidiyuru et al., FOCS 2013), in the variant of Xia et al. (IJCAI 2015).

    Pull the arm with the largest

        min{r̄_i + φ(r̄_i, n_i), 1} / max{c̄_i − φ(c̄_i, n_i), 0},   φ(x, n) = √(νx/n) + ν/n,
        ν = scale · log(BK).

    Reference: Badanidiyuru et al., "Bandits with Knapsacks", FOCS 2013.

    Side information: the budget B.

    Guarantee: none known to us for this variant.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: Xia et al. do not define the index if the denominator is 0. Here it
    is infinite, and the arm is explored before the others (see `index.choose`).

    Args:
        scale: the factor in ν; 0.25 in the paper of Xia et al.

    Example:
        >>> PDBwK(scale=0.1)  # explores less than the paper's
        PDBwK(scale=0.1)
    """

    requires: ClassVar[tuple[str, ...]] = ("budget",)
    bounded_costs: ClassVar[bool] = True

    scale: ArrayLike = 0.25

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 0, 1e6)

    def side_info(self, problem: Problem) -> jax.Array:
        """ν"""
        return jnp.maximum(
            self.scale * jnp.log(problem.required("budget") * problem.num_arms), 0
        ).astype(jnp.float32)

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        n, nu, reward, cost = state.n, state.side_info, state.reward_mean, state.cost_mean
        confident_reward = jnp.minimum(reward + self._radius(nu, reward, n), 1)
        return over(confident_reward, cost - self._radius(nu, cost, n))

    @staticmethod
    def _radius(nu: jax.Array, x: jax.Array, n: jax.Array) -> jax.Array:
        return jnp.sqrt(nu * x / n) + nu / n
