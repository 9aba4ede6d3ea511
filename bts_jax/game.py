"""The rules of the game: what happens in one run.

The exact rules:

1. While budget remains, the policy chooses an arm, a reward and a cost are drawn, and the cost is paid.
2. If the cost of a pull exceeds the remaining budget, the pull earns nothing and costs nothing, and the run ends. It counts
   as a round, but not as a pull of its arm.
3. At each checkpoint b, a run records the result of a run with budget b. Unless the policy requires the budget, this result is
   bit for bit that of a run with budget b and the same key.
4. A run that reaches its limit of rounds ends there. Its result is marked as `truncated`.
5. If there are several resources, each has a budget, and each pull has a cost of each. The run ends when the first budget is
   used up. A pull whose cost exceeds the remaining budget of any resource earns nothing and costs nothing.
6. The policy's random numbers depend on the run and the round. Those of a pull depend on the run, the arm and the number of
   earlier pulls of this arm. So two policies with the same key get the same reward and cost from the n-th pull of an arm,
   whenever they pull it. These are common random numbers: the difference between the policies varies less.
7. A policy for one resource also plays if there is one resource and a time limit, as in `Timed(bandit)`. It does not see the
   time: its costs are numbers, and its budget is that of the resource.

A single run is a batch of size 1, and all runs of a batch play in one loop (`engine.loop`). `jax.vmap`, nested to any depth,
only adds runs to this loop. `bts_jax.plain` says the same in its simplest form.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from bts_jax import checks, random
from bts_jax.contract import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    Bandit,
    Policy,
    Problem,
    State,
    is_timed,
    num_resources,
    ratio,
    scales,
    side_info,
)
from bts_jax.engine.draws import Attempt, Stepwise, in_order
from bts_jax.engine.fixed_point import LARGEST, UNIT, Resolution, Sum, quantize
from bts_jax.engine.loop import Game, Rules, play
from bts_jax.engine.passes.dividing import divide
from bts_jax.engine.passes.keys import depend_on_the_batch
from bts_jax.engine.passes.rounding import round_product
from bts_jax.engine.passes.summation import over_last_axis
from bts_jax.engine.reproducible import reproducible
from bts_jax.fingerprint import fingerprint
from bts_jax.policies import ALL_POLICIES
from bts_jax.pytrees import pytree
from bts_jax.text import shown

MOST_ROUNDS = 2**31 - 1
MOST_ATTEMPTS = 2**16  # attempts at one round, after which its draws count as impossible

# The purposes of a run's random numbers. A key is derived from the run's key, a counter and one of these: the number of the
# round, or for a pull of arm i the number of its earlier pulls and `PULL` + i.
DECIDE, UPDATE, PULL = range(3)


@pytree
class Run:
    """The result of a run at each of C checkpoints, in the bandit's units. With several resources, d is their number.

    Under `vmap`, batch axes precede the axes named here.

    Example:
        >>> import jax
        >>> from bts_jax import Bernoulli, Uniform, simulate
        >>> bandit = Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])
        >>> run = simulate(Uniform(), bandit, 20, jax.random.key(0), checkpoints=[10, 20])
        >>> run.reward.shape, run.pulls.shape, bool((run.cost <= run.budget).all())
        ((2,), (2, 2), True)
    """

    budget: jax.Array  # [C] or [C, d] float32, the checkpoints
    reward: jax.Array  # [C] float32, total reward
    cost: jax.Array  # [C] or [C, d] float32, total cost; at most the budget
    rounds: jax.Array  # [C] int32, number of rounds, with the last one even if its cost exceeded what was left
    pulls: jax.Array  # [C, K] int32, number of pulls of each arm that were paid for
    truncated: jax.Array  # [C] bool: the run reached its limit of rounds before it spent the budget
    bandit: jax.Array | None = None  # [C] uint32, the fingerprint of the bandit, by which `regret` notices another bandit


class Units(NamedTuple):
    """How rewards and costs are counted if the bandit has `reward_scale` or `cost_scale`."""

    reward: Resolution
    cost: Resolution


class Checkpoints(NamedTuple):
    """The checkpoints of a run, in ascending order. [C] each, and the amounts and sums of d resources are [C, d]"""

    amounts: jax.Array  # float32
    sums: Sum  # 0 for invalid checkpoints
    valid: jax.Array  # bool
    limits: jax.Array | None  # the limits of rounds, if given


class Setting(NamedTuple):
    """Everything that a run depends on."""

    policy: Policy
    bandit: Bandit
    budget: jax.Array  # [] or [d] float32, for a policy that requires it
    key: random.Words
    checkpoints: Sum  # [C] or [C, d] ascending
    limits: jax.Array  # [C] int32, the limit of rounds of each checkpoint
    units: Units | None = None  # None: amounts are in [0, 1]


class _Progress(NamedTuple):
    """The state of a run between two calls of its policy."""

    policy: State
    words: random.Words  # of the key for the next decision
    attempt: jax.Array  # int32, number of the attempt at this round; see `engine.draws`
    kept: list  # saved draws; see `engine.draws`
    calls: jax.Array  # int32, number of attempts at all rounds
    rounds: jax.Array  # int32, number of rounds
    spent: Sum  # [] or [d]
    earned: Sum
    last_cost: jax.Array  # [] or [d] int32, cost of the last pull in quanta
    last_reward: jax.Array  # int32, reward of the last pull in quanta
    last_arm: jax.Array  # int32
    pulls: jax.Array  # [K] int32
    goal: Sum  # [] or [d], the first checkpoint not yet recorded
    limit: jax.Array  # int32, its limit of rounds
    waiting: jax.Array  # bool: the run has reached its goal and waits for the end of the block, or it has ended
    broken: jax.Array  # bool: the bandit or the policy is invalid; see `simulate`


class Round(NamedTuple):
    """A decision and its outcome."""

    arm: jax.Array  # int32
    reward: jax.Array  # float32
    cost: jax.Array  # [] or [d] float32


def canonicalize(leaf: Any) -> Any:
    """Converts a leaf to a 32-bit type, so that 0.1, np.float64(0.1) and jnp.float32(0.1) share one program."""
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    for kind, dtype in ((jnp.floating, jnp.float32), (jnp.signedinteger, jnp.int32), (jnp.unsignedinteger, jnp.uint32)):
        if jnp.issubdtype(array.dtype, kind):
            return array.astype(dtype)
    return array


def amounts_of(bandit: Bandit, budget: Any, checkpoints: Any) -> tuple[Any, Any]:
    """The budget and the checkpoints in units of cost: [] and [C], or [d] and [C, d]. The axes of a batch come first."""
    xp = np if checks.is_concrete((budget, checkpoints)) else jnp
    d = num_resources(bandit)
    if d is None:
        return budget, xp.expand_dims(budget, -1) if checkpoints is None else checkpoints
    if np.ndim(budget) == 0:
        budget = xp.broadcast_to(budget, (d,))
    if checkpoints is None:
        return budget, xp.expand_dims(budget, -2)
    budget, fractions = xp.asarray(budget, np.float32), xp.asarray(checkpoints, np.float32)
    return budget, xp.expand_dims(budget, -2) * fractions[..., None]


def fixed_point(amount: Any) -> tuple[jax.Array, Sum]:
    """An amount as float32 and as an exact sum. Whole numbers are exact; other numbers are rounded to float32 first."""
    amount = canonicalize(amount)
    xp = jnp if isinstance(amount, Tracer) else np  # NumPy does not compile anything
    amount = xp.asarray(amount)
    with np.errstate(invalid="ignore", over="ignore"):
        return amount.astype(np.float32), Sum.of(amount, xp)


def with_fingerprint(run: Run, reward_mean: Any, cost_mean: Any, xp: Any = jnp) -> Run:
    """The run, or the batch of runs, with the fingerprint of its bandit. `xp`: the array library, `jax.numpy` or `numpy`"""
    found = fingerprint(reward_mean, cost_mean, xp)
    return replace(run, bandit=xp.broadcast_to(found[..., None], run.reward.shape))


def prepare(policy, bandit, budget, key, checkpoints, max_rounds) -> Setting:
    """The setting of one run."""
    goals, _ = in_one_run(budget, checkpoints, max_rounds)
    return setting_of(policy, bandit, budget[0], random.key_words(key), goals)


def in_one_run(budget: tuple, checkpoints: tuple, max_rounds: Any) -> tuple[Checkpoints, jax.Array]:
    """`ordered` for one run, whose budget is a number, or a vector if there are several resources."""
    return ordered(budget, checkpoints, max_rounds, several=budget[0].ndim == 1)


def setting_of(policy: Policy, bandit: Bandit, budget: jax.Array, key: random.Words, checkpoints: Checkpoints) -> Setting:
    amounts, goals, valid, limits = checkpoints
    units = units_of(bandit, goals, jnp.isinf(amounts))
    rounds = default_limits(amounts, bandit, units) if limits is None else limits
    if units is not None:
        goals = _endless(units.cost.counted(goals), amounts, limits)
    return Setting(
        policy=policy,
        bandit=bandit,
        budget=budget,
        key=key,
        checkpoints=goals,
        limits=jnp.where(valid, jnp.maximum(rounds.astype(jnp.int32), 1), 1),
        units=units,
    )


def units_of(bandit: Bandit, checkpoints: Sum, endless: jax.Array) -> Units | None:
    """How a bandit's rewards and costs are counted. The cost scale is NaN if a checkpoint is too large to be counted."""
    found = _scales(bandit)
    if found is None:
        return None
    reward, cost = map(Resolution.of, found)
    fits = (endless | (checkpoints.whole <= LARGEST // cost.parts)).all()
    return Units(reward, cost._replace(scale=jnp.where(fits, cost.scale, jnp.nan)))


def _scales(bandit: Bandit) -> list[jax.Array] | None:
    """The largest reward and cost of one pull, float32. `None` if the bandit has no scales: both are 1."""
    if scales(bandit) is None:
        return None
    return reproducible(lambda bandit: [jnp.asarray(scale, jnp.float32) for scale in scales(bandit) or ()])(bandit)


def ordered(
    budget: tuple[jax.Array, Sum], checkpoints: tuple[jax.Array, Sum], max_rounds: Any, several: bool, xp: Any = jnp
) -> tuple[Checkpoints, jax.Array]:
    """The checkpoints of a run in ascending order, and the original position of each. [C]

    If `several`, the last axis of each amount has one entry for each resource. `xp` is the array library to use, `jax.numpy` or
    `numpy`. In a batch of runs, the batch axis is first.
    """
    whole, sums = (_endless(sum, amount, max_rounds, xp) for amount, sum in (budget, checkpoints))
    total, whole = jax.tree.map(lambda x: xp.expand_dims(x, -2 if several else -1), (budget[0], whole))
    amounts = checkpoints[0]
    within, limited = amounts <= LARGEST, total <= LARGEST
    if max_rounds is not None:
        within, limited = within | xp.isinf(amounts), limited | xp.isinf(total)
    valid = (amounts > 0) & within & whole.reaches(sums) & limited
    keys = (sums.rest, sums.whole)
    if several:
        valid = valid.all(-1, keepdims=True)
        keys = tuple(key[..., j] for j in range(amounts.shape[-1]) for key in (sums.rest, sums.whole))
    sums = jax.tree.map(lambda x: xp.where(valid, x, 0), sums)
    valid = valid[..., 0] if several else valid
    limits = None if max_rounds is None else xp.broadcast_to(max_rounds, valid.shape)
    order = xp.lexsort(keys)
    return jax.tree.map(partial(_in_order, order, xp=xp), Checkpoints(amounts, sums, valid, limits)), order


def _in_order(order: jax.Array, x: jax.Array, xp: Any) -> jax.Array:
    """The entries of `x` in this order. It has the axes of `order`, and maybe one more."""
    return xp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - order.ndim)), order.ndim - 1)


