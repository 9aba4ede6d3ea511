"""Counter-based random numbers, and exact samplers without inner loops.

Every number drawn here is a function of a key and of its place in the array that was asked for, so it does not
depend on the batch or the block it was drawn in. The generator is Threefry-2x32 (Salmon et al., SC 2011): the same
family as JAX's default generator, written out so that XLA can fuse it with what consumes the numbers.

`gamma` and `beta` are for everyone: exact draws, whole arrays of them at once. They loop until the last element is
accepted, or make many proposals side by side (`tries`). A policy in a hurry does neither: it takes proposals
(`propose_gamma`, `propose_beta`), and where one is not accepted it answers arm −1, is called again with a fresh key, and keeps
those that were (`contract.py`, `policies/thompson.py`).

Some products that are then added to something pass through `rounded`. Compilers may contract `a * b + c` into one
instruction with one rounding instead of two, and where the product or the sum has several uses, whether they do depends on
what stands nearby, even on the length of the array. A product that must be rounded gives the same bits everywhere.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from bts_jax import checks

ROUNDS = 13  # the fewest with which Threefry-2x32 passes BigCrush (Salmon et al., Table 2)
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)

SMALLEST_SHAPE, LARGEST_SHAPE = 2.0**-20, 1e7  # of `gamma` and `beta`; the former is some 10⁻⁶

Words = tuple[jax.Array, jax.Array]  # two uint32 arrays of one shape


def threefry(key: Words, counter: Words, rounds: int = ROUNDS) -> Words:
    """Threefry-2x32: 64 random bits for a 64-bit key and a 64-bit counter, elementwise."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    x, y = counter[0] + key[0], counter[1] + key[1]
    for i in range(rounds):
        turn = _ROTATIONS[i % 8]
        x = x + y
        y = ((y << turn) | (y >> (32 - turn))) ^ x
        if i % 4 == 3:
            j = i // 4 + 1
            x = x + schedule[j % 3]
            y = y + schedule[(j + 1) % 3] + jnp.uint32(j)
    return x, y


def key_words(key: jax.Array) -> Words:
    """The 64 bits that stand for a typed JAX key of any implementation."""
    data = jax.random.key_data(key)
    words = data[..., 0], data[..., 1]
    for i in range(2, data.shape[-1], 2):
        words = threefry(words, (data[..., i], data[..., i + 1]), rounds=20)
    return words


def derive(words: Words, index: ArrayLike, purpose: int) -> jax.Array:
    """The key of one purpose in one round of the run that `words` stand for: an ordinary JAX key."""
    return as_key(derived_words(words, index, purpose))


def derived_words(words: Words, index: ArrayLike, purpose: int) -> Words:
    """The words of that key."""
    return threefry(words, (jnp.asarray(index).astype(jnp.uint32), jnp.uint32(purpose)))


def as_key(words: Words) -> jax.Array:
    """An ordinary JAX key from its 64 bits."""
    return jax.random.wrap_key_data(jnp.stack(words, axis=-1), impl="threefry2x32")


def bits(key: jax.Array, shape: tuple[int, ...] = (), stream: ArrayLike = 0) -> Words:
    """Two arrays of random 32-bit words. Streams of one key are independent of each other."""
    place = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    words = settled_words(key_words(key)) if shape else key_words(key)
    return threefry(words, (place, jnp.full(shape, stream, jnp.uint32)))


def settled(tree: Any) -> Any:
    """The same arrays, computed once and stored before anything uses them.

    XLA's CPU compiler computes a hash anew for every element of every array that depends on it; a number per run that
    decides over K arms is then hashed K times. A branch is the one thing it does not see through. GPUs need none of this.
    """
    if jax.default_backend() != "cpu":
        return tree
    always = lax.optimization_barrier(jnp.bool_(True))
    return lax.cond(always, lambda x: x, lambda x: jax.tree.map(jnp.zeros_like, x), tree)


