"""The mistakes that `check_policy` and `check_bandit` find, and the classes that they accept."""

import functools

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
    "a constant": lambda key, number: jax.random.randint(
        jax.random.key(number, impl="rbg"), (), 0, 2
    ),
    "a new one": lambda key, number: jax.random.split(
        jax.random.wrap_key_data(jnp.tile(jax.random.key_data(key), 2), impl="unsafe_rbg")
    )[0],
    "none": lambda key, number: jax.lax.rng_bit_generator(
        jnp.tile(jax.random.key_data(key), 2), ()
    )[1],
}


def other_keys(how):
    """A policy that draws with keys of another kind."""

    @chex.dataclass(frozen=True)
    class OtherKeys(Turns):
        def __call__(self, state, key):
            found = OTHER_KEYS[how](key, state[0])
            word = (
                jax.random.key_data(found).sum()
                if jnp.issubdtype(found.dtype, jax.dtypes.prng_key)
                else found
            )
            return (word % 2).astype(jnp.int32), state

    return OtherKeys()


@chex.dataclass(frozen=True)
class OtherBandit:
    reward_mean: chex.Array
    cost_mean: chex.Array

    def pull(self, key, arm):
        key = jax.random.wrap_key_data(jnp.tile(jax.random.key_data(key), 2), impl="rbg")
        return tuple(
            jax.random.bernoulli(
                key, jnp.stack([self.reward_mean[arm], self.cost_mean[arm]])
            ).astype(jnp.float32)
        )


def ways_to_play(policy, bandit):
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "simulate": lambda: bj.simulate(policy, bandit, 5, keys[0]),
        "batch": lambda: bj.simulate_batch(policy, bandit, 5, keys),
        "vmap": lambda: jax.vmap(lambda key: bj.simulate(policy, bandit, 5, key))(keys),
        "trace": lambda: bj.trace(policy, bandit, 5, keys[0], rounds=9),
        "compare": lambda: list(bj.compare({"mine": policy}, bandit, 5, keys)),
        "sweep": lambda: bj.sweep({"mine": policy}, {"b": bandit}, [5], 3),
        "check": lambda: bj.check_policy(policy, bandit),
    }


@pytest.mark.parametrize("how", OTHER_KEYS)
@pytest.mark.parametrize("way", ways_to_play(None, None))
def test_keys_whose_numbers_depend_on_the_batch_are_refused_everywhere(way, how):
    with pytest.raises(
        ValueError,
        match="policy OtherKeys draws with keys of kind rbg, which give other numbers in another",
    ):
        ways_to_play(other_keys(how), BANDIT)[way]()


def test_the_same_holds_for_bandits():
    mine = OtherBandit(reward_mean=jnp.array([0.5, 0.9]), cost_mean=jnp.array([0.5, 0.9]))
    with pytest.raises(ValueError, match="bandit OtherBandit draws with keys of kind rbg"):
        bj.check_bandit(mine)
    with pytest.raises(ValueError, match="bandit OtherBandit draws with keys of kind rbg"):
        bj.simulate_batch(Turns(), mine, 5, jax.random.split(jax.random.key(0), 3))


def chooses(expression):
    """A policy that computes its arm in this way from its state."""

    @chex.dataclass(frozen=True)
    class Mine(Turns):
        def __call__(self, state, key):
            return expression(state), state

    return Mine()


TRACED = {
    "branches on a traced value .*use jnp.where or jax.lax.cond": lambda state: (
        1 if state[0] > 3 else 0
    ),
    r"needs the value of a traced array .*use x.astype\(jnp.int32\) instead of int": lambda state: (
        int(state[0])
    ),
    "gives a traced value to NumPy .*use jax.numpy": lambda state: np.argmax(np.asarray(state)),
    # The line is not NumPy's.
    "gives a traced value to NumPy .*jax.numpy instead": lambda state: int(np.median(state)),
    "uses a traced value as a Python int .*use jax.lax.fori_loop": lambda state: sum(
        range(state[0])
    ),
    "selects entries by a traced mask.*use jnp.where": lambda state: jnp.argmax(state[state > 2]),
}


