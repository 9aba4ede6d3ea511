"""`sweep`: the numbers are those of `simulate`, for every way of computing them and after every
interruption.
"""

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import tqdm.std
import xarray as xr
from common import grid_file
from jaxlib.xla_client import make_cpu_client
from test_results import assert_same

import bts_jax as bj
from bts_jax import batch, progress
from bts_jax.batch import play
from bts_jax.cli import main
from bts_jax.sweeps import gridfile, playing, run, schedule
from bts_jax.sweeps.bar import progress_bar
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.opening import begin
from bts_jax.sweeps.playing import _run_keys
from bts_jax.sweeps.results import VARIABLES, Results

POLICIES = {"KUBE": bj.KUBE(scale=0.5), "ε-first": bj.EpsilonFirst(epsilon=0.3)}
BANDITS = {
    "a": bj.Bernoulli(reward=[0.3, 0.7, 0.5], cost=[0.4, 0.6, 0.3]),
    "two": bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5]),
    "b": bj.Bernoulli(reward=[0.1, 0.9, 0.4], cost=[0.2, 0.6, 0.9]),
}
BUDGETS, SEEDS = [3, 10.5, 20], 7


@pytest.fixture(scope="module")
def whole():
    return bj.sweep(POLICIES, BANDITS, BUDGETS, SEEDS, seed=4)


@pytest.mark.slow
def test_it_is_simulate_with_the_documented_keys(whole):
    @jax.vmap
    def kube(key):
        return bj.simulate(POLICIES["KUBE"], bandit, 20, key, checkpoints=BUDGETS)

    @partial(jax.vmap, in_axes=(None, 0))
    @partial(jax.vmap, in_axes=(0, None))
    def epsilon_first(budget, key):
        return bj.simulate(POLICIES["ε-first"], bandit, budget, key)

    for name in "ab":
        bandit = BANDITS[name]
        base = jax.random.fold_in(jax.random.key(4), zlib.crc32(name.encode()))
        keys = jax.vmap(lambda s, base=base: jax.random.fold_in(base, s))(np.arange(SEEDS))
        by_budget = jax.tree.map(
            lambda x: np.asarray(x)[:, :, 0], epsilon_first(np.float32(BUDGETS), keys)
        )
        for policy, played in {"KUBE": kube(keys), "ε-first": by_budget}.items():
            cell = whole.sel(policy=policy, bandit=name)
            assert (cell.pulls.transpose("seed", "budget", "arm").values == played.pulls).all()
            for variable, value in [
                (v, getattr(played, v)) for v in ("reward", "cost", "rounds", "truncated")
            ] + [
                ("regret", bj.regret(played, bandit)),
                ("pseudo_regret", bj.pseudo_regret(played, bandit)),
            ]:
                ours = cell[variable].transpose("seed", "budget").values
                assert ours.tobytes() == np.ascontiguousarray(value).tobytes(), (
                    policy,
                    name,
                    variable,
                )


@pytest.mark.slow
def test_bandits_have_coordinates_of_their_own(tmp_path):
    bandits = {name: BANDITS[name] for name in "ba"}
    coords = {"gap": [0.1, 0.2], "kind": ["easy", "hard"]}
    results = bj.sweep(["uniform"], bandits, [5], 2, out=tmp_path / "store", bandit_coords=coords)
    assert (
        results.gap.values.tolist() == [0.1, 0.2]
        and results.sel(bandit=results.kind == "hard").bandit.item() == "a"
    )
    assert bj.open_results(tmp_path / "store").identical(results)
    assert bj.sweep(**run.stored(tmp_path / "store"), out=tmp_path / "store").identical(results)
    for bad, message in (
        ({"gap": [1]}, "bandit_coords.*2 bandits"),
        ({"seed": [1, 2]}, "'seed'"),
        ({"a b": [1, 2]}, "'a b'"),
        ([1, 2], "no names"),
    ):
        with pytest.raises(ValueError, match=message):
            bj.sweep(["uniform"], bandits, [5], 2, bandit_coords=bad)


def test_a_bandit_with_fewer_arms_is_filled_up(whole):
    two = whole.sel(bandit="two")
    unpaid = two.rounds - two.pulls.sum("arm")  # the last pull, if it cost too much
    assert (
        not two.pulls.sel(arm=2).any()
        and unpaid.isin([0, 1]).all()
        and not two.regret.isnull().any()
    )


@pytest.mark.all_devices
@pytest.mark.slow
def test_devices_do_not_matter():
    one, several = (
        bj.sweep(["uniform"], {"two": BANDITS["two"]}, BUDGETS, SEEDS, devices=devices)
        for devices in (1, None)
    )
    assert_same(one.drop_attrs(), several.drop_attrs())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policies", "bandits", "how"),
    [
        (["ε-first"], ["a", "b"], {"chunk_size": 3}),
        (["KUBE"], ["two"], {"memory_bytes": 1}),
    ],
)
def test_chunks_and_memory_do_not_matter(policies, bandits, how, whole):
    chosen = {name: POLICIES[name] for name in policies}, {name: BANDITS[name] for name in bandits}
    part = bj.sweep(*chosen, BUDGETS, SEEDS, seed=4, **how)
    there = whole.sel(policy=policies, bandit=bandits, arm=part.arm)
    assert_same(part.drop_attrs(), there.drop_attrs())


