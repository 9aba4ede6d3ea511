"""Other costs for the arms of any family: scaled, shifted, or deterministic."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from bts_jax import checks
from bts_jax.bandits.arms import Arms
from bts_jax.bandits.bernoulli import Bernoulli
from bts_jax.pytrees import pytree


@pytree
class Scaled(Arms):
    """The arms of another bandit with the cost shift + scale · cost; rewards are as they were.

    With scale 0 costs are deterministic: each pull of an arm costs its shift.

    Args:
        bandit: the arms, of any family.
        scale: what costs are multiplied with, for each arm or one number for all; at least 0. [K]
        shift: what is added to them, at least 0; scale + shift is at most 1, so that costs stay in [0, 1]. [K]

    Example:
        >>> bandit = Scaled(Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5]), scale=0.5, shift=[0.25, 0.5])
        >>> bandit.cost_mean.tolist()
        [0.5, 0.75]
        >>> Scaled(Bernoulli(reward=[0.5, 0.9], cost=[1, 1]), scale=0, shift=[0.25, 0.5]).cost_mean.tolist()
        [0.25, 0.5]
    """

    bandit: Any
    scale: ArrayLike = 1.0  # [K]
    shift: ArrayLike = 0.0  # [K]

    def _check(self) -> None:
        checks.contract("bandit", self.bandit, ("reward_mean", "cost_mean", "pull"),
                        "Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])")
        for name in ("scale", "shift"):
            self._spread(name, jnp.shape(self.bandit.cost_mean))
        self._settle("amounts", scale=1, shift=1)
        if checks.is_concrete([self.scale, self.shift]):
            highest = np.asarray(self.scale, np.float64) + np.asarray(self.shift, np.float64)
            checks.require("scale + shift", highest, highest <= 1 + 1e-6, "make it at most 1, so that costs stay in [0, 1]")

    @property
    def reward_mean(self) -> jax.Array:
        return jnp.asarray(self.bandit.reward_mean)

    @property
    def cost_mean(self) -> jax.Array:
        return _moved(jnp.asarray(self.bandit.cost_mean), jnp.asarray(self.scale), jnp.asarray(self.shift))

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        reward, cost = self.bandit.pull(key, arm)
        return reward, _moved(cost, jnp.asarray(self.scale)[arm], jnp.asarray(self.shift)[arm])

    @classmethod
    def random(
        cls,
        key: jax.Array,
        num_arms: int,
        *,
        reward_range: tuple[float, float] = (0.0, 1.0),
        cost_range: tuple[float, float] = (0.01, 1.0),
    ) -> "Scaled":
        """A random instance: Bernoulli rewards and deterministic costs, the means as `Bernoulli.random` draws them."""
        arms = Bernoulli.random(key, num_arms, reward_range=reward_range, cost_range=cost_range)
        return cls(bandit=arms, scale=jnp.zeros_like(arms.cost_mean), shift=arms.cost)


def _moved(cost: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """shift + scale · cost, a cost that is above 1 by rounding alone being 1."""
    moved = shift + scale * cost
    return jnp.where(moved < 1 + 2e-6, jnp.minimum(moved, 1), moved)