def finish(record: Run, checkpoints: Checkpoints, order: jax.Array, xp: Any = jnp) -> Run:
    """The record of a run with its checkpoints in their original order, and NaN for invalid checkpoints."""
    back = xp.argsort(order, axis=-1)

    def given(x: jax.Array) -> jax.Array:
        if xp is np and (order[..., 1:] > order[..., :-1]).all():
            return x  # the usual case: the checkpoints were given in ascending order
        return _in_order(back, x, xp)

    amounts, valid = checkpoints.amounts, checkpoints.valid
    each = valid.reshape(*valid.shape, *[1] * (amounts.ndim - valid.ndim))
    nan = np.float32(np.nan)
    return jax.tree.map(given, replace(
        record,
        budget=amounts,
        reward=xp.where(valid, record.reward, nan),
        cost=xp.where(each, xp.minimum(record.cost, amounts), nan),
    ))


def _endless(sum: Sum, amount: jax.Array, max_rounds: Any, xp: Any = jnp) -> Sum:
    """The sum, or more than any run can spend if the amount is infinite and there is a limit of rounds."""
    if max_rounds is None:
        return sum
    endless = xp.isinf(amount)
    return Sum(xp.where(endless, LARGEST, sum.whole), xp.where(endless, 0, sum.rest))


