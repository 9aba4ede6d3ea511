"""The rules of the game, on deterministic arms and fixed policies; and runs that are truncated,
limited or refused.
"""

from dataclasses import dataclass
from decimal import Decimal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, assert_same_bits, batch, keys
from jax.typing import ArrayLike

import bts_jax as bj
from bts_jax.policies import ALL_POLICIES

KEY = jax.random.key(0)


@chex.dataclass(frozen=True)
class Always:
    """Always the same arm."""

    arm: ArrayLike

    def init(self, problem):
        return ()

    def __call__(self, state, key):
        return self.arm, state

    def update(self, state, arm, reward, cost, key):
        return state


def certain(reward, cost, points=11):
    """Two arms with the same distribution: always this reward and this cost, in tenths."""
    row = np.eye(points)
    return bj.Multinomial(reward_probs=row[[reward, reward]], cost_probs=row[[cost, cost]])


@pytest.mark.parametrize(
    ("reward", "cost", "budget", "expected"),
    [
        # tenths of reward and cost, budget -> reward, cost, rounds
        (
            3,
            1,
            1.0,
            (3.0, 1.0, 10),
        ),  # ten pulls at 0.1 spend 1 exactly, in spite of binary fractions
        # The tenth pull costs more than is left: it earns and costs nothing: a round, but no pull.
        (3, 1, 0.95, (2.7, 0.9, 10)),
        (10, 10, 2.5, (2.0, 2.0, 3)),
        (10, 3, 1.0, (3.0, 0.9, 4)),
        (10, 5, 0.2, (0.0, 0.0, 1)),  # the first pull costs more than the budget
        (0, 10, 7, (0.0, 7.0, 7)),
    ],
)
def test_spending_by_hand(reward, cost, budget, expected):
    run = bj.simulate(Always(arm=1), certain(reward, cost), budget, KEY)
    np.testing.assert_allclose([run.reward[0], run.cost[0]], expected[:2], rtol=1e-6)
    unpaid = expected[1] < expected[2] * cost / 10 - 0.01
    assert run.rounds.tolist() == [expected[2]] and run.pulls.tolist() == [
        [0, expected[2] - unpaid]
    ]
    assert not run.truncated[0]


def test_checkpoints_by_hand():
    """Cost 0.3, reward 1: checkpoints that are hit exactly, missed, several within one pull, and in
    any order.
    """
    budgets = [3.0, 0.1, 0.2, 0.3, 0.9, 1.0, 1.1]
    run = bj.simulate(Always(arm=0), certain(10, 3), 3, KEY, checkpoints=budgets)
    np.testing.assert_allclose(run.budget, budgets, rtol=1e-6)
    assert run.reward.tolist() == [10, 0, 0, 1, 3, 3, 3]
    np.testing.assert_allclose(run.cost, [3.0, 0, 0, 0.3, 0.9, 0.9, 0.9], rtol=1e-6)
    assert run.rounds.tolist() == [10, 1, 1, 1, 3, 4, 4]
    assert run.pulls[:, 0].tolist() == [10, 0, 0, 1, 3, 3, 3]


def test_a_run_ends_at_its_largest_checkpoint():
    run = bj.simulate(Always(arm=0), certain(10, 10), 10**6, KEY, checkpoints=[5])
    assert run.rounds.tolist() == [5]


@pytest.mark.slow
def test_rounds_are_pulls_and_bernoulli_runs_spend_all():
    runs = batch(bj.Uniform(), INSTANCES["bernoulli"], 40, keys(200), checkpoints=[1, 7, 40])
    assert (runs.cost == runs.budget).all()
    assert (runs.rounds == runs.pulls.sum(-1)).all()
    assert (np.diff(runs.rounds, axis=1) > 0).all()


def test_costs_never_exceed_the_budget():
    runs = batch(bj.Uniform(), INSTANCES["multinomial"], 9.6, keys(200))
    assert (runs.cost <= runs.budget).all() and (runs.cost > runs.budget - 1).all()


