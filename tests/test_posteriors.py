"""Posteriors: by hand, against NumPy, with priors from price lists and logs, and posteriors of a
user.

False failures: means of draws are compared at 6 standard errors, 2·10⁻⁹ each under the normal
distribution, fewer than 100 of them. All keys and seeds are fixed. Each comparison has a test error
that a draw from a neighbouring posterior exceeds.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import assert_same_bits, keys

import bts_jax as bj
from bts_jax import Problem, contract, rules
from bts_jax.learn import pathwise_gradient, score_gradient, smoothed_gradient
from bts_jax.learn.space import Space
from bts_jax.policies import ALL_POLICIES
from bts_jax.posteriors import (
    POSTERIORS,
    Beta,
    Dirichlet,
    Gamma,
    Known,
    MatchedBeta,
    Normal,
    Revenue,
)
from bts_jax.sweeps.gridfile import read_toml
from bts_jax.sweeps.specification import entry_of, is_ours, remade

KEY, DRAWS = jax.random.key(0), 20_000
THREE = bj.Bernoulli(reward=[0.9, 0.6, 0.3], cost=[0.5, 0.4, 0.6])


def after(posterior, values, scale=None):
    """The state after these values of two arms. The second arm has none."""
    state = posterior.init(Problem(num_arms=2, scale=scale))
    words = jax.random.bits(KEY, (len(values),), jnp.uint32)
    record = jax.jit(posterior.record)
    for value, word in zip(values, words, strict=True):
        state = record(state, jnp.int32(0), jnp.float32(value), word)
    return state


def draws(posterior, state):
    """[draws, K]"""
    return np.asarray(
        jax.jit(jax.vmap(lambda key: posterior.draw(state, key)))(jax.random.split(KEY, DRAWS)),
        np.float64,
    )


def assert_moments(found, mean, variance):
    assert abs(found.mean() - mean) < 6 * np.sqrt(variance / DRAWS)
    kurtosis = ((found - found.mean()) ** 4).mean() / found.var() ** 2
    assert abs(found.var() - variance) < 6 * variance * np.sqrt((kurtosis - 1) / DRAWS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", POSTERIORS.values(), ids=POSTERIORS)
def test_every_posterior_keeps_the_contract(kind):
    assert isinstance(kind(), contract.Posterior)
    if kind is Revenue:
        with pytest.raises(ValueError, match="cannot be checked alone"):
            bj.check_posterior(kind())
        return bj.check_policy(bj.TSUpdate(kind(), Beta()), SHOP)
    bj.check_posterior(kind(positive=1) if kind is Normal else kind())


# Revenue

SHOP = bj.Timed(
    bj.Pricing(
        prices=[[1, 4], [2, 3], [1, 1]],
        demand=[[0.8, 0.2], [0.4, 0.3], [0.9, 0.8]],
        inventory=[1, 2],
    ),
    horizon=4,
)


def test_the_revenue_of_a_shop_by_hand():
    """A budget of 1 buys one unit of product 0 and two of product 1. The largest revenue is 5."""
    assert SHOP.revenue.tolist() == [[1, 8], [2, 6], [1, 2]]
    assert bj.WithNull(SHOP).revenue.tolist() == [[1, 8], [2, 6], [1, 2], [0, 0]]
    batch = jax.vmap(lambda key: bj.WithNull(bj.Timed(bj.Pricing.random(key, 3))))(keys(2))
    assert (
        batch.revenue.shape == (2, 4, 1)
        and (batch.revenue[:, 3] == 0).all()
        and (batch.revenue[:, :3] > 0).all()
    )
    # A policy sees sales as 0 or 1, and revenues as shares of 5: a sale of product 1 in arm 0
    # brings 4/5.
    known = rules.first_state(
        bj.TSUpdate(Revenue(), Beta()), SHOP, jnp.float32([3, 4, 5])
    ).beliefs.reward
    np.testing.assert_allclose(known.T, np.array([[1, 4], [2, 3], [1, 1]]) / 5, rtol=1e-6)


def test_revenues_follow_from_the_drawn_demand():
    policy, plain = bj.TSUpdate(Revenue(), Beta()), bj.TSUpdate(Beta(), Beta())
    state, other = (rules.first_state(one, SHOP, jnp.float32([3, 4, 5])) for one in (policy, plain))
    (reward, costs), (_, same) = (
        policy.draw_means(state.beliefs, keys(1)[0]),
        plain.draw_means(other.beliefs, keys(1)[0]),
    )
    np.testing.assert_array_equal(costs, same)
    np.testing.assert_allclose(
        reward, (np.array([[1, 4], [2, 3], [1, 1]]) / 5 * np.stack(costs[:2], 1)).sum(1), rtol=1e-6
    )


@pytest.mark.slow
def test_known_prices_save_regret():
    """On 150 shops with three products: 0.66 of the regret without. More than 4 standard errors
    from the limit.
    """
    shops = jax.tree.map(
        np.asarray,
        jax.vmap(lambda key: bj.Timed(bj.Pricing.random(key, 10, num_products=3), horizon=4))(
            keys(150)
        ),
    )
    known, learnt = (
        bj.pseudo_regret(
            bj.simulate_batch(bj.TSUpdate(reward, Beta()), shops, 300, keys(150)), shops
        ).mean()
        for reward in (Revenue(), MatchedBeta())
    )
    assert known < 0.8 * learnt, (known, learnt)


def test_what_revenue_does_not_go_with():
    with pytest.raises(ValueError, match="posterior of rewards"):
        bj.BTS(cost=Revenue())
    with pytest.raises(ValueError, match="prior mean of 0"):
        bj.TSUpdate(reward=Revenue())
    bj.TSUpdate(Revenue(), Gamma(mean=0.5, strength=3)), bj.TSUpdate(Revenue(), Known())
    with pytest.raises(ValueError, match="bandit Bernoulli does not have: play on Pricing"):
        bj.simulate(
            bj.TSUpdate(Revenue(), Beta()),
            bj.Bernoulli(reward=[0.5, 0.6], cost=[0.5, 0.5]),
            10,
            keys(1)[0],
        )
    with pytest.raises(AttributeError, match="follow from its costs"):
        _ = bj.BTS(reward=Revenue()).logits


# Gamma


def test_gamma_by_hand():
    """Amounts 1 and 3 after one 0: n = 3, m = 4/3, M₂ = 10 − 16/3 = 14/3, so θ has mean 4/3 and
    variance 14/3 / 12.
    """
    posterior = Gamma(strength=1)
    state = after(posterior, [1, 3])
    np.testing.assert_allclose(
        [state.count[0], state.mean[0], state.squares[0]], [3, 4 / 3, 14 / 3], rtol=1e-6
    )
    found = draws(posterior, state)
    assert_moments(found[:, 0], 4 / 3, 14 / 36)
    assert (found[:, 1] > 0).all() and (found[:, 1] < 1e-20).all(), (
        "an arm without values costs practically nothing"
    )


def test_arms_that_have_cost_nothing():
    """Never pulled: before all others. Pulled in vain: rare costs as large as the dearest arm's."""
    record, posterior = jax.jit(Gamma().record), Gamma()
    state = posterior.init(Problem(num_arms=3))
    for _ in range(2):
        state = record(state, jnp.int32(0), jnp.float32(0), None)
    state = record(state, jnp.int32(1), jnp.float32(0), None)
    assert np.argmin(draws(posterior, state)[0]) == 2
    state = record(state, jnp.int32(2), jnp.float32(0.6), None)
    found = draws(posterior, state)
    mean = 0.6 / 1.5  # half an amount of 0, and 0.6
    assert_moments(found[:, 0], mean / 3.5, (mean / 3.5) ** 2)
    assert_moments(found[:, 1], mean / 2.5, (mean / 2.5) ** 2)


