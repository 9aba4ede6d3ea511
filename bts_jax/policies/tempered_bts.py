"""Tempered BTS: budgeted Thompson sampling that trusts what it has seen more, or less, than Bayes' rule does."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax import checks
from bts_jax.policies.bts import BTS
from bts_jax.pytrees import pytree
from bts_jax.random import rounded


@pytree
class TemperedBTS(BTS):
    """BTS (Xia et al., IJCAI 2015) with the likelihood raised to a power κ.

    As `BTS`, but for every arm i

        θ_i^r ~ Beta(κ S_i^r + α^r, κ F_i^r + β^r),   θ_i^c ~ Beta(κ S_i^c + α^c, κ F_i^c + β^c).

    With κ > 1 the posterior is sharper than Bayes' rule makes it, and the policy explores less; with κ < 1 it explores
    more. With κ = 1 it is `BTS`, bit for bit. What κ and the prior counts should be depends on the problems that are
    to come: `bts_jax.learn.fit` learns them.

    Told in advance: nothing.

    Guarantee: that of `BTS` for κ = 1 and uniform priors, which are the default. Else none known to us.

    Args:
        reward_alpha, reward_beta, cost_alpha, cost_beta: as for `BTS`.
        sharpness: κ, from 0.01 to 100.

    Example:
        >>> import jax, bts_jax
        >>> bandit = bts_jax.Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9])
        >>> run = bts_jax.simulate(TemperedBTS(sharpness=3.0), bandit, 100, jax.random.key(0))
        >>> run.cost.tolist()
        [100.0]
    """

    learnable: ClassVar[dict[str, tuple[float, float]]] = BTS.learnable | {"sharpness": (0.05, 50.0)}

    sharpness: ArrayLike = 1.0

    def _check(self) -> None:
        BTS._check(self)
        checks.hyperparameter(self, "sharpness", 0.01, 100)

    def posterior(
        self, successes: jax.Array, pulls: jax.Array, alpha: ArrayLike, beta: ArrayLike
    ) -> tuple[jax.Array, jax.Array]:
        sharpness = jnp.asarray(self.sharpness)
        a, b = (rounded(sharpness * count.astype(jnp.float32)) for count in (successes, pulls - successes))
        return a + alpha, b + beta
