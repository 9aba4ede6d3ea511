"""The generator against published vectors and JAX's own; the samplers against SciPy.

False failures: every Kolmogorov–Smirnov test here fails at p < 10⁻⁹, every z-test at 6.5 standard
errors (8·10⁻¹¹) and every test of a tail at p < 10⁻¹⁰; with fewer than 60 of the first and 300 of
the others, below 10⁻⁶ for the file. The draws are fixed by their keys, so a failure repeats.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from bts_jax import random

DRAWS = 200_000


def words(*values):
    return tuple(jnp.uint32(v) for v in values)


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "output"),
    [
        # Known-answer tests published with Random123.
        (13, (0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
        (13, (0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0xFD36D048, 0x2D17272C)),
        (13, (0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
        (20, (0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        (20, (0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        (20, (0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_answers(rounds, counter, key, output):
    got = random.threefry(words(*key), words(*counter), rounds)
    assert tuple(int(word) for word in got) == output


def test_twenty_rounds_are_jaxs_own_generator():
    key = jax.random.key(7, impl="threefry2x32")
    ours = random.threefry(random.key_words(key), words(0, 1234), rounds=20)
    assert [int(w) for w in ours] == jax.random.key_data(jax.random.fold_in(key, 1234)).tolist()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_every_kind_of_key_has_words_of_its_own(impl):
    keys = jax.random.split(jax.random.key(0, impl=impl), 1000)
    pairs = np.stack(random.key_words(keys), -1)
    assert len(np.unique(pairs, axis=0)) == 1000


@pytest.mark.slow
def test_words_do_not_depend_on_the_shape_they_are_drawn_in():
    key = jax.random.key(3)
    bits = jax.jit(random.bits, static_argnums=1)
    long = [np.asarray(word) for word in bits(key, (100,), 0)]
    for shape in [(7,), (), (5, 4)]:
        short = bits(key, shape, 0)
        for a, b in zip(map(np.asarray, short), long, strict=True):
            assert a.shape == shape and (a.ravel() == b[: a.size]).all()
    assert not (np.asarray(bits(key, (100,), 1)[0]) == long[0]).any()


def test_bits_are_balanced_and_uncorrelated():
    first, second = (np.asarray(w) for w in random.bits(jax.random.key(1), (DRAWS,)))
    ones = [
        np.unpackbits(w.view(np.uint8)).mean()
        for w in (first, second, first ^ second, first[1:] ^ first[:-1])
    ]
    assert np.abs(np.array(ones) - 0.5).max() < 6.5 * 0.5 / np.sqrt(32 * (DRAWS - 1))


def test_unit_is_uniform_and_never_zero():
    u = np.asarray(random.unit(random.bits(jax.random.key(2), (DRAWS,))[0]))
    assert stats.kstest(u, "uniform").pvalue > 1e-9
    ends = np.asarray(random.unit(np.array([0, 2**32 - 1], np.uint32)))
    assert 0 < ends[0] < 2**-32 and ends[1] == 1


def test_happens_is_exact_at_the_ends_and_right_between():
    word = np.array(random.bits(jax.random.key(4), (DRAWS,))[0])
    word[:2] = 0, 2**32 - 1
    happens = jax.jit(random.happens)
    assert not np.asarray(happens(word, 0.0)).any() and np.asarray(happens(word, 1.0)).all()
    for p in (1e-4, 0.25, 0.5, 0.999):
        share = np.asarray(happens(word, p)).mean()
        assert abs(share - p) < 6.5 * np.sqrt(p * (1 - p) / DRAWS)
    tiny = np.float32(2**-20)  # the threshold itself, by hand: 2¹² of the 2³² words
    assert happens(np.uint32(2**12 - 1), tiny) and not happens(np.uint32(2**12), tiny)


def test_normal_pairs_are_normal_and_independent():
    x, y = (
        np.asarray(v, np.float64)
        for v in random.normal_pair(random.bits(jax.random.key(5), (DRAWS,)))
    )
    # The last two detect any second-order dependence.
    for z in (x, y, (x + y) / np.sqrt(2), (x - y) / np.sqrt(2)):
        assert stats.kstest(z, "norm").pvalue > 1e-9
    for power in (1, 2, 3, 4):
        moment, variance = (
            stats.norm.moment(power),
            stats.norm.moment(2 * power) - stats.norm.moment(power) ** 2,
        )
        assert abs((x**power).mean() - moment) < 6.5 * np.sqrt(variance / DRAWS)
    tail = (np.abs(np.r_[x, y]) > 4).mean()
    p = 2 * stats.norm.sf(4)
    assert abs(tail - p) < 6.5 * np.sqrt(p / (2 * DRAWS))


def check_law(draws, law):
    """Kolmogorov–Smirnov, mean, variance, and both tails at 10⁻⁴: five tests."""
    draws = np.asarray(draws, np.float64)
    size, mean, deviation = len(draws), law.mean(), law.std()
    assert np.isfinite(draws).all()
    assert abs(draws.mean() - mean) < 6.5 * deviation / np.sqrt(size) + 2e-7 * mean
    # `** 4` is ten times slower.
    fourth = np.mean(np.square(np.square(draws - mean))) / deviation**4
    assert abs(draws.var() / deviation**2 - 1) < 6.5 * np.sqrt((fourth - 1) / size) + 1e-3
    # The largest distance of the distributions, at every 100th draw: between two of them it is at
    # most 100 / size more, little against the 0.003 that a million draws would need. SciPy computes
    # some of these laws slowly.
    places = np.arange(0, size, 100)
    laws = law.cdf(np.sort(draws)[places])
    distance = max((laws - places / size).max(), ((places + 1) / size - laws).max())
    assert stats.kstwo.sf(distance, size) > 1e-9
    for below, quantile in ((True, law.ppf(1e-4)), (False, law.isf(1e-4))):
        if quantile < np.finfo(np.float32).tiny and jax.default_backend() != "cpu":
            continue  # a CPU makes such draws 0, so that they count; a GPU does not
        count = int(((draws < quantile) if below else (draws > quantile)).sum())
        chance = law.cdf(quantile) if below else law.sf(quantile)
        # Values that rounding may have moved across.
        spread = law.pdf(quantile) * abs(quantile) * 2**-23 * size
        assert stats.binom.cdf(count + spread, size, chance) > 1e-10
        assert stats.binom.sf(count - spread - 1, size, chance) > 1e-10


SHAPES = [0.1, 0.4, 0.5, 1, 1.5, 2, 3, 10, 100, 1000, 1e5, 1e7]
MILLION = 1_000_000


@partial(jax.jit, static_argnums=0)
def again(sampler, attempt, draws, words, *parameters):
    """One more proposal for those that have no draw yet, and whether all have one then."""
    place = jnp.arange(MILLION, dtype=jnp.uint32)
    proposed = sampler.propose(random.words_of(sampler, attempt, words, place), *parameters)
    draws = jnp.where(draws < random.NONE, draws, proposed)
    return draws, (draws < random.NONE).all()


def by_proposals(sampler, key, *parameters):
    """Draws as the engine makes them: one proposal after the other, for elements without a draw."""
    draws = np.full(MILLION, random.NONE, np.float32)
    words = random.key_words(key)
    for attempt in range(100):
        draws, complete = again(sampler, attempt, draws, words, *parameters)
        if complete:
            return draws
    raise AssertionError("not all draws were accepted")


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_gamma_draws_have_their_law(shape):
    shapes = np.full(MILLION, shape, np.float32)
    check_law(random.gamma(jax.random.key(11), shapes), stats.gamma(shape))
    if shape >= 0.5:  # the smallest shape in a policy
        check_law(by_proposals(random.GAMMA, jax.random.key(11), shapes), stats.gamma(shape))


# Equal shapes, 1 on either side, far apart. (Left out: draws that crowd below 1, where float32 has
# few numbers; their mirror images are here.)
PAIRS = [
    (0.2, 3),
    (0.4, 0.45),
    (0.1, 1),
    (0.5, 0.5),
    (0.5, 1e7),
    (1, 1),
    (1, 1e5),
    (1.5, 1),
    (2, 3),
    (3, 1e5),
    (10, 1.5),
    (100, 1),
    (100, 1000),
    (1e5, 1e5),
    (1e5, 1e7),
    (1e7, 1e5),
]


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_beta_draws_have_their_law(a, b):
    a, b = np.float32(a), np.float32(b)
    check_law(
        random.beta(jax.random.key(12), np.full(MILLION, a), b), stats.beta(float(a), float(b))
    )
    if min(a, b) >= 0.5:
        check_law(
            by_proposals(random.BETA, jax.random.key(12), np.full(MILLION, a), np.full(MILLION, b)),
            stats.beta(float(a), float(b)),
        )


@pytest.mark.parametrize(("a", "b"), [(0.001, 0.002), (0.01, 2), (3, 0.02), (1e-6, 1e-6)])
@pytest.mark.slow
def test_beta_draws_with_tiny_shapes(a, b):
    """They are all but 0 or 1, which float32 rounds to: so the chances to be below some levels are
    compared.
    """
    a, b = np.float32(a), np.float32(b)
    draws = np.asarray(random.beta(jax.random.key(16), np.full(MILLION, a), b), np.float64)
    assert ((draws >= 0) & (draws <= 1)).all()
    levels = np.array([1e-35, 1e-10, 1e-3, 0.3, 0.7, 0.999])
    chance = stats.beta(float(a), float(b)).cdf(levels)
    share = (draws[:, None] <= levels).mean(0)
    assert (
        abs(share - chance) <= 6.5 * np.sqrt(chance * (1 - chance) / MILLION) + 10 / MILLION
    ).all(), (share, chance)


def test_numbers_below_a_count():
    """All equally likely, by 6.5 standard errors; and the product's upper half to the last bit."""
    word = random.bits(jax.random.key(17), (DRAWS,))[0]
    one_of = jax.jit(random.one_of)
    for count in (1, 2, 7, 1000, 65_537, 2**31 - 1):
        drawn = np.asarray(one_of(word, np.full(DRAWS, count, np.int32)))
        assert (
            drawn
            == (np.asarray(word, np.uint64) * np.uint64(count) >> np.uint64(32)).astype(np.int64)
        ).all()
    share = np.bincount(np.asarray(one_of(word, np.full(DRAWS, 7, np.int32))), minlength=7) / DRAWS
    assert (abs(share - 1 / 7) < 6.5 * np.sqrt(6 / 49 / DRAWS)).all()


