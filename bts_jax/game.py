"""One run of the game: `simulate`, and many of them at once under `jax.vmap`.

The rules, to the letter:

1. While budget is left, the policy picks an arm, reward and cost are drawn, and the cost is paid.
2. A pull whose cost exceeds the budget that is left earns nothing and costs nothing, and the run ends. It is still a
   round and a pull.
3. At each checkpoint b, a run records what a run with budget b would have come to. Unless the policy is told the
   budget, this is bit for bit the run with budget b and the same key.
4. A run that reaches its limit of rounds ends there, and says so.

A single run is a batch of one. Runs lie on the **last** axis of every array, where CPUs and GPUs want them, and all of
them play in one loop: `vmap`, nested as deep as you like, only adds runs to it. Rounds are played in blocks; a run that
passes a checkpoint waits for the end of its block, where checkpoints are recorded for all runs together.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.typing import ArrayLike

from bts_jax import checks, random
from bts_jax.contract import Bandit, Policy, Problem, State, ratio, told
from bts_jax.pytrees import pytree
from bts_jax.sums import LARGEST, UNIT, Sum, coins

BLOCK = 32  # rounds in a block: fewer waste less on runs that wait, more cost less per round
MOST_ROUNDS = 2**31 - 1

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


class _Setting(NamedTuple):
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
    rounds: jax.Array  # int32
    spent: Sum
    earned: Sum
    last_cost: jax.Array  # int32, in coins, of the last pull
    last_reward: jax.Array  # int32, likewise
    pulls: jax.Array  # [K] int32
    goal: Sum  # the first checkpoint not yet recorded
    limit: jax.Array  # int32, its limit of rounds
    waiting: jax.Array  # bool: for the end of the block, the goal being reached; or for good
    broken: jax.Array  # bool: the bandit gave a reward or a cost outside [0, 1]


def simulate(
    policy: Policy,
    bandit: Bandit,
    budget: ArrayLike,
    key: jax.Array,
    *,
    checkpoints: ArrayLike | None = None,
    max_rounds: ArrayLike | None = None,
) -> Run:
    """Plays one run of `policy` on `bandit` with `budget`, all of its randomness coming from `key`.

    Pure, and compiled once per class of policy and bandit, number of arms and number of checkpoints: other values of
    hyperparameters, arms, budget, checkpoints and key compile nothing new. Map over any of the arguments, or several at
    once, with `jax.vmap`; the runs are the same bit for bit, and the batch plays in one loop.

    Under `jit` and `vmap` values cannot be checked. A budget or checkpoint that is not a positive number then gives NaN
    for reward and cost, and so does a bandit with rewards or costs outside [0, 1].

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
    _check(policy, bandit, budget, key, checkpoints, max_rounds)
    if checkpoints is None:
        checkpoints = jnp.reshape(budget, (1,)) if isinstance(budget, Tracer) else np.reshape(budget, (1,))
    policy, bandit = jax.tree.map(_settle, (policy, bandit))
    return _simulate(policy, bandit, _money(budget), key, _money(checkpoints), max_rounds)


def _settle(leaf: Any) -> Any:
    """A leaf with a 32-bit type, so that 0.1, np.float64(0.1) and jnp.float32(0.1) share one program."""
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    for kind, dtype in ((jnp.floating, jnp.float32), (jnp.signedinteger, jnp.int32), (jnp.unsignedinteger, jnp.uint32)):
        if jnp.issubdtype(array.dtype, kind):
            return array.astype(dtype)
    return array


def _money(amount: Any) -> tuple[Any, Sum]:
    """An amount as float32 and, exactly, as a sum; a concrete one is converted on the host, in float64."""
    if isinstance(amount, Tracer):
        return amount.astype(jnp.float32), Sum.of(amount)
    amount = np.asarray(amount, np.float64)
    total = np.round(amount * UNIT).astype(np.int64)
    whole, rest = (part.astype(np.int32) for part in divmod(total, UNIT))
    return np.float32(amount), Sum(whole, rest)  # type: ignore: NumPy arrays serve as well


