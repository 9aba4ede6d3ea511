"""Runs whose rounds are limited, too, as for T requests and B dollars: by `max_rounds`, or by
`Timed`.

All numbers are worked out by hand: these tests do not fail by chance.
"""

from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, assert_same_bits, keys, take

import bts_jax as bj
from bts_jax import rules, theory
from bts_jax.cli import main
from bts_jax.policies import ALL_POLICIES, POLICIES
from bts_jax.statistics import measured

KEY = jax.random.key(0)
# With 50 of money and 100 rounds: 66⅔ and 33⅓ pulls.
ARMS = bj.Bernoulli(reward=[0.25, 0.75], cost=[0.25, 1.0])
DOLLARS = bj.FixedPrice(success=[0.25, 0.75], price=[0.0005, 0.002])
OPTIMUM = 125 / 3


def made(budget, reward, pulls, truncated):
    pulls = np.array([pulls])
    return bj.Run(
        budget=np.float32([budget]),
        reward=np.float32([reward]),
        cost=np.float32([budget]),
        rounds=pulls.sum(-1),
        pulls=pulls,
        truncated=np.array([truncated]),
    )


# Regret, by hand.


@pytest.mark.parametrize(("bandit", "money"), [(ARMS, 50), (DOLLARS, 0.1)])
def test_regret_is_against_both_limits(bandit, money):
    run = made(money, 30, [80, 20], True)
    assert bj.regret(run, bandit, max_rounds=100).tolist() == pytest.approx([OPTIMUM - 30])
    assert bj.pseudo_regret(run, bandit, max_rounds=100).tolist() == pytest.approx([OPTIMUM - 35])
    early = made(money, 30, [40, 40], False)  # the money was spent first
    assert bj.regret(early, bandit, max_rounds=100).tolist() == pytest.approx([OPTIMUM - 30])
    assert theory.lp_value(bandit, money, max_rounds=100) == pytest.approx(OPTIMUM)
    assert theory.lp(bandit, money, max_rounds=100).pulls.tolist() == pytest.approx(
        [200 / 3, 100 / 3]
    )


def test_a_limit_that_does_not_bind_changes_nothing():
    run = made(50, 30, [80, 20], False)
    for limit in (200, 10_000):
        assert bj.regret(run, ARMS, max_rounds=limit).tolist() == pytest.approx(
            bj.regret(run, ARMS).tolist()
        )
    run = made(np.inf, 30, [80, 20], True)  # no budget: the largest reward in each round
    assert bj.regret(run, ARMS, max_rounds=100).tolist() == pytest.approx([75 - 30])


def test_a_free_arm_is_limited_by_the_rounds():
    bandit = bj.Bernoulli(reward=[0.25, 0.75], cost=[0.0, 1.0])
    run = made(10, 20, [95, 5], True)
    assert bj.regret(run, bandit, max_rounds=100).tolist() == pytest.approx(
        [90 * 0.25 + 10 * 0.75 - 20]
    )


def test_each_run_and_each_bandit_may_have_its_own_limit():
    bandits = jax.tree.map(
        lambda *leaves: np.stack(leaves), ARMS, bj.Bernoulli(reward=[0.5, 0.5], cost=[0.5, 0.25])
    )
    runs = jax.tree.map(
        lambda *leaves: np.stack(leaves), made(50, 30, [80, 20], True), made(10, 4, [5, 5], True)
    )
    found = bj.regret(runs, bandits, max_rounds=[100, 10])
    np.testing.assert_allclose(found, [[OPTIMUM - 30], [5 - 4]], rtol=1e-6)
    np.testing.assert_allclose(
        theory.lp_value(bandits, [50, 10], max_rounds=[100, 10]), [OPTIMUM, 5], rtol=1e-6
    )


def test_another_limit_than_that_of_the_run():
    run = made(50, 30, [80, 20], True)
    with pytest.raises(
        ValueError,
        match=r"the number of rounds of the run\[0\] = 100 .* "
        r"simulate had as max_rounds; it is 99",
    ):
        bj.regret(run, ARMS, max_rounds=99)
    with pytest.warns(RuntimeWarning, match="1 of 1: give the limit to regret, too"):
        assert np.isnan(bj.regret(run, ARMS)).all()
    with pytest.warns(RuntimeWarning, match="truncated by its limit of rounds, 1 of 1"):
        assert np.isnan(bj.regret(run, ARMS, max_rounds=101)).all()  # it was truncated before
    assert np.isnan(bj.pseudo_regret(run, ARMS, max_rounds=101)).all()
    with pytest.raises(
        ValueError, match="optimum = 'exact' is for a budget without a limit of rounds"
    ):
        bj.regret(run, ARMS, optimum="exact", max_rounds=100)
    with pytest.raises(ValueError, match="max_rounds needs values that are known"):
        jax.jit(lambda run: bj.regret(run, ARMS, max_rounds=100))(run)
    for wrong in (0, "many"):
        with pytest.raises(ValueError, match=f"max_rounds = {wrong!r}"):
            bj.regret(run, ARMS, max_rounds=wrong)


# Policies for one resource.


@chex.dataclass(frozen=True)
class Spy(bj.Uniform):
    requires: ClassVar[tuple[str, ...]] = ("budget", "min_cost", "cost_mean", "best_arm")
    several_resources: ClassVar[bool] = False

    def init(self, problem):
        assert problem.num_resources is None and problem.time_cost is None
        return problem.budget, problem.min_cost, problem.cost_mean, problem.best_arm


