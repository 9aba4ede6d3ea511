"""Beta arms: rewards and costs are continuous."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bts_jax import checks, random
from bts_jax.bandits.arms import Arms, check_num_arms, check_range
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class Beta(Arms):
    """Arms whose reward and cost are independent draws from Beta distributions. The draws are
    exact.

    Rewards and costs are counted in multiples of 1/15,120,000 (`bts_jax.engine.fixed_point`). Draws
    are rounded to such multiples, up as often as down.

    Args:
        reward_alpha: first shape of each arm's reward, from 10⁻⁶ to 10⁷; the mean is α / (α + β).
            [K]
        reward_beta: second shape of each arm's reward. [K]
        cost_alpha: first shape of each arm's cost. [K]
        cost_beta: second shape of each arm's cost. [K]

    Example:
        >>> bandit = Beta(reward_alpha=[1, 3], reward_beta=[1, 1], cost_alpha=[0.5, 2],
        ...     cost_beta=[1.5, 2])
        >>> bandit.reward_mean.tolist(), bandit.ratio.tolist()
        ([0.5, 0.75], [2.0, 1.5])
    """

    reward_alpha: ArrayLike  # [K]
    reward_beta: ArrayLike  # [K]
    cost_alpha: ArrayLike  # [K]
    cost_beta: ArrayLike  # [K]

    def _check(self) -> None:
        self._canonicalize(
            "shapes",
            random.SMALLEST_SHAPE,
            random.LARGEST_SHAPE,
            reward_alpha=1,
            reward_beta=1,
            cost_alpha=1,
            cost_beta=1,
        )

    @property
    def reward_mean(self) -> jax.Array:
        alpha, beta = jnp.asarray(self.reward_alpha), jnp.asarray(self.reward_beta)
        return alpha / (alpha + beta)

    @property
    def cost_mean(self) -> jax.Array:
        alpha, beta = jnp.asarray(self.cost_alpha), jnp.asarray(self.cost_beta)
        return alpha / (alpha + beta)

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        def both(reward: ArrayLike, cost: ArrayLike) -> jax.Array:
            return jnp.stack([jnp.asarray(reward)[arm], jnp.asarray(cost)[arm]])

        draws = random.beta(
            key, both(self.reward_alpha, self.cost_alpha), both(self.reward_beta, self.cost_beta)
        )
        return draws[0], draws[1]

    @classmethod
    def random(
        cls, key: jax.Array, num_arms: int, *, shape_range: tuple[float, float] = (0.0, 5.0)
    ) -> "Beta":
        """Draws a random instance. All shapes are uniform in the given range; shapes below 10⁻⁶
        become 10⁻⁶.
        """
        check_range("shape_range", shape_range, random.LARGEST_SHAPE)
        check_num_arms(num_arms)
        checks.key(key)
        return cls(*_random_shapes(key, num_arms, shape_range))


@partial(jax.jit, static_argnums=(1,))
def _random_shapes(key: jax.Array, num_arms: int, shape_range: Any) -> tuple[jax.Array, ...]:
    return tuple(
        jnp.maximum(
            jax.random.uniform(key, (4, num_arms), jnp.float32, *shape_range), random.SMALLEST_SHAPE
        )
    )
