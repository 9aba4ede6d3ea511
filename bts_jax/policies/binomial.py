"""Exact binomial draws by rejection, without a loop over the trials."""

import math

import jax
import jax.numpy as jnp

from bts_jax import random

LARGEST = 2.0**22  # trials: up to here, halves of whole numbers are exact in float32
TRIES = 2  # proposals in a call, of which the first accepted one counts
SLOPE, WIDTH = 2 * math.sqrt(2 / math.e), 0.9


def binomial(key: jax.Array, trials: jax.Array, chance: jax.Array) -> jax.Array:
    """Exact Binomial(trials, chance) draws, as float32. Trials are whole numbers from 0 to 2²².

    The method is the ratio of uniforms with the rectangle of Stadlober (Journal of Computational
    and Applied Mathematics 1990), for all parameters: k = ⌊np + 1/2 + h(V − 1/2)/U⌋ with uniform
    U and V and h = 2√(2/e) √(npq + 1/2) + 0.9 is accepted if U² ≤ f(k)/F. Here f are the
    probabilities and F = 1/√max(1, 2πnpq − 0.6) is an upper bound on the largest of them. The
    test compares both bounds with f. Of the proposals, 72% are accepted if npq is large, half if
    npq = 3, and a quarter if npq is near 0.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> draws = binomial(jax.random.key(0), jnp.full(10_000, 50.0), jnp.full(10_000, 0.3))
        >>> abs(float(draws.mean()) - 15) < 0.2
        True
    """
    return random.rejection(propose, key, trials, chance, hashes=TRIES)


def propose(
    words: list[random.Words], trials: jax.Array, chance: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Makes `TRIES` proposals. Returns the first accepted one, and whether there is one."""
    # Stacked, because XLA takes four times as long to compile several copies (jax 0.10.2).
    first, second = (jnp.stack(part) for part in zip(*words, strict=True))
    values, accepted = propose_one((first, second), trials, chance)
    value, found = values[0], accepted[0]
    for i in range(1, TRIES):
        value, found = jnp.where(found, value, values[i]), found | accepted[i]
    return value, found


def propose_one(
    words: random.Words, trials: jax.Array, chance: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Proposes a number of successes. Also returns whether it is accepted."""
    u, v = random.unit(words[0]), random.unit(words[1])
    mean = trials * chance
    variance = mean * (1 - chance)
    value = jnp.floor(mean + 0.5 + width(variance) * ((v - 0.5) / u))
    possible = (value >= 0) & (value <= trials)
    log_f = log_probability(jnp.where(possible, value, 0), trials, chance)
    return value, possible & (2 * random.log(u) + log_height(variance) <= log_f)


def width(variance: jax.Array) -> jax.Array:
    """h, the width of the rectangle."""
    return jnp.float32(SLOPE) * jnp.sqrt(variance + 0.5) + jnp.float32(WIDTH)


def log_height(variance: jax.Array) -> jax.Array:
    """log F, where no probability is larger than F."""
    return -0.5 * random.log(jnp.maximum(jnp.float32(2 * math.pi) * variance - 0.6, 1))


def log_probability(value: jax.Array, trials: jax.Array, chance: jax.Array) -> jax.Array:
    """The logarithm of the probability of `value` successes, without cancellation (Loader 2000)."""
    failures = trials - value
    rest = excess(trials) - excess(value) - excess(failures)
    return rest - deviance(value, trials * chance) - deviance(failures, trials * (1 - chance))


def excess(count: jax.Array) -> jax.Array:
    """log n! − n log n + n, which is about log √(2πn). It is 0 for n = 0."""
    n = jnp.maximum(count, 4)
    square = n * n
    series = (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / n
    value = 0.5 * random.log(jnp.float32(2 * math.pi) * n) + series
    for small in range(4):
        known = math.lgamma(small + 1) - small * math.log(max(small, 1)) + small
        value = jnp.where(count == small, jnp.float32(known), value)
    return value


def deviance(count: jax.Array, mean: jax.Array) -> jax.Array:
    """n log(n/m) + m − n for the mean m. It is m for n = 0, and infinite for m = 0 < n."""
    some = (count > 0) & (mean > 0)
    n, m = jnp.where(some, count, 1), jnp.where(some, mean, 1)
    distance = n * random.log_excess((m - n) / n)
    return jnp.where(some, distance, jnp.where(count > 0, jnp.inf, mean))
