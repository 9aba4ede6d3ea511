"""One run of the game: `simulate`, and many of them at once under `jax.vmap`.

The rules, to the letter:

1. While budget is left, the policy picks an arm, reward and cost are drawn, and the cost is paid.
2. A pull whose cost exceeds the budget that is left earns nothing and costs nothing, and the run ends. It is still a
   round and a pull.
3. At each checkpoint b, a run records what a run with budget b would have come to. Unless the policy is told the
   budget, this is bit for bit the run with budget b and the same key.
4. A run that reaches its limit of rounds ends there, and says so.

A single run is a batch of one, and all runs of a batch play in one loop: `vmap`, nested as deep as you like, only adds
runs to it. Rounds are played in blocks; a run that passes a checkpoint waits for the end of its block, where checkpoints
are recorded for all runs together.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.typing import ArrayLike

from bts_jax import checks, random
from bts_jax.contract import Bandit, Policy, Problem, State, place_of, ratio, told
from bts_jax.engine.reproducible import call, reproducible
from bts_jax.lanes import halves, lanes
from bts_jax.pytrees import pytree
from bts_jax.sums import LARGEST, UNIT, Sum, coins

# Calls in a block: fewer waste less on runs that wait, more cost less per call. A GPU's first call begins before the loop, and
# the others are taken two at a time (`batch._Graphed`): they are an even number.
BLOCK, GPU_BLOCK = 32, 129
MOST_ROUNDS = 2**31 - 1
MOST_UNDECIDED = 2**16  # calls in a row that decide nothing, before a policy is taken to be unable to

# What the random numbers of a run are for: a key is derived from the run's key, a counter and one of these.
_DECIDE, _PULL, _UPDATE = range(3)


@pytree
class Run:
    """What a run came to at each of C checkpoints. Under `vmap`, batch axes stand before those named here."""

    budget: jax.Array  # [C] float32, the checkpoints
    reward: jax.Array  # [C] float32, earned
    cost: jax.Array  # [C] float32, paid; at most the budget
    rounds: jax.Array  # [C] int32
    pulls: jax.Array  # [C, K] int32, of each arm
    truncated: jax.Array  # [C] bool: the limit of rounds came before the budget's end


class Setting(NamedTuple):
    """All that a run depends on."""

    policy: Policy
    bandit: Bandit
    budget: jax.Array  # float32, what a policy that is told the budget is told
    key: random.Words
    checkpoints: Sum  # [C] ascending
    limits: jax.Array  # [C] int32, the limit of rounds of each checkpoint


class _Progress(NamedTuple):
    """Where a run stands."""

    policy: State
    calls: jax.Array  # int32, of the policy: rounds, and calls that decided nothing
    luck: random.Words | None  # of the next call; see `_luck`
    undecided: jax.Array  # int32, calls since the last pull that decided nothing
    rounds: jax.Array  # int32
    spent: Sum
    earned: Sum
    last_cost: jax.Array  # int32, in coins, of the last pull
    last_reward: jax.Array  # int32, likewise
    pulls: jax.Array  # [K] int32
    goal: Sum  # the first checkpoint not yet recorded
    limit: jax.Array  # int32, its limit of rounds
    waiting: jax.Array  # bool: for the end of the block, the goal being reached; or for good
    broken: jax.Array  # bool: something is wrong with the bandit or the policy; see `simulate`


class _Pull(NamedTuple):
    """One pull, or none."""

    arm: jax.Array  # int32; or why there is none: −1, the run waits or the policy has not decided; −2, something is wrong
    reward: jax.Array  # float32
    cost: jax.Array  # float32


def simulate(
    policy: Policy,
    bandit: Bandit,
    budget: ArrayLike,
    key: jax.Array | None = None,
    *,
    checkpoints: ArrayLike | None = None,
    max_rounds: ArrayLike | None = None,
) -> Run:
    """Plays one run of `policy` on `bandit` with `budget`, all of its randomness coming from `key`.

    Pure, and compiled once per class of policy and bandit, number of arms and number of checkpoints: other values of
    hyperparameters, arms, budget, checkpoints and key compile nothing new. Map over any of the arguments, or several at
    once, with `jax.vmap`; the runs are the same bit for bit, and the batch plays in one loop.

    A policy is mapped over through its hyperparameters: `jax.vmap(lambda scale: simulate(KUBE(scale=scale), ...))(scales)`.
    A run is a matter of discrete decisions: its derivative with respect to anything is zero, and is not taken.

    Under `jit` and `vmap` values cannot be checked. A budget or checkpoint that is not a positive number, a checkpoint
    above the budget, an arm's probability or a reward or cost outside [0, 1], an arm that does not exist, and a policy that
    cannot decide (65,536 calls in a row) then give NaN for reward and cost.

    Args:
        policy: who decides, such as `BTS()`; see `bts_jax.contract.Policy`.
        bandit: what is pulled, such as `Bernoulli(reward=..., cost=...)`; see `bts_jax.contract.Bandit`.
        budget: how much may be spent, a positive number below 2³¹.
        key: a typed JAX key, such as `jax.random.key(0)`.
        checkpoints: budgets up to `budget` at which to record the run, in any order; the budget alone by default. The
            run ends at the largest. [C]
        max_rounds: the limit of rounds. By default each checkpoint b has the limit (2b + 200) / (smallest positive
            expected cost), which a run on arms that all cost something exceeds with a probability below 10⁻²⁰.

    Returns:
        The `Run`, with one entry per checkpoint.

    Example:
        >>> import jax
        >>> from bts_jax import BTS, Bernoulli, simulate
        >>> bandit = Bernoulli(reward=[0.3, 0.6, 0.5], cost=[0.6, 0.5, 0.9])
        >>> keys = jax.random.split(jax.random.key(0), 100)
        >>> runs = jax.vmap(lambda key: simulate(BTS(), bandit, 500, key, checkpoints=[100, 500]))(keys)
        >>> runs.pulls.shape  # runs, checkpoints, arms
        (100, 2, 3)
    """
    if isinstance(checkpoints, (list, tuple)) and not checks.is_concrete(checkpoints):
        checkpoints = jnp.stack(checkpoints)
    check(policy, bandit, budget, key, checkpoints, max_rounds)
    if checkpoints is None:
        checkpoints = jnp.reshape(budget, (1,)) if isinstance(budget, Tracer) else np.reshape(budget, (1,))
    policy, bandit = jax.tree.map(settle, (policy, bandit))
    return _simulate(policy, bandit, money(budget), key, money(checkpoints), max_rounds)


def settle(leaf: Any) -> Any:
    """A leaf with a 32-bit type, so that 0.1, np.float64(0.1) and jnp.float32(0.1) share one program."""
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    for kind, dtype in ((jnp.floating, jnp.float32), (jnp.signedinteger, jnp.int32), (jnp.unsignedinteger, jnp.uint32)):
        if jnp.issubdtype(array.dtype, kind):
            return array.astype(dtype)
    return array


def money(amount: Any) -> tuple[jax.Array, Sum]:
    """An amount as float32 and, exactly, as a sum: whole numbers as they are, others as float32 has them."""
    return _money(settle(amount))


@jax.jit
def _money(amount: jax.Array) -> tuple[jax.Array, Sum]:
    return amount.astype(jnp.float32), Sum.of(amount)


@jax.jit
def _simulate(policy, bandit, budget, key, checkpoints, max_rounds) -> Run:
    policy, bandit, budget, checkpoints = lax.stop_gradient((policy, bandit, budget, checkpoints))
    setting = prepare(policy, bandit, budget, key, checkpoints, max_rounds)
    record = _play(jax.tree.map(lambda x: x[..., None], setting))
    return finish(jax.tree.map(lambda x: x[..., 0], record), budget, checkpoints)


def prepare(policy, bandit, budget, key, checkpoints, max_rounds) -> Setting:
    """The setting of one run, with its checkpoints in ascending order."""
    amounts = checkpoints[0]
    valid, sums, order = _ordered(budget, checkpoints)
    limits = _default_limits(amounts, bandit) if max_rounds is None else jnp.broadcast_to(max_rounds, amounts.shape)
    limits = jnp.where(valid, jnp.maximum(limits.astype(jnp.int32), 1), 1)
    return Setting(
        policy=policy,
        bandit=bandit,
        budget=budget[0],
        key=random.key_words(key),
        checkpoints=jax.tree.map(lambda x: x[order], sums),
        limits=limits[order],
    )


def finish(record: Run, budget, checkpoints) -> Run:
    """What was recorded of one run, with its checkpoints in the order they were given, and NaN where they make no sense."""
    amounts = checkpoints[0]
    valid, _, order = _ordered(budget, checkpoints)
    run = jax.tree.map(lambda x: x[jnp.argsort(order)], record)
    return replace(
        run,
        budget=amounts,
        reward=jnp.where(valid, run.reward, jnp.nan),
        cost=jnp.where(valid, jnp.minimum(run.cost, amounts), jnp.nan),
    )


def _ordered(
    budget: tuple[jax.Array, Sum], checkpoints: tuple[jax.Array, Sum]
) -> tuple[jax.Array, Sum, jax.Array]:
    """Which checkpoints make sense, the checkpoints with 0 for those that do not, and their ascending order. [C] each"""
    amounts, sums = checkpoints
    valid = (amounts > 0) & (amounts <= LARGEST) & budget[1].reaches(sums) & (budget[0] <= LARGEST)
    sums = jax.tree.map(lambda x: jnp.where(valid, x, 0), sums)
    return valid, sums, jnp.lexsort((sums.rest, sums.whole))


def _default_limits(amounts: jax.Array, bandit: Bandit) -> jax.Array:
    """(2b + 200) / (smallest positive expected cost). [C]

    By Bernstein's inequality, m = (2b + 200)/μ pulls that cost at least μ each in expectation cost less than b with a
    probability below exp(−(b + 200)² / (4b + 400)) ≤ exp(−99). (Less than half a coin counts as nothing; with no arm that
    costs anything, μ is taken as 1.)
    """
    _, cost = _means(bandit)
    smallest = jnp.min(jnp.where(cost * UNIT >= 0.5, cost, 1))
    return jnp.minimum(jnp.ceil((2 * amounts + 200) / smallest), jnp.float32(2**31 - 128)).astype(jnp.int32)


@jax.custom_batching.custom_vmap
def _play(setting: Setting) -> Run:
    """Plays the runs on the last axis of every array in `setting`, all of them at once."""
    return play([Game(setting, jax.tree.map(lambda _: None, setting), setting.limits.shape[-1])])[0][0]


@_play.def_vmap
def _(size: int, is_batched: list, setting: Setting) -> tuple[Run, Any]:
    """A batch axis before the runs becomes more runs."""

    def merge(leaf, batched):
        leaf = jnp.moveaxis(leaf, 0, -2) if batched else jnp.repeat(leaf[..., None, :], size, -2)
        return leaf.reshape(*leaf.shape[:-2], size * leaf.shape[-1])

    runs = setting.limits.shape[-1]
    record = _play(jax.tree.map(merge, setting, is_batched[0]))
    record = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], size, runs), -2, 0), record)
    return record, jax.tree.map(lambda _: True, record)


class Game(NamedTuple):
    """Many runs of one policy, to be played `width` at a time; a lane whose run has ended goes on with the next in line.

    What differs from run to run is in `own`, along the last axis; what all share is in `common`; each has `None` where the
    other has an array.
    """

    own: Setting
    common: Setting
    width: int


class _Table(NamedTuple):
    """Where a game stands."""

    part: Any  # of `own`, what the lanes play; nothing, if every run has a lane
    now: _Progress
    record: Run
    blocks: jax.Array  # int32, how many were played
    queue: Any = None  # unless every run has a lane


class _Queue(NamedTuple):
    run: jax.Array  # [lanes] int32, which run a lane plays: `runs` or more for none
    line: jax.Array  # int32, the next run in line
    stored: Run  # of the runs that have ended
    calls: jax.Array  # [runs] int32, likewise


def play(games: Sequence[Game]) -> list[tuple[Run, jax.Array, jax.Array]]:
    """Plays several games in one loop, which lasts as long as the longest.

    Returns for each what was recorded, how often each run called its policy [runs], and how many blocks were played.
    """
    dealers = [_Dealer(*game) for game in games]

    def block(tables: list[_Table]) -> list[_Table]:
        nows = (play_on_cpu if jax.default_backend() == "cpu" else play_on_gpu)(tables)
        return [dealer.tend(table, now) for dealer, table, now in zip(dealers, tables, nows, strict=True)]

    def play_on_cpu(tables: list[_Table]) -> list[_Progress]:
        def call(_: jax.Array, nows: list[_Progress]) -> list[_Progress]:
            return [dealer.call(table, now) for dealer, table, now in zip(dealers, tables, nows, strict=True)]

        return lax.fori_loop(0, block_size(), call, [table.now for table in tables])

    def play_on_gpu(tables: list[_Table]) -> list[_Progress]:
        steps = [dealer.steps(table) for dealer, table in zip(dealers, tables, strict=True)]

        def begin_all(nows: list[_Progress]) -> list:
            return [begin(now) for (begin, _), now in zip(steps, nows, strict=True)]

        def end_all(begun: list) -> list[_Progress]:
            return [end(one) for (_, end), one in zip(steps, begun, strict=True)]

        begun = begin_all([table.now for table in tables])
        return end_all(lax.fori_loop(0, block_size() - 1, lambda _, begun: begin_all(end_all(begun)), begun))

    def goes_on(tables: list[_Table]) -> jax.Array:
        return reduce(jnp.logical_or, [dealer.goes_on(table) for dealer, table in zip(dealers, tables, strict=True)])

    tables = lax.while_loop(goes_on, block, [dealer.start() for dealer in dealers])
    return [dealer.result(table) for dealer, table in zip(dealers, tables, strict=True)]


class _Dealer:
    """What happens to the lanes of one game. All that is called here is written for one run, and mapped over the lanes."""

    def __init__(self, own: Setting, common: Setting, width: int):
        # XLA multiplies by the reciprocal of a lone divisor instead of dividing: with two lanes, one run has the bits of many.
        self.alone = own.limits.shape[-1] == 1
        self.own, self.common, self.width = _twice(own) if self.alone else own, common, max(width, 2)
        self.runs = self.own.limits.shape[-1]
        self.queues = self.width < self.runs

    def setting(self, part: Setting) -> Setting:
        return jax.tree.map(lambda x, y: y if x is None else x, part, self.common, is_leaf=lambda x: x is None)

    def each(self, function: Any) -> Any:
        return lanes(lambda part, *rest: function(self.setting(part), *rest))

    def start(self) -> _Table:
        if not self.queues:
            return _Table(None, *self.fresh(self.own), jnp.int32(0))
        run = jnp.arange(self.width, dtype=jnp.int32)
        part = self.take(run)
        queue = _Queue(run, jnp.int32(self.width), self.each(_blank)(self.own), jnp.zeros(self.runs, jnp.int32))
        return _Table(part, *self.fresh(part), jnp.int32(0), queue)

    def fresh(self, part: Setting) -> tuple[_Progress, Run]:
        return self.each(_start)(part), self.each(_blank)(part)

    def take(self, index: jax.Array) -> Setting:
        return jax.tree.map(lambda x: x[..., index], self.own)

    def part(self, table: _Table) -> Setting:
        return table.part if self.queues else self.own

    def call(self, table: _Table, now: _Progress) -> _Progress:
        """One call of the policy in every lane."""
        part = self.part(table)
        arm, thought = self.each(_decide)(part, now)
        pull = random.settled(self.each(_pull)(part, now, arm))
        return self.each(_advance)(part, now, pull, _touched(thought, now.policy))

    def steps(self, table: _Table) -> tuple[Any, Any]:
        """The same in two steps, see `halves`; for a GPU, on which nothing needs to be settled."""
        part = self.part(table)
        begin, end = halves(lambda part, now: _call(self.setting(part), now), part, table.now)
        return partial(begin, part), partial(end, part)

    def tend(self, table: _Table, now: _Progress) -> _Table:
        """At the end of a block: checkpoints are recorded, and lanes given to the next in line."""
        now, record = self.each(_record)(self.part(table), now, table.record)
        table = table._replace(now=now, record=record, blocks=table.blocks + 1)
        return lax.cond(now.waiting.any(), self.refill, lambda table: table, table) if self.queues else table

    def refill(self, table: _Table) -> _Table:
        """Stores the runs that have ended, and gives their lanes the next in line."""
        now, record, (run, line, stored, calls) = table.now, table.record, table.queue
        ended = now.waiting & (run < self.runs)
        place = jnp.where(ended, run, self.runs)  # out of range: dropped
        stored = jax.tree.map(lambda all, one: all.at[..., place].set(one, mode="drop"), stored, record)
        calls = calls.at[place].set(now.calls, mode="drop")
        run = jnp.where(ended, line + jnp.cumsum(ended, dtype=jnp.int32) - 1, run)
        line = line + ended.sum(dtype=jnp.int32)
        part = self.take(jnp.minimum(run, self.runs - 1))
        anew = ended & (run < self.runs)
        now, record = jax.tree.map(lambda new, old: jnp.where(anew, new, old), self.fresh(part), (now, record))
        return table._replace(part=part, now=now, record=record, queue=_Queue(run, line, stored, calls))

    def goes_on(self, table: _Table) -> jax.Array:
        return (table.queue.run < self.runs).any() if self.queues else ~table.now.waiting.all()

    def result(self, table: _Table) -> tuple[Run, jax.Array, jax.Array]:
        record, calls = (table.queue.stored, table.queue.calls) if self.queues else (table.record, table.now.calls)
        if self.alone:
            record, calls = jax.tree.map(lambda x: x[..., :1], (record, calls))
        return record, calls, table.blocks


def block_size() -> int:
    """How many calls a block has here."""
    return BLOCK if jax.default_backend() == "cpu" else GPU_BLOCK


def _twice(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.concatenate([x, x], -1), tree)


def first_state(policy: Policy, bandit: Bandit, budget: jax.Array) -> State:
    """The policy's state before the first round, when it has been told what it is to be told."""
    reward, cost = _means(bandit)
    known = {
        "budget": budget,
        "min_cost": cost.min(),
        "cost_mean": cost,
        "best_arm": lax.argmax(ratio(reward, cost), 0, jnp.int32),
    }
    known = {fact: known[fact] for fact in told(policy)}

    def init(policy: Policy, known: dict) -> State:
        return policy.init(Problem(num_arms=cost.shape[0], **known))

    return jax.tree.map(jnp.asarray, reproducible(init, policy)(policy, known))


