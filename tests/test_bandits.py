"""The families of arms: their means, their draws, and the arguments that they refuse.

False failures: frequencies are compared at 6 standard errors, 2·10⁻⁹ each, fewer than 200 of them.
"""

import json
import sys
from functools import cache, partial

import jax
import numpy as np
import pytest
from common import INSTANCES, assert_same_bits, keys, take
from scipy import stats

import bts_jax as bj
from bts_jax.bandits.multinomial import WRITTEN_OUT, _draw
from bts_jax.engine.compile.options import QUICKLY, known
from bts_jax.sweeps import gridfile, run
from bts_jax.sweeps.specification import entry_of, remade

DRAWS = 50_000

pulled = jax.jit(jax.vmap(lambda bandit, key, arm: bandit.pull(key, arm), (None, 0, None)))


def draws_of(bandit, arm, seed=0):
    """Rewards and costs of many pulls. [DRAWS] each"""
    return tuple(np.asarray(draws, np.float64) for draws in pulled(bandit, keys(DRAWS, seed), arm))


@pytest.mark.parametrize("family", INSTANCES)
def test_pulls_have_the_declared_means(family):
    bandit = INSTANCES[family]
    reward_mean, cost_mean = np.asarray(bandit.reward_mean), np.asarray(bandit.cost_mean)
    for arm in range(bandit.num_arms):
        reward, cost = draws_of(bandit, arm)
        for draws, mean in ((reward, reward_mean[arm]), (cost, cost_mean[arm])):
            assert draws.min() >= 0 and draws.max() <= 1
            assert abs(draws.mean() - mean) < 6 * draws.std() / DRAWS**0.5 + 1e-7
        if family in ("copula", "correlated", "empirical"):
            continue
        covariance = np.cov(reward, cost)[0, 1]
        assert abs(covariance) <= 6 * np.std(reward) * np.std(cost) / DRAWS**0.5 + 1e-9, (
            "reward and cost are independent"
        )


def test_multinomial_points_have_their_probabilities():
    bandit = INSTANCES["multinomial"]
    for arm in range(bandit.num_arms):
        reward, cost = draws_of(bandit, arm, seed=arm)
        for draws, probs in ((reward, bandit.reward_probs), (cost, bandit.cost_probs)):
            share = np.array(
                [(np.asarray(draws) == point).mean() for point in np.asarray(bandit.support)]
            )
            probs = np.asarray(probs, np.float64)[arm]
            assert (np.abs(share - probs) <= 6 * np.sqrt(probs * (1 - probs) / DRAWS) + 1e-9).all()


@pytest.mark.parametrize("points", [2, 5, WRITTEN_OUT, WRITTEN_OUT + 1])
def test_a_word_picks_the_point_whose_share_it_falls_in(points):
    rng = np.random.default_rng(points)
    probs = np.float32(rng.dirichlet(np.ones(points)))
    support = np.float32(np.sort(rng.random(points)))
    shares = np.round(np.float64(probs) * 2**30).astype(np.int64)
    ends = np.cumsum(shares[:-1])
    words = np.concatenate(
        [rng.integers(2**32, size=1000), [0, 2**32 - 1], 4 * ends, 4 * ends - 1]
    ).astype(np.uint32)
    draw = jax.jit(jax.vmap(_draw, (0, None, None)))
    np.testing.assert_array_equal(
        draw(words, probs, support), support[np.searchsorted(ends, words >> 2, side="right")]
    )
    probs[points // 2] = -0.1
    assert np.isnan(draw(words, probs.copy(), support)).all(), "no probabilities"


def test_certain_and_impossible_points_are_that():
    bandit = bj.Multinomial(
        reward_probs=[[0, 0, 1], [1, 0, 0]], cost_probs=[[0, 1, 0], [0.5, 0, 0.5]]
    )
    reward, cost = draws_of(bandit, 0)
    assert (reward == 1).all() and (cost == 0.5).all()
    reward, cost = draws_of(bandit, 1)
    assert (reward == 0).all() and not (cost == 0.5).any()


def test_equal_arms_give_the_same_for_the_same_key():
    """Two arms with the same distribution give the same result for the same key (common random
    numbers).
    """
    bandit = bj.Bernoulli(reward=[0.5, 0.5], cost=[0.3, 0.3])
    for one, other in zip(draws_of(bandit, 0), draws_of(bandit, 1), strict=True):
        assert (one == other).all()


def test_a_copula_keeps_the_distributions_of_reward_and_cost():
    """Frequencies of each value: 6 standard errors."""
    bandit = INSTANCES["copula"]
    for arm in range(3):
        for draws, values in zip(draws_of(bandit, arm), (bandit.reward, bandit.cost), strict=True):
            row = np.asarray(values)[arm]
            for value in set(row.tolist()):
                share = (row == value).mean()
                assert (
                    abs((draws == value).mean() - share)
                    <= 6 * np.sqrt(share * (1 - share) / DRAWS) + 1e-9
                )


@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.6])
def test_a_copula_is_that_of_two_normal_numbers(correlation):
    """Frequencies of the 12 pairs of a reward and a cost, against SciPy's bivariate normal
    distribution: 6 standard errors.
    """
    values = np.arange(1, 5) / 4, np.arange(1, 4) / 4
    bandit = bj.Copula(reward=[values[0][::-1]] * 2, cost=[values[1]] * 2, correlation=correlation)
    assert bandit.reward[0].tolist() == values[0].tolist(), (
        "in increasing order, whatever was given"
    )
    reward, cost = draws_of(bandit, 1)
    # 12 instead of infinity.
    limits = [np.append(stats.norm.ppf(np.arange(1, n) / n), 12) for n in (4, 3)]
    reached = stats.multivariate_normal(cov=[[1, correlation], [correlation, 1]]).cdf(
        np.stack(np.meshgrid(*limits, indexing="ij"), -1)
    )
    chance = np.diff(np.diff(np.pad(reached, ((1, 0), (1, 0))), axis=0), axis=1)
    found = np.array(
        [
            [((reward == one) & (cost == other)).mean() for other in values[1] * 1]
            for one in values[0]
        ]
    )
    assert (abs(found - chance) < 6 * np.sqrt(chance * (1 - chance) / DRAWS) + 1e-4).all()