@pytest.mark.slow
def test_an_arm_that_does_nothing_is_given_up():
    """It earns and costs nothing: after some pulls the policy leaves it, also if it is the first
    arm.
    """
    for reward, cost in (([0, 0.5, 0.6], [0, 0.5, 0.4]), ([0.5, 0.6, 0], [0.5, 0.4, 0])):
        bandit = bj.Bernoulli(reward=reward, cost=cost)
        runs = bj.simulate_batch(bj.BTS(cost=Gamma()), bandit, 200, keys(20), max_rounds=5000)
        assert not runs.truncated.any() and runs.reward.mean() > 200


def test_gamma_has_the_moments_of_the_bayesian_bootstrap():
    """Weights from a flat Dirichlet distribution over the amounts and one 0, as in non-parametric
    Thompson sampling.
    """
    amounts = np.array([0.1, 0.7, 0.2, 0.2, 0.9])
    weights = np.random.default_rng(0).dirichlet(np.ones(6), 200_000)
    bootstrap = weights[:, 1:] @ amounts
    posterior = Gamma(strength=1)
    found = draws(posterior, after(posterior, amounts))[:, 0]
    assert abs(found.mean() - bootstrap.mean()) < 6 * found.std() / np.sqrt(DRAWS)
    np.testing.assert_allclose(found.var(), bootstrap.var(), rtol=0.06)