def _means(bandit: Bandit) -> tuple[jax.Array, jax.Array]:
    """The expected rewards and costs. [K] each"""
    return reproducible(lambda bandit: (jnp.asarray(bandit.reward_mean), jnp.asarray(bandit.cost_mean)), bandit)(bandit)


def _start(setting: Setting) -> _Progress:
    zero = jnp.int32(0)
    return _Progress(
        policy=first_state(setting.policy, setting.bandit, setting.budget),
        calls=zero,
        luck=_luck(setting, zero),
        undecided=zero,
        rounds=zero,
        spent=Sum.zeros(),
        earned=Sum.zeros(),
        last_cost=zero,
        last_reward=zero,
        pulls=jnp.zeros(jnp.shape(setting.bandit.cost_mean), jnp.int32),
        goal=jax.tree.map(lambda x: x[0], setting.checkpoints),
        limit=setting.limits[0],
        waiting=jnp.bool_(False),
        broken=jnp.bool_(False),
    )


def _call(setting: Setting, now: _Progress) -> _Progress:
    """One call of the policy."""
    arm, thought = _decide(setting, now)
    return _advance(setting, now, _pull(setting, now, arm), _touched(thought, now.policy))


def _touched(thought: State, before: State) -> State:
    """`None` in place of what the policy has not touched: it is the same array."""
    return jax.tree.map(lambda new, old: None if new is old else new, thought, before)


