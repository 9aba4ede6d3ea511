"""Traces: by hand on deterministic arms, and bit for bit the runs of `simulate`."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, Constant, assert_same_bits, keys, take
from jax.typing import ArrayLike

import bts_jax as bj
from bts_jax import one_run
from bts_jax.arguments import of_run
from bts_jax.contract import side_info
from bts_jax.engine.fixed_point import UNIT, Sum, quantize
from bts_jax.trace import _trace as trace_on
from bts_jax.trace import why_nan

KEY = jax.random.key(0)
BERNOULLI = INSTANCES["bernoulli"]
# Test_reference.py compiles `simulate` with these, too.
BUDGET, CHECKPOINTS, ROUNDS = 60, [3, 20.5, 60], 300
CARE = pytest.mark.with_care  # where an operation that rounds otherwise would change bits


@chex.dataclass(frozen=True)
class InTurn:
    """The arms in turn. Its state: how often it has decided, and what it has learnt of rewards."""

    beside: ArrayLike = 0  # how far it misses the arm

    def init(self, problem):
        return {"decided": jnp.int32(0), "earned": jnp.zeros(problem.num_arms)}

    def __call__(self, state, key):
        return state["decided"] % state["earned"].shape[0] + self.beside, {
            **state,
            "decided": state["decided"] + 1,
        }

    def update(self, state, arm, reward, cost, key):
        return {**state, "earned": state["earned"].at[arm].add(reward)}


def certain(reward, cost):
    """Arms that always pay this reward, 0 or 1, and cost this."""
    return bj.Scaled(bj.Bernoulli(reward=reward, cost=np.ones(len(cost))), scale=0, shift=cost)


def test_a_trace_by_hand():
    """Costs 0.5, 0.25 and 1 in turn: 2.5 are paid after five pulls, and the sixth costs more than
    the 0.5 that are left.
    """
    bandit = certain([1, 0, 1], [0.5, 0.25, 1])
    run = bj.trace(InTurn(), bandit, 3, KEY, rounds=8, record=True)
    assert run.arm.tolist() == [0, 1, 2, 0, 1, 2, -1, -1]
    assert run.reward.tolist() == [1, 0, 1, 1, 0, 0, 0, 0], (
        "the last pull is too dear: it earns nothing"
    )
    assert run.cost.tolist() == [0.5, 0.25, 1, 0.5, 0.25, 0, 0, 0]
    assert run.remaining.tolist() == [2.5, 2.25, 1.25, 0.75, 0.5, 0.5, 0.5, 0.5]
    assert run.played.tolist() == [True] * 6 + [False] * 2 and run.length == 6 and not run.truncated
    # What each decision was made from; then the state that the run ended with.
    assert run.recorded["decided"].tolist() == [0, 1, 2, 3, 4, 5, 6, 6]
    assert run.recorded["earned"].tolist() == [
        [0, 0, 0],
        [1, 0, 0],
        [1, 0, 0],
        [1, 0, 1],
        [2, 0, 1],
        [2, 0, 1],
        [2, 0, 2],
        [2, 0, 2],
    ]
    assert (run.arm.dtype, run.reward.dtype, run.cost.dtype, run.length.dtype) == (
        jnp.int32,
        *[jnp.float32] * 2,
        jnp.int32,
    )


@pytest.mark.slow
def test_the_end_by_hand():
    bandit = certain([1, 1], [0.1, 0.3])

    def play(**options):
        return take(bj.trace(InTurn(), bandit, key=KEY, **options), ...)

    exact = play(budget=0.8)  # 0.1 + 0.3 + 0.1 + 0.3, in spite of binary fractions
    assert exact.arm.shape == (616,), (
        "the limit of rounds of simulate, (2b + 200) / 0.1 with all in multiples of 0.3"
    )
    assert (
        exact.length == 4
        and exact.remaining[-1] == 0
        and exact.reward.sum() == 4
        and not exact.truncated
    )
    assert exact.recorded is None
    cut = play(budget=0.8, rounds=3)
    assert cut.length == 3 and cut.played.all() and cut.truncated
    assert_same_bits(cut.arm, exact.arm[:3])
    assert np.asarray(cut.remaining) == pytest.approx([0.7, 0.4, 0.3], abs=1e-7)


def totals(trace, checkpoint, arms=5):
    """Reward, cost, rounds and pulls of a trace at a checkpoint, by the rules, in whole quanta."""
    amounts = np.stack([quantize(trace.reward, np), quantize(trace.cost, np)]).astype(np.int64)[
        :, : int(trace.length)
    ]
    earned, paid = np.cumsum(amounts, axis=1)
    goal = round(checkpoint * UNIT)
    rounds = min(int(np.searchsorted(paid, goal)) + 1, int(trace.length))
    # The last pull of the trace, whose amounts are 0.
    too_dear = paid[-1] < goal and not trace.truncated
    counted = rounds - 1 if too_dear or paid[rounds - 1] > goal else rounds
    reward, cost = (int(total[counted - 1]) if counted else 0 for total in (earned, paid))
    return reward, cost, rounds, np.bincount(trace.arm[:counted], minlength=arms).tolist()


def assert_agrees(trace, run):
    """At each checkpoint of the run; amounts to the last quantum."""
    trace, run = take(trace, ...), take(run, ...)
    budgets = np.asarray(run.budget, np.float64).round(4)
    for i, checkpoint in enumerate(budgets):
        reward, cost, rounds, pulls = totals(trace, checkpoint, run.pulls.shape[-1])
        assert (rounds, pulls) == (run.rounds[i], run.pulls[i].tolist())
        for total, found in ((reward, run.reward[i]), (cost, run.cost[i])):
            assert Sum(*map(np.int32, divmod(total, UNIT))).value(xp=np) == found
    assert trace.length == run.rounds[-1] and trace.truncated == run.truncated[-1]
    paid = np.asarray(quantize(trace.cost, np), np.int64).sum()
    left = round(budgets[-1] * UNIT) - paid
    assert trace.remaining[-1] == Sum(*map(np.int32, divmod(int(left), UNIT))).value(xp=np)


@pytest.mark.slow
@CARE
def test_batches_have_the_bits_of_one():
    """Over keys and a hyperparameter, under jit; with runs that are cut off by `rounds`, and a
    record that uses the policy.
    """

    def with_prior(alpha):
        return bj.BTS(reward=bj.posteriors.Beta(alpha=alpha))

    def play(alpha, key):
        policy = with_prior(alpha)
        return bj.trace(
            policy,
            BERNOULLI,
            10,
            key,
            rounds=25,
            record=lambda state: policy.reward.shapes(state.reward)[0],
        )

    alphas, many = np.float32([1, 4]), keys(3)
    traces = take(jax.jit(jax.vmap(jax.vmap(play, (None, 0)), (0, None)))(alphas, many), ...)
    assert (
        traces.arm.shape == (2, 3, 25)
        and traces.recorded.shape == (2, 3, 25, 5)
        and traces.length.shape == (2, 3)
    )
    assert (
        len(set(traces.length.ravel().tolist())) > 1
        and traces.truncated.any()
        and not traces.truncated.all()
    )
    assert_same_bits(take(traces, (1, 2)), play(alphas[1], many[2]))
    for i in range(2):
        for j in range(3):
            trace = take(traces, (i, j))
            assert_agrees(
                trace, bj.simulate(with_prior(alphas[i]), BERNOULLI, 10, many[j], max_rounds=25)
            )
            # The posterior counts the rewards before each round: Bernoulli arms make each a success
            # or none.
            earned = np.zeros((26, 5))
            for t in range(int(trace.length)):
                earned[t + 1 :, trace.arm[t]] += trace.reward[t]
            assert (trace.recorded == alphas[i] + earned[:25]).all()


# One policy of each kind: prices that are updated, normal draws, a schedule. An index:
# `test_other_arms`. Draws that may be rejected: `test_batches_have_the_bits_of_one`, which uses the
# fully optimized programs of users, as the first one here.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("pd-bwk", marks=CARE), "gaussian-bts", "epsilon-first"]
)
def test_a_policy_plays_the_run_of_simulate(name):
    policy = bj.POLICIES[name]()
    run = bj.simulate(policy, BERNOULLI, BUDGET, KEY, checkpoints=CHECKPOINTS)
    assert_agrees(bj.trace(policy, BERNOULLI, BUDGET, KEY, rounds=ROUNDS), run)


def test_some_policies_are_told_the_budget():
    assert {name for name, policy in bj.POLICIES.items() if "budget" in side_info(policy)} >= {
        "epsilon-first",
        "pd-bwk",
    }


@pytest.mark.slow
def test_other_arms():
    """Amounts that are no whole numbers, a last pull that exceeds the budget, and arms that draw by
    rejection.
    """
    bandit = INSTANCES["beta"]
    play = jax.jit(
        jax.vmap(
            lambda key: (
                bj.trace(bj.KUBE(), bandit, 9.6, key, rounds=200),
                bj.simulate(bj.KUBE(), bandit, 9.6, key, checkpoints=[2, 9.6]),
            )
        )
    )
    traces, runs = take(play(keys(6)), ...)
    for i in range(6):
        assert_agrees(take(traces, i), take(runs, i))
    assert (traces.cost >= 0).all() and (np.diff(traces.remaining) <= 0).all()


@pytest.mark.slow
def test_a_state_may_hold_keys():
    @chex.dataclass(frozen=True)
    class Keyed(InTurn):
        def init(self, problem):
            return {**InTurn.init(self, problem), "key": jax.random.key(7)}

    run = bj.trace(Keyed(), certain([1, 0], [1, 1]), 2, KEY, rounds=3, record=True)
    assert (run.recorded["key"] == jax.random.key(7)).all() and run.recorded["key"].shape == (3,)


@chex.dataclass(frozen=True)
class Broken(Constant):
    """Arms that pay other costs than their means promise."""


@pytest.mark.slow
def test_a_run_that_breaks_the_rules_is_nan_and_says_why():
    bandit = Broken(
        reward_mean=np.float32([1, 1, 1]), cost_mean=np.float32([0.125, 0.25, 0.75]), factor=2.0
    )
    with pytest.warns(
        RuntimeWarning,
        match=r"InTurn on bandit Broken.* NaN.*round 3, arm 2 gave "
        r"the cost 1.5",
    ):
        run = take(bj.trace(InTurn(), bandit, 5, KEY, rounds=64), ...)
    assert run.length == 2 and run.arm[:4].tolist() == [0, 1, -1, -1] and not run.truncated
    for values, first in (
        (run.reward, [1, 1]),
        (run.cost, [0.25, 0.5]),
        (run.remaining, [4.75, 4.25]),
    ):
        assert values[:2].tolist() == first and np.isnan(values[2:]).all()
    budgets = np.float32([-1.0, np.nan, 0.5])
    runs = take(
        jax.jit(jax.vmap(lambda budget: bj.trace(InTurn(), bandit, budget, KEY, rounds=4)))(
            budgets
        ),
        ...,
    )
    assert (
        np.isnan(runs.remaining).all(1).tolist() == [True, True, False] and not runs.truncated.any()
    )


@pytest.mark.slow
def test_simulate_says_why_a_run_is_nan():
    bandit = Broken(reward_mean=np.float32([1, -1, 1]), cost_mean=np.float32([0.25, 0.5, 0.5]))
    with pytest.warns(RuntimeWarning, match="InTurn.*round 2, arm 1 gave the reward -1"):
        run = bj.simulate(InTurn(), bandit, 5, KEY)
    assert np.isnan(run.reward[0])
    with pytest.warns(
        RuntimeWarning, match="2 of 2 runs.*run 0.*round 2, arm 1 gave the reward -1"
    ):
        bj.simulate_batch(InTurn(), bandit, 5, keys(2))
    # No warning: these are errors in the tests.
    jax.vmap(lambda key: bj.simulate(InTurn(), bandit, 5, key))(keys(2))
    jax.jit(lambda key: bj.simulate(InTurn(), bandit, 5, key))(KEY)
    with pytest.warns(RuntimeWarning, match="round 1, the policy chose arm 5.*0 to 2"):
        bj.simulate(InTurn(beside=5), bandit, 5, KEY)


@pytest.mark.slow
def test_draws_that_are_never_accepted_are_named():
    policy = jax.tree.map(lambda _: np.float32(np.inf), bj.BTS())
    assert "65,536 times" in why_nan(policy, BERNOULLI, 10, KEY, 0)


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((bj.BTS(), BERNOULLI, "100", KEY), {}, "budget = '100'"),
        ((bj.BTS(), BERNOULLI, 10, KEY), {"rounds": 0}, "rounds = 0"),
        ((bj.BTS(), BERNOULLI, 10, KEY), {"rounds": 2.5}, "rounds = 2.5"),
        ((bj.BTS(), BERNOULLI, 10, KEY), {"record": "pulls"}, "record = 'pulls'.*function"),
        ((bj.BTS(), BERNOULLI, 10**7, KEY), {}, "rounds = None.*give rounds"),
        ((bj.BTS(), BERNOULLI, 10, jax.random.PRNGKey(0)), {}, "old-style"),
    ],
)
def test_bad_input_is_refused_by_name(arguments, options, named):
    with pytest.raises(ValueError, match=named):
        bj.trace(*arguments, **options)


def test_traced_budgets_need_rounds():
    with pytest.raises(ValueError, match=r"rounds = None.*give a whole number"):
        jax.vmap(lambda budget: bj.trace(bj.KUBE(), BERNOULLI, budget, KEY))(jnp.array([5.0, 6.0]))


@pytest.mark.slow
def test_programs_for_gpus_agree_as_well():
    """Programs for a GPU, played on any device. Their steps have two halves."""
    trace = trace_on("gpu", 64, False, of_run(bj.BTS(), BERNOULLI, 10, None, 64), KEY)[0]
    assert_agrees(
        trace, one_run._simulate("gpu", of_run(bj.BTS(), BERNOULLI, 10, [4, 10], None), KEY)
    )
