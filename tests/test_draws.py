"""Draws by rejection inside a policy have the right law: decisions against plain NumPy.

A sampler such as `bts_jax.random.gamma` rejects some of its proposals. How often depends on the
shapes: a Gamma proposal is accepted with probability 0.89 at shape 0.6 and 0.99 at shape 3. A
rejection must not change the law of anything else that the call draws, and every draw must be used
once. Each policy here turns its draws into the arm that it pulls, so that the pulls are a histogram
of the draws. All arms cost 1, so a run with budget T has T rounds.

False failures: if the law is right, each comparison fails with probability 10⁻⁶ at most. The keys
and NumPy's seeds are fixed, so a failure repeats. Power: every histogram has 192 · 1024 entries,
and NumPy's has 2²⁰. If a probability of 1/2 is 2% too large (0.51), then that is 0.01 / (0.5 ·
√(1/196608 + 2⁻²⁰)) = 8.1 standard errors. `test_a_bias_of_two_percent_fails` shows that this is
enough.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import keys
from jax import lax
from scipy import stats

import bts_jax as bj
from bts_jax import random
from bts_jax.engine.draws import PROPOSALS
from bts_jax.pytrees import pytree

LEVEL = 1e-6  # the probability of a false failure, of each comparison
RUNS, SAMPLES, REFERENCES = 1024, 192 * 1024, 2**20


def play(policy, num_arms, samples=SAMPLES, rewards=1.0, runs=RUNS, make=bj.Bernoulli):
    """How often each run pulled each arm; there are enough rounds for `samples` pulls in all runs
    together. [runs, num_arms]
    """
    bandit = make(reward=np.broadcast_to(rewards, num_arms), cost=np.ones(num_arms))
    budget = samples // runs
    played = bj.simulate_batch(policy, bandit, budget, keys(runs))
    assert (np.asarray(played.rounds) == budget).all()
    return np.asarray(played.pulls)[:, -1]


def check_law(pulls, outcomes):
    """The pulls of independent runs, one arm per outcome, have the distribution of the reference's
    outcomes.

    There are two comparisons. First, the totals have the distribution of the reference. Second, the
    runs differ from each other as much as independent runs do. If a draw is used twice, they differ
    more.
    """
    ours, theirs = pulls.sum(0), np.bincount(outcomes, minlength=pulls.shape[1])
    assert len(theirs) == len(ours) and len(outcomes) >= 5 * ours.sum() and theirs.min() > 0
    result = stats.chi2_contingency([ours, theirs], correction=False)
    assert result.pvalue > LEVEL, (ours / ours.sum(), theirs / theirs.sum())

    runs, arms = pulls.shape
    size, law = ours.sum() / runs, ours / ours.sum()
    assert (pulls.sum(1) == size).all()
    statistic = ((pulls - size * law) ** 2 / (size * law)).sum()  # Pearson's, of every run
    variance = 2 * (arms - 1) + ((1 / law).sum() - arms**2 - 2 * arms + 2) / size  # of one run's
    z = (statistic - (runs - 1) * (arms - 1)) / np.sqrt(runs * variance)
    assert abs(z) < 5.5, z  # 4·10⁻⁸ if z is normal, which it is nearly


def place(x, bounds):
    """The number of the interval between the bounds in which a number lies."""
    return (x > jnp.asarray(bounds, jnp.float32)).sum(-1).astype(jnp.int32)


def quantiles(law, count):
    """The points that divide a distribution into `count` parts of equal probability."""
    return law.ppf(np.arange(1, count) / count)


def stateless(decide):
    """A policy whose decisions are independent: `decide` makes an arm from a key and the policy's
    numbers.
    """

    @pytree
    class Stateless:
        numbers: Any = ()

        def init(self, problem):
            return ()

        def __call__(self, state, key):
            return decide(key, *self.numbers), state

        def update(self, state, arm, reward, cost, key):
            return state

    return Stateless


@pytest.mark.parametrize(("probability", "fails"), [(0.5, False), (0.51, True), (0.49, True)])
def test_a_bias_of_two_percent_fails(probability, fails):
    """Each of 20 histograms with this bias fails. Each of 20 without it passes."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        heads = rng.binomial(SAMPLES // RUNS, probability, RUNS)
        pulls, outcomes = (
            np.stack([SAMPLES // RUNS - heads, heads], 1),
            rng.integers(0, 2, REFERENCES),
        )
        try:
            check_law(pulls, outcomes)
        except AssertionError:
            assert fails
        else:
            assert not fails


# A coin chooses the shape.

COIN_SHAPES = np.array([0.6, 3.0], np.float32)
COIN_BOUNDS = np.stack([quantiles(stats.gamma(shape), 4) for shape in COIN_SHAPES])


@pytest.mark.slow
def test_a_coin_that_chooses_the_shape_is_fair():
    """If a rejection repeats the whole call, then the shape whose proposals are rejected less often
    is chosen too often.
    """

    def decide(key):
        first, second = jax.random.split(key)
        coin = jax.random.bernoulli(first).astype(jnp.int32)
        draw = random.gamma(second, jnp.asarray(COIN_SHAPES)[coin])
        return 4 * coin + place(draw, jnp.asarray(COIN_BOUNDS)[coin])

    rng = np.random.default_rng(1)
    coin = rng.integers(0, 2, REFERENCES)
    outcomes = 4 * coin + (rng.gamma(COIN_SHAPES[coin])[:, None] > COIN_BOUNDS[coin]).sum(1)
    check_law(play(stateless(decide)(), 8), outcomes)


# A Beta draw is the shape.

# Shapes below 1/2, where the sampler works differently, occur half of the time.
PRIOR = np.float32(0.5), np.float32(0.7)


def shape_of(beta):
    return 0.05 + 2 * beta


BETA_BOUNDS = quantiles(stats.beta(*PRIOR), 4)
GAMMA_BOUNDS = np.array([0.02, 0.3, 1.0])


@pytest.mark.slow
def test_a_gamma_whose_shape_is_a_beta_draw():
    def decide(key):
        first, second = jax.random.split(key)
        beta = random.beta(first, *PRIOR)
        return 4 * place(beta, BETA_BOUNDS) + place(
            jax.random.gamma(second, shape_of(beta)), GAMMA_BOUNDS
        )

    rng = np.random.default_rng(2)
    beta = rng.beta(*PRIOR, REFERENCES)
    outcomes = 4 * np.searchsorted(BETA_BOUNDS, beta) + np.searchsorted(
        GAMMA_BOUNDS, rng.gamma(shape_of(beta))
    )
    check_law(play(stateless(decide)(), 16), outcomes)


# Draws in `update`. A run consists of episodes of STEPS rounds, and the state is reset after each.
# The arm of an episode's last round encodes the choices in all of its rounds: with C choices these
# are the last C^STEPS arms. Arms whose numbers are equal modulo C have the same rewards.

STEPS = 2


def first_arm(step, choices):
    """The first of the arms of this step. There is one for each choice after each history of
    choices.
    """
    return (choices ** (step + 1) - choices) // (choices - 1)


class Episode(NamedTuple):
    step: Any
    history: Any  # the choices so far, as a number
    statistics: Any


@pytree
class Episodes:
    """Chooses by `choose(statistics, key)` and learns by `learn(statistics, choice, reward,
    key)`.
    """

    def init(self, problem):
        return Episode(jnp.int32(0), jnp.int32(0), self.start)

    def __call__(self, state, key):
        history = state.history * self.choices + self.choose(state.statistics, key)
        return first_arm(state.step, self.choices) + history, state._replace(history=history)

    def update(self, state, arm, reward, cost, key):
        learnt = self.learn(state.statistics, arm % self.choices, reward, key)
        last = state.step == STEPS - 1
        fresh = self.init(None)
        return jax.tree.map(
            lambda old, new: jnp.where(last, old, new),
            fresh,
            Episode(state.step + 1, state.history, learnt),
        )


def play_episodes(policy, rewards, make=bj.Bernoulli):
    """The histories of whole episodes. [runs, C^STEPS]"""
    arms, last = (first_arm(step, policy.choices) for step in (STEPS, STEPS - 1))
    pulls = play(policy, arms, STEPS * SAMPLES, np.tile(rewards, arms // policy.choices), make=make)
    assert (pulls[:, last:].sum(1) == SAMPLES // RUNS).all(), "one history per episode"
    return pulls[:, last:]


@pytree
class Accumulates(Episodes):
    """The reward chooses the shape of a draw, and the sum of the draws decides. Both methods
    draw.
    """

    choices = 2
    start = jnp.float32(0)

    def choose(self, total, key):
        return (random.gamma(key, 0.6) + total > 1).astype(jnp.int32)

    def learn(self, total, choice, reward, key):
        return total + random.gamma(key, jnp.where(reward > 0.5, 2.0, 0.5))


def accumulated(draw_rewards):
    """The histories of NumPy."""
    rng = np.random.default_rng(3)
    total, history = np.zeros(REFERENCES), np.zeros(REFERENCES, int)
    for _ in range(STEPS):
        choice = (rng.gamma(0.6, size=REFERENCES) + total > 1).astype(int)
        total += rng.gamma(np.where(draw_rewards(rng, choice) > 0.5, 2.0, 0.5))
        history = history * 2 + choice
    return history


@pytest.mark.slow
def test_draws_in_update():
    """If an update with a rejected proposal is repeated and counted twice, sums and histories are
    wrong.
    """
    rewards = np.array([0.7, 0.4])
    check_law(
        play_episodes(Accumulates(), rewards),
        accumulated(lambda rng, choice: rng.random(REFERENCES) < rewards[choice]),
    )


@pytree
class DrawnRewards:
    """Arms whose reward is drawn by rejection: a Beta draw with the shapes `reward` and 3/2."""

    reward: Any
    cost: Any

    @property
    def reward_mean(self):
        return self.reward / (self.reward + 1.5)

    @property
    def cost_mean(self):
        return self.cost

    def pull(self, key, arm):
        return random.beta(key, self.reward[arm], 1.5), self.cost[arm]


@pytest.mark.slow
def test_draws_of_policy_and_bandit():
    """The update waits for the draw of the bandit, and that waits for the draw of the decision.
    (`test_batch.py` compares such programs with those for a GPU.)"""
    shapes = np.array([1.4, 0.6], np.float32)
    check_law(
        play_episodes(Accumulates(), shapes, DrawnRewards),
        accumulated(lambda rng, choice: rng.beta(shapes[choice], 1.5)),
    )


@pytree
class Thompson(Episodes):
    """The arm with the largest Beta draw. The shapes change by the reward of the chosen arm and
    from round to round.
    """

    choices = 3
    start: Any  # [runs, 2, 3]
    gain: Any  # of a reward
    drift: Any  # [runs, 2, 3], in a round

    def choose(self, shapes, key):
        return jnp.argmax(random.beta(key, shapes[0], shapes[1])).astype(jnp.int32)

    def learn(self, shapes, choice, reward, key):
        return shapes.at[:, choice].add(self.gain * jnp.stack([reward, 1 - reward])) + self.drift


def in_all_runs(shapes):
    return np.tile(np.float32(shapes), (RUNS, 1, 1))


@pytest.mark.slow
def test_thompson_sampling():
    """With Jeffreys' prior. In each round, the shapes of one arm change and the others' do not. If
    a draw of an arm whose shapes have not changed is used again, successive choices are too
    similar."""
    rewards, rng = np.array([0.2, 0.5, 0.8]), np.random.default_rng(4)
    shapes, history, each = (
        np.full((REFERENCES, 3, 2), 0.5),
        np.zeros(REFERENCES, int),
        np.arange(REFERENCES),
    )
    for _ in range(STEPS):
        choice = rng.beta(shapes[..., 0], shapes[..., 1]).argmax(1)
        failure = (rng.random(REFERENCES) >= rewards[choice]).astype(int)
        shapes[each, choice, failure] += 1
        history = history * 3 + choice
    policy = Thompson(
        start=in_all_runs(np.full((2, 3), 0.5)), gain=1.0, drift=in_all_runs(np.zeros((2, 3)))
    )
    check_law(play_episodes(policy, rewards), history)


# Draws of successive rounds.

# [2, 3, 2]: for even and odd rounds, and for each arm.
PAIR_SHAPES = np.array([[[2, 3], [1.5, 1.5], [0.5, 0.5]], [[6, 3], [1.5, 1.5], [0.5, 0.5]]])


@pytest.mark.slow
def test_successive_decisions_are_independent():
    """Shapes that do not depend on rewards. Those of arm 0 change from round to round, those of the
    others never.
    """
    rng = np.random.default_rng(5)
    history = np.zeros(REFERENCES, int)
    for step in range(STEPS):
        history = history * 3 + rng.beta(*PAIR_SHAPES[step % 2].T, (REFERENCES, 3)).argmax(1)
    change = PAIR_SHAPES[1] - PAIR_SHAPES[0]
    policy = Thompson(start=in_all_runs(PAIR_SHAPES[0].T), gain=0.0, drift=in_all_runs(change.T))
    check_law(play_episodes(policy, np.ones(3)), history)


class Past(NamedTuple):
    decisions: Any  # [rounds, 3] what was drawn to decide
    updates: Any  # [rounds, 2] and to update
    round: Any
    repeats: Any  # bool: the last update repeated a draw


@pytree
class Remembers:
    """Pulls arm 1 if a draw of this decision repeats an earlier one, arm 2 if a draw of the last
    update does, arm 3 for both.
    """

    def init(self, problem):
        return Past(jnp.zeros((64, 3)), jnp.zeros((64, 2)), jnp.int32(0), jnp.bool_(False))

    def __call__(self, state, key):
        draws = random.gamma(key, jnp.array([0.6, 1.0, 3.0]))
        repeats = (draws == state.decisions[..., None]).any()
        state = state._replace(decisions=state.decisions.at[state.round].set(draws))
        return repeats + 2 * state.repeats, state

    def update(self, state, arm, reward, cost, key):
        draws = random.gamma(key, jnp.array([0.6, 2.0]))
        repeats = (draws == state.updates[..., None]).any()
        return Past(
            state.decisions, state.updates.at[state.round].set(draws), state.round + 1, repeats
        )


@pytest.mark.slow
def test_every_draw_is_new():
    """Two float32 draws from these laws are equal with probability 8·10⁻⁸ at most (the integral of
    both densities times the spacing of float32). There are 64 · 63/2 · 64 · 13 pairs. So 5 or more
    repeats have a probability below 10⁻⁶. If one draw in a thousand were used again, there would be
    20."""
    pulls = play(Remembers(), 4, 64 * 64, runs=64)
    assert pulls[:, 1:].sum() < 5, pulls.sum(0)


# Several draws in one call, of several shapes and by several functions.


@pytest.mark.slow
def test_a_call_with_draws_of_several_shapes():
    """The largest of three Gamma draws, another Gamma draw, and the largest part of a Dirichlet
    draw: 18 outcomes.
    """
    shapes, parts = np.array([0.5, 1, 4]), np.array([0.1, 0.5, 2])

    def decide(key):
        first, second, third = jax.random.split(key, 3)
        best = jnp.argmax(random.gamma(first, shapes) / shapes)
        largest = jnp.argmax(jax.random.dirichlet(third, jnp.asarray(parts, jnp.float32)))
        return (best * 2 + (random.gamma(second, 0.6) > 0.3)) * 3 + largest

    rng = np.random.default_rng(6)
    best = (rng.gamma(shapes, size=(REFERENCES, 3)) / shapes).argmax(1)
    largest = rng.dirichlet(parts, REFERENCES).argmax(1)
    check_law(
        play(stateless(decide)(), 18),
        (best * 2 + (rng.gamma(0.6, size=REFERENCES) > 0.3)) * 3 + largest,
    )


SHAPES = np.array([0.1, 1, 5], np.float32)


@pytest.mark.slow
def test_draws_by_a_function_of_jax():
    """Shapes are hyperparameters, different from run to run: 0.1, 1 and 5. Each has 8 outcomes.

    The same draws are those of `jax.random.loggamma`, and test_passes lists the functions that use
    either.
    """
    bounds = np.stack([quantiles(stats.gamma(shape), 8) for shape in SHAPES])

    @stateless
    def Draws(key, shape, bounds):
        return place(jax.random.gamma(key, shape), bounds)

    policies = Draws(numbers=(np.repeat(SHAPES, RUNS), np.repeat(bounds, RUNS, 0)))
    pulls = play(policies, 8, 3 * SAMPLES, runs=3 * RUNS)
    for i, shape in enumerate(SHAPES):
        draws = np.random.default_rng(i).gamma(shape, size=REFERENCES)
        check_law(pulls[i * RUNS : (i + 1) * RUNS], np.searchsorted(bounds[i], draws))


# Draws by rejection, with one or several proposals per call.

LOWS = np.array([0.2, 0.5, 0.8], np.float32)


def propose_above(words, low):
    """A uniform number, accepted if it is above `low`."""
    value = random.unit(words[0])
    return value, value > low


def of_three(key):
    """Uniform numbers above `LOWS`, scaled to the unit interval: which is the largest, and the
    third of the first.
    """
    draws = (random.rejection(propose_above, key, jnp.asarray(LOWS)) - LOWS) / (1 - LOWS)
    return 3 * jnp.argmax(draws) + place(draws[0], [1 / 3, 2 / 3])


@pytest.mark.slow
@pytest.mark.parametrize("proposals", [1, 3])
def test_several_proposals_per_call(proposals, monkeypatch):
    """As on a GPU. The first round has the same draws: the first accepted proposal is the same. It
    takes fewer calls.
    """
    monkeypatch.setitem(PROPOSALS, "cpu", proposals)
    bandit, reports = bj.Bernoulli(reward=np.full(9, 0.5), cost=np.full(9, 0.5)), []
    run = bj.simulate_batch(
        stateless(of_three)(), bandit, 1000, keys(200), max_rounds=1, on_report=reports.append
    )
    # Draws by loops.
    outcomes = jax.jit(jax.vmap(lambda key: of_three(random.derive(random.key_words(key), 0, 0))))(
        keys(200)
    )
    np.testing.assert_array_equal(np.asarray(run.pulls)[:, 0].argmax(1), outcomes)
    # The third draw needs 5 proposals on average, and the round 5.4 or 2.1 calls. The standard
    # error is 6%.
    assert reports[0].calls / 200 == pytest.approx({1: 5.4, 3: 2.1}[proposals], rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("proposals", [1, 3])
def test_draws_by_rejection(proposals, monkeypatch):
    monkeypatch.setitem(PROPOSALS, "cpu", proposals)
    draws = np.random.default_rng(9).random((REFERENCES, 3))
    check_law(
        play(stateless(of_three)(), 9),
        3 * draws.argmax(1) + np.searchsorted([1 / 3, 2 / 3], draws[:, 0]),
    )


# Draws under jax.vmap, inside a policy.

MAPPED = np.array([0.3, 0.6, 2.5], np.float32)


@pytest.mark.slow
def test_vmap_over_keys_and_shapes():
    """Independent draws. The outcome is which of them is the largest, and the quantile of the
    first.
    """
    bounds = quantiles(stats.gamma(MAPPED[0]), 3)

    def decide(key):
        draws = jax.vmap(jax.random.gamma)(jax.random.split(key, 3), MAPPED)
        return 3 * jnp.argmax(draws / MAPPED) + place(draws[0], bounds)

    draws = np.random.default_rng(7).gamma(MAPPED, size=(REFERENCES, 3))
    check_law(
        play(stateless(decide)(), 9),
        3 * (draws / MAPPED).argmax(1) + np.searchsorted(bounds, draws[:, 0]),
    )


@pytest.mark.slow
def test_vmap_over_shapes_with_one_key():
    """Each draw has its law. Draws with equal shapes are equal, being the same function of the same
    key. Another call of the sampler with this key and shape gives the same draw again.

    If draws were saved although they have the same random words, the lowest quartile of shape 2.5
    would be 14% too rare.
    """
    shapes = np.float32([0.6, 1.2, 2.5, 1.2])
    bounds = np.stack([quantiles(stats.beta(shape, 0.8), 4) for shape in shapes[:3]])

    def decide(key):
        first, second = jax.random.split(key)
        draws = jax.vmap(random.beta, (None, 0, None))(first, shapes, 0.8)
        same = (draws[1] == draws[3]) & (draws[1] == random.beta(first, shapes[1], 0.8))
        which = jax.random.randint(second, (), 0, 3)
        return jnp.where(same, 4 * which + place(draws[which], jnp.asarray(bounds)[which]), 12)

    pulls = play(stateless(decide)(), 13)
    assert (pulls[:, 12] == 0).all(), "the same draws"
    rng = np.random.default_rng(8)
    which = rng.integers(0, 3, REFERENCES)
    draws = rng.beta(shapes[which], 0.8)
    check_law(pulls[:, :12], 4 * which + (draws[:, None] > bounds[which]).sum(1))


# Draws in branches and loops.


@pytest.mark.slow
def test_draws_in_a_branch():
    """The other branch has none."""
    laws = stats.uniform(), stats.gamma(0.6)
    bounds = np.stack([quantiles(law, 4) for law in laws])

    def decide(key):
        first, second = jax.random.split(key)
        coin = jax.random.bernoulli(first)
        draw = lax.cond(coin, lambda: random.gamma(second, 0.6), lambda: jax.random.uniform(second))
        return 4 * coin + place(draw, jnp.asarray(bounds)[coin.astype(jnp.int32)])

    rng = np.random.default_rng(10)
    coin = rng.integers(0, 2, REFERENCES)
    draw = np.where(coin, rng.gamma(0.6, size=REFERENCES), rng.random(REFERENCES))
    check_law(play(stateless(decide)(), 8), 4 * coin + (draw[:, None] > bounds[coin]).sum(1))


@pytest.mark.slow
def test_draws_in_a_scan():
    """Each draw is the next one's shape."""
    bounds = np.array([0.05, 0.3, 1.0, 2.0])

    def decide(key):
        last, _ = lax.scan(
            lambda x, key: (random.gamma(key, 0.3 + x), None),
            jnp.float32(0.5),
            jax.random.split(key, 3),
        )
        return place(last, bounds)

    rng = np.random.default_rng(11)
    x = np.full(REFERENCES, 0.5)
    for _ in range(3):
        x = rng.gamma(0.3 + x)
    check_law(play(stateless(decide)(), 5), np.searchsorted(bounds, x))


@pytest.mark.slow
def test_draws_in_a_loop():
    """How many draws it takes to exceed 1, at most 6; and whether their sum exceeds 2."""

    def decide(key):
        def draw(carry):
            count, total = carry
            return count + 1, total + random.gamma(jax.random.fold_in(key, count), 0.6)

        count, total = lax.while_loop(
            lambda carry: (carry[0] < 6) & (carry[1] <= 1), draw, (jnp.int32(0), jnp.float32(0))
        )
        return 2 * count - 2 + (total > 2)

    rng = np.random.default_rng(12)
    count, total = np.zeros(REFERENCES, int), np.zeros(REFERENCES)
    for _ in range(6):
        more = total <= 1
        count += more
        total += more * rng.gamma(0.6, size=REFERENCES)
    check_law(play(stateless(decide)(), 12), 2 * count - 2 + (total > 2))


def test_shapes_below_one_half_are_reported():
    """In a policy, `random.gamma` and `random.beta` accept none of them: the run is NaN, and the
    warning says what to do.
    """
    for draw in (lambda key: random.gamma(key, 0.3), lambda key: random.beta(key, 2.0, 0.3)):
        policy = stateless(lambda key, draw=draw: (draw(key) > 0.5).astype(jnp.int32))()
        with pytest.warns(RuntimeWarning, match=r"shapes of at least 1/2"):
            run = bj.simulate_batch(
                policy, bj.Bernoulli(reward=[0.5, 0.5], cost=[1, 1]), 5, keys(2)
            )
        assert np.isnan(run.reward).all()
