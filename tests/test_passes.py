"""Each pass of the engine alone: it does not change results, and has its intended effect."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

import bts_jax as bj
from bts_jax import arguments, random, rules
from bts_jax.engine import pipeline
from bts_jax.engine.draws import Stepwise, replace_random_gamma
from bts_jax.engine.jaxprs import bind, is_hash, merged, read, retrace
from bts_jax.engine.lanes import lanes
from bts_jax.engine.loop import Runs, _Lanes
from bts_jax.engine.passes import carrying, storing
from bts_jax.engine.passes.armwise import ARMWISE, CONSTANT, OTHER, Changes, plain_index
from bts_jax.engine.passes.carrying import cache_rows, compute_ahead
from bts_jax.engine.passes.dividing import divide_truly
from bts_jax.engine.passes.halving import halves
from bts_jax.engine.passes.keys import write_out_keys
from bts_jax.engine.passes.masking import mask_scatters
from bts_jax.engine.passes.rounding import round_products
from bts_jax.engine.pipeline import PASSES, clean, rewritten
from bts_jax.engine.step import StepInHalves, step_of


def names(jaxpr):
    return [equation.primitive.name for equation in jaxpr.eqns]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).random(shape, np.float32)


def assert_same(closed, function, *arguments):
    """A closed jaxpr computes the same as the function, to the last bit."""
    outputs = jaxpr_as_fun(closed)(*jax.tree.leaves(arguments))
    for ours, theirs in zip(outputs, jax.tree.leaves(function(*arguments)), strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_retracing_copies_equations_and_applies_rules():
    """Calls are inlined, also twice; constants, literals and effects stay; a rule replaces the
    operations it applies to.
    """
    table = np.arange(3, dtype=np.float32)

    @jax.jit
    def inner(x, y):
        return jnp.sin(x) * y, x

    def function(x, s):
        one, two = inner(x + table, s)
        three, _ = inner(one, 2.0)
        return three + two, s, 5.0

    arguments = numbers(3), np.float32(0.5)
    closed = jax.make_jaxpr(function)(*arguments)
    plain = retrace(closed)
    assert "jit" not in names(plain.jaxpr) and names(plain.jaxpr).count("sin") == 2
    assert_same(plain, function, *arguments)
    made = [var for equation in plain.jaxpr.eqns for var in equation.outvars]
    assert len(set(made)) == len(made), "each variable is made once"

    cosines = retrace(
        plain,
        lambda one: one.primitive.name == "sin",
        lambda one, inputs: [jnp.cos(inputs[0]) * 1.0],
    )
    assert "sin" not in names(cosines.jaxpr) and names(cosines.jaxpr).count("cos") == 2
    assert_same(
        cosines,
        lambda x, s: (jnp.cos(jnp.cos(x + table) * s) * 2.0 + (x + table), s, 5.0),
        *arguments,
    )
    kept = retrace(closed, opaque=lambda _: True)
    assert names(kept.jaxpr) == names(closed.jaxpr)
    assert_same(kept, function, *arguments)


def test_numbers_in_the_code_take_the_type_they_are_converted_to():
    closed = jax.make_jaxpr(lambda x: lax.convert_element_type(jnp.float32(3), jnp.int32) + x)(
        jnp.int32(1)
    )
    literal = jax.make_jaxpr(lambda x: jnp.int32(3) + x)(jnp.int32(1))
    converting = retrace(
        literal,
        lambda one: True,
        lambda one, inputs: [lax.convert_element_type(2.0, jnp.int32) + inputs[1]],
    )
    for one, expected in ((closed, 4), (converting, 3)):
        assert names(merged(one.jaxpr)) == ["add"]
        assert jaxpr_as_fun(ClosedJaxpr(merged(one.jaxpr), one.consts))(jnp.int32(1)) == [expected]


def test_hashes_are_calls_for_all_lanes():
    """The bits are those of `jax.vmap`. Shared values, scalars of a lane and arrays of a lane can
    be combined.
    """

    def function(first, second):
        return random.threefry((first, second), (jnp.arange(5, dtype=jnp.uint32), jnp.uint32(7)))

    words = np.random.default_rng(0).integers(2**32, size=(2, 6), dtype=np.uint32)
    mapped = lanes(function)
    assert (
        sum(equation.primitive.name == "jit" for equation in jax.make_jaxpr(mapped)(*words).eqns)
        == 1
    )
    for ours, theirs in zip(mapped(*words), jax.vmap(function, -1, -1)(*words), strict=True):
        assert ours.shape == (5, 6) and (ours == theirs).all()


@pytest.mark.slow
def test_masked_scatters_copy_nothing():
    """`where(condition, x.at[i].add(y), x)`, also of two updates in a row and of nested conditions,
    has no select of arrays.
    """

    def update(x, y, i, go, also):
        added = jnp.where(go, x.at[i].add(1.0), x)
        twice = jnp.where(go, y.at[i].set(2.0).at[i].add(x[0]), y)
        nested = jnp.where(go, jnp.where(also, x.at[i].set(7.0), x), x)
        return added, twice, nested, jnp.where(go, x + 1, x)

    for go in (True, False):
        for also in (True, False):
            arguments = (
                jnp.array(numbers(5)),
                jnp.array(numbers(5, seed=1)),
                jnp.int32(3),
                jnp.bool_(go),
                jnp.bool_(also),
            )
            closed = retrace(jax.make_jaxpr(update)(*arguments))
            masked = mask_scatters(closed)
            assert_same(masked, update, *arguments)
            masked = merged(masked.jaxpr)
            assert (
                sum(
                    one.primitive.name == "select_n" and one.outvars[0].aval.shape == (5,)
                    for one in masked.eqns
                )
                == 1
            )


def test_equal_operations_are_merged_and_unused_ones_dropped():
    def function(x):
        jnp.sin(x)  # is not returned
        return jnp.exp(x) + jnp.exp(x), jnp.exp(x)

    closed = jax.make_jaxpr(function)(numbers(3))
    assert names(merged(closed.jaxpr)) == ["exp", "add"]


@pytest.mark.slow
def test_words_of_keys_are_plain_integers():
    """Operations on keys become hashes of integers, with the bits that JAX gives."""

    def function(key):
        first, second = jax.random.split(key)
        folded = jax.random.fold_in(second, 7)
        third, fourth = jnp.unstack(jax.random.split(folded))
        return (
            jax.random.bits(first, (4,)),
            jax.random.normal(folded, (3,)),
            random.bits(first, (2,)),
            jax.random.bits(third),
            jax.random.bits(fourth),
            jax.random.key_data(jax.random.split(first, 7)),
            jax.random.key_data(jax.random.split(folded, 3)),
            jax.random.uniform(jax.random.split(key, (2, 2))[1, 0]),
        )

    key = jax.random.key(5)
    closed = write_out_keys(jax.make_jaxpr(function)(key))
    for ours, theirs in zip(
        jax.jit(jaxpr_as_fun(closed))(key), jax.tree.leaves(jax.jit(function)(key)), strict=True
    ):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
    closed = jax.make_jaxpr(lambda words: function(random.as_key(words)))(random.key_words(key))
    closed = retrace(write_out_keys(closed), opaque=is_hash)
    assert not any(name.startswith("random_") for name in names(merged(closed.jaxpr)))


def test_quotients_that_are_divided_again_are_rounded():
    """XLA replaces (a / b) / c by a / (b · c), which rounds once less."""
    a, b, c = (numbers(1000, seed=i) + 0.1 for i in range(3))
    closed = round_products(jax.make_jaxpr(lambda a, b, c: ((a / b) / c, c / (a / b)))(a, b, c))
    ours = jax.jit(jaxpr_as_fun(closed))(a, b, c)
    np.testing.assert_array_equal(ours[0], (a / b) / c)
    np.testing.assert_array_equal(ours[1], c / (a / b))


def stored(function, *arguments):
    closed = rewritten(jax.make_jaxpr(function)(*arguments), "cpu")
    found = [var for level in storing.levels(closed.jaxpr) for var in level.stored]
    count = sum(len(level.equations) for level in storing.levels(closed.jaxpr))
    assert count == len(closed.jaxpr.eqns), "every operation is evaluated once"
    return [tuple(var.aval.shape) for var in found]


def test_what_is_stored():
    x, y, s = numbers(100), numbers(100, seed=1), np.float32(2)
    assert stored(lambda x, y, s: (x + y, x * y), x, y, s) == [], (
        "cheap operations are computed anew"
    )
    assert stored(lambda x, y, s: x * jnp.log(s), x, y, s) == [()], (
        "a number that goes with 100 arms is computed once"
    )
    assert stored(lambda x, y, s: jnp.log(s), x, y, s) == []
    shared = stored(lambda x, y, s: (jnp.cos(jnp.sin(x)) + y, jnp.cos(jnp.sin(x)) * y), x, y, s)
    assert shared == [(100,)], (
        "an expensive array with two uses is stored, and nothing that it is made of"
    )
    assert stored(lambda x, y, s: jnp.argmax(x * y + s), x, y, s) == [(100,)], (
        "a reduction over arms reads what is stored"
    )
    words = stored(
        lambda x, y, s: (
            random.bits(jax.random.key(0), (100,))[0]
            + random.threefry(
                random.bits(random.as_key(2 * [s.astype(jnp.uint32)])),
                (jnp.arange(100, dtype=jnp.uint32), jnp.uint32(0)),
            )[0]
        ),
        x,
        y,
        s,
    )
    assert words == [(), ()], "both words of a hash that goes with 100 arms"


def test_storing_changes_no_number():
    arrays = [
        numbers(6, 4),
        numbers(6, 4, seed=1),
        np.arange(4, dtype=np.uint32),
        np.array([True, False]),
        np.full((6, 4), np.nan, np.float32),
    ]
    makers = jax.make_jaxpr(lambda x: x + 1)(1.0).jaxpr.eqns * len(arrays)
    for ours, theirs in zip(
        jax.jit(lambda x: storing.store(x, makers))(arrays), arrays, strict=True
    ):
        assert np.asarray(ours).tobytes() == theirs.tobytes()


def test_what_changes_with_the_pulled_arm_alone():
    def play(constants, state, key):
        counts, total, rounds, cube = (
            state["counts"],
            state["total"],
            state["rounds"],
            state["cube"],
        )
        mean = total / jnp.maximum(counts, 1)
        index = mean + constants * jnp.sqrt(1 / (counts + 1)) + cube[:, 1]
        arm = jnp.argmax(index * rounds)
        return (mean, index, index * rounds, counts / counts.sum(), jnp.cumsum(mean)), {
            "counts": counts.at[arm].add(1),
            "cube": cube.at[arm].set(1.0),
            "fixed": state["fixed"],
            "rounds": rounds + 1,
            "total": total.at[arm].add(1.0).at[arm].add(2.0),
        }

    state = {
        "counts": jnp.zeros(4),
        "cube": jnp.zeros((4, 2)),
        "fixed": jnp.zeros(4),
        "rounds": jnp.float32(0),
        "total": jnp.zeros(4),
    }
    closed = retrace(jax.make_jaxpr(play)(jnp.float32(1), state, jnp.float32(0)))
    jaxpr = merged(closed.jaxpr)
    changes = Changes(jaxpr, 1, len(state))
    assert [changes.of(var) for var in jaxpr.invars] == [
        CONSTANT,
        ARMWISE,
        ARMWISE,
        CONSTANT,
        OTHER,
        ARMWISE,
        OTHER,
    ]
    assert [changes.of(var) for var in jaxpr.outvars[:5]] == [ARMWISE, ARMWISE, OTHER, OTHER, OTHER]


def played(function, constant, state, steps):
    """The states of `state = function(constant, state)`, and those of the same steps with carried
    values.
    """
    closed = rewritten(jax.make_jaxpr(function)(constant, state), "cpu")
    structure, parts = jax.tree.structure(state), len(jax.tree.leaves(constant))
    found = {}
    for find in (compute_ahead, cache_rows):
        step, first = find(closed, parts)
        found[find.__name__] = [var.aval.str_short() for var in first.jaxpr.outvars]
        fixed, now = jax.tree.leaves(constant), jax.tree.leaves(state)
        plain, carried = now, jaxpr_as_fun(first)(*fixed, *now)
        for _ in range(steps):
            plain = jaxpr_as_fun(closed)(*fixed, *plain)
            after = jaxpr_as_fun(step)(*fixed, *now, *carried)
            now, carried = after[: structure.num_leaves], after[structure.num_leaves :]
            for ours, theirs in zip(
                (*now, *carried), (*plain, *jaxpr_as_fun(first)(*fixed, *plain)), strict=True
            ):
                assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
    return found


def example_step(constant, state):
    """Reads and writes entries of one arm, by `add`, by `set` and by both, under a condition; with
    keys and random numbers.
    """
    words, n, total, table, t = (state[name] for name in ("words", "n", "total", "table", "t"))
    first, second = jax.random.split(random.as_key(tuple(words)))
    mean = total / jnp.maximum(n, 1)
    spread = jnp.sqrt(table[:, 0] * jnp.exp(constant["scale"]) + table[:, 1]) / jnp.log(
        constant["each"] + 2
    )
    index = mean + spread * jnp.log(t) + jax.random.uniform(first, (8,))
    arm = jnp.argmax(index)
    go = jax.random.bits(second) % 3 > 0

    def kept(new, old):
        return jnp.where(go, new, old)

    both = (
        state["high"][arm] * 10
        + state["low"][arm]
        + jnp.int32(7)
        + lax.dynamic_slice(state["low"], (0,), (1,))[0]
    )
    bytes_of = lax.bitcast_convert_type(total[arm] + jnp.float32(0.3), jnp.uint8)
    return {
        "words": jnp.stack(random.threefry(tuple(words), (jnp.uint32(3), jnp.uint32(4)))),
        "n": kept(n.at[arm].add(1), n),
        "total": kept(total.at[arm].add(0.3).at[arm].add(index[arm] * 0.1), total),
        "table": kept(table.at[arm].set(jnp.stack([index[arm], t])), table),
        "t": t + 1,
        "low": kept(state["low"].at[arm].set(both % 10), state["low"]),
        "high": kept(state["high"].at[arm].set(both // 10), state["high"]),
        "unread": kept(state["unread"].at[arm].add(0.7), state["unread"]),
        "more": kept(state["more"].at[arm].add(2).at[arm].add(3), state["more"]),
        "roll": jnp.roll(state["roll"], 1).at[arm].add(1),
        "bytes": kept(state["bytes"].at[arm].set(bytes_of), state["bytes"]),
        "half": kept(state["half"].at[arm].apply(lambda x: x * 0.5 + 1), state["half"]),
    }


def example_state(seed=0):
    zeros = jnp.zeros(8, jnp.int32)
    return {
        "words": jnp.arange(2, dtype=jnp.uint32) + seed,
        "n": zeros,
        "total": jnp.array(numbers(8, seed=seed)),
        "table": jnp.array(numbers(8, 2, seed=seed)),
        "t": jnp.float32(1),
        "low": zeros,
        "high": zeros,
        "more": zeros,
        "unread": jnp.array(numbers(8, seed=seed + 1)),
        "roll": zeros,
        "bytes": jnp.zeros((8, 4), jnp.uint8),
        "half": jnp.array(numbers(8, seed=seed + 2)),
    }


CONSTANT_PART = {"scale": jnp.float32(0.3), "each": jnp.array(numbers(8, seed=3))}


@pytest.mark.slow
def test_steps_carry_what_the_next_one_needs(monkeypatch):
    """Words of keys that arrays are made of; rows of the arm that was pulled."""
    monkeypatch.setattr(carrying, "CACHE", 60)  # it is worth it for many arms, and here are few
    found = played(example_step, CONSTANT_PART, example_state(), 12)
    assert found["compute_ahead"] == ["uint32[1]"] * 2 + ["bool[]"], (
        "the words of one key, and what is made of the other"
    )
    assert found["cache_rows"] == ["float32[8]"], "the spread, which is dear"


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_step_in_lanes_is_the_step_of_each_run(platform):
    """All passes together, for either platform: the bits of the same operations one by one."""
    runs = [example_state(seed) for seed in range(4)]
    now = jax.tree.map(lambda *leaves: jnp.stack(leaves, -1), *runs)
    part = jax.tree.map(lambda x: jnp.stack([x] * 4, -1), CONSTANT_PART)
    step = step_of(example_step, part, now, platform)
    closed = rewritten(jax.make_jaxpr(example_step)(CONSTANT_PART, runs[0]), platform)

    @jax.jit
    def play(part, now):
        # On a GPU, `enter` computes the first half of the first step.
        calls = 5 if platform == "cpu" else 4
        return step.leave(
            part, lax.fori_loop(0, calls, lambda _, state: step(part, state), step.enter(part, now))
        )

    ours = play(part, now)
    for i, run in enumerate(runs):
        leaves = jax.tree.leaves(run)
        for _ in range(5):
            leaves = jaxpr_as_fun(closed)(*jax.tree.leaves(CONSTANT_PART), *leaves)
        for mine, theirs in zip(jax.tree.leaves(ours), leaves, strict=True):
            assert np.asarray(mine[..., i]).tobytes() == np.asarray(theirs).tobytes()


def test_the_index_behind_a_mask():
    """A choice between an index and the number of arms is the mask of `masking`; one between two
    arms is not.
    """

    def update(x, arm, go):
        index = jnp.reshape(arm, (1,))
        masked, chosen = (jnp.where(go, index, lax.full_like(index, other)) for other in (5, 0))
        return masked, chosen, index

    closed = rewritten(jax.make_jaxpr(update)(jnp.zeros(5), jnp.int32(1), jnp.bool_(True)), "cpu")
    maker = {var: equation for equation in closed.jaxpr.eqns for var in equation.outvars}
    masked, chosen, index = closed.jaxpr.outvars
    arm = closed.jaxpr.invars[1]
    assert [plain_index(one, 5, maker) for one in (masked, chosen, index)] == [arm, None, arm]


def test_quotients_are_divided():
    """Also for broadcast divisors, where XLA would multiply by the reciprocal."""
    x, each, one = numbers(7, 40) + 0.1, numbers(7, 1, seed=1) + 0.3, np.float32(0.7371)

    def function(x, one):
        return x / one, x / each, x / jnp.sqrt(each * one), x / x[0]

    closed = clean(divide_truly(clean(jax.make_jaxpr(function)(x, one))))
    ours = jax.jit(jaxpr_as_fun(closed))(x, one)
    for mine, theirs in zip(
        ours, (x / one, x / each, x / np.sqrt(each * one), x / x[0]), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    plain = jax.jit(function)(x, one)
    assert any((np.asarray(a) != b).any() for a, b in zip(ours, plain, strict=True)), (
        "without the pass, XLA multiplies"
    )


def test_nothing_is_cached_that_is_cheap_or_changes_in_other_ways():
    def step(constant, state):
        n, x = state
        arm = jnp.argmax(n + 1.0)
        dear = jnp.exp(jnp.sin(x))
        return n.at[arm].add(dear.sum()), jnp.roll(x, 1)

    found = played(step, jnp.float32(1), (jnp.zeros(5), jnp.array(numbers(5))), 3)
    assert found == {"compute_ahead": [], "cache_rows": []}


def test_halves_pass_no_comparison():
    """If arrays are passed anyway, a comparison of them is computed again."""

    def step(part, x, y, n):
        arm = jnp.argmax(jnp.where(x > 0, x, y))
        return jnp.where((x > 0) & (arm == 2), y, x), y + part, n + arm

    arguments = np.float32(1), numbers(5), numbers(5, seed=1), np.int32(0)
    closed = rewritten(jax.make_jaxpr(step)(*arguments), "cpu")
    first, last, passed = halves(closed.jaxpr, 1)
    assert not any(var.aval.dtype == bool and var.aval.shape == (5,) for var in passed)
    env = dict(zip(closed.jaxpr.invars, arguments, strict=True)) | dict(
        zip(closed.jaxpr.constvars, closed.consts, strict=True)
    )

    def run(equations, env):
        for one in equations:
            env.update(
                zip(one.outvars, bind(one, [read(atom, env) for atom in one.invars]), strict=True)
            )
        return env

    middle = run(first, dict(env))
    after = run(
        last,
        {var: middle[var] for var in passed}
        | {closed.jaxpr.invars[0]: arguments[0]}
        | {var: env[var] for var in closed.jaxpr.constvars},
    )
    for ours, theirs in zip(
        (read(atom, after) for atom in closed.jaxpr.outvars), step(*arguments), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


SHAPES, PAIRED = np.float32([0.6, 1.2, 2.5]), np.array([0, 0, 1])


def test_draws_know_what_they_depend_on():
    """The draws of a round, which of them depend on others, and which change with the pulled arm
    alone.
    """

    def play(constants, state, key):
        first, second, third = (jax.random.fold_in(key, i) for i in range(3))
        draws = random.beta(first, state["good"] + 1, state["bad"] + 1)
        scale = random.gamma(second, draws[0] + 1)
        other = random.gamma(third, jnp.float32(2)) * constants + jax.random.gamma(second, scale)
        arm = jnp.argmax(draws * scale)
        return (arm, other), {
            "good": state["good"].at[arm].add(1),
            "bad": state["bad"].at[arm].add(2),
        }

    state = {"good": jnp.zeros(3), "bad": jnp.zeros(3)}
    step = Stepwise("cpu", play, jnp.float32(1), state, jax.random.key(0))
    assert step.needs == [[], [0], [], [0, 1]]
    assert step.changing == [ARMWISE, OTHER, CONSTANT, OTHER]
    assert step.saved == [True, False, True, False], "two draws have the same key"
    assert [kept.value.shape for kept in step.none()] == [(3,), (), (), ()]
    assert [len(kept.parameters) for kept in step.none()] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("decide", "saved"),
    [
        (lambda key: random.gamma(key, SHAPES), [True]),
        (lambda key: jax.random.dirichlet(key, SHAPES), [True]),
        (lambda key: jax.random.beta(key, SHAPES, SHAPES), [True, True]),
        (lambda key: jax.vmap(random.gamma)(jax.random.split(key, 3), SHAPES), [True]),
        (
            lambda key: jax.vmap(lambda i, a: random.gamma(jax.random.fold_in(key, i), a))(
                np.arange(3), SHAPES
            ),
            [True],
        ),
        (lambda key: jax.vmap(random.gamma, (None, 0))(key, SHAPES), [False]),
        (lambda key: jax.vmap(jax.random.gamma, (None, 0))(key, SHAPES), [False]),
        (lambda key: jax.vmap(random.gamma)(jnp.broadcast_to(key, 3), SHAPES), [False]),
        (lambda key: jax.vmap(random.gamma)(jnp.stack([key] * 3), SHAPES), [False]),
        (lambda key: (random.gamma(key, SHAPES), random.gamma(key, 2 * SHAPES)), [False, False]),
        (lambda key: (random.gamma(key, SHAPES), random.beta(key, SHAPES, SHAPES)), [False, False]),
        (
            lambda key: [random.gamma(jax.random.fold_in(key, 7), a) for a in SHAPES],
            [False, False, False],
        ),
        (lambda key: jax.vmap(random.gamma)(jax.random.split(key, 2)[PAIRED], SHAPES), [False]),
        (
            lambda key: jax.vmap(lambda i, a: random.gamma(jax.random.fold_in(key, i), a))(
                PAIRED, SHAPES
            ),
            [False],
        ),
        (
            lambda key: jax.vmap(random.gamma)(jnp.tile(jax.random.split(key, 1), 3), SHAPES),
            [False],
        ),
        (
            lambda key: jax.vmap(lambda key, a: random.gamma(jax.random.fold_in(key, 7), a))(
                jnp.stack([key] * 3), SHAPES
            ),
            [False],
        ),
        (
            lambda key: (
                random.gamma(jax.random.split(key)[0], 2.5),
                random.gamma(jax.random.split(key, 3)[0], 0.6),
            ),
            [False, False],
        ),
        (
            lambda key: (
                random.gamma(jax.random.split(key)[0], 2.5),
                random.gamma(jax.random.fold_in(key, 0), 0.6),
            ),
            [False, False],
        ),
        (
            lambda key: (
                random.gamma(jax.random.split(key, 3)[0], 2.5),
                jax.vmap(random.gamma)(jax.random.split(key, 3), SHAPES),
            ),
            [False, False],
        ),
        (
            lambda key: [random.gamma(jax.random.split(key, 3)[i], 2.5) for i in range(3)],
            [True, True, True],
        ),
        (
            lambda key: [random.gamma(one, 2.5) for one in jnp.unstack(jax.random.split(key, 3))],
            [True, True, True],
        ),
        (
            lambda key: [
                random.gamma(one, 2.5) for one in jnp.unstack(jax.random.split(key, 3))[:1] * 2
            ],
            [False, False],
        ),
        (
            lambda key: [
                jax.vmap(random.gamma)(one, SHAPES[:1])
                for one in jax.lax.split(jax.random.split(key), (1, 1))
            ],
            [True, True],
        ),
        (
            lambda key: (
                random.gamma(jnp.unstack(jax.random.split(key))[0], 2.5),
                random.gamma(jax.random.split(key)[0], 0.6),
            ),
            [False, False],
        ),
        (
            lambda key: (
                random.gamma(key, SHAPES),
                random.gamma(jax.random.fold_in(key, 1), SHAPES),
            ),
            [True, True],
        ),
        (lambda key: (random.gamma(key, SHAPES), random.bits(key)), [False]),
        (
            lambda key: (
                random.gamma(jax.random.split(key)[0], SHAPES),
                random.bits(jax.random.split(key)[1]),
            ),
            [True],
        ),
        (lambda key: (random.gamma(key, SHAPES), key), [False]),
        (lambda key: (random.gamma(key, SHAPES), random.several_bits(key, 3)), [False]),
        (
            lambda key: jax.vmap(random.gamma)(
                jax.random.split(key, 2)[jnp.arange(3) // 2], SHAPES
            ),
            [False],
        ),
        (lambda key: random.gamma(jax.random.key(0), SHAPES), [False]),
        (
            lambda key: [random.gamma(jax.random.fold_in(key, i), a) for i, a in enumerate(SHAPES)],
            [True, True, True],
        ),
    ],
)
def test_draws_with_the_same_random_words_are_not_saved(decide, saved):
    """They are saved for a later round only if no other draw of the round depends on the same
    words.
    """
    state = np.zeros(3, np.float32)
    step = Stepwise(
        "cpu", lambda constants, state, key: (decide(key), state), 0.0, state, jax.random.key(0)
    )
    assert step.saved == saved


@pytest.mark.slow
def test_random_gamma_of_jax_is_replaced():
    """In all functions of JAX that use it. Logarithms are those of the same draws, also for several
    keys.
    """

    def functions(key, shape):
        return [
            jax.random.gamma(key, shape),
            jax.random.loggamma(key, shape),
            jax.random.beta(key, shape, shape),
            jax.random.dirichlet(key, shape),
            jax.random.t(key, shape),
            jax.random.chisquare(key, shape),
        ]

    def one_each(key, shape):
        keys = jax.random.split(key, 3)
        return jax.vmap(jax.random.gamma)(keys, shape), jax.vmap(jax.random.loggamma)(keys, shape)

    key, shape = jax.random.key(0), np.array([0.3, 0.7, 30], np.float32)
    for function, count in ((functions, 7), (one_each, 2)):
        closed = replace_random_gamma(jax.make_jaxpr(function)(key, shape))
        assert names(closed.jaxpr).count("draw") == count and "random_gamma" not in names(
            closed.jaxpr
        )
    plain, logarithm = jax.jit(jaxpr_as_fun(closed))(key, shape)
    np.testing.assert_allclose(np.log(plain), logarithm, rtol=1e-5, err_msg="the same draws")


@pytest.mark.slow
# Which sorts, and has a loop.
@pytest.mark.parametrize("name", [name for name in bj.POLICIES if name != "greedy-kube"])
def test_built_in_policies_are_vectorised_by_rules(name):
    """None of their operations is mapped by `jax.vmap`."""
    bandit = bj.Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])

    def play():
        policy = jax.tree.map(lambda x: jnp.asarray(arguments.canonicalize(x)), bj.POLICIES[name]())
        given = arguments.of_run(bj.POLICIES[name](), bandit, 5.0, None, None)._replace(
            policy=policy
        )
        setting = rules.setting_of(given, random.key_words(jax.random.key(0)))
        own = jax.tree.map(lambda x: jnp.stack([x, x], -1), setting)
        for platform in ("cpu", "gpu"):
            played = _Lanes(
                Runs(own, jax.tree.map(lambda _: None, own), 2), rules.rules(platform), platform
            )
            step, now = played.step, played.fresh(own)
            after = step.leave(own, step(own, step.enter(own, now)))
            assert (
                jax.tree.structure(after) == jax.tree.structure(now) and not step.vector.fallbacks
            )
        return after

    jax.eval_shape(play)


@pytest.mark.slow
def test_branches_of_lanes_that_differ():
    """Both branches are computed if some lane takes the second; results are those of `jax.vmap`."""

    def function(x, go):
        return lax.cond(go, lambda x: (x * 2, x.sum()), lambda x: (x, x[0]), x)

    x = numbers(4, 6)
    for go in (np.zeros(6, bool), np.ones(6, bool), np.arange(6) % 2 == 0):
        for platform in ("cpu", "gpu"):
            ours = jax.jit(lanes(function, platform))(x, go)
            theirs = jax.vmap(function, (1, 0), -1)(x, go)
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)


def test_passes_are_in_order():
    names = [one.name for one in PASSES]
    assert len(set(names)) == len(names)
    for place, one in enumerate(PASSES):
        assert set(one.after) <= set(names[:place]), one.name


def test_passes_are_switched_off_by_name(monkeypatch):
    monkeypatch.setenv("BTS_JAX_PASSES", "-storing, -rows")
    pipeline.switched_off.cache_clear()
    assert pipeline.switched_off() == {"storing", "rows"}
    assert [
        one.name for one in pipeline.passes("cpu", "carry") + pipeline.passes("cpu", "arrange")
    ] == []
    for wrong in ("storing", "-nothing"):
        monkeypatch.setenv("BTS_JAX_PASSES", wrong)
        pipeline.switched_off.cache_clear()
        with pytest.raises(
            ValueError, match=f"BTS_JAX_PASSES = '{wrong}'.*such as -storing; the passes are keys, "
        ):
            pipeline.switched_off()
    monkeypatch.delenv("BTS_JAX_PASSES")
    pipeline.switched_off.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_step_without_a_pass_is_the_same(platform, monkeypatch):
    """Each pass that only makes programs faster can be switched off."""
    now = jax.tree.map(
        lambda *leaves: jnp.stack(leaves, -1), *(example_state(seed) for seed in range(4))
    )
    part = jax.tree.map(lambda x: jnp.stack([x] * 4, -1), CONSTANT_PART)

    def after(*off):
        monkeypatch.setattr(pipeline, "switched_off", lambda: frozenset(off))
        step = step_of(example_step, part, now, platform)
        state = step.enter(part, now)  # with halves, the first half of the first step is done
        for _ in range(1 if isinstance(step, StepInHalves) else 2):
            state = step(part, state)
        before = step.leave(part, state)
        return jax.jit(lambda: step.leave(part, step.changed(state, before, before)))()

    usual = after()
    for one in PASSES:
        if platform in one.platforms and one.once is None and one.name not in ("keys", "division"):
            for mine, theirs in zip(
                jax.tree.leaves(after(one.name)), jax.tree.leaves(usual), strict=True
            ):
                assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes(), one.name
