"""An arm that does nothing: it lets a policy wait."""

from typing import Any

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.bandits.arms import Wrapper
from bts_jax.bandits.timed import Timed
from bts_jax.contract import is_timed, num_resources
from bts_jax.pytrees import Names, pytree


@pytree
class WithNull(Wrapper):
    """The arms of another bandit and one more, the last one, which earns nothing and costs nothing
    except time.

    The theory of bandits with knapsacks assumes such an arm, so that a policy can save its
    resources. It is of use only if time passes meanwhile, as in `WithNull(Timed(bandit))`. If a
    bandit with several resources has no time, a run may never end, and needs `max_rounds`.

    Args:
        bandit: the other bandit, of any family.

    Example:
        >>> from bts_jax import Bernoulli, Timed
        >>> WithNull(Timed(Bernoulli(reward=[0.5, 0.75], cost=[0.25, 1.0]))).cost_mean.tolist()
        [[0.25, 1.0], [1.0, 1.0], [0.0, 1.0]]
    """

    bandit: Any

    @property
    def arms(self) -> tuple[str, ...]:
        names = super().arms
        return Names((*names, "null")) if names else ()

    @property
    def horizon(self) -> Any:
        return self.bandit.horizon if is_timed(self.bandit) else None

    @property
    def revenue(self) -> Any:
        """That of the other bandit, if it has it. The null arm sells nothing. [K] or [K, d]"""
        revenue = getattr(self.bandit, "revenue", None)
        axis = jnp.ndim(self.bandit.reward_mean) - 1
        return (
            None
            if revenue is None
            else jnp.concatenate(
                [revenue, jnp.zeros_like(revenue).take(jnp.array([0]), axis)], axis
            )
        )

    @property
    def reward_mean(self) -> jax.Array:
        reward = jnp.asarray(self.bandit.reward_mean)
        return jnp.concatenate([reward, jnp.zeros((*reward.shape[:-1], 1))], -1)

    @property
    def cost_mean(self) -> jax.Array:
        cost, idle = jnp.asarray(self.bandit.cost_mean), self._idle()
        axis = -1 if num_resources(self.bandit) is None else -2
        return jnp.concatenate([cost, jnp.expand_dims(idle, axis)], axis)

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        null = jnp.shape(self.bandit.reward_mean)[-1]
        reward, cost = self.bandit.pull(key, jnp.minimum(arm, null - 1))
        return jnp.where(arm == null, 0, reward), jnp.where(arm == null, self._idle(), cost)

    @classmethod
    def random(cls, key: jax.Array, num_arms: int, *, horizon: float = 2.0) -> "WithNull":
        """Draws a random instance of `num_arms` arms: those of `Timed.random`, and the arm that
        does nothing.
        """
        if checks.whole("num_arms", num_arms, 1) < 3:
            raise ValueError(
                f"num_arms = {num_arms} is too few: give at least 3, because one of them does "
                "nothing"
            )
        return cls(bandit=Timed.random(key, num_arms - 1, horizon=horizon))

    def _idle(self) -> jax.Array:
        """The costs of the last arm. [] or [d], for each bandit of a batch"""
        batch, d = jnp.shape(self.bandit.reward_mean)[:-1], num_resources(self.bandit)
        idle = jnp.zeros(batch if d is None else (*batch, d), jnp.float32)
        return idle if self.horizon is None else idle.at[..., -1].set(1 / jnp.asarray(self.horizon))
