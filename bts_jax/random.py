"""Counter-based random numbers, and exact samplers.

Every random number is a function of a key and of its position in the requested array. It does not
depend on the batch. The generator is Threefry-2x32 (Salmon et al., SC 2011), of the same family as
JAX's default generator. It is written in `jax.numpy`, so that XLA can fuse it with the operations
that use the numbers.

`gamma`, `beta` and `rejection` draw by rejection: they make proposals until one is accepted for
each element. They are ordinary functions with a loop. In a policy, and on a GPU also in a bandit,
the engine makes one or a few proposals per call instead (`bts_jax.engine.draws`).

Compilers may contract a · b + c into one instruction with one rounding instead of two. This depends
on the surrounding operations. In a policy or a bandit, the engine prevents it by rounding products.
Functions marked `exact` round their products themselves, and only where it matters. In a polynomial
it does not matter.
"""

import math
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bts_jax.jax_internals import Primitive, ShapedArray, batching, mlir
from bts_jax.typing import ArrayLike

ROUNDS = 13  # the smallest number with which Threefry-2x32 passes BigCrush (Salmon et al., Table 2)
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)

SMALLEST_SHAPE, LARGEST_SHAPE = 2.0**-20, 1e7  # of `gamma` and `beta`; the smallest is about 10⁻⁶

Words = tuple[jax.Array, jax.Array]  # two uint32 arrays of one shape
EXACT = "_bts_jax_exact_"  # prefix of the names of `exact` functions in jaxprs


def exact(function: Callable) -> Callable:
    """Marks a function that rounds its products itself. The engine does not round them again."""

    @wraps(function)
    def named(*arguments: Any) -> Any:
        return function(*arguments)

    named.__name__ = EXACT + function.__name__
    return jax.jit(named)


def threefry(key: Words, counter: Words, rounds: int = ROUNDS) -> Words:
    """Threefry-2x32: 64 random bits for a 64-bit key and a 64-bit counter, elementwise."""
    return (hash if rounds == ROUNDS else partial(_threefry, rounds))(*key, *counter)


def _threefry(rounds: int, *words: jax.Array) -> Words:
    key, counter = words[:2], words[2:]
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = counter[0] + key[0], counter[1] + key[1]
    for i in range(rounds):
        turn = _ROTATIONS[i % 8]
        x = x + y
        y = ((y << turn) | (y >> (32 - turn))) ^ x
        if i % 4 == 3:
            j = i // 4 + 1
            x = x + schedule[j % 3]
            y = y + schedule[(j + 1) % 3] + np.uint32(j)
    return x, y


@exact
def hash(*words: jax.Array) -> Words:
    """`threefry` with `ROUNDS` rounds. The engine's passes treat it as one operation with two
    outputs.
    """
    return _threefry(ROUNDS, *words)


@exact
def jax_hash(*words: jax.Array) -> Words:
    """The hash of JAX's own generator, Threefry-2x32 with 20 rounds."""
    return _threefry(20, *words)


def fold_in_words(words: Any, data: np.ndarray) -> Any:
    """The words of `jax.random.fold_in(key, data)`, computed by NumPy, which does not compile
    anything.
    """
    words, data = tuple(map(np.asarray, words)), np.asarray(data).astype(np.uint32)
    with np.errstate(over="ignore"):
        return _threefry(20, *np.broadcast_arrays(*words, np.uint32(0), data))  # type: ignore


def key_words(key: jax.Array) -> Words:
    """Reduces a typed JAX key of any implementation to 64 bits."""
    data = jax.random.key_data(key)
    words = data[..., 0], data[..., 1]
    for i in range(2, data.shape[-1], 2):
        words = threefry(words, (data[..., i], data[..., i + 1]), rounds=20)
    return words


def derive(words: Words, index: ArrayLike, purpose: ArrayLike) -> jax.Array:
    """The JAX key for one purpose in one round, or in one pull, of a run. `words` are the words of
    the run's key.
    """
    return as_key(derived_words(words, index, purpose))


def derived_words(words: Words, index: ArrayLike, purpose: ArrayLike) -> Words:
    """The words of the key that `derive` returns."""
    return threefry(
        words, (jnp.asarray(index).astype(jnp.uint32), jnp.asarray(purpose).astype(jnp.uint32))
    )


