"""A run knows its bandit: `regret` refuses another one, and never the right one."""

import jax
import numpy as np
import pytest
from common import INSTANCES, SEVERAL, keys, take

import bts_jax as bj
from bts_jax.contract import Means
from bts_jax.fingerprint import fingerprint

KEY = jax.random.key(0)
ONE, OTHER = (
    bj.Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5]),
    bj.Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5]),
)


def of(bandit):
    return int(fingerprint(bandit.reward_mean, bandit.cost_mean, np))


@pytest.mark.parametrize("metric", [bj.regret, bj.pseudo_regret])
def test_another_bandit_is_refused(metric):
    """Both have two arms, so shapes fit."""
    alone = bj.simulate(bj.Oracle(), ONE, 50, KEY, checkpoints=[20, 50])
    mapped = jax.vmap(lambda key: bj.simulate(bj.Oracle(), ONE, 50, key, checkpoints=[20, 50]))(
        keys(3)
    )
    batch = bj.simulate_batch(bj.Oracle(), ONE, 50, keys(3), checkpoints=[20, 50])
    for run in (
        alone,
        mapped,
        batch,
        take(batch, np.s_[:, 1:]),
        jax.tree.map(lambda *x: np.concatenate(x), mapped, batch),
    ):
        metric(run, ONE)
        with pytest.raises(ValueError, match="bandit is not the one that was played"):
            metric(run, OTHER)
        metric(run, Means(OTHER.reward_mean, OTHER.cost_mean))


def test_batches_of_bandits():
    """As many as there are arms, so that the axes cannot be told apart by their length. The costs
    are shared.
    """
    shared = bj.Bernoulli(
        reward=np.stack([ONE.reward, OTHER.reward]), cost=np.stack([ONE.cost, ONE.cost])
    )
    batch = bj.simulate_batch(bj.Oracle(), shared, 20, keys(2))
    mapped = jax.vmap(
        lambda reward, key: bj.simulate(
            bj.Oracle(), bj.Bernoulli(reward=reward, cost=ONE.cost), 20, key
        )
    )(shared.reward, keys(2))
    for runs in (batch, mapped):
        assert runs.bandit.tolist() == [[of(bandit)] for bandit in (ONE, OTHER)]
        bj.regret(runs, shared)
        with pytest.raises(ValueError, match="it has other means"):
            bj.regret(runs, jax.tree.map(lambda leaf: leaf[::-1], shared))


@pytest.mark.slow
def test_a_bandit_that_is_drawn_again_is_the_same():
    """Under `jit`, the last bits of what is drawn may differ."""
    draw = lambda key: bj.Correlated.random(key, 5)
    runs = jax.jit(jax.vmap(lambda key: bj.simulate(bj.Uniform(), draw(key), 5, key)))(keys(4))
    bj.pseudo_regret(runs, jax.vmap(draw)(keys(4)))


def test_runs_without_a_fingerprint_and_those_computed_with_are_taken_as_they_are():
    run = bj.simulate(bj.Oracle(), ONE, 20, KEY)
    by_hand = bj.Run(
        budget=run.budget,
        reward=run.reward,
        cost=run.cost,
        rounds=run.rounds,
        pulls=run.pulls,
        truncated=run.truncated,
    )
    bj.regret(by_hand, OTHER)
    jax.jit(bj.regret)(run, OTHER)
    many = jax.tree.map(lambda leaf: np.stack([leaf] * 3), run)
    for compute in (np.sum, np.mean, np.median):
        bj.regret(jax.tree.map(lambda leaf: compute(leaf, 0), many), OTHER)


@pytest.mark.parametrize(
    "bandit",
    [*INSTANCES.values(), *SEVERAL.values()],
    ids=[*INSTANCES, *(f"{x}, d" for x in SEVERAL)],
)
def test_the_fingerprint_is_the_same_everywhere_and_changes_with_every_mean(bandit):
    means = [np.array(bandit.reward_mean), np.array(bandit.cost_mean)]
    run = bj.Run(
        budget=[1.0],
        reward=np.zeros(1),
        cost=means[1][:1],
        rounds=np.ones(1),
        truncated=np.zeros(1, bool),
        pulls=np.zeros((1, len(means[0]))),
        bandit=np.array([of(bandit)], np.uint32),
    )
    stacked = [np.stack([mean] * 3) for mean in means]
    traced, mapped = jax.jit(lambda means, stacked: (fingerprint(*means), fingerprint(*stacked)))(
        means, stacked
    )
    assert (
        fingerprint(*stacked, np).tolist()
        == mapped.tolist()
        == [int(traced)] * 3
        == [of(bandit)] * 3
    )

    @jax.tree_util.register_pytree_node_class
    class Mine:
        reward_mean, cost_mean = means
        pull = None
        tree_flatten = lambda self: ((), None)
        tree_unflatten = classmethod(lambda cls, *_: cls())

    for mean in means:
        for entry in np.ndindex(mean.shape):
            right = mean[entry]
            mean[entry] = np.nextafter(right, np.float32(np.inf))
            bj.pseudo_regret(run, Mine())
            mean[entry] = 1.01 * right + 1e-4
            with pytest.raises(ValueError, match="bandit is not the one that was played"):
                bj.pseudo_regret(run, Mine())
            mean[entry] = right
