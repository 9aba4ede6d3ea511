"""Rivals of 2020 to 2026: IRS.FH and its binomial draws, UCB-B1, UCB-B2C, LinConTS and the budget
pacer.

By hand, and against slow and obvious versions in float64. `test_reference.py` and
`test_policies.py` have whole runs and replays of the policies for one resource, too.

False failures: frequencies and mean rewards are compared at 6 standard errors, 2·10⁻⁹ each under
the normal distribution, fewer than 100 of them; the tests of χ² have a level of 10⁻⁸, 12 of them.
All keys and seeds are fixed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from scipy import stats
from test_knapsack_policies import pick

import bts_jax as bj
from bts_jax import Problem
from bts_jax.policies import binomial
from bts_jax.policies.index import ArmStatistics
from bts_jax.posteriors import Beta, Gamma, Known, Normal

KEY = jax.random.key(0)
DRAWS = 20_000


# Binomial draws

GRID = [
    (n, p)
    for n in (1, 2, 3, 5, 8, 13, 30, 100, 1000, 30_000)
    for p in (1e-5, 1e-3, 0.5 / n, 1 / n, 1.4 / n, 2.5 / n, 0.1, 0.3, 0.5, 0.8, 0.999)
    if p <= 1
]


@pytest.mark.parametrize(("n", "p"), GRID)
def test_the_rectangle_of_the_binomial_draws_is_large_enough(n, p):
    """f ≤ F, and |x − np − 1/2| √(f/F) ≤ h/2 for all x between k and k + 1."""
    variance = n * p * (1 - p)
    spread = 12 * np.sqrt(variance) + 40
    k = np.arange(max(0, int(n * p - spread)), min(n, int(n * p + spread)) + 1)
    share = stats.binom.pmf(k, n, p) / np.exp(float(binomial.log_height(jnp.float32(variance))))
    furthest = np.maximum(np.abs(k - n * p - 0.5), np.abs(k + 1 - n * p - 0.5))
    assert share.max() <= 1 + 1e-5
    assert (furthest * np.sqrt(share)).max() <= float(binomial.width(jnp.float32(variance))) / 2 * (
        1 + 1e-5
    )


@pytest.mark.parametrize(
    ("n", "p"),
    [
        (1, 0.3),
        (3, 0.5),
        (7, 0.9),
        (60, 0.02),
        (1000, 0.7),
        (10**5, 0.5),
        (2**22, 0.3),
        (2**22, 1e-6),
    ],
)
def test_probabilities_of_binomial_draws(n, p):
    p = float(np.float32(p))
    k = np.unique(stats.binom.ppf(np.linspace(1e-6, 1 - 1e-6, 41), n, p))
    found = jax.jit(binomial.log_probability)(jnp.float32(k), jnp.float32(n), jnp.float32(p))
    np.testing.assert_allclose(found, stats.binom.logpmf(k, n, p), atol=3e-3 if n > 10**6 else 2e-5)


@pytest.mark.parametrize(
    ("n", "p"),
    [
        (1, 0.3),
        (2, 0.9),
        (5, 0.001),
        (10, 0.5),
        (40, 0.2),
        (1000, 0.01),
        (1000, 0.7),
        (10**5, 0.001),
        (2**22, 0.3),
        (2**22, 1e-6),
        (17, 0.95),
        (3, 0.5),
    ],
)
def test_binomial_draws_have_their_distribution(n, p):
    p, count = float(np.float32(p)), 200_000
    draws = np.asarray(
        jax.jit(binomial.binomial)(
            KEY, jnp.full(count, n, jnp.float32), jnp.full(count, p, jnp.float32)
        )
    )
    cuts = np.unique(stats.binom.ppf(np.linspace(0.02, 0.98, 25), n, p))
    expected = count * np.diff(stats.binom.cdf([-1, *cuts, n], n, p))
    seen = np.histogram(draws, [-1.5, *cuts + 0.5, n + 0.5])[0]
    keep = expected > 5
    assert seen[~keep].sum() < 50
    assert (
        stats.chisquare(seen[keep], expected[keep] * seen[keep].sum() / expected[keep].sum()).pvalue
        > 1e-8
    )


def test_binomial_draws_at_the_ends():
    trials, chance = np.float32([0, 0, 0, 7, 7]), np.float32([0, 0.5, 1, 0, 1])
    draws = jax.vmap(lambda key: binomial.binomial(key, jnp.asarray(trials), jnp.asarray(chance)))(
        jax.random.split(KEY, 100)
    )
    np.testing.assert_array_equal(draws, np.tile([0, 0, 0, 0, 7], (100, 1)))


# IRS.FH


def known(successes, paid, pulls, budget, policy=None):
    """The state of IRS.FH after so many pulls, with so much of the budget left."""
    state = (policy or bj.IRSFH()).init(Problem(num_arms=len(pulls), budget=np.float32(budget)))
    reward, (cost,) = state.beliefs.reward, state.beliefs.costs
    pulls = jnp.int32(pulls)
    beliefs = state.beliefs._replace(
        reward=reward._replace(successes=jnp.int32(successes), pulls=pulls),
        costs=(cost._replace(successes=jnp.int32(paid), pulls=pulls),),
    )
    return state._replace(beliefs=beliefs)


@jax.jit
def arms_of(policy, state, keys):
    return jax.vmap(lambda key: policy(state, key)[0])(keys)


def frequencies(policy, state, draws=DRAWS, seed=1):
    arms = arms_of(policy, state, jax.random.split(jax.random.key(seed), draws))
    return np.bincount(np.asarray(arms), minlength=3) / draws


def test_irs_fh_with_nothing_left_to_learn_is_greedy():
    """Posterior means of rewards 3/6, 4/6, 2/6 and of costs 2/6, 3/6, 1/6: the ratios are 3/2, 4/3
    and 2.
    """
    state = known([2, 3, 1], [1, 2, 0], [4, 4, 4], 0.0)
    assert frequencies(bj.IRSFH(), state)[2] == 1


@pytest.mark.parametrize("imagine_costs", [0, 1])
@pytest.mark.parametrize("budget", [1.5, 5, 40, 1e9])
def test_irs_fh_decides_as_the_reference(imagine_costs, budget):
    """The frequencies of the arms in one state. With 10⁹ left they are those of BTS, within the
    same errors.
    """
    successes, paid, pulls = np.array([[3, 4, 0], [5, 3, 1], [9, 7, 1]])
    seen = reference.Seen(DRAWS, 3)
    seen.n[:], seen.reward_successes[:], seen.cost_successes[:] = pulls, successes, paid
    policy, rng = bj.IRSFH(imagine_costs=imagine_costs), np.random.default_rng(3)
    ours = frequencies(policy, known(successes, paid, pulls, budget))
    theirs = [reference.irs_fh(seen, {"budget": budget}, rng, imagine_costs)]
    theirs += [reference.bts(seen, {}, rng)] * (budget == 1e9)
    for arms in theirs:
        other = np.bincount(arms, minlength=3) / DRAWS
        error = np.sqrt((ours * (1 - ours) + other * (1 - other)) / DRAWS)
        assert (np.abs(ours - other) <= 6 * error).all(), (ours, other)


def test_irs_fh_remembers_what_is_left():
    policy = bj.IRSFH()
    state = policy.init(Problem(num_arms=2, budget=np.float32(10)))
    after = policy.update(state, jnp.int32(1), jnp.float32(1), jnp.float32(0.75), KEY)
    assert after.remaining.amount == 9.25 and after.beliefs.reward.successes.tolist() == [0, 1]
    assert (
        policy.update(after, jnp.int32(1), jnp.float32(1), jnp.float32(1), KEY).remaining.amount
        == 8.25
    )


def test_irs_fh_imagines_costs_of_a_posterior_in_a_tuple():
    state = bj.IRSFH().init(Problem(num_arms=3, budget=np.float32(10)))
    one, other = (
        jax.vmap(lambda key, policy=policy: policy(state, key)[0])(jax.random.split(KEY, 200))
        for policy in (bj.IRSFH(), bj.IRSFH(cost=(bj.posteriors.Beta(),)))
    )
    np.testing.assert_array_equal(one, other)


def test_irs_fh_takes_other_posteriors_of_costs_but_not_of_rewards():
    """With known costs of 1/2 and a budget of 10, the last of 20 pulls is not imagined."""
    bandit = bj.Bernoulli(reward=[0.3, 0.6], cost=[0.5, 0.9])
    for cost in (Gamma(), Known()):
        assert np.isfinite(bj.simulate(bj.IRSFH(cost=cost), bandit, 20, KEY).reward).all()
    with pytest.raises(ValueError, match="reward of IRSFH is a Normal: give a Beta posterior"):
        bj.IRSFH(reward=Normal())


@pytest.mark.slow
@pytest.mark.parametrize("budget", [20, 100])
def test_irs_fh_has_less_regret_than_bts_with_small_budgets(budget):
    """60 bandits, 60 runs each, with common random numbers. The difference is more than 3 standard
    errors.
    """
    keys, regrets = jax.random.split(KEY, 60), {}
    for policy in (bj.BTS(), bj.IRSFH()):
        for seed in range(60):
            means = np.random.default_rng(seed).uniform(0.1, 0.9, (2, 10))
            bandit = bj.Bernoulli(reward=means[0], cost=means[1])
            runs = bj.simulate_batch(policy, bandit, budget, keys)
            regrets.setdefault(type(policy), []).append(float(np.mean(bj.regret(runs, bandit))))
    less = np.subtract(*regrets.values())
    assert less.mean() > 3 * less.std() / len(less) ** 0.5


# UCB-B1 and UCB-B2C


def statistics(pulls, *totals, side_info=()):
    pulls = np.array(pulls, np.int32)
    totals = tuple(np.array(total, np.float32) for total in totals)
    return jax.device_put(
        ArmStatistics(
            pulls=pulls, totals=totals, rounds=pulls.sum(dtype=np.int32), side_info=side_info
        )
    )


def indices(policy, state):
    return np.asarray(jax.jit(lambda policy, state: policy.index(state))(policy, state))


def test_ucb_b1_by_hand():
    """Arm 0: r̄ = 1/2, c̄ = 1/4, n = 1600; arm 1: r̄ = 1/2, c̄ = 1/2, n = 400. Next round: t =
    2001.
    """
    policy = bj.UCBB1(
        reward_variance=[0.1, 0.2],
        cost_variance=0.05,
        covariance=[0.01, 0.0],
        alpha=2.0,
        largest=1.0,
    )
    side_info = policy.init(Problem(num_arms=2)).side_info
    state = statistics([1600, 400], [800, 200], [400, 200], side_info=side_info)
    level = 2 * np.log(2001) / np.array([1600, 400])
    slope = np.array([0.01 / 0.05, 0])
    epsilon = np.sqrt(2 * np.array([0.1 - 0.2**2 * 0.05, 0.2]) * level) + 2 / 3 * level
    eta = np.sqrt(2 * 0.05 * level) + 2 / 3 * level
    ratio = np.array([2, 1])
    expected = ratio + 1.4 * (epsilon + (ratio - slope) * eta) / [0.25, 0.5]
    np.testing.assert_allclose(indices(policy, state), expected, rtol=1e-5)
    # The source's test: η < 0.21875 c̄, which is 0.0547 and 0.109.
    assert eta[0] < 0.0547 < eta[1] < 0.5
    strict = indices(policy.replace(reward_test=0.0, stability=1.28), state)
    assert np.isfinite(strict[0]) == (eta[0] < 0.21875 * 0.25) and np.isfinite(strict[1]) == (
        eta[1] < 0.21875 * 0.5
    )


def test_ucb_b1_without_spread_of_the_cost():
    policy = bj.UCBB1(cost_variance=0.0, covariance=0.1)
    rest, cost_variance, slope = policy.init(Problem(num_arms=2)).side_info
    assert (
        rest.tolist() == [0.25, 0.25]
        and cost_variance.tolist() == [0, 0]
        and slope.tolist() == [0, 0]
    )


def test_ucb_b1_needs_a_number_for_each_arm():
    with pytest.raises(
        ValueError, match="reward_variance of UCBB1 has 2 numbers, and the bandit has 3 arms"
    ):
        bj.UCBB1(reward_variance=[0.1, 0.2]).init(Problem(num_arms=3))
    with pytest.raises(ValueError, match="covariance"):
        bj.UCBB1(covariance=0.3)


def test_ucb_b2c_by_hand():
    """Bernoulli feedback. Arm 0: 2000 pulls, 1000 rewards, 800 costs, both at once 700 times. Arm
    1: costs always 1.
    """
    policy = bj.UCBB2C(alpha=2.0, omega=1.0)
    state = statistics([2000, 1000], [1000, 300], [800, 1000], [0, 0], [0, 0], [700, 300])
    log = 2 * np.log(3001)
    covariance, variance = 0.35 - 0.5 * 0.4, 0.4 * 0.6
    slope = covariance / variance
    epsilon = np.sqrt(2 * (0.25 - slope**2 * variance) * log / 2000) + 6 * log / 2000
    eta = np.sqrt(2 * variance * log / 2000) + 3 * log / 2000
    first = 1.25 + 1.4 * (epsilon + (1.25 - slope) * eta) / 0.4
    second = 0.3 + 1.4 * (np.sqrt(2 * 0.21 * log / 1000) + 6 * log / 1000 + 0.3 * 3 * log / 1000)
    np.testing.assert_allclose(indices(policy, state), [first, second], rtol=2e-5)
    # Perfectly correlated: no residual, and r̂ − ω = 0.
    same = statistics([2000], [800], [800], [0], [0], [800])
    np.testing.assert_allclose(
        indices(policy, same), 1 + 1.4 * 6 * 2 * np.log(2001) / 2000 / 0.4, rtol=1e-4
    )


def test_sums_of_products_are_exact():
    policy = bj.UCBB2C()
    state = policy.init(Problem(num_arms=2))
    update = jax.jit(policy.update)
    for reward, cost in [(0.5, 0.25), (1, 0.5), (0.25, 1)]:
        state = update(state, jnp.int32(1), jnp.float32(reward), jnp.float32(cost), KEY)
    assert state.product_mean.tolist() == [0, np.float32((0.125 + 0.5 + 0.25) / 3)]
    assert (
        len(bj.UCBB2().init(Problem(num_arms=2)).totals) == 4
        and len(bj.KUBE().init(Problem(num_arms=2)).totals) == 2
    )


@pytest.mark.slow
def test_ucb_b2c_uses_correlation():
    """The largest correlations that these means allow: less regret than UCB-B2, which does not use
    them. With ω̄ = 0 both have the same terms in 1/n."""
    means = np.array([0.5, 0.4, 0.3]), np.array([0.5, 0.5, 0.5])
    highest = np.sqrt(means[0] * (1 - means[1]) / (means[1] * (1 - means[0]))) * 0.999
    bandit, keys = (
        bj.Correlated(reward=means[0], cost=means[1], correlation=highest),
        jax.random.split(KEY, 20),
    )
    ours, other = (
        np.asarray(bj.pseudo_regret(bj.simulate_batch(policy, bandit, 4000, keys), bandit))
        for policy in (bj.UCBB2C(omega=0), bj.UCBB2())
    )
    assert ours.mean() < 0.9 * other.mean()


# LinConTS

TIMED, BUDGET, TIME = (
    bj.Timed(bj.Bernoulli(reward=[0.3, 0.6, 0.9], cost=[0.2, 0.5, 0.9]), horizon=2.0),
    [55.0, 60.0],
    0.5,
)


class SlowLinConTS:
    """Many runs at once, with Beta posteriors and costs that are 0 or 1. T rounds, at most `share`
    of cost for each.
    """

    def __init__(self, runs, arms, rounds, share):
        self.n, self.rewards, self.costs = np.zeros((3, runs, arms))
        self.rounds, self.share, self.each = rounds, share, np.arange(runs)

    def decide(self, rng):
        reward, cost = (
            rng.beta(1 + total, 1 + self.n - total) for total in (self.rewards, self.costs)
        )
        mix = np.array([self.mix(*each) for each in zip(reward, cost, strict=True)])
        return np.where((self.n == 0).any(1), self.n.argmin(1), pick(rng, mix))

    def mix(self, reward, cost):
        """The best of all single arms that are cheap enough, and of all pairs that cost exactly
        `share`; else all arms.
        """
        best, value = np.ones(len(cost)), -1.0
        for i in np.flatnonzero(cost <= self.share):
            for j in range(len(cost)):
                x = (self.share - cost[i]) / (cost[j] - cost[i]) if cost[j] > self.share else 0.0
                if (1 - x) * reward[i] + x * reward[j] > value:
                    value = (1 - x) * reward[i] + x * reward[j]
                    best = np.zeros(len(cost))
                    best[i] = 1 - x
                    best[j] += x
        return best

    def update(self, arm, reward, cost):
        self.n[self.each, arm] += 1
        self.rewards[self.each, arm] += reward
        self.costs[self.each, arm] += cost


@pytest.mark.parametrize("budget", [50, 16])
def test_lincon_ts_decides_as_the_slow_version(budget):
    """The frequencies of the arms after some pulls, for budgets that are often and rarely feasible.
    T = 120. What exceeds a budget by up to 1% differs: fewer than 4 of 1,000 draws."""
    policy = bj.LinConTS(cost=Beta())
    pulls, earned, paid = np.array([[8, 6, 9], [2, 4, 8], [2, 3, 8]])
    state = policy.init(
        Problem(
            num_arms=3, num_resources=2, budget=np.float32([budget, 60]), time_cost=np.float32(TIME)
        )
    )
    reward, (cost,) = state.beliefs.reward, state.beliefs.costs
    beliefs = state.beliefs._replace(
        reward=reward._replace(successes=jnp.int32(earned), pulls=jnp.int32(pulls)),
        costs=(cost._replace(successes=jnp.int32(paid), pulls=jnp.int32(pulls)),),
    )
    ours = frequencies(policy, state._replace(beliefs=beliefs, pulls=jnp.int32(pulls)))
    slow = SlowLinConTS(DRAWS, 3, 120, budget / 120)
    slow.n[:], slow.rewards[:], slow.costs[:] = pulls, earned, paid
    theirs = np.bincount(slow.decide(np.random.default_rng(2)), minlength=3) / DRAWS
    error = np.sqrt((ours * (1 - ours) + theirs * (1 - theirs)) / DRAWS)
    assert (np.abs(ours - theirs) <= 6 * error + 4e-3).all(), (ours, theirs)


def test_lincon_ts_by_hand():
    """Costs that are known. Arms 0 and 1 cost 1/4 and 3/4, and the budget allows 1/2: each is
    pulled half of the time, if arm 1 earns more. If the budget allows 1/8, every arm is pulled
    equally often."""
    policy = bj.LinConTS(reward=Beta(alpha=[1, 1000], beta=[1000, 1]), cost=Known())
    costs = np.float32([[0.25, 0.5], [0.75, 0.5]])

    def state(budget):
        start = policy.init(
            Problem(
                num_arms=2,
                num_resources=2,
                budget=np.float32([budget, 50]),
                time_cost=np.float32(0.5),
                cost_mean=costs,
            )
        )
        return start._replace(pulls=jnp.int32([1, 1]))

    for budget, share in ((50, 0.5), (75, 0), (12.5, 0.5)):
        assert abs(frequencies(policy, state(budget))[0] - share) < 6 * 0.5 / DRAWS**0.5
    first = state(50)._replace(pulls=jnp.int32([1, 0]))
    assert frequencies(policy, first)[1] == 1


@pytest.mark.slow
def test_lincon_ts_earns_as_much_as_the_slow_version():
    runs, rng = 200, np.random.default_rng(5)
    fast = np.asarray(
        bj.simulate_batch(
            bj.LinConTS(cost=Beta()), TIMED, BUDGET, jax.random.split(KEY, runs)
        ).reward
    )[:, 0]
    slow, means = SlowLinConTS(runs, 3, 120, 55 / 120), np.array([[0.3, 0.6, 0.9], [0.2, 0.5, 0.9]])
    left, earned, alive = np.full(runs, 55.0), np.zeros(runs), np.ones(runs, bool)
    for _ in range(120):
        arm = slow.decide(rng)
        reward, cost = (rng.random((2, runs)) < means[:, arm]).astype(float)
        slow.update(arm, reward, cost)
        alive &= (left >= cost) & (left > 0)
        earned += np.where(alive, reward, 0)
        left -= np.where(alive, cost, 0)
    error = np.sqrt((fast.var() + earned.var()) / runs)
    assert 6 * error < 0.12 * earned.mean() and abs(fast.mean() - earned.mean()) < 6 * error


# The budget pacer


class SlowPacer:
    """One run, in float64, one resource and time."""

    def __init__(
        self,
        arms,
        target,
        exploration=1.0,
        rate=0.05,
        smoothing=0.05,
        limit=5.0,
        penalty=0.0,
        burn_in=1,
    ):
        self.n, self.rewards, self.costs = np.zeros((3, arms))
        self.target, self.average, self.price = target, target, 0.0
        self.exploration, self.rate, self.smoothing = exploration, rate, smoothing
        self.limit, self.penalty, self.burn_in = limit, penalty, burn_in

    def scores(self):
        mean_cost = self.costs / np.maximum(self.n, 1)
        largest = mean_cost.max()
        logs = [
            1.0 if largest == 0 else max(1 + np.log10(max(cost / largest, 1e-12)) / 3, 0)
            for cost in mean_cost
        ]
        bound = self.rewards / (self.n + 1) + self.exploration / np.sqrt(self.n + 1)
        scores = bound - (self.penalty + self.price) * np.array(logs)
        allowed = mean_cost <= largest / (1 + self.price) * (1 + 1e-9)
        return np.where(allowed | ~allowed.any(), scores, -np.inf)

    def decide(self):
        return self.n.argmin() if (self.n < self.burn_in).any() else self.scores().argmax()

    def update(self, arm, reward, cost):
        self.n[arm] += 1
        self.rewards[arm] += reward
        self.costs[arm] += cost
        self.average = (1 - self.smoothing) * self.average + self.smoothing * cost
        self.price = min(
            max(self.price + self.rate * (self.average / self.target - 1), 0), self.limit
        )


@pytest.mark.parametrize(
    "options",
    [{}, {"exploration": 0.05, "penalty": 0.3, "burn_in": 3.0}, {"rate": 0.5, "limit": 1.0}],
    ids=["default", "other", "fast"],
)
def test_the_pacer_decides_as_the_slow_version_in_a_replay(options):
    policy = bj.BudgetPacer(**options)
    run = jax.tree.map(np.asarray, bj.trace(policy, TIMED, [40, 60], KEY, rounds=256, record=True))
    slow, clear, prices = SlowPacer(3, 40 / 120, **options), 0, []
    for t in range(int(run.length)):
        state, arm = jax.tree.map(lambda x, t=t: x[t], run.recorded), run.arm[t]
        np.testing.assert_allclose(state.prices, [slow.price], atol=1e-4)
        np.testing.assert_allclose(state.spending * state.target, [slow.average], rtol=1e-4)
        second, first = np.sort(slow.scores())[-2:]
        if (slow.n < slow.burn_in).any() or first - second > 1e-4:
            clear += 1
            assert arm == slow.decide()
        prices.append(slow.price)
        slow.update(arm, run.reward[t], run.cost[t][0])
    assert clear > 0.9 * run.length > 40 and max(prices) > 0.05


def test_the_pacer_by_hand():
    """Average costs of 1, 1/10 and 1/10,000: 1, 2/3 and 0 on the scale of three decades. 3 pulls of
    each: bounds are half the bonus of 1, and 3/4 of the average rewards of 1, 2/3 and 0. At a price
    of 1, costs above 1/2 are not allowed."""
    policy = bj.BudgetPacer()
    start = policy.init(
        Problem(num_arms=3, num_resources=2, budget=np.float32([10, 50]), time_cost=np.float32(0.5))
    )
    np.testing.assert_allclose(start.target, [0.1])
    totals = np.float32([3, 2, 0]), np.float32([[3, 1.5], [0.3, 1.5], [3e-4, 1.5]])
    arms = start.arms._replace(pulls=np.int32([3, 3, 3]), totals=totals, rounds=np.int32(9))
    scores = jax.jit(lambda policy, state: policy.scores(state))
    state = jax.device_put(start._replace(arms=arms))
    np.testing.assert_allclose(scores(policy, state), [1.25, 1, 0.5], rtol=1e-5)
    dear = scores(policy, state._replace(prices=jnp.float32([1])))
    np.testing.assert_allclose(dear[1:], [1 - 2 / 3, 0.5], atol=1e-4)
    assert dear[0] < -1e38
    after = policy.update(state, jnp.int32(1), jnp.float32(1), jnp.float32([0.3, 0.5]), KEY)
    np.testing.assert_allclose(after.spending, [0.95 + 0.05 * 3], rtol=1e-6)
    np.testing.assert_allclose(after.prices, [0.05 * 0.1], rtol=1e-5)
    # Arms of equal cost are all above the ceiling: then all are allowed.
    equal = np.float32([[0.3, 1.5]] * 3)
    arms = state.arms._replace(totals=(state.arms.totals[0], jax.device_put(equal)))
    same = state._replace(arms=arms, prices=jnp.float32([1]))
    np.testing.assert_allclose(scores(policy, same), [0.25, 0, -0.5], atol=1e-5)


@pytest.mark.parametrize("kind", [bj.LinConTS, bj.BudgetPacer])
def test_policies_with_rounds_need_time(kind):
    with pytest.raises(ValueError, match=f"{kind.__name__} requires time_cost"):
        bj.simulate(
            kind(), bj.Bernoulli(reward=[0.3, 0.6], cost=[[0.2, 0.7], [0.7, 0.2]]), [5, 5], KEY
        )


# All of them


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [bj.IRSFH(), bj.UCBB1(), bj.UCBB2C()], ids=lambda policy: type(policy).__name__
)
def test_rivals_for_one_resource_learn(policy):
    """A third of the regret of Uniform. The indices are made for large budgets."""
    bandit = bj.Bernoulli(reward=[0.8, 0.3, 0.2], cost=[0.4, 0.5, 0.6])
    keys = jax.random.split(KEY, 20)
    ours, uniform = (
        float(np.mean(bj.pseudo_regret(bj.simulate_batch(each, bandit, 3000, keys), bandit)))
        for each in (policy, bj.Uniform())
    )
    assert 0 < ours < uniform / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [bj.LinConTS(), bj.BudgetPacer()], ids=lambda policy: type(policy).__name__
)
def test_rivals_for_several_resources_earn_most_of_the_optimum(policy):
    bandit, keys = (
        bj.Timed(bj.Bernoulli(reward=[0.3, 0.6, 0.9, 0.5], cost=[0.1, 0.3, 0.8, 0.4])),
        jax.random.split(KEY, 50),
    )
    runs = bj.simulate_batch(policy, bandit, [300, 1000], keys)
    share = (
        np.asarray(runs.reward).mean()
        / (np.asarray(runs.reward) + np.asarray(bj.regret(runs, bandit))).mean()
    )
    assert share > 0.85
