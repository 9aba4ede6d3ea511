"""Rewards and costs in the units of the data: dollars and clicks, with a known maximum of one
pull.
"""

import dataclasses
import hashlib
import json
import zlib
from fractions import Fraction
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, assert_same_bits, batch, keys, take

import bts_jax as bj
from bts_jax import learn, rules, theory
from bts_jax.contract import Means, scales
from bts_jax.engine.fixed_point import LARGEST_SCALE, UNIT, Resolution, Sum
from bts_jax.sweeps import gridfile
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.opening import begin
from bts_jax.sweeps.run import stored

KEY = jax.random.key(0)
FIVE = bj.Empirical(
    reward=[[1, 1], [0, 2]],
    cost=[[5, 5], [3, 3]],
    reward_scale=2,
    cost_scale=5,
    arms=["banner", "video"],
)


@chex.dataclass(frozen=True)
class Dollars:
    """A user's arms: each pull costs its price with probability 1/2, and earns $2 with probability
    `chance`.
    """

    price: jax.Array
    chance: jax.Array
    cost_scale: ClassVar[float] = 5.0
    reward_scale: ClassVar[float] = 2.0

    @property
    def reward_mean(self):
        return 2 * self.chance

    @property
    def cost_mean(self):
        return self.price / 2

    def pull(self, key, arm):
        uniform = jax.random.uniform(key, (2,))
        return jnp.where(uniform[0] < self.chance[arm], 2.0, 0.0), jnp.where(
            uniform[1] < 0.5, self.price[arm], 0.0
        )


def dollars(*price):
    return Dollars(price=jnp.float32(price), chance=jnp.float32([0.5, 0.75]))


# Counting.


@jax.jit
def quantized(scale, amounts):
    return Resolution.of(scale).quantize(amounts)


@jax.jit
def counted_of(resolution, amounts):
    """Amounts as they are counted, and their values again."""
    counted = resolution.counted(Sum.of(amounts))
    return counted, counted.value(
        jax.tree.map(lambda x: jnp.broadcast_to(x, amounts.shape), resolution)
    )


@pytest.mark.parametrize(
    ("scale", "decimals"),
    [
        (1, 4),
        (1.5, 4),
        (3, 4),
        (5, 4),
        (12.34, 4),
        (99.99, 4),
        (250, 4),
        (1000, 4),
        (9999, 3),
        (15_000, 3),
        (100_000, 2),
        (1e6, 1),
        (8e6, 0),
        (0.5, 4),
        (0.3, 4),
        (0.01, 4),
        (1e-3, 4),
        (2e-5, 4),
    ],
)
def test_amounts_with_so_many_decimals_are_counted_exactly(scale, decimals):
    resolution = Resolution.of(scale, np)
    size = Fraction(int(resolution.times), int(resolution.parts))
    assert size >= Fraction(float(np.float32(scale))) or size == Fraction(str(scale))
    assert size <= max(6 * scale, 1 / 16_000)
    per_unit = Fraction(float(resolution.per_unit))  # as it is computed with
    assert per_unit == UNIT / size
    assert (per_unit / 10**decimals).denominator == 1
    step = Fraction(1, 10**decimals)
    amounts = [step * int(share * scale / step) for share in np.linspace(0, 1, 57)]
    found = quantized(np.float32(scale), np.float32([float(x) for x in amounts]))
    assert found.tolist() == [int(x * per_unit) for x in amounts]


@pytest.mark.parametrize("scale", [1, 2, 5, 70, 250, 5000, 0.1, 0.004])
def test_budgets_keep_their_value(scale):
    resolution = Resolution.of(scale, np)
    amounts = np.float32([1, 3, 7.5, 12.2, 100, 99.99, 1234, 20_000])
    counted, values = counted_of(resolution, amounts)
    exact = [
        Fraction(str(x)) * Fraction(float(resolution.per_unit))
        for x in (1, 3, 7.5, 12.2, 100, 99.99, 1234, 20_000)
    ]
    quanta = [
        int(whole) * UNIT + int(rest) for whole, rest in zip(*map(np.asarray, counted), strict=True)
    ]
    assert all(
        abs(found - wanted) <= Fraction(1, 2) for found, wanted in zip(quanta, exact, strict=True)
    )
    np.testing.assert_allclose(values, amounts, rtol=2e-7)


# Pulls, by hand.


