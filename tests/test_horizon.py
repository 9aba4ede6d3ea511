"""Runs that end after a number of rounds: with a budget, or without one."""

import warnings
import zlib
from functools import partial

import jax
import numpy as np
import pytest
from common import assert_same_bits, batch, keys, take

import bts_jax as bj
from bts_jax.sweeps import gridfile
from bts_jax.sweeps.run import stored

KEY = jax.random.key(0)
# All bandits have two arms, so that tests share programs.
ARMS = bj.Bernoulli(reward=[0.3, 0.9], cost=[0.9, 0.95])
DOLLARS = bj.Empirical(reward=[[1, 2], [0, 2]], cost=[[5, 4], [3, 1]], reward_scale=2, cost_scale=5)


@pytest.mark.slow
def test_a_thousand_rounds_instead_of_a_budget():
    run = take(bj.simulate(bj.Uniform(), ARMS, np.inf, KEY, max_rounds=1000), ...)
    assert (run.rounds.tolist(), run.truncated.tolist(), run.budget.tolist()) == (
        [1000],
        [True],
        [np.inf],
    )
    assert run.pulls.sum() == 1000 and 0 < run.cost[0] < 1000 and 0 < run.reward[0] < 1000
    # It is the run with a budget that is never spent.
    rich = take(bj.simulate(bj.Uniform(), ARMS, 10**6, KEY, max_rounds=1000), ...)
    np.testing.assert_array_equal(rich.pulls, run.pulls)
    assert rich.cost == run.cost and rich.reward == run.reward
    # Dollars are spent without end too: 1,000 pulls at up to $5.
    limits = {"max_rounds": 1000, "checkpoints": [np.inf, 100]}
    runs = take(batch(bj.Uniform(), DOLLARS, np.inf, keys(3), **limits), ...)
    assert (
        (runs.rounds[:, 0] == 1000).all()
        and (runs.cost[:, 0] > 1000).all()
        and (runs.cost[:, 0] < 5000).all()
    )
    assert (
        runs.truncated.tolist() == [[True, False]] * 3
        and (runs.cost[:, 1] > 95).all()
        and (runs.cost[:, 1] <= 100).all()
    )
    assert_same_bits(bj.simulate_batch(bj.Uniform(), DOLLARS, np.inf, keys(3), **limits), runs)


@pytest.mark.slow
def test_an_infinite_budget_needs_a_limit():
    with pytest.raises(ValueError, match=r"budget = inf .* max_rounds"):
        bj.simulate(bj.Uniform(), ARMS, np.inf, KEY)
    with pytest.raises(
        ValueError, match="budget = inf, but policy EpsilonFirst requires the budget"
    ):
        bj.simulate(bj.EpsilonFirst(), ARMS, np.inf, KEY, max_rounds=10)
    nan = jax.jit(jax.vmap(lambda budget: bj.simulate(bj.Uniform(), ARMS, budget, KEY)))(
        np.float32([np.inf, 3])
    )
    assert np.isnan(nan.reward).tolist() == [[True], [False]]


@pytest.mark.slow
def test_regret_of_a_truncated_run_is_not_a_number():
    free = bj.Bernoulli(reward=[0.5, 0.6], cost=[0, 0.5])
    run = bj.simulate(bj.Oracle(), free, 10, KEY, max_rounds=100)
    assert run.truncated.tolist() == [True]
    with pytest.warns(RuntimeWarning, match="truncated by its limit of rounds, 1 of 1"):
        assert np.isnan(bj.regret(run, free)).all()
    assert bj.pseudo_regret(run, free).tolist() == [0]
    runs = batch(bj.Uniform(), ARMS, 20, keys(4), max_rounds=200, checkpoints=[5, 20])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(bj.regret(runs, ARMS)).all()
        cut = batch(bj.Uniform(), ARMS, 20, keys(4), max_rounds=5, checkpoints=[1, 20])
        found = jax.vmap(lambda run: bj.regret(run, ARMS))(cut)  # no warning under vmap
    assert np.isnan(found).tolist() == [[False, True]] * 4
    with pytest.warns(RuntimeWarning, match="4 of 8"):
        np.testing.assert_array_equal(np.isnan(bj.regret(cut, ARMS)), cut.truncated)


@pytest.mark.slow
def test_sweeps_end_after_so_many_rounds(tmp_path):
    names, bandits = ["uniform", "epsilon-first"], {"dollars": DOLLARS}
    data = bj.sweep(
        names, bandits, budgets=[4, 100], num_seeds=3, max_rounds=12, out=tmp_path / "s", quiet=True
    )
    assert (data.rounds.sel(budget=100) == 12).all() and data.truncated.sel(budget=100).all()
    # 12 · 1.5.
    np.testing.assert_allclose(
        data.regret + data.reward, np.broadcast_to([[2], [18]], data.reward.shape)
    )
    assert not data.truncated.sel(budget=4).any() and np.isfinite(data.pseudo_regret).all()
    free = bj.sweep(names, bandits, budgets=[4, 100], num_seeds=3, quiet=True)
    short = ~data.truncated.values
    np.testing.assert_array_equal(data.reward.values[short], free.reward.values[short])
    assert stored(tmp_path / "s")["max_rounds"] == 12
    assert bj.sweep(**stored(tmp_path / "s"), out=tmp_path / "s", quiet=True).identical(data)
    with pytest.raises(ValueError, match="another grid"):
        bj.sweep(
            names,
            bandits,
            budgets=[4, 100],
            num_seeds=3,
            max_rounds=13,
            out=tmp_path / "s",
            quiet=True,
        )