def _luck(setting: Setting, calls: jax.Array) -> random.Words | None:
    """On a GPU, the words of a call's key are worked out by the call before, in its last kernel; else they took one more."""
    return None if jax.default_backend() == "cpu" else random.derived_words(setting.key, calls, _DECIDE)


def _decide(setting: Setting, now: _Progress) -> tuple[jax.Array, State]:
    """What the policy decides, and its state thereafter."""
    key = random.derive(setting.key, now.calls, _DECIDE) if now.luck is None else random.as_key(now.luck)
    arm, thought = call(setting.policy, "__call__", now.policy, key)
    arm = jnp.asarray(arm)
    if arm.shape != () or not jnp.issubdtype(arm.dtype, jnp.integer):
        raise ValueError(f"policy {type(setting.policy).__name__} answers an arm of type {arm.dtype}{list(arm.shape)}: "
                         "answer the number of an arm, an integer scalar")
    return arm.astype(jnp.int32), _same(setting.policy, "__call__", now.policy, thought)


def _pull(setting: Setting, now: _Progress, arm: jax.Array) -> _Pull:
    """What comes of that decision: nothing, if the run waits or the policy has not decided yet."""
    key = random.derive(setting.key, now.rounds, _PULL)
    answer = call(setting.bandit, "pull", key, jnp.maximum(arm, 0))
    reward, cost = (jnp.asarray(x, jnp.float32) for x in answer)
    inside = (reward >= 0) & (reward <= 1) & (cost >= 0) & (cost <= 1) & (arm < now.pulls.shape[0])
    hopeless = (arm < -1) | (now.undecided >= MOST_UNDECIDED)
    arm = jnp.where(arm >= 0, jnp.where(inside, arm, -2), jnp.where(hopeless, -2, -1))
    return _Pull(arm=jnp.where(now.waiting, -1, arm), reward=reward, cost=cost)


