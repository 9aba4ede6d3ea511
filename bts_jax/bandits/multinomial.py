"""Arms with finitely many outcomes: the paper's "multinomial" arms (Section 5)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bts_jax import checks, random
from bts_jax.bandits.arms import Arms, check_num_arms
from bts_jax.contract import LARGEST_SCALE, SMALLEST_SCALE
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

WRITTEN_OUT = 64  # up to this many points the loop is unrolled, and a GPU runs it as one kernel


@pytree
class Multinomial(Arms):
    """Arms whose reward and cost are independent draws from M points.

    The points are amounts of any size. If the largest is not 1, it is `reward_scale` and
    `cost_scale`, and policies see rewards and costs divided by it.

    Args:
        reward_probs: the probability of each point as the reward of each arm; each row sums to 1.
            [K, M]
        cost_probs: the same for the cost. [K, M], or [K, d, M] for d resources, whose costs are
            independent draws
        support: the points, M numbers of at least 0; by default 0, 1/(M−1), …, 1. [M]
        scale: the largest reward and cost of one pull; by default the largest point.

    Example:
        >>> fair = [0.2] * 5
        >>> bandit = Multinomial(reward_probs=[fair, fair], cost_probs=[fair, [0, 0, 1, 0, 0]])
        >>> bandit.support.tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        >>> cents = Multinomial(reward_probs=[fair, fair], cost_probs=[fair, [0, 0, 1, 0, 0]],
        ...     support=[0, 5, 20, 50, 100])
        >>> cents.cost_mean.tolist(), float(cents.cost_scale)
        ([35.0, 20.0], 100.0)
    """

    reward_probs: ArrayLike  # [K, M]
    cost_probs: ArrayLike  # [K, M] or [K, d, M]
    support: ArrayLike | None = None  # [M]
    scale: Any = None  # None: 1, without a unit

    def _check(self) -> None:
        self._canonicalize(vectors=("cost_probs",), reward_probs=2, cost_probs=2)
        points = np.shape(self.reward_probs)[-1]
        default = self.support is None
        if default:
            object.__setattr__(self, "support", jnp.linspace(0, 1, points, dtype=jnp.float32))
        self._canonicalize_support(points)
        if not default or self.scale is not None:
            self._canonicalize_scale()
        if not checks.is_concrete([self.reward_probs, self.cost_probs, self.support]):
            return
        for name in ("reward_probs", "cost_probs"):
            probs = np.asarray(getattr(self, name), np.float64)
            total = probs.sum(-1)
            checks.require(
                f"the sum of {name}", total, abs(total - 1) < 1e-5, "make every row sum to 1"
            )
            # Rows that sum to 1 in float32 keep their bits, as in an instance made under `vmap`,
            # which is not normalized.
            if (abs(total - 1) > 1e-6).any():
                object.__setattr__(self, name, jnp.asarray(probs / total[..., None], jnp.float32))

    def _canonicalize_support(self, points: int) -> None:
        """Checks the support and stores it as float32."""
        given: Any = self.support
        if checks.is_concrete(given):
            remedy = f"give numbers from 0 to {LARGEST_SCALE}"
            support = checks.numbers("support", given, remedy)
            checks.require("support", support, (support >= 0) & (support <= LARGEST_SCALE), remedy)
        if np.ndim(given) < 1 or np.shape(given)[-1] != points:
            raise ValueError(
                f"support has shape {np.shape(given)}, but the rows of reward_probs have {points} "
                "entries: give one point per entry"
            )
        object.__setattr__(self, "support", jnp.asarray(given, jnp.float32))

    def _canonicalize_scale(self) -> None:
        """Stores the scale as float32. It stays `None`, so that there is no unit, if the largest
        point is known to be 1.
        """
        batch, scale = np.shape(self.reward_probs)[:-2], self.scale
        xp: Any = np if checks.is_concrete((self.support, scale)) else jnp
        largest = xp.asarray(self.support).max(-1)
        if scale is None:
            scale = xp.where(largest > 0, largest, 1)
            if xp is np and (scale == 1).all():
                return
        if xp is np:
            remedy = (
                f"give the largest amount of one pull, a number from {SMALLEST_SCALE:g} to "
                f"{LARGEST_SCALE}; if it is "
            )
            remedy += "smaller or larger, choose another unit"
            value = checks.numbers("scale", scale, remedy)
            fits = (
                (value >= np.float32(SMALLEST_SCALE))
                & (value <= LARGEST_SCALE)
                & (np.float32(value) >= largest)
            )
            checks.require("scale", value, fits, remedy)
            enough = (largest == 0) | (largest >= np.float32(SMALLEST_SCALE) * value)
            checks.require(
                "the largest point of support",
                largest,
                enough,
                f"set scale to the largest amount of one pull; it is {np.max(value):g}, more than "
                "a million times as much",
            )
        if np.shape(scale) not in ((), batch):
            raise ValueError(f"scale has shape {np.shape(scale)}: give one number for the bandit")
        object.__setattr__(self, "scale", jnp.broadcast_to(jnp.asarray(scale, jnp.float32), batch))

    @property
    def reward_scale(self) -> Any:
        """The largest reward of one pull; `None` if it is 1."""
        return self.scale

    @property
    def cost_scale(self) -> Any:
        """The largest cost of one pull; `None` if it is 1. [] or [d]"""
        several = jnp.ndim(self.cost_probs) > jnp.ndim(self.reward_probs)
        if self.scale is None or not several:
            return self.scale
        scale = jnp.asarray(self.scale)[..., None]
        return jnp.broadcast_to(scale, (*scale.shape[:-1], jnp.shape(self.cost_probs)[-2]))

    @property
    def reward_mean(self) -> jax.Array:
        return _mean(jnp.asarray(self.reward_probs), jnp.asarray(self.support), self.scale)

    @property
    def cost_mean(self) -> jax.Array:
        support, scale = jnp.asarray(self.support), self.scale
        if jnp.ndim(self.cost_probs) > jnp.ndim(self.reward_probs):
            support = support[..., None, :]  # the same for each resource
            scale = None if scale is None else jnp.asarray(scale)[..., None]
        return _mean(jnp.asarray(self.cost_probs), support, scale)

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        support = jnp.asarray(self.support)
        if jnp.ndim(self.cost_probs) == 3:
            rows = jnp.asarray(self.cost_probs)[arm]
            words = random.several_bits(key, 1 + len(rows))
            costs = [
                _draw(word, probs, support) for word, probs in zip(words[1:], rows, strict=True)
            ]
            return _draw(words[0], jnp.asarray(self.reward_probs)[arm], support), jnp.stack(costs)
        words = random.bits(key)
        rows = jnp.asarray(self.reward_probs)[arm], jnp.asarray(self.cost_probs)[arm]
        reward, cost = (
            _draw(word, probs, support) for word, probs in zip(words, rows, strict=True)
        )
        return reward, cost

    @classmethod
    def random(
        cls, key: jax.Array, num_arms: int, *, num_points: int = 5, num_resources: int | None = None
    ) -> "Multinomial":
        """Draws a random instance on `num_points` equispaced points. Each row is uniform over all
        probability vectors.

        With `num_resources` = d, each arm has d costs.
        """
        checks.whole("num_points", num_points, 2)
        d = 1 if num_resources is None else checks.whole("num_resources", num_resources, 1)
        check_num_arms(num_arms, num_points * d)
        checks.key(key)
        probs = _random_rows(key, 1 + d, num_arms, num_points)
        costs = probs[1] if num_resources is None else jnp.stack(probs[1:], 1)
        return cls(reward_probs=probs[0], cost_probs=costs)


# Sums over the points are computed in whole numbers: a float32 sum would depend on the order of its
# terms, and this order on the batch. Functions that are also called outside of a game are compiled
# as one program, not one for each operation.


@partial(jax.jit, static_argnums=(1, 2, 3))
def _random_rows(
    key: jax.Array, count: int, num_arms: int, num_points: int
) -> tuple[jax.Array, ...]:
    """Returns rows [K, M] for the rewards, and for the cost of each resource."""
    weights = jax.random.exponential(key, (count, num_arms, num_points), jnp.float32)
    weights = jnp.ceil(weights * 2**16).astype(jnp.int32)
    probs = weights.astype(jnp.float32) / weights.sum(-1, keepdims=True, dtype=jnp.int32).astype(
        jnp.float32
    )
    return tuple(probs)


@jax.jit
def _mean(probs: jax.Array, support: jax.Array, scale: jax.Array | None) -> jax.Array:
    """Returns the expected value under each row. `probs`: [K, M], `support`: [M], `scale`: [] ->
    [K]
    """
    if scale is not None:
        size = _power_above(scale)[..., None]
        return _mean(probs, support / size, None) * size
    return _whole(probs * support[..., None, :]).sum(-1).astype(jnp.float32) * jnp.float32(2**-30)


def _power_above(x: jax.Array) -> jax.Array:
    """The next power of two above `x`: to divide by it is exact."""
    exponent = lax.bitcast_convert_type(jnp.asarray(x, jnp.float32), jnp.int32) & 0x7F800000
    return lax.bitcast_convert_type(exponent, jnp.float32) * 2


def _draw(word: jax.Array, probs: jax.Array, support: jax.Array) -> jax.Array:
    """Returns the point that a random word selects, or NaN, which ends the run, if a probability is
    negative. [M] each
    """
    level = (word >> 2).astype(jnp.int32)
    # The last point has the remaining probability, so that rounding cannot lead out of range.
    if len(support) <= WRITTEN_OUT:
        point, reached, good = support[0], jnp.int32(0), probs[-1] >= 0
        for i in range(len(support) - 1):
            reached, good = reached + _whole(probs[i]), good & (probs[i] >= 0)
            point = jnp.where(level >= reached, support[i + 1], point)
    else:
        reached, good = jnp.cumsum(_whole(probs[:-1])), (probs >= 0).all()
        point = support[jnp.sum(level >= reached, dtype=jnp.int32)]
    return jnp.where(good, point, jnp.nan)


def _whole(x: jax.Array) -> jax.Array:
    return jnp.round(x * jnp.float32(2**30)).astype(jnp.int32)
