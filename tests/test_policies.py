"""The policies' rules: by hand, and step by step against the reference in float64."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import truncnorm

import bts_jax as bj
from bts_jax import Problem
from bts_jax.policies import ALL_POLICIES
from bts_jax.policies.epsilon_first import KahanSum
from bts_jax.policies.index import ArmStatistics, choose
from bts_jax.policies.kl_ucb_sc import largest_gain
from bts_jax.policies.omega_ucb import interval
from bts_jax.posteriors import Beta, Gamma, MatchedBeta, Normal
from bts_jax.posteriors.beta import BetaState
from bts_jax.posteriors.moments import Moments

KEY = jax.random.key(0)


@pytest.mark.parametrize("policy", [policy for policy in ALL_POLICIES.values() if policy.requires])
def test_missing_side_information_is_named(policy):
    known = {
        "budget": 100.0,
        "min_cost": 0.1,
        "cost_mean": np.full(3, 0.5),
        "best_arm": 1,
        "time_cost": 0.1,
    }
    for missing in policy.requires:
        given = {field: known[field] for field in policy.requires if field != missing}
        with pytest.raises(
            ValueError,
            match=rf"the problem has no {missing}, "
            rf".*Problem\(num_arms=3, {missing}=\.\.\.\)",
        ):
            policy().init(Problem(num_arms=3, **given))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: bj.KUBE(scal=2),
            "KUBE has no field 'scal': its fields are scale; did you mean 'scale'?",
        ),
        (
            lambda: bj.KUBE().replace(scal=2),
            "KUBE has no field 'scal': its fields are scale; did you mean 'scale'?",
        ),
        (
            lambda: bj.Bernoulli(rewards=[0.5], cost=[0.5]),
            "Bernoulli has no field 'rewards': its fields are reward, cost; did you mean 'reward'?",
        ),
        (lambda: bj.Uniform(horizon=3), "Uniform has no field 'horizon': it has no fields"),
    ],
)
def test_unknown_fields_get_a_suggestion(make, message):
    with pytest.raises(TypeError, match=rf"^{re.escape(message)}$"):
        make()


@pytest.mark.parametrize("kind", [*ALL_POLICIES.values(), *bj.bandits.BANDITS.values()])
def test_all_built_in_classes_suggest_fields(kind):
    with pytest.raises(TypeError, match=f"^{kind.__name__} has no field 'unheard_of': it"):
        kind(unheard_of=1)


def statistics(pulls, *totals, side_info=()):
    """After so many pulls of each arm, with these totals: of rewards, costs, and of r(1 − r), c(1 −
    c) if they are summed.
    """
    pulls, totals = np.array(pulls, np.int32), np.array(totals, np.float32)
    # By NumPy: JAX would compile each operation.
    totals = tuple(np.asarray(total, np.float32) for total in totals)
    return jax.device_put(
        ArmStatistics(
            pulls=pulls, totals=totals, rounds=pulls.sum(dtype=np.int32), side_info=side_info
        )
    )


def with_costs(state, means):
    """The same statistics, with average costs that are right to the bit."""

    class Known(ArmStatistics):
        cost_mean = means  # type: ignore

    return Known(*state)


def facts(policy, **known):
    """The side information of a policy, selected from all that is known."""
    return {name: np.asarray(known[name], np.float32) for name in policy.requires}


@jax.jit
def index_and_arm(policy, state):
    return policy.index(state), policy(state, KEY)[0]


def indices(policy, state):
    return np.asarray(index_and_arm(policy, state)[0])


def decide(policy, state):
    return int(index_and_arm(policy, state)[1])


@jax.jit
def called(policy, state):
    return policy(state, KEY)


@jax.jit
def updated(policy, state, arm, reward, cost):
    return policy.update(state, arm, reward, cost, KEY)


@jax.jit
def next_call(policy, state, first, arm, reward, cost):
    """The arm and the state after this feedback, of which there is none at first. One program
    instead of two.
    """
    after = policy.update(state, arm, reward, cost, KEY)
    return policy(jax.tree.map(lambda old, new: jnp.where(first, old, new), state, after), KEY)


def test_choose():
    inf = np.inf
    for index, pulls, arm in [
        ([1.0, 3.0, 2.0], [1, 1, 1], 1),
        ([3.0, 3.0, 2.0], [5, 1, 1], 0),  # a tie: the lowest number
        ([1.0, 3.0, 2.0], [1, 1, 0], 2),  # never pulled: first
        ([9.0, inf, inf], [1, 5, 4], 2),  # infinite: the least pulled of them
        ([inf, 9.0, inf], [4, 1, 4], 0),
        ([inf, inf, 9.0], [0, 0, 1], 0),
        ([inf, 5.0, 9.0], [3, 1, 0], 2),
        ([-2.0, -1.0, -3.0], [3, 1, 2], 1),
        ([-1.0, 0.0, 1e38], [9, 9, 9], 2),
        ([np.nan, 5.0, 9.0], [3, 1, 2], 0),  # undefined: as infinite
    ]:
        assert int(jax.jit(choose)(np.float32(index), np.int32(pulls))) == arm, (index, pulls)


def test_kube_by_hand():
    """Arm 0: r̄ = 1/2, c̄ = 1/4, n = 4; arm 1: no cost seen; arm 2: n = 1. Next round: t = 8."""
    state = statistics([4, 2, 1], [2, 1, 0], [1, 0, 0.5])
    index = indices(bj.KUBE(), state)
    np.testing.assert_allclose(index[0], (0.5 + np.sqrt(2 * np.log(8) / 4)) / 0.25, rtol=1e-6)
    assert index[1] == np.inf
    np.testing.assert_allclose(index[2], (0 + np.sqrt(2 * np.log(8))) / 0.5, rtol=1e-6)
    assert decide(bj.KUBE(), state) == 1
    greedy = indices(bj.KUBE(scale=0.0), state)
    assert greedy[0] == 2.0 and greedy[2] == 0.0


def test_ucb_bv1_by_hand():
    """λ = 1/2; 1000 pulls so far. e = √(ln 1000 / n): 0.0840 at n = 979, 0.5877 at n = 20, 2.628 at
    n = 1.
    """
    policy, explore = bj.UCBBV1(explore=0), bj.UCBBV1(explore=1)
    floor = policy.init(Problem(num_arms=3, min_cost=jnp.float32(0.5))).side_info
    state = statistics([979, 20, 1], [400, 10, 1], [600, 10, 1], side_info=floor)
    e = np.sqrt(np.log(1000) / np.array([979, 20, 1]))
    expected = np.array([2 / 3, 1, 1]) + 3 * e / (0.5 - e)
    np.testing.assert_allclose(indices(policy, state), expected, rtol=2e-5)
    assert expected[1] < expected[2] < 0 and decide(policy, state) == 0, (
        "a negative bonus where λ < e"
    )
    index = indices(explore, state)
    np.testing.assert_allclose(index[0], expected[0], rtol=1e-5)
    assert index[1] == np.inf and index[2] == np.inf and decide(explore, state) == 2, "λ ≤ e"
    costless = statistics([979, 10, 11], [1, 1, 1], [0, 1, 1], side_info=floor)
    for each in (policy, explore):
        assert indices(each, costless)[0] == np.inf, "c̄ = 0"
        free = statistics([5, 4], [2, 0], [1, 1], side_info=jnp.float32(0))
        assert (indices(each, free) == np.inf).all() and decide(each, free) == 1, (
            "λ = 0: all arms in turn"
        )
    given = bj.UCBBV1(min_cost=0.25).init(Problem(num_arms=3, min_cost=jnp.float32(0.5)))
    assert given.side_info == 0.25, "a λ that is given counts"


def test_ucb_bv_where_the_radius_is_the_floor():
    """e = λ, to the bit: explored first. One bit below or above, the bonus is finite, large and of
    the right sign.
    """
    e = jnp.sqrt(jnp.log(jnp.float32(1000))) * (1 / jnp.sqrt(jnp.float32(20)))
    floors = [e, jnp.nextafter(e, jnp.float32(1)), jnp.nextafter(e, jnp.float32(0))]
    for explore in (0.0, 1.0):
        policy = bj.UCBBV1(explore=explore)
        same, above, below = (
            policy.index(statistics([980, 20], [400, 10], [600, 10], side_info=floor))[1]
            for floor in floors
        )
        assert (
            same == np.inf
            and 1e6 < above < np.inf
            and (below == np.inf if explore else -np.inf < below < -1e6)
        )
        other = bj.UCBBV2(explore=explore)
        state = statistics([980, 20], [400, 10], [600, 10])
        costs = [jnp.stack([jnp.float32(0.9), floor]) for floor in floors]
        same, above, below = (other.index(with_costs(state, each))[1] for each in costs)
        assert (
            same == np.inf
            and 1e6 < above < np.inf
            and (below == np.inf if explore else -np.inf < below < -1e6)
        )


def test_pd_bwk_by_hand():
    """B = 1000, K = 3: ν = 0.25 ln 3000 = 2.0016. Arm 0 plain; arm 1's reward is clamped at 1, arm
    2's cost at 0.
    """
    policy = bj.PDBwK()
    start = policy.init(Problem(num_arms=3, budget=jnp.float32(1000)))
    state = statistics([400, 50, 4], [100, 45, 1], [200, 40, 2], side_info=start.side_info)
    nu = 0.25 * np.log(3000)
    np.testing.assert_allclose(state.side_info, nu, rtol=1e-6)
    index = indices(policy, state)
    reward = 0.25 + np.sqrt(nu * 0.25 / 400) + nu / 400
    cost = 0.5 - np.sqrt(nu * 0.5 / 400) - nu / 400
    np.testing.assert_allclose(index[0], reward / cost, rtol=1e-6)
    np.testing.assert_allclose(index[1], 1 / (0.8 - np.sqrt(nu * 0.8 / 50) - nu / 50), rtol=1e-6)
    assert np.sqrt(nu * 0.5 / 4) + nu / 4 > 0.5 and index[2] == np.inf
    assert decide(policy, state) == 2


def test_ucb_bv2_by_hand():
    """1000 pulls so far, λ = 1/2, of arm 0. e = √(ln 1000 / n) is below λ but for n = 20."""
    policy, explore = bj.UCBBV2(explore=0), bj.UCBBV2(explore=1)
    state = statistics([600, 380, 20], [400, 190, 10], [300, 300, 18])
    e = np.sqrt(np.log(1000) / np.array([600, 380, 20]))
    expected = np.array([4 / 3, 19 / 30, 5 / 9]) + 2 * (1 + 1 / (0.5 - e)) * e
    np.testing.assert_allclose(indices(policy, state), expected, rtol=2e-5)
    assert expected[2] < 0 and decide(policy, state) == 0, "a negative bonus where λ < e"
    index = indices(explore, state)
    np.testing.assert_allclose(index[:2], expected[:2], rtol=1e-5)
    assert index[2] == np.inf and decide(explore, state) == 2, "λ ≤ e"
    unseen = statistics([600, 20, 380], [400, 10, 190], [300, 10, 0])
    assert (indices(explore, unseen) == np.inf).all() and decide(explore, unseen) == 1, (
        "λ = 0: all are explored"
    )
    np.testing.assert_allclose(indices(policy, unseen), [4 / 3, 1, np.inf], rtol=1e-6)
    assert decide(policy, unseen) == 2, "λ = 0: the arm that has not cost anything"


def test_fractional_kube_by_hand():
    """t = 8. The costs that were seen do not count; an arm that never costs anything is always
    explored.
    """
    policy = bj.FractionalKUBE()
    start = policy.init(Problem(num_arms=3, cost_mean=jnp.array([0.25, 0.5, 0.0])))
    state = statistics([4, 2, 1], [2, 1, 0], [1, 0, 0.5], side_info=start.side_info)
    expected = [(0.5 + np.sqrt(2 * np.log(8) / 4)) / 0.25, (0.5 + np.sqrt(np.log(8))) / 0.5, np.inf]
    np.testing.assert_allclose(indices(policy, state), expected, rtol=1e-6)


def test_budget_ucb_by_hand():
    """λ = 0.2; 1000 pulls so far. Arm 0 plain; arm 1's reward is cut at 1 and its cost at λ; arm 2
    has not cost anything.
    """
    policy = bj.BudgetUCB()
    start = policy.init(Problem(num_arms=3, min_cost=jnp.float32(0.2)))
    state = statistics([900, 50, 50], [400, 45, 0], [600, 20, 0], side_info=start.side_info)
    e, f = np.sqrt(2 * np.log(1000) / np.array([900, 50]))
    c, d = 2 / 3, 0.4
    expected = [(4 / 9 + e + e * (4 / 9 + e) / (c - e)) / c, (0.9 + f + f * 1 / 0.2) / d, np.inf]
    np.testing.assert_allclose(indices(policy, state), expected, rtol=1e-5)
    free = policy.init(Problem(num_arms=3, min_cost=jnp.float32(0)))
    first = statistics([1, 0, 0], [0, 0, 0], [0, 0, 0], side_info=free.side_info)
    assert indices(policy, first)[0] == np.inf, "t = 2, no reward, no cost, λ = 0"


def test_i_c_and_m_ucb_by_hand():
    """1000 pulls so far. Arm 0 plain; arm 1 has only earned; arm 2 has not cost anything."""
    state = statistics([900, 50, 50], [400, 50, 0], [600, 20, 0])
    mean, cost = np.array([4 / 9, 1]), np.array([2 / 3, 0.4])
    e = np.sqrt(np.log(1000) / np.array([900, 50]))
    for policy, expected in (
        (bj.IUCB(), mean / cost + e / 4),
        (bj.CUCB(), (mean + e / 8) / cost),
        (bj.MUCB(), np.minimum(mean + e / 16, 1) / (cost - e / 16)),
        (bj.IUCB(alpha=0), mean / cost),
    ):
        np.testing.assert_allclose(indices(policy, state)[:2], expected, rtol=1e-6)
        assert indices(policy, state)[2] == np.inf


def test_b_greedy_explores_with_the_right_probability():
    """From one state with K = 4 and t = 21: each arm with probability 1/21, the best with the rest.
    6 standard errors.
    """
    policy, runs = bj.BGreedy(), 40_000
    state = statistics([5, 5, 5, 5], [1, 2, 3, 2], [2, 2, 2, 4])
    play = jax.jit(
        lambda policy, state: jax.vmap(lambda key: policy(state, key)[0])(
            jax.random.split(KEY, runs)
        )
    )
    arm = np.asarray(play(policy, state))
    chance = np.array([1 / 21, 1 / 21, 18 / 21, 1 / 21])
    assert (
        np.abs(np.bincount(arm, minlength=4) / runs - chance)
        < 6 * np.sqrt(chance * (1 - chance) / runs)
    ).all()
    assert (play(bj.BGreedy(scale=0.0), state) == 2).all()
    unseen = statistics([5, 5, 0, 5], [1, 2, 0, 2], [2, 2, 0, 4])
    assert (play(bj.BGreedy(scale=100.0), unseen) == 2).all(), "first every arm is pulled once"


def test_omega_ucb_by_hand():
    """The roots of A x² − Bq x + C at t = 1000, ρ = 1/4; the lower one is 0, exactly, if and only
    if no cost was seen.
    """
    pulls, rewards, costs = [700, 198, 100, 1], [350, 198, 0, 1], [140, 1, 0, 1]
    state = statistics(pulls, rewards, costs)
    z_square = 0.5 * np.log(1001)
    both = jax.jit(
        lambda state, z_square: [interval(side, z_square) for side in bj.OmegaUCB().sides(state)]
    )
    (_, reward), (lower, upper) = both(state, np.float32(z_square))
    for i, (n, x) in enumerate(zip(pulls, np.array(costs) / pulls, strict=True)):
        roots = np.sort(np.roots([n + z_square, -(2 * n * x + z_square), n * x**2]).real)
        np.testing.assert_allclose([lower[i], upper[i]], roots, rtol=3e-6, atol=1e-300)
    assert lower[2] == 0 and (np.asarray(lower)[[0, 1, 3]] > 0).all()
    index = indices(bj.OmegaUCB(), state)
    np.testing.assert_allclose(index[0], reward[0] / lower[0], rtol=1e-6)
    assert index[2] == np.inf
    np.testing.assert_allclose(
        index[1], 1 / lower[1], rtol=1e-6, err_msg="a reward that never failed: at most 1"
    )
    assert indices(bj.OmegaUCB(), statistics([1, 0], [0, 0], [0, 0]))[0] == np.inf
    many = statistics([2 * 10**9, 10**6], [10**9, 10], [10**9, 1])
    np.testing.assert_allclose(indices(bj.OmegaUCB(), many)[0], 1, rtol=1e-3)


def test_omega_star_ucb_by_hand():
    """200 pulls: half of them 0.5 and half 1, so that x̄ = 3/4, s² = n/(n − 1)/16 and η̂ = 1/3; too
    few; Bernoulli feedback.
    """
    state = statistics([200, 20, 780], [150, 15, 390], [150, 15, 78], [25, 2.5, 0], [25, 2.5, 0])
    np.testing.assert_allclose(
        bj.OmegaStarUCB().sides(state)[0].scale * state.pulls, [1 / 3, 1, 1], rtol=1e-6
    )
    z_square = 0.5 * np.log(1002) / 3
    lower, upper = np.sort(np.roots([200 + z_square, -(300 + z_square), 200 * 0.75**2]).real)
    np.testing.assert_allclose(indices(bj.OmegaStarUCB(), state)[0], upper / lower, rtol=1e-6)
    plain = statistics([200, 20, 780], [150, 15, 390], [150, 15, 78])
    np.testing.assert_array_equal(
        indices(bj.OmegaStarUCB(), state)[1:], indices(bj.OmegaUCB(), plain)[1:]
    )
    certain = statistics([100, 100, 800], [50, 0, 800], [50, 0, 800], [25, 0, 0], [25, 0, 0])
    index = indices(bj.OmegaStarUCB(), certain)
    assert index[0] == 1 and index[1] == np.inf and 1 < index[2] < 1.02, (
        "always 1/2: nothing is uncertain; always 0; always 1"
    )


def test_patient_omega_ucb_by_hand():
    """220 pulls: the rest of the rewards is 25/220, of x̄(1 − x̄) = 150/220 · 70/220. η̂ = 1 −
    220/225 · the quotient.
    """
    state = statistics([220, 780], [150, 390], [10, 78], [25, 0], [2, 0])
    eta = np.array(
        [
            [1 - 220 / 225 * 25 / 220 / (150 / 220 * 70 / 220), 1],
            [1 - 220 / 225 * 2 / 220 / (10 / 220 * 210 / 220), 1],
        ]
    )  # reward, cost
    rho = 1 / 8 * (1 + 5 * 2 / (np.array([10, 78]) / eta[1] + 2))
    ends = []
    for side, totals in zip(eta, ([150, 390], [10, 78]), strict=True):
        z_square = 2 * rho * np.log(1002) * side
        ends.append(
            [
                np.sort(np.roots([n + z, -(2 * x + z), x**2 / n]).real)
                for n, x, z in zip([220, 780], totals, z_square, strict=True)
            ]
        )
    expected = np.array(ends[0])[:, 1] / np.array(ends[1])[:, 0]
    np.testing.assert_allclose(indices(bj.PatientOmegaUCB(), state), expected, rtol=1e-5)
    bernoulli = statistics([220, 780], [150, 390], [10, 78], [0, 0], [0, 0])
    np.testing.assert_array_equal(
        indices(bj.PatientOmegaUCB(rho=0.25, patience=1), bernoulli),
        indices(bj.OmegaStarUCB(), bernoulli),
        "no patience, Bernoulli feedback",
    )
    assert (
        indices(bj.PatientOmegaUCB(), statistics([1, 0], [0, 0], [0, 0], [0, 0], [0, 0]))[0]
        == np.inf
    )
    half = statistics([10**6] * 2, [5 * 10**5] * 2, [10**6, 5 * 10**5], [2.5e5] * 2, [0, 2.5e5])
    always = indices(bj.PatientOmegaUCB(), half)
    np.testing.assert_allclose(
        always, [0.5, 1], rtol=1e-3, err_msg="always 1/2: hardly anything is uncertain"
    )


@pytest.mark.slow
def test_patience_saves_lost_runs():
    """400 random problems, 15,000 times the smallest cost: less mean regret than BTS, by 3 standard
    errors; fewer lost runs.
    """
    bandits = jax.tree.map(
        np.asarray, jax.vmap(lambda key: bj.Bernoulli.random(key, 10))(jax.random.split(KEY, 400))
    )
    budgets = 15_000 * np.asarray(bandits.cost_mean).min(-1)
    runs = (
        bj.simulate_batch(policy, bandits, budgets, jax.random.split(KEY, 400))
        for policy in (bj.PatientOmegaUCB(), bj.OmegaStarUCB(), bj.BTS())
    )
    patient, star, bts = (bj.pseudo_regret(one, bandits)[:, 0] for one in runs)
    assert patient.mean() < bts.mean() - 3 * (patient - bts).std() / 20
    assert np.quantile(patient, 0.99) < np.quantile(star, 0.99)


@pytest.mark.slow
def test_matched_bts_has_less_regret_than_bts():
    """200 random problems with Beta arms: less mean regret, by 5 standard errors. BTS throws away
    how little they vary.
    """
    bandits = jax.tree.map(
        np.asarray, jax.vmap(lambda key: bj.Beta.random(key, 10))(jax.random.split(KEY, 200))
    )
    budgets, keys = 500 * np.asarray(bandits.cost_mean).min(-1), jax.random.split(KEY, 200)
    matched, same, bts = (
        bj.pseudo_regret(bj.simulate_batch(policy, bandits, budgets, keys), bandits)[:, 0]
        for policy in (bj.MatchedBTS(), bj.BTS(MatchedBeta(), Gamma()), bj.BTS())
    )
    assert matched.mean() < bts.mean() - 5 * (matched - bts).std() / np.sqrt(200)
    np.testing.assert_array_equal(matched, same)


def test_ucb_sc_plus_by_hand():
    """The largest x/y over the disc around (r̄, c̄), by going round it; infinite where it reaches
    the axis.
    """
    pulls, rewards, costs = [600, 390, 9], [300, 0, 5], [240, 390, 1]
    state = statistics(pulls, rewards, costs)
    index = indices(bj.UCBSCPlus(), state)
    angle = np.linspace(0, 2 * np.pi, 1_000_001)
    for i, (n, reward, cost) in enumerate(zip(pulls[:2], rewards, costs, strict=False)):
        radius = np.sqrt(np.log(1000 / n) / (2 * n))
        best = ((reward / n + radius * np.cos(angle)) / (cost / n + radius * np.sin(angle))).max()
        np.testing.assert_allclose(index[i], best, rtol=1e-5)
    assert index[2] == np.inf
    assert np.isfinite(
        indices(bj.UCBSCPlus(), statistics([10**9, 5], [10**8, 1], [10**9, 1]))[0]
    ), "n ≈ t"


def test_kl_ucb_sc_by_hand():
    """Against the best split of the divergence between reward and cost, each side solved by SciPy;
    closed forms at 0 and 1.
    """
    pulls, rewards, costs = (
        [500, 400, 60, 30, 6, 2, 1],
        [250, 300, 0, 30, 6, 1, 0],
        [100, 399, 30, 30, 1, 0, 1],
    )
    state = statistics(pulls, rewards, costs)
    index, tuned, half = (indices(bj.KLUCBSC(tuned=tuned), state) for tuned in (0, 1, 0.5))

    def largest(reward, cost, level):
        def side(mean, share, end):
            if share <= 0 or mean == end:
                return mean
            inside = end - 1e-15 if end else 1e-300
            return brentq(
                lambda x: float(reference.kl(mean, x)) - share,
                mean,
                inside,
                xtol=1e-300,
                rtol=1e-13,
            )

        def loss(share):
            return side(cost, (1 - share) * level, 0.0) / side(reward, share * level, 1.0)

        found = minimize_scalar(
            loss, bounds=(1e-12, 1), method="bounded", options={"xatol": 1e-9}
        ).fun
        return 1 / min(found, loss(1e-12), loss(1.0))

    with np.errstate(divide="ignore", invalid="ignore"):
        for i in (0, 1, 2, 4):
            for found, level in (
                (index, np.log(1000)),
                (tuned, np.log(1000 / pulls[i])),
                (half, np.log(1000) - np.log(pulls[i]) / 2),
            ):
                best = largest(rewards[i] / pulls[i], costs[i] / pulls[i], level / pulls[i])
                np.testing.assert_allclose(found[i], best, rtol=1e-5)
    np.testing.assert_allclose(
        index[3], 1000 ** (1 / 30), rtol=1e-5, err_msg="r̄ = c̄ = 1: y = t^(−1/n)"
    )
    np.testing.assert_allclose(
        tuned[3], (1000 / 30) ** (1 / 30), rtol=1e-5, err_msg="r̄ = c̄ = 1: y = (t/n)^(−1/n)"
    )
    assert index[5] == np.inf and tuned[5] == np.inf, "no cost seen"
    assert tuned[6] == index[6], "ln n = 0"
    # r̄ = 0, c̄ = 1, n = 1: kl(0, x) + kl(1, y) = −ln(1 − x) − ln y; at x = 1/2, y = 2/t, and x/y =
    # t/4.
    np.testing.assert_allclose(index[6], 1000 / 4, rtol=1e-5)


@pytest.mark.slow
def test_kl_ucb_sc_without_exploration_is_the_plain_ratio():
    """t = n to float32 after 2²⁵ pulls of one arm: ln(t/n) = 0, and the index is r̄/c̄ to the bit;
    a level of 0, and around.
    """
    state = statistics([2**25, 1], [2**24, 1], [3 * 2**22, 1])
    assert indices(bj.KLUCBSC(tuned=1), state)[0] == jnp.float32(0.5) / jnp.float32(0.375)
    r, c = (x.ravel() for x in jnp.meshgrid(*[jnp.array([1e-12, 1e-3, 0.3, 1], jnp.float32)] * 2))
    gain = jax.jit(largest_gain)
    assert (gain(r, c, 0 * r) == 0).all()
    tiny = np.asarray(gain(r, c, 0 * r + jnp.float32(1e-14)))
    assert np.isfinite(tiny).all() and (tiny[(r > 1e-4) & (c > 1e-4)] < 1e-4).all(), "continuous"


@pytest.mark.parametrize("tuned", [0, 1])
def test_kl_ucb_sc_everywhere(tuned):
    """From 1 to 10⁷ pulls, all kinds of averages, t from n + 1 to 10⁸: to 10⁻⁵ of its logarithm
    where that is large.

    Where r̄ = 0 and nearly all pulls were of this arm, r̄ being taken for 10⁻¹² matters: there to
    10⁻² of its logarithm.
    """
    rng = np.random.default_rng(0)
    n = np.exp(rng.uniform(0, np.log(1e7), 20_000)).astype(int)
    reward, cost = (
        rng.binomial(n, rng.choice([0.001, 0.01, 0.1, 0.5, 0.9, 0.999, 1], 20_000)) / n
        for _ in range(2)
    )
    reward *= rng.random(20_000) < 0.9
    keep = cost > 0
    n, reward, cost = (
        n[keep],
        np.float32(reward[keep]).astype(float),
        np.float32(cost[keep]).astype(float),
    )
    seen = SimpleNamespace(
        n=n, t=np.exp(rng.uniform(np.log(n + 1), np.log(1e8))), means=lambda: (reward, cost)
    )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        theirs = np.log(reference.kl_ucb_sc_index(seen, {}, tuned))
    level = jnp.array((np.log(seen.t) - tuned * np.log(n)) / n, jnp.float32)
    ours = jax.jit(largest_gain)(
        jnp.maximum(jnp.array(reward, jnp.float32), 1e-12), jnp.array(cost, jnp.float32), level
    )
    ours = np.asarray(ours, float) + np.log(np.maximum(reward, 1e-12) / cost)
    ordinary = theirs < 80
    sharp = ordinary & ((reward > 0) | (np.asarray(level) > 2e-6))
    assert ordinary.mean() > 0.99 and sharp.mean() > 0.97 and np.isfinite(ours).all()
    np.testing.assert_allclose(ours[sharp], theirs[sharp], rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours[ordinary], theirs[ordinary], rtol=0, atol=1e-2)


def test_ucb_b2_by_hand():
    """100,000 pulls so far. Arm 0: Bernoulli feedback; arm 1: always 1/2, no variance; arm 2: cost
    not known well enough.
    """
    state = statistics(
        [60_000, 39_999, 1],
        [30_000, 19_999.5, 1],
        [20_000, 19_999.5, 1],
        [0, 9_999.75, 0],
        [0, 9_999.75, 0],
    )
    log = 2.01 * np.log(100_001)
    epsilon, eta = (np.sqrt(2 * v * log / 60_000) + 3 * log / 60_000 for v in (1 / 4, 2 / 9))
    for policy in (bj.UCBB2(reward_test=0), bj.UCBB2(reward_test=1)):
        index = indices(policy, state)
        np.testing.assert_allclose(index[0], 1.5 + 1.4 * (epsilon + 1.5 * eta) * 3, rtol=1e-5)
        np.testing.assert_allclose(index[1], 1 + 1.4 * (3 * log / 39_999) * 2 * 2, rtol=1e-4)
        assert index[2] == np.inf and decide(policy, state) == 2
    lax = indices(bj.UCBB2(alpha=0.0), state)
    np.testing.assert_allclose(lax, [1.5, 1, 1], rtol=1e-6)


def test_ucb_b2_tests_the_cost_or_the_reward():
    """After 10,000 pulls, η = 0.029 + 3α ln t/n = 0.0407 for n = 4999. Arm 0: r̄ = 0.03 < η <
    0.22c̄; arm 1: 0.22c̄ < η < r̄; arm 2: no cost, η < r̄."""
    state = statistics([4999, 4999, 2], [150, 2499, 2], [2499, 750, 0], [0, 0, 0], [0, 0, 0])
    log = 2.01 * np.log(10_001)
    eta = [
        np.sqrt(2 * c * (1 - c) * log / 4999) + 3 * log / 4999 for c in (2499 / 4999, 750 / 4999)
    ]
    assert 150 / 4999 < eta[0] < 0.21 * 0.49 and 0.22 * 0.151 < eta[1] < 0.49
    cost, reward = (
        np.isfinite(indices(bj.UCBB2(reward_test=test), state)).tolist() for test in (0, 1)
    )
    assert cost == [True, False, False] and reward == [False, True, False]
    many = statistics([10**8, 10**8], [10**8, 10**7], [0, 10**7], [0, 0], [0, 0])
    assert indices(bj.UCBB2(reward_test=1), many)[0] == np.inf, "c̄ = 0"


def test_epsilon_first_explores_in_turn_then_commits_for_good():
    policy = bj.EpsilonFirst(epsilon=0.5)
    state = policy.init(Problem(num_arms=3, budget=jnp.float32(10)))
    rewards = [0.2, 0.9, 0.4]
    arms = []
    for _ in range(20):
        arm, state = called(policy, state)
        arms.append(int(arm))
        state = updated(policy, state, arm, np.float32(rewards[int(arm)]), np.float32(0.5))
        if len(arms) == 12:  # after the commitment, the best arm turns bad: estimates are frozen
            rewards = [1.0, 0.0, 1.0]
    assert arms == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0] + [1] * 10, (
        "10 pulls at 0.5 spend half of the budget of 10"
    )


@pytest.mark.parametrize(
    ("epsilon", "budget"), [(0.1, 50), (0.3, 50), (0.15, 100), (0.6, 50), (0.7, 30), (0.35, 1000)]
)
def test_epsilon_first_explores_no_longer_than_it_should(epsilon, budget):
    run = bj.simulate(
        bj.EpsilonFirst(epsilon=epsilon), bj.Bernoulli(reward=[1, 0], cost=[1, 1]), budget, KEY
    )
    explored = round(epsilon * budget)
    assert int(run.pulls[0, 1]) == explored // 2


def test_epsilon_first_pulls_every_arm_before_it_commits():
    policy = bj.EpsilonFirst(epsilon=0.01)
    state = policy.init(Problem(num_arms=3, budget=jnp.float32(10)))
    arms = []
    for _ in range(5):
        arm, state = called(policy, state)
        arms.append(int(arm))
        state = updated(policy, state, arm, np.float32(arm == 1), np.float32(1))
    assert arms == [0, 1, 2, 1, 1]


def test_epsilon_first_commits_to_an_arm_that_has_earned():
    """By the plain ratio: 0 for an arm that neither earned nor cost anything, infinite for one that
    earned alone.
    """
    for rewards, costs, arm in [
        ([0, 2, 1], [0, 4, 4], 1),  # nothing earned and nothing spent: a ratio of 0
        ([0, 0, 0], [0, 4, 2], 0),  # all ratios are 0: the lowest number
        ([2, 1, 4], [2, 0, 1], 1),  # earned and cost nothing: infinite
        ([2, 2, 1], [4, 4, 3], 0),  # a tie: the lowest number
        ([4, 1, 3], [1, 0, 0], 2),  # two infinite ones: the one that earned more
        ([4, 3, 3], [1, 0, 0], 1),  # and of those the lowest number
    ]:
        policy = bj.EpsilonFirst()
        state = policy.init(Problem(num_arms=3, budget=jnp.float32(10)))
        arms = statistics([4, 4, 4], rewards, costs)
        found, state = called(
            policy,
            state._replace(arms=arms, spent=KahanSum(np.float32(sum(costs) + 1), np.float32(0))),
        )
        assert int(found) == int(state.committed) == arm, (rewards, costs)


def histories(count=200, arms=5):
    """Random histories of five arms, as `reference.Seen` has them, all in round t = 2001. Among the
    arms: n = 1, no cost, no reward, always a reward or a cost; feedback of 0 and 1 alone, and in
    quarters."""
    rng = np.random.default_rng(8)
    seen = reference.Seen(count, arms)
    share = rng.dirichlet(np.full(arms, 0.5), count)
    seen.n = np.maximum(np.floor(2000 * share), 1)
    seen.n[rng.random((count, arms)) < 0.1] = 1
    seen.n[np.arange(count), seen.n.argmax(1)] += 2000 - seen.n.sum(1)
    seen.t = 2001
    for name in ("reward", "cost"):
        p = rng.choice(
            [0, 0.02, 0.2, 0.5, 0.8, 1], (count, arms), p=[0.1, 0.1, 0.25, 0.25, 0.25, 0.05]
        )
        whole = rng.binomial(seen.n.astype(int), p)
        quarters = rng.binomial(
            seen.n.astype(int) - whole, np.where(rng.random((count, arms)) < 0.5, 0, 0.5 * p)
        )
        setattr(seen, name, whole + quarters / 4)
        setattr(seen, f"{name}_square", whole + quarters / 16)
    seen.spent = seen.cost.sum(1)
    assert (seen.n > 0).all() and (seen.n.sum(1) == 2000).all()
    for edge in (
        seen.n == 1,
        seen.cost == 0,
        seen.reward == 0,
        (seen.cost == 0) & (seen.reward == 0),
        seen.cost == seen.n,
    ):
        assert edge.any(1).sum() >= 10
    return seen


def as_statistics(seen, policy, side_info=()):
    """The policy's statistics of these histories, one in each row."""
    pulls = seen.n.astype(np.int32)
    totals = [seen.reward, seen.cost]
    if getattr(policy, "variances", False):
        totals += [seen.reward - seen.reward_square, seen.cost - seen.cost_square]
    totals = tuple(np.array(total, np.float32) for total in totals)
    return jax.device_put(
        ArmStatistics(
            pulls=pulls, totals=totals, rounds=pulls.sum(1, dtype=np.int32), side_info=side_info
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ucb-bv1", {"explore": 0}),
        ("ucb-bv1", {"explore": 1}),
        ("ucb-bv2", {"explore": 0}),
        ("ucb-bv2", {"explore": 1}),
        ("ucb-b2", {"reward_test": 0}),
        ("ucb-b2", {"reward_test": 1}),
        ("kl-ucb-sc", {"tuned": 0}),
        ("kl-ucb-sc", {"tuned": 1}),
        ("epsilon-first", {}),
    ],
    ids=str,
)
def test_decisions_agree_with_the_reference_after_random_histories(name, options):
    """The arm must be the reference's, or its index within 3e-5 of the largest. The arms with an
    infinite index must agree.
    """
    seen = histories()
    floors = np.random.default_rng(9).choice([0.02, 0.1, 0.3, 0.9], len(seen.n))
    policy = bj.POLICIES[name](**options)
    side_info = np.float32(floors) if name == "ucb-bv1" else ()
    state = as_statistics(seen, policy, side_info)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if name == "epsilon-first":
            start = policy.init(Problem(num_arms=5, budget=jnp.float32(1)))
            start = start._replace(spent=KahanSum(jnp.float32(1), jnp.float32(0)))
            commit = jax.vmap(lambda arms: policy(start._replace(arms=arms), KEY)[0])
            np.testing.assert_array_equal(jax.jit(commit)(state), reference.commitment(seen))
            return
        values = reference.INDICES[name](
            seen, {"min_cost": np.float32(floors)[:, None].astype(float)}, **options
        )
        theirs = reference.pick(values, seen.n)
    index, arm = map(np.asarray, jax.vmap(index_and_arm, (None, 0))(policy, state))
    assert not np.isnan(index).any()
    np.testing.assert_array_equal(index == np.inf, ~np.isfinite(values) | (values > 3e38))
    other = np.flatnonzero(arm != theirs)
    mine, best = values[other, arm[other]], values[other, theirs[other]]
    assert np.isfinite(best).all() and (mine > best - 3e-5 * np.abs(best)).all() and len(other) <= 4
    assert len(np.unique(arm)) == 5, "decisions that differ"