@pytest.mark.slow
@pytest.mark.all_devices
def test_calls_side_by_side_in_one_program_do_not_matter(whole, monkeypatch, caplog):
    monkeypatch.setattr(schedule, "_small_call", lambda _: 2**13)
    sizes = []
    monkeypatch.setattr(
        playing, "play", lambda batches: sizes.append(len(batches)) or play(batches)
    )
    jax.config.update("jax_log_compiles", True)
    try:
        part = bj.sweep(POLICIES, {name: BANDITS[name] for name in "ab"}, BUDGETS, SEEDS, seed=4)
    finally:
        jax.config.update("jax_log_compiles", False)
    assert sizes == [2]  # both policies
    assert caplog.text.count("Finished XLA compilation of jit(play_shard)") == 1, (
        "what was compiled is what is played"
    )
    assert_same(part.drop_attrs(), whole.sel(bandit=["a", "b"]).drop_attrs())
    # A policy that requires the budget has more runs than another: here 3 against 1, on two
    # devices.
    part = bj.sweep(
        {name: POLICIES[name] for name in ("ε-first", "KUBE")},
        {"a": BANDITS["a"]},
        BUDGETS,
        1,
        seed=4,
    )
    assert_same(
        part.drop_attrs(),
        whole.sel(policy=["ε-first", "KUBE"], bandit=["a"], seed=[0]).drop_attrs(),
    )


def test_the_first_fusion_is_halved_if_others_follow(monkeypatch):
    monkeypatch.setattr(schedule, "_small_call", lambda _: 2**13)
    policies = {name: bj.POLICIES[name]() for name in ("kube", "pd-bwk", "uniform")}
    for families, sizes in ((3, [2, 1, 3, 3]), (2, [3, 3])):
        bandits = {
            f"{arms}": bj.Bernoulli([0.5] * arms, [0.5] * arms) for arms in range(2, 2 + families)
        }
        whole = Grid(policies, bandits, [5, 9], 10, 0)
        results = begin(whole.attributes(), 10, None)
        calls = schedule.calls(whole, results, results.missing, most=2**15)
        fusions = schedule.fuse(whole, results, calls, 2**15)
        assert [len(fused) for fused in fusions] == sizes
        assert sorted(
            chunk for fused in fusions for call in fused for chunk in call.chunks
        ) == sorted(results.missing)


@pytest.mark.slow
def test_what_else_is_in_the_grid_does_not_matter(whole, capsys):
    part = bj.sweep(
        {"mine": POLICIES["KUBE"]}, {name: BANDITS[name] for name in "ba"}, BUDGETS[1:], 5, seed=4
    )
    there = whole.sel(policy=["KUBE"], bandit=["b", "a"], budget=BUDGETS[1:], seed=range(5))
    for name in ("reward", "cost", "rounds", "regret", "pseudo_regret"):
        assert part[name].values.tobytes() == there[name].values.tobytes()
    assert capsys.readouterr().err == "", "no bar without a terminal"


@pytest.mark.slow
def test_programs_are_freed_after_their_last_use(whole, monkeypatch):
    """As on a GPU, if there are many programs."""
    kept, forgotten, forget = set(batch.PROGRAMS.kept), [], batch.forget
    monkeypatch.setattr(playing, "_frees", lambda devices, count: True)
    monkeypatch.setattr(
        batch, "forget", lambda batches: [forgotten.append(batches), forget(batches)]
    )
    again = bj.sweep({"KUBE": POLICIES["KUBE"]}, BANDITS, BUDGETS, 5, seed=4, chunk_size=3)
    assert (
        again.regret.values.tobytes()
        == whole.regret.sel(policy=["KUBE"], seed=range(5)).values.tobytes()
    )
    assert len(forgotten) == 2 and set(batch.PROGRAMS.kept) <= kept
    assert all(batch._key_of(batches)[0] not in batch.PROGRAMS.kept for batches in forgotten)


@pytest.fixture(scope="module")
def two_streams():
    """Two clients of JAX for the same CPU, as a GPU has them."""
    return [(jax.devices("cpu")[0],), (make_cpu_client().local_devices()[0],)]


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["nowhere", "playing", "compiling"])
def test_streams_do_not_matter(fails, two_streams, whole, monkeypatch):
    """If the second has too little memory, its programs are played in the first. The bandit's
    arrays belong to the first.
    """
    played, freed = [], []
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    def logged_play(batches):
        played.append(two_streams.index(batches[0].devices))
        if played[-1] == 1 and fails != "nowhere":
            raise full
        return play(batches)

    def lower(batches, _=None):
        second = batches[0].devices == two_streams[1]
        return (
            Mock(compile=Mock(side_effect=full))
            if second and fails == "compiling"
            else batch.lower(batches)
        )

    forget = batch.forget
    monkeypatch.setattr(
        batch,
        "forget",
        lambda batches: [freed.append(two_streams.index(batches[0].devices)), forget(batches)],
    )
    monkeypatch.setattr(playing, "streams", lambda devices, most: two_streams)
    monkeypatch.setattr(playing, "_frees", lambda devices, count: True)
    monkeypatch.setattr(playing, "play", logged_play)
    monkeypatch.setattr(playing, "lower", lower)
    monkeypatch.setattr(playing, "_PLACES", {})
    monkeypatch.setattr(playing, "nullcontext", threading.Lock)
    kept, names = set(batch.PROGRAMS.kept), ["ε-first", "KUBE"]
    bandit = jax.device_put(BANDITS["a"], two_streams[0][0])
    part = bj.sweep({name: POLICIES[name] for name in names}, {"a": bandit}, BUDGETS, SEEDS, seed=4)
    assert_same(part.drop_attrs(), whole.sel(policy=names, bandit=["a"]).drop_attrs())
    assert sorted(played) == ([0, 1] if fails == "nowhere" else [0, 0, 1])
    assert sorted(freed) == sorted(played) and set(batch.PROGRAMS.kept) <= kept


def test_other_errors_in_a_stream_are_raised(two_streams, monkeypatch):
    played = []

    def failing_play(batches):
        played.append(two_streams.index(batches[0].devices))
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")

    monkeypatch.setattr(playing, "streams", lambda devices, most: two_streams)
    monkeypatch.setattr(playing, "play", failing_play)
    monkeypatch.setattr(playing, "lower", lambda *_: Mock())
    monkeypatch.setattr(playing, "_PLACES", {})
    with pytest.raises(jax.errors.JaxRuntimeError, match="broken"):
        bj.sweep(POLICIES, {"a": BANDITS["a"]}, BUDGETS, 1, seed=4)
    assert len(played) == len(set(played)), "not played again"


