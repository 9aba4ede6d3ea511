"""Other processes compile programs, and write them to disk. Whatever happens to them, the runs are the same."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace
from unittest.mock import Mock

import chex
import haste
import jax
import pytest
from common import assert_same_bits, keys

import bts_jax as bj
from bts_jax import batch, compilers

BANDIT = bj.Bernoulli(reward=[0.3, 0.6], cost=[0.5, 0.4])
CPU = SimpleNamespace(platform="cpu")

# In a fresh process, whose settings are those of the processes that it starts. This process is never free, so that the other
# one has to compile.
SCRIPT = """
import sys, jax, json
import bts_jax as bj
from bts_jax import batch, compilers, program_cache
assert bj.enable_cache() is not None
traced = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, fun_name="", **rest: traced.append(fun_name) if "trace" in event and "play_shard" in str(fun_name) else 0)
one = batch.lay_out(bj.KUBE(), bj.Bernoulli(reward=[0.3, 0.6], cost=[0.5, 0.4]), 20, jax.random.split(jax.random.key(0), 30))
with compilers.compilers(2, jax.devices()[0]) as processes:
    assert processes.most == 1 and processes.free.get() is None
    batch.lower([one], processes).compile()
    process, = processes.others
    assert process.works and process.pipe.poll() is None
process.pipe.wait(30)  # it was ended
runs = batch.play([one])[0][0]
print(json.dumps([len(traced), runs.reward.tolist(), runs.pulls.tolist()]))
"""


def lay_out(policy, count=30):
    return batch.lay_out(policy, BANDIT, 20, keys(count))


@pytest.mark.slow
def test_what_another_process_compiles_is_not_traced_here(tmp_path):
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "BTS_JAX_COMPILERS": "2", "XLA_FLAGS": haste.flags()}
    env.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    traced, reward, pulls = json.loads(done.stdout)
    runs = batch.play([lay_out(bj.KUBE())])[0][0]
    assert traced == 0 and reward == runs.reward.tolist() and pulls == runs.pulls.tolist()


@pytest.mark.slow
def test_a_process_with_other_settings_compiles_nothing(caplog):
    """`haste` has replaced options of the compiler here, so this process traces the program."""
    caplog.set_level("INFO", "bts_jax")
    policy = bj.KUBE()
    one = lay_out(policy, 29)
    found = compilers.Compilers(1)
    assert found.free.get() is None, "this process is never free"
    batch.lower([one], found).compile()
    found.close()
    while not found.others[0].pipe.stdout.closed:
        time.sleep(0.01)
    assert "a program is not compiled in another process (this process has other settings, or other code)" in caplog.text
    assert_same_bits(batch.play([one])[0][0], jax.device_get(bj.simulate_batch(policy, BANDIT, 20, keys(29))))


class Dead:
    """A process that has ended."""

    def __init__(self, *_, **__):
        self.stdin = Mock(write=Mock(side_effect=BrokenPipeError("gone")))
        self.stdout = Mock(read=Mock(return_value=b""), readline=Mock(return_value=b""))
        self.kill, self.wait = Mock(), Mock()


@pytest.mark.parametrize("popen", [Mock(side_effect=OSError("no such program")), Dead])
def test_without_the_other_process_this_one_does_the_work(popen, monkeypatch, caplog):
    caplog.set_level("INFO", "bts_jax")
    monkeypatch.setattr(compilers.subprocess, "Popen", popen)
    found = compilers.Compilers(1)
    for _ in range(2):
        with found.one("task"):
            pass
    assert "a process that compiles programs has ended" in caplog.text
    assert found.free.get(timeout=5) is None and found.free.empty(), "only this process is left"
    found.close()


def test_a_process_that_dies_at_work_is_not_used_again(monkeypatch):
    found = compilers.Compilers(0)
    process = SimpleNamespace(works=True, compile=lambda task: setattr(process, "works", False))
    found.free.get()
    found.free.put(process)
    with found.one("task"):
        assert not process.works
    assert found.free.empty()


def test_nothing_is_traced_after_the_end():
    found = compilers.Compilers(0)
    found.close()
    with pytest.raises(CancelledError), found.one("task"):
        pytest.fail("the sweep has ended")


def test_only_missing_programs_are_asked_for():
    """Programs of user-defined classes have no file, and are traced here."""
    processes = Mock(one=Mock(side_effect=AssertionError("asked for")))
    own = chex.dataclass(frozen=True, mappable_dataclass=False)(type("Own", (bj.KUBE,), {}))
    one = lay_out(own())
    assert batch._program_of([one])[0].disk is None
    batch.lower([one], processes).compile()


def test_the_number_of_processes(monkeypatch):
    monkeypatch.delenv("BTS_JAX_COMPILERS", raising=False)

    def most(count, cores, memory=None):
        monkeypatch.setattr(compilers, "cores", lambda: cores)
        device = CPU if memory is None else SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": memory})
        return compilers._most(count, device)

    assert [most(40, cores) for cores in (1, 2, 3, 4, 8, 16, 64)] == [0, 0, 0, 1, 3, 7, 7] and most(99, 64) == 8
    assert [most(count, 64) for count in (1, 5, 6, 23)] == [0, 0, 1, 4], "a process is for several programs"
    assert most(40, 64, 8 * 2**30) == 0 and most(40, 64, 100 * 2**30) == 6, "each takes some memory of a GPU"
    with compilers.compilers(40, CPU) as found:
        assert found is not None and found.others == [], "none starts before a program is missing"
    monkeypatch.setenv("BTS_JAX_COMPILERS", "3")
    assert most(40, 2) == 2 and most(2, 2) == 1 and most(0, 2) == 0
    monkeypatch.setenv("BTS_JAX_COMPILERS", "1")
    with compilers.compilers(40, CPU) as found:
        assert found is None
    monkeypatch.setenv("BTS_JAX_COMPILERS", "many")
    with pytest.raises(ValueError, match="BTS_JAX_COMPILERS = 'many' is not a number of processes"):
        most(40, 64)


@pytest.mark.slow
def test_a_process_ends_with_the_one_that_started_it():
    script = """import os
from bts_jax import compilers
one = compilers._Process()
one.answer()
print(one.pipe.pid, one.works, flush=True)
os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    pid, works = done.stdout.split()
    assert works == "True"
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid}"):
            break
        time.sleep(0.1)
    else:
        pytest.fail("it still runs")
