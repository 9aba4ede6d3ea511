"""Arms with fixed prices: a random success, and a price that is known. Most numbers are worked out
by hand.

False failures: frequencies are compared at 6 standard errors, 2·10⁻⁹ each.
"""

import json

import jax
import numpy as np
import pytest
from common import assert_same_bits, keys, take

import bts_jax as bj
from bts_jax import theory
from bts_jax.cli import main
from bts_jax.contract import scales
from bts_jax.sweeps import gridfile
from bts_jax.sweeps.run import stored
from bts_jax.sweeps.specification import entry_of, remade

KEY = jax.random.key(0)
MODELS = bj.FixedPrice(
    success=[0.6, 0.8, 0.9], price=[0.00005, 0.001, 0.03], arms=["small", "medium", "large"]
)
COINS = bj.FixedPrice(success=[0.5, 1], price=[2, 5])


def test_a_pull_costs_its_price_and_succeeds_as_often():
    draw = jax.jit(jax.vmap(COINS.pull, (0, None)))
    for arm, (success, price) in enumerate(((0.5, 2), (1, 5))):
        reward, cost = (np.asarray(x) for x in draw(keys(20_000), arm))
        assert (cost == price).all() and set(np.unique(reward)) <= {0, 1}
        assert abs(reward.mean() - success) <= 6 * (success * (1 - success) / 20_000) ** 0.5


def test_means_and_scales():
    assert (
        scales(COINS) == (1, 5)
        and COINS.cost_mean.tolist() == [2, 5]
        and COINS.reward_mean.tolist() == [0.5, 1]
    )
    assert COINS.ratio.tolist() == pytest.approx([0.25, 0.2]) and int(COINS.best_arm) == 0
    free = bj.FixedPrice(success=[0.5, 0.9], price=[0, 0])
    assert free.cost_scale == 1
    many = bj.FixedPrice(success=[[0.5, 0.9], [0.5, 0.9]], price=[[1, 2], [30, 40]])
    assert many.cost_scale.tolist() == [2, 40]


def test_random_numbers_are_those_of_bernoulli_arms():
    bernoulli = bj.Bernoulli(reward=COINS.success, cost=[1, 1])
    draw = jax.vmap(lambda bandit, key: bandit.pull(key, 0)[0], (None, 0))
    assert_same_bits(draw(COINS, keys(100)), draw(bernoulli, keys(100)))


@pytest.mark.slow
def test_money_is_spent_exactly():
    """$0.0007 buys 14 requests at $0.00005, and $0.00074 buys no more: the 15th is refused."""
    for budget, rounds in ((0.0007, 14), (0.00074, 15)):
        run = bj.simulate(bj.Oracle(), MODELS, budget, KEY)
        assert run.rounds.tolist() == [rounds] and float(run.cost[0]) == pytest.approx(
            0.0007, rel=1e-6
        )


@pytest.mark.slow
def test_a_limit_of_requests_and_of_dollars():
    """T requests and B dollars, by hand: 2/3 of 30 requests to the arm for 2, and 1/3 to the arm
    for 5, cost 90.
    """
    timed = bj.Timed(COINS)
    assert timed.cost_mean.tolist() == [[2, 1], [5, 1]] and timed.cost_scale.tolist() == [5, 1]
    found = theory.lp(timed, [90, 30])
    assert found.pulls.tolist() == pytest.approx([20, 10]) and found.value == pytest.approx(20)
    for policy in (bj.KUBE(), bj.TSUpdate(), bj.FractionalKUBE()):
        run = take(bj.simulate(policy, timed, [90, 30], KEY), 0)
        assert run.rounds <= 30 and run.cost[0] <= 90 and run.cost[0] == run.cost[0].round()
        assert bj.regret(bj.simulate(policy, timed, [90, 30], KEY), timed) == pytest.approx(
            20 - float(run.reward)
        )


@pytest.mark.slow
def test_contract():
    bj.check_bandit(MODELS)
    bj.check_bandit(bj.WithNull(bj.Timed(MODELS)))


def test_names_and_stores():
    entry = json.loads(json.dumps(entry_of(MODELS, bj.BANDITS, arms=list(MODELS.arms))))
    again = remade("bandits", entry, bj.BANDITS)
    assert_same_bits(again, MODELS)
    assert again.arms == MODELS.arms == bj.Timed(MODELS).arms == ("small", "medium", "large")


@pytest.mark.slow
def test_a_grid_file_and_a_store_that_is_resumed(tmp_path):
    (tmp_path / "grid.toml").write_text(
        """
num_seeds = 3
budgets = [10, 40]
max_rounds = 15
[policies.kube]
kind = "kube"
[bandits.coins]
kind = "fixed-price"
success = [0.5, 1]
price = [2, 5]
arms = ["two", "five"]
[bandits.drawn]
kind = "fixed-price"
random = { num_arms = 3, price_range = [2, 50], instances = 2 }
""",
        encoding="utf-8",
    )
    what = gridfile.read_toml(tmp_path / "grid.toml")
    data = bj.sweep(**what, out=tmp_path / "s", quiet=True)
    assert data.arm_name.sel(bandit="coins").values.tolist() == ["two", "five", ""]
    assert np.isfinite(data.regret).all() and (data.rounds <= 15).all()
    assert (np.asarray(what["bandits"]["drawn-1"].price) >= 2).all()
    assert bj.sweep(**stored(tmp_path / "s"), out=tmp_path / "s", quiet=True).identical(data)


@pytest.mark.slow
def test_the_command_line(capsys):
    main(
        [
            "run",
            "--policy",
            "kube",
            "fractional-kube",
            "--bandit",
            "fixed-price",
            "--arms",
            "3",
            "--budget",
            "5",
            "--seeds",
            "2",
            "--quiet",
        ]
    )
    assert "fixed-price bandit, 3 arms" in capsys.readouterr().out
