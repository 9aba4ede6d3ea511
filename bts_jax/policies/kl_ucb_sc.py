"""KL-UCB-SC: the largest ratio within a Kullback–Leibler confidence region."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax import checks, random
from bts_jax.policies.index import ArmStatistics, IndexPolicy
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

STEPS = 4  # of Newton's method; from its starting point the error is then below 10⁻⁸


@pytree
class KLUCBSC(IndexPolicy):
    """KL-UCB-SC (Watanabe et al., IEICE 2017): the largest ratio within a Kullback–Leibler
    confidence region.

    In round t, pull the arm with the largest

        max{x/y : n_i [kl(r̄_i, x) + kl(c̄_i, y)] ≤ ln(t / n_i^tuned)},
        kl(p, q) = p ln(p/q) + (1 − p) ln((1 − p)/(1 − q)).

    Reference: Watanabe et al., "KL-UCB-Based Policy for Budgeted Multi-Armed Bandits with
    Stochastic Action Costs", IEICE 2017.

    Side information: none.

    Guarantee: asymptotically optimal on Bernoulli arms for tuned = 0, as the source proves. For
    tuned = 1, the default, we know of no guarantee.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the source has two levels. Its proof uses ln t (tuned = 0). Its
    tuned variant, which it compares with BTS, uses ln(t/n) (tuned = 1). The default is the level
    with less regret: on 200 random bandits with ten arms and a budget of 5,000 times the smallest
    cost, tuned = 1 has 0.77 to 0.86 times the regret of tuned = 0. The source does not define the
    index for c̄_i = 0. Here it is infinite, and the arm is explored before the others (see
    `index.choose`). An arm whose index is above 10³⁸ is also explored before the others.

    How the maximum is computed: for a given ratio x/y = ρ, the divergence is smallest at

        x = (r̄ + w)/(1 + w),   y = (c̄ − w)/(1 − w),

    where w, the multiplier of the constraint, solves a quadratic equation. The smallest divergence
    K is a convex function of ln ρ with derivative w. Newton's method solves K(ρ) = ln(t / n^tuned)
    / n. An r̄ of 0 is replaced by 10⁻¹². With tuned = 0 and up to 10⁵ pulls this changes the index
    by a relative 10⁻⁷. With tuned = 1 it changes the index by up to 1% where n ≈ t. Where ln(t /
    n^tuned) is 0, the index is r̄/c̄.

    Args:
        tuned: from 0 to 1. The level is ln t for 0, ln(t/n) for 1, and ln t − tuned · ln n in
        between.

    Example:
        >>> KLUCBSC(tuned=0)  # for which asymptotic optimality was proved
        KLUCBSC(tuned=0.0)
    """

    bounded_costs: ClassVar[bool] = True

    tuned: ArrayLike = 1.0

    def _check(self) -> None:
        checks.hyperparameter(self, "tuned", 0, 1)

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        reward, scale = jnp.maximum(state.reward_mean, jnp.float32(1e-12)), 1 / state.n
        t = (state.rounds + 1).astype(jnp.float32)
        tuned = jnp.asarray(self.tuned, jnp.float32)
        plain = (1 - tuned) * jnp.log(t)
        log = jnp.maximum(plain + tuned * random.log(t * scale), 0)  # ln t − tuned · ln n
        costs = state.cost_mean > 0
        cost = jnp.where(costs, state.cost_mean, 1)
        gain = largest_gain(reward, cost, log * scale)
        return jnp.where(costs, reward / cost * jnp.exp(gain), jnp.inf)


def largest_gain(r: jax.Array, c: jax.Array, level: jax.Array) -> jax.Array:
    """Returns ln(ρc/r) for the largest ρ with K(ρ) ≤ level, and exactly 0 where the level is 0.

    K(ρ) is the smallest kl(r, x) + kl(c, y) with x/y = ρ. r and c must not be 0.
    """
    positive = level > 0
    level = jnp.where(positive, level, 1)
    # Starting point: the w at which both divergences have the values of Bernstein's inequality, at
    # most halfway to y = 0.
    linear = level * (2 / 3)
    x_only = (linear + jnp.sqrt(linear * linear + 2 * r * (1 - r) * level)) / jnp.maximum(
        1 - r, 1e-7
    )
    y_only = jnp.sqrt(2 * c * level / jnp.maximum(1 - c, 1e-7))
    w = jnp.minimum(x_only / jnp.sqrt(1 + (x_only / y_only) ** 2), c / 2)
    start = random.log((1 + w / r) * (1 - w) / ((1 + w) * (1 - w / c)))
    gain = jnp.maximum(start, jnp.float32(1e-6))
    for _ in range(STEPS):
        w = multiplier(r, c, gain)
        gain = jnp.maximum(gain - (divergence(r, c, gain, w) - level) / w, jnp.float32(1e-7))
    return jnp.where(positive, gain, 0)


def multiplier(r: jax.Array, c: jax.Array, gain: jax.Array) -> jax.Array:
    """Returns the w with (r + w)(1 − w) / [(1 + w)(c − w)] = ρ = e^gain r/c.

    It solves (ρ − 1)w² + [1 − r + ρ(1 − c)]w − (ρc − r) = 0. The equation is divided by 1 + ρ and
    solved without cancellation.
    """
    rho = r / c * jnp.exp(gain)
    s, f = 1 / (1 + 1 / rho), 1 / (1 + rho)  # ρ/(1 + ρ) and 1/(1 + ρ)
    linear = (1 - r) * f + (1 - c) * s
    difference = (1 + r) * f - (1 + c) * s
    root = jnp.sqrt(difference * difference + 4 * s * f * (1 - r) * (1 - c))
    return jnp.minimum(-2 * c * s * jnp.expm1(-gain) / (linear + root), c)


def divergence(r: jax.Array, c: jax.Array, gain: jax.Array, w: jax.Array) -> jax.Array:
    """Returns kl(r, x) + kl(c, y) at x = (r + w)/(1 + w), y = xc e^−gain / r."""
    excess = random.log_excess
    reward = r * excess(w / r) - excess(w)
    # kl(c, y) = (1 − c) ln(1 − w) − c ln(y/c). For small w it is computed as a difference of small
    # terms.
    small, rest = w < c / 2, excess(-jnp.minimum(w, jnp.float32(1 - 2**-24)))
    near = c * excess(jnp.where(small, -w / c, 0)) - rest
    log_y = random.log((1 + w / r) / (1 + w)) - gain
    far = -(1 - c) * (w + rest) - c * log_y
    return reward + jnp.where(small, near, far)
