"""The policies for several resources: by hand, and against slow and obvious versions in float64.

The slow versions play many runs at once. Their arrays have the runs as their first axis. A replay
of a trace is one run.

False failures: frequencies are compared at 6.5 standard errors, 8·10⁻¹¹ each under the normal
distribution, fewer than 60 of them. Mean rewards of whole runs are compared at 5 standard errors,
6·10⁻⁷ each, 6 of them. All keys and seeds are fixed.
"""

from functools import partial
from itertools import combinations, pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

import bts_jax as bj
from bts_jax import Problem
from bts_jax.policies import resources
from bts_jax.policies.index import ArmStatistics
from bts_jax.policies.thompson import Beliefs, Thompson
from bts_jax.posteriors import Beta, Gamma, MatchedBeta
from bts_jax.posteriors.beta import BetaState
from bts_jax.pytrees import pytree

KEY = jax.random.key(0)
BETA = Beta()  # the slow versions have the Bernoulli trials of the papers
FIXED, UPDATE, OURS = bj.TSFixed(BETA, BETA), bj.TSUpdate(BETA, BETA), bj.KnapsackBTS(BETA, BETA)
DRAWS, SLOW_DRAWS = 20_000, 100_000

# Three arms and two resources. 120 rounds of time, each of which costs 1/2; T/B is 120/55 for
# money.
TIMED = (
    bj.Timed(bj.Bernoulli(reward=[0.3, 0.6, 0.9], cost=[0.2, 0.5, 0.9]), horizon=2.0),
    np.array([55.0, 60.0]),
    0.5,
)
TWO = (
    bj.Bernoulli(reward=[0.3, 0.6, 0.8], cost=[[0.2, 0.7], [0.7, 0.2], [0.8, 0.8]]),
    np.array([60.0, 45.0]),
    None,
)
GAMES = {"timed": TIMED, "two": TWO}


# Slow versions


def best_mix(reward, cost, budget):
    """The best pulls [N, K] of the linear program: goes through all vertices. [N, K], [N, K, d],
    [N, d]

    A vertex has d columns of arms or of slacks. A tie goes to the first vertex, in lexicographic
    order.
    """
    num_arms, d = cost.shape[1:]
    # [N, K + d, d].
    columns = np.concatenate(
        [cost / budget[:, None], np.broadcast_to(np.eye(d), (len(cost), d, d))], 1
    )
    # A pull of another size, undone below.
    columns = columns / np.maximum(columns.max(-1, keepdims=True), 1e-300)
    sizes = np.concatenate([(cost / budget[:, None]).max(-1), np.ones((len(cost), d))], 1)
    worth = np.concatenate([reward, np.zeros((len(cost), d))], 1) / np.maximum(sizes, 1e-300)
    best, pulls = np.full(len(cost), -1.0), np.zeros((len(cost), num_arms + d))
    for chosen in map(list, combinations(range(num_arms + d), d)):
        matrix = columns[:, chosen].transpose(0, 2, 1)
        regular = (np.abs(np.linalg.det(matrix)) > 1e-10) & (sizes[:, chosen] > 0).all(-1)
        level = np.linalg.solve(
            np.where(regular[:, None, None], matrix, np.eye(d)), np.ones((len(cost), d, 1))
        )[..., 0]
        value = (level * worth[:, chosen]).sum(-1)
        better = regular & (level >= -1e-9).all(-1) & (value > best * (1 + 1e-9) + 1e-300)
        best = np.where(better, value, best)
        vertex = np.zeros_like(pulls)
        vertex[:, chosen] = np.maximum(level, 0) / np.where(
            sizes[:, chosen] > 0, sizes[:, chosen], 1
        )
        pulls = np.where(better[:, None], vertex, pulls)
    return pulls[:, :num_arms]


def scipy_mix(reward, cost, budget):
    """The optimum of the linear program, and what an arm earns more than its resources are worth,
    at most 0. [], [K]
    """
    unit = budget.min()  # of pulls, so that HiGHS has no tiny numbers
    found = linprog(-reward, A_ub=(cost / budget * unit).T, b_ub=np.ones(len(budget)))
    assert found.status == 0, found.message
    return -found.fun * unit, reward + (cost / budget * unit) @ found.ineqlin.marginals


def pick(rng, weights):
    """An index with probability proportional to its weight, for each run. [N, K] -> [N]"""
    reached = np.cumsum(weights, 1)
    return (reached < rng.random((len(weights), 1)) * reached[:, -1:]).sum(1)


class Slow:
    """What all slow versions know: budgets [d], the time of a pull or None, and the sums of what
    was seen.
    """

    def __init__(self, runs, num_arms, budget, time):
        self.budget, self.time, self.each = np.asarray(budget, float), time, np.arange(runs)
        self.n = np.zeros((runs, num_arms))
        self.rewards = np.zeros((runs, num_arms))
        self.costs = np.zeros((runs, num_arms, len(budget)))
        self.start()

    def start(self):
        pass

    def least(self):
        """The smallest budget, that of time in rounds."""
        rounds = [] if self.time is None else [self.budget[-1] / self.time]
        return min([*(self.budget if self.time is None else self.budget[:-1]), *rounds])

    def update(self, arm, reward, cost):
        self.n[self.each, arm] += 1
        self.rewards[self.each, arm] += reward
        self.costs[self.each, arm] += cost


class SlowPosterior(Slow):
    """Beta posteriors with uniform priors. Costs and rewards are 0 or 1."""

    def draw(self, rng):
        reward = rng.beta(1 + self.rewards, 1 + self.n - self.rewards)
        cost = rng.beta(1 + self.costs, 1 + np.maximum(self.n[..., None] - self.costs, 0))
        if self.time is not None:
            cost[..., -1] = self.time
        return reward, cost


