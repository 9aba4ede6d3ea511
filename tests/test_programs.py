"""Programs that are compiled quickly have the same bits as those with full optimization."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, assert_same_bits, keys
from jax import lax
from jax.extend import core

import bts_jax as bj
from bts_jax import arguments, batch
from bts_jax.engine.compile.options import QUICKLY, SAME_BITS, known, operations
from bts_jax.engine.compile.programs import PROGRAMS, Program
from bts_jax.engine.jaxprs import ELEMENTWISE
from bts_jax.engine.pipeline import rewritten
from bts_jax.experiments import common, omega

pytestmark = pytest.mark.with_care

# Operations on floats that are computed by a series, or may be, in some range of numbers.
FUNCTIONS = {
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "div": lambda x: 1.7 / x,
    "integer_pow": lambda x: x**3,
    "rem": lambda x: jnp.fmod(x, 0.3),
    "round": jnp.round,
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "sign": jnp.sign,
    "square": jnp.square,
}


@pytest.mark.slow
def test_functions_have_the_same_bits_in_all_shapes():
    """Each function alone, twice in one fusion, and in a comparison; in vectorized lanes, and with
    a remainder.
    """
    shapes = (2,), (250,), (7, 40)

    def apply(arrays):
        found = []
        for x in arrays:
            for function in FUNCTIONS.values():
                found += [
                    function(x),
                    function(20 * x),
                    jnp.where(function(x) > 0.5, function(x + 0.001), x),
                ]
        return found

    arrays = [np.random.default_rng(0).random(shape, np.float32) * 0.98 + 0.01 for shape in shapes]
    with_care, quickly = (
        jax.jit(apply, compiler_options=options)(arrays) for options in ({}, known(QUICKLY))
    )
    assert all(
        a.tobytes() == b.tobytes()
        for a, b in zip(*map(jax.device_get, (with_care, quickly)), strict=True)
    )
    floats = {name for name in ELEMENTWISE if name in SAME_BITS}
    exact = {
        *"""abs add and bitcast_convert_type clamp complex convert_element_type copy eq ge gt imag is_finite le lt max min
        mul ne neg not or real select_n shift_left shift_right_arithmetic shift_right_logical stop_gradient sub xor""".split()  # noqa: E501
    }
    assert floats == exact | FUNCTIONS.keys(), (
        "every function that may be compiled quickly is compared here"
    )


@pytest.mark.slow
def test_sums_of_products_have_the_same_bits():
    """A compiler may round a product and a sum at once, or one after the other. In what the engine
    gives it, it has no choice.

    Formulas are made at random of what policies compute with, elementwise and over a sum. Without
    the engine some differ.
    """
    random = np.random.default_rng(1)
    two = (
        jnp.add,
        jnp.subtract,
        jnp.multiply,
        jnp.multiply,
        jnp.divide,
        jnp.maximum,
        lambda a, b: jnp.where(a < b, a, b * a),
    )
    one = (
        jnp.sqrt,
        jnp.log1p,
        jnp.square,
        lambda a: a + 0.5,
        lambda a: jnp.exp(-a),
        lambda a: a * (1 - a),
    )
    recipes = [
        [
            (random.integers(len(two)), random.integers(len(one)), *random.integers(0, 4 + i, 2))
            for i in range(8)
        ]
        for _ in range(15)
    ]

    def formulas(*inputs):
        found = []
        for recipe in recipes:
            values = list(inputs)
            for i, j, first, second in recipe:
                values.append(one[j](jnp.abs(two[i](values[first], values[second]))))
            found += [values[-1] + values[-2] * values[-3], (values[-1] * values[-2]).sum(0)]
        return found

    inputs = list(random.random((4, 10, 37), np.float32) + 0.01)
    different = []
    for function in (
        formulas,
        core.jaxpr_as_fun(rewritten(jax.make_jaxpr(formulas)(*inputs), "cpu")),
    ):
        with_care, quickly = (
            jax.device_get(jax.jit(function, compiler_options=options)(*inputs))
            for options in ({}, known(QUICKLY))
        )
        assert sum(np.isfinite(a).all() and len(np.unique(a)) > 30 for a in with_care) > 15
        different.append(
            sum(a.tobytes() != b.tobytes() for a, b in zip(with_care, quickly, strict=True))
        )
    assert different[0] > 0 and different[1] == 0


def laid(policy, bandit, budget, keys, **options):
    return batch.lay_out(arguments.of_batch(policy, bandit, budget, keys, None, None), **options)


@pytest.mark.slow
# The operations of BTS are among those of tempered BTS.
@pytest.mark.parametrize("name", ["kube", "tempered-bts"])
def test_runs_have_the_same_bits(name):
    policy, bandit = bj.POLICIES[name](), INSTANCES["bernoulli"]
    runs, kernels = [], []
    for quickly in (True, False):  # in this order: see the last test
        one = laid(policy, bandit, 30, keys(40), quickly=quickly)
        runs.append(batch.play([one])[0][0])
        program = batch._program_of([one])[0]
        assert program.quickly == quickly
        kernels.append(program.compiled.as_text().count(" fusion("))
    if "xla_cpu_use_fusion_emitters" in known(QUICKLY):  # JAX 0.11 has only the newer emitters
        assert kernels[0] < kernels[1]
    assert_same_bits(*runs)


def test_operations_of_unknown_bits_are_compiled_with_care():
    def shrink(x):
        return lax.while_loop(lambda x: x > 0.1, lambda x: lax.erf(x) / 2, x)

    for function, quickly in ((jnp.exp, True), (jnp.tan, False), (shrink, False)):
        program = Program(function, jax.devices()[:1], quickly=True)
        assert program.lower(np.float32(0.5)).ways == [known(QUICKLY) if quickly else None]
        assert program(np.float32(0.5)) == jax.jit(function)(np.float32(0.5))
    assert {"while", "erf", "gt"} <= operations(jax.make_jaxpr(shrink)(0.5).jaxpr)


def test_little_to_do_is_compiled_quickly():
    """It depends on the arms and pulls of all batches of a kind. A fully optimized program is also
    used for small batches.
    """
    bandit = bj.Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5])
    PROGRAMS.work.clear()
    assert [laid(bj.Uniform(), bandit, 1.2e6, keys(4)).signature.quickly for _ in range(3)] == [
        True,
        False,
        False,
    ]
    large = laid(bj.Uniform(), bandit, 3e6, keys(20))
    assert not large.signature.quickly
    program, _ = batch._program_of([large])
    little = laid(bj.Uniform(), bandit, 10, keys(20), quickly=True)
    assert little.signature.quickly and batch._program_of([little])[0] is program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options"),
    [
        (bj.Bernoulli, {"num_arms": 3, "reward_range": (0.4, 0.6), "cost_range": (0.1, 0.9)}),
        (bj.Multinomial, {"num_arms": 100}),
        (bj.Beta, {"num_arms": 10}),
    ],
)  # 10 arms of the others: the next test
def test_instances_that_are_drawn_quickly_have_the_same_bits(family, options):
    """By themselves they are compiled with `QUICKLY`, as a part of another program with care."""
    draw = partial(family.random, **options)
    careful = jax.jit(draw)
    for seed in range(5):
        assert_same_bits(draw(jax.random.key(seed)), careful(jax.random.key(seed)))
    key = jax.random.key(1)
    assert_same_bits(draw(key), jax.jit(lambda: draw(key))())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Bernoulli", "Multinomial", "Beta"])
def test_instances_of_a_study_have_the_same_bits(family):
    make = omega._make(family, 10)
    quick = jax.tree.map(
        lambda *x: np.stack(x),
        *(one.bandit for one in common.draw(make, family, 10, 64, seed=0, place=1)),
    )
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), i))(
        np.arange(64)
    )
    assert_same_bits(quick, jax.jit(jax.vmap(make))(keys))