@pytest.mark.slow
def test_the_oracle_buys_twenty_pulls_of_five_dollars(tmp_path):
    rows = [("A", 1, 5), ("A", 3, 5), ("B", 1, 4), ("B", 1, 5)]
    (tmp_path / "ads.csv").write_text(
        "arm,reward,cost\n" + "".join("{},{},{}\n".format(*row) for row in rows)
    )
    ads = bj.Empirical.load(tmp_path / "ads.csv", min_rows=2)
    run = take(bj.simulate(bj.Oracle(), ads, 100, KEY), ...)
    assert run.rounds.tolist() == [20] and run.pulls.tolist() == [[20, 0]]
    assert (
        run.cost.tolist() == [100]
        and 20 <= float(run.reward[0]) <= 60
        and run.budget.tolist() == [100]
    )
    assert (ads.reward_scale, ads.cost_scale, ads.arms) == (3, 5, ("A", "B"))
    assert ads.cost_mean.tolist() == [5, 4.5] and ads.ratio.tolist()[0] == np.float32(0.4)
    # $100 at 2 for $5.
    assert bj.regret(run, ads).item() == pytest.approx(40 - float(run.reward[0]), abs=1e-5)


@pytest.mark.slow
def test_three_dollars_with_a_maximum_of_five():
    assert int(FIVE.best_arm) == 1
    for budget, cost, rounds in (
        (2.5, 0, 1),
        (3, 3, 1),
        (99, 99, 33),
        (100, 99, 34),
        (98.99, 96, 33),
    ):
        run = bj.simulate(bj.Oracle(), FIVE, budget, KEY)
        assert run.cost.tolist() == [cost]
        assert run.rounds.tolist() == [rounds]  # a pull that exceeds the budget counts as a round
        assert run.reward.tolist()[0] in range(0, 100, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cost", "scale", "budget", "pulls"),
    [
        (4.99, 250, 499, 100),
        (0.01, 12, 1, 100),
        (1, 1000, 100, 100),
        (19.99, 99_999, 1999, 100),
        (0.0004, 0.001, 0.04, 100),
        (1234567, 2e6, 123456700, 100),
        (2.5, 5, 2500, 1000),
    ],
)
def test_money_is_counted_exactly(cost, scale, budget, pulls):
    bandit = bj.Empirical(reward=[[1, 1], [0, 0]], cost=[[cost] * 2] * 2, cost_scale=scale)
    run = bj.simulate(bj.Oracle(), bandit, budget, KEY)
    assert run.rounds.tolist() == [pulls]
    assert float(run.cost[0]) == pytest.approx(budget, rel=2e-7) and run.reward.tolist() == [pulls]


ARMS = bj.Bernoulli(reward=[0.5, 0.9], cost=[1, 1])


@pytest.mark.parametrize("amount", [1e-6, 3e-6, 1e-5, 1e-3, 0.02, 0.3])
def test_small_amounts_count(amount):
    """200 rounds at a small cost, and their rewards; in the same program as usual costs."""
    usual = bj.simulate(bj.Oracle(), bj.Scaled(ARMS, scale=1, worth=1), 200, KEY)
    run = bj.simulate(bj.Oracle(), bj.Scaled(ARMS, scale=amount, worth=amount), 200 * amount, KEY)
    assert run.rounds.item() == 200 and run.pulls.tolist() == usual.pulls.tolist()
    np.testing.assert_allclose(run.reward / amount, usual.reward, rtol=1e-5)
    np.testing.assert_allclose(run.cost / amount, 200, rtol=1e-5)