class SlowTSFixed(SlowPosterior):
    def start(self):
        self.left = np.tile(self.budget, (len(self.n), 1))

    def decide(self, rng):
        return pick(rng, best_mix(*self.draw(rng), self.left))


class SlowTSUpdate(SlowTSFixed):
    def update(self, arm, reward, cost):
        super().update(arm, reward, cost)
        self.left = np.maximum(self.left - cost, 1e-6)


class SlowBounds(Slow):
    """Confidence bounds with the radius √(νx/n) + ν/n, ν = scale · log(dKB)."""

    scale = 0.25

    def bounds(self):
        n = np.maximum(self.n, 1)
        nu = self.scale * np.log(self.costs[0].size * self.least())
        reward, cost, m = self.rewards / n, self.costs / n[..., None], n[..., None]
        upper = np.minimum(reward + np.sqrt(nu * reward / n) + nu / n, 1)
        lower = np.maximum(cost - np.sqrt(nu * cost / m) - nu / m, 0)
        if self.time is not None:
            lower[..., -1] = self.time
        return upper, lower

    def fewest(self, among):
        """The arm with the fewest pulls among some. [N, K] -> [N]"""
        return np.where(among, self.n, np.inf).argmin(1)


class SlowPrimalDualBwK(SlowBounds):
    def start(self):
        self.prices = np.ones((len(self.n), len(self.budget)))

    def index(self):
        """Infinite if an arm was never pulled, or if its costs are worth nothing."""
        upper, lower = self.bounds()
        price = (self.prices[:, None] * lower / self.budget).sum(-1)
        return np.where((price > 0) & (self.n > 0), upper / np.where(price > 0, price, 1), np.inf)

    def decide(self, rng):
        index = self.index()
        return np.where(np.isinf(index).any(1), self.fewest(np.isinf(index)), index.argmax(1))

    def update(self, arm, reward, cost):
        lower, least = self.bounds()[1][self.each, arm], self.least()
        factors = (1 + np.sqrt(np.log(len(self.budget)) / least)) ** (least * lower / self.budget)
        # Not in the first pulls.
        self.prices *= np.where(self.n[self.each, arm, None] > 0, factors, 1)
        super().update(arm, reward, cost)


class SlowUCBBwK(SlowBounds):
    shrink = 0.0

    def shrunk(self):
        keep = np.full(len(self.budget), 1 - self.shrink)
        if self.time is not None:
            keep[-1] = 1
        return keep * self.budget

    def explored(self):
        """Arms that come before the linear program: never pulled, or with bounds of 0 on all costs.
        [N, K]
        """
        return (self.n == 0) | (self.bounds()[1] == 0).all(-1)

    def decide(self, rng):
        first, (upper, lower) = self.explored(), self.bounds()
        mix = best_mix(upper, lower, np.tile(self.shrunk(), (len(upper), 1)))
        return np.where(first.any(1), self.fewest(first), pick(rng, mix))


class SlowLagrangeBwK(Slow):
    """EXP3.P (Bubeck and Cesa-Bianchi 2012, Figure 3.2 and Theorem 3.3) against Hedge, with payoffs
    scaled to [0, 1].
    """

    scale = 1.0

    def start(self):
        self.arm_scores, self.resource_scores = (
            np.zeros(self.n.shape),
            np.zeros((len(self.n), len(self.budget))),
        )
        self.rounds, k = self.budget[-1] / self.time, self.n.shape[1]
        self.gamma = min(1.05 * np.sqrt(k * np.log(k) / self.rounds), 1)
        self.eta = self.scale * 0.95 * np.sqrt(np.log(k) / (self.rounds * k))
        self.beta = np.sqrt(np.log(k * self.rounds) / (self.rounds * k))  # δ = 1/T
        self.rate = self.scale * np.sqrt(8 * np.log(len(self.budget)) / self.rounds)

    @staticmethod
    def softmax(scores):
        weights = np.exp(scores - scores.max(1, keepdims=True))
        return weights / weights.sum(1, keepdims=True)

    def chances(self):
        """The probabilities of the arms and of the resources. [N, K], [N, d]"""
        arms = (1 - self.gamma) * self.softmax(self.arm_scores) + self.gamma / self.n.shape[1]
        return arms, self.softmax(self.resource_scores)

    def decide(self, rng):
        arms, prices = self.chances()
        self.resource = pick(rng, prices)
        return pick(rng, arms)

    def update(self, arm, reward, cost):
        probs, _ = self.chances()
        lagrangian = np.reshape(reward, (-1, 1)) + 1 - self.rounds / self.budget * cost  # [N, d]
        least, most = 1 - max((self.rounds / self.budget[:-1]).max(), 1), 2
        payoffs = (lagrangian - least) / (most - least)
        assert (payoffs >= -1e-12).all() and (payoffs <= 1 + 1e-12).all()
        pulled = np.arange(self.n.shape[1]) == np.reshape(arm, (-1, 1))
        gains = np.where(pulled, payoffs[self.each, self.resource][:, None], 0)
        self.arm_scores += self.eta * (gains + self.beta) / probs
        self.resource_scores -= self.rate * payoffs
        super().update(arm, reward, cost)


SLOW = {
    bj.KnapsackBTS: SlowTSUpdate,
    bj.PrimalDualBwK: SlowPrimalDualBwK,
    bj.UCBBwK: SlowUCBBwK,
    bj.TSFixed: SlowTSFixed,
    bj.TSUpdate: SlowTSUpdate,
    bj.LagrangeBwK: SlowLagrangeBwK,
}