def as_key(words: Words) -> jax.Array:
    """The typed JAX key with these 64 bits."""
    return jax.random.wrap_key_data(jnp.stack(words, axis=-1), impl="threefry2x32")


def bits(key: jax.Array, shape: tuple[int, ...] = (), stream: ArrayLike = 0) -> Words:
    """Two arrays of random 32-bit words. Different streams of one key are independent."""
    place = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return threefry(key_words(key), (place, jnp.full(shape, stream, jnp.uint32)))


def several_bits(key: jax.Array, count: int) -> jax.Array:
    """`count` random words. The first two are those of `bits`. [count]"""
    streams = [bits(key, (), stream) for stream in range(-(-count // 2))]
    return jnp.stack([word for words in streams for word in words][:count])


def rounded(x: jax.Array) -> jax.Array:
    """Forces `x` to be rounded to float32 at this point. Compilers remove a plain cast, but not
    this maximum.
    """
    return jnp.maximum(x, jnp.float32(-3e38))


def unit(word: jax.Array) -> jax.Array:
    """Converts a random word to a float32 in (0, 1], with 32 bits of resolution near 0.

    Example:
        >>> import jax.numpy as jnp
        >>> unit(jnp.uint32(2**31)).item()
        0.5
    """
    return word.astype(jnp.float32) * jnp.float32(2**-32) + jnp.float32(2**-33)


def happens(word: jax.Array, probability: ArrayLike) -> jax.Array:
    """A Bernoulli trial: whether a random word is below `probability`. The error is at most 2⁻³² (0
    and 1 are exact).

    Example:
        >>> import jax.numpy as jnp
        >>> happens(jnp.uint32(2**30), jnp.array([0.2, 0.3])).tolist()  # the word stands for ¼
        [False, True]
    """
    probability = jnp.asarray(probability, jnp.float32)
    # The clip keeps the conversion in range; 2³² − 256 is the largest float32 below 2³².
    threshold = jnp.clip(probability * jnp.float32(2**32), 0.0, jnp.float32(2**32 - 256)).astype(
        jnp.uint32
    )
    return (word < threshold) | (probability >= 1)


def below(key: jax.Array, count: int) -> jax.Array:
    """A random integer in [0, `count`), int32. All are equally likely up to 2⁻⁴⁰, for counts up to
    2²⁰.

    The few words that would favour small numbers are replaced once, by words of another stream.

    Example:
        >>> import jax
        >>> below(jax.random.key(0), 3).item() in (0, 1, 2)
        True
    """
    return reduced(bits(key)[0], bits(key, (), 1)[0], count)


def reduced(word: jax.Array, other: jax.Array, count: int) -> jax.Array:
    """Reduces a random word to an integer in [0, `count`). Uses `other` if `word` would favour
    small numbers.
    """
    fair = word <= jnp.uint32(2**32 // count * count - 1)
    return (jnp.where(fair, word, other) % count).astype(jnp.int32)


def one_of(word: jax.Array, count: jax.Array) -> jax.Array:
    """A random integer in [0, `count`), int32. All are equally likely up to 2⁻³²."""
    # The upper half of the 64-bit product, from halves of 16 bits: lax.mulhi does not compile on
    # all platforms.
    count = count.astype(jnp.uint32)
    (a, b), (c, d) = ((x >> 16, x & 0xFFFF) for x in (word, count))
    middle = (b * d >> 16) + (a * d & 0xFFFF) + (b * c & 0xFFFF)
    return (a * c + (a * d >> 16) + (b * c >> 16) + (middle >> 16)).astype(jnp.int32)


def exponential(word: jax.Array) -> jax.Array:
    """A standard exponential draw from a random word."""
    return -log(unit(word))


@exact
def log(x: jax.Array) -> jax.Array:
    """The logarithm of positive normal float32 numbers, with an error of at most 2.5 ulp. Half the
    work of `jnp.log`.
    """
    exponent, t = _reduced(x)
    return exponent * jnp.float32(math.log(2)) + _cubic(t) + _quartic(t)


@exact
def log_excess(u: jax.Array) -> jax.Array:
    """u − log(1 + u) for u > −1, without cancellation near 0."""
    exponent, t = _reduced(1 + u)
    near = exponent == 0
    v = jnp.where(near, u, t)  # t has lost digits of a small u
    quartic = _quartic(v)
    far = u - (exponent * jnp.float32(math.log(2)) + _cubic(t) + quartic)
    return jnp.where(near, rounded(u * u * (1 / 2 - u * (1 / 3))) - quartic, far)


def _reduced(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns e and t with x = 2^e (1 + t) and √½ ≤ 1 + t < √2."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - jnp.int32(0x3F3504F3)) >> 23
    return exponent.astype(jnp.float32), lax.bitcast_convert_type(
        bits - (exponent << 23), jnp.float32
    ) - 1


def _cubic(t: jax.Array) -> jax.Array:
    """t − t²/2 + t³/3, the first three terms of log(1 + t)."""
    return rounded(t * (1 + t * (-1 / 2 + t * (1 / 3))))


def _quartic(t: jax.Array) -> jax.Array:
    """log(1 + t) minus the first three terms of its series, for √½ ≤ 1 + t < √2, with a relative
    error of 3.3·10⁻⁶.
    """
    square = t * t
    rest = jnp.float32(_QUARTIC[-1])
    for coefficient in _QUARTIC[-2::-1]:
        rest = rest * t + jnp.float32(coefficient)
    return rounded(square * square * rest)


# The minimax polynomial of degree 6 for (log(1 + t) − t + t²/2 − t³/3) / t⁴.
_QUARTIC = (-0.25000074, 0.20000692, -0.16652518, 0.14225139, -0.12873434, 0.12525673, -0.08190106)


def normal_pair(words: Words) -> tuple[jax.Array, jax.Array]:
    """Two independent standard normal draws from two random words (Box–Muller). The radius has 32
    bits, the angle 21.

    The lowest 11 bits of the second word are not used.
    """
    return _circle(exponential(words[0]), words[1])


@exact
def _circle(energy: jax.Array, word: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The point at radius √(2·energy) and at the angle that a random word gives."""
    radius = jnp.sqrt(2 * energy)
    # The top two bits of the angle select a quarter of the circle. The next 19 give the angle
    # within it, in (−π/4, π/4).
    turn = word & jnp.uint32(0xFFFFF800)
    angle = lax.bitcast_convert_type(turn << 2, jnp.int32).astype(jnp.float32) * jnp.float32(
        jnp.pi / 4 * 2**-31
    )
    square = angle * angle
    cos = 1 + square * (-1 / 2 + square * (1 / 24 + square * (-1 / 720 + square * (1 / 40320))))
    sin = angle * (
        1 + square * (-1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square * (1 / 362880))))
    )
    swap = (turn >> 30) & 1 == 1
    radius = jnp.where(turn >> 31 == 1, -radius, radius)
    return radius * jnp.where(swap, sin, cos), radius * jnp.where(swap, cos, sin)


def gumbel(word: jax.Array) -> jax.Array:
    """A standard Gumbel draw from a random word. The argmax of `logits + gumbel` is a draw from the
    softmax of `logits`.
    """
    return -log(jnp.maximum(exponential(word), jnp.float32(2**-25)))


NONE = np.float32(np.inf)  # stands for a draw that has not been accepted yet


class Sampler(NamedTuple):
    """A rejection sampler. Its functions are elementwise: all arguments have the same shape.

    There are two ways to draw. Outside of policies, a draw is the first accepted one of the
    proposals 0, 1, 2, … (`numbered`). In a policy, the engine makes one proposal per attempt at a
    round (`propose`), from random words that depend on the number of the attempt.

    - `numbered(key, place, *parameters)` returns a function and an array. The function takes a
      number i and returns proposal i, and whether it is accepted. The array says where the
      parameters are valid. Where they are not, the draw is NaN.
    - `propose(words, *parameters)` returns proposals, and `NONE` where a proposal is rejected.
    """

    numbered: Callable
    propose: Callable
    hashes: int = 1  # pairs of random words that `propose` takes
    mostly_accepted: bool = False  # one proposal per attempt is enough; see `draws.PROPOSALS`
    in_order: bool = False  # the engine uses `numbered`, because this draw is a bandit's


# Operands: the key's two words, the position and the parameters. The parameters have the shape of
# the draws. The other operands are broadcast to it.
draw_p = Primitive("draw")


@draw_p.def_impl
def _(*operands: jax.Array, sampler: Sampler) -> jax.Array:
    return jax.jit(draw, static_argnums=0)(sampler, *operands)


@draw_p.def_abstract_eval
def _(*operands: Any, sampler: Sampler) -> Any:
    return ShapedArray(np.broadcast_shapes(*(x.shape for x in operands)), jnp.float32)


def _batch_draw(operands: Any, axes: Any, *, sampler: Sampler) -> tuple[jax.Array, int]:
    mapped = [axis is not None for axis in axes]  # `batching.not_mapped` is None
    rank = max(x.ndim - batched for x, batched in zip(operands, mapped, strict=True))

    def moved(x: jax.Array, axis: Any) -> jax.Array:
        x = jnp.moveaxis(x, axis, 0)
        return x.reshape(x.shape[0], *[1] * (rank + 1 - x.ndim), *x.shape[1:])

    operands = [
        moved(x, axis) if batched else jnp.asarray(x)
        for x, axis, batched in zip(operands, axes, mapped, strict=True)
    ]
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    return draw_p.bind(
        *operands[:3], *(jnp.broadcast_to(x, shape) for x in operands[3:]), sampler=sampler
    ), 0


batching.primitive_batchers[draw_p] = _batch_draw
mlir.register_lowering(
    draw_p,
    mlir.lower_fun(lambda *operands, sampler: draw(sampler, *operands), multiple_results=False),
)


def draw(sampler: Sampler, *operands: jax.Array) -> jax.Array:
    """Computes `draw_p`: draws for the key's two words, positions and parameters, elementwise."""
    proposal, valid = proposals(sampler, *operands)

    def again(carry: tuple) -> tuple:
        i, value, done = carry
        proposed, accepted = proposal(i)
        return i + 1, jnp.where(done, value, proposed), done | accepted

    first = again((jnp.uint32(0), jnp.full(valid.shape, jnp.nan, jnp.float32), ~valid))
    return lax.while_loop(lambda carry: ~carry[2].all(), again, first)[1]


def proposals(sampler: Sampler, *operands: jax.Array) -> tuple[Callable, jax.Array]:
    """The proposals for `draw_p`, as a function of their number, and where the parameters are
    valid; see `Sampler.numbered`.
    """
    key0, key1, *rest = jnp.broadcast_arrays(*operands)
    return sampler.numbered((key0, key1), *rest)


def words_of(sampler: Sampler, attempt: ArrayLike, key: Words, place: jax.Array) -> Any:
    """The random words for a proposal."""
    streams = [
        jnp.asarray(attempt).astype(jnp.uint32) * sampler.hashes + i for i in range(sampler.hashes)
    ]
    words = [threefry(key, (place, jnp.broadcast_to(stream, place.shape))) for stream in streams]
    return words if sampler.hashes > 1 else words[0]


def _sample(sampler: Sampler, key: jax.Array, *parameters: ArrayLike) -> jax.Array:
    arrays = jnp.broadcast_arrays(*(jnp.asarray(x, jnp.float32) for x in parameters))
    shape = arrays[0].shape
    place = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return draw_p.bind(*key_words(key), place, *arrays, sampler=sampler)


def rejection(
    propose: Callable, key: jax.Array, *parameters: ArrayLike, hashes: int = 1
) -> jax.Array:
    """Draws by rejection, one float32 for each element of the parameters (broadcast). Derivatives
    are 0.

    Args:
        propose: an elementwise function `(words, *parameters) -> (value, accepted)` at the top
            level of a module. `words` is a pair of arrays of random 32-bit words. If `hashes` is
            above 1, it is a list of `hashes` such pairs. An infinite value counts as rejected.
        key: a typed JAX key.
        parameters: the parameters of the proposals.
        hashes: the number of pairs of random words that a proposal uses.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def propose(words, low):  # a uniform draw, given that it is above `low`
        ...     value = unit(words[0])
        ...     return value, value > low
        >>> draws = rejection(propose, jax.random.key(0), jnp.full(1000, 0.75))
        >>> bool((draws > 0.75).all())
        True
    """
    return _sample(_plain_sampler(propose, hashes), key, *map(lax.stop_gradient, parameters))


@cache
def _plain_sampler(propose: Callable, hashes: int) -> Sampler:
    def proposed(words: Any, *parameters: jax.Array) -> jax.Array:
        value, accepted = propose(words, *parameters)
        return jnp.where(accepted, value, NONE)

    def numbered(
        key: Words, place: jax.Array, *parameters: jax.Array
    ) -> tuple[Callable, jax.Array]:
        def proposal(i: jax.Array) -> tuple[jax.Array, jax.Array]:
            value = proposed(words_of(sampler, i, key, place), *parameters)
            return value, value != NONE

        return proposal, jnp.ones(place.shape, bool)

    sampler = Sampler(numbered, proposed, hashes=hashes)
    return sampler


# Under `jax.vmap`, a jitted function accepts NumPy arrays and a `custom_jvp` function does not (jax
# 0.10.2).
@jax.jit
def gamma(key: jax.Array, shape: ArrayLike) -> jax.Array:
    """Exact Gamma(shape, 1) draws, one float32 for each element of `shape`. Shapes are from 10⁻⁶ to
    10⁷, others give NaN.

    In a policy, a shape must be at least 1/2, and may be above 10⁷. For smaller shapes, use
    `jax.random.gamma` or `jax.random.loggamma` there. Draws that are too small for float32 become 0
    or about 10⁻³⁸.

    A draw x has a derivative with respect to its shape a. It is the derivative of the quantile,
    −(∂F(x; a)/∂a) / F′(x; a), so that the derivative of an expectation is the expected derivative
    (implicit reparameterisation, Figurnov et al., NeurIPS 2018). It is accurate to 1% for shapes up
    to 10⁵, and less accurate beyond.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> draws = gamma(jax.random.key(0), jnp.full(10_000, 2.5))
        >>> abs(float(draws.mean()) - 2.5) < 0.1
        True
    """
    return _gamma(key, jnp.asarray(shape, jnp.float32))


@jax.custom_jvp
def _gamma(key: jax.Array, shape: jax.Array) -> jax.Array:
    return _sample(GAMMA, key, shape)


@_gamma.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    draws = _gamma(*primals)
    return draws, lax.random_gamma_grad(primals[1], draws) * tangents[1]  # type: ignore


@jax.jit
def beta(key: jax.Array, a: ArrayLike, b: ArrayLike) -> jax.Array:
    """Exact Beta(a, b) draws, one float32 for each element of `a` and `b` (broadcast).

    `a` and `b` are from 10⁻⁶ to 10⁷; other values give NaN. In a policy they must be at least 1/2
    (see `gamma`). The derivatives of the draws are 0. If you need derivatives, compute Beta draws
    from `gamma` draws.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> draws = beta(jax.random.key(0), jnp.full(10_000, 3.0), 1.0)
        >>> abs(float(draws.mean()) - 0.75) < 0.01
        True
    """
    return _sample(BETA, key, lax.stop_gradient(a), lax.stop_gradient(b))


def _numbered_gamma(key: Words, place: jax.Array, shape: jax.Array) -> tuple[Callable, jax.Array]:
    power = _exp_minus(_less(shape, _stream(key, place, _BEYOND)[0]))

    def propose(words: Words) -> tuple[jax.Array, jax.Array]:
        value, log_accept = propose_gamma(_raised(shape), normal_pair(words)[0])
        return value * power, log_accept

    return _numbered(key, place, propose), _within(shape)


def _numbered_beta(
    key: Words, place: jax.Array, a: jax.Array, b: jax.Array
) -> tuple[Callable, jax.Array]:
    first, second = _stream(key, place, _BEYOND)
    less = rounded(_less(a, first) - _less(b, second))
    # Both powers may be too small for float32. Only their quotient matters.
    power_a, power_b = _exp_minus(jnp.maximum(less, 0)), _exp_minus(jnp.maximum(-less, 0))

    def propose(words: Words) -> tuple[jax.Array, jax.Array]:
        normals = normal_pair(words)
        gamma_a, log_a = propose_gamma(_raised(a), normals[0])
        gamma_b, log_b = propose_gamma(_raised(b), normals[1])
        x, y = rounded(gamma_a * power_a), rounded(gamma_b * power_b)
        return jnp.minimum(x / (x + y), 1), log_a + log_b  # a GPU's x / x may be 1 + 10⁻⁷

    return _numbered(key, place, propose), _within(a) & _within(b)


def _stream(key: Words, place: jax.Array, stream: ArrayLike) -> Words:
    return threefry(key, (place, jnp.full(place.shape, stream, jnp.uint32)))


def _numbered(
    key: Words, place: jax.Array, propose: Callable[[Words], tuple[jax.Array, jax.Array]]
) -> Callable:
    """Proposal i as a function of i: stream 2i makes it, and stream 2i + 1 accepts or rejects
    it.
    """

    def proposal(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, log_accept = propose(_stream(key, place, 2 * i))
        return value, log(unit(_stream(key, place, 2 * i + 1)[0])) < log_accept

    return proposal


# For shapes a < 1/2: a Gamma(a + 1) draw times U^(1/a) is a Gamma(a) draw (Marsaglia and Tsang,
# 2000, Section 6).
_BEYOND = 2**32 - 1  # the stream of U, which no attempt uses


def _raised(shape: jax.Array) -> jax.Array:
    return jnp.where(shape < 0.5, shape + 1, shape)


def _less(shape: jax.Array, word: jax.Array) -> jax.Array:
    """−log U^(1/shape) for a random U if the shape is raised (`_raised`), and 0 otherwise."""
    return jnp.where(shape < 0.5, rounded(exponential(word) / jnp.where(shape < 0.5, shape, 1)), 0)


def _within(shape: jax.Array) -> jax.Array:
    return (shape >= SMALLEST_SHAPE) & (shape <= LARGEST_SHAPE)


@exact
def propose_gamma(shape: jax.Array, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A proposal for a Gamma(shape, 1) draw, and the log of its acceptance probability.

    Marsaglia and Tsang (2000): with d = shape − 1/3 and y = normal / √(9d), propose d(1+y)³ and
    accept it with probability exp(3d[log(1+y) − y + y²/2 − y³/3]). The bracket is the remainder of
    the logarithm's series after three terms. Their bound holds for every d > 0, so all shapes above
    1/3 are allowed. 83% of the proposals are accepted at shape 1/2, 95% at 1 and 99.9% at 30.
    Several proposals can be accepted together: add their logarithms, and accept if a standard
    exponential draw exceeds minus this sum.

    Example:
        >>> import jax.numpy as jnp
        >>> # the middle of the proposals
        >>> value, log_accept = propose_gamma(jnp.float32(4 / 3), jnp.float32(0))
        >>> round(value.item(), 4), log_accept.item()
        (1.0, 0.0)
    """
    # XLA does not vectorise operations that are fused with lax.rsqrt, and stores a quotient for
    # each use. So neither is used.
    return _bent(shape, rounded(normal * (1 / _gamma_width(shape))))


def _gamma_width(shape: jax.Array) -> jax.Array:
    """√(9d) for d = shape − 1/3."""
    return rounded(jnp.sqrt(9 * (shape - jnp.float32(1 / 3))))


def _bent(shape: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The proposal for a Gamma draw from y, and the log of its acceptance probability; see
    `propose_gamma`.
    """
    d = shape - jnp.float32(1 / 3)
    cube_root = 1 + y
    # Near 0, the bracket is a small difference of large terms. These terms cancel, and are left out
    # there.
    exponent, t = _reduced(cube_root)
    near = exponent == 0
    terms = exponent * jnp.float32(math.log(2)) + (_cubic(t) - _cubic(y))
    bracket = _quartic(jnp.where(near, y, t)) + jnp.where(near, 0, terms)
    log_accept = jnp.where(cube_root > 0, rounded(3 * d * bracket), -jnp.inf)
    return rounded(d * (cube_root * cube_root * cube_root)), log_accept


@exact
def accepts(words: Words, log_accept: jax.Array) -> jax.Array:
    """An acceptance trial with the 11 bits that `normal_pair` does not use, followed by the lowest
    11 bits of the radius.

    The upper 11 bits decide all but one trial in 2,048. Only in such a trial does the outcome
    depend on the lowest bits of the radius. This changes the distribution of the draws by less than
    2⁻³².
    """
    left = ((words[1] & jnp.uint32(0x7FF)) << 11) | (words[0] & jnp.uint32(0x7FF))
    return log((left.astype(jnp.float32) + 0.5) * jnp.float32(2**-22)) < log_accept


@exact
def _propose_gamma(words: Words, shape: jax.Array) -> jax.Array:
    """A proposal for a Gamma draw of shape 1/2 or more. For shape 1 it is an exponential draw,
    which is always accepted.
    """
    energy = exponential(words[0])
    value, log_accept = propose_gamma(shape, _circle(energy, words[1])[0])
    closed = shape == 1
    value = jnp.where(closed | accepts(words, log_accept), jnp.where(closed, energy, value), NONE)
    return jnp.where(shape >= 0.5, value, _refused(shape))


@exact
def _propose_beta(words: Words, a: jax.Array, b: jax.Array) -> jax.Array:
    """A proposal for a Beta draw, made of two Gamma proposals with shapes of 1/2 or more.

    If a or b is 1, the distribution function is inverted, and the draw is always accepted.
    """
    energy = exponential(words[0])
    normals = _circle(energy, words[1])
    (x, log_x), (y, log_y) = propose_gamma(a, normals[0]), propose_gamma(b, normals[1])
    power, complement = _power(energy, 1 / jnp.where(a == 1, b, a))
    closed = (a == 1) | (b == 1)
    x, y = jnp.where(closed, jnp.where(a == 1, complement, power), x), jnp.where(closed, 1, x + y)
    accepted = closed | accepts(words, log_x + log_y)
    value = jnp.where(accepted, jnp.minimum(x / y, 1), NONE)  # a GPU's x / x may be 1 + 10⁻⁷
    return jnp.where(jnp.minimum(a, b) >= 0.5, value, _refused(jnp.minimum(a, b)))


def _refused(shape: jax.Array) -> jax.Array:
    """The proposal for a shape below 1/2. It is never accepted, so that the run ends as NaN, with a
    message that says why.
    """
    return jnp.where(shape > 0, NONE, jnp.float32(jnp.nan))


def _power(energy: jax.Array, exponent: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns x = exp(−E · exponent), which is a power of a uniform draw if E is a standard
    exponential draw, and 1 − x.
    """
    least = jnp.maximum(energy, jnp.float32(2**-25))
    scale, rest = _exp_parts(jnp.minimum(rounded(least * exponent), 87))
    return scale + rest, (1 - scale) - rest


GAMMA = Sampler(_numbered_gamma, _propose_gamma, mostly_accepted=True)
BETA = Sampler(_numbered_beta, _propose_beta, mostly_accepted=True)


@exact
def _exp_parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns 2⁻ⁿ and exp(−x) − 2⁻ⁿ for 0 ≤ x ≤ 87, where 2⁻ⁿ is the power of 2 nearest to
    exp(−x).
    """
    # exp(−x) = 2⁻ⁿ (1 + p), with p = exp(f) − 1 from a series in f, |f| ≤ log(2)/2, without
    # cancellation.
    n = jnp.round(x * jnp.float32(1 / math.log(2)))
    f = rounded(n * jnp.float32(math.log(2))) - x
    p = f * (1 + f * (1 / 2 + f * (1 / 6 + f * (1 / 24 + f * (1 / 120 + f * (1 / 720))))))
    scale = lax.bitcast_convert_type((127 - n.astype(jnp.int32)) << 23, jnp.float32)
    return scale, rounded(scale * p)


def _exp_minus(x: jax.Array) -> jax.Array:
    """exp(−x) for x ≥ 0. Values of x above 87, where float32 ends, count as 87."""
    scale, rest = _exp_parts(jnp.minimum(x, 87))
    return scale + rest