@pytest.mark.parametrize("name", [*reference.INDICES, "epsilon-first"])
def test_decisions_agree_with_the_reference_step_by_step(name):
    """The same feedback to both, 600 rounds. The arm must be the reference's, or as good to
    float32: an index within 3e-5 of the largest. (Close to where it becomes infinite an index loses
    digits.) At first, the arms go in order."""
    rng = np.random.default_rng(1)
    arms, budget = 6, 120
    means = rng.uniform(0.1, 0.9, (2, arms))
    problem = {"budget": budget, "min_cost": means[1].min(), "cost_mean": means[1]}
    policy = bj.POLICIES[name]()
    state = policy.init(Problem(num_arms=arms, **facts(policy, **problem)))
    theirs, seen = reference.POLICIES[name](), reference.Seen(1, arms)
    same, first, arm, reward, cost = 0, [], 0, 0, 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for _ in range(600):
            arm, state = next_call(
                policy, state, not first, np.int32(arm), np.float32(reward), np.float32(cost)
            )
            arm, other = int(arm), int(theirs(seen, problem, rng)[0])
            if arm != other:
                values = reference.INDICES[name](seen, problem)[0]
                assert np.isfinite(values).all() and values[arm] > values[other] * (1 - 3e-5)
            same += arm == other
            first.append(arm)
            reward, cost = rng.choice([0, 0.25, 0.5, 1], 2, p=[0.3, 0.2, 0.2, 0.3])
            reward, cost = (
                reward * (rng.random() < means[0, arm]),
                cost * (rng.random() < means[1, arm]),
            )
            seen.add(np.array([arm]), reward, cost, rng)
    assert same > 590 and first[:arms] == [0, 1, 2, 3, 4, 5]


