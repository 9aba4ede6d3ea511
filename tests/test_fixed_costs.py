"""R* for arms whose costs never vary, against dynamic programming over whole numbers; and
GreedyKUBE, which plans with it.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import keys

import bts_jax as bj
from bts_jax import theory
from bts_jax.contract import Means, Problem
from bts_jax.fixed_costs import greedy, knapsack
from bts_jax.policies.index import ArmStatistics


def best(reward, cost, budget):
    """The optimum for costs that are whole numbers, by dynamic programming."""
    value = np.zeros(budget + 1)
    for left in range(1, budget + 1):
        value[left] = max(
            [
                value[left - 1],
                *(r + value[left - c] for r, c in zip(reward, cost, strict=True) if c <= left),
            ]
        )
    return value[budget]


@pytest.mark.parametrize("accuracy", [0.3, 0.05])
def test_the_bounds_enclose_the_optimum(accuracy):
    """150 random problems, half of them with arms of nearly the same ratio, where greedy solutions
    are worst.
    """
    rng = np.random.default_rng(0)
    gains = 0
    for number in range(150):
        cost = rng.integers(5, 60, size=rng.integers(2, 7))
        reward = rng.uniform(0.5, 1, len(cost)) * (cost / 60 if number % 2 else 1)
        budget = int(rng.integers(20, 200))
        optimum, found = (
            best(reward, cost, budget),
            knapsack(Means(reward, cost), budget, accuracy=accuracy),
        )
        assert found.low <= optimum * (1 + 1e-9) and found.high >= optimum * (1 - 1e-9)
        assert found.low >= (1 - accuracy) * optimum - 1e-12
        assert found.pulls @ cost <= budget and found.pulls @ reward == pytest.approx(found.low)
        both = [greedy(Means(reward, cost), budget, by=by) for by in ("density", "total")]
        assert all(
            pulls @ cost <= budget and pulls @ reward <= optimum * (1 + 1e-9) for pulls in both
        )
        assert max(pulls @ reward for pulls in both) >= optimum / 2
        gains += found.low > max(pulls @ reward for pulls in both) * (1 + 1e-9)
    assert gains > 10, "the scheme often finds more than both heuristics"


def test_heuristics_by_hand():
    """Budget 10: the best ratio, 0.9 for 6, leaves 4, which buys 0.4. Twice 0.7 for 5 earns
    more.
    """
    arms = Means(np.array([0.9, 0.7, 0.4]), np.array([6.0, 5.0, 4.0]))
    assert greedy(arms, 10).tolist() == [1, 0, 1] and greedy(arms, 10, by="total").tolist() == [
        0,
        2,
        0,
    ]
    assert knapsack(arms, 10).pulls.tolist() == [0, 2, 0] and knapsack(
        arms, 10
    ).low == pytest.approx(1.4)
    assert knapsack(arms, 3).low == 0 and knapsack(arms, 3).high == 0, "no arm fits"
    thirds = Means(np.array([0.5, 0.4]), np.array([0.1, 0.3]))
    assert greedy(thirds, 0.3).tolist() == [3, 0], "in spite of binary fractions"
    assert greedy(bj.FixedPrice(success=[0.5, 0.9], price=[0.1, 0.3]), 0.3).tolist() == [3, 0], (
        "and of float32"
    )
    large = knapsack(Means(np.array([1.0]), np.array([1.0])), 2e9 - 0.5)
    assert large.pulls.tolist() == [1_999_999_999] and large.low <= large.high


def test_fixed_prices_are_counted_as_in_the_game():
    """The reward of always pulling an arm that costs whole cents, with budgets that it uses up."""
    for cents, pulls in ((7, 43), (13, 21), (29, 30), (99, 17)):
        bandit = bj.FixedPrice(success=[1, 0.01], price=[cents / 100, 1])
        budget = round(cents * pulls / 100, 2)
        run = bj.simulate(bj.Oracle(), bandit, budget, keys(1)[0])
        assert run.reward.item() == pulls and knapsack(bandit, budget).low == pytest.approx(pulls)


def test_they_are_the_dynamic_program_of_random_costs():
    """Costs of 1/2 and 1, always: `optimal_reward` knows their distribution."""
    certain = bj.Multinomial(
        reward_probs=[[0.3, 0, 0.7], [0.5, 0.2, 0.3]], cost_probs=[[0, 0, 1], [0, 1, 0]]
    )
    for budget in (0.5, 1, 2.5, 7):
        found, exact = (
            knapsack(certain, budget, accuracy=0.01),
            theory.optimal_reward(certain, budget).item(),
        )
        assert found.low <= exact * (1 + 1e-5) and found.high >= exact * (1 - 1e-5)


def test_with_large_budgets_the_bound_of_the_paper_is_close():
    """What the paper's footnote says: such schemes hardly tighten the bound ρ* B."""
    models = bj.FixedPrice(success=[0.6, 0.8, 0.9], price=[0.3, 0.7, 0.9])
    found = knapsack(models, 1000)
    assert 2000 * (1 - 1e-3) < found.low <= found.high <= 2000 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Means(np.array([0.5, 0.5]), np.array([0.0, 1.0])), 10), "give arms that cost something"),
        (
            (bj.FixedPrice(success=[0.5, 0.5], price=[1, 2]), -1),
            "budget = -1.*give one positive number",
        ),
        (
            (bj.Timed(bj.FixedPrice(success=[0.5, 0.5], price=[1, 2])), 5),
            "one bandit with one resource",
        ),
    ],
)
def test_what_is_refused(arguments, message):
    for function in (knapsack, greedy):
        with pytest.raises(ValueError, match=message):
            function(*arguments)
    with pytest.raises(ValueError, match=r"accuracy = 0\.0001"):
        knapsack(bj.FixedPrice(success=[0.5, 0.5], price=[1, 2]), 10, accuracy=1e-4)
    with pytest.raises(ValueError, match=r"reward_mean of the bandit\[0\] = nan"):
        knapsack(Means(np.array([np.nan, 0.5]), np.array([1.0, 2.0])), 10)
    with pytest.raises(ValueError, match="at most 2³¹ pulls"):
        knapsack(Means(np.array([0.5, 0.5]), np.array([1e-12, 2.0])), 1e9)
    with pytest.raises(ValueError, match="by = 'ratio'"):
        greedy(bj.FixedPrice(success=[0.5, 0.5], price=[1, 2]), 10, by="ratio")


