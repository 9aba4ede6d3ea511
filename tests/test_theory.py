"""The paper's theory: identities and inequalities on random instances, sums and tables against slow
and exact ones.
"""

from fractions import Fraction
from functools import cache
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from common import INSTANCES, take
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import bts_jax as bj
from bts_jax import theory

often = settings(max_examples=200, deadline=None)
now_and_then = settings(max_examples=24, deadline=None)

# Means near 0 and 1 included. Bandits hold float32, so these are float32 numbers.
EDGES = [2.0**-13, 1e-3, 0.5, 0.999, 1.0]
means = st.one_of(st.floats(0.0078125, 1, width=32), st.sampled_from(EDGES))
gammas = st.floats(0.001, 0.999)
seeds = st.integers(0, 2**31 - 1)


@st.composite
def bandits(draw):
    arms = draw(st.integers(2, 5))
    reward, cost = (
        np.float32(draw(st.lists(means, min_size=arms, max_size=arms))) for _ in range(2)
    )
    if draw(st.booleans()):  # an arm that is almost as good as another
        reward[1], cost[1] = (
            np.nextafter(reward[0], 0, dtype=np.float32) * np.float32(1 - 2**-20),
            cost[0],
        )
    bandit = bj.Bernoulli(reward=reward, cost=cost)
    assume(lone(reward, cost))
    return bandit


@st.composite
def batches(draw):
    """A hundred bandits, or somewhat fewer: those with two best arms are left out. Half of the
    means are at the edges.
    """
    rng, arms = np.random.default_rng(draw(seeds)), draw(st.integers(2, 5))
    reward, cost = np.float32(
        np.where(
            rng.random((2, 100, arms)) < 0.5,
            rng.uniform(2**-7, 1, (2, 100, arms)),
            rng.choice(EDGES, (2, 100, arms)),
        )
    )
    # Almost as good as another.
    reward[:30, 1], cost[:30, 1] = reward[:30, 0] * np.float32(1 - 2**-20), cost[:30, 0]
    chosen = lone(reward, cost)
    return bj.Bernoulli(reward=reward[chosen], cost=cost[chosen])


def lone(reward, cost):
    """Whether no arm is as good as the best, by twice the margin within which theory treats two
    arms as equally good.
    """
    ratio = np.sort(np.float64(reward) / cost, axis=-1)
    return ratio[..., -1] - ratio[..., -2] > 2**-21 * ratio[..., -1]


def others(bandit):
    return np.arange(bandit.num_arms) != int(np.argmin(theory.gaps(bandit).gap))


@often
@given(batches(), gammas)
def test_the_two_gaps_meet(bandits, gamma):
    """(μ_i^r + δ)/(μ_i^c − δ) = (μ_1^r − ε)/(μ_1^c + ε), and it lies between the two ratios."""
    reward, cost = (np.asarray(x, np.float64) for x in (bandits.reward, bandits.cost))
    ratio, gap = theory.gaps(bandits)
    delta, epsilon = theory.delta_gap(bandits, gamma), theory.epsilon_gap(bandits, gamma)
    best = np.argmin(gap, -1)[:, None]
    best_reward, best_cost, best_ratio = (
        np.take_along_axis(x, best, -1) for x in (reward, cost, ratio)
    )
    left, right = (reward + delta) / (cost - delta), (best_reward - epsilon) / (best_cost + epsilon)
    np.testing.assert_allclose(left, right, rtol=1e-9)
    assert (left >= ratio * (1 - 1e-12)).all() and (left <= best_ratio * (1 + 1e-12)).all()
    for x in (gap, delta, epsilon):
        assert (np.take_along_axis(x, best, -1) == 0).all() and (
            (x > 0).sum(-1) == bandits.num_arms - 1
        ).all()


@often
@given(batches(), gammas)
def test_the_remark_and_the_order_of_the_constants(bandits, gamma):
    """At γ = 1/√2 the constant of BTS is strictly below that of UCB-BV1; the lower bound's slope is
    below both at any γ.
    """
    slope, bts = theory.lower_bound_slope(bandits), theory.bts_constant(bandits)
    assert (slope > 0).all() and (bts < theory.ucb_bv1_constant(bandits)).all()
    assert (slope < theory.bts_constant(bandits, 0.999)).all() and (
        slope < theory.bts_constant(bandits, gamma)
    ).all()