def default_limits(amounts: jax.Array, bandit: Bandit, units: Units | None) -> jax.Array:
    """(2b + 200) / (smallest positive expected cost), with b and costs in multiples of the cost scale. [C]

    Consider m = (2b + 200)/μ pulls with an expected cost of at least μ each. By Bernstein's inequality, they cost less than b
    in total with a probability below exp(−(b + 200)² / (4b + 400)) ≤ exp(−99). Expected costs below half a quantum count as 0.
    If no arm has a positive expected cost, μ is 1. With d resources, this holds for the sums of all budgets and costs, divided
    by d; and if one of them is time, it also limits the rounds.
    """
    _, cost = means(bandit)
    most = jnp.float32(2**31 - 128)
    if cost.ndim == 2:
        d, scale, per_unit = cost.shape[1], 1.0, UNIT
        if units is not None:
            scale, per_unit = units.cost.scale, units.cost.per_unit
        total = over_last_axis(jnp.where(cost * per_unit >= 0.5, cost / scale, 0))
        if is_timed(bandit):  # the time of a pull, as it is counted; a little more, because of rounding
            pull = jnp.maximum(jnp.round(cost[0, -1] * UNIT), 1)
            most = jnp.minimum(most, jnp.ceil(round_product(amounts[..., -1] * jnp.float32(1.000001 * UNIT)) / pull) + 1)
        amounts, smallest, beyond = over_last_axis(amounts / scale), jnp.min(jnp.where(total > 0, total, 1)), 200 * d
    elif units is None:
        smallest, beyond = jnp.min(jnp.where(cost * UNIT >= 0.5, cost, 1)), 200
    else:
        smallest = jnp.min(jnp.where(cost * units.cost.per_unit >= 0.5, cost, units.cost.scale))
        beyond = round_product(200 * units.cost.scale)
    return jnp.minimum(jnp.ceil((2 * amounts + beyond) / smallest), most).astype(jnp.int32)


@cache
def play_on(platform: str) -> Any:
    """A function that plays the runs on the last axis of every array in a setting, all at once."""

    def play_all(setting: Setting) -> Run:
        game = Game(setting, jax.tree.map(lambda _: None, setting), setting.limits.shape[-1])
        return play([game], rules(platform), platform)[0][0].record

    return for_any_batch(play_all)


