"""Policies generated at random: a run has the same bits however it is played, and follows the rules of the game.

A `Program` is plain data, so that a failure prints what failed; `Generated` is the policy that interprets it. By default there
are few examples, because each compiles several programs, and always the same ones. BTS_JAX_PROPERTIES=100 tries 100.
"""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import assert_same_bits, batch, keys, take
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jax import lax

import bts_jax as bj
from bts_jax import random

EXAMPLES = int(os.environ.get("BTS_JAX_PROPERTIES", 6))  # two thirds of them for bits, one third for rules


def examples(count):
    return settings(derandomize=True, deadline=None, max_examples=max(count, 1), suppress_health_check=[HealthCheck.too_slow])


ARMS = 3
BANDIT = bj.Bernoulli(reward=[0.3, 0.6, 0.8], cost=[0.5, 0.7, 0.9])
START = np.array([0.3, -1.7, 0.9], np.float32)  # of every array of the state: different for all arms, so that there are no ties
ROW = np.array([1.1, -0.7, 0.3], np.float32)


# The grammar. An expression is a tuple: the name of an operation, and its operands. Its value is a float32 scalar or one number
# per arm. Values read from the state are clipped to [-50, 50], so that no expression overflows.

UNARY = {
    "exp": lambda x: jnp.exp(jnp.clip(x, -4, 4)),
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
    "jax gamma": lambda key, x, y: jax.random.gamma(key, shape_of(x)),
}
READS = ["f", "n", "s", "m0", "m1", "m2", "scale", "arms"]


def per_arm(x):
    return jnp.broadcast_to(x, (ARMS,))


def scalar(x):
    return x.sum()


def shape_of(x):
    return jnp.clip(jnp.abs(x), 0.1, 20.0)


class Scope:
    """What expressions of one call of a method may use."""

    def __init__(self, policy, state, arm, key, **others):
        clipped = jax.tree.map(lambda x: jnp.clip(x, -50, 50).astype(jnp.float32), state)
        columns = {f"m{i}": clipped.m[:, i] for i in range(3)}
        self.values = {"f": clipped.f, "n": clipped.n, "s": clipped.s, **columns, "scale": policy.scale,
                       "arms": jnp.asarray(START), **others}
        self.arm, self.key, self.used = arm, key, 0

    def fresh_key(self):
        self.used += 1
        return jax.random.fold_in(self.key, self.used)

    def evaluate(self, expression):
        name, *operands = expression
        if name in self.values:
            return self.values[name]
        if name in NUMBERS:
            return NUMBERS[name](self.fresh_key())
        if name in DRAWS:
            return DRAWS[name](self.fresh_key(), *map(self.evaluate, operands))
        if name == "constant":
            return jnp.float32(operands[0])
        if name == "gather":
            return per_arm(self.evaluate(operands[0]))[self.arm]
        if name == "cond":
            which, *branches = operands
            return lax.cond(scalar(self.evaluate(which)) > 0, *(lambda x=x: per_arm(self.evaluate(x)) for x in branches))
        return OPERATIONS[name](*map(self.evaluate, operands))


class Program(NamedTuple):
    """A policy. Expressions, and statements for the parts of the state: how it is changed, and by which expression."""

    score: tuple  # the arm with the largest is pulled
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
    arm: Any  # int32, the last that was pulled


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
    "round": lambda n, arm, value: n.at[arm].set(jnp.clip(jnp.round(scalar(value)), -50, 50).astype(jnp.int32)),
}
TABLES = {
    "add row": lambda m, arm, value: m.at[arm].add(scalar(value) * ROW),
    "set row": lambda m, arm, value: m.at[arm].set(scalar(value) - ROW),
    "add cell": lambda m, arm, value: m.at[arm, 1].add(scalar(value)),
    "set column": lambda m, arm, value: m.at[:, 2].set(per_arm(value)),
    "all": lambda m, arm, value: m * 0.9 + per_arm(value)[:, None] * ROW,
}


def pick(scores, state):
    """An arm that depends on every bit of the scores and of the state: the largest of some hashes."""
    hashes = lax.bitcast_convert_type(scores, jnp.uint32)
    parts = [hashes, *(x if x.dtype == jnp.int32 else lax.bitcast_convert_type(x, jnp.uint32) for x in state)]
    words = jnp.concatenate([part.astype(jnp.uint32).ravel() for part in parts])
    total = (words * (2 * jnp.arange(len(words), dtype=jnp.uint32) + 1) * jnp.uint32(2654435761)).sum(dtype=jnp.uint32)
    for shift in (15, 13, 16):
        hashes = (hashes + total) * jnp.uint32(2246822519)
        hashes = hashes ^ (hashes >> shift)
    return jnp.argmax(hashes).astype(jnp.int32)


