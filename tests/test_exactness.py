"""A run depends only on (policy, bandit, budget, key), bit for bit. (test_reference tests this for
each policy.)
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, assert_same_bits, batch, keys, take

import bts_jax as bj
from bts_jax.pytrees import pytree


@pytest.mark.slow
def test_a_run_does_not_depend_on_its_batch():
    """The small batch is played by tempered BTS: with sharpness 1 it is BTS, for every schedule."""
    bandit, many = INSTANCES["bernoulli"], keys(23)
    whole = batch(bj.BTS(), bandit, 20, many)  # test_batch uses the same program
    few = jax.jit(lambda keys: batch(bj.TemperedBTS(horizon=30.0, decay=0.7), bandit, 20, keys))(
        many[5:12]
    )
    assert_same_bits(few, take(whole, slice(5, 12)))


def bernoulli(*count):
    """Bandits with four arms, in an array of this shape."""
    reward, cost = np.random.default_rng(1).uniform(0.2, 1, (2, *count, 4)).astype(np.float32)
    return bj.Bernoulli(reward=reward, cost=cost)


@pytest.mark.slow
def test_the_batch_may_be_nested_and_over_everything():
    """Its axes may be anywhere: here that of the bandits is the last of what goes in, and the
    second of what comes out.
    """
    hyper, bandits, budgets, many = (
        np.float32([0.5, 2.0]),
        bernoulli(3),
        np.float32([7.0, 15.0]),
        keys(5),
    )
    play = lambda scale, bandit, budget, key: bj.simulate(bj.KUBE(scale=scale), bandit, budget, key)
    nested = jax.vmap(jax.vmap(play, (None, None, None, 0)), (None, None, 0, None))
    nested = jax.vmap(jax.vmap(nested, (None, 1, None, None), out_axes=1), (0, None, None, None))
    grid = jax.jit(nested)(hyper, jax.tree.map(np.transpose, bandits), budgets, many)
    assert grid.pulls.shape == (2, 2, 3, 5, 1, 4)
    for a, b, c, d in ((0, 0, 0, 0), (1, 2, 1, 4), (0, 1, 1, 2)):
        assert_same_bits(
            play(hyper[a], take(bandits, b), budgets[c], many[d]), take(grid, (a, c, b, d))
        )


@pytest.mark.slow
def test_the_kind_of_number_does_not_matter():
    bandit, key = bernoulli(), keys(5)[0]
    run = bj.simulate(bj.KUBE(), bandit, 20, key, checkpoints=[15])
    assert_same_bits(
        bj.simulate(bj.KUBE(scale=np.float64(2)), bandit, 20.0, key, checkpoints=np.array([15])),
        run,
    )
    assert_same_bits(
        bj.simulate(
            bj.KUBE(scale=jnp.float32(2)), bandit, jnp.int32(20), key, checkpoints=jnp.array([15.0])
        ),
        run,
    )


RUNS = """
bandit = bj.Bernoulli(reward=[0.3, 0.7, 0.5], cost=[0.4, 0.6, 0.3])
run = bj.simulate_batch(bj.BTS(), bandit, 30, jax.random.split(jax.random.key(0), 5))
print(np.asarray(run.pulls).ravel().tolist(), np.asarray(run.reward).ravel().tolist(), run.pulls.dtype)
"""  # noqa: E501


@pytest.mark.slow
@pytest.mark.all_devices
def test_a_run_does_not_depend_on_the_session(capsys):
    """The same runs in another process with other settings.

    Keys of another implementation are other keys, but they must work.
    """
    if jax.default_backend() != "cpu":
        pytest.skip("the other process would run on this process's accelerator, which is taken")
    exec(RUNS)
    here = capsys.readouterr().out.splitlines()
    code = f"""