def test_a_copula_at_its_limits():
    """With correlation 1 reward and cost have the same rank, with −1 the opposite one. The units
    are those of the values.
    """
    for correlation, pairs in ((1, {(0, 2), (1, 4), (3, 6)}), (-1, {(0, 6), (1, 4), (3, 2)})):
        bandit = bj.Copula(reward=[[3, 0, 1]] * 2, cost=[[4, 6, 2]] * 2, correlation=correlation)
        assert (float(bandit.reward_scale), float(bandit.cost_scale)) == (
            3,
            6,
        ) and bandit.cost_mean.tolist() == [4, 4]
        assert set(zip(*(draws.tolist() for draws in draws_of(bandit, 0)), strict=True)) == pairs
    with pytest.raises(ValueError, match=r"reward has shape \(2,\): give one list"):
        bj.Copula(reward=[1, 2], cost=[1, 2], correlation=0)
    with pytest.raises(ValueError, match="give both for every arm"):
        bj.Copula(reward=[[1, 2], [1, 2]], cost=[[1, 2]] * 3, correlation=0)
    with pytest.raises(ValueError, match=r"correlation\[0\] = 2"):
        bj.Copula(reward=[[1, 2], [1, 2]], cost=[[1, 2]] * 2, correlation=2)
    with pytest.raises(ValueError, match="5000 values"):
        bj.Copula(reward=np.ones((2, 5000)), cost=[[1, 2]] * 2, correlation=0)
    with pytest.raises(ValueError, match="correlation = 3"):
        bj.Copula.random(jax.random.key(0), 3, correlation=3)


def test_ratio_and_best_arm():
    bandit = bj.Bernoulli(reward=[0.5, 0.9, 0.0, 0.2], cost=[0.25, 0.9, 0.0, 0.1])
    assert bandit.ratio.tolist() == [2.0, 1.0, 0.0, 2.0]
    assert int(bandit.best_arm) == 0, "the lowest number among equals"
    free = bj.Bernoulli(reward=[0.5, 0.1], cost=[0.25, 0.0])
    assert free.ratio.tolist()[1] == np.inf and int(free.best_arm) == 1


def test_multinomial_means_by_hand():
    bandit = bj.Multinomial(
        reward_probs=[[0.5, 0.25, 0.25], [0, 0, 1]], cost_probs=[[0, 1, 0], [0.5, 0.5, 0]]
    )
    assert bandit.reward_mean.tolist() == [0.375, 1.0] and bandit.cost_mean.tolist() == [0.5, 0.25]
    tenths = bj.Multinomial(
        reward_probs=np.full((2, 11), 1 / 11), cost_probs=np.full((2, 11), 1 / 11)
    )
    np.testing.assert_allclose(tenths.support, np.arange(11) / 10, rtol=1e-7)
    points = bj.Multinomial(
        reward_probs=[[0.5, 0.5]] * 2, cost_probs=[[0.5, 0.5]] * 2, support=[0.2, 0.4]
    )
    np.testing.assert_allclose(points.cost_mean, 0.3, rtol=1e-6)


@cache
def random_instances():
    """20 instances of every family, their mean rewards and costs, and their best arms: one program
    for all families.
    """

    # As a single instance; in a sixth of the time.
    @partial(jax.jit, compiler_options=known(QUICKLY))
    @jax.vmap
    def draw(key):
        drawn = {family.__name__: family.random(key, 7) for family in bj.BANDITS.values()}
        return {
            name: (
                bandit,
                bandit.reward_mean,
                bandit.cost_mean,
                bandit.best_arm if bandit.num_resources is None else None,
            )
            for name, bandit in drawn.items()
        }

    return take(draw(keys(20)), ...)


