"""Intervals, paired comparisons and rankings, against SciPy and against values worked out by hand."""

from typing import Any

import chex
import numpy as np
import pytest
import scipy.stats
from common import made_up

from bts_jax.metrics import interval, paired, ranking


@pytest.mark.parametrize("count", [2, 3, 10, 500, 20_000])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_normal_interval_is_students(count, level):
    values = np.random.default_rng(0).normal(3, 2, (4, count))
    mean, low, high = interval(values, level=level)
    error = scipy.stats.sem(values, axis=1)
    expected = scipy.stats.t.interval(level, count - 1, values.mean(1), error)
    np.testing.assert_allclose(mean, values.mean(1), rtol=1e-12)
    np.testing.assert_allclose([low, high], expected, rtol=1e-6)


def test_bootstrap_interval_is_scipys():
    """Two bootstraps of 20,000 samples each: a limit, a quantile of the means, then has a standard deviation of about
    2.4% of the mean's; ours and SciPy's differ by more than 0.25 of the mean's with a probability below 1e-12."""
    values = np.random.default_rng(1).exponential(size=60)
    ours = interval(values, method="bootstrap", resamples=20_000)
    theirs = scipy.stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    np.testing.assert_allclose(ours[1:], theirs, atol=0.25 * scipy.stats.sem(values))


@pytest.mark.parametrize(("method", "count", "trials", "draw", "coverage"), [
    ("normal", 5, 20_000, "normal", 0.95),  # exact, whatever the count
    ("normal", 200, 5_000, "exponential", 0.945),  # skewed values: known to fall short of 95% a little
    ("bootstrap", 60, 1_500, "normal", 0.942),  # too short by the factor √(59/60), and normal for Student's
])
def test_intervals_cover(method, count, trials, draw, coverage):
    """The share of intervals with the true mean in them is binomial: outside ± 5 deviations and the half percent by which
    `coverage` may be off, in less than 1e-6 of the cases. An interval with n in place of √n, or one side only, fails."""
    rng = np.random.default_rng(7)
    values = getattr(rng, draw)(size=(trials, count))
    _, low, high = interval(values, method=method, resamples=1000)
    truth = 0.0 if draw == "normal" else 1.0
    allowed = 0.005 + 5 * np.sqrt(0.05 * 0.95 / trials)
    assert abs(np.mean((low <= truth) & (truth <= high)) - coverage) < allowed


def test_interval_takes_any_axis_and_is_reproducible():
    values = np.random.default_rng(0).normal(size=(3, 30, 2))
    for method in ("normal", "bootstrap"):
        one, two = interval(values, 1, method=method), interval(np.moveaxis(values, 1, -1), method=method)
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(one[2][1, 0], interval(values[1, :, 0], method=method).high, rtol=1e-12)
    other = interval(values, 1, method="bootstrap", seed=1)
    assert (other.high != interval(values, 1, method="bootstrap").high).all()


def test_one_value_has_no_interval():
    mean, low, high = interval([[3.0]])
    assert mean == 3 and np.isnan([low, high]).all()


@pytest.mark.parametrize(("arguments", "named"), [
    ({"values": [1, 2], "level": 95}, "level = 95"),
    ({"values": [1, 2], "method": "t"}, "method = 't'"),
    ({"values": [1, 2], "axis": 1}, "axis = 1"),
    ({"values": "many"}, "values = 'many'"),
    ({"values": []}, "no entry along axis"),
    ({"values": [1, 2], "method": "bootstrap", "resamples": 0}, "resamples = 0"),
])
def test_bad_input_to_interval(arguments, named):
    with pytest.raises(ValueError, match=named):
        interval(**arguments)


def noisy(seed=0, policies=3, bandits=4, seeds=30):
    """Policies that share most of their luck; the second is worse by 1 + the number of the instance."""
    rng = np.random.default_rng(seed)
    common, own = rng.normal(0, 10, (bandits, 1, seeds)), rng.normal(0, 1, (policies, bandits, 2, seeds))
    regret = 50 + common + own
    regret[1] += 1 + np.arange(bandits)[:, None, None]
    return made_up(regret, [100, 1000])


