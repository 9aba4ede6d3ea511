"""The unit of money does not matter: dollars, cents and thousandths give the same results, for all
policies and bandits.

False failures: the runs in all units have the same keys, and policies see shares of the largest
cost, which differ by rounding only. So a run takes another course only where two indices, or two
draws, differ in the last bits of a float32. This happened in none of 29 policies × 4 bandits × 2
other units × 40 runs, about 500,000 decisions (jaxlib 0.10.2). If it happens in one of 10⁷
decisions, one of these tests fails with a probability of 2% on a new version of JAX. On one
version, the outcome is always the same.
"""

import json
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import Constant, assert_same_bits, keys
from jax import lax

import bts_jax as bj
from bts_jax.contract import needs_cost_limit, scales, side_info
from bts_jax.limits import share_of
from bts_jax.policies import ALL_POLICIES
from bts_jax.pytrees import pytree
from bts_jax.sweeps.specification import entry_of, remade

DOLLARS, CENTS, THOUSANDTHS = 1.0, 100.0, 1000.0
UNITS = (DOLLARS, CENTS, THOUSANDTHS)
SEEDS, LONG = 16, 2
ROWS = {
    "reward": [[0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 0.5], [0, 0, 0, 1]],
    "cost": [
        [0.006, 0.012, 0.018, 0.012],
        [0.0015, 0.003, 0.003, 0.0045],
        [0.027, 0.03, 0.024, 0.021],
        [0.0006, 0.0012, 0.0006, 0.0018],
    ],
}
POSTERIORS = {
    f"bts, {name}": bj.BTS(cost=kind())
    for name, kind in bj.posteriors.POSTERIORS.items()
    if name not in ("beta", "revenue")
}
POLICIES = {name: kind() for name, kind in ALL_POLICIES.items()} | POSTERIORS
QUICK = ("bts", "kube", "epsilon-first", "fractional-kube", "bts, gamma")


def table(unit, **scales):
    return bj.Empirical(reward=ROWS["reward"], cost=unit * np.array(ROWS["cost"]), **scales)


def families(unit):
    """One bandit of each family that has a unit, with the same number of arms. Costs are up to
    $0.03.
    """
    chances = bj.Bernoulli(reward=[0.75, 0.5, 0.9, 0.25], cost=[0.5, 0.125, 1, 0.25])
    points = np.array(
        [[0.25, 0.5, 0.25, 0], [0.5, 0.5, 0, 0], [0, 0.25, 0.25, 0.5], [0.5, 0.25, 0.25, 0]]
    )
    return {
        "empirical": table(unit),
        "scaled": bj.Scaled(
            chances, scale=unit * np.array([0.01, 0.02, 0.01, 0.005]), shift=unit * 0.005
        ),
        "fixed-price": bj.FixedPrice(
            success=[0.75, 0.5, 0.9, 0.25], price=unit * np.array([0.012, 0.003, 0.03, 0.0006])
        ),
        "multinomial": bj.Multinomial(
            reward_probs=points[::-1],
            cost_probs=points,
            support=unit * np.array([0, 0.01, 0.02, 0.03]),
        ),
    }


@pytree
class Chosen:
    """One of several bandits with units, so that all of them are played by one program."""

    bandits: tuple[Any, ...]
    which: Any

    def _chosen(self, values):
        which = jnp.asarray(self.which)
        which = which.reshape(which.shape + (1,) * (values[0].ndim - which.ndim))
        return lax.select_n(jnp.broadcast_to(which, values[0].shape), *values)

    @property
    def reward_mean(self):
        return self._chosen([bandit.reward_mean for bandit in self.bandits])

    @property
    def cost_mean(self):
        return self._chosen([bandit.cost_mean for bandit in self.bandits])

    @property
    def reward_scale(self):
        return self._chosen(
            [
                jnp.asarray(scales(bandit)[0], jnp.float32) + 0 * self.which
                for bandit in self.bandits
            ]
        )

    @property
    def cost_scale(self):
        return self._chosen(
            [
                jnp.asarray(scales(bandit)[1], jnp.float32) + 0 * self.which
                for bandit in self.bandits
            ]
        )

    def pull(self, key, arm):
        rewards, costs = zip(*(bandit.pull(key, arm) for bandit in self.bandits), strict=True)
        return self._chosen(rewards), self._chosen(costs)


