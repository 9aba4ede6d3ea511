"""KL-UCB-SC: the largest ratio that the Kullback–Leibler divergence leaves possible."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax import checks, random
from bts_jax.policies.index import ArmStatistics, IndexPolicy
from bts_jax.pytrees import pytree

STEPS = 4  # of Newton's method; from where it starts, they leave an error below 10⁻⁸


@pytree
class KLUCBSC(IndexPolicy):
    """KL-UCB-SC (Watanabe et al., IEICE 2017): the largest ratio within a Kullback–Leibler confidence region.

    In round t, pull the arm with the largest

        max{x/y : n_i [kl(r̄_i, x) + kl(c̄_i, y)] ≤ ln(t / n_i^tuned)},   kl(p, q) = p ln(p/q) + (1 − p) ln((1 − p)/(1 − q)).

    Side information: none.

    Guarantee: asymptotically optimal on Bernoulli arms for tuned = 0, as the source proves. For tuned = 1, the default: none
    known to us.

    The source has two levels. ln t (tuned = 0) is the one of its proof. ln(t/n) (tuned = 1) is the tuned variant that it
    compares with BTS. The default is the one with less regret: on 200 random bandits with ten arms and a budget of 5,000
    times the smallest cost, tuned = 1 has 0.77 to 0.86 times the regret of tuned = 0.

    Where the source is silent: an arm with c̄_i = 0 has an infinite index, and is explored before the others (see
    `index.choose`); so is an arm whose index is above 10³⁸.

    How the maximum is found: at the x/y = ρ that costs least divergence, with w the multiplier of the constraint,

        x = (r̄ + w)/(1 + w),   y = (c̄ − w)/(1 − w),

    and w solves a quadratic equation. The least divergence K is a convex function of ln ρ, its derivative being w: Newton's
    method finds where it is ln(t / n^tuned) / n. An r̄ of 0 is taken for 10⁻¹². With tuned = 0 and up to 10⁵ pulls this
    changes the index by 10⁻⁷ of it; with tuned = 1 by up to 1% where n ≈ t. Where ln(t / n^tuned) is 0, the index is r̄/c̄.

    Args:
        tuned: from 0 to 1. The level is ln t for 0, ln(t/n) for 1, and ln t − tuned · ln n between.

    Example:
        >>> KLUCBSC(tuned=0)  # for which asymptotic optimality was proved
        KLUCBSC(tuned=0.0)
    """

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
    """ln(ρc/r) for the largest ρ with K(ρ) ≤ level, K being the least kl(r, x) + kl(c, y) with x/y = ρ; r and c are not 0.

    It is 0, exactly, where the level is."""
    positive = level > 0
    level = jnp.where(positive, level, 1)
    # Where both divergences are worth what Bernstein's inequality says, or half-way to where y is 0.
    linear = level * (2 / 3)
    x_only = (linear + jnp.sqrt(linear * linear + 2 * r * (1 - r) * level)) / jnp.maximum(1 - r, 1e-7)
    y_only = jnp.sqrt(2 * c * level / jnp.maximum(1 - c, 1e-7))
    w = jnp.minimum(x_only / jnp.sqrt(1 + (x_only / y_only) ** 2), c / 2)
    start = random.log((1 + w / r) * (1 - w) / ((1 + w) * (1 - w / c)))
    gain = jnp.maximum(start, jnp.float32(1e-6))
    for _ in range(STEPS):
        w = multiplier(r, c, gain)
        gain = jnp.maximum(gain - (divergence(r, c, gain, w) - level) / w, jnp.float32(1e-7))
    return jnp.where(positive, gain, 0)


def multiplier(r: jax.Array, c: jax.Array, gain: jax.Array) -> jax.Array:
    """The w with (r + w)(1 − w) / [(1 + w)(c − w)] = ρ = e^gain r/c.

    That is (ρ − 1)w² + [1 − r + ρ(1 − c)]w − (ρc − r) = 0, here divided by 1 + ρ, and solved without cancellation.
    """
    rho = r / c * jnp.exp(gain)
    s, f = 1 / (1 + 1 / rho), 1 / (1 + rho)  # ρ/(1 + ρ) and 1/(1 + ρ)
    linear = (1 - r) * f + (1 - c) * s
    difference = (1 + r) * f - (1 + c) * s
    root = jnp.sqrt(difference * difference + 4 * s * f * (1 - r) * (1 - c))
    return jnp.minimum(-2 * c * s * jnp.expm1(-gain) / (linear + root), c)


def divergence(r: jax.Array, c: jax.Array, gain: jax.Array, w: jax.Array) -> jax.Array:
    """kl(r, x) + kl(c, y) at x = (r + w)/(1 + w), y = xc e^−gain / r."""
    excess = random.log_excess
    reward = r * excess(w / r) - excess(w)
    # kl(c, y) = (1 − c) ln(1 − w) − c ln(y/c); where w is small, as a difference of small terms.
    small, rest = w < c / 2, excess(-jnp.minimum(w, jnp.float32(1 - 2**-24)))
    near = c * excess(jnp.where(small, -w / c, 0)) - rest
    log_y = random.log((1 + w / r) / (1 + w)) - gain
    far = -(1 - c) * (w + rest) - c * log_y
    return reward + jnp.where(small, near, far)