def test_a_price_list_counts_as_pulls():
    """Five pulls at $2 with a standard deviation of $2, in units of $4: n = 5, m = 1/2, M₂ = 5/4.
    Then one pull at $4.
    """
    posterior = Gamma(mean=[2, 1], strength=5)
    state = after(posterior, [], scale=jnp.float32(4))
    np.testing.assert_allclose(
        [state.count[0], state.mean[0], state.squares[0]], [5, 0.5, 1.25], rtol=1e-6
    )
    state = after(posterior, [1], scale=jnp.float32(4))  # m = 3.5/6; M₂ + (1 − 1/2)(1 − m)
    np.testing.assert_allclose(
        [state.count[0], state.mean[0], state.squares[0]],
        [6, 3.5 / 6, 1.25 + 0.5 * 2.5 / 6],
        rtol=1e-6,
    )
    assert_moments(draws(posterior, state)[:, 0], 3.5 / 6, (1.25 + 0.5 * 2.5 / 6) / 42)


def test_equal_amounts_leave_little_doubt():
    """With a prior that has no spread, a fixed price is known."""
    posterior = Gamma(mean=0.3, strength=3, variation=0)
    found = draws(posterior, after(posterior, [0.3] * 5))
    np.testing.assert_allclose(found, 0.3, rtol=3e-3)


