"""The reference implementations play the same game, and the benchmark reports what it measured. No
test here is timed.
"""

import json
from functools import cache

import jax
import numpy as np
import pytest
from common import INSTANCES, keys

import bts_jax as bj
from bts_jax import ablation, bench, cli, latency, reference_implementations

BUDGET, RUNS = 40, 3000


def losses(pulls):
    bandit = INSTANCES["bernoulli"]
    reward, cost = np.asarray(bandit.reward, np.float64), np.asarray(bandit.cost, np.float64)
    return np.asarray(pulls, np.float64) @ (cost * (reward / cost).max() - reward)


@cache
def ours(name):
    return losses(
        bj.simulate_batch(bj.POLICIES[name](), INSTANCES["bernoulli"], BUDGET, keys(RUNS)).pulls[
            :, 0
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("other", ["bts", "jax", "numba", "kube", "ucb-bv1", "pd-bwk"])
def test_reference_implementations_have_our_regret(other):
    """At 6 standard errors, a false failure has the probability 1 in 5·10⁸."""
    bandit = INSTANCES["bernoulli"]
    arms = np.asarray(bandit.reward, np.float64), np.asarray(bandit.cost, np.float64)
    if other == "jax":
        # The slowest.
        theirs = losses(reference_implementations.jax_runs(*arms, BUDGET, RUNS // 8, 0)())
    elif other == "numba":
        play = reference_implementations.numba_runs(*arms, BUDGET, RUNS, 0)
        if play is None:
            pytest.skip("numba is not installed")
        theirs = losses(play())
    else:
        theirs = losses(reference_implementations.numpy_runs(other, *arms, BUDGET, RUNS, 0))
    mine = ours(other if other in bj.POLICIES else "bts")
    error = np.sqrt(mine.var() / len(mine) + theirs.var() / len(theirs))
    assert abs(mine.mean() - theirs.mean()) < 6 * error, (mine.mean(), theirs.mean(), error)


@pytest.mark.slow
def test_bench_measures_and_prints(monkeypatch, capsys):
    monkeypatch.setattr(bench, "RUNS", 6)
    monkeypatch.setattr(bench, "NAMES", ("bts", "kube"))
    monkeypatch.setattr(bench, "SIZES", ((3, 5, 6, 3),))
    monkeypatch.setattr(bench, "ON_A_GPU", ((3, 6, 5),))
    monkeypatch.setattr(bench, "TWO_RESOURCES", ((3, 6, 5),))
    monkeypatch.setattr(bench, "TWO_RESOURCES_ON_A_GPU", ((3, 6, 5),))
    # For all: `test_bench_policies.py`.
    monkeypatch.setattr(bench, "WRITTEN_BY_USERS", bench.WRITTEN_BY_USERS[:1])
    monkeypatch.setattr(bench, "SIZES_FOR_USERS", ((3, 6, (6,)),))
    monkeypatch.setattr(bench, "SIZES_FOR_USERS_ON_A_GPU", ((3, 6, (6,)),))
    cli.main(["bench", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["devices"] == len(jax.devices())
    for row in result["rows"]:
        assert (
            row["pulls per second"] > 0
            and 0 < row["utilisation"] <= 1
            and row["calls per pull"] >= 1
        )
        assert all(ratio > 0 for ratio in row["ratios"].values())
    assert [row["policy"] for row in result["rows"] if row["written by"] == "user"] == ["KUBE"]
    ratio = result["rows"][-1]["over built-in"]
    monkeypatch.setattr(bench, "bench", lambda progress: result)
    cli.main(["bench"])
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[:2] == ["policy", "arms"] and out[2].split()[0] == "bts"
    head, line, _ = out[out.index("") + 1 :]
    assert head.startswith("policy as a user writes it") and head.endswith("time over built-in")
    assert line.split()[:3] == ["KUBE", "3", "6"] and line.split()[-2:] == ["kube", f"{ratio:.3g}"]


def test_latency_is_measured_in_processes_of_their_own(monkeypatch, capsys):
    """The two processes of a command share a cache. Each command starts with an empty one."""
    code = (
        "import os, pathlib; place = pathlib.Path(os.environ['XDG_CACHE_HOME']); "
        "print('JAX_COMPILATION_CACHE_DIR' in os.environ, place.exists(), flush=True); "
        "place.mkdir(exist_ok=True); pathlib.Path('runs').mkdir(); print('end')"
    )
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    said = []
    for _ in range(2):
        runs = latency._runs(["-c", code], "this", True, said.append)
        printed = [[line.strip() for _, line in lines] for lines in runs.values()]
        assert printed == [["False False", "end"], ["False True", "end"]]
        assert all(0 < lines[0][0] < lines[1][0] for lines in runs.values())
    assert said == ["this (first)", "this (again)"] * 2
    with pytest.raises(OSError, match=r"python -c exit.3. ended with exit code 3"):
        latency._runs(["-c", "exit(3)"], "this", True, said.append)


@pytest.mark.parametrize(
    ("platform", "asked", "commands"),
    [
        (
            "cpu",
            "quick",
            [
                "run --policy bts --arms 10 --budget 1000 --seeds 100",
                "run --policy all: its first row",
                "run --policy all",
                "figure1",
                "study omega",
            ],
        ),
        ("gpu", "quick", ["figure1 --scale paper", "study omega --scale full"]),
        ("cpu", "full", ["figure1 --scale paper"]),
    ],
)
def test_latency_prints_what_suits_the_machine(platform, asked, commands, monkeypatch, capsys):
    """Lines come after 1, 2, 3 and 4 seconds, and again in half the time."""
    about = {
        "platform": platform,
        "device": "this one",
        "devices": 2,
        "jax": "1.2",
        "tracing and lowering": 0.5,
        "XLA": 1.25,
    }

    def runs(arguments, title, again, progress):
        lines = [(1.0, ""), (2.0, ""), (3.0, ""), (4.0, json.dumps(about))]
        return {"first": lines} | (
            {"again": [(seconds / 2, line) for seconds, line in lines]} if again else {}
        )

    monkeypatch.setattr(latency, "_runs", runs)
    cli.main(["bench", "--latency", asked])
    head, columns, *rows, _ = capsys.readouterr().out.splitlines()
    assert head == "device: this one; devices: 2; jax: 1.2" and columns.split() == [
        "seconds",
        "first",
        "again",
    ]
    titles = [row.rsplit(None, 2)[0] for row in rows]
    if asked == "quick":
        assert titles == [
            *(f"bts-jax {one}" for one in commands),
            "one program of BTS: tracing and lowering",
            "one program of BTS: XLA",
        ]
        assert all(
            row.split()[-2:] == (["3.00", "1.50"] if "first row" in row else ["4.00", "2.00"])
            for row in rows[:-2]
        )
        assert rows[-1].split()[-2:] == ["1.25", "1.25"]
    else:
        assert rows[-3].split() == ["bts-jax", *commands[0].split(), "4.00"], (
            "half an hour is enough"
        )
    cli.main(["bench", "--latency", asked, "--json"])
    assert json.loads(capsys.readouterr().out)["rows"][0]["first"] == 4


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_ablation_measures_each_pass_that_makes_programs_faster(platform, monkeypatch, capsys):
    """A process without the pass takes twice as long as the faster one of those with all passes."""
    asked = []

    def times(passes):
        asked.append(passes)
        device = "CPU, 2 cores" if platform == "cpu" else "H200"
        time = 4.0 if passes else 3.0 if len(asked) == 1 else 2.0
        return {"device": device, "jax": "0", "times": {"bts, 10 arms": time}}

    monkeypatch.setattr(ablation, "_times", times)
    cli.main(["bench", "--ablate"])
    speeding = ["masking", "rows", "storing"] if platform == "cpu" else ["ahead", "halving"]
    assert asked == ["", *(f"-{name}" for name in speeding), ""]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:1] for line in lines[2:-1]] == [[name] for name in speeding]
    assert all(line.endswith("2.00") for line in lines[2:-1])


@pytest.mark.slow
def test_a_process_without_a_pass_is_measured(monkeypatch):
    monkeypatch.setattr(ablation, "PROGRAM", "import os; print(os.environ['BTS_JAX_PASSES'] or 1)")
    assert ablation._times("") == 1
    monkeypatch.setattr(ablation, "PROGRAM", "exit(3)")
    with pytest.raises(RuntimeError, match="BTS_JAX_PASSES='-rows' failed"):
        ablation._times("-rows")
