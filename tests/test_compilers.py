"""Other processes compile programs, and write them to disk. Whatever happens to them, the runs are the same."""

import json
import os
import subprocess
import sys
import threading
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
from bts_jax import batch, comparison, compilers
from bts_jax.sweeps import playing

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
    assert process.works and process.process.poll() is None
process.process.wait(30)  # it was ended
runs = batch.play([one])[0][0]
print(json.dumps([len(traced), runs.reward.tolist(), runs.pulls.tolist()]))
"""


def lay_out(policy, count=30):
    return batch.lay_out(policy, BANDIT, 20, keys(count))


def wait_for(condition):
    """Waits until a condition holds, for ten seconds at most."""
    for _ in range(100):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("it still runs")


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
    wait_for(lambda: found.others[0].answers.closed)
    assert "not help to compile any more (this process has other settings, or other code)" in caplog.text
    assert not found.others[0].works and found.free.empty(), "it is not asked again"
    assert_same_bits(batch.play([one])[0][0], jax.device_get(bj.simulate_batch(policy, BANDIT, 20, keys(29))))


class Dead:
    """A process that has ended."""

    def __init__(self, *_, **__):
        self.stdin = Mock(write=Mock(side_effect=BrokenPipeError("gone")))
        self.kill, self.wait = Mock(), Mock()


@pytest.mark.parametrize("popen", [Mock(side_effect=OSError("no such program")), Dead])
def test_without_the_other_process_this_one_does_the_work(popen, monkeypatch, caplog):
    caplog.set_level("INFO", "bts_jax")
    monkeypatch.setattr(compilers.subprocess, "Popen", popen)
    found = compilers.Compilers(1)
    for _ in range(2):
        with found.one("task"):
            pass
    assert "another process does not help to compile any more" in caplog.text
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
    processes = compilers.Compilers(0)
    processes.one = Mock(side_effect=AssertionError("asked for"))
    own = chex.dataclass(frozen=True, mappable_dataclass=False)(type("Own", (bj.KUBE,), {}))
    one = lay_out(own())
    program, _ = batch._program_of([one])
    assert program.disk is None
    batch.lower([one], processes).compile()
    program.disk = Mock(has=lambda: True)  # it is on disk
    batch.lower([one], processes)
    program.disk = Mock(has=lambda: False)
    with pytest.raises(AssertionError, match="asked for"):
        batch.lower([one], processes)
    batch.forget([one])


def test_the_number_of_processes(monkeypatch):
    monkeypatch.delenv("BTS_JAX_COMPILERS", raising=False)
    monkeypatch.setattr(compilers, "in_use", lambda: "folder")

    def most(count, cores, memory=None):
        monkeypatch.setattr(compilers, "cores", lambda: cores)
        device = CPU if memory is None else SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": memory})
        return compilers._most(count, device)

    assert [most(40, cores) for cores in (1, 2, 3, 4, 8, 16, 64)] == [0, 0, 0, 1, 3, 7, 7] and most(99, 64) == 8
    assert [most(count, 64) for count in (1, 5, 6, 23)] == [0, 0, 1, 4], "a process is for several programs"
    assert most(40, 64, 8 * 2**30) == 0 and most(40, 64, 100 * 2**30) == 6, "each takes some memory of a GPU"
    with compilers.compilers(40, CPU) as found:
        assert found is not None and found.others == [], "none starts before a program is missing"
    monkeypatch.setattr(compilers, "in_use", lambda: None)
    with compilers.compilers(40, CPU) as found:
        assert found is None, "programs pass from one process to another in the cache"
    monkeypatch.setattr(compilers, "in_use", lambda: "folder")
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
print(one.process.pid, one.works, flush=True)
os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    pid, works = done.stdout.split()
    assert works == "True"
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"))


@pytest.mark.slow
def test_what_cannot_be_read_ends_a_process():
    """For example a class that is not there any more, because the package on disk was replaced."""
    process = compilers._Process()
    process.answer()
    assert process.works
    process.process.stdin.write(b"cbts_jax.batch\nNoSuchClass\n.")
    process.process.stdin.flush()
    process.answer()
    assert not process.works
    wait_for(lambda: process.answers.closed)


def test_sweeps_and_comparisons_ask_other_processes(monkeypatch):
    monkeypatch.setenv("BTS_JAX_COMPILERS", "2")
    monkeypatch.setattr(compilers, "in_use", lambda: "folder")
    asked, lower = [], batch.lower
    for module in (playing, comparison):
        monkeypatch.setattr(module, "lower", lambda batches, processes: asked.append(processes) or lower(batches))
    bj.sweep(["uniform", "oracle"], {"a": BANDIT}, [5], 3)
    list(bj.compare(["uniform", "oracle"], BANDIT, 5, keys(3)))
    assert len(asked) == 4 and {type(one) for one in asked} == {compilers.Compilers}


def test_a_program_that_is_ready_does_not_wait_for_an_earlier_one(monkeypatch):
    lower, play, begun, second_is_played = batch.lower, batch.play, [], threading.Event()

    def lowered(batches, _):
        first = not begun
        begun.append(batches[0].kind)

        def compile():
            assert not first or second_is_played.wait(60)
            lower(batches).compile()

        return SimpleNamespace(compile=compile)

    def played(batches):
        if batches[0].kind != begun[0]:
            second_is_played.set()
        return play(batches)

    monkeypatch.setattr(playing, "lower", lowered)
    monkeypatch.setattr(playing, "play", played)
    assert bj.sweep(["uniform", "oracle"], {"a": BANDIT}, [5], 3).rounds.min() > 0
