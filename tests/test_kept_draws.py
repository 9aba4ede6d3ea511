"""Which draws may be stored for later rounds, and what an update may change: regression tests.

`echo` draws its own parameter, after some rejections. If a draw differs from its parameter, it was
stored for another parameter.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bts_jax as bj
from bts_jax import random

BANDIT = bj.Bernoulli(reward=[0.5] * 3, cost=[1.0] * 3)


def propose(words, parameter):
    return parameter + 0 * random.unit(words[0]), random.unit(words[0]) > 0.5


def pulls(start, decide, update, rounds=60):
    """How often each arm was pulled, in a run from the state `start`."""

    @jax.tree_util.register_static
    class Policy:
        def init(self, problem):
            return jax.tree.map(jnp.asarray, start)

        def __call__(self, state, key):
            return decide(state, key)

        def update(self, state, arm, reward, cost, key):
            return update(state, arm)

    return bj.simulate(Policy(), BANDIT, rounds, jax.random.key(0)).pulls[0].tolist()


def counted(decides):
    """A policy that pulls arms 0 and 1 in turns, and arm 2 if a draw differs from its parameter."""

    def decide(state, key):
        wrong = decides(state["x"], key)
        return jnp.where(wrong, 2, state["n"] % 2).astype(jnp.int32), state

    return decide


def count(state, arm):
    return {"x": state["x"].at[arm].add(1.0), "n": state["n"] + 1}


@jax.jit
def exact_share(x):
    return x / x.sum()


START = {"x": np.ones(3, np.float32), "n": np.int32(0)}
ECHOES = {
    "plain": lambda x, key: (random.rejection(propose, key, x) != x).any(),
    "over keys": lambda x, key: (
        jax.vmap(lambda k: random.rejection(propose, k, x))(jax.random.split(key, 3)) != x
    ).any(),
    "over more keys": lambda x, key: (
        jax.vmap(lambda k: random.rejection(propose, k, x))(jax.random.split(key, 5)) != x
    ).any(),
    "a function named like ours": lambda x, key: (
        random.rejection(propose, key, exact_share(x)) != exact_share(x)
    ).any(),
    "reversed": lambda x, key: (random.rejection(propose, key, x[::-1]) != x[::-1]).any(),
    "of two": lambda x, key: (
        random.rejection(propose, key, x[:, None] + x) != x[:, None] + x
    ).any(),
    "a constant": lambda x, key: random.rejection(propose, key, 2.0) != 2.0,
    "none": lambda x, key: random.gamma(key, jnp.zeros(0)).sum() > 0,
    "a draw of a draw": lambda x, key: (
        random.rejection(propose, key, random.rejection(propose, key, x)) != x
    ).any(),
}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(3))
def test_draws_are_those_of_their_parameters(first):
    """Three kinds of draws in each call. A round waits until all are accepted, so that some are
    stored for later rounds.
    """
    kinds = list(ECHOES.values())[first::3]

    def decides(x, key):
        return jnp.stack(
            [kind(x, jax.random.fold_in(key, i)) for i, kind in enumerate(kinds)]
        ).any()

    assert pulls(START, counted(decides), count) == [30, 30, 0]


def test_a_key_in_the_state_gives_the_same_draws_in_every_round():
    start = {"words": np.array([3, 4], np.uint32), "last": np.full(30, -1, np.float32)}

    def decide(state, key):
        draws = jax.random.gamma(jax.random.wrap_key_data(state["words"]), jnp.full(30, 0.6))
        same = (draws == state["last"]).all() | (state["last"][0] < 0)
        return jnp.where(same, 0, 1), state | {"last": draws}

    assert pulls(start, decide, lambda state, arm: state) == [60, 0, 0]


def test_draws_that_are_nan_count():
    """NaN with probability 1/2: 6 standard errors of 6,000 draws."""

    def update(state, arm):
        return state

    def decide(state, key):
        draws = random.rejection(nan_or_one, key, jnp.full(30, 0.5))
        return jnp.isnan(draws[0]).astype(jnp.int32), state

    first = pulls({"n": np.int32(0)}, decide, update, rounds=6000)
    assert abs(first[1] - 3000) < 6 * np.sqrt(1500)


def nan_or_one(words, chance):
    return jnp.where(random.unit(words[1]) < chance, jnp.nan, 1.0), random.unit(words[0]) > 0.1


@pytest.mark.slow
def test_an_update_of_two_entries_under_a_condition():
    def decide(state, key):
        return jnp.where(state["x"][1] > 0, 2, 0), state

    for second in (lambda arm: 1, lambda arm: (arm + 1) % 3):
        update = lambda state, arm: {
            "x": jnp.where(arm >= 0, state["x"].at[arm].add(1).at[second(arm)].add(1), state["x"])
        }
        assert pulls({"x": np.zeros(3, np.float32)}, decide, update) == [1, 0, 59]
