"""The peers play the same game, and the benchmark says what it measured. (It is no timed test: nothing here is too slow.)"""

import json
from functools import cache

import jax
import numpy as np
import pytest
from common import INSTANCES, keys

import bts_jax as bj
from bts_jax import bench, cli, peers

BUDGET, RUNS = 40, 3000


def losses(pulls):
    bandit = INSTANCES["bernoulli"]
    reward, cost = np.asarray(bandit.reward, np.float64), np.asarray(bandit.cost, np.float64)
    return np.asarray(pulls, np.float64) @ (cost * (reward / cost).max() - reward)


@cache
def ours(name):
    return losses(bj.simulate_batch(bj.POLICIES[name](), INSTANCES["bernoulli"], BUDGET, keys(RUNS)).pulls[:, 0])


@pytest.mark.slow
@pytest.mark.long_runs
@pytest.mark.parametrize("peer", ["bts", "jax", "numba", "kube", "ucb-bv1", "pd-bwk"])
def test_peers_have_our_regret(peer):
    """6 standard errors, a false failure in 5·10⁸."""
    bandit = INSTANCES["bernoulli"]
    arms = np.asarray(bandit.reward, np.float64), np.asarray(bandit.cost, np.float64)
    if peer == "jax":
        theirs = losses(peers.jax_runs(*arms, BUDGET, RUNS // 4, 0)())  # the slowest
    elif peer == "numba":
        play = peers.numba_runs(*arms, BUDGET, RUNS, 0)
        if play is None:
            pytest.skip("numba is not installed")
        theirs = losses(play())
    else:
        theirs = losses(peers.numpy_runs(peer, *arms, BUDGET, RUNS, 0))
    mine = ours(peer if peer in bj.POLICIES else "bts")
    error = np.sqrt(mine.var() / len(mine) + theirs.var() / len(theirs))
    assert abs(mine.mean() - theirs.mean()) < 6 * error, (mine.mean(), theirs.mean(), error)


@pytest.mark.slow
def test_bench_measures_and_prints(monkeypatch, capsys):
    monkeypatch.setattr(bench, "RUNS", 6)
    monkeypatch.setattr(bench, "NAMES", ("bts", "kube"))
    monkeypatch.setattr(bench, "SIZES", ((3, 5, 6, 3),))
    monkeypatch.setattr(bench, "ON_A_GPU", ((3, 6, 5),))
    monkeypatch.setattr(bench, "WRITTEN_BY_USERS", bench.WRITTEN_BY_USERS[:1])  # for all: `test_bench_policies.py`
    monkeypatch.setattr(bench, "SIZES_FOR_USERS", ((3, 6, (6,)),))
    monkeypatch.setattr(bench, "SIZES_FOR_USERS_ON_A_GPU", ((3, 6, (6,)),))
    cli.main(["bench", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["devices"] == len(jax.devices())
    for row in result["rows"]:
        assert row["pulls per second"] > 0 and 0 < row["utilisation"] <= 1 and row["calls per pull"] >= 1
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
