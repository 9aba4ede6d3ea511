"""Arms with finitely many outcomes: the paper's "multinomial" arms (Section 5)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.bandits.arms import Arms, check_num_arms
from bts_jax.engine.programs import quick_jit
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

WRITTEN_OUT = 64  # up to this many points the loop is unrolled, and a GPU runs it as one kernel


@pytree
class Multinomial(Arms):
    """Arms whose reward and cost are independent draws from M points in [0, 1].

    Args:
        reward_probs: the probability of each point as the reward of each arm; each row sums to 1. [K, M]
        cost_probs: the same for the cost. [K, M], or [K, d, M] for d resources, whose costs are independent draws
        support: the points, M numbers in [0, 1]; by default 0, 1/(M−1), …, 1. [M]

    Example:
        >>> fair = [0.2] * 5
        >>> bandit = Multinomial(reward_probs=[fair, fair], cost_probs=[fair, [0, 0, 1, 0, 0]])
        >>> bandit.support.tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """

    reward_probs: ArrayLike  # [K, M]
    cost_probs: ArrayLike  # [K, M] or [K, d, M]
    support: ArrayLike | None = None  # [M]

    def _check(self) -> None:
        self._canonicalize(vectors=("cost_probs",), reward_probs=2, cost_probs=2)
        points = np.shape(self.reward_probs)[-1]
        if self.support is None:
            object.__setattr__(self, "support", jnp.linspace(0, 1, points, dtype=jnp.float32))
        if not checks.is_concrete([self.reward_probs, self.cost_probs, self.support]):
            return
        for name in ("reward_probs", "cost_probs"):
            probs = np.asarray(getattr(self, name), np.float64)
            total = probs.sum(-1)
            checks.require(f"the sum of {name}", total, abs(total - 1) < 1e-5, "make every row sum to 1")
            # Rows that sum to 1 in float32 keep their bits, as in an instance made under `vmap`, which is not normalized.
            if (abs(total - 1) > 1e-6).any():
                object.__setattr__(self, name, jnp.asarray(probs / total[..., None], jnp.float32))
        remedy = "give finite numbers in [0, 1]"
        support = checks.numbers("support", self.support, remedy)
        checks.require("support", support, (support >= 0) & (support <= 1), remedy)
        if support.ndim < 1 or support.shape[-1] != points:
            raise ValueError(f"support has shape {support.shape}, but the rows of reward_probs have {points} entries: "
                             "give one point per entry")
        object.__setattr__(self, "support", jnp.asarray(self.support, jnp.float32))

    @property
    def reward_mean(self) -> jax.Array:
        return _mean(jnp.asarray(self.reward_probs), jnp.asarray(self.support))

    @property
    def cost_mean(self) -> jax.Array:
        support = jnp.asarray(self.support)
        if jnp.ndim(self.cost_probs) > jnp.ndim(self.reward_probs):
            support = support[..., None, :]  # the same for each resource
        return _mean(jnp.asarray(self.cost_probs), support)

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        support = jnp.asarray(self.support)
        if jnp.ndim(self.cost_probs) == 3:
            rows = jnp.asarray(self.cost_probs)[arm]
            words = random.several_bits(key, 1 + len(rows))
            costs = [_draw(word, probs, support) for word, probs in zip(words[1:], rows, strict=True)]
            return _draw(words[0], jnp.asarray(self.reward_probs)[arm], support), jnp.stack(costs)
        words = random.bits(key)
        rows = jnp.asarray(self.reward_probs)[arm], jnp.asarray(self.cost_probs)[arm]
        reward, cost = (_draw(word, probs, support) for word, probs in zip(words, rows, strict=True))
        return reward, cost

    @classmethod
    def random(cls, key: jax.Array, num_arms: int, *, num_points: int = 5, num_resources: int | None = None) -> "Multinomial":
        """Draws a random instance on `num_points` equispaced points. Each row is uniform over all probability vectors.

        With `num_resources` = d, each arm has d costs.
        """
        checks.whole("num_points", num_points, 2)
        d = 1 if num_resources is None else checks.whole("num_resources", num_resources, 1)
        check_num_arms(num_arms, num_points * d)
        checks.key(key)
        probs = _random_rows(key, 1 + d, num_arms, num_points)
        costs = probs[1] if num_resources is None else jnp.stack(probs[1:], 1)
        return cls(reward_probs=probs[0], cost_probs=costs)


# Sums over the points are computed in whole numbers: a float32 sum would depend on the order of its terms, and this order on
# the batch. Functions that are also called outside of a game are compiled as one program, not one for each operation.


@partial(quick_jit, static_argnums=(1, 2, 3))
def _random_rows(key: jax.Array, count: int, num_arms: int, num_points: int) -> tuple[jax.Array, ...]:
    """Returns rows [K, M] for the rewards, and for the cost of each resource."""
    weights = jax.random.exponential(key, (count, num_arms, num_points), jnp.float32)
    weights = jnp.ceil(weights * 2**16).astype(jnp.int32)
    probs = weights.astype(jnp.float32) / weights.sum(-1, keepdims=True, dtype=jnp.int32).astype(jnp.float32)
    return tuple(probs)


@jax.jit
def _mean(probs: jax.Array, support: jax.Array) -> jax.Array:
    """Returns the expected value under each row. `probs`: [K, M], `support`: [M] -> [K]"""
    return _whole(probs * support[..., None, :]).sum(-1).astype(jnp.float32) * jnp.float32(2**-30)


def _draw(word: jax.Array, probs: jax.Array, support: jax.Array) -> jax.Array:
    """Returns the point that a random word selects, or NaN, which ends the run, if a probability is negative. [M] each"""
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