def test_programs_stay_in_their_streams(two_streams, monkeypatch):
    """Others go to the stream with the least work. Nothing is asked of JAX if there is nothing to
    play.
    """
    asked = []
    monkeypatch.setattr(
        playing, "streams", lambda devices, most: asked.append(most) or two_streams[:most]
    )
    monkeypatch.setattr(playing, "_PLACES", {})

    def places(**loads):
        found = playing._stream_of_each(loads, two_streams[0])
        return [two_streams.index(found[program].devices) for program in loads]

    assert places() == [] and asked == []
    assert places(a=5.0, b=2.0, c=2.0, d=2.0) == [0, 1, 1, 1] and asked == [4]
    assert places(b=1.0, e=1.0, c=1.0) == [1, 0, 1]
    assert places(b=1.0) == [0], "there is one stream for one program"


def test_threads_that_wait_do_not_play_after_the_end(two_streams, monkeypatch):
    stream = playing._Stream(two_streams[0])
    monkeypatch.setattr(playing, "_batches", lambda *_: [])
    monkeypatch.setattr(playing, "play", lambda batches: "played")
    assert playing._play(stream, *[None] * 3) == ([], "played")
    playing._stop([stream])
    with pytest.raises(CancelledError):
        playing._play(stream, *[None] * 3)


def test_a_sweep_is_resumed(whole, tmp_path, monkeypatch):
    """Interrupted after each call to the device, one call after the other."""
    store, play, calls = tmp_path / "store", playing.play, []

    def once(batches):
        calls.append(batches)
        if len(calls) % 2 == 0:
            raise KeyboardInterrupt
        return play(batches)

    monkeypatch.setattr(playing, "play", once)
    monkeypatch.setattr(playing, "UNDER_WAY", 1)
    interruptions = 0
    while True:
        try:
            results = bj.sweep(POLICIES, BANDITS, BUDGETS, SEEDS, seed=4, out=store)
            break
        except KeyboardInterrupt:
            interruptions += 1
            part = bj.open_results(store)
            there = ~np.isnan(part.regret.values)
            assert there.any() and not there.all()
            assert (part.regret.values[there] == whole.regret.values[there]).all()
    assert interruptions == 3
    assert_same(results, whole)
    played = len(calls)
    assert_same(bj.sweep(POLICIES, BANDITS, BUDGETS, SEEDS, seed=4, out=store), whole)
    assert_same(bj.sweep(**run.stored(store), out=store), whole)
    assert len(calls) == played, "nothing is left to play"


@pytest.mark.slow
def test_policies_of_ones_own(tmp_path):
    @chex.dataclass(frozen=True)
    class Always:
        arm: float = 0.0

        def init(self, problem):
            return jnp.int32(self.arm)

        def __call__(self, state, key):
            return state, state

        def update(self, state, arm, reward, cost, key):
            return state

    policies, bandits = (
        {"first": Always(arm=0.0), "second": Always(arm=1.0)},
        {"two": BANDITS["two"]},
    )
    results = bj.sweep(policies, bandits, [5, 6], 3, out=tmp_path / "store")
    assert (
        not results.pulls.sel(policy="first", arm=1).any()
        and not results.pulls.sel(policy="second", arm=0).any()
    )
    assert_same(bj.open_results(tmp_path / "store"), results)
    with pytest.raises(ValueError, match=r"policies\['first'\] is a Always, which is not built in"):
        run.stored(tmp_path / "store")
    named = r"policies\['third'\] on bandits\['two'\] produced invalid runs \(NaN\) for 3 seeds: the policy chose"  # noqa: E501
    with pytest.warns(RuntimeWarning, match=named):
        results = bj.sweep(
            {"second": Always(arm=1.0), "third": Always(arm=2.0)}, bandits, [5, 6], 3
        )
    assert (
        np.isnan(results.pseudo_regret).all(("bandit", "budget", "seed")) == [False, True]
    ).all()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"policies": {}}, "policies is empty"),
        ({"policies": ["bts", "bts"]}, "policies has 'bts' twice"),
        ({"policies": ["thomson"]}, "policies has 'thomson'"),
        ({"policies": bj.BTS()}, "policies = BTS"),
        ({"policies": {"BTS": bj.BTS}}, "policies.'BTS'.*is a class"),
        ({"policies": {"": bj.BTS()}}, "the name ''"),
        (
            {"policies": {"scales": bj.KUBE(scale=[1.0, 2.0])}},
            "policies.'scales'.*scale of shape.*its own name.*dict.*table",
        ),
        (
            {
                "bandits": {
                    "many": bj.Bernoulli(reward=np.full((3, 2), 0.5), cost=np.full((3, 2), 0.5))
                }
            },
            "bandits.'many'.*cost of shape .3, 2.*a batch of bandits.*its own name",
        ),
        ({"bandits": {}}, "bandits is empty"),
        ({"bandits": ["bernoulli"]}, "bandits = .'bernoulli'. has no names"),
        ({"bandits": {"a": bj.BTS()}}, "bandits.'a'.: bandit = BTS"),
        ({"budgets": []}, "budgets = .. is not a list"),
        ({"budgets": 5}, "budgets = 5 is not a list"),
        ({"budgets": [10, 5]}, "budgets has 10 before 5"),
        ({"budgets": [5, 5]}, "budgets has 5 before 5"),
        ({"budgets": [0, 5]}, r"budgets\[0\] = 0"),
        ({"budgets": [5, float("nan")]}, r"budgets\[1\] = nan"),
        ({"budgets": ["much"]}, "budgets = .'much'."),
        ({"budgets": ["5"]}, "budgets = .'5'. is not a number"),
        ({"budgets": [True]}, "budgets = .True. are not numbers"),
        ({"num_seeds": 0}, "num_seeds = 0"),
        ({"num_seeds": 2.5}, "num_seeds = 2.5"),
        ({"seed": "x"}, "seed = 'x'"),
        ({"relative_to_min_cost": "min"}, "relative_to_min_cost = 'min'"),
        (
            {
                "relative_to_min_cost": True,
                "bandits": {"a": bj.Bernoulli(reward=[0.5, 0.5], cost=[0.5, 0.0])},
            },
            "'a'. has an arm that costs",
        ),
        ({"chunk_size": 0}, "chunk_size = 0"),
        ({"memory_bytes": -1}, "memory_bytes = -1"),
        ({"devices": 0}, "devices = 0, and there "),
        ({"devices": 99}, "devices = 99, and there .*BTS_JAX_CPU_DEVICES"),
        ({"devices": []}, r"devices = \[\] is neither"),
        ({"devices": "cpu"}, "devices = 'cpu' is neither"),
        ({"devices": ["cpu:0"]}, r"devices\[0\] = 'cpu:0' is not a device"),
        ({"devices": [jax.devices()[0]] * 2}, r"devices\[1\] = .* or it is given twice"),
        ({"shard": (0, 8)}, r"shard = \(0, 8\) is not a shard"),
        ({"shard": (9, 8)}, r"shard = \(9, 8\) is not a shard"),
        ({"shard": 3}, "shard = 3 is not a shard"),
        ({"shard": (1.0, 2)}, r"shard = \(1.0, 2\) is not a shard"),
        ({"shard": (1, 2), "out": None}, r"shard = \(1, 2\) has no folder to save in"),
    ],
)
def test_bad_grids_are_refused_by_name_before_anything_is_played(
    changes, named, tmp_path, monkeypatch
):
    monkeypatch.setattr(playing, "play", lambda *_, **__: pytest.fail("played"))
    arguments = {
        "policies": POLICIES,
        "bandits": BANDITS,
        "budgets": BUDGETS,
        "num_seeds": SEEDS,
        "out": tmp_path / "store",
    }
    with pytest.raises(ValueError, match=named):
        bj.sweep(**{**arguments, **changes})
    assert not list(tmp_path.iterdir())