@partial(jax.tree_util.register_dataclass, data_fields=["scale"], meta_fields=["program", "every_bit"])
@dataclass(frozen=True)
class Generated:
    """Plays a program. `every_bit`: the arm depends on every bit of the scores and of the state, and not on their order."""

    program: Program
    every_bit: bool = True
    scale: Any = 0.7

    def init(self, problem):
        columns = jnp.asarray(START)
        return State(f=columns, n=jnp.arange(ARMS, dtype=jnp.int32), s=jnp.float32(0.1), m=jnp.outer(columns, ROW),
                     arm=jnp.int32(0))

    def __call__(self, state, key):
        program, scope = self.program, Scope(self, state, state.arm, key)
        scores = per_arm(scope.evaluate(program.score))
        if program.call_draw:
            scores = scores + per_arm(scope.evaluate(program.call_draw)) * self.scale
        if program.decide:
            state = state._replace(s=scalar(scope.evaluate(program.decide)))
        return (pick(scores, state) if self.every_bit else jnp.argmax(scores)), state

    def update(self, state, arm, reward, cost, key):
        program, scope = self.program, Scope(self, state, arm, key, reward=reward, cost=cost)
        s = scalar(scope.evaluate(program.s))
        if program.update_draw:
            s = s + scalar(scope.evaluate(program.update_draw)) * self.scale
        return State(
            f=CHANGES[program.f[0]](state.f, arm, scope.evaluate(program.f[1])),
            n=COUNTS[program.n[0]](state.n, arm, scope.evaluate(program.n[1])),
            s=s,
            m=TABLES[program.m[0]](state.m, arm, scope.evaluate(program.m[1])),
            arm=arm,
        )


def expressions(depth, reads):
    constants = [("constant", x) for x in (0.1, -1.3, 3.0)]
    leaves = st.sampled_from([(name,) for name in [*reads, *NUMBERS]] + constants)
    if depth == 0:
        return leaves
    inner = expressions(depth - 1, reads)
    larger = st.one_of(
        st.tuples(st.sampled_from(list(TERNARY)), inner, inner, inner),
        st.tuples(st.sampled_from(list(BINARY)), inner, inner),
        st.tuples(st.sampled_from([*UNARY, "gather"]), inner),
        st.tuples(st.just("cond"), inner, inner, inner),
    )
    return larger if depth > 1 else st.one_of(leaves, larger)


def programs(draws):
    call, update = READS, [*READS, "reward", "cost"]

    def draw(reads):
        parameter = expressions(0, reads)
        drawn = st.tuples(st.sampled_from(list(DRAWS)), parameter, parameter)
        return st.one_of(st.none(), drawn) if draws else st.none()

    def statement(changes):
        return st.tuples(st.sampled_from(list(changes)), expressions(1, update))

    return st.builds(
        Program,
        score=expressions(2, call),
        decide=st.one_of(st.none(), expressions(1, call)),
        f=statement(CHANGES),
        n=statement(COUNTS),
        s=expressions(2, update),
        m=statement(TABLES),
        call_draw=draw(call),
        update_draw=draw(update),
    )


# The same bits.

RUNS, BUDGET = 8, 12.0
CHECKPOINTS = [5.0, 12.0]


def alone(policy, many):
    runs = [bj.simulate(policy, BANDIT, BUDGET, key, checkpoints=CHECKPOINTS) for key in many[:3]]
    short = bj.simulate(policy, BANDIT, 5.0, many[2], checkpoints=[2.0, 5.0])
    assert_same_bits(take(short, 1), take(runs[2], 0))  # a checkpoint is a run with that budget
    return jax.tree.map(lambda *x: jnp.stack(x), *runs)


def mapped(policy, many):
    return batch(policy, BANDIT, BUDGET, many, checkpoints=CHECKPOINTS)


def nested(policy, many):
    runs = jax.vmap(partial(mapped, policy))(many.reshape(2, -1))
    return jax.tree.map(lambda x: x.reshape(RUNS, *x.shape[2:]), runs)


def batched(lanes, devices, policies, policy, many):
    if policies:  # one for each run
        policy = jax.tree.map(lambda x: np.full(RUNS, x), policy)
    devices = jax.devices()[:devices]
    return bj.simulate_batch(policy, BANDIT, BUDGET, many, checkpoints=CHECKPOINTS, lanes=lanes, devices=devices)


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


