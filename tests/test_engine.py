"""The same bits in every program: sums in a fixed order, rounded products, and policies that
learn.
"""

import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import assert_same_bits
from jax import lax
from jax.extend.core import jaxpr_as_fun

import bts_jax as bj
from bts_jax.engine import jaxprs
from bts_jax.engine import lanes as lanes_of_all
from bts_jax.engine.passes import functions, rounding, summation
from bts_jax.engine.passes.rounding import round_all_products, round_product, round_products
from bts_jax.engine.passes.summation import (
    GROUP,
    MOST_TERMS,
    RULES,
    in_fixed_order,
    left_to_xla,
    without_reductions,
)
from bts_jax.pytrees import pytree


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def primitives(jaxpr):
    """The names of all operations, including those in loops, branches and calls."""
    inner = [
        one for equation in jaxpr.eqns for one in jax.extend.core.jaxprs_in_params(equation.params)
    ]
    return {equation.primitive.name for equation in jaxpr.eqns}.union(*map(primitives, inner))


MATRIX = numbers(6, 6) / 6 + 2 * np.eye(6, dtype=np.float32)
FUNCTIONS = {
    "matrix and vector": (lambda x, y: x @ y, numbers(7, 5), numbers(5)),
    "chain": (lambda x, y: jnp.einsum("kd,de,ke->k", x, y, x), numbers(7, 5), numbers(5, 5)),
    "batches": (
        lambda x, y: jnp.einsum("abcd,cbe->aed", x, y),
        numbers(2, 3, 4, 5),
        numbers(4, 3, 6),
    ),
    "outer": (jnp.outer, numbers(3), numbers(4)),
    "more terms than are computed together": (
        lambda x, y: x @ y,
        numbers(2, 2 * MOST_TERMS + GROUP + 3),
        numbers(2 * MOST_TERMS + GROUP + 3),
    ),
    "larger": (lambda x, y: x @ y, numbers(90, 50), numbers(50, 90)),
    "no terms": (lambda x, y: x @ y, numbers(3, 0), numbers(0)),
    "one term": (lambda x, y: x @ y, numbers(3, 1), numbers(1)),
    "half precision": (
        lambda x, y: x @ y,
        numbers(3, 9).astype(jnp.bfloat16),
        numbers(9).astype(jnp.bfloat16),
    ),
    "sums": (
        lambda x: (x.sum(), x.sum((0, 2)), x.mean(-1), x.var(), x[:0].sum(0)),
        numbers(3, 7, 5),
    ),
    "products": (lambda x: (x.prod(), x.prod(1), x[:, :0].prod(1)), numbers(3, 7)),
    "running sums": (
        lambda x: (jnp.cumsum(x, 1), lax.cumsum(x, 0, reverse=True), jnp.cumprod(x, 0)),
        numbers(3, 7),
    ),
    "logarithms": (lambda x: (lax.cumlogsumexp(x), jax.nn.logsumexp(x)), numbers(9)),
    "in a loop": (
        lambda w, x: lax.scan(lambda h, x: (jnp.tanh(w @ h + x), h.sum()), x[0], x),
        MATRIX,
        numbers(4, 6),
    ),
    "until": (
        lambda w, x: lax.while_loop(lambda h: h.sum() < 9, lambda h: h + (w @ h) ** 2, x),
        MATRIX,
        numbers(6),
    ),
    "in a branch": (
        lambda w, x: lax.cond(x.sum() > 0, lambda x: w @ x, lambda x: x, x),
        MATRIX,
        numbers(6),
    ),
    "in a call": (lambda w, x: jax.jit(lambda x: jax.nn.relu(w @ x))(x), MATRIX, numbers(6)),
    "checkpointed": (lambda w, x: jax.checkpoint(lambda x: jnp.sin(w @ x))(x), MATRIX, numbers(6)),
    "solve": (jnp.linalg.solve, MATRIX, numbers(6)),
    **{
        f"triangular {left} {lower} {turned} {unit} {size}": (
            lambda a, b, left=left, lower=lower, turned=turned, unit=unit: (
                lax.linalg.triangular_solve(
                    a, b, left_side=left, lower=lower, transpose_a=turned, unit_diagonal=unit
                )
            ),
            numbers(size, size) / size + 2 * np.eye(size, dtype=np.float32),
            numbers(size, 3) if left else numbers(3, size),
        )
        for left, lower, turned, unit, size in [
            (True, True, False, False, 6),
            (True, False, True, True, 6),
            (False, True, True, False, 6),
            (False, False, False, False, 40),
        ]
    },
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sums_in_a_fixed_order_are_right(name):
    function, *arguments = FUNCTIONS[name]
    # The default precision of a GPU is lower.
    function = jax.default_matmul_precision("highest")(function)
    closed = jax.make_jaxpr(function)(*arguments)
    fixed = in_fixed_order(closed)
    assert not primitives(fixed.jaxpr) & set(RULES), "nothing is left to XLA"
    assert not primitives(without_reductions(closed).jaxpr) & {*RULES, "reduce_max", "reduce_min"}
    tolerance = 1e-2 if arguments[0].dtype == jnp.bfloat16 else 1e-4
    ours, theirs = (
        jax.jit(jaxpr_as_fun(fixed))(*arguments),
        jax.tree.leaves(jax.jit(function)(*arguments)),
    )
    for found, right in zip(ours, theirs, strict=True):
        assert found.dtype == right.dtype and found.shape == right.shape
        np.testing.assert_allclose(
            np.asarray(found, np.float64),
            np.asarray(right, np.float64),
            rtol=tolerance,
            atol=tolerance,
        )


def test_infinities_come_through_a_matrix_product():
    left = np.array([[1, 2], [1, -1], [0, 1], [1, 1]], np.float32)
    right = np.array(
        [
            [-np.inf, np.inf, np.nan, 3e38, -3.4028235e38, -np.inf, -2e38],
            [1, 2, 3, 3e38, 1, np.inf, 0],
        ],
        np.float32,
    )
    closed = in_fixed_order(jax.make_jaxpr(lambda x, y: x @ y)(left, right))
    with np.errstate(invalid="ignore", over="ignore"):
        np.testing.assert_array_equal(jax.jit(jaxpr_as_fun(closed))(left, right)[0], left @ right)


def test_what_has_no_sums_of_floats_is_left_alone():
    closed = jax.make_jaxpr(lambda x, n: (jnp.sin(x).max(), n.sum(), n @ n))(
        numbers(3), np.arange(3)
    )
    assert in_fixed_order(closed) is closed


ROUNDED = {
    "plain": lambda a, b, c: a * b + c,
    "loop": lambda a, b, c: lax.scan(lambda s, x: (s + x, None), a * b, c[None])[0],
    "one turn": lambda a, b, c: lax.fori_loop(0, 1, lambda _, s: s + c, a * b),
    "branch": lambda a, b, c: lax.cond(a[0] < 9, lambda: a * b + c, lambda: a),
    "entry": lambda a, b, c: c[None].at[0].add(a * b)[0],
    "select": lambda a, b, c: c - jnp.where(a < 9, -(a * b), a),
    "call": lambda a, b, c: jax.jit(jnp.multiply)(a, b).reshape(1, -1)[0] + c,
    "clip": lambda a, b, c: jnp.clip(a * b, -jnp.inf, jnp.inf) + c,
}


def test_a_product_is_rounded_before_it_is_added():
    """For all lengths of a loop, because compilers treat the end of an array differently from its
    middle.
    """
    for size in (1, 3, 4, 7, 64, 1001):
        a, b, c = numbers(3, size)
        right = (a * b) + c  # NumPy rounds twice
        first, second = (
            np.where(a < 0, np.float32(1.1), np.float32(0.3)),
            np.where(b < 0, np.float32(0.7), np.float32(0.9)),
        )
        closed = [
            round_products(jax.make_jaxpr(function)(a, b, c)) for function in ROUNDED.values()
        ]
        weak = round_products(
            jax.make_jaxpr(
                lambda a, b, c: jnp.where(a < 0, 1.1, 0.3) * jnp.where(b < 0, 0.7, 0.9) + c
            )(a, b, c)
        )

        # One program, in which each function reads arrays of its own: XLA cannot share anything
        # between them.
        @jax.jit
        def play(every, closed=(*closed, weak)):
            plain, *others = every
            one = round_product(plain[0] * plain[1]) + plain[2]
            return one, *(
                jaxpr_as_fun(function)(*x)[0] for function, x in zip(closed, others, strict=True)
            )

        one, *found, mixed = play([(a, b, c)] * (len(closed) + 2))
        assert one.tolist() == right.tolist()
        for name, ours in zip(ROUNDED, found, strict=True):
            assert ours.tolist() == right.tolist(), name
        assert mixed.tolist() == (first * second + c).tolist()


def test_what_is_returned_is_rounded():
    """The caller of the method may add the result to something."""
    closed = round_all_products(jax.make_jaxpr(lambda a, b: (a * b, a + b))(1.5, 2.5))
    assert [equation.primitive.name for equation in closed.jaxpr.eqns].count("min") == 1


@chex.dataclass(frozen=True)
class Chatty:
    """Prints, in the open and in a branch: equations without outputs."""

    def init(self, problem):
        return jnp.zeros(problem.num_arms)

    def __call__(self, state, key):
        jax.debug.print("sum {}", state.sum())
        lax.cond(state.sum() > 1, lambda: jax.debug.print("more"), lambda: None)
        return jnp.int32(0), state

    def update(self, state, arm, reward, cost, key):
        return state.at[arm].add(reward)


def test_a_policy_may_print(capfd):
    bj.simulate(Chatty(), bj.Bernoulli(reward=[1, 1], cost=[1, 1]), 3, jax.random.key(0))
    jax.effects_barrier()
    assert "sum 2.0" in capfd.readouterr().out


@pytree
class Own(bj.Bernoulli):
    """A class outside of the package."""


def test_rounding_changes_no_number():
    x = np.array([-np.inf, -3.4e38, -1e-37, -0.0, 0, 1e-37, 3.4e38, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(round_product(x), x)


# Policies that learn. Every bit of every score decides, so that a run is different as soon as one
# bit is.

ARMS = 7


def pick(scores):
    mixed = lax.reduce(
        lax.bitcast_convert_type(scores, jnp.int32), jnp.int32(0), lax.bitwise_xor, (0,)
    )
    return jnp.abs((mixed ^ (mixed >> 7) ^ (mixed >> 15)) % ARMS)


class Memory(NamedTuple):
    hidden: Any  # [H]
    pulls: Any  # [T, ARMS + 2], the last T
    inverse: Any  # [D, D]
    target: Any  # [D]
    rounds: Any


@chex.dataclass(frozen=True)
class Learner:
    """A recurrent network, attention over the last pulls, a scan over them, and linear regression
    by two solvers.
    """

    scale: Any = 0.5

    def init(self, problem):
        return Memory(
            jnp.zeros(6), jnp.zeros((3, ARMS + 2)), jnp.eye(3), jnp.zeros(3), jnp.int32(0)
        )

    def weights(self, seed, *shape):
        return self.scale * numbers(*shape, seed=seed)

    def __call__(self, state, key):
        gate = jax.nn.sigmoid(self.weights(1, 6, 6) @ state.hidden)
        new = jnp.tanh(
            self.weights(2, 6, 6) @ state.hidden + self.weights(3, 6, ARMS + 2) @ state.pulls[0]
        )
        hidden = gate * state.hidden + (1 - gate) * new

        queries, values = (
            state.pulls @ self.weights(4, ARMS + 2, 4),
            state.pulls @ self.weights(5, ARMS + 2, 4),
        )
        read = (jax.nn.softmax(queries @ values.T / math.sqrt(4), axis=-1) @ values).mean(0)
        read = (read - read.mean()) / (read.std() + 1e-3)

        last, _ = lax.scan(
            lambda h, x: (jnp.tanh(self.weights(6, 3, 3) @ h + x), None),
            state.target,
            state.pulls[:, :3],
        )
        theta = state.inverse @ state.target + 0.1 * jnp.linalg.solve(state.inverse, state.target)
        features = self.weights(7, ARMS, 3)
        width = jnp.sqrt(jnp.abs(jnp.einsum("kd,de,ke->k", features, state.inverse, features)))
        scores = (
            self.weights(8, ARMS, 6) @ hidden
            + self.weights(9, ARMS, 4) @ read
            + features @ (theta + last)
            + 0.3 * width
        )
        return pick(scores), state._replace(hidden=hidden)

    def update(self, state, arm, reward, cost, key):
        x = self.weights(7, ARMS, 3)[arm]
        ax = state.inverse @ x
        row = jnp.concatenate([jax.nn.one_hot(arm, ARMS), jnp.stack([reward, cost])])
        return state._replace(
            pulls=state.pulls.at[state.rounds % 3].set(row),
            inverse=state.inverse - jnp.outer(ax, ax) / (1 + x @ ax),
            target=state.target + x * (reward - cost),
            rounds=state.rounds + 1,
        )


@pytest.mark.slow
def test_policies_that_learn_have_the_same_bits():
    """In a nested batch with a policy for each run, and alone."""
    steps = np.linspace(0, 1, ARMS, dtype=np.float32)
    bandit = bj.Correlated(reward=0.2 + 0.6 * steps, cost=0.5 - 0.2 * steps, correlation=0 * steps)
    keys = jax.random.split(jax.random.key(0), 35)
    many = jax.vmap(jax.vmap(lambda policy, key: bj.simulate(policy, bandit, 30, key)))
    nested = many(Learner(scale=np.full((5, 7), 0.5)), keys.reshape(5, 7))
    alone = [bj.simulate(Learner(), bandit, 30, key) for key in keys[:5]]
    assert_same_bits(
        jax.tree.map(lambda *x: np.stack(x), *alone),
        jax.tree.map(lambda x: np.asarray(x[0, :5]), nested),
    )


def test_what_is_left_to_xla_is_known():
    places = np.arange(6) % 2
    assert left_to_xla(jax.make_jaxpr(jnp.convolve)(numbers(5), numbers(2)).jaxpr) == {
        "conv_general_dilated"
    }
    assert left_to_xla(
        jax.make_jaxpr(lambda x: jax.ops.segment_sum(x, places, 2))(numbers(6)).jaxpr
    ) == {"scatter-add"}
    assert left_to_xla(jax.make_jaxpr(jnp.sum)(1j * numbers(6)).jaxpr) == {"reduce_sum"}
    assert not left_to_xla(jax.make_jaxpr(lambda x: x.at[2].add(1.0).sum())(numbers(6)).jaxpr)


# Operations of JAX that no table of the engine names. None of them adds floats of a run, except
# that `custom_linear_solve` and the bodies of `scan` and `while` may, which `summation` rewrites.
OTHERS = """
    after_all all_gather all_to_all approx_top_k axis_index clz conj create_token
    custom_linear_solve dce_sink device_put dynamic_update_slice eq_to igamma_grad_a le_to lt_to
    optimization_barrier pmax pmin ppermute psum ragged_all_to_all reduce_precision
    reduce_window_max reduce_window_min rng_bit_generator rng_uniform scan scatter-max scatter-min
    scatter-mul select_and_gather_add select_and_scatter sharding_constraint sort split stage tile
    top_k while
    """.split()
ELSEWHERE = "add_any ragged_dot ragged_dot_general triangular_solve tridiagonal_solve".split()
NEWER = "log2 one_minus_square polynomial".split()  # than the oldest JAX that is supported


def test_every_operation_of_jax_is_in_a_table():
    """A new operation of a new JAX may add floats: then it belongs to `summation.RULES`, or to
    `LEFT_TO_XLA`, of which `check_policy` warns. One that is renamed would be played without its
    rule.
    """
    of_jax = {one.name for name, one in vars(lax).items() if name.endswith("_p")}
    tables = (
        jaxprs.ELEMENTWISE,
        jaxprs.MOVES,
        lanes_of_all.RULES,
        summation.RULES,
        summation.EXTREMES,
        summation.LEFT_TO_XLA,
        rounding.PASS_ON,
        rounding.ROUNDED,
        functions.FUNCTIONS,
        functions.LEFT,
    )
    named = set().union(*tables)
    assert of_jax <= named | {*OTHERS}, "new: to be put in a table"
    assert named <= of_jax | {*ELSEWHERE, *NEWER}, "gone, or renamed"
    assert {*ELSEWHERE}.isdisjoint(of_jax)