def test_a_program_is_compiled_once_per_class_family_and_number_of_arms(monkeypatch):
    bandits = {
        f"{arms}-{i}": bj.Bernoulli([0.5] * arms, [0.5] * arms) for arms in (2, 3) for i in range(3)
    }
    whole = Grid({"x": bj.KUBE(scale=1.0), "y": bj.KUBE(scale=2.0)}, bandits, [5], 10, 0)
    results = begin(whole.attributes(), 4, None)
    calls = schedule.calls(whole, results, results.missing, most=8)
    assert len({call.program for call in calls}) == 2 and {call.size for call in calls} == {2}
    assert sorted(chunk for call in calls for chunk in call.chunks) == results.missing


# Batches with several kinds of bandits.

FAMILIES = {
    "trials": BANDITS["a"],
    "points": bj.Multinomial(
        reward_probs=[[0.2, 0.8], [0.5, 0.5], [0.7, 0.3]],
        cost_probs=[[0.6, 0.4], [0.3, 0.7], [1, 0]],
    ),
    "draws": bj.Beta(
        reward_alpha=[0.3, 2, 5],
        reward_beta=[0.5, 3, 2.5],
        cost_alpha=[0.2, 1, 3],
        cost_beta=[0.4, 2, 1],
    ),
    "pairs": bj.Correlated(
        reward=[0.3, 0.7, 0.5], cost=[0.4, 0.6, 0.3], correlation=[0.6, -0.5, 0.2]
    ),
}


def calls_of(policies, bandits, budget, missing=lambda chunk: True):
    grid = Grid(policies, bandits, [budget], 30, 0)
    results = begin(grid.attributes(), 30, None)
    todo = list(filter(missing, results.missing))
    calls = schedule.calls(grid, results, todo, most=1000)
    assert sorted(chunk for call in calls for chunk in call.chunks) == todo
    return calls


def test_each_kind_of_bandit_has_a_batch():
    calls = calls_of(["uniform"], FAMILIES, 20)
    assert sorted([chunk.bandit for chunk in call.chunks] for call in calls) == [[0], [1], [2], [3]]


# Groups of bandits.


@chex.dataclass(frozen=True)
class Told(bj.Uniform):
    """Requires the budget, by which it shifts a uniform arm. It is compiled faster than ε-first."""

    requires: ClassVar[tuple[str, ...]] = ("budget",)

    def init(self, problem):
        return bj.Uniform().init(problem), problem.budget

    def __call__(self, state, key):
        (arms,), budget = state
        return (bj.Uniform()(state[0], key)[0] + budget.astype(jnp.int32)) % len(arms), state


MANY = {  # blocks of 4 and 6; ten arms, because NumPy adds eight or more numbers in another order
    f"{arms}-{i}": bj.Bernoulli(*np.random.default_rng(i).uniform(0.1, 1, (2, arms)))
    for arms, count in ((3, 4), (10, 6))
    for i in range(count)
}
ANY = {"any": bj.Uniform()}
MANY_GRID = {
    "policies": {**ANY, "told": Told()},
    "bandits": MANY,
    "budgets": [3, 10.5],
    "num_seeds": 2,
    "seed": 4,
}


@pytest.fixture
def few(monkeypatch):
    """Groups in a grid of ten bandits, which usually has none."""
    monkeypatch.setattr(schedule, "FEWEST_GROUPS", 1)


@pytest.fixture(scope="module")
def ungrouped():
    return bj.sweep(**MANY_GRID)


def group_of(bandits, seeds, **options):
    plan = Grid(["uniform"], bandits, [5], seeds, 0)
    usual, _ = schedule.sizes(plan, options.get("memory_bytes"), 1)
    return schedule.group_size(plan, options.get("chunk_size", seeds), usual)