def _advance(setting: Setting, now: _Progress, pull: _Pull, thought: State) -> _Progress:
    """The run after that. A run that waits stays as it is."""
    calls, pulls, broken = ~now.waiting, pull.arm >= 0, pull.arm == -2
    arm = jnp.maximum(pull.arm, -1)
    leaves, structure = jax.tree.flatten(now.policy)
    thoughts = structure.flatten_up_to(thought)
    state = structure.unflatten(
        old if new is None else jnp.where(calls, new, old) for new, old in zip(thoughts, leaves, strict=True)
    )
    key = random.derive(setting.key, now.rounds, _UPDATE)
    learnt = call(setting.policy, "update", state, arm, pull.reward, pull.cost, key)
    learnt = _same(setting.policy, "update", now.policy, learnt)
    if not getattr(setting.policy, "ignores_no_pull", False):
        learnt = jax.tree.map(lambda new, old: jnp.where(pulls, new, old), learnt, state)
    won, paid = (jnp.where(pulls, coins(amount), 0) for amount in (pull.reward, pull.cost))
    spent, rounds = now.spent.add(paid), now.rounds + pulls.astype(jnp.int32)
    called = now.calls + calls.astype(jnp.int32)
    reached = pulls & (spent.reaches(now.goal) | (rounds >= now.limit))
    return _Progress(
        policy=learnt,
        calls=called,
        luck=_luck(setting, called),
        undecided=jnp.where(pulls, 0, now.undecided + calls.astype(jnp.int32)),
        rounds=rounds,
        spent=spent,
        earned=now.earned.add(won),
        last_cost=jnp.where(pulls, paid, now.last_cost),
        last_reward=jnp.where(pulls, won, now.last_reward),
        pulls=now.pulls.at[place_of(arm, now.pulls.shape[0])].add(1),
        goal=now.goal,
        limit=now.limit,
        waiting=now.waiting | reached | broken,
        broken=now.broken | broken,
    )