@jax.tree_util.register_static
class Frozen:
    """A policy that never learns: it decides from one state, round after round."""

    def __init__(self, policy, state):
        self.policy, self.state = policy, state

    def init(self, problem):
        return self.state

    def __call__(self, state, key):
        return self.policy(state, key)

    def update(self, state, arm, reward, cost, key):
        return state


def decisions(policy, start, runs, rounds):
    """The arms [runs, rounds] that a policy selects from one state, and the number of calls in a
    round.

    The engine plays them, so that accepted draws that were not needed are used in later rounds.
    """
    num_arms = jax.tree.leaves(start)[0].shape[0]
    bandit = bj.Bernoulli(reward=np.full(num_arms, 0.5), cost=np.ones(num_arms))
    reports = []
    played = bj.simulate_batch(
        Frozen(policy, start),
        bandit,
        rounds,
        jax.random.split(KEY, runs),
        checkpoints=np.arange(1, rounds + 1),
        on_report=reports.append,
    )
    pulls = np.diff(np.asarray(played.pulls), axis=1, prepend=0)
    assert (pulls.sum(-1) == 1).all() and reports[0].rounds == runs * rounds
    return pulls.argmax(-1), reports[0].calls / reports[0].rounds


def assert_chances(arm, ratio):
    """Compares the selected arms with how often each arm is best among independent draws [K,
    draws].

    The arm of one round must also be independent of the next one, although unused draws are stored.
    6.5 standard errors for each of 30 numbers: 3·10⁻⁹.
    """
    runs, rounds = arm.shape
    brute = np.bincount(ratio.argmax(0), minlength=5) / ratio.shape[1]
    ours = np.bincount(arm.ravel(), minlength=5) / arm.size
    spread = np.sqrt(brute * (1 - brute) * (1 / arm.size + 1 / ratio.shape[1]))
    assert (np.abs(ours - brute) < 6.5 * spread).all(), (ours, brute)
    pairs = np.bincount(5 * arm[:, :-1].ravel() + arm[:, 1:].ravel(), minlength=25) / (
        runs * (rounds - 1)
    )
    chance = np.outer(brute, brute).ravel()
    # Neighbouring pairs share a round: their number varies at most three times as much as if they
    # did not.
    assert (np.abs(pairs - chance) < 6.5 * np.sqrt(3 * chance / (runs * (rounds - 1)))).all(), (
        pairs - chance
    )


