"""`Known`: means that are known in advance, such as a price list that applies exactly."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

SMALLEST = 1e-25  # so that the ratios of arms that cost nothing are finite, and can be compared


@pytree
class Known:
    """Expected costs that are known, such as fixed prices. There is nothing to learn: every draw is
    the expected cost.

    Without numbers, the policy has the expected costs of the bandit as side information. For prices
    that are known only roughly, use `Gamma(mean=prices, strength=...)`. If time is limited and an
    arm costs nothing, choose a policy that knows the value of time, such as `TSUpdate`.

    Args:
        mean: the expected costs, in the unit of the amounts: a list with one for each arm, or one
            number for all; or `None` for those of the bandit. [K]

    Example:
        >>> from bts_jax import BTS, contract
        >>> contract.side_info(BTS(cost=Known()))
        ('cost_mean',)
        >>> contract.side_info(BTS(cost=Known([0.001, 0.03])))
        ()
    """

    bounded: ClassVar[bool] = False

    mean: ArrayLike | None = None

    def _check(self) -> None:
        if self.mean is not None:
            checks.per_arm(self, "mean", 0, 1e9)

    @property
    def requires(self) -> tuple[str, ...]:
        return ("cost_mean",) if self.mean is None else ()

    def init(self, problem: Problem) -> jax.Array:
        if self.mean is None:
            return jnp.asarray(problem.required("cost_mean"), jnp.float32)
        checks.fits_arms(self, problem.num_arms)
        mean = jnp.asarray(self.mean, jnp.float32) / (
            1.0 if problem.scale is None else problem.scale
        )
        return jnp.broadcast_to(mean, (problem.num_arms,))

    def draw(self, state: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.maximum(state, SMALLEST)

    def record(
        self, state: jax.Array, arm: jax.Array, value: jax.Array, word: jax.Array
    ) -> jax.Array:
        return state
