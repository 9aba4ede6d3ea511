"""Normal posteriors, with a variance that is learnt."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.posteriors.moments import Moments
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class Normal:
    """Normal posteriors of values in [0, 1], whose variance is learnt.

    The mean of an arm with average value x̄ after n pulls is drawn from

        θ ~ N(x̄, V / (n + 1)),   V = (variance + learn · Σ (x − x̄)²) / (1 + learn · n).

    Before the first pull, x̄ is 1/2. V is the variance of one pull. With `learn = 0` it is always
    `variance`. Costs must be
    positive: with `positive = 1`, draws outside of (0, 1] are rejected.

    Reference: the spread for `variance = 1` and `learn = 0` is that of Agrawal and Goyal, "Further
    Optimal Regret Bounds for Thompson Sampling", AISTATS 2013. The rest is ours.

    The truncated draws are exact (see `bts_jax.random.rejection`). At least a third of the draws is
    accepted. After about ten pulls of an arm nearly all are accepted. If its average is nearly 0 or
    nearly 1, half of them are.

    Args:
        variance: the prior variance of one pull, in (0, 1]: one number for all arms, or a list with
            one for each. [K]
        learn: the weight of one observation in the variance, relative to the weight 1 of the prior;
            from 0 to 10⁶. [K]
        positive: 1 to reject draws outside of (0, 1], 0 to keep them.

    Example:
        >>> Normal(variance=1, learn=0)  # explores as much as Agrawal and Goyal
        Normal(variance=1.0, learn=0.0, positive=0.0)
    """

    bounded: ClassVar[bool] = True
    negative: ClassVar[bool] = True  # draws may be negative, and have no logarithm then
    learnable: ClassVar[dict[str, tuple[float, float]]] = {
        "variance": (0.01, 1.0),
        "learn": (0.001, 10.0),
    }

    variance: ArrayLike = 0.25
    learn: ArrayLike = 0.3
    positive: ArrayLike = 0.0

    def _check(self) -> None:
        checks.per_arm(self, "variance", 0, 1, low_excluded=True)
        checks.per_arm(self, "learn", 0, 1e6)
        checks.switch(self, "positive")

    def init(self, problem: Problem) -> Moments:
        checks.fits_arms(self, problem.num_arms)
        zeros = jnp.zeros(problem.num_arms, jnp.float32)
        return Moments.of(zeros, mean=zeros + jnp.float32(0.5), squares=zeros)

    def draw(self, state: Moments, key: jax.Array) -> jax.Array:
        positive = jnp.broadcast_to(jnp.asarray(self.positive, jnp.float32), state.mean.shape)
        return random.rejection(propose, key, state.mean, self.spread(state), positive)

    def spread(self, state: Moments) -> jax.Array:
        """The standard deviations of the arms' normal distributions. [K]"""
        learn = jnp.asarray(self.learn, jnp.float32)
        variance = (jnp.asarray(self.variance, jnp.float32) + learn * state.squares) / (
            1 + learn * state.count
        )
        # Never 0: with an average of 0, no draw would be accepted.
        return jnp.sqrt(jnp.maximum(variance / (state.count + 1), jnp.float32(1e-30)))

    def record(self, state: Moments, arm: jax.Array, value: jax.Array, word: jax.Array) -> Moments:
        first = state.count[arm] == 0  # 1/2 stands for no average
        return state._replace(
            mean=state.mean.at[arm].set(jnp.where(first, value, state.mean[arm]))
        ).record(arm, value)


def propose(
    words: random.Words, mean: jax.Array, spread: jax.Array, positive: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Proposes a normal draw. It is accepted if it is in (0, 1], or if it need not be."""
    value = mean + spread * random.normal_pair(words)[0]
    return value, ((value > 0) & (value <= 1)) | ~checks.is_on(positive)
