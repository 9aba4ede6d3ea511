"""Programs of built-in classes are loaded from disk without being traced: only the right ones, and only whole ones."""

import dataclasses
import os
import subprocess
import sys

import jax
import pytest
from common import INSTANCES, assert_same_bits, keys

import bts_jax as bj
from bts_jax import batch, cache, program_cache
from bts_jax.engine import loop
from bts_jax.pytrees import pytree

BANDIT = INSTANCES["bernoulli"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for programs, in which there are none yet; and none in this process."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    monkeypatch.setattr(cache, "_in_use", tmp_path)
    monkeypatch.setattr(batch, "_PROGRAMS", batch.Programs(128))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def files(folder):
    return sorted(folder.glob("*-traced"))


def traces(monkeypatch):
    """A list that grows when a program is traced."""
    found, play = [], loop.play
    monkeypatch.setattr(loop, "play", lambda *args: (found.append(1), play(*args))[1])
    return found


def later(monkeypatch):
    """As if this were a later process."""
    monkeypatch.setattr(batch, "_PROGRAMS", batch.Programs(128))
    monkeypatch.setattr(batch, "_FALLBACKS", {})


def test_a_program_on_disk_is_loaded_and_not_traced(folder, monkeypatch):
    reports, traced = [], traces(monkeypatch)
    first = bj.simulate_batch(bj.KUBE(), BANDIT, 20, keys(18), report=reports.append)
    assert len(files(folder)) == len(traced) == 1
    later(monkeypatch)
    again = bj.simulate_batch(bj.KUBE(), BANDIT, 20, keys(18), report=reports.append)
    assert len(traced) == 1 and batch._FALLBACKS, "what a trace has noted comes with the program"
    assert_same_bits(first, again)
    assert [dataclasses.replace(report, seconds=0) for report in reports[1:]] == [dataclasses.replace(reports[0], seconds=0)]
    one_device = bj.simulate_batch(bj.KUBE(), BANDIT, 20, keys(18), devices=jax.devices()[-1:])  # not the first
    later(monkeypatch)
    assert_same_bits(one_device, bj.simulate_batch(bj.KUBE(), BANDIT, 20, keys(18), devices=jax.devices()[-1:]))
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
    monkeypatch.setattr(bj.BTS, "__call__", lambda self, state, key: (0, state))
    names.append(name())
    monkeypatch.setattr(bj.BTS, "__call__", lambda self, state, key: (1, state))
    names.append(name())
    monkeypatch.setattr(bj.BTS, "requires", ("budget",))
    names.append(name())
    monkeypatch.setattr(program_cache, "_source", lambda: "another")
    names.append(name())
    assert len(set(names)) == len(names) and None not in names
    assert name() == name()


def test_names_are_the_same_in_every_process():
    """Python orders sets of strings by chance, unless PYTHONHASHSEED is set."""
    code = ("import bts_jax\nfrom bts_jax import program_cache\n"
            "print([program_cache._code(one) for one in [*bts_jax.POLICIES.values(), bts_jax.Bernoulli, bts_jax.Beta]])")
    names = {subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, text=True, check=True,
                            capture_output=True).stdout for seed in "12"}
    assert len(names) == 1


@pytree
class Mine(bj.KUBE):
    """A class of a user's own."""


def test_programs_of_other_classes_are_not_kept(folder):
    bj.simulate_batch(Mine(), BANDIT, 5, keys(4))
    bj.simulate_batch(bj.Uniform(), bj.Scaled(Yours(**vars(BANDIT)), scale=2.0), 5, keys(4))
    assert not files(folder)
    bj.simulate_batch(bj.Uniform(), bj.Scaled(BANDIT, scale=2.0), 5, keys(19))
    assert len(files(folder)) == 1


@pytree
class Yours(bj.Bernoulli):
    """Another."""


DAMAGES = [lambda content: content[:-5], lambda content: b"", lambda content: content[:40] + b"x" * 99,
           lambda content: program_cache._packed([[]], b"no program")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_program_is_compiled_again(folder, monkeypatch, damage):
    bandit = bj.Bernoulli.random(jax.random.key(0), 20 + DAMAGES.index(damage))  # each its own: see the test after the next
    first = bj.simulate_batch(bj.Uniform(), bandit, 5, keys(4))
    path, = files(folder)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(whole))
    later(monkeypatch)
    traced = traces(monkeypatch)
    assert_same_bits(first, bj.simulate_batch(bj.Uniform(), bandit, 5, keys(4)))
    assert len(traced) == 1


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


def test_what_comes_from_the_cache_of_jax_is_not_saved(folder, monkeypatch):
    """XLA would write it without its code, and fail when it is played."""
    counts = []
    for _ in range(2):
        later(monkeypatch)
        jax.clear_caches()
        bj.simulate_batch(bj.Uniform(), BANDIT, 7, keys(17))
        counts.append(len(files(folder)))
        for path in files(folder):
            path.unlink()
    assert counts == [1, 0]


def test_nothing_is_kept_where_it_cannot_be_or_must_not_be(folder, monkeypatch):
    monkeypatch.setattr(program_cache, "_source_now", lambda: "edited since")  # what was imported is not what the files say
    bj.simulate_batch(bj.Uniform(), BANDIT, 5, keys(4))
    assert not files(folder)
    monkeypatch.undo()
    monkeypatch.setattr(cache, "_in_use", folder / "gone")
    jax.config.update("jax_compilation_cache_dir", str(folder / "gone"))
    later(monkeypatch)
    bj.simulate_batch(bj.Uniform(), BANDIT, 6, keys(5))  # no folder to write to
    jax.config.update("jax_compilation_cache_dir", "another")
    assert cache.in_use() is None and program_cache.program_file([], (), 0) is None
