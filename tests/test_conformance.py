"""The mistakes that `check_policy` and `check_bandit` find, and the classes that they accept."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from common import INSTANCES, Constant

import bts_jax as bj

BANDIT = INSTANCES["bernoulli"]


@chex.dataclass(frozen=True)
class Turns:
    """Pulls the arms in turn."""

    def init(self, problem):
        return jnp.arange(problem.num_arms)

    def __call__(self, state, key):
        return state[0], state

    def update(self, state, arm, reward, cost, key):
        return jnp.roll(state, -1)


OTHER_KEYS = {
    "a constant": lambda key, number: jax.random.randint(jax.random.key(number, impl="rbg"), (), 0, 2),
    "a new one": lambda key, number: jax.random.split(
        jax.random.wrap_key_data(jnp.tile(jax.random.key_data(key), 2), impl="unsafe_rbg"))[0],
    "none": lambda key, number: jax.lax.rng_bit_generator(jnp.tile(jax.random.key_data(key), 2), ())[1],
}


def other_keys(how):
    """A policy that draws with keys of another kind."""

    @chex.dataclass(frozen=True)
    class OtherKeys(Turns):
        def __call__(self, state, key):
            found = OTHER_KEYS[how](key, state[0])
            word = jax.random.key_data(found).sum() if jnp.issubdtype(found.dtype, jax.dtypes.prng_key) else found
            return (word % 2).astype(jnp.int32), state

    return OtherKeys()


@chex.dataclass(frozen=True)
class OtherBandit:
    reward_mean: chex.Array
    cost_mean: chex.Array

    def pull(self, key, arm):
        key = jax.random.wrap_key_data(jnp.tile(jax.random.key_data(key), 2), impl="rbg")
        return tuple(jax.random.bernoulli(key, jnp.stack([self.reward_mean[arm], self.cost_mean[arm]])).astype(jnp.float32))


def ways_to_play(policy, bandit):
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "simulate": lambda: bj.simulate(policy, bandit, 5, keys[0]),
        "batch": lambda: bj.simulate_batch(policy, bandit, 5, keys),
        "vmap": lambda: jax.vmap(lambda key: bj.simulate(policy, bandit, 5, key))(keys),
        "trace": lambda: bj.trace(policy, bandit, 5, keys[0], rounds=9), "compare": lambda: list(bj.compare(
            {"mine": policy}, bandit, 5, keys)), "sweep": lambda: bj.sweep({"mine": policy}, {"b": bandit}, [5], 3),
        "check": lambda: bj.check_policy(policy, bandit),
    }


@pytest.mark.parametrize("how", OTHER_KEYS)
@pytest.mark.parametrize("way", ways_to_play(None, None))
def test_keys_whose_numbers_depend_on_the_batch_are_refused_everywhere(way, how):
    with pytest.raises(ValueError, match="policy OtherKeys draws with keys of kind rbg, which give other numbers in another"):
        ways_to_play(other_keys(how), BANDIT)[way]()


def test_the_same_holds_for_bandits():
    mine = OtherBandit(reward_mean=jnp.array([0.5, 0.9]), cost_mean=jnp.array([0.5, 0.9]))
    with pytest.raises(ValueError, match="bandit OtherBandit draws with keys of kind rbg"):
        bj.check_bandit(mine)
    with pytest.raises(ValueError, match="bandit OtherBandit draws with keys of kind rbg"):
        bj.simulate_batch(Turns(), mine, 5, jax.random.split(jax.random.key(0), 3))


KEY = jax.random.key(3)


@chex.dataclass(frozen=True)
class Unusual(Turns):
    """A key and an array among the hyperparameters, a constant key, a key in the state, a function with `jax.jit`, and a
    Python number where the state has a float."""

    key: chex.PRNGKey
    scale: chex.Array

    def init(self, problem):
        return jnp.arange(problem.num_arms), self.key, jnp.float32(0.5)

    def __call__(self, state, key):
        draw = jax.jit(lambda key: jax.random.uniform(jax.random.fold_in(KEY, 1)) + jax.random.uniform(key))
        return (5 * draw(key) * self.scale.at[()].multiply(0.5)).astype(jnp.int32), state

    def update(self, state, arm, reward, cost, key):
        return jnp.roll(state[0], -1), jax.random.fold_in(state[1], arm), 0

    def logits(self, state, key):
        return state[0] * self.scale + state[2]


@pytest.mark.slow
def test_what_keeps_the_contract_passes():
    bj.check_policy(Unusual(key=jax.random.key(1), scale=jnp.float32(0.9)), BANDIT)
    bj.check_policy(bj.TemperedBTS(sharpness=2.7, reward_alpha=1.3, horizon=30.0, decay=0.6), BANDIT)


@chex.dataclass(frozen=True)
class Lost(Turns):
    def __call__(self, state, key):
        return state[0] + 3, state


@chex.dataclass(frozen=True)
class Forgetful(Turns):
    def logits(self, state, key):
        return jnp.log(state[:2] * 0.0)


CALLS = []


@chex.dataclass(frozen=True)
class Fickle(Turns):
    def __call__(self, state, key):
        CALLS.append(self)
        return jnp.int32(len(CALLS) % 5), state


@chex.dataclass(frozen=True)
class Drawn(Turns):
    """Draws an array with NumPy, which no key decides, in a function of its own."""

    def __call__(self, state, key):
        draw = jax.jit(lambda: jnp.asarray(np.random.default_rng().random(5, np.float32)))
        return jnp.argmax(draw()), state


@jax.custom_batching.custom_vmap
def third(number):
    return (3 * number).astype(jnp.int32)


@third.def_vmap
def _(size, batched, number):
    return jnp.full(number.shape, (3 * number[0]).astype(jnp.int32)), True  # wrong: that of the first lane


@chex.dataclass(frozen=True)
class Together(Turns):
    """All lanes pull the arm of the first one."""

    def __call__(self, state, key):
        return third(jax.random.uniform(key)), state


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "named"), [
    (Lost(), "runs end with NaN"),
    (Forgetful(), "logits returns .*: return 5 finite numbers"),
    (Fickle(), "two calls with the same state and key"),
    (Drawn(), "two calls with the same state and key"),
    (Together(), "a run alone differs from the same run in a batch"),
])
def test_what_is_wrong_with_a_policy_is_said(policy, named):
    with pytest.raises(ValueError, match=f"policy {type(policy).__name__} does not keep the contract") as error:
        bj.check_policy(policy, BANDIT)
    assert error.match(named)


@chex.dataclass(frozen=True)
class Restless(Constant):
    """Adds a number of NumPy's that is too small to change the mean."""

    def pull(self, key, arm):
        return self.reward_mean[arm] + 1e-6 * np.random.default_rng().random(), self.cost_mean[arm]


