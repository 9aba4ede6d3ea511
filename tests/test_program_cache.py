"""Programs of built-in classes are loaded from disk without being traced: only the right ones, and only whole ones."""

import dataclasses
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import jax
import numpy as np
import pytest
from common import INSTANCES, assert_same_bits, keys

import bts_jax as bj
from bts_jax import batch, cache, game, program_cache
from bts_jax.engine import loop
from bts_jax.engine.programs import OnCPU
from bts_jax.policies import kube
from bts_jax.pytrees import pytree

BANDIT = INSTANCES["bernoulli"]

# Where a program must be compiled, no other test may have batches of the same size: JAX's cache would have its program.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder for programs; this process has no programs either."""
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir",
                                                           "jax_persistent_cache_min_compile_time_secs")}
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    monkeypatch.setattr(cache, "_in_use", tmp_path)
    monkeypatch.setattr(batch, "_PROGRAMS", batch.Programs(128))
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


def files(folder):
    return sorted(folder.glob("*-traced"))


def traces(monkeypatch):
    """A list that grows when a program is traced."""
    found, play = [], loop.play
    monkeypatch.setattr(loop, "play", lambda *args: (found.append(1), play(*args))[1])
    return found


def later(monkeypatch):
    """Behaves as a later process."""
    monkeypatch.setattr(batch, "_PROGRAMS", batch.Programs(128))
    monkeypatch.setattr(batch, "_FALLBACKS", {})


@pytest.mark.slow
@pytest.mark.all_devices
def test_a_program_on_disk_is_loaded_and_not_traced(folder, monkeypatch):
    reports, traced = [], traces(monkeypatch)
    first = bj.simulate_batch(bj.Uniform(), BANDIT, 20, keys(46), on_report=reports.append)
    assert len(files(folder)) == len(traced) == 1
    later(monkeypatch)
    again = bj.simulate_batch(bj.Uniform(), BANDIT, 20, keys(46), on_report=reports.append)
    assert len(traced) == 1 and batch._FALLBACKS, "what a trace has noted comes with the program"
    assert_same_bits(first, again)
    assert [dataclasses.replace(report, seconds=0) for report in reports[1:]] == [dataclasses.replace(reports[0], seconds=0)]
    one_device = bj.simulate_batch(bj.Uniform(), BANDIT, 20, keys(46), devices=jax.devices()[-1:])  # not the first
    later(monkeypatch)
    assert_same_bits(one_device, bj.simulate_batch(bj.Uniform(), BANDIT, 20, keys(46), devices=jax.devices()[-1:]))
    assert len(traced) == len(files(folder)) == 1 + (len(jax.devices()) > 1)
    assert_same_bits(first, one_device)


def test_whatever_a_program_depends_on_is_in_its_name(monkeypatch):
    monkeypatch.setattr(cache, "in_use", lambda: cache.place())

    def name(policy=bj.BTS(), bandit=BANDIT, rest=1, devices=jax.devices()[:1]):  # noqa: B008
        place = program_cache.program_file([jax.tree.structure((policy, bandit))], tuple(devices), rest)
        return place and place.path.name

    names = [name(), name(policy=bj.KUBE()), name(policy=bj.PDBwK()), name(bandit=INSTANCES["multinomial"]), name(rest=2),
             name(policy=bj.UCBBV1()), name(policy=bj.UCBBV1(min_cost=0.1)), name(bandit=bj.Scaled(BANDIT, scale=2.0))]
    monkeypatch.setenv("XLA_FLAGS", "--xla_other")
    names.append(name())
    monkeypatch.undo()
    monkeypatch.setattr(cache, "in_use", lambda: cache.place())
    with jax.numpy_dtype_promotion("strict"):
        names.append(name())
    monkeypatch.setattr(program_cache, "_source", lambda: "another")
    names.append(name())
    assert len(set(names)) == len(names) and None not in names
    assert name() == name()


@pytest.mark.slow
def test_names_are_the_same_in_every_process():
    """The order of sets of strings is random in Python, unless PYTHONHASHSEED is set. Earlier runs do not matter either."""
    code = ("import jax, bts_jax\nfrom bts_jax import program_cache\nbefore = program_cache._live()\n"
            "bandit = bts_jax.Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.5])\n"
            "bts_jax.simulate_batch(bts_jax.Uniform(), bandit, 2, jax.random.split(jax.random.key(0), 2))\n"
            "import bts_jax.sweeps.run\nassert program_cache._live() == before\nprint(before)")
    names = {subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, text=True, check=True,
                            capture_output=True).stdout for seed in "12"}
    assert len(names) == 1


def make(number):
    return lambda self, state, key: (number, state)


