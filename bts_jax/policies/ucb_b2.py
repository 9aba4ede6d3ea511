"""UCB-B2: an upper confidence bound on the ratio, from the variances of reward and cost."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax import checks
from bts_jax.policies.index import ArmStatistics, IndexPolicy, over
from bts_jax.pytrees import pytree
from bts_jax.random import rounded, settled


class Kept(NamedTuple):
    ratio: jax.Array  # [K] r̂ = r̄/c̄, infinite for c̄ = 0
    reward: jax.Array  # [K] r̄
    cost: jax.Array  # [K] c̄
    reward_spread: jax.Array  # [K] √(2V̂_r/n)
    cost_spread: jax.Array  # [K] √(2V̂_c/n)
    scale: jax.Array  # [K] 3/n


@pytree
class UCBB2(IndexPolicy):
    """UCB-B2 (Cayci et al., AISTATS 2020).

    In round t, pull the arm with the largest

        r̂_i + 1.4 (ε_i + r̂_i η_i) / c̄_i,   r̂_i = r̄_i / c̄_i,   ε_i = √(2V̂_i^r α ln t / n_i) + 3α ln t / n_i,

    η_i being the same as ε_i with the variance V̂_i^c of the cost; but an arm is explored before the others (see
    `index.choose`) unless η_i < c̄_i (λ − 1)/λ.

    Told in advance: nothing.

    Where the source is silent: V̂ is the mean square distance from the average, divided by n and not n − 1.

    Args:
        alpha: α, how sure to be; 2.01 in the source.
        stability: λ > 1, how well the cost must be known; 1.28 in the source, for which its factor 1.4 is made.

    Example:
        >>> UCBB2(alpha=3.0)  # explores more than the source's
        UCBB2(alpha=3.0, stability=1.28)
    """

    variances: ClassVar[bool] = True

    alpha: ArrayLike = 2.01
    stability: ArrayLike = 1.28
    reward_test: ArrayLike = 1.0

    def _check(self) -> None:
        checks.hyperparameter(self, "alpha", 0, 1e6)
        checks.hyperparameter(self, "stability", 1, 1e6, low_excluded=True)
        checks.switch(self, "reward_test")

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        arms: Kept = state.kept
        log_t = settled(self.alpha * jnp.log((state.rounds + 1).astype(jnp.float32)))
        root, known = settled((jnp.sqrt(log_t), 1 - 1 / jnp.asarray(self.stability, jnp.float32)))
        most = rounded(log_t * arms.scale)
        reward_radius = rounded(root * arms.reward_spread) + most
        cost_radius = settled(rounded(root * arms.cost_spread) + most)
        slack = rounded(1.4 * over(reward_radius + rounded(arms.ratio * cost_radius), arms.cost))
        limit = jnp.where(checks.is_on(self.reward_test), arms.reward, rounded(known * arms.cost))
        return jnp.where(cost_radius < limit, arms.ratio + slack, jnp.inf)

    @staticmethod
    def keep(
        n: jax.Array, reward_mean: jax.Array, cost_mean: jax.Array, reward_rest: jax.Array, cost_rest: jax.Array
    ) -> Kept:
        def spread(x: jax.Array, rest: jax.Array) -> jax.Array:
            # V̂ = x̄(1 − x̄) − (the average of x(1 − x)), of which Bernoulli feedback has none.
            return jnp.sqrt(2 * jnp.maximum(rounded(x * (1 - x)) - rest, 0) / n)

        return Kept(ratio=over(reward_mean, cost_mean), reward=reward_mean, cost=cost_mean, scale=3 / n,
                    reward_spread=spread(reward_mean, reward_rest), cost_spread=spread(cost_mean, cost_rest))
