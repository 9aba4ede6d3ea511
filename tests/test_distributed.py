"""A sweep on several devices, by several processes and in shares: one and the same store, whoever played what."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from test_results import assert_same, attributes, files, fill, snapshot

import bts_jax as bj
from bts_jax.sweeps import gridfile, run, schedule
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.opening import begin, join
from bts_jax.sweeps.processes import Meeting

TWO = {"two": bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])}


def python(*arguments, devices=1, **options):
    """Starts Python as a user would."""
    environment = {**os.environ, "BTS_JAX_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu",
                   "PYTHONPATH": os.pathsep.join([str(Path(bj.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen([sys.executable, *arguments], env=environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **options)


def free_address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


# Devices.


DEVICES = """
import jax, numpy as np, bts_jax as bj
two = {"two": bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])}
for devices, chunk in ((1, None), (2, 3), (4, 2), (8, 1)):
    results = bj.sweep(["uniform"], two, [5, 10], 7, devices=devices, chunk=chunk)
    print(results.reward.values.tobytes().hex(), results.pulls.values.tobytes().hex(), results.state)

# Runs whose lengths differ fifty-fold, as can be told from the costs.
costs = np.random.default_rng(0).permutation(np.geomspace(0.02, 1, 128))
bandit = bj.Bernoulli(reward=np.full((128, 2), 0.5), cost=np.repeat(costs[:, None], 2, 1))
reports = []
runs = bj.simulate_batch(bj.Uniform(), bandit, 40, jax.random.split(jax.random.key(0), 128), devices=jax.devices()[:4],
                         lanes=4, report=reports.append)
print(int(runs.rounds.min()), int(runs.rounds.max()), *reports[0].blocks)
"""


@pytest.fixture(scope="module")
def small():
    return bj.sweep(["uniform"], TWO, [5, 10], 7)


def test_any_number_of_devices_gives_the_same_bits_and_none_waits_for_another(small, tmp_path):
    process = python("-c", DEVICES, devices=8, cwd=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    *said, lengths = out.splitlines()
    assert said == [f"{small.reward.values.tobytes().hex()} {small.pulls.values.tobytes().hex()} complete"] * 4
    shortest, longest, *blocks = map(int, lengths.split())
    assert longest > 40 * shortest
    assert len(blocks) == 4 and min(blocks) > 0.85 * max(blocks), blocks


# Shares.


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_shares_are_a_partition_and_take_about_as_long(count):
    costs = np.geomspace(0.02, 1, 25)
    bandits = {f"{i}": bj.Bernoulli(reward=[0.5] * (2 + i % 2), cost=[cost] * (2 + i % 2)) for i, cost in enumerate(costs)}
    whole = Grid(["kube", "epsilon-first"], bandits, [10, 500], 40, 0)
    results = begin(whole.attributes(), 10, None)
    shares = schedule.shards(whole, results, results.units, count)
    assert len(shares) == count and sorted(unit for share in shares for unit in share) == results.units
    loads = [sum(schedule.work_of(whole, results, unit) for unit in share) for share in shares]
    longest = max(schedule.work_of(whole, results, unit) for unit in results.units)
    assert max(loads) <= max(sum(loads) / count * 1.1, longest * 5), loads


def test_shares_in_any_order_make_the_same_store(small, tmp_path):
    play = lambda share: bj.sweep(["uniform"], TWO, [5, 10], 7, chunk=3, out=tmp_path / "store", shard=share)  # noqa: E731
    part = play((3, 3))
    assert part.state == "incomplete: 2 of 3 units are missing (regret NaN)" and (~part.regret.isnull()).any()
    assert play((4, 4)).state == part.state, "fewer units than shares"
    play((1, 3))
    before = snapshot(tmp_path)
    play((1, 3))
    assert snapshot(tmp_path) == before, "once more does no harm"
    assert_same(play((2, 3)), small)
    assert_same(bj.open_results(tmp_path / "store"), small)


# Processes.


GRID = """
seeds = 3000
budgets = [5, 1000]
[policies.any]
kind = "uniform"
[bandits.two]
kind = "bernoulli"
reward = [0.9, 0.2]
cost = [0.5, 0.5]
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    file = tmp_path_factory.mktemp("whole") / "grid.toml"
    file.write_text(GRID)
    return bj.sweep(**gridfile.read_toml(file), chunk=500)


@pytest.fixture
def start(tmp_path):
    """Starts all processes of one sweep."""
    (tmp_path / "grid.toml").write_text(GRID)

    def begin_all(count):
        address = free_address()
        return [python("-m", "bts_jax", "sweep", "grid.toml", "--distributed", "--coordinator", address, "--processes",
                       str(count), "--process", str(i), cwd=tmp_path) for i in range(count)]

    return begin_all