@pytest.mark.slow
@pytest.mark.with_care  # the same bits under jit and without
@pytest.mark.parametrize("family", bj.BANDITS.values())
def test_random_instances_come_alone_and_in_batches(family):
    alone = family.random(keys(20)[3], 7)
    assert alone.num_arms == 7 and alone.reward_mean.shape == (7,)
    many, reward_mean, cost_mean, best_arm = random_instances()[family.__name__]
    assert reward_mean.shape == (20, 7) and (
        many.num_resources is not None or best_arm.shape == (20,)
    )
    np.testing.assert_array_equal(alone.cost_mean, cost_mean[3])
    assert (cost_mean.reshape(20, 7, -1).max(-1) > 0).all() and (cost_mean <= 1).all()


def test_random_ranges_are_kept():
    bandit = bj.Bernoulli.random(
        jax.random.key(1), 1000, reward_range=(0.2, 0.3), cost_range=(0.5, 0.5)
    )
    reward, cost = np.asarray(bandit.reward), np.asarray(bandit.cost)
    assert (
        reward.min() >= np.float32(0.2) and reward.max() <= np.float32(0.3) and (cost == 0.5).all()
    )


def test_beta_arms_have_their_law():
    """Kolmogorov–Smirnov at p < 10⁻⁹, six times; shapes below 1/2 are among them."""
    bandit = INSTANCES["beta"]
    for arm in range(bandit.num_arms):
        reward, cost = draws_of(bandit, arm)
        for draws, *shapes in (
            (reward, bandit.reward_alpha, bandit.reward_beta),
            (cost, bandit.cost_alpha, bandit.cost_beta),
        ):
            assert (
                stats.kstest(
                    draws, stats.beta(*(float(np.asarray(shape)[arm]) for shape in shapes)).cdf
                ).pvalue
                > 1e-9
            )


def test_beta_shapes_are_uniform_in_their_range():
    bandit = bj.Beta.random(jax.random.key(0), 5000, shape_range=(2, 4))
    for shapes in (bandit.reward_alpha, bandit.reward_beta, bandit.cost_alpha, bandit.cost_beta):
        assert stats.kstest(np.asarray(shapes), stats.uniform(2, 2).cdf).pvalue > 1e-9
    least = bj.Beta.random(jax.random.key(0), 5000, shape_range=(0, 0))
    assert (np.asarray(least.cost_alpha) == 2**-20).all(), "no shape is 0"


def outcomes(reward, cost):
    return np.array([((reward == r) & (cost == c)).mean() for r in (0, 1) for c in (0, 1)])


# Correlations in the middle, at both limits, and of means at which nothing varies.
JOINT = bj.Correlated(
    reward=[0.3, 0.7, 0.5, 0.2, 0.6, 1.0],
    cost=[0.4, 0.6, 0.5, 0.8, 0.9, 0.3],
    correlation=[0.25, -0.5, 1.0, -1.0, 0.4082483, 0.0],
)


def test_correlated_arms_have_their_joint_law():
    probs = np.asarray(JOINT.probs, np.float64)
    np.testing.assert_allclose(probs[2:4], [[0.5, 0, 0, 0.5], [0, 0.8, 0.2, 0]], atol=1e-6)
    # Cost whenever there is a reward.
    np.testing.assert_allclose(probs[4], [0.1, 0.3, 0, 0.6], atol=1e-6)
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-6)
    for arm in range(JOINT.num_arms):
        share = outcomes(*draws_of(JOINT, arm))
        assert (
            abs(share - probs[arm])
            <= 6 * np.sqrt(np.maximum(probs[arm] * (1 - probs[arm]), 0) / DRAWS) + 1e-4
        ).all(), arm
        assert share[probs[arm] < 1e-7].sum() < 1e-4
    reward, cost = np.asarray(JOINT.reward), np.asarray(JOINT.cost)
    spread = np.sqrt(reward * (1 - reward) * cost * (1 - cost))
    np.testing.assert_allclose(
        probs[:, 3] - reward * cost, spread * np.asarray(JOINT.correlation), atol=1e-6
    )


def test_without_correlation_they_are_bernoulli_arms_with_common_random_numbers():
    bernoulli = INSTANCES["bernoulli"]
    bandit = bj.Correlated(reward=bernoulli.reward, cost=bernoulli.cost, correlation=0)
    for arm in range(2):
        for ours, theirs in zip(draws_of(bandit, arm), draws_of(bernoulli, arm), strict=True):
            assert (ours == theirs).all()


def test_correlated_arms_from_probabilities():
    bandit = bj.Correlated.from_probs(JOINT.probs)
    for name in ("reward", "cost", "correlation"):
        np.testing.assert_allclose(getattr(bandit, name), getattr(JOINT, name), atol=1e-5)
    table = np.random.default_rng(0).dirichlet([1] * 4, 500)
    np.testing.assert_allclose(bj.Correlated.from_probs(table).probs, table, atol=1e-5)


def test_random_correlations_go_as_far_as_the_means_allow():
    for wanted in (-1, -0.2, 0, 0.7, 1):
        bandit = bj.Correlated.random(jax.random.key(3), 500, correlation=wanted)
        low, high = bandit.limits
        np.testing.assert_allclose(bandit.correlation, np.clip(wanted, low, high), atol=1e-6)
        np.testing.assert_array_equal(bandit.cost, bj.Bernoulli.random(jax.random.key(3), 500).cost)
    both = np.minimum(bandit.reward, bandit.cost)
    np.testing.assert_allclose(np.asarray(bandit.probs)[:, 3], both, atol=1e-6)


