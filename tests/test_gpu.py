"""What users write in policies, on a GPU: it runs in `simulate_batch` and `sweep`, with the bits of
`jax.vmap(simulate)`.

Skipped without a GPU. On one: `python -m pytest -n 0 tests/test_gpu.py tests/test_engine.py
tests/test_batch.py`.
"""

import os
import subprocess
import sys
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import assert_same_bits, batch, keys
from jax import lax

import bts_jax as bj
from bts_jax.devices import STREAMS, streams
from bts_jax.sweeps import schedule

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")

ARMS = 3
BANDIT = bj.Bernoulli(reward=[0.9, 0.5, 0.3], cost=[0.5, 0.6, 0.4])
MATRIX = jnp.eye(ARMS) * 2 + 0.1


def seen(x):
    return jax.pure_callback(
        lambda x: np.asarray(x) + 1,
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        x,
        vmap_method="sequential",
    )


def propose_small(words, chance):
    """A uniform number and another one, which accepts it with this probability."""
    return bj.random.unit(words[0]), bj.random.unit(words[1]) < chance


# Scores of the arms, from a key and a count of pulls [ARMS].
CONSTRUCTS = {
    "jax.random.beta": lambda key, n: jax.random.beta(key, n + 1, 2.0),
    "jax.random.gamma": lambda key, n: jax.random.gamma(key, n + 0.5),
    "jax.random.dirichlet": lambda key, n: jax.random.dirichlet(key, n + 1),
    "bts_jax.random.beta": lambda key, n: bj.random.beta(key, n + 1, 2.0),
    "rejection": lambda key, n: bj.random.rejection(propose_small, key, 1 / (n + 1)),
    "jax.random.poisson": lambda key, n: jax.random.poisson(key, n + 1).astype(jnp.float32),
    "truncated_normal": lambda key, n: jax.random.truncated_normal(key, -1, 1, (ARMS,)) * n,
    "permutation": lambda key, n: jax.random.permutation(key, n),
    "choice": lambda key, n: jax.random.choice(
        key, ARMS, (ARMS,), p=(n + 1) / (n + 1).sum()
    ).astype(jnp.float32),
    "while_loop": lambda key, n: lax.while_loop(
        lambda x: x.sum() < 20, lambda x: x * 2 + 1, n + jax.random.uniform(key)
    ),
    "scan": lambda key, n: lax.scan(
        lambda h, x: (jnp.tanh(h + x), h), n, jax.random.normal(key, (4, ARMS))
    )[0],
    "cond": lambda key, n: lax.cond(jax.random.uniform(key) < 0.5, lambda: n, lambda: -n),
    "sort": lambda key, n: jnp.sort(n + jax.random.normal(key, (ARMS,))),
    "cholesky": lambda key, n: (
        jnp.linalg.cholesky(MATRIX + jnp.diag(n)) @ jax.random.normal(key, (ARMS,))
    ),
    "solve": lambda key, n: jnp.linalg.solve(MATRIX + jnp.diag(n), jax.random.normal(key, (ARMS,))),
    "matrix product": lambda key, n: (
        jax.random.normal(key, (ARMS, 16)) @ jnp.tanh(jnp.ones((16, ARMS)) @ n)
    ),
    "callback": lambda key, n: seen(n) + jax.random.uniform(key, (ARMS,)),
    "segment_sum": lambda key, n: (
        jax.ops.segment_sum(jax.random.normal(key, (20,)), jnp.arange(20) % ARMS, ARMS) + n
    ),
}


def deciding(scores):
    """A policy with a construct in `__call__`."""

    @chex.dataclass(frozen=True)
    class Deciding:
        def init(self, problem):
            return jnp.zeros(ARMS)

        def __call__(self, state, key):
            return jnp.argmax(scores(key, state)), state

        def update(self, state, arm, reward, cost, key):
            return state.at[arm].add(reward)

    return Deciding()