@now_and_then
@given(bandits(), gammas)
def test_bts_constant_is_the_leading_term(bandit, gamma):
    """2 ln B / δ² pulls of arm i, each of which loses μ_i^c Δ_i."""
    gap, delta = theory.gaps(bandit).gap, theory.delta_gap(bandit, gamma)
    rest = others(bandit)
    expected = (np.asarray(bandit.cost, np.float64) * gap)[rest] @ (2 / delta[rest] ** 2)
    np.testing.assert_allclose(theory.bts_constant(bandit, gamma), expected, rtol=1e-9)


# Facts 2 to 4 of the appendix, each example at many places at once.
levels = st.lists(st.floats(0, 1), max_size=5).map(
    lambda some: np.array([0, 1e-9, 1e-3, *some, 0.999, 1 - 1e-9, 1])
)


@often
@given(st.integers(1, 60), st.integers(1, 60), levels)
def test_fact_2_beta_and_binomial(a, b, y):
    np.testing.assert_allclose(
        scipy.stats.beta.cdf(y, a, b),
        scipy.stats.binom.sf(a - 1, a + b - 1, y),
        rtol=1e-9,
        atol=1e-300,
    )


@often
@given(st.integers(1, 200), levels)
def test_fact_3_one_trial_more(n, p):
    cdf, s, p = scipy.stats.binom.cdf, np.arange(n + 2), p[:, None]
    np.testing.assert_allclose(
        cdf(s, n + 1, p), (1 - p) * cdf(s, n, p) + p * cdf(s - 1, n, p), rtol=1e-8, atol=1e-200
    )
    assert (cdf(s, n + 1, p) <= cdf(s, n, p) * (1 + 1e-12)).all()


@often
@given(st.integers(1, 500), levels, st.floats(1e-3, 1))
def test_fact_4_hoeffding(n, p, delta):
    cdf, sf = scipy.stats.binom.cdf, scipy.stats.binom.sf
    bound = np.exp(-2 * n * delta**2) * (1 + 1e-9)
    assert (cdf(n * p - n * delta, n, p) <= bound).all() and (
        sf(n * p + n * delta, n, p) <= bound
    ).all()
    if n > 1 / delta:
        assert (
            sf(n * p + n * delta, n + 1, p) <= np.exp(4 * delta - 2 * n * delta**2) * (1 + 1e-9)
        ).all()


@often
@given(means, means)
def test_kl_is_scipys(p, q):
    expected = scipy.stats.entropy([p, 1 - p], [q, 1 - q])
    np.testing.assert_allclose(theory.kl(p, q), expected, rtol=1e-9, atol=1e-15)


def test_kl_at_the_edges():
    np.testing.assert_array_equal(
        theory.kl([0, 1, 0, 1, 0.5, 0.5], [0, 1, 1, 0, 0, 1]), [0, 0] + [np.inf] * 4
    )
    np.testing.assert_allclose(theory.kl([0, 1], [0.25, 0.25]), [-np.log(0.75), -np.log(0.25)])
    slope = jax.grad(theory.kl, argnums=1)(jnp.array(0.0), jnp.array(0.5))
    assert slope == 2


@pytest.mark.slow
@often
@given(bandits())
def test_least_divergence_against_a_numerical_minimisation(bandit):
    reward, cost = (np.asarray(x, np.float64) for x in (bandit.reward, bandit.cost))
    best = theory.gaps(bandit).ratio.max()
    divergence = theory.least_divergence(bandit)
    for i in np.flatnonzero(others(bandit)):
        # The minimum lies between the cost of an arm with ratio ρ* and reward μ_i^r, and μ_i^c.
        low, high = reward[i] / best, min(cost[i], 1 / best)

        def along(part, i=i, low=low, high=high):
            y = low + part * (high - low)
            return float(theory.kl(reward[i], min(best * y, 1.0)) + theory.kl(cost[i], y))

        found = scipy.optimize.minimize_scalar(
            along, bounds=(0, 1), method="bounded", options={"xatol": 1e-9}
        )
        least = min(found.fun, along(0), along(1))  # that method never looks at the ends
        np.testing.assert_allclose(divergence[i], least, rtol=1e-6, atol=1e-20)