@pytest.mark.slow
def test_a_free_best_arm_ends_at_the_limit_and_says_so():
    bandit = bj.Bernoulli(reward=[0.5, 0.5], cost=[0.0, 0.5])
    run = bj.simulate(bj.Oracle(), bandit, 100, KEY, checkpoints=[10, 100])
    assert run.truncated.all() and run.rounds.tolist() == [440, 800], "(2b + 200) / 0.5"
    assert (run.cost == 0).all() and run.pulls[0].tolist() == [440, 0]
    assert_same_bits(run.rounds[0], bj.simulate(bj.Oracle(), bandit, 10, KEY).rounds[0])
    limited = bj.simulate(bj.Oracle(), bandit, 100, KEY, checkpoints=[10, 100], max_rounds=77)
    assert limited.rounds.tolist() == [77, 77] and limited.truncated.all()
    with pytest.warns(RuntimeWarning, match="2 of 2"):
        assert np.isnan(bj.regret(limited, bandit)).all()
    assert (bj.pseudo_regret(limited, bandit) == 0).all()


def test_a_limit_that_is_reached_with_the_budget_is_no_truncation():
    run = bj.simulate(Always(arm=0), certain(10, 10), 10, KEY, max_rounds=10)
    assert run.rounds[0] == 10 and not run.truncated[0]
    run = bj.simulate(Always(arm=0), certain(10, 10), 10, KEY, max_rounds=9)
    assert run.rounds[0] == 9 and run.truncated[0] and run.reward[0] == 9


def test_the_default_limit_leaves_ordinary_runs_alone():
    """test_reference tests other policies and families."""
    assert not batch(
        bj.Uniform(), INSTANCES["bernoulli"], 50, keys(200), checkpoints=[0.5, 5, 50]
    ).truncated.any()


@pytest.mark.slow
def test_a_million_pulls_in_tenths():
    """Relative error below 1e-6 against exact arithmetic: here it is 0, give or take the last
    float32.

    A sum of float32s would be off by more than 1%. Ten million tenths, without a game:
    test_fixed_point.
    """
    budget = 10**5 if jax.default_backend() == "cpu" else 10**4  # one run alone is slow on a GPU
    run = bj.simulate(Always(arm=0), certain(7, 1), budget, KEY)
    assert run.rounds[0] == 10 * budget and run.cost[0] == budget
    np.testing.assert_allclose(run.reward[0], 7 * budget, rtol=1e-7)


@pytest.mark.slow
def test_random_tenths_are_counted_right():
    """A million random pulls: what was earned and paid against the same draws, summed as integers
    on the host.
    """
    rng = np.random.default_rng(0)
    bandit = bj.Multinomial(
        reward_probs=rng.dirichlet(np.ones(11), 2), cost_probs=rng.dirichlet(np.ones(11), 2)
    )
    rounds = 10**6 if jax.default_backend() == "cpu" else 10**4
    run = bj.simulate(Always(arm=1), bandit, 10**6, KEY, max_rounds=rounds)
    words = bj.random.key_words(KEY)
    draw = jax.jit(jax.vmap(lambda t: bandit.pull(bj.random.derive(words, t, 2 + 1), 1)))
    reward, cost = (
        np.rint(np.asarray(x) * 10).astype(int).sum() / 10 for x in draw(jnp.arange(rounds))
    )
    np.testing.assert_allclose([run.reward[0], run.cost[0]], [reward, cost], rtol=1e-7)


@pytest.mark.slow
def test_common_random_numbers_across_policies():
    """Policies that pull the same arms earn the same: the policy has no part in the bandit's random
    numbers.
    """
    bandit = INSTANCES["bernoulli"]
    oracle = batch(bj.Oracle(), bandit, 30, keys(20))
    assert_same_bits(batch(Always(arm=int(bandit.best_arm)), bandit, 30, keys(20)), oracle)
    assert len(np.unique(oracle.rounds)) > 5, "the runs differ"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bernoulli", "beta"])