@pytest.mark.parametrize("amount", [1e-7, 1e-8, 1e-9])
def test_amounts_that_would_vanish_are_refused(amount):
    for make, named in (
        (
            lambda: bj.Scaled(ARMS, worth=amount),
            "reward_scale = .*choose a smaller unit, because the largest reward of",
        ),
        (
            lambda: bj.Scaled(ARMS, scale=amount),
            "cost_scale = .*choose a smaller unit, because the largest cost of",
        ),
        (
            lambda: bj.Scaled(ARMS, scale=0, shift=[1, amount]),
            r"the largest cost of an arm\[1\] "
            r"= .*: make it 0, or at least",
        ),
        (
            lambda: bj.Empirical(reward=[[amount], [0]], cost=[[1], [1]]),
            "reward_scale = .*choose another unit",
        ),
        (
            lambda: bj.Empirical(reward=[[1], [0]], cost=[[amount], [0]]),
            "cost_scale = .*choose another unit",
        ),
        (
            lambda: bj.Empirical(reward=[[amount], [0]], cost=[[1], [1]], reward_scale=1),
            "largest reward = .*reward_scale to",
        ),
        (
            lambda: bj.Empirical(reward=[[1], [0]], cost=[[amount], [0]], cost_scale=1),
            "the largest cost = .*set cost_scale to",
        ),
        (
            lambda: bj.Pricing(prices=[[amount], [0]], demand=[[1], [1]]),
            "the largest sum of prices of an arm = ",
        ),
        (
            lambda: bj.Multinomial(
                reward_probs=[[0.5, 0.5]] * 2, cost_probs=[[0.5, 0.5]] * 2, support=[0, amount]
            ),
            "scale = .*unit",
        ),
        (
            lambda: bj.Multinomial(
                reward_probs=[[0.5, 0.5]] * 2,
                cost_probs=[[0.5, 0.5]] * 2,
                support=[0, amount],
                scale=1,
            ),
            "the largest point of support = .*set scale to the largest amount",
        ),
        (
            lambda: bj.Empirical.load(
                {"arm": "aabb", "reward": [1, 1, 1, 1], "cost": [amount] * 4}, min_rows=1
            ),
            "cost_scale = ",
        ),
    ):
        with pytest.raises(ValueError, match=named):
            make()
    tiny = Unscaled(price=jnp.float32([amount, amount]), chance=jnp.float32([0.5, 0.75]))
    for play in (bj.simulate, bj.simulate_batch, bj.trace):
        with pytest.raises(
            ValueError,
            match=r"the largest expected cost of the bandit = .*set "
            r"cost_scale of the bandit",
        ):
            play(bj.BTS(), tiny, 1e-6, KEY)


def test_tables_have_their_largest_amounts_as_scales():
    table = {"arm": "aabb", "reward": [0.25, 0, 0.5, 0.5], "cost": [0.03, 0.02, 1e-5, 2e-5]}
    bandit = bj.Empirical.load(table, min_rows=1)
    assert (bandit.reward_scale, bandit.cost_scale) == (0.5, np.float32(0.03))
    free = bj.Empirical.load({**table, "reward": [0] * 4}, min_rows=1)
    assert free.reward_scale == 1


@pytest.mark.slow
def test_costs_above_one_in_one_line():
    """`test_units_in_a_grid_file` plays with `scale=5`."""
    bandit = bj.Scaled(bj.Bernoulli(reward=[0.5, 0.9], cost=[1, 1]), scale=5)
    assert (bandit.cost_scale, bandit.reward_scale, bandit.cost_mean.tolist()) == (5, 1, [5, 5])
    shifted = bj.Scaled(
        bj.Bernoulli(reward=[1, 0.9], cost=[1, 1]), scale=[2, 1], shift=[1, 0.5], worth=10
    )
    assert (shifted.cost_scale, shifted.reward_scale) == (3, 10)
    assert shifted.cost_mean.tolist() == [3, 1.5] and shifted.reward_mean.tolist() == [10, 9]
    run = bj.simulate(bj.Oracle(), shifted, 60, KEY)
    assert (
        run.rounds.tolist() == [40]
        and run.pulls.tolist() == [[0, 40]]
        and float(run.reward[0]) % 10 == 0
    )
    small = bj.Scaled(bj.Bernoulli(reward=[0.5, 0.9], cost=[1, 1]), scale=0.25, worth=0.5)
    assert (small.cost_scale, small.reward_scale) == (0.25, 0.5)
    nothing = bj.Scaled(bj.Bernoulli(reward=[0.5, 0.9], cost=[1, 1]), scale=0, worth=0)
    assert (nothing.cost_scale, nothing.reward_scale) == (1, 1)
    twice = bj.Scaled(FIVE, scale=2)
    assert (twice.cost_scale, twice.reward_scale, twice.arms) == (10, 2, ("banner", "video"))


