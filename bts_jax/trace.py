"""One run, round by round: `trace`, and many of them at once under `jax.vmap`.

A trace is the run that `simulate` plays with the same arguments, bit for bit. `simulate` records
totals; `trace` records every round.
"""

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bts_jax import arguments, checks, random, rules
from bts_jax.arguments import Arguments
from bts_jax.contract import Bandit, Policy, State, scales
from bts_jax.devices import default_platform
from bts_jax.engine.draws import Stepwise
from bts_jax.engine.failures import PassFailed
from bts_jax.engine.fixed_point import Sum
from bts_jax.engine.loop import Rules, Runs, follow, for_any_batch
from bts_jax.pytrees import Names, pytree
from bts_jax.rules import Round, Setting
from bts_jax.text import shown
from bts_jax.typing import ArrayLike

MOST_DEFAULT_ROUNDS = 10**6  # the largest number of rounds that is allocated by default


@pytree
class Trace:
    """A run, round by round, for up to N rounds. Under `vmap`, batch axes precede the axes named
    here.

    If the run ends before round N, the remaining entries are filled: `played` is False, `arm` is
    −1, `reward` and `cost` are 0, `remaining` does not change, and `recorded` is the result of
    `record` for the state after the last round.

    Example:
        >>> import jax
        >>> from bts_jax import Bernoulli, Uniform, trace
        >>> bandit = Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])
        >>> rounds = trace(Uniform(), bandit, 5, jax.random.key(0), rounds=30)
        >>> rounds.arm.shape, bool(rounds.played.sum() == rounds.length)
        ((30,), True)
    """

    arm: jax.Array  # [N] int32, the pulled arm
    reward: jax.Array  # [N] float32
    cost: jax.Array  # [N] float32, or [N, d] if there are d resources
    remaining: jax.Array  # [N] or [N, d] float32, the budget left after the round
    played: jax.Array  # [N] bool: the round was played
    length: jax.Array  # int32, the number of rounds played
    truncated: jax.Array  # bool: the run would continue after round N
    recorded: Any  # the result of `record`, each leaf [N, ...]
    recorded_name: Names = Names()  # a name for it, for figures: see `trace`


class _Now(NamedTuple):
    """The state of a run."""

    progress: Any  # `rules._Progress`
    last: Round  # the last round whose draws were complete

    @property
    def waiting(self) -> jax.Array:
        return self.progress.waiting


class _Seen(NamedTuple):
    """What is stored of a round."""

    arm: jax.Array
    reward: jax.Array
    cost: jax.Array
    remaining: jax.Array
    state: State  # from which the decision was made; None unless states are recorded


class _End(NamedTuple):
    """How a run ended."""

    length: jax.Array  # int32, the number of rounds
    ended: jax.Array  # bool: the run ended by itself, and not because of the limit of rounds
    last: Round


def trace(
    policy: Policy,
    bandit: Bandit,
    budget: ArrayLike,
    key: jax.Array,
    *,
    rounds: int | None = None,
    record: Callable[[State], Any] | bool | None = None,
) -> Trace:
    """Plays the run that `simulate` plays with the same policy, bandit, budget and key, and records
    every round of it.

    Arms, rewards and costs are the same bit for bit. So are totals, but `simulate` adds rewards and
    costs in fixed point (`bts_jax.engine.fixed_point`): float32 sums over the trace may differ from
    its totals in the last digits. If the last pull costs more than the remaining budget, its reward
    and cost are 0. It counts as a round, and its arm is in the trace.

    The function is pure, like `simulate`. Map over any argument except `rounds` and `record` with
    `jax.vmap`. Where `simulate` returns NaN, reward, cost and remaining budget are NaN from the
    first invalid round on.

    Args:
        policy: the policy, such as `BTS()`.
        bandit: the bandit.
        budget: the amount that may be spent: one number, or one for each resource [d]. It may be
            infinite if `rounds` is given.
        key: a typed JAX key, such as `jax.random.key(0)`.
        rounds: N, the number of rounds to record. The run ends after round N at the latest, and
            `truncated` says whether it would continue. The default is the limit of rounds of
            `simulate`, if that is at most a million. This is enough for the whole run, unless arms
            cost nothing. Under `jit` or `vmap` over bandits or budgets, `rounds` must be given.
        record: a function of the policy's state. Its result is stored for every round. Its argument
            is the state from which the round's decision was made. This state has been updated with
            all earlier rounds, and is for example the posterior from which the arm was drawn.
            `True` stores the state itself. The states of all N rounds are in memory while the run
            is played. `plots.run` labels the result with the name of the function or, if the result
            is a field of the state, with the name of this field.

    Returns:
        The `Trace`.

    Example:
        >>> import jax
        >>> from bts_jax import BTS, Bernoulli, trace
        >>> bandit = Bernoulli(reward=[0.3, 0.6, 0.5], cost=[0.6, 0.5, 0.9])
        >>> run = trace(BTS(), bandit, 20, jax.random.key(0), rounds=100,
        ...     record=lambda state: state.reward.pulls)
        >>> run.arm.shape, run.recorded.shape  # rounds; rounds, arms
        ((100,), (100, 3))
        >>> # nothing is left; nothing was pulled at first
        >>> run.remaining[run.length - 1].item(), run.recorded[0].tolist()
        (0.0, [0, 0, 0])
    """
    checks.key(key)
    if record is not None and not isinstance(record, bool) and not callable(record):
        raise ValueError(
            f"record = {shown(record)} is not allowed: give a function of the policy's state, or "
            "True to store the state itself"
        )
    rounds = (
        _default_rounds(policy, bandit, budget)
        if rounds is None
        else checks.whole("rounds", rounds, 1)
    )
    given = arguments.of_run(policy, bandit, budget, None, rounds)
    found, states, last = _trace(
        default_platform(), rounds, record is not None and record is not False, given, key
    )
    if checks.is_concrete((given, key, found)) and np.isnan(found.remaining[-1]).any():
        warnings.warn(
            _reason(policy, bandit, int(found.length), last), RuntimeWarning, stacklevel=2
        )
    if callable(record):
        with checks.explained("record"):
            name, states = _recorded(record, states)
        return replace(found, recorded=states, recorded_name=name)
    return replace(found, recorded=states)


