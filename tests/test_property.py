"""Policies generated at random: a run has the same bits however it is played, and they are the
right bits.

A `Program` is plain data, so that a failure prints what failed; `Generated` is the policy that
interprets it. Each compiles several programs. So by default there are five only, written by hand:
among them is every operation, draw, statement and way to play
(`test_the_examples_have_everything`). BTS_JAX_PROPERTIES=100 tries 100 others, always the same
ones.
"""

import itertools
import os
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import assert_same_bits, batch, keys, take
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import jaxpr_as_fun

import bts_jax as bj
from bts_jax import random
from bts_jax.engine.passes.functions import write_out_functions

# In both tests together, in addition to those written by hand.
EXAMPLES = int(os.environ.get("BTS_JAX_PROPERTIES", 0))


def examples(count):
    phases = [Phase.explicit, *([Phase.generate, Phase.shrink] if count else [])]
    return settings(
        derandomize=True,
        deadline=None,
        max_examples=max(count, 1),
        phases=phases,
        suppress_health_check=[HealthCheck.too_slow],
    )


ARMS = 3
BANDIT = bj.Bernoulli(reward=[0.3, 0.6, 0.8], cost=[0.5, 0.7, 0.9])
START = np.array([0.3, -1.7, 0.9], np.float32)


# The grammar. An expression is a tuple: the name of an operation, and its operands. Its value is a
# float32 scalar or one number per arm. Values read from the state are clipped to [-50, 50], so that
# no expression overflows.

UNARY = {
    "exp": lambda x: jnp.exp(jnp.clip(x, -4, 4)),
    "add exp": lambda x: x + jnp.exp(jnp.clip(x, -4, 4)),
    "log": lambda x: jnp.log1p(jnp.abs(x)),
    "sqrt": lambda x: jnp.sqrt(jnp.abs(x)),
    "tanh": jnp.tanh,
    "cumsum": lambda x: jnp.cumsum(per_arm(x)),
    "sum": lambda x: per_arm(x).sum(),
    "mean": lambda x: per_arm(x).mean(),
    "max": lambda x: per_arm(x).max(),
    "argmax": lambda x: jnp.argmax(per_arm(x)).astype(jnp.float32),
}
BINARY = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / (0.5 + y * y),
    "divide abs": lambda x, y: jnp.abs(x) / (0.5 + y * y),
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
}
TERNARY = {
    "multiply and add": lambda x, y, z: x * y + z,
    "multiply and subtract": lambda x, y, z: z - x * y,
    "where": lambda x, y, z: jnp.where(x > y, z, y),
}
OPERATIONS = UNARY | BINARY | TERNARY
NUMBERS = {
    "uniform": lambda key: jax.random.uniform(key, (ARMS,)),
    "normal": lambda key: jax.random.normal(key, (ARMS,)),
    "bits": lambda key: random.unit(random.bits(key, (ARMS,))[0]),
}
DRAWS = {
    "gamma": lambda key, x, y: random.gamma(key, shape_of(x)),
    "beta": lambda key, x, y: random.beta(key, shape_of(x), shape_of(y)),
    "jax gamma": lambda key, x, y: jax.random.gamma(key, shape_of(x) - 0.4),
}
READS = ["f", "n", "s", "m0", "m1", "m2", "arms", "scale", "shift"]
# XLA simplifies (x * 0.1) * 3, (x / y) / z and exp(x) * exp(y). This changes bits in the same way
# in all programs, but not in single operations. (JAX 0.10.2;
# `test_a_run_has_the_bits_of_single_operations` shows it if these are allowed.)
SIMPLIFIED = {"constant", "divide", "exp"}


def per_arm(x):
    return jnp.broadcast_to(x, (ARMS,))


def scalar(x):
    return x.sum()


def shape_of(x):
    return jnp.clip(jnp.abs(x), 0.5, 20.0)  # smaller shapes are for `jax.random.gamma` alone