@pytest.mark.parametrize("named", TRACED)
def test_code_that_cannot_be_traced_is_explained(named):
    """The message names the line in the user's code, and JAX's error stays visible as its cause."""
    with pytest.raises(
        ValueError,
        match=rf"policy Mine: __call__ (?=.*test_conformance.py, line "
        rf"\d+\)){named}",
    ) as error:
        bj.simulate(chooses(TRACED[named]), BANDIT, 5, jax.random.key(0))
    assert isinstance(error.value.__cause__, (jax.errors.JAXTypeError, jax.errors.JAXIndexError))


@pytest.mark.parametrize("way", ways_to_play(None, None))
def test_a_traced_branch_is_explained_everywhere(way):
    policy = chooses(lambda state: 1 if state[0] > 3 else 0)
    with pytest.raises(ValueError, match="policy Mine: __call__ branches on a traced value"):
        ways_to_play(policy, BANDIT)[way]()


@chex.dataclass(frozen=True)
class Branches(Turns):
    requires = ("budget",)

    def init(self, problem):
        return (
            jnp.arange(problem.num_arms) if problem.budget > 3 else jnp.zeros(problem.num_arms, int)
        )


@chex.dataclass(frozen=True)
class BranchesLater(Turns):
    def update(self, state, arm, reward, cost, key):
        return state if reward > 0.5 else jnp.roll(state, -1)


@chex.dataclass(frozen=True)
class BranchingBandit:
    reward_mean: chex.Array
    cost_mean: chex.Array

    def pull(self, key, arm):
        return (1.0, 1.0) if arm == 0 else (0.0, 1.0)


TWO = {"reward_mean": jnp.array([1.0, 0.0]), "cost_mean": jnp.ones(2)}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (
            lambda: bj.simulate(Branches(), BANDIT, 5, KEY),
            "policy Branches: init branches on a traced value",
        ),
        (
            lambda: bj.simulate(BranchesLater(), BANDIT, 5, KEY),
            "policy BranchesLater: update branches on a traced value",
        ),
        (
            lambda: bj.simulate(Turns(), BranchingBandit(**TWO), 5, KEY),
            "bandit BranchingBandit: pull branches on a traced value",
        ),
        (
            lambda: bj.check_bandit(BranchingBandit(**TWO)),
            "bandit BranchingBandit: pull branches on a traced value",
        ),
        (
            lambda: bj.trace(
                Turns(), BANDIT, 5, KEY, rounds=9, record=lambda state: 1 if state[0] else 0
            ),
            "record branches on a traced value",
        ),
    ],
)
def test_the_method_that_cannot_be_traced_is_named(make, named):
    with pytest.raises(ValueError, match=rf"{named} \(.*test_conformance.py, line"):
        make()


@chex.dataclass(frozen=True)
class Undeclared(Turns):
    def init(self, problem):
        return jnp.arange(problem.num_arms) + 0 * jnp.int32(2 * problem.budget)


@pytest.mark.parametrize("way", ways_to_play(None, None))
def test_side_information_that_is_not_declared_is_explained(way):
    with pytest.raises(TypeError) as error:
        ways_to_play(Undeclared(), BANDIT)[way]()
    assert any(
        "None unless policy Undeclared names it in its attribute requires" in note
        for note in error.value.__notes__
    )


@chex.dataclass(frozen=True)
class WithContext(Turns):
    def __call__(self, state, key, context):
        return state[0], state


@chex.dataclass(frozen=True)
class WithoutKey(Turns):
    def update(self, state, arm: int, reward: float, cost: float) -> chex.Array:
        return state


@chex.dataclass(frozen=True)
class Changed(Turns):
    """A decorator adds the key, which the signature does not show."""

    @functools.wraps(WithoutKey.update)
    def update(self, *arguments):
        return WithoutKey.update(self, *arguments[:-1])


@chex.dataclass(frozen=True)
class WithRound(BranchingBandit):
    def pull(self, key, arm, round):
        return 1.0, 1.0


@chex.dataclass(frozen=True)
class Gym:
    reward_mean: chex.Array
    cost_mean: chex.Array

    def step(self, action):
        return None, 1.0, False, {}