NAMES = tuple(families(DOLLARS))


@cache
def setting():
    """All bandits in all units, each with its budget and keys; and tables whose largest cost is
    given 20 times too large.
    """
    rows = [
        (families(unit), place, 0.24 * unit, SEEDS) for place in range(len(NAMES)) for unit in UNITS
    ]
    for unit, budget, count in ((DOLLARS, 0.24, SEEDS), (DOLLARS, 3.0, LONG)):
        larger = {**families(unit), "empirical": table(unit, cost_scale=0.6)}
        rows += [(families(unit), 0, budget, count), (larger, 0, budget, count)]
    counts = [count for *_, count in rows]
    bandits = [
        Chosen(bandits=tuple(found.values()), which=np.int32(place)) for found, place, _, _ in rows
    ]
    stacked = jax.tree.map(lambda *leaves: np.repeat(np.stack(leaves), counts, 0), *bandits)
    budgets = np.repeat(np.float32([budget for _, _, budget, _ in rows]), counts)
    words = np.concatenate(
        [np.asarray(jax.random.key_data(keys(SEEDS)))[:count] for count in counts]
    )
    return stacked, budgets, jax.random.wrap_key_data(words), counts


def play(policy):
    """The rewards and pulls of all runs: a list with an array for each row of the setting."""
    bandit, budget, run_keys, counts = setting()
    if "time_cost" in side_info(policy):
        bandit, budget = bj.Timed(bandit), np.stack([budget, np.full(len(budget), 60.0)], -1)
    runs = bj.simulate_batch(policy, bandit, budget, run_keys)
    ends = np.cumsum(counts)[:-1]
    return [
        np.split(np.asarray(part, np.float64)[:, 0], ends) for part in (runs.reward, runs.pulls)
    ]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in POLICIES],
)
def test_the_unit_of_money_does_not_matter(name):
    """Rewards agree within 1% in all units: two indices may tie, and then the last bit of a share
    of the largest cost decides.

    The largest cost that is given matters only to policies that say so.
    """
    rewards, pulls = play(POLICIES[name])
    for place, family in enumerate(NAMES):
        # Its rewards are in the same unit.
        units = 0.03 * np.array(UNITS) if family == "multinomial" else np.ones(3)
        found = [rewards[3 * place + i].mean() / units[i] for i in range(3)]
        np.testing.assert_allclose(found, found[0], rtol=0.01, err_msg=family)
    usual, larger, long, larger_long = rewards[-4:]
    if needs_cost_limit(POLICIES[name]):
        same = all((pulls[i] == pulls[i + 1]).all() for i in (-4, -2))
        assert not same, (
            "it does not depend on the largest cost: remove bounded_costs, or bounded of its "
            "posterior"
        )
    else:
        np.testing.assert_allclose(
            [larger.mean(), larger_long.mean()], [usual.mean(), long.mean()], rtol=0.01
        )


