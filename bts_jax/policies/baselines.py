"""Two baselines that do not learn: `Oracle` pulls the best arm, `Uniform` pulls arms at random."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import random
from bts_jax.contract import Problem
from bts_jax.pytrees import pytree


@pytree
class Oracle:
    """Always pulls the arm with the largest ratio of expected reward to expected cost. Regret is
    measured against it.

    Side information: the best arm.

    Guarantee: expected reward within 2ρ* of the largest that any policy can have (Lemma 1 of Xia et
    al., IJCAI 2015).

    Example:
        >>> Oracle()  # nothing to choose
        Oracle()
    """

    requires: ClassVar[tuple[str, ...]] = ("best_arm",)

    def init(self, problem: Problem) -> jax.Array:
        return problem.required("best_arm")

    def __call__(self, state: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return state, state

    def update(
        self, state: jax.Array, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> jax.Array:
        return state


class UniformState(NamedTuple):
    arms: jax.Array  # [K] uint32, 0, 1, …, K − 1; the length is the number of arms


@pytree
class Uniform:
    """Pulls an arm chosen uniformly at random in every round. It shows the regret of a policy that
    learns nothing.

    Side information: none.

    Guarantee: none. Regret is linear in B unless all arms are equally good.

    Example:
        >>> Uniform()  # nothing to choose
        Uniform()
    """

    requires: ClassVar[tuple[str, ...]] = ()
    several_resources: ClassVar[bool] = True

    def init(self, problem: Problem) -> UniformState:
        return UniformState(arms=jnp.arange(problem.num_arms, dtype=jnp.uint32))

    def __call__(self, state: UniformState, key: jax.Array) -> tuple[jax.Array, UniformState]:
        return random.below(key, state.arms.shape[0]), state

    def update(
        self,
        state: UniformState,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> UniformState:
        return state
