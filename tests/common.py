"""What several test files need."""

import jax
import numpy as np

import bts_jax as bj

# One small instance per family: fixed, with gaps neither tiny nor huge.
INSTANCES = {
    "bernoulli": bj.Bernoulli(reward=[0.3, 0.7, 0.5, 0.9, 0.2], cost=[0.4, 0.6, 0.3, 0.95, 0.5]),
    "multinomial": bj.Multinomial(
        reward_probs=[[0.1, 0.2, 0.3, 0.3, 0.1], [0.4, 0.3, 0.1, 0.1, 0.1], [0, 0, 0.1, 0.3, 0.6], [0.2] * 5],
        cost_probs=[[0.3, 0.3, 0.2, 0.1, 0.1], [0.1, 0.4, 0.3, 0.1, 0.1], [0.05, 0.1, 0.2, 0.3, 0.35], [0.2] * 5],
    ),
}
assert set(INSTANCES) == set(bj.BANDITS), "add an instance for each family in the registry"

# Tempered BTS is BTS, bit for bit, until its sharpness is changed: `test_learn.py` and `test_audit.py` do that.
ALL = [(policy, family) for policy in bj.POLICIES if policy != "tempered-bts" for family in bj.BANDITS]
# For tests that compile much and depend little on the arms: every policy, and every family with the paper's.
MOST = [(policy, family) for policy, family in ALL if family == "bernoulli" or policy == "bts"]


def batch(policy, bandit, budget, keys, **options):
    return jax.vmap(lambda key: bj.simulate(policy, bandit, budget, key, **options))(keys)


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
    """A Dataset as `sweep` returns it, with this regret [policy, bandit, budget, seed] and the rest made up to fit."""
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
            "policy": list(names or list(bj.POLICIES)[:policies]), "bandit": [f"instance {i}" for i in range(bandits)],
            "budget": budget, "seed": np.arange(seeds), "arm": np.arange(arms),
            "reward_mean": (("bandit", "arm"), reward_mean), "cost_mean": (("bandit", "arm"), cost_mean),
            "num_arms": ("bandit", np.full(bandits, arms)), "family": ("bandit", ["Bernoulli"] * bandits),
            "told": ("policy", ["nothing"] * policies),
        },
    )
