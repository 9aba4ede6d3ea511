"""Exact sums in fixed point, compared with fractions."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bts_jax.engine.fixed_point import UNIT, Sum, quantize

DENOMINATORS = [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 25, 27, 50, 64, 100, 128, 1000, 10_000]


@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_fractions_are_whole_numbers_of_coins(denominator):
    value = np.zeros(max(DENOMINATORS) + 1, np.float32)  # one shape for all: one program
    value[: denominator + 1] = np.arange(denominator + 1) / denominator
    assert np.asarray(quantize(value))[: denominator + 1].tolist() == [
        UNIT // denominator * j for j in range(denominator + 1)
    ]


plus, of = jax.jit(Sum.add), jax.jit(Sum.of)  # called some thousand times


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(DENOMINATORS), st.floats(0, 1)), min_size=1, max_size=50))
def test_sums_of_fractions_are_exact(items):
    total, exact = Sum.zeros(), Fraction(0)
    for denominator, share in items:
        part = Fraction(round(share * denominator), denominator)
        total, exact = plus(total, quantize(np.float32(float(part)))), exact + part
    assert Fraction(int(total.whole)) + Fraction(int(total.rest), UNIT) == exact
    assert float(total.value()) == pytest.approx(float(exact), rel=2e-7)


@settings(deadline=None, max_examples=100)
@given(st.floats(0, 1000, width=32), st.integers(-UNIT, UNIT))
def test_order_and_taking_back(value, amount):
    total = of(value)
    moved = plus(total, jnp.int32(amount))
    assert bool(moved.reaches(total)) == (amount >= 0) and bool(total.reaches(moved)) == (
        amount <= 0
    )
    back = plus(moved, jnp.int32(-amount))
    assert (int(back.whole), int(back.rest)) == (int(total.whole), int(total.rest))
    assert float(total.value()) == pytest.approx(value, abs=1 / UNIT, rel=1e-7)


def test_of_takes_whole_numbers_exactly():
    assert int(Sum.of(jnp.int32(2**31 - 2)).whole) == 2**31 - 2
    half = Sum.of(np.float32(7.5))
    assert (int(half.whole), int(half.rest)) == (7, UNIT // 2)
    almost = Sum.of(np.float32(0.99999999))  # rounds up to the next unit
    assert (int(almost.whole), int(almost.rest)) == (1, 0)


def test_numpy_and_jax_agree_on_every_amount():
    """On the host, NumPy counts the budgets."""
    random = np.random.default_rng(0)
    amounts = np.concatenate(
        [
            random.random(1000) * 10.0 ** random.integers(-6, 10, 1000),
            np.arange(2000) / 10,
            np.arange(2000) / 10_000,
            [np.nan, np.inf, -np.inf, -1.5, 0, 2**31, 3e9, 1e30],
        ]
    ).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for values in (amounts, np.array([0, 1, 7, 2**31 - 1], np.int32)):
            for ours, theirs in zip(Sum.of(values, np), of(values), strict=True):
                assert (
                    isinstance(ours, np.ndarray)
                    and ours.dtype == np.int32
                    and (ours == theirs).all()
                )


def test_ten_million_tenths_are_a_million():
    """A float32 sum stalls at 2²¹, and a float64 sum has an error in the seventh decimal place."""
    total = jax.jit(
        lambda x: jax.lax.fori_loop(0, 10**7, lambda _, s: s.add(quantize(x)), Sum.zeros())
    )(0.1)
    assert (int(total.whole), int(total.rest)) == (10**6, 0)