@pytest.mark.parametrize(("bandit", "money"), [(ARMS, 50), (DOLLARS, 0.1)])
def test_they_see_the_money_and_not_the_time(bandit, money):
    """In shares of the largest price, as without the limit."""
    timed = jax.jit(rules.first_state)(Spy(), bj.Timed(bandit), jnp.float32([money, 100]))
    plain = jax.jit(rules.first_state)(Spy(), bandit, jnp.float32(money))
    assert_same_bits(timed, plain)


def test_what_they_cannot_play():
    three = bj.Timed(bj.Bernoulli(reward=[0.5, 0.9], cost=[[0.5, 0.25], [0.25, 0.5]]))
    with pytest.raises(
        ValueError,
        match=r"plays with one resource, or with one and a time "
        r"limit, as in Timed.* vector of 3",
    ):
        bj.simulate(bj.KUBE(), three, 5, KEY)

    @chex.dataclass(frozen=True)
    class Clock(Spy):
        requires: ClassVar[tuple[str, ...]] = ("time_cost",)

    with pytest.raises(ValueError, match="plays with one resource"):
        bj.simulate(Clock(), bj.Timed(ARMS), 5, KEY)
    with pytest.raises(ValueError, match="requires the budget: give a finite one"):
        bj.simulate(bj.EpsilonFirst(), bj.Timed(ARMS), [np.inf, 5], KEY)


@pytest.mark.slow
@pytest.mark.with_care
@pytest.mark.parametrize(
    "name", ["bts", "epsilon-first", "budget-ucb", "fractional-kube", "oracle"]
)
def test_both_limits_are_the_same_game(name):
    """The same pulls and the same regret, whether time is a limit of rounds or a resource."""
    policy, bandit = POLICIES[name](), INSTANCES["bernoulli"]
    ends, timed = [0.5, 1.0], bj.Timed(bandit)
    short = bj.simulate_batch(policy, bandit, 30, keys(8), checkpoints=[15, 30], max_rounds=60)
    long = bj.simulate_batch(policy, timed, [30, 60], keys(8), checkpoints=ends)
    short, long = take(short, np.s_[:, 1]), take(long, np.s_[:, 1])
    for part in ("reward", "rounds", "pulls"):
        assert_same_bits(getattr(short, part), getattr(long, part))
    np.testing.assert_array_equal(short.cost, long.cost[..., 0])
    one, other = (jax.tree.map(lambda x: x[:, None], run) for run in (short, long))
    np.testing.assert_allclose(
        bj.regret(one, bandit, max_rounds=60), bj.regret(other, timed), rtol=1e-5, atol=1e-5
    )
    limited = bj.pseudo_regret(one, bandit, max_rounds=60)
    np.testing.assert_allclose(limited, bj.pseudo_regret(other, timed), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_they_keep_their_contract_there():
    bj.check_policy(bj.TemperedBTS(), bj.Timed(ARMS))  # it has logits


def test_infinite_time_is_allowed():
    run = bj.simulate(bj.EpsilonFirst(), bj.Timed(ARMS), [5, np.inf], KEY, max_rounds=1000)
    assert_same_bits(run.pulls, bj.simulate(bj.EpsilonFirst(), ARMS, 5, KEY).pulls)


# Sweeps and the command line.


@pytest.fixture(scope="module")
def swept():
    bandits = {"arms": ARMS, "timed": bj.Timed(ARMS)}
    return bj.sweep(["oracle"], bandits, budgets=[10, 40], num_seeds=4, max_rounds=60)


@pytest.mark.slow
def test_a_sweep_with_a_limit_has_regret(swept):
    """With 40 of money and 60 rounds the best mix is 80/3 and 100/3 pulls. In the others, one limit
    binds.
    """
    optimum = (swept.regret + swept.reward).sel(policy="oracle")
    np.testing.assert_allclose(optimum.sel(bandit="arms").T, [[10, 95 / 3]] * 4, rtol=1e-6)
    np.testing.assert_allclose(optimum.sel(bandit="timed").T, [[7.5, 30]] * 4, rtol=1e-6)
    assert swept.truncated.sel(bandit="arms", budget=40).any()
    earned = (swept.pulls * swept.reward_mean).sum("arm")
    np.testing.assert_allclose(
        (swept.pseudo_regret + earned).sel(bandit="arms").values[0].T, [[10, 95 / 3]] * 4, rtol=1e-6
    )


@pytest.mark.slow
def test_lost_runs_with_limits(swept):
    """It is not known where `max_rounds` binds. With time as a resource, only time binds here, and
    the second arm earns 1/4.
    """
    lost = measured(swept).lost_run
    np.testing.assert_allclose(lost.sel(bandit="arms"), [(1 - 0.75) * 10, np.nan])
    np.testing.assert_allclose(
        lost.sel(bandit="timed"), [(0.75 - 0.25) * 10, (0.75 - 0.25) * 40], rtol=1e-6
    )


def test_rounds_instead_of_budgets_have_no_regret():
    results = bj.sweep(["oracle"], {"arms": ARMS}, rounds=[10, 20], num_seeds=2)
    assert np.isnan(results.regret).all() and (results.pseudo_regret == 0).all()


@pytest.mark.slow
def test_all_policies_play_with_a_time_limit(capsys):
    main(
        [
            "run",
            "--policy",
            "all",
            "--bandit",
            "timed",
            "--arms",
            "3",
            "--budget",
            "10",
            "--seeds",
            "2",
            "--quiet",
        ]
    )
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in ALL_POLICIES)
