"""The rules of the game: what happens in one run.

The exact rules:

1. While budget remains, the policy chooses an arm, a reward and a cost are drawn, and the cost is
   paid.
2. If the cost of a pull exceeds the remaining budget, the pull earns nothing and costs nothing, and
   the run ends. It counts as a round, but not as a pull of its arm.
3. At each checkpoint b, a run records the result of a run with budget b. Unless the policy requires
   the budget, this result is bit for bit that of a run with budget b and the same key.
4. A run that reaches its limit of rounds ends there. Its result is marked as `truncated`.
5. If there are several resources, each has a budget, and each pull has a cost of each. The run ends
   when the first budget is used up. A pull whose cost exceeds the remaining budget of any resource
   earns nothing and costs nothing.
6. The policy's random numbers depend on the run and the round. Those of a pull depend on the run,
   the arm and the number of earlier pulls of this arm. So two policies with the same key get the
   same reward and cost from the n-th pull of an arm, whenever they pull it. These are common random
   numbers: the difference between the policies varies less.
7. A policy for one resource also plays if there is one resource and a time limit, as in
   `Timed(bandit)`. It does not see the
   time: its costs are numbers, and its budget is that of the resource.

A single run is a batch of size 1, and all runs of a batch play in one loop (`engine.loop`).
`bts_jax.plain` says the same in its simplest form.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax import checks, random
from bts_jax.arguments import Arguments, endless
from bts_jax.contract import (
    Bandit,
    Policy,
    Problem,
    State,
    hides_time,
    is_timed,
    num_resources,
    ratio,
    scales,
    side_info,
)
from bts_jax.engine.draws import Attempt, Stepwise, in_order
from bts_jax.engine.fixed_point import LARGEST, UNIT, Resolution, Sum, quantize
from bts_jax.engine.loop import Rules
from bts_jax.engine.passes.dividing import divide
from bts_jax.engine.passes.keys import depend_on_the_batch
from bts_jax.engine.passes.rounding import round_product
from bts_jax.engine.passes.summation import over_last_axis
from bts_jax.engine.reproducible import reproducible
from bts_jax.fingerprint import fingerprint
from bts_jax.pytrees import pytree

MOST_ATTEMPTS = 2**16  # attempts at one round, after which its draws count as impossible

# The purposes of a run's random numbers. A key is derived from the run's key, a counter and one of
# these: the number of the round, or for a pull of arm i the number of its earlier pulls and `PULL`
# + i.
DECIDE, UPDATE, PULL = range(3)


@pytree
class Run:
    """The result of a run at each of C checkpoints, in the bandit's units. With several resources,
    d is their number.

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
    rounds: jax.Array  # [C] int32, number of rounds, with a last one that could not be paid
    pulls: jax.Array  # [C, K] int32, number of pulls of each arm that were paid for
    truncated: jax.Array  # [C] bool: the run reached its limit of rounds before it spent the budget
    bandit: jax.Array | None = None  # [C] uint32, the bandit's fingerprint, for `regret`


class Units(NamedTuple):
    """How rewards and costs are counted if the bandit has `reward_scale` or `cost_scale`."""

    reward: Resolution
    cost: Resolution


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
    waiting: jax.Array  # bool: the run waits for the end of the block, or has ended
    broken: jax.Array  # bool: the bandit or the policy is invalid; see `simulate`


class Round(NamedTuple):
    """A decision and its outcome."""

    arm: jax.Array  # int32
    reward: jax.Array  # float32
    cost: jax.Array  # [] or [d] float32


def with_fingerprint(run: Run, reward_mean: Any, cost_mean: Any, xp: Any = jnp) -> Run:
    """The run, or the batch of runs, with the fingerprint of its bandit. `xp`: the array library,
    `jax.numpy` or `numpy`
    """
    found = fingerprint(reward_mean, cost_mean, xp)
    return replace(run, bandit=xp.broadcast_to(found[..., None], run.reward.shape))


