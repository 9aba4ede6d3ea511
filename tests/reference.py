"""An independent version of the game and its policies, written from the paper and not from the
package.

It is slow and obvious, in NumPy and float64. All runs of a call advance together, one row each.
Nothing here is imported from `bts_jax`.
"""

import numpy as np
import scipy.stats


class BernoulliArms:
    def __init__(self, reward, cost):
        self.reward_mean, self.cost_mean = np.asarray(reward, float), np.asarray(cost, float)

    def pull(self, arm, rng):
        return (
            (rng.random(len(arm)) < self.reward_mean[arm]).astype(float),
            (rng.random(len(arm)) < self.cost_mean[arm]).astype(float),
        )


class MultinomialArms:
    def __init__(self, reward_probs, cost_probs, support):
        self.reward_probs, self.cost_probs = (
            np.asarray(reward_probs, float),
            np.asarray(cost_probs, float),
        )
        self.support = np.asarray(support, float)
        self.reward_mean, self.cost_mean = (
            self.reward_probs @ self.support,
            self.cost_probs @ self.support,
        )

    def pull(self, arm, rng):
        return tuple(
            self.support[(rng.random((len(arm), 1)) > probs[arm].cumsum(1)[:, :-1]).sum(1)]
            for probs in (self.reward_probs, self.cost_probs)
        )


class BetaArms:
    def __init__(self, reward_alpha, reward_beta, cost_alpha, cost_beta):
        self.reward, self.cost = (
            np.array([reward_alpha, reward_beta], float),
            np.array([cost_alpha, cost_beta], float),
        )
        self.reward_mean, self.cost_mean = (
            shapes[0] / shapes.sum(0) for shapes in (self.reward, self.cost)
        )

    def pull(self, arm, rng):
        return rng.beta(*self.reward[:, arm]), rng.beta(*self.cost[:, arm])


