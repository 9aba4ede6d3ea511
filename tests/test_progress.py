"""The lines that long work prints where there is no terminal, and the hint after Ctrl-C in
Python.
"""

import re
import time

import pytest
from common import keys

import bts_jax as bj
from bts_jax import progress
from bts_jax.comparison import compare
from bts_jax.sweeps import run

BANDITS = {"two": bj.Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.05)


def lines(capsys):
    captured = capsys.readouterr()
    assert not captured.out and "\r" not in captured.err
    return captured.err.splitlines()


def test_a_line_now_and_then(impatient, capsys):
    """The main thread is busy, and a thread prints."""
    with progress.counting(40, "run", quiet=False) as advance:
        advance(0, "bts, compiling")
        time.sleep(0.3)
        advance(10, "bts")
        time.sleep(0.3)
    time.sleep(0.2)
    found = lines(capsys)
    assert 4 <= len(found) <= 12
    assert re.fullmatch(r"bts, compiling: 0% of 40 runs after 00:0\d", found[0])
    assert re.fullmatch(r"bts: 25% of 40 runs after 00:0\d", found[-1])


def test_short_and_quiet_work_says_nothing(monkeypatch, capsys):
    with progress.counting(40, "run", quiet=False) as advance:  # with 30 seconds between two lines
        advance(40, "bts")
    monkeypatch.setattr(progress, "SECONDS", 0.01)
    with progress.counting(40, "run", quiet=True) as advance:
        time.sleep(0.1)
        advance(40, "bts")
    assert not lines(capsys)


class Minimal:
    """A stream that only writes."""

    def write(self, text): ...


@pytest.mark.parametrize("stream", ["none", "closed", "minimal"])
def test_any_stderr_will_do(stream, impatient, monkeypatch, capsys, tmp_path):
    """Nothing is printed to stdout instead, and nothing fails."""
    closed = open(tmp_path / "closed", "w")  # noqa: SIM115
    closed.close()
    monkeypatch.setattr(
        "sys.stderr", {"none": None, "closed": closed, "minimal": Minimal()}[stream]
    )
    with progress.counting(40, "run", quiet=False) as advance:
        time.sleep(0.2)
        advance(40, "bts")
    tell = progress.printed()
    time.sleep(0.1)
    tell("measuring")
    assert capsys.readouterr().out == ""


def test_a_sweep_and_a_comparison_report_pulls_and_runs(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", 0.001)
    bj.sweep(["uniform"], BANDITS, budgets=[200], num_seeds=20)
    assert any(
        re.match(r"uniform on two: \d+% of [\d.]+k? pulls after", line) for line in lines(capsys)
    )
    list(compare(["uniform"], BANDITS["two"], 200, keys(20)))
    assert any(
        re.match(r"uniform(, compiling)?: \d+% of 20 runs after", line) for line in lines(capsys)
    )


def test_steps_are_printed_at_most_every_30_seconds(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress, "SECONDS", 30)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    say = progress.printed()
    for second in range(0, 100, 10):
        now[0] = second
        say(f"measuring {second}")
    assert lines(capsys) == ["measuring 30 ...", "measuring 60 ...", "measuring 90 ..."]


@pytest.mark.parametrize(
    ("out", "hint"),
    [
        ("some.zarr", "to continue: the same call with out='some.zarr'"),
        (None, "nothing is saved: give out= to continue later"),
    ],
)
def test_ctrl_c_in_python_says_how_to_continue(out, hint, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bj.sweep(["uniform"], BANDITS, budgets=[20], num_seeds=2, out=out)
    assert lines(capsys) == [f"sweep: interrupted; {hint}"]