def settled_words(words: Words) -> Words:
    """Both words, settled as one array: of two, XLA's CPU compiler would work out each with a hash of its own."""
    if jax.default_backend() != "cpu":
        return words
    both = settled(lax.complex(*(lax.bitcast_convert_type(word, jnp.float32) for word in words)))
    first, second = (lax.bitcast_convert_type(part, jnp.uint32) for part in (lax.real(both), lax.imag(both)))
    return first, second


def rounded(x: jax.Array) -> jax.Array:
    """`x`, rounded to float32 here and now. A maximum is not to be seen through, a plain cast is."""
    return jnp.maximum(x, jnp.float32(-3e38))


def unit(word: jax.Array) -> jax.Array:
    """A random word as a float32 in (0, 1], with 32 bits of resolution near 0.

    Example:
        >>> import jax.numpy as jnp
        >>> unit(jnp.uint32(2**31)).item()
        0.5
    """
    return word.astype(jnp.float32) * jnp.float32(2**-32) + jnp.float32(2**-33)


def happens(word: jax.Array, probability: ArrayLike) -> jax.Array:
    """A Bernoulli trial: whether a random word falls below `probability`, which is met to 2⁻³² (0 and 1 exactly).

    Example:
        >>> import jax.numpy as jnp
        >>> happens(jnp.uint32(2**30), jnp.array([0.2, 0.3])).tolist()  # the word stands for ¼
        [False, True]
    """
    probability = jnp.asarray(probability, jnp.float32)
    # The clip keeps the conversion in range; 2³² − 256 is the largest float32 below 2³².
    threshold = jnp.clip(probability * jnp.float32(2**32), 0.0, jnp.float32(2**32 - 256)).astype(jnp.uint32)
    return (word < threshold) | (probability >= 1)


def below(word: jax.Array, count: int) -> jax.Array:
    """A whole number below `count`, each as likely as the others; −1 for the few words that would favour some of them.

    Example:
        >>> import jax.numpy as jnp
        >>> below(jnp.array([7, 8, 2**32 - 1], jnp.uint32), 3).tolist()
        [1, 2, -1]
    """
    fair = word <= jnp.uint32(2**32 // count * count - 1)
    return jnp.where(fair, (word % count).astype(jnp.int32), -1)


def one_of(word: jax.Array, count: jax.Array) -> jax.Array:
    """A whole number below `count`, all being equally likely to 2⁻³²: int32."""
    # The upper half of the 64-bit product, from halves of 16 bits: lax.mulhi does not compile everywhere.
    count = count.astype(jnp.uint32)
    (a, b), (c, d) = ((x >> 16, x & 0xFFFF) for x in (word, count))
    middle = (b * d >> 16) + (a * d & 0xFFFF) + (b * c & 0xFFFF)
    return (a * c + (a * d >> 16) + (b * c >> 16) + (middle >> 16)).astype(jnp.int32)


def exponential(word: jax.Array) -> jax.Array:
    """A standard exponential draw from a random word."""
    return -log(unit(word))


def log(x: jax.Array) -> jax.Array:
    """The logarithm of positive normal float32 numbers, right to 2.5 units in the last place; half the work of `jnp.log`."""
    exponent, t = _reduced(x)
    return exponent * jnp.float32(math.log(2)) + _cubic(t) + _quartic(t)


def log_excess(u: jax.Array) -> jax.Array:
    """u − log(1 + u) for u > −1, without cancellation near 0."""
    exponent, t = _reduced(1 + u)
    near = exponent == 0
    v = jnp.where(near, u, t)  # 1 + t has lost digits of a small u
    quartic = _quartic(v)
    far = u - (exponent * jnp.float32(math.log(2)) + _cubic(t) + quartic)
    return jnp.where(near, rounded(u * u * (1 / 2 - u * (1 / 3))) - quartic, far)


def _reduced(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """e and t with x = 2^e (1 + t) and √½ ≤ 1 + t < √2."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - jnp.int32(0x3F3504F3)) >> 23
    return exponent.astype(jnp.float32), lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32) - 1


def _cubic(t: jax.Array) -> jax.Array:
    """t − t²/2 + t³/3, the first three terms of log(1 + t)."""
    return rounded(t * (1 + t * (-1 / 2 + t * (1 / 3))))


def _quartic(t: jax.Array) -> jax.Array:
    """What is left of log(1 + t) after three terms, for √½ ≤ 1 + t < √2, to a relative error of 3.3·10⁻⁶."""
    square = t * t
    rest = jnp.float32(_QUARTIC[-1])
    for coefficient in _QUARTIC[-2::-1]:
        rest = rest * t + jnp.float32(coefficient)
    return rounded(square * square * rest)


# The minimax polynomial of degree 6 for (log(1 + t) − t + t²/2 − t³/3) / t⁴.
_QUARTIC = (-0.25000074, 0.20000692, -0.16652518, 0.14225139, -0.12873434, 0.12525673, -0.08190106)


def normal_pair(words: Words) -> tuple[jax.Array, jax.Array]:
    """Two independent standard normal draws from two random words (Box–Muller): the radius has 32 bits, the angle 21.

    The lowest 11 bits of the second word are not used: `spare_bits` are independent of the draws.
    """
    return _circle(exponential(words[0]), words[1])


def _circle(energy: jax.Array, word: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The point at radius √(2·energy) whose angle a random word says."""
    radius = jnp.sqrt(2 * energy)
    # The top two bits of the angle say which quarter of the circle, the next 19 where in it, in (−π/4, π/4).
    turn = word & jnp.uint32(0xFFFFF800)
    angle = lax.bitcast_convert_type(turn << 2, jnp.int32).astype(jnp.float32) * jnp.float32(jnp.pi / 4 * 2**-31)
    square = angle * angle
    cos = 1 + square * (-1 / 2 + square * (1 / 24 + square * (-1 / 720 + square * (1 / 40320))))
    sin = angle * (1 + square * (-1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square * (1 / 362880)))))
    swap = (turn >> 30) & 1 == 1
    radius = jnp.where(turn >> 31 == 1, -radius, radius)
    return radius * jnp.where(swap, sin, cos), radius * jnp.where(swap, cos, sin)


