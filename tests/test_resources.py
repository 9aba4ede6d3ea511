"""Several resources: the rules of the game, bandits, the linear program, sweeps, and what is
refused.
"""

import json
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import SEVERAL, assert_same_bits, batch, keys, take
from scipy.optimize import linprog

import bts_jax as bj
from bts_jax import conformance, plots, random, tables, theory
from bts_jax.cli import main
from bts_jax.contract import Means
from bts_jax.pytrees import pytree
from bts_jax.statistics import kinds, measured, with_and_without
from bts_jax.sweeps.gridfile import read_toml
from bts_jax.sweeps.run import stored
from bts_jax.sweeps.specification import entry_of, remade

THREE = bj.Bernoulli(
    reward=[0.3, 0.9, 0.5, 0.7],
    cost=[[0.4, 0.1, 0.3], [0.9, 0.5, 0.2], [0.2, 0.6, 0.6], [0.5, 0.5, 0.01]],
)
BUDGET = [20, 12.5, 9]
FRACTIONS = [0.25, 1, 0.5]  # in any order
# One resource.
PLAIN = {"plain": bj.Bernoulli(reward=[0.5, 0.9, 0.2, 0.1], cost=[0.25, 0.9, 0.5, 0.5])}


@pytest.fixture(scope="module")
def runs():
    return take(
        bj.simulate_batch(bj.Uniform(), THREE, BUDGET, keys(40), checkpoints=FRACTIONS), ...
    )


@pytest.fixture(scope="module")
def traces():
    """The same runs with all of their rounds."""
    return take(
        jax.vmap(lambda key: bj.trace(bj.Uniform(), THREE, BUDGET, key, rounds=150))(keys(40)), ...
    )


@jax.jit
def pulled(key, earlier, arm):
    """Reward and costs of a pull of an arm that was pulled `earlier` times before."""
    return THREE.pull(random.derive(random.key_words(key), earlier, 2 + arm), arm)


@jax.jit
def first_pull(bandit, arm):
    return bandit.pull(jax.random.key(0), arm)


def played(key, arms, budget):
    """The game as a plain loop: reward, cost, rounds and paid pulls of a run that pulls these
    arms.
    """
    spent, earned, pulls = np.zeros(len(budget)), 0.0, np.zeros(4, int)
    for number, arm in enumerate(arms):
        reward, cost = pulled(key, pulls[arm], arm)
        if (spent + np.asarray(cost, float) > np.asarray(budget) + 1e-6).any():
            return earned, spent, number + 1, pulls
        spent, earned = spent + np.asarray(cost, float), earned + float(reward)
        pulls[arm] += 1
        if (spent >= np.asarray(budget) - 1e-6).any():
            return earned, spent, number + 1, pulls
    raise AssertionError("the run did not end")


# The game.


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_rules_are_those_of_a_plain_loop(runs, traces, place):
    """Three resources; each checkpoint is a run with that part of the budgets."""
    for i, key in enumerate(keys(40)[:5]):
        plain = played(
            key,
            traces.arm[i, : traces.length[i]],
            np.float32(BUDGET) * np.float32(FRACTIONS[place]),
        )
        for mine, theirs in zip(
            (runs.reward, runs.cost, runs.rounds, runs.pulls), plain, strict=True
        ):
            np.testing.assert_allclose(mine[i, place], theirs, rtol=1e-6)