def test_least_divergence_is_least_off_the_line_as_well():
    bandit = INSTANCES["bernoulli"]
    best, divergence = theory.gaps(bandit).ratio.max(), theory.least_divergence(bandit)
    x, y = np.meshgrid(np.linspace(0, 1, 401)[1:-1], np.linspace(0, 1, 401)[1:-1])
    x, y = x[x >= best * y], y[x >= best * y]
    for r, c, least in zip(
        np.float64(bandit.reward), np.float64(bandit.cost), divergence, strict=True
    ):
        assert least <= (theory.kl(r, x) + theory.kl(c, y)).min() < least + 0.02


# The sum that Φ stands for.


def exactly(k, mean, level):
    """E[1/p] − 1 in rational arithmetic: Σ_s f_{k,mean}(s) / F_{k+1,level}(s), minus 1."""
    mean, level = Fraction(mean), Fraction(level)
    below = total = Fraction(0)
    for s in range(k + 1):
        below += comb(k + 1, s) * level**s * (1 - level) ** (k + 1 - s)
        total += comb(k, s) * mean**s * (1 - mean) ** (k - s) / below
    return float(total - 1)


@pytest.mark.parametrize("k", [0, 1, 2, 7, 30, 90])
@pytest.mark.parametrize(
    ("mean", "level"),
    [
        (0.7, 0.6),
        (0.5, 0.499),
        (0.999, 0.5),
        (1.0, 0.75),
        (0.02, 0.01),
        (0.9, 0.001),
        (1.0, 0.999),
    ],
)
def test_expected_reciprocal_against_fractions(k, mean, level):
    np.testing.assert_allclose(theory._excess(k, mean, level), exactly(k, mean, level), rtol=1e-9)


@pytest.mark.parametrize(
    ("k", "mean", "level"), [(3000, 0.5, 0.47), (20_000, 0.9, 0.895), (100_000, 0.03, 0.0299)]
)
def test_expected_reciprocal_of_many_pulls_against_scipy(k, mean, level):
    """The implementation uses only a window of the sum, the test all of it. In logarithms, because
    SciPy's tails underflow.
    """
    s = np.arange(k + 2)
    mass = scipy.stats.binom.logpmf(s, k + 1, level)
    below, above = np.logaddexp.accumulate(mass)[:-1], np.logaddexp.accumulate(mass[::-1])[::-1][1:]
    expected = np.exp(scipy.stats.binom.logpmf(s[:-1], k, mean) + above - below).sum()
    np.testing.assert_allclose(theory._excess(k, mean, level), expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("k", "mean", "epsilon"), [(5, 0.6, 0.1), (40, 0.6, 0.1), (200, 0.8, 0.05)]
)
def test_expected_reciprocals_against_monte_carlo(k, mean, epsilon):
    """The mean of 200,000 draws is within 6 of its standard errors, but once in 10⁸; a shift of the
    level by a tenth of ε moves it by more than that. Both twins are drawn from their definitions:
    Beta posteriors after k pulls."""
    rng = np.random.default_rng(k)
    s, count = np.unique(rng.binomial(k, mean, 200_000), return_counts=True)
    for draws, ours in (
        (
            1 / scipy.stats.beta.sf(mean - epsilon, s + 1, k - s + 1),
            theory._excess(k, mean, mean - epsilon),
        ),
        (
            1 / scipy.stats.beta.cdf(mean + epsilon, s + 1, k - s + 1),
            theory._excess(k, 1 - mean, 1 - mean - epsilon),
        ),
    ):
        draws = np.repeat(draws, count)
        assert abs(draws.mean() - 1 - ours) < 6 * draws.std() / len(draws) ** 0.5


