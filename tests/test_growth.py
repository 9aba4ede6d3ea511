"""Stores that grow, and stores that are merged: nothing is computed twice, and the numbers are
those of one sweep.
"""

import os
import shutil
import warnings
import zlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bts_jax as bj
from bts_jax import files
from bts_jax.rules import Run
from bts_jax.sweeps import growth, playing, schedule
from bts_jax.sweeps.results import VARIABLES, Results

TWO = {
    "a": bj.Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.6]),
    "b": bj.Bernoulli(reward=[0.2, 0.8], cost=[0.4, 0.7]),
}
THREE = {"c": bj.Bernoulli(reward=[0.9, 0.5, 0.1], cost=[0.5, 0.6, 0.3])}


@pytest.fixture
def played(monkeypatch):
    """The number of played runs with a budget, for each call."""
    runs = []
    values = playing._values

    def counted(one, *rest):
        runs.append(one.rounds.size)
        return values(one, *rest)

    monkeypatch.setattr(playing, "_values", counted)
    return runs


@pytest.fixture
def made_up(monkeypatch):
    """Replaces played runs by made-up numbers that depend only on policy, bandit, budget and
    seed.
    """

    def of_a_call(grid, results, call):
        chunks = [*call.chunks, *[call.chunks[-1]] * (call.size - len(call.chunks))]
        arms = max(len(grid.means[place].cost_mean) for place in results.bandits(chunks[0]))
        gaps = [results.gap(chunk) for chunk in chunks]
        numbers = np.array(
            [
                [
                    [
                        [
                            zlib.crc32(
                                f"{list(grid.policies)[chunk.policy]} {list(grid.bandits)[place]} "
                                f"{grid.amounts[place, budget]:g} {seed}".encode()
                            )
                            % 997
                            for budget in gap.budgets
                        ]
                        for seed in np.resize(gap.seeds, results.chunk_size)
                    ]
                    for place in results.bandits(chunk)
                ]
                for chunk, gap in zip(chunks, gaps, strict=True)
            ]
        )
        numbers = numbers.reshape(-1, len(gaps[0].budgets)).astype(np.int32)  # [runs, budgets]
        pulls = np.stack([numbers] + [0 * numbers] * (arms - 1), -1)
        return (
            Run(
                budget=numbers,
                reward=np.float32(numbers / 8),
                cost=np.float32(numbers / 16),
                rounds=numbers,
                pulls=pulls,
                truncated=numbers < 0,
            ),
            None,
            None,
        )

    class Lowered:
        def compile(self):
            return self

    monkeypatch.setattr(
        playing,
        "_batches",
        lambda grid, results, fused, _: [of_a_call(grid, results, call) for call in fused],
    )
    monkeypatch.setattr(playing, "lower", lambda *_: Lowered())
    monkeypatch.setattr(playing, "play", lambda batches: batches)


def same(one, other):
    assert list(one.coords) == list(other.coords)
    for name in (*VARIABLES, *one.coords):
        assert one[name].dtype == other[name].dtype and one[name].dims == other[name].dims, name
        np.testing.assert_array_equal(one[name].values, other[name].values, name)


WHOLE = {
    "policies": ["uniform", "epsilon-first", "kube"],
    "bandits": {**TWO, **THREE},
    "budgets": [5, 10, 20],
    "num_seeds": 14,
}
PART = {
    "policies": ["uniform", "epsilon-first"],
    "bandits": TWO,
    "budgets": [5, 20],
    "num_seeds": 9,
}


@pytest.mark.parametrize("axis", ["policies", "bandits", "budgets", "num_seeds", "all"])
@pytest.mark.parametrize("chunk", [3, 4, 9])
def test_a_store_grows_and_computes_what_is_missing(axis, chunk, tmp_path, played, made_up):
    grows(axis, chunk, tmp_path, played)


@pytest.mark.slow
def test_a_store_grows_by_real_runs(tmp_path, played):
    """With two policies, one of which requires the budget, so that fewer programs are compiled."""
    policies = {"policies": ["uniform", "epsilon-first"]}
    grows(
        "all",
        4,
        tmp_path,
        played,
        {**WHOLE, **policies, "bandits": TWO},
        {**PART, "policies": ["epsilon-first"], "bandits": {"a": TWO["a"]}},
    )