@pytest.mark.slow
@pytest.mark.long_runs
def test_bts_chooses_arms_with_the_posterior_probability_of_being_best():
    """From fixed posteriors, 20 rounds in a row, against brute force with NumPy's Beta."""
    successes, pulls = (
        np.array([[3, 0, 20, 500, 1], [2, 1, 25, 640, 1]]),
        np.array([7, 1, 40, 1000, 2]),
    )
    policy = bj.BTS(reward=Beta(beta=0.5))
    reward, cost = (
        BetaState(jnp.array(count, jnp.int32), jnp.array(pulls, jnp.int32)) for count in successes
    )
    start = policy.init(Problem(num_arms=5))._replace(reward=reward, costs=(cost,))
    arm, calls = decisions(policy, start, 10_000, 20)
    assert 1 < calls < 1.2, "few calls are not complete, for draws are kept"
    rng = np.random.default_rng(5)
    assert_chances(
        arm,
        np.stack(
            [
                rng.beta(s + 1, n - s + 0.5, 800_000) / rng.beta(c + 1, n - c + 1, 800_000)
                for s, c, n in zip(*successes, pulls, strict=True)
            ]
        ),
    )


@pytest.mark.slow
def test_gaussian_bts_learns_variances():
    """V = (variance + learn · Σ(x − x̄)²) / (1 + learn · n): by hand, and with NumPy's variance of
    random values.
    """
    policy = bj.GaussianBTS(variance=0.2, learn=0.5)
    state = policy.init(Problem(num_arms=2))
    np.testing.assert_allclose(policy.reward.spread(state.reward), np.sqrt(0.2), rtol=1e-6)
    for reward, cost in ((0, 0.5), (0.5, 0.5), (1, 0.5)):
        state = updated(policy, state, np.int32(1), np.float32(reward), np.float32(cost))
    # Σ(r − r̄)² = 1/2, Σ(c − c̄)² = 0.
    reward_spread, cost_spread = (
        policy.reward.spread(state.reward),
        policy.cost.spread(state.costs[0]),
    )
    np.testing.assert_allclose(reward_spread[1], np.sqrt((0.2 + 0.25) / 2.5 / 4), rtol=1e-6)
    np.testing.assert_allclose(cost_spread[1], np.sqrt(0.2 / 2.5 / 4), rtol=1e-6)
    np.testing.assert_allclose(cost_spread[0], np.sqrt(0.2), rtol=1e-6)
    values = np.random.default_rng(1).beta(2, 5, 3000).astype(np.float32)
    for variance, learn in ((0.25, 0), (0.25, 1), (0.1, 0.1)):
        posterior = Normal(variance=variance, learn=learn)
        first = posterior.init(Problem(num_arms=2))
        state, _ = jax.lax.scan(
            lambda state, x: (posterior.record(state, jnp.int32(1), x, None), None), first, values
        )
        np.testing.assert_allclose(state.mean, [0.5, values.mean(dtype=float)], rtol=1e-5)
        exact = (
            (variance + learn * len(values) * values.astype(float).var())
            / (1 + learn * len(values))
            / (len(values) + 1)
        )
        np.testing.assert_allclose(posterior.spread(state)[1], np.sqrt(exact), rtol=1e-4)


