"""The number, the mean and the variation of the values of each arm, from which several posteriors draw."""

from typing import NamedTuple

import jax


class Moments(NamedTuple):
    """The first two moments of each arm's values, those of the prior included (Welford's algorithm)."""

    count: jax.Array  # [K] float32, n
    mean: jax.Array  # [K] float32, m
    squares: jax.Array  # [K] float32, M₂, the sum of squared distances from the mean

    def record(self, arm: jax.Array, value: jax.Array) -> "Moments":
        """The moments after one more value of `arm`."""
        old = self.mean[arm]
        n = self.count[arm] + 1
        new = old + (value - old) / n
        return Moments(
            count=self.count.at[arm].set(n),
            mean=self.mean.at[arm].set(new),
            squares=self.squares.at[arm].add((value - old) * (value - new)),
        )

    @property
    def variance(self) -> jax.Array:
        """The variance of the mean under the Bayesian bootstrap (Rubin, 1981): M₂ / (n (n + 1)). [K]"""
        return self.squares / (self.count * (self.count + 1))