@pytest.mark.slow
def test_draws_of_one_call_are_independent():
    """Neighbours, and reward and cost of one arm as BTS draws them: correlations of ranks, 6.5
    standard errors each.
    """
    draws = np.asarray(random.beta(jax.random.key(13), np.full(DRAWS, 2.0), 5.0))
    again = np.asarray(random.beta(jax.random.key(14), np.full(DRAWS, 2.0), 5.0))
    for x, y in ((draws[1:], draws[:-1]), (draws[2:], draws[:-2]), (draws, again)):
        assert abs(stats.spearmanr(x, y).statistic) < 6.5 / np.sqrt(len(x) - 1)


@pytest.mark.slow
def test_a_draw_is_the_first_accepted_proposal():
    """The first is accepted with probability 0.69 at shapes 1/2, and more at others. One of 40 is
    accepted.
    """
    a, b = (np.float32(np.random.default_rng(i).uniform(0, 3, 20_000)) for i in range(2))
    operands = *random.key_words(jax.random.key(3)), np.arange(20_000, dtype=np.uint32)
    for sampler, parameters in ((random.GAMMA, (a,)), (random.BETA, (a, b))):
        loop = jax.jit(random.draw, static_argnums=0)(sampler, *operands, *parameters)
        proposal, valid = random.proposals(sampler, *operands, *parameters)
        values, accepted = map(
            np.asarray, jax.jit(jax.vmap(proposal))(np.arange(40, dtype=np.uint32))
        )
        np.testing.assert_array_equal(loop, values[accepted.argmax(0), np.arange(20_000)])
        assert 0.8 < accepted[0].mean() < 0.99 and accepted.any(0).all() and valid.all()