def _blank(setting: Setting) -> Run:
    shape, num_arms = setting.limits.shape, jnp.shape(setting.bandit.cost_mean)[0]
    return Run(
        budget=setting.checkpoints.value(),
        reward=jnp.zeros(shape, jnp.float32),
        cost=jnp.zeros(shape, jnp.float32),
        rounds=jnp.full(shape, -1, jnp.int32),  # −1: not recorded yet
        pulls=jnp.zeros((*shape, num_arms), jnp.int32),
        truncated=jnp.zeros(shape, bool),
    )


def _record(setting: Setting, now: _Progress, record: Run) -> tuple[_Progress, Run]:
    """Records the checkpoints that a waiting run has reached, and sends it on to the next."""
    goals = setting.checkpoints
    reached = now.spent.reaches(goals)
    fresh = (reached | (now.rounds >= setting.limits) | now.broken) & now.waiting & (record.rounds < 0)
    # A pull that went beyond the checkpoint earned and cost a run with that budget nothing.
    beyond = reached & ~goals.reaches(now.spent)
    cost = jnp.where(beyond, now.spent.add(-now.last_cost).value(), now.spent.value())
    reward = jnp.where(beyond, now.earned.add(-now.last_reward).value(), now.earned.value())
    record = replace(
        record,
        reward=jnp.where(fresh, jnp.where(now.broken, jnp.nan, reward), record.reward),
        cost=jnp.where(fresh, jnp.where(now.broken, jnp.nan, cost), record.cost),
        rounds=jnp.where(fresh, now.rounds, record.rounds),
        pulls=jnp.where(fresh[:, None], now.pulls, record.pulls),
        truncated=jnp.where(fresh, ~reached & ~now.broken, record.truncated),
    )
    left = record.rounds < 0
    first = jnp.argmax(left)
    return now._replace(
        goal=jax.tree.map(lambda x: x[first], goals), limit=setting.limits[first], waiting=~left.any()
    ), record


