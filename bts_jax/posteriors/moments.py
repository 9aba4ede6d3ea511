"""The number, the mean and the variation of the values of each arm, from which several posteriors
draw.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Moments(NamedTuple):
    """The first two moments of each arm's values, those of the prior included (Welford's
    algorithm).

    After many pulls, a step of the mean is smaller than its last bit. So what is lost by rounding
    is added to the next step (Kahan's compensation). Without it, the mean of a million values is
    off by a hundred standard errors.
    """

    count: jax.Array  # [K] float32, n
    mean: jax.Array  # [K] float32, m
    squares: jax.Array  # [K] float32, M₂, the sum of squared distances from the mean
    lost: jax.Array  # [K] float32, what rounding has taken from the mean

    @classmethod
    def of(cls, count: jax.Array, mean: jax.Array, squares: jax.Array) -> "Moments":
        return cls(count, mean, squares, jnp.zeros_like(mean))

    def record(self, arm: jax.Array, value: jax.Array) -> "Moments":
        """The moments after one more value of `arm`."""
        old = self.mean[arm]
        n = self.count[arm] + 1
        step = (value - old) / n + self.lost[arm]
        new = old + step
        return Moments(
            count=self.count.at[arm].set(n),
            mean=self.mean.at[arm].set(new),
            squares=self.squares.at[arm].add((value - old) * (value - new)),
            lost=self.lost.at[arm].set(step - (new - old)),
        )

    @property
    def variance(self) -> jax.Array:
        """The variance of the mean under the Bayesian bootstrap (Rubin, 1981): M₂ / (n (n + 1)).
        [K]
        """
        return self.squares / (self.count * (self.count + 1))