def updating(scores):
    """A policy with a construct in `update`."""

    @chex.dataclass(frozen=True)
    class Updating:
        def init(self, problem):
            return {"pulls": jnp.zeros(ARMS), "scores": jnp.zeros(ARMS)}

        def __call__(self, state, key):
            return jnp.argmax(state["scores"] + jax.random.uniform(key, (ARMS,))), state

        def update(self, state, arm, reward, cost, key):
            pulls = state["pulls"].at[arm].add(reward)
            return {"pulls": pulls, "scores": scores(key, pulls)}

    return Updating()


POLICIES: dict[str, Any] = {"call": deciding, "update": updating}


@pytest.mark.parametrize("place", POLICIES)
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_constructs_run_with_the_bits_of_vmap(name, place):
    policy = POLICIES[place](CONSTRUCTS[name])
    runs = bj.simulate_batch(policy, BANDIT, 20, keys(40))
    assert np.isfinite(runs.reward).all()
    assert_same_bits(bj.simulate_batch(policy, BANDIT, 20, keys(40), lanes=7), runs)
    assert_same_bits(batch(policy, BANDIT, 20, keys(40)), runs)


@pytest.mark.parametrize("name", bj.KNAPSACK_POLICIES)
def test_several_resources_have_the_bits_of_vmap(name):
    policy, bandit = bj.KNAPSACK_POLICIES[name](), bj.Timed(BANDIT, horizon=2)
    runs = bj.simulate_batch(policy, bandit, [20, 30], keys(40))
    assert np.isfinite(runs.reward).all() and (runs.cost <= runs.budget).all()
    assert_same_bits(bj.simulate_batch(policy, bandit, [20, 30], keys(40), lanes=7), runs)
    assert_same_bits(batch(policy, bandit, [20, 30], keys(40)), runs)


def test_three_of_them_in_one_sweep():
    policies = {
        name: deciding(CONSTRUCTS[name])
        for name in ("jax.random.beta", "jax.random.gamma", "jax.random.dirichlet")
    }
    together = bj.sweep(policies, {"arms": BANDIT}, [10, 20], 40)
    for name, policy in policies.items():
        alone = bj.sweep({name: policy}, {"arms": BANDIT}, [10, 20], 40)
        assert (
            not np.isnan(alone.regret).any()
            and (alone.regret.values == together.regret.sel(policy=[name]).values).all()
        )


def test_programs_in_several_streams_have_the_bits_of_one_stream(monkeypatch):
    """Six programs: two policies that draw by rejection and one that does not, on two numbers of
    arms.
    """
    assert len(streams(tuple(jax.devices()), 6)) == STREAMS
    policies = {name: bj.POLICIES[name]() for name in ("gaussian-bts", "joint-bts", "kube")}
    bandits = {"three": BANDIT, "two": bj.Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.6])}
    monkeypatch.setattr(schedule, "_small_call", lambda grid: 0)  # one program for each policy
    several = bj.sweep(policies, bandits, [10, 2000], 40)
    monkeypatch.setenv("BTS_JAX_STREAMS", "1")
    one = bj.sweep(policies, bandits, [10, 2000], 40)
    assert not np.isnan(one.regret).any() and (one.regret.values == several.regret.values).all()


PLAY = """
import jax
import numpy as np
import bts_jax as bj

bandit, devices = bj.Bernoulli(reward=[0.9, 0.5, 0.3], cost=[0.5, 0.6, 0.4]), jax.devices("cpu")
with jax.default_device(devices[0]):
    keys = jax.random.split(jax.random.key(0), 40)
    for name in ("bts", "kube", "omega-ucb"):
        runs = bj.simulate_batch(bj.POLICIES[name](), bandit, 50, keys, devices=devices)
        print(np.asarray(runs.reward).tobytes().hex(), np.asarray(runs.pulls).tobytes().hex())
    results = bj.sweep(["bts", "kube"], {"three": bandit}, [10, 20], 30, devices=devices, quiet=True)
    print(results.attrs["device"], np.asarray(results.reward).tobytes().hex())
"""  # noqa: E501


def test_cpu_devices_have_the_bits_of_a_machine_without_a_gpu():
    def output(**environment):
        result = subprocess.run(
            [sys.executable, "-c", PLAY],
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr[-2000:]
        return result.stdout

    assert output() == output(JAX_PLATFORMS="cpu")
