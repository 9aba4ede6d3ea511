"""Programs are compiled in other threads, in order, while the caller waits or does something
else.
"""

import threading
import time

import jax
import pytest

import bts_jax as bj
from bts_jax import batch, comparison
from bts_jax.engine.compile.programs import Registry
from bts_jax.engine.compile.threads import compiling, patiently
from bts_jax.sweeps import playing


class Traced:
    def __init__(self, compile):
        self.compile = compile


@pytest.mark.parametrize("first_alone", [False, True])
def test_the_first_is_compiled_alone_if_somebody_waits_for_it(first_alone, monkeypatch):
    monkeypatch.setattr("bts_jax.engine.compile.threads.cores", lambda: 2)
    done, second_is_compiled, first_may_end = [], threading.Event(), threading.Event()

    def first():
        done.append("first begins")
        assert first_may_end.wait(30)
        done.append("first ends")

    def second():
        done.append("second")
        second_is_compiled.set()

    with compiling(first_alone) as programs:
        one = programs.begin(1, lambda: done.append("trace first") or Traced(first))
        two = programs.begin(2, lambda: done.append("trace second") or Traced(second))
        assert programs.begin(1, lambda: pytest.fail("it is under way")) is one
        assert second_is_compiled.wait(0.2 if first_alone else 30) == (not first_alone)
        first_may_end.set()
        patiently(one, lambda: None), patiently(two, lambda: None)
    assert done.index("trace first") < done.index("trace second") < done.index("second")
    assert (done.index("trace second") < done.index("first ends")) == (not first_alone)


def test_errors_come_where_the_program_is_waited_for():
    def wrong():
        raise RuntimeError("no such program")

    with compiling(first_alone=True) as programs:
        failing, other = (
            programs.begin("failing", wrong),
            programs.begin("other", lambda: Traced(lambda: None)),
        )
        with pytest.raises(RuntimeError, match="no such program"):
            patiently(failing, lambda: None)
        assert patiently(other, lambda: None) is None


def test_an_interrupt_is_heard_while_a_program_is_compiled():
    may_end = threading.Event()

    def interrupt():
        raise KeyboardInterrupt

    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), compiling() as programs:
        patiently(programs.begin("slow", lambda: Traced(lambda: may_end.wait(30))), interrupt)
    may_end.set()
    assert time.perf_counter() - started < 10, "nor is it waited for"


@pytest.mark.slow
def test_compare_plays_the_programs_that_were_compiled_ahead(monkeypatch):
    """One program for each policy, in the given order."""
    made, make = [], batch._program
    monkeypatch.setattr(
        batch, "_program", lambda *arguments: made.append(arguments) or make(*arguments)
    )
    monkeypatch.setattr(batch, "PROGRAMS", Registry(128))
    compiled, played, lower, play = [], [], batch.lower, comparison.play

    def lowered(batches):
        result = lower(batches)
        return Traced(lambda: compiled.append(len(compiled)) or result.compile())

    def with_a_note(batches):
        played.append((str(batches[0].signature.structure), len(compiled)))
        return play(batches)

    monkeypatch.setattr(comparison, "lower", lowered)
    monkeypatch.setattr(comparison, "play", with_a_note)
    bandit = bj.Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9])
    rows = list(
        bj.compare(
            ["uniform", "kube"], bandit, 10, jax.random.split(jax.random.key(0), 6), quiet=True
        )
    )
    assert [row.policy for row in rows] == ["uniform", "kube"] and len(made) == len(compiled) == 2
    (first, _), (second, programs) = played
    assert "Uniform" in first and "KUBE" in second and programs == 2
    assert all(row.compile_seconds > 0 and row.seconds > 0 for row in rows)


def test_a_program_that_is_ready_does_not_wait_for_an_earlier_one(monkeypatch):
    lower, play, begun, second_is_played = batch.lower, batch.play, [], threading.Event()

    def lowered(batches):
        first = not begun
        begun.append(batches[0].signature)

        def compile():
            assert not first or second_is_played.wait(60)
            lower(batches).compile()

        return Traced(compile)

    def played(batches):
        if batches[0].signature != begun[0]:
            second_is_played.set()
        return play(batches)

    monkeypatch.setattr(playing, "lower", lowered)
    monkeypatch.setattr(playing, "play", played)
    assert (
        bj.sweep(
            ["uniform", "oracle"], {"a": bj.Bernoulli(reward=[0.3, 0.6], cost=[0.5, 0.4])}, [5], 3
        ).rounds.min()
        > 0
    )