def _same(policy: Policy, method: str, before: State, after: State) -> State:
    """`after`, which must be of the same structure, shapes and types as `before`."""
    old, new = jax.tree.leaves_with_path(before), jax.tree.leaves_with_path(after)
    name = f"policy {type(policy).__name__}: the state that {method} returns"
    if [path for path, _ in old] != [path for path, _ in new]:
        raise ValueError(f"{name} is not built like that of init ({jax.tree.structure(after)} instead of "
                         f"{jax.tree.structure(before)}): return all fields, and no others")
    for (path, x), (_, y) in zip(old, new, strict=True):
        y = jnp.asarray(y)
        if x.shape != y.shape or (x.dtype != y.dtype and not (y.weak_type and jnp.result_type(x, y) == x.dtype)):
            raise ValueError(f"{name} has {y.dtype}{list(y.shape)} in {jax.tree_util.keystr(path) or 'it'}, and that of init "
                             f"{x.dtype}{list(x.shape)}: start with an array of the type and shape it is to have")
    return jax.tree.map(lambda x, y: jnp.asarray(y, x.dtype), before, after)


def check_contracts(policy: Any, bandit: Any) -> None:
    """Raises a `ValueError` unless these are a policy and a bandit."""
    checks.contract("policy", policy, ("init", "__call__", "update"), "BTS()")
    checks.contract("bandit", bandit, ("reward_mean", "cost_mean", "pull"), "Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])")
    unknown = set(told(policy)) - set(Problem.__dataclass_fields__)  # type: ignore
    if unknown:
        raise ValueError(f"policy {type(policy).__name__} wants to be told {', '.join(map(repr, sorted(unknown)))}: let told "
                         "be a tuple of fields of Problem, such as ('budget',)")