def slowly(policy, runs, num_arms, budget, time):
    """The slow version of a policy, with its hyperparameters."""
    kind = SLOW[type(policy)]
    changed = {
        name: float(getattr(policy, name)) for name in ("scale", "shrink") if hasattr(kind, name)
    }
    return type(kind.__name__, (kind,), changed)(runs, num_arms, budget, time)


def slow_rewards(slow, bandit, rng):
    """The total reward of each run, by the rules of the game. [N]"""
    reward_mean, cost_mean = (
        np.asarray(mean, np.float64) for mean in (bandit.reward_mean, bandit.cost_mean)
    )
    left, earned = np.tile(slow.budget, (len(slow.n), 1)), np.zeros(len(slow.n))
    alive = np.ones(len(slow.n), bool)
    while alive.any():
        arm = slow.decide(rng)
        reward = (rng.random(len(arm)) < reward_mean[arm]).astype(float)
        cost = (rng.random((len(arm), len(slow.budget))) < cost_mean[arm]).astype(float)
        if slow.time is not None:
            cost[:, -1] = slow.time
        affordable = (cost <= left).all(1)
        counts = alive & affordable
        earned += np.where(counts, reward, 0)
        left -= np.where(counts[:, None], cost, 0)
        alive = counts & (left > 0).all(1)
        slow.update(arm, reward, cost)
    return earned


# Replays


def traced(policy, game):
    """A run of at most 256 rounds: rounds of arm, reward, cost and state before the round; and a
    slow version of one run.
    """
    bandit, budget, time = GAMES[game]
    run = jax.tree.map(np.asarray, bj.trace(policy, bandit, budget, KEY, rounds=256, record=True))
    length = int(run.length)
    assert 60 < length < 256 and (run.remaining[length - 1] < 1).any(), (
        "the run ended because a budget was used up"
    )
    rounds = [
        (
            run.arm[t],
            run.reward[t],
            run.cost[t].astype(np.float64),
            jax.tree.map(lambda x, t=t: x[t], run.recorded),
        )
        for t in range(length)
    ]
    return rounds, slowly(policy, 1, 3, budget, time)


@jax.jit
def bounds_of(state):
    return state.bounds.reward, state.bounds.cost


def same_counts(beliefs, slow):
    known = len(beliefs.costs)
    for state in (beliefs.reward, *beliefs.costs):
        np.testing.assert_array_equal(state.pulls, slow.n[0])
    np.testing.assert_array_equal(beliefs.reward.successes, slow.rewards[0])
    np.testing.assert_array_equal(
        np.stack([state.successes for state in beliefs.costs], -1), slow.costs[0, :, :known]
    )
    assert known == len(slow.budget) - (slow.time is not None), "the time of a pull is not learned"


def same_prices(prices, slow):
    """The price weights λ_j, which sum to 1, and the price of one pull that costs 1 of resource j
    alone: λ_j B / B_j.
    """
    weights = slow.prices[0] / slow.prices[0].sum()
    found = np.exp(prices.logs.astype(np.float64))
    np.testing.assert_allclose(found / found.sum(), weights, rtol=1e-4)
    charged = jax.jit(resources.Prices.of)(prices, jnp.eye(len(weights)))
    np.testing.assert_allclose(charged, weights * slow.budget.min() / slow.budget, rtol=1e-4)


def test_small_costs_are_taken_from_large_budgets():
    """100,000 costs of 0.0002 from a budget of 4,000, whose last bit is 0.0002: without
    compensation, nothing would be left out or twice as much."""
    cost = np.float32(0.0002)
    start = resources.Left.all(jnp.float32(4000))
    left = jax.jit(
        lambda start: jax.lax.fori_loop(0, 100_000, lambda _, left: left.after(cost), start)
    )(start)
    assert left.amount == pytest.approx(4000 - 100_000 * float(cost), rel=1e-7)


@pytest.mark.slow
def test_thompson_lp_counts_and_budgets_in_a_replay():
    """TSFixed has the same counts, and `test_thompson_lp_by_hand` has its budgets."""
    rounds, slow = traced(bj.TSUpdate(BETA, BETA), "two")
    spent = np.zeros(2)
    for arm, reward, cost, state in rounds:
        same_counts(state.beliefs, slow)
        np.testing.assert_allclose(state.budget.amount, slow.budget - spent, rtol=1e-6)
        np.testing.assert_allclose(slow.left[0], slow.budget - spent, rtol=1e-12)
        slow.update(arm, reward, cost)
        spent += cost


@pytest.mark.parametrize("scale", [0.25, 0.03])
@pytest.mark.parametrize("game", GAMES)
@pytest.mark.slow
def test_primal_dual_bwk_pulls_the_largest_index_in_a_replay(game, scale):
    rounds, slow = traced(bj.PrimalDualBwK(scale=scale), game)
    clear = finite = 0
    for arm, reward, cost, state in rounds:
        upper, lower = bounds_of(state)
        np.testing.assert_allclose(upper, slow.bounds()[0][0], rtol=1e-5)
        np.testing.assert_allclose(lower, slow.bounds()[1][0], rtol=1e-4, atol=1e-5)
        same_prices(state.prices, slow)
        index = slow.index()[0]
        second, first = np.sort(index)[-2:]
        finite += np.isfinite(first)
        if np.isinf(first):
            assert arm == slow.decide(None)[0], "the fewest pulls among those that are explored"
        elif first > second * (1 + 1e-4):
            clear += 1
            assert arm == index.argmax()
        else:
            assert index[arm] > first * (1 - 1e-4)
        slow.update(arm, reward, cost)
    assert clear > 0.6 * finite and finite > 0.3 * len(rounds)