@pytest.mark.parametrize("way", ways_to_play(None, None))
@pytest.mark.parametrize(
    ("policy", "bandit", "named"),
    [
        (
            WithContext(),
            BANDIT,
            r"__call__ takes \(state, key, context\), and it is called with "
            r"\(state, key\): write __call__",
        ),
        (
            WithoutKey(),
            BANDIT,
            r"update takes \(state, arm: int, reward: float, cost: float\),.*: "
            r"write update\(state, arm,",
        ),
        (
            Turns(),
            WithRound(**TWO),
            r"bandit WithRound: pull takes \(key, arm, round\),.*: write "
            r"pull\(key, arm\) -> \(reward",
        ),
        (Turns(), Gym(**TWO), r"has no pull\(key, arm\) -> \(reward, cost\): pass a bandit"),
    ],
)
def test_other_signatures_are_refused_everywhere(way, policy, bandit, named):
    with pytest.raises(ValueError, match=named):
        ways_to_play(policy, bandit)[way]()


def test_other_signatures_of_bandits_are_refused():
    for make in (
        lambda: bj.check_bandit(WithRound(**TWO)),
        lambda: bj.Scaled(WithRound(**TWO), scale=2),
    ):
        with pytest.raises(ValueError, match="bandit WithRound: pull takes"):
            make()


def test_signatures_that_a_decorator_changes_are_allowed():
    bj.simulate(Changed(), BANDIT, 5, KEY)


KEY = jax.random.key(3)


@chex.dataclass(frozen=True)
class Unusual(Turns):
    """A key and an array among the hyperparameters, a constant key, a key in the state, a function
    with `jax.jit`, and a Python number where the state has a float."""

    key: chex.PRNGKey
    scale: chex.Array

    def init(self, problem):
        return jnp.arange(problem.num_arms), self.key, jnp.float32(0.5)

    def __call__(self, state, key):
        draw = jax.jit(
            lambda key: jax.random.uniform(jax.random.fold_in(KEY, 1)) + jax.random.uniform(key)
        )
        return (5 * draw(key) * self.scale.at[()].multiply(0.5)).astype(jnp.int32), state

    def update(self, state, arm, reward, cost, key):
        return jnp.roll(state[0], -1), jax.random.fold_in(state[1], arm), 0

    def logits(self, state, key):
        return state[0] * self.scale + state[2]


@pytest.mark.slow
def test_what_keeps_the_contract_passes():
    bj.check_policy(Unusual(key=jax.random.key(1), scale=jnp.float32(0.9)), BANDIT)
    bj.check_policy(
        bj.TemperedBTS(sharpness=2.7, reward_alpha=1.3, horizon=30.0, decay=0.6), BANDIT
    )


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
    # Wrong: that of the first lane.
    return jnp.full(number.shape, (3 * number[0]).astype(jnp.int32)), True


@chex.dataclass(frozen=True)
class Together(Turns):
    """All lanes pull the arm of the first one."""

    def __call__(self, state, key):
        return third(jax.random.uniform(key)), state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (Lost(), "runs end with NaN"),
        (Forgetful(), "logits returns .*: return 5 finite numbers"),
        (Fickle(), "two calls with the same state and key"),
        (Drawn(), "two calls with the same state and key"),
        (Together(), "a run alone differs from the same run in a batch"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said(policy, named):
    with pytest.raises(
        ValueError, match=f"policy {type(policy).__name__} does not keep the contract"
    ) as error:
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
    with pytest.raises(
        ValueError,
        match=r"arm 0's mean cost was 0.2500 in 20,000 pulls, and "
        r"cost_mean says 0.5000",
    ):
        bj.check_bandit(Constant(**means, factor=0.5))
    with pytest.raises(
        ValueError,
        match=r"arm 1's cost is not always a number in \[0, 1\]: it "
        r"is 1.5",
    ):
        bj.check_bandit(Constant(**means, factor=2.0))
    with pytest.raises(ValueError, match="have shapes"):
        bj.check_bandit(Constant(reward_mean=jnp.ones(3), cost_mean=jnp.ones(2)))
    with pytest.raises(
        ValueError, match="two pulls with the same key and arm give different results"
    ):
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
    with pytest.warns(
        UserWarning,
        match="policy Waves uses sin, whose last bit XLA may compute differently in another batch",
    ):
        bj.check_policy(Waves(), bandit)
