"""The store of a sweep: missing and damaged parts are found, and nothing else is trusted. The
numbers here are made up.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from common import INSTANCES

import bts_jax as bj
import bts_jax.sweeps.results
from bts_jax.cli import main
from bts_jax.pytrees import pytree
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.opening import begin
from bts_jax.sweeps.results import VARIABLES, Chunk, Results
from bts_jax.sweeps.store import seal_of

BUDGETS, SEEDS, CHUNK = [5, 10.5], 7, 3
BANDITS = {family: INSTANCES[family] for family in ("bernoulli", "multinomial")}


def attributes(**changes):
    arguments = {
        "policies": ["kube", "epsilon-first"],
        "bandits": BANDITS,
        "budgets": BUDGETS,
        "num_seeds": SEEDS,
        "seed": 0,
    }
    return Grid(**{**arguments, **changes}).attributes()


def made_up(results, chunk):
    """Made-up numbers for one chunk, the same at every call."""
    rng = np.random.default_rng(chunk)
    seeds = results.seeds(chunk)
    values = {}
    for name, (dtype, _) in VARIABLES.items():
        shape = len(BUDGETS), seeds.stop - seeds.start, *([5] if name == "pulls" else [])
        values[name] = (rng.random(shape) * 100).astype(dtype)
    return values


def fill(results, chunks=None):
    for chunk in results.missing if chunks is None else chunks:
        results.put(chunk, made_up(results, chunk))
    return results


@pytest.fixture
def whole():
    return fill(begin(attributes(), CHUNK, None)).dataset()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "store"
    fill(begin(attributes(), CHUNK, path))
    return path


@pytest.fixture
def store(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "store"))


def assert_same(left, right):
    assert left.drop_attrs().identical(right.drop_attrs())
    for name in VARIABLES:
        assert (
            left[name].values.tobytes() == right[name].values.tobytes()
            and left[name].dtype == right[name].dtype
        )
    assert {**left.attrs, "created": ""} == {**right.attrs, "created": ""}, "all else is the same"


def test_the_dataset_is_labelled(whole):
    assert dict(whole.sizes) == {"policy": 2, "bandit": 2, "budget": 2, "seed": 7, "arm": 5}
    assert whole.budget.values.tolist() == BUDGETS and whole.policy.values.tolist() == [
        "kube",
        "epsilon-first",
    ]
    assert whole.requires.values.tolist() == ["none", "budget"]
    assert whole.family.values.tolist() == ["Bernoulli", "Multinomial"]
    assert whole.num_arms.values.tolist() == [5, 4] and np.isnan(whole.cost_mean.values[1, 4])
    assert (
        whole.reward_mean.values[0] == np.asarray(INSTANCES["bernoulli"].reward, np.float64)
    ).all()
    for name, (dtype, _) in VARIABLES.items():
        assert whole[name].dtype == dtype
        assert whole[name].dims == ("policy", "bandit", "budget", "seed", "arm")[: whole[name].ndim]
    assert all(isinstance(value, (str, int)) for value in whole.attrs.values())
    specification = json.loads(whole.specification)
    assert specification["policies"]["epsilon-first"] == {
        "class": "EpsilonFirst",
        "requires": ["budget"],
        "fields": {"epsilon": float(np.float32(0.1))},
    }
    assert (
        whole.state == "complete"
        and whole.jax
        and whole.bts_jax == bj.__version__
        and "fold_in" in whole.run_key
    )
    assert "policy" in whole._repr_html_()


def test_what_is_saved_comes_back(store, whole):
    assert_same(bj.open_results(store), whole)
    assert_same(begin(attributes(), CHUNK, store).dataset(), whole)
    read = xr.open_zarr(store, chunks=None, consolidated=False)
    for name in (*VARIABLES, "reward_mean"):
        np.testing.assert_array_equal(read[name].values, whole[name].values)
    assert (
        read.policy.values.tolist() == whole.policy.values.tolist() and "reward_mean" in read.coords
    )


def test_the_store_keeps_its_own_chunks(store, whole):
    results = begin(attributes(), 2, store)
    assert results.chunk_size == CHUNK and results.missing == []


def test_groups_of_bandits_and_ranges_of_seeds(tmp_path):
    """The same numbers, in chunks of two bandits and three seeds, and in chunks of one bandit with
    all seeds.
    """
    described = attributes(bandits={f"{i}": BANDITS["bernoulli"] for i in range(4)})
    single, grouped = (
        begin(described, SEEDS, None),
        begin(described, CHUNK, tmp_path / "store", group=2),
    )
    assert (
        single.done.shape == (2, 4, 1)
        and grouped.done.shape == (2, 2, 3)
        and (single.runs, grouped.runs) == (7, 6)
    )
    whole = fill(single).dataset()
    for chunk in grouped.missing:
        mine = whole.isel(
            policy=chunk.policy, bandit=list(grouped.bandits(chunk)), seed=grouped.seeds(chunk)
        )
        grouped.put(chunk, {name: mine[name].values for name in VARIABLES})
    assert_same(bj.open_results(tmp_path / "store"), whole)
    with pytest.raises(ValueError, match="group = 3 does not divide the number of bandits, 4"):
        begin(described, CHUNK, tmp_path / "other", group=3)
    assert not (tmp_path / "other").exists()


def test_a_part_is_masked(tmp_path, whole):
    chunks = [Chunk(0, 0, 0), Chunk(0, 0, 2), Chunk(1, 1, 1)]
    fill(begin(attributes(), CHUNK, tmp_path / "store"), chunks)
    part = bj.open_results(tmp_path / "store")
    assert part.state == "incomplete: 9 of 12 chunks are missing (regret NaN)"
    there = np.zeros(whole.regret.shape, bool)
    there[0, 0, :, [0, 1, 2, 6]] = there[1, 1, :, 3:6] = True
    assert (np.isnan(part.regret.values) == ~there).all()
    assert (part.regret.values[there] == whole.regret.values[there]).all()
    assert not part.rounds.values[~there].any() and not part.pulls.values[~there].any()
    results = begin(attributes(), CHUNK, tmp_path / "store")
    assert len(results.missing) == 9
    assert_same(fill(results).dataset(), whole)


def snapshot(folder):
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def files(store, pattern):
    found = sorted(file for file in store.glob(pattern) if file.is_file())
    assert found
    return found


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        *(("flip", name) for name in VARIABLES),
        ("cut", "pulls"),
        ("empty", "regret"),
        ("missing", "reward"),
        ("swap", "rounds"),
    ],
)
def test_a_damaged_chunk_is_found_and_nothing_else(damage, name, store, whole):
    file, other = files(store, f"{name}/c*")[4:6]
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 8
    if damage == "swap":
        content = bytearray(other.read_bytes())
    file.write_bytes({"cut": content[: len(content) // 2], "empty": b""}.get(damage, content))
    if damage == "missing":
        file.unlink()
    assert "1 of 12 chunks" in bj.open_results(store).state
    results = begin(attributes(), CHUNK, store)
    assert len(results.missing) == 1
    fill(results)
    assert_same(bj.open_results(store), whole)


def copy_chunk(source, chunk, store, place):
    """Copies all files of a chunk to the place of another, as an interrupted rsync or a mixed
    backup may do.
    """
    for file in source.glob("*/c.*"):
        name, *places = file.name.split(".")
        policy, bandit, *_ = places
        part = places[3] if len(places) > 3 else places[2]
        if (int(policy), int(bandit), int(part)) == chunk:
            places[0], places[1] = str(place[0]), str(place[1])
            places[3 if len(places) > 3 else 2] = str(place[2])
            shutil.copy(file, store / file.parent.name / ".".join([name, *places]))


@pytest.mark.parametrize("place", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_a_chunk_from_another_place_is_found(place, store, whole):
    """With the seeds of another range, of another bandit, or of another policy."""
    copy_chunk(store, (0, 0, 0), store, place)
    assert "1 of 12 chunks" in bj.open_results(store).state
    results = begin(attributes(), CHUNK, store)
    assert results.missing == [Chunk(*place)]
    assert_same(fill(results).dataset(), whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"budgets": [5, 11]},
        {"num_seeds": 8},
        {"policies": {"kube": bj.KUBE(scale=3), "epsilon-first": bj.EpsilonFirst()}},
    ],
)
def test_a_chunk_from_another_sweep_is_found(changes, store, tmp_path, whole):
    other = tmp_path / "other"
    fill(begin(attributes(**changes), CHUNK, other))
    copy_chunk(other, (0, 1, 0), store, (0, 1, 0))
    copy_chunk(other, (1, 1, 1), store, (1, 1, 1))
    assert "2 of 12 chunks" in bj.open_results(store).state
    bj.sweep(["uniform"], {"one": INSTANCES["bernoulli"]}, BUDGETS, SEEDS, out=tmp_path / "more")
    merged = bj.merge(store, tmp_path / "more", out=tmp_path / "merged")
    assert np.isnan(merged.regret.sel(policy="kube", bandit="multinomial", seed=0)).all(), (
        "merge copies no wrong chunk"
    )
    assert_same(fill(begin(attributes(), CHUNK, store)).dataset(), whole)


def test_the_same_sweep_in_another_folder_has_the_same_chunks(store, tmp_path, whole):
    """Backups can be mixed: a chunk belongs to a sweep and not to a folder."""
    other = tmp_path / "other"
    fill(begin(attributes(), CHUNK, other))
    copy_chunk(other, (0, 0, 0), store, (0, 0, 0))
    assert_same(bj.open_results(store), whole)


@pytest.mark.parametrize(
    "damage", [lambda x: b"", lambda x: b"{}", lambda x: x[:-3], lambda x: b"\xff" * len(x)]
)
def test_every_other_file_may_be_damaged_too(damage, store, whole):
    """All files except the root: metadata are written again, and a chunk without its checksum is
    lost.
    """
    before = snapshot(store)
    lost = [
        file for file in before if file.name == "zarr.json" or file.parent.name not in VARIABLES
    ]
    lost.remove(store / "zarr.json")
    assert len(lost) == 18 + 10 + 12  # arrays, labels, checksums
    for file in lost:
        file.write_bytes(damage(before[file]))
    assert np.isnan(bj.open_results(store).regret).all()
    results = begin(attributes(), CHUNK, store)
    assert len(results.missing) == 12
    assert_same(fill(results).dataset(), whole)
    assert_same(bj.open_results(store), whole)
    assert snapshot(store) == before


def test_a_frame_half_built_is_finished(store, whole):
    for folder in ("pulls", "checksum", "policy"):
        shutil.rmtree(store / folder)
    assert bj.open_results(store).state.startswith("incomplete: 12 of 12")
    assert_same(fill(begin(attributes(), CHUNK, store)).dataset(), whole)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed: 0 in the store, 1 asked for"),
        (
            {"policies": {"kube": bj.KUBE(scale=3), "epsilon-first": bj.EpsilonFirst()}},
            "policies.kube.fields.scale: 2.0 in the s",
        ),
        (
            {"policies": {"kube": bj.BTS(), "epsilon-first": bj.EpsilonFirst()}},
            "policies.kube.class: KUBE in the store, BTS asked",
        ),
        (
            {"bandits": {**BANDITS, "bernoulli": bj.Bernoulli(reward=[0.5] * 5, cost=[0.5] * 5)}},
            "bandits.bernoulli.fields.cost",
        ),
    ],
)
def test_a_store_of_another_grid_is_refused_and_left_alone(changes, named, store):
    before = snapshot(store)
    with pytest.raises(ValueError, match=named):
        begin(attributes(**changes), CHUNK, store)
    assert snapshot(store) == before


def test_the_stores_in_a_folder_are_named(store, tmp_path, monkeypatch, capsys):
    """A study saves its store inside of its folder, which is easily named instead."""
    (tmp_path / "study").mkdir()
    shutil.copytree(store, tmp_path / "study" / "runs.zarr")
    (tmp_path / "study" / "report.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ["table", "study"],
        ["plot", "study"],
        ["merge", "study", "study/runs.zarr", "--out", "both"],
        ["sweep", "--resume", "study"],
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert capsys.readouterr().err == (
            "bts-jax: error: 'study' is not a store of a sweep, but a folder without zarr.json: "
            "name the folder that a sweep was saved in, such as 'study/runs.zarr'; for a new "
            "sweep, name a folder that is not there yet\n"
        )
    with pytest.raises(
        ValueError,
        match=r"report.txt' is not a store of a sweep, but a file: "
        r"name the folder that a sweep",
    ):
        bj.open_results("study/report.txt")


def test_a_path_that_is_no_store_is_refused_and_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "zarr.json").write_text(
        '{"attributes": {}, "zarr_format": 3, "node_type": "group"}'
    )
    before = snapshot(tmp_path)
    for name, message in (
        ("file", "is a file"),
        ("folder", "is not a store"),
        ("other", "is not a store"),
    ):
        with pytest.raises(ValueError, match=message):
            begin(attributes(), CHUNK, tmp_path / name)
        with pytest.raises(ValueError, match="is not a store"):
            bj.open_results(tmp_path / name)
    with pytest.raises(ValueError, match="there is no store"):
        bj.open_results(tmp_path / "nowhere")
    with pytest.raises(OSError, match="cannot write to"):
        begin(attributes(), CHUNK, tmp_path / "file" / "store")
    assert snapshot(tmp_path) == before
    (tmp_path / "empty").mkdir()
    fill(begin(attributes(), CHUNK, tmp_path / "empty"))
    fill(begin(attributes(), CHUNK, tmp_path / "new" / "folders" / "store"))
    assert bj.open_results(tmp_path / "empty").state == "complete"
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == [], (
        "no litter"
    )


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_named(tmp_path, store):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(OSError, match=r"cannot write to '.*locked/store' \(Permission denied\)"):
        begin(attributes(), CHUNK, tmp_path / "locked" / "store")


@pytest.mark.parametrize("after", [0, 1, 7, 8, 20])
def test_a_full_disk_leaves_what_is_complete(after, tmp_path, monkeypatch, whole):
    results = begin(attributes(), CHUNK, tmp_path / "store")
    writes, write = iter(range(10**6)), bts_jax.sweeps.results.replace

    def full(*args, **kwargs):
        if next(writes) >= after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(bts_jax.sweeps.results, "replace", full)
        with pytest.raises(
            OSError,
            match=r"cannot write to .*No space left on device.*complete "
            r"chunks are kept",
        ):
            fill(results)
    again = begin(attributes(), CHUNK, tmp_path / "store")
    assert int(again.done.sum()) == after // 8, "eight files make a chunk"
    assert_same(fill(again).dataset(), whole)


WRITER = """
import sys, numpy as np
sys.path.insert(0, {tests!r})
from test_results import *
input()
chunks = [Chunk(*place) for place in np.argwhere(np.ones((2, 2, 3)))]
fill(begin(attributes(seed=int(sys.argv[2])), CHUNK, sys.argv[1]), chunks)
print("done")
"""


@pytest.mark.slow
def test_many_processes_may_write_at_once(tmp_path, whole):
    """Two processes of one sweep, and a third of another sweep on the same path. One sweep wins,
    and its store is valid.
    """
    code = WRITER.format(tests=str(Path(__file__).parent))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path / "store", seed],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in "001"
    ]
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.flush()
    ended = [writer.communicate() for writer in writers]
    winner = bj.open_results(tmp_path / "store")
    for seed, (out, err) in zip((0, 0, 1), ended, strict=True):
        assert (
            out == "done\n" if seed == winner.attrs["seed"] else "belongs to another grid" in err
        ), err
    assert winner.state == "complete" and (winner.regret.values == whole.regret.values).all()
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


def test_nothing_is_unpickled(store):
    """The store holds JSON, text and numbers."""
    for file in files(store, "**/zarr.json"):
        for codec in json.loads(file.read_text()).get("codecs", []):
            assert codec["name"] in ("bytes", "zstd", "vlen-utf8")


def test_results_in_memory_have_no_store():
    results = Results(attributes(), CHUNK)
    results.load()
    assert len(results.missing) == 12


@pytest.mark.parametrize(
    ("old", "new"), [(b'"chunk": ', b'"chunk": 1'), (b'\\"seeds\\": ', b'\\"seeds\\": 1')]
)
def test_a_root_that_was_changed_is_refused(old, new, store):
    root = store / "zarr.json"
    content = root.read_bytes()
    assert old in content
    root.write_bytes(content.replace(old, new, 1))
    with pytest.raises(ValueError, match="damaged"):
        bj.open_results(store)


def test_a_store_of_the_version_before_opens(tmp_path):
    """It was written by the last commit before stores could grow: two policies on two bandits, in
    chunks of two seeds.
    """
    with zipfile.ZipFile(Path(__file__).parent / "data" / "store_before_0.2.zip") as archive:
        archive.extractall(tmp_path)
    results = bj.open_results(tmp_path)
    assert results.attrs["state"] == "complete" and dict(results.sizes) == {
        "policy": 2,
        "bandit": 2,
        "budget": 2,
        "seed": 3,
        "arm": 3,
    }
    assert float(results.regret.sum()) == pytest.approx(70.39999248584124, abs=1e-9)
    assert list(results.bts.specification["policies"]) == ["uniform", "first"]
    assert (results.pulls.sum("arm") == results.rounds).all()
    assert "note" in results.attrs and "copied from another place" in results.attrs["note"]
    shutil.copytree(tmp_path, tmp_path / "again", ignore=shutil.ignore_patterns("again"))
    (tmp_path / "again" / "regret" / next(tmp_path.glob("regret/c.*")).name).write_bytes(b"damaged")
    assert bj.open_results(tmp_path / "again").state.startswith("incomplete: 1 of")


def test_a_store_of_a_later_version_is_refused(store):
    root = json.loads((store / "zarr.json").read_text())
    root["attributes"]["store_format"] = 3
    root["attributes"]["seal"] = seal_of(root["attributes"], CHUNK)
    (store / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(
        ValueError,
        match="it has the format 3, and this version knows the formats 1 to 2: install the version",
    ):
        bj.open_results(store)


def test_the_specification_is_behind_an_accessor_and_hyperparameters_are_coordinates(tmp_path):
    bandits = {"two": bj.Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
    policies = {
        "one": bj.Oracle(),
        "half": Scales(scale=0.5),
        "whole": Scales(scale=1.0),
        "other": Shifts(shift=2.0),
    }
    dataset = begin(
        Grid(policies, bandits, [5, 9], 2, 0).attributes(), 2, tmp_path / "store"
    ).dataset()
    np.testing.assert_array_equal(dataset.scale, [np.nan, 0.5, 1.0, np.nan])
    assert "shift" not in dataset.coords, "in which no two policies of a class differ"
    chosen = dataset.sel(policy=dataset.scale == 0.5)
    assert chosen.policy.item() == "half" and chosen.bts.specification["policies"]["whole"][
        "fields"
    ] == {"scale": 1.0}
    assert (
        "fields" not in repr(dataset) + dataset._repr_html_()
        and json.loads(dataset.attrs["specification"])["seeds"] == 2
    )
    assert bj.open_results(tmp_path / "store").identical(dataset)
    with pytest.raises(ValueError, match="sweep or open_results"):
        _ = dataset.drop_attrs().bts.specification


@pytree
class Scales(bj.Uniform):
    scale: float = 1.0


@pytree
class Shifts(bj.Uniform):
    shift: float = 1.0