@pytest.mark.parametrize(
    ("reward", "cost", "epsilon"),
    [(0.8, 0.4, 0.2), (0.5, 0.5, 0.1), (1.0, 0.3, 0.08), (0.3, 0.97, 0.06)],
)
def test_the_sum_against_all_its_terms(reward, cost, epsilon):
    total = 0.0
    for k in range(10_000):
        r, c = (
            theory._excess(k, reward, reward - epsilon),
            theory._excess(k, 1 - cost, 1 - cost - epsilon),
        )
        total += r + c + r * c
        if k > 100 and r + c < 1e-12 * total:
            break
    np.testing.assert_allclose(theory._exploration(reward, cost, epsilon), total, rtol=1e-7)


def test_one_sum_by_hand():
    """Best arm with reward 1 and cost 1: E[1/p^r] = 1 / (1 − y^{k+1}), and any drawn cost is low
    enough.
    """
    terms = [0.5 ** (k + 1) / (1 - 0.5 ** (k + 1)) for k in range(60)]
    np.testing.assert_allclose(theory._exploration(1.0, 1.0, 0.5), sum(terms), rtol=1e-9)


def test_the_bound_term_by_term():
    bandit, gamma = INSTANCES["bernoulli"], 0.6
    bound = theory.bts_bound(bandit, 500, gamma)
    rest, best = others(bandit), int(bandit.best_arm)
    delta, epsilon = theory.delta_gap(bandit, gamma)[rest], theory.epsilon_gap(bandit, gamma)[rest]
    np.testing.assert_allclose(bound.logarithmic[rest], 2 * np.log(500) / delta**2)
    np.testing.assert_allclose(bound.concentration[rest], 35 / (delta**2 * 0.3), rtol=1e-6)
    np.testing.assert_allclose(
        bound.exploration[rest], [theory._exploration(0.5, 0.3, e) for e in epsilon], rtol=1e-4
    )
    np.testing.assert_allclose(
        bound.pulls[rest], (1 + bound.logarithmic + bound.concentration + bound.exploration)[rest]
    )
    np.testing.assert_allclose(bound.leading, theory.bts_constant(bandit, gamma) * np.log(500))
    loss = np.asarray(bandit.cost, np.float64) * theory.gaps(bandit).gap
    np.testing.assert_allclose(bound.regret, loss[rest] @ bound.pulls[rest])
    assert bound.pulls[best] == np.inf
    general = theory.bts_bound(bandit, 500.5, gamma)  # no whole budget: 70, and 2ρ* more
    np.testing.assert_allclose(general.concentration[rest], 2 * bound.concentration[rest])
    np.testing.assert_allclose(
        general.regret, loss[rest] @ general.pulls[rest] + 2 * 0.5 / 0.3, rtol=1e-6
    )
    for budget, rounds in ((500, 500 / 0.3), (500.5, 501.5 / 0.3)):  # at most so many, on average
        repaired = theory.bts_bound(bandit, budget, gamma, proof="repaired")
        expected = 2 / (1 - np.exp(-(delta**2) / 2)) / budget + 2 * rounds / budget
        np.testing.assert_allclose(repaired.concentration[rest], expected, rtol=1e-6)
        np.testing.assert_array_equal(repaired.exploration, bound.exploration)


@often
@given(st.floats(1e-4, 0.9999), st.floats(1e-4, 1), st.floats(np.e, 1e9), st.booleans())
def test_the_papers_constants_survive_the_repair(delta, least, budget, simple):
    """The repaired Step 2 has 4.3 or 5 where the paper has 35 or 70."""
    paper, repaired = (
        theory._concentration(delta, budget=budget, least=least, simple=simple, proof=proof)
        for proof in theory.PROOFS
    )
    assert repaired <= (4.3 / 35 if simple else 5 / 70) * paper


@often
@given(st.integers(1, 300), st.floats(1e-3, 1))
def test_a_posterior_stays_near_its_average(n, delta):
    """Step 2's repair: P{θ > S/n + δ/2} and P{θ < S/n − δ/2} are at most e^(−(n+1)δ²/2), for any
    number of successes S.
    """
    s = np.arange(n + 1)
    bound = np.exp(-(n + 1) * delta**2 / 2) * (1 + 1e-9)
    assert (scipy.stats.beta.sf(s / n + delta / 2, s + 1, n - s + 1) <= bound).all()
    assert (scipy.stats.beta.cdf(s / n - delta / 2, s + 1, n - s + 1) <= bound).all()