def for_any_batch(play_all: Callable[[Setting], Any]) -> Any:
    """Gives `play_all` a rule for `jax.vmap`: a batch axis is merged into the last axis, the axis of the runs."""
    play_all = jax.custom_batching.custom_vmap(play_all)

    @play_all.def_vmap
    def _(size: int, is_batched: list, setting: Setting) -> tuple[Any, Any]:
        def merge(leaf, batched):
            leaf = jnp.moveaxis(leaf, 0, -2) if batched else jnp.repeat(leaf[..., None, :], size, -2)
            return leaf.reshape(*leaf.shape[:-2], size * leaf.shape[-1])

        runs = setting.limits.shape[-1]
        record = play_all(jax.tree.map(merge, setting, is_batched[0]))
        record = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], size, runs), -2, 0), record)
        return record, jax.tree.map(lambda _: True, record)

    return play_all


@cache
def rules(platform: str) -> Rules:
    """The rules of the game on a platform, "cpu" or "gpu"."""
    return Rules(round=partial(_round, platform), start=_start, call=_call, blank=_blank, record=_record)


def _round(platform: str, setting: Setting) -> Stepwise:
    """A round: the policy decides, the arm is pulled, and the policy is updated."""

    def play_round(
        constants: Any, state: State, rounds: jax.Array, pulls: jax.Array, words: random.Words
    ) -> tuple[Round, State]:
        policy, bandit, key, units = constants
        arm, decided = decision(policy, state, random.as_key(words))
        exists = jnp.clip(arm, 0, pulls.shape[0] - 1)
        pull = in_order(bandit.pull, platform)
        reward, cost = outcome(bandit, exists, random.derive(key, pulls[exists], PULL + exists), pull)
        learnt = update(policy, bandit, units, decided, arm, reward, cost, random.derive(key, rounds, UPDATE))
        return Round(arm, reward, cost), learnt

    state = jax.eval_shape(first_state, setting.policy, setting.bandit, setting.budget)
    pulls = jax.eval_shape(lambda bandit: jnp.zeros(jnp.shape(bandit.reward_mean), jnp.int32), setting.bandit)
    round = Stepwise(platform, play_round, _constants(setting), state, jnp.int32(0), pulls, setting.key)
    if depend_on_the_batch(round.closed.jaxpr):
        words = (jnp.uint32(0), jnp.uint32(0))
        pull = jax.make_jaxpr(lambda bandit, key: bandit.pull(key, jnp.int32(0)))(setting.bandit, random.as_key(words))
        kind, thing = ("bandit", setting.bandit) if depend_on_the_batch(pull.jaxpr) else ("policy", setting.policy)
        raise ValueError(f"{kind} {type(thing).__name__} draws with keys of kind rbg, which give other numbers in another "
                         "batch: use the key that it is given, or create keys with jax.random.key(seed, "
                         'impl="threefry2x32")')
    return round


def decision(policy: Policy, state: State, key: jax.Array) -> tuple[jax.Array, State]:
    """The arm that the policy chooses, and its state. Raises a `ValueError` if they break the contract."""
    named = f"policy {type(policy).__name__}: __call__"
    with checks.explained(named):
        answer = policy(state, key)
    arm, decided = _pair(named, "arm, state", answer)
    return _checked_arm(policy, arm), _same(policy, "__call__", state, decided)


def outcome(bandit: Bandit, arm: jax.Array, key: jax.Array, pull: Callable) -> tuple[jax.Array, jax.Array]:
    """Reward and cost of a pull by `pull`, the bandit's function or what the engine made of it."""
    named, (num_arms, *costs) = f"bandit {type(bandit).__name__}: pull", jnp.shape(bandit.cost_mean)
    with checks.explained(named):
        answer = pull(key, arm)
    reward, cost = (jnp.asarray(x, jnp.float32) for x in _pair(named, "reward, cost", answer))
    if [*cost.shape] != costs:
        raise ValueError(f"{named} returns a cost of shape {cost.shape}, and cost_mean has "
                         f"shape {(num_arms, *costs)}: return {f'{costs[0]} costs' if costs else 'one number'}")
    return reward, cost


def update(
    policy: Policy, bandit: Bandit, units: Units | None, state: State, arm: jax.Array, reward: jax.Array, cost: jax.Array,
    key: jax.Array,
) -> State:
    """The state of the policy after a pull. It sees reward and cost in its own units."""
    seen = (reward, cost) if units is None else (reward / units.reward.scale, cost / units.cost.scale)
    if hides_time(policy, bandit):
        seen = seen[0], seen[1][0]
    with checks.explained(f"policy {type(policy).__name__}: update"):
        updated = policy.update(state, arm, *seen, key)
    return _same(policy, "update", state, updated)


def _constants(setting: Setting) -> tuple:
    return setting.policy, setting.bandit, setting.key, setting.units


def _pair(method: str, names: str, answer: Any) -> Any:
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        shape = f"a {type(answer).__name__} of {len(answer)}" if isinstance(answer, (tuple, list)) else "one value"
        raise ValueError(f"{method} returns {shape}: return ({names})")
    return answer


def _checked_arm(policy: Policy, arm: Any) -> jax.Array:
    arm = jnp.asarray(arm)
    if arm.shape != () or not jnp.issubdtype(arm.dtype, jnp.integer):
        raise ValueError(f"policy {type(policy).__name__} returns an arm of type {arm.dtype}{list(arm.shape)}: "
                         "return the index of an arm, an integer scalar")
    return arm.astype(jnp.int32)


def hides_time(policy: Any, bandit: Any) -> bool:
    """Whether a policy for one resource plays on a bandit with one resource and time.

    The policy then sees the cost of the resource as a number, and its budget. It does not see the time, which only ends the
    run.
    """
    one = not getattr(policy, "several_resources", False) and "time_cost" not in side_info(policy)
    return one and is_timed(bandit) and num_resources(bandit) == 2