def test_a_run_ends_with_the_first_budget_that_is_used_up():
    """Hand-computed: arm 0 costs (1, 0.5) and arm 1 costs (0.25, 1)."""
    bandit = bj.Multinomial(
        reward_probs=[[0, 0, 0, 0, 1]] * 2,
        cost_probs=[[[0, 0, 0, 0, 1], [0, 0, 1, 0, 0]], [[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]],
    )

    @pytree
    class First(bj.Uniform):
        def __call__(self, state, key):
            return jnp.int32(0), state

    run = bj.simulate(First(), bandit, [3, 100], jax.random.key(0))
    assert (
        run.reward.tolist() == [3]
        and run.cost.tolist() == [[3, 1.5]]
        and run.rounds.tolist() == [3]
    )
    # The fourth pull would cost too much of the first.
    run = bj.simulate(First(), bandit, [3.5, 100], jax.random.key(0))
    assert (
        run.reward.tolist() == [3]
        and run.cost.tolist() == [[3, 1.5]]
        and run.rounds.tolist() == [4]
    )
    # And here the second pull of the second.
    run = bj.simulate(First(), bandit, [100, 0.75], jax.random.key(0))
    assert (
        run.reward.tolist() == [1]
        and run.cost.tolist() == [[1, 0.5]]
        and run.rounds.tolist() == [2]
    )


@pytest.mark.slow
def test_a_checkpoint_is_the_run_with_that_budget(runs):
    for place in range(3):
        budget = np.asarray(runs.budget[0, place])
        assert_same_bits(
            take(batch(bj.Uniform(), THREE, budget, keys(40)), (slice(None), 0)),
            take(runs, (slice(None), place)),
        )


@pytest.mark.slow
@pytest.mark.all_devices
def test_runs_do_not_depend_on_the_batch(runs):
    one = bj.simulate(bj.Uniform(), THREE, BUDGET, keys(40)[7], checkpoints=FRACTIONS)
    assert_same_bits(one, take(runs, 7))
    for lanes, devices in ((4, jax.devices()[:1]), (20, jax.devices())):
        some = bj.simulate_batch(
            bj.Uniform(),
            THREE,
            BUDGET,
            keys(40),
            checkpoints=FRACTIONS,
            lanes=lanes,
            devices=devices,
        )
        assert_same_bits(some, runs)
    # A batch of bandits, of budgets and of checkpoints.
    each = jax.tree.map(lambda x: np.stack([x] * 40), THREE)
    budgets, fractions = np.tile(np.float32(BUDGET), (40, 1)), np.tile(FRACTIONS, (40, 1))
    assert_same_bits(
        bj.simulate_batch(bj.Uniform(), each, budgets, keys(40), checkpoints=fractions), runs
    )


def test_one_number_is_the_budget_of_every_resource():
    assert_same_bits(
        bj.simulate(bj.Uniform(), THREE, 9, keys(1)[0]),
        bj.simulate(bj.Uniform(), THREE, [9, 9, 9], keys(1)[0]),
    )


@pytest.mark.slow
def test_a_trace_is_the_run(runs, traces):
    assert traces.cost.shape == (40, 150, 3) and traces.remaining.shape == (40, 150, 3)
    run = take(runs, np.s_[:, 1])
    np.testing.assert_allclose(traces.cost.sum(1), run.cost, rtol=1e-5)
    np.testing.assert_allclose(traces.remaining[:, -1], np.float32(BUDGET) - run.cost, atol=1e-5)
    assert_same_bits(traces.length, run.rounds)


@pytest.mark.slow
def test_other_units():
    """Rewards and costs in other units, a scale for each resource, and time."""
    bandit = bj.Timed(
        bj.Scaled(bj.Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9]), scale=5, worth=3), horizon=4
    )
    assert np.asarray(bandit.cost_scale).tolist() == [5, 1] and float(bandit.reward_scale) == 3
    assert_same_bits(bandit.reward_mean, bandit.bandit.reward_mean)
    assert_same_bits(
        bandit.cost_mean, np.column_stack([bandit.bandit.cost_mean, np.float32([0.25] * 2)])
    )
    for arm in range(2):
        reward, cost = first_pull(bandit.bandit, arm)
        assert_same_bits(first_pull(bandit, arm), (reward, np.float32([cost, 0.25])))
    run = take(bj.simulate_batch(bj.Uniform(), bandit, [60, 5], keys(20)), ...)
    assert (run.cost <= run.budget).all() and (run.cost[..., 0] % 5 == 0).all()
    late = run.rounds - run.cost[..., 1] * 4  # 1 if the last pull would have cost too much
    assert set(np.unique(late)) <= {0, 1} and run.rounds.max() == 20 > run.rounds.min()


@pytest.mark.slow
def test_a_run_without_a_budget_ends_after_its_rounds():
    run = bj.simulate(bj.Uniform(), bj.WithNull(THREE), np.inf, jax.random.key(0), max_rounds=50)
    assert run.rounds.tolist() == [50] and run.truncated.all()


@pytest.mark.slow
def test_time_limits_the_rounds_of_a_trace():
    for horizon in (1, 7.3, 9999):
        bandit = bj.Timed(bj.Bernoulli(reward=[0.5, 0.9], cost=[0.01, 0.01]), horizon=horizon)
        found = take(bj.trace(bj.Uniform(), bandit, [1000, 2], jax.random.key(0)), ...)
        assert not found.truncated and found.length <= len(found.arm) <= found.length + 3, horizon
        assert abs(int(found.length) - 2 * horizon) <= 1 + 0.001 * horizon


