"""The policies' rules: by hand, and step by step against the reference in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

import bts_jax as bj
from bts_jax import Problem
from bts_jax.policies.index import ArmStatistics, choose
from bts_jax.sums import Sum

KEY = jax.random.key(0)


def statistics(keep, pulls, rewards, costs):
    pulls, rewards, costs = jnp.array(pulls, jnp.int32), jnp.array(rewards, jnp.float32), jnp.array(costs, jnp.float32)
    return ArmStatistics(pulls=pulls, totals=Sum.of(jnp.stack([rewards, costs], 1)), rounds=pulls.sum(),
                         kept=keep(pulls.astype(jnp.float32), rewards / pulls, costs / pulls))


def test_choose():
    inf = np.inf
    for index, pulls, arm in [
        ([1.0, 3.0, 2.0], [1, 1, 1], 1),
        ([3.0, 3.0, 2.0], [5, 1, 1], 0),  # a tie: the lowest number
        ([1.0, 3.0, 2.0], [1, 1, 0], 2),  # never pulled: first
        ([9.0, inf, inf], [1, 5, 4], 2),  # infinite: the least pulled of them
        ([inf, 9.0, inf], [4, 1, 4], 0),
        ([inf, inf, 9.0], [0, 0, 1], 0),
        ([inf, 5.0, 9.0], [3, 1, 0], 2),
        ([-2.0, -1.0, -3.0], [3, 1, 2], 1),
        ([-1.0, 0.0, 1e38], [9, 9, 9], 2),
        ([np.nan, 5.0, 9.0], [3, 1, 2], 0),  # undefined: as infinite
    ]:
        assert int(choose(jnp.array(index), jnp.array(pulls))) == arm, (index, pulls)


def test_kube_by_hand():
    """Arm 0: r̄ = 1/2, c̄ = 1/4, n = 4; arm 1: no cost seen; arm 2: n = 1. Next round: t = 8."""
    state = statistics(bj.KUBE.keep, [4, 2, 1], [2, 1, 0], [1, 0, 0.5])
    index = bj.KUBE().index(state)
    np.testing.assert_allclose(index[0], (0.5 + np.sqrt(2 * np.log(8) / 4)) / 0.25, rtol=1e-6)
    assert index[1] == np.inf
    np.testing.assert_allclose(index[2], (0 + np.sqrt(2 * np.log(8))) / 0.5, rtol=1e-6)
    assert int(bj.KUBE()(state, KEY)[0]) == 1
    greedy = bj.KUBE(scale=0.0).index(state)
    assert greedy[0] == 2.0 and greedy[2] == 0.0


def test_ucb_bv1_by_hand():
    """λ = 1/2; 1000 pulls so far. e = √(ln 1000 / n): 0.0840 at n = 979, above λ at n = 20 and n = 1."""
    policy = bj.UCBBV1()
    state = policy.init(Problem(num_arms=3, min_cost=jnp.float32(0.5)))._replace(
        arms=statistics(policy.keep, [979, 20, 1], [400, 10, 1], [600, 10, 1]))
    index = policy.index(state)
    e = np.sqrt(np.log(1000) / 979)
    np.testing.assert_allclose(index[0], 400 / 600 + 3 * e / (0.5 - e), rtol=1e-5)
    assert index[1] == np.inf and index[2] == np.inf, "λ ≤ e"
    assert int(policy(state, KEY)[0]) == 2
    costless = state._replace(arms=statistics(policy.keep, [979, 10, 11], [1, 1, 1], [0, 1, 1]))
    assert policy.index(costless)[0] == np.inf, "c̄ = 0"
    given = bj.UCBBV1(min_cost=0.25).init(Problem(num_arms=3, min_cost=jnp.float32(0.5)))
    assert given.min_cost == 0.25, "a λ that is given counts"


def test_pd_bwk_by_hand():
    """B = 1000, K = 3: ν = 0.25 ln 3000 = 2.0016. Arm 0 plain; arm 1's reward is clamped at 1, arm 2's cost at 0."""
    policy = bj.PDBwK()
    start = policy.init(Problem(num_arms=3, budget=jnp.float32(1000)))
    state = start._replace(arms=statistics(partial(policy.index, start.nu), [400, 50, 4], [100, 45, 1], [200, 40, 2]))
    nu = 0.25 * np.log(3000)
    np.testing.assert_allclose(state.nu, nu, rtol=1e-6)
    index = state.arms.kept
    reward = 0.25 + np.sqrt(nu * 0.25 / 400) + nu / 400
    cost = 0.5 - np.sqrt(nu * 0.5 / 400) - nu / 400
    np.testing.assert_allclose(index[0], reward / cost, rtol=1e-6)
    np.testing.assert_allclose(index[1], 1 / (0.8 - np.sqrt(nu * 0.8 / 50) - nu / 50), rtol=1e-6)
    assert np.sqrt(nu * 0.5 / 4) + nu / 4 > 0.5 and index[2] == np.inf
    assert int(policy(state, KEY)[0]) == 2


@pytest.mark.parametrize("name", ["kube", "ucb-bv1", "pd-bwk"])
def test_indices_are_infinite_before_the_first_pull_and_arms_go_in_order(name):
    policy = bj.POLICIES[name]()
    told = {"min_cost": jnp.float32(0.9), "budget": jnp.float32(100)}
    state = policy.init(Problem(num_arms=4, **{fact: told[fact] for fact in policy.told}))
    for expected in range(4):
        arm, state = policy(state, KEY)
        assert int(arm) == expected
        state = policy.update(state, arm, jnp.float32(1), jnp.float32(1), KEY)


def test_epsilon_first_explores_in_turn_then_commits_for_good():
    policy = bj.EpsilonFirst(epsilon=0.5)
    state = policy.init(Problem(num_arms=3, budget=jnp.float32(10)))
    rewards = [0.2, 0.9, 0.4]
    arms = []
    for _ in range(20):
        arm, state = policy(state, KEY)
        arms.append(int(arm))
        state = policy.update(state, arm, jnp.float32(rewards[int(arm)]), jnp.float32(0.5), KEY)
        if len(arms) == 12:  # after the commitment, the best arm turns bad: estimates are frozen
            rewards = [1.0, 0.0, 1.0]
    assert arms == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0] + [1] * 10, "10 pulls at 0.5 spend half of the budget of 10"


@pytest.mark.parametrize(("epsilon", "budget"), [(0.1, 50), (0.3, 50), (0.15, 100), (0.6, 50), (0.7, 30), (0.35, 1000)])
def test_epsilon_first_explores_no_longer_than_it_should(epsilon, budget):
    run = bj.simulate(bj.EpsilonFirst(epsilon=epsilon), bj.Bernoulli(reward=[1, 0], cost=[1, 1]), budget, KEY)
    explored = round(epsilon * budget)
    assert int(run.pulls[0, 1]) == explored // 2


def test_epsilon_first_pulls_every_arm_before_it_commits():
    policy = bj.EpsilonFirst(epsilon=0.01)
    state = policy.init(Problem(num_arms=4, budget=jnp.float32(10)))
    arms = []
    for _ in range(6):
        arm, state = policy(state, KEY)
        arms.append(int(arm))
        state = policy.update(state, arm, jnp.float32(arm == 2), jnp.float32(1), KEY)
    assert arms == [0, 1, 2, 3, 2, 2]


@pytest.mark.parametrize("name", ["kube", "ucb-bv1", "pd-bwk", "epsilon-first"])
def test_decisions_agree_with_the_reference_step_by_step(name):
    """The same feedback to both, 600 rounds. The arm must be the reference's, or as good to float32: an index within
    1e-5 of the largest."""
    rng = np.random.default_rng(1)
    arms, budget = 6, 120
    means = rng.uniform(0.1, 0.9, (2, arms))
    problem = {"budget": budget, "min_cost": means[1].min()}
    policy = bj.POLICIES[name]()
    state = policy.init(Problem(num_arms=arms, **{fact: jnp.float32(problem[fact]) for fact in policy.told}))
    decide, update = jax.jit(policy.__call__), jax.jit(policy.update)
    theirs, seen = reference.POLICIES[name](), reference.Seen(1, arms)
    index = {"kube": reference.kube_index, "ucb-bv1": reference.ucb_bv1_index, "pd-bwk": reference.pd_bwk_index}
    same = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(600):
            arm, state = decide(state, KEY)
            arm, other = int(arm), int(theirs(seen, problem, rng)[0])
            if arm != other:
                values = index[name](seen, problem)[0]
                assert np.isfinite(values).all() and values[arm] > values[other] * (1 - 1e-5)
            same += arm == other
            reward, cost = rng.choice([0, 0.25, 0.5, 1], 2, p=[0.3, 0.2, 0.2, 0.3])
            reward, cost = reward * (rng.random() < means[0, arm]), cost * (rng.random() < means[1, arm])
            state = update(state, arm, jnp.float32(reward), jnp.float32(cost), KEY)
            seen.n[0, arm] += 1
            seen.reward[0, arm] += reward
            seen.cost[0, arm] += cost
            seen.spent += cost
            seen.t += 1
    assert same > 590


def test_bts_chooses_arms_with_the_posterior_probability_of_being_best():
    """From fixed posteriors, 20 rounds in a row, against brute force with NumPy's Beta; and one round's arm tells nothing of
    the next one's, though draws that were not needed are kept. 6.5 standard errors for each of 30 numbers: 3·10⁻⁹."""
    successes, pulls = np.array([[3, 0, 20, 500, 1], [2, 1, 25, 640, 1]]), np.array([7, 1, 40, 1000, 2])
    runs, rounds = 10_000, 20
    policy = bj.BTS(reward_beta=0.5)
    start = policy.init(Problem(num_arms=5))._replace(
        reward_successes=jnp.array(successes[0], jnp.int32), cost_successes=jnp.array(successes[1], jnp.int32),
        pulls=jnp.array(pulls, jnp.int32))

    def decide(state, key):
        def call(carry):
            _, state, count = carry
            arm, state = policy(state, jax.random.fold_in(key, count))
            return arm, state, count + 1

        arm, state, calls = jax.lax.while_loop(lambda carry: carry[0] < 0, call, (jnp.int32(-1), state, 0))
        return state, (arm, calls, (state.spare > 0).mean(), state.drawn.max())

    play = jax.jit(jax.vmap(lambda key: jax.lax.scan(decide, start, jax.random.split(key, rounds))[1]))
    arm, calls, spare, drawn = (np.asarray(x) for x in play(jax.random.split(KEY, runs)))
    assert (drawn == 0).all(), "no draw counts for two rounds"
    assert 1 < calls.mean() < 1.2 and 0.2 < spare.mean() < 0.95, "few calls decide nothing, for draws are kept"
    rng = np.random.default_rng(5)
    size = 10 * runs * rounds
    ratio = np.stack([
        rng.beta(s + 1, n - s + 0.5, size) / rng.beta(c + 1, n - c + 1, size)
        for s, c, n in zip(*successes, pulls, strict=True)
    ])
    brute = np.bincount(ratio.argmax(0), minlength=5) / size
    ours = np.bincount(arm.ravel(), minlength=5) / arm.size
    assert (np.abs(ours - brute) < 6.5 * np.sqrt(brute * (1 - brute) * 1.1 / arm.size)).all(), (ours, brute)
    pairs = np.bincount(5 * arm[:, :-1].ravel() + arm[:, 1:].ravel(), minlength=25) / (runs * (rounds - 1))
    chance = np.outer(brute, brute).ravel()
    # Neighbouring pairs share a round: their number varies at most three times as much as if they did not.
    assert (np.abs(pairs - chance) < 6.5 * np.sqrt(3 * chance / (runs * (rounds - 1)))).all(), pairs - chance