def check(policy, bandit, budget, key, checkpoints, max_rounds) -> None:
    """Raises a `ValueError` for what can be seen to be wrong with one run."""
    check_contracts(policy, bandit)
    for path, leaf in jax.tree.leaves_with_path(policy):
        if hasattr(policy, "_check") and jnp.ndim(leaf):
            raise ValueError(f"policy has {jax.tree_util.keystr(path)[1:]} of shape {jnp.shape(leaf)}, a batch of policies: "
                             "map over it with jax.vmap, or pass it to simulate_batch")
    checks.key(key)
    shape = np.shape(bandit.cost_mean)
    if len(shape) != 1:
        raise ValueError(f"bandit has costs of shape {shape}, a batch of bandits: map over it with jax.vmap, or pass it to "
                         "simulate_batch")
    if np.ndim(budget) != 0:
        raise ValueError(f"budget has shape {np.shape(budget)}: map over several budgets with jax.vmap, or pass them to "
                         "simulate_batch")
    if checkpoints is not None and (np.ndim(checkpoints) != 1 or np.size(checkpoints) == 0):
        raise ValueError(f"checkpoints has shape {np.shape(checkpoints)}: give a list of at least one budget")
    if max_rounds is not None and np.ndim(max_rounds) != 0:
        raise ValueError(f"max_rounds has shape {np.shape(max_rounds)}: give one number")
    check_values(bandit, budget, checkpoints, max_rounds)


