"""Paired comparisons and rankings, against SciPy and against values worked out by hand."""

import dataclasses
from typing import Any

import chex
import numpy as np
import pytest
import scipy.stats
from common import made_up

from bts_jax.intervals import interval
from bts_jax.statistics import lost_run, measured, paired, ranking


def noisy(seed=0, policies=3, bandits=4, seeds=30):
    """Policies that share most of their random numbers; the second is worse by 1 + the number of
    the instance.

    There are no rewards, from which follows what a lost run costs: so intervals are Student's."""
    rng = np.random.default_rng(seed)
    common, own = (
        rng.normal(0, 10, (bandits, 1, seeds)),
        rng.normal(0, 1, (policies, bandits, 2, seeds)),
    )
    regret = 50 + common + own
    regret[1] += 1 + np.arange(bandits)[:, None, None]
    return made_up(regret, [100, 1000]).drop_vars("reward")


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


def test_pairing_removes_the_noise_in_common():
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
    twice = made_up(np.concatenate([data.regret.values] * 2, -1), [100, 1000]).drop_vars("reward")
    np.testing.assert_allclose(paired(twice, "epsilon-first", "bts", over="bandit").low, result.low)


def with_lost_runs(seeds=30, **options):
    """Two policies on four instances; the second has a regret of 10 less, and a lost run costs
    200.
    """
    rng = np.random.default_rng(5)
    regret = 50 + rng.normal(0, 1, (2, 4, 1, seeds))
    regret[1] -= 10
    data = made_up(regret, [100], ["bts", "kube"])
    means = (
        np.broadcast_to(np.array([0.5, 0.5, 0.1, 0.1]), (4, 4)),
        np.broadcast_to(np.array([0.1, 0.5 / 3, 0.5, 0.5]), (4, 4)),
    )
    data = data.assign_coords(
        reward_mean=(("bandit", "arm"), means[0]), cost_mean=(("bandit", "arm"), means[1])
    )
    return data.assign(reward=5 * data.budget - data.regret)  # ρ* is 5, and the next 3


def test_limits_allow_for_one_lost_run_more():
    data = with_lost_runs()
    np.testing.assert_allclose(measured(data).lost_run, 200)
    np.testing.assert_allclose(measured(data, "pseudo_regret").lost_run, 200)
    kube, bts = data.regret.values[1, :, 0], data.regret.values[0, :, 0]
    result = paired(data, "kube", "bts")
    for i in range(4):
        above = np.append(kube[i] - bts[i], (kube[i] - bts[i]).mean() + 200 - kube[i].mean())
        below = np.append(kube[i] - bts[i], (kube[i] - bts[i]).mean() - (200 - bts[i].mean()))
        np.testing.assert_allclose(result.high[i, 0], interval(above).high)
        np.testing.assert_allclose(result.low[i, 0], interval(below).low)
    assert (result.verdict == "undecided").all() and (result.needed > 30).all()
    # Over the instances a lost run is one of 30: their mean grows by a thirtieth of what it costs.
    result, means = paired(data, "kube", "bts", over="bandit"), (kube - bts).mean(1)
    above = np.append(means, means.mean() + (200 - kube.mean()) / 30)
    np.testing.assert_allclose(result.high, [interval(above).high])
    ranks = ranking(data).isel(budget=0)
    np.testing.assert_allclose(
        ranks.high[1],
        interval(np.append(kube.mean(1), kube.mean() + (200 - kube.mean()) / 30)).high,
    )
    np.testing.assert_allclose(ranks.low, interval(data.regret.values[:, :, 0].mean(-1)).low)


def test_verdicts_follow_the_limits():
    few, many = with_lost_runs(30), with_lost_runs(400)
    assert (paired(few, "kube", "bts").verdict == "undecided").all()
    assert (paired(many, "kube", "bts").better == "kube").all() and (
        paired(many, "bts", "kube").better == "kube"
    ).all()
    assert (paired(few, "kube", "bts").better == "undecided").all()
    assert (paired(many, "kube", "bts").verdict == "less").all() and (
        paired(many, "bts", "kube").verdict == "more"
    ).all()
    assert (paired(many, "kube", "bts").needed == 0).all()
    median = paired(few, "kube", "bts", statistic="median")  # which needs no allowance
    assert (median.verdict == "less").all()
    difference = few.regret.values[1] - few.regret.values[0]
    np.testing.assert_allclose(median.difference, np.median(difference, -1))
    np.testing.assert_allclose(
        [median.low, median.high], interval(difference, statistic="median")[1:]
    )
    assert (ranking(many).clearly_best == [[0], [1]]).all() and (
        ranking(few).clearly_best == 0
    ).all()


