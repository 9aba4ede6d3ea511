"""Arms with dependent reward and cost of any distributions: a Gaussian copula."""

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.bandits.arms import Arms, added, check_correlation, check_num_arms, largest_of
from bts_jax.bandits.beta import Beta
from bts_jax.contract import LARGEST_SCALE, SMALLEST_SCALE
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

MOST_VALUES = 4096  # of one arm


@pytree
class Copula(Arms):
    """Arms whose reward and cost are drawn from lists of equally likely values, and depend on each
    other.

    A pull draws two standard normal numbers with this correlation. The first selects the reward,
    and the second the cost: the larger the number, the larger the value. This is the Gaussian
    copula. With correlation 1 the largest reward goes with the largest cost, with −1 the largest
    reward goes with the smallest cost, and with 0 they are independent. The distributions of
    rewards and of costs are always the given ones. Their own correlation is closer to 0 than that
    of the normal numbers, and much closer if the values are skewed.

    `Correlated` is for rewards and costs that are 0 or 1, and `Empirical` for a table of rewards
    with their costs.

    Args:
        reward: equally likely rewards of each arm, at least 0, in any unit and any order. [K, N]
        cost: equally likely costs of each arm, in the same way. [K, M]
        correlation: that of the two normal numbers, in [−1, 1], for each arm, or one number for all
            arms. [K]

    Example:
        >>> bandit = Copula(reward=[[0, 1, 5], [2, 2, 2]], cost=[[1, 5], [2, 4]], correlation=-1)
        >>> bandit.reward_mean.tolist(), bandit.cost_mean.tolist(), float(bandit.cost_scale)
        ([2.0, 2.0], [3.0, 3.0], 5.0)
    """

    reward: ArrayLike  # [K, N]
    cost: ArrayLike  # [K, M]
    correlation: ArrayLike  # [K]

    def _check(self) -> None:
        for name in ("reward", "cost"):
            if np.ndim(getattr(self, name)) < 2:
                raise ValueError(
                    f"{name} has shape {np.shape(getattr(self, name))}: give one list of values "
                    "for each arm [K, N]"
                )
        self._canonicalize("amounts", 0, LARGEST_SCALE, reward=2)
        self._canonicalize("amounts", 0, LARGEST_SCALE, cost=2)
        for name in ("reward", "cost"):
            table = getattr(self, name)
            if not 1 <= table.shape[-1] <= MOST_VALUES:
                raise ValueError(
                    f"{name} has {table.shape[-1]} values for each arm: give from 1 to "
                    f"{MOST_VALUES}"
                )
            if checks.is_concrete(table):
                largest = np.asarray(table).max((-2, -1))
                checks.require(
                    f"the largest {name}",
                    largest,
                    (largest == 0) | (largest >= np.float32(SMALLEST_SCALE)),
                    f"make it 0, or at least {SMALLEST_SCALE:g}: choose a smaller unit",
                )
            object.__setattr__(self, name, jnp.sort(table, -1))
        if self.reward.shape[:-1] != self.cost.shape[:-1]:  # type: ignore
            raise ValueError(
                f"reward has shape {jnp.shape(self.reward)}, and cost has {jnp.shape(self.cost)}: "
                "give both for every arm"
            )
        self._spread("correlation", jnp.shape(self.reward)[:-1])
        self._canonicalize("correlations", -1, 1, correlation=1)

    @property
    def reward_scale(self) -> jax.Array:
        """The largest reward, or 1 if all are 0."""
        return largest_of(jnp.asarray(self.reward))

    @property
    def cost_scale(self) -> jax.Array:
        """The largest cost, or 1 if all are 0."""
        return largest_of(jnp.asarray(self.cost))

    @property
    def reward_mean(self) -> jax.Array:
        return added(jnp.asarray(self.reward)) / jnp.shape(self.reward)[-1]

    @property
    def cost_mean(self) -> jax.Array:
        return added(jnp.asarray(self.cost)) / jnp.shape(self.cost)[-1]

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        one, other = random.normal_pair(random.bits(key))
        correlation = jnp.asarray(self.correlation)[arm]
        second = correlation * one + jnp.sqrt(1 - correlation * correlation) * other
        return _value(jnp.asarray(self.reward)[arm], one), _value(
            jnp.asarray(self.cost)[arm], second
        )

    @classmethod
    def random(
        cls,
        key: jax.Array,
        num_arms: int,
        *,
        correlation: float = 0.5,
        num_values: int = 100,
        shape_range: tuple[float, float] = (0.0, 5.0),
    ) -> "Copula":
        """Draws a random instance: the values of an arm are draws from the Beta distributions of an
        arm of `Beta.random`.
        """
        check_num_arms(num_arms, checks.whole("num_values", num_values, 1))
        check_correlation(correlation)
        checks.key(key)
        key_arms, key_reward, key_cost = jax.random.split(key, 3)
        arms = Beta.random(key_arms, num_arms, shape_range=shape_range)

        def values(key: jax.Array, alpha: ArrayLike, beta: ArrayLike) -> jax.Array:
            each = (
                jnp.broadcast_to(jnp.asarray(shape)[:, None], (num_arms, num_values))
                for shape in (alpha, beta)
            )
            return random.beta(key, *each)

        return cls(
            reward=values(key_reward, arms.reward_alpha, arms.reward_beta),
            cost=jnp.maximum(values(key_cost, arms.cost_alpha, arms.cost_beta), 1e-3),
            correlation=correlation,
        )


def _value(values: jax.Array, normal: jax.Array) -> jax.Array:
    """The value whose rank is that of a normal number among all possible ones. `values`: [N], in
    increasing order
    """
    from scipy.special import ndtri  # imported when used: `import bts_jax` stays light

    count = values.shape[0]
    limits = jnp.asarray(ndtri(np.arange(1, count) / count), jnp.float32)
    return values[(normal >= limits).sum(dtype=jnp.int32)]
