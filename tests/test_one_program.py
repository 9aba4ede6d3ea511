"""A grid is one program, and other numbers need no other program: counted compilations."""

from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, keys

import bts_jax as bj

_compilations = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: _compilations.append(event) if event.endswith("backend_compile_duration") else None
)


@contextmanager
def counted():
    """Counts the programs that XLA compiles meanwhile."""
    before = len(_compilations)
    count = []
    yield count
    count.extend(_compilations[before:])


def test_a_grid_is_one_program_and_its_values_are_data():
    def grid(scales, bandits, budgets, keys):
        play = lambda scale, bandit, budget, key: bj.simulate(bj.KUBE(scale=scale), bandit, budget, key)  # noqa: E731
        for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
            play = jax.vmap(play, axes)
        return play(scales, bandits, budgets, keys)

    grid = jax.jit(grid)
    make = jax.jit(jax.vmap(lambda key: bj.Bernoulli.random(key, 4, cost_range=(0.2, 1))))

    def settings(seed):
        rng = np.random.default_rng(seed)
        return (jnp.array(rng.uniform(0.5, 3, 5), jnp.float32), make(keys(20, seed)),
                jnp.array(rng.uniform(5, 15, 3), jnp.float32), keys(50, seed + 10))

    first, second = settings(1), settings(2)
    with counted() as programs:
        runs = jax.block_until_ready(grid(*first))
    assert len(programs) == 1
    assert runs.reward.shape == (5, 20, 3, 50, 1)
    with counted() as programs:
        again = jax.block_until_ready(grid(*second))
    assert programs == []
    assert (np.asarray(again.reward) != np.asarray(runs.reward)).any()


@pytest.mark.parametrize("name", bj.POLICIES)
def test_simulate_itself_compiles_once(name):
    policy = bj.POLICIES[name]()
    alone, many = keys(2), keys(6)
    other = bj.Bernoulli(reward=[0.5, 0.1, 0.9, 0.3, 0.4], cost=[0.2, 0.3, 0.8, 0.7, 0.6])
    hyper = {"bts": bj.BTS(cost_beta=2.0), "epsilon-first": bj.EpsilonFirst(epsilon=np.float64(0.3)),
             "pd-bwk": bj.PDBwK(scale=jnp.float32(0.1)), "kube": bj.KUBE(scale=1)}.get(name, policy)
    bj.simulate(policy, INSTANCES["bernoulli"], 10, alone[0], checkpoints=[5, 10])
    with counted() as programs:
        bj.simulate(hyper, other, 12.5, alone[1], checkpoints=np.array([2.5, 7]))
    assert programs == []

    def sweep(policy, bandit, keys):
        return jax.vmap(bj.simulate, (None, None, None, 0))(policy, bandit, 10, keys)

    sweep(policy, INSTANCES["bernoulli"], many[:3])
    with counted() as programs:
        sweep(hyper, other, many[3:])
    assert programs == [], "an eager vmap too"


def test_runs_have_no_derivatives_and_what_is_computed_from_them_has():
    bandit = INSTANCES["bernoulli"]

    def reward(scale):
        return bj.simulate(bj.KUBE(scale=scale), bandit, 10.0, keys(1)[0]).reward[0]

    assert jax.grad(reward)(2.0) == 0 and jax.jacfwd(reward)(2.0) == 0
    gradient = jax.grad(lambda cost: bj.pseudo_regret(
        bj.simulate(bj.BTS(), bandit, 10, keys(1)[0]), bj.Bernoulli(reward=bandit.reward, cost=cost)).sum())(bandit.cost)
    assert np.isfinite(gradient).all() and (gradient != 0).any()