def grows(axis, chunk, tmp_path, played, grid=WHOLE, part=PART):
    whole = bj.sweep(**grid)
    played.clear()
    start = {**grid, **({axis: part[axis]} if axis != "all" else part)}
    bj.sweep(**start, out=tmp_path / "store", chunk_size=chunk)
    already = sum(played)
    played.clear()
    results = bj.sweep(**grid, out=tmp_path / "store")
    assert sum(played) == whole.reward.size - already, "no cell is computed twice"
    played.clear()
    same(results, whole)
    assert (
        results.attrs["state"] == "complete" and not (tmp_path / "store" / growth.FOLDER).exists()
    )
    again = bj.open_results(tmp_path / "store")
    assert again.attrs["state"] == "complete"
    same(again.sel(policy=results.policy, bandit=results.bandit), whole)
    again = bj.sweep(**part, out=tmp_path / "store")
    assert not played, "a part of what the store has"
    same(again, bj.sweep(**part))


def test_what_is_new_comes_last_in_the_store_and_in_the_order_asked_for_in_the_results(
    tmp_path, made_up
):
    first = {"policies": ["kube"], "bandits": {"b": TWO["b"]}, "budgets": [5], "num_seeds": 2}
    bj.sweep(**first, out=tmp_path / "store")
    results = bj.sweep(["uniform", "kube"], TWO, [5], 2, out=tmp_path / "store")
    assert results.policy.values.tolist() == [
        "uniform",
        "kube",
    ] and results.bandit.values.tolist() == ["a", "b"]
    stored = bj.open_results(tmp_path / "store")
    assert stored.policy.values.tolist() == [
        "kube",
        "uniform",
    ] and stored.bandit.values.tolist() == ["b", "a"]
    same(results, bj.sweep(["uniform", "kube"], TWO, [5], 2))


def test_what_nobody_asked_for_is_missing_until_somebody_does(tmp_path, played, made_up):
    bj.sweep(["uniform"], TWO, [5], 4, out=tmp_path / "store")
    bj.sweep(["kube"], TWO, [5, 9], 8, out=tmp_path / "store")
    stored = bj.open_results(tmp_path / "store")
    assert stored.attrs["state"].startswith("incomplete")
    known = stored.regret.notnull()
    assert known.sel(policy="kube").all() and known.sel(policy="uniform", budget=5).sum() == 8
    assert (tmp_path / "store" / growth.FOLDER).is_dir(), "runs of a part of a chunk"
    played.clear()
    both = bj.sweep(["uniform", "kube"], TWO, [5, 9], 8, out=tmp_path / "store")
    assert sum(played) == 2 * (2 * 8) - 2 * 4 and not (tmp_path / "store" / growth.FOLDER).exists()
    same(both, bj.sweep(["uniform", "kube"], TWO, [5, 9], 8))


def test_coordinates_of_bandits_grow_too(tmp_path, made_up):
    bj.sweep(
        ["uniform"],
        {"a": TWO["a"]},
        [5],
        2,
        out=tmp_path / "store",
        bandit_coords={"gap": [0.1], "kind": ["easy"]},
    )
    results = bj.sweep(
        ["uniform"], TWO, [5], 2, out=tmp_path / "store", bandit_coords={"gap": [0.1, 0.2]}
    )
    assert results.gap.values.tolist() == [0.1, 0.2] and "kind" not in results.coords
    assert bj.open_results(tmp_path / "store").kind.values.tolist() == ["easy", ""]
    before = sorted((tmp_path / "store").rglob("*"))
    bj.sweep(["uniform"], TWO, [5], 2, out=tmp_path / "store", bandit_coords={"gap": [0.1, 0.2]})
    assert sorted((tmp_path / "store").rglob("*")) == before
    results = bj.sweep(
        ["uniform"], TWO, [5], 2, out=tmp_path / "store", bandit_coords={"kind": ["easy", "hard"]}
    )
    assert results.kind.values.tolist() == ["easy", "hard"], "a blank gives way"
    for gap in (np.nan, 0.1):
        bj.sweep(
            ["uniform"],
            {"c": THREE["c"]},
            [5],
            2,
            out=tmp_path / "store",
            bandit_coords={"gap": [gap]},
        )
    with pytest.raises(ValueError, match=r"coords\.gap of b: 0.2 in the store, 0.3 asked for"):
        bj.sweep(
            ["uniform"], TWO, [5], 2, out=tmp_path / "store", bandit_coords={"gap": [0.1, 0.3]}
        )