def test_empirical_rows_are_drawn_as_often_and_together():
    bandit = INSTANCES["empirical"]
    rewards, costs = np.asarray(bandit.reward), np.asarray(bandit.cost)
    for arm, rows in enumerate(bandit.rows.tolist()):
        reward, cost = draws_of(bandit, arm)
        seen = np.array(
            [((reward == rewards[arm, i]) & (cost == costs[arm, i])).mean() for i in range(rows)]
        )
        assert (
            abs(seen - 1 / rows) < 6 * np.sqrt((1 - 1 / rows) / rows / DRAWS)
        ).all() and seen.sum() == pytest.approx(1)


def test_means_of_many_rows_are_exact():
    rng = np.random.default_rng(0)
    reward, cost = rng.random((2, 3, 100_000))
    rows = [100_000, 99_999, 1]
    bandit = bj.Empirical(reward=reward, cost=cost, rows=rows)
    for values, means in ((reward, bandit.reward_mean), (cost, bandit.cost_mean)):
        np.testing.assert_allclose(
            means, [row[:n].mean() for row, n in zip(values, rows, strict=True)], rtol=1e-6
        )
    ones = bj.Empirical(reward=np.ones((2, 2**19)), cost=np.ones((2, 2**19)))
    assert (np.asarray(ones.reward_mean) == 1).all()


TABLE = """ad, clicks, price
b, 1, 3.5
a, 0, 1
a, 1, 4
b, , 2
a, 0, -1
b, 0, 0
c, 1, 2
, 1, 1
b, 1, inf
d, 0, 0
d, 1, 0
b, x, 1
"""


def test_a_table_is_loaded_and_what_is_dropped_is_said(tmp_path):
    (tmp_path / "ads.csv").write_text(TABLE.replace(", ", ","), encoding="utf-8")
    said = []
    columns = {"arm": "ad", "reward": "clicks", "cost": "price"}
    bandit = bj.Empirical.load(tmp_path / "ads.csv", **columns, min_rows=2, on_report=said.append)
    (loaded,) = said
    assert loaded.arms == ("b", "a") and (loaded.rows, loaded.total) == (4, 12)
    np.testing.assert_array_equal(bandit.reward, [[1, 0], [0, 1]])
    np.testing.assert_array_equal(bandit.cost, [[3.5, 0], [1, 4]])
    assert str(loaded) == (
        "4 of 12 rows kept, 2 arms (b, a); rewards up to 1, costs up to 4\n"
        "left out: 1 row without a name in ad; 2 rows without a number for clicks; 1 row without "
        "a number for price; "
        "1 row with a negative price; 1 arm with fewer than 2 rows (c); 1 arm whose price is "
        "always 0 (d)"
    )
    with pytest.warns(UserWarning, match="4 of 12 rows kept"):
        again = bj.Empirical.load(str(tmp_path / "ads.csv"), **columns, min_rows=2, cost_max=8)
    np.testing.assert_array_equal(again.cost, bandit.cost)
    assert (bandit.cost_scale, again.cost_scale, again.reward_scale, again.arms) == (
        4,
        8,
        1,
        ("b", "a"),
    )


def test_a_table_with_nothing_to_drop_is_loaded_silently():
    rows = {"arm": [1, 2] * 10, "reward": np.arange(20) / 20, "cost": np.arange(1, 21) / 20}
    bandit = bj.Empirical.load(rows)
    np.testing.assert_allclose(bandit.reward[0], np.arange(0, 20, 2) / 20, rtol=1e-6)
    pandas = pytest.importorskip("pandas")
    frame = bj.Empirical.load(pandas.DataFrame(rows))
    np.testing.assert_array_equal(frame.cost, bandit.cost)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "arm;reward;cost\n" + 9 * "A;1;2\nB;0;1\n",
            "which has arm;reward;cost: .* instead of ';', .*, sep=';'",
        ),
        (
            '"arm";"reward";"cost"\n' + 9 * "A;1,5;2\nB;0,5;1\n",
            r"commas instead of ';', .*with "
            r"decimal=','",
        ),
        ("arm\treward\tcost\n" + 9 * "A\t1\t2\nB\t0\t1\n", r"commas instead of '\\t'"),
        (
            "arm,reward,cost\n" + 9 * "A,1,1\nB,0,1\n" + "B,1,$0.01\n",
            r"column 'cost' of '.*t.csv' has '\$0.01' in row 19, .*: remove the currency sign$",
        ),
        ("arm,reward,cost\nA,1,-0.01 €\n", "has '-0.01 €' in row 1, .*: remove the currency sign$"),
        ("arm,reward,cost\nA,1,USD 2\n", "has 'USD 2' in row 1, .*: remove the currency sign$"),
        (
            'arm,reward,cost\nA,1,"1,5"\n',
            "has '1,5' in row 1, .*: write a decimal point, and no commas or spaces$",
        ),
        (
            'arm,reward,cost\nA,"$1,000.50",1\n',
            "column 'reward' .*: remove the currency sign and write a decimal point",
        ),
        ("arm,reward,cost\nA,5%,1\n", "has '5%' .*: write percentages as fractions$"),
        (
            "arm,reward,cost\nA,1,0,01\n",
            "row 1 of .* has 4 cells, and the header has 3: write decimal points instead of commas",
        ),
        ("arm,reward,reward,cost\nA,1,0,01\n", "has 2 columns 'reward': give them different names"),
    ],
)
def test_a_file_that_would_be_misread_is_refused(text, named, tmp_path):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=named):
        bj.Empirical.load(tmp_path / "t.csv")


