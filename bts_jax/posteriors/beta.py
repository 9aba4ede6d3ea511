"""Beta posteriors: a value in [0, 1] becomes a success with that probability (the paper's Algorithm
1).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.posteriors import logs
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class BetaState(NamedTuple):
    successes: jax.Array  # [K] int32, S
    pulls: jax.Array  # [K] int32, S + F


@pytree
class Beta:
    """Beta posteriors of values in [0, 1], as in Algorithm 1 of Xia et al. (IJCAI 2015).

    A value x becomes a success with probability x. After S successes and F failures of an arm, its
    mean is drawn from

        θ ~ Beta(S + α, F + β).

    For values that are 0 or 1, the trial changes nothing. For other values it loses what the value
    tells beyond its mean: `Dirichlet` has less regret on rewards with several values, and `Gamma`
    on costs of unknown size.

    Reference: Xia et al., "Thompson Sampling for Budgeted Multi-Armed Bandits", IJCAI 2015.

    Deviations from the source: the prior counts are hyperparameters; the source has 1 for both.

    Each prior count is from 0.5 to 10⁷. With smaller counts, draws underflow: a fifth of the draws
    from Beta(0.01, 0.01) are too small for float32.

    Args:
        alpha: α, prior successes: one number for all arms, or a list with one for each. [K]
        beta: β, prior failures, in the same way. [K]

    Example:
        >>> Beta(alpha=[1, 5], beta=2)  # the second arm is expected to be better
        Beta(alpha=(1.0, 5.0), beta=2.0)
    """

    bounded: ClassVar[bool] = True
    learnable: ClassVar[dict[str, tuple[float, float]]] = dict.fromkeys(
        ("alpha", "beta"), (0.5, 1000.0)
    )

    alpha: ArrayLike = 1.0
    beta: ArrayLike = 1.0

    def _check(self) -> None:
        for name in ("alpha", "beta"):
            checks.per_arm(self, name, 0.5, 1e7)

    def init(self, problem: Problem) -> BetaState:
        checks.fits_arms(self, problem.num_arms)
        zeros = jnp.zeros(problem.num_arms, jnp.int32)
        return BetaState(successes=zeros, pulls=zeros)

    def draw(self, state: BetaState, key: jax.Array) -> jax.Array:
        return random.beta(key, *self.shapes(state))

    def record(
        self, state: BetaState, arm: jax.Array, value: jax.Array, word: jax.Array
    ) -> BetaState:
        success = random.happens(word, value).astype(jnp.int32)
        return BetaState(
            successes=state.successes.at[arm].add(success), pulls=state.pulls.at[arm].add(1)
        )

    def shapes(self, state: BetaState) -> tuple[jax.Array, jax.Array]:
        """The parameters of the arms' Beta distributions. [K] each"""
        failures = state.pulls - state.successes
        return (
            state.successes.astype(jnp.float32) + jnp.asarray(self.alpha, jnp.float32),
            failures.astype(jnp.float32) + jnp.asarray(self.beta, jnp.float32),
        )

    def log_draw(self, state: BetaState, key: jax.Array) -> jax.Array:
        """The logarithms of draws that have derivatives with respect to α and β. [K]"""
        a, b = jnp.log(random.gamma(key, jnp.stack(self.shapes(state))))
        return a - jnp.logaddexp(a, b)  # Beta(a, b) = Gamma(a) / (Gamma(a) + Gamma(b))

    @classmethod
    def from_log(
        cls,
        values: Any,
        *,
        arms: Sequence[str] | None = None,
        strength: float = 20.0,
        largest: float = 1.0,
    ) -> "Beta":
        """A prior from a log of values, for example of last month.

        The prior of an arm is 1 success and 1 failure, and trials with the mean of its values.
        There are as many trials as values, but at most `strength`.

        Args:
            values: a list of values for each arm, in the order of the arms; or a mapping from names
                to such lists, with `arms`. An arm may have none.
            arms: the names of the arms in the order of the bandit, such as `bandit.arms`; for a
                mapping.
            strength: the largest number of trials.
            largest: the largest possible value, by which values are divided.

        Example:
            >>> Beta.from_log([[0, 1, 1, 1], [0.5, 0.5]], strength=4)
            Beta(alpha=(4.0, 2.0), beta=(2.0, 2.0))
        """
        most = logs.positive(
            "largest", largest, "give the largest possible value, a positive number"
        )
        remedy = f"give values from 0 to {most:g}; largest is the largest possible value"
        columns = [column / most for column in logs.columns(values, arms, remedy, most)]
        counts = [min(len(column), logs.strength_of(strength)) for column in columns]
        means = [float(column.mean()) if len(column) else 0.0 for column in columns]
        number, mean = np.array(counts), np.array(means)
        return cls(alpha=1 + number * mean, beta=1 + number * (1 - mean))
