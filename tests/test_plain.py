"""The plain engine (`bts_jax.plain`) and the fast one play the same runs."""

import common
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bts_jax as bj
from bts_jax.engine import failures, pipeline
from bts_jax.engine.compile.programs import Registry
from bts_jax.posteriors import Beta
from bts_jax.pytrees import pytree

KEYS = common.keys(30)
TWO = bj.Bernoulli(reward=[0.5, 0.9], cost=[[0.5, 0.25], [0.25, 0.5]])


def both(policy, bandit, budget, **options):
    fast, plain = (
        bj.simulate_batch(policy, bandit, budget, KEYS, engine=engine, **options)
        for engine in ("fast", "plain")
    )
    return fast, plain


def assert_same(policy, bandit, budget, **options):
    fast, plain = both(policy, bandit, budget, **options)
    for name in ("budget", "reward", "cost", "rounds", "pulls", "truncated", "bandit"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(fast, name), err_msg=name)
    return plain


@pytest.mark.parametrize("family", common.INSTANCES)
def test_the_same_runs_on_every_family(family):
    assert_same(bj.KUBE(), common.INSTANCES[family], 30, checkpoints=[30, 3, 10.5])


@pytest.mark.parametrize(
    "policy",
    [bj.OmegaStarUCB(), bj.PDBwK(), bj.EpsilonFirst(), bj.SoftElimination()],
    ids=lambda policy: type(policy).__name__,
)
def test_the_same_runs_of_policies(policy):
    assert_same(policy, common.INSTANCES["bernoulli"], 40, checkpoints=[10, 40])


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy, bandit, budget",
    [
        (bj.UCBBwK(), TWO, [20, 12.5]),
        (bj.PrimalDualBwK(), bj.Timed(TWO), [20, 12.5, 30]),
        (bj.KUBE(), bj.Timed(bj.Bernoulli(reward=[0.5, 0.9], cost=[[0.5], [0.25]])), [10, 25]),
    ],
    ids=["two", "timed", "hidden time"],
)
def test_the_same_runs_with_several_resources(policy, bandit, budget):
    assert_same(policy, bandit, budget, checkpoints=[1, 0.5])


def test_the_same_runs_with_a_limit_of_rounds():
    bandit = common.INSTANCES["bernoulli"]
    assert np.asarray(assert_same(bj.KUBE(), bandit, np.inf, max_rounds=20).truncated).all()
    assert_same(bj.KUBE(), bandit, 10, checkpoints=[2, 10], max_rounds=np.arange(5, 35))


def test_the_same_runs_of_a_batch_of_policies_bandits_and_budgets():
    bandits = jax.vmap(lambda key: bj.Bernoulli.random(key, 3))(
        jax.random.split(jax.random.key(1), 30)
    )
    assert_same(bj.KUBE(scale=np.linspace(0.1, 2, 30)), bandits, np.linspace(5, 20, 30))


def test_a_pull_that_is_too_expensive_by_hand():
    """Each pull costs 2, and earns 1. A budget of 5 pays for two pulls. The third round ends the
    run. Of 4 nothing is left.
    """
    bandit = bj.FixedPrice(success=[1, 1], price=[2, 2])
    runs = bj.simulate_batch(bj.Uniform(), bandit, 5, KEYS, checkpoints=[5, 4], engine="plain")
    for name, expected in (("reward", [2, 2]), ("cost", [4, 4]), ("rounds", [3, 2])):
        assert np.asarray(getattr(runs, name)[0]).tolist() == expected, name
    assert (
        np.asarray(runs.pulls[0]).sum(-1).tolist() == [2, 2]
        and not np.asarray(runs.truncated).any()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy, bandit, budget",
    [(bj.BTS(), common.INSTANCES["beta"], 30), (bj.TSUpdate(Beta(), Beta()), TWO, 20)],
    ids=["bts", "ts-update"],
)
def test_thompson_policies_earn_the_same_on_average(policy, bandit, budget):
    """The means of 2,000 runs differ by less than 5 standard errors (false failures: one in a
    million), which is below 3%.
    """
    keys = common.keys(2000)
    rewards = [
        np.asarray(bj.simulate_batch(policy, bandit, budget, keys, engine=engine).reward)[
            :, 0
        ].astype(float)
        for engine in ("fast", "plain")
    ]
    error = np.sqrt(sum(values.var() for values in rewards) / 2000)
    assert 5 * error < 0.03 * rewards[0].mean()
    assert abs(rewards[0].mean() - rewards[1].mean()) < 5 * error