def test_cells_that_are_no_numbers_are_left_out(tmp_path):
    """Text, dates and empty cells at the end of a row are not numbers in another notation."""
    odd = "A,n/a,1\nA,2024-01-02,1\nA,12 clicks,1\nA,-,1\nA,1\n"
    (tmp_path / "t.csv").write_text(
        "arm,reward,cost\n" + odd + 10 * "A,1,1,, \nB,0,1\n\n", encoding="utf-8"
    )
    with pytest.warns(
        UserWarning,
        match="20 of 25 rows kept.*\n.*4 rows without a number for reward; 1 row .* for cost",
    ):
        bj.Empirical.load(tmp_path / "t.csv")


def test_tables_of_pandas():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"arm": list("AB") * 5, "reward": [0.5] * 10, "cost": [1.0] * 10})
    numbered = table.set_axis([0, 1, 2], axis=1)
    assert bj.Empirical.load(numbered, arm="0", reward="1", cost="2", min_rows=5).arms == ("A", "B")
    means = table.groupby("arm").mean()
    assert bj.Bernoulli(reward=means["reward"], cost=means["cost"]).reward_mean.tolist() == [
        0.5,
        0.5,
    ]
    for make, named in (
        (
            lambda: bj.Empirical.load(table["cost"]),
            "table is a Series, one column of a table: give the whole DataFrame",
        ),
        (
            lambda: bj.Empirical.load(table.set_index("arm")),
            r"'arm' is its index, so give "
            r"table.reset_index\(\)",
        ),
        (
            lambda: bj.Empirical.load(
                table.set_axis(["arm", "cost", "cost"], axis=1), reward="arm"
            ),
            "has 2 columns 'cost'",
        ),
        (
            lambda: bj.Empirical.load(pandas.DataFrame({"arm;reward;cost": ["A;1;2"]})),
            "instead of ';'",
        ),
        (
            lambda: bj.Empirical(reward=table["reward"], cost=table["cost"]),
            r"reward has shape "
            r"\(10,\): .* with "
            r"Empirical.load",
        ),
        (
            lambda: bj.Bernoulli(reward=means[["reward"]], cost=means["cost"]),
            r"reward is a DataFrame with the columns 'reward': give one column, such as "
            r"table\['reward'\]",
        ),
        (
            lambda: bj.Bernoulli(reward=means, cost=means),
            "reward is a DataFrame with the columns 'reward', 'cost': give one",
        ),
        (
            lambda: bj.Bernoulli(reward=table["arm"], cost=table["cost"]),
            "reward = .'A', 'B', 'A'.* is not a number",
        ),
        (lambda: bj.KUBE(scale=means), "scale is a DataFrame"),
    ):
        with pytest.raises(ValueError, match=named):
            make()


def test_parquet_is_loaded(tmp_path):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = {"arm": ["x", "y"] * 10, "reward": [0.5] * 20, "cost": [1.0, None] + [2.0] * 18}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    with pytest.warns(UserWarning, match="1 row without a number for cost"):
        bandit = bj.Empirical.load(tmp_path / "t.parquet", min_rows=9)
    assert bandit.rows.tolist() == [10, 9] and np.asarray(
        bandit.cost_mean
    ).tolist() == pytest.approx([1.9, 2])


def test_parquet_without_pyarrow_is_refused_kindly(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="without pyarrow: install it, or save the table as CSV"):
        bj.Empirical.load(tmp_path / "t.parquet")


@pytest.mark.slow
def test_scaled_costs_by_hand():
    bandit = INSTANCES["scaled"]
    np.testing.assert_allclose(bandit.cost_mean, [0.325, 0.25, 0.35, 0.9875, 0.5], rtol=1e-6)
    assert (np.asarray(bandit.reward_mean) == np.asarray(INSTANCES["bernoulli"].reward)).all()
    for arm, levels in enumerate([[0.125, 0.625], [0.25], [0.125, 0.875], [0.75, 1.0], [0.5]]):
        reward, cost = draws_of(bandit, arm)
        assert np.unique(np.float32(cost)).tolist() == levels
        assert (reward == draws_of(INSTANCES["bernoulli"], arm)[0]).all(), (
            "rewards use the random numbers of Bernoulli arms"
        )
    tenths = bj.Scaled(
        bandit=INSTANCES["bernoulli"],
        scale=[0.9, 0.7, 0.6, 0.3, 0.2],
        shift=[0.1, 0.3, 0.4, 0.7, 0.8],
    )
    assert all(draws_of(tenths, arm)[1].max() == 1 for arm in range(5)), (
        "and not above, by rounding"
    )
    sure = bj.Scaled(bandit=INSTANCES["empirical"], scale=0, shift=[0.2, 0.3, 0.4])
    run = bj.simulate(bj.Oracle(), sure, 10, jax.random.key(0))
    assert run.rounds.item() == 10 / [0.2, 0.3, 0.4][int(sure.best_arm)], "tenths add up"


