"""The parts of the paper's proof, against sums over all outcomes and against simulation."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from common import keys
from scipy import stats

import bts_jax as bj
from bts_jax import proof, theory


def binomial(n, p, upto):
    """P(at most `upto` successes), exactly."""
    p = Fraction(p).limit_denominator(1000)
    return sum(math.comb(n, s) * p**s * (1 - p) ** (n - s) for s in range(min(upto, n) + 1))


def test_facts_hold_and_are_what_they_say():
    for n, p, a in ((10, 0.25, 2), (30, 0.5, 4), (7, 0.875, 0.5)):
        left, right = proof.fact_1(n, p, a)
        assert (
            left == pytest.approx(float(1 - binomial(n, p, math.ceil(n * p + a) - 1)))
            and left <= right
        )
    for alpha, beta, y in ((1, 1, 0.25), (3, 7, 0.5), (12, 2, 0.75)):
        left, right = proof.fact_2(alpha, beta, y)
        assert (
            left
            == pytest.approx(right)
            == pytest.approx(float(1 - binomial(alpha + beta - 1, y, alpha - 1)))
        )
    n, p, r = np.meshgrid([3, 10, 40], [0.1, 0.5, 0.9], [0, 1, 3], indexing="ij")
    left, right = proof.fact_3(n, p, r)
    assert (left <= right).all() and left[0, 1, 1] == pytest.approx(float(binomial(4, 0.5, 1)))
    n, p, delta = np.meshgrid([20, 50, 400], [0.1, 0.5, 0.9], [0.06, 0.2], indexing="ij")
    for left, right in proof.fact_4(n, p, delta):
        assert (left <= right + 1e-15).all()
    below, above, more = (sides.left for sides in proof.fact_4(20, 0.5, 0.2))
    assert (
        below
        == pytest.approx(float(binomial(20, 0.5, 6)))
        == pytest.approx(float(above) + float(binomial(20, 0.5, 6) - binomial(20, 0.5, 5)))
    )
    assert more == pytest.approx(float(1 - binomial(21, 0.5, 14)))


def test_the_order_of_binomial_sums():
    """Fact 5: the quotient stays between constants while the probability goes from 10⁻¹⁰⁰ to 1."""
    for j, y in ((500, 0.3), (5000, 0.5), (5000, 0.9)):
        s = np.unique(np.linspace(0, j, 200).astype(int))
        exact, order = proof.fact_5(j, y, s)
        known = exact > 1e-250
        quotient = exact[known] / order[known]
        assert quotient.min() > 0.1 and quotient.max() < 2 and exact[known].min() < 1e-50


@pytest.mark.parametrize(
    ("k", "mean", "epsilon"),
    [(1, 0.5, 0.2), (7, 0.6, 0.3), (60, 0.5, 0.1), (400, 0.3, 0.05), (50, 0.4, 0.2)],
)
def test_the_four_cases_add_up(k, mean, epsilon):
    s = np.arange(k + 1)
    chance = stats.binom(k, mean).pmf(s)
    exact, bound = proof.reward_cases(k, mean, epsilon)
    assert exact.sum() == pytest.approx(
        (chance / stats.beta(s + 1, k - s + 1).sf(mean - epsilon)).sum(), rel=1e-8
    )
    assert (exact[[1, 3]] <= bound[[1, 3]] * (1 + 1e-9)).all() and (
        exact[[0, 2]] <= 20 * bound[[0, 2]] + 1e-12
    ).all()
    exact, bound = proof.cost_cases(k, mean, epsilon)
    assert exact.sum() == pytest.approx(
        (chance / stats.beta(s + 1, k - s + 1).cdf(mean + epsilon)).sum(), rel=1e-8
    )
    assert (exact[[0, 2]] <= bound[[0, 2]] * (1 + 1e-9)).all() and (
        exact[[1, 3]] <= 20 * bound[[1, 3]] + 1e-12
    ).all()


BANDIT = bj.Bernoulli(reward=[0.3, 0.8, 0.5], cost=[0.6, 0.4, 0.5])


@pytest.mark.slow
def test_events_of_a_run():
    """Against the posterior of the run's own states, by 4,000 draws in some rounds: 5 standard
    errors.
    """
    run = bj.trace(bj.BTS(), BANDIT, 120, keys(1)[0], record=True)
    found = proof.events(BANDIT, run, gamma=0.5)
    delta, epsilon = theory.delta_gap(BANDIT, 0.5), theory.epsilon_gap(BANDIT, 0.5)
    policy = bj.BTS()
    for t in (0, 1, 5, 40, int(run.length) - 1):
        state = jax.tree.map(lambda x, t=t: x[t], run.recorded)
        reward, (cost,) = jax.vmap(lambda key, state=state: policy.draw_means(state, key))(
            keys(4000)
        )
        expected = {
            "reward_beyond": reward > 0.3 + delta[0],
            "cost_below": cost < 0.6 - delta[0],
            "best_reward": reward[:, [1]] >= 0.8 - epsilon[0],
            "best_cost": cost[:, [1]] <= 0.4 + epsilon[0],
        }
        for name, flags in expected.items():
            chance = getattr(found, name)[t, 0]
            assert (
                abs(np.asarray(flags)[:, 0].mean() - chance)
                <= 5 * np.sqrt(chance * (1 - chance) / 4000) + 1e-3
            ), (name, t)
        n = int((np.asarray(run.arm[:t]) == 2).sum())
        won = np.asarray(run.reward[:t])[np.asarray(run.arm[:t]) == 2].sum()
        assert found.reward_near[t, 2] == (won / max(n, 1) <= 0.5 + delta[2] / 2)
        assert found.enough[t, 2] == (n >= math.ceil(2 * math.log(120) / delta[2] ** 2))
    assert np.isnan(found.best_cost[:, 1]).all() and not found.enough[:, 1].any()
    with pytest.raises(ValueError, match="one Bernoulli bandit"):
        proof.events(bj.Beta.random(keys(1)[0], 3), run)
    with pytest.raises(ValueError, match="mean and epsilon together = -0"):
        proof.reward_cases(10, 0.3, 0.5)


@pytest.mark.slow
def test_step_2_of_the_proof_holds_on_average():
    """P(E_i^r fails, n_i ≥ ⌈L_i⌉) ≤ 7 / (B δ_i²), averaged over 50 runs: there the bound is far
    from tight.
    """
    bandit = bj.Bernoulli(reward=[0.9, 0.1], cost=[0.3, 0.9])
    shares = []
    for key in keys(50):
        run = bj.trace(bj.Uniform(), bandit, 300, key, rounds=700)
        found = proof.events(bandit, run, gamma=0.9)
        rounds = np.asarray(run.played)
        shares.append(np.where(found.enough[:, 1], found.reward_beyond[:, 1], 0)[rounds].mean())
        assert found.enough[rounds, 1].any()
    assert np.mean(shares) <= 7 / (300 * theory.delta_gap(bandit, 0.9)[1] ** 2)