@pytest.mark.slow
def test_gaussian_bts_always_has_a_draw():
    """A cost of 0 after 2·10⁹ pulls, and the least variance allowed: half of the draws are
    accepted, and ratios are finite.
    """
    policy = bj.GaussianBTS(variance=2e-38, learn=1e6)
    many = np.full(2, 2e9, np.float32)
    reward = Moments(many, np.ones(2, np.float32), *np.zeros((2, 2), np.float32))
    state = policy.init(Problem(num_arms=2))._replace(
        reward=reward, costs=(reward._replace(mean=np.array([0, 1], np.float32)),)
    )
    arm, calls = decisions(policy, jax.device_put(state), 500, 4)
    assert (arm == 0).all() and 1.2 < calls < 2.5


@pytest.mark.slow
@pytest.mark.long_runs
def test_gaussian_bts_chooses_arms_with_the_probability_that_it_says():
    """An arm never pulled, and average costs of 0 and 1 among them, where half of the proposals are
    rejected.
    """
    policy = bj.GaussianBTS(variance=1, learn=1)
    start = policy.init(Problem(num_arms=5))
    for arm, reward, cost in [(1, 1, 0), (2, 0.5, 1), (3, 0.25, 0.5), (3, 1, 0), (4, 0, 0.25)] + [
        (2, 1, 1)
    ] * 30:
        start = updated(policy, start, np.int32(arm), np.float32(reward), np.float32(cost))
    arm, _ = decisions(policy, start, 10_000, 20)
    rng = np.random.default_rng(6)
    reward, cost, pulls = [0.5, 1, 30.5 / 31, 0.625, 0], [0.5, 0, 1, 0.25, 0.25], [0, 1, 31, 2, 1]
    # Sums about the averages.
    squares = [[0, 0, 30 * 0.5**2 / 31, 2 * 0.375**2, 0], [0, 0, 0, 2 * 0.25**2, 0]]
    spread = np.sqrt((1 + np.array(squares)) / (1 + np.array(pulls)) / (1 + np.array(pulls)))
    assert_chances(
        arm,
        np.stack(
            [
                (r + rng.normal(size=400_000) * s)
                / truncnorm.rvs(-c / w, (1 - c) / w, c, w, 400_000, random_state=rng)
                for r, c, s, w in zip(reward, cost, *spread, strict=True)
            ]
        ),
    )


