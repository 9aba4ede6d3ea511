"""Random problems for the study of real costs: laws of the cost of a pull, in one class, so that
they share a program.
"""

import math

import jax
import jax.numpy as jnp

from bts_jax import random
from bts_jax.bandits.arms import Arms
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

BERNOULLI, FIVE, SPREAD, TWO = range(4)
LARGEST_NORMAL = 4.5  # larger normal draws are cut to this: 1 in 300,000
RARE = 1e-3  # of the law with two values: one pull in 1,000 costs 1,000 times as much as the others


@pytree
class LawArms(Arms):
    """Arms whose costs have one of several laws.

    - BERNOULLI: rewards and costs are 0 or 1.
    - FIVE: rewards and costs are 0, 1/4, 1/2, 3/4 or 1, the sums of four Bernoulli trials divided
      by four.
    - SPREAD: a reward is 0 or 1, and a cost log-normal. It is fixed if `sigma` is 0.
    - TWO: a reward is 0 or 1, and a cost has two values.

    Args:
        reward: expected reward of each arm. [K]
        cost: expected cost of each arm; at most 1 for the first two laws. [K]
        law: the number of the law.
        sigma: the standard deviation of the logarithm of log-normal costs.
        middle: the median of log-normal costs of mean 1; see `log_normal`.
    """

    reward: ArrayLike
    cost: ArrayLike
    law: ArrayLike = SPREAD
    sigma: ArrayLike = 0.0
    middle: ArrayLike = 1.0

    @property
    def reward_mean(self) -> jax.Array:
        return jnp.asarray(self.reward)

    @property
    def cost_mean(self) -> jax.Array:
        return jnp.asarray(self.cost)

    @property
    def cost_scale(self) -> jax.Array:
        law, sigma, cost = (jnp.asarray(x) for x in (self.law, self.sigma, self.cost))
        most = jnp.where(
            law == TWO, 1 / RARE / (2 - RARE), self.middle * jnp.exp(sigma * LARGEST_NORMAL)
        )
        # A little more, because of rounding.
        return jnp.where(law < SPREAD, 1, 1.00001 * most * cost.max(-1))

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        words = random.several_bits(key, 8)
        reward, cost, law = (
            jnp.asarray(self.reward)[arm],
            jnp.asarray(self.cost)[arm],
            jnp.asarray(self.law),
        )
        rewards, costs = (
            random.happens(words[4 * i : 4 * i + 4], jnp.minimum(mean, 1)).astype(jnp.int32)
            for i, mean in enumerate((reward, cost))
        )
        normal = jnp.minimum(random.normal_pair((words[6], words[7]))[0], LARGEST_NORMAL)
        spread = cost * (self.middle * jnp.exp(self.sigma * normal))
        low = cost / (2 - RARE)
        two = jnp.where(random.unit(words[6]) <= RARE, low / RARE, low)
        by_law = costs[0].astype(jnp.float32), costs.sum().astype(jnp.float32) / 4, spread, two
        reward = jnp.where(
            law == FIVE, rewards.sum().astype(jnp.float32) / 4, rewards[0].astype(jnp.float32)
        )
        return reward, jnp.select([law == number for number in range(4)], by_law)


def log_normal(variation: float) -> dict[str, float]:
    """The fields of a log-normal law with this coefficient of variation, up to the cut."""
    sigma = math.sqrt(math.log1p(variation**2))
    mean = _below(LARGEST_NORMAL - sigma) * math.exp(sigma**2 / 2)
    mean += math.exp(sigma * LARGEST_NORMAL) * _below(-LARGEST_NORMAL)
    return {"sigma": sigma, "middle": 1 / mean}


def _below(x: float) -> float:
    """The probability that a standard normal draw is below x."""
    return math.erfc(-x / math.sqrt(2)) / 2
