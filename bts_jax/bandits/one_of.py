"""Bandits of several families in one batch, so that they share a program (`sweeps.schedule`)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax.bandits.arms import Arms
from bts_jax.contract import Bandit
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class OneOf(Arms):
    """One of several bandits, chosen by a number. In a batch of these, runs can have bandits of different families.

    A pull computes the result of every bandit, and uses that of one. So all bandits must have valid parameters.

    Args:
        bandits: bandits with the same number of arms, one resource and no scales.
        which: the position of the bandit to play.
    """

    bandits: tuple[Bandit, ...]
    which: ArrayLike

    @property
    def reward_mean(self) -> jax.Array:
        return self._chosen([bandit.reward_mean for bandit in self.bandits])

    @property
    def cost_mean(self) -> jax.Array:
        return self._chosen([bandit.cost_mean for bandit in self.bandits])

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        rewards, costs = zip(*(bandit.pull(key, arm) for bandit in self.bandits), strict=True)
        return self._chosen(rewards), self._chosen(costs)

    def _chosen(self, values: Sequence[jax.Array]) -> jax.Array:
        """The value of the bandit to play. `values`: [] or [K], with the batch, if there is one, as the first axis"""
        which = jnp.asarray(self.which)
        which = which.reshape(which.shape + (1,) * (values[0].ndim - which.ndim))
        return lax.select_n(jnp.broadcast_to(which, values[0].shape), *values)