def first_state(policy: Policy, bandit: Bandit, budget: jax.Array) -> State:
    """The policy's state before the first round."""
    reward, cost = means(bandit)
    known, hidden = {}, hides_time(policy, bandit)
    if cost.ndim == 1 or hidden:
        known["best_arm"] = lax.argmax(ratio(reward, cost[:, 0] if hidden else cost), 0, jnp.int32)
    found = _scales(bandit)
    if found is not None:
        budget, cost = (divide(amount, found[1]) for amount in (budget, cost))
    if hidden:
        budget, cost = budget[0], cost[:, 0]
    known |= {"budget": budget, "min_cost": cost.min(), "cost_mean": cost, "revenue": _revenue(bandit, found)}
    known = {name: known[name] for name in side_info(policy) if name != "time_cost"}
    if is_timed(bandit) and not hidden:
        known["time_cost"] = cost[0, -1]
    if found is not None:
        known |= {"reward_scale": found[0], "cost_scale": found[1][0] if hidden and found[1].ndim else found[1]}

    def init(policy: Policy, known: dict) -> State:
        d = None if cost.ndim == 1 else cost.shape[1]
        try:
            with checks.explained(f"policy {type(policy).__name__}: init"):
                return policy.init(Problem(num_arms=cost.shape[0], num_resources=d, **known))
        except Exception as error:
            if isinstance(error, (TypeError, AttributeError)) and "None" in str(error):
                error.add_note(f"A field of Problem is None unless policy {type(policy).__name__} names it in its attribute "
                               "requires, as in requires = (\"budget\",).")
            raise

    return jax.tree.map(jnp.asarray, reproducible(init)(policy, known))


def _revenue(bandit: Bandit, found: list[jax.Array] | None) -> jax.Array | None:
    """The revenue of the arms per unit of each resource except time, in the units of the policy. `found`: the scales"""
    revenue = getattr(bandit, "revenue", None)
    if revenue is None or found is None:
        return revenue
    reward_scale, cost_scale = found
    if is_timed(bandit):
        cost_scale = jnp.broadcast_to(cost_scale, (num_resources(bandit),))[:-1]
    return divide(jnp.asarray(revenue) * cost_scale, reward_scale)


def means(bandit: Bandit) -> tuple[jax.Array, jax.Array]:
    """The expected rewards [K] and costs [K] or [K, d]."""
    with checks.explained(f"bandit {type(bandit).__name__}: reward_mean or cost_mean"):
        return reproducible(lambda bandit: (jnp.asarray(bandit.reward_mean), jnp.asarray(bandit.cost_mean)))(bandit)


def _start(round: Stepwise, setting: Setting) -> _Progress:
    zero = jnp.int32(0)
    broken = jnp.bool_(False)
    resources = setting.checkpoints.whole.shape[1:]
    if setting.units is not None:
        costs = setting.units.cost.possible
        broken = ~(setting.units.reward.possible & (costs.all() if costs.ndim else costs))
    return _Progress(
        policy=first_state(setting.policy, setting.bandit, setting.budget),
        words=random.derived_words(setting.key, zero, DECIDE),
        attempt=zero,
        kept=round.none(),
        calls=zero,
        rounds=zero,
        spent=Sum.zeros(resources),
        earned=Sum.zeros(),
        last_cost=jnp.zeros(resources, jnp.int32),
        last_reward=zero,
        last_arm=zero,
        pulls=jnp.zeros(jnp.shape(setting.bandit.reward_mean), jnp.int32),
        goal=jax.tree.map(lambda x: x[0], setting.checkpoints),
        limit=setting.limits[0],
        waiting=broken,
        broken=broken,
    )


def _call(round: Stepwise, setting: Setting, now: _Progress) -> _Progress:
    """One attempt at a round.

    A waiting run does not change. If the draws are not complete, only the saved draws and the counts of attempts change.
    """
    return attempted(setting, now, attempt_at(round, setting, now))


def attempt_at(round: Stepwise, setting: Setting, now: _Progress) -> Attempt:
    return round(now.kept, now.attempt, _constants(setting), now.policy, now.rounds, now.pulls, now.words)


def attempted(setting: Setting, now: _Progress, attempt: Attempt) -> _Progress:
    """The progress of a run after an attempt."""
    (arm, reward, cost), state = attempt.outputs
    active = ~now.waiting
    again = active & ~attempt.complete
    hopeless = again & (now.attempt >= MOST_ATTEMPTS)
    most = (1, 1) if setting.units is None else (setting.units.reward.scale, setting.units.cost.scale)
    low, high = (flags.all() if cost.ndim else flags for flags in (cost >= 0, cost <= most[1]))
    possible = (reward >= 0) & (reward <= most[0]) & low & high & (arm >= 0) & (arm < now.pulls.shape[0])
    counts = active & attempt.complete & possible
    broken = (active & attempt.complete & ~possible) | hopeless
    count = (quantize, quantize) if setting.units is None else (setting.units.reward.quantize, setting.units.cost.quantize)
    won, paid = (jnp.where(counts, in_coins(amount), 0) for in_coins, amount in zip(count, (reward, cost), strict=True))
    spent, rounds = now.spent.add(paid), now.rounds + counts.astype(jnp.int32)
    reached = counts & (any_resource(spent.reaches(now.goal), cost.ndim == 1) | (rounds >= now.limit))
    return _Progress(
        policy=jax.tree.map(lambda new, old: jnp.where(counts, new, old), state, now.policy),
        words=random.derived_words(setting.key, rounds, DECIDE),
        attempt=jnp.where(again, now.attempt + 1, jnp.where(counts, 0, now.attempt)),
        kept=attempt.keep(counts, again),
        calls=now.calls + active.astype(jnp.int32),
        rounds=rounds,
        spent=spent,
        earned=now.earned.add(won),
        last_cost=jnp.where(counts, paid, now.last_cost),
        last_reward=jnp.where(counts, won, now.last_reward),
        last_arm=jnp.where(counts, arm, now.last_arm),
        pulls=jnp.where(counts, now.pulls.at[arm].add(1), now.pulls),
        goal=now.goal,
        limit=now.limit,
        waiting=now.waiting | reached | broken,
        broken=now.broken | broken,
    )


