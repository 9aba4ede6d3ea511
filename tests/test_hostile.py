"""Untrusted files: damaged or malicious stores, grid files and tables, and folders that cannot be
written.

In all cases the answer comes soon, needs little memory and is a clear message, and nothing else is
changed.
"""

import csv
import io
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest
from test_results import assert_same, snapshot
from test_studies import TINY, made_up_sweep

import bts_jax as bj
from bts_jax import progress
from bts_jax.cli import main
from bts_jax.sweeps import growth, playing, run, schedule, specification
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.opening import begin
from bts_jax.sweeps.results import VARIABLES
from bts_jax.sweeps.store import seal_of

BANDITS = {
    "two": bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5]),
    "deep": bj.Scaled(
        bandit=bj.Bernoulli(reward=[0.3, 0.7, 0.5], cost=[0.5, 0.5, 0.25]), scale=0.5
    ),
}
GRID = {
    "policies": {"any": bj.Uniform(), "kube": bj.KUBE()},
    "bandits": BANDITS,
    "budgets": [5, 10],
    "num_seeds": 3,
    "seed": 0,
}


@pytest.fixture(autouse=True)
def soon():
    """Ends a test that hangs, for example on a FIFO."""

    def late(*_):
        pytest.fail("this took more than 30 seconds")  # no Exception, which might be suppressed

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def little_memory():
    """Refuses to allocate more than 500 MB beyond the current memory, as on a machine with little
    memory.
    """
    now = (
        int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        if sys.platform == "linux"
        else None
    )
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if now:
        resource.setrlimit(resource.RLIMIT_AS, (now + 500 * 10**6, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def fill(results):
    rng = np.random.default_rng(0)
    for chunk in results.missing:
        shape = len(GRID["budgets"]), results.seeds(chunk).stop - results.seeds(chunk).start
        results.put(
            chunk,
            {name: (100 * rng.random((*shape, *[3] * (name == "pulls")))) for name in VARIABLES},
        )
    return results


def attributes():
    return Grid(**GRID).attributes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "store"
    fill(begin(attributes(), 3, path))
    return path


@pytest.fixture
def store(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "store"))


def refused(arguments, named, capsys, code=2):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    err = capsys.readouterr().err
    assert (
        ended.value.code == code
        and re.search(named, err)
        and err.count("\n") == 1
        and len(err) < 2000
    ), err


# A store whose files were exchanged.


def frame(size, declared):
    """A zstd frame of `size` zeros, in a few bytes, with or without its size in the header."""
    blocks = -(-size // 2**17)
    head = b"\x28\xb5\x2f\xfd" + (
        b"\xc0\x38" + struct.pack("<Q", size) if declared else b"\x00\x38"
    )
    return head + b"".join(
        struct.pack("<I", 2**20 | 2 | (i == blocks - 1))[:3] + b"\0" for i in range(blocks)
    )


def exchange(file, how, outside):
    content = file.read_bytes()
    file.unlink()
    if how == "folder":
        file.mkdir()
        (file / "mine").write_text("mine")
    elif how == "fifo":
        os.mkfifo(file)
    elif "link" in how:
        targets = {
            "link out": outside / "file",
            "link to folder": outside,
            "dangling link": outside / "nothing",
            "link to device": "/dev/zero",
        }
        file.symlink_to(targets[how])
    elif how == "sparse":
        with file.open("wb") as out:
            out.truncate(2**40)
    elif how != "missing":
        file.write_bytes(
            {
                "cut": content[: len(content) // 2],
                "flip": bytes([content[0] ^ 1]) + content[1:],
                "empty": b"",
                "bomb": frame(2**31, False),
                "declared bomb": frame(2**31, True),
                "deep": b"[" * 60_000,
                "not UTF-8": b"\xff\xfe\xfd",
            }[how]
        )


HOW = [
    "cut",
    "flip",
    "empty",
    "missing",
    "folder",
    "fifo",
    "link out",
    "link to folder",
    "dangling link",
    "link to device",
    "sparse",
    "bomb",
    "declared bomb",
    "deep",
    "not UTF-8",
]


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_exchanged_files_are_found_and_written_anew(how, store, saved, tmp_path, little_memory):
    """One file of every kind except the root is exchanged at once: numbers, a checksum, labels and
    their metadata.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    for name in (
        "regret/c.0.0.0.0",
        "pulls/c.0.1.0.0.0",
        "checksum/c.1.0.0",
        "policy/c/0",
        "policy/zarr.json",
        "regret/zarr.json",
        "reward_mean/c/0/0",
    ):
        exchange(store / name, how, outside)
    whole = bj.open_results(saved)
    found = bj.open_results(store)
    assert found.state.startswith("incomplete: 3 of 4 chunks")
    assert (
        np.isnan(found.regret.values).sum() == 3 * 6
        and (found.regret[1, 1] == whole.regret[1, 1]).all()
    )
    results = begin(attributes(), 3, store)
    assert len(results.missing) == 3
    for chunk in results.missing:
        results.put(
            chunk, {name: whole[name].values[chunk.policy, chunk.bandit] for name in VARIABLES}
        )
    assert_same(bj.open_results(store), whole)
    here = {
        file.relative_to(store): content
        for file, content in snapshot(store).items()
        if file.name != "mine"
    }
    assert here == {file.relative_to(saved): content for file, content in snapshot(saved).items()}
    assert snapshot(outside) == {outside / "file": b"mine"}, "nothing outside was written"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["regret", "checksum", "policy", "policy/c"])
@pytest.mark.parametrize("how", ["link", "file"])
def test_a_folder_that_leads_out_of_the_store_is_set_aside(how, folder, store, saved, tmp_path):
    shutil.move(store / folder, tmp_path / "outside")
    before = snapshot(tmp_path / "outside")
    (store / folder).symlink_to(tmp_path / "outside") if how == "link" else (
        store / folder
    ).write_text("mine")
    fill(begin(attributes(), 3, store))
    assert bj.open_results(store).state == "complete"
    assert snapshot(tmp_path / "outside") == before and not (store / folder).is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize("how", [how for how in HOW if how not in ("bomb", "declared bomb")])
def test_an_exchanged_root_is_refused_until_its_sweep_is_given_again(
    how, store, saved, tmp_path, capsys, little_memory
):
    whole, outside = bj.open_results(store), tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    exchange(store / "zarr.json", how, outside)
    before = {(file, file.lstat().st_size, file.lstat().st_mtime_ns) for file in store.rglob("*")}
    for arguments in (
        ["table", str(store)],
        ["plot", str(store)],
        ["sweep", "--resume", str(store)],
    ):
        refused(
            arguments, r"store' is not a store of a sweep, or its zarr.json is damaged \(", capsys
        )
    for other in (
        {"seed": 1},
        {"budgets": [5, 11]},
        {"num_seeds": 4},
        {"policies": {"any": bj.Uniform()}},
    ):
        with pytest.raises(
            ValueError,
            match=r"is not a store.*start it again by its grid file "
            r"or call, which writes",
        ):
            begin(Grid(**{**GRID, **other}).attributes(), 3, store)
    after = {(file, file.lstat().st_size, file.lstat().st_mtime_ns) for file in store.rglob("*")}
    assert after == before, "it is not the root of another sweep"
    results = begin(attributes(), 2, store)  # the size of the chunks is known from the arrays
    assert results.chunk_size == 3 and not results.missing
    assert_same(bj.open_results(store), whole)
    assert snapshot(outside) == {outside / "file": b"mine"} and (store / "zarr.json").is_file()


def test_a_root_without_arrays_is_not_rebuilt(tmp_path):
    """There is nothing to prove which sweep it was. A store of version 0.2 proves nothing
    either.
    """
    fill(begin(attributes(), 3, tmp_path / "store"))
    for file in (tmp_path / "store" / "checksum").glob("c.*"):
        file.unlink()
    (tmp_path / "store" / "zarr.json").write_text("{}")
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="is not a store"):
        begin(attributes(), 3, tmp_path / "store")
    assert snapshot(tmp_path) == before


def put_in_place(place, how, outside):
    """A link to a folder or a file outside, or a FIFO, or a file."""
    if how == "fifo":
        os.mkfifo(place)
    elif how == "file":
        place.write_text("mine")
    else:
        place.symlink_to(outside if how == "link to a folder" else outside / "file")


@pytest.mark.parametrize(
    "place", ["grown", "grown/0", "grown/lock", "grown/zarr.json", "grown/0/zarr.json"]
)
@pytest.mark.parametrize("how", ["link to a folder", "link to a file", "fifo", "file"])
def test_a_store_does_not_grow_out_of_its_folder(place, how, store, tmp_path, monkeypatch):
    """Growth, repair and reading write and move nothing outside, and wait for nothing."""
    outside = tmp_path / "outside"
    shutil.copytree(store, outside)
    (outside / "file").write_text("mine")
    before = snapshot(outside)
    (store / place).parent.mkdir(parents=True, exist_ok=True)
    put_in_place(store / place, how, outside)
    whole = bj.open_results(store)
    assert whole.state == "complete"
    more = Grid(**{**GRID, "num_seeds": 5}).attributes()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bts_jax.sweeps.growth.create", killed)
        with pytest.raises(KeyboardInterrupt):
            begin(more, 3, store)
    found = bj.open_results(store)
    assert found.state == "complete" and (found.regret.values == whole.regret.values).all(), (
        "as it was before"
    )
    results = begin(more, 3, store)
    assert results.sizes["seed"] == 5 and len(results.missing) == 8
    for chunk in results.missing:
        results.adopt(chunk)
    assert len(results.missing) == 4, "the first three seeds are copied"
    growth.drop_sources(fill(results))
    assert bj.open_results(store).state == "complete" and snapshot(outside) == before


@pytest.mark.parametrize("how", ["link to a folder", "link to a file", "fifo", "file"])
def test_a_root_in_a_wrong_place_is_not_read(how, store, tmp_path):
    """A store without a root, whose earlier grid is not where it should be."""
    outside = tmp_path / "outside"
    shutil.copytree(store, outside / "0")
    (outside / "file").write_text("mine")
    (store / "zarr.json").unlink()
    put_in_place(store / "grown", how, outside)
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="is not a store"):
        bj.open_results(store)
    assert snapshot(tmp_path) == before


def test_files_elsewhere_are_not_tidied(store, tmp_path):
    (tmp_path / "outside").mkdir()
    old = tmp_path / "outside" / f".{'0' * 32}"
    old.write_text("mine")
    os.utime(old, (0, 0))
    (store / "link").symlink_to(tmp_path / "outside")
    mine = store / "regret" / f".{'1' * 32}"
    mine.write_text("half")
    os.utime(mine, (0, 0))
    begin(attributes(), 3, store)
    assert old.exists() and not mine.exists()


def test_lazy_results_follow_no_links(store, tmp_path):
    pytest.importorskip("dask")
    file = next((store / "regret").glob("c.*"))
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        ValueError, match="regret has a link or another file that is not a regular one"
    ):
        bj.open_results(store, lazy=True)


@pytest.mark.slow
def test_files_of_other_units_count_for_nothing(store):
    for name in (
        "c.0.0.1",
        "c.2.0.0",
        "c.0.0.00",
        "c.-1.0.0",
        "c.0.0",
        "c.0.0.0.0",
        "c.99999999999999999999.0.0",
    ):
        shutil.copy(store / "checksum" / "c.0.0.0", store / "checksum" / name)
    (store / "checksum" / "c.0.0.0").unlink()
    results = begin(attributes(), 3, store)
    assert results.saved() == 3 and len(results.missing) == 1


# A store by a malicious author who knows how it is sealed.


def rewrite(store, change, chunk=3, **group):
    """Changes the specification, and seals it."""
    root = json.loads((store / "zarr.json").read_text())
    found = json.loads(root["attributes"]["specification"])
    found = change(found) or found
    root["attributes"]["specification"] = found if isinstance(found, str) else json.dumps(found)
    root["attributes"] |= {
        "chunk": chunk,
        "seal": seal_of(root["attributes"], chunk, *group.values()),
        **group,
    }
    (store / "zarr.json").write_text(json.dumps(root))


def put(*path, value):
    """A change of one entry; `del` removes it."""

    def change(found):
        for name in path[:-1]:
            found = found[name]
        found.pop(path[-1]) if value is del_ else found.__setitem__(path[-1], value)

    return change


del_ = object()
SCALE = ("policies", "kube", "fields", "scale")
SPECIFICATIONS = {
    "a list": (lambda _: [1], "specification = .1. is not a table"),
    "not JSON": (lambda _: "{", "Expecting property name"),
    "deep": (lambda _: "[" * 10**5, "nested too deeply"),
    "many lists": (
        lambda _: "[" + "[]," * 2**20 + "1]",
        "lists and tables, and 1,048,576 are allowed",
    ),
    "deep tables": (lambda _: '{"a":' * 10**5, "nested too deeply"),
    **{
        f"no {name}": (put(name, value=del_), f"specification has no '{name}'")
        for name in ("policies", "bandits", "budgets", "seeds", "seed")
    },
    **{
        f"seeds {value!r:.20}": (put("seeds", value=value), "seeds = ")
        for value in ("5", -1, 0, True, 1e30, 10**12, 10**30, 2**31, 2.5, None, [3])
    },
    "many seeds": (put("seeds", value=2**31 - 1), "the labels take 17,179,"),
    "many chunks": (put("seeds", value=9_000_000), "there are 12,000,000 chunks of 3 seeds"),
    **{
        f"budgets {value!r:.20}": (put("budgets", value=value), "budgets")
        for value in (
            [],
            [10, 5],
            [5, 5],
            ["5"],
            [None],
            [float("nan")],
            [float("inf")],
            [-1],
            5,
            {},
            [[5]],
            "5",
            [True],
            [1e300],
            [10**400],
            {"5": 1},
        )
    },
    "many budgets": (
        lambda found: found.update(
            budgets=list(range(1, 2001)),
            bandits={
                "wide": {
                    **found["bandits"]["two"],
                    "reward_mean": [0.5] * 10**5,
                    "cost_mean": [0.5] * 10**5,
                }
            },
        ),
        "the results of a chunk take 2,400,174,000 bytes",
    ),
    **{
        f"{kind} {value!r}": (put(kind, value=value), kind)
        for kind in ("policies", "bandits")
        for value in ({}, [], "x", 3)
    },
    **{
        f"name {name!r:.20}": (put(kind, name, value={}), "has the name")
        for kind in ("policies", "bandits")
        for name in ("", "\0", "\ud800")
    },
    "long names": (
        lambda found: found["policies"].update(
            {f"{i}{'x' * 190 * (i == 0)}": found["policies"]["any"] for i in range(200_000)}
        ),
        "the labels take 15",
    ),
    "a long name": (
        lambda found: found["policies"].update({"x" * 20_000: found["policies"]["any"]}),
        "policies has a name of 20,000 characters",
    ),
    "one with many arms": (
        lambda found: found["bandits"].update(
            {
                f"{i}": {
                    **found["bandits"]["two"],
                    "reward_mean": [0.5] * (2, 10**5)[i == 0],
                    "cost_mean": [0.5] * (2, 10**5)[i == 0],
                }
                for i in range(200)
            }
        ),
        "the labels take 32",
    ),
    "an entry": (put("policies", "any", value=[]), "policies.'any'. = .. is not a table"),
    "no class": (put("policies", "any", "class", value=del_), "policies.'any'. has no 'class'"),
    "class": (put("policies", "any", "class", value=["KUBE"]), "is not the name of a class"),
    "requires": (
        put("policies", "any", "requires", value=[1]),
        "requires = .1. is not a list of names",
    ),
    "fields": (put("policies", "any", "fields", value=[]), "fields = .. is not a table"),
    "text": (put(*SCALE, value="os.system"), "neither a number nor a list of numbers"),
    "deep field": (
        put(*SCALE, value=json.loads("[" * 500 + "]" * 500)),
        "neither a number nor a list of numbers",
    ),
    "deep bandit": (
        put(
            "bandits",
            "deep",
            "fields",
            "bandit",
            value=json.loads('{"class": "Scaled", "fields": {"bandit": ' * 100 + "1" + "}}" * 100),
        ),
        "neither a number nor",
    ),
    **{
        f"means {value!r:.20}": (
            put("bandits", "two", "reward_mean", value=value),
            "reward_mean = .* is not a list of at least",
        )
        for value in (
            "ab",
            [0.5],
            [],
            [0.5, "x"],
            [0.5, None],
            [0.5, float("nan")],
            [0.5, 10**4000],
            [0.5, float("inf")],
            [0.5, True],
            [[0.5, 0.5]],
            {},
            3,
        )
    },
    "lengths": (
        put("bandits", "two", "cost_mean", value=[0.5] * 3),
        "2 expected rewards and 3 expected costs",
    ),
    "relative": (put("relative", value="yes"), "relative = 'yes' is neither"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SPECIFICATIONS)
def test_a_sealed_specification_is_checked(what, store, capsys, little_memory):
    change, named = SPECIFICATIONS[what]
    rewrite(store, change)
    before = snapshot(store)
    with pytest.raises(ValueError, match=rf"(?s)store' is not a store.*{named}"):
        bj.open_results(store)
    refused(["table", str(store)], "is not a store", capsys)
    refused(["sweep", "--resume", str(store)], "is not a store", capsys)
    assert snapshot(store) == before


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [0, -1, 4, 10**30, "3", 3.0, None, True, [3]])
def test_a_sealed_chunk_is_checked(chunk, store):
    rewrite(store, lambda found: None, chunk)
    with pytest.raises(ValueError, match=r"is not a store.*(chunk_size = |changed)"):
        bj.open_results(store)


@pytest.mark.slow
@pytest.mark.parametrize("group", [0, -1, 3, 10**9, 10**30, "2", "text", 2.0, None, True, [2]])
def test_a_sealed_group_is_checked(group, store):
    """There are two bandits."""
    rewrite(store, lambda found: None, group=group)
    before = snapshot(store)
    with pytest.raises(ValueError, match=r"is not a store.*(group = |changed)"):
        bj.open_results(store)
    assert snapshot(store) == before


@pytest.mark.slow
def test_a_group_is_sealed_and_counted(store, monkeypatch):
    rewrite(store, lambda found: None, group=2)
    assert bj.open_results(store).state == "incomplete: 2 of 2 chunks are missing (regret NaN)", (
        "these are not the chunks"
    )
    root = json.loads((store / "zarr.json").read_text())
    for changed in ({"group": 1}, {"chunk": 1}):
        (store / "zarr.json").write_text(
            json.dumps({**root, "attributes": {**root["attributes"], **changed}})
        )
        with pytest.raises(ValueError, match="changed since it was written"):
            bj.open_results(store)
    found = json.loads(root["attributes"]["specification"])
    of_a_bandit = 3 * len(found["budgets"]) * specification.bytes_of_a_run(3)
    monkeypatch.setattr(specification, "CHUNK_BYTES", of_a_bandit)
    specification.check(found, 3)
    with pytest.raises(
        ValueError,
        match=rf"take {2 * of_a_bandit:,} bytes.*2 bandits and 3 "
        rf"seeds in a chunk",
    ):
        specification.check(found, 3, 2)
    monkeypatch.undo()
    monkeypatch.setattr(specification, "MOST_CHUNKS", 2)
    specification.check(found, 3, 2)
    with pytest.raises(ValueError, match="there are 4 chunks"):
        specification.check(found, 3)


def test_a_sweep_of_too_many_tables_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(specification, "MOST_TABLES", 20)
    bandits = {f"bandit {i}": bj.Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5]) for i in range(9)}
    with pytest.raises(
        ValueError,
        match=r"takes \d+ lists and tables, and 20 are allowed in a "
        r"store: give fewer bandits",
    ):
        bj.sweep(["uniform"], bandits, [5], 2, out=tmp_path / "store")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_root_of_many_short_values_is_refused(store, little_memory):
    (store / "zarr.json").write_text('{"attributes": [' + "1," * 6 * 10**6 + "1]}")
    with pytest.raises(
        ValueError, match="takes 6,000,000 numbers and names, and 5,242,880 are allowed"
    ):
        bj.open_results(store)


@pytest.mark.slow
@pytest.mark.parametrize(
    "root",
    [
        b"[]",
        b"3",
        b"{}",
        b'{"attributes": []}',
        b'{"attributes": {"specification": {}}}',
        b"NaN",
        b'{"attributes": NaN}',
        b'{"attributes": {"specification": "{}", "chunk": 3, "seal": Infinity}}',
    ],
)
def test_a_root_without_a_specification_is_refused(root, store):
    (store / "zarr.json").write_bytes(root)
    with pytest.raises(ValueError, match=r"is not a store.*\((no specification|changed since)"):
        bj.open_results(store)


@pytest.mark.slow
def test_other_attributes_are_plain(store):
    root = json.loads((store / "zarr.json").read_text())
    root["attributes"]["created"] = {"a": []}
    (store / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(ValueError, match="'created' is neither text nor a number"):
        bj.open_results(store)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            put(*SCALE[:3], "__class__", value=1),
            r"policies\['kube'\]: .*KUBE has no field '__class__'",
        ),
        (
            put(*SCALE[:3], "self", value=1),
            r"policies\['kube'\]: .*multiple values for argument "
            r"'self'",
        ),
        (put(*SCALE, value=-1), r"policies\['kube'\]: scale = -1"),
        (put(*SCALE, value=10**400), r"policies\['kube'\]: scale = 1000"),
        (put(*SCALE, value=[1.0] * 10**5), r"policies\['kube'\] has scale of shape \(100000,\)"),
        (
            put(*SCALE, value={"class": "Bernoulli", "fields": {}}),
            r"policies\['kube'\] is a "
            r"Bernoulli, which is not built in",
        ),
        (
            put("policies", "kube", "class", value="Popen"),
            r"policies\['kube'\] is a Popen, which is "
            r"not built in",
        ),
        (
            put("bandits", "two", "fields", "reward", value=[[0.5], [0.5, 0.2]]),
            r"bandits\['two'\]: "
            r"reward = .* is not "
            r"a number or",
        ),
        (put("bandits", "two", "fields", value={}), r"bandits\['two'\]: .*missing 2 required"),
        (
            put("bandits", "deep", "fields", "bandit", value=3),
            r"bandits\['deep'\]: bandit = 3 has no "
            r"reward_mean",
        ),
        (
            put("bandits", "two", "reward_mean", value=[0.1, 0.1]),
            r"another grid .*reward_mean: "
            r"\[0.1, 0.1\] in the store",
        ),
    ],
)
def test_what_a_specification_describes_is_made_of_our_classes_alone(change, named, store, capsys):
    rewrite(store, change)
    before = snapshot(store)
    refused(["sweep", "--resume", str(store), "--quiet"], named, capsys)
    assert snapshot(store) == before


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [4 * 10**6, 100])
def test_results_that_the_files_cannot_hold_are_not_allocated(chunk, store, capsys, little_memory):
    rewrite(store, put("seeds", value=4 * 10**6), chunk)
    for name in VARIABLES:
        for file in (store / name).glob("c.*"):
            os.truncate(file, 2**34)
    with pytest.raises(
        ValueError,
        match=r"would take 1,312,000,000 bytes of "
        r"memory.*xarray.open_zarr",
    ):
        bj.open_results(store)
    refused(["table", str(store)], "would take 1,312,000,000 bytes", capsys)


@pytest.mark.slow
def test_names_from_a_store_do_not_reach_the_terminal_raw(store, capsys):
    rewrite(
        store,
        lambda found: (
            found["policies"].update({"\x1b[2J\n": found["policies"].pop("any")})
            or found["bandits"].update({"\x1b]0;x\a": found["bandits"].pop("two")})
        ),
    )
    for arguments in (["table"], ["plot"], ["sweep", "--resume"]):
        refused(
            [*arguments, str(store)],
            r"policies has the name '\\x1b\[2J\\n': leave out line "
            r"breaks",
            capsys,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        put("policies", "any", "class", value="\x1b[2J"),
        put("policies", "any", "requires", value=["\x1b[2J"]),
        put("bandits", "two", "class", value="x" * 20_000),
        lambda found: found.update(coords={"note": ["\x1b[2J", "a"]}),
        lambda found: found["bandits"]["two"].update(arms=["a\u202e", "b"]),
    ],
)
def test_no_other_text_of_a_store_reaches_the_terminal_raw(change, store, capsys):
    rewrite(store, change)
    refused(["table", str(store)], "is not a store", capsys)


@pytest.mark.slow
def test_attributes_of_a_store_are_checked(store):
    root = json.loads((store / "zarr.json").read_text())
    for changed in ({"device": "\x1b[2J"}, {"\x1b[2J": 1}, {"device": "x" * 20_000}):
        (store / "zarr.json").write_text(
            json.dumps({**root, "attributes": {**root["attributes"], **changed}})
        )
        with pytest.raises(
            ValueError,
            match=r"is not a store.*is too long, or has control "
            r"characters",
        ):
            bj.open_results(store)


# An untrusted grid file.


SMALL = """
num_seeds = 5
budgets = [5, 10]
[policies.any]
kind = "kube"
[bandits.two]
kind = "bernoulli"
reward = [0.9, 0.2]
cost = [0.5, 0.5]
"""
ARMS = "reward = [0.9, 0.2]\ncost = [0.5, 0.5]"
EMPIRICAL = f'kind = "bernoulli"\n{ARMS}'


def load(table):
    return EMPIRICAL, f'kind = "empirical"\nload = {{ table = "{table}" }}'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


FILES = {
    "digits": ("num_seeds = 5", "num_seeds = " + "9" * 5000, "is not TOML .Exceeds the limit"),
    "hexadecimal": (
        "num_seeds = 5",
        "num_seeds = 0x" + "f" * 5000,
        "num_seeds = <int of too many digits> is not allowed",
    ),
    "labels": ("num_seeds = 5", "num_seeds = 2147483647", "the labels take 17,179,869,300 bytes"),
    "chunks": (
        "num_seeds = 5",
        "num_seeds = 9_000_000\nrelative_to_min_cost = true",
        "there are 90,000 chunks",
    ),
    "date": ("num_seeds = 5", "num_seeds = 1979-05-27", "num_seeds = datetime.date"),
    "huge budget": ("[5, 10]", "[5, 1" + "0" * 400 + "]", "budgets = .5, 1000.* is not a number"),
    "hexadecimal budget": (
        "[5, 10]",
        "[0x" + "f" * 5000 + "]",
        "budgets = <list of too many digits>",
    ),
    "infinite": ("[5, 10]", "[5, 1e400]", r"budgets\[1\] = inf"),
    "times": ("[5, 10]", "[07:32:00]", "budgets = .*is not a number"),
    "huge scale": ('"kube"', '"kube"\nscale = 1' + "0" * 400, "policies.any: scale = 1000"),
    "dunder": ('"kube"', '"kube"\n__class__ = {}', "unknown key '__class__' in policies.any"),
    **{
        f"posterior {value}": ('"kube"', f'"bts"\ncost = {value}', named)
        for value, named in {
            "{}": "'kind' is missing in policies.any.cost",
            "[]": r"cost",
            "[{}]": r"'kind' is missing in policies.any.cost\[0\]",
            '{ kind = "gama" }': "policies.any.cost.kind = 'gama' is unknown: .*gamma",
            '{ kind = "kube" }': "'kube' is unknown",
            '{ kind = "beta", alpha = { kind = "gamma" } }': "policies.any.cost: ",
            '{ kind = "gamma", bounded = 1 }': "'bounded'",
            '{ kind = "gamma", mean = [0.1, [1]] }': "policies.any.cost: ",
            '{ kind = "gamma", mean = 1e400 }': "mean = inf",
            '[[{ kind = "gamma" }]]': "cost",
        }.items()
    },
    "posterior of no field": (
        '"kube"',
        '"kube"\nscale = { kind = "gamma" }',
        "policies.any: scale = Gamma",
    ),
    "long kind": ('"kube"', f'"{"x" * 10**5}"', "policies.any.kind = 'xxx"),
    **{
        f"method {name}": (ARMS, f"{name} = {{}}", f"unknown key '{name}' in bandits.two")
        for name in ("__init__", "__init_subclass__", "__class__", "_check", "pull", "mro")
    },
    "many arms": (
        ARMS,
        "random = { num_arms = 1_000_000_000_000 }",
        "num_arms = 1000000000000 is too large",
    ),
    "hard arms": (
        ARMS,
        "hard = { num_arms = 16_000_000, budget = 1e300 }",
        "num_arms = 16000000 is too large",
    ),
    "many instances": (
        ARMS,
        "random = { num_arms = 2, instances = 2_000_000_000 }",
        "instances = 2000000000 is not allowed",
    ),
    "many points": (
        EMPIRICAL,
        'kind = "multinomial"\nrandom = { num_arms = 10, num_points = 1_000_000_000 }',
        "is too large",
    ),
    "many rows": (
        EMPIRICAL,
        'kind = "empirical"\nrandom = { num_arms = 10, num_rows = 1_000_000_000 }',
        "is too large with",
    ),
    "dates": ("[0.9, 0.2]", "[1979-05-27, 1979-05-27]", "reward = .* is not a number or an array"),
    "huge reward": (
        "[0.9, 0.2]",
        "[1" + "0" * 400 + ", 0]",
        "reward = .* is not a number or an array",
    ),
    "brackets": (SMALL, "a = " + "[" * 10**5, "nested too deeply"),
    "dots": (SMALL, "a." * 10**4 + "b = 1", "nested too deeply"),
    "dots in a header": (SMALL, "[" + "'a' . " * 10**4 + "b]", "nested too deeply"),
    "scaled": (
        EMPIRICAL,
        'kind = "scaled"\nbandit = '
        + '{ kind = "scaled", bandit = ' * 100
        + '{ kind = "bernoulli" }'
        + " }" * 100,
        "bandit is nested too deeply",
    ),
    "null": ("[bandits.two]", '[bandits."a\\u0000"]', "leave out line breaks and other control"),
    "large": (SMALL, "# " * 2**20 + "\n" + SMALL, "cannot read 'bad.toml' .larger than"),
    "missing": (*load("missing.csv"), "cannot read 'missing.csv' .No such file"),
    "folder": (*load("."), "cannot read .* .Is a directory"),
    "FIFO": (*load("fifo"), "cannot read 'fifo' .not a regular file"),
    "device": (*load("/dev/zero"), "cannot read '/dev/zero' .not a regular file"),
    "sparse": (*load("sparse.csv"), "cannot read 'sparse.csv' .not a CSV file"),
    "binary": (*load("binary.csv"), "cannot read 'binary.csv' .not a CSV file"),
    "quotes": (*load("quotes.csv"), "cannot read 'quotes.csv' .not a CSV file"),
    "reward_max": (
        EMPIRICAL,
        'kind = "empirical"\nload = { table = "good.csv", reward_max = "x" }',
        "reward_max = 'x' is not",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FILES)
def test_a_hostile_grid_file_is_refused(what, folder, capsys, monkeypatch, little_memory):
    monkeypatch.setattr(playing, "play", lambda *_: pytest.fail("played"))
    os.mkfifo("fifo")
    with Path("sparse.csv").open("wb") as file:
        file.truncate(2**35)
    Path("binary.csv").write_bytes(bytes(range(256)))
    Path("quotes.csv").write_text('arm,reward,cost\n"' + "x\n" * 10**5)
    Path("good.csv").write_text("arm,reward,cost\n" + "a,1,1\nb,1,1\n" * 10)
    old, new, named = FILES[what]
    assert old in SMALL
    Path("bad.toml").write_text(SMALL.replace(old, new))
    if what == "chunks":
        monkeypatch.setattr(schedule, "usual_runs", lambda _: 100)
        monkeypatch.setattr("bts_jax.sweeps.specification.MOST_CHUNKS", 10**4)
    refused(["sweep", "bad.toml", "--quiet"], named, capsys)
    assert not Path("bad.zarr").exists()


@pytest.mark.slow
def test_a_table_is_found_beside_the_file_that_names_it(folder, capsys):
    (folder / "there").mkdir()
    (folder / "there" / "seen.csv").write_text("arm,reward,cost\n" + "a,1,1\nb,1,1\n" * 10)
    (folder / "there" / "grid.toml").write_text(
        "\ufeff" + SMALL.replace(*load("seen.csv")), encoding="utf-8"
    )
    from bts_jax.sweeps.gridfile import read_toml

    assert read_toml("there/grid.toml")["bandits"]["two"].num_arms == 2
    assert "20 of 20 rows kept" in capsys.readouterr().err
    (folder / "there" / "seen.csv").write_text("arm,reward,cost\n" + "a\x1b[2J,1,1\nb,1,1\n" * 10)
    with pytest.raises(
        ValueError,
        match=r"bandits.two.load: arms has the name 'a\\x1b\[2J': "
        r"leave out",
    ):
        read_toml("there/grid.toml")
    assert "\x1b" not in capsys.readouterr().err


# Names and paths.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        *(
            (name, "leave out line breaks and other control characters")
            for name in ("a\0", "\ud800", "a\nb", "\x1b[2J", "\u202e")
        ),
        ("x" * 20_000, "policies has a name of 20,000 characters, 'x{56}...: use at most 200"),
        ("", "strings that are not empty"),
    ],
)
def test_names_that_cannot_be_printed_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        bj.sweep({name: bj.Uniform()}, BANDITS, [5], 3)
    with pytest.raises(ValueError, match=message.replace("policies", "bandits")):
        bj.sweep(["uniform"], {name: BANDITS["two"]}, [5], 3)
    with pytest.raises(ValueError, match=message.replace("policies has", "arms has")):
        bj.Empirical(reward=[[1], [1]], cost=[[1], [1]], arms=[name, "b"])


@pytest.mark.parametrize("coords", [{"x" * 201: [1]}, {"x": ["y" * 201]}])
def test_long_texts_of_coordinates_are_refused(coords):
    with pytest.raises(
        ValueError,
        match=r"bandit_coords has a name of 201 characters, "
        r"'[xy]{56}...: use at most 200",
    ):
        Grid(["uniform"], {"two": BANDITS["two"]}, [5], 1, 0, bandit_coords=coords)
    Grid(
        ["uniform"],
        {"two": BANDITS["two"]},
        [5],
        1,
        0,
        bandit_coords={"empty": [""], "full": ["y" * 200]},
    )


def test_bandits_whose_runs_would_be_the_same_are_refused(tmp_path):
    """The keys of runs are derived from the CRC-32 of the name."""
    names = "arm48780", "bandit number 82547656"
    named = (
        "bandits 'arm48780' and 'bandit number 82547656' have names with the same CRC-32.*: rename "
        "one of them"
    )
    with pytest.raises(ValueError, match=named):
        bj.sweep(["uniform"], dict.fromkeys(names, BANDITS["two"]), [5], 3)
    for name in names:
        bj.sweep(["uniform"], {name: BANDITS["two"]}, [5], 3, out=tmp_path / name)
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=named):
        bj.merge(*(tmp_path / name for name in names), out=tmp_path / "both")
    with pytest.raises(ValueError, match=named):
        bj.sweep(["uniform"], {names[1]: BANDITS["two"]}, [5], 3, out=tmp_path / names[0])
    assert snapshot(tmp_path) == before


@pytest.mark.slow
def test_odd_names_are_names(folder, capsys):
    names = [
        "../../x",
        "/etc/passwd",
        "=HYPERLINK(1)",
        "＝1",
        "x" * 200,
        "emoji 😀",
        "$\\frac{$",
        "_",
        "-dash",
    ]
    results = bj.sweep(
        {name: bj.KUBE() for name in names},
        {"../": BANDITS["two"], "$\\frac{$": BANDITS["two"]},
        [5, 10],
        3,
        out=folder / "in" / "ünï 😀\n.zarr",
    )
    assert_same(bj.open_results("in/ünï 😀\n.zarr"), results)
    assert sorted(path.name for path in folder.iterdir()) == ["in", "small.toml"]
    main(["table", "in/ünï 😀\n.zarr", "--csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["policy"] for row in rows} == {"'" * (name[0] in "=＝-") + name for name in names}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["$\\frac{$", "$" + "{" * 95 + "x" + "}" * 95 + "$", "x" * 200, "$x_1$", "cost in $", "$ $"],
)
def test_figures_of_odd_names(name, folder):
    """Formulas that matplotlib cannot read are drawn as text, also if the user saves the figure;
    long names are cut.
    """
    import xml.etree.ElementTree

    from bts_jax import plots

    results = bj.sweep(
        {name: bj.Uniform(), f"{name[:150]}2": bj.Uniform()}, {name: BANDITS["two"]}, [5, 10], 3
    )
    trace = bj.trace(bj.Uniform(), BANDITS["two"], 5, jax.random.key(0))
    figures = [
        plots.regret(results),
        plots.final_regret(results),
        plots.difference(results, name),
        plots.dominance(results),
        plots.run(trace, labels=[name, "b"]),
        plots.regret(results, labels={name: f"{name}\x07"}),
    ]
    for number, figure in enumerate(figures):
        figure.savefig(folder / f"{number}.svg")
        plots.write(figure, folder / f"{number}.png")
        svg = (folder / f"{number}.svg").read_text()
        xml.etree.ElementTree.fromstring(svg)
        assert "x" * 70 not in svg or number == 5, "a label of one's own is not cut"


@pytest.mark.slow
@pytest.mark.parametrize(
    "out", [".", "there", "link", "dangling", "there/", "no/such/folder", "mount"]
)
def test_a_store_is_made_wherever_a_folder_can_be(out, folder, monkeypatch):
    """Also in an existing empty folder: it stays, with its permissions, and so does a mount."""
    os.remove("small.toml")
    os.mkdir("there")
    os.symlink("there", "link")
    os.symlink("nowhere", "dangling")
    monkeypatch.chdir(folder / "there") if out == "." else None
    before = os.stat(out).st_ino if os.path.exists(out) else None
    with mounted(folder, "size=1m") if out == "mount" else _nothing() as place:
        fill(begin(attributes(), 3, place or out))
        assert bj.open_results(place or out).state == "complete"
    assert before in (None, os.stat(out).st_ino)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "named", "code"),
    [
        (["sweep", "small.toml", "--out", "loop"], "cannot write to 'loop'", 1),
        (["table", "loop"], "there is no store at 'loop'", 2),
        (["sweep", "loop"], "cannot read 'loop'", 2),
        (["sweep", "small.toml", "--out", "fifo"], "out = 'fifo' is a file", 2),
        (["sweep", "fifo"], "cannot read 'fifo' .not a regular file", 2),
        (["sweep", "/dev/zero"], "cannot read '/dev/zero' .not a regular file", 2),
        (["sweep", "small.toml", "--out", "x" * 300], "File name too long", 1),
        (["table", "x" * 300], "there is no store at 'xxx", 2),
        (["plot", "x" * 300], "there is no store at 'xxx", 2),
        (["sweep", "--resume", "x" * 300], "there is no store at 'xxx", 2),
        (["sweep", "x" * 300], "cannot read 'xxx.*File name too long", 2),
        (["figure1", "--out", "x" * 300], "cannot write to 'xxx.*File name too long", 1),
        (["study", "priors", "--out", "x" * 300], "cannot write to 'xxx.*File name too long", 1),
        (["merge", "x" * 300, "x" * 301, "--out", "y"], "there is no store at 'xxx", 2),
        (["table", "fifo"], "'fifo' is not a store", 2),
        (["plot", "fifo"], "'fifo' is not a store", 2),
        (["plot", "fifo", "--out", "folder"], "out = 'folder' is not the name of an image", 2),
        (
            ["plot", "fifo", "--out", "/dev/full"],
            "out = '/dev/full' is not the name of an image",
            2,
        ),
        (["figure1", "--out", "fifo"], "out = 'fifo' is a file", 2),
        (
            ["study", "priors", "--out", "small.toml/x"],
            "cannot write to 'small.toml/x' .Not a directory",
            1,
        ),
    ],
)
def test_paths_that_lead_nowhere(arguments, named, code, folder, capsys):
    os.symlink("loop", "loop")
    os.mkfifo("fifo")
    os.mkdir("folder")
    refused(arguments, named, capsys, code)


# Full disks, folders that cannot be written, and output that cannot be written.


@contextmanager
def _nothing():
    yield None


@contextmanager
def mounted(folder, options):
    """A separate file system, where the system allows this."""
    place = folder / "mount"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@contextmanager
def largest_file(size):
    """Behaves as a full disk: no file longer than this can be written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.slow
def test_a_disk_that_fills_keeps_what_is_complete(tmp_path, saved):
    with mounted(tmp_path, "size=260k") as place:
        with pytest.raises(
            OSError,
            match=r"cannot write to .*No space left on device.*complete "
            r"chunks are kept",
        ):
            fill(begin(attributes(), 1, place / "store"))
        assert not list(place.rglob(".*")), "nothing is half-written"
        state = bj.open_results(place / "store").state
        assert state.startswith("incomplete") and not state.startswith("incomplete: 12 of")


@pytest.mark.slow
def test_a_read_only_file_system_is_named(tmp_path, saved):
    with mounted(tmp_path, "size=1m") as place:
        shutil.copytree(saved, place / "store")
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        assert begin(attributes(), 3, place / "store").missing == []
        assert bj.open_results(place / "store").state == "complete"
        with pytest.raises(OSError, match=r"cannot write to .*new.*Read-only file system"):
            begin(attributes(), 3, place / "new")


@pytest.mark.slow
def test_an_image_is_whole_or_not_there(saved, folder, capsys):
    with largest_file(2000):
        refused(
            ["plot", str(saved), "--out", "p.png"],
            "cannot write to 'p.png' .File too large.: make sure",
            capsys,
            1,
        )
    assert sorted(os.listdir()) == ["small.toml"]
    Path("p.png").symlink_to("small.toml")
    main(["plot", str(saved), "--out", "p.png", "--force"])
    assert (
        Path("p.png").read_bytes().startswith(b"\x89PNG")
        and Path("small.toml").read_text() == SMALL
    )


@pytest.mark.slow
def test_a_study_keeps_its_files_until_the_new_ones_are_whole(folder, capsys, monkeypatch):
    from bts_jax import plots
    from bts_jax.experiments import STUDIES

    monkeypatch.setitem(STUDIES["worst-case"].sizes, "quick", TINY["worst-case"])
    monkeypatch.setattr(run, "sweep", made_up_sweep)
    command = ["study", "worst-case", "--out", "here"]
    monkeypatch.setattr(plots, "save", lambda *_: None)
    main(command)
    before = snapshot(folder / "here")
    assert {file.name for file in before} == {"report.txt", "table.csv"}
    for size, name in (
        (100, "report.txt"),
        (len(before[folder / "here" / "report.txt"]), "table.csv"),
    ):
        with largest_file(size):
            refused(command, f"cannot write to 'here/{name}' .File too large", capsys, 1)
    assert snapshot(folder / "here") == before


@pytest.mark.slow
def test_output_in_ascii(saved, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    main(["table", str(saved)])
    printed = sys.stdout.buffer.getvalue()
    assert b"missed the best arm" in printed and b" ? " in printed, "the mark between two limits"


@pytest.mark.slow
def test_closed_streams(saved, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stderr", None)
        assert progress.bar(quiet=False).disable
        main(["table", str(saved)])
        with pytest.raises(SystemExit) as ended:
            main(["table", "nowhere"])
        assert ended.value.code == 2
        sys.stdout.close()
        sys.stderr.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_a_full_device_as_output_of_a_process(saved):
    """Python prints nothing more at exit, and the exit code is that of the command."""
    code = "import sys; from bts_jax.cli import main; main(sys.argv[1:])"
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "table", saved],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=usual,
        )
    assert (
        done.returncode == 1
        and done.stderr
        == "bts-jax: error: cannot write to standard output (No space left on device)\n"
    )


@pytest.mark.slow
def test_too_little_memory_is_one_line(saved, capsys, monkeypatch):
    def greedy(*_):
        raise MemoryError("Unable to allocate 1 TiB")

    monkeypatch.setattr("bts_jax.sweeps.opening.open_results", greedy)
    refused(["table", str(saved)], "not enough memory .Unable to allocate 1 TiB", capsys, 1)