@pytest.mark.slow
@pytest.mark.parametrize("scale, shrink", [(0.25, 0.0), (0.03, 0.1)])
@pytest.mark.parametrize("game", GAMES)
def test_ucb_bwk_pulls_arms_of_an_optimal_mix_in_a_replay(game, scale, shrink):
    """An arm of an optimal mix earns just what its resources are worth, whichever optimal prices
    are found.
    """
    rounds, slow = traced(bj.UCBBwK(scale=scale, shrink=shrink), game)
    mixed = 0
    for arm, reward, cost, state in rounds:
        upper, lower = slow.bounds()
        found = bounds_of(state)
        np.testing.assert_allclose(found[0], upper[0], rtol=1e-5)
        np.testing.assert_allclose(found[1], lower[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.budget, slow.shrunk(), rtol=1e-6)
        first = slow.explored()
        if first.any():
            assert arm == slow.fewest(first)[0]
        else:
            _, excess = scipy_mix(upper[0], lower[0], slow.shrunk())
            assert abs(excess[arm]) < 2e-5 and (excess < 1e-9).all()
            mixed += excess.min() < -1e-2  # some arm is not optimal: the test says something
        slow.update(arm, reward, cost)
    assert mixed > 0.3 * len(rounds)


@pytest.mark.slow
def test_lagrange_bwk_probabilities_and_scores_in_a_replay():
    rounds, slow = traced(bj.LagrangeBwK(scale=3.0), "timed")
    for now, after in pairwise(rounds):
        arm, reward, cost, state = now
        np.testing.assert_allclose(state.arm_scores, slow.arm_scores[0], rtol=1e-4)
        np.testing.assert_allclose(state.resource_scores, slow.resource_scores[0], rtol=1e-4)
        np.testing.assert_allclose(after[3].probs, slow.chances()[0][0], rtol=1e-4)
        # A random choice, recorded after the decision.
        slow.resource = np.array([after[3].resource])
        slow.update(arm, reward, cost)
    assert {int(state.resource) for *_, state in rounds} == {0, 1}
    assert np.ptp(slow.chances()[0][0]) > 0.05, "the probabilities changed"


# Frequencies


@jax.jit
def arms_of(policy, state):
    """The arms of 20,000 decisions from one state."""
    return jax.vmap(lambda key: policy(state, key)[0])(jax.random.split(KEY, DRAWS))


def frequencies(arm, num_arms=3):
    return np.bincount(np.asarray(arm), minlength=num_arms) / len(arm)


def allowed(chance, slow_draws=SLOW_DRAWS):
    """6.5 standard errors of the difference of two frequencies; at most 0.026, so a change of 0.05
    in a frequency is found.
    """
    return 6.5 * np.sqrt(chance * (1 - chance) * (1 / DRAWS + 1 / slow_draws)) + 1e-12


@partial(jax.jit, static_argnums=(1, 2))
def initial(policy, num_arms, num_resources, time, budget):
    """The state of a policy before the first round."""
    return policy.init(
        Problem(num_arms=num_arms, num_resources=num_resources, time_cost=time, budget=budget)
    )


@jax.jit
def updated(policy, *arguments):
    return policy.update(*arguments, KEY)


PULLS, REWARDS, COSTS = np.array([6, 9, 4]), np.array([2, 6, 3]), np.array([[2, 4], [5, 3], [3, 3]])


def counted(state, rewards, costs, pulls):
    """The state of a policy whose posteriors have these counts. [K], [K, d], [K]"""
    pulls = np.asarray(pulls, np.int32)
    costs = tuple(BetaState(row, pulls) for row in np.transpose(costs).astype(np.int32))
    return state._replace(
        beliefs=Beliefs(BetaState(np.asarray(rewards, np.int32), pulls), costs, state.beliefs.time)
    )


def posterior(policy, budget, time):
    """A posterior of three arms in both versions: the state, and a slow version with many copies of
    it.
    """
    unknown = 2 - (time is not None)
    slow = slowly(policy, SLOW_DRAWS, 3, budget, time)
    slow.n += PULLS
    slow.rewards += REWARDS
    slow.costs += COSTS if time is None else np.stack([COSTS[:, 0], PULLS], -1)
    return counted(
        initial(policy, 3, 2, time, np.float32(budget)), REWARDS, COSTS[:, :unknown], PULLS
    ), slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy, time",
    [(FIXED, None), (UPDATE, 0.5), (OURS, None), (OURS, 0.5)],
    ids=["fixed", "update", "ours", "ours, timed"],
)
def test_thompson_lp_draws_arms_with_the_right_frequencies(policy, time):
    """The budgets matter: if the first is halved, the frequencies differ by more than twice what is
    allowed.
    """
    rng, left = np.random.default_rng(2), np.array([7.0, 10.5])
    state, slow = posterior(policy, [40.0, 60.0], time)
    state, slow.left = (
        state._replace(budget=resources.Left.all(np.float32(left))),
        np.tile(left, (SLOW_DRAWS, 1)),
    )
    expected = frequencies(slow.decide(rng))
    assert (np.abs(frequencies(arms_of(policy, state)) - expected) < allowed(expected)).all()
    slow.left[:, 0] /= 2
    assert (np.abs(frequencies(slow.decide(rng)) - expected) > 2 * allowed(expected)).any()