# Continuous costs


def test_brackets_of_continuous_costs():
    """They are nested, lie within Lemma 1, and enclose what the best arm earns in 20,000 runs (5
    standard errors).
    """
    bandit = bj.Beta(reward_alpha=[2, 1], reward_beta=[1, 1], cost_alpha=[1, 1], cost_beta=[1, 2])
    coarse, fine = (
        theory.optimal_reward_bounds(bandit, [1, 3, 10], steps=steps) for steps in (20, 100)
    )
    best = 1.5
    assert (
        (coarse.low <= fine.low).all()
        and (fine.low < fine.high).all()
        and (fine.high <= coarse.high).all()
    )
    assert (fine.low >= best * np.array([0, 2, 9])).all() and (
        fine.high <= best * np.array([2, 4, 11])
    ).all()
    runs = bj.simulate_batch(bj.Oracle(), bandit, 3, keys(20_000))
    earned = np.asarray(runs.reward)[:, 0]
    error = earned.std() / np.sqrt(len(earned))
    assert earned.mean() - 5 * error < fine.high[1], "no policy earns more"
    assert fine.low[1] > earned.mean() - 5 * error - 0.02, (
        "the lower bound is that of the best policy, up to rounding costs up"
    )
    tiny = bj.Beta(reward_alpha=[2, 1], reward_beta=[1, 1], cost_alpha=[1, 1], cost_beta=[500, 2])
    assert theory.optimal_reward_bounds(tiny, 1, steps=2).high == pytest.approx(
        2 * float(tiny.ratio.max()), rel=1e-4
    )
    with pytest.raises(ValueError, match="steps = 1"):
        theory.optimal_reward_bounds(bandit, 10, steps=1)
    with pytest.raises(ValueError, match="give one Beta bandit"):
        theory.optimal_reward_bounds(bj.Bernoulli(reward=[0.5, 0.6], cost=[0.5, 0.5]), 10)


