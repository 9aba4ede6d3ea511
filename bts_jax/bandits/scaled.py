"""Other units for the arms of any family: scaled, shifted or deterministic costs, and scaled
rewards.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks
from bts_jax.bandits.arms import Wrapper
from bts_jax.bandits.bernoulli import Bernoulli
from bts_jax.contract import LARGEST_SCALE, SMALLEST_SCALE, num_resources, scales
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class Scaled(Wrapper):
    """The arms of another bandit, with the cost shift + scale · cost and the reward worth · reward.

    With scale 0 costs are deterministic: each pull of an arm costs its shift. Costs and rewards may
    be above 1. `cost_scale` and `reward_scale` are the largest cost and reward of one pull. They
    must be at least 10⁻⁶: choose a smaller unit, such as cents, for smaller amounts.

    Args:
        bandit: the other bandit, of any family with one resource.
        scale: the factor of the costs, for each arm or one number for all; at least 0. [K]
        shift: the number that is added to the costs, for each arm or one number for all; at least
            0. [K]
        worth: the factor of the rewards, for each arm or one number for all; at least 0. By default
            rewards are unchanged. [K]

    Example:
        >>> # a pull costs $5 or nothing
        >>> dollars = Scaled(Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5]), scale=5)
        >>> dollars.cost_mean.tolist(), float(dollars.cost_scale)
        ([2.5, 2.5], 5.0)
        >>> bandit = Scaled(Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5]), scale=0.5, shift=[0.25,
        ...     0.5])
        >>> bandit.cost_mean.tolist()
        [0.5, 0.75]
        >>> Scaled(Bernoulli(reward=[0.5, 0.9], cost=[1, 1]), scale=0, shift=[0.25,
        ...     0.5]).cost_mean.tolist()
        [0.25, 0.5]
    """

    bandit: Any
    scale: ArrayLike = 1.0  # [K]
    shift: ArrayLike = 0.0  # [K]
    worth: Any = None  # [K]

    def _check(self) -> None:
        super()._check()
        if num_resources(self.bandit) is not None:
            raise ValueError(
                f"bandit = {type(self.bandit).__name__} has a vector of costs, and Scaled "
                "multiplies one cost: scale the bandit inside, as in Timed(Scaled(bandit, "
                "scale=5))"
            )
        names = ("scale", "shift") if self.worth is None else ("scale", "shift", "worth")
        for name in names:
            self._spread(name, jnp.shape(self.bandit.cost_mean))
        self._canonicalize("amounts", 0, LARGEST_SCALE, **dict.fromkeys(names, 1))
        for name in ("reward_scale", "cost_scale"):
            scale = getattr(self, name)
            if checks.is_concrete(scale):
                what, scale = (
                    "scale + shift" if name == "cost_scale" else "worth",
                    np.asarray(scale),
                )
                checks.require(
                    name,
                    scale,
                    scale <= LARGEST_SCALE,
                    f"make {what} smaller: it is at most {LARGEST_SCALE} in all, so choose a "
                    "larger unit",
                )
                checks.require(
                    name,
                    scale,
                    scale >= np.float32(SMALLEST_SCALE),
                    f"choose a smaller unit, because the largest {name[:-6]} of one pull must be "
                    f"at least {SMALLEST_SCALE:g}",
                )
        if checks.is_concrete((self.scale, self.shift)):
            highest = np.asarray(self._highest_costs)
            fits = (highest == 0) | (
                highest >= np.float32(SMALLEST_SCALE) * np.asarray(self.cost_scale)[..., None]
            )
            checks.require(
                "the largest cost of an arm",
                highest,
                fits,
                f"make it 0, or at least {SMALLEST_SCALE:g} of the largest cost of all arms, "
                "because sums are not exact enough for both",
            )

    @property
    def all_or_nothing(self) -> bool:
        return False

    @property
    def reward_scale(self) -> jax.Array:
        inner = self._inner_scales[0]
        return (
            inner
            if self.worth is None
            else _or_one((jnp.asarray(self.worth) * inner[..., None]).max(-1))
        )

    @property
    def cost_scale(self) -> jax.Array:
        return _or_one(self._highest_costs.max(-1))

    @property
    def _highest_costs(self) -> jax.Array:
        """The largest cost of one pull of each arm. [K]"""
        inner = self._inner_scales[1][..., None]
        return _moved(inner, inner, jnp.asarray(self.scale), jnp.asarray(self.shift))

    @property
    def _inner_scales(self) -> tuple[jax.Array, jax.Array]:
        """The scales of the other bandit. [] each, or one for each bandit of a batch."""
        batch = jnp.shape(self.scale)[:-1]
        reward, cost = (
            jnp.broadcast_to(jnp.asarray(x, jnp.float32), batch)
            for x in scales(self.bandit) or (1.0, 1.0)
        )
        return reward, cost

    @property
    def reward_mean(self) -> jax.Array:
        reward = jnp.asarray(self.bandit.reward_mean)
        return reward if self.worth is None else reward * jnp.asarray(self.worth)

    @property
    def cost_mean(self) -> jax.Array:
        inner = self._inner_scales[1][..., None]
        return _moved(
            jnp.asarray(self.bandit.cost_mean),
            inner,
            jnp.asarray(self.scale),
            jnp.asarray(self.shift),
        )

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        reward, cost = self.bandit.pull(key, arm)
        inner = self._inner_scales[1]
        cost = _moved(cost, inner, jnp.asarray(self.scale)[arm], jnp.asarray(self.shift)[arm])
        return reward if self.worth is None else reward * jnp.asarray(self.worth)[arm], cost

    @classmethod
    def random(
        cls,
        key: jax.Array,
        num_arms: int,
        *,
        reward_range: tuple[float, float] = (0.0, 1.0),
        cost_range: tuple[float, float] = (0.01, 1.0),
    ) -> "Scaled":
        """Draws a random instance with Bernoulli rewards and deterministic costs. The means are
        those of `Bernoulli.random`.
        """
        arms = Bernoulli.random(key, num_arms, reward_range=reward_range, cost_range=cost_range)
        return cls(bandit=arms, scale=jnp.zeros_like(arms.cost_mean), shift=arms.cost)


def _or_one(scale: jax.Array) -> jax.Array:
    """The scale, or 1 if all amounts are 0."""
    return jnp.where(scale > 0, scale, 1)


def _moved(cost: jax.Array, most: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """Returns shift + scale · cost. It is limited to 1 if its maximum, at cost `most`, is above 1
    only by rounding.
    """
    moved, highest = shift + scale * cost, shift + scale * most
    return jnp.where(highest < 1 + 2e-6, jnp.minimum(moved, 1), moved)