@pytest.mark.parametrize("name", [name for name, kind in bj.POLICIES.items() if getattr(kind, "ignores_no_pull", False)])
def test_policies_that_promise_to_ignore_arm_minus_one_do(name):
    policy = bj.POLICIES[name]()
    told = {fact: jnp.float32(0.5) for fact in policy.told}
    state = policy.init(Problem(num_arms=4, **told))
    for i, arm in enumerate([0, 1, 2, 3, 1, 1]):
        state = policy.update(state, jnp.int32(arm), jnp.float32(0.5), jnp.float32(0.25), jax.random.key(i))
    same = policy.update(state, jnp.int32(-1), jnp.float32(1), jnp.float32(1), KEY)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(same), strict=True):
        np.testing.assert_array_equal(before, after)


def test_bts_counts_trials():
    policy = bj.BTS()
    state = policy.init(Problem(num_arms=3))
    state = policy.update(state, jnp.int32(1), jnp.float32(1), jnp.float32(0), KEY)
    assert state.reward_successes.tolist() == [0, 1, 0] and state.cost_successes.tolist() == [0, 0, 0]
    assert state.pulls.tolist() == [0, 1, 0]
    kept = policy.update(state._replace(spare=jnp.array([3.0, 2.0, 1.0])), jnp.int32(1), jnp.float32(1), jnp.float32(0), KEY)
    assert kept.spare.tolist() == [3, 0, 1], "the draw of an arm that has learnt is of no more use"
    update = jax.vmap(lambda key: policy.update(state, jnp.int32(2), jnp.float32(0.3), jnp.float32(0.8), key))
    many = update(jax.random.split(KEY, 20_000))
    reward, cost = np.asarray(many.reward_successes)[:, 2], np.asarray(many.cost_successes)[:, 2]
    for share, p in ((reward.mean(), 0.3), (cost.mean(), 0.8), ((reward & cost).mean(), 0.24)):
        assert abs(share - p) < 6 * np.sqrt(p * (1 - p) / 20_000)


