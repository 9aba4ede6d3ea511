"""Old names of arguments still work, and a warning gives the new name."""

import inspect
import json

import numpy as np
import pytest
from common import assert_same_bits, grid_file, keys

import bts_jax as bj
from bts_jax import deprecated, learn
from bts_jax.posteriors import Beta
from bts_jax.sweeps import gridfile, specification

BANDIT = bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])
GRID = grid_file(2, [5])


def test_an_old_name_works_and_warns_where_it_is_used():
    @deprecated.renamed(old="new")
    def twice(new):
        return 2 * new

    assert twice(3) == twice(new=3) == 6
    with pytest.warns(DeprecationWarning, match="the argument 'old' of twice is now called 'new'") as warned:
        assert twice(old=3) == 6
    assert warned[0].filename == __file__
    with pytest.raises(TypeError, match="give 'new' alone"):
        twice(old=3, new=3)


@pytest.mark.parametrize(("function", "names"), [
    (bj.sweep, {"seeds": "num_seeds", "relative": "relative_to_min_cost", "chunk": "chunk_size", "memory": "memory_bytes"}),
    (bj.simulate_batch, {"report": "on_report"}),
    (bj.Empirical.load, {"report": "on_report"}),
    (bj.fit, {"bandits": "sample_bandit"}),
    *((getattr(learn, f"{method}_gradient"), {"bandits": "bandit_batch"}) for method in ("smoothed", "score", "pathwise")),
])
def test_new_names_are_those_of_arguments(function, names):
    arguments = inspect.signature(function).parameters
    for old, new in names.items():
        assert new in arguments and old not in arguments
        with pytest.warns(DeprecationWarning, match=f"{old!r} .* is now called {new!r}"), pytest.raises(TypeError):
            function(**{old: None}, nonsense=0)


@pytest.mark.slow
def test_sweeps_and_batches_with_old_names():
    new = bj.sweep(["uniform"], {"two": BANDIT}, [5], num_seeds=2, relative_to_min_cost=True)
    with pytest.warns(DeprecationWarning) as warned:
        old = bj.sweep(["uniform"], {"two": BANDIT}, [5], seeds=2, relative=True)
    assert [(str(one.message).split("'")[1], one.filename) for one in warned] == [("seeds", __file__), ("relative", __file__)]
    np.testing.assert_array_equal(old.reward, new.reward)
    reports = []
    with pytest.warns(DeprecationWarning):
        runs = bj.simulate_batch(bj.Uniform(), BANDIT, 5, keys(2), report=reports.append)
    assert_same_bits(runs, bj.simulate_batch(bj.Uniform(), BANDIT, 5, keys(2)))
    assert len(reports) == 1


def test_old_keys_of_a_grid_file(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(GRID.replace("num_seeds = 2", "seeds = 2\nrelative = true"))
    with pytest.warns(FutureWarning, match="'seeds' is now called 'num_seeds'"):
        found = gridfile.read_toml(path)
    assert (found["num_seeds"], found["relative_to_min_cost"], "seeds" in found) == (2, True, False)
    path.write_text("seeds = 2" + GRID)
    with pytest.raises(ValueError, match="remove 'seeds'"):
        gridfile.read_toml(path)


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
        assert bj.KnapsackBTS(reward_alpha=2) == bj.KnapsackBTS(Beta(alpha=2), Beta()), "as it was in version 0.2"
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