@pytest.mark.parametrize("many", [1_000_000])
def test_sums_stay_exact_enough(many):
    """A million amounts with a coefficient of variation of 0.1: mean and variance in float32
    against float64.
    """
    values = np.random.default_rng(3).normal(3e-5, 3e-6, many).astype(np.float32)
    record = Gamma().record
    start = Gamma().init(Problem(num_arms=1))
    state, _ = jax.jit(
        lambda start: jax.lax.scan(
            lambda s, x: (record(s, jnp.int32(0), x, None), None), start, values
        )
    )(start)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(state.mean[0], exact.mean(), rtol=1e-4)
    np.testing.assert_allclose(state.squares[0] / len(exact), exact.var(), rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", [MatchedBeta(), Gamma()], ids=["matched", "gamma"])
@pytest.mark.parametrize("share", [0.99, 0.999])
def test_means_stay_exact_in_long_runs(posterior, share):
    """A million values: within a tenth of a standard error. Without compensation they are off by a
    hundred.
    """
    values = np.random.default_rng(1).random(1_000_000) < share
    start = posterior.init(Problem(num_arms=1))
    record = lambda state, value: (posterior.record(state, jnp.int32(0), value, None), None)
    state, _ = jax.jit(lambda start: jax.lax.scan(record, start, np.float32(values)))(start)
    exact = (values.sum() + float(start.count[0] * start.mean[0])) / (
        len(values) + float(start.count[0])
    )
    error = np.sqrt(share * (1 - share) / len(values))
    assert abs(float(state.mean[0]) - exact) < 0.1 * error


# Logs


def test_a_log_becomes_a_prior():
    """Variation: (n s² + 1) / (n + 1) for n amounts with the squared variation s², times (strength
    + 1) / (n + 1).
    """
    log = {"large": [20.0, 20.0, 20.0], "small": [1, 3], "new": []}
    posterior = Gamma.from_log(log, arms=["small", "large", "new"], strength=2)
    assert posterior.mean == (2.0, 20.0, 0.0) and posterior.strength == (2.0, 2.0, 0.5)
    np.testing.assert_allclose(
        posterior.variation, [np.sqrt(1.5 / 3), np.sqrt(1 / 4 * 3 / 4), 1.0], rtol=1e-5
    )
    assert Beta.from_log([[0, 1, 1, 1], [2, 2], []], strength=4, largest=4) == Beta(
        alpha=[1 + 4 * 3 / 16, 2, 1], beta=[1 + 4 * 13 / 16, 2, 1]
    )
    assert isinstance(MatchedBeta.from_log([[0, 1], [1, 1]]), MatchedBeta)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Gamma.from_log([1, 2]), r"values\[0\] has shape \(\)"),
        (lambda: Gamma.from_log([]), "not a list with one entry for each arm"),
        (lambda: Gamma.from_log({"b": [1], "a": [2]}), "give arms, their names"),
        (lambda: Gamma.from_log({"b": [1], "a": [2]}, arms=["a", "c"]), "the same names in both"),
        (lambda: Beta.from_log([[1], [0]], largest=0), "largest = 0"),
        (lambda: Gamma.from_log([[1], [0]], strength=[1, 2]), "strength has shape"),
        (lambda: Gamma(mean=[[1, 2], [3, 4]]), r"mean has shape \(2, 2\)"),
        (lambda: Gamma(mean=[]), r"mean has shape \(0,\)"),
        (lambda: bj.BTS(cost=()), "cost = .* is empty"),
        (lambda: bj.BTS(reward=Known()), "expected costs as side information"),
        (lambda: Dirichlet(values=[0, 0.5, 0.5 + 1e-9, 1]), r"values\[2\] = 0.5"),
        (
            lambda: Space(bj.BTS(cost=Gamma(mean=[1, 2])), {"cost.mean": (0.1, 3)}),
            "one number for each arm, and single",
        ),
        (lambda: Gamma.from_log([[1, -2], [1]]), r"values\[0\]\[1\] = -2"),
        (lambda: Gamma.from_log([[1, np.nan], [1]]), r"values\[0\]\[1\] = nan"),
        (lambda: Beta.from_log([[0.5, 1.5], [1]]), r"values\[0\]\[1\] = 1.5"),
        (lambda: Gamma.from_log([[1], [1]], strength=0), "strength = 0"),
        (lambda: Gamma(mean=-1), "mean = -1"),
        (lambda: Gamma(mean=[1, "a"]), "mean = .*not a number"),
        (lambda: Gamma(strength=0), "strength = 0"),
        (lambda: Dirichlet(values=[0, 0.5]), "the ends of values"),
        (lambda: Dirichlet(values=[0, 0.5, 0.5, 1]), r"values\[2\] = 0.5"),
        (lambda: Dirichlet(values=1), "values = 1"),
        (lambda: Dirichlet(prior=0), "prior = 0"),
        (lambda: Normal(variance=[0.1, 0]), r"variance\[1\] = 0"),
        (lambda: Normal(positive=0.5), "positive = 0.5"),
        (
            lambda: bj.simulate(bj.BTS(cost=Gamma(mean=[1, 2])), THREE, 5, KEY),
            "mean of Gamma has 2 numbers.*3 arms",
        ),
        (lambda: bj.simulate(bj.BTS(cost=Gamma), THREE, 5, KEY), "is a class"),
        (
            lambda: bj.simulate(bj.TSFixed(cost=(Gamma(),) * 3), bj.Timed(THREE), 5, KEY),
            "3 posteriors.*1 resource besides",
        ),
    ],
)
def test_bad_posteriors_are_refused_by_name(make, named):
    with pytest.raises(ValueError, match=named):
        make()


# MatchedBeta, Dirichlet, Known


