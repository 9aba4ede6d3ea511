"""Tempered Beta posteriors: sharper or flatter than the Bayesian posterior."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.posteriors.beta import Beta, BetaState
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class TemperedBeta(Beta):
    """`Beta` with the likelihood raised to a power κ_t, which may depend on the number t of pulls
    of all arms.

    After S successes and F failures of an arm, its mean is drawn from

        θ ~ Beta(κ_t S + α, κ_t F + β),   κ_t = 1 + (κ − 1) (1 + t/h)^(−d).

    With κ > 1 the posterior is sharper than the Bayesian posterior, and with κ < 1 flatter. With d
    = 0 the power is constant.

    Reference: ours.

    Args:
        alpha, beta: as for `Beta`.
        sharpness: κ, from 0.01 to 100.
        horizon: h, from 1 to 10⁹ pulls.
        decay: d, from 0 to 10.

    Example:
        >>> TemperedBeta(sharpness=3.0)
        TemperedBeta(alpha=1.0, beta=1.0, sharpness=3.0, horizon=1000.0, decay=0.0)
    """

    learnable: ClassVar[dict[str, tuple[float, float]]] = Beta.learnable | {
        "sharpness": (0.05, 50.0)
    }

    sharpness: ArrayLike = 1.0
    horizon: ArrayLike = 1000.0
    decay: ArrayLike = 0.0

    def _check(self) -> None:
        Beta._check(self)
        check_power(self)

    def power(self, rounds: ArrayLike) -> jax.Array:
        """Returns κ_t after `rounds` pulls."""
        sharpness, decay = (
            jnp.asarray(self.sharpness, jnp.float32),
            jnp.asarray(self.decay, jnp.float32),
        )
        share = jnp.exp(-decay * jnp.log1p(jnp.asarray(rounds).astype(jnp.float32) / self.horizon))
        # For d = 0 it is κ itself: for κ below ½ the sum is rounded.
        return jnp.where(decay == 0, sharpness, 1 + (sharpness - 1) * share)

    def shapes(self, state: BetaState) -> tuple[jax.Array, jax.Array]:
        power = self.power(state.pulls.sum())
        failures = state.pulls - state.successes
        return (
            power * state.successes.astype(jnp.float32) + jnp.asarray(self.alpha, jnp.float32),
            power * failures.astype(jnp.float32) + jnp.asarray(self.beta, jnp.float32),
        )


def check_power(owner: Any) -> None:
    """Raises unless the fields of κ_t are valid."""
    checks.hyperparameter(owner, "sharpness", 0.01, 100)
    checks.hyperparameter(owner, "horizon", 1, 1e9)
    checks.hyperparameter(owner, "decay", 0, 10)