def test_price_lists_are_in_the_same_unit():
    """A prior from a price list, in dollars, cents and thousandths."""
    bandit, budget, run_keys, counts = setting()
    units = [*UNITS * len(NAMES), *[DOLLARS] * 4]
    priors = [
        bj.posteriors.Gamma(mean=unit * np.array([0.01, 0.003, 0.03, 0.001]), strength=5)
        for unit in units
    ]
    policy = jax.tree.map(
        lambda *leaves: np.repeat(np.float32(leaves), counts),
        *[bj.BTS(cost=prior) for prior in priors],
    )
    runs = bj.simulate_batch(policy, bandit, budget, run_keys)
    pulls = np.split(np.asarray(runs.pulls)[:, 0], np.cumsum(counts)[:-1])
    same = [
        (pulls[3 * place] == pulls[3 * place + i]).all(-1).mean()
        for place in range(len(NAMES))
        for i in (1, 2)
    ]
    assert np.mean(same) > 0.95, (
        "one run in 20 may differ, because a price of $0.003 is not a float32"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ts-update", "primal-dual-bwk"])
def test_the_unit_of_revenue_does_not_matter(name):
    prices = np.array([[0.4, 0.1], [0.8, 0.2], [0.2, 0.3]])
    shops = [
        bj.Timed(bj.Pricing(prices=unit * prices, demand=[[0.7, 0.3], [0.3, 0.2], [0.8, 0.1]]))
        for unit in UNITS
    ]
    stacked = jax.tree.map(lambda *leaves: np.repeat(np.stack(leaves), SEEDS, 0), *shops)
    runs = bj.simulate_batch(ALL_POLICIES[name](), stacked, [20, 10, 60], jnp.tile(keys(SEEDS), 3))
    rewards = np.asarray(runs.reward, np.float64).reshape(3, SEEDS).mean(1)
    np.testing.assert_allclose(rewards / UNITS, rewards[0], rtol=0.005)


def test_scales_are_the_true_maxima():
    for unit in UNITS:
        assert_same_bits(table(unit), table(unit, reward_scale=1, cost_scale=0.03 * unit))
        for name, bandit in families(unit).items():
            reward, cost = scales(bandit)
            assert float(cost) == pytest.approx(0.03 * unit) or name == "scaled", name
            assert float(reward) == pytest.approx(0.03 * unit if name == "multinomial" else 1)
        assert float(families(unit)["scaled"].cost_scale) == pytest.approx(0.025 * unit)
        columns = {
            "arm": np.repeat(list("abcd"), 4),
            "reward": np.ravel(ROWS["reward"]),
            "cost": unit * np.ravel(ROWS["cost"]),
        }
        assert_same_bits(bj.Empirical.load(columns, min_rows=1), table(unit, arms=list("abcd")))
    assert float(
        bj.Pricing(prices=[[0.01], [0.03]], demand=[[1], [1]]).reward_scale
    ) == pytest.approx(0.03)
    nothing = bj.Empirical(reward=[[0, 0], [0, 0]], cost=[[0, 1], [1, 0]])
    assert (nothing.reward_scale, nothing.cost_scale) == (1, 1)
    assert scales(bj.Multinomial(reward_probs=[[1, 0]] * 2, cost_probs=[[1, 0]] * 2)) is None
    assert (
        scales(bj.Multinomial(reward_probs=[[1, 0]] * 2, cost_probs=[[1, 0]] * 2, support=[0, 1]))
        is None
    )


def test_scales_of_batches_and_of_traced_tables():
    """Each bandit of a batch has its own, also under jit."""
    tables = np.array(ROWS["cost"]) * np.array([1, 100]).reshape(2, 1, 1)
    rewards = np.stack([ROWS["reward"]] * 2)
    assert bj.Empirical(reward=rewards, cost=tables).cost_scale.tolist() == pytest.approx([0.03, 3])
    made = jax.jit(jax.vmap(lambda reward, cost: bj.Empirical(reward=reward, cost=cost)))(
        rewards, tables
    )
    assert made.cost_scale.tolist() == pytest.approx([0.03, 3]) and made.reward_scale.tolist() == [
        1,
        1,
    ]
    probs = np.full((2, 2, 2), 0.5)
    many = bj.Multinomial(reward_probs=probs, cost_probs=probs, support=[[0, 1], [0, 5]])
    assert many.cost_scale.tolist() == [1, 5] and many.cost_mean.tolist() == [
        [0.5, 0.5],
        [2.5, 2.5],
    ]
    vector = bj.Multinomial(
        reward_probs=probs[0], cost_probs=[[[0.5, 0.5]] * 3] * 2, support=[0, 4]
    )
    assert vector.cost_scale.tolist() == [4, 4, 4] and vector.cost_mean.tolist() == [[2, 2, 2]] * 2
    traced = jax.jit(lambda key: bj.Multinomial.random(key, 3))(jax.random.key(0))
    assert scales(traced) is None, "the default points have no unit, traced or not"


@pytest.mark.parametrize("name", ["empirical", "multinomial"])
def test_a_store_keeps_scales(name):
    """Also a scale of 1 that the user has given."""
    named = {
        "empirical": table(DOLLARS, cost_scale=1, reward_scale=1),
        "multinomial": bj.Multinomial(
            reward_probs=[[1, 0]] * 2, cost_probs=[[1, 0]] * 2, support=[0, 0.5], scale=1
        ),
    }
    for bandit in (families(DOLLARS)[name], families(CENTS)[name], named[name]):
        again = remade("bandits", json.loads(json.dumps(entry_of(bandit, bj.BANDITS))), bj.BANDITS)
        assert_same_bits(again, bandit)


# The warning.


DEAR = bj.FixedPrice(success=[0.6, 0.9], price=[0.00005, 0.03])
WARNING = (
    "made for costs in .0, 1., and {} the mean cost of an arm is 0.0017 of the largest "
    "cost.*Gamma.*help"
)


@pytest.mark.slow
def test_small_costs_are_said_once(capsys):
    run_keys = keys(3)
    with pytest.warns(UserWarning, match="policy OmegaUCB is " + WARNING.format("here")) as found:
        bj.check_policy(bj.OmegaUCB(), DEAR, budget=0.1)
    assert len(found) == 1 and found[0].filename == __file__
    with pytest.warns(UserWarning, match="^bts, omega-ucb are " + WARNING.format("here")) as found:
        list(bj.compare(["bts", "omega-ucb", "kube"], DEAR, 0.05, run_keys))
    assert len(found) == 1 and found[0].filename == __file__
    with pytest.warns(
        UserWarning, match="^bts is " + WARNING.format(r"on bandits\['dear'\]")
    ) as found:
        bj.sweep(
            ["bts", "kube"],
            {"plain": bj.Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5]), "dear": DEAR},
            [0.05],
            2,
        )
    assert len(found) == 1 and found[0].filename == __file__
    # Which need no limit.
    bj.sweep({"bts": POLICIES["bts, gamma"], "kube": bj.KUBE()}, {"dear": DEAR}, [0.05], 2)