@pytest.mark.slow
def test_policies_see_shares_of_the_largest():
    """Powers of two change no bit: a run in quarters is the run in wholes."""
    shares = INSTANCES["empirical"]
    reward, cost = np.asarray(shares.reward), np.asarray(shares.cost)
    quarters = bj.Empirical(
        reward=8 * reward, cost=4 * cost, rows=shares.rows, reward_scale=8, cost_scale=4
    )
    run, same = (
        take(batch(bj.KUBE(), bandit, budget, keys(4)), ...)
        for bandit, budget in ((shares, 20), (quarters, 80))
    )
    np.testing.assert_array_equal(run.pulls, same.pulls)
    np.testing.assert_allclose(8 * run.reward, same.reward, rtol=1e-6)
    np.testing.assert_allclose(4 * run.cost, same.cost, rtol=1e-6)
    np.testing.assert_allclose(
        8 * bj.regret(run, shares), bj.regret(same, quarters), rtol=1e-5, atol=1e-4
    )
    np.testing.assert_allclose(
        8 * bj.pseudo_regret(run, shares), bj.pseudo_regret(same, quarters), rtol=1e-5
    )


@chex.dataclass(frozen=True)
class Spy(bj.Uniform):
    requires: ClassVar[tuple[str, ...]] = ("budget", "min_cost", "cost_mean", "best_arm")

    def init(self, problem):
        return problem.budget, problem.min_cost, problem.cost_mean, problem.best_arm


def test_side_information_is_in_shares_too():
    budget, least, means, best = jax.jit(rules.first_state)(Spy(), FIVE, jnp.float32(100))
    assert (float(budget), int(best)) == (20, 1)
    assert means.tolist() == [1, np.float32(0.6)] and least == means[1]


# The same bits everywhere.


def play(price, key):
    return bj.simulate(
        bj.KUBE(), dollars(5, 3).replace(price=price), 40, key, checkpoints=[7.5, 40]
    )


@pytest.mark.slow
@pytest.mark.with_care
def test_a_class_of_ones_own_with_a_scale_plays_everywhere():
    """Different arms in a batch, one by one and in lanes."""
    prices, run_keys = np.float32(2 * [[5, 3], [2.5, 1.25], [5, 0.1]]), keys(6)
    runs = jax.vmap(play)(prices, run_keys)
    for i in range(3):
        assert_same_bits(play(prices[i], run_keys[i]), take(runs, i))
    stacked = Dollars(price=prices, chance=np.tile(dollars(5, 3).chance, (6, 1)))
    assert_same_bits(
        bj.simulate_batch(bj.KUBE(), stacked, 40, run_keys, checkpoints=[7.5, 40], lanes=4), runs
    )
    assert (
        np.allclose(np.asarray(runs.reward) % 2, 0) and (np.asarray(runs.cost) <= [7.5, 40]).all()
    )


@pytest.mark.slow
def test_a_sweep_of_a_class_of_ones_own_with_a_scale(tmp_path):
    bandit = dollars(5, 3)
    bj.check_bandit(bandit)
    data = bj.sweep(
        {"kube": bj.KUBE()},
        {"own": bandit},
        budgets=[7.5, 40],
        num_seeds=6,
        out=tmp_path / "s",
        quiet=True,
    )
    entry = json.loads(data.attrs["specification"])["bandits"]["own"]
    assert (entry["cost_scale"], entry["reward_scale"]) == (5, 2)
    key = jax.random.fold_in(KEY, zlib.crc32(b"own"))
    alone = take(
        jax.jit(jax.vmap(lambda seed: play(bandit.price, jax.random.fold_in(key, seed))))(
            np.arange(6)
        ),
        ...,
    )
    np.testing.assert_array_equal(data.reward.values[0, 0].T, alone.reward)
    np.testing.assert_array_equal(data.cost.values[0, 0].T, alone.cost)
    np.testing.assert_array_equal(data.regret.values[0, 0].T, bj.regret(alone, bandit))
    assert bj.open_results(tmp_path / "s").identical(data)


@pytest.mark.slow
@pytest.mark.with_care
def test_scales_that_are_traced():
    """A batch of bandits, each with its own scale: single and mapped runs agree."""
    tables = [
        bj.Empirical(
            reward=[[scale], [0.0]],
            cost=[[scale], [scale / 2]],
            reward_scale=scale,
            cost_scale=scale,
        )
        for scale in (1.0, 5.0, 130.0)
    ]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *tables)
    assert stacked.reward_mean.tolist() == [[1, 0], [5, 0], [130, 0]]
    play = jax.jit(lambda bandit: bj.simulate(bj.Uniform(), bandit, 260, KEY))
    runs = jax.vmap(play)(stacked)
    for place, table in enumerate(tables):
        assert_same_bits(play(table), take(runs, place))
    assert_same_bits(bj.simulate_batch(bj.Uniform(), stacked, 260, KEY), runs)