def spare_bits(words: Words) -> jax.Array:
    """The 11 bits that `normal_pair` leaves, as a uint32 below 2048."""
    return words[1] & jnp.uint32(0x7FF)


def gumbel(word: jax.Array) -> jax.Array:
    """A standard Gumbel draw from a random word: the largest of `logits + gumbel` is an arm drawn by softmax."""
    return -log(jnp.maximum(exponential(word), jnp.float32(2**-25)))


@partial(jax.jit, static_argnames="tries")
def gamma(key: jax.Array, shape: ArrayLike, *, tries: int | None = None) -> jax.Array:
    """Exact Gamma(shape, 1) draws, one for each element of `shape`: float32, from 10⁻⁶ to 10⁷; NaN for other shapes.

    Draws too small for float32 are 0 or some 10⁻³⁸. `tries`: as for `beta`.

    A draw x has a derivative with respect to its shape a: that of the quantile, −(∂F(x; a)/∂a) / F′(x; a). So the
    derivative of an expectation is the expected derivative (implicit reparameterisation, Figurnov et al., NeurIPS 2018).
    It is right to 1% for shapes up to 10⁵, and not beyond.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> draws = gamma(jax.random.key(0), jnp.full(10_000, 2.5))
        >>> abs(float(draws.mean()) - 2.5) < 0.1
        True
    """
    return _gamma(tries, key, jnp.asarray(shape, jnp.float32))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gamma(tries: int | None, key: jax.Array, shape: jax.Array) -> jax.Array:
    power = _exp_minus(_less(shape, bits(key, shape.shape, _BEYOND)[0]))

    def propose(words: Words) -> tuple[jax.Array, jax.Array]:
        value, log_accept = propose_gamma(_raised(shape), normal_pair(words)[0])
        return value * power, log_accept

    return _first_accepted(key, _within(shape), propose, tries)