def _recorded(record: Callable[[State], Any], states: State) -> tuple[Names, Any]:
    """The result of `record` for all states, and its name: that of the field of the state that it
    is, or of the function.
    """
    names = [getattr(record, "__name__", "")]

    def look(state: State) -> Any:
        result = record(state)
        names.extend(
            jax.tree_util.keystr(path[-1:], simple=True)
            for path, leaf in jax.tree_util.tree_leaves_with_path(state)
            if leaf is result and path
        )
        return result

    result = jax.vmap(look)(states)
    # A lambda has no name.
    return Names([name for name in names if name.isidentifier()][-1:]), result


def why_nan(policy: Policy, bandit: Bandit, budget: Any, key: Any, rounds: int) -> str:
    """Explains why a run is NaN after `rounds` rounds. Plays the run again, up to the invalid
    round.
    """
    last = None
    if rounds < MOST_DEFAULT_ROUNDS:
        # A power of 2, so that few programs are compiled.
        enough = max(64, 1 << rounds.bit_length())
        given = arguments.of_run(policy, bandit, budget, None, enough)
        with contextlib.suppress(PassFailed):  # the run was played by the plain engine
            _, _, last = _trace(default_platform(), enough, False, given, key)
    return _reason(policy, bandit, rounds, last)


def _reason(policy: Policy, bandit: Bandit, rounds: int, last: Round | None) -> str:
    named = f"policy {type(policy).__name__} on bandit {type(bandit).__name__}: the result is NaN. "
    if last is not None:
        where, num_arms = f"In round {rounds + 1}", np.shape(bandit.reward_mean)[-1]
        arm, reward, cost = int(last.arm), np.asarray(last.reward), np.asarray(last.cost)
        if not 0 <= arm < num_arms:
            return (
                f"{named}{where}, the policy chose arm {arm}, which does not exist: choose one of "
                f"0 to {num_arms - 1}; check_policy tests the policy"
            )
        for name, value, most in zip(
            ("reward", "cost"), (reward, cost), scales(bandit) or (1, 1), strict=True
        ):
            bad = ~((value >= 0) & (value <= np.asarray(most)))
            if bad.any():
                value, most = (float(np.broadcast_to(x, bad.shape)[bad][0]) for x in (value, most))
                return (
                    f"{named}{where}, arm {arm} gave the {name} {value:g}: return numbers in [0, "
                    f"{most:g}] from pull, or set another {name}_scale of the bandit; check_bandit "
                    "tests the bandit"
                )
        return (
            f"{named}{where}, a draw by rejection was rejected {rules.MOST_ATTEMPTS:,} times in a "
            "row: in a policy, give bts_jax.random.gamma and beta shapes of at least 1/2; see "
            "check_policy and check_bandit"
        )
    return (
        f"{named}The policy chose an arm that does not exist, the bandit gave a reward or cost "
        "beyond its scale, or a draw was never accepted: see check_policy and check_bandit"
    )