def test_several_comparisons_need_wider_limits():
    data = with_lost_runs(400)
    for comparisons in (1, 30):
        wide, same = (
            paired(data, "kube", "bts", **options)
            for options in ({"comparisons": comparisons}, {"level": 1 - 0.05 / comparisons})
        )
        assert wide.identical(same)
    assert wide.level == pytest.approx(1 - 0.05 / 30)
    narrow = paired(data, "kube", "bts")
    assert (wide.low < narrow.low).all() and (wide.high > narrow.high).all()
    with pytest.raises(ValueError, match="comparisons"):
        paired(data, "kube", "bts", comparisons=0)


def test_what_a_lost_run_costs():
    # Ratios 2 and 1; 4 and 3, one arm missing; one arm that costs nothing, of which nothing is
    # known.
    reward = [[0.5, 0.75, 0.1], [0.4, 0.3, np.nan], [0.5, 0.5, 0.5]]
    cost = [[0.25, 0.75, 0.5], [0.1, 0.1, np.nan], [0.0, 0.5, 0.4]]
    np.testing.assert_allclose(
        lost_run(reward, cost, [100, 200]), [[100, 200], [100, 200], [np.nan, np.nan]]
    )
    # Two arms tie for the best: a lost run has the third.
    np.testing.assert_allclose(lost_run([0.8, 0.8, 0.3], [0.5, 0.5, 0.5], [10]), [10])
    with pytest.raises(ValueError, match="at least two arms"):
        lost_run([0.5], [0.5], [10])


def test_a_policy_equals_itself():
    for data in (noisy(), with_lost_runs()):
        same = paired(data, "bts", "bts", over="bandit")
        assert (
            (same.low == 0).all() and (same.high == 0).all() and (same.verdict == "undecided").all()
        )
    result = paired(noisy(), "bts", "bts")
    assert (
        (result.difference == 0).all() and (result.effect == 0).all() and (result.wins == 0.5).all()
    )


def test_a_difference_that_never_varies():
    regret = np.zeros((2, 1, 1, 5))
    regret[1] = 2
    assert paired(made_up(regret, [10]), "epsilon-first", "bts").effect == np.inf


def test_ranking_by_hand():
    # Mean regrets of three policies on four instances: instance 1 is a tie for the best, in 3 the
    # third has no number.
    means = np.array([[1, 2, 9, 5], [2, 2, 4, 6], [3, 7, 5, np.nan]], float)
    data = made_up(means[:, :, None, None] + np.array([-0.1, 0.1]), [100])
    result = ranking(data).isel(budget=0)
    assert result["count"] == 4
    np.testing.assert_allclose(
        result.mean_rank, [(1 + 1.5 + 3 + 1) / 4, (2 + 1.5 + 1 + 2) / 4, (3 + 3 + 2 + 3) / 4]
    )
    np.testing.assert_allclose(result.best, [2.5 / 4, 1.5 / 4, 0])
    np.testing.assert_allclose(result["mean"][:2], [4.25, 3.5])
    np.testing.assert_allclose(result["median"][:2], [3.5, 3.0])
    np.testing.assert_allclose(result.lower_quartile[:2], np.quantile(means[:2], 0.25, axis=1))
    np.testing.assert_allclose(result.upper_quartile[:2], np.quantile(means[:2], 0.75, axis=1))
    np.testing.assert_allclose(result.upper_tenth[:2], np.quantile(means[:2], 0.9, axis=1))
    np.testing.assert_allclose(result.worst_share[:2], [9 / 17, 6 / 14])
    assert (result.median_low[:2] == -np.inf).all(), (
        "four instances are too few for limits of a median"
    )
    assert np.isnan(result["mean"][2])


def test_clearly_best_needs_more_than_luck():
    """All policies alike: one is always best, and clearly so in at most 2.5% of the instances for
    each policy, since it would have to beat the other two; more than 12% of 300 for any of three
    policies has a probability below 1e-14."""
    alike = np.random.default_rng(3).normal(size=(3, 300, 1, 10))
    result = ranking(made_up(alike, [100]).drop_vars("reward"))
    assert result.best.sum() == pytest.approx(1) and (result.clearly_best < 0.12).all()
    alike[2] -= 10
    assert ranking(made_up(alike, [100]).drop_vars("reward")).clearly_best.values[
        :, 0
    ].tolist() == [0, 0, 1]