@pytest.mark.slow
def test_checkpoints_in_rounds(tmp_path):
    bandits, ends = {"dollars": DOLLARS}, [10, 100]
    data = bj.sweep(
        ["uniform", "oracle"], bandits, num_seeds=3, rounds=ends, out=tmp_path / "s", quiet=True
    )
    assert data.budget.values.tolist() == ends
    assert (data.rounds == data.budget).all() and (data.pulls.sum("arm") == data.budget).all()
    assert np.isnan(data.regret).all() and (data.pseudo_regret.sel(policy="uniform") > 0).all()
    own_keys = jax.vmap(
        partial(jax.random.fold_in, jax.random.fold_in(KEY, zlib.crc32(b"dollars")))
    )(np.arange(3))
    for end in ends:
        runs = take(
            batch(
                bj.Uniform(), DOLLARS, np.inf, own_keys, max_rounds=end, checkpoints=[np.inf, 100]
            ),
            np.s_[:, 0],
        )
        for name in ("pulls", "cost", "reward"):
            np.testing.assert_array_equal(
                data[name].sel(policy="uniform", bandit="dollars", budget=end), getattr(runs, name)
            )
    assert bj.open_results(tmp_path / "s").identical(data)
    assert bj.sweep(**stored(tmp_path / "s"), out=tmp_path / "s", quiet=True).identical(data)
    with pytest.raises(ValueError, match="another grid"):
        bj.sweep(["uniform", "oracle"], bandits, ends, 3, out=tmp_path / "s", quiet=True)


@pytest.mark.slow
def test_a_run_that_costs_the_most_in_every_round_is_recorded_too():
    dear = bj.Empirical(
        reward=[[1, 1], [1, 1]], cost=[[5, 5], [5, 5]], reward_scale=2, cost_scale=5
    )
    data = bj.sweep(["uniform"], {"dear": dear}, num_seeds=3, rounds=[3, 20], quiet=True)
    assert data.cost.values.squeeze().tolist() == [[15] * 3, [100] * 3]
    assert data.rounds.values.squeeze().tolist() == [[3] * 3, [20] * 3]


@pytest.mark.slow
def test_grid_files_have_horizons(tmp_path):
    text = """
    num_seeds = 3
    {}
    [policies.uniform]
    kind = "uniform"
    [bandits.two]
    kind = "bernoulli"
    reward = [0.5, 0.9]
    cost = [0.5, 0.5]
    """
    (tmp_path / "grid.toml").write_text(text.format("rounds = [5, 10]"))
    data = bj.sweep(**gridfile.read_toml(tmp_path / "grid.toml"), quiet=True)
    assert data.rounds.values.squeeze().tolist() == [[5] * 3, [10] * 3]
    (tmp_path / "grid.toml").write_text(text.format("budgets = [1000, 2000]\n    max_rounds = 7"))
    data = bj.sweep(**gridfile.read_toml(tmp_path / "grid.toml"), quiet=True)
    assert data.rounds.values.ravel().tolist() == [7] * 6
    (tmp_path / "grid.toml").write_text(text.format("max_rounds = 7"))
    with pytest.raises(ValueError, match="'budgets' is missing"):
        gridfile.read_toml(tmp_path / "grid.toml")


def test_a_limit_that_nobody_asked_for_is_a_warning():
    bandits = {"free": bj.Bernoulli(reward=[0.9, 0.5], cost=[0, 1]), "arms": ARMS}
    with pytest.warns(
        RuntimeWarning,
        match=r"policies\['oracle'\] on bandits\['free'\] hit the "
        r"limit of rounds for 2 seeds",
    ):
        data = bj.sweep(["oracle"], bandits, budgets=[5], num_seeds=2, quiet=True)
    assert (
        np.isnan(data.regret.sel(bandit="free")).all()
        and not np.isnan(data.regret.sel(bandit="arms")).any()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": [10], "budgets": [10]}, "rounds and budgets are both given"),
        ({"rounds": [10], "max_rounds": 10}, "rounds and max_rounds are both given"),
        (
            {"rounds": [10], "relative_to_min_cost": True},
            "rounds and relative_to_min_cost are both given",
        ),
        ({"rounds": [10, 5]}, "rounds has 10 before 5"),
        ({"rounds": [1.5]}, "rounds = .* not whole"),
        ({"rounds": "10"}, "rounds = '10'"),
        ({}, "budgets = None"),
        ({"budgets": [10], "max_rounds": 0}, "max_rounds = 0"),
        ({"budgets": [10], "num_seeds": None}, "num_seeds = None"),
    ],
)
def test_what_is_wrong_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        bj.sweep(["uniform"], {"arms": ARMS}, **{"num_seeds": 1, **options}, quiet=True)


def test_policies_that_require_the_budget_are_refused():
    with pytest.raises(
        ValueError,
        match=r"policies\['epsilon-first'\] requires the budget.* "
        r"max_rounds",
    ):
        bj.sweep(["uniform", "epsilon-first"], {"arms": ARMS}, num_seeds=1, rounds=[10], quiet=True)
