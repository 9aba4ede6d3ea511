"""Functions such as `exp` that the engine writes out: they are accurate, and have the same bits in
every program.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun
from scipy import special

from bts_jax.engine.passes import functions
from bts_jax.engine.passes.functions import FUNCTIONS, LEFT
from bts_jax.engine.passes.rounding import round_products
from bts_jax.engine.pipeline import passes

pytestmark = pytest.mark.with_care

# JAX's function, the same in float64, and the largest error of ours in units in the last place.
# XLA's are about as large.
KNOWN = {
    "exp": (jnp.exp, np.exp, 1),
    "exp2": (jnp.exp2, np.exp2, 1),
    "log": (jnp.log, np.log, 1),
    "log2": (jnp.log2, np.log2, 2.5),
    "log1p": (jnp.log1p, np.log1p, 2.5),
    "expm1": (jnp.expm1, np.expm1, 2.5),
    "tanh": (jnp.tanh, np.tanh, 3.5),
    "logistic": (jax.nn.sigmoid, special.expit, 2.5),
    "rsqrt": (lax.rsqrt, lambda x: 1 / np.sqrt(x), 1.5),
    "erf_inv": (lax.erf_inv, special.erfinv, 65),
}
TINY = np.finfo(np.float32).tiny


def written_out(function, *arguments):
    """What the engine makes of a function, as a function that is computed one operation after the
    other.
    """
    closed = functions._written_out(jax.make_jaxpr(function)(*arguments))
    names = {equation.primitive.name for equation in closed.jaxpr.eqns}
    assert not names & FUNCTIONS.keys()
    return jaxpr_as_fun(round_products(closed))


def numbers():
    """Of all sizes, small and medium-sized ones, and special ones."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = [rng.uniform(-size, size, 100_000) for size in (100, 10, 1, 1e-3)]
    odd = [
        0,
        -0.0,
        1,
        -1,
        np.inf,
        -np.inf,
        np.nan,
        88.7,
        88.8,
        -87.3,
        -87.4,
        -103,
        -105,
        3e38,
        9,
        9.2,
        TINY,
        -TINY,
    ]
    x = np.concatenate([part.astype(np.float32) for part in (bits, *usual, np.array(odd))])
    return x[~((x != 0) & (abs(x) < TINY))]  # XLA treats subnormal numbers as 0


def test_all_functions_are_known():
    assert KNOWN.keys() == FUNCTIONS.keys() and not FUNCTIONS.keys() & {*LEFT}


@pytest.mark.parametrize("name", KNOWN)
def test_functions_are_accurate(name):
    theirs, exact, most = KNOWN[name]
    x = numbers()
    ours = np.asarray(jax.jit(written_out(theirs, x))(x)[0])
    with np.errstate(all="ignore"):
        right = exact(x.astype(np.float64))
        rounded = right.astype(np.float32)
        error = abs(ours - right) / np.spacing(abs(rounded))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(rounded))
    np.testing.assert_array_equal(np.isinf(ours), np.isinf(rounded))
    np.testing.assert_array_equal(np.sign(ours)[np.isinf(ours)], np.sign(rounded)[np.isinf(ours)])
    finite = np.isfinite(rounded) & (abs(rounded) >= TINY)
    assert error[finite].max() <= most and (ours[np.isfinite(rounded) & ~finite] <= TINY).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_functions_have_the_same_bits_in_every_program(name):
    """In arrays of all lengths up to 40, in rows of a loop, and one operation after the other.
    XLA's `exp` does not.
    """
    function = KNOWN[name][0]
    rng = np.random.default_rng(1)
    x = (
        rng.uniform(-0.99, 0.99, 640).astype(np.float32)
        if name == "erf_inv"
        else rng.standard_normal(640).astype(np.float32)
    )
    x = abs(x) if name in ("log", "log1p", "rsqrt") else x
    with jax.disable_jit():
        right = np.asarray(written_out(function, x)(x)[0])
    whole = jax.jit(lambda x: [written_out(function, x[:n])(x[:n])[0] for n in range(1, 40)])(x)
    for ours in whole:
        assert np.asarray(ours).tobytes() == right[: len(ours)].tobytes(), len(ours)

    def in_a_loop(x):
        def row(i, result):
            return result.at[i].set(function(x[i]))

        return lax.fori_loop(0, len(x), row, jnp.zeros_like(x))

    for shape in ((3, 2), (3, 12), (5, 35), (7, 64)):
        part = x[: shape[0] * shape[1]].reshape(shape)
        ours = np.asarray(jax.jit(written_out(in_a_loop, part))(part)[0])
        assert ours.tobytes() == right[: part.size].tobytes(), shape


def test_other_floats_and_other_functions_stay():
    x = np.ones(3, np.float32)
    closed = functions._written_out(
        jax.make_jaxpr(lambda x: jnp.exp(x.astype(jnp.float16)) + jnp.sin(x))(x)
    )
    assert {"exp", "sin"} <= {equation.primitive.name for equation in closed.jaxpr.eqns}


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: jax.scipy.special.betainc(x, x, x), {"regularized_incomplete_beta"}),
        (jnp.sin, {"sin"}),
        (jnp.exp, set()),
        (lambda x: jnp.exp(x.astype(jnp.float16)), {"exp"}),
        (lambda x: jax.scipy.special.gammainc(x, x), {"igamma"}),
        (jax.scipy.special.i0e, {"bessel_i0e"}),
    ],
)
def test_what_is_left_to_xla_is_named(function, named):
    assert functions.functions_left(jax.make_jaxpr(function)(np.ones(3, np.float32)).jaxpr) == named


def test_nothing_is_written_out_where_it_is_not_needed(monkeypatch):
    closed = jax.make_jaxpr(jnp.exp)(1.0)
    assert "functions" not in [one.name for one in passes("gpu", "rewrite")]
    monkeypatch.setattr(functions, "NEEDED", False)
    assert functions.write_out_functions(closed) is closed
    monkeypatch.setattr(functions, "NEEDED", True)
    assert functions.write_out_functions(closed) is not closed