@pytest.mark.slow
def test_how_many_bandits_a_group_has(monkeypatch):
    @chex.dataclass(frozen=True)
    class Own:
        reward_mean: chex.Array
        cost_mean: chex.Array

        def pull(self, key, arm):
            return self.reward_mean[arm], self.cost_mean[arm]

    same = lambda count, arms=2: {
        f"{arms}-{i}": bj.Bernoulli([0.5] * arms, [0.5] * arms) for i in range(count)
    }
    many = same(320)
    assert group_of(same(10), 1) == 1, "a small grid has as many chunks as ever"
    assert group_of(many, 1) == 20, "16 groups"
    monkeypatch.setattr(schedule, "FEWEST_GROUPS", 1)
    assert group_of(many, 1) == 80, "a divisor, with at most 100 runs"
    assert group_of(many, 25) == 4 and group_of(many, 51) == 1, "seeds that fill a chunk"
    assert group_of(many, 4, chunk_size=2) == 1, "seeds in several ranges"
    assert group_of(many, 1, memory_bytes=1) == 1
    assert group_of(MANY, 2) == 2, "stretches of 4 and 6"
    assert group_of({**same(4), **same(6, 3), **same(1, 4)}, 1) == 1
    mine = {f"{i}": Own(reward_mean=np.full(2, 0.5), cost_mean=np.full(2, 0.5)) for i in range(4)}
    assert group_of(mine, 1) == 1, "bandits of one's own are alone"
    monkeypatch.setattr(schedule, "usual_runs", lambda _: 2**15)
    monkeypatch.setattr(schedule, "_grouped_runs", lambda _: 2**10)
    assert group_of(same(600), 1) == 200, "at most 256 bandits"


@pytest.mark.slow
def test_groups_do_not_matter_and_units_are_mended(few, ungrouped, tmp_path):
    """The bits are those without groups: in memory, on disk, after chunks are lost or damaged, and
    in shards.
    """
    store = tmp_path / "store"
    results = bj.sweep(**MANY_GRID, out=store)
    assert json.loads((store / "zarr.json").read_text())["attributes"]["group"] == 2
    assert (
        len(list((store / "regret").glob("c.*")))
        == len(list((store / "checksum").glob("c.*")))
        == 2 * 5
    )
    assert_same(results, ungrouped)
    assert_same(bj.sweep(**MANY_GRID), ungrouped)
    assert_same(bj.open_results(store), ungrouped)
    read = xr.open_zarr(store, chunks=None, consolidated=False)
    for name in VARIABLES:
        np.testing.assert_array_equal(read[name].values, ungrouped[name].values)
    (store / "checksum" / "c.0.1.0").unlink()
    damaged = store / "pulls" / "c.1.4.0.0.0"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    part = bj.open_results(store)
    assert part.state == "incomplete: 2 of 10 chunks are missing (regret NaN)"
    lost = np.isnan(part.regret.values).all((2, 3))
    assert (
        np.argwhere(lost).tolist() == [[0, 2], [0, 3], [1, 8], [1, 9]]
        and np.isnan(part.regret.values).sum() == 4 * 2 * 2
    )
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "FEWEST_GROUPS", 16)  # a store has its own number
        patch.setattr(
            playing, "play", lambda batches: calls.append(len(batches[0].back)) or play(batches)
        )
        assert_same(bj.sweep(**MANY_GRID, out=store), ungrouped)
    assert sorted(calls) == [2 * 2, 2 * 2 * 2], (
        "two bandits with two seeds, once for each budget if that is told"
    )
    shared = lambda share: bj.sweep(
        **{**MANY_GRID, "policies": ANY}, out=tmp_path / "shared", shard=share
    )
    assert re.fullmatch("incomplete: [23] of 5 chunks .*", shared((2, 2)).state)
    assert_same(shared((1, 2)).drop_attrs(), ungrouped.sel(policy=["any"]).drop_attrs())


@pytest.mark.slow
def test_a_store_from_before_groups_is_gone_on_with(few, ungrouped, tmp_path, monkeypatch):
    store = tmp_path / "store"
    with monkeypatch.context() as patch:
        patch.setattr(schedule, "FEWEST_GROUPS", 16)
        bj.sweep(**MANY_GRID, out=store)
    root = json.loads((store / "zarr.json").read_text())
    assert "group" not in root["attributes"]
    assert json.loads((store / "checksum" / "zarr.json").read_text())["dimension_names"] == [
        "policy",
        "bandit",
        "range",
    ]
    assert_same(bj.open_results(store), ungrouped)
    (store / "checksum" / "c.0.7.0").unlink()
    results = run.fill(**MANY_GRID, out=store)
    assert results.group == 1 and results.done.shape == (2, 10, 1)
    assert_same(results.dataset(), ungrouped)


def test_groups_of_bandits_that_cannot_be_played_together_are_refused(few, tmp_path):
    store = tmp_path / "store"
    begin(Grid(**MANY_GRID).attributes(), 2, store, group=5)
    with pytest.raises(
        ValueError,
        match="groups of 5 bandits, and bandits of different kinds in one, from '3-0' on",
    ):
        bj.sweep(**MANY_GRID, out=store)