class CorrelatedArms:
    """From the probabilities of (reward, cost) = (0, 0), (0, 1), (1, 0), (1, 1)."""

    def __init__(self, probs):
        self.probs = np.asarray(probs, float)
        self.reward_mean, self.cost_mean = (
            self.probs[:, 2] + self.probs[:, 3],
            self.probs[:, 1] + self.probs[:, 3],
        )

    def pull(self, arm, rng):
        outcome = (rng.random((len(arm), 1)) > self.probs[arm].cumsum(1)[:, :-1]).sum(1)
        return (outcome // 2).astype(float), (outcome % 2).astype(float)


class EmpiricalArms:
    """From a list of (reward, cost) rows for each arm."""

    def __init__(self, tables):
        self.rows = np.array([len(table) for table in tables])
        self.tables = np.array([np.resize(table, (max(self.rows), 2)) for table in tables])
        self.reward_mean, self.cost_mean = np.array([np.mean(table, 0) for table in tables]).T

    def pull(self, arm, rng):
        picked = self.tables[arm, rng.integers(self.rows[arm])]
        return picked[:, 0], picked[:, 1]


class CopulaArms:
    """From lists of equally likely values [K, N] and [K, M]: normal numbers by their quantiles."""

    def __init__(self, reward, cost, correlation):
        self.values = [np.sort(np.asarray(x, float), 1) for x in (reward, cost)]
        self.correlation = np.asarray(correlation, float)
        self.reward_mean, self.cost_mean = (x.mean(1) for x in self.values)

    def pull(self, arm, rng):
        one, other = rng.normal(size=(2, len(arm)))
        rho = self.correlation[arm]
        levels = scipy.stats.norm.cdf([one, rho * one + np.sqrt(1 - rho**2) * other])
        return tuple(
            x[arm, (level * x.shape[1]).astype(int)]
            for x, level in zip(self.values, levels, strict=True)
        )


class ScaledArms:
    def __init__(self, arms, scale, shift):
        self.arms, self.scale, self.shift = arms, np.asarray(scale, float), np.asarray(shift, float)
        self.reward_mean, self.cost_mean = (
            arms.reward_mean,
            self.shift + self.scale * arms.cost_mean,
        )

    def pull(self, arm, rng):
        reward, cost = self.arms.pull(arm, rng)
        return reward, self.shift[arm] + self.scale[arm] * cost


class Seen:
    """What all runs have seen: n, Σ reward, Σ cost, their squares and products per arm, the round,
    and counts of trials.
    """

    def __init__(self, runs, arms):
        self.n, self.reward, self.cost, self.reward_square, self.cost_square, self.product = (
            np.zeros((6, runs, arms))
        )
        self.reward_successes, self.cost_successes, self.both_successes = np.zeros((3, runs, arms))
        self.spent = np.zeros(runs)
        # The current round; runs start together, so all unfinished runs are in the same round.
        self.t = 1

    def means(self):
        n = np.maximum(self.n, 1)
        return self.reward / n, self.cost / n

    def variances(self):
        """Mean square distances from the means."""
        n = np.maximum(self.n, 1)
        return tuple(
            np.maximum(square / n - mean**2, 0)
            for square, mean in zip(
                (self.reward_square, self.cost_square), self.means(), strict=True
            )
        )

    def add(self, arm, reward, cost, rng):
        """Records one more pull in every run."""
        runs = np.arange(len(self.n))
        self.n[runs, arm] += 1
        self.reward[runs, arm] += reward
        self.cost[runs, arm] += cost
        self.reward_square[runs, arm] += reward**2
        self.cost_square[runs, arm] += cost**2
        self.product[runs, arm] += reward * cost
        earned, paid = rng.random(len(runs)) < reward, rng.random(len(runs)) < cost
        self.reward_successes[runs, arm] += earned
        self.cost_successes[runs, arm] += paid
        self.both_successes[runs, arm] += earned & paid
        self.spent += cost
        self.t += 1

    def keep(self, runs):
        """Forgets all other runs."""
        for name, array in vars(self).items():
            if np.ndim(array):
                setattr(self, name, array[runs])


def pick(index, n):
    """The largest index. Arms without a pull or a finite index come first, the least pulled of them
    before the others.
    """
    explore = (n == 0) | ~np.isfinite(index)
    first = np.where(explore, n, np.inf).argmin(1)
    return np.where(explore.any(1), first, np.where(explore, -np.inf, index).argmax(1))


def bts(seen, problem, rng):
    S, F = seen.reward_successes, seen.n - seen.reward_successes
    reward = rng.beta(S + 1, F + 1)
    S, F = seen.cost_successes, seen.n - seen.cost_successes
    cost = rng.beta(S + 1, F + 1)
    return (reward / cost).argmax(1)


def matched_bts(seen, problem, rng):
    """Draws with the mean and the variance of the Bayesian bootstrap. Rewards have a 1 and a 0
    more, costs half a 0 more.
    """
    n, cost_n = seen.n + 2, seen.n + 0.5
    mean, cost_mean = (seen.reward + 1) / n, seen.cost / cost_n
    variance = ((seen.reward_square + 1) / n - mean**2) / (n + 1)
    k = np.maximum(mean * (1 - mean) / variance - 1, n)
    reward = rng.beta(mean * k, (1 - mean) * k)
    cost_variance = np.maximum(seen.cost_square / cost_n - cost_mean**2, 0) / (cost_n + 1)
    shape = np.where(cost_mean > 0, np.maximum(cost_mean**2 / cost_variance, 1), 1)
    # Of arms that have cost nothing.
    free = np.where(seen.n > 0, cost_mean.max(1, keepdims=True) / (cost_n + 1), 0)
    cost = rng.gamma(shape) * np.where(cost_mean > 0, cost_mean / shape, free)
    return (reward / np.maximum(cost, 1e-25 * (cost_n + 1))).argmax(1)


def kube_index(seen, problem):
    reward, cost = seen.means()
    return (reward + np.sqrt(2 * np.log(seen.t) / np.maximum(seen.n, 1))) / cost


def ucb_bv1_index(seen, problem, explore=0):
    """With explore = 0 the bonus is the formula's, negative for e > λ. With explore = 1 such an arm
    is explored first.
    """
    reward, cost = seen.means()
    floor, e = problem["min_cost"], radius(seen, 1)
    bonus = (1 + 1 / floor) * e / (floor - e)
    undefined = (floor == 0) | (e == floor) | (cost == 0) | (bool(explore) & (e > floor))
    return np.where(undefined, np.inf, reward / cost + bonus)


def pd_bwk_index(seen, problem):
    reward, cost = seen.means()
    n = np.maximum(seen.n, 1)
    nu = 0.25 * np.log(problem["budget"] * seen.n.shape[1])

    def phi(x):
        return np.sqrt(nu * x / n) + nu / n

    return np.minimum(reward + phi(reward), 1) / np.maximum(cost - phi(cost), 0)


def radius(seen, alpha):
    """α √(ln(t − 1) / n)"""
    return alpha * np.sqrt(np.log(max(seen.t - 1, 1)) / np.maximum(seen.n, 1))


def ucb_bv2_index(seen, problem, explore=0):
    """As UCB-BV1. While an arm has no cost, λ = 0: with explore = 0 only such arms are explored
    first, with 1 all arms.
    """
    reward, cost = seen.means()
    floor, e = cost.min(1, keepdims=True), radius(seen, 1)
    bonus = np.where(floor > 0, 1 / floor * (1 + 1 / (floor - e)) * e, 0)
    undefined = (e == floor) | (cost == 0) | (bool(explore) & (e > floor))
    return np.where(undefined, np.inf, reward / cost + bonus)


def fractional_kube_index(seen, problem):
    reward, _ = seen.means()
    return (reward + np.sqrt(2 * np.log(seen.t) / np.maximum(seen.n, 1))) / problem["cost_mean"]


def budget_ucb_index(seen, problem):
    reward, cost = seen.means()
    e = radius(seen, np.sqrt(2))
    return (
        reward / cost
        + e / cost
        + e / cost * np.minimum(reward + e, 1) / np.maximum(cost - e, problem["min_cost"])
    )


def i_ucb_index(seen, problem):
    reward, cost = seen.means()
    return reward / cost + radius(seen, 1 / 4)


def c_ucb_index(seen, problem):
    reward, cost = seen.means()
    return (reward + radius(seen, 1 / 8)) / cost


def m_ucb_index(seen, problem):
    reward, cost = seen.means()
    e = radius(seen, 1 / 16)
    return np.where(cost <= e, np.inf, np.minimum(reward + e, 1) / (cost - e))


def b_greedy(seen, problem, rng):
    runs, arms = seen.n.shape
    reward, cost = seen.means()
    greedy = pick(reward / cost, seen.n)
    explores = (rng.random(runs) < arms / seen.t) & (seen.n > 0).all(1)
    return np.where(explores, rng.integers(arms, size=runs), greedy)


def wilson(mean, n, z_square, sign):
    """A root of A x² − Bq x + C; exactly 0 for the smaller one if the mean is."""
    a, b, c = n + z_square, 2 * n * mean + z_square, n * mean**2
    root = b / (2 * a) + sign * np.sqrt(np.maximum((b / (2 * a)) ** 2 - c / a, 0))
    return np.where((mean == 0) & (sign < 0), 0, root)


def omega_ucb_index(seen, problem, reward_eta=1, cost_eta=1):
    reward, cost = seen.means()
    n, z_square = np.maximum(seen.n, 1), 2 * 0.25 * np.log(seen.t + 1)
    return np.minimum(wilson(reward, n, reward_eta * z_square, 1), 1) / wilson(
        cost, n, cost_eta * z_square, -1
    )


def omega_star_ucb_index(seen, problem):
    n = np.maximum(seen.n, 2)
    etas = []
    for mean, variance in zip(seen.means(), seen.variances(), strict=True):
        sample_variance = variance * n / (n - 1)
        eta = np.minimum(1, sample_variance / (n / (n - 1) * mean * (1 - mean)))
        etas.append(np.where((seen.n >= 30) & (mean > 0) & (mean < 1), eta, 1))
    return omega_ucb_index(seen, problem, *etas)


def patient_omega_ucb_index(seen, problem):
    """ω-UCB with ρ_i η̂_i in place of ρ: η̂ is the variance over x̄(1 − x̄), with five more pulls
    for which it is 1.
    """
    etas = []
    for mean, variance in zip(seen.means(), seen.variances(), strict=True):
        inside = (mean > 0) & (mean < 1)
        share = np.where(inside, variance / np.where(inside, mean * (1 - mean), 1), 1)
        etas.append(np.where(seen.n > 0, (seen.n * share + 5) / (seen.n + 5), 1))
    wider = (1 + 5 * 2 / (seen.cost / etas[1] + 2)) / 2  # ρ is 1/8, half of that of ω-UCB
    return omega_ucb_index(seen, problem, *(wider * eta for eta in etas))


def greedy_kube(seen, problem, rng):
    """The rest of the budget is filled with arms in the order of their upper bounds per cost; one
    of these pulls at random.
    """
    n, cost = np.maximum(seen.n, 1), problem["cost_mean"]
    upper = seen.means()[0] + np.sqrt(2 * np.log(seen.t) / n)
    order, left = np.argsort(-upper / cost, 1), problem["budget"] - seen.spent
    counts, rows = np.zeros(seen.n.shape), np.arange(len(n))
    for place in order.T:
        counts[rows, place] = np.floor(np.maximum(left, 0) / cost[place] + 1e-6)
        left = left - counts[rows, place] * cost[place]
    reached = np.take_along_axis(counts, order, 1).cumsum(1)
    drawn = (reached < rng.random((len(n), 1)) * reached[:, -1:]).sum(1)
    return np.where(
        (seen.n == 0).any(1), seen.n.argmin(1), order[rows, np.minimum(drawn, len(cost) - 1)]
    )


def ucb_sc_plus_index(seen, problem):
    reward, cost = seen.means()
    n = np.maximum(seen.n, 1)
    a = np.log(np.maximum(seen.t / n, 1)) / (2 * n)
    alpha = np.sqrt(a / (reward**2 + cost**2 - a))
    return np.where(cost <= np.sqrt(a), np.inf, (reward + alpha * cost) / (cost - alpha * reward))


def ucb_b2_index(seen, problem, reward_test=1):
    """The cost's radius η must be below c̄ (λ − 1)/λ, or below r̄ if reward_test is 1. Otherwise
    the arm is explored first.
    """
    reward, cost = seen.means()
    n, log = np.maximum(seen.n, 1), 2.01 * np.log(seen.t)
    epsilon, eta = (np.sqrt(2 * variance * log / n) + 3 * log / n for variance in seen.variances())
    ratio = reward / cost
    known = eta < (reward if reward_test else cost * (1.28 - 1) / 1.28)
    return np.where(known & (cost > 0), ratio + 1.4 * (epsilon + ratio * eta) / cost, np.inf)


def ucb_b1_index(seen, problem, reward_test=1, largest=0):
    """Both variances are 1/4, and the covariance is 0."""
    reward, cost = seen.means()
    n, log = np.maximum(seen.n, 1), 2.01 * np.log(seen.t)
    radius = np.sqrt(2 * 0.25 * log / n) + 2 * largest * log / (3 * n)
    ratio = reward / cost
    known = radius < (reward if reward_test else cost * (1.28 - 1) / 1.28)
    return np.where(known & (cost > 0), ratio + 1.4 * (radius + ratio * radius) / cost, np.inf)


def ucb_b2c_index(seen, problem, reward_test=1):
    """ω is the slope of the regression of rewards on costs. The reward's variance is that of the
    residuals.
    """
    reward, cost = seen.means()
    n, log = np.maximum(seen.n, 1), 2.01 * np.log(seen.t)
    reward_variance, cost_variance = seen.variances()
    covariance = seen.product / n - reward * cost
    slope = np.where(cost_variance > 1e-9, covariance / cost_variance, 0)
    rest = np.maximum(reward_variance - slope**2 * cost_variance, 0)
    epsilon = np.sqrt(2 * rest * log / n) + 3 * (1 + 2) * log / n
    eta = np.sqrt(2 * cost_variance * log / n) + 3 * log / n
    ratio = reward / cost
    known = eta < (reward if reward_test else cost * (1.28 - 1) / 1.28)
    return np.where(
        known & (cost > 0),
        ratio + 1.4 * (epsilon + np.maximum(ratio - slope, 0) * eta) / cost,
        np.inf,
    )


def kl(p, q):
    """The divergence of Bernoulli(q) from Bernoulli(p)."""
    return sum(
        np.where(x > 0, x * np.log(np.where(x > 0, x, 1) / y), 0)
        for x, y in ((p, q), (1 - p, 1 - q))
    )


def least_divergence(reward, cost, ratio):
    """min{kl(reward, x) + kl(cost, y) : x/y = ratio}, by the smaller root y of 2 ratio y² − b y +
    reward + cost.
    """
    b = 1 + ratio + reward + ratio * cost
    y = 2 * (reward + cost) / (b + np.sqrt(np.maximum(b**2 - 8 * ratio * (reward + cost), 0)))
    return kl(reward, np.minimum(ratio * y, 1)) + kl(cost, np.minimum(y, 1))


def kl_ucb_sc_index(seen, problem, tuned=1):
    """The largest ratio whose least divergence is at most (ln t − tuned · ln n)/n, by bisection."""
    reward, cost = seen.means()
    n = np.maximum(seen.n, 1)
    level = np.maximum(np.log(seen.t) - tuned * np.log(n), 0) / n
    low = np.log(np.maximum(reward, 1e-13) / cost)
    high = np.where(cost > 0, low + level / cost + 40, low)
    for _ in range(36):
        middle = (low + high) / 2
        allowed = least_divergence(reward, cost, np.exp(middle)) <= level
        low, high = np.where(allowed, middle, low), np.where(allowed, high, middle)
    return np.where(cost > 0, np.exp(low), np.inf)


def gaussian_bts(seen, problem, rng, variance=0.25, learn=0.3):
    """Both are normal. The cost is truncated to (0, 1] by drawing again.

    The variance of one pull is learnt: the sum of squares about the mean has the weight `learn`,
    and `variance` counts as one observation.
    """
    reward, cost = (np.where(seen.n > 0, mean, 0.5) for mean in seen.means())
    reward_spread, cost_spread = (
        np.sqrt((variance + learn * seen.n * seen_variance) / (1 + learn * seen.n) / (seen.n + 1))
        for seen_variance in seen.variances()
    )
    draw = rng.normal(cost, cost_spread)
    while (outside := (draw <= 0) | (draw > 1)).any():
        draw[outside] = rng.normal(cost[outside], cost_spread[outside])
    return (rng.normal(reward, reward_spread) / draw).argmax(1)


def irs_fh(seen, problem, rng, imagine_costs=1):
    """The posterior means after the pulls for which the rest of the budget would be enough, if the
    draws of BTS were true.
    """
    a, e = seen.reward_successes + 1, seen.cost_successes + 1
    b, f = seen.n - seen.reward_successes + 1, seen.n - seen.cost_successes + 1
    reward, cost = rng.beta(a, b), rng.beta(e, f)
    left = np.maximum(problem["budget"] - seen.spent, 0)[:, None]
    pulls = np.clip(np.floor(left / cost) - 1, 0, 2**22).astype(int)
    earned, paid = rng.binomial(pulls, reward), rng.binomial(pulls, cost)
    if imagine_costs:
        cost = (e + paid) / (e + f + pulls)
    return ((a + earned) / (a + b + pulls) / cost).argmax(1)


def joint_bts(seen, problem, rng):
    both = rng.gamma(seen.both_successes + 0.5)
    reward = rng.gamma(seen.reward_successes - seen.both_successes + 0.5)
    cost = rng.gamma(seen.cost_successes - seen.both_successes + 0.5)
    rest = rng.gamma(
        seen.n - seen.reward_successes - seen.cost_successes + seen.both_successes + 0.5
    )
    total = both + reward + cost + rest
    return ((both + reward) / total / ((both + cost) / total)).argmax(1)


def soft_elimination(seen, problem, rng):
    reward, cost = (seen.reward + 1) / (seen.n + 2), (seen.cost + 1) / (seen.n + 2)
    ratio = reward / cost
    best = ratio.max(1, keepdims=True)
    weight = np.exp(-2 * seen.n * (cost * (best - ratio) / (best + 1)) ** 2).cumsum(1)
    return (rng.random((len(weight), 1)) * weight[:, -1:] > weight).sum(1)


def by_index(index):
    return lambda seen, problem, rng: pick(index(seen, problem), seen.n)


def commitment(seen):
    """The arm with the largest plain ratio, the first among equals; among arms with rewards and no
    cost, the largest reward.
    """
    reward, cost = seen.means()
    plain = np.where(cost > 0, reward / cost, 0).argmax(1)
    free = np.where(cost > 0, 0, reward)
    return np.where((free > 0).any(1), free.argmax(1), plain)


class EpsilonFirst:
    """Stores the arm to which each run has committed, with what was seen; −1 before."""

    def __init__(self, epsilon=0.1):
        self.epsilon = epsilon

    def __call__(self, seen, problem, rng):
        committed = getattr(seen, "committed", np.full(len(seen.n), -1))
        ready = (
            (seen.spent >= self.epsilon * problem["budget"]) & (seen.n > 0).all(1) & (committed < 0)
        )
        seen.committed = np.where(ready, commitment(seen), committed)
        return np.where(seen.committed < 0, (seen.t - 1) % seen.n.shape[1], seen.committed)


INDICES = {
    "pd-bwk": pd_bwk_index,
    "ucb-bv1": ucb_bv1_index,
    "kube": kube_index,
    "ucb-bv2": ucb_bv2_index,
    "fractional-kube": fractional_kube_index,
    "budget-ucb": budget_ucb_index,
    "i-ucb": i_ucb_index,
    "c-ucb": c_ucb_index,
    "m-ucb": m_ucb_index,
    "omega-ucb": omega_ucb_index,
    "omega-star-ucb": omega_star_ucb_index,
    "patient-omega-ucb": patient_omega_ucb_index,
    "ucb-sc-plus": ucb_sc_plus_index,
    "kl-ucb-sc": kl_ucb_sc_index,
    "ucb-b2": ucb_b2_index,
    "ucb-b1": ucb_b1_index,
    "ucb-b2c": ucb_b2c_index,
}

POLICIES = {
    "bts": lambda: bts,
    "epsilon-first": EpsilonFirst,
    **{name: lambda index=index: by_index(index) for name, index in INDICES.items()},
    "b-greedy": lambda: b_greedy,
    "greedy-kube": lambda: greedy_kube,
    "matched-bts": lambda: matched_bts,
    "gaussian-bts": lambda: gaussian_bts,
    "joint-bts": lambda: joint_bts,
    "irs-fh": lambda: irs_fh,
    "soft-elimination": lambda: soft_elimination,
    "oracle": lambda: lambda seen, problem, rng: np.full(len(seen.n), problem["best_arm"]),
    "uniform": lambda: lambda seen, problem, rng: rng.integers(seen.n.shape[1], size=len(seen.n)),
}


def optional(name, **options):
    """A policy with other options than it has by default."""
    if name in INDICES:
        return by_index(lambda seen, problem: INDICES[name](seen, problem, **options))
    policy = POLICIES[name]()
    return lambda seen, problem, rng: policy(seen, problem, rng, **options)


def play(name, arms, budget, runs, rng, **options):
    """Plays `runs` runs to the end of the budget. Returns rewards [runs], costs [runs], pulls
    [runs, K].
    """
    policy = optional(name, **options) if options else POLICIES[name]()
    ratio = arms.reward_mean / arms.cost_mean
    problem = {
        "budget": budget,
        "min_cost": arms.cost_mean.min(),
        "cost_mean": arms.cost_mean,
        "best_arm": ratio.argmax(),
    }
    seen = Seen(runs, len(ratio))
    rows = np.arange(runs)  # the runs that are played, and some that have ended
    earned, left, pulls = (
        np.zeros(runs),
        np.full(runs, float(budget)),
        np.zeros((runs, len(ratio)), int),
    )
    playing = np.full(runs, True)
    with np.errstate(divide="ignore", invalid="ignore"):
        while playing.any():
            if playing.mean() < 0.8:
                seen.keep(playing)
                rows, playing = rows[playing], playing[playing]
            arm = policy(seen, problem, rng)
            reward, cost = arms.pull(arm, rng)
            seen.add(arm, reward, cost, rng)
            affordable = playing & (cost <= left[rows])
            pulls[rows, arm] += affordable
            earned[rows] += np.where(affordable, reward, 0)
            left[rows] -= np.where(affordable, cost, 0)
            playing = affordable & (left[rows] > 0)
    return earned, budget - left, pulls