@pytest.mark.slow
@pytest.mark.long_runs
def test_joint_bts_chooses_arms_with_the_posterior_probability_of_being_best():
    """Against NumPy's Dirichlet; three of the arms have the same counts of rewards and costs,
    correlated each in its way.
    """
    # 11, 10, 01, 00.
    counts = np.array([[10, 0, 0, 10], [0, 10, 10, 0], [5, 5, 5, 5], [0, 0, 0, 0], [1, 0, 2, 300]])
    policy = bj.JointBTS()
    start = policy.init(Problem(num_arms=5))._replace(
        **{
            name: jnp.array(column, jnp.int32)
            for name, column in zip(("both", "reward_alone", "cost_alone"), counts.T, strict=False)
        }
    )
    arm, _ = decisions(policy, start, 10_000, 20)
    rng = np.random.default_rng(7)
    draws = np.stack([rng.dirichlet(row + 0.5, 800_000) for row in counts])
    assert_chances(arm, (draws[..., 0] + draws[..., 1]) / (draws[..., 0] + draws[..., 2]))


def test_joint_bts_counts_outcomes():
    policy = bj.JointBTS()
    state = policy.init(Problem(num_arms=3))
    for reward, cost in ((1, 1), (1, 0), (0, 1), (0, 1), (0, 0)):
        state = updated(policy, state, np.int32(1), np.float32(reward), np.float32(cost))
    assert [state.both.tolist(), state.reward_alone.tolist(), state.cost_alone.tolist()] == [
        [0, 1, 0],
        [0, 1, 0],
        [0, 2, 0],
    ]
    update = jax.jit(
        jax.vmap(
            lambda key: policy.update(state, jnp.int32(2), jnp.float32(0.3), jnp.float32(0.8), key)
        )
    )
    many = update(jax.random.split(KEY, 20_000))
    for count, p in ((many.both, 0.24), (many.reward_alone, 0.06), (many.cost_alone, 0.56)):
        assert abs(np.asarray(count)[:, 2].mean() - p) < 6 * np.sqrt(p * (1 - p) / 20_000)


