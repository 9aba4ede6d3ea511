"""Dirichlet posteriors: the probabilities of the values on a grid."""

from functools import reduce
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class Dirichlet:
    """Dirichlet posteriors of values in [0, 1]: what is learnt is how often each of the values v_1
    < … < v_M occurs.

    A value between two of these is rounded to one of them at random, without bias. The mean of an
    arm is drawn as

        θ = Σ_j v_j p_j,   p ~ Dirichlet(N_1 + α, …, N_M + α),

    where N_j counts how often value j was seen. So θ varies less for an arm whose values vary less,
    which `Beta` ignores. With the two values 0 and 1 this is `Beta(α, α)`.

    Reference: ours. For the values that an arm can have, this is the multinomial Thompson sampling
    of Riou and Honda, "Bandit Algorithms Based on Thompson Sampling for Bounded Reward
    Distributions", ALT 2020, with another prior.

    Args:
        values: the values of the grid in ascending order, the first 0 and the last 1. [M]
        prior: α, the prior count of each value, from 0.01 to 10⁷.

    Example:
        >>> Dirichlet(values=[0, 0.5, 1], prior=1)
        Dirichlet(values=(0.0, 0.5, 1.0), prior=1.0)
    """

    bounded: ClassVar[bool] = True
    learnable: ClassVar[dict[str, tuple[float, float]]] = {"prior": (0.05, 10.0)}

    values: Any = (0.0, 0.25, 0.5, 0.75, 1.0)
    prior: ArrayLike = 0.4

    def _check(self) -> None:
        checks.hyperparameter(self, "prior", 0.01, 1e7)
        remedy = "give at least two numbers in ascending order, the first 0 and the last 1"
        if np.ndim(self.values) != 1 or len(self.values) < 2:  # type: ignore
            raise ValueError(f"values = {self.values!r} is not a grid: {remedy}")
        object.__setattr__(self, "values", tuple(self.values))  # type: ignore
        if checks.is_concrete(self.values):
            grid = checks.numbers("values", self.values, remedy).astype(np.float32)
            object.__setattr__(self, "values", tuple(grid.tolist()))
            checks.require("values", grid, np.diff(grid, prepend=-1) > 0, remedy)
            checks.require("the ends of values", grid[[0, -1]], grid[[0, -1]] == [0, 1], remedy)

    def init(self, problem: Problem) -> tuple[jax.Array, ...]:
        """How often each value was seen. One array [K] int32 for each value"""
        return (jnp.zeros(problem.num_arms, jnp.int32),) * len(self.values)

    def draw(self, state: tuple[jax.Array, ...], key: jax.Array) -> jax.Array:
        shapes = jnp.stack(state, -1).astype(jnp.float32) + jnp.asarray(self.prior, jnp.float32)
        # [K, M]; of small shapes, all draws may be too small for float32.
        logs = jax.random.loggamma(key, shapes)
        weights = jnp.exp(logs - logs.max(-1, keepdims=True))
        parts = [weights[:, j] for j in range(len(state))]
        worth = [weight * value for weight, value in zip(parts, self.values, strict=True)]
        return reduce(jnp.add, worth) / reduce(jnp.add, parts)

    def record(
        self, state: tuple[jax.Array, ...], arm: jax.Array, value: jax.Array, word: jax.Array
    ) -> tuple[jax.Array, ...]:
        grid = jnp.asarray(self.values, jnp.float32)
        above = jnp.clip((grid <= value).sum(), 1, len(state) - 1)  # the grid point above the value
        low, high = grid[above - 1], grid[above]
        place = above - 1 + random.happens(word, (value - low) / (high - low)).astype(jnp.int32)
        return tuple(
            count.at[arm].add((place == j).astype(jnp.int32)) for j, count in enumerate(state)
        )