@pytest.mark.slow
def test_bars_and_warnings_name_bandits_in_groups(few, monkeypatch):
    """One run is made invalid."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "120")

    def broken(batches):
        played = play(batches)
        (batch,), ((runs, *rest),) = batches, played
        # Runs are in the order of their expected length: this one is found by its key.
        base = jax.random.fold_in(jax.random.key(4), zlib.crc32(b"10-3"))
        key = jax.random.key_data(jax.random.fold_in(base, 1))
        mine = (np.stack(batch.own[2], -1)[batch.back] == np.asarray(key)).all(1)
        reward = np.where(mine[:, None], np.float32(np.nan), runs.reward)
        return [(dataclasses.replace(runs, reward=reward), *rest)]

    monkeypatch.setattr(playing, "play", broken)
    with pytest.warns(RuntimeWarning) as caught:
        results = bj.sweep(**{**MANY_GRID, "policies": ANY})
    assert [re.match(r".* for 1 seed", str(one.message)).group() for one in caught] == [
        "policies['any'] on bandits['10-3'] produced invalid runs (NaN) for 1 seed"
    ]
    assert np.argwhere(np.isnan(results.regret.values).all(2)).tolist() == [[0, 7, 1]]
    assert re.search(r"any on 10-\d and 5 more", sys.stderr.drawn), sys.stderr.drawn
    total = tqdm.std.tqdm.format_sizeof(int(results.rounds.isel(budget=-1).sum()))
    assert re.search(rf"100%[^\r]* {total}/{total} ", sys.stderr.drawn), (total, sys.stderr.drawn)


# Progress.


class Terminal:
    """Where a bar may be drawn, and what was drawn there."""

    encoding = "utf-8"

    def __init__(self):
        self.drawn = ""

    def write(self, text):
        self.drawn += text

    def flush(self): ...

    def isatty(self):
        return True


def test_the_bar_counts_pulls(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    run = lambda **options: bj.sweep(
        {"any": bj.Uniform()},
        {"two": BANDITS["two"]},
        [5, 200],
        5,
        chunk_size=2,
        out=tmp_path / "store",
        **options,
    )
    results = run()
    drawn = [line for line in re.split(r"[\r\n]", sys.stderr.drawn) if line.strip()]
    assert drawn[0].startswith("starting:   0%") and any(
        "any on two" in line and "pull/s" in line for line in drawn
    )
    assert any("compiling any on two" in line for line in drawn)
    total = int(results.rounds.sel(budget=200).sum())
    assert any(
        line.split(":", 1)[1].strip().startswith("100%")
        and f"{total / 1000:.2f}k/{total / 1000:.2f}k" in line
        for line in drawn
    ), (total, drawn)
    sys.stderr.drawn = ""  # type: ignore
    run(quiet=True)
    assert sys.stderr.drawn == ""


class NotebookBar(tqdm.std.tqdm):
    """What tqdm's bars in a notebook are made of, without widgets."""

    __module__ = "tqdm.notebook"

    def __init__(self, display, **options):
        assert display is False  # it is displayed with an id, by which it can be removed
        self.container = Mock(children=(Mock(), Mock(max=options["total"]), Mock()))
        super().__init__(**options)


def test_a_notebook_has_a_bar_too_and_nothing_is_left_of_it(monkeypatch, capsys):
    import IPython.display
    import tqdm.auto

    shown = Mock()
    monkeypatch.setattr(IPython.display, "display", lambda widget, display_id: shown)
    two = Grid(["uniform"], {"two": BANDITS["two"]}, [5], 1, 0)
    monkeypatch.setattr(tqdm.auto, "tqdm", tqdm.std.tqdm)
    with progress_bar(two, quiet=False) as bar:
        assert type(bar.bar).__name__ == "Lines"  # neither a terminal nor a notebook
    monkeypatch.setattr(tqdm.auto, "tqdm", NotebookBar)
    with progress_bar(two, quiet=False) as bar:
        assert not bar.bar.disable
    bar = progress.bar(quiet=False, total=10)
    bar.total = 4  # sweep estimates the length of runs
    bar.refresh()
    assert bar.container.children[1].max == 4
    shown.update.reset_mock()
    bar.close()
    bar.close()
    shown.update.assert_called_once_with({}, raw=True)
    bar.container.close.assert_called_once_with()


@pytest.mark.slow
def test_relative_budgets_are_multiples_of_the_smallest_cost(tmp_path):
    """The runs equal those with these budgets, bit for bit.

    This holds with and without the budget as side information, for several instances in one call,
    and in a resumed store.
    """
    bandits = {
        name: bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, cost])
        for name, cost in (("two", 0.25), ("cheap", 0.05))
    }
    names = ["uniform", "epsilon-first"]
    results = bj.sweep(
        names, bandits, [20, 40], 2, relative_to_min_cost=True, out=tmp_path / "store"
    )
    assert results.budget.values.tolist() == [20, 40]
    for name, cost in (("two", 0.25), ("cheap", float(np.float32(0.05)))):
        given = bj.sweep(names, bandits, [20 * cost, 40 * cost], 2)
        for variable in ("reward", "cost", "rounds", "regret"):
            np.testing.assert_array_equal(
                results.sel(bandit=name)[variable], given.sel(bandit=name)[variable]
            )
    (tmp_path / "store" / "checksum" / "c.0.1.0").unlink()
    assert (
        bj.sweep(**run.stored(tmp_path / "store"), out=tmp_path / "store")
        .drop_attrs()
        .identical(results.drop_attrs())
    )
    with pytest.raises(ValueError, match="another grid"):
        bj.sweep(names, bandits, [20, 40], 2, out=tmp_path / "store")
    # Not checked by its class.
    unknown = jax.tree.map(lambda x: x * np.float32(np.nan), bandits["two"])
    with pytest.raises(ValueError, match=r"bandits\['unknown'\]: budget = nan"):
        bj.sweep(
            ["uniform"], {**bandits, "unknown": unknown}, [20, 40], 2, relative_to_min_cost=True
        )


# The command line.


SMALL = grid_file(5, [5, 10])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def test_the_example_describes_a_sweep(capsys, tmp_path):
    main(["sweep", "--example"])
    (tmp_path / "example.toml").write_text(capsys.readouterr().out, encoding="utf-8")
    arguments = gridfile.read_toml(tmp_path / "example.toml")
    assert list(arguments["policies"]) == [
        "BTS",
        "KUBE",
        "KUBE, less curious",
        "ε-first",
        "BTS, Gamma",
    ]
    assert list(arguments["bandits"]) == ["three", "ten-0", "ten-1", "ten-2", "outcomes"]
    assert arguments["policies"]["KUBE, less curious"].scale == 0.5
    assert arguments["policies"]["BTS, Gamma"] == bj.BTS(cost=bj.posteriors.Gamma())
    expected = bj.Bernoulli.random(
        jax.random.fold_in(jax.random.key(1), 2), 10, cost_range=(0.1, 1.0)
    )
    assert (arguments["bandits"]["ten-2"].cost == expected.cost).all()
    Grid(
        **{
            name: arguments[name]
            for name in ("policies", "bandits", "budgets", "num_seeds", "seed")
        }
    )


