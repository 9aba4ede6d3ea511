"""The arguments of a run or of a batch: checked once, and prepared once.

`of_run` and `of_batch` turn what the user gave into one value, which is passed on: numbers of 32
bits, and budgets in fixed point, in ascending order. So a budget is checked and converted here, and
nowhere else.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.contract import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    Bandit,
    Policy,
    Problem,
    hides_time,
    is_timed,
    num_resources,
    scales,
    side_info,
)
from bts_jax.engine.fixed_point import LARGEST, UNIT, Resolution, Sum
from bts_jax.jax_internals import Tracer
from bts_jax.policies import ALL_POLICIES
from bts_jax.text import shown

MOST_ROUNDS = 2**31 - 1


class Checkpoints(NamedTuple):
    """The checkpoints of a run, in ascending order. [C] each, and the amounts and sums of d
    resources are [C, d]
    """

    amounts: jax.Array  # float32
    sums: Sum  # 0 for invalid checkpoints
    valid: jax.Array  # bool
    limits: jax.Array | None  # the limits of rounds, if given


class Ends(NamedTuple):
    """When a run ends, and when it is recorded. In a batch, the axis of the runs is first."""

    budget: jax.Array  # [] or [d] float32, for a policy that requires it
    checkpoints: Checkpoints  # [C], in ascending order
    order: jax.Array  # [C], the original position of each checkpoint


class Arguments(NamedTuple):
    """What a run depends on, except its key."""

    policy: Policy
    bandit: Bandit
    ends: Ends


class BatchArguments(NamedTuple):
    """What N runs depend on."""

    policy: Policy
    bandit: Bandit
    ends: Ends  # N rows
    keys: random.Words  # of the runs [N]
    varies: tuple[bool, ...]  # whether each leaf of policy and bandit differs from run to run


def of_run(policy: Any, bandit: Any, budget: Any, checkpoints: Any, max_rounds: Any) -> Arguments:
    """The arguments of one run. Raises a `ValueError` if one is invalid."""
    if isinstance(checkpoints, (list, tuple)) and not checks.is_concrete(checkpoints):
        checkpoints = jnp.stack(checkpoints)
    check(policy, bandit, budget, checkpoints, max_rounds)
    xp = np if checks.is_concrete((budget, checkpoints, max_rounds)) else jnp
    ends = ends_of(
        *amounts_of(bandit, budget, checkpoints), max_rounds, num_resources(bandit) is not None, xp
    )
    policy, bandit = jax.tree.map(canonicalize, (policy, bandit))
    return Arguments(policy, bandit, ends)


def of_batch(
    policy: Any, bandit: Any, budget: Any, keys: Any, checkpoints: Any, max_rounds: Any
) -> BatchArguments:
    """The arguments of a batch of runs. Raises a `ValueError` if one is invalid."""
    size = _check_batch(policy, bandit, budget, keys, checkpoints, max_rounds)
    several = num_resources(bandit) is not None

    def rows(x: Any, axes: int) -> np.ndarray:
        """`x` with N as its first axis, repeated if all runs share it. NumPy does not compile
        anything for a new shape.
        """
        x = np.asarray(x)
        return x if x.ndim > axes else np.broadcast_to(x, (size, *x.shape))

    budget, checkpoints = amounts_of(bandit, budget, checkpoints)
    limits = None if max_rounds is None else rows(max_rounds, 0)[:, None]
    ends = ends_of(
        rows(canonicalize(budget), several),
        rows(canonicalize(checkpoints), 1 + several),
        limits,
        several,
        np,
    )
    return batch_of(policy, bandit, ends, keys)


def batch_of(policy: Any, bandit: Any, ends: Ends, keys: jax.Array) -> BatchArguments:
    """The arguments of a batch of runs that have been checked. `ends` have one row for each run."""
    policy, bandit = jax.tree.map(canonicalize, (policy, bandit))
    return BatchArguments(
        policy, bandit, ends, _words_of(keys, len(ends.order)), _varies(policy, bandit)
    )


def ends_of(budget: Any, checkpoints: Any, limits: Any, several: bool, xp: Any = np) -> Ends:
    """When runs end, from amounts in units of cost. If there are `several` resources, they are the
    last axis.

    `limits`: one limit of rounds for all checkpoints, or one for each
    """
    whole, limits = fixed_point(budget), None if limits is None else canonicalize(limits)
    in_order, order = ordered(whole, fixed_point(checkpoints), limits, several, xp)
    return Ends(whole[0], in_order, order)


def _words_of(keys: jax.Array, size: int) -> random.Words:
    """The words of the keys of all runs. [N] each"""
    data = np.asarray(jax.random.key_data(keys))
    words = np.moveaxis(data, -1, 0) if data.shape[-1] == 2 else jax.device_get(_hashed_words(keys))
    return tuple(np.broadcast_to(word, size) for word in words)  # type: ignore


_hashed_words = jax.jit(random.key_words)  # for keys of more than two words


def canonicalize(leaf: Any) -> Any:
    """Converts a leaf to a 32-bit type, so that 0.1, np.float64(0.1) and jnp.float32(0.1) share one
    program.
    """
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    for kind, dtype in (
        (jnp.floating, jnp.float32),
        (jnp.signedinteger, jnp.int32),
        (jnp.unsignedinteger, jnp.uint32),
    ):
        if jnp.issubdtype(array.dtype, kind):
            return array.astype(dtype)
    return array


def amounts_of(bandit: Bandit, budget: Any, checkpoints: Any) -> tuple[Any, Any]:
    """The budget and the checkpoints in units of cost: [] and [C], or [d] and [C, d]. The axes of a
    batch come first.
    """
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
    """An amount as float32 and as an exact sum. Whole numbers are exact; other numbers are rounded
    to float32 first.
    """
    amount = canonicalize(amount)
    xp = jnp if isinstance(amount, Tracer) else np  # NumPy does not compile anything
    amount = xp.asarray(amount)
    with np.errstate(invalid="ignore", over="ignore"):
        return amount.astype(np.float32), Sum.of(amount, xp)


def ordered(
    budget: tuple[jax.Array, Sum],
    checkpoints: tuple[jax.Array, Sum],
    limits: Any,
    several: bool,
    xp: Any = jnp,
) -> tuple[Checkpoints, jax.Array]:
    """The checkpoints of a run in ascending order, and the original position of each. [C]

    If `several`, the last axis of each amount has one entry for each resource. `xp` is the array
    library to use, `jax.numpy` or `numpy`. In a batch of runs, the batch axis is first.
    """
    whole, sums = (endless(sum, amount, limits, xp) for amount, sum in (budget, checkpoints))
    total, whole = jax.tree.map(
        lambda x: xp.expand_dims(x, -2 if several else -1), (budget[0], whole)
    )
    amounts = checkpoints[0]
    within, limited = amounts <= LARGEST, total <= LARGEST
    if limits is not None:
        within, limited = within | xp.isinf(amounts), limited | xp.isinf(total)
    valid = (amounts > 0) & within & whole.reaches(sums) & limited
    keys = (sums.rest, sums.whole)
    if several:
        valid = valid.all(-1, keepdims=True)
        keys = tuple(
            key[..., j] for j in range(amounts.shape[-1]) for key in (sums.rest, sums.whole)
        )
    sums = jax.tree.map(lambda x: xp.where(valid, x, 0), sums)
    valid = valid[..., 0] if several else valid
    limits = None if limits is None else xp.broadcast_to(limits, valid.shape)
    order = xp.lexsort(keys)
    return jax.tree.map(
        partial(_in_order, order, xp=xp), Checkpoints(amounts, sums, valid, limits)
    ), order


def _in_order(order: jax.Array, x: jax.Array, xp: Any) -> jax.Array:
    """The entries of `x` in this order. It has the axes of `order`, and maybe one more."""
    return xp.take_along_axis(
        x, order.reshape(*order.shape, *[1] * (x.ndim - order.ndim)), order.ndim - 1
    )


def finish(record: Any, ends: Ends, xp: Any = jnp) -> Any:
    """The record of a run with its checkpoints in their original order, and NaN for invalid
    checkpoints.
    """
    order, checkpoints = ends.order, ends.checkpoints
    back = xp.argsort(order, axis=-1)

    def given(x: jax.Array) -> jax.Array:
        if xp is np and (order[..., 1:] > order[..., :-1]).all():
            return x  # the usual case: the checkpoints were given in ascending order
        return _in_order(back, x, xp)

    amounts, valid = checkpoints.amounts, checkpoints.valid
    each = valid.reshape(*valid.shape, *[1] * (amounts.ndim - valid.ndim))
    nan = np.float32(np.nan)
    return jax.tree.map(
        given,
        replace(
            record,
            budget=amounts,
            reward=xp.where(valid, record.reward, nan),
            cost=xp.where(each, xp.minimum(record.cost, amounts), nan),
        ),
    )


def endless(sum: Sum, amount: jax.Array, limits: Any, xp: Any = jnp) -> Sum:
    """The sum, or more than any run can spend if the amount is infinite and there is a limit of
    rounds.
    """
    if limits is None:
        return sum
    infinite = xp.isinf(amount)
    return Sum(xp.where(infinite, LARGEST, sum.whole), xp.where(infinite, 0, sum.rest))


def check(policy, bandit, budget, checkpoints, max_rounds) -> None:
    """Raises a `ValueError` if an argument of one run is invalid. Does not check the key."""
    check_contracts(policy, bandit)
    for path, leaf in jax.tree.leaves_with_path(policy):
        if hasattr(policy, "_check") and jnp.ndim(leaf):
            raise ValueError(
                f"policy has {jax.tree_util.keystr(path)[1:]} of shape {jnp.shape(leaf)}, a batch "
                "of policies: map over it with jax.vmap, or pass it to simulate_batch"
            )
    d, shape = num_resources(bandit), np.shape(bandit.cost_mean)
    if isinstance(budget, (list, tuple)) and checks.is_concrete(budget):
        checks.numbers("budget", budget, "give one number for all resources, or one for each")
    if len(shape) != (1 if d is None else 2):
        raise ValueError(
            f"bandit has costs of shape {shape}, a batch of bandits: map over it with jax.vmap, or "
            "pass it to simulate_batch"
        )
    if d is not None and np.shape(budget) not in ((), (d,)):
        raise ValueError(
            f"budget has shape {np.shape(budget)}, and the bandit has {d} resources: give one "
            f"number for all of them, or {d} numbers; map over several budgets with jax.vmap, or "
            "pass them to simulate_batch"
        )
    if d is None and np.ndim(budget) != 0:
        raise ValueError(
            f"budget has shape {np.shape(budget)}: map over several budgets with jax.vmap, or pass "
            "them to simulate_batch"
        )
    if checkpoints is not None and (np.ndim(checkpoints) != 1 or np.size(checkpoints) == 0):
        raise ValueError(
            f"checkpoints has shape {np.shape(checkpoints)}: give a list of at least one budget"
        )
    if max_rounds is not None and np.ndim(max_rounds) != 0:
        raise ValueError(f"max_rounds has shape {np.shape(max_rounds)}: give one number")
    check_finite(policy, bandit, budget)
    check_values(bandit, budget, checkpoints, max_rounds)


def check_contracts(policy: Any, bandit: Any) -> None:
    """Raises a `ValueError` unless `policy` is a policy and `bandit` is a bandit."""
    checks.contract("policy", policy, ("init", "__call__", "update"), "BTS()")
    checks.contract(
        "bandit",
        bandit,
        ("reward_mean", "cost_mean", "pull"),
        "Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])",
    )
    unknown = set(side_info(policy)) - set(Problem.__dataclass_fields__)  # type: ignore
    if unknown:
        raise ValueError(
            f"policy {type(policy).__name__} requires {', '.join(map(repr, sorted(unknown)))}, "
            "which Problem does not have: make requires a tuple of fields of Problem, such as "
            "('budget',)"
        )
    check_resources(policy, bandit)


def check_resources(policy: Any, bandit: Any) -> None:
    """Raises a `ValueError` unless the policy can play with the resources of the bandit."""
    d, named, hidden = (
        num_resources(bandit),
        f"policy {type(policy).__name__}",
        hides_time(policy, bandit),
    )
    if d is not None and not hidden and not getattr(policy, "several_resources", False):
        able = ", ".join(
            other.__name__
            for other in ALL_POLICIES.values()
            if getattr(other, "several_resources", False)
        )
        raise ValueError(
            f"{named} plays with one resource, or with one and a time limit, as in Timed(bandit), "
            f"and bandit {type(bandit).__name__} has a vector of {d}: choose one of {able}; or, if "
            f"the policy is yours and its update takes costs [{d}], set several_resources = True "
            "in its class"
        )
    if "revenue" in side_info(policy) and getattr(bandit, "revenue", None) is None:
        raise ValueError(
            f"{named} requires the revenue of the arms per unit of each resource, which bandit "
            f"{type(bandit).__name__} does not have: play on Pricing or Timed(Pricing(...)), or "
            "choose another posterior of rewards than Revenue"
        )
    scalar = {"best_arm", "min_cost"} & set(side_info(policy))
    if d is not None and not hidden and scalar:
        raise ValueError(
            f"{named} requires {', '.join(sorted(scalar))}, which is defined for one resource "
            f"only, and bandit {type(bandit).__name__} has a vector of {d}: choose another policy"
        )
    if is_timed(bandit) and checks.is_concrete((bandit.cost_mean, bandit.horizon)):
        time = np.asarray(bandit.cost_mean, np.float64)[..., -1]
        checks.require(
            "cost_mean of the last resource of the bandit",
            time,
            abs(time * np.asarray(bandit.horizon, np.float64)[..., None] - 1) < 1e-5,
            "make it 1 / horizon for all arms, because a bandit with a horizon has time as its "
            "last resource",
        )
    if "time_cost" in side_info(policy) and not is_timed(bandit):
        raise ValueError(
            f"{named} requires time_cost, the time of a pull, and bandit {type(bandit).__name__} "
            "has no time limit: add time as a resource, with Timed(bandit, horizon)"
        )


def check_finite(policy: Any, bandit: Any, budget: Any) -> None:
    """Raises a `ValueError` if a budget is infinite and the policy requires it."""
    if not checks.is_concrete(budget) or "budget" not in side_info(policy):
        return
    amounts = np.asarray(budget)
    if np.any(
        (amounts[..., :1] if amounts.ndim and hides_time(policy, bandit) else amounts) == np.inf
    ):
        raise ValueError(
            f"budget = {shown(budget)}, but policy {type(policy).__name__} requires the budget: "
            "give a finite one"
        )


def check_values(bandit, budget, checkpoints, max_rounds) -> None:
    """Raises a `ValueError` if a value is invalid, in one run or in a batch."""
    d = num_resources(bandit)
    num_arms = np.shape(bandit.cost_mean)[-1 if d is None else -2]
    if num_arms < 2 or np.shape(bandit.reward_mean)[-1] != num_arms:
        raise ValueError(
            f"bandit has {np.shape(bandit.reward_mean)[-1]} expected rewards and {num_arms} "
            "expected costs: give at least 2 arms, each with both"
        )
    per_unit, most = _check_scales(bandit)
    remedy = (
        f"give a number from {1 / np.max(per_unit):.1g} to {np.min(most)}; or infinity, if "
        "max_rounds is given"
    )
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
        checks.require(
            "max_rounds",
            limit,
            (limit >= 1) & (limit <= MOST_ROUNDS) & (limit == np.floor(limit)),
            remedy,
        )


def _check_several(bandit, budget, checkpoints, max_rounds, per_unit) -> None:
    """Raises a `ValueError` if checkpoints are no fractions of the budget, or if an arm consumes
    nothing.
    """
    if checkpoints is not None and checks.is_concrete((budget, checkpoints)):
        remedy = (
            "give fractions of the budget, above 0 and at most 1, because the bandit has several "
            "resources"
        )
        fractions = _amounts("checkpoints", checkpoints, remedy)
        smallest = np.min(np.asarray(budget, np.float64) * per_unit)
        checks.require(
            "checkpoints", fractions, (fractions * smallest >= 0.5) & (fractions <= 1), remedy
        )
    if max_rounds is None and checks.is_concrete(bandit.cost_mean):
        per_unit = np.expand_dims(per_unit, -2) if np.ndim(per_unit) else per_unit
        nothing = np.argwhere(~(np.asarray(bandit.cost_mean, np.float64) * per_unit >= 0.5).any(-1))
        if len(nothing):
            raise ValueError(
                f"arm {nothing[0][-1]} of bandit {type(bandit).__name__} consumes nothing of any "
                "resource, so that a run may never end: add time as a resource, with "
                "Timed(bandit), or give max_rounds"
            )


def _amounts(name: str, value: Any, remedy: str) -> np.ndarray:
    """`value` as a float64 array. Raises a `ValueError` if JAX does not have its type, for example
    for a Decimal.
    """
    array = checks.numbers(name, value, remedy)
    if np.asarray(value).dtype.kind == "O":
        raise ValueError(
            f"{name} = {shown(value)} is not a number of a type that JAX knows: {remedy}, as an "
            "int or a float"
        )
    return array


def _check_scales(bandit: Any) -> tuple[Any, Any]:
    """Raises unless the scales of a bandit, or of a batch of bandits, are valid and its means do
    not exceed them.

    Returns the number of quanta in a unit of cost, and the largest budget.
    """
    found = scales(bandit) or (1.0, 1.0)
    per_unit, most = UNIT, LARGEST
    means = bandit.reward_mean, bandit.cost_mean
    for name, scale, mean in zip(("reward", "cost"), found, means, strict=True):
        if not checks.is_concrete(scale):
            continue
        remedy = (
            f"give the largest {name} of one pull, one number from {SMALLEST_SCALE:g} to "
            f"{LARGEST_SCALE}"
        )
        d = num_resources(bandit) if name == "cost" else None
        vector, remedy = d is not None, remedy if d is None else f"{remedy}, or {d} numbers"
        number = checks.numbers(f"{name}_scale of the bandit", scale, remedy)
        if number.shape not in (
            (),
            (np.shape(mean)[:-2] + np.shape(mean)[-1:]) if vector else np.shape(mean)[:-1],
        ):
            raise ValueError(f"{name}_scale of the bandit has shape {number.shape}: {remedy}")
        fits = (number >= np.float32(SMALLEST_SCALE)) & (number <= LARGEST_SCALE)
        checks.require(f"{name}_scale of the bandit", number, fits, remedy)
        if checks.is_concrete(mean):
            expected = np.asarray(mean, np.float64)
            limit = np.expand_dims(number, -2 if vector and number.ndim else -1)
            checks.require(
                f"{name}_mean of the bandit",
                expected,
                ~(expected > limit * (1 + 1e-5)),
                f"set {name}_scale of the bandit to the largest {name} of one pull; it is "
                f"{np.max(number):g} now",
            )
            if name == "cost":
                largest = expected.max(-2 if vector else -1)
                # Less would be rounded to nothing.
                fine = (largest == 0) | ~(largest <= 0.99 * SMALLEST_SCALE * number)
                checks.require(
                    "the largest expected cost of the bandit",
                    largest,
                    fine,
                    "set cost_scale of the bandit to the largest cost of one pull; it is "
                    f"{np.max(number):g}, more than a million times as much",
                )
        if name == "cost" and scales(bandit) is not None:
            resolution = Resolution.of(number, np)
            per_unit, most = resolution.per_unit, LARGEST // resolution.parts
    return per_unit, most


def _check_batch(policy, bandit, budget, keys, checkpoints, max_rounds) -> int:
    """Checks the arguments. Returns the number of runs."""
    check_contracts(policy, bandit)
    checks.key(keys, batch=True)
    if not checks.is_concrete((policy, bandit, budget, keys, checkpoints, max_rounds)):
        raise ValueError(
            "simulate_batch was called under jit, vmap or grad: call it with values, or map over "
            "simulate"
        )
    check_finite(policy, bandit, budget)
    check_values(bandit, budget, checkpoints, max_rounds)
    num_arms, d = np.shape(bandit.reward_mean)[-1], num_resources(bandit)
    if d is not None and np.ndim(budget) and np.shape(budget)[-1] != d:
        raise ValueError(
            f"budget has shape {np.shape(budget)}, and the bandit has {d} resources: give one "
            f"number for all of them, {d} numbers, or {d} numbers for each run [N, {d}]"
        )
    sizes = {}
    of_budget = 0 if d is None else min(np.ndim(budget), 1)
    for name, axes, value in (
        ("keys", 0, keys),
        ("budget", of_budget, budget),
        ("bandit", 1, bandit.reward_mean),
        ("checkpoints", 1, checkpoints),
        ("max_rounds", 0, max_rounds),
    ):
        if value is None or np.ndim(value) == axes:
            continue
        if np.ndim(value) != axes + 1:
            raise ValueError(
                f"{name} has shape {np.shape(value)}: give one for all runs, or one per run along "
                "the first axis"
            )
        sizes[name] = np.shape(value)[0]
    for path, leaf in jax.tree.leaves_with_path(policy):
        if np.ndim(leaf):
            sizes[f"policy{jax.tree_util.keystr(path)}"] = np.shape(leaf)[0]
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        named = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(
            f"the batches differ in length, or are empty ({named}): give one entry per run in each"
        )
    size = next(iter(sizes.values()), 1)
    if (
        not hasattr(policy, "_check")
        and any(np.ndim(x) == 1 for x in jax.tree.leaves(policy))
        and size == num_arms
    ):
        raise ValueError(
            f"there are as many runs as arms, {size}, so that a hyperparameter of policy "
            f"{type(policy).__name__} with that many entries is ambiguous: give another number of "
            "runs, or map over simulate with jax.vmap"
        )
    batched = "bandit" in sizes
    for path, leaf in jax.tree.leaves_with_path(bandit):
        if batched and np.ndim(leaf) and np.shape(leaf)[0] != size:
            raise ValueError(
                f"bandit{jax.tree_util.keystr(path)} has shape {np.shape(leaf)}, but the first "
                f"axis must have the {size} runs: repeat it for every run, as jax.vmap does"
            )
    return size


def _varies(policy: Any, bandit: Any) -> tuple[bool, ...]:
    """Whether each leaf of a policy and a bandit differs from run to run. A shared bandit may have
    arrays.
    """
    batched = np.ndim(bandit.reward_mean) > 1
    of_policy = [np.ndim(leaf) > 0 for leaf in jax.tree.leaves(policy)]
    return (*of_policy, *(batched and np.ndim(leaf) > 0 for leaf in jax.tree.leaves(bandit)))