class Scope:
    """What expressions of one call of a method may use."""

    def __init__(self, policy, state, arm, key, **others):
        clipped = jax.tree.map(lambda x: jnp.clip(x, -50, 50).astype(jnp.float32), state)
        columns = {f"m{i}": clipped.m[:, i] for i in range(3)}
        self.values = {
            "f": clipped.f,
            "n": clipped.n,
            "s": clipped.s,
            "arms": state.arms,
            **columns,
            "scale": policy.scale,
            "shift": policy.shift,
            **others,
        }
        self.arm, self.key = arm, key

    def evaluate(self, expression, place):
        """`place` is a number of its own for every expression: random numbers depend on it."""
        name, *operands = expression
        if name in self.values:
            return self.values[name]
        if name == "constant":
            return jnp.float32(operands[0])
        inner = [
            partial(self.evaluate, operand, 8 * place + i + 1) for i, operand in enumerate(operands)
        ]
        if name == "cond":
            return lax.cond(
                scalar(inner[0]()) > 0,
                *(lambda branch=branch: per_arm(branch()) for branch in inner[1:]),
            )
        values = [value() for value in inner]
        if name == "gather":
            return per_arm(values[0])[self.arm]
        if name in OPERATIONS:
            return OPERATIONS[name](*values)
        return (NUMBERS | DRAWS)[name](jax.random.fold_in(self.key, place), *values)


class Program(NamedTuple):
    """A policy. Expressions, and statements for the parts of the state: how it is changed, and by
    which expression.
    """

    score: tuple  # of each arm; see `pick`
    decide: tuple | None  # what a decision makes of `s`
    f: tuple
    n: tuple
    s: tuple
    m: tuple
    call_draw: tuple | None = None  # added to the score
    update_draw: tuple | None = None  # added to `s`


class State(NamedTuple):
    f: Any  # [K] float32
    n: Any  # [K] int32
    s: Any  # float32
    m: Any  # [K, 3] float32
    arms: Any  # [K] float32, which never changes
    last: Any  # int32, the last arm that was pulled


CHANGES = {
    "add": lambda x, arm, value: x.at[arm].add(scalar(value)),
    "set": lambda x, arm, value: x.at[arm].set(scalar(value)),
    "largest": lambda x, arm, value: x.at[arm].max(scalar(value)),
    "mask": lambda x, arm, value: jnp.where(jnp.arange(ARMS) == arm, per_arm(value), x),
    "all": lambda x, arm, value: per_arm(value),
}
COUNTS = {
    "count": lambda n, arm, value: n.at[arm].add(1),
    "restart": lambda n, arm, value: jnp.where(n > 2, 0, n + 1),
    "round": lambda n, arm, value: n.at[arm].set(
        jnp.clip(jnp.round(scalar(value)), -50, 50).astype(jnp.int32)
    ),
}
TABLES = {
    "add row": lambda m, arm, value, row: m.at[arm].add(scalar(value) * row),
    "set row": lambda m, arm, value, row: m.at[arm].set(scalar(value) - row),
    "add cell": lambda m, arm, value, row: m.at[arm, 1].add(scalar(value)),
    "set column": lambda m, arm, value, row: m.at[:, 2].set(per_arm(value)),
    "all": lambda m, arm, value, row: m * 0.9 + per_arm(value)[:, None] * row,
}


def pick(scores, state):
    """An arm that depends on every bit of the scores and of the state: the largest of some
    hashes.
    """
    hashes = lax.bitcast_convert_type(scores, jnp.uint32)
    parts = [
        hashes,
        *(x if x.dtype == jnp.int32 else lax.bitcast_convert_type(x, jnp.uint32) for x in state),
    ]
    words = jnp.concatenate([part.astype(jnp.uint32).ravel() for part in parts])
    total = (
        words * (2 * jnp.arange(len(words), dtype=jnp.uint32) + 1) * jnp.uint32(2654435761)
    ).sum(dtype=jnp.uint32)
    for shift in (15, 13, 16):
        hashes = (hashes + total) * jnp.uint32(2246822519)
        hashes = hashes ^ (hashes >> shift)
    return jnp.argmax(hashes).astype(jnp.int32)


