"""Two yardsticks: always the best arm, and any arm at all."""

from typing import ClassVar

import chex
import jax
import jax.numpy as jnp

from bts_jax.contract import Problem


@chex.dataclass(frozen=True, mappable_dataclass=False)
class Oracle:
    """Always pulls the arm with the best ratio of expected reward to expected cost: what regret is measured against.

    Told in advance: the best arm.
    """

    told: ClassVar[tuple[str, ...]] = ("best_arm",)

    def init(self, problem: Problem) -> jax.Array:
        return problem.best_arm

    def __call__(self, state: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return state, state

    def update(self, state: jax.Array, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array) -> jax.Array:
        return state


@chex.dataclass(frozen=True, mappable_dataclass=False)
class Uniform:
    """Pulls an arm chosen uniformly at random in every round: what a policy that learns nothing achieves.

    Told in advance: nothing.
    """

    told: ClassVar[tuple[str, ...]] = ()

    def init(self, problem: Problem) -> jax.Array:
        return jnp.arange(problem.num_arms, dtype=jnp.int32)

    def __call__(self, state: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.random.choice(key, state), state

    def update(self, state: jax.Array, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array) -> jax.Array:
        return state