def test_bandits_in_groups_grow_too(tmp_path, monkeypatch, played, made_up):
    monkeypatch.setattr(schedule, "FEWEST_GROUPS", 1)
    bandits = {f"{i}": bj.Bernoulli.random(jax.random.key(i), 2) for i in range(8)}
    some = {name: bandits[name] for name in list(bandits)[:6]}
    bj.sweep(["uniform"], some, [5], 2, out=tmp_path / "store")
    results = bj.sweep(["uniform"], bandits, [5], 2, out=tmp_path / "store")
    assert sum(played) == 16
    same(results, bj.sweep(["uniform"], bandits, [5], 2))
    odd = {name: bandits[name] for name in list(bandits)[1::2]}
    played.clear()
    same(
        bj.sweep(["uniform"], odd, [5], 3, out=tmp_path / "store"),
        bj.sweep(["uniform"], odd, [5], 3),
    )
    assert sum(played) == 4 + 12, (
        "one more seed on each of four bandits; and the sweep without a store"
    )


def write(path, body):
    path.write_text(f"""
import chex
import jax.numpy as jnp

@chex.dataclass(frozen=True)
class Mine:
    arm: int = 0

    def init(self, problem):
        return jnp.zeros(problem.num_arms)

    def __call__(self, state, key):
{body}

    def update(self, state, arm, reward, cost, key):
        return state
""")


def mine(path, name):
    import importlib.util
    import linecache

    linecache.clearcache()
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Mine


@pytest.mark.slow
def test_a_changed_class_is_played_again_and_no_other(tmp_path, played, monkeypatch):
    file, store = tmp_path / "mine.py", tmp_path / "store"

    def sweep(**options):
        import sys

        cls = mine(file, "mine_of_this_test")
        monkeypatch.setitem(
            sys.modules,
            "mine_of_this_test",
            __import__("types").SimpleNamespace(Mine=cls, __file__=str(file)),
        )
        played.clear()
        return bj.sweep({"mine": cls(**options), "uniform": bj.Uniform()}, TWO, [5], 3, out=store)

    write(file, "        return jnp.int32(self.arm), state")
    sweep()
    assert sum(played) == 12
    write(
        file,
        '        """Pulls one arm."""\n        # always\n        return jnp.int32(self.arm), state',
    )
    sweep()
    assert sum(played) == 0, "a comment or a docstring changes nothing"
    write(file, "        return 1 - jnp.int32(self.arm), state")
    with pytest.warns(UserWarning, match=r"policies\['mine'\]"):
        results = sweep()
    assert sum(played) == 6 and (results.pulls.sel(policy="mine", arm=0) == 0).all()
    with pytest.raises(ValueError, match=r"policies\.mine.*in the store.*asked for"):
        sweep(arm=1)


def test_what_cannot_be_one_grid_is_refused(tmp_path, made_up):
    arguments = {
        "policies": {"kube": bj.KUBE(scale=1.0)},
        "bandits": TWO,
        "budgets": [5],
        "num_seeds": 2,
    }
    bj.sweep(**arguments, out=tmp_path / "store")
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    for other, message in (
        ({"seed": 1}, "seed: 0 in the store, 1 asked for"),
        ({"relative_to_min_cost": True}, "relative"),
        (
            {"policies": {"kube": bj.KUBE(scale=2.0)}},
            r"policies\.kube\.fields\.scale: 1.0 in the store",
        ),
        ({"bandits": {"a": TWO["b"]}}, r"bandits\.a"),
    ):
        with pytest.raises(ValueError, match=message):
            bj.sweep(**{**arguments, **other}, out=tmp_path / "store")
    assert before == {
        path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()
    }


def names(folder, only=""):
    """All files and folders below a folder, with the times of their last change."""
    return {(path, path.lstat().st_mtime_ns) for path in (folder / only).rglob("*")}