@pytest.mark.parametrize("family", INSTANCES)
def test_a_store_keeps_every_family(family):
    entry = json.loads(json.dumps(entry_of(INSTANCES[family], bj.BANDITS)))
    again = remade("bandits", entry, bj.BANDITS)
    assert type(again) is bj.BANDITS[family]
    assert_same_bits(again, INSTANCES[family])


@pytest.mark.slow
def test_a_sweep_of_scaled_arms_goes_on(tmp_path):
    bandits = {
        "scaled": INSTANCES["scaled"],
        "again": bj.Scaled(bandit=INSTANCES["bernoulli"], scale=0.5, shift=0.25),
    }
    whole = bj.sweep(["uniform"], bandits, [3, 5], 4, out=tmp_path / "store", chunk_size=2)
    (tmp_path / "store" / "checksum" / "c.0.1.0").unlink()
    assert "incomplete" in bj.open_results(tmp_path / "store").state
    assert (
        bj.sweep(**run.stored(tmp_path / "store"), out=tmp_path / "store")
        .drop_attrs()
        .identical(whole.drop_attrs())
    )


FILE = """
num_seeds = 5
budgets = [5, 10]
[policies.any]
kind = "uniform"
[bandits.beta]
kind = "beta"
reward_alpha = [1, 2]
reward_beta = [1, 1]
cost_alpha = [0.5, 2]
cost_beta = [1.5, 2]
[bandits.joint]
kind = "correlated"
random = { num_arms = 3, correlation = -1, instances = 2 }
[bandits.probs]
kind = "correlated"
from_probs = { probs = [[0.25, 0.25, 0.25, 0.25], [0.5, 0, 0, 0.5]] }
[bandits.ads]
kind = "empirical"
load = { table = "ads.csv", arm = "ad", reward = "clicks", cost = "price", min_rows = 2 }
[bandits.hard]
kind = "bernoulli"
hard = { num_arms = 4, budget = 1000 }
[bandits.sure]
kind = "scaled"
scale = 0
shift = [0.25, 0.5]
bandit = { kind = "bernoulli", reward = [0.5, 0.9], cost = [1, 1] }
[bandits.cheap]
kind = "scaled"
scale = 0.5
bandit = { kind = "multinomial", random = { num_arms = 3, instances = 2, seed = 7 } }
"""


