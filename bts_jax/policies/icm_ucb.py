"""i-UCB, c-UCB, m-UCB and b-greedy: four ways to explore, from one paper."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax import checks, random
from bts_jax.policies.index import ArmStatistics, IndexPolicy, choose, over
from bts_jax.pytrees import pytree


class _Family(IndexPolicy):
    """What the three have in common: e_i = α √(ln(t − 1) / n_i)."""

    alpha: ArrayLike

    def _check(self) -> None:
        checks.hyperparameter(self, "alpha", 0, 1e6)

    def _radius(self, state: ArmStatistics) -> jax.Array:
        log_t = jnp.log(jnp.maximum(state.rounds, 1).astype(jnp.float32))
        return 1 / jnp.sqrt(state.n) * (self.alpha * jnp.sqrt(log_t))


@pytree
class IUCB(_Family):
    """i-UCB (Xia et al., Neurocomputing 2017): the confidence radius is added to the ratio.

    In round t, pull the arm with the largest

        r̄_i / c̄_i + e_i,   e_i = α √(ln(t − 1) / n_i).

    Side information: none.

    Guarantee: regret sublinear in B, and O(ln B) for a suitable α, says the source. Whether the default α is suitable is not
    known to us.

    Where the source is silent: an arm with c̄_i = 0 has an infinite index, and is explored before the others (see
    `index.choose`).

    Args:
        alpha: the factor α; 1/4 in the source.

    Example:
        >>> IUCB(alpha=0.5)  # explores more than the source's
        IUCB(alpha=0.5)
    """

    alpha: ArrayLike = 1 / 4

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        return over(state.reward_mean, state.cost_mean) + self._radius(state)


@pytree
class CUCB(_Family):
    """c-UCB (Xia et al., Neurocomputing 2017): the confidence radius is added to the reward.

    In round t, pull the arm with the largest

        (r̄_i + e_i) / c̄_i,   e_i = α √(ln(t − 1) / n_i).

    Side information: none.

    Guarantee: as for `IUCB`: sublinear in B; O(ln B) for a suitable α.

    Where the source is silent: an arm with c̄_i = 0 has an infinite index, and is explored before the others (see
    `index.choose`).

    Args:
        alpha: the factor α; 1/8 in the source.

    Example:
        >>> CUCB(alpha=0.25)  # explores more than the source's
        CUCB(alpha=0.25)
    """

    alpha: ArrayLike = 1 / 8

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        return over(state.reward_mean + self._radius(state), state.cost_mean)


@pytree
class MUCB(_Family):
    """m-UCB (Xia et al., Neurocomputing 2017): optimistic reward over optimistic cost.

    In round t, pull the arm with the largest

        min{r̄_i + e_i, 1} / (c̄_i − e_i),   e_i = α √(ln(t − 1) / n_i).

    Side information: none.

    Guarantee: as for `IUCB`: sublinear in B; O(ln B) for a suitable α.

    Where the source is silent: an arm with c̄_i ≤ e_i has an infinite index, and is explored before the others (see
    `index.choose`).

    Args:
        alpha: the factor α; 1/16 in the source.

    Example:
        >>> MUCB(alpha=0.125)  # explores more than the source's
        MUCB(alpha=0.125)
    """

    alpha: ArrayLike = 1 / 16

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        e = self._radius(state)
        return over(jnp.minimum(state.reward_mean + e, 1), state.cost_mean - e)


@pytree
class BGreedy(IndexPolicy):
    """b-greedy (Xia et al., Neurocomputing 2017): any arm now and then, else the one that looks best.

    In round t, pull an arm chosen uniformly at random with probability min{1, scale · K / t}, and else

        argmax_i r̄_i / c̄_i.

    Side information: none.

    Guarantee: regret sublinear in B, and O(ln B) for suitable parameters, says the source. Whether the default scale is
    suitable is not known to us.

    Where the source is silent: first every arm is pulled once. An arm with c̄_i = 0 has an infinite ratio, and is explored
    before the others (see `index.choose`).

    Args:
        scale: the factor before K/t; 1 in the source.

    Example:
        >>> BGreedy(scale=2.0)  # explores more than the source's
        BGreedy(scale=2.0)
    """

    scale: ArrayLike = 1.0

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 0, 1e6)

    def __call__(self, state: ArmStatistics, key: jax.Array) -> tuple[jax.Array, ArmStatistics]:
        num_arms = state.pulls.shape[0]
        t = (state.rounds + 1).astype(jnp.float32)
        (coin, word), other = random.bits(key), random.bits(key, (), 1)[0]
        explores = random.happens(coin, self.scale * num_arms / t) & (state.pulls > 0).all()
        best = choose(over(state.reward_mean, state.cost_mean), state.pulls)
        return jnp.where(explores, random.reduced(word, other, num_arms), best), state