@pytest.mark.slow
def test_step_3_in_whole_runs():
    """The repaired Step C, in 4,000 runs of BTS in NumPy that end when the budget does.

    Pulls of the worse arm at a draw θ ≤ ϱ are fewer, on average, than Σ_t 1{I_t = 1, B_t > 0}
    (1/p_t − 1): 0.12 against 2.62. The mean of that is the sum over k, but for a negligible part
    that comes after the end of the runs. They differ by less than 6 standard errors, which chance
    exceeds once in 10⁸. Six are 8% of the sum: that large an error in it would show.
    """
    reward, cost, budget, count, gamma = np.array([0.9, 0.3]), np.array([0.5, 0.9]), 20, 4000, 0.2
    bandit = bj.Bernoulli(reward=reward, cost=cost)
    delta, epsilon = theory.delta_gap(bandit, gamma)[1], theory.epsilon_gap(bandit, gamma)[1]
    level = (reward[1] + delta) / (cost[1] - delta)
    rng, runs = np.random.default_rng(0), np.arange(count)
    s, c, n = (np.zeros((count, 2)) for _ in range(3))
    left, low, weight = np.full(count, budget), np.zeros(count), np.zeros(count)
    while (left > 0).any():
        theta = rng.beta(s + 1, n - s + 1) / rng.beta(c + 1, n - c + 1)
        arm, on = theta.argmax(1), left > 0
        p = scipy.stats.beta.sf(
            reward[0] - epsilon, s[:, 0] + 1, n[:, 0] - s[:, 0] + 1
        ) * scipy.stats.beta.cdf(cost[0] + epsilon, c[:, 0] + 1, n[:, 0] - c[:, 0] + 1)
        low += on & (arm == 1) & (theta[:, 1] <= level)
        weight += np.where(on & (arm == 0), 1 / p - 1, 0)
        paid = rng.random(count) < cost[arm]
        s[runs, arm] += on & (rng.random(count) < reward[arm])
        c[runs, arm] += on & paid
        n[runs, arm] += on
        left = left - (on & paid)
    assert 0 < low.mean() < weight.mean()
    assert (
        abs(weight.mean() - theory.bts_bound(bandit, budget, gamma).exploration[1])
        < 6 * weight.std() / count**0.5
    )


@pytest.mark.slow
def test_the_best_gamma_is_best():
    bandit = INSTANCES["multinomial"]
    least, rest = theory.bts_bound(bandit, 1000), others(bandit)
    for gamma in (0.5, 0.75, 0.9):
        assert (
            least.pulls[rest] <= 1.001 * theory.bts_bound(bandit, 1000, gamma).pulls[rest]
        ).all()


@pytest.mark.slow
def test_simulated_pulls_stay_below_the_bound():
    """On each of 20 instances, for each arm. The arms are so far apart that the bound is below a
    third of the pulls there
    are: a policy that learned nothing would break it."""
    rng = np.random.default_rng(0)
    reward = np.concatenate([rng.uniform(0.9, 1, (20, 1)), rng.uniform(0.02, 0.2, (20, 2))], 1)
    cost = np.concatenate([rng.uniform(0.3, 0.5, (20, 1)), rng.uniform(0.8, 1, (20, 2))], 1)
    every, budget = bj.Bernoulli(reward=np.repeat(reward, 8, 0), cost=np.repeat(cost, 8, 0)), 3000
    runs = bj.simulate_batch(bj.BTS(), every, budget, jax.random.split(jax.random.key(0), 160))
    pulls, regret = (
        runs.pulls[:, 0].reshape(20, 8, 3).mean(1),
        bj.pseudo_regret(runs, every).reshape(20, 8).mean(1),
    )
    for i in range(20):
        bound = theory.bts_bound(
            bj.Bernoulli(reward=reward[i], cost=cost[i]), budget, 0.8, proof="repaired"
        )
        assert (pulls[i, 1:] < bound.pulls[1:]).all() and regret[i] < bound.regret
        assert (bound.pulls[1:] < budget / 3).all()  # there are more pulls than units of budget