def test_three_processes_make_the_same_store(start, tmp_path, whole):
    processes = start(3)
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0] and all(err == "" for _, err in said), said
    assert any(out.startswith("grid.zarr: 1 × 1 × 2 × 3000") for out, _ in said), "whoever is last"
    assert_same(bj.open_results(tmp_path / "grid.zarr"), whole)


def test_a_process_that_dies_takes_nothing_with_it(start, tmp_path, whole):
    """SIGKILL for process 0, with which all others are connected; then one process does the rest."""
    first, second = start(2)
    store = tmp_path / "grid.zarr"
    made = gridfile.read_toml(tmp_path / "grid.toml")
    plan = Grid(made["policies"], made["bandits"], made["budgets"], made["seeds"], 0)
    results = begin(plan.attributes(), 100, None)
    shares = schedule.shards(plan, results, results.units, 2)
    saved = lambda share: sum((store / "checksum" / ".".join(map(str, ("c", *unit)))).exists() for unit in share)  # noqa: E731
    assert [len(share) for share in shares] == [15, 15]
    while not saved(shares[0]):
        time.sleep(0.01)
    first.kill()
    first.communicate()
    assert first.returncode == -signal.SIGKILL and saved(shares[0]) < 15
    out, err = second.communicate()
    assert second.returncode == 0 and err == "" and saved(shares[1]) == 15, err
    left = 15 - saved(shares[0])
    assert out == f"grid.zarr: the share of process 1 is done; {left} of 30 units are still missing, of other shares\n"
    assert bj.open_results(store).state == f"incomplete: {left} of 30 units are missing (regret NaN)"
    (last,) = start(1)
    out, err = last.communicate()
    assert last.returncode == 0 and out.startswith("grid.zarr: 1 × 1 × 2 × 3000") and err == "", err
    assert_same(bj.open_results(store), whole)


# Misuse.


def test_processes_that_do_not_meet_are_told_so_in_time():
    started = time.monotonic()
    for arguments, reason in ((("127.0.0.1:1", 2, 1), "DEADLINE_EXCEEDED"), ((free_address(), 2, 5), "process_id < num_proc")):
        with pytest.raises(ConnectionError, match=f"did not meet within 2 s .*{reason}.*--timeout waits longer"):
            Meeting(*arguments, timeout=2)
    assert time.monotonic() - started < 60


def test_when_process_0_refuses_the_others_are_told_so(tmp_path):
    """Two processes that meet, here as threads."""
    address = free_address()

    def process(index, budgets):
        with Meeting(address, 2, index, timeout=30) as meeting:
            return run.fill(["uniform"], TWO, budgets, 7, out=tmp_path / "store", meeting=meeting)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(process, 0, [10, 5]), pool.submit(process, 1, [5, 10])
        with pytest.raises(ValueError, match="budgets has 10 before 5"):
            first.result()
        with pytest.raises(ConnectionError, match="process 0 has ended; see what it says"):
            second.result()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("name", "value"), [("jax", "0.0.1"), ("bts_jax", "0.0.0"), ("platform", "gpu"), ("seeds", 8)])
def test_another_specification_than_that_of_process_0_is_refused(name, value, tmp_path):
    theirs = begin(attributes(), 3, tmp_path / "store").attributes
    before = snapshot(tmp_path)
    ours = {"specification": json.dumps({**json.loads(theirs["specification"]), name: value})}
    with pytest.raises(ValueError, match=rf"{name}: .* for process 0, {value} here.*same versions"):
        join(ours, tmp_path / "store", theirs, theirs["specification"], 0)
    assert snapshot(tmp_path) == before


def test_a_store_that_others_do_not_see_is_named(tmp_path):
    theirs = begin(attributes(), 3, tmp_path / "store").attributes
    begin(attributes(), 3, tmp_path / "other")  # of the same grid, begun by itself
    before = snapshot(tmp_path)
    for name in ("other", "nowhere"):
        with pytest.raises(ValueError, match=r"not seen at .* here, after 0\.3 s: name a folder on a file system that all"):
            join(attributes(), tmp_path / name, theirs, theirs["specification"], 0.3)
    assert snapshot(tmp_path) == before
    assert join(attributes(), tmp_path / "store", theirs, theirs["specification"], 0.3).attributes == theirs


def test_a_folder_in_the_place_of_a_chunk_is_put_aside(tmp_path):
    store = tmp_path / "store"
    whole = fill(begin(attributes(), 3, store)).dataset()
    file = files(store, "pulls/c*")[2]
    file.unlink()
    file.mkdir()
    (file / "thesis.tex").write_text("mine")
    assert "1 of 12 units" in bj.open_results(store).state
    assert_same(fill(begin(attributes(), 3, store)).dataset(), whole)
    assert [thesis.read_text() for thesis in file.parent.glob(".*/thesis.tex")] == ["mine"]