@pytest.mark.slow
def test_hyperparameters_are_the_priors_of_knapsack_bts():
    """Priors count like successes and failures that were seen. 6.5 standard errors."""
    state, slow = posterior(bj.KnapsackBTS(BETA, BETA), [40.0, 60.0], None)
    # Beta(3, 4) for rewards is Beta(1, 1) after 5 more pulls with 2 successes; Beta(6, 1) for costs
    # has 5.
    slow.n += 5
    slow.rewards += 2
    slow.costs += 5
    expected = frequencies(slow.decide(np.random.default_rng(3)))
    policy = bj.KnapsackBTS(reward=Beta(3, 4), cost=Beta(6, 1))
    assert (np.abs(frequencies(arms_of(policy, state)) - expected) < allowed(expected)).all()


def test_rewards_and_costs_become_successes_independently():
    """8 outcomes of a pull with reward 0.3 and costs 0.6 and 0.25: 6.5 standard errors, at most
    0.021.
    """
    policy = bj.TSFixed(BETA, BETA)
    beliefs = policy.believe(Problem(num_arms=3, num_resources=2))
    amounts = jnp.float32(0.3), jnp.array([0.6, 0.25])
    record = jax.jit(jax.vmap(lambda key: policy.record_pull(beliefs, jnp.int32(1), *amounts, key)))
    after = record(jax.random.split(KEY, DRAWS))
    assert (np.asarray(after.reward.pulls) == [0, 1, 0]).all()
    rewards = np.asarray(after.reward.successes)  # [runs, K]
    costs = np.stack([state.successes for state in after.costs], -1)  # [runs, K, d]
    assert not rewards[:, [0, 2]].any() and not costs[:, [0, 2]].any()
    outcome = rewards[:, 1] * 4 + costs[:, 1] @ [2, 1]
    chance = np.array([r * a * b for r in (0.7, 0.3) for a in (0.4, 0.6) for b in (0.75, 0.25)])
    assert (np.abs(frequencies(outcome, 8) - chance) < allowed(chance, np.inf)).all()


def test_lagrange_bwk_draws_arms_and_resources_independently():
    """6 pairs of arm and resource from one state: 6.5 standard errors, at most 0.023."""
    policy, budget = bj.LagrangeBwK(), np.array([30.0, 50.0])
    slow = slowly(policy, 1, 3, budget, 0.5)
    slow.arm_scores[:], slow.resource_scores[:] = [0.5, -0.5, 1.0], [-0.25, 0.5]
    arms, prices = slow.chances()
    state = initial(policy, 3, 2, 0.5, np.float32(budget))
    state = state._replace(
        arm_scores=np.float32([0.5, -0.5, 1.0]), resource_scores=np.float32([-0.25, 0.5])
    )
    arm, after = jax.jit(jax.vmap(lambda key: policy(state, key)))(jax.random.split(KEY, DRAWS))
    np.testing.assert_allclose(np.asarray(after.probs)[0], arms[0], rtol=1e-5)
    chance = (arms[0][:, None] * prices[0]).ravel()
    assert (
        np.abs(frequencies(np.asarray(arm) * 2 + np.asarray(after.resource), 6) - chance)
        < allowed(chance, np.inf)
    ).all()


# By hand


def seen(policy, pulls, rewards, costs, budget, time=None):
    """The state of a policy with confidence bounds after so many pulls of each arm, with these
    totals.
    """
    pulls, rewards, costs = np.int32(pulls), np.float32(rewards), np.float32(costs)
    start = initial(policy, *costs.shape, time, np.float32(budget))
    arms = ArmStatistics(
        pulls=pulls, totals=(np.float32(rewards), np.float32(costs)), rounds=pulls.sum()
    )
    return start._replace(bounds=start.bounds._replace(arms=arms))


def certain(policy, reward, cost, budget, time=None):
    """The state of a Thompson sampler that knows the expected rewards and costs, up to 10⁻³."""
    many, reward, cost = 4_000_000, np.array(reward), np.array(cost)
    start = initial(policy, len(reward), len(budget), time, np.float32(budget))
    return counted(start, *(np.asarray(x) * many for x in (reward, cost, np.ones(len(reward)))))


def test_bounds_by_hand():
    """Two arms, budgets 25 and 100: ν = 0.25 ln(2 · 2 · 25) = 1.1513. The time of a pull is known,
    not a bound.
    """
    nu = 0.25 * np.log(100)
    policy = bj.PrimalDualBwK(scale=0.25)
    state = seen(policy, [16, 4], [4, 3], [[8, 4], [1, 4]], [25, 100])
    np.testing.assert_allclose(state.bounds.nu, nu, rtol=1e-6)
    upper, lower = bounds_of(state)
    # Arm 0: 1/4 + √(ν/64) + ν/16 = 0.456; arm 1: 3/4 + 0.75 is cut at 1.
    np.testing.assert_allclose(upper, [0.25 + np.sqrt(nu / 64) + nu / 16, 1], rtol=1e-6)
    # Arm 0: 1/2 − √(ν/32) − ν/16 = 0.238 and 1/4 − 0.206 = 0.044; arm 1: 1/4 − 0.556 is cut at 0, 1
    # − √(ν/4) − ν/4 = 0.176.
    expected = [
        [0.5 - np.sqrt(nu / 32) - nu / 16, 0.25 - np.sqrt(nu / 64) - nu / 16],
        [0, 1 - np.sqrt(nu / 4) - nu / 4],
    ]
    np.testing.assert_allclose(lower, expected, rtol=1e-4)
    _, lower = bounds_of(seen(policy, [16, 4], [4, 3], [[8, 16], [1, 4]], [25, 100], time=1.0))
    np.testing.assert_allclose(lower, [[expected[0][0], 1], [0, 1]], rtol=1e-4)