@pytest.mark.slow
def test_sweep_table_and_plot(folder, capsys):
    """The example, reduced: fewer seeds, budgets, policies and bandits."""
    example = gridfile.EXAMPLE.read_text(encoding="utf-8")
    example = re.sub(
        r"(?m)^num_seeds = \d+",
        "num_seeds = 4",
        re.sub(r"(?m)^budgets = .*", "budgets = [5, 10]", example),
    )
    parts = re.split(r"(?m)^(?=\[)", example)
    gone = ("[policies.BTS", '[policies."BTS', '[policies."ε', "[bandits.th", "[bandits.out")
    parts = [part for part in parts if not part.startswith(gone)]
    (folder / "grid.toml").write_text("".join(parts), encoding="utf-8")
    main(["sweep", "grid.toml"])
    out, err = capsys.readouterr()
    assert (
        out
        == "grid.zarr: 2 × 3 × 2 × 4 (policies × bandits × budgets × seeds); see bts-jax table "
        "grid.zarr\n"
        and err == ""
    )
    results = bj.open_results("grid.zarr")
    assert_same(results, bj.sweep(**gridfile.read_toml("grid.toml")))
    main(["sweep", "--resume", "grid.zarr", "--quiet"])
    main(["sweep", "grid.toml", "--out", "grid.zarr"])
    assert capsys.readouterr().out.count("grid.zarr: 2 × 3") == 2

    main(["table", "grid.zarr"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mean regret, average over 3 bandits (Bernoulli, 10 arms), 4 runs each"
    assert lines[1].split()[:2] == ["budget", "KUBE"] and lines[-1].startswith(
        "95% intervals over the 3 bandits"
    )
    values = results.regret.sel(policy="KUBE", budget=10)
    low = scipy.stats.t.interval(0.95, 2, values.mean(), scipy.stats.sem(values.mean("seed")))[0]
    assert lines[3].split()[:4] == ["10", f"{float(values.mean()):,.1f}", f"({low:,.1f}", "…"]
    main(["table", "grid.zarr", "--latex", "--by-bandit"])
    out = capsys.readouterr().out
    assert (
        out.count(r"\begin{tabular}{rrr}") == 3
        and r"\caption{Mean regret, bandit ten-1, 4 runs each" in out
    )

    main(["plot", "grid.zarr"])
    main(["plot", "grid.zarr", "--out", "mine.pdf", "--theory", "slope"])
    assert capsys.readouterr().out.split() == ["grid.png", "mine.pdf"]
    assert (folder / "grid.png").read_bytes().startswith(b"\x89PNG") and (
        folder / "mine.pdf"
    ).read_bytes().startswith(b"%PDF")


ARMS = "reward = [0.9, 0.2]\ncost = [0.5, 0.5]"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (
            "num_seeds = 5",
            "num_seeds = 5\nnum_sedes = 6",
            "unknown key 'num_sedes': there are seed, num_seeds, budgets",
        ),
        ("num_seeds = 5", "", "the key 'num_seeds' is missing"),
        ("num_seeds = 5", "num_seeds = 0", "num_seeds = 0"),
        ("num_seeds = 5", "num_seeds = ", "is not TOML"),
        ("[5, 10]", "[10, 5]", "budgets has 10 before 5"),
        ("[5, 10]", "[]", "budgets = [] is not a list"),
        ('kind = "uniform"', "", "the key 'kind' is missing in policies.any"),
        (
            'kind = "uniform"',
            'kind = "thomson"',
            "policies.any.kind = 'thomson' is unknown: there are bts",
        ),
        (
            'kind = "uniform"',
            'kind = "kube"\nscales = 3',
            "unknown key 'scales' in policies.any: there are scale",
        ),
        ('kind = "uniform"', 'kind = "kube"\nscale = -1', "policies.any: scale = -1"),
        (
            'kind = "uniform"',
            'kind = "kube"\nscale = [0.5, 1]',
            "in a grid file, as one table [policies.NAME]",
        ),
        ('kind = "uniform"', 'kind = "uniform"\n[policies.any]\nkind = "bts"', "is not TOML"),
        ('[policies.any]\nkind = "uniform"', "[policies]", "policies is empty"),
        ('[policies.any]\nkind = "uniform"', "policies = 3", "policies = 3 is not a table"),
        ("reward = [0.9, 0.2]", "", "the key 'reward' is missing in bandits.two"),
        ("reward = [0.9, 0.2]", "reward = [0.9, 1.2]", "bandits.two: reward[1] = 1.2"),
        (
            "reward = [0.9, 0.2]",
            "reward = [0.9, 0.2, 0.3]",
            "bandits.two: the arrays of one bandit differ",
        ),
        (
            "reward = [0.9, 0.2]",
            "random = { num_arms = 3 }",
            "unknown key 'cost' in bandits.two: there are random",
        ),
        (ARMS, "random = { arms = 3 }", "the key 'num_arms' is missing in bandits.two.random"),
        (ARMS, "random = { num_arms = 3, arms = 3 }", "unknown key 'arms' in bandits.two.random"),
        (ARMS, "random = { num_arms = 1 }", "bandits.two.random: num_arms = 1"),
        (ARMS, "random = { num_arms = 2, instances = 0 }", "bandits.two.random.instances = 0"),
        (
            ARMS,
            "random = { num_arms = 2, instances = 2 }\n[bandits.two-1]\nkind = 'bernoulli'\n"
            + ARMS,
            "two bandits 'two-1'",
        ),
    ],
)
def test_a_bad_file_is_refused_by_name_before_anything_is_played(old, new, named, folder, capsys):
    assert old in SMALL
    (folder / "bad.toml").write_text(SMALL.replace(old, new))
    refused(["sweep", "bad.toml"], named, capsys)
    assert not (folder / "bad.zarr").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["sweep"], "--example prints an example file"),
        (["sweep", "small.toml", "--resume", "store"], "give a TOML file, or --resume STORE"),
        (
            ["sweep", "--resume", "store", "--out", "other"],
            "--out = 'other' does not go with --resume",
        ),
        (["sweep", "none.toml"], "cannot read 'none.toml' (No such file or directory)"),
        (["sweep", "."], "cannot read '.' (Is a directory)"),
        (["sweep", "small.toml", "--out", "small.toml"], "out = 'small.toml' is a file"),
        (["sweep", "small.toml", "--out", "."], "'.' is not a store"),
        (["sweep", "--resume", "store"], "there is no store at 'store'"),
        (["sweep", "small.toml", "--shard", "3"], "--shard = '3' is not a shard"),
        (["sweep", "small.toml", "--shard", "1/x"], "--shard = '1/x' is not a shard"),
        (
            ["sweep", "small.toml", "--shard", "9/8"],
            "--shard = '9/8' is shard 9 of 8: give a number from 1 to 8",
        ),
        (["sweep", "small.toml", "--shard", "auto/x"], "--shard = 'auto/x' is not a shard"),
        (["sweep", "small.toml", "--devices", "99"], "devices = 99, and there "),
        (["table", "store"], "there is no store at 'store'"),
        (["table", "small.toml"], "'small.toml' is not a store"),
    ],
)
def test_bad_commands_end_with_a_message_and_exit_code_2(arguments, named, folder, capsys):
    refused(arguments, named, capsys)