def test_whatever_was_replaced_is_in_the_name(monkeypatch):
    """A method, its default values or what it closes over, a function of a module, a number of a class."""
    digests = [program_cache._live()]
    for place, name, value in ((bj.BTS, "__call__", make(0)), (bj.BTS, "__call__", make(1)), (bj.BTS, "requires", ("budget",)),
                               (bj.BTS, "update", jax.jit(lambda self, state, *rest: state)),
                               (kube, "over", lambda a, b: -b), (kube, "over", lambda a, b, c=2: -b),
                               (kube, "over", lambda a, b, c=3: -b), (game, "canonicalize", lambda leaf: leaf)):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            digests.append(program_cache._live())
    assert len(set(digests)) == len(digests) and program_cache._live() == digests[0]


def test_all_built_in_classes_have_a_name(folder):
    for one in (*(policy() for policy in bj.POLICIES.values()), *INSTANCES.values()):
        assert program_cache.program_file([jax.tree.structure(one)], tuple(jax.devices()), 0) is not None, one


@pytree
class Mine(bj.Uniform):
    """A class of a user's own."""


@pytest.mark.slow
def test_programs_of_other_classes_are_not_kept(folder):
    bj.simulate_batch(Mine(), BANDIT, 5, keys(4))
    bj.simulate_batch(bj.Uniform(), bj.Scaled(Yours(**vars(BANDIT)), scale=2.0), 5, keys(4))
    assert not files(folder)
    bj.simulate_batch(bj.Uniform(), bj.Scaled(BANDIT, scale=2.0), 5, keys(58))
    assert len(files(folder)) == 1


@pytree
class Yours(bj.Bernoulli):
    """Another."""


@pytest.mark.slow
def test_a_damaged_program_is_compiled_again(folder, monkeypatch):
    bandit = bj.Bernoulli.random(jax.random.key(0), 20)  # JAX's cache must not have the program
    first = bj.simulate_batch(bj.Uniform(), bandit, 5, keys(4))
    path, = files(folder)
    whole = path.read_bytes()
    traced = traces(monkeypatch)
    for damaged in (whole[:-5], b"", whole[:40] + b"x" * 99, program_cache._packed([[]], b"no program")):
        path.unlink(missing_ok=True)
        path.write_bytes(damaged)
        later(monkeypatch)
        traced.clear()
        assert_same_bits(first, bj.simulate_batch(bj.Uniform(), bandit, 5, keys(4)))
        assert len(traced) == 1


@pytest.mark.slow
def test_a_program_that_fails_is_compiled_again(folder, monkeypatch):
    first = bj.simulate_batch(bj.Uniform(), BANDIT, 5, keys(4))
    later(monkeypatch)
    traced = traces(monkeypatch)
    if jax.devices()[0].platform != "cpu":
        pytest.skip("programs for CPUs")

    def fail(shares):
        raise jax.errors.JaxRuntimeError("NOT_FOUND: a function")

    monkeypatch.setattr(batch._OnDisk, "load", lambda self, batches: fail)
    assert_same_bits(first, bj.simulate_batch(bj.Uniform(), BANDIT, 5, keys(4)))
    assert len(traced) == 1


def test_two_threads_may_fail_at_once():
    """Both play the program that is compiled instead, and the file is removed."""
    both = Barrier(2)

    class Disk:
        there = True

        def has(self):
            return self.there

        def load(self, batches):
            def fail(batches):
                both.wait(20)
                raise jax.errors.JaxRuntimeError("NOT_FOUND: a function")

            return fail

        def save(self, program): ...

        def remove(self):
            self.there = False

    disk = Disk()
    program = OnCPU(lambda batches: [x + 1 for x in batches], False, disk)
    with ThreadPoolExecutor(2) as pool:
        assert [out[0].tolist() for out in pool.map(program, [[np.ones(1)]] * 2)] == [[2], [2]]
    assert not disk.there
    program.clear_cache()
    assert program([np.ones(1)])[0].tolist() == [2]


@pytest.mark.slow
def test_what_comes_from_the_cache_of_jax_is_not_saved(folder, monkeypatch):
    """XLA would write it without its code, and it would fail when it is run."""
    counts = []
    for _ in range(2):
        later(monkeypatch)
        jax.clear_caches()
        bj.simulate_batch(bj.Uniform(), BANDIT, 7, keys(94))
        counts.append(len(files(folder)))
        for path in files(folder):
            path.unlink()
    assert counts == [1, 0]


@pytest.mark.slow
def test_nothing_is_kept_where_it_cannot_be_or_must_not_be(folder, monkeypatch):
    monkeypatch.setattr(program_cache, "_source_now", lambda: "edited since")  # the imported code differs from the files
    bj.simulate_batch(bj.Uniform(), BANDIT, 5, keys(4))
    assert not files(folder)
    monkeypatch.undo()
    monkeypatch.setattr(cache, "_in_use", folder / "gone")
    jax.config.update("jax_compilation_cache_dir", str(folder / "gone"))
    later(monkeypatch)
    bj.simulate_batch(bj.Uniform(), BANDIT, 6, keys(5))  # no folder to write to
    jax.config.update("jax_compilation_cache_dir", "another")
    assert cache.in_use() is None and program_cache.program_file([], (), 0) is None