# Bandits.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multinomial", "with-null"])
def test_families_keep_the_contract(name):
    """The bandit with a null arm has `Timed` and `Pricing` inside. Bernoulli arms play in the tests
    of the game.
    """
    conformance.check_bandit(SEVERAL[name])


def test_bernoulli_arms_have_their_means():
    """6 standard errors of 20,000 pulls: false failures 2·10⁻⁹ each, 9 of them."""
    bandit, pulls = SEVERAL["bernoulli"], 20_000
    drawn = jax.jit(jax.vmap(jax.vmap(bandit.pull, (0, None)), (None, 0)))(
        keys(pulls), np.arange(3)
    )
    for draws, mean in zip(
        map(np.asarray, drawn), (bandit.reward_mean, bandit.cost_mean), strict=True
    ):
        assert draws.shape[:2] == (3, pulls) and set(np.unique(draws)) == {0, 1}
        mean = np.asarray(mean, np.float64)
        assert (abs(draws.mean(1) - mean) < 6 * np.sqrt(mean * (1 - mean) / pulls)).all()


def test_the_null_arm_costs_only_time():
    inner = bj.Timed(THREE, horizon=2)
    bandit = bj.WithNull(inner)
    reward, cost = first_pull(bandit, 4)
    assert float(reward) == 0 and cost.tolist() == [0, 0, 0, 0.5] == bandit.cost_mean.tolist()[4]
    assert_same_bits(first_pull(bandit, 2), first_pull(inner, 2))
    assert bj.WithNull(PLAIN["plain"]).cost_mean.tolist()[4] == 0


@pytest.mark.slow
def test_the_units_of_stock_and_time_do_not_matter():
    """The same game in other units: policies see the same numbers, and runs have the same pulls."""
    shop = {"prices": [[0.4, 0.9], [0.8, 0.5]], "demand": [[0.7, 0.2], [0.3, 0.4]]}
    one, other = (
        bj.Timed(bj.Pricing(**shop)),
        bj.Timed(bj.Pricing(**shop, inventory=[4, 8]), horizon=16),
    )
    runs = [
        bj.simulate_batch(bj.PrimalDualBwK(), bandit, budget, keys(8))
        for bandit, budget in ((one, [32, 32, 128]), (other, [8, 4, 8]))
    ]
    assert_same_bits(runs[0].pulls, runs[1].pulls)
    np.testing.assert_allclose(bj.regret(runs[0], one), bj.regret(runs[1], other), rtol=1e-5)


@pytest.mark.slow
def test_kinds_differ_by_resources(swept):
    assert kinds(swept) == [
        "Bernoulli, 4 arms, 3 resources",
        "Timed, 3 arms",
        "Bernoulli, 4 arms, 1 resource",
    ]


def test_compare_allows_for_one_more_lost_run():
    """The upper limit is that of the runs and one more, which earns what the linear program earns
    without its main arm.
    """
    (row,) = bj.compare({"mine": bj.TSUpdate()}, TWO, [30, 20], keys(6), quiet=True)
    values = np.asarray(bj.regret(row.runs, TWO))[:, 0]
    rest = min(
        theory.lp_value(
            bj.Bernoulli(reward=np.where(np.arange(2) == arm, 0, TWO.reward), cost=TWO.cost),
            [30, 20],
        )
        for arm in np.flatnonzero(theory.lp(TWO, [30, 20]).pulls > 0)
    )
    lost = theory.lp_value(TWO, [30, 20]) - rest
    expected = bj.interval(values, unseen=(np.nan, lost))
    assert (
        row.regret.high == pytest.approx(float(expected.high), rel=1e-5)
        and expected.high > bj.interval(values).high
    )