@jax.jit
def _simulate(policy, bandit, budget, key, checkpoints, max_rounds) -> Run:
    amounts, sums = checkpoints
    order = jnp.argsort(amounts)
    limits = _default_limits(amounts, bandit) if max_rounds is None else jnp.broadcast_to(max_rounds, amounts.shape)
    setting = _Setting(
        policy=policy,
        bandit=bandit,
        budget=budget[0],
        key=random.key_words(key),
        checkpoints=jax.tree.map(lambda x: x[order], sums),
        limits=limits.astype(jnp.int32)[order],
    )
    batch = _play(jax.tree.map(lambda x: x[..., None], setting))
    run = jax.tree.map(lambda x: x[jnp.argsort(order), ..., 0], batch)
    valid = (amounts > 0) & (amounts <= LARGEST) & (budget[0] > 0)
    return replace(
        run,
        budget=amounts,
        reward=jnp.where(valid, run.reward, jnp.nan),
        cost=jnp.where(valid, run.cost, jnp.nan),
    )


def _default_limits(amounts: jax.Array, bandit: Bandit) -> jax.Array:
    """(2b + 200) / (smallest positive expected cost). [C]

    By Bernstein's inequality, m = (2b + 200)/μ pulls that cost at least μ each in expectation cost less than b with a
    probability below exp(−(b + 200)² / (4b + 400)) ≤ exp(−99). (With no arm that costs anything, μ is taken as 1.)
    """
    cost = bandit.cost_mean
    smallest = jnp.min(jnp.where(cost > 0, cost, 1))
    return jnp.minimum(jnp.ceil((2 * amounts + 200) / smallest), jnp.float32(2**31 - 128)).astype(jnp.int32)


# Everything below `_play` is written for one run and mapped over the last axis of every array.
_per_run = partial(jax.vmap, in_axes=-1, out_axes=-1)


@jax.custom_batching.custom_vmap
def _play(setting: _Setting) -> Run:
    """Plays the runs on the last axis of every array in `setting`."""
    progress = _per_run(_start)(setting)
    record = _per_run(_blank)(setting)

    def block(carry):
        progress, record = carry
        progress = lax.fori_loop(0, BLOCK, lambda _, progress: _per_run(_round)(setting, progress), progress)
        return _per_run(_record)(setting, progress, record)

    progress, record = lax.while_loop(lambda carry: ~carry[0].waiting.all(), block, (progress, record))
    return record


@_play.def_vmap
def _(size: int, is_batched: list, setting: _Setting) -> tuple[Run, Any]:
    """A batch axis before the runs becomes more runs."""

    def merge(leaf, batched):
        leaf = jnp.moveaxis(leaf, 0, -2) if batched else jnp.broadcast_to(leaf[..., None, :], (*leaf.shape[:-1], size,
                                                                                            leaf.shape[-1]))
        return leaf.reshape(*leaf.shape[:-2], -1)

    record = _play(jax.tree.map(merge, setting, is_batched[0]))
    record = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], size, -1), -2, 0), record)
    return record, jax.tree.map(lambda _: True, record)


def _start(setting: _Setting) -> _Progress:
    bandit, facts = setting.bandit, told(setting.policy)
    cost = bandit.cost_mean
    known = {
        "budget": setting.budget,
        "min_cost": cost.min(),
        "cost_mean": cost,
        "best_arm": lax.argmax(ratio(bandit.reward_mean, cost), 0, jnp.int32),
    }
    problem = Problem(num_arms=cost.shape[0], **{fact: known[fact] for fact in facts})
    zero = jnp.int32(0)
    return _Progress(
        policy=jax.tree.map(_settle, setting.policy.init(problem)),
        calls=zero,
        rounds=zero,
        spent=Sum.zeros(),
        earned=Sum.zeros(),
        last_cost=zero,
        last_reward=zero,
        pulls=jnp.zeros(cost.shape, jnp.int32),
        goal=jax.tree.map(lambda x: x[0], setting.checkpoints),
        limit=setting.limits[0],
        waiting=jnp.bool_(False),
        broken=jnp.bool_(False),
    )


