"""A sweep on several devices and in shards. The store is always the same."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from common import grid_file
from test_results import assert_same, attributes, files, fill, snapshot

import bts_jax as bj
from bts_jax.sweeps import gridfile, schedule
from bts_jax.sweeps.clusters import shard_of
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.opening import begin

TWO = {"two": bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])}


def python(*arguments, devices=1, more=None, **options):
    """Starts Python as a user would."""
    environment = {
        **os.environ,
        **(more or {}),
        "BTS_JAX_CPU_DEVICES": str(devices),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(
            [str(Path(bj.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        ),
    }
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


# Devices.


DEVICES = """
import jax, numpy as np, bts_jax as bj
two = {"two": bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])}
for devices, chunk in ((1, None), (2, 3), (4, 2), (8, 1)):
    results = bj.sweep(["uniform"], two, [5, 10], 7, devices=devices, chunk_size=chunk)
    print(results.reward.values.tobytes().hex(), results.pulls.values.tobytes().hex(), results.state)

# Runs whose lengths differ fifty-fold, as can be told from the costs.
costs = np.random.default_rng(0).permutation(np.geomspace(0.02, 1, 128))
bandit = bj.Bernoulli(reward=np.full((128, 2), 0.5), cost=np.repeat(costs[:, None], 2, 1))
reports = []
runs = bj.simulate_batch(bj.Uniform(), bandit, 40, jax.random.split(jax.random.key(0), 128), devices=jax.devices()[:4],
                         lanes=4, on_report=reports.append)
