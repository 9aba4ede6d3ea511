"""A run in its simplest form: a `while_loop` over the budget. `jax.vmap` plays many.

This is what the fast engine (`bts_jax.engine`) computes, without anything that makes it fast. Read
it first. It is also a reference in the engine's tests: `simulate_batch(..., engine="plain")` plays
with it.

A policy that does not draw by rejection makes the same decisions with both engines, as long as no
rounding decides. (The fast engine fixes the order of sums and products of floats. XLA may choose
another order here.) Thompson policies draw by rejection. The fast engine saves proposals that a
round did not need, so its runs have other draws from the same distribution. It also notices draws
that are always rejected, and makes such a run NaN. Here such draws are whatever the sampler
returns.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax import random
from bts_jax.contract import State
from bts_jax.engine.fixed_point import Sum, quantize
from bts_jax.rules import (
    DECIDE,
    PULL,
    UPDATE,
    Run,
    Setting,
    any_resource,
    decision,
    first_state,
    outcome,
    update,
)


class Now(NamedTuple):
    """A run before a round."""

    state: State  # of the policy
    rounds: jax.Array
    spent: Sum  # [] or [d], exact
    earned: Sum
    pulls: jax.Array  # [K]
    open: jax.Array  # [C] whether the run with this checkpoint as its budget goes on
    record: Run


def play_run(setting: Setting) -> Run:
    """Plays one run, and records it at each checkpoint. [C]"""
    policy, bandit, units = setting.policy, setting.bandit, setting.units
    goals, limits = setting.checkpoints, setting.limits  # [C]
    several = goals.whole.ndim == 2  # resources
    reward_unit, cost_unit = (None, None) if units is None else units
    num_arms = jnp.shape(bandit.reward_mean)[0]

    def key(index: jax.Array, purpose: jax.Array | int) -> jax.Array:
        return random.derive(setting.key, index, purpose)

    def play_round(now: Now) -> Now:
        # The policy decides, the arm is pulled, and the policy learns. These three call the methods
        # of policy and bandit.
        arm, state = decision(policy, now.state, key(now.rounds, DECIDE))
        exists = jnp.clip(arm, 0, num_arms - 1)
        reward, cost = outcome(bandit, exists, key(now.pulls[exists], PULL + exists), bandit.pull)
        state = update(policy, bandit, units, state, arm, reward, cost, key(now.rounds, UPDATE))
        most = (1, 1) if units is None else (units.reward.scale, units.cost.scale)
        valid = (
            (arm == exists)
            & (reward >= 0)
            & (reward <= most[0])
            & ((cost >= 0) & (cost <= most[1])).all()
        )
        # The books. In a run with a smaller budget, the same pull may be too expensive. It is then
        # the last round.
        earned = now.earned.add(
            quantize(reward) if units is None else units.reward.quantize(reward)
        )
        spent = now.spent.add(quantize(cost) if units is None else units.cost.quantize(cost))
        rounds, pulls = now.rounds + 1, now.pulls.at[exists].add(1)
        ends = any_resource(spent.reaches(goals), several)
        too_much = any_resource(~goals.reaches(spent), several)
        paid, last = now.open & valid & ~too_much, now.open & valid
        old = now.record
        record = Run(
            budget=None,  # type: ignore  # see `arguments.finish`
            reward=jnp.where(
                paid, earned.value(reward_unit), jnp.where(now.open & ~valid, jnp.nan, old.reward)
            ),
            cost=jnp.where(paid[:, None] if several else paid, spent.value(cost_unit), old.cost),
            rounds=jnp.where(last, rounds, old.rounds),
            pulls=jnp.where(paid[:, None], pulls, old.pulls),
            truncated=jnp.where(last, ~ends & (rounds >= limits), old.truncated),
        )
        return Now(state, rounds, spent, earned, pulls, last & ~ends & (rounds < limits), record)

    possible = units is None or (units.reward.possible & jnp.all(units.cost.possible))
    nothing = jnp.where(possible, jnp.zeros(limits.shape, jnp.float32), jnp.nan)
    start = Now(
        state=first_state(policy, bandit, setting.budget),
        rounds=jnp.int32(0),
        spent=Sum.zeros(goals.whole.shape[1:]),
        earned=Sum.zeros(),
        pulls=jnp.zeros(num_arms, jnp.int32),
        open=jnp.full(limits.shape, possible),
        record=Run(
            budget=None,  # type: ignore
            reward=nothing,
            cost=jnp.zeros(goals.whole.shape, jnp.float32),
            rounds=jnp.zeros(limits.shape, jnp.int32),
            pulls=jnp.zeros((len(limits), num_arms), jnp.int32),
            truncated=jnp.zeros(limits.shape, bool),
        ),
    )
    record = lax.while_loop(lambda now: now.open.any(), play_round, start).record
    lost = jnp.isnan(record.reward)
    return replace(record, cost=jnp.where(lost[:, None] if several else lost, jnp.nan, record.cost))