def test_a_lost_run_misses_an_arm_of_the_best_mix():
    """Hand-computed. With budgets of 1, arms 0 and 1 earn 3/4 together; one of them alone, or arm
    2, earns 1/2; arm 3, 1/4.
    """
    reward, cost = (
        np.array([0.5, 0.5, 0.5, 0.25]),
        np.array([[1, 1 / 3], [1 / 3, 1], [1, 1], [1, 1]]),
    )
    assert with_and_without(reward, cost) == pytest.approx((0.75, 0.25))
    # One arm and one resource that others have.
    nothing, wide = np.array([*reward, np.nan]), np.full((5, 3), np.nan)
    wide[:4, :2] = cost
    assert with_and_without(nothing, wide) == pytest.approx((0.75, 0.25))
    # Arm 2 is now as good as the mix: without both, arm 3 is left.
    twice = np.array([0.5, 0.5, 0.75, 0.25])
    assert with_and_without(twice, cost) in (
        pytest.approx((0.75, 0.5)),
        pytest.approx((0.75, 0.25)),
    )
    assert with_and_without(reward[:2], cost[:2]) == pytest.approx((0.75, 0.25)), (
        "one arm is always pulled"
    )
    assert np.isnan(with_and_without(np.array([0.5, 0.5]), np.array([[0, 0], [1, 1]]))).all()


@pytest.mark.slow
def test_lost_runs_of_several_resources(swept):
    lost = measured(swept).lost_run
    for name in swept.bandit.values:
        means = swept.sel(bandit=name)
        value, loss = with_and_without(means.reward_mean.values, means.cost_mean.values)
        optimum = (swept.regret + swept.reward).sel(bandit=name).isel(policy=0, seed=0)
        np.testing.assert_allclose(lost.sel(bandit=name), loss / value * optimum, rtol=1e-5)


def test_revenue_is_what_was_sold():
    shop = bj.Pricing(prices=[[1, 4], [2, 3]], demand=[[0.8, 0.2], [0.4, 0.3]], inventory=[1, 2])
    reward, cost = map(np.asarray, jax.jit(jax.vmap(lambda key: shop.pull(key, 1)))(keys(200)))
    assert set(np.unique(cost[:, 0])) == {0, 1} and set(np.unique(cost[:, 1])) == {0, 0.5}
    np.testing.assert_array_equal(reward, 2 * cost[:, 0] + 3 * 2 * cost[:, 1])
    # 5 standard errors.
    assert abs(np.corrcoef(cost.T)[0, 1]) < 0.35, "products are sold independently"


@pytest.mark.slow
def test_costs_of_different_resources_are_independent():
    for bandit in (
        bj.Bernoulli(reward=[0.5] * 2, cost=[[0.5] * 3] * 2),
        bj.Multinomial(reward_probs=[[0.5, 0.5]] * 2, cost_probs=[[[0.5, 0.5]] * 3] * 2),
    ):
        reward, cost = jax.jit(jax.vmap(lambda key, bandit=bandit: bandit.pull(key, 0)))(keys(5000))
        correlation = np.corrcoef(np.column_stack([reward, cost]).T)
        assert (abs(correlation[~np.eye(4, dtype=bool)]) < 6 / 5000**0.5).all()


@pytest.mark.parametrize("name", SEVERAL)
def test_a_store_keeps_bandits_with_several_resources(name):
    again = remade(
        "bandits", json.loads(json.dumps(entry_of(SEVERAL[name], bj.BANDITS))), bj.BANDITS
    )
    assert_same_bits(again, SEVERAL[name])


# The linear program, and regret.


def program(reward, cost, budget):
    found = linprog(-reward, A_ub=cost.T, b_ub=budget, method="highs")
    return -found.fun