def test_draws_do_not_underflow_for_priors_that_vary_much():
    """With few amounts that vary much, k would be below 1, and most draws nearly 0."""
    prior = Gamma(mean=2.0, strength=5, variation=100)
    draws = jax.vmap(lambda key: prior.draw(prior.init(Problem(num_arms=2)), key))(keys(2000))
    quantiles = np.quantile(np.asarray(draws, np.float64), [0.25, 0.5, 0.75])
    # Exponential with mean 2. The standard errors of these quantiles are below 0.06: 6 of them.
    np.testing.assert_allclose(quantiles, 2 * np.log([4 / 3, 2, 4]), atol=0.36)


def test_a_long_log_is_known_as_well_as_it_is():
    """10,000 amounts, one in 1,000 of them 1,000 times as large: the first draws vary as the mean
    of the log does.
    """
    log = np.where(np.arange(10_000) % 1000 == 0, 10.0, 0.01)
    prior = Gamma.from_log([log, log[:20]])
    state = prior.init(Problem(num_arms=2))
    assert np.asarray(state.count).tolist() == [20, 20], (
        "it soon gives way to what is seen in the run"
    )
    k = float(state.mean[0]) ** 2 / float(state.variance[0])
    assert k == pytest.approx(10_001 * log.mean() ** 2 / log.var(), rel=0.01)


@pytest.mark.parametrize("policy", [bj.JointBTS(), bj.GaussianBTS(), bj.BTS(reward=Normal())])
def test_policies_without_logarithms_of_draws_have_no_logits(policy):
    assert not hasattr(policy, "logits") and hasattr(bj.BTS(), "logits")


@pytest.mark.slow
@pytest.mark.parametrize("policy", [bj.JointBTS(), bj.GaussianBTS(), bj.BTS(reward=Normal())])
def test_they_keep_the_contract(policy):
    bj.check_policy(policy, bj.Bernoulli(reward=[0.3, 0.7, 0.5], cost=[0.4, 0.5, 0.6]))


@pytest.mark.slow
def test_gamma_has_pathwise_gradients():
    """Also in a relaxed game, in which an arm is pulled a little, and its amounts vary much."""
    batch = jax.vmap(lambda key: bj.Bernoulli.random(key, 3))(keys(20))
    found = pathwise_gradient(bj.BTS(cost=Gamma()), batch, 5, KEY, max_rounds=40)
    assert (
        np.isfinite([found.value, *found.gradient.values()]).all()
        and found.gradient["cost.strength"] != 0
    )


def test_known_costs_may_be_given_as_numbers():
    known = bj.BTS(cost=Known(mean=[0.01, 0.03]))
    assert contract.side_info(known) == ()
    state = known.init(Problem(num_arms=2, cost_scale=0.05))
    np.testing.assert_allclose(state.costs[0], [0.2, 0.6])
    with pytest.raises(ValueError, match=r"mean.*3"):
        known.init(Problem(num_arms=3))


def test_names_of_arms_are_for_mappings():
    for make in (Gamma.from_log, MatchedBeta.from_log):
        with pytest.raises(ValueError, match="arms is for values that are a mapping"):
            make([[1], [1]], arms=["b", "a"])
        with pytest.raises(ValueError, match="arms = 'ab' is one name"):
            make({"a": [1], "b": [1]}, arms="ab")