@pytest.mark.parametrize("at", range(14))
def test_a_store_killed_while_it_grows_goes_on(at, tmp_path, monkeypatch, played, made_up):
    bj.sweep(["uniform"], TWO, [5], 3, out=tmp_path / "store")
    rename, count = growth.os.rename, iter(range(10**6))

    def killed(*paths):
        if next(count) == at:
            raise KeyboardInterrupt
        rename(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(growth.os, "rename", killed)
        if at == 13:
            patch.setattr(growth, "create", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            bj.sweep(["uniform"], TWO, [5], 5, out=tmp_path / "store")
    played.clear()
    before = names(tmp_path, "store")
    assert bj.open_results(tmp_path / "store").regret.notnull().sum() == 6
    bj.sweep(["kube"], TWO, [5], 3, out=tmp_path / "other")
    merged = bj.merge(tmp_path / "store", tmp_path / "other", out=tmp_path / "merged")
    assert merged.regret.notnull().sum() == 12
    assert before == names(tmp_path, "store"), "reading repairs nothing"
    played.clear()
    results = bj.sweep(["uniform"], TWO, [5], 5, out=tmp_path / "store")
    assert sum(played) == 4
    same(results, bj.sweep(["uniform"], TWO, [5], 5))


def test_a_process_that_is_overtaken_by_a_growth_ends_and_loses_nothing(
    tmp_path, monkeypatch, made_up, played
):
    """While one process adds KUBE, another adds the oracle to the same store."""
    bj.sweep(["uniform"], TWO, [5], 3, out=tmp_path / "store")
    put, calls = Results.put, []

    def overtaken(results, *arguments):
        calls.append(1)
        if len(calls) == 2:  # in the middle of the first sweep
            bj.sweep(["uniform", "oracle"], TWO, [5, 9], 4, out=tmp_path / "store")
        return put(results, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Results, "put", overtaken)
        with pytest.raises(ValueError, match="another grid from another process"):
            bj.sweep(["uniform", "kube"], TWO, [5], 3, out=tmp_path / "store", chunk_size=1)
    stored = bj.open_results(tmp_path / "store")
    assert stored.policy.values.tolist() == ["uniform", "kube", "oracle"]
    whole = bj.sweep(["uniform", "kube", "oracle"], TWO, [5, 9], 4, out=tmp_path / "store")
    same(whole, bj.sweep(["uniform", "kube", "oracle"], TWO, [5, 9], 4))


def test_two_processes_that_make_the_same_growth(tmp_path, monkeypatch, made_up):
    """The second ends first, and removes the sources."""
    bj.sweep(["uniform"], TWO, [5], 3, out=tmp_path / "store")
    play, calls = playing.play, []

    def slow(batches):
        calls.append(1)
        if len(calls) == 1:
            bj.sweep(["uniform"], TWO, [5, 9], 3, out=tmp_path / "store")
        return play(batches)

    with monkeypatch.context() as patch:
        patch.setattr(playing, "play", slow)
        results = bj.sweep(["uniform"], TWO, [5, 9], 3, out=tmp_path / "store")
    same(results, bj.sweep(["uniform"], TWO, [5, 9], 3))
    same(bj.open_results(tmp_path / "store"), results)


def test_a_damaged_chunk_of_a_store_that_grows_is_computed_again(tmp_path, played, made_up):
    bj.sweep(["uniform"], TWO, [5], 3, out=tmp_path / "store")
    file = next((tmp_path / "store" / "reward").glob("c.*"))
    file.write_bytes(b"damaged")
    played.clear()
    same(
        bj.sweep(["uniform"], TWO, [5], 5, out=tmp_path / "store"),
        bj.sweep(["uniform"], TWO, [5], 5),
    )
    assert sum(played) - 10 == 5 + 2


def test_shards_of_a_grown_store(tmp_path, made_up):
    bj.sweep(["uniform"], TWO, [5], 3, out=tmp_path / "store")
    for shard in range(1, 4):
        results = bj.sweep(
            ["uniform", "kube"], TWO, [5], 6, out=tmp_path / "store", shard=(shard, 3)
        )
    same(results, bj.sweep(["uniform", "kube"], TWO, [5], 6))


def test_merge(tmp_path, played, made_up):
    ab = {
        name: bj.sweep([name], TWO, [5, 9], 4, out=tmp_path / name) for name in ("uniform", "kube")
    }
    bj.sweep(["uniform", "kube"], THREE, [5, 9], 4, out=tmp_path / "c")
    played.clear()
    merged = bj.merge(*(tmp_path / name for name in ("uniform", "kube", "c")), out=tmp_path / "all")
    assert (
        not played
        and merged.attrs["state"] == "complete"
        and not (tmp_path / "all" / growth.FOLDER).exists()
    )
    same(merged, bj.sweep(["uniform", "kube"], {**TWO, **THREE}, [5, 9], 4))
    assert ab["kube"].identical(bj.open_results(tmp_path / "kube")), "the stores stay as they are"


def test_stores_that_do_not_fill_a_grid_are_merged_with_gaps(tmp_path, played, made_up):
    bj.sweep(["uniform"], TWO, [5], 4, out=tmp_path / "one")
    bj.sweep(["kube"], TWO, [5, 9], 6, out=tmp_path / "two")
    merged = bj.merge(tmp_path / "one", tmp_path / "two", out=tmp_path / "all")
    assert (
        merged.attrs["state"].startswith("incomplete")
        and merged.regret.notnull().sum() == 2 * 4 + 2 * 2 * 6
    )
    played.clear()
    shutil.rmtree(tmp_path / "one")
    results = bj.sweep(["uniform", "kube"], TWO, [5, 9], 6, out=tmp_path / "all")
    assert sum(played) == 2 * (2 * 6 - 4)
    same(results, bj.sweep(["uniform", "kube"], TWO, [5, 9], 6))


@pytest.mark.parametrize("at", [0, 1, 10, 30, 60, 62, 110])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_killed_merge_is_repeated_by_the_same_call(at, gaps, tmp_path, monkeypatch, made_up):
    """Killed before any of its writes. With gaps, it copies the stores, because they know some
    chunks in part.
    """
    bj.sweep(["uniform"], TWO, [5, 9], 4, out=tmp_path / "one", chunk_size=2)
    bj.sweep(["kube"], TWO, [5] if gaps else [5, 9], 4, out=tmp_path / "two", chunk_size=2)
    arguments = tmp_path / "one", tmp_path / "two"
    whole = bj.merge(*arguments, out=tmp_path / "whole")
    before, count = names(tmp_path, "one") | names(tmp_path, "two"), iter(range(10**6))

    def killed(of):
        def write(*arguments, **options):
            if next(count) == at:
                raise KeyboardInterrupt
            return of(*arguments, **options)

        return write

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", killed(files.replace))
        patch.setattr(growth.shutil, "copyfile", killed(shutil.copyfile))
        patch.setattr(growth, "create", killed(growth.create))
        try:
            bj.merge(*arguments, out=tmp_path / "all")
        except KeyboardInterrupt:
            pass
        else:
            assert at >= 60 and not gaps, "it has fewer writes without gaps"
    merged = bj.merge(*arguments, out=tmp_path / "all")
    same(merged, whole)
    assert merged.attrs["state"] == whole.attrs["state"] and before == names(
        tmp_path, "one"
    ) | names(tmp_path, "two")
    assert len(list((tmp_path / "all").glob("grown/*/zarr.json"))) == 2 * gaps
    same(bj.merge(*arguments, out=tmp_path / "all"), whole)
    results = bj.sweep(["uniform", "kube"], TWO, [5, 9], 4, out=tmp_path / "all")
    same(results, bj.sweep(["uniform", "kube"], TWO, [5, 9], 4))
    with pytest.raises(ValueError, match="exists"):
        bj.merge(tmp_path / "one", tmp_path / "all", out=tmp_path / "two")


def test_merge_copies_only_files_of_the_stores(tmp_path, made_up):
    """A link, a FIFO and other files in a store that is known in part."""
    bj.sweep(["uniform"], TWO, [5], 4, out=tmp_path / "one")
    bj.sweep(["kube"], TWO, [5, 9], 6, out=tmp_path / "two")
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "one" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "one" / "regret" / "c.9.9.9.9").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "one" / "regret" / "c.8.8.8.8")
    (tmp_path / "one" / "notes").mkdir()
    merged = bj.merge(tmp_path / "one", tmp_path / "two", out=tmp_path / "all")
    assert merged.regret.notnull().sum() == 2 * 4 + 2 * 2 * 6
    assert all(path.is_dir() or path.is_file() for path in (tmp_path / "all").rglob("*"))
    assert not any(
        path.is_symlink() or path.name in ("notes", "link")
        for path in (tmp_path / "all").rglob("*")
    )