def test_bts_counts_trials():
    policy = bj.BTS()
    state = policy.init(Problem(num_arms=3))
    state = updated(policy, state, np.int32(1), np.float32(1), np.float32(0))
    assert state.reward.successes.tolist() == [0, 1, 0] and state.costs[0].successes.tolist() == [
        0,
        0,
        0,
    ]
    assert state.reward.pulls.tolist() == state.costs[0].pulls.tolist() == [0, 1, 0]
    update = jax.jit(
        jax.vmap(
            lambda key: policy.update(state, jnp.int32(2), jnp.float32(0.3), jnp.float32(0.8), key)
        )
    )
    many = update(jax.random.split(KEY, 20_000))
    reward, cost = (
        np.asarray(many.reward.successes)[:, 2],
        np.asarray(many.costs[0].successes)[:, 2],
    )
    for share, p in ((reward.mean(), 0.3), (cost.mean(), 0.8), ((reward & cost).mean(), 0.24)):
        assert abs(share - p) < 6 * np.sqrt(p * (1 - p) / 20_000)


def test_uniform_is_uniform():
    """6 standard errors for each of 7 arms."""
    policy = bj.Uniform()
    state = policy.init(Problem(num_arms=7))
    arm = np.asarray(
        jax.jit(jax.vmap(lambda key: policy(state, key)[0]))(jax.random.split(KEY, 70_000))
    )
    assert (
        np.abs(np.bincount(arm, minlength=7) / 70_000 - 1 / 7) < 6 * np.sqrt(6 / 49 / 70_000)
    ).all()