def test_matched_beta_is_beta_on_zeros_and_ones():
    values = [1, 0, 0, 1, 1, 1]
    for alpha, beta in ((1, 1), (0.5, 3)):
        matched, plain = MatchedBeta(alpha, beta), Beta(alpha, beta)
        for mine, theirs in zip(
            matched.shapes(after(matched, values)), plain.shapes(after(plain, values)), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_matched_beta_has_the_moments_of_the_bayesian_bootstrap():
    """Flat Dirichlet weights over the values, one 0 and one 1."""
    values = np.array([0.5, 0.6, 0.4, 0.55])
    weights = np.random.default_rng(0).dirichlet(np.ones(6), 200_000)
    bootstrap = weights @ np.append(values, [0, 1])
    found = draws(MatchedBeta(), after(MatchedBeta(), values))[:, 0]
    assert abs(found.mean() - bootstrap.mean()) < 6 * found.std() / np.sqrt(DRAWS)
    np.testing.assert_allclose(found.var(), bootstrap.var(), rtol=0.06)
    assert bootstrap.var() < 0.8 * draws(Beta(), after(Beta(), values))[:, 0].var(), (
        "trials lose what the values tell"
    )


def test_dirichlet_by_hand():
    """Values on the grid 0, 1/2, 1 with prior 1: after 1, 1, 1/2 the counts are 1, 2, 3, so θ ~
    (g₂/2 + g₃) / Σ g.
    """
    posterior = Dirichlet(values=[0, 0.5, 1], prior=1)
    state = after(posterior, [1, 1, 0.5])
    assert [int(count[0]) for count in state] == [0, 1, 2]
    p = np.array([1, 2, 3]) / 6
    v = np.array([0, 0.5, 1])
    assert_moments(draws(posterior, state)[:, 0], p @ v, (p @ v**2 - (p @ v) ** 2) / 7)


def test_values_between_two_points_are_rounded_without_bias():
    """0.3 is 1/4 or 1/2; the mean of the rounded values is 0.3. 6 standard errors."""
    posterior = Dirichlet()
    record = jax.jit(jax.vmap(posterior.record, (None, None, None, 0)))
    state = posterior.init(Problem(num_arms=1))
    for value, places in ((0.3, [1, 2]), (0.9, [3, 4]), (1.0, [4]), (0.0, [0])):
        counts = record(
            state, jnp.int32(0), jnp.float32(value), jax.random.bits(KEY, (DRAWS,), jnp.uint32)
        )
        share = np.stack(counts, -1)[:, 0].mean(0)
        assert abs(share @ np.linspace(0, 1, 5) - value) < 6 * 0.125 / np.sqrt(DRAWS)
        assert set(np.flatnonzero(share)) == set(places)


def test_with_two_values_dirichlet_is_beta():
    two, beta = Dirichlet(values=[0, 1], prior=1), Beta()
    values = [1, 0, 0, 1, 1]
    expected = draws(beta, after(beta, values))[:, 0]
    assert_moments(draws(two, after(two, values))[:, 0], 4 / 7, 4 * 3 / 49 / 8)
    assert_moments(expected, 4 / 7, 4 * 3 / 49 / 8)


def test_known_costs_are_side_information():
    policy = bj.BTS(cost=Known())
    assert contract.side_info(policy) == ("cost_mean",) and contract.side_info(bj.BTS()) == ()
    with pytest.raises(ValueError, match="the problem has no cost_mean"):
        policy.init(Problem(num_arms=2))
    bandit = bj.Scaled(bj.Bernoulli(reward=[0.9, 0.9], cost=[1, 1]), scale=0, shift=[4.0, 1.0])
    runs = bj.simulate_batch(policy, bandit, 400, keys(8))
    assert (runs.pulls[..., 1] > 0.9 * runs.rounds).all(), (
        "the cheaper of two equal arms, from the first rounds on"
    )


# Policies


def test_the_unit_of_a_price_list_is_that_of_the_bandit():
    """The same decisions in dollars and in cents, for a prior that is given in the same unit."""
    arms = bj.Bernoulli(reward=[0.9, 0.6, 0.3], cost=[0.5, 0.4, 0.6])
    runs = [
        bj.simulate_batch(
            bj.BTS(cost=Gamma(mean=[0.5 * unit, 0.1 * unit, unit], strength=4)),
            bj.Scaled(arms, scale=unit),
            60 * unit,
            keys(20),
        )
        for unit in (1, 128)
    ]
    np.testing.assert_array_equal(runs[0].pulls, runs[1].pulls)


def test_a_prior_for_each_resource():
    """The second arm is expected to use much of the second resource: with a strong prior it is
    pulled less.
    """
    bandit = bj.Bernoulli(reward=[0.5, 0.5], cost=[[0.5, 0.5], [0.5, 0.5]])
    cost = (Gamma(), Gamma(mean=[0.1, 0.9], strength=1000))
    runs = bj.simulate_batch(bj.TSFixed(cost=cost), bandit, [30, 30], keys(200))
    assert runs.pulls[..., 1].sum() < 0.4 * runs.rounds.sum()  # half without the prior


@pytest.mark.slow
@pytest.mark.with_care
def test_hyperparameters_of_posteriors_are_batched_and_learnt():
    bandit = bj.Bernoulli(reward=[0.9, 0.6, 0.3], cost=[0.5, 0.4, 0.6])
    strengths = np.float32([0.5, 20])
    batch = jax.vmap(lambda strength: bj.BTS(cost=Gamma(mean=[0.9, 0.1, 0.1], strength=strength)))(
        strengths
    )
    runs = bj.simulate_batch(batch, bandit, 30, keys(2))
    for i, strength in enumerate(strengths):
        alone = bj.simulate(
            bj.BTS(cost=Gamma(mean=[0.9, 0.1, 0.1], strength=float(strength))),
            bandit,
            30,
            keys(2)[i],
        )
        assert_same_bits(
            jax.tree.map(lambda x, i=i: np.asarray(x)[i], runs), jax.tree.map(np.asarray, alone)
        )
    policy = bj.BTS(cost=Gamma(mean=0.5))
    assert policy.learnable == Space(policy, None).ranges
    assert set(policy.learnable) == {"reward.alpha", "reward.beta", "cost.strength"}
    bandits = jax.vmap(lambda key: bj.Bernoulli.random(key, 3, cost_range=(0.3, 0.9)))(keys(50))
    found = smoothed_gradient(policy, bandits, 20, KEY, ranges={"cost.strength": (0.01, 100.0)})
    assert np.isfinite(found.gradient["cost.strength"]) and found.error["cost.strength"] > 0
    found = score_gradient(
        policy, bandits, 4, KEY, ranges={"cost.strength": (0.01, 100.0)}, runs=2, max_rounds=20
    )
    assert np.isfinite(found.gradient["cost.strength"]) and found.gradient["cost.strength"] != 0
    with pytest.raises(ValueError, match=r"ranges names 'cost.size'.*cost.strength"):
        Space(policy, {"cost.size": (1, 2)})


@pytest.mark.parametrize(
    "policy",
    [
        bj.BTS(),
        bj.BTS(cost=Gamma(mean=[0.5, 2.0], strength=5.0)),
        bj.TSUpdate(cost=(Gamma(), Beta())),
        bj.BTS(reward=Dirichlet(values=[0, 0.25, 1], prior=0.5)),
        bj.KnapsackBTS(cost=Known()),
        bj.GaussianBTS(learn=0.5),
    ],
    ids=str,
)
def test_policies_with_posteriors_are_described_and_made_again(policy):
    entry = entry_of(policy, ALL_POLICIES)
    assert is_ours(policy, ALL_POLICIES) and remade("policy", entry, ALL_POLICIES) == policy


def test_posteriors_in_grid_files(tmp_path):
    (tmp_path / "own_mean.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "grid.toml").write_text(
        """
num_seeds = 2
budgets = [5]
[policies.gamma]
kind = "bts"
cost = { kind = "gamma", strength = 5, mean = [0.5, 0.25] }
[policies.two]
kind = "ts-update"
reward = { kind = "dirichlet", prior = 0.5 }
cost = [{ kind = "gamma" }, { kind = "beta", alpha = 2 }]
[policies.mine]
kind = "bts"
cost = { kind = "own_mean:Mean", shrink = 2.0 }
[bandits.b]
kind = "bernoulli"
reward = [0.5, 0.9]
cost = [0.5, 0.25]
""",
        encoding="utf-8",
    )
    policies = read_toml(tmp_path / "grid.toml")["policies"]
    assert policies["gamma"] == bj.BTS(cost=Gamma(strength=5, mean=[0.5, 0.25]))
    assert policies["two"] == bj.TSUpdate(
        reward=Dirichlet(prior=0.5), cost=(Gamma(), Beta(alpha=2))
    )
    assert type(policies["mine"].cost).__name__ == "Mean"
    text = (tmp_path / "grid.toml").read_text(encoding="utf-8")
    for wrong, named in (
        ('"gama"', "policies.gamma.cost.kind = 'gama' is unknown.*gamma"),
        ('"gamma", size = 1', "unknown key 'size'"),
    ):
        (tmp_path / "grid.toml").write_text(text.replace('"gamma"', wrong, 1), encoding="utf-8")
        with pytest.raises(ValueError, match=named):
            read_toml(tmp_path / "grid.toml")


@pytest.mark.slow
def test_hyperparameters_of_posteriors_are_coordinates():
    policies = {f"{a}": bj.BTS(cost=Beta(alpha=a)) for a in (1, 2)}
    results = bj.sweep(
        policies, {"b": bj.Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.25])}, budgets=[5], num_seeds=2
    )
    assert results.cost_alpha.values.tolist() == [1, 2]