@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("coarse", [False, True])
def test_the_linear_program_is_that_of_scipy(d, coarse):
    """Value, feasibility of pulls and prices, and strong duality, on 60 random instances; coarse
    ones have many ties.
    """
    rng = np.random.default_rng(d)
    for arms in np.repeat([2, 5, 20], 20):
        reward, cost, budget = (
            rng.random(arms),
            0.01 + 0.99 * rng.random((arms, d)),
            1 + 99 * rng.random(d),
        )
        if coarse:
            reward, cost, budget = np.round(4 * reward) / 4, np.ceil(4 * cost) / 4, np.round(budget)
        found = theory.lp(Means(reward, cost), budget)
        np.testing.assert_allclose(found.value, program(reward, cost, budget), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(
            [found.pulls @ reward, found.prices @ budget], found.value, rtol=1e-9, atol=1e-9
        )
        assert (found.pulls @ cost <= budget * (1 + 1e-9)).all() and (found.pulls >= 0).all()
        assert (found.pulls > 1e-9).sum() <= d
        assert (cost @ found.prices >= reward - 1e-9).all() and (found.prices >= 0).all()
        np.testing.assert_allclose(
            theory.lagrangian(Means(reward, cost), budget, found.pulls, found.prices), found.value
        )


@pytest.mark.parametrize("d", [2, 3])
def test_the_linear_program_with_costs_of_zero_and_uneven_budgets(d):
    """Some arms take nothing of some resources, or the same part of all budgets; budgets differ by
    a factor of up to 10⁶.
    """
    rng = np.random.default_rng(d)
    for number in range(150):
        reward, cost = rng.random(6), rng.random((6, d)) * (rng.random((6, d)) > 0.3)
        if number % 3 == 0:
            reward, cost = np.round(4 * reward) / 4, np.round(4 * cost) / 4
        cost[(cost == 0).all(1), 0] = 0.5
        budget = np.full(d, 100.0) * np.where(
            np.arange(d) == 0, 10 ** rng.uniform(0, 6) if number % 2 else 1, 1
        )
        found, size = theory.lp(Means(reward, cost), budget), (cost / budget).max(-1)
        worth = reward / size
        best = program(worth / worth.max(), cost / budget / size[:, None], np.ones(d)) * worth.max()
        np.testing.assert_allclose(
            [found.value, found.pulls @ reward, found.prices @ budget], best, rtol=1e-7
        )
        assert (found.pulls @ cost <= budget * (1 + 1e-7)).all() and (
            cost @ found.prices >= reward - 1e-7
        ).all()


def test_the_linear_program_of_arms_that_take_the_same_part_of_all_budgets():
    """By hand: arm 1 earns 1/2 for a quarter of each. The mix of the others earns less."""
    found = theory.lp(
        Means(np.array([0.5, 0.5, 0.75]), np.array([[0, 0.75], [0.25, 0.25], [0.5, 0.25]])), 1000
    )
    assert found.value == pytest.approx(2000) and found.pulls.tolist() == pytest.approx(
        [0, 4000, 0]
    )


def test_a_resource_without_a_limit_has_no_price():
    found = theory.lp(THREE, [20, np.inf, np.inf])
    ratio = np.asarray(THREE.reward_mean, float) / np.asarray(THREE.cost_mean, float)[:, 0]
    assert found.value == pytest.approx(20 * ratio.max()) and found.prices[1:].tolist() == [0, 0]
    assert theory.lp_value(THREE, np.inf) == np.inf
    run = bj.simulate(bj.Uniform(), THREE, [10, np.inf, np.inf], jax.random.key(0), max_rounds=200)
    assert bj.regret(run, THREE)[0] == pytest.approx(10 * ratio.max() - float(run.reward[0]))


def test_with_one_resource_the_program_is_the_best_ratio():
    bandit = bj.Bernoulli(reward=[0.5, 0.75, 0.2], cost=[0.25, 0.75, 0.4])
    assert theory.lp_value(bandit, 100) == pytest.approx(2 * 100)
    np.testing.assert_allclose(theory.lp_value(bandit, [[10], [20]]), [20, 40])


def test_the_lagrangian_is_a_saddle():
    """Other prices can only raise its maximum over pulls, and other pulls can only lower its
    minimum over prices.
    """
    found, rng = theory.lp(THREE, BUDGET), np.random.default_rng(0)
    cost = np.asarray(THREE.cost_mean, float)
    for _ in range(50):
        prices = rng.random(3)
        # Feasible, so that no pull helps.
        prices = prices / (cost @ prices / np.asarray(THREE.reward_mean)).min()
        assert theory.lagrangian(THREE, BUDGET, found.pulls, prices) >= found.value - 1e-9
        pulls = rng.random(4)
        pulls = pulls / (pulls @ cost / np.asarray(BUDGET)).max()
        assert theory.lagrangian(THREE, BUDGET, pulls, found.prices) <= found.value + 1e-9


def test_arms_that_earn_nothing_or_cost_nothing():
    assert theory.lp_value(Means(np.zeros(3), np.ones((3, 2))), 5) == 0
    assert theory.lp_value(Means(np.array([0.5, 0.1]), np.array([[0.0, 0], [0.5, 1]])), 5) == np.inf
    assert theory.lp_value(
        Means(np.array([0.5, 0.0]), np.array([[0.5, 1], [0.0, 0]])), 5
    ) == pytest.approx(2.5)


def test_regret_is_measured_against_the_program(runs):
    optimum = np.array(
        [theory.lp_value(THREE, np.asarray(runs.budget[0, place], float)) for place in range(3)]
    )
    np.testing.assert_allclose(
        bj.regret(runs, THREE), optimum - np.asarray(runs.reward, float), rtol=1e-6
    )
    expected = np.asarray(runs.pulls, float) @ np.asarray(THREE.reward_mean, float)
    np.testing.assert_allclose(bj.pseudo_regret(runs, THREE), optimum - expected, rtol=1e-6)
    many = jax.tree.map(lambda x: np.stack([x] * 2), THREE)
    both = jax.tree.map(lambda x: np.stack([x, x]), runs)
    np.testing.assert_allclose(bj.regret(both, many)[1], bj.regret(runs, THREE))


# Sweeps.


@pytest.fixture(scope="module")
def grid():
    timed = bj.Timed(bj.Bernoulli(reward=[0.5, 0.9, 0.4], cost=[0.25, 0.9, 0.1]), horizon=2)
    return {"three": THREE, "timed": timed}


@pytest.fixture(scope="module")
def swept(grid):
    return bj.sweep(["uniform"], {**grid, **PLAIN}, [6, 12], 4)


@pytest.mark.slow
def test_a_sweep_with_several_resources(grid, tmp_path):
    """The runs are those of `simulate`. A store is read, resumed and grown, also by a bandit with
    one resource.
    """
    whole = bj.sweep(["uniform"], grid, [6, 12], 4, out=tmp_path / "store")
    assert (
        whole.cost.dims == ("policy", "bandit", "budget", "seed", "resource")
        and whole.sizes["resource"] == 3
    )
    assert np.isnan(whole.cost.sel(bandit="timed").values[..., 2]).all()
    assert whole.cost_mean.dims == ("bandit", "arm", "resource")
    told = bj.sweep(["primal-dual-bwk"], {"three": THREE}, [6, 12], 4)  # requires the budget
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), zlib.crc32(b"three")), 1)
    for policy, results in ((bj.Uniform(), whole), (bj.PrimalDualBwK(), told)):
        run = take(bj.simulate(policy, THREE, 12, key), 0)
        found = results.isel(policy=0).sel(bandit="three", budget=12, seed=1)
        assert_same_bits(found.cost.values, run.cost)
        assert_same_bits(found.pulls.values, run.pulls)
        assert float(found.regret) == pytest.approx(theory.lp_value(THREE, 12) - float(run.reward))
    assert bj.open_results(tmp_path / "store").identical(whole)
    (tmp_path / "store" / "checksum" / "c.0.1.0").unlink()
    assert (
        bj.sweep(**stored(tmp_path / "store"), out=tmp_path / "store")
        .drop_attrs()
        .identical(whole.drop_attrs())
    )
    more = bj.sweep(["uniform"], {**grid, **PLAIN}, [6, 12], 4, out=tmp_path / "store")
    np.testing.assert_array_equal(more.cost.sel(bandit=list(grid)), whole.cost)
    alone = bj.sweep(["uniform"], PLAIN, [6, 12], 4, out=tmp_path / "store")
    assert alone.cost.dims == ("policy", "bandit", "budget", "seed")
    np.testing.assert_array_equal(
        alone.cost[0, 0], more.cost.sel(policy="uniform", bandit="plain")[..., 0]
    )


