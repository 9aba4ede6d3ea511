"""i-UCB, c-UCB, m-UCB and b-greedy: four ways to explore, from one paper."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax import checks, random
from bts_jax.policies.index import ArmStatistics, IndexPolicy, choose, over
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class _Family(IndexPolicy):
    """Base class of the three UCB policies. The confidence radius is e_i = α √(ln(t − 1) / n_i)."""

    alpha: ArrayLike

    def _check(self) -> None:
        checks.hyperparameter(self, "alpha", 0, 1e6)

    def _radius(self, state: ArmStatistics) -> jax.Array:
        log_t = jnp.log(jnp.maximum(state.rounds, 1).astype(jnp.float32))
        return 1 / jnp.sqrt(state.n) * (self.alpha * jnp.sqrt(log_t))


@pytree
class IUCB(_Family):
    """i-UCB (Xia et al., Neurocomputing 2017): adds the confidence radius to the ratio.

    In round t, pull the arm with the largest

        r̄_i / c̄_i + e_i,   e_i = α √(ln(t − 1) / n_i).

    Reference: Xia et al., "Finite Budget Analysis of Multi-Armed Bandit Problems", Neurocomputing
    2017.

    Side information: none.

    Guarantee: the source states that regret is sublinear in B, and O(ln B) for a suitable α. We do
    not know whether the default α is suitable.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the source does not define the index for c̄_i = 0. Here it is
    infinite, and the arm is explored before the others (see `index.choose`).

    Args:
        alpha: the factor α; 1/4 in the source.

    Example:
        >>> IUCB(alpha=0.5)  # explores more than the source's
        IUCB(alpha=0.5)
    """

    bounded_costs: ClassVar[bool] = True

    alpha: ArrayLike = 1 / 4

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        return over(state.reward_mean, state.cost_mean) + self._radius(state)


@pytree
class CUCB(_Family):
    """c-UCB (Xia et al., Neurocomputing 2017): adds the confidence radius to the reward.

    In round t, pull the arm with the largest

        (r̄_i + e_i) / c̄_i,   e_i = α √(ln(t − 1) / n_i).

    Reference: Xia et al., "Finite Budget Analysis of Multi-Armed Bandit Problems", Neurocomputing
    2017.

    Side information: none.

    Guarantee: as for `IUCB`: regret is sublinear in B, and O(ln B) for a suitable α.

    Deviations from the source: the source does not define the index for c̄_i = 0. Here it is
    infinite, and the arm is explored before the others (see `index.choose`).

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
    """m-UCB (Xia et al., Neurocomputing 2017): divides an optimistic reward by an optimistic cost.

    In round t, pull the arm with the largest

        min{r̄_i + e_i, 1} / (c̄_i − e_i),   e_i = α √(ln(t − 1) / n_i).

    Reference: Xia et al., "Finite Budget Analysis of Multi-Armed Bandit Problems", Neurocomputing
    2017.

    Side information: none.

    Guarantee: as for `IUCB`: regret is sublinear in B, and O(ln B) for a suitable α.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the source does not define the index for c̄_i ≤ e_i. Here it is
    infinite, and the arm is explored before the others (see `index.choose`).

    Args:
        alpha: the factor α; 1/16 in the source.

    Example:
        >>> MUCB(alpha=0.125)  # explores more than the source's
        MUCB(alpha=0.125)
    """

    bounded_costs: ClassVar[bool] = True

    alpha: ArrayLike = 1 / 16

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        e = self._radius(state)
        return over(jnp.minimum(state.reward_mean + e, 1), state.cost_mean - e)


@pytree
class BGreedy(IndexPolicy):
    """b-greedy (Xia et al., Neurocomputing 2017): sometimes pulls a random arm, otherwise the arm
    with the best averages.

    In round t, pull an arm chosen uniformly at random with probability min{1, scale · K / t}.
    Otherwise pull

        argmax_i r̄_i / c̄_i.

    Reference: Xia et al., "Finite Budget Analysis of Multi-Armed Bandit Problems", Neurocomputing
    2017.

    Side information: none.

    Guarantee: the source states that regret is sublinear in B, and O(ln B) for suitable parameters.
    We do not know whether the default scale is suitable.

    Deviations from the source: the source leaves the following open. Here every arm is pulled once
    first. An arm with c̄_i = 0 has an infinite ratio and is explored before the others (see
    `index.choose`).

    Args:
        scale: the factor of K/t; 1 in the source.

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