# Posteriors of a user

MINE = '''
import chex
import jax
import jax.numpy as jnp


@chex.dataclass(frozen=True)
class Mean:
    """The average, between a normal draw of it and 1/2."""

    shrink: float = 1.0

    def init(self, problem):
        return {"n": jnp.zeros(problem.num_arms), "total": jnp.zeros(problem.num_arms)}

    def draw(self, state, key):
        n = state["n"] + self.shrink
        mean = (state["total"] + 0.5 * self.shrink) / n
        return jnp.clip(mean + 0.3 * jax.random.normal(key, mean.shape) / jnp.sqrt(n), 0.001, 1)

    def record(self, state, arm, value, word):
        return {"n": state["n"].at[arm].add(1), "total": state["total"].at[arm].add(value)}
'''


@chex.dataclass(frozen=True)
class Mean:
    def init(self, problem):
        return jnp.zeros((2, problem.num_arms))

    def draw(self, state, key):
        n = state[0] + 1
        return jnp.clip(
            state[1] / n + 0.3 * jax.random.normal(key, n.shape) / jnp.sqrt(n), 0.001, 1
        )

    def record(self, state, arm, value, word):
        return state.at[0, arm].add(1).at[1, arm].add(value)


@chex.dataclass(frozen=True)
class Forgetful(Mean):
    def record(self, state, arm, value, word):
        return state