def _round(setting: _Setting, now: _Progress) -> _Progress:
    """One call of the policy and, if it decided, one pull. A run that waits stays as it is."""
    policy, bandit = setting.policy, setting.bandit
    arm, thought = policy(now.policy, random.derive(setting.key, now.calls, _DECIDE))
    arm = jnp.asarray(arm, jnp.int32)
    reward, cost = bandit.pull(random.derive(setting.key, now.rounds, _PULL), jnp.maximum(arm, 0))
    learnt = policy.update(thought, arm, reward, cost, random.derive(setting.key, now.rounds, _UPDATE))

    calls = ~now.waiting
    pulls = calls & (arm >= 0)
    broken = pulls & ~((reward >= 0) & (reward <= 1) & (cost >= 0) & (cost <= 1))
    paid, won = (jnp.where(pulls & ~broken, coins(amount), 0) for amount in (cost, reward))
    spent, rounds = now.spent.add(paid), now.rounds + pulls
    return _Progress(
        policy=jax.tree.map(
            lambda new, tried, old: jnp.where(pulls, new, jnp.where(calls, tried, old)).astype(old.dtype),
            learnt, thought, now.policy,
        ),
        calls=now.calls + calls,
        rounds=rounds,
        spent=spent,
        earned=now.earned.add(won),
        last_cost=jnp.where(pulls, paid, now.last_cost),
        last_reward=jnp.where(pulls, won, now.last_reward),
        pulls=now.pulls + (pulls & (jnp.arange(now.pulls.shape[0]) == arm)),
        goal=now.goal,
        limit=now.limit,
        waiting=now.waiting | (pulls & (spent.reaches(now.goal) | (rounds >= now.limit))) | broken,
        broken=now.broken | broken,
    )


def _blank(setting: _Setting) -> Run:
    shape, num_arms = setting.limits.shape, setting.bandit.cost_mean.shape[0]
    return Run(
        budget=setting.checkpoints.value(),
        reward=jnp.zeros(shape, jnp.float32),
        cost=jnp.zeros(shape, jnp.float32),
        rounds=jnp.full(shape, -1, jnp.int32),  # −1: not recorded yet
        pulls=jnp.zeros((*shape, num_arms), jnp.int32),
        truncated=jnp.zeros(shape, bool),
    )


def _record(setting: _Setting, now: _Progress, record: Run) -> tuple[_Progress, Run]:
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
        truncated=jnp.where(fresh, ~reached, record.truncated),
    )
    left = record.rounds < 0
    first = jnp.argmax(left)
    return now._replace(
        goal=jax.tree.map(lambda x: x[first], goals), limit=setting.limits[first], waiting=~left.any()
    ), record


def _check(policy, bandit, budget, key, checkpoints, max_rounds) -> None:
    """Raises a `ValueError` for what can be seen to be wrong."""
    for name, value, contract, example in (("policy", policy, Policy, "BTS()"),
                                           ("bandit", bandit, Bandit, "Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])")):
        if isinstance(value, type) or not isinstance(value, contract):
            raise ValueError(f"{name} = {value!r} is not a {name}: pass an instance, such as {example}")
    checks.key(key)
    shape = np.shape(bandit.cost_mean)
    if len(shape) != 1:
        raise ValueError(f"bandit has costs of shape {shape}, a batch of bandits: map over it with jax.vmap")
    if shape[0] < 2:
        raise ValueError(f"bandit has {shape[0]} arm(s), and a bandit has at least 2: add arms")
    if np.ndim(budget) != 0:
        raise ValueError(f"budget has shape {np.shape(budget)}: map over several budgets with jax.vmap, or pass one")
    remedy = f"give a positive number, at most {LARGEST}"
    largest = LARGEST
    if checks.is_concrete(budget):
        amount = checks.numbers("budget", budget, remedy)
        checks.require("budget", amount, (amount * UNIT >= 0.5) & (amount <= LARGEST), remedy)
        largest = float(amount)
    if checkpoints is not None:
        if np.ndim(checkpoints) != 1 or np.size(checkpoints) == 0:
            raise ValueError(f"checkpoints has shape {np.shape(checkpoints)}: give a list of at least one budget")
        if checks.is_concrete(checkpoints):
            remedy = f"give positive numbers up to the budget, {largest:g}"
            amounts = checks.numbers("checkpoints", checkpoints, remedy)
            checks.require("checkpoints", amounts, (amounts * UNIT >= 0.5) & (amounts <= largest), remedy)
    if max_rounds is not None and checks.is_concrete(max_rounds):
        remedy = f"give a whole number from 1 to {MOST_ROUNDS}"
        limit = checks.numbers("max_rounds", max_rounds, remedy)
        checks.require("max_rounds", limit, (limit >= 1) & (limit <= MOST_ROUNDS) & (limit == np.floor(limit)), remedy)
