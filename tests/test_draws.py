"""Draws by rejection inside a policy have the right law: decisions against plain NumPy.

A sampler such as `bts_jax.random.gamma` rejects some of its proposals. How often depends on the shapes: a Gamma proposal is
accepted with probability 0.89 at shape 0.6 and 0.99 at shape 3. A rejection must not change the law of anything else that the
call draws, and every draw must be used once. Each policy here turns its draws into the arm that it pulls, so that the pulls
are a histogram of the draws. All arms cost 1, so a run with budget T has T rounds.

False failures: if the law is right, each comparison fails with probability 10⁻⁶ at most. The keys and NumPy's seeds are fixed,
so a failure repeats. Power: every histogram has 192 · 1024 entries, and NumPy's has 2²⁰. If a probability of 1/2 is 2% too
large (0.51), then that is 0.01 / (0.5 · √(1/196608 + 2⁻²⁰)) = 8.1 standard errors. `test_a_bias_of_two_percent_fails` shows
that this is enough.
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
from bts_jax import batch as engine
from bts_jax import random
from bts_jax.pytrees import pytree

LEVEL = 1e-6  # the probability of a false failure, of each comparison
RUNS, SAMPLES, REFERENCES = 1024, 192 * 1024, 2**20


def play(policy, num_arms, samples=SAMPLES, rewards=1.0, runs=RUNS, small=False):
    """How often each run pulled each arm; there are enough rounds for `samples` pulls in all runs together. [runs, num_arms]

    `small`: shapes below 1/2 occur. The program with such draws is used at once, and not after another one finds them.
    """
    bandit = bj.Bernoulli(reward=np.broadcast_to(rewards, num_arms), cost=np.ones(num_arms))
    budget = samples // runs
    if small:
        engine._GENERAL.add(engine.lay_out(policy, bandit, budget, keys(runs)).kind)
    played = bj.simulate_batch(policy, bandit, budget, keys(runs))
    assert (np.asarray(played.rounds) == budget).all()
    return np.asarray(played.pulls)[:, -1]


def check_law(pulls, outcomes):
    """The pulls of independent runs, one arm per outcome, have the distribution of the reference's outcomes.

    There are two comparisons. First, the totals have the distribution of the reference. Second, the runs differ from each
    other as much as independent runs do. If a draw is used twice, they differ more.
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
    """A policy whose decisions are independent: `decide` makes an arm from a key and the policy's numbers."""

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
        pulls, outcomes = np.stack([SAMPLES // RUNS - heads, heads], 1), rng.integers(0, 2, REFERENCES)
        try:
            check_law(pulls, outcomes)
        except AssertionError:
            assert fails
        else:
            assert not fails


# A coin chooses the shape.

COIN_SHAPES = np.array([0.6, 3.0], np.float32)
COIN_BOUNDS = np.stack([quantiles(stats.gamma(shape), 4) for shape in COIN_SHAPES])


@pytest.mark.parametrize("gamma", [
    pytest.param(random.gamma, id="ours"), pytest.param(jax.random.gamma, id="jax", marks=pytest.mark.slow)])
def test_a_coin_that_chooses_the_shape_is_fair(gamma):
    """If a rejection repeats the whole call, then the shape whose proposals are rejected less often is chosen too often."""

    def decide(key):
        first, second = jax.random.split(key)
        coin = jax.random.bernoulli(first).astype(jnp.int32)
        draw = gamma(second, jnp.asarray(COIN_SHAPES)[coin])
        return 4 * coin + place(draw, jnp.asarray(COIN_BOUNDS)[coin])

    rng = np.random.default_rng(1)
    coin = rng.integers(0, 2, REFERENCES)
    outcomes = 4 * coin + (rng.gamma(COIN_SHAPES[coin])[:, None] > COIN_BOUNDS[coin]).sum(1)
    check_law(play(stateless(decide)(), 8), outcomes)


# A Beta draw is the shape.

PRIOR = np.float32(0.5), np.float32(0.7)  # shapes below 1/2, where the sampler works differently, occur half of the time


def shape_of(beta):
    return 0.05 + 2 * beta


BETA_BOUNDS = quantiles(stats.beta(*PRIOR), 4)
GAMMA_BOUNDS = np.array([0.02, 0.3, 1.0])


@pytest.mark.slow
def test_a_gamma_whose_shape_is_a_beta_draw():
    def decide(key):
        first, second = jax.random.split(key)
        beta = random.beta(first, *PRIOR)
        return 4 * place(beta, BETA_BOUNDS) + place(random.gamma(second, shape_of(beta)), GAMMA_BOUNDS)

    rng = np.random.default_rng(2)
    beta = rng.beta(*PRIOR, REFERENCES)
    outcomes = 4 * np.searchsorted(BETA_BOUNDS, beta) + np.searchsorted(GAMMA_BOUNDS, rng.gamma(shape_of(beta)))
    check_law(play(stateless(decide)(), 16), outcomes)


# Draws in `update`. A run consists of episodes of STEPS rounds, and the state is reset after each. The arm of an episode's last
# round encodes the choices in all of its rounds: with C choices these are the last C^STEPS arms. Arms whose numbers are equal
# modulo C have the same rewards.

STEPS = 2


def first_arm(step, choices):
    """The first of the arms of this step. There is one for each choice after each history of choices."""
    return (choices ** (step + 1) - choices) // (choices - 1)


class Episode(NamedTuple):
    step: Any
    history: Any  # the choices so far, as a number
    statistics: Any


@pytree
class Episodes:
    """Chooses by `choose(statistics, key)` and learns by `learn(statistics, choice, reward, key)`."""

    def init(self, problem):
        return Episode(jnp.int32(0), jnp.int32(0), self.start)

    def __call__(self, state, key):
        history = state.history * self.choices + self.choose(state.statistics, key)
        return first_arm(state.step, self.choices) + history, state._replace(history=history)

    def update(self, state, arm, reward, cost, key):
        learnt = self.learn(state.statistics, arm % self.choices, reward, key)
        last = state.step == STEPS - 1
        fresh = self.init(None)
        return jax.tree.map(lambda old, new: jnp.where(last, old, new), fresh,
                            Episode(state.step + 1, state.history, learnt))


def play_episodes(policy, rewards):
    """The histories of whole episodes. [runs, C^STEPS]"""
    arms, last = (first_arm(step, policy.choices) for step in (STEPS, STEPS - 1))
    pulls = play(policy, arms, STEPS * SAMPLES, np.tile(rewards, arms // policy.choices))
    assert (pulls[:, last:].sum(1) == SAMPLES // RUNS).all(), "one history per episode"
    return pulls[:, last:]


@pytree
class Accumulates(Episodes):
    """The reward chooses the shape of a draw, and the sum of the draws decides. Both methods draw."""

    choices = 2
    start = jnp.float32(0)

    def choose(self, total, key):
        return (random.gamma(key, 0.6) + total > 1).astype(jnp.int32)

    def learn(self, total, choice, reward, key):
        return total + random.gamma(key, jnp.where(reward > 0.5, 2.0, 0.5))


@pytest.mark.slow
def test_draws_in_update():
    """If an update with a rejected proposal is repeated and counted twice, sums and histories are wrong."""
    rewards, rng = np.array([0.7, 0.4]), np.random.default_rng(3)
    total, history = np.zeros(REFERENCES), np.zeros(REFERENCES, int)
    for _ in range(STEPS):
        choice = (rng.gamma(0.6, size=REFERENCES) + total > 1).astype(int)
        reward = rng.random(REFERENCES) < rewards[choice]
        total += rng.gamma(np.where(reward, 2.0, 0.5))
        history = history * 2 + choice
    check_law(play_episodes(Accumulates(), rewards), history)


@pytree
class Thompson(Episodes):
    """Thompson sampling with Jeffreys' prior. In each round, the shapes of one arm change and the others' do not."""

    choices = 3
    start = jnp.full((2, 3), 0.5)

    def choose(self, shapes, key):
        return jnp.argmax(random.beta(key, shapes[0], shapes[1])).astype(jnp.int32)

    def learn(self, shapes, choice, reward, key):
        return shapes.at[:, choice].add(jnp.stack([reward, 1 - reward]))


@pytest.mark.slow
def test_thompson_sampling():
    """If a draw of an arm whose shapes have not changed is used again, successive choices are too similar."""
    rewards, rng = np.array([0.2, 0.5, 0.8]), np.random.default_rng(4)
    shapes, history, each = np.full((REFERENCES, 3, 2), 0.5), np.zeros(REFERENCES, int), np.arange(REFERENCES)
    for _ in range(STEPS):
        choice = rng.beta(shapes[..., 0], shapes[..., 1]).argmax(1)
        failure = (rng.random(REFERENCES) >= rewards[choice]).astype(int)
        shapes[each, choice, failure] += 1
        history = history * 3 + choice
    check_law(play_episodes(Thompson(), rewards), history)


# Draws of successive rounds.

# [2, 3, 2]: for even and odd rounds, and for each arm.
PAIR_SHAPES = np.array([[[2, 3], [1.5, 1.5], [0.5, 0.5]], [[6, 3], [1.5, 1.5], [0.5, 0.5]]])


@pytree
class Pairs(Episodes):
    """Shapes that do not depend on rewards. Those of arm 0 change from round to round, those of the others never."""

    choices = 3
    start = jnp.int32(0)

    def choose(self, round, key):
        shapes = jnp.asarray(PAIR_SHAPES, jnp.float32)[round % 2]
        return jnp.argmax(random.beta(key, shapes[:, 0], shapes[:, 1])).astype(jnp.int32)

    def learn(self, round, choice, reward, key):
        return round + 1


@pytest.mark.slow
def test_successive_decisions_are_independent():
    rng = np.random.default_rng(5)
    history = np.zeros(REFERENCES, int)
    for step in range(STEPS):
        history = history * 3 + rng.beta(*PAIR_SHAPES[step % 2].T, (REFERENCES, 3)).argmax(1)
    check_law(play_episodes(Pairs(), np.ones(3)), history)


class Past(NamedTuple):
    decisions: Any  # [rounds, 3] what was drawn to decide
    updates: Any  # [rounds, 2] and to update
    round: Any
    repeats: Any  # bool: the last update repeated a draw


@pytree
class Remembers:
    """Pulls arm 1 if a draw of this decision repeats an earlier one, arm 2 if a draw of the last update does, arm 3 for both.
    """

    def init(self, problem):
        return Past(jnp.zeros((64, 3)), jnp.zeros((64, 2)), jnp.int32(0), jnp.bool_(False))

    def __call__(self, state, key):
        draws = random.beta(key, jnp.array([0.5, 1.0, 3.0]), jnp.array([0.7, 1.0, 2.0]))
        repeats = (draws == state.decisions[..., None]).any()
        state = state._replace(decisions=state.decisions.at[state.round].set(draws))
        return repeats + 2 * state.repeats, state

    def update(self, state, arm, reward, cost, key):
        draws = random.gamma(key, jnp.array([0.6, 2.0]))
        repeats = (draws == state.updates[..., None]).any()
        return Past(state.decisions, state.updates.at[state.round].set(draws), state.round + 1, repeats)


@pytest.mark.slow
def test_every_draw_is_new():
    """Two float32 draws from these laws are equal with probability 8·10⁻⁸ at most (the integral of both densities times the
    spacing of float32). There are 64 · 63/2 · 64 · 13 pairs. So 5 or more repeats have a probability below 10⁻⁶. If one draw in
    a thousand were used again, there would be 20."""
    pulls = play(Remembers(), 4, 64 * 64, runs=64)
    assert pulls[:, 1:].sum() < 5, pulls.sum(0)


# Several draws in one call, of several shapes and by several functions.


@pytest.mark.slow
def test_a_call_with_draws_of_several_shapes():
    """The largest of three Beta draws, a Gamma draw, and the largest part of a Dirichlet draw: 18 outcomes."""
    a, b, parts = np.array([0.5, 1, 4]), np.array([0.5, 2, 6]), np.array([0.3, 0.5, 2])

    def decide(key):
        first, second, third = jax.random.split(key, 3)
        best = jnp.argmax(random.beta(first, a, b))
        largest = jnp.argmax(jax.random.dirichlet(third, jnp.asarray(parts, jnp.float32)))
        return (best * 2 + (random.gamma(second, 0.6) > 0.3)) * 3 + largest

    rng = np.random.default_rng(6)
    best, largest = rng.beta(a, b, (REFERENCES, 3)).argmax(1), rng.dirichlet(parts, REFERENCES).argmax(1)
    check_law(play(stateless(decide)(), 18, small=True), (best * 2 + (rng.gamma(0.6, size=REFERENCES) > 0.3)) * 3 + largest)


SHAPES = np.array([0.1, 1, 5], np.float32)
LAWS = {  # the forms of JAX's primitive: Gamma draws, their logarithms, and both with other draws
    "gamma": (jax.random.gamma, lambda rng, x, size: rng.gamma(x, size=size)),
    "loggamma": (jax.random.loggamma, lambda rng, x, size: np.log(rng.gamma(x, size=size))),
    "chisquare": (jax.random.chisquare, lambda rng, x, size: rng.chisquare(x, size)),
    "t": (jax.random.t, lambda rng, x, size: rng.standard_t(x, size)),
    "beta": (lambda key, x: jax.random.beta(key, x, 0.7), lambda rng, x, size: rng.beta(x, 0.7, size)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_draws_by_functions_of_jax(name):
    """Shapes are hyperparameters, different from run to run: 0.1, 1 and 5. Each has 8 outcomes."""
    draw, reference = LAWS[name]
    outcomes = [reference(np.random.default_rng(i), shape, REFERENCES) for i, shape in enumerate(SHAPES)]
    bounds = np.stack([np.quantile(reference(np.random.default_rng(9), shape, 2**14), np.arange(1, 8) / 8) for shape in SHAPES])

    @stateless
    def Draws(key, shape, bounds):
        return place(draw(key, shape), bounds)

    policies = Draws(numbers=(np.repeat(SHAPES, RUNS), np.repeat(bounds, RUNS, 0)))
    pulls = play(policies, 8, 3 * SAMPLES, runs=3 * RUNS)
    for i in range(3):
        check_law(pulls[i * RUNS:(i + 1) * RUNS], np.searchsorted(bounds[i], outcomes[i]))


# Draws under jax.vmap, inside a policy.

MAPPED = np.array([0.3, 0.6, 2.5], np.float32)


@pytest.mark.slow
def test_vmap_over_keys_and_shapes():
    """Independent draws. The outcome is which of them is the largest, and the quantile of the first."""
    bounds = quantiles(stats.gamma(MAPPED[0]), 3)

    def decide(key):
        draws = jax.vmap(random.gamma)(jax.random.split(key, 3), MAPPED)
        return 3 * jnp.argmax(draws / MAPPED) + place(draws[0], bounds)

    draws = np.random.default_rng(7).gamma(MAPPED, size=(REFERENCES, 3))
    check_law(play(stateless(decide)(), 9, small=True), 3 * (draws / MAPPED).argmax(1) + np.searchsorted(bounds, draws[:, 0]))


@pytest.mark.slow
def test_vmap_over_shapes_with_one_key():
    """Each draw has its law. Draws with equal shapes are equal, being the same function of the same key. Another call of the
    sampler with this key and shape gives the same draw again."""
    shapes = np.append(MAPPED, MAPPED[1])
    bounds = np.stack([quantiles(stats.beta(shape, 0.8), 4) for shape in MAPPED])

    def decide(key):
        first, second = jax.random.split(key)
        draws = jax.vmap(random.beta, (None, 0, None))(first, shapes, 0.8)
        same = (draws[1] == draws[3]) & (draws[1] == random.beta(first, shapes[1], 0.8))
        which = jax.random.randint(second, (), 0, 3)
        return jnp.where(same, 4 * which + place(draws[which], jnp.asarray(bounds)[which]), 12)

    pulls = play(stateless(decide)(), 13, small=True)
    assert (pulls[:, 12] == 0).all(), "the same draws"
    rng = np.random.default_rng(8)
    which = rng.integers(0, 3, REFERENCES)
    draws = rng.beta(shapes[which], 0.8)
    check_law(pulls[:, :12], 4 * which + (draws[:, None] > bounds[which]).sum(1))


# Draws in branches and loops.


@pytest.mark.slow
def test_draws_in_a_branch():
    laws = stats.gamma(0.6), stats.beta(0.5, 0.7)
    bounds = np.stack([quantiles(law, 4) for law in laws])

    def decide(key):
        first, second = jax.random.split(key)
        coin = jax.random.bernoulli(first)
        draw = lax.cond(coin, lambda: random.beta(second, 0.5, 0.7), lambda: random.gamma(second, 0.6))
        return 4 * coin + place(draw, jnp.asarray(bounds)[coin.astype(jnp.int32)])

    rng = np.random.default_rng(10)
    coin = rng.integers(0, 2, REFERENCES)
    draw = np.where(coin, rng.beta(0.5, 0.7, REFERENCES), rng.gamma(0.6, size=REFERENCES))
    check_law(play(stateless(decide)(), 8), 4 * coin + (draw[:, None] > bounds[coin]).sum(1))


@pytest.mark.slow
def test_draws_in_a_scan():
    """Each draw is the next one's shape."""
    bounds = np.array([0.05, 0.3, 1.0, 2.0])

    def decide(key):
        last, _ = lax.scan(lambda x, key: (random.gamma(key, 0.3 + x), None), jnp.float32(0.5), jax.random.split(key, 3))
        return place(last, bounds)

    rng = np.random.default_rng(11)
    x = np.full(REFERENCES, 0.5)
    for _ in range(3):
        x = rng.gamma(0.3 + x)
    check_law(play(stateless(decide)(), 5, small=True), np.searchsorted(bounds, x))


@pytest.mark.slow
def test_draws_in_a_loop():
    """How many draws it takes to exceed 1, at most 6; and whether their sum exceeds 2."""

    def decide(key):
        def draw(carry):
            count, total = carry
            return count + 1, total + random.gamma(jax.random.fold_in(key, count), 0.6)

        count, total = lax.while_loop(lambda carry: (carry[0] < 6) & (carry[1] <= 1), draw, (jnp.int32(0), jnp.float32(0)))
        return 2 * count - 2 + (total > 2)

    rng = np.random.default_rng(12)
    count, total = np.zeros(REFERENCES, int), np.zeros(REFERENCES)
    for _ in range(6):
        more = total <= 1
        count += more
        total += more * rng.gamma(0.6, size=REFERENCES)
    check_law(play(stateless(decide)(), 12), 2 * count - 2 + (total > 2))