@partial(jax.tree_util.register_dataclass, data_fields=["scale", "shift"], meta_fields=["program"])
@dataclass(frozen=True)
class Generated:
    """The policy that interprets a program."""

    program: Program
    scale: Any
    shift: Any

    def init(self, problem):
        start = jnp.asarray(START)
        return State(
            f=start,
            n=jnp.arange(ARMS, dtype=jnp.int32),
            s=jnp.float32(0.1),
            m=jnp.outer(start, start),
            arms=start,
            last=jnp.int32(0),
        )

    def __call__(self, state, key):
        program, scope = self.program, Scope(self, state, state.last, key)
        scores = per_arm(scope.evaluate(program.score, 1))
        if program.call_draw:
            scores = scores + per_arm(scope.evaluate(program.call_draw, 2)) * self.scale
        if program.decide:
            state = state._replace(s=scalar(scope.evaluate(program.decide, 3)))
        return pick(scores, state), state

    def update(self, state, arm, reward, cost, key):
        program, scope = self.program, Scope(self, state, arm, key, reward=reward, cost=cost)
        s = scalar(scope.evaluate(program.s, 1))
        if program.update_draw:
            s = s + scalar(scope.evaluate(program.update_draw, 2)) * self.scale
        return State(
            f=CHANGES[program.f[0]](state.f, arm, scope.evaluate(program.f[1], 3)),
            n=COUNTS[program.n[0]](state.n, arm, scope.evaluate(program.n[1], 4)),
            s=s,
            m=TABLES[program.m[0]](state.m, arm, scope.evaluate(program.m[1], 5), state.arms),
            arms=state.arms,
            last=arm,
        )


def policy_of(program):
    return Generated(program, scale=np.float32(0.7), shift=np.float32(-1.3))


def names(table, simplified):
    return st.sampled_from([name for name in table if simplified or name not in SIMPLIFIED])


def expressions(depth, reads, simplified):
    """`simplified`: whether there may be what XLA simplifies."""
    constants = [("constant", x) for x in (0.1, -1.3, 3.0)] if simplified else []
    leaves = st.sampled_from([(name,) for name in [*reads, *NUMBERS]] + constants)
    if depth == 0:
        return leaves
    inner = expressions(depth - 1, reads, simplified)
    larger = st.one_of(
        st.tuples(names(TERNARY, simplified), inner, inner, inner),
        st.tuples(names(BINARY, simplified), inner, inner),
        st.tuples(names([*UNARY, "gather"], simplified), inner),
        st.tuples(st.just("cond"), inner, inner, inner),
    )
    return larger if depth > 1 else st.one_of(leaves, larger)


def programs(draws, simplified):
    call, update = READS, [*READS, "reward", "cost"]

    def draw(reads):
        parameter = expressions(0, reads, simplified)
        return st.tuples(st.sampled_from(list(DRAWS)), parameter, parameter)

    def statement(changes):
        return st.tuples(st.sampled_from(list(changes)), expressions(1, update, simplified))

    nothing = st.none()
    # Both take long to compile.
    one_method = st.one_of(st.tuples(draw(call), nothing), st.tuples(nothing, draw(update)))
    return st.builds(
        lambda drawn, **others: Program(call_draw=drawn[0], update_draw=drawn[1], **others),
        score=expressions(2, call, simplified),
        decide=st.one_of(nothing, expressions(1, call, simplified)),
        f=statement(CHANGES),
        n=statement(COUNTS),
        s=expressions(1, update, simplified),
        m=statement(TABLES),
        drawn=one_method if draws else st.tuples(nothing, nothing),
    )


# The same bits.

RUNS, BUDGET = 8, 9.0
CHECKPOINTS = [4.0, 9.0]


def alone(policy, many):
    runs = [bj.simulate(policy, BANDIT, BUDGET, key, checkpoints=CHECKPOINTS) for key in many[:3]]
    short = bj.simulate(policy, BANDIT, 4.0, many[2], checkpoints=[2.0, 4.0])
    assert_same_bits(take(short, 1), take(runs[2], 0))  # a checkpoint is a run with that budget
    return jax.tree.map(lambda *x: np.stack(x), *runs)


def mapped(policy, many):
    return batch(policy, BANDIT, BUDGET, many, checkpoints=CHECKPOINTS)


def nested(policy, many):
    runs = jax.jit(jax.vmap(partial(mapped, policy)))(many.reshape(2, -1))
    return jax.tree.map(lambda x: np.reshape(x, (RUNS, *x.shape[2:])), runs)


def batched(lanes, devices, policies, policy, many):
    if policies:  # one for each run
        policy = jax.tree.map(lambda x: np.full(RUNS, x), policy)
    devices = jax.devices()[:devices]
    return bj.simulate_batch(
        policy, BANDIT, BUDGET, many, checkpoints=CHECKPOINTS, lanes=lanes, devices=devices
    )