def test_the_nth_pull_of_an_arm_is_the_same_for_all_policies(family):
    bandit = INSTANCES[family]
    one, other = (
        bj.trace(policy, bandit, 60, KEY, rounds=90) for policy in (bj.BTS(), bj.Uniform())
    )
    assert (one.arm[:20] != other.arm[:20]).any()
    for arm in range(len(bandit.reward_mean)):
        first, second = (
            np.stack([trace.reward, trace.cost])[
                :, np.asarray((trace.arm == arm) & (trace.remaining > 0))
            ]
            for trace in (one, other)
        )
        common = min(first.shape[1], second.shape[1])
        assert common > 1
        np.testing.assert_array_equal(first[:, :common], second[:, :common])


PAIRS = {("bts", "kube"): 0.3, ("bts", "omega-star-ucb"): 0.35, ("kube", "omega-star-ucb"): 0.45}


@pytest.mark.slow
def test_common_random_numbers_make_comparisons_sharper():
    """The variance of the difference of two pseudo-regrets, divided by that of independent runs:
    0.25, 0.19 and 0.37.

    It would be 0.95, 0.95 and 0.86 if the random numbers of a pull belonged to the round. With
    2,000 runs, a ratio has a standard error below 0.02.
    """
    bandit = bj.Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])
    regret = {
        name: bj.pseudo_regret(
            bj.simulate_batch(ALL_POLICIES[name](), bandit, 1000, keys(2000)), bandit
        )[:, 0]
        for name in set(sum(PAIRS, ()))
    }
    for (one, other), most in PAIRS.items():
        found = (regret[one] - regret[other]).var() / (regret[one].var() + regret[other].var())
        assert found < most, (one, other, found)


def test_feedback_outside_the_unit_interval_is_never_counted():
    @chex.dataclass(frozen=True)
    class Broken:
        cost_mean: ArrayLike
        reward_mean: ArrayLike

        def pull(self, key, arm):
            return self.reward_mean[arm], self.cost_mean[arm]

    def play(reward, cost):
        bandit = Broken(cost_mean=jnp.full(2, cost), reward_mean=jnp.full(2, reward))
        return bj.simulate(Always(arm=1), bandit, 5, KEY, max_rounds=10)

    pairs = jnp.array(
        [(0.5, 1.5), (1.5, 0.5), (-0.1, 0.5), (np.nan, 0.5), (0.5, np.nan), (0.5, 0.5)]
    ).T
    runs = jax.vmap(play)(*pairs)
    for amount in (runs.reward, runs.cost):
        assert np.isnan(amount[:, 0]).tolist() == [True] * 5 + [False]
    with pytest.raises(ValueError, match="cost_scale"):
        play(0.5, 1.5)


@pytest.mark.slow
def test_bad_budgets_under_vmap_are_nan_and_end():
    budgets = jnp.array([10.0, -1.0, 0.0, np.nan, np.inf, 1e30])
    runs = jax.vmap(lambda budget: bj.simulate(bj.Uniform(), INSTANCES["bernoulli"], budget, KEY))(
        budgets
    )
    assert runs.cost[0] == 10 and np.isnan(runs.reward[1:]).all() and np.isnan(runs.cost[1:]).all()
    early = jax.vmap(
        lambda budget: bj.simulate(
            bj.Uniform(), INSTANCES["bernoulli"], budget, KEY, checkpoints=[5.0]
        )
    )(jnp.array([10.0, -1.0, 2.0]))
    assert early.cost[0] == 5 and np.isnan(early.cost[1:]).all(), (
        "a bad budget, and a checkpoint above the budget"
    )