def test_a_store_may_be_read_while_it_grows(tmp_path, monkeypatch, made_up):
    """At each step of a growth: the numbers are those before it."""
    store, seen = tmp_path / "store", []
    before = bj.sweep(["uniform"], TWO, [5], 4, out=store, chunk_size=2)

    def reads(of):
        def step(*arguments):
            seen.append(bj.open_results(store))
            result = of(*arguments)
            seen.append(bj.open_results(store))
            return result

        return step

    with monkeypatch.context() as patch:
        patch.setattr(growth.os, "rename", reads(growth.os.rename))
        patch.setattr(growth, "create", reads(growth.create))
        bj.sweep(["uniform", "kube"], TWO, [5], 8, out=store)
    assert len(seen) > 20
    for found in seen:
        assert found.regret.sel(policy="uniform", seed=slice(0, 3)).notnull().all()
        np.testing.assert_array_equal(
            found.regret.sel(policy="uniform", seed=slice(0, 3)), before.regret.isel(policy=0)
        )


def test_a_reader_that_was_overtaken_by_a_growth_reads_again(tmp_path, monkeypatch, made_up):
    store, dataset, calls = tmp_path / "store", Results.dataset, []
    bj.sweep(["uniform"], TWO, [5], 4, out=store)

    def overtaken(results):
        calls.append(1)
        if len(calls) == 1:
            bj.sweep(["uniform", "kube"], TWO, [5], 8, out=store)
            calls.append(1)
        return dataset(results)

    with monkeypatch.context() as patch:
        patch.setattr(Results, "dataset", overtaken)
        found = bj.open_results(store)
    assert found.attrs["state"] == "complete" and found.sizes["policy"] == 2


