"""The families of arms: what they declare, what they draw, and what they refuse.

False failures: frequencies are compared at 6 standard errors, 2·10⁻⁹ each, fewer than 100 of them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, keys

import bts_jax as bj

DRAWS = 50_000


@pytest.mark.parametrize("family", bj.BANDITS)
def test_pulls_have_the_declared_means(family):
    bandit = INSTANCES[family]
    for arm in range(bandit.num_arms):
        reward, cost = jax.jit(jax.vmap(lambda key, arm=arm: bandit.pull(key, arm)))(keys(DRAWS))
        for draws, mean in ((reward, bandit.reward_mean[arm]), (cost, bandit.cost_mean[arm])):
            draws = np.asarray(draws, np.float64)
            assert draws.min() >= 0 and draws.max() <= 1
            assert abs(draws.mean() - mean) < 6 * draws.std() / DRAWS**0.5 + 1e-9
        covariance = np.cov(reward, cost)[0, 1]
        assert abs(covariance) < 6 * np.std(reward) * np.std(cost) / DRAWS**0.5, "reward and cost are independent"


def test_multinomial_points_have_their_probabilities():
    bandit = INSTANCES["multinomial"]
    for arm in range(bandit.num_arms):
        reward, cost = jax.vmap(lambda key, arm=arm: bandit.pull(key, arm))(keys(DRAWS, seed=arm))
        for draws, probs in ((reward, bandit.reward_probs[arm]), (cost, bandit.cost_probs[arm])):
            share = np.array([(np.asarray(draws) == point).mean() for point in np.asarray(bandit.support)])
            probs = np.asarray(probs, np.float64)
            assert (np.abs(share - probs) <= 6 * np.sqrt(probs * (1 - probs) / DRAWS) + 1e-9).all()


def test_certain_and_impossible_points_are_that():
    bandit = bj.Multinomial(reward_probs=[[0, 0, 1], [1, 0, 0]], cost_probs=[[0, 1, 0], [0.5, 0, 0.5]])
    reward, cost = jax.vmap(lambda key: bandit.pull(key, 0))(keys(DRAWS))
    assert (reward == 1).all() and (cost == 0.5).all()
    reward, cost = jax.vmap(lambda key: bandit.pull(key, 1))(keys(DRAWS))
    assert (reward == 0).all() and not (cost == 0.5).any()


def test_the_luck_is_the_rounds_and_not_the_arms():
    """Two arms of one law, pulled with one key, give one answer: policies compared on a seed meet the same luck."""
    bandit = bj.Bernoulli(reward=[0.5, 0.5], cost=[0.3, 0.3])
    for key in keys(50):
        assert bandit.pull(key, 0) == bandit.pull(key, 1)


def test_ratio_and_best_arm():
    bandit = bj.Bernoulli(reward=[0.5, 0.9, 0.0, 0.2], cost=[0.25, 0.9, 0.0, 0.1])
    assert bandit.ratio.tolist() == [2.0, 1.0, 0.0, 2.0]
    assert int(bandit.best_arm) == 0, "the lowest number among equals"
    free = bj.Bernoulli(reward=[0.5, 0.1], cost=[0.25, 0.0])
    assert free.ratio[1] == jnp.inf and int(free.best_arm) == 1


def test_multinomial_means_by_hand():
    bandit = bj.Multinomial(reward_probs=[[0.5, 0.25, 0.25], [0, 0, 1]], cost_probs=[[0, 1, 0], [0.5, 0.5, 0]])
    assert bandit.reward_mean.tolist() == [0.375, 1.0] and bandit.cost_mean.tolist() == [0.5, 0.25]
    tenths = bj.Multinomial(reward_probs=np.full((2, 11), 1 / 11), cost_probs=np.full((2, 11), 1 / 11))
    np.testing.assert_allclose(tenths.support, np.arange(11) / 10, rtol=1e-7)
    points = bj.Multinomial(reward_probs=[[0.5, 0.5]] * 2, cost_probs=[[0.5, 0.5]] * 2, support=[0.2, 0.4])
    np.testing.assert_allclose(points.cost_mean, 0.3, rtol=1e-6)


@pytest.mark.parametrize("family", bj.BANDITS.values())
def test_random_instances_come_alone_and_in_batches(family):
    one = family.random(jax.random.key(0), 7)
    assert one.num_arms == 7 and one.reward_mean.shape == (7,)
    many = jax.vmap(lambda key: family.random(key, 7))(keys(20))
    assert many.cost_mean.shape == (20, 7) and many.best_arm.shape == (20,)
    alone = family.random(keys(20)[3], 7)
    np.testing.assert_array_equal(alone.cost_mean, many.cost_mean[3])
    assert (many.cost_mean > 0).all() and (many.cost_mean <= 1).all()


def test_random_ranges_are_kept():
    bandit = bj.Bernoulli.random(jax.random.key(1), 1000, reward_range=(0.2, 0.3), cost_range=(0.5, 0.5))
    assert bandit.reward.min() >= 0.2 and bandit.reward.max() <= 0.3 and (bandit.cost == 0.5).all()


GOOD = [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(("make", "named"), [
    (lambda: bj.Bernoulli(reward=[0.5, 1.5], cost=[0.5, 0.5]), r"reward\[1\] = 1.5"),
    (lambda: bj.Bernoulli(reward=[0.5, 0.5], cost=[-0.1, 0.5]), r"cost\[0\] = -0.1"),
    (lambda: bj.Bernoulli(reward=[0.5, np.nan], cost=[0.5, 0.5]), r"reward\[1\] = nan"),
    (lambda: bj.Bernoulli(reward=[0.5, 0.5], cost=[0.5, np.inf]), r"cost\[1\] = inf"),
    (lambda: bj.Bernoulli(reward=[0.5], cost=[0.5]), "at least 2"),
    (lambda: bj.Bernoulli(reward=[0.5, 0.5], cost=[0.5, 0.5, 0.5]), r"reward \[2\], cost \[3\]"),
    (lambda: bj.Bernoulli(reward=0.5, cost=0.5), "too few axes"),
    (lambda: bj.Bernoulli(reward="many", cost=[0.5, 0.5]), "reward = 'many'"),
    (lambda: bj.Bernoulli(reward=[[0.5, 0.5], [0.5]], cost=[0.5, 0.5]), "reward = "),
    (lambda: bj.Multinomial(reward_probs=[[0.5, 0.4], [0.5, 0.5]], cost_probs=GOOD), r"sum of reward_probs\[0\] = 0.9"),
    (lambda: bj.Multinomial(reward_probs=GOOD, cost_probs=[[0.5, 0.5], [-0.5, 1]]), r"cost_probs\[1, 0\] = -0.5"),
    (lambda: bj.Multinomial(reward_probs=GOOD, cost_probs=GOOD, support=[0, 0.5, 1]), "support has shape"),
    (lambda: bj.Multinomial(reward_probs=GOOD, cost_probs=GOOD, support=[0, 2]), r"support\[1\] = 2"),
    (lambda: bj.Multinomial(reward_probs=GOOD[:1], cost_probs=GOOD[:1]), "at least 2"),
    (lambda: bj.Multinomial(reward_probs=GOOD, cost_probs=[[1.0], [1.0]]), "differ in shape"),
    (lambda: bj.Bernoulli.random(jax.random.key(0), 1), "num_arms = 1"),
    (lambda: bj.Bernoulli.random(jax.random.key(0), 2.5), "num_arms = 2.5"),
    (lambda: bj.Bernoulli.random(jax.random.key(0), 2, cost_range=(0.5, 0.1)), "cost_range"),
    (lambda: bj.Multinomial.random(jax.random.key(0), 2, num_points=1), "num_points = 1"),
    (lambda: bj.Bernoulli.random(jax.random.PRNGKey(0), 2), "old-style"),
    (lambda: bj.Multinomial.random(None, 2), "key = None"),
    (lambda: jax.jit(lambda r: bj.Bernoulli(reward=r, cost=[0.5] * 3).cost)(np.full(2, 0.5)), "differ in shape"),
])
def test_bad_arms_are_refused_by_name(make, named):
    with pytest.raises(ValueError, match=named):
        make()
