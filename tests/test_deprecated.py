"""Old names of arguments still work, and a warning gives the new name."""

import json

import numpy as np
import pytest
from common import grid_file

import bts_jax as bj
from bts_jax.posteriors import Beta
from bts_jax.sweeps import specification

BANDIT = bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])
GRID = grid_file(2, [5])


def test_a_key_is_required():
    with pytest.raises(TypeError, match="'key'"):
        bj.simulate(bj.Uniform(), BANDIT, 5)


def test_prior_counts_of_bts_have_moved_to_its_posteriors():
    """Old names of fields make the same policy, with a warning. Both names at once are refused."""
    moved = r"the fields reward_alpha, cost_beta of BTS .* write BTS\(reward=Beta\(alpha=\.\.\.\)"
    with pytest.warns(DeprecationWarning, match=moved):
        policy = bj.BTS(reward_alpha=2, cost_beta=0.5)
    assert policy == bj.BTS(reward=Beta(alpha=2), cost=Beta(beta=0.5))
    with pytest.warns(DeprecationWarning, match="KnapsackBTS"):
        assert bj.KnapsackBTS(reward_alpha=2) == bj.KnapsackBTS(Beta(alpha=2), Beta()), (
            "as it was in version 0.2"
        )
    with pytest.warns(DeprecationWarning):
        batch = bj.BTS(reward_alpha=np.array([1.0, 5.0]))
    assert batch.reward.alpha.tolist() == [1, 5], "a batch of policies, as it was"
    with pytest.raises(TypeError, match="'cost' and the old names"):
        bj.BTS(cost=Beta(), cost_beta=0.5)


def test_stores_of_policies_with_prior_counts_are_read():
    fields = {"reward_alpha": 2.0, "reward_beta": 1.0, "cost_alpha": 1.0, "cost_beta": 3.0}
    root = {"policies": {"b": {"class": "BTS", "fields": fields, "requires": []}}, "bandits": {}}
    entry = specification.parse(json.dumps(root))["policies"]["b"]
    assert specification.remade("b", entry, bj.POLICIES) == bj.BTS(Beta(alpha=2), Beta(beta=3))
