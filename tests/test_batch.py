"""`simulate_batch`: the same bits as `vmap` for all lanes, devices and orders; and the arguments
that it refuses.

test_reference checks that it plays every policy as `simulate` does.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Barrier
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, assert_same_bits, batch, keys
from jax.typing import ArrayLike

import bts_jax as bj
from bts_jax import arguments, random, rules
from bts_jax.batch import _program, _width, lay_out
from bts_jax.engine.compile.options import GRAPHS, REGISTERS, known_on_gpu, loops, ways
from bts_jax.engine.compile.programs import Program, Registry, most_programs
from bts_jax.engine.lanes import WRITTEN_OUT, _rows, lanes
from bts_jax.engine.loop import BLOCK
from bts_jax.engine.passes.summation import without_reductions
from bts_jax.engine.step import step_of
from bts_jax.pytrees import pytree


@cache
def twenty_three_runs():
    """The runs by `vmap`."""
    return batch(bj.BTS(), INSTANCES["bernoulli"], 20, keys(23))


@pytest.mark.slow
@pytest.mark.with_care
# 3 lanes on two devices: test_property.
@pytest.mark.parametrize(("width", "devices"), [(1, 1), (1000, 2)])
def test_lanes_and_devices_do_not_matter(width, devices):
    if devices > len(jax.devices()):
        pytest.skip("one device")
    reports = []
    runs = bj.simulate_batch(
        bj.BTS(),
        INSTANCES["bernoulli"],
        20,
        keys(23),
        lanes=width,
        devices=jax.devices()[:devices],
        on_report=reports.append,
    )
    assert_same_bits(runs, twenty_three_runs())
    (report,) = reports
    assert report.runs == 23 and report.devices == devices
    assert report.rounds == np.asarray(runs.rounds).sum() <= report.calls <= report.computed
    # A GPU's blocks are long.
    assert (0.3 if jax.default_backend() == "cpu" else 0.1) < report.utilisation <= 1


@pytest.mark.slow
@pytest.mark.with_care
@pytest.mark.all_devices
def test_everything_may_vary():
    """Arguments may differ from run to run; and a budget and a key may be shared by all runs."""
    count = 12
    scales, budgets = np.linspace(0.5, 3, count, dtype=np.float32), np.linspace(3, 30, count)
    limits, points = np.arange(5, 5 + count), np.stack([np.full(count, 2.5), budgets / 2], 1)
    reward, cost = np.random.default_rng(5).uniform(0.2, 1, (2, count, 4)).astype(np.float32)
    bandits = bj.Bernoulli(reward=reward, cost=cost)

    play = jax.jit(
        jax.vmap(
            lambda s, b, budget, key, limit, points: bj.simulate(
                bj.KUBE(scale=s), b, budget, key, max_rounds=limit, checkpoints=points
            )
        )
    )

    def mapped(budgets, keys):
        return play(scales, bandits, np.float32(budgets), keys, limits, np.float32(points))

    def batched(budget, keys):
        return bj.simulate_batch(
            bj.KUBE(scale=scales),
            bandits,
            budget,
            keys,
            lanes=3,
            max_rounds=limits,
            checkpoints=points,
        )

    assert_same_bits(batched(budgets, keys(count)), mapped(budgets, keys(count)))
    key = keys(1)[0]
    assert_same_bits(batched(20, key), mapped(np.full(count, 20), jnp.stack([key] * count)))


@pytest.mark.slow
@pytest.mark.long_runs
def test_runs_of_very_different_length_keep_the_lanes_busy():
    """With the budgets of the paper's Figure 1, scaled down, at least 90% of the computed calls
    belong to an unfinished run.
    """
    if jax.default_backend() != "cpu":
        pytest.skip("to a GPU 600 lanes are as one")
    budgets = np.repeat(
        [10, 20, 50, 100, 200, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000], 40
    )
    bandit = bj.Bernoulli.random(jax.random.key(2), 10, cost_range=(0.2, 1))
    reports = []
    bj.simulate_batch(
        bj.EpsilonFirst(), bandit, budgets, keys(len(budgets)), on_report=reports.append
    )
    assert reports[0].utilisation > 0.9, reports[0]


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((bj.BTS, INSTANCES["bernoulli"], 10, keys(3)), {}, "an instance"),
        ((bj.BTS(), INSTANCES["bernoulli"], 10, None), {}, "keys = None"),
        ((bj.BTS(), INSTANCES["bernoulli"], 10, keys(6).reshape(2, 3)), {}, "keys has shape"),
        ((bj.BTS(), INSTANCES["bernoulli"], [10, -1, 3], keys(3)), {}, r"budget\[1\] = -1"),
        ((bj.BTS(), INSTANCES["bernoulli"], [10, 20], keys(3)), {}, "keys 3, budget 2"),
        (
            (bj.KUBE(scale=[1.0, 2.0]), INSTANCES["bernoulli"], 10, keys(3)),
            {},
            "keys 3, policy.scale 2",
        ),
        ((bj.BTS(), INSTANCES["bernoulli"], 10, keys(3)[:0]), {}, "empty"),
        ((bj.BTS(), INSTANCES["bernoulli"], "100", keys(3)), {}, "budget = '100'"),
        (
            (bj.BTS(), INSTANCES["bernoulli"], 10, jax.random.split(jax.random.PRNGKey(0), 3)),
            {},
            r"keys is an array of uint32\[3, 2\], old-style keys.*jax.random.split\(jax.random.key",
        ),
        ((bj.BTS(), INSTANCES["bernoulli"], 10, [1, 2]), {}, r"keys = \[1, 2\]"),
        (
            (bj.BTS(), INSTANCES["bernoulli"], [10, 20, 30], keys(3)),
            {"checkpoints": [15]},
            r"checkpoints\[0, 0\] = 15",
        ),
        ((bj.BTS(), INSTANCES["bernoulli"], 10, keys(3)), {"lanes": 0}, "lanes = 0"),
    ],
)
def test_bad_batches_are_refused_by_name(arguments, options, named):
    with pytest.raises(ValueError, match=named):
        bj.simulate_batch(*arguments, **options)


@pytree
class Prior:
    prior: ArrayLike  # [K], a hyperparameter of its own with an axis

    def init(self, problem):
        return ()

    def __call__(self, state, key):
        return jnp.argmax(self.prior + jax.random.uniform(key, (5,))), state

    def update(self, state, arm, reward, cost, key):
        return state


def test_what_may_be_a_batch_or_not_is_refused():
    prior = np.array([0.0, 0.0, 2.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="as many runs as arms, 5"):
        bj.simulate_batch(Prior(prior=prior), INSTANCES["bernoulli"], 10, keys(5))
    with pytest.raises(ValueError, match=r"keys 6, policy.prior 5"):
        bj.simulate_batch(Prior(prior=prior), INSTANCES["bernoulli"], 10, keys(6))
    runs = bj.simulate_batch(
        Prior(prior=np.tile(prior, (6, 1))), INSTANCES["bernoulli"], 10, keys(6)
    )
    assert (runs.pulls[:, 0, [0, 1, 3, 4]] == 0).all()


@pytest.mark.all_devices
@pytest.mark.slow
def test_a_run_alone_is_a_batch_of_one():
    """Unless it is a part of another computation, or its arguments are on another device. The bits
    are the same.
    """
    policy, key, other = (
        Prior(prior=np.array([0.0, 0.0, 2.0, 0.0, 0.0])),
        jax.random.key(3),
        jax.local_devices()[-1],
    )

    def play(key):
        return bj.simulate(policy, INSTANCES["bernoulli"], 10, key, checkpoints=[9, 4])

    alone, constant = play(key), jax.jit(lambda: play(key))()
    assert_same_bits(constant, alone)
    elsewhere = play(jax.device_put(key, other))
    assert_same_bits(elsewhere, alone)
    with jax.default_device(other):
        by_default = play(jax.random.key(3))
    assert_same_bits(by_default, alone)
    assert elsewhere.reward.devices() == by_default.reward.devices() == {other}
    assert alone.reward.devices() == {jax.local_devices()[0]} != {other}


def test_under_vmap_it_says_what_to_do():
    with pytest.raises(ValueError, match="map over simulate"):
        jax.vmap(
            lambda budget: bj.simulate_batch(bj.BTS(), INSTANCES["bernoulli"], budget, keys(3))
        )(jnp.ones(2))


def steps(function, out, part, *now):
    """The outputs of `function(part, *now)` in all lanes, shaped as `out`, after one step of a
    loop: on a CPU and a GPU.
    """
    state = now, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), out)

    def play(part, state):
        return state[0], function(part, *state[0])

    for platform in ("cpu", "gpu"):
        step = step_of(play, part, state, platform)
        entered = step.enter(part, state)  # on a GPU after the first half of a step
        yield step.leave(part, step(part, entered) if platform == "cpu" else entered)[1]


def halves(function, part, now):
    """What the first half of a step on a GPU passes to the second half, and the result of the
    second half.
    """
    step = step_of(function, part, now, "gpu")
    begun = jax.jit(step.enter)(part, now)
    return begun, jax.jit(step.leave)(part, begun)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, s: x * s + jnp.where(x > y.sum(), y, jnp.sin(s)),
        lambda x, y, s: (
            jnp.argmax(x),
            jnp.cumsum(y),
            jnp.concatenate([x, y]),
            jnp.stack([x, y], 1),
            x[::-1],
            x[1:3],
        ),
        lambda x, y, s: (
            x.reshape(5, 1) @ y.reshape(1, 5),
            jnp.sort(x),
            x[jnp.int32(s * 4)],
            x.at[jnp.int32(s * 4)].add(1.0),
        ),
        lambda x, y, s: (
            x[jnp.uint8(s * 4)],
            jnp.outer(x, jnp.ones(60))[jnp.int8(s * 4)],
            x[jnp.uint32(s * 4)],
        ),
        # Some out of range.
        lambda x, y, s: (
            x.at[jnp.int32(s * 9)].set(s),
            x.at[jnp.int32(s * 9) - 5].add(y[0]),
            x.at[2].set(s),
        ),
        lambda x, y, s: (
            jax.lax.bitcast_convert_type(x, jnp.uint8),
            jax.lax.bitcast_convert_type(x, jnp.int32),
        ),
        lambda x, y, s: jax.lax.bitcast_convert_type(jnp.uint8(s * 255), jnp.uint4).astype(
            jnp.int32
        ),
        lambda x, y, s: jax.lax.bitcast_convert_type(
            jnp.stack([jnp.int16(x * 999), jnp.int16(y * 999)], -1), jnp.int32
        ),
        lambda x, y, s: jnp.outer(x, y).at[jnp.int32(s * 4)].set(y),
        lambda x, y, s: (
            x.at[jnp.int32(s * 4)].set(9.0, mode="clip"),
            x.at[jnp.int32(y * 4)].add(1.0),
            jnp.ones(5).at[1].add(s),
        ),
        lambda x, y, s: jax.lax.cond(s > 0.5, lambda: x, lambda: y),
        lambda x, y, s: jax.lax.fori_loop(0, 3, lambda i, z: z * s + y[i], x),
        lambda x, y, s: (
            jax.nn.softmax(x),
            jax.nn.relu(y - 0.5),
            jnp.clip(x, 0.2, s),
            jnp.ones(3),
            jnp.float32(2),
        ),
        lambda x, y, s: jax.random.normal(
            jax.random.fold_in(jax.random.key(1), jnp.int32(s * 100)), (4,)
        ),
        lambda x, y, s: jax.random.key_data(
            jax.random.split(jax.random.wrap_key_data(jnp.uint32(jnp.stack([s, s]) * 99)))
        ),
        lambda x, y, s: jax.lax.scan(lambda c, v: (c + v * s, c), 0.0, x),
        lambda x, y, s: (
            jnp.pad(x, 1),
            jnp.diff(y),
            jnp.outer(x, y).T,
            jnp.linalg.norm(x),
            jnp.searchsorted(jnp.sort(x), s),
        ),
    ],
)
def test_lanes_are_vmap(function):
    rng = np.random.default_rng(0)
    x, y, s = (jnp.array(rng.random(shape), jnp.float32) for shape in ((5, 7), (5, 7), (7,)))

    @jax.jit  # one program instead of one for each operation
    def play(x, y, s):
        theirs = jax.vmap(function, out_axes=-1)(x.T, y.T, s)
        return theirs, lanes(function)(x, y, s), *steps(function, theirs, x, y, s)

    theirs, *all_ours = play(x, y, s)
    assert len(all_ours) == 3
    for ours in all_ours:
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("arms", [1, 2, 24, 25, 97, 100, 640])
def test_the_largest_is_the_first_of_its_kind(arms):
    rng = np.random.default_rng(arms)
    few = rng.integers(-2, 3, (arms, 9))
    floats = [
        few,
        rng.normal(size=(arms, 9)),
        np.full((arms, 9), -np.inf),
        np.where(few > 0, np.inf, few),
        np.where(few > 1, np.nan, few),
    ]
    integers = [few, rng.integers(-(2**31), 2**31 - 1, (arms, 9)), np.full((arms, 9), -(2**31))]
    arrays = np.hstack(floats).astype(np.float32), np.hstack(integers).astype(np.int32), few > 0

    def largest(x, platform):
        # On x86, the library to which XLA gives large reductions ignores NaN (jaxlib 0.10.2). Steps
        # have no such reductions.
        closed = without_reductions(jax.make_jaxpr(lambda x: (jnp.argmax(x), x.max()))(x[:, 0]))
        return lanes(partial(jax.core.eval_jaxpr, closed.jaxpr, closed.consts), platform)(x)

    for found in jax.jit(
        lambda arrays: [[largest(x, platform) for x in arrays] for platform in ("cpu", "gpu")]
    )(arrays):
        for x, (place, most) in zip(arrays, found, strict=True):
            np.testing.assert_array_equal(place, np.argmax(x, 0))
            np.testing.assert_array_equal(most, x.max(0))


def test_the_second_step_to_the_largest_is_short_on_a_gpu():
    """XLA would make a separate kernel for many. No step is longer than the part that is
    unrolled.
    """
    rows = {arms: _rows(arms, "gpu") for arms in range(WRITTEN_OUT + 1, 300)}
    steps = {arms: (rows[arms], arms // rows[arms] + arms % rows[arms]) for arms in rows}
    assert (steps[50], steps[100], steps[128], steps[200]) == ((10, 5), (20, 5), (16, 8), (20, 10))
    assert max(map(max, steps.values())) <= WRITTEN_OUT
    assert max(second for arms, (_, second) in steps.items() if arms <= 150) <= 12


@pytree
class DrawsByJax:
    """Arms that draw with a function of JAX and with one of ours. The expected reward is only
    approximate.
    """

    shape: jax.Array

    @property
    def reward_mean(self):
        return self.shape / 4

    @property
    def cost_mean(self):
        return self.shape / (self.shape + 1.5)

    def pull(self, key, arm):
        reward, cost = jax.random.split(key)
        return jnp.minimum(jax.random.gamma(reward, self.shape[arm]) / 4, 1), random.beta(
            cost, self.shape[arm] / 3, 0.5
        )


@pytest.mark.slow
def test_policies_have_common_random_numbers_if_a_bandit_draws_by_rejection():
    """The n-th pull of an arm gives the same outcome, however often the policy was called
    before.
    """
    bandit, key = DrawsByJax(shape=jnp.array([0.6, 0.7, 1.2])), jax.random.key(3)
    plain, sampling = (bj.trace(policy, bandit, 30, key) for policy in (bj.Uniform(), bj.BTS()))
    same = 0
    for arm in range(3):
        # Without the last round of a run, which earns nothing if it exceeds the budget.
        one, other = (
            np.flatnonzero(run.arm[: int(run.length) - 1] == arm) for run in (plain, sampling)
        )
        count = min(len(one), len(other))
        same += count
        for name in ("reward", "cost"):
            np.testing.assert_array_equal(
                getattr(plain, name)[one[:count]], getattr(sampling, name)[other[:count]]
            )
    assert same > 20


def for_a_gpu(monkeypatch, *arguments, **options):
    """The runs of a program for a GPU, which also runs on a CPU."""
    monkeypatch.setattr("bts_jax.batch._platform", lambda devices: "gpu")
    # Otherwise the stored program would be used.
    monkeypatch.setattr("bts_jax.batch.PROGRAMS", Registry(1))
    monkeypatch.setitem(BLOCK, "gpu", 6)
    monkeypatch.setattr("bts_jax.engine.loop.TURN", 2)  # so that there are several turns
    return bj.simulate_batch(*arguments, **options)


@pytest.mark.slow
@pytest.mark.with_care
def test_what_is_written_for_a_gpu_plays_the_same_game(monkeypatch):
    """A policy that draws by rejection."""
    ours = for_a_gpu(monkeypatch, bj.BTS(), INSTANCES["bernoulli"], 20, keys(23))
    assert_same_bits(ours, twenty_three_runs())


@pytest.mark.slow
@pytest.mark.with_care  # without optimization, XLA contracts other products in one of the programs
def test_what_is_written_for_a_gpu_plays_the_same_game_with_many_arms(monkeypatch):
    """Arms that draw by rejection, and more than are unrolled in the search for the largest."""
    arguments = bj.KUBE(), bj.Beta.random(jax.random.key(1), 30), 25, keys(12)
    assert arguments[1].num_arms > WRITTEN_OUT
    ours = bj.simulate_batch(*arguments)
    assert_same_bits(for_a_gpu(monkeypatch, *arguments), ours)


@pytree
class Draws:
    """Pulls the arm with the largest draw. Its keys are not those of the rounds, so that no draw is
    saved for a later round.
    """

    shape: ArrayLike = 0.6

    def init(self, problem):
        return jnp.zeros(problem.num_arms, jnp.int32)

    def __call__(self, state, key):
        return jnp.argmax(
            random.gamma(
                jax.random.fold_in(jax.random.key(0), state.sum()), jnp.full(3, self.shape)
            )
        ), state

    def update(self, state, arm, reward, cost, key):
        return state.at[arm].add(1)


@pytest.mark.slow
@pytest.mark.with_care  # as above
def test_what_is_written_for_a_gpu_plays_the_same_game_if_policy_and_bandit_draw(monkeypatch):
    """A call may complete the draws of one and not those of the other."""
    reports = []
    arguments = Draws(), DrawsByJax(shape=jnp.array([0.6, 0.7, 1.2])), 20, keys(23)
    ours = bj.simulate_batch(*arguments, on_report=reports.append)
    with jax.numpy_dtype_promotion("strict"):
        assert_same_bits(for_a_gpu(monkeypatch, *arguments, on_report=reports.append), ours)
    assert reports[1].calls > 1.1 * reports[0].calls, "proposals of the bandit that are rejected"


@pytree
class Odd:
    """A state with a key, a loop that would not end for 0, and a choice by number."""

    def init(self, problem):
        return {
            "key": jax.random.key(0),
            "value": jnp.zeros(problem.num_arms),
            "calls": jnp.int32(0),
        }

    def __call__(self, state, key):
        return jnp.argmax(
            jax.random.uniform(state["key"], state["value"].shape) + state["value"]
        ), state

    def update(self, state, arm, reward, cost, key):
        value = jax.lax.while_loop(
            lambda x: (x < 1).any(), lambda x: x * 2, jnp.full_like(state["value"], reward + 0.5)
        )
        step = jax.lax.select_n(
            state["calls"] * 0 + 2, jnp.float32(3), jnp.float32(5), jnp.float32(0.1)
        )
        return {
            "key": jax.random.fold_in(state["key"], arm),
            "value": state["value"].at[arm].add(step) + value,
            "calls": state["calls"] + 1,
        }


@pytest.mark.slow
def test_what_is_written_for_a_gpu_plays_the_same_game_with_an_odd_policy(monkeypatch):
    arguments = Odd(), INSTANCES["bernoulli"], 10, keys(4)
    ours = bj.simulate_batch(*arguments)
    assert_same_bits(for_a_gpu(monkeypatch, *arguments), ours)


def test_the_second_half_has_the_arrays_that_no_number_needs():
    told = []

    def play(weight, now):
        scores = now["sums"][:, 0] * weight + jnp.arange(7.0)
        arm = jnp.argmax(scores)
        jax.debug.callback(lambda arm: told.append(int(arm)), arm)
        counts = now["counts"].at[arm].add(jnp.stack([weight, scores.max()]))
        sums = now["sums"].at[arm].add(weight)  # needed for the next number
        return {
            "counts": counts,
            "sums": sums,
            "least": jnp.argmin(sums[:, 1]),
            "weight": weight,
            "one": 1.0,
        }

    rng = np.random.default_rng(0)
    weight, now = (
        rng.random(5, np.float32),
        {name: rng.random((7, 2, 5), np.float32) for name in ("counts", "sums")},
    )
    now |= {"least": np.zeros(5, np.int32), "weight": weight, "one": np.ones(5, np.float32)}
    whole = jax.jit(lanes(play))(weight, now)
    begun, ended = halves(play, weight, now)
    assert_same_bits(ended, whole)
    assert sorted(x.size for x in begun) == [5, 5, 5, 70, 70], (
        "arm, most, least; the counts before, the sums after"
    )
    jax.effects_barrier()
    assert len(told) == 10 and sorted(told[:5]) == sorted(told[5:])


def test_what_prints_alike_is_not_the_same():
    class Times:
        def __init__(self, factor):
            self.factor = factor

        def __repr__(self):
            return "Times"

        def __call__(self, x):
            return np.asarray(x * self.factor, np.float32)

    def both(part, now):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return tuple(
            jax.pure_callback(Times(factor), shape, now, vmap_method="expand_dims")
            for factor in (1, 2)
        )

    x = np.arange(3, dtype=np.float32)
    for ours in steps(both, (x, x), x, x):
        assert_same_bits(ours, (x, 2 * x))


def test_what_is_worked_out_twice_is_passed_on_once():
    def play(part, now):
        arm = jnp.argmax(now)
        one, other = (jnp.where(arm < 3, arm, 7) for _ in range(2))  # calls of a jitted function
        return now.at[one].add(1).at[other].add(part)

    now = np.random.default_rng(0).random((7, 5), np.float32)
    begun, ended = halves(play, now[0], now)
    assert_same_bits(ended, jax.jit(lanes(play))(now[0], now))
    assert sorted(x.size for x in begun) == [5, 35]


def test_the_largest_along_one_axis_is_not_that_along_another():
    x = np.random.default_rng(0).random((25, 30, 4), np.float32)
    place, other, along, both, kept = jax.jit(
        lanes(
            lambda x: (
                jnp.argmax(x, 0),
                jnp.argmax(x, 1),
                x.max(1),
                x.max(),
                x.max(0, keepdims=True),
            )
        )
    )(x)
    np.testing.assert_array_equal(place, x.argmax(0))
    np.testing.assert_array_equal(other, x.argmax(1))
    np.testing.assert_array_equal(along, x.max(1))
    np.testing.assert_array_equal(both, x.max((0, 1)))
    np.testing.assert_array_equal(kept, x.max(0, keepdims=True))


def test_how_many_lanes():
    for platform, arms, runs in itertools.product(
        ("cpu", "gpu"), (2, 10, 90, 100, 128, 10**6), (1, 2, 3, 64, 65, 250, 1000)
    ):
        most = _width(10**9, 10**9, arms, 1, platform)
        for at_once in (1, runs // 4, runs):
            width = _width(runs, at_once, arms, 1, platform)
            assert 1 <= width <= min(runs, most) and (width % 4 == 0 or width == runs)
    assert _width(250, 250, 100, 1, "cpu") == 250 and _width(250, 250, 10**5, 1, "cpu") == 64


@pytree
class Looping(bj.Beta):
    """Arms with a loop in every pull, on any device."""

    def pull(self, key, arm):
        start = jax.random.uniform(key, (), jnp.float32, 0.1)
        return jnp.float32(0.5), jax.lax.while_loop(lambda x: x < 0.5, lambda x: 2 * x, start)


@pytree
class Hidden(bj.Beta):
    """Arms drawn by JAX's own sampler, a primitive that is lowered to a loop. The engine replaces
    it.
    """

    def pull(self, key, arm):
        return jax.random.beta(key, 2.0, 3.0), jax.random.gamma(key, 2.0) / 100


@pytest.mark.slow
def test_loops_in_loops_are_counted(monkeypatch):
    """On a GPU, a block whose calls contain a loop is played in another way. Only this test shows
    that loops are found.
    """
    beta, looping = INSTANCES["beta"], Looping([1, 2], [1, 1], [2, 1], [1, 3])
    hidden = Hidden([1, 2], [1, 1], [2, 1], [1, 3])

    def depth(bandit):
        laid = lay_out(arguments.of_batch(bj.Uniform(), bandit, 5, keys(3), None, None))
        program = _program((laid.signature,), laid.devices, None)
        return loops(program.lower([(laid.own, laid.common)]).lowered.compiler_ir())

    assert (depth(looping), depth(hidden)) == ((3, 3) if jax.default_backend() == "cpu" else (4, 3))
    assert depth(beta) == 3
    assert_same_bits(
        bj.simulate_batch(bj.Uniform(), looping, 5, keys(3)),
        batch(bj.Uniform(), looping, 5, keys(3)),
    )
    monkeypatch.setattr("bts_jax.batch._platform", lambda devices: "gpu")
    assert (depth(beta), depth(looping)) == (3, 4)


def test_options_that_a_compiler_does_not_know_are_left_out_and_reported(monkeypatch, caplog):
    class Device(NamedTuple):
        device_kind: str
        platform: str = "gpu"

    def compiler(known):
        class Program:
            def __init__(self, function, compiler_options):
                self.options = compiler_options

            def lower(self, _):
                return self

            def compile(self):
                if not self.options.keys() <= known:
                    raise jax.errors.JaxRuntimeError("no such option")

        return Program

    monkeypatch.setattr(jax, "device_put", lambda x, device: x)
    others = {
        *GRAPHS,
        "xla_gpu_command_buffer_unroll_loops",
        "xla_gpu_command_buffer_scheduling_mode",
    }
    for known, options, lines in (
        (others | {*REGISTERS}, GRAPHS | REGISTERS, 0),
        (others, GRAPHS, 1),
        (set(), None, 2),
    ):
        monkeypatch.setattr(jax, "jit", compiler(known))
        caplog.clear()
        device = Device(f"GPU {lines} of this test")
        assert known_on_gpu(device) == known_on_gpu(device) and known_on_gpu(device)[0] == options
        assert {*known_on_gpu(device)[1]} == (others | {*REGISTERS}) - known
        assert len(caplog.records) == lines, "each is logged once"
    assert known_on_gpu(jax.devices("cpu")[0]) == (None, ())


class Failing(Program):
    """A program that can be compiled in three ways, of which the first ones fail, when they are
    compiled or when they run.
    """

    def __init__(self, failing, stage, reason="INTERNAL: XLA fails", gather=lambda: None):
        super().__init__(lambda x: x + 1, jax.devices()[:1])
        self.failing, self.stage, self.reason, self.gather, self.ways = (
            failing,
            stage,
            reason,
            gather,
            [0, 1, 2],
        )

    def lower(self, *arguments):
        super().lower(*arguments)
        if not isinstance(self.lowered, Lowered) and self.lowered is not None:
            self.lowered = Lowered(self, self.lowered)
        return self

    def fail(self):
        self.gather()
        raise jax.errors.JaxRuntimeError(self.reason)


class Lowered:
    def __init__(self, program, lowered):
        self.program, self.lowered = program, lowered

    def compile(self, way):
        program = self.program
        if way >= program.failing:
            return self.lowered.compile()
        return program.fail() if program.stage == "compile" else lambda *arguments: program.fail()


@pytest.mark.parametrize("stage", ["compile", "run"])
def test_a_program_that_fails_is_compiled_in_the_next_way(stage, caplog):
    """It fails when it is compiled, or when it is launched. If all ways fail, there is an error."""
    for failing in range(4):
        caplog.clear()
        program = Failing(failing, stage)
        if failing == 3:
            with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
                program(jnp.ones(1))
            continue
        for _ in range(2):
            assert program(jnp.ones(1)).tolist() == [2] and program.ways[0] == failing
        assert len(caplog.records) == len(program.failed) == failing
        assert all("INTERNAL" in record.message for record in caplog.records)


def test_threads_agree_on_the_way_that_works():
    """Two threads fail with the first way at the same time: the second way serves both."""
    both = Barrier(2)
    program = Failing(1, "run", gather=lambda: both.wait(10))
    program.lower(jnp.ones(1)).compile()
    with ThreadPoolExecutor(2) as pool:
        assert [out.tolist() for out in pool.map(program, [jnp.ones(1)] * 2)] == [[2], [2]]
    assert program.ways == [1, 2] and len(program.failed) == 1


@pytest.mark.parametrize(
    "reason", ["RESOURCE_EXHAUSTED: Out of memory", "INTERNAL: CpuCallback error calling callback"]
)
def test_what_no_other_way_would_help_is_raised_at_once(reason):
    program = Failing(1, "run", reason)
    with pytest.raises(jax.errors.JaxRuntimeError, match=reason):
        program(jnp.ones(1))
    assert len(program.ways) == 3


def test_a_program_with_loops_in_its_blocks_is_launched_one_kernel_after_the_other(monkeypatch):
    def loop(function):
        return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: function(x), x)

    class GPU(NamedTuple):
        platform: str = "gpu"

    monkeypatch.setattr(
        "bts_jax.engine.compile.options.known_on_gpu", lambda device: (dict(GRAPHS), ())
    )
    deep = loop(loop(loop(loop(lambda x: x + 1))))
    for function, count in ((deep, 1), (jax.jit(deep), 1), (loop(jax.jit(loop(loop(jnp.sin)))), 3)):
        assert len(ways(GPU(), False, None, jax.jit(function).lower(jnp.ones(1)))) == count


@pytest.mark.slow
def test_the_oldest_programs_are_dropped(monkeypatch):
    """They are compiled again, with the same bits, when they are needed again."""
    dropped, cleared = [], []

    class Program:
        def __init__(self, name):
            self.name = name

        def clear_cache(self):
            dropped.append(self.name)

    programs = Registry(2)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "clear_caches", lambda: cleared.append(len(dropped)))
        for name in "abacadeab":
            assert programs.get(name, lambda name=name: Program(name)).name == name
    assert "".join(dropped) == "bcade" and cleared == [2, 4]

    monkeypatch.setattr("bts_jax.batch.PROGRAMS", Registry(1))
    bandits = [bj.Bernoulli(reward=[0.5] * arms, cost=[0.5] * arms) for arms in (2, 3)]
    first, _, again = (
        bj.simulate_batch(bj.Uniform(), bandit, 5, keys(3)) for bandit in (*bandits, bandits[0])
    )
    assert_same_bits(first, again)


@pytest.mark.parametrize(("gibibytes", "most"), [(1, 32), (6, 48), (24, 128)])
def test_programs_take_an_eighth_of_the_memory(gibibytes, most, monkeypatch):
    """16 MiB each: of 6 GiB, 768 MiB."""
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": gibibytes * 2**18}
    monkeypatch.setattr("os.sysconf", sizes.get)
    assert most_programs() == most


@pytest.mark.parametrize("max_rounds", [None, 7])
def test_checkpoints_are_put_in_order_alike_on_host_and_device(max_rounds):
    """`simulate_batch` orders them in NumPy, `simulate` in JAX. Invalid and infinite checkpoints
    are included.
    """
    random = np.random.default_rng(0)
    checkpoints = random.choice(np.float32([-1, 0, 0.5, 1, 2.25, 3, 1e10, np.inf, np.nan]), (40, 4))
    budget = random.choice(np.float32([1, 3, np.inf]), 40)
    limits = None if max_rounds is None else np.full((40, 1), max_rounds)
    record = rules.Run(
        budget=None,  # type: ignore
        reward=random.random((40, 4), np.float32),
        cost=random.random((40, 4), np.float32) * 4,
        rounds=random.integers(9, size=(40, 4)),
        pulls=random.integers(9, size=(40, 4, 3)),
        truncated=random.random((40, 4)) < 0.5,
    )

    @jax.jit
    @jax.vmap
    def of_one_run(budget, checkpoints, record):
        ends = arguments.ends_of(budget, checkpoints, max_rounds, False, jnp)
        return ends, arguments.finish(record, ends)

    ours = arguments.ends_of(budget, checkpoints, limits, False)
    runs = arguments.finish(record, ours, np)
    np.testing.assert_array_equal(runs.budget, checkpoints)
    theirs = of_one_run(budget, checkpoints, record)
    for a, b in zip(jax.tree.leaves((ours, runs)), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)
