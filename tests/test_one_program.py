"""A grid is one program, and other numbers need no other program: counts compilations. (For each
policy: test_reference.)
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, counted, keys

import bts_jax as bj


@pytest.mark.slow
def test_a_grid_is_one_program_and_its_values_are_data():
    def grid(scales, bandits, budgets, keys):
        play = lambda scale, bandit, budget, key: bj.simulate(
            bj.KUBE(scale=scale), bandit, budget, key
        )
        for axes in (
            (None, None, None, 0),
            (None, None, 0, None),
            (None, 0, None, None),
            (0, None, None, None),
        ):
            play = jax.vmap(play, axes)
        return play(scales, bandits, budgets, keys)

    grid = jax.jit(grid)
    make = jax.jit(jax.vmap(lambda key: bj.Bernoulli.random(key, 4, cost_range=(0.2, 1))))

    def settings(seed):
        rng = np.random.default_rng(seed)
        return (
            jnp.array(rng.uniform(0.5, 3, 5), jnp.float32),
            make(keys(20, seed)),
            jnp.array(rng.uniform(5, 15, 3), jnp.float32),
            keys(50, seed + 10),
        )

    first, second = settings(1), settings(2)
    with counted() as programs:
        runs = jax.block_until_ready(grid(*first))
    assert len(programs) == 1
    assert runs.reward.shape == (5, 20, 3, 50, 1)
    with counted() as programs:
        again = jax.block_until_ready(grid(*second))
    assert programs == []
    assert (np.asarray(again.reward) != np.asarray(runs.reward)).any()


@pytest.mark.slow
def test_an_eager_vmap_compiles_once():
    def play(policy, bandit, keys):
        return jax.vmap(bj.simulate, (None, None, None, 0))(policy, bandit, 10, keys)

    first, second = keys(3), keys(3, seed=1)
    other = bj.Bernoulli(reward=[0.5, 0.1, 0.9, 0.3, 0.4], cost=[0.2, 0.3, 0.8, 0.7, 0.6])
    play(bj.KUBE(), INSTANCES["bernoulli"], first)
    with counted() as programs:
        play(bj.KUBE(scale=1), other, second)
    assert programs == []


@pytest.mark.slow
def test_runs_have_no_derivatives_and_what_is_computed_from_them_has():
    bandit = INSTANCES["bernoulli"]

    def money(scale, budget):
        run = bj.simulate(bj.KUBE(scale=scale), bandit, budget, keys(1)[0])
        return run.reward[0] + run.cost[0]

    assert jax.grad(money, (0, 1))(2.0, 10.0) == (0, 0) and jax.jacfwd(money)(2.0, 10.0) == 0
    gradient = jax.grad(
        lambda cost: bj.pseudo_regret(
            bj.simulate(bj.KUBE(), bandit, 10, keys(1)[0]),
            bj.Bernoulli(reward=bandit.reward, cost=cost),
        ).sum()
    )(bandit.cost)
    assert np.isfinite(gradient).all() and (gradient != 0).any()