def test_primal_dual_bwk_by_hand():
    """scale = 0: the bounds are the averages. Budgets 50 and 100, equal prices: a pull costs c_1/50
    + c_2/100, times 25.

    Arm 0: r̄ = 1/2, c̄ = (1/2, 1/4): 0.5 / (0.25 + 0.0625) = 1.6. Arm 1: r̄ = 1/2, c̄ = (1/4, 1):
    0.5 / (0.125 + 0.25) = 1.33. So arm 0 is pulled, and its averages raise the prices: the first by
    1/2 · ln(1 + ε), the second by 1/2 · 1/4 of it. When the first is three times as expensive, arm
    1 is better: 0.5 / (0.1875 + 0.125) = 1.6 to 0.5 / (0.375 + 0.03125) = 1.23.
    """
    policy = bj.PrimalDualBwK(scale=0.0)
    state = seen(policy, [4, 4], [2, 2], [[2, 1], [1, 4]], [50, 100])
    assert (arms_of(policy, state) == 0).all()
    after = updated(policy, state, 0, np.float32(1), np.float32([1, 1]))
    unit = np.log1p(np.sqrt(np.log(2) / 50))
    np.testing.assert_allclose(after.prices.logs, [unit / 2, unit / 8], rtol=1e-5)
    assert after.bounds.arms.pulls.tolist() == [5, 4]
    np.testing.assert_allclose(bounds_of(after)[1], [[0.6, 0.4], [0.25, 1]], rtol=1e-6)
    expensive = state._replace(prices=state.prices._replace(logs=np.log(np.float32([3, 1]))))
    charged = jax.jit(resources.Prices.of)(
        expensive.prices, list(np.transpose(bounds_of(state)[1]))
    )
    np.testing.assert_allclose(charged, [0.40625, 0.3125], rtol=1e-6)
    assert (arms_of(policy, expensive) == 1).all()
    unseen = seen(policy, [4, 0], [4, 0], [[1, 1], [0, 0]], [50, 100])
    assert (arms_of(policy, unseen) == 1).all(), "each arm once first"


ALONE, BOTH = [100.0, 50.0], [50.0, 100.0]  # budgets of the next tests


def test_ucb_bwk_by_hand():
    """scale = 0: rewards 1/4 and 3/4, costs (1/4, 1) and (1, 1).

    Budgets (50, 100): x + y = 100 and x/4 + y = 50, so that x = 66.7 and y = 33.3. Arm 0 has
    probability 2/3. Budgets (100, 50): arm 1 alone. With shrink = 1/2 and budgets (50, 50), without
    time: x/4 + y ≤ 25, x + y ≤ 25: arm 1 alone. If the second is time: x/4 + y ≤ 25, x + y ≤ 50:
    2/3 again.
    """
    policy, chance = bj.UCBBwK(scale=0.0), np.array([2 / 3, 1 / 3])
    costs = [[1, 4], [4, 4]]
    mixed = frequencies(arms_of(policy, seen(policy, [4, 4], [1, 3], costs, BOTH)), 2)
    assert (np.abs(mixed - chance) < allowed(chance, np.inf)).all()
    assert (arms_of(policy, seen(policy, [4, 4], [1, 3], costs, ALONE)) == 1).all()
    half = bj.UCBBwK(scale=0.0, shrink=0.5)
    assert (arms_of(half, seen(half, [4, 4], [1, 3], costs, [50, 50])) == 1).all()
    timed = seen(half, [4, 4], [1, 3], costs, [50, 50], time=1.0)
    assert timed.budget.tolist() == [25, 50]
    mixed = frequencies(arms_of(half, timed), 2)
    assert (np.abs(mixed - chance) < allowed(chance, np.inf)).all()
    free = seen(policy, [4, 2], [4, 0], [[1, 4], [0, 0]], BOTH)
    assert (arms_of(policy, free) == 1).all(), "an arm that has cost nothing comes first"


@pytest.mark.with_care
@pytest.mark.parametrize("game", GAMES)
def test_knapsack_bts_is_ts_update_with_sharper_posteriors(game):
    bandit, budget, _ = GAMES[game]
    sharper = bj.TSUpdate(MatchedBeta(sharpness=2), Gamma(sharpness=2))
    keys = jax.random.split(KEY, 20)
    same_runs(
        *(bj.simulate_batch(policy, bandit, budget, keys) for policy in (bj.KnapsackBTS(), sharper))
    )


@pytest.mark.parametrize("policy, time", [(FIXED, None), (UPDATE, 1.0)], ids=["fixed", "update"])
def test_thompson_lp_by_hand(policy, time):
    """The arms of `test_ucb_bwk_by_hand`, known nearly for certain, and a bad one.

    A pull of (1, 1) leaves (49, 99) for TSUpdate. Budgets (10, 100): 40 pulls of arm 0 use up the
    first, and earn 10; arm 1 would earn 7.5.
    """
    chance, cost = np.array([2 / 3, 1 / 3, 0]), np.array([[0.25, 1.0], [1.0, 1.0], [1.0, 1.0]])
    state = certain(policy, [0.25, 0.75, 0.25], cost if time is None else cost[:, :1], BOTH, time)
    mixed = frequencies(arms_of(policy, state))
    assert (np.abs(mixed - chance) < allowed(chance, np.inf) + 1e-3).all()
    assert (
        arms_of(policy, state._replace(budget=resources.Left.all(np.float32(ALONE)))) == 1
    ).all()
    assert (
        arms_of(policy, state._replace(budget=resources.Left.all(np.float32([10, 100])))) == 0
    ).all()
    after = updated(policy, state, 1, np.float32(1), np.float32([1, 1]))
    assert after.budget.amount.tolist() == ([49, 99] if isinstance(policy, bj.TSUpdate) else BOTH)


