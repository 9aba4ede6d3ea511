"""Helpers that several test files use."""

from contextlib import contextmanager

import chex
import jax
import numpy as np
from jax.typing import ArrayLike

import bts_jax as bj

# One small instance per family: fixed, with gaps neither tiny nor huge.
INSTANCES = {
    "bernoulli": bj.Bernoulli(reward=[0.3, 0.7, 0.5, 0.9, 0.2], cost=[0.4, 0.6, 0.3, 0.95, 0.5]),
    "multinomial": bj.Multinomial(
        reward_probs=[
            [0.1, 0.2, 0.3, 0.3, 0.1],
            [0.4, 0.3, 0.1, 0.1, 0.1],
            [0, 0, 0.1, 0.3, 0.6],
            [0.2] * 5,
        ],
        cost_probs=[
            [0.3, 0.3, 0.2, 0.1, 0.1],
            [0.1, 0.4, 0.3, 0.1, 0.1],
            [0.05, 0.1, 0.2, 0.3, 0.35],
            [0.2] * 5,
        ],
    ),
    "beta": bj.Beta(
        reward_alpha=[0.3, 2, 5],
        reward_beta=[0.5, 3, 2.5],
        cost_alpha=[0.2, 1, 3],
        cost_beta=[0.4, 2, 1],
    ),
    "correlated": bj.Correlated(
        reward=[0.3, 0.7, 0.5], cost=[0.4, 0.6, 0.3], correlation=[0.6, -0.5, 0.2]
    ),
    "empirical": bj.Empirical(
        reward=[[0, 1, 0.25, 0], [0.5, 0.125, 1, 0.875], [0.125, 0.75, 0, 0]],
        cost=[[0.125, 0.875, 0.5, 0], [1, 0.25, 0.375, 0.5], [0.75, 0.25, 0, 0]],
        rows=[3, 4, 2],
    ),
}
INSTANCES["copula"] = bj.Copula(
    reward=[[0, 0.25, 1], [0.5, 0.5, 0.75], [0, 1, 1]],
    cost=[[0.125, 1], [0.25, 0.5], [0, 0.75]],
    correlation=[0.9, -0.5, 0],
)
INSTANCES["fixed-price"] = bj.FixedPrice(success=[0.3, 0.7, 0.9], price=[0.25, 0.375, 1])
INSTANCES["scaled"] = bj.Scaled(
    bandit=INSTANCES["bernoulli"],
    scale=[0.5, 0, 0.75, 0.25, 0],
    shift=[0.125, 0.25, 0.125, 0.75, 0.5],
)
# Families for several resources, and families that can have several.
SEVERAL = {
    "bernoulli": bj.Bernoulli(reward=[0.3, 0.7, 0.5], cost=[[0.4, 0.1], [0.6, 0.9], [0.3, 0.3]]),
    "multinomial": bj.Multinomial(
        reward_probs=[[0.1, 0.9], [0.4, 0.6]],
        cost_probs=[[[0.3, 0.7], [0.1, 0.9]], [[0.5, 0.5], [0.8, 0.2]]],
    ),
    "pricing": bj.Pricing(
        prices=[[0.5, 1], [2, 0.25], [1, 3]],
        demand=[[0.9, 0.5], [0.2, 0.8], [0.5, 0.25]],
        inventory=[1, 4],
    ),
}
SEVERAL["timed"] = bj.Timed(bandit=INSTANCES["scaled"], horizon=4)
SEVERAL["with-null"] = bj.WithNull(bandit=bj.Timed(bandit=SEVERAL["pricing"], horizon=2))
assert set(INSTANCES) | set(SEVERAL) == set(bj.BANDITS), (
    "add an instance for each family in the registry"
)


def batch(policy, bandit, budget, keys, **options):
    return jax.vmap(lambda key: bj.simulate(policy, bandit, budget, key, **options))(keys)


_compilations = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: (
        _compilations.append(event) if event.endswith("backend_compile_duration") else None
    )
)


@contextmanager
def counted():
    """Counts the programs that XLA compiles in the `with` block."""
    before = len(_compilations)
    count = []
    yield count
    count.extend(_compilations[before:])


def take(runs, index):
    """Uses NumPy, because JAX would compile a program for every shape."""
    return jax.tree.map(lambda x: np.asarray(x)[index], runs)


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def assert_same_bits(left, right):
    """Equal in every leaf, dtype and bit."""
    left, right = jax.tree.leaves_with_path(left), jax.tree.leaves_with_path(right)
    assert len(left) == len(right)
    for (path, a), (_, b) in zip(left, right, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape, (path, a.dtype, b.dtype, a.shape, b.shape)
        assert a.tobytes() == b.tobytes(), (jax.tree_util.keystr(path), a, b)


def made_up(regret, budgets, names=None, arms=4):
    """A Dataset as `sweep` returns it, with this regret [policy, bandit, budget, seed] and other
    made-up values that fit.
    """
    import xarray as xr

    regret = np.asarray(regret, np.float64)
    policies, bandits, _, seeds = regret.shape
    rng = np.random.default_rng(0)
    axes = ("policy", "bandit", "budget", "seed")
    reward_mean, cost_mean = rng.uniform(0.1, 0.9, (2, bandits, arms))
    pulls = rng.integers(1, 50, (*regret.shape, arms), np.int32)
    best = (reward_mean / cost_mean).max(-1)[None, :, None, None]
    budget = np.asarray(budgets, np.float64)
    return xr.Dataset(
        {
            "reward": (axes, (best * budget[:, None] - regret).astype(np.float32)),
            "cost": (axes, np.broadcast_to(budget[:, None], regret.shape).astype(np.float32)),
            "rounds": (axes, pulls.sum(-1, dtype=np.int32)),
            "truncated": (axes, np.zeros(regret.shape, bool)),
            "pulls": ((*axes, "arm"), pulls),
            "regret": (axes, regret),
            "pseudo_regret": (axes, regret + 1),
        },
        coords={
            "policy": list(names or list(bj.POLICIES)[:policies]),
            "bandit": [f"instance {i}" for i in range(bandits)],
            "budget": budget,
            "seed": np.arange(seeds),
            "arm": np.arange(arms),
            "reward_mean": (("bandit", "arm"), reward_mean),
            "cost_mean": (("bandit", "arm"), cost_mean),
            "num_arms": ("bandit", np.full(bandits, arms)),
            "family": ("bandit", ["Bernoulli"] * bandits),
            "requires": ("policy", ["none"] * policies),
        },
    )


def grid_file(seeds, budgets):
    """A grid file with one policy and one bandit; tables may follow."""
    return f"""
num_seeds = {seeds}
budgets = {budgets}
[policies.any]
kind = "uniform"
[bandits.two]
kind = "bernoulli"
reward = [0.9, 0.2]
cost = [0.5, 0.5]
"""


@chex.dataclass(frozen=True)
class Constant:
    """Arms that always give the same reward and cost."""

    reward_mean: ArrayLike
    cost_mean: ArrayLike
    factor: ArrayLike = 1.0

    def pull(self, key, arm):
        return self.reward_mean[arm], self.factor * self.cost_mean[arm]