def test_every_family_can_be_given_in_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ads.csv").write_text(TABLE.replace(", ", ","), encoding="utf-8")
    (tmp_path / "grid.toml").write_text(FILE, encoding="utf-8")
    bandits = gridfile.read_toml("grid.toml")["bandits"]
    assert "bandits.ads.load: 4 of 12 rows kept" in capsys.readouterr().err
    assert list(bandits) == [
        "beta",
        "joint-0",
        "joint-1",
        "probs",
        "ads",
        "hard",
        "sure",
        "cheap-0",
        "cheap-1",
    ]
    assert bandits["beta"].ratio.tolist() == [2, float(np.float32(4 / 3))]
    assert bandits["probs"].correlation.tolist() == [0, 1] and bandits["hard"].num_arms == 4
    assert bandits["sure"].cost_mean.tolist() == [0.25, 0.5]
    inner = bj.Multinomial.random(jax.random.fold_in(jax.random.key(7), 1), 3)
    np.testing.assert_allclose(
        bandits["cheap-1"].cost_mean, np.asarray(inner.cost_mean) / 2, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("scale = 0\n", "scale = -2\n", r"bandits.sure: scale\[0\] = -2.0"),
        (
            '{ kind = "bernoulli", reward',
            '{ kind = "bernouli", reward',
            "bandits.sure.bandit.kind = 'bernouli' is unknown",
        ),
        (
            'bandit = { kind = "bernoulli", reward = [0.5, 0.9], cost = [1, 1] }',
            "",
            "the key 'bandit' is missing in bandits.sure",
        ),
        ("budget = 1000", "budgets = 1000", "unknown key 'budgets' in bandits.hard.hard"),
        ('"ads.csv"', '"add.csv"', "bandits.ads.load: cannot read 'add.csv'"),
    ],
)
def test_bad_arms_in_a_file_are_refused_by_name(old, new, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert old in FILE
    (tmp_path / "ads.csv").write_text(TABLE.replace(", ", ","), encoding="utf-8")
    (tmp_path / "grid.toml").write_text(FILE.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=named):
        gridfile.read_toml("grid.toml")


def test_given_gaps():
    gaps = np.array([0.0, 0.1, 0.3])
    bandit = bj.Bernoulli.with_gaps(gaps, ratio=0.8, cost=[0.5, 1.0, 0.2])
    np.testing.assert_allclose(bandit.ratio, 0.8 - gaps, rtol=1e-6)
    np.testing.assert_array_equal(bandit.cost, np.float32([0.5, 1.0, 0.2]))


def test_hard_instances():
    bandit = bj.Bernoulli.hard(10, 5000, scale=2, ratio=1.5, cost=0.4)
    gap = 2 * np.sqrt(10 * np.log(5000) / 5000)
    np.testing.assert_allclose(bandit.ratio, [1.5 - gap] * 9 + [1.5], rtol=1e-6)
    assert (np.asarray(bandit.cost) == np.float32(0.4)).all()


GOOD = [[0.5, 0.5], [0.5, 0.5]]
TWO = {"reward": [0.5, 0.5], "cost": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: bj.Bernoulli(reward=[0.5, 1.5], cost=[0.5, 0.5]), r"reward\[1\] = 1.5"),
        (lambda: bj.Bernoulli(reward=[0.5, 0.5], cost=[-0.1, 0.5]), r"cost\[0\] = -0.1"),
        (lambda: bj.Bernoulli(reward=[0.5, np.nan], cost=[0.5, 0.5]), r"reward\[1\] = nan"),
        (lambda: bj.Bernoulli(reward=[0.5, 0.5], cost=[0.5, np.inf]), r"cost\[1\] = inf"),
        (lambda: bj.Bernoulli(reward=[0.5], cost=[0.5]), "at least 2"),
        (
            lambda: bj.Bernoulli(reward=[0.5, 0.5], cost=[0.5, 0.5, 0.5]),
            r"reward \[2\], cost \[3\]",
        ),
        (lambda: bj.Bernoulli(reward=0.5, cost=0.5), "too few axes"),
        (lambda: bj.Bernoulli(reward="many", cost=[0.5, 0.5]), "reward = 'many'"),
        (lambda: bj.Bernoulli(reward=[[0.5, 0.5], [0.5]], cost=[0.5, 0.5]), "reward = "),
        (
            lambda: bj.Multinomial(reward_probs=[[0.5, 0.4], [0.5, 0.5]], cost_probs=GOOD),
            r"sum of reward_probs\[0\] = 0.9",
        ),
        (
            lambda: bj.Multinomial(reward_probs=GOOD, cost_probs=[[0.5, 0.5], [-0.5, 1]]),
            r"cost_probs\[1, 0\] = -0.5",
        ),
        (
            lambda: bj.Multinomial(reward_probs=GOOD, cost_probs=GOOD, support=[0, 0.5, 1]),
            "support has shape",
        ),
        (
            lambda: bj.Multinomial(reward_probs=GOOD, cost_probs=GOOD, support=[0, -2]),
            r"support\[1\] = -2",
        ),
        (
            lambda: bj.Multinomial(reward_probs=GOOD, cost_probs=GOOD, support=[0, 2], scale=1),
            "scale = 1.* the largest amount of",
        ),
        (lambda: bj.FixedPrice(success=[0.5, 0.9], price=[1, -1]), r"price\[1\] = -1"),
        (lambda: bj.FixedPrice(success=[0.5, 1.9], price=[1, 1]), r"success\[1\] = 1.9"),
        (lambda: bj.FixedPrice(success=[0.5, 0.9], price=[1, 1, 1]), r"price has shape \(3,\)"),
        (
            lambda: bj.FixedPrice(success=[0.5, 0.9], price=[1, 1e-7]),
            r"price\[1\] = .*e-07 is not "
            r"allowed: make it 0, or at "
            r"least",
        ),
        (
            lambda: bj.FixedPrice(success=[0.5, 0.9], price=[1e-7, 1e-8]),
            "the largest price.*choose a smaller unit",
        ),
        (lambda: bj.FixedPrice(success=[0.5, 0.9], price=[1, 2], arms=["a"]), "has 1 names"),
        (lambda: bj.FixedPrice.random(jax.random.key(0), 3, price_range=(2, 1)), "price_range"),
        (lambda: bj.Multinomial(reward_probs=GOOD[:1], cost_probs=GOOD[:1]), "at least 2"),
        (lambda: bj.Multinomial(reward_probs=GOOD, cost_probs=[[1.0], [1.0]]), "differ in shape"),
        (lambda: bj.Bernoulli.random(jax.random.key(0), 1), "num_arms = 1"),
        (lambda: bj.Bernoulli.random(jax.random.key(0), 2.5), "num_arms = 2.5"),
        (lambda: bj.Bernoulli.random(jax.random.key(0), 2, cost_range=(0.5, 0.1)), "cost_range"),
        (lambda: bj.Multinomial.random(jax.random.key(0), 2, num_points=1), "num_points = 1"),
        (lambda: bj.Bernoulli.random(jax.random.PRNGKey(0), 2), "old-style"),
        (lambda: bj.Multinomial.random(None, 2), "key = None"),
        (
            lambda: bj.Beta(
                reward_alpha=[1, 2], reward_beta=[1, 0], cost_alpha=[1, 1], cost_beta=[1, 1]
            ),
            r"reward_beta\[1\] = 0",
        ),
        (
            lambda: bj.Beta(
                reward_alpha=[1, 2], reward_beta=[1, 2e7], cost_alpha=[1, 1], cost_beta=[1, 1]
            ),
            "shapes, finite",
        ),
        (lambda: bj.Beta.random(jax.random.key(0), 3, shape_range=(-1, 2)), "shape_range"),
        (
            lambda: bj.Correlated(reward=[0.5, 0.2], cost=[0.5, 0.8], correlation=0.5),
            r"correlation\[1\] = 0.5 is not allowed: with reward 0.2 and cost 0.8, give a number "
            r"in "
            r"\[-1, 0.25\]",
        ),
        (
            lambda: bj.Correlated(reward=[0.5, 1.0], cost=[0.5, 0.8], correlation=[0, 0.1]),
            r"correlation\[1\] = 0.1 .* \[0, 0\]",
        ),
        (lambda: bj.Correlated(**TWO, correlation=[0, 1.5]), r"correlation\[1\] = 1.5"),
        (lambda: bj.Correlated(**TWO, correlation=[0, 0, 0]), r"correlation has shape \(3,\)"),
        (lambda: bj.Correlated.from_probs([[0.25] * 4, [0.5] * 4]), r"sum of probs\[1\] = 2"),
        (lambda: bj.Correlated.from_probs([[0.5, 0.5]] * 2), "four probabilities"),
        (lambda: bj.Correlated.random(jax.random.key(0), 3, correlation=2), "correlation = 2"),
        (lambda: bj.Empirical(reward=GOOD, cost=GOOD, rows=[2, 3]), r"rows\[1\] = 3"),
        (lambda: bj.Empirical(reward=GOOD, cost=GOOD, rows=[2, 0]), r"rows\[1\] = 0"),
        (lambda: bj.Empirical(reward=GOOD, cost=GOOD, rows=[2, 2, 2]), "rows has shape"),
        (
            lambda: bj.Empirical(reward=GOOD, cost=[[0.5, 2], [0, 0]], cost_scale=1),
            r"cost\[0, 1\] = 2",
        ),
        (lambda: bj.Empirical(reward=GOOD, cost=[[0.5, -2], [0, 0]]), r"cost\[0, 1\] = -2"),
        (lambda: bj.Empirical.load("none.csv"), "cannot read 'none.csv'"),
        (lambda: bj.Empirical.load(7), "table = 7 is not a table"),
        (
            lambda: bj.Empirical.load({"ad": ["x"], "reward": [1], "cost": [1]}),
            "no column 'arm' in the table, which has ad,",
        ),
        (
            lambda: bj.Empirical.load({"arm": ["x"] * 20, "reward": [1] * 20, "cost": [1] * 20}),
            "1 arm to play",
        ),
        (
            lambda: bj.Empirical.load(
                {"arm": [0, 1] * 10, "reward": [1] * 20, "cost": [5] * 20}, cost_max=4
            ),
            "cost_max = 4 .* 5",
        ),
        (
            lambda: bj.Scaled(bandit=bj.Bernoulli(**TWO), scale=0.6, shift=[0.3, np.inf]),
            r"shift\[1\] = inf",
        ),
        (lambda: bj.Scaled(bandit=bj.Bernoulli(**TWO), scale=-0.5), r"scale\[0\] = -0.5"),
        (
            lambda: bj.Scaled(bandit=bj.Bernoulli(**TWO), shift=[0, 0, 0], scale=[1, 1, 1]),
            "one for each arm",
        ),
        (lambda: bj.Scaled(bandit=bj.Bernoulli), "is a class"),
        (lambda: bj.Bernoulli.with_gaps([0.1, 0.2]), "gaps = .* has no 0"),
        (lambda: bj.Bernoulli.with_gaps([0, 1.2]), r"gaps\[1\] = 1.2"),
        (lambda: bj.Bernoulli.with_gaps([0, 0.2], ratio=3), r"cost\[0\] = 0.5"),
        (lambda: bj.Bernoulli.hard(10, 20), "budget = 20 makes the gap 1.22"),
        (
            lambda: bj.Bernoulli.hard(3, [100, 200]),
            r"budget has shape \(2,\): give one number above 1",
        ),
        (lambda: bj.Bernoulli.with_gaps([0, 0.2], ratio=[1, 2]), r"ratio has shape \(2,\)"),
        (
            lambda: bj.Bernoulli.with_gaps([0, 0.2], cost=[0.5] * 3),
            r"cost has shape \(3,\), and "
            r"there are 2 gaps",
        ),
        (
            lambda: bj.Empirical.load({"arm": ["a", "b"], "reward": [1.0], "cost": [1.0, 1.0]}),
            "differ in length",
        ),
        (
            lambda: jax.jit(lambda r: bj.Bernoulli(reward=r, cost=[0.5] * 3).cost)(np.full(2, 0.5)),
            "differ in shape",
        ),
    ],
)
def test_bad_arms_are_refused_by_name(make, named):
    with pytest.raises(ValueError, match=named):
        make()