def test_paired_over_seeds_is_a_paired_t_test():
    data = noisy()
    result = paired(data, "epsilon-first", "bts")
    assert dict(result.sizes) == {"bandit": 4, "budget": 2} and result["count"] == 30
    difference = data.regret.values[1] - data.regret.values[0]
    test = scipy.stats.ttest_rel(data.regret.values[1], data.regret.values[0], axis=-1)
    limits = test.confidence_interval(0.95)
    np.testing.assert_allclose(result.difference, difference.mean(-1))
    np.testing.assert_allclose([result.low, result.high], [limits.low, limits.high], rtol=1e-6)
    np.testing.assert_allclose(result.effect, difference.mean(-1) / difference.std(-1, ddof=1))
    np.testing.assert_allclose(result.wins, (difference < 0).mean(-1))
    swapped = paired(data, "bts", "epsilon-first")
    np.testing.assert_allclose(swapped.difference, -result.difference)
    np.testing.assert_allclose(swapped.wins, 1 - result.wins)


def test_pairing_removes_the_luck_in_common():
    data = noisy()
    alone = interval(data.regret.values[1])
    pair = paired(data, "epsilon-first", "bts")
    assert ((pair.high - pair.low).values < 0.3 * (alone.high - alone.low)).all()


def test_paired_over_instances_has_one_number_per_instance():
    data = noisy()
    result = paired(data, "epsilon-first", "bts", over="bandit")
    assert result.difference.dims == ("budget",) and result["count"] == 4
    means = data.regret.values.mean(-1)
    np.testing.assert_allclose(result.difference, (means[1] - means[0]).mean(0))
    limits = scipy.stats.ttest_rel(means[1], means[0], axis=0).confidence_interval(0.95)
    np.testing.assert_allclose(result.low, limits.low, rtol=1e-6)
    # Repeating the same seeds adds nothing about instances.
    twice = made_up(np.concatenate([data.regret.values] * 2, -1), [100, 1000])
    np.testing.assert_allclose(paired(twice, "epsilon-first", "bts", over="bandit").low, result.low)


def test_a_policy_equals_itself():
    result = paired(noisy(), "bts", "bts")
    assert (result.difference == 0).all() and (result.effect == 0).all() and (result.wins == 0.5).all()


def test_a_difference_that_never_varies():
    regret = np.zeros((2, 1, 1, 5))
    regret[1] = 2
    assert paired(made_up(regret, [10]), "epsilon-first", "bts").effect == np.inf


def test_ranking_by_hand():
    # Mean regrets of three policies on four instances: instance 1 is a tie for the best, in 3 the third has no number.
    means = np.array([[1, 2, 9, 5], [2, 2, 4, 6], [3, 7, 5, np.nan]], float)
    data = made_up(means[:, :, None, None] + np.array([-0.1, 0.1]), [100])
    result = ranking(data).isel(budget=0)
    assert result["count"] == 4
    np.testing.assert_allclose(result.mean_rank, [(1 + 1.5 + 3 + 1) / 4, (2 + 1.5 + 1 + 2) / 4, (3 + 3 + 2 + 3) / 4])
    np.testing.assert_allclose(result.best, [2.5 / 4, 1.5 / 4, 0])
    np.testing.assert_allclose(result["mean"][:2], [4.25, 3.5])
    np.testing.assert_allclose(result["median"][:2], [3.5, 3.0])
    np.testing.assert_allclose(result.lower_quartile[:2], np.quantile(means[:2], 0.25, axis=1))
    np.testing.assert_allclose(result.upper_quartile[:2], np.quantile(means[:2], 0.75, axis=1))
    assert np.isnan(result["mean"][2])


def test_clearly_best_needs_more_than_luck():
    """All policies alike: one is always best, and clearly so in at most 2.5% of the instances for each policy, since it would
    have to beat the other two; more than 12% of 300 for any of three policies has a probability below 1e-14."""
    alike = np.random.default_rng(3).normal(size=(3, 300, 1, 10))
    result = ranking(made_up(alike, [100]))
    assert result.best.sum() == pytest.approx(1) and (result.clearly_best < 0.12).all()
    alike[2] -= 10
    assert ranking(made_up(alike, [100])).clearly_best.values[:, 0].tolist() == [0, 0, 1]