@chex.dataclass(frozen=True)
class Scalar(Mean):
    def draw(self, state, key):
        return state[1].sum()


@chex.dataclass(frozen=True)
class Changing(Mean):
    def record(self, state, arm, value, word):
        return state.astype(jnp.int32)


@chex.dataclass(frozen=True)
class Certain(Mean):
    def draw(self, state, key):
        return (state[1] + 0.5) / (state[0] + 1)


@chex.dataclass(frozen=True)
class Shared(Mean):
    def draw(self, state, key):
        return (
            (state[1] + 0.5)
            / (state[0] + 1)
            * (1 + 0.3 * jax.random.normal(key) / jnp.sqrt(state[0] + 1))
        )


@chex.dataclass(frozen=True)
class Undefined(Mean):
    def draw(self, state, key):
        return state[1] / state[0] + 0.01 * jax.random.normal(key, state[0].shape)


@chex.dataclass(frozen=True)
class Branching(Mean):
    def record(self, state, arm, value, word):
        return state.at[0, arm].add(1) if value > 0 else state


@pytest.mark.slow
def test_posteriors_of_a_user_are_checked():
    bj.check_posterior(Mean())
    bj.check_posterior(Gamma(mean=[0.1, 0.5], strength=3))
    with pytest.warns(UserWarning, match="Normal draws negative numbers"):
        bj.check_posterior(Normal())
    for kind, named in (
        (Forgetful, "learn from all of its values"),
        (Scalar, r"return one float32 for each arm, \[3\]"),
        (Changing, "record changes the state's"),
        (Certain, "draws do not vary"),
        (Shared, "move together"),
        (Undefined, "not finite before the first value"),
        (Branching, "branches on a traced value"),
    ):
        with pytest.raises(ValueError, match=named):
            bj.check_posterior(kind())
    with pytest.raises(ValueError, match=r"has no draw.*no record"):
        bj.check_posterior(bj.BTS())