def refused(arguments, named, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    err = capsys.readouterr().err
    assert ended.value.code == 2 and named in err and err.count("\n") == 1, err


# Interruptions.


LONG = SMALL.replace("num_seeds = 5", "num_seeds = 12000")  # one hundred and twenty chunks


# In a background process of a shell, Ctrl-C is ignored unless it is enabled.
START = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("bts_jax", run_name="__main__")
"""


@pytest.fixture
def command(folder):
    """Starts the sweep in long.toml, as a user would."""
    (folder / "long.toml").write_text(LONG)
    path = os.pathsep.join([str(Path(bj.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return lambda: subprocess.Popen(
        [sys.executable, "-c", START, "sweep", "long.toml"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(store, chunks):
    while len(list(store.glob("checksum/c*"))) < chunks:
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_interrupted_and_doubled_it_ends_with_the_same_bits(command, folder):
    """SIGKILL, Ctrl-C, and at last two processes at once. `test_processes` kills at more
    moments.
    """
    store = folder / "long.zarr"
    process = command()
    wait_for(store, random.Random(0).randrange(1, 6))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert bj.open_results(store).state.startswith("incomplete")
    process = command()
    wait_for(store, 20)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (
        process.returncode == 130
        and err == "bts-jax: interrupted; to continue: bts-jax sweep --resume long.zarr\n"
    )
    both = [command(), command()]
    for process in both:
        out, err = process.communicate()
        assert process.returncode == 0 and out.startswith("long.zarr: 1 × 1") and err == "", err
    assert_same(
        bj.open_results(store), bj.sweep(**gridfile.read_toml(folder / "long.toml"), chunk_size=500)
    )


@pytest.mark.slow
def test_the_line_of_an_interruption_names_the_store_if_there_is_one(folder, capfd, monkeypatch):
    ended = threading.Event()

    def exit_(code):
        ended.code = code
        ended.set()

    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)
        assert ended.wait(60)
        raise ValueError("as if the process had ended")

    monkeypatch.setattr(gridfile, "read_toml", interrupted)
    monkeypatch.setattr(os, "_exit", exit_)
    # A background process of a shell ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for there in (False, True):
            ended.clear()
            with pytest.raises(SystemExit):
                main(["sweep", "small.toml"])
            hint = "; to continue: bts-jax sweep --resume small.zarr" if there else ""
            assert ended.code == 130 and capfd.readouterr().err.startswith(
                f"bts-jax: interrupted{hint}\n"
            )
            (folder / "small.zarr").mkdir(exist_ok=True)
            (folder / "small.zarr" / "zarr.json").touch()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_full_disk_ends_with_one_line(folder, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Results, "_write", full)
        with pytest.raises(SystemExit) as ended:
            main(["sweep", "small.toml"])
    err = capsys.readouterr().err
    assert (
        ended.value.code == 1
        and err.count("\n") == 1
        and "cannot write to 'small.zarr' (No space left on device)" in err
    )
    main(["sweep", "--resume", "small.zarr"])
    assert bj.open_results("small.zarr").state == "complete"


@chex.dataclass(frozen=True)
class Fixed:
    """Always pulls the first arm of its list."""

    order: np.ndarray

    def init(self, problem):
        return jnp.int32(0)

    def __call__(self, state, key):
        return self.order[0], state

    def update(self, state, arm, reward, cost, key):
        return state


@pytest.mark.slow
def test_an_array_among_the_hyperparameters_is_no_batch():
    order = np.array([1, 0, 0], np.int32)
    bandit = bj.Bernoulli(reward=[0.5, 0.5], cost=[0.5, 0.5])
    results = bj.sweep({"fixed": Fixed(order=order)}, {"two": bandit}, [5], len(order))
    assert (results.pulls.sel(arm=0) == 0).all() and (results.pulls.sel(arm=1) >= 5).all()


def test_keys_of_runs_are_those_of_fold_in():
    """NumPy computes them."""
    key, words = jax.random.key(7), np.array([5, 2**31 + 3], np.uint32)
    seeds = np.arange(6, dtype=np.int32).reshape(2, 3)
    ours = jax.random.key_data(_run_keys(key, words, seeds, 2))
    fold = jax.random.fold_in
    theirs = [
        fold(fold(key, word), seed) for word, row in zip(words, seeds, strict=True) for seed in row
    ]
    assert (np.asarray(ours) == np.repeat([jax.random.key_data(one) for one in theirs], 2, 0)).all()