def test_merge_refuses(tmp_path, made_up):
    bj.sweep(["uniform"], TWO, [5], 4, out=tmp_path / "one")
    bj.sweep(["uniform"], TWO, [5], 2, out=tmp_path / "two")
    bj.sweep(["kube"], TWO, [5], 2, seed=1, out=tmp_path / "other")
    for stores, out, message in (
        (["one"], "all", "at least two"),
        (["one", "one"], "all", "twice"),
        (["one", "two"], "one", "twice"),
        (["one", "two"], "all", "runs of policy 'uniform'"),
        (["one", "other"], "all", "seed: 0 before, 1 in"),
        (["one", "kube"], "all", "no store"),
        (["one", "two"], "other", "exists"),
    ):
        with pytest.raises(ValueError, match=message):
            bj.merge(*(tmp_path / store for store in stores), out=tmp_path / out)
    assert not (tmp_path / "all").exists()


def test_lazy_results_are_the_same(tmp_path, made_up):
    pytest.importorskip("dask")
    results = bj.sweep(["uniform", "kube"], TWO, [5, 9], 4, out=tmp_path / "store", chunk_size=2)
    lazy = bj.open_results(tmp_path / "store", lazy=True)
    assert lazy.regret.chunks is not None and lazy.regret.data.numblocks == (2, 2, 1, 2)
    # In this process: a client that another test has left behind would be asked otherwise, and
    # never answer.
    assert lazy.compute(scheduler="synchronous").identical(results)
    np.testing.assert_array_equal(
        lazy.regret.mean("seed").compute(scheduler="synchronous"), results.regret.mean("seed")
    )


@chex.dataclass(frozen=True)
class Turns:
    """The arms in turn."""

    def init(self, problem):
        return jnp.int32(0)

    def __call__(self, state, key):
        return state % 2, state

    def update(self, state, arm, reward, cost, key):
        return state + 1


@pytest.mark.slow
def test_task_j(tmp_path, played):
    """A policy and 100 seeds are added to a finished store: nothing is played twice, and the bits
    are those of one sweep.
    """
    store, policies = tmp_path / "store", {"kube": bj.KUBE(), "turns": Turns()}
    bj.sweep({"kube": bj.KUBE()}, TWO, [10, 20], num_seeds=100, out=store)
    played.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = bj.sweep(policies, TWO, [10, 20], num_seeds=200, out=store)
    assert sum(played) == 2 * 2 * (200 + 100)
    same(results, bj.sweep(policies, TWO, [10, 20], num_seeds=200))