WAYS = {
    "one by one": alone,
    "vmap": mapped,
    "nested vmap": nested,
    "2 lanes, one device": partial(batched, 2, 1, False),
    "3 lanes, all devices, a policy for each run": partial(batched, 3, None, True),
    "all lanes, one device, a policy for each run": partial(batched, None, 1, True),
    "all lanes, all devices": partial(batched, None, None, False),
}

TWO_WAYS = st.lists(st.sampled_from(list(WAYS)), min_size=2, max_size=2, unique=True)

THOMPSON = Program(  # draws in both methods
    score=("multiply and add", ("uniform",), ("m1",), ("tanh", ("f",))),
    decide=("multiply and add", ("s",), ("scale",), ("mean", ("n",))),
    f=("add", ("multiply and subtract", ("reward",), ("scale",), ("gather", ("f",)))),
    n=("count", ("n",)),
    s=("divide", ("gather", ("f",)), ("cost",)),
    m=("add row", ("reward",)),
    call_draw=("gamma", ("f",), ("f",)),
    update_draw=("jax gamma", ("s",), ("s",)),
)
SIMPLE = Program(  # with what XLA simplifies
    score=(
        "cond",
        ("f",),
        ("multiply", ("exp", ("f",)), ("exp", ("m2",))),
        ("divide", ("divide", ("m0",), ("n",)), ("s",)),
    ),
    decide=None,
    f=("mask", ("multiply", ("multiply", ("f",), ("constant", 0.1)), ("constant", 3.0))),
    n=("restart", ("n",)),
    s=("subtract", ("mean", ("arms",)), ("constant", -1.3)),
    m=("set column", ("log", ("m2",))),
    call_draw=("beta", ("f",), ("m1",)),
)
SAME_BITS = [
    (THOMPSON, ["one by one", "2 lanes, one device"]),
    (SIMPLE, ["nested vmap", "3 lanes, all devices, a policy for each run"]),
]


def each(cases, *names):
    """A decorator: these cases by hand."""
    return lambda test: reduce(
        lambda test, case: example(**dict(zip(names, case, strict=True)))(test), cases, test
    )


@pytest.mark.slow
@examples(EXAMPLES // 3)
@given(program=programs(draws=True, simplified=True), ways=TWO_WAYS)
@each(SAME_BITS, "program", "ways")
def test_a_run_has_the_same_bits_however_it_is_played(program, ways):
    one, other = (WAYS[way](policy_of(program), keys(RUNS)) for way in ways)
    common = slice(min(len(one.rounds), len(other.rounds)))  # fewer are played one by one
    assert_same_bits(take(one, common), take(other, common))
    assert np.isfinite(one.reward).all() and (np.asarray(one.rounds) > 0).all()


# The right bits.

DECIDE, UPDATE, PULL = range(3)


@partial(jax.jit, static_argnums=2)
@partial(jax.vmap, in_axes=(0, None, None))
def key_of(key, round, purpose):
    """The engine's key for one purpose in one round of the run with this key, if the policy decides
    in every call.
    """
    return random.derive(random.key_words(key), round, purpose)


@jax.jit
@jax.vmap
def pull_arms(key, earlier, arm):
    """Reward and cost of an arm that was pulled `earlier` times before in the run with this key."""
    return BANDIT.pull(random.derive(random.key_words(key), earlier, PULL + arm), arm)


def written_out(function):
    """The same function, with the operations that the engine writes out for `exp` and the like
    (`test_functions.py`).
    """

    def called(*arguments):
        closed, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
        outputs = jaxpr_as_fun(write_out_functions(closed))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(out), outputs)

    return called


def play_by_hand(policy, many):
    """Reward, cost, rounds and pulls of every run and checkpoint: the rules of the game, in Python.

    The policy's methods are computed one operation after the other, so that each rounds its result.
    """
    state = jax.tree.map(
        lambda x: jnp.stack([x] * len(many)), policy.init(bj.Problem(num_arms=ARMS))
    )
    shape = len(many), len(CHECKPOINTS)
    reward, cost, rounds, pulls = (
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(shape, int),
        np.zeros((*shape, ARMS), int),
    )
    for round in itertools.count():
        playing = cost < CHECKPOINTS
        if not playing.any():
            return reward, cost, rounds, pulls
        decide, update = (key_of(many, round, purpose) for purpose in (DECIDE, UPDATE))
        with jax.disable_jit():
            arm, state = jax.vmap(written_out(policy))(state, decide)
        won, paid = pull_arms(many, pulls[np.arange(len(many)), -1, arm], arm)
        with jax.disable_jit():
            state = jax.vmap(written_out(policy.update))(state, arm, won, paid, update)
        reward += playing * np.asarray(won)[:, None]
        # 0 or 1, and budgets are whole: no pull exceeds what is left.
        cost += playing * np.asarray(paid)[:, None]
        rounds += playing
        pulls += playing[..., None] * np.asarray(arm[:, None] == np.arange(ARMS))[:, None]