@pytest.mark.slow
def test_shapes_out_of_range_give_nan_and_do_not_hang():
    shapes = np.array([9e-7, -1.0, np.nan, np.inf, 2e7, 2.0], np.float32)
    assert np.isnan(random.gamma(jax.random.key(0), shapes)).tolist() == [True] * 5 + [False]
    ones = np.ones(6, np.float32)
    # As either parameter.
    draws = random.beta(jax.random.key(0), np.append(shapes, ones), np.append(ones, shapes))
    assert np.isnan(draws).tolist() == ([True] * 5 + [False]) * 2


@pytest.mark.parametrize("shape", [0.5, 1, 1.5, 2, 10, 1000])
def test_share_of_gamma_proposals_that_are_accepted(shape):
    """Against the normalising constants of Marsaglia and Tsang's method."""
    normal, _ = random.normal_pair(random.bits(jax.random.key(15), (DRAWS,)))
    chance = np.exp(
        np.asarray(random.propose_gamma(jnp.full(DRAWS, shape, jnp.float32), normal)[1], np.float64)
    )
    d = shape - 1 / 3
    constant = np.exp(
        d + (1 - shape) * np.log(d) + special.gammaln(shape) - 0.5 * np.log(d)
    ) / np.sqrt(2 * np.pi)
    assert abs(chance.mean() - constant) < 6.5 * chance.std() / np.sqrt(DRAWS) + 1e-6