def test_checkpoints_of_each_run_and_options():
    bandit, checkpoints = (
        common.INSTANCES["bernoulli"],
        np.stack([np.linspace(2, 9, 30), np.full(30, 10.0)], 1),
    )
    assert_same(
        bj.KUBE(), bandit, 10, checkpoints=checkpoints, lanes=4, devices=jax.local_devices()[:1]
    )


class NoSuchArm(bj.Uniform):
    def __call__(self, state, key):
        return jnp.int32(7), state


def test_invalid_runs_are_nan():
    jax.tree_util.register_static(NoSuchArm)
    with pytest.warns(RuntimeWarning, match="arm 7"):
        _, plain = both(NoSuchArm(), common.INSTANCES["bernoulli"], 10)
    assert np.isnan(plain.reward).all() and np.isnan(plain.cost).all()


class Weak(bj.Uniform):
    """Its state has weak types, as in `return 1`."""

    def init(self, problem):
        return {"last": jnp.float32(0)}

    def __call__(self, state, key):
        return jax.random.randint(key, (), 0, 5), state

    def update(self, state, arm, reward, cost, key):
        return {"last": 1}


def test_the_contract_is_the_same():
    jax.tree_util.register_static(Weak)
    assert_same(Weak(), common.INSTANCES["bernoulli"], 5)
    with pytest.raises(ValueError, match="NoCost: pull returns a cost of shape"):
        bj.simulate_batch(
            bj.KUBE(), NoCost(reward=[0.5, 0.9], cost=[0.5, 0.9]), 5, KEYS, engine="plain"
        )


@pytree
class NoCost(bj.Bernoulli):
    def pull(self, key, arm):
        return jnp.float32(0), jnp.zeros(2)


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="engine = 'slow' is not known: give 'fast' or 'plain'"):
        bj.simulate_batch(bj.KUBE(), TWO, 5, KEYS, engine="slow")


def test_the_report_of_the_plain_engine():
    reports = []
    runs = bj.simulate_batch(
        bj.KUBE(), common.INSTANCES["bernoulli"], 10, KEYS, engine="plain", on_report=reports.append
    )
    report, rounds = reports[0], np.asarray(runs.rounds)[:, 0]
    assert (report.runs, report.devices, report.lanes, report.rounds) == (30, 1, 30, rounds.sum())
    assert report.utilisation == pytest.approx(rounds.sum() / (30 * rounds.max()))


@pytest.mark.parametrize("name", ["masking", "rounding"])
def test_the_plain_engine_plays_if_a_pass_fails(name, monkeypatch, caplog):
    """As after a new release of JAX. One line is logged, and runs are those of the plain engine.

    `rounding` is also for what is computed outside of the step.
    """

    def fails(closed):
        raise KeyError("another_primitive")

    bandit, policy = bj.Bernoulli(reward=[0.5, 0.9, 0.7], cost=[0.5, 0.25, 0.7]), bj.KUBE(scale=0.7)
    expected = bj.simulate_batch(policy, bandit, 20, KEYS, checkpoints=[5, 20], engine="plain")
    broken = [
        one._replace(apply=fails, once=one.once and fails) if one.name == name else one
        for one in pipeline.PASSES
    ]
    monkeypatch.setattr(pipeline, "PASSES", broken)
    monkeypatch.setattr("bts_jax.batch.PROGRAMS", Registry(1))
    failures.report.cache_clear()
    jax.clear_caches()
    reports = []
    found = bj.simulate_batch(
        policy, bandit, 20, KEYS, checkpoints=[5, 20], on_report=reports.append
    )
    common.assert_same_bits(found, expected)
    alone = jax.vmap(lambda key: bj.simulate(policy, bandit, 20, key, checkpoints=[5, 20]))(KEYS)
    common.assert_same_bits(alone, expected)
    assert [record.message for record in caplog.records if "plain engine" in record.message] == [
        f"the fast engine fails (pass {name}: KeyError: 'another_primitive'): runs are played by "
        "the plain engine, which is slower; please report this, with the version of JAX"
    ]
    assert reports[0].fallbacks == (f"pass {name}: KeyError: 'another_primitive'",)
    failures.report.cache_clear()
    jax.clear_caches()  # the programs with the broken pass