def test_a_single_policy_is_ranked_first():
    result = ranking(made_up(np.ones((1, 2, 1, 3)), [100]))
    assert result.mean_rank == 1 and result.best == 1 and result.clearly_best == 1


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda data: paired(data, "thomson", "bts"),
            "policy = 'thomson' is not in the dataset: give one of bts",
        ),
        (lambda data: paired(data, "bts", "kube"), "reference = 'kube'"),
        (lambda data: paired(data, "bts", "bts", over="arm"), "over = 'arm'"),
        (lambda data: paired(data, "bts", "bts", metric="reward"), "metric = 'reward'"),
        (lambda data: ranking(data.isel(seed=0)), "no regret over policy, bandit, budget, seed"),
        (lambda data: ranking(data.isel(bandit=[])), "empty along bandit"),
        (lambda data: ranking(None), "no regret over"),
    ],
)
def test_bad_input(call, named):
    with pytest.raises(ValueError, match=named):
        call(noisy())


def test_missing_runs_are_not_averaged_away():
    regret = np.random.default_rng(0).uniform(1, 2, (3, 4, 2, 20))
    regret[0, 1, :, 5:] = np.nan
    dataset = made_up(regret, [10, 20], ["a", "b", "c"])
    ranks = ranking(dataset)
    assert (
        np.isnan(ranks["mean"].sel(policy="a")).all()
        and not np.isnan(ranks["mean"].sel(policy="b")).any()
    )
    assert np.isnan(paired(dataset, "a", "b", over="bandit").difference).all()
    pair = paired(dataset, "a", "b")
    assert np.isnan(pair.wins.values).tolist() == np.isnan(pair.difference.values).tolist()
    assert np.isnan(pair.wins.values).sum() == 2


@pytest.mark.slow
def test_regret_from_the_exact_optimum():
    import jax
    from common import INSTANCES, take

    import bts_jax as bj
    from bts_jax import theory

    bandit, budgets = INSTANCES["multinomial"], [0.5, 2.25, 2.3]
    runs = take(
        bj.simulate_batch(
            bj.Uniform(), bandit, 2.3, jax.random.split(jax.random.key(0), 6), checkpoints=budgets
        ),
        ...,
    )
    exact = bj.regret(runs, bandit, optimum="exact")
    np.testing.assert_allclose(
        exact + runs.reward, np.tile(theory.optimal_reward(bandit, budgets), (6, 1)), rtol=1e-6
    )
    with pytest.raises(ValueError, match="optimum = 'best' is not known"):
        bj.regret(runs, bandit, optimum="best")
    with pytest.raises(
        ValueError, match="optimum = 'exact' was given values that are not known yet"
    ):
        jax.vmap(lambda run: bj.regret(run, bandit, optimum="exact"))(runs)

    # A batch of bandits, along the first axis of the runs; the other one, which was not played, has
    # its arms' rewards swapped.
    runs = dataclasses.replace(runs, bandit=None)
    halves = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), runs)
    other = bj.Multinomial(
        reward_probs=np.asarray(bandit.reward_probs)[::-1], cost_probs=bandit.cost_probs
    )
    both = bj.Multinomial(
        *(
            np.stack([getattr(b, name) for b in (bandit, other)])
            for name in ("reward_probs", "cost_probs")
        )
    )
    parts = [
        bj.regret(jax.tree.map(lambda x, i=i: x[i], halves), b, optimum="exact")
        for i, b in enumerate((bandit, other))
    ]
    np.testing.assert_array_equal(parts[0], exact[:3])
    np.testing.assert_allclose(bj.regret(halves, both, optimum="exact"), parts, atol=1e-5)
    assert (abs(parts[1] - exact[3:]) > 0.01).all()

    with pytest.raises(
        ValueError,
        match=r"bandit is of class Own, but the exact optimum .* pass "
        r"a Multinomial .* linear",
    ):
        bj.regret(runs, Own(arms=bandit), optimum="exact")


@chex.dataclass(frozen=True)
class Own:
    """A bandit of a user's own."""

    arms: Any

    reward_mean = property(lambda self: self.arms.reward_mean)
    cost_mean = property(lambda self: self.arms.cost_mean)

    def pull(self, key, arm):
        return self.arms.pull(key, arm)