# GreedyKUBE


def state_of(pulls, rewards, cost, budget):
    start = bj.GreedyKUBE().init(
        Problem(num_arms=len(pulls), budget=jnp.float32(budget), cost_mean=jnp.float32(cost))
    )
    arms = ArmStatistics.zeros(len(pulls))
    for arm, (n, total) in enumerate(zip(pulls, rewards, strict=True)):
        for i in range(n):
            arms = arms.record(jnp.int32(arm), jnp.float32(i < total), jnp.float32(0))
    return start._replace(arms=arms)


def chances(pulls, rewards, cost, budget, scale=2.0):
    """The probabilities of the arms, by the definition in plain Python."""
    t = sum(pulls) + 1
    upper = [r / n + np.sqrt(scale * np.log(t) / n) for n, r in zip(pulls, rewards, strict=True)]
    counts = np.zeros(len(pulls))
    for arm in sorted(range(len(pulls)), key=lambda i: -upper[i] / cost[i]):
        counts[arm] = np.floor(budget / cost[arm] + 1e-6)
        budget -= counts[arm] * cost[arm]
    return counts / counts.sum()


@pytest.mark.parametrize("budget", [7.0, 13.5, 2.0])
def test_greedy_kube_draws_arms_with_the_right_frequencies(budget):
    """20,000 decisions: 6 standard errors. A budget of 13.5 buys arm 1 six times and arm 0 once."""
    pulls, rewards, cost = (4, 6, 3), (2, 5, 0), (1.0, 2.0, 5.0)
    state, expected = state_of(pulls, rewards, cost, budget), chances(pulls, rewards, cost, budget)
    arms = np.asarray(jax.jit(jax.vmap(lambda key: bj.GreedyKUBE()(state, key)[0]))(keys(20_000)))
    found = np.bincount(arms, minlength=3) / len(arms)
    assert (
        abs(found - expected) <= 6 * np.sqrt(expected * (1 - expected) / len(arms)) + 1e-9
    ).all(), (found, expected)


def test_greedy_kube_begins_with_each_arm_and_counts_its_budget():
    bandit = bj.Bernoulli(reward=[0.9, 0.5, 0.1], cost=[0.5, 0.75, 0.25])
    run = bj.trace(bj.GreedyKUBE(), bandit, 20, keys(1)[0], rounds=30, record=True)
    assert sorted(run.arm[:3].tolist()) == [0, 1, 2]
    left = np.asarray(run.recorded.left.amount)
    assert left[0] == 20
    for (before, paid), (after, _) in pairwise(zip(left, np.asarray(run.cost), strict=True)):
        assert after == before - paid


@pytest.mark.slow
def test_greedy_kube_is_about_as_good_as_fractional_kube():
    """The source reports up to 40% less regret with few pulls of large costs; here the difference
    is small.
    """
    bandit = bj.FixedPrice(success=[0.9, 0.5, 0.4], price=[0.9, 0.6, 0.35])
    regret = {
        kind: bj.regret(bj.simulate_batch(kind(), bandit, 100, keys(400)), bandit).mean()
        for kind in (bj.GreedyKUBE, bj.FractionalKUBE, bj.Uniform)
    }
    assert (
        0.7 < regret[bj.GreedyKUBE] / regret[bj.FractionalKUBE] < 1.1
        and regret[bj.GreedyKUBE] < 0.8 * regret[bj.Uniform]
    )
