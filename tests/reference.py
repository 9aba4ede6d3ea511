"""The game and its policies again: slow, obvious, in NumPy and float64, written from the paper and not from the package.

All runs of a call go on side by side, one row each. Nothing here is imported from `bts_jax`.
"""

import numpy as np


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
        self.reward_probs, self.cost_probs = np.asarray(reward_probs, float), np.asarray(cost_probs, float)
        self.support = np.asarray(support, float)
        self.reward_mean, self.cost_mean = self.reward_probs @ self.support, self.cost_probs @ self.support

    def pull(self, arm, rng):
        return tuple(
            self.support[(rng.random((len(arm), 1)) > probs[arm].cumsum(1)[:, :-1]).sum(1)]
            for probs in (self.reward_probs, self.cost_probs)
        )


class Seen:
    """What all runs have seen so far: n, Σ reward, Σ cost per arm, the round, and BTS's success counts."""

    def __init__(self, runs, arms):
        self.n, self.reward, self.cost = np.zeros((3, runs, arms))
        self.reward_successes, self.cost_successes = np.zeros((2, runs, arms))
        self.spent = np.zeros(runs)
        self.t = 1  # the current round: runs start together, and whoever is still playing is in the same round

    def means(self):
        n = np.maximum(self.n, 1)
        return self.reward / n, self.cost / n


def pick(index, n):
    """Largest index; infinite or undefined ones and arms never pulled first, the least pulled of them first."""
    explore = (n == 0) | ~np.isfinite(index)
    first = np.where(explore, n, np.inf).argmin(1)
    return np.where(explore.any(1), first, np.where(explore, -np.inf, index).argmax(1))


def bts(seen, problem, rng):
    S, F = seen.reward_successes, seen.n - seen.reward_successes
    reward = rng.beta(S + 1, F + 1)
    S, F = seen.cost_successes, seen.n - seen.cost_successes
    cost = rng.beta(S + 1, F + 1)
    return (reward / cost).argmax(1)


def kube_index(seen, problem):
    reward, cost = seen.means()
    return (reward + np.sqrt(2 * np.log(seen.t) / np.maximum(seen.n, 1))) / cost


def ucb_bv1_index(seen, problem):
    reward, cost = seen.means()
    floor = problem["min_cost"]
    e = np.sqrt(np.log(max(seen.t - 1, 1)) / np.maximum(seen.n, 1))
    return np.where(e >= floor, np.inf, reward / cost + (1 + 1 / floor) * e / (floor - e))


def pd_bwk_index(seen, problem):
    reward, cost = seen.means()
    n = np.maximum(seen.n, 1)
    nu = 0.25 * np.log(problem["budget"] * seen.n.shape[1])

    def phi(x):
        return np.sqrt(nu * x / n) + nu / n

    return np.minimum(reward + phi(reward), 1) / np.maximum(cost - phi(cost), 0)


def soft_elimination(seen, problem, rng):
    reward, cost = (seen.reward + 1) / (seen.n + 2), (seen.cost + 1) / (seen.n + 2)
    ratio = reward / cost
    best = ratio.max(1, keepdims=True)
    weight = np.exp(-2 * seen.n * (cost * (best - ratio) / (best + 1)) ** 2).cumsum(1)
    return (rng.random((len(weight), 1)) * weight[:, -1:] > weight).sum(1)


def by_index(index):
    return lambda seen, problem, rng: pick(index(seen, problem), seen.n)


class EpsilonFirst:
    """Keeps for each run the arm it committed to; −1 before."""

    def __init__(self, epsilon=0.1):
        self.epsilon, self.committed = epsilon, None

    def __call__(self, seen, problem, rng):
        if self.committed is None:
            self.committed = np.full(len(seen.n), -1)
        ready = (seen.spent >= self.epsilon * problem["budget"]) & (seen.n > 0).all(1) & (self.committed < 0)
        reward, cost = seen.means()
        self.committed = np.where(ready, pick(reward / cost, seen.n), self.committed)
        return np.where(self.committed < 0, (seen.t - 1) % seen.n.shape[1], self.committed)


POLICIES = {
    "bts": lambda: bts,
    "epsilon-first": EpsilonFirst,
    "pd-bwk": lambda: by_index(pd_bwk_index),
    "ucb-bv1": lambda: by_index(ucb_bv1_index),
    "kube": lambda: by_index(kube_index),
    "soft-elimination": lambda: soft_elimination,
    "oracle": lambda: lambda seen, problem, rng: np.full(len(seen.n), problem["best_arm"]),
    "uniform": lambda: lambda seen, problem, rng: rng.integers(seen.n.shape[1], size=len(seen.n)),
}


def play(name, arms, budget, runs, rng):
    """Plays `runs` runs to the end of the budget. Returns rewards [runs], costs [runs], pulls [runs, K]."""
    policy = POLICIES[name]()
    ratio = arms.reward_mean / arms.cost_mean
    problem = {"budget": budget, "min_cost": arms.cost_mean.min(), "best_arm": ratio.argmax()}
    seen = Seen(runs, len(ratio))
    everyone = np.arange(runs)
    earned, left, pulls = np.zeros(runs), np.full(runs, float(budget)), np.zeros((runs, len(ratio)), int)
    playing = np.full(runs, True)
    with np.errstate(divide="ignore", invalid="ignore"):
        while playing.any():
            arm = policy(seen, problem, rng)
            reward, cost = arms.pull(arm, rng)
            pulls[everyone, arm] += playing
            seen.n[everyone, arm] += 1
            seen.reward[everyone, arm] += reward
            seen.cost[everyone, arm] += cost
            seen.reward_successes[everyone, arm] += rng.random(runs) < reward
            seen.cost_successes[everyone, arm] += rng.random(runs) < cost
            seen.spent += cost
            seen.t += 1
            affordable = playing & (cost <= left)
            earned += np.where(affordable, reward, 0)
            left -= np.where(affordable, cost, 0)
            playing = affordable & (left > 0)
    return earned, budget - left, pulls