RIGHT_BITS = [
    (
        Program(
            score=(
                "multiply and add",
                ("add exp", ("f",)),
                ("cumsum", ("m0",)),
                ("where", ("m1",), ("shift",), ("uniform",)),
            ),
            decide=("multiply and subtract", ("mean", ("f",)), ("scale",), ("max", ("m2",))),
            f=("set", ("multiply and subtract", ("reward",), ("scale",), ("gather", ("f",)))),
            n=("round", ("multiply", ("cost",), ("add", ("s",), ("n",)))),
            s=("sum", ("multiply", ("m1",), ("arms",))),
            m=("set row", ("divide abs", ("gather", ("f",)), ("s",))),
        ),
        "all lanes, one device, a policy for each run",
    ),
    (
        Program(
            score=(
                "cond",
                ("subtract", ("normal",), ("m1",)),
                ("multiply", ("tanh", ("f",)), ("log", ("m2",))),
                ("add", ("sqrt", ("m0",)), ("multiply", ("f",), ("bits",))),
            ),
            decide=("maximum", ("s",), ("argmax", ("multiply", ("f",), ("n",)))),
            f=("largest", ("minimum", ("multiply", ("reward",), ("gather", ("m0",))), ("cost",))),
            n=("count", ("n",)),
            s=("multiply and add", ("s",), ("scale",), ("gather", ("m2",))),
            m=("all", ("multiply", ("f",), ("shift",))),
        ),
        "all lanes, all devices",
    ),
    (
        Program(
            score=("multiply and add", ("f",), ("m0",), ("n",)),
            decide=None,
            f=("all", ("multiply and add", ("f",), ("shift",), ("reward",))),
            n=("count", ("n",)),
            s=("cost",),
            m=("add cell", ("multiply", ("s",), ("reward",))),
        ),
        "vmap",
    ),
]


def words(thing):
    return (
        {thing}
        if isinstance(thing, str)
        else set().union(*map(words, thing))
        if isinstance(thing, tuple)
        else set()
    )


def test_the_examples_have_everything():
    right = set().union(*(words(tuple(program)) for program, _ in RIGHT_BITS))
    same = set().union(*(words(tuple(program)) for program, _ in SAME_BITS))
    assert {*OPERATIONS, "gather", "cond", *NUMBERS, *READS, "reward", "cost"} - SIMPLIFIED <= right
    assert SIMPLIFIED | {*DRAWS} <= same
    for field, table in (("f", CHANGES), ("n", COUNTS), ("m", TABLES)):
        assert {getattr(program, field)[0] for program, _ in RIGHT_BITS + SAME_BITS} == {*table}
    assert {way for _, way in RIGHT_BITS}.union(*(ways for _, ways in SAME_BITS)) == {*WAYS}


@pytest.mark.slow
@examples(EXAMPLES - EXAMPLES // 3)
@given(program=programs(draws=False, simplified=False), way=st.sampled_from(list(WAYS)))
@each(RIGHT_BITS, "program", "way")
def test_a_run_has_the_bits_of_single_operations(program, way):
    """Products are rounded before they are added, and no operation is replaced by one that rounds
    otherwise.

    There are no draws by rejection, of which only the law is known. The engine may sum in any fixed
    order: three terms from first to last, as XLA does. With more arms, its order is different.
    """
    if jax.default_backend() != "cpu":
        pytest.skip("known for CPUs only")
    policy = policy_of(program)
    runs = WAYS[way](policy, keys(RUNS))
    right = play_by_hand(policy, keys(RUNS)[: len(runs.rounds)])
    for ours, theirs in zip((runs.reward, runs.cost, runs.rounds, runs.pulls), right, strict=True):
        np.testing.assert_array_equal(ours, theirs)