def any_resource(flags: jax.Array, several: bool) -> jax.Array:
    """Whether a flag holds for any resource. If there are `several`, they are the last axis."""
    return flags.any(-1) if several else flags


def _blank(setting: Setting) -> Run:
    shape, num_arms = setting.limits.shape, jnp.shape(setting.bandit.reward_mean)[0]
    return Run(
        budget=None,  # type: ignore  # see `finish`
        reward=jnp.zeros(shape, jnp.float32),
        cost=jnp.zeros(setting.checkpoints.whole.shape, jnp.float32),
        rounds=jnp.full(shape, -1, jnp.int32),  # −1: not yet recorded
        pulls=jnp.zeros((*shape, num_arms), jnp.int32),
        truncated=jnp.zeros(shape, bool),
    )


def _record(setting: Setting, now: _Progress, record: Run) -> tuple[_Progress, Run]:
    """Records the checkpoints that a waiting run has reached, and sets its next goal."""
    goals = setting.checkpoints
    several = goals.whole.ndim == 2
    reached = any_resource(now.spent.reaches(goals), several)
    fresh = (reached | (now.rounds >= setting.limits) | now.broken) & now.waiting & (record.rounds < 0)
    # If the last pull exceeds the checkpoint, it earns and costs nothing in a run with that budget.
    beyond = reached & any_resource(~goals.reaches(now.spent), several)

    def each(flags: jax.Array) -> jax.Array:
        """One flag for each checkpoint, repeated for each resource."""
        return flags[:, None] if several else flags

    of_rewards, of_costs = (None, None) if setting.units is None else setting.units
    cost = jnp.where(each(beyond), now.spent.add(-now.last_cost).value(of_costs), now.spent.value(of_costs))
    reward = jnp.where(beyond, now.earned.add(-now.last_reward).value(of_rewards), now.earned.value(of_rewards))
    unpaid = beyond[:, None] & (jnp.arange(now.pulls.shape[0]) == now.last_arm)
    record = replace(
        record,
        reward=jnp.where(fresh, jnp.where(now.broken, jnp.nan, reward), record.reward),
        cost=jnp.where(each(fresh), jnp.where(now.broken, jnp.nan, cost), record.cost),
        rounds=jnp.where(fresh, now.rounds, record.rounds),
        pulls=jnp.where(fresh[:, None], now.pulls - unpaid.astype(jnp.int32), record.pulls),
        truncated=jnp.where(fresh, ~reached & ~now.broken, record.truncated),
    )
    left = record.rounds < 0
    now = now._replace(waiting=~left.any())
    if left.shape == (1,):
        return now, record
    first = jnp.argmax(left)
    return now._replace(goal=jax.tree.map(lambda x: x[first], goals), limit=setting.limits[first]), record


def _same(policy: Policy, method: str, before: State, after: State) -> State:
    """Returns `after`. Raises a `ValueError` unless it has the structure, shapes and dtypes of `before`."""
    old, new = jax.tree.leaves_with_path(before), jax.tree.leaves_with_path(after)
    name = f"policy {type(policy).__name__}: the state that {method} returns"
    if [path for path, _ in old] != [path for path, _ in new]:
        raise ValueError(f"{name} has another structure than that of init ({jax.tree.structure(after)} instead of "
                         f"{jax.tree.structure(before)}): return all fields, and no others")
    for (path, x), (_, y) in zip(old, new, strict=True):
        y = jnp.asarray(y)
        if x.shape != y.shape or (x.dtype != y.dtype and not (y.weak_type and jnp.result_type(x, y) == x.dtype)):
            raise ValueError(f"{name} has {y.dtype}{list(y.shape)} in {jax.tree_util.keystr(path) or 'it'}, but that of init "
                             f"has {x.dtype}{list(x.shape)}: use the same type and shape in both")
    return jax.tree.map(lambda x, y: jnp.asarray(y, x.dtype), before, after)


def check_contracts(policy: Any, bandit: Any) -> None:
    """Raises a `ValueError` unless `policy` is a policy and `bandit` is a bandit."""
    checks.contract("policy", policy, ("init", "__call__", "update"), "BTS()")
    checks.contract("bandit", bandit, ("reward_mean", "cost_mean", "pull"), "Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])")
    unknown = set(side_info(policy)) - set(Problem.__dataclass_fields__)  # type: ignore
    if unknown:
        raise ValueError(f"policy {type(policy).__name__} requires {', '.join(map(repr, sorted(unknown)))}, which Problem does "
                         "not have: make requires a tuple of fields of Problem, such as ('budget',)")
    check_resources(policy, bandit)