DIGESTS = {"epsilon-first empirical": "364998febbdac221", "kube scaled": "f8526f906e003ec8"}


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the digests are a CPU's")
@pytest.mark.with_care
@pytest.mark.parametrize("name", DIGESTS)
def test_runs_without_units_are_as_they_were(name):
    """Digests of runs by the version that supported only amounts in [0, 1]."""
    policy, family = name.split()
    runs = bj.simulate_batch(
        bj.POLICIES[policy](), INSTANCES[family], 30.5, keys(6), checkpoints=[7, 12.2, 30.5]
    )
    runs = dataclasses.replace(runs, bandit=None)  # that version had no fingerprint of the bandit
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(runs)))
    assert digest.hexdigest()[:16] == DIGESTS[name]


@pytest.mark.slow
def test_scales_that_are_traced_and_wrong():
    def play(scale):
        return bj.simulate(
            bj.Uniform(),
            bj.Empirical(reward=[[1.0], [0.0]], cost=[[1.0], [1.0]], cost_scale=scale),
            9,
            KEY,
        )

    bad = jax.jit(jax.vmap(play))(np.float32([2, -1, 0, 2e7, 0.5]))
    # The last: costs above the scale.
    assert np.isnan(bad.reward).ravel().tolist() == [False, True, True, True, True]