def test_logarithm():
    x = np.r_[np.geomspace(1e-37, 1e37, 100_001), np.linspace(0.5, 2, 100_001)].astype(np.float32)
    exact = np.log(x.astype(np.float64))
    assert (
        np.abs(np.asarray(random.log(jnp.array(x))) - exact)
        <= 2e-7 * np.maximum(np.abs(exact), 0.5)
    ).all()


def test_log_excess():
    """u − log(1 + u) to float32, relatively: near 0, where its plain form loses all digits, as
    elsewhere.
    """
    u = np.r_[np.geomspace(1e-18, 1e12, 60_001), -np.geomspace(1e-18, 0.999, 60_001)].astype(
        np.float32
    )
    wide = u.astype(np.longdouble)
    exact = np.where(
        np.abs(u) < 1e-3,
        wide**2 / 2 - wide**3 / 3 + wide**4 / 4 - wide**5 / 5,
        wide - np.log1p(wide),
    )
    np.testing.assert_allclose(
        np.asarray(random.log_excess(jnp.array(u)), float), exact.astype(float), rtol=2e-6
    )


def test_whole_numbers_below():
    word = np.array([0, 6, 7, 2**32 - 5, 2**32 - 4, 2**32 - 1], np.uint32)
    reduced = jax.jit(random.reduced, static_argnums=2)
    assert reduced(word, np.uint32(5), 7).tolist() == [0, 6, 0, 6, 5, 5], (
        "2³² is 4 more than a multiple of 7"
    )
    assert reduced(word, np.uint32(5), 8).tolist() == [0, 6, 7, 3, 4, 7], "no word is left over"
    below = jax.jit(jax.vmap(lambda key: random.below(key, 7)))
    share = np.bincount(below(jax.random.split(jax.random.key(1), 70_000))) / 70_000
    assert (abs(share - 1 / 7) < 6.5 * np.sqrt(6 / 49 / 70_000)).all()


def test_gamma_log_acceptance_is_right_to_float32():
    """Against the formula in float64, over shapes and normals, where its plain form loses all
    digits in float32.
    """
    shape, normal = np.meshgrid(np.geomspace(0.5, 1e7, 60), np.linspace(-6, 6, 241))
    shape, normal = shape.astype(np.float32), normal.astype(np.float32)
    value, log_accept = (
        np.asarray(v, np.float64) for v in random.propose_gamma(jnp.array(shape), jnp.array(normal))
    )
    d = shape.astype(np.float64) - np.float32(1 / 3)
    y = normal / np.sqrt(9 * d)
    inside = y > -0.999
    exact = np.full(y.shape, -np.inf)
    z = y[inside]
    far = np.log1p(z) - z + z**2 / 2 - z**3 / 3
    near = sum((-1) ** (k + 1) * z**k / k for k in range(4, 40))
    exact[inside] = 3 * d[inside] * np.where(np.abs(z) < 0.2, near, far)
    clear = inside & (np.abs(1 + y) > 1e-3)
    # The largest errors belong to normals beyond 5.
    assert np.abs(np.exp(log_accept) - np.exp(exact))[clear].max() < 5e-5
    assert np.isneginf(log_accept[1 + y < -1e-5]).all()
    assert (np.abs(value / (d * (1 + y) ** 3) - 1)[clear & (np.abs(1 + y) > 0.1)]).max() < 1e-5


@jax.jit
@partial(jax.vmap, out_axes=-1)
def proposals(key):
    """Proposals of Beta draws."""
    a, b = (
        jnp.linspace(1, 50, 10).at[5].set(1),
        jnp.geomspace(0.5, 1e6, 10).at[7].set(1).at[0].set(0.5),
    )
    words = random.bits(key, a.shape)
    return random.BETA.propose(words, a, b)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3, 7, 64])
def test_draws_keep_their_bits_in_any_batch(batch):
    """Real-valued draws, not only the decisions made from them. They must not depend on the
    compiler's choices.
    """
    keys = jax.random.split(jax.random.key(9), 500)
    whole = np.asarray(proposals(keys))
    parts = [np.asarray(proposals(keys[i : i + batch])) for i in range(0, 500 - 500 % batch, batch)]
    joined = np.concatenate(parts, -1)
    assert joined.tobytes() == np.ascontiguousarray(whole[:, : joined.shape[1]]).tobytes()