@pytest.mark.slow
def test_fractional_budgets_are_the_same_under_jit():
    """These numbers are not float32 numbers. They still have their exact value, eagerly, under jit
    and as a checkpoint.
    """

    def play(budget):
        return bj.simulate(Always(arm=0), certain(10, 1), budget, KEY)

    compiled = jax.jit(play)
    for budget in (0.21, 0.3, 1.1, 12.2, 12.3, 99.99, 1000.1, 4321.9):
        run = play(budget)
        tenths = int(budget * 10 + 1e-9)
        assert run.reward[0] == tenths and run.rounds[0] == tenths + (
            tenths < budget * 10 - 1e-9
        ), budget
        assert_same_bits(compiled(budget), run)
        assert_same_bits(jax.tree.map(lambda x: x[0], jax.vmap(play)(jnp.array([budget, 1]))), run)
        assert_same_bits(
            bj.simulate(Always(arm=0), certain(10, 1), 5000, KEY, checkpoints=[budget]), run
        )
        assert run.cost[0] <= run.budget[0]


def test_close_checkpoints_are_told_apart_or_taken_as_one():
    run = bj.simulate(Always(arm=0), certain(10, 10), 101, KEY, checkpoints=[100.000001, 100.0])
    assert run.rounds.tolist() == [100, 100]
    run = bj.simulate(Always(arm=0), certain(10, 10), 101, KEY, checkpoints=[100.0001, 100.0])
    assert run.rounds.tolist() == [101, 100]


def test_checkpoints_may_be_traced():
    run = jax.jit(
        lambda b: bj.simulate(Always(arm=0), certain(10, 10), b, KEY, checkpoints=[b / 2, b])
    )(10.0)
    assert run.rounds.tolist() == [5, 10]


@pytest.mark.slow
def test_what_cannot_go_on_ends_and_is_nan():
    bandit = INSTANCES["bernoulli"]
    play = jax.vmap(
        lambda a: bj.simulate(bj.BTS(reward=bj.posteriors.Beta(alpha=a)), bandit, 10, KEY)
    )
    shapes = play(jnp.array([1.0, np.inf]))
    assert shapes.cost[0] == 10 and np.isnan(shapes.cost[1]), (
        "a prior for which nothing is ever accepted"
    )
    for arm in (-1, -5, 7):
        with pytest.warns(
            RuntimeWarning, match=f"policy Always .*round 1, the policy chose arm {arm}"
        ):
            run = bj.simulate(Always(arm=arm), bandit, 10, KEY)
        outcome = [run.reward[0], run.cost[0], bj.pseudo_regret(run, bandit)[0]]
        assert np.isnan(outcome).all(), "pulls an arm that does not exist"
    arms = jax.vmap(
        lambda p: bj.simulate(
            Always(arm=0), bj.Bernoulli(reward=p, cost=jnp.array([0.5, 0.5])), 5, KEY
        )
    )(jnp.array([[0.5, 0.5], [1.7, 0.5], [np.nan, 0.5]]))
    assert arms.cost[0] == 5 and np.isnan(arms.cost[1:]).all()


def test_states_must_keep_their_types():
    @chex.dataclass(frozen=True)
    class Careless(Always):
        def init(self, problem):
            return {"sum": 0}

        def update(self, state, arm, reward, cost, key):
            return {"sum": state["sum"] + 0.6}

    with pytest.raises(
        ValueError,
        match=r"update returns has float32\[\] in \['sum'\], but that "
        r"of init has int32",
    ):
        bj.simulate(Careless(arm=0), INSTANCES["bernoulli"], 5, KEY)

    @chex.dataclass(frozen=True)
    class Forgetful(Always):
        def init(self, problem):
            return {"a": 0.0, "b": 0.0}

        def update(self, state, arm, reward, cost, key):
            return {"a": reward}

    with pytest.raises(ValueError, match="another structure than that of init"):
        bj.simulate(Forgetful(arm=0), INSTANCES["bernoulli"], 5, KEY)
    with pytest.raises(ValueError, match=r"float32\[\]: return the index of an arm"):
        bj.simulate(Always(arm=1.0), INSTANCES["bernoulli"], 5, KEY)