def setting_of(arguments: Arguments, key: random.Words) -> Setting:
    """The setting of one run."""
    policy, bandit, (budget, (amounts, goals, valid, limits), _) = arguments
    units = units_of(bandit, goals, jnp.isinf(amounts))
    rounds = default_limits(amounts, bandit, units) if limits is None else limits
    if units is not None:
        goals = endless(units.cost.counted(goals), amounts, limits)
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
    """How a bandit's rewards and costs are counted. The cost scale is NaN if a checkpoint is too
    large to be counted.
    """
    found = _scales(bandit)
    if found is None:
        return None
    reward, cost = map(Resolution.of, found)
    fits = (endless | (checkpoints.whole <= LARGEST // cost.parts)).all()
    return Units(reward, cost._replace(scale=jnp.where(fits, cost.scale, jnp.nan)))


def _scales(bandit: Bandit) -> list[jax.Array] | None:
    """The largest reward and cost of one pull, float32. `None` if the bandit has no scales: both
    are 1.
    """
    if scales(bandit) is None:
        return None
    return reproducible(
        lambda bandit: [jnp.asarray(scale, jnp.float32) for scale in scales(bandit) or ()]
    )(bandit)


def default_limits(amounts: jax.Array, bandit: Bandit, units: Units | None) -> jax.Array:
    """(2b + 200) / (smallest positive expected cost), with b and costs in multiples of the cost
    scale. [C]

    Consider m = (2b + 200)/μ pulls with an expected cost of at least μ each. By Bernstein's
    inequality, they cost less than b in total with a probability below exp(−(b + 200)² / (4b +
    400)) ≤ exp(−99). Expected costs below half a quantum count as 0. If no arm has a positive
    expected cost, μ is 1. With d resources, this holds for the sums of all budgets and costs,
    divided by d; and if one of them is time, it also limits the rounds.
    """
    _, cost = means(bandit)
    most = jnp.float32(2**31 - 128)
    if cost.ndim == 2:
        d, scale, per_unit = cost.shape[1], 1.0, UNIT
        if units is not None:
            scale, per_unit = units.cost.scale, units.cost.per_unit
        total = over_last_axis(jnp.where(cost * per_unit >= 0.5, cost / scale, 0))
        # The time of a pull, as it is counted; a little more, because of rounding.
        if is_timed(bandit):
            pull = jnp.maximum(jnp.round(cost[0, -1] * UNIT), 1)
            most = jnp.minimum(
                most,
                jnp.ceil(round_product(amounts[..., -1] * jnp.float32(1.000001 * UNIT)) / pull) + 1,
            )
        amounts, smallest, beyond = (
            over_last_axis(amounts / scale),
            jnp.min(jnp.where(total > 0, total, 1)),
            200 * d,
        )
    elif units is None:
        smallest, beyond = jnp.min(jnp.where(cost * UNIT >= 0.5, cost, 1)), 200
    else:
        smallest = jnp.min(jnp.where(cost * units.cost.per_unit >= 0.5, cost, units.cost.scale))
        beyond = round_product(200 * units.cost.scale)
    return jnp.minimum(jnp.ceil((2 * amounts + beyond) / smallest), most).astype(jnp.int32)


@cache
def rules(platform: str) -> Rules:
    """The rules of the game on a platform, "cpu" or "gpu"."""
    return Rules(
        round=partial(_round, platform), start=_start, call=_call, blank=_blank, record=_record
    )


def _round(platform: str, setting: Setting) -> Stepwise:
    """A round: the policy decides, the arm is pulled, and the policy is updated."""

    def play_round(
        constants: Any, state: State, rounds: jax.Array, pulls: jax.Array, words: random.Words
    ) -> tuple[Round, State]:
        policy, bandit, key, units = constants
        arm, decided = decision(policy, state, random.as_key(words))
        exists = jnp.clip(arm, 0, pulls.shape[0] - 1)
        pull = in_order(bandit.pull, platform)
        reward, cost = outcome(
            bandit, exists, random.derive(key, pulls[exists], PULL + exists), pull
        )
        learnt = update(
            policy, bandit, units, decided, arm, reward, cost, random.derive(key, rounds, UPDATE)
        )
        return Round(arm, reward, cost), learnt

    state = jax.eval_shape(first_state, setting.policy, setting.bandit, setting.budget)
    pulls = jax.eval_shape(
        lambda bandit: jnp.zeros(jnp.shape(bandit.reward_mean), jnp.int32), setting.bandit
    )
    round = Stepwise(
        platform, play_round, _constants(setting), state, jnp.int32(0), pulls, setting.key
    )
    if depend_on_the_batch(round.closed.jaxpr):
        words = (jnp.uint32(0), jnp.uint32(0))
        pull = jax.make_jaxpr(lambda bandit, key: bandit.pull(key, jnp.int32(0)))(
            setting.bandit, random.as_key(words)
        )
        kind, thing = (
            ("bandit", setting.bandit)
            if depend_on_the_batch(pull.jaxpr)
            else ("policy", setting.policy)
        )
        raise ValueError(
            f"{kind} {type(thing).__name__} draws with keys of kind rbg, which give other numbers "
            "in another batch: use the key that it is given, or create keys with "
            "jax.random.key(seed, "
            'impl="threefry2x32")'
        )
    return round


def decision(policy: Policy, state: State, key: jax.Array) -> tuple[jax.Array, State]:
    """The arm that the policy chooses, and its state. Raises a `ValueError` if they break the
    contract.
    """
    named = f"policy {type(policy).__name__}: __call__"
    with checks.explained(named):
        answer = policy(state, key)
    arm, decided = _pair(named, "arm, state", answer)
    return _checked_arm(policy, arm), _checked_state(policy, "__call__", state, decided)


def outcome(
    bandit: Bandit, arm: jax.Array, key: jax.Array, pull: Callable
) -> tuple[jax.Array, jax.Array]:
    """Reward and cost of a pull by `pull`, the bandit's function or what the engine made of it."""
    named, (num_arms, *costs) = f"bandit {type(bandit).__name__}: pull", jnp.shape(bandit.cost_mean)
    with checks.explained(named):
        answer = pull(key, arm)
    reward, cost = (jnp.asarray(x, jnp.float32) for x in _pair(named, "reward, cost", answer))
    if [*cost.shape] != costs:
        raise ValueError(
            f"{named} returns a cost of shape {cost.shape}, and cost_mean has shape "
            f"{(num_arms, *costs)}: return {f'{costs[0]} costs' if costs else 'one number'}"
        )
    return reward, cost


def update(
    policy: Policy,
    bandit: Bandit,
    units: Units | None,
    state: State,
    arm: jax.Array,
    reward: jax.Array,
    cost: jax.Array,
    key: jax.Array,
) -> State:
    """The state of the policy after a pull. It sees reward and cost in its own units."""
    seen = (
        (reward, cost) if units is None else (reward / units.reward.scale, cost / units.cost.scale)
    )
    if hides_time(policy, bandit):
        seen = seen[0], seen[1][0]
    with checks.explained(f"policy {type(policy).__name__}: update"):
        updated = policy.update(state, arm, *seen, key)
    return _checked_state(policy, "update", state, updated)


def _constants(setting: Setting) -> tuple:
    return setting.policy, setting.bandit, setting.key, setting.units


def _pair(method: str, names: str, answer: Any) -> Any:
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        shape = (
            f"a {type(answer).__name__} of {len(answer)}"
            if isinstance(answer, (tuple, list))
            else "one value"
        )
        raise ValueError(f"{method} returns {shape}: return ({names})")
    return answer


def _checked_arm(policy: Policy, arm: Any) -> jax.Array:
    arm = jnp.asarray(arm)
    if arm.shape != () or not jnp.issubdtype(arm.dtype, jnp.integer):
        raise ValueError(
            f"policy {type(policy).__name__} returns an arm of type {arm.dtype}{list(arm.shape)}: "
            "return the index of an arm, an integer scalar"
        )
    return arm.astype(jnp.int32)


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
    known |= {
        "budget": budget,
        "min_cost": cost.min(),
        "cost_mean": cost,
        "revenue": _revenue(bandit, found),
    }
    known = {name: known[name] for name in side_info(policy) if name != "time_cost"}
    if is_timed(bandit) and not hidden:
        known["time_cost"] = cost[0, -1]
    if found is not None:
        known |= {
            "reward_scale": found[0],
            "cost_scale": found[1][0] if hidden and found[1].ndim else found[1],
        }

    def init(policy: Policy, known: dict) -> State:
        d = None if cost.ndim == 1 else cost.shape[1]
        try:
            with checks.explained(f"policy {type(policy).__name__}: init"):
                return policy.init(Problem(num_arms=cost.shape[0], num_resources=d, **known))
        except Exception as error:
            if isinstance(error, (TypeError, AttributeError)) and "None" in str(error):
                error.add_note(
                    f"A field of Problem is None unless policy {type(policy).__name__} names it in "
                    "its attribute "
                    'requires, as in requires = ("budget",).'
                )
            raise

    return jax.tree.map(jnp.asarray, reproducible(init)(policy, known))


def _revenue(bandit: Bandit, found: list[jax.Array] | None) -> jax.Array | None:
    """The revenue of the arms per unit of each resource except time, in the units of the policy.
    `found`: the scales
    """
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
        return reproducible(
            lambda bandit: (jnp.asarray(bandit.reward_mean), jnp.asarray(bandit.cost_mean))
        )(bandit)


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
        waiting=jnp.bool_(False),
        broken=broken,
    )


def _call(round: Stepwise, setting: Setting, now: _Progress) -> _Progress:
    """One attempt at a round.

    A waiting run does not change. If the draws are not complete, only the saved draws and the
    counts of attempts change.
    """
    return attempted(setting, now, attempt_at(round, setting, now))


def attempt_at(round: Stepwise, setting: Setting, now: _Progress) -> Attempt:
    return round(
        now.kept, now.attempt, _constants(setting), now.policy, now.rounds, now.pulls, now.words
    )


def attempted(setting: Setting, now: _Progress, attempt: Attempt) -> _Progress:
    """The progress of a run after an attempt."""
    (arm, reward, cost), state = attempt.outputs
    active = ~now.waiting
    again = active & ~attempt.complete
    hopeless = again & (now.attempt >= MOST_ATTEMPTS)
    most = (
        (1, 1) if setting.units is None else (setting.units.reward.scale, setting.units.cost.scale)
    )
    low, high = (flags.all() if cost.ndim else flags for flags in (cost >= 0, cost <= most[1]))
    possible = (
        (reward >= 0) & (reward <= most[0]) & low & high & (arm >= 0) & (arm < now.pulls.shape[0])
    )
    counts = active & attempt.complete & possible & ~now.broken
    broken = (active & attempt.complete & ~possible) | hopeless
    count = (
        (quantize, quantize)
        if setting.units is None
        else (setting.units.reward.quantize, setting.units.cost.quantize)
    )
    won, paid = (
        jnp.where(counts, in_coins(amount), 0)
        for in_coins, amount in zip(count, (reward, cost), strict=True)
    )
    spent, rounds = now.spent.add(paid), now.rounds + counts.astype(jnp.int32)
    reached = counts & (
        any_resource(spent.reaches(now.goal), cost.ndim == 1) | (rounds >= now.limit)
    )
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
        waiting=now.waiting | reached | broken | now.broken,
        broken=now.broken | broken,
    )


