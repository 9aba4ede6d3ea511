"""Policies written as a user writes them have the distribution of the built-in ones, and `bench`
compares the two.
"""

from unittest.mock import Mock

import numpy as np
import pytest
from common import INSTANCES, keys

import bts_jax as bj
from bts_jax import bench
from bts_jax.batch import Report

TITLES = [row[0] for row in bench.WRITTEN_BY_USERS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "runs"), [*zip(bench.WRITTEN_BY_USERS, (3000, 800, 300), strict=True)], ids=TITLES
)
def test_mean_regret_is_that_of_the_built_in_policy(row, runs):
    """At 6 standard errors, a false failure has the probability 1 in 5·10⁸. The keys differ, so the
    samples are independent.
    """
    _, policy, name = row
    bandit = INSTANCES["bernoulli"]
    theirs, ours = (
        np.asarray(bj.pseudo_regret(bj.simulate_batch(policy, bandit, 20, keys), bandit)[:, 0])
        for policy, keys in ((policy(), keys(runs)), (bj.POLICIES[name](), keys(3000, seed=1)))
    )
    error = np.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    assert abs(ours.mean() - theirs.mean()) < 6 * error, (ours.mean(), theirs.mean(), error)


def by_user(policy):
    return type(policy).__module__ == "bts_jax.bench_policies"


@pytest.mark.parametrize(
    "sizes", [bench.SIZES_FOR_USERS, bench.SIZES_FOR_USERS_ON_A_GPU], ids=["CPU", "GPU"]
)
def test_rows_compare_at_the_same_budget(sizes, monkeypatch):
    played = []

    def play(policy, bandit, budget, keys, on_report):
        rounds = 1000 * len(keys)
        played.append((bandit.num_arms, len(keys), budget))
        on_report(
            Report(
                runs=len(keys),
                devices=1,
                lanes=4,
                rounds=rounds,
                calls=rounds,
                computed=2 * rounds,
                blocks=(1,),
                seconds=6.0 if by_user(policy) else 2.0,
            )
        )

    compiled = []
    monkeypatch.setattr(bench, "simulate_batch", play)
    monkeypatch.setattr(
        bench,
        "of_batch",
        lambda policy, bandit, budget, keys, *_: (bandit.num_arms, len(keys), budget),
    )
    monkeypatch.setattr(bench, "lay_out", lambda given, quickly: given)
    monkeypatch.setattr(
        bench, "lower", lambda batches: Mock(compile=lambda: compiled.extend(batches))
    )
    rows = bench._by_users(sizes, lambda text: None)
    assert [row["policy"] for row in rows] == TITLES * len(sizes)
    assert [row["built-in"] for row in rows] == ["kube", "bts", "bts"] * len(sizes)
    for row in rows:
        assert (row["written by"], row["over built-in"]) == ("user", 3) and 0 < row[
            "compile seconds"
        ] < 5
        assert (row["pulls per second"], row["utilisation"]) == (1000 * row["runs"] / 6, 0.5)
    settings = [(row["arms"], row["runs"], row["budget"]) for row in rows for _ in range(2)]
    assert compiled == [setting for setting in played if setting[-1] >= 1] == settings