def test_lagrange_bwk_by_hand():
    """Two arms, T = 100, budgets (50, 100). Arm 0 with reward 1 and costs (1, 1): L = 1 + 1 − 2 = 0
    and 1 + 1 − 1 = 1.

    L is in [−1, 2], so the payoffs are 1/3 and 2/3. The resource was the first one: arm 0 gains
    1/3. Both arms had the probability 1/2. γ = 1.05 √(2 ln 2 / 100), η = 0.95 √(ln 2 / 200), β =
    √(ln 200 / 200).
    """
    policy, decide = bj.LagrangeBwK(), jax.jit(lambda policy, state: policy(state, KEY))
    _, chosen = decide(policy, initial(policy, 2, 2, 1.0, np.float32([50, 100])))
    np.testing.assert_allclose(chosen.probs, [0.5, 0.5], rtol=1e-6)
    after = updated(
        policy, chosen._replace(resource=np.int32(0)), 0, np.float32(1), np.float32([1, 1])
    )
    eta, beta = 0.95 * np.sqrt(np.log(2) / 200), np.sqrt(np.log(200) / 200)
    np.testing.assert_allclose(
        after.arm_scores, [eta * (1 / 3 + beta) * 2, eta * beta * 2], rtol=1e-5
    )
    np.testing.assert_allclose(
        after.resource_scores, -np.sqrt(8 * np.log(2) / 100) * np.array([1 / 3, 2 / 3]), rtol=1e-5
    )
    _, then = decide(policy, after)
    gamma, odds = 1.05 * np.sqrt(2 * np.log(2) / 100), np.exp(eta * 2 / 3)
    np.testing.assert_allclose(
        np.asarray(then.probs)[0], (1 - gamma) * odds / (1 + odds) + gamma / 2, rtol=1e-5
    )


# The linear program


@jax.jit
@jax.vmap
def solved(reward, cost, budget):
    mix = resources.solve(reward, cost, budget)
    return mix, resources.gap(mix, reward, cost, budget)


def compared(reward, cost, budget):
    """Compares `solve` with SciPy on many instances. [N, K], [N, K, d], [N, d]"""
    reward, cost, budget = (np.asarray(x, np.float32) for x in (reward, cost, budget))
    (arms, pulls, prices), gaps = jax.tree.map(np.asarray, solved(reward, cost, budget))
    num_arms = reward.shape[1]
    exact = (x.astype(np.float64) for x in (reward, cost, budget, pulls))
    for r, c, b, x, i, price, gap in zip(*exact, arms, prices, gaps, strict=True):
        best, _ = scipy_mix(r, c, b)
        x, i = x[i < num_arms], i[i < num_arms]
        assert (x >= 0).all() and len(set(i)) == len(i)
        assert (x @ c[i] <= b * (1 + 1e-5)).all(), "feasible"
        np.testing.assert_allclose(r[i] @ x, best, rtol=1e-4, atol=1e-9)
        np.testing.assert_allclose(
            price @ b, best, rtol=1e-4, atol=1e-9, err_msg="no gap between the programs"
        )
        assert -1e-5 * best - 1e-9 <= gap <= 1e-3 * best + 1e-9


def instances(d, seed, number=50, num_arms=6):
    rng = np.random.default_rng([seed, d])
    return (
        rng.random((number, num_arms)),
        rng.random((number, num_arms, d)),
        rng.uniform(20, 200, (number, d)),
    )


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_the_small_linear_program_is_solved(d):
    """Of 6 arms, one earns nothing; every third budget is tiny, as at the end of a run of
    TSUpdate.
    """
    reward, cost, budget = instances(d, 0)
    reward[:, 2] = 0
    budget[::3] *= 1e-4
    compared(reward, cost, budget)


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_the_small_linear_program_is_solved_with_ties(d):
    """All numbers are multiples of 1/4, budgets are equal, and some arms earn nothing. Each arm
    costs something.
    """
    reward, cost, _ = instances(d, 1)
    reward, cost = np.round(reward * 4) / 4, np.round(cost * 4) / 4
    cost[..., 0] = np.where((cost == 0).all(-1), 0.25, cost[..., 0])
    assert (reward == 0).any()
    compared(reward, cost, np.full((50, d), 100.0))


def test_the_small_linear_program_without_rewards_has_no_pulls():
    _, cost, budget = instances(2, 2)
    compared(np.zeros((50, 6)), cost, budget)


@pytest.mark.parametrize("factor", [1e3, 1e5, 1e6])
def test_the_small_linear_program_is_solved_for_large_budgets(factor):
    reward, cost, budget = instances(2, 5)
    compared(reward, cost, budget * factor)


def test_ucb_bwk_pulls_the_arm_with_the_largest_ratio_if_one_large_budget_matters():
    """scale = 0, budgets of 10⁶ and 10⁷. Arm 0: 9/10 for 9/10. Arm 1: 1/2 for 1/10."""
    policy = bj.UCBBwK(scale=0.0)
    state = seen(policy, [10, 10], [9, 5], [[9, 1], [1, 1]], [1e6, 1e7])
    assert (arms_of(policy, state) == 1).all()


def test_the_small_linear_program_is_solved_for_small_rewards():
    """Rewards of at most 10⁻⁶, as for arms that rarely earn."""
    reward, cost, budget = instances(2, 6)
    compared(reward * 1e-6, cost, budget)


