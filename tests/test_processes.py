"""Threads, forks, signals and several processes: nothing hangs, nothing is lost, and the bits are
the same.
"""

import _thread
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import chex
import jax
import pytest
from common import keys
from test_results import assert_same, attributes, fill, snapshot

import bts_jax as bj
from bts_jax import cli, devices
from bts_jax.sweeps.opening import begin
from bts_jax.sweeps.results import Results


def start(*arguments, **options):
    """Starts Python as a user would, on one device."""
    environment = {
        **os.environ,
        "BTS_JAX_CPU_DEVICES": "1",
        "JAX_PLATFORMS": "cpu",
        **options.pop("env", {}),
        "PYTHONPATH": os.pathsep.join(
            [str(Path(bj.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        ),
    }
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=environment, text=True, **{**streams, **options}
    )


def ran(*arguments, timeout=120, **options):
    """What Python prints."""
    process = start(*arguments, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out, err


# Cores.


# Each case runs in a fork, which is cheaper than a new process: JAX has been imported, and has not
# started.
CORES = """
import math, os
import chex, jax, matplotlib
os.sched_getaffinity = lambda _: range(8)
os.environ.pop("BTS_JAX_CPU_DEVICES")
for settings, late in [
    ({}, False), ({"BTS_JAX_WORKERS": "3"}, False), ({"BTS_JAX_WORKERS": "100"}, False),
    ({"BTS_JAX_WORKERS": "2", "BTS_JAX_CPU_DEVICES": "5"}, False),
    ({"BTS_JAX_WORKERS": "two"}, False), ({"BTS_JAX_CPU_DEVICES": "0"}, False),
    ({"BTS_JAX_CPU_DEVICES": "5"}, True), ({"BTS_JAX_WORKERS": "8"}, True), ({"BTS_JAX_CPU_DEVICES": "1"}, True),
]:
    if not (child := os.fork()):
        os.environ |= settings
        if late:
            jax.numpy.zeros(3).block_until_ready()
        try:
            import bts_jax
        except ValueError as error:
            print(error, flush=True)
        else:
            limit = math.ceil(min(8, bts_jax.devices._cgroup_limit()))
            print(jax.local_device_count(), limit, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""  # noqa: E501


@pytest.mark.slow
def test_workers_divide_the_cores_and_a_late_import_is_logged_once():
    out, err = ran("-c", CORES)
    *counts, words, zero, late, late_worker, late_single = out.splitlines()
    whole, third, single, given = (int(line.split()[0]) for line in counts)
    cores = int(counts[0].split()[1])
    assert (whole, third, single, given) == (cores, max(cores // 3, 1), 1, 5)
    assert words == (
        "BTS_JAX_WORKERS = 'two' is not a number of worker processes: set a whole number of at "
        "least 1, or unset it"
    )
    assert (
        zero
        == "BTS_JAX_CPU_DEVICES = '0' is not a number of devices: set a whole number of at least "
        "1, or unset it"
    )
    assert [line.split()[0] for line in (late, late_worker, late_single)] == ["1", "1", "1"]
    assert err == (
        "JAX started before bts_jax was imported and has 1 of 5 CPU devices: import bts_jax before "
        "the first computation, or set JAX_NUM_CPU_DEVICES=5\n"
    )


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        (
            "0::/job/step\n",
            {"job/cpu.max": "250000 100000\n", "job/step/cpu.max": "max 100000\n"},
            2.5,
        ),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {}, float("inf")),
        (
            "3:cpuset:/\n2:cpu,cpuacct:/docker/7\n0::/\n",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            "1:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            float("inf"),
        ),
        ("1:name=systemd:/\n", {"cpu.max": "100000 100000\n"}, float("inf")),
        ("what?\n", {}, float("inf")),
    ],
)
def test_the_limit_of_a_container_is_read(groups, files, limit, tmp_path):
    for name, text in {
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert devices._cgroup_limit(str(tmp_path)) == limit


def test_a_limit_below_the_affinity_counts(monkeypatch):
    monkeypatch.delenv("BTS_JAX_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setattr(devices, "_cgroup_limit", lambda: 2.5)
    assert devices.cores() == 3


# Threads.


@pytest.mark.slow
def test_ten_threads_get_the_same_bits_as_one(tmp_path):
    two = bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])

    def batch(policy, seed):
        return lambda _: bj.simulate_batch(policy, two, 20, keys(30, seed))

    def swept(store=None):
        sweep = partial(bj.sweep, ["uniform"], {"two": two}, [5, 20], 12, chunk_size=2)
        return lambda folder: sweep(out=store and folder / store).reward.values

    work = [
        *(batch(bj.Uniform(), seed) for seed in range(3)),
        batch(bj.Oracle(), 0),
        batch(bj.Oracle(), 1),
        swept(),
        swept(),
        swept("one"),
        swept("shared"),
        swept("shared"),
    ]
    with ThreadPoolExecutor(len(work)) as pool:
        for attempt in range(3):  # in the first they compile
            found = [
                future.result(120)
                for future in [pool.submit(piece, tmp_path / f"{attempt}") for piece in work]
            ]
            if not attempt:
                right = [piece(tmp_path / "alone") for piece in work]
            chex.assert_trees_all_equal(found, right)
    assert not [*tmp_path.rglob(".*")], "a temporary file"


def test_ctrl_c_comes_out_of_a_sweep_and_the_next_sweep_goes_on(tmp_path, monkeypatch):
    """As a signal, while other threads play and save."""
    play = partial(
        bj.sweep,
        ["uniform"],
        {"two": bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])},
        [5, 20],
        30,
        chunk_size=1,
    )
    right, put, saved = play(), Results.put, []

    def put_and_interrupt(*arguments):
        put(*arguments)
        saved.append(arguments)
        if len(saved) == 3:
            _thread.interrupt_main()

    monkeypatch.setattr(Results, "put", put_and_interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            play(out=tmp_path / "store")
    finally:
        signal.signal(signal.SIGINT, before)
    assert_same(play(out=tmp_path / "store"), right)


# Signals on the command line.


# In the background, such as that of a shell, Ctrl-C is ignored unless it is asked for.
COMMAND = (
    "import signal; signal.signal(2, signal.default_int_handler); from bts_jax_command import "
    "main; main()"
)
GRID = """
num_seeds = 3000
budgets = [5, 1000]
policies.any.kind = "uniform"
bandits.two = {kind = "bernoulli", reward = [0.9, 0.2], cost = [0.5, 0.5]}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "ready", "signals", "code", "line"),
    [
        (
            ["sweep", "grid.toml"],
            "compiling any on two",
            [2, 2, 2],
            130,
            "interrupted; to continue: bts-jax sweep --resume grid.zarr",
        ),
        (
            ["run", "--policy", "uniform", "--budget", "1000000"],
            "uniform: ",
            [2],
            130,
            "interrupted",
        ),
        (
            ["sweep", "grid.toml"],
            "\rany on two",
            [15, 15],
            143,
            "terminated; to continue: bts-jax sweep --resume grid.zarr",
        ),
    ],
)
def test_a_signal_ends_a_command_soon_with_one_line(
    arguments, ready, signals, code, line, tmp_path
):
    """On a terminal, while a progress bar is shown: when it compiles, plays, or saves."""
    (tmp_path / "grid.toml").write_text(GRID)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    process = start(
        "-c", COMMAND, *arguments, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = ""
    try:
        while ready not in shown:
            shown += os.read(ours, 65536).decode(errors="replace")
        started = time.monotonic()
        for number in signals:
            process.send_signal(number)
            time.sleep(0.01)
        with suppress(OSError):  # the end of a terminal
            while more := os.read(ours, 65536):
                shown += more.decode(errors="replace")
        assert process.wait(60) == code and time.monotonic() - started < 5
    finally:
        process.kill()
        os.close(ours)
    assert shown.endswith(f"\r\x1b[Kbts-jax: {line}\r\n") and "Traceback" not in shown
    if arguments[0] == "sweep":
        assert bj.open_results(tmp_path / "grid.zarr").state.startswith("incomplete")


INTERRUPTED = f"""
import os, sys, threading, time

def interrupt():
    while "jax.numpy" not in sys.modules:
        time.sleep(0.001)
    os.kill(os.getpid(), 2)

threading.Thread(target=interrupt).start()
{COMMAND}
"""


def test_ctrl_c_during_the_import_shows_no_traceback():
    process = start("-c", INTERRUPTED, "run", "--budget", "1000000")
    assert process.communicate(timeout=60) == ("", "") and process.returncode == -signal.SIGINT


@pytest.mark.slow
def test_a_wrong_setting_and_a_full_memory_end_with_one_line(capsys, monkeypatch):
    process = start("-c", COMMAND, "policies", env={"BTS_JAX_WORKERS": "-1"})
    _, err = process.communicate()
    assert (
        process.returncode == 2
        and err.startswith("bts-jax: error: BTS_JAX_WORKERS = '-1' is not")
        and err.count("\n") == 1
    )
    for error in (
        MemoryError("Unable to allocate 14.9 GiB"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no\nmore"),
    ):
        monkeypatch.setattr("bts_jax.comparison.play", Mock(side_effect=error))
        with pytest.raises(SystemExit) as ended:
            cli.main(["run", "--policy", "uniform", "--arms", "2"])
        err = capsys.readouterr().err
        reason = str(error).split("\n")[0]
        assert ended.value.code == 1 and err.count("\n") == 1
        assert err.startswith(f"bts-jax: error: not enough memory ({reason}): ")


# Forks and pools.


POOLS = """
import multiprocessing, os, warnings
from concurrent.futures import ProcessPoolExecutor
import jax
import bts_jax as bj

def play(bandit, key):
    return bj.simulate_batch(bj.Uniform(), bandit, 5, key)

def sweep(bandit):
    return bj.sweep(["uniform"], {"two": bandit}, [5, 10], 7)

def start():
    key = jax.random.split(jax.random.key(0), 7)
    bandit = bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])
    return bandit, key, play(bandit, key)

def reason(future):
    return str(future.exception(60))

if __name__ == "__main__":
    child = os.fork()
    _, _, runs = here = start()
    if not child:
        os._exit(len(runs.rounds))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    with warnings.catch_warnings(), ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        warnings.simplefilter("ignore")  # JAX warns of the fork
        print(reason(pool.submit(play, *here[:2])), reason(pool.submit(sweep, here[0])), sep="\\n")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(play, *here[:2]).result()
    print(type(there).__name__, all((a == b).all() for a, b in zip(jax.tree.leaves(there), jax.tree.leaves(runs), strict=True)))
"""  # noqa: E501


class GPU(NamedTuple):
    client: Any
    local_hardware_id: int
    platform: str = "gpu"


class GPUs:
    """A client of JAX for some GPUs."""

    def __init__(self, *ids):
        self.devices = tuple(GPU(self, i) for i in ids)

    def local_devices(self):
        return self.devices


def test_streams_have_the_same_gpus(monkeypatch, caplog):
    """They are those of further clients of JAX, which are created when they are needed, and
    once.
    """
    made = []

    def make(name, options, _):
        if len(made) == 3:
            raise TypeError("no more")
        made.append((name, options, GPUs(*reversed(options["visible_devices"]))))
        return made[-1][-1]

    def found(client, most):
        return [
            [(gpu.client, gpu.local_hardware_id) for gpu in same]
            for same in devices.streams(client.devices, most)
        ]

    def of(*clients):
        return [[(one, 2), (one, 5)] for one in clients]

    client, other, cpus = GPUs(2, 5), GPUs(2, 5), tuple(jax.devices("cpu"))
    monkeypatch.setattr("jaxlib.xla_client.make_c_api_client", make)
    monkeypatch.setattr(devices, "backends", lambda: {"cpu": None, "cuda": client})
    monkeypatch.setattr(devices, "_further", {})
    monkeypatch.delenv("BTS_JAX_STREAMS", raising=False)
    assert found(client, 1) == of(client) and not made
    assert found(client, 3) == of(client, made[0][2], made[1][2]) == found(client, 3)
    assert (
        found(client, 99) == of(client, *(one[2] for one in made))
        and len(made) == devices.STREAMS - 1
    )
    name, options, _ = made[0]
    assert name == "cuda" and (options["preallocate"], options["visible_devices"]) == (
        False,
        [2, 5],
    )
    assert options["memory_fraction"] < 0.1 and options.keys() > {"platform_name"}
    assert found(other, 4) == of(other), "not a client of CUDA"
    assert devices.streams(cpus, 4) == [cpus]
    monkeypatch.setenv("BTS_JAX_STREAMS", "1")
    assert found(client, 4) == of(client)
    monkeypatch.setenv("BTS_JAX_STREAMS", "none")
    with pytest.raises(ValueError, match="BTS_JAX_STREAMS = 'none' is not a number of streams"):
        devices.streams(client.devices, 4)
    monkeypatch.setenv("BTS_JAX_STREAMS", "9")
    with caplog.at_level("INFO", logger="bts_jax"):
        assert len(found(client, 9)) == 4
    assert "run at a time: JAX cannot create another client (" in caplog.text


@pytest.mark.slow
def test_a_fork_after_jax_has_started_is_refused_and_spawn_works(tmp_path):
    (tmp_path / "pools.py").write_text(POOLS)
    out, err = ran(tmp_path / "pools.py", cwd=tmp_path)
    before, *after, spawned = out.splitlines()
    assert before == "7", "forked before JAX has started"
    assert (
        after
        == [
            "this process was forked after JAX had started, and JAX would hang in it: start "
            "processes with "
            'multiprocessing.get_context("spawn"), or fork before the first use of JAX'
        ]
        * 2
    ), err
    assert spawned == "Run True"


# Kills.


# JAX has not started in the first process, so that its forks can use it: they need not import
# anything.
KILLS = """
import os, random, re, shutil, signal, sys, time
from pathlib import Path
import numpy as np
import bts_jax as bj
from bts_jax.sweeps.run import sweep

def play(store):
    if not (child := os.fork()):
        sweep(["uniform"], {"two": bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])}, [5, 20], 40, chunk_size=1, out=store)
        os._exit(0)
    return child

def files(store):
    return {str(file.relative_to(store)) for file in store.rglob("*") if not re.fullmatch("[.][0-9a-f]{32}", file.name)}

def saved():
    return len([*store.glob("checksum/c*")])

store, whole, dice = Path("store"), Path("whole"), random.Random(0)
started = time.monotonic()
os.waitpid(play(whole), 0)
seconds = (time.monotonic() - started) / 2  # from now on the program is in the cache
right, kills, partial = bj.open_results(whole), 0, 0
while kills < int(sys.argv[1]):
    before, child = saved(), play(store)
    if kills % 2:
        time.sleep(dice.uniform(0, seconds))
    else:  # while it saves
        while saved() == before and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    kills += killed
    if not (store / "zarr.json").exists():
        continue
    found = bj.open_results(store)
    done = ~np.isnan(found.regret.values)
    assert killed or done.all()
    for name in found.data_vars:
        assert (found[name].values[done] == right[name].values[done]).all(), name
    partial += 0 < done.mean() < 1
    if done.all():
        assert files(store) == files(whole)
        shutil.rmtree(store)
first, second = play(store), play(store)
time.sleep(seconds)
os.kill(first, signal.SIGKILL)
assert os.waitpid(second, 0)[1] == 0
os.waitpid(first, 0)
assert bj.open_results(store).drop_attrs().identical(right.drop_attrs()) and files(store) == files(whole)
print(kills, partial, len([*store.rglob(".*")]), len([*Path().glob(".*")]))
"""  # noqa: E501


@pytest.mark.slow
def test_killed_at_random_moments_a_sweep_goes_on_and_ends_with_the_same_bits(tmp_path):
    """A campaign sets BTS_JAX_KILLS=100."""
    number = os.environ.get("BTS_JAX_KILLS", "4")
    out, _ = ran("-c", KILLS, number, cwd=tmp_path, timeout=120 + 10 * int(number))
    kills, partial, *_ = out.split()
    assert kills == number and int(partial) > 0


def test_temporary_files_of_killed_processes_are_removed_when_they_are_old(tmp_path):
    whole = fill(begin(attributes(), 3, tmp_path / "store")).dataset()
    before = snapshot(tmp_path)
    folder = tmp_path / "store" / "reward"
    old, new, mine, aside = (
        folder / name for name in (f".{'0' * 31}a", f".{'0' * 31}b", ".notes", f".{'0' * 31}c")
    )
    for file in (old, new, mine):
        file.write_text("half of a chunk")
    aside.mkdir()  # a folder that was in the way of a chunk
    for file in (old, mine, aside):
        os.utime(file, (0, 0))
    begin(attributes(), 3, tmp_path / "store")
    assert not old.exists() and new.exists() and mine.exists() and aside.exists()
    new.unlink(), mine.unlink(), aside.rmdir()
    assert snapshot(tmp_path) == before
    assert_same(bj.open_results(tmp_path / "store"), whole)