def test_a_policy_that_returns_an_arm_alone_is_told_what_to_return():
    @chex.dataclass(frozen=True)
    class ArmAlone(Always):
        def __call__(self, state, key):
            return jnp.int32(self.arm)

    @chex.dataclass(frozen=True)
    class CostAlone:
        cost_mean: ArrayLike
        reward_mean: ArrayLike

        def pull(self, key, arm):
            return self.reward_mean[arm], self.cost_mean[arm], 0

    for play in (bj.simulate, lambda *arguments: bj.simulate_batch(*arguments[:3], keys(3))):
        with pytest.raises(
            ValueError,
            match=r"policy ArmAlone: __call__ returns one "
            r"value.*\(arm, state\)",
        ):
            play(ArmAlone(arm=0), INSTANCES["bernoulli"], 5, KEY)
    with pytest.raises(
        ValueError,
        match=r"bandit CostAlone: pull returns a tuple of "
        r"3.*\(reward, cost\)",
    ):
        bj.simulate(
            Always(arm=0), CostAlone(cost_mean=jnp.ones(2), reward_mean=jnp.ones(2)), 5, KEY
        )


def test_bandits_of_plain_numbers_work():
    @chex.dataclass(frozen=True)
    class Plain:
        cost_mean: ArrayLike
        reward_mean: ArrayLike

        def pull(self, key, arm):
            return 1.0, 1

    run = bj.simulate(Always(arm=1), Plain(cost_mean=np.ones(2), reward_mean=np.ones(2)), 5, KEY)
    assert run.reward[0] == 5


def test_an_empty_batch_is_empty():
    assert batch(bj.Uniform(), INSTANCES["bernoulli"], 10, keys(3)[:0]).pulls.shape == (0, 1, 5)


def test_regret_by_hand():
    bandit = bj.Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9])
    run = bj.Run(
        budget=np.float32([10]),
        reward=np.float32([12]),
        cost=np.float32([10]),
        rounds=np.int32([20]),
        pulls=np.int32([[12, 8]]),
        truncated=np.array([False]),
    )
    np.testing.assert_allclose(bj.regret(run, bandit), [20 - 12])
    np.testing.assert_allclose(bj.pseudo_regret(run, bandit), [8 * 0.9 * 1.0], rtol=1e-6)
    for measure in (bj.regret, bj.pseudo_regret):
        assert measure(run, bandit).dtype == np.float64
        np.testing.assert_allclose(jax.jit(measure)(run, bandit), measure(run, bandit), rtol=1e-5)


@pytest.mark.slow
def test_regret_of_batches_of_runs_and_bandits():
    bandits = jax.vmap(lambda key: bj.Bernoulli.random(key, 4))(keys(3, seed=1))
    play = jax.vmap(
        jax.vmap(
            lambda bandit, key: bj.simulate(bj.Uniform(), bandit, 20, key, checkpoints=[5, 20]),
            (None, 0),
        ),
        (0, None),
    )
    runs = play(bandits, keys(6))
    for measure in (bj.regret, bj.pseudo_regret):
        values = measure(runs, bandits)
        assert values.shape == (3, 6, 2)
        one = jax.tree.map(lambda x: x[1], bandits)
        np.testing.assert_array_equal(values[1], measure(jax.tree.map(lambda x: x[1], runs), one))
    with pytest.raises(ValueError, match="does not fit"):
        bj.regret(jax.tree.map(lambda x: x[0], runs), bandits)
    for measure in (bj.regret, bj.pseudo_regret):
        with pytest.raises(
            ValueError,
            match=rf"run is a Bernoulli.*{measure.__name__}\(run, "
            rf"bandit\)",
        ):
            measure(bandits, runs)  # type: ignore


BANDIT = INSTANCES["bernoulli"]


@dataclass(frozen=True)
class PlainPolicy:
    scale: float = 1.0
    init = __call__ = update = lambda self, *_: 0


class NoUpdate:
    init = __call__ = lambda self, *_: 0