def test_the_small_linear_program_is_solved_if_it_is_degenerate():
    """An instance on which a method that takes the first of tied rows ends with a mix that exceeds
    a budget by 48%.
    """
    reward = np.array([0.5, 0.75, 0.25, 0.75, 0.25, 0.5])
    cost = np.array(
        [
            [0.5, 0.5, 1],
            [1, 0.75, 0.75],
            [0.5, 0.25, 0.75],
            [0, 0.75, 0.75],
            [0, 0.5, 0.5],
            [0.5, 0, 0.5],
        ]
    )
    compared(*(np.tile(x, (50, *[1] * x.ndim)) for x in (reward, cost, np.full(3, 100.0))))


@pytest.mark.slow
def test_the_small_linear_program_is_solved_for_uneven_budgets():
    """As near the end of a run of TSUpdate."""
    rng = np.random.default_rng(7)
    for seed in range(8, 20):
        reward, cost, budget = instances(4, seed)
        compared(reward, cost, 10 ** rng.uniform(-6, 3, budget.shape))


def test_the_slow_linear_program_is_solved():
    """`best_mix`, on which the slow versions rely, against SciPy."""
    for seed in (3, 4):
        reward, cost, budget = instances(2, seed)
        if seed == 4:
            reward, cost = (
                np.round(reward * 4) / 4,
                np.maximum(np.round(cost * 4) / 4, 0.25 * (np.arange(2) == 0)),
            )
        pulls = best_mix(reward, cost, budget)
        assert (np.einsum("nk,nkd->nd", pulls, cost) <= budget * (1 + 1e-9)).all() and (
            pulls >= 0
        ).all()
        best = [scipy_mix(*instance)[0] for instance in zip(reward, cost, budget, strict=True)]
        np.testing.assert_allclose((reward * pulls).sum(1), best, rtol=1e-8, atol=1e-9)


# Whole runs


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW, ids=lambda kind: kind.__name__)
def test_whole_runs_earn_as_much_as_slow_ones(kind):
    """The mean rewards of 400 runs each differ by less than 5 standard errors, which are less than
    7% of the mean.

    The replays above have the other game, or both; that of TSUpdate is also for TSFixed, and
    LagrangeBwK needs time.
    """
    game = "two" if kind is bj.KnapsackBTS else "timed"
    policy = kind(BETA, BETA) if issubclass(kind, Thompson) else kind()
    (bandit, budget, time), runs = GAMES[game], 400
    fast = np.asarray(
        bj.simulate_batch(policy, bandit, budget, jax.random.split(KEY, runs)).reward
    )[:, 0].astype(float)
    slow = slow_rewards(slowly(policy, runs, 3, budget, time), bandit, np.random.default_rng(5))
    error = np.sqrt((fast.var() + slow.var()) / runs)
    assert 5 * error < 0.07 * slow.mean()
    assert abs(fast.mean() - slow.mean()) < 5 * error


# One resource


def plain_and_vector():
    """Arms whose costs are numbers, and the same arms with vectors of one cost."""
    reward, cost = [0.3, 0.6, 0.9], np.array([0.2, 0.5, 0.9])
    return bj.Bernoulli(reward=reward, cost=cost), bj.Bernoulli(reward=reward, cost=cost[:, None])


def same_runs(first, second):
    for name in ("pulls", "reward", "rounds", "truncated"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    np.testing.assert_array_equal(np.ravel(first.cost), np.ravel(second.cost))


@pytree
class Quarters(bj.Bernoulli):
    """Rewards and costs of 1/4 and 3/4 in place of 0 and 1."""

    reward_mean = property(lambda self: 0.25 + 0.5 * self.reward)
    cost_mean = property(lambda self: 0.25 + 0.5 * self.cost)

    def pull(self, key, arm):
        reward, cost = bj.Bernoulli.pull(self, key, arm)
        return 0.25 + 0.5 * reward, 0.25 + 0.5 * cost


@pytest.mark.slow
@pytest.mark.with_care
@pytest.mark.parametrize("cost", [BETA, Gamma()], ids=["beta", "gamma"])
def test_with_one_resource_knapsack_bts_is_bts(cost):
    """Bit for bit: on vectors of one cost, and on costs that are numbers. Rewards and costs are not
    0 or 1.
    """
    plain, vector = (
        Quarters(reward=bandit.reward, cost=bandit.cost) for bandit in plain_and_vector()
    )
    keys = jax.random.split(KEY, 64)
    expected = bj.simulate_batch(bj.BTS(cost=cost), plain, 60, keys)
    same_runs(expected, bj.simulate_batch(bj.KnapsackBTS(BETA, cost), plain, 60, keys))
    same_runs(expected, bj.simulate_batch(bj.KnapsackBTS(BETA, cost), vector, [60], keys))


@pytest.mark.slow
@pytest.mark.with_care
def test_with_one_resource_primal_dual_bwk_is_pd_bwk():
    """Bit for bit, on costs that are numbers and on vectors of one cost."""
    (plain, vector), keys = plain_and_vector(), jax.random.split(KEY, 64)
    expected = bj.simulate_batch(bj.PDBwK(), plain, 60, keys)
    same_runs(expected, bj.simulate_batch(bj.PrimalDualBwK(scale=0.25), plain, 60, keys))
    runs = bj.simulate_batch(bj.PrimalDualBwK(scale=0.25), vector, [60], keys)
    same_runs(expected, runs)
    np.testing.assert_allclose(bj.regret(expected, plain), bj.regret(runs, vector), rtol=1e-6)