# The exact optimum.


def by_hand(bandit, steps, budget, arms):
    """R*(b) and the arms that earn it, by value iteration in plain Python, until nothing
    changes.
    """
    rewards = np.asarray(bandit.reward_mean, np.float64)
    if isinstance(bandit, bj.Bernoulli):
        costs = [{0.0: 1 - c, 1.0: c} for c in np.asarray(bandit.cost, np.float64)]
    else:
        support = np.round(np.asarray(bandit.support, np.float64) * steps) / steps
        costs = [
            dict(zip(support, row, strict=True))
            for row in np.asarray(bandit.cost_probs, np.float64)
        ]

    @cache
    def value(left):
        if left == 0:
            return 0.0, {-1}
        here, before = 0.0, -1.0
        while here - before > 1e-13:
            before = here
            then = {
                c: here if c == 0 else value(left - c)[0]
                for c in {c for row in costs for c in row}
                if c <= left
            }
            options = {
                i: sum(p * (rewards[i] + then[c]) for c, p in costs[i].items() if c <= left)
                for i in arms
            }
            here = max(options.values())
        return here, {i for i in options if options[i] > here - 1e-6}

    return value(budget)


# At the end it pays to leave the best arm, which costs 1, for the cheap one.
LITTLE = bj.Multinomial(
    reward_probs=[[0, 0, 0, 0, 1], [0.1, 0.9, 0, 0, 0], [0.2] * 5],
    cost_probs=[[0, 0, 0, 0, 1], [0.0, 0.5, 0.5, 0, 0], [0.1, 0, 0, 0.8, 0.1]],
)


@pytest.mark.parametrize("bandit", [INSTANCES["bernoulli"], INSTANCES["multinomial"], LITTLE])
def test_optimum_against_value_iteration(bandit):
    steps = 1 if isinstance(bandit, bj.Bernoulli) else 4
    budgets = np.concatenate([np.arange(0, 4 * steps + 1) / steps, [0.125, 0.5625, 1.125, 2.8125]])
    best = int(np.argmax(theory.gaps(bandit).ratio))
    every = [by_hand(bandit, steps, float(b), tuple(range(bandit.num_arms))) for b in budgets]
    only = [by_hand(bandit, steps, float(b), (best,)) for b in budgets]
    np.testing.assert_allclose(
        theory.optimal_reward(bandit, budgets), [v for v, _ in every], rtol=2e-6, atol=2e-6
    )
    np.testing.assert_allclose(
        theory.oracle_reward(bandit, budgets), [v for v, _ in only], rtol=2e-6, atol=2e-6
    )
    assert all(
        i in best for i, (_, best) in zip(theory.optimal_arm(bandit, budgets), every, strict=True)
    )


def test_little_budget_left_wants_another_arm():
    assert theory.optimal_arm(LITTLE, [0.25, 0.5, 0.75, 1]).tolist() == [1, 1, 2, 0]
    short = theory.optimal_reward(LITTLE, [0.75, 30.75]) - theory.oracle_reward(
        LITTLE, [0.75, 30.75]
    )
    assert (short > 0.2).all() and (short <= 2 * theory.gaps(LITTLE).ratio.max()).all()


@pytest.mark.slow
def test_lemma_1_on_random_multinomials():
    draw = jax.jit(jax.vmap(lambda key: bj.Multinomial.random(key, 4, num_points=4)))
    bandits = draw(jax.random.split(jax.random.key(0), 200))
    budgets = np.concatenate([np.arange(1, 16) / 3, [0.3, 1.77, 4.01, 100]])
    best = theory.gaps(bandits).ratio.max(-1, keepdims=True)
    # [200, budgets].
    oracle, optimum = (f(bandits, budgets) for f in (theory.oracle_reward, theory.optimal_reward))
    slack = 1e-5 * best
    assert (best * (budgets - 1) <= oracle + slack).all()
    assert (oracle <= optimum + slack).all()
    assert (optimum <= best * (budgets + 1) + slack).all()
    assert (np.diff(optimum[:, :-4]) >= -slack).all()
    assert (optimum - oracle > 0.01 * best).any(), "it is not always the best arm"