def test_policies_know_only_what_they_require():
    class Nosy:
        requires = ("budget",)

        def init(self, problem):
            assert problem.budget is not None and problem.num_arms == 5
            assert (
                problem.min_cost is None and problem.cost_mean is None and problem.best_arm is None
            )
            return jnp.int32(0)

        def __call__(self, state, key):
            return 0, state

        def update(self, state, arm, reward, cost, key):
            return state

    jax.tree_util.register_static(Nosy)
    bj.simulate(Nosy(), bj.Bernoulli.random(KEY, 5), 5, KEY)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: bj.EpsilonFirst(epsilon=0.0), "epsilon = 0"),
        (lambda: bj.EpsilonFirst(epsilon=1.0), "epsilon = 1"),
        (lambda: bj.EpsilonFirst(epsilon=np.nan), "epsilon = nan"),
        (lambda: bj.EpsilonFirst(epsilon=jnp.array([0.1, 2.0])), r"epsilon\[1\] = 2"),
        (lambda: bj.EpsilonFirst(epsilon="a lot"), "epsilon = 'a lot'"),
        (lambda: bj.UCBBV1(min_cost=0.0), "min_cost = 0"),
        (lambda: bj.UCBBV1(min_cost=-1), "min_cost = -1"),
        (lambda: bj.BTS(reward=Beta(alpha=0.1)), "alpha = 0.1"),
        (lambda: bj.BTS(cost=Beta(beta=[1, np.inf])), r"beta\[1\] = inf"),
        (lambda: bj.BTS(cost=0.5), "posterior cost = 0.5 has no init"),
        (lambda: bj.KUBE(scale=-1), "scale = -1"),
        (lambda: bj.GaussianBTS(variance=1e-50), "variance = 1e-50"),  # 0 to float32
        (lambda: bj.PDBwK(scale=np.nan), "scale = nan"),
        (lambda: bj.FractionalKUBE(scale=-1), "scale = -1"),
        (lambda: bj.GreedyKUBE(scale=-1), "scale = -1"),
        (lambda: bj.PatientOmegaUCB(patience=0.5), "patience = 0.5"),
        (lambda: bj.PatientOmegaUCB(spell=0), "spell = 0"),
        (lambda: bj.PatientOmegaUCB(doubt=0), "doubt = 0"),
        (lambda: bj.BudgetUCB(min_cost=2), "min_cost = 2"),
        (lambda: bj.IUCB(alpha=-0.1), "alpha = -0.1"),
        (lambda: bj.CUCB(alpha="some"), "alpha = 'some'"),
        (lambda: bj.MUCB(alpha=np.inf), "alpha = inf"),
        (lambda: bj.BGreedy(scale=-1), "scale = -1"),
        (lambda: bj.OmegaUCB(rho=0), "rho = 0"),
        (lambda: bj.OmegaStarUCB(rho=np.nan), "rho = nan"),
        (lambda: bj.UCBB2(alpha=-1), "alpha = -1"),
        (lambda: bj.UCBB2(stability=1), "stability = 1"),
        (lambda: bj.GaussianBTS(variance=0), "variance = 0"),
        (lambda: bj.GaussianBTS(variance=2), "variance = 2"),
        (lambda: bj.GaussianBTS(learn=-1), "learn = -1"),
        (lambda: bj.UCBBV1(explore=2), "explore = 2"),
        (lambda: bj.UCBBV1(explore=0.5), "explore = 0.5"),
        (lambda: bj.UCBBV2(explore=np.nan), "explore = nan"),
        (lambda: bj.UCBB2(reward_test=jnp.array([0.0, 0.25])), r"reward_test\[1\] = 0.25"),
        (lambda: bj.KLUCBSC(tuned=1.5), "tuned = 1.5"),
        (lambda: bj.JointBTS(alpha=0.1), "alpha = 0.1"),
    ],
)
def test_bad_hyperparameters_are_refused_by_name(make, named):
    with pytest.raises(ValueError, match=named):
        make()
