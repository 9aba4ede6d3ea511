"""A run knows its bandit: `regret` refuses another one."""

import jax
import numpy as np
import pytest
from common import INSTANCES, SEVERAL, keys, take

import bts_jax as bj
from bts_jax.contract import Means
from bts_jax.fingerprint import fingerprint

KEY = jax.random.key(0)
ONE, OTHER = bj.Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5]), bj.Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5])


@pytest.mark.parametrize("metric", [bj.regret, bj.pseudo_regret])
def test_another_bandit_is_refused(metric):
    """Both have two arms, so shapes fit. Today's regret of the oracle on the other one would be 380, not 0."""
    alone = bj.simulate(bj.Oracle(), ONE, 50, KEY, checkpoints=[20, 50])
    mapped = jax.vmap(lambda key: bj.simulate(bj.Oracle(), ONE, 50, key, checkpoints=[20, 50]))(keys(3))
    batch = bj.simulate_batch(bj.Oracle(), ONE, 50, keys(3), checkpoints=[20, 50])
    for run in (alone, mapped, batch, take(batch, np.s_[:, 1:])):
        metric(run, ONE)
        with pytest.raises(ValueError, match="bandit is not the one that was played"):
            metric(run, OTHER)
        metric(run, Means(OTHER.reward_mean, OTHER.cost_mean))


def test_batches_of_bandits():
    bandits = jax.tree.map(lambda *leaves: np.stack(leaves), ONE, OTHER, ONE)
    batch = bj.simulate_batch(bj.Oracle(), bandits, 20, keys(3))
    mapped = jax.vmap(lambda bandit, key: bj.simulate(bj.Oracle(), bandit, 20, key))(bandits, keys(3))
    for runs in (batch, mapped):
        assert runs.bandit.tolist() == [[int(fingerprint(bandit))] for bandit in (ONE, OTHER, ONE)]
        bj.regret(runs, bandits)
        with pytest.raises(ValueError, match="its parameters differ"):
            bj.regret(runs, jax.tree.map(lambda leaf: leaf[[1, 0, 2]], bandits))


def test_runs_without_a_fingerprint_and_traced_runs_are_taken_as_they_are():
    run = bj.simulate(bj.Oracle(), ONE, 20, KEY)
    by_hand = bj.Run(budget=run.budget, reward=run.reward, cost=run.cost, rounds=run.rounds, pulls=run.pulls,
                     truncated=run.truncated)
    bj.regret(by_hand, OTHER)
    jax.jit(bj.regret)(run, OTHER)
    bj.regret(jax.tree.map(lambda leaf: leaf.mean(0, keepdims=True), run), OTHER)


@pytest.mark.parametrize("bandit", [*INSTANCES.values(), *SEVERAL.values()], ids=[*INSTANCES, *(f"{x}, d" for x in SEVERAL)])
def test_the_fingerprint_is_the_same_everywhere_and_changes_with_every_number(bandit):
    right = int(fingerprint(bandit, xp=np))
    stacked = jax.tree.map(lambda leaf: np.stack([leaf] * 3), bandit)
    traced, mapped = jax.jit(lambda bandit, stacked: (fingerprint(bandit), jax.vmap(fingerprint)(stacked)))(bandit, stacked)
    assert fingerprint(stacked, (3,), np).tolist() == mapped.tolist() == [int(traced)] * 3 == [right] * 3
    leaves, structure = jax.tree.flatten(bandit)
    for place, leaf in enumerate(leaves):
        for entry in np.ndindex(np.shape(leaf)):
            changed = np.array(leaf)
            changed[entry] = np.nextafter(changed[entry], np.inf) if changed.dtype.kind == "f" else changed[entry] + 1
            others = [*leaves[:place], changed, *leaves[place + 1:]]
            assert int(fingerprint(jax.tree.unflatten(structure, others), xp=np)) != right, (place, entry)