def check_resources(policy: Any, bandit: Any) -> None:
    """Raises a `ValueError` unless the policy can play with the resources of the bandit."""
    d, named, hidden = num_resources(bandit), f"policy {type(policy).__name__}", hides_time(policy, bandit)
    if d is not None and not hidden and not getattr(policy, "several_resources", False):
        able = ", ".join(other.__name__ for other in ALL_POLICIES.values() if getattr(other, "several_resources", False))
        raise ValueError(f"{named} plays with one resource, or with one and a time limit, as in Timed(bandit), and bandit "
                         f"{type(bandit).__name__} has a vector of {d}: choose one of {able}; or, if the policy is yours and "
                         f"its update takes costs [{d}], set several_resources = True in its class")
    if "revenue" in side_info(policy) and getattr(bandit, "revenue", None) is None:
        raise ValueError(f"{named} requires the revenue of the arms per unit of each resource, which bandit "
                         f"{type(bandit).__name__} does not have: play on Pricing or Timed(Pricing(...)), or choose another "
                         "posterior of rewards than Revenue")
    scalar = {"best_arm", "min_cost"} & set(side_info(policy))
    if d is not None and not hidden and scalar:
        raise ValueError(f"{named} requires {', '.join(sorted(scalar))}, which is defined for one resource only, and bandit "
                         f"{type(bandit).__name__} has a vector of {d}: choose another policy")
    if is_timed(bandit) and checks.is_concrete((bandit.cost_mean, bandit.horizon)):
        time = np.asarray(bandit.cost_mean, np.float64)[..., -1]
        checks.require("cost_mean of the last resource of the bandit", time,
                       abs(time * np.asarray(bandit.horizon, np.float64)[..., None] - 1) < 1e-5,
                       "make it 1 / horizon for all arms, because a bandit with a horizon has time as its last resource")
    if "time_cost" in side_info(policy) and not is_timed(bandit):
        raise ValueError(f"{named} requires time_cost, the time of a pull, and bandit {type(bandit).__name__} has no time "
                         "limit: add time as a resource, with Timed(bandit, horizon)")


def check(policy, bandit, budget, checkpoints, max_rounds) -> None:
    """Raises a `ValueError` if an argument of one run is invalid. Does not check the key."""
    check_contracts(policy, bandit)
    for path, leaf in jax.tree.leaves_with_path(policy):
        if hasattr(policy, "_check") and jnp.ndim(leaf):
            raise ValueError(f"policy has {jax.tree_util.keystr(path)[1:]} of shape {jnp.shape(leaf)}, a batch of policies: "
                             "map over it with jax.vmap, or pass it to simulate_batch")
    d, shape = num_resources(bandit), np.shape(bandit.cost_mean)
    if isinstance(budget, (list, tuple)) and checks.is_concrete(budget):
        checks.numbers("budget", budget, "give one number for all resources, or one for each")
    if len(shape) != (1 if d is None else 2):
        raise ValueError(f"bandit has costs of shape {shape}, a batch of bandits: map over it with jax.vmap, or pass it to "
                         "simulate_batch")
    if d is not None and np.shape(budget) not in ((), (d,)):
        raise ValueError(f"budget has shape {np.shape(budget)}, and the bandit has {d} resources: give one number for all of "
                         f"them, or {d} numbers; map over several budgets with jax.vmap, or pass them to simulate_batch")
    if d is None and np.ndim(budget) != 0:
        raise ValueError(f"budget has shape {np.shape(budget)}: map over several budgets with jax.vmap, or pass them to "
                         "simulate_batch")
    if checkpoints is not None and (np.ndim(checkpoints) != 1 or np.size(checkpoints) == 0):
        raise ValueError(f"checkpoints has shape {np.shape(checkpoints)}: give a list of at least one budget")
    if max_rounds is not None and np.ndim(max_rounds) != 0:
        raise ValueError(f"max_rounds has shape {np.shape(max_rounds)}: give one number")
    check_finite(policy, bandit, budget)
    check_values(bandit, budget, checkpoints, max_rounds)


def check_finite(policy: Any, bandit: Any, budget: Any) -> None:
    """Raises a `ValueError` if a budget is infinite and the policy requires it."""
    if not checks.is_concrete(budget) or "budget" not in side_info(policy):
        return
    amounts = np.asarray(budget)
    if np.any((amounts[..., :1] if amounts.ndim and hides_time(policy, bandit) else amounts) == np.inf):
        raise ValueError(f"budget = {shown(budget)}, but policy {type(policy).__name__} requires the budget: give a finite one")