@chex.dataclass(frozen=True)
class Curious(Always):
    requires = ("everything",)


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((bj.BTS, BANDIT, 10, KEY), {}, "policy = .*an instance"),
        ((bj.KUBE(scale=[1.0, 2.0]), BANDIT, 10, KEY), {}, "scale of shape .*a batch of policies"),
        ((PlainPolicy(), BANDIT, 10, KEY), {}, "not a pytree of numbers"),
        ((NoUpdate(), BANDIT, 10, KEY), {}, "has no update"),
        (
            (Curious(arm=0), BANDIT, 10, KEY),
            {},
            "requires 'everything', which Problem does not have",
        ),
        ((bj.BTS(), BANDIT, 1e-9, KEY), {}, "budget = 1e-09"),
        ((bj.BTS(), BANDIT, 10, KEY), {"max_rounds": [3]}, "max_rounds has shape"),
        (("bts", BANDIT, 10, KEY), {}, "policy = 'bts'"),
        ((bj.BTS(), [0.5, 0.5], 10, KEY), {}, "bandit = "),
        (
            (
                bj.BTS(),
                bj.Bernoulli(reward=np.full((3, 2), 0.5), cost=np.full((3, 2), 0.5)),
                10,
                KEY,
            ),
            {},
            "batch of bandits",
        ),
        ((bj.BTS(), BANDIT, 0, KEY), {}, "budget = 0"),
        ((bj.BTS(), BANDIT, -3.5, KEY), {}, "budget = -3.5"),
        ((bj.BTS(), BANDIT, np.nan, KEY), {}, "budget = nan"),
        ((bj.BTS(), BANDIT, np.inf, KEY), {}, "budget = inf"),
        ((bj.BTS(), BANDIT, 2**31, KEY), {}, "budget = 2147483648"),
        ((bj.BTS(), BANDIT, "all", KEY), {}, "budget = 'all'"),
        ((bj.BTS(), BANDIT, "100", KEY), {}, "budget = '100'"),
        ((bj.BTS(), BANDIT, Decimal(100), KEY), {}, "budget = Decimal"),
        ((bj.BTS(), BANDIT, 10, KEY), {"checkpoints": ["5"]}, "checkpoints = .'5'"),
        ((bj.BTS(), BANDIT, 10, KEY), {"max_rounds": "5"}, "max_rounds = '5'"),
        ((bj.BTS(), BANDIT, [10, 20], KEY), {}, "vmap"),
        ((bj.BTS(), BANDIT, 10, None), {}, "key = None"),
        ((bj.BTS(), BANDIT, 10, 0), {}, "key = 0"),
        ((bj.BTS(), BANDIT, 10, jax.random.PRNGKey(0)), {}, "old-style"),
        ((bj.BTS(), BANDIT, 10, jax.random.split(KEY, 3)), {}, "batch of keys"),
        (
            (bj.BTS(), BANDIT, 10, KEY),
            {"checkpoints": [5, 11]},
            r"checkpoints\[1\] = 11.*up to the "
            r"budget, 10",
        ),
        ((bj.BTS(), BANDIT, 10, KEY), {"checkpoints": [0]}, r"checkpoints\[0\] = 0"),
        ((bj.BTS(), BANDIT, 10, KEY), {"checkpoints": [np.nan]}, r"checkpoints\[0\] = nan"),
        ((bj.BTS(), BANDIT, 10, KEY), {"checkpoints": []}, "checkpoints has shape"),
        ((bj.BTS(), BANDIT, 10, KEY), {"checkpoints": 5}, "checkpoints has shape"),
        ((bj.BTS(), BANDIT, 10, KEY), {"max_rounds": 0}, "max_rounds = 0"),
        ((bj.BTS(), BANDIT, 10, KEY), {"max_rounds": 1.5}, "max_rounds = 1.5"),
    ],
)
def test_bad_input_is_refused_by_name(arguments, options, named):
    with pytest.raises(ValueError, match=named):
        bj.simulate(*arguments, **options)