def any_resource(flags: jax.Array, several: bool) -> jax.Array:
    """Whether a flag holds for any resource. If there are `several`, they are the last axis."""
    return flags.any(-1) if several else flags


def _blank(setting: Setting) -> Run:
    shape, num_arms = setting.limits.shape, jnp.shape(setting.bandit.reward_mean)[0]
    return Run(
        budget=None,  # type: ignore  # see `arguments.finish`
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
    fresh = (
        (reached | (now.rounds >= setting.limits) | now.broken) & now.waiting & (record.rounds < 0)
    )
    # If the last pull exceeds the checkpoint, it earns and costs nothing in a run with that budget.
    beyond = reached & any_resource(~goals.reaches(now.spent), several)

    def each(flags: jax.Array) -> jax.Array:
        """One flag for each checkpoint, repeated for each resource."""
        return flags[:, None] if several else flags

    of_rewards, of_costs = (None, None) if setting.units is None else setting.units
    cost = jnp.where(
        each(beyond), now.spent.add(-now.last_cost).value(of_costs), now.spent.value(of_costs)
    )
    reward = jnp.where(
        beyond, now.earned.add(-now.last_reward).value(of_rewards), now.earned.value(of_rewards)
    )
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
    return now._replace(
        goal=jax.tree.map(lambda x: x[first], goals), limit=setting.limits[first]
    ), record


def _checked_state(policy: Policy, method: str, before: State, after: State) -> State:
    """Returns `after`. Raises a `ValueError` unless it has the structure, shapes and dtypes of
    `before`.
    """
    old, new = jax.tree.leaves_with_path(before), jax.tree.leaves_with_path(after)
    name = f"policy {type(policy).__name__}: the state that {method} returns"
    if [path for path, _ in old] != [path for path, _ in new]:
        raise ValueError(
            f"{name} has another structure than that of init ({jax.tree.structure(after)} instead "
            f"of {jax.tree.structure(before)}): return all fields, and no others"
        )
    for (path, x), (_, y) in zip(old, new, strict=True):
        y = jnp.asarray(y)
        if x.shape != y.shape or (
            x.dtype != y.dtype and not (y.weak_type and jnp.result_type(x, y) == x.dtype)
        ):
            raise ValueError(
                f"{name} has {y.dtype}{list(y.shape)} in {jax.tree_util.keystr(path) or 'it'}, but "
                f"that of init has {x.dtype}{list(x.shape)}: use the same type and shape in both"
            )
    return jax.tree.map(lambda x, y: jnp.asarray(y, x.dtype), before, after)
