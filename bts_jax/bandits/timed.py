"""Time as a resource: every pull takes some of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks
from bts_jax.bandits.arms import Wrapper
from bts_jax.bandits.bernoulli import Bernoulli
from bts_jax.contract import is_timed, num_resources
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class Timed(Wrapper):
    """The arms of another bandit, with time as one more resource, the last one.

    Args:
        bandit: the other bandit, of any family, with one resource or several.
        horizon: the number of rounds per unit of budget, at least 1. Each pull costs 1 / horizon of
            the time. With the default of 1 a pull costs 1, and the last entry of the budget is the
            number of rounds.

    Example:
        >>> from bts_jax import Bernoulli
        >>> ads = Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9])
        >>> Timed(ads).cost_mean.tolist()  # a budget of [50, 100] is 50 of money and 100 rounds
        [[0.25, 1.0], [0.8999999761581421, 1.0]]
        >>> Timed(ads, horizon=2).cost_mean.tolist()  # so is a budget of 50
        [[0.25, 0.5], [0.8999999761581421, 0.5]]
    """

    bandit: Any
    horizon: ArrayLike = 1.0

    def _check(self) -> None:
        super()._check()
        if is_timed(self.bandit):
            raise ValueError(
                f"bandit = {type(self.bandit).__name__} has time as a resource already: leave "
                "Timed out"
            )
        if checks.is_concrete(self.horizon):
            remedy = "give the number of rounds per unit of budget, from 1 to 10⁶"
            horizon = checks.numbers("horizon", self.horizon, remedy)
            checks.require("horizon", horizon, (horizon >= 1) & (horizon <= 1e6), remedy)
            if horizon.shape not in ((), np.shape(self.bandit.reward_mean)[:-1]):
                raise ValueError(
                    f"horizon has shape {horizon.shape}: {remedy}, one number for the bandit"
                )
        batch = jnp.shape(self.bandit.reward_mean)[:-1]
        object.__setattr__(
            self, "horizon", jnp.broadcast_to(jnp.asarray(self.horizon, jnp.float32), batch)
        )

    @property
    def cost_scale(self) -> Any:
        inner = super().cost_scale
        if inner is None:
            return None
        batch, d = jnp.shape(self.horizon), num_resources(self.bandit)
        scale = jnp.asarray(inner, jnp.float32)
        scale = scale[..., None] if d is None else scale
        return jnp.concatenate(
            [jnp.broadcast_to(scale, (*batch, d or 1)), jnp.ones((*batch, 1))], -1
        )

    @property
    def revenue(self) -> Any:
        """The revenue of each arm per unit of each resource except time, if the other bandit has
        it. [K] or [K, d]
        """
        return getattr(self.bandit, "revenue", None)

    @property
    def reward_mean(self) -> jax.Array:
        return jnp.asarray(self.bandit.reward_mean)

    @property
    def cost_mean(self) -> jax.Array:
        cost = jnp.asarray(self.bandit.cost_mean)
        cost = cost[..., None] if num_resources(self.bandit) is None else cost
        time = jnp.broadcast_to(_time(self.horizon)[..., None, None], (*cost.shape[:-1], 1))
        return jnp.concatenate([cost, time], -1)

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        reward, cost = self.bandit.pull(key, arm)
        return reward, jnp.append(cost, _time(self.horizon))

    @classmethod
    def random(cls, key: jax.Array, num_arms: int, *, horizon: float = 2.0) -> "Timed":
        """Draws a random instance: the arms of `Bernoulli.random`, and time for `horizon` rounds
        per unit of budget.
        """
        return cls(bandit=Bernoulli.random(key, num_arms), horizon=horizon)


def _time(horizon: ArrayLike) -> jax.Array:
    """The time of one round."""
    return 1 / jnp.asarray(horizon)
