"""Threads, forks, signals and several processes: nothing hangs, nothing is lost, and the bits stay the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bts_jax as bj
from bts_jax import devices


def start(*arguments, **options):
    """Starts Python as a user would, on one device."""
    environment = {**os.environ, "BTS_JAX_CPU_DEVICES": "1", "JAX_PLATFORMS": "cpu", **options.pop("env", {}),
                   "PYTHONPATH": os.pathsep.join([str(Path(bj.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *map(str, arguments)], env=environment, text=True, **{**streams, **options})


def ran(*arguments, **options):
    """What Python prints."""
    process = start(*arguments, **options)
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out, err


# Cores.


# Each case runs in a fork, which is cheaper than a new process: JAX has been imported, and has not started.
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
"""


def test_workers_divide_the_cores_and_a_late_import_is_logged_once():
    out, err = ran("-c", CORES)
    *counts, words, zero, late, late_worker, late_single = out.splitlines()
    whole, third, single, given = (int(line.split()[0]) for line in counts)
    cores = int(counts[0].split()[1])
    assert (whole, third, single, given) == (cores, max(cores // 3, 1), 1, 5)
    assert words == ("BTS_JAX_WORKERS = 'two' is not a number of worker processes: set a whole number of at least 1, or unset "
                     "it")
    assert zero == "BTS_JAX_CPU_DEVICES = '0' is not a number of devices: set a whole number of at least 1, or unset it"
    assert [line.split()[0] for line in (late, late_worker, late_single)] == ["1", "1", "1"]
    assert err == ("JAX started before bts_jax was imported and has 1 of 5 CPU devices: import bts_jax before the first "
                   "computation, or set JAX_NUM_CPU_DEVICES=5\n")


@pytest.mark.parametrize(("groups", "files", "limit"), [
    ("0::/job/step\n", {"job/cpu.max": "250000 100000\n", "job/step/cpu.max": "max 100000\n"}, 2.5),
    ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
    ("0::/\n", {}, float("inf")),
    ("3:cpuset:/\n2:cpu,cpuacct:/docker/7\n0::/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
                                                      "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 4),
    ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
    ("1:name=systemd:/\n", {"cpu.max": "100000 100000\n"}, float("inf")),
    ("what?\n", {}, float("inf")),
])
def test_the_limit_of_a_container_is_read(groups, files, limit, tmp_path):
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert devices._cgroup_limit(str(tmp_path)) == limit


def test_a_limit_below_the_affinity_counts(monkeypatch):
    monkeypatch.delenv("BTS_JAX_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setattr(devices, "_cgroup_limit", lambda: 2.5)
    assert devices.cores() == 3


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
"""


def test_a_fork_after_jax_has_started_is_refused_and_spawn_works(tmp_path):
    (tmp_path / "pools.py").write_text(POOLS)
    out, err = ran(tmp_path / "pools.py", cwd=tmp_path)
    before, *after, spawned = out.splitlines()
    assert before == "7", "forked before JAX has started"
    assert after == ["this process was forked after JAX had started, and JAX would hang in it: start processes with "
                     'multiprocessing.get_context("spawn"), or fork before the first use of JAX'] * 2, err
    assert spawned == "Run True"