@pytest.mark.slow
def test_a_store_with_one_resource_grows_by_several(grid, tmp_path):
    before = bj.sweep(["uniform"], PLAIN, [6, 12], 4, out=tmp_path / "store")
    after = bj.sweep(["uniform"], {**PLAIN, **grid}, [6, 12], 4, out=tmp_path / "store")
    np.testing.assert_array_equal(after.cost.sel(bandit="plain")[..., 0], before.cost[:, 0])


@pytest.mark.slow
def test_figures_and_tables(grid, swept, traces):
    results = swept.sel(bandit=list(grid))
    assert len(tables.regret_table(results)) == 2 * 2
    for draw in (plots.regret, plots.pulls, plots.final_regret):
        draw(results)
    trace = take(traces, 0)
    labels = [line.get_label() for axes in plots.run(trace).axes for line in axes.get_lines()]
    assert [label for label in labels if "left" in str(label)] == [
        f"budget left of resource {j}" for j in range(3)
    ]
    labels = [
        line.get_label()
        for axes in plots.run(trace, resources=list("abc")).axes
        for line in axes.get_lines()
    ]
    assert [label for label in labels if "left" in str(label)] == ["a left", "b left", "c left"]
    for names in (["a"], "abc"):
        with pytest.raises(ValueError, match="are not 3 names"):
            plots.run(trace, resources=names)
    with pytest.raises(ValueError, match="theory is about one resource"):
        plots.regret(results, theory="slope")