def test_bernoulli_optimum_is_linear():
    rng = np.random.default_rng(0)
    means = np.where(
        rng.random((2, 200, 4)) < 0.5,
        rng.uniform(2**-7, 1, (2, 200, 4)),
        rng.choice(EDGES, (2, 200, 4)),
    )
    bandits, budgets = bj.Bernoulli(reward=means[0], cost=means[1]), np.array([1, 2, 17, 3000])
    ratio, gap = theory.gaps(bandits)
    for reward in (theory.optimal_reward, theory.oracle_reward):
        np.testing.assert_allclose(
            reward(bandits, budgets), ratio.max(-1, keepdims=True) * budgets, rtol=1e-12
        )
    alone = lone(*means)
    assert (
        theory.optimal_arm(bandits, budgets)[alone] == np.argmin(gap, -1)[alone, None]
    ).all() and alone.mean() > 0.5


def test_rounding_does_not_add_up():
    """Far out R*(b) − ρ* b no longer changes."""
    bandit = INSTANCES["multinomial"]
    near, far = (
        theory.optimal_reward(bandit, b) - theory.gaps(bandit).ratio.max() * b
        for b in (100, 100_000)
    )
    assert abs(near - far) < 1e-5


@pytest.mark.slow
def test_simulated_oracle_earns_what_it_should():
    """4,000 runs: the mean is within 6 standard errors but once in 10⁸."""
    bandit = INSTANCES["multinomial"]
    reward = np.asarray(
        bj.simulate_batch(
            bj.Oracle(), bandit, 2.5, jax.random.split(jax.random.key(1), 4000)
        ).reward
    )
    assert abs(reward.mean() - theory.oracle_reward(bandit, 2.5)) < 6 * reward.std() / 4000**0.5


# Transformations, and wrong use.

CLOSED = {
    "gaps": theory.gaps,
    "delta_gap": lambda b: theory.delta_gap(b, 0.3),
    "epsilon_gap": lambda b: theory.epsilon_gap(b, 0.3),
    "bts_constant": theory.bts_constant,
    "ucb_bv1_constant": theory.ucb_bv1_constant,
    "least_divergence": theory.least_divergence,
    "lower_bound_slope": theory.lower_bound_slope,
    "optimal_reward": lambda b: theory.optimal_reward(b, [3, 7.5], steps=4),
    "oracle_reward": lambda b: theory.oracle_reward(b, [3, 7.5], steps=4),
    "optimal_arm": lambda b: theory.optimal_arm(b, [0.25, 7.5], steps=4),
}


@pytest.mark.parametrize("name", CLOSED)
def test_functions_are_mapped_and_compiled(name):
    batch = jax.jit(jax.vmap(lambda key: bj.Multinomial.random(key, 3)))(
        jax.random.split(jax.random.key(0), 4)
    )
    mapped = jax.jit(jax.vmap(CLOSED[name]))(batch)
    single = [CLOSED[name](take(batch, i)) for i in range(4)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *single)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), mapped, stacked
    )
    # A batch outside of transformations, in float64 but for the tables.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), CLOSED[name](batch), stacked
    )


@pytest.mark.parametrize(
    "name", ["bts_constant", "ucb_bv1_constant", "lower_bound_slope", "optimal_reward"]
)
def test_gradients_are_those_of_finite_differences(name):
    """In the float64 of concrete values; means are moved by 2⁻¹⁰, which float32 holds exactly."""
    function = {**CLOSED, "optimal_reward": lambda b: theory.optimal_reward(b, 7)}[name]
    reward, cost, step = np.array([0.25, 0.75, 0.5]), np.array([0.5, 0.625, 0.75]), 2.0**-10
    slopes = jax.jit(jax.grad(lambda b: jnp.sum(function(b))))(
        bj.Bernoulli(reward=reward, cost=cost)
    )
    for i, unit in enumerate(np.eye(3) * step):
        for slope, ends in (
            (
                np.asarray(slopes.reward),
                [bj.Bernoulli(reward=reward + s * unit, cost=cost) for s in (1, -1)],
            ),
            (
                np.asarray(slopes.cost),
                [bj.Bernoulli(reward=reward, cost=cost + s * unit) for s in (1, -1)],
            ),
        ):
            np.testing.assert_allclose(
                slope[i], (function(ends[0]) - function(ends[1])) / (2 * step), rtol=2e-3, atol=1e-3
            )