def test_uniform_is_uniform():
    """6 standard errors for each of 7 arms; and the words that would favour some arms decide nothing."""
    policy = bj.Uniform()
    state = policy.init(Problem(num_arms=7))
    arm = np.asarray(jax.vmap(lambda key: policy(state, key)[0])(jax.random.split(KEY, 70_000)))
    assert (np.abs(np.bincount(arm, minlength=7) / 70_000 - 1 / 7) < 6 * np.sqrt(6 / 49 / 70_000)).all()


def test_policies_know_only_what_they_are_told():
    class Nosy:
        told = ("budget",)

        def init(self, problem):
            assert problem.budget is not None and problem.num_arms == 5
            assert problem.min_cost is None and problem.cost_mean is None and problem.best_arm is None
            return jnp.int32(0)

        def __call__(self, state, key):
            return 0, state

        def update(self, state, arm, reward, cost, key):
            return state

    jax.tree_util.register_static(Nosy)
    bj.simulate(Nosy(), bj.Bernoulli.random(KEY, 5), 5, KEY)


@pytest.mark.parametrize(("make", "named"), [
    (lambda: bj.EpsilonFirst(epsilon=0.0), "epsilon = 0"),
    (lambda: bj.EpsilonFirst(epsilon=1.0), "epsilon = 1"),
    (lambda: bj.EpsilonFirst(epsilon=np.nan), "epsilon = nan"),
    (lambda: bj.EpsilonFirst(epsilon=jnp.array([0.1, 2.0])), r"epsilon\[1\] = 2"),
    (lambda: bj.EpsilonFirst(epsilon="a lot"), "epsilon = 'a lot'"),
    (lambda: bj.UCBBV1(min_cost=0.0), "min_cost = 0"),
    (lambda: bj.UCBBV1(min_cost=-1), "min_cost = -1"),
    (lambda: bj.BTS(reward_alpha=0.1), "reward_alpha = 0.1"),
    (lambda: bj.BTS(cost_beta=np.inf), "cost_beta = inf"),
    (lambda: bj.KUBE(scale=-1), "scale = -1"),
    (lambda: bj.PDBwK(scale=np.nan), "scale = nan"),
])
def test_bad_hyperparameters_are_refused_by_name(make, named):
    with pytest.raises(ValueError, match=named):
        make()