import jax, numpy as np
jax.config.update('jax_enable_x64', True)
jax.config.update('jax_num_cpu_devices', 1)
import bts_jax as bj
{RUNS}
jax.config.update('jax_default_prng_impl', 'rbg')
{RUNS}
"""
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    ).stdout.splitlines()
    assert len(out) == 2 and out[:1] == here and out[1] != here[0]


@pytree
class Quotients:
    """Decides by the last bit of arm numbers divided by a number of the run, which XLA divides
    differently for a single run.
    """

    def init(self, problem):
        return jnp.ones(problem.num_arms), jnp.float32(1)

    def __call__(self, state, key):
        quotients = state[0] / state[1]
        mixed = (jax.lax.bitcast_convert_type(quotients, jnp.uint32) * jnp.uint32(2654435761)).sum(
            dtype=jnp.uint32
        )
        return ((mixed >> 7) % jnp.uint32(quotients.shape[0])).astype(jnp.int32), state

    def update(self, state, arm, reward, cost, key):
        return state[0].at[arm].add(reward / 3 + cost / 11), state[1] + cost / 7 + jnp.float32(0.1)


@pytest.mark.slow
def test_a_run_alone_has_the_bits_of_a_batch():
    bandit, many = INSTANCES["bernoulli"], keys(9)
    budgets = np.float32([90.0] + [12.0] * 8)  # one long run: only one lane could be kept busy
    whole = jax.jit(jax.vmap(lambda budget, key: bj.simulate(Quotients(), bandit, budget, key)))(
        budgets, many
    )
    for i in range(3):
        assert_same_bits(bj.simulate(Quotients(), bandit, budgets[i], many[i]), take(whole, i))
    assert_same_bits(
        bj.simulate_batch(Quotients(), bandit, budgets[:1], many[:1]), take(whole, slice(0, 1))
    )
    assert_same_bits(bj.simulate_batch(Quotients(), bandit, budgets, many, lanes=1), whole)


@pytree
class Logarithms:
    """Decides only by the last bits of `log` and `exp` of a number of the run and of numbers of the
    arms.
    """

    def init(self, problem):
        return jnp.float32(1.37), jnp.full(problem.num_arms, 0.1), jnp.ones(problem.num_arms)

    def __call__(self, state, key):
        numbers = jnp.stack(
            [
                jnp.log(state[0]) * state[1],
                jnp.log(state[1]),
                jnp.full_like(state[1], jnp.exp(state[2]).max()),
            ]
        )
        mixed = (jax.lax.bitcast_convert_type(numbers, jnp.uint32) * jnp.uint32(2654435761)).sum(
            dtype=jnp.uint32
        )
        return ((mixed >> 7) % jnp.uint32(len(state[1]))).astype(jnp.int32), state

    def update(self, state, arm, reward, cost, key):
        return (
            state[0] + 0.7371,
            state[1].at[arm].add(reward * 0.37 + 0.01),
            state[2].at[arm].add(-0.0317),
        )


@pytest.mark.slow
def test_logarithms_have_the_same_bits_in_any_number_of_lanes():
    """XLA's CPU compiler writes out short loops, and gives `log` and `exp` other bits there: see
    `loop.lane_count`.

    It makes 2, 12, 4 and 8 lanes of those here, one of each number that is left below 16; 5 and 6
    would be 8 lanes, too. The first two numbers play all runs in turn. The others play as many runs
    as they say.
    """
    bandit, many = INSTANCES["bernoulli"], keys(35)
    whole = batch(Logarithms(), bandit, 30, many)
    assert len(np.unique(whole.pulls[:, 0], axis=0)) > 30
    for width in (1, 11):
        ours = bj.simulate_batch(
            Logarithms(), bandit, 30, many, lanes=width, devices=jax.devices()[:1]
        )
        assert_same_bits(ours, whole)
    for count in (3, 7):
        assert_same_bits(
            batch(Logarithms(), bandit, 30, many[:count]), take(whole, slice(0, count))
        )


@pytree
class Shared:
    """Decides by the last bits of quotients by a hyperparameter."""

    theta: float = 0.7371

    def init(self, problem):
        return jnp.zeros(problem.num_arms), jnp.zeros(problem.num_arms)

    def __call__(self, state, key):
        mean = state[1] / jnp.maximum(state[0], 1) + jnp.float32(0.1)
        scores = jnp.stack(
            [mean / self.theta, mean / (self.theta * jnp.arange(len(mean)) + jnp.float32(1.1))]
        )
        mixed = (jax.lax.bitcast_convert_type(scores, jnp.uint32) * jnp.uint32(2654435761)).sum(
            0, dtype=jnp.uint32
        )
        return jnp.argmax((mixed >> 7) + jnp.arange(len(mean), dtype=jnp.uint32)), state

    def update(self, state, arm, reward, cost, key):
        return state[0].at[arm].add(1), state[1].at[arm].add(cost * 0.3 + 0.01)


@pytest.mark.slow
def test_what_runs_share_does_not_change_their_bits():
    """A hyperparameter that all runs share; and one for each run, in runs that pause at
    checkpoints.
    """
    bandit, many = INSTANCES["bernoulli"], keys(20)
    shared = bj.simulate_batch(Shared(), bandit, 30, many)
    assert len(np.unique(shared.pulls[:, 0], axis=0)) > 10
    assert_same_bits(batch(Shared(), bandit, 30, many), shared)
    each = Shared(theta=np.full(20, 0.7371, np.float32))
    pausing = bj.simulate_batch(each, bandit, 30, many, checkpoints=[2, 5, 11, 30], lanes=8)
    assert_same_bits(take(pausing, (slice(None), slice(3, None))), shared)