def _default_rounds(policy: Policy, bandit: Bandit, budget: Any) -> int:
    if not checks.is_concrete((bandit, budget)):
        raise ValueError(
            "rounds = None is not allowed if bandit or budget are traced (under jit, vmap or "
            "grad), because arrays need a length: give a whole number, such as rounds=1000"
        )
    given = arguments.of_run(policy, bandit, budget, None, None)
    (rounds,) = rules.setting_of(given, (jnp.uint32(0), jnp.uint32(0))).limits.tolist()
    if rounds > MOST_DEFAULT_ROUNDS:
        raise ValueError(
            f"rounds = None is not allowed if the run may have {rounds:,} rounds, more than "
            f"{MOST_DEFAULT_ROUNDS:,}: give rounds, the number of rounds to record"
        )
    return rounds


@partial(jax.jit, static_argnums=(0, 1, 2))
def _trace(
    platform: str, rounds: int, keeps: bool, given: Arguments, key: jax.Array
) -> tuple[Trace, State, Round]:
    given = lax.stop_gradient(given)
    budget, (valid,) = given.ends.budget, given.ends.checkpoints.valid
    setting = rules.setting_of(given, random.key_words(key))
    followed = _follow_on(platform, rounds, keeps)(jax.tree.map(lambda x: x[..., None], setting))
    seen, end = jax.tree.map(lambda x: x[..., 0], followed)
    reward, cost, remaining = (
        jnp.where(valid, x, jnp.nan) for x in (seen.reward, seen.cost, seen.remaining)
    )
    remaining = jnp.where(jnp.isinf(budget) & ~jnp.isnan(remaining), jnp.inf, remaining)
    return (
        Trace(
            arm=seen.arm,
            reward=reward,
            cost=cost,
            remaining=remaining,
            played=jnp.arange(rounds) < end.length,
            length=end.length,
            truncated=~end.ended & valid,
            recorded=None,
        ),
        seen.state,
        end.last,
    )


@cache
def _follow_on(platform: str, rounds: int, keeps: bool) -> Any:
    """A function that plays the runs on the last axis of every array in a setting, all at once, and
    records every round.
    """
    usual = rules.rules(platform)
    start = partial(_start, usual.start)
    own = Rules(
        round=usual.round, start=start, call=_call, blank=lambda setting: None, record=_send_on
    )

    def follow_all(setting: Setting) -> tuple[_Seen, _End]:
        runs = Runs(setting, jax.tree.map(lambda _: None, setting), setting.limits.shape[-1])
        seen, now = follow(runs, own, platform, rounds, partial(_look, keeps))
        return seen, _End(now.progress.rounds, now.waiting, now.last)

    return for_any_batch(follow_all)


def _start(start: Callable, round: Stepwise, setting: Setting) -> _Now:
    progress = start(round, setting)
    none = Round(jnp.int32(0), jnp.float32(0), jnp.zeros_like(progress.spent.whole, jnp.float32))
    return _Now(progress._replace(limit=jnp.int32(1)), none)


def _call(round: Stepwise, setting: Setting, now: _Now) -> _Now:
    """One attempt at a round. A run waits after each round, because its limit of rounds is the next
    round.
    """
    attempt = rules.attempt_at(round, setting, now.progress)
    takes_place = ~now.waiting & attempt.complete
    last = jax.tree.map(
        lambda new, old: jnp.where(takes_place, new, old), attempt.outputs[0], now.last
    )
    return _Now(rules.attempted(setting, now.progress, attempt), last)


def _send_on(setting: Setting, now: _Now, record: None) -> tuple[_Now, None]:
    """Lets a waiting run continue with its next round, unless it has ended."""
    progress = now.progress
    reached = rules.any_resource(
        progress.spent.reaches(progress.goal), progress.last_cost.ndim == 1
    )
    ended = progress.waiting & (reached | progress.broken)
    return now._replace(
        progress=progress._replace(waiting=ended, limit=progress.rounds + 1)
    ), record


def _look(keeps: bool, setting: Setting, before: _Now, after: _Now) -> _Seen:
    """What is stored of the round between two states of a run."""
    old, new, last = before.progress, after.progress, after.last
    played = new.rounds > old.rounds
    # The last pull cost more than the remaining budget: it earns and costs nothing.
    over_budget = rules.any_resource(~new.goal.reaches(new.spent), new.last_cost.ndim == 1)
    counts = played & ~over_budget
    paid = jax.tree.map(partial(jnp.where, over_budget), new.spent.add(-new.last_cost), new.spent)
    left = Sum(new.goal.whole - paid.whole, jnp.int32(0)).add(new.goal.rest - paid.rest)
    left = left.value(None if setting.units is None else setting.units.cost)
    reward, cost = (
        jnp.where(counts, amount, jnp.float32(0)) for amount in (last.reward, last.cost)
    )
    reward, cost, left = (
        jnp.where(new.broken, jnp.float32(jnp.nan), amount) for amount in (reward, cost, left)
    )
    return _Seen(
        arm=jnp.where(played, last.arm, -1),
        reward=reward,
        cost=cost,
        remaining=left,
        state=old.policy if keeps else None,
    )