print(int(runs.rounds.min()), int(runs.rounds.max()), *reports[0].blocks)
"""  # noqa: E501


@pytest.fixture(scope="module")
def small():
    return bj.sweep(["uniform"], TWO, [5, 10], 7)


@pytest.mark.slow
def test_any_number_of_devices_gives_the_same_bits_and_none_waits_for_another(small, tmp_path):
    process = python("-c", DEVICES, devices=8, cwd=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    *said, lengths = out.splitlines()
    assert (
        said
        == [f"{small.reward.values.tobytes().hex()} {small.pulls.values.tobytes().hex()} complete"]
        * 4
    )
    shortest, longest, *blocks = map(int, lengths.split())
    assert longest > 40 * shortest
    assert len(blocks) == 4 and min(blocks) > 0.85 * max(blocks), blocks


# Shards.


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_shares_are_a_partition_and_take_about_as_long(count):
    costs = np.geomspace(0.02, 1, 25)
    bandits = {
        f"{i}": bj.Bernoulli(reward=[0.5] * (2 + i % 2), cost=[cost] * (2 + i % 2))
        for i, cost in enumerate(costs)
    }
    whole = Grid(["kube", "epsilon-first"], bandits, [10, 500], 40, 0)
    results = begin(whole.attributes(), 10, None)
    shares = schedule.shards(whole, results, results.chunks, count)
    assert (
        len(shares) == count
        and sorted(chunk for share in shares for chunk in share) == results.chunks
    )
    loads = [sum(schedule.work_of(whole, results, chunk) for chunk in share) for share in shares]
    longest = max(schedule.work_of(whole, results, chunk) for chunk in results.chunks)
    assert max(loads) <= max(sum(loads) / count * 1.1, longest * 5), loads


def test_shares_in_any_order_make_the_same_store(small, tmp_path):
    play = lambda share: bj.sweep(
        ["uniform"], TWO, [5, 10], 7, chunk_size=3, out=tmp_path / "store", shard=share
    )
    part = play((3, 3))
    assert (
        part.state == "incomplete: 2 of 3 chunks are missing (regret NaN)"
        and (~part.regret.isnull()).any()
    )
    assert play((4, 4)).state == part.state, "fewer chunks than shards"
    play((1, 3))
    before = snapshot(tmp_path)
    play((1, 3))
    assert snapshot(tmp_path) == before, "once more does no harm"
    assert_same(play((2, 3)), small)
    assert_same(bj.open_results(tmp_path / "store"), small)


# Processes of a launcher.


GRID = grid_file(3000, [5, 1000])


@pytest.mark.slow
def test_three_processes_of_a_launcher_make_the_same_store(tmp_path):
    """One of them dies in the middle, and is started again."""
    (tmp_path / "grid.toml").write_text(GRID)
    whole = bj.sweep(**gridfile.read_toml(tmp_path / "grid.toml"))

    def start(number):
        return python(
            "-m",
            "bts_jax",
            "sweep",
            "grid.toml",
            "--shard",
            "auto",
            cwd=tmp_path,
            more={"SLURM_PROCID": str(number), "SLURM_NTASKS": "3", "SLURM_STEP_ID": "0"},
        )

    processes, checksums = (
        [start(number) for number in range(3)],
        tmp_path / "grid.zarr" / "checksum",
    )
    while not any(checksums.glob("c.*")):
        time.sleep(0.01)
    processes[0].kill()
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 0, 0], said
    out, err = start(0).communicate()
    assert out.startswith("grid.zarr: 1 × 1 × 2 × 3000") and err == "", err
    assert_same(bj.open_results(tmp_path / "grid.zarr"), whole)


@pytest.mark.parametrize(
    ("text", "environment", "shard"),
    [
        ("3/8", {}, (3, 8)),
        ("auto", {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (3, 4)),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "7",
                "SLURM_ARRAY_TASK_COUNT": "4",
                "SLURM_ARRAY_TASK_MIN": "5",
            },
            (3, 4),
        ),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "2",
                "SLURM_ARRAY_TASK_COUNT": "3",
                "SLURM_ARRAY_TASK_MIN": "1",
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "4",
                "SLURM_STEP_ID": "0",
            },
            (6, 12),
        ),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "3",
                "SLURM_ARRAY_TASK_COUNT": "8",
                "SLURM_ARRAY_TASK_MIN": "1",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
                "PMI_RANK": "0",
                "PMI_SIZE": "1",
            },
            (3, 8),
        ),
        (
            "auto",
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "6",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
            },
            (6, 6),
        ),
        ("auto", {"PMI_RANK": "0", "PMI_SIZE": "2"}, (1, 2)),
        ("auto/8", {"JOB_COMPLETION_INDEX": "3"}, (4, 8)),
        ("auto", {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"}, (2, 2)),
    ],
)
def test_a_launcher_says_which_shard_a_process_plays(text, environment, shard):
    assert shard_of(text, environment) == shard


@pytest.mark.parametrize(
    ("text", "environment", "named"),
    [
        ("auto", {}, "finds no launcher in the environment.*SLURM_PROCID.*give --shard I/N"),
        (
            "auto",
            {"JOB_COMPLETION_INDEX": "3"},
            "JOB_COMPLETION_INDEX makes this process shard 4.*--shard auto/8",
        ),
        (
            "auto",
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "32"},
            "SLURM_NTASKS = 32, but srun did not start this process",
        ),
        ("auto", {"SLURM_PROCID": "x", "SLURM_NTASKS": "4"}, "SLURM_PROCID = 'x' is not a number"),
        (
            "auto/2",
            {"JOB_COMPLETION_INDEX": "3"},
            "'auto/2' is shard 4 of 2: give a number from 1 to 2",
        ),
        ("0/2", {}, "'0/2' is shard 0 of 2"),
        ("1/0", {}, "'1/0' is shard 1 of 0"),
    ],
)
def test_a_shard_that_is_not_known_is_refused(text, environment, named):
    with pytest.raises(ValueError, match=named):
        shard_of(text, environment)


# Misuse.


def test_a_folder_in_the_place_of_a_chunk_is_put_aside(tmp_path):
    store = tmp_path / "store"
    whole = fill(begin(attributes(), 3, store)).dataset()
    file = files(store, "pulls/c*")[2]
    file.unlink()
    file.mkdir()
    (file / "thesis.tex").write_text("mine")
    assert "1 of 12 chunks" in bj.open_results(store).state
    assert_same(fill(begin(attributes(), 3, store)).dataset(), whole)
    assert [thesis.read_text() for thesis in file.parent.glob(".*/thesis.tex")] == ["mine"]