# Sweeps.


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Three tables of one family with scales of their own."""
    one = bj.Empirical(
        reward=[[1, 0], [0.5, 0.5]], cost=[[1, 1], [0.5, 0.25]], arms=["banner", "video"]
    )
    bandits = {
        "five": FIVE,
        "one": one,
        "twice": bj.Empirical(
            reward=[[1, 1], [0, 2]],
            cost=[[10, 10], [6, 6]],
            reward_scale=2,
            cost_scale=10,
            arms=["banner", "video"],
        ),
    }
    path = tmp_path_factory.mktemp("units") / "s.zarr"
    return (
        path,
        bandits,
        bj.sweep(["oracle"], bandits, budgets=[12, 100], num_seeds=3, out=path, quiet=True),
    )


@pytest.mark.slow
def test_a_sweep_of_several_units(mixed):
    path, bandits, data = mixed
    assert data.arm.values.tolist() == ["banner", "video"] and "arm_name" not in data.coords
    assert (
        data.pulls.sel(policy="oracle", bandit="five", budget=100, arm="video").values.tolist()
        == [33] * 3
    )
    assert data.cost.sel(policy="oracle", budget=100).isel(seed=0).values.tolist()[0] == 99
    assert data.cost_mean.sel(bandit="twice").values.tolist() == [10, 6]
    for name, bandit in bandits.items():
        run = bj.Run(
            budget=np.array([12.0, 100.0]),
            truncated=np.zeros(2, bool),
            **{
                part: np.moveaxis(
                    data[part].sel(policy="oracle", bandit=name).isel(seed=0).values, 0, 0
                )
                for part in ("reward", "cost", "rounds", "pulls")
            },
        )
        np.testing.assert_allclose(
            data.regret.sel(policy="oracle", bandit=name).isel(seed=0), bj.regret(run, bandit)
        )
    # An arm that costs twice as much gives the same with twice the budget.
    lost = bj.statistics.measured(data).lost_run.values
    np.testing.assert_allclose(lost[0], [(1 / 3 - 1 / 5) * 12, (1 / 3 - 1 / 5) * 100], rtol=1e-6)
    again = bj.open_results(path)
    assert again.identical(data) and again.arm.values.tolist() == ["banner", "video"]


@pytest.mark.slow
def test_a_store_says_what_it_takes_to_go_on(mixed):
    path, bandits, data = mixed
    what = stored(path)
    assert (
        what["bandits"]["five"].arms == ("banner", "video")
        and float(what["bandits"]["five"].cost_scale) == 5
    )
    assert bj.sweep(**what, out=path, quiet=True).identical(data)
    with pytest.raises(ValueError, match="another grid"):
        bj.sweep(**{**what, "bandits": {**bandits, "one": FIVE}}, out=path, quiet=True)


@pytest.mark.slow
def test_names_that_differ_are_a_coordinate_of_bandit_and_arm(tmp_path):
    bandits = {"five": FIVE, "three": INSTANCES["bernoulli"], "twice": bj.Scaled(FIVE, scale=2)}
    # Nothing is played.
    data = begin(Grid(["uniform"], bandits, [10], 2, 0).attributes(), 2, tmp_path / "s").dataset()
    assert data.arm.values.tolist() == [0, 1, 2, 3, 4]
    assert data.arm_name.values.tolist() == [
        ["banner", "video", "", "", ""],
        [""] * 5,
        ["banner", "video", "", "", ""],
    ]
    assert bj.open_results(tmp_path / "s").identical(data)
    assert stored(tmp_path / "s")["bandits"]["twice"].bandit.arms == ("banner", "video")
    assert (
        "arms"
        not in bj.open_results(tmp_path / "s")
        .attrs["specification"]
        .split('"three"')[1]
        .split('"twice"')[0]
    )


def test_specifications_without_units_are_as_they_were():
    names = ("empirical", "scaled", "bernoulli")
    attributes = Grid(
        ["uniform"], {name[0]: INSTANCES[name] for name in names}, [5], 1, 0
    ).attributes()
    entries = json.loads(attributes["specification"])["bandits"]
    assert [list(entry) for entry in entries.values()] == [
        ["class", "reward_mean", "cost_mean", "fields"]
    ] * 3
    assert [sorted(entry["fields"]) for entry in entries.values()] == [
        ["cost", "reward", "rows"],
        ["bandit", "scale", "shift"],
        ["cost", "reward"],
    ]


def test_relative_budgets_are_multiples_of_the_smallest_cost(mixed):
    data = bj.sweep(
        ["oracle"], mixed[1], budgets=[4, 10], num_seeds=3, relative_to_min_cost=True, quiet=True
    )
    for name, cost in (("five", 3), ("twice", 6)):
        one = data.sel(policy="oracle", bandit=name)
        assert one.cost.values.tolist() == [[4 * cost] * 3, [10 * cost] * 3]
        assert one.rounds.values.tolist() == [[4] * 3, [10] * 3]


GRID = """
num_seeds = 3
budgets = [50, 100]
[policies.oracle]
kind = "oracle"
[bandits.table]
kind = "empirical"
load = { table = "ads.csv", min_rows = 2 }
[bandits.own]
kind = "empirical"
reward = [[1, 1], [0, 0]]
cost = [[5, 5], [4, 4]]
cost_scale = 5
arms = ["A", "B"]
[bandits.dear]
kind = "empirical"
reward = [[30, 30], [0, 0]]
cost = [[25, 25], [10, 10]]
reward_scale = 30
cost_scale = 25
[bandits.scaled]
kind = "scaled"
scale = 5
bandit = { kind = "bernoulli", reward = [1, 0.5], cost = [1, 1] }
"""


@pytest.mark.slow
def test_units_in_a_grid_file(tmp_path, capsys):
    (tmp_path / "ads.csv").write_text("arm,reward,cost\n" + 2 * "A,1,5\nB,0,4\n")
    (tmp_path / "grid.toml").write_text(GRID)
    data = bj.sweep(**gridfile.read_toml(tmp_path / "grid.toml"), quiet=True)
    assert "rewards up to 1, costs up to 5" in capsys.readouterr().err
    rounds = data.rounds.sel(policy="oracle").transpose("budget", "seed", "bandit").values
    assert rounds.tolist() == [[[10, 10, 2, 10]] * 3, [[20, 20, 4, 20]] * 3]
    assert (data.cost == data.budget).all()
    assert data.arm_name.sel(bandit="table").values.tolist() == ["A", "B"]


# Names.


def test_names_are_kept_and_split_nothing():
    other = bj.Empirical(
        reward=[[0, 1], [1, 2]],
        cost=[[5, 5], [2, 3]],
        reward_scale=2,
        cost_scale=5,
        arms=["x", "y"],
    )
    bare = bj.Empirical(
        reward=[[0, 1], [1, 2]], cost=[[5, 5], [2, 3]], reward_scale=2, cost_scale=5
    )
    assert jax.tree.structure(FIVE) == jax.tree.structure(other) == jax.tree.structure(bare)
    assert FIVE.arms == ("banner", "video") != other.arms and bare.arms == ()
    assert jax.tree.map(np.asarray, FIVE).arms == FIVE.arms
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), FIVE, other)
    assert stacked.arms == FIVE.arms and stacked.cost_scale.tolist() == [5, 5]
    traces = []
    jax.jit(lambda bandit: traces.append(1) or bandit.cost_mean)(FIVE)
    function = jax.jit(lambda bandit: traces.append(1) or bandit.cost_mean)
    function(FIVE), function(other), function(bare)
    assert len(traces) == 2


# What is wrong, and what to do.


@chex.dataclass(frozen=True)
class Unscaled(Dollars):
    cost_scale: ClassVar[float | None] = None


@chex.dataclass(frozen=True)
class Wrong(Dollars):
    cost_scale: ClassVar[float] = -3


@chex.dataclass(frozen=True)
class Misnamed(Dollars):
    arms: ClassVar[tuple[str, ...]] = ("one",)


def own(kind):
    return kind(price=jnp.float32([5, 3]), chance=jnp.float32([0.5, 0.5]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: bj.Empirical(reward=[[1, 2], [0, 0]], cost=[[1, 1], [1, 1]], reward_scale=1),
            r"reward\[0, 1\] = 2.0 .* reward_scale",
        ),
        (
            lambda: bj.Empirical(reward=[[1, 1], [0, 0]], cost=[[1, 1], [1, 7]], cost_scale=5),
            r"cost\[1, 1\] = 7.* cost_scale = 5",
        ),
        (
            lambda: bj.Empirical(reward=[[1, 1], [0, 0]], cost=[[1, 1], [1, 1]], cost_scale=0),
            "cost_scale = 0",
        ),
        (
            lambda: bj.Empirical(
                reward=[[1, 1], [0, 0]], cost=[[1, 1], [1, 1]], reward_scale=[1, 2, 3]
            ),
            "reward_scale has shape",
        ),
        (
            lambda: bj.Empirical(reward=[[1, 1], [0, 0]], cost=[[1, 1], [1, 1]], arms=["a"]),
            "arms = .* 1 names",
        ),
        (
            lambda: bj.Empirical(reward=[[1, 1], [0, 0]], cost=[[1, 1], [1, 1]], arms=["a", "a"]),
            "1 of them different",
        ),
        (
            lambda: bj.Empirical(reward=[[1, 1], [0, 0]], cost=[[1, 1], [1, 1]], arms="ab"),
            "arms = 'ab'",
        ),
        (
            lambda: bj.Empirical(reward=[[1, 1], [0, 0]], cost=[[1, 1], [1, 1]], arms=["a", 1]),
            "arms has the name 1",
        ),
        (
            lambda: bj.Scaled(INSTANCES["bernoulli"], scale=LARGEST_SCALE, shift=1),
            "cost_scale .* larger unit",
        ),
        (
            lambda: bj.simulate(bj.Uniform(), own(Unscaled), 10, KEY),
            r"cost_mean of the bandit\[0\] = "
            r"2.5 .* set cost_scale",
        ),
        (lambda: bj.simulate(bj.Uniform(), own(Wrong), 10, KEY), "cost_scale of the bandit = -3"),
        (lambda: bj.check_bandit(own(Misnamed)), "arms = .* 1 names"),
        (lambda: bj.sweep(["uniform"], {"own": own(Misnamed)}, [10], 1), "arms = .* 1 names"),
        (
            lambda: bj.simulate(
                bj.Uniform(), bj.Scaled(INSTANCES["empirical"], scale=1e-4), 1e-12, KEY
            ),
            "budget = 1e-12",
        ),
        (
            lambda: theory.bts_constant(FIVE),
            r"another scale .* reward_scale, cost_mean / cost_scale",
        ),
        (
            lambda: theory.bts_bound(Means(np.array([1.0, 2.0]), np.array([1.0, 1.0])), 100),
            r"rewards of another scale than 1",
        ),
        (
            lambda: learn.score_gradient(
                bj.TemperedBTS(), jax.tree.map(lambda x: np.stack([x, x]), FIVE), 10, KEY
            ),
            "cost_scale",
        ),
    ],
)
def test_what_is_wrong_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_theory_without_bounds_takes_any_unit():
    assert theory.gaps(FIVE).gap.tolist() == pytest.approx([1 / 3 - 1 / 5, 0])
    assert scales(INSTANCES["bernoulli"]) is None and scales(Means(np.ones(2), np.ones(2))) is None