def test_a_single_policy_is_ranked_first():
    result = ranking(made_up(np.ones((1, 2, 1, 3)), [100]))
    assert result.mean_rank == 1 and result.best == 1 and result.clearly_best == 1


@pytest.mark.parametrize(("call", "named"), [
    (lambda data: paired(data, "thomson", "bts"), "policy = 'thomson' is not in the dataset: give one of bts"),
    (lambda data: paired(data, "bts", "kube"), "reference = 'kube'"),
    (lambda data: paired(data, "bts", "bts", over="arm"), "over = 'arm'"),
    (lambda data: paired(data, "bts", "bts", metric="reward"), "metric = 'reward'"),
    (lambda data: ranking(data.isel(seed=0)), "no regret over policy, bandit, budget, seed"),
    (lambda data: ranking(data.isel(bandit=[])), "empty along bandit"),
    (lambda data: ranking(None), "no regret over"),
])
def test_bad_input(call, named):
    with pytest.raises(ValueError, match=named):
        call(noisy())


def test_missing_runs_are_not_averaged_away():
    regret = np.random.default_rng(0).uniform(1, 2, (3, 4, 2, 20))
    regret[0, 1, :, 5:] = np.nan
    dataset = made_up(regret, [10, 20], ["a", "b", "c"])
    ranks = ranking(dataset)
    assert np.isnan(ranks["mean"].sel(policy="a")).all() and not np.isnan(ranks["mean"].sel(policy="b")).any()
    assert np.isnan(paired(dataset, "a", "b", over="bandit").difference).all()
    pair = paired(dataset, "a", "b")
    assert np.isnan(pair.wins.values).tolist() == np.isnan(pair.difference.values).tolist()
    assert np.isnan(pair.wins.values).sum() == 2


def test_regret_from_the_exact_optimum():
    import jax
    from common import INSTANCES

    import bts_jax as bj
    from bts_jax import theory

    bandit, budgets = INSTANCES["multinomial"], [0.5, 2.25, 2.3]
    runs = bj.simulate_batch(bj.Uniform(), bandit, 2.3, jax.random.split(jax.random.key(0), 6), checkpoints=budgets)
    exact = bj.regret(runs, bandit, optimum="exact")
    np.testing.assert_allclose(exact + runs.reward, np.tile(theory.optimal_reward(bandit, budgets), (6, 1)), rtol=1e-6)
    with pytest.raises(ValueError, match="optimum = 'best' is not known"):
        bj.regret(runs, bandit, optimum="best")
    with pytest.raises(ValueError, match="optimum = 'exact' was given values that are not known yet"):
        jax.vmap(lambda run: bj.regret(run, bandit, optimum="exact"))(runs)

    # A batch of bandits, along the first axis of the runs; the other one has its arms' rewards swapped.
    halves = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), runs)
    other = bj.Multinomial(reward_probs=bandit.reward_probs[::-1], cost_probs=bandit.cost_probs)
    both = bj.Multinomial(*(np.stack([getattr(b, name) for b in (bandit, other)]) for name in ("reward_probs", "cost_probs")))
    parts = [bj.regret(jax.tree.map(lambda x, i=i: x[i], halves), b, optimum="exact") for i, b in enumerate((bandit, other))]
    np.testing.assert_array_equal(parts[0], exact[:3])
    np.testing.assert_allclose(bj.regret(halves, both, optimum="exact"), parts, atol=1e-5)
    assert (abs(parts[1] - exact[3:]) > 0.01).all()

    with pytest.raises(ValueError, match=r"bandit is of class Own, and the exact optimum .* pass a Multinomial .* linear"):
        bj.regret(runs, Own(arms=bandit), optimum="exact")


@chex.dataclass(frozen=True)
class Own:
    """A bandit of a user's own."""

    arms: Any

    reward_mean = property(lambda self: self.arms.reward_mean)
    cost_mean = property(lambda self: self.arms.cost_mean)

    def pull(self, key, arm):
        return self.arms.pull(key, arm)
