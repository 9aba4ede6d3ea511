"""A joint posterior of reward and cost, which may be correlated."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class JointState(NamedTuple):
    both: jax.Array  # [K] int32, pulls with a reward and a cost
    reward_alone: jax.Array  # [K] int32, pulls with a reward and no cost
    cost_alone: jax.Array  # [K] int32, pulls with a cost and no reward


@pytree
class Joint:
    """A Dirichlet posterior on the four outcomes of a pull: with or without a reward, and with or
    without a cost.

    Other posteriors are of rewards or of costs. This one is of both, so it draws and records pairs:
    `JointBTS` uses it.

    Args:
        alpha: the prior number of pulls of each outcome, from 0.5 to 10⁷.
    """

    alpha: ArrayLike = 0.5

    def _check(self) -> None:
        checks.hyperparameter(self, "alpha", 0.5, 1e7)

    def init(self, problem: Problem) -> JointState:
        zeros = jnp.zeros(problem.num_arms, jnp.int32)
        return JointState(both=zeros, reward_alone=zeros, cost_alone=zeros)

    def draw(self, state: JointState, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draws an expected reward and an expected cost of each arm, up to a common factor. [K]
        each

        The factor is the sum of four Gamma draws. The ratio does not depend on it, so the fourth is
        left out.
        """
        shapes = jnp.stack(state).astype(jnp.float32) + jnp.asarray(self.alpha, jnp.float32)
        both, reward_alone, cost_alone = random.gamma(key, shapes)
        return both + reward_alone, both + cost_alone

    def record(
        self, state: JointState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> JointState:
        """The state after a pull. Two separate trials preserve the covariance of reward and
        cost.
        """
        words = random.bits(key)
        earned, paid = random.happens(words[0], reward), random.happens(words[1], cost)
        return JointState(
            both=state.both.at[arm].add((earned & paid).astype(jnp.int32)),
            reward_alone=state.reward_alone.at[arm].add((earned & ~paid).astype(jnp.int32)),
            cost_alone=state.cost_alone.at[arm].add((paid & ~earned).astype(jnp.int32)),
        )