TWO_BEST = bj.Bernoulli(reward=[0.2, 0.3, 0.1], cost=[0.4, 0.6, 0.9])
OWN_SUPPORT = bj.Multinomial(
    reward_probs=[[1, 0, 0], [0, 1, 0]],
    cost_probs=[[0, 1, 0], [0, 0, 1]],
    support=[0, 0.7071068, 1],
)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda b: theory.delta_gap(b, 0), "gamma = 0.0"),
        (lambda b: theory.epsilon_gap(b, 1.0), "gamma = 1.0"),
        (lambda b: theory.bts_constant(b, [0.5, 1.5]), r"gamma\[1\] = 1.5"),
        (lambda b: theory.bts_constant(b, "half"), "gamma = 'half'"),
        (lambda b: theory.bts_bound(b, 100, -0.5), "gamma = -0.5"),
        (lambda b: theory.bts_bound(b, 2), "budget = 2"),
        (lambda b: theory.bts_bound(b, 100, proof="none"), "proof = 'none'"),
        (lambda b: theory.bts_bound(b, [100, 200]), "budget = "),
        (lambda b: jax.jit(theory.bts_bound)(b, 100.0), "not known yet"),
        (lambda b: theory.bts_constant(TWO_BEST), "the best ratio = 0.5.*two arms"),
        (lambda b: theory.ucb_bv1_constant(TWO_BEST), "two arms"),
        (lambda b: theory.lower_bound_slope(TWO_BEST), "two arms"),
        (lambda b: theory.bts_bound(TWO_BEST, 100, 0.5), "two arms"),
        (
            lambda b: theory.gaps(bj.Bernoulli(reward=[0.5, 0.5], cost=[0, 1])),
            r"cost_mean\[0\] = 0.0",
        ),
        (lambda b: theory.gaps(7), "bandit = 7"),
        (lambda b: theory.kl(0.5, 1.5), "q = 1.5"),
        (lambda b: theory.optimal_reward(b, 1e9), "1,000,000,000 steps"),
        (lambda b: theory.optimal_reward(b, [1, -1]), r"budgets\[1\] = -1"),
        (lambda b: theory.optimal_reward(b, np.nan), "budgets = nan"),
        (lambda b: jax.jit(lambda x: theory.optimal_reward(b, x))(5.0), "budgets is not known yet"),
        (
            lambda b: theory.optimal_reward(OWN_SUPPORT, 5),
            "steps up to 1000 do not fit the support",
        ),
        (lambda b: theory.oracle_reward(LITTLE, 5, steps=3), "steps = 3 does not fit"),
        (lambda b: theory.oracle_reward(LITTLE, 5, steps=0.25), "steps = 0.25"),
        (lambda b: theory.optimal_arm(LITTLE, 5, steps=0), "steps = 0"),
        (lambda b: theory.oracle_reward(b, 5, steps=2), "steps = 2 does not fit Bernoulli"),
        (lambda b: jax.jit(lambda x: theory.optimal_reward(x, 5))(LITTLE), "steps = None"),
        (lambda b: theory.bts_bound(jax.tree.map(lambda x: x[None], b), 5), "batch of bandits"),
        (
            lambda b: theory.optimal_reward(jax.tree.map(lambda x: jnp.stack([x] * 4), b), 5e6),
            "for each of 4 bandits",
        ),
        (
            lambda b: theory.optimal_reward(bj.BTS(), 5),
            "bandit = .* has no reward_mean, no cost_mean",
        ),
    ],
)
def test_wrong_use_says_so(call, named):
    with pytest.raises(ValueError, match=named):
        call(INSTANCES["bernoulli"])