def check_values(bandit, budget, checkpoints, max_rounds) -> None:
    """Raises a `ValueError` if a value is invalid, in one run or in a batch."""
    d = num_resources(bandit)
    num_arms = np.shape(bandit.cost_mean)[-1 if d is None else -2]
    if num_arms < 2 or np.shape(bandit.reward_mean)[-1] != num_arms:
        raise ValueError(f"bandit has {np.shape(bandit.reward_mean)[-1]} expected rewards and {num_arms} expected costs: give "
                         "at least 2 arms, each with both")
    per_unit, most = _check_scales(bandit)
    remedy = f"give a number from {1 / np.max(per_unit):.1g} to {np.min(most)}; or infinity, if max_rounds is given"
    largest = np.float32(LARGEST)
    if checks.is_concrete(budget):
        amount = _amounts("budget", budget, remedy)
        limited = (amount <= most) | ((amount == np.inf) & (max_rounds is not None))
        checks.require("budget", amount, (amount * per_unit >= 0.5) & limited, remedy)
        largest = np.expand_dims(amount, -1).astype(np.float32)
    if d is not None:
        _check_several(bandit, budget, checkpoints, max_rounds, per_unit)
    elif checkpoints is not None and checks.is_concrete(checkpoints):
        remedy = f"give positive numbers up to the budget, {float(np.max(largest)):g}"
        amounts = _amounts("checkpoints", checkpoints, remedy)
        enough = amounts * (np.expand_dims(per_unit, -1) if np.ndim(per_unit) else per_unit) >= 0.5
        checks.require("checkpoints", amounts, enough & (np.float32(amounts) <= largest), remedy)
    if max_rounds is not None and checks.is_concrete(max_rounds):
        remedy = f"give a whole number from 1 to {MOST_ROUNDS}"
        limit = _amounts("max_rounds", max_rounds, remedy)
        checks.require("max_rounds", limit, (limit >= 1) & (limit <= MOST_ROUNDS) & (limit == np.floor(limit)), remedy)


def _check_several(bandit, budget, checkpoints, max_rounds, per_unit) -> None:
    """Raises a `ValueError` if checkpoints are no fractions of the budget, or if an arm consumes nothing."""
    if checkpoints is not None and checks.is_concrete((budget, checkpoints)):
        remedy = "give fractions of the budget, above 0 and at most 1, because the bandit has several resources"
        fractions = _amounts("checkpoints", checkpoints, remedy)
        smallest = np.min(np.asarray(budget, np.float64) * per_unit)
        checks.require("checkpoints", fractions, (fractions * smallest >= 0.5) & (fractions <= 1), remedy)
    if max_rounds is None and checks.is_concrete(bandit.cost_mean):
        per_unit = np.expand_dims(per_unit, -2) if np.ndim(per_unit) else per_unit
        nothing = np.argwhere(~(np.asarray(bandit.cost_mean, np.float64) * per_unit >= 0.5).any(-1))
        if len(nothing):
            raise ValueError(f"arm {nothing[0][-1]} of bandit {type(bandit).__name__} consumes nothing of any resource, so "
                             "that a run may never end: add time as a resource, with Timed(bandit), or give max_rounds")


def _amounts(name: str, value: Any, remedy: str) -> np.ndarray:
    """`value` as a float64 array. Raises a `ValueError` if JAX does not have its type, for example for a Decimal."""
    array = checks.numbers(name, value, remedy)
    if np.asarray(value).dtype.kind == "O":
        raise ValueError(f"{name} = {shown(value)} is not a number of a type that JAX knows: {remedy}, as an int or a float")
    return array


def _check_scales(bandit: Any) -> tuple[Any, Any]:
    """Raises unless the scales of a bandit, or of a batch of bandits, are valid and its means do not exceed them.

    Returns the number of quanta in a unit of cost, and the largest budget.
    """
    found = scales(bandit) or (1.0, 1.0)
    per_unit, most = UNIT, LARGEST
    means = bandit.reward_mean, bandit.cost_mean
    for name, scale, mean in zip(("reward", "cost"), found, means, strict=True):
        if not checks.is_concrete(scale):
            continue
        remedy = f"give the largest {name} of one pull, one number from {SMALLEST_SCALE:g} to {LARGEST_SCALE}"
        d = num_resources(bandit) if name == "cost" else None
        vector, remedy = d is not None, remedy if d is None else f"{remedy}, or {d} numbers"
        number = checks.numbers(f"{name}_scale of the bandit", scale, remedy)
        if number.shape not in ((), (np.shape(mean)[:-2] + np.shape(mean)[-1:]) if vector else np.shape(mean)[:-1]):
            raise ValueError(f"{name}_scale of the bandit has shape {number.shape}: {remedy}")
        fits = (number >= np.float32(SMALLEST_SCALE)) & (number <= LARGEST_SCALE)
        checks.require(f"{name}_scale of the bandit", number, fits, remedy)
        if checks.is_concrete(mean):
            expected = np.asarray(mean, np.float64)
            limit = np.expand_dims(number, -2 if vector and number.ndim else -1)
            checks.require(f"{name}_mean of the bandit", expected, ~(expected > limit * (1 + 1e-5)),
                           f"set {name}_scale of the bandit to the largest {name} of one pull; it is {np.max(number):g} now")
            if name == "cost":
                largest = expected.max(-2 if vector else -1)
                fine = (largest == 0) | ~(largest <= 0.99 * SMALLEST_SCALE * number)  # less would be rounded to nothing
                checks.require("the largest expected cost of the bandit", largest, fine, "set cost_scale of the bandit to the "
                               f"largest cost of one pull; it is {np.max(number):g}, more than a million times as much")
        if name == "cost" and scales(bandit) is not None:
            resolution = Resolution.of(number, np)
            per_unit, most = resolution.per_unit, LARGEST // resolution.parts
    return per_unit, most