@pytest.mark.slow
def test_what_is_wrong_with_a_bandit_is_said():
    means = {"reward_mean": np.array([0.2, 0.5]), "cost_mean": np.array([0.5, 0.75])}
    bj.check_bandit(Constant(**means))
    with pytest.raises(ValueError, match=r"arm 0's mean cost was 0.2500 in 20,000 pulls, and cost_mean says 0.5000"):
        bj.check_bandit(Constant(**means, factor=0.5))
    with pytest.raises(ValueError, match=r"arm 1's cost is not always a number in \[0, 1\]: it is 1.5"):
        bj.check_bandit(Constant(**means, factor=2.0))
    with pytest.raises(ValueError, match="have shapes"):
        bj.check_bandit(Constant(reward_mean=jnp.ones(3), cost_mean=jnp.ones(2)))
    with pytest.raises(ValueError, match="two pulls with the same key and arm give different results"):
        bj.check_bandit(Restless(**means))


@chex.dataclass(frozen=True)
class Convolves:
    """Pulls any arm, and stores a sum whose order XLA chooses."""

    def init(self, problem):
        return jnp.ones(problem.num_arms)

    def __call__(self, state, key):
        return jax.random.randint(key, (), 0, 2), jnp.convolve(state, jnp.ones(2), "same") / 2

    def update(self, state, arm, reward, cost, key):
        return state


@chex.dataclass(frozen=True)
class Waves(Turns):
    """Decides by a function that the engine does not write out."""

    def __call__(self, state, key):
        return (jnp.sin(jax.random.normal(key)) > 0.1).astype(jnp.int32), state


@pytest.mark.slow
def test_what_is_left_to_xla_is_reported():
    bandit = bj.Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5])
    with pytest.warns(UserWarning, match="policy Convolves uses conv_general_dilated"):
        bj.check_policy(Convolves(), bandit)
    with pytest.warns(UserWarning, match="policy Waves uses sin, whose last bit XLA may compute differently in another batch"):
        bj.check_policy(Waves(), bandit)