THOMPSON = Program(  # draws in both methods, and runs of different lengths in few lanes
    score=("multiply and add", ("uniform",), ("m1",), ("tanh", ("f",))),
    decide=("multiply and add", ("s",), ("scale",), ("mean", ("n",))),
    f=("add", ("multiply and subtract", ("reward",), ("scale",), ("gather", ("f",)))),
    n=("count", ("n",)),
    s=("divide", ("gather", ("f",)), ("cost",)),
    m=("add row", ("reward",)),
    call_draw=("gamma", ("f",), ("f",)),
    update_draw=("gamma", ("s",), ("s",)),
)


@examples(EXAMPLES * 2 // 3)
@given(program=programs(draws=True), ways=TWO_WAYS)
@example(program=THOMPSON, ways=["one by one", "2 lanes, one device"])
def test_a_run_has_the_same_bits_however_it_is_played(program, ways):
    policy, many = Generated(program), keys(RUNS)
    first, *others = (WAYS[way](policy, many) for way in ways)
    for other in others:
        common = slice(min(len(first.rounds), len(other.rounds)))  # fewer are played one by one
        assert np.isfinite(first.reward).all() and (np.asarray(first.rounds) > 0).all()
        assert_same_bits(take(first, common), take(other, common))


# The rules of the game.

DECIDE, PULL, UPDATE = range(3)


def key_of(key, round, purpose):
    """The engine's key for one purpose in one round of the run with this key, if the policy decides in every call."""
    return random.derive(random.key_words(key), round, purpose)


@partial(jax.jit, static_argnums=0)
@partial(jax.vmap, in_axes=(None, 0, 0, None, None))
def play_round(policy, state, key, round, noise):
    """One round of one run, by the policy's own methods. `noise` changes the state a little."""
    arm, state = policy(state, key_of(key, round, DECIDE))
    reward, cost = BANDIT.pull(key_of(key, round, PULL), arm)
    state = policy.update(state, arm, reward, cost, key_of(key, round, UPDATE))
    wave = lambda x: jnp.cos(jnp.arange(x.size, dtype=jnp.float32).reshape(x.shape) + round)  # noqa: E731
    state = jax.tree.map(lambda x: x * (1 + noise * wave(x)) if x.dtype == jnp.float32 else x, state)
    return state, arm, reward, cost


def play_by_hand(policy, many, noise):
    """All arms pulled [T, N], and reward, cost and rounds [N] of every run, by the rules of the game."""
    state = jax.tree.map(lambda x: jnp.stack([x] * len(many)), policy.init(bj.Problem(num_arms=ARMS)))
    earned, spent, rounds, arms = np.zeros(len(many)), np.zeros(len(many)), np.zeros(len(many), int), []
    while (playing := (spent < BUDGET) & (rounds == len(arms))).any():
        state, arm, reward, cost = play_round(policy, state, many, np.int32(len(arms)), np.float32(noise))
        arms.append(np.where(playing, arm, -1))
        rounds += playing
        earned += playing * np.asarray(reward)
        spent += playing * np.asarray(cost)  # 0 or 1, and the budget is whole: no pull exceeds it
    return np.array(arms), earned, spent, rounds


stable = []


@examples(EXAMPLES // 3)
@given(program=programs(draws=False))
def check_rules(program):
    policy, many = Generated(program, every_bit=False), keys(32)
    arms, *sums = play_by_hand(policy, many, 0)
    others = [play_by_hand(policy, many, noise)[0] for noise in (1e-5, -1e-5)]
    clear = np.logical_and.reduce([(len(other) == len(arms)) and (other == arms).all(0) for other in others])
    clear = np.broadcast_to(clear, len(many))
    stable.append(clear.mean())
    runs = bj.simulate_batch(policy, BANDIT, BUDGET, many)
    pulls = (arms[..., None] == np.arange(ARMS)).sum(0)
    for ours, right in zip((runs.pulls, runs.reward, runs.cost, runs.rounds), (pulls, *sums), strict=True):
        np.testing.assert_array_equal(np.asarray(ours)[clear, 0], right[clear])


def test_runs_follow_the_rules():
    """A loop in Python over rounds, with the policy's own methods and the engine's keys, pulls the same arms.

    XLA rounds differently in other programs, so only runs whose decisions do not depend on the last bits are compared: those
    that stay the same if the state changes by 10⁻⁵ of itself in every round. Most runs must be such.
    """
    stable.clear()
    check_rules()
    assert np.mean(stable) > 0.5, stable