@pytest.mark.parametrize(
    ("bandit", "share"),
    [
        (DEAR, 1 / 600),
        (bj.Timed(DEAR), 1 / 600),
        (bj.WithNull(bj.Timed(DEAR)), 1 / 600),
        (table(DOLLARS), 0.00105 / 0.03),
        (bj.FixedPrice(success=[0.5, 0.5], price=[0, 2]), 1),  # a free arm does not count
        (bj.FixedPrice(success=[0.5, 0.5], price=[0, 0]), np.inf),
        # Nothing is lost: costs are 0 or 1.
        (bj.Bernoulli(reward=[0.5, 0.5], cost=[0.001, 0.002]), np.inf),
        (bj.Timed(bj.Pricing(prices=[[1], [2]], demand=[[0.001], [0.002]])), np.inf),
        (bj.Scaled(bj.Bernoulli(reward=[0.5, 0.5], cost=[0.001, 0.002]), scale=5), 0.001),
        (
            bj.Beta(
                reward_alpha=[1, 1],
                reward_beta=[1, 1],
                cost_alpha=[0.002, 0.5],
                cost_beta=[0.998, 0.5],
            ),
            0.5,
        ),
        # Dollars without a scale.
        (Constant(reward_mean=np.float32([0.5, 0.5]), cost_mean=np.float32([0.001, 0.002])), 0.002),
    ],
)
def test_which_mean_cost_decides(bandit, share):
    assert share_of(bandit) == pytest.approx(share, rel=1e-5)
