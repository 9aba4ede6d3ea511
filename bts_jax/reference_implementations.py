"""Reference implementations for benchmarks: the same game in NumPy, in numba and in the obvious
JAX.

They play Bernoulli arms and whole-numbered budgets only. Each program is as fast as its kind
allows: NumPy works on all runs at once, the numba program on all cores, and the JAX program is one
jitted `vmap` of a `while_loop`. They are tested like the policies themselves. Each returns the
pulls of each arm, [runs, K].
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np


def numpy_runs(
    name: str, reward: np.ndarray, cost: np.ndarray, budget: int, runs: int, seed: int
) -> np.ndarray:
    """One of the paper's policies in NumPy, all runs at once."""
    rng = np.random.default_rng(seed)
    num_arms = len(reward)
    decide = _NUMPY_POLICIES[name]
    side_info = {"nu": 0.25 * np.log(budget * num_arms), "min_cost": cost.min()}
    pulls, rewards, costs = np.zeros((3, runs, num_arms))
    everyone: Any = np.arange(runs)
    spent = np.zeros(runs)
    final = np.zeros((runs, num_arms), np.int64)
    t = 0
    while len(everyone):
        t += 1
        once = name != "bts" and t <= num_arms  # index policies first pull every arm once
        arm = (
            np.full(len(everyone), t - 1)
            if once
            else decide(rng, pulls, rewards, costs, t, side_info)
        )
        row = np.arange(len(everyone))
        pulls[row, arm] += 1
        rewards[row, arm] += rng.random(len(arm)) < reward[arm]
        paid = rng.random(len(arm)) < cost[arm]
        costs[row, arm] += paid
        spent += paid
        ended = spent >= budget
        if ended.any():  # ended runs are dropped, so that they take no time
            final[everyone[ended]] = pulls[ended]
            pulls, rewards, costs, spent, everyone = (
                x[~ended] for x in (pulls, rewards, costs, spent, everyone)
            )
    return final


def _bts(rng, pulls, rewards, costs, t, side_info):
    return (
        rng.beta(rewards + 1, pulls - rewards + 1) / rng.beta(costs + 1, pulls - costs + 1)
    ).argmax(1)


def _largest(index: np.ndarray, pulls: np.ndarray) -> np.ndarray:
    """The arm with the largest index. If several indices are infinite, the least pulled of these
    arms.
    """
    infinite = ~np.isfinite(index)
    arm = index.argmax(1)
    rows = np.flatnonzero(infinite.any(1))
    arm[rows] = np.where(infinite[rows], pulls[rows], np.inf).argmin(1)
    return arm


def _kube(rng, pulls, rewards, costs, t, side_info):
    with np.errstate(divide="ignore", invalid="ignore"):
        index = (rewards + np.sqrt(2 * np.log(t) * pulls)) / costs
    return _largest(index, pulls)


def _ucb_bv1(rng, pulls, rewards, costs, t, side_info):
    floor = side_info["min_cost"]
    e = np.sqrt(np.log(t - 1) / pulls)
    with np.errstate(divide="ignore", invalid="ignore"):
        index = rewards / costs + (1 + 1 / floor) * e / (floor - e)
    return _largest(index, pulls)


def _pd_bwk(rng, pulls, rewards, costs, t, side_info):
    nu = side_info["nu"]
    reward, cost, share = rewards / pulls, costs / pulls, nu / pulls
    with np.errstate(divide="ignore", invalid="ignore"):
        index = np.minimum(reward + np.sqrt(share * reward) + share, 1) / np.maximum(
            cost - np.sqrt(share * cost) - share, 0
        )
    return _largest(index, pulls)


_NUMPY_POLICIES: dict[str, Callable] = {
    "bts": _bts,
    "kube": _kube,
    "ucb-bv1": _ucb_bv1,
    "pd-bwk": _pd_bwk,
}


def jax_runs(reward: np.ndarray, cost: np.ndarray, budget: int, runs: int, seed: int) -> Any:
    """BTS in the most direct JAX. Returns a compiled function without arguments."""
    import jax
    import jax.numpy as jnp

    rewards, costs = jnp.asarray(reward, jnp.float32), jnp.asarray(cost, jnp.float32)

    def play(key):
        def body(carry):
            key, spent, successes, pulls = carry
            key, key_reward, key_cost, key_pull = jax.random.split(key, 4)
            failures = pulls - successes
            ratio = jax.random.beta(
                key_reward, successes[0] + 1, failures[0] + 1
            ) / jax.random.beta(key_cost, successes[1] + 1, failures[1] + 1)
            arm = jnp.argmax(ratio)
            outcome = jax.random.uniform(key_pull, (2,)) < jnp.stack([rewards[arm], costs[arm]])
            return key, spent + outcome[1], successes.at[:, arm].add(outcome), pulls.at[arm].add(1)

        start = key, jnp.int32(0), jnp.zeros((2, len(reward))), jnp.zeros(len(reward))
        return jax.lax.while_loop(lambda carry: carry[1] < budget, body, start)[3]

    keys = jax.random.split(jax.random.key(seed), runs)
    return partial(jax.jit(jax.vmap(play)).lower(keys).compile(), keys)


def numba_runs(reward: np.ndarray, cost: np.ndarray, budget: int, runs: int, seed: int) -> Any:
    """BTS in numba, on all cores. Returns a compiled function without arguments, or `None` if numba
    is not installed.
    """
    try:
        import numba  # type: ignore
    except ImportError:
        return None

    @numba.njit(parallel=True)
    def play(reward, cost, budget, runs, seed):
        num_arms = len(reward)
        final = np.zeros((runs, num_arms), np.int64)
        for run in numba.prange(runs):
            np.random.seed(seed + run)
            rewards, costs = np.zeros(num_arms), np.zeros(num_arms)
            spent = 0
            while spent < budget:
                best, arm = -1.0, 0
                for i in range(num_arms):
                    n = final[run, i]
                    ratio = np.random.beta(rewards[i] + 1, n - rewards[i] + 1) / np.random.beta(
                        costs[i] + 1, n - costs[i] + 1
                    )
                    if ratio > best:
                        best, arm = ratio, i
                final[run, arm] += 1
                rewards[arm] += np.random.random() < reward[arm]
                if np.random.random() < cost[arm]:
                    costs[arm] += 1
                    spent += 1
        return final

    play(reward, cost, 1, 2, seed)
    return partial(play, reward, cost, budget, runs, seed)