def check_values(bandit, budget, checkpoints, max_rounds) -> None:
    """Raises a `ValueError` for values that make no sense, in one run or in a batch."""
    num_arms = np.shape(bandit.cost_mean)[-1]
    if num_arms < 2 or np.shape(bandit.reward_mean)[-1] != num_arms:
        raise ValueError(f"bandit has {np.shape(bandit.reward_mean)[-1]} expected rewards and {num_arms} expected costs: give "
                         "at least 2 arms, each with both")
    remedy = f"give a number from {1 / UNIT:.1g} to {LARGEST}"
    largest = np.float32(LARGEST)
    if checks.is_concrete(budget):
        amount = checks.numbers("budget", budget, remedy)
        checks.require("budget", amount, (amount * UNIT >= 0.5) & (amount <= LARGEST), remedy)
        largest = np.expand_dims(amount, -1).astype(np.float32)
    if checkpoints is not None and checks.is_concrete(checkpoints):
        remedy = f"give positive numbers up to the budget, {float(np.max(largest)):g}"
        amounts = checks.numbers("checkpoints", checkpoints, remedy)
        checks.require("checkpoints", amounts, (amounts * UNIT >= 0.5) & (np.float32(amounts) <= largest), remedy)
    if max_rounds is not None and checks.is_concrete(max_rounds):
        remedy = f"give a whole number from 1 to {MOST_ROUNDS}"
        limit = checks.numbers("max_rounds", max_rounds, remedy)
        checks.require("max_rounds", limit, (limit >= 1) & (limit <= MOST_ROUNDS) & (limit == np.floor(limit)), remedy)