def test_a_grid_file(tmp_path):
    (tmp_path / "grid.toml").write_text(
        """
num_seeds = 3
budgets = [5, 10]
[policies.mine]
kind = "knapsack-bts"
[bandits.shop]
kind = "timed"
horizon = 3
bandit = { kind = "pricing", prices = [[1, 2], [2, 1]], demand = [[0.5, 0.5], [0.25, 0.75]] }
[bandits.drawn]
kind = "bernoulli"
random = { num_arms = 4, num_resources = 3 }
""",
        encoding="utf-8",
    )
    arguments = read_toml(tmp_path / "grid.toml")
    assert arguments["bandits"]["shop"].num_resources == 3 and arguments["bandits"][
        "drawn"
    ].cost_mean.shape == (4, 3)
    assert isinstance(arguments["policies"]["mine"], bj.KnapsackBTS)


# What is refused.

TWO = bj.Bernoulli(reward=[0.5, 0.9], cost=[[0.5, 0.25], [0.25, 0.5]])
FREE = bj.Bernoulli(reward=[0.5, 0.9], cost=[[0.5, 0.25], [0, 0]])


@pytree
class Late(bj.Bernoulli):
    """Says that its last resource is time, but arms take different amounts of it."""

    horizon = 5


KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bj.simulate(bj.BTS(), TWO, 5, KEY),
            "policy BTS plays with one resource.*vector of 2.*KnapsackBTS",
        ),
        (
            lambda: bj.simulate(bj.Uniform(), TWO, [5, 5, 5], KEY),
            r"budget has shape \(3,\), and the "
            r"bandit has 2 resources",
        ),
        (lambda: bj.simulate(bj.Uniform(), TWO, [5, 0], KEY), r"budget\[1\] = 0"),
        (lambda: bj.simulate(bj.Uniform(), TWO, [-5, 5], KEY), r"budget\[0\] = -5"),
        (lambda: bj.simulate(bj.Uniform(), TWO, [5, np.nan], KEY), r"budget\[1\] = nan"),
        (
            lambda: bj.simulate(bj.Uniform(), TWO, 5, KEY, checkpoints=[1, 5]),
            r"checkpoints\[1\] = "
            r"5.*fractions of the "
            r"budget",
        ),
        (
            lambda: bj.simulate(bj.Uniform(), TWO, 5, KEY, checkpoints=[0.0]),
            r"checkpoints\[0\] = "
            r"0.*fractions",
        ),
        (
            lambda: bj.simulate(bj.Uniform(), bj.WithNull(TWO), 5, KEY),
            "arm 2 of bandit WithNull consumes nothing of any resource",
        ),
        (
            lambda: bj.simulate_batch(bj.Uniform(), TWO, [5, 5, 5], keys(3)),
            r"budget has shape "
            r"\(3,\).*2 resources",
        ),
        (lambda: bj.simulate_batch(bj.Uniform(), TWO, [[5, 5]] * 2, keys(3)), "keys 3, budget 2"),
        (
            lambda: bj.simulate(bj.LagrangeBwK(), TWO, 5, KEY),
            r"LagrangeBwK requires "
            r"time_cost.*Timed\(bandit, horizon\)",
        ),
        (
            lambda: bj.simulate(
                bj.LagrangeBwK(), bj.Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5]), 5, KEY
            ),
            "no time limit",
        ),
        (
            lambda: bj.sweep(["kube"], {"two": TWO}, [5], 2),
            r"policies\['kube'\]: policy KUBE plays "
            r"with one resource",
        ),
        (
            lambda: bj.sweep(["uniform"], {"two": TWO}, [5], 2, relative_to_min_cost=True),
            "has 2 resources.*relative_to_min_cost",
        ),
        (lambda: bj.Bernoulli(reward=[0.5, 0.9], cost=[[0.5, 0.25]]), "differ in shape"),
        (lambda: bj.Bernoulli(reward=[0.5, 0.9], cost=np.zeros((2, 0))), "without any resource"),
        (
            lambda: bj.Bernoulli(reward=[0.5, 0.9], cost=[[0.5, 1.25], [0.5, 0.5]]),
            r"cost\[0, 1\] = 1.25",
        ),
        (lambda: bj.Timed(TWO, horizon=0.5), "horizon = 0.5"),
        (lambda: bj.Timed(bj.Timed(TWO)), "has time as a resource already"),
        (
            lambda: bj.Pricing(prices=[[1, -2], [1, 1]], demand=[[0.5, 0.5]] * 2),
            r"prices\[0, 1\] = -2",
        ),
        (
            lambda: bj.Pricing(prices=[[1, 2], [1, 1]], demand=[[0.5], [0.5]]),
            r"demand has shape \(2, "
            r"1\)",
        ),
        (
            lambda: bj.Pricing(
                prices=[[1, 2], [1, 1]], demand=[[0.5, 0.5]] * 2, inventory=[1, 2, 3]
            ),
            r"inventory has shape \(3,\)",
        ),
        (
            lambda: bj.simulate(bj.KnapsackBTS(), TWO, [5, np.inf], KEY, max_rounds=9),
            "requires the budget: give a finite one",
        ),
        (
            lambda: bj.simulate_batch(bj.KnapsackBTS(), TWO, [5, np.inf], keys(3), max_rounds=9),
            "requires the budget",
        ),
        (
            lambda: bj.simulate(bj.Uniform(), TWO, [[1], [2, 3]], KEY),
            "budget = .* is not a number or an array of numbers",
        ),
        (
            lambda: bj.sweep(["uniform"], {"two": TWO}, rounds=[5], num_seeds=2),
            r"bandits\['two'\].*so no regret",
        ),
        (
            lambda: bj.sweep(["uniform"], {"two": TWO, "free": FREE}, [5], 2),
            r"bandits\['free'\]: arm "
            r"1 of bandit",
        ),
        (lambda: bj.Scaled(TWO, scale=5), r"has a vector of costs.*Timed\(Scaled"),
        (
            lambda: bj.simulate(bj.Uniform(), Late(reward=TWO.reward, cost=TWO.cost), 5, KEY),
            "of the last resource.*1 / horizon",
        ),
        (
            lambda: bj.Pricing(prices=[1, 2], demand=[0.5, 0.5]),
            r"prices has shape \(2,\).*arm and "
            r"product",
        ),
        (lambda: bj.WithNull.random(KEY, 2), "num_arms = 2 is too few"),
        (
            lambda: theory.lagrangian(TWO, 5, [1, 2, 3], [1, 1]),
            r"pulls has shape \(3,\): give 2 "
            r"numbers, one for each arm",
        ),
        (lambda: TWO.ratio, "no ratio and no best arm"),
        (lambda: theory.gaps(TWO), "bandit has 2 resources"),
        (lambda: theory.lp(TWO, [5, 5, 5]), r"budget has shape \(3,\)"),
        (lambda: theory.lp(TWO, [5, 0]), r"budget\[1\] = 0"),
        (
            lambda: bj.learn.score_gradient(
                bj.BTS(), jax.tree.map(lambda x: np.stack([x] * 3), TWO), 5, KEY
            ),
            "one resource",
        ),
    ],
)
def test_what_is_refused(call, message):
    import bts_jax.learn  # noqa: F401  for the last case

    with pytest.raises(ValueError, match=message):
        call()


def test_a_pull_of_another_shape_is_refused():
    class Wrong(bj.Bernoulli):
        def pull(self, key, arm):
            return jnp.float32(1), jnp.float32(1)

    with pytest.raises(
        ValueError,
        match=r"a cost of shape \(\), and cost_mean has shape \(2, "
        r"2\): return 2 costs",
    ):
        bj.simulate(bj.Uniform(), pytree(Wrong)(reward=TWO.reward, cost=TWO.cost), 5, KEY)


@pytest.mark.slow
def test_the_command_line(capsys):
    main(
        [
            "run",
            "--policy",
            "uniform",
            "--bandit",
            "timed",
            "--arms",
            "4",
            "--budget",
            "20",
            "--seeds",
            "5",
            "--quiet",
        ]
    )
    out = capsys.readouterr().out
    assert (
        "2 resources, optimum of the linear program" in out
        and "best arm" not in out
        and "uniform" in out
    )
    with pytest.raises(SystemExit):
        main(["run", "--policy", "bts", "--bandit", "pricing", "--quiet"])
    assert "plays with one resource" in capsys.readouterr().err