@_gamma.defjvp
def _(tries: int | None, primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    draw = _gamma(tries, *primals)
    return draw, lax.random_gamma_grad(primals[1], draw) * tangents[1]  # type: ignore


@partial(jax.jit, static_argnames="tries")
def beta(key: jax.Array, a: ArrayLike, b: ArrayLike, *, tries: int | None = None) -> jax.Array:
    """Exact Beta(a, b) draws, one for each element of `a` and `b` (broadcast): float32, from 10⁻⁶ to 10⁷; NaN for others.

    Their derivatives are taken to be 0: make them of `gamma` draws, which have some.

    Proposals are made one after another until every element has one that is accepted. With `tries` so many are made side by
    side, and the first that is accepted is the draw, the same one: no loop, which suits a few numbers on a GPU. If there is
    none, the draw is NaN; of 40 tries that comes about with a probability below 10⁻²⁰.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> draws = beta(jax.random.key(0), jnp.full(10_000, 3.0), 1.0)
        >>> abs(float(draws.mean()) - 0.75) < 0.01
        True
    """
    a, b = jnp.broadcast_arrays(*(lax.stop_gradient(jnp.asarray(shape, jnp.float32)) for shape in (a, b)))
    luck = bits(key, a.shape, _BEYOND)
    less = rounded(_less(a, luck[0]) - _less(b, luck[1]))
    # Both powers may be too small for float32; their quotient is what counts.
    power_a, power_b = _exp_minus(jnp.maximum(less, 0)), _exp_minus(jnp.maximum(-less, 0))

    def propose(words: Words) -> tuple[jax.Array, jax.Array]:
        normals = normal_pair(words)
        gamma_a, log_a = propose_gamma(_raised(a), normals[0])
        gamma_b, log_b = propose_gamma(_raised(b), normals[1])
        x, y = rounded(gamma_a * power_a), rounded(gamma_b * power_b)
        return jnp.minimum(x / (x + y), 1), log_a + log_b  # a GPU's x / x may be 1 + 10⁻⁷

    return _first_accepted(key, _within(a) & _within(b), propose, tries)


# For shapes a < 1/2: a Gamma(a + 1) draw times U^(1/a) is a Gamma(a) draw (Marsaglia and Tsang, 2000, Section 6).
_BEYOND = 2**32 - 1  # the stream of U, beyond those of all tries


def _raised(shape: jax.Array) -> jax.Array:
    return jnp.where(shape < 0.5, shape + 1, shape)


def _less(shape: jax.Array, word: jax.Array) -> jax.Array:
    """−log U^(1/shape) for a random U, where the shape is to be raised; 0 elsewhere."""
    return jnp.where(shape < 0.5, rounded(exponential(word) / jnp.where(shape < 0.5, shape, 1)), 0)


def _within(shape: jax.Array) -> jax.Array:
    return (shape >= SMALLEST_SHAPE) & (shape <= LARGEST_SHAPE)


def _first_accepted(
    key: jax.Array, valid: jax.Array, propose: Callable[[Words], tuple[jax.Array, jax.Array]], tries: int | None
) -> jax.Array:
    """The first accepted proposal for each element; those of try i come from the key's streams 2i and 2i + 1."""

    def attempt(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, log_accept = propose(bits(key, valid.shape, 2 * i))
        return value, log(unit(bits(key, valid.shape, 2 * i + 1)[0])) < log_accept

    if tries is not None:
        checks.whole("tries", tries, 1)
        values, accepted = jax.vmap(attempt)(lax.iota(jnp.uint32, tries))
        score = (accepted & valid).astype(jnp.int32)
        first = lax.argmax(score, 0, jnp.int32)  # of equals, the first
        return jnp.where(score.max(0) > 0, jnp.take_along_axis(values, first[None], 0)[0], jnp.nan)

    def again(carry: tuple) -> tuple:
        i, value, done = carry
        proposed, accepted = attempt(i)
        return i + 1, jnp.where(done, value, proposed), done | accepted

    first = again((jnp.uint32(0), jnp.full(valid.shape, jnp.nan, jnp.float32), ~valid))
    return lax.while_loop(lambda carry: ~carry[2].all(), again, first)[1]


def propose_gamma(shape: jax.Array, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A proposal for a Gamma(shape, 1) draw, and the logarithm of the probability to accept it.

    Marsaglia and Tsang (2000): with d = shape − 1/3 and y = normal / √(9d), propose d(1+y)³ and accept with probability
    exp(3d[log(1+y) − y + y²/2 − y³/3]), the bracket being what is left of the logarithm's series after three terms.
    Their bound holds for every d > 0, so any shape above 1/3 will do; 83% are accepted at shape 1/2, 95% at 1, 99.9% at
    30. Several proposals may be accepted together, with the sum of their logarithms: accept when a standard exponential
    draw exceeds minus that sum.

    Example:
        >>> import jax.numpy as jnp
        >>> value, log_accept = propose_gamma(jnp.float32(4 / 3), jnp.float32(0))  # the middle of the proposals
        >>> round(value.item(), 4), log_accept.item()
        (1.0, 0.0)
    """
    d = shape - jnp.float32(1 / 3)
    # Not lax.rsqrt, which keeps XLA from vectorising what it is fused with; nor a quotient, which it stores for each use.
    y = rounded(normal * (1 / rounded(jnp.sqrt(9 * d))))
    cube_root = 1 + y
    # Near 0 the bracket is a small difference of large terms, which are left out there.
    exponent, t = _reduced(cube_root)
    near = exponent == 0
    terms = exponent * jnp.float32(math.log(2)) + (_cubic(t) - _cubic(y))
    bracket = _quartic(jnp.where(near, y, t)) + jnp.where(near, 0, terms)
    log_accept = jnp.where(cube_root > 0, rounded(3 * d * bracket), -jnp.inf)
    return rounded(d * (cube_root * cube_root * cube_root)), log_accept


def propose_beta(words: Words, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A proposal x / y for a Beta(a, b) draw from two random words: x, y, and the logarithm of the probability to accept it.

    Two Gamma proposals; but if a or b is 1, the distribution function is inverted, and the probability is 1.
    """
    energy = exponential(words[0])
    normals = _circle(energy, words[1])
    gamma_a, log_a = propose_gamma(a, normals[0])
    gamma_b, log_b = propose_gamma(b, normals[1])
    closed = (a == 1) | (b == 1)
    return (
        jnp.where(closed, _invert_beta(energy, a, b), gamma_a),
        jnp.where(closed, 1, gamma_a + gamma_b),
        jnp.where(closed, 0, log_a + log_b),
    )


def _invert_beta(energy: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """A Beta(a, b) draw from a standard exponential draw E, if a or b is 1: 1 − exp(−E/b) or exp(−E/a)."""
    scale, p = _exp_parts(rounded(jnp.maximum(energy, jnp.float32(2**-25)) * (1 / jnp.where(a == 1, b, a))))
    return jnp.where(a == 1, (1 - scale) - p, scale + p)


def _exp_parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """2⁻ⁿ and exp(−x) − 2⁻ⁿ, the power being the nearest to exp(−x), for 0 ≤ x ≤ 87."""
    # exp(−x) = 2⁻ⁿ (1 + p), with p = exp(f) − 1 from a series in f, |f| ≤ log(2)/2, that loses nothing to cancellation.
    n = jnp.round(x * jnp.float32(1 / math.log(2)))
    f = rounded(n * jnp.float32(math.log(2))) - x
    p = f * (1 + f * (1 / 2 + f * (1 / 6 + f * (1 / 24 + f * (1 / 120 + f * (1 / 720))))))
    scale = lax.bitcast_convert_type((127 - n.astype(jnp.int32)) << 23, jnp.float32)
    return scale, rounded(scale * p)


def _exp_minus(x: jax.Array) -> jax.Array:
    """exp(−x) for x ≥ 0; as for 87 beyond, where float32 ends."""
    scale, rest = _exp_parts(jnp.minimum(x, 87))
    return scale + rest
