"""Conformance tests for your own policies, bandits and posteriors: `check_policy`, `check_bandit`,
`check_posterior`.

All play some runs. If they find errors, they raise one `ValueError` that lists all of them.
Otherwise they return `None`. They cannot prove that a policy follows its paper. For that, compare
its decisions with a slow and simple version of your own.
"""

import re
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import arguments, batch, checks, limits, random, rules
from bts_jax.bandits import Bernoulli
from bts_jax.bandits.arms import named_arms
from bts_jax.contract import (
    Bandit,
    Policy,
    Posterior,
    Problem,
    hides_time,
    num_resources,
    scales,
    side_info,
)
from bts_jax.engine.jaxprs import is_closed
from bts_jax.engine.passes.functions import functions_left
from bts_jax.engine.passes.summation import left_to_xla
from bts_jax.jax_internals import jaxprs_in_params
from bts_jax.one_run import play_one
from bts_jax.policies import BTS, Uniform

_RUNS, _DRAWS = 12, 20_000
_ADDRESS = re.compile("0x[0-9a-f]+")  # of a function, in the text of a jaxpr


def check_policy(policy: Policy, bandit: Bandit, budget: float = 20) -> None:
    """Raises a `ValueError` that lists all errors of a policy that some runs on `bandit` can
    reveal.

    - Runs must end.
    - Runs must be the same bit for bit alone and in a batch.
    - Unless the policy requires the budget, a run must be the beginning of the run with a larger
      budget.
    - The policy must be a function of its state and key.
    - If the policy has `logits`, this method must return K finite numbers.

    A `UserWarning` says so if the policy is made for costs in [0, 1] and mean costs are below a
    hundredth of the largest cost (`bts_jax.contract.needs_cost_limit`). Another one names
    operations whose last bit XLA may compute differently in another
    batch: a convolution, which adds floats in an order that XLA chooses, or a function such as
    `sin`. Sums, matrix products, `exp`, `log`, `log1p`, `tanh` and normal draws are not among them,
    because runs compute them in a fixed way (`bts_jax.engine.passes.summation`, `functions`).

    Example:
        >>> import bts_jax as bj
        >>> bj.check_policy(bj.Uniform(), bj.Bernoulli(reward=[0.3, 0.6], cost=[0.6, 0.5]))
    """
    name, wrong = f"policy {type(policy).__name__}", []
    keys = jax.random.split(jax.random.key(0), _RUNS)
    arguments.check_contracts(policy, bandit)
    limits.warn_of_small_costs(
        {name: policy}, lambda: {"bandit": limits.share_of(bandit)}, stacklevel=2
    )
    several = num_resources(bandit) is not None
    budget = np.asarray(budget) if several else budget  # type: ignore
    checkpoints = np.array([0.5, 1.0]) if several else np.array([budget / 2, budget])
    runs = _on_few_lanes(policy, bandit, budget, keys, checkpoints)
    if np.isnan(runs.reward).any():
        wrong.append(
            "runs end with NaN: it returns an arm that does not exist, or a draw is rejected "
            "65,536 times in a row (or the bandit returns a reward or cost that is not a number "
            "from 0 to its scale: see check_bandit)"
        )
    if np.asarray(runs.truncated).any():
        wrong.append(
            "runs hit the limit of rounds: if all arms have positive costs, this is practically "
            "impossible"
        )
    wrong += _differences(policy, bandit, budget, keys, checkpoints, runs)
    if "budget" not in side_info(policy):
        end = checkpoints[[1, 1]] if several else checkpoints[[0, 0]]
        half = _on_few_lanes(policy, bandit, budget / 2, keys, end)
        if not _same(half, jax.tree.map(lambda x: x[:, [0, 0]], runs)):
            wrong.append(
                "a run with half the budget is not the first half of the run, but it does not "
                "require the budget"
            )
    policy, bandit = jax.tree.map(arguments.canonicalize, (policy, bandit))
    state = jax.eval_shape(partial(_first_state, budget=budget), policy, bandit)
    if not _repeats(_decide, policy, state, keys[0]):
        wrong.append(
            "two calls with the same state and key give different results: take all randomness "
            "from the key, and store nothing outside of the state"
        )
    wrong += _wrong_logits(policy, bandit, budget) if hasattr(policy, "logits") else []
    if wrong:
        raise ValueError("\n- ".join([f"{name} does not keep the contract:", *wrong]))
    cost = np.ones(_seen_costs(policy, bandit), np.float32)
    _warn_of_bits(
        name,
        (_decide, policy, state, keys[0]),
        (_update, policy, state, np.int32(0), np.float32(1), cost, keys[0]),
    )


# Policies and bandits are arguments of what is traced, as in a run. So their fields are JAX arrays
# there.


def _decide(policy: Policy, state: Any, key: jax.Array) -> Any:
    return policy(state, key)


def _update(policy: Policy, *arguments: Any) -> Any:
    return policy.update(*arguments)


def _pull(bandit: Bandit, key: jax.Array, arm: Any) -> Any:
    with checks.explained(f"bandit {type(bandit).__name__}: pull"):
        return bandit.pull(key, arm)


def _seen_costs(policy: Any, bandit: Bandit) -> tuple[int, ...]:
    """The shape of the costs that the policy sees: () or (d,)."""
    return () if hides_time(policy, bandit) else np.shape(bandit.cost_mean)[1:]


def _first_state(policy: Policy, bandit: Bandit, budget: float) -> Any:
    amounts, _ = arguments.amounts_of(bandit, jnp.float32(budget), None)
    return rules.first_state(policy, bandit, jnp.asarray(amounts))


def check_bandit(bandit: Bandit) -> None:
    """Raises a `ValueError` that lists all errors of a bandit that pulls and runs can reveal.

    - Every arm's rewards and costs must be numbers from 0 to `reward_scale` and `cost_scale`.
      Scales that the bandit does not have are 1.
    - Their means must be those that the bandit declares, up to 6 standard errors of 20,000 pulls.
    - The same key must give the same reward and cost.
    - Runs must be the same alone and in a batch.

    Example:
        >>> import bts_jax as bj
        >>> bj.check_bandit(bj.Bernoulli(reward=[0.3, 0.6], cost=[0.6, 0.5]))
    """
    name, wrong = f"bandit {type(bandit).__name__}", []
    arguments.check_contracts(Uniform(), bandit)
    means = {"reward": np.asarray(bandit.reward_mean), "cost": np.asarray(bandit.cost_mean)}
    several = num_resources(bandit) is not None
    if (
        means["reward"].ndim != 1
        or means["cost"].shape[: means["cost"].ndim - several] != means["reward"].shape
        or len(means["cost"]) < 2
    ):
        raise ValueError(
            f"{name}: reward_mean and cost_mean have shapes {means['reward'].shape} and "
            f"{means['cost'].shape}: return [K] for both, or [K, d] for the costs, of one bandit "
            "with at least 2 arms"
        )
    found = scales(bandit) or (1.0, 1.0)
    most = {
        "reward": np.float64(found[0]),
        "cost": np.broadcast_to(np.float64(found[1]), means["cost"].shape[1:]),
    }
    named_arms(getattr(bandit, "arms", None) or (), len(means["cost"]))
    budget = 20 * float(most["cost"].max())
    keys, arms = (
        jax.random.split(jax.random.key(0), _DRAWS),
        np.arange(len(means["cost"]), dtype=np.int32),
    )
    traced = jax.tree.map(arguments.canonicalize, bandit)
    drawn = jax.jit(jax.vmap(jax.vmap(_pull, (None, 0, None)), (None, None, 0)))(traced, keys, arms)
    for kind, draws in zip(means, drawn, strict=True):
        shape = means[kind].shape[1:]
        if np.shape(draws) != (len(arms), _DRAWS, *shape):
            wanted = f"{shape[0]} costs" if shape else "scalars"
            wrong.append(f"pull returns a {kind} of shape {np.shape(draws)[2:]}: return {wanted}")
            continue
        draws = np.asarray(draws, np.float64)
        for arm, *resource in np.ndindex(means[kind].shape):
            values, mean, top = (
                draws[(arm, slice(None), *resource)],
                means[kind][(arm, *resource)],
                most[kind][tuple(resource)],
            )
            what = f"{kind} of resource {resource[0]}" if resource else kind
            outside = values[~((values >= 0) & (values <= np.float32(top)))]
            if len(outside):
                wrong.append(
                    f"arm {arm}'s {what} is not always a number in [0, {top:g}]: it is {outside[0]}"
                    + (f"; set {kind}_scale to the largest value" if (outside > top).any() else "")
                )
            elif abs(values.mean() - mean) > top * _error(float(mean) / top):
                wrong.append(
                    f"arm {arm}'s mean {what} was {values.mean():.4f} in {_DRAWS:,} pulls, and "
                    f"{kind}_mean says {mean:.4f}"
                )
    if not wrong:
        if not _repeats(_pull, traced, keys[0], arms[0]):
            wrong.append(
                "two pulls with the same key and arm give different results: take all randomness "
                "from the key"
            )
        keys, end = keys[:_RUNS], np.array([1.0 if several else budget])
        runs = _on_few_lanes(Uniform(), bandit, budget, keys, end, max_rounds=1000)
        wrong += _differences(Uniform(), bandit, budget, keys, end, runs, max_rounds=1000)
    if wrong:
        raise ValueError("\n- ".join([f"{name} does not keep the contract:", *wrong]))
    _warn_of_bits(name, (_pull, traced, keys[0], arms[0]))


def check_posterior(posterior: Posterior) -> None:
    """Raises a `ValueError` that lists all errors of a posterior that some values, and some runs,
    can reveal.

    - `draw` must return one finite float32 for each arm, before and after the first values, and the
      same for the same key. Draws must vary, and those of different arms must not be the same,
      unless the posterior has side information.
    - `record` must not change the structure, shapes and dtypes of the state.
    - After 4,000 values of an arm, its draws must be near their mean: 95% of 400 draws within 0.1,
      for values that are 0 or 1 and for values near 0.7. (So a prior that counts for thousands of
      values is refused: check a weaker one.)
    - `BTS(cost=posterior)` must keep the contract of a policy; see `check_policy`.

    A `UserWarning` says if draws are negative, which only a posterior of rewards may return.

    Example:
        >>> import bts_jax as bj
        >>> bj.check_posterior(bj.posteriors.Gamma())
    """
    checks.contract(
        "posterior", posterior, ("init", "draw", "record"), "bts_jax.posteriors.Gamma()"
    )
    name, told = f"posterior {type(posterior).__name__}", "cost_mean" in side_info(posterior)
    if getattr(posterior, "follows_costs", False):
        raise ValueError(
            f"{name} draws rewards from the draws of the costs, so that it cannot be checked "
            "alone: check its policy with check_policy(policy, bandit)"
        )
    lists = [len(value) for value in vars(posterior).values() if isinstance(value, tuple)]
    num_arms = lists[0] if lists and _fits(posterior, lists[0]) else 3
    mean = np.resize(np.array([0.7, 0.25, 0.5], np.float32), num_arms)
    problem = Problem(num_arms=num_arms, cost_mean=jnp.asarray(mean) if told else None)
    rng = np.random.default_rng(0)
    values = np.stack(
        [0.7 + 0.1 * rng.uniform(-1, 1, 4000), rng.uniform(size=4000) < 0.25, np.full(4000, 0.5)], 1
    )
    values = values[:, np.arange(num_arms) % 3].astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 400)
    draw = jax.jit(jax.vmap(_draw, (None, None, 0)))
    with checks.explained(name):
        start = jax.tree.map(jnp.asarray, posterior.init(problem))
        states = [start, *(_recorded(posterior, start, values[:count]) for count in (1, 4000))]
        drawn = [np.asarray(draw(posterior, state, keys)) for state in states]
    wrong = _wrong_draws(drawn, mean, told)
    if not _repeats(_draw, posterior, states[-1], keys[0]):
        wrong.append(
            "two draws with the same state and key differ: take all randomness from the key"
        )
    if wrong:
        raise ValueError("\n- ".join([f"{name} does not keep the contract:", *wrong]))
    if min(map(np.min, drawn)) < 0:
        warnings.warn(f"{name} draws negative numbers: use it for rewards only", stacklevel=2)
    if num_arms == 3:
        check_policy(
            BTS(cost=posterior), Bernoulli(np.array([0.3, 0.6, 0.5]), np.array([0.6, 0.5, 0.9]))
        )


def _fits(posterior: Posterior, num_arms: int) -> bool:
    """Whether the posterior takes this number of arms: a list may have another meaning than one
    number for each arm.
    """
    try:
        posterior.init(Problem(num_arms=num_arms, cost_mean=jnp.ones(num_arms)))
    except ValueError:
        return False
    return True


def _wrong_draws(drawn: list[np.ndarray], mean: np.ndarray, told: bool) -> list[str]:
    """The errors of draws [400, K] before the first values, after one value of each arm, and after
    4,000.
    """
    wrong = []
    for draws, when in zip(
        drawn,
        ("before the first value", "after one value of each arm", "after 4,000 values"),
        strict=True,
    ):
        if draws.shape != (400, len(mean)) or draws.dtype != np.float32:
            return [
                f"draw returns {draws.dtype}{list(draws.shape[1:])}: return one float32 for each "
                f"arm, [{len(mean)}] for {len(mean)} arms"
            ]
        if not np.isfinite(draws).all():
            wrong.append(f"draw returns numbers that are not finite {when}")
    draws = drawn[1]
    if not told and not wrong and (draws.std(0) == 0).any():
        wrong.append(
            "draws do not vary after one value of each arm: draw from the posterior instead of "
            "returning its mean"
        )
    elif not told and not wrong and abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) > 0.5:
        wrong.append(
            "the draws of two arms move together: draw each arm's mean independently, with noise "
            "of shape [K]"
        )
    near = (abs(drawn[-1] - mean) < 0.1).mean(0)
    return wrong + [
        f"after 4,000 values of arm {arm} with mean {mean[arm]:g}, only {near[arm]:.0%} of its "
        "draws are within 0.1 of it: draw the mean of an arm, and learn from all of its values "
        "(or its prior is too strong to check)"
        for arm in range(len(mean))
        if near[arm] < 0.95
    ]


def _draw(posterior: Posterior, state: Any, key: jax.Array) -> jax.Array:
    return posterior.draw(state, key)


def _recorded(posterior: Posterior, start: Any, values: np.ndarray) -> Any:
    """The state of a posterior after these values of each arm. `values`: [n, K]"""

    def record(state: Any, now: tuple) -> tuple[Any, None]:
        value, key = now
        before = jax.tree.map(lambda x: (x.shape, x.dtype), state)
        for arm in range(values.shape[1]):
            word = random.bits(jax.random.fold_in(key, arm))[0]
            state = jax.tree.map(
                jnp.asarray, posterior.record(state, jnp.int32(arm), value[arm], word)
            )
        if jax.tree.map(lambda x: (x.shape, x.dtype), state) != before:
            raise ValueError(
                f"posterior {type(posterior).__name__}: record changes the state's structure, "
                "shapes or dtypes: return a state like that of init"
            )
        return state, None

    keys = jax.random.split(jax.random.key(1), len(values))
    return jax.jit(lambda start, values: jax.lax.scan(record, start, (values, keys))[0])(
        start, values
    )


def _warn_of_bits(name: str, *calls: tuple) -> None:
    """Warns of operations whose last bit may depend on the batch. `calls` are tuples of a function
    and its arguments.
    """
    traced = [jax.make_jaxpr(function)(*arguments).jaxpr for function, *arguments in calls]
    found = set().union(*map(left_to_xla, traced))
    if found:
        warnings.warn(
            f"{name} uses {', '.join(sorted(found))}, and XLA may add in another order in another "
            "batch: runs may differ if a decision depends on the last bit. Use jnp.dot or "
            "jnp.sum, which add in a fixed order",
            stacklevel=3,
        )
    found = set().union(*map(functions_left, traced))
    if found:
        warnings.warn(
            f"{name} uses {', '.join(sorted(found))}, whose last bit XLA may compute differently "
            "in another batch: runs may differ if a decision depends on it. Use exp, log, log1p, "
            "expm1, tanh or sqrt where possible",
            stacklevel=3,
        )


def _error(mean: float) -> float:
    """The largest allowed error of the mean of the draws: Bernstein's inequality, as for 6 standard
    errors of Bernoulli trials.
    """
    return 6 * (max(mean * (1 - mean), 0) / _DRAWS) ** 0.5 + 20 / _DRAWS


def _on_few_lanes(policy, bandit, budget, keys, checkpoints, max_rounds=None) -> Any:
    """The runs with these keys, in a batch on one device with fewer lanes than runs."""
    given = arguments.of_batch(policy, bandit, budget, keys, checkpoints, max_rounds)
    few = batch.lay_out(given, lanes=4, devices=jax.local_devices()[:1])
    return batch.play([few])[0][0]


def _differences(policy, bandit, budget, keys, checkpoints, runs, max_rounds=None) -> list[str]:
    """The errors that are found if runs alone differ from the runs of a batch."""
    play = jax.jit(play_one)
    for i, key in enumerate(keys):
        alone = play(policy, bandit, budget, key, checkpoints, max_rounds)
        alone = replace(alone, bandit=None)  # `runs` have no fingerprint
        if not _same(alone, jax.tree.map(lambda x, i=i: np.asarray(x)[i], runs)):
            return [
                "a run alone differs from the same run in a batch: take all randomness from the "
                "key, and store nothing outside of the state"
            ]
    return []


def _wrong_logits(policy: Any, bandit: Bandit, budget: float) -> list[str]:
    """The errors of `logits` in a state after some pulls."""
    num_arms, resources = np.shape(bandit.cost_mean)[0], _seen_costs(policy, bandit)
    keys = jax.random.split(jax.random.key(1), 2 * num_arms)
    state, update = jax.jit(partial(_first_state, budget=budget))(policy, bandit), jax.jit(_update)
    for i, key in enumerate(keys):
        cost = np.full(resources, i % 2 == 0, np.float32)
        state = update(policy, state, np.int32(i % num_arms), np.float32(i % 3 == 0), cost, key)
    with checks.explained(f"policy {type(policy).__name__}: logits"):
        logits = np.asarray(
            jax.jit(lambda policy, state, key: policy.logits(state, key))(policy, state, keys[0])
        )
    if logits.shape != (num_arms,) or not np.isfinite(logits).all():
        return [
            f"logits returns {logits.tolist()}: return {num_arms} finite numbers, one for each arm"
        ]
    return []


def _repeats(function: Any, *arguments: Any) -> bool:
    """Whether each call of a function computes the same: the same operations with the same
    constants.
    """
    # Not from JAX's cache of `function`.
    traced = [jax.make_jaxpr(lambda *same: function(*same))(*arguments) for _ in range(4)]
    constants = [one.consts + _constants(one.jaxpr) for one in traced]
    return len({_ADDRESS.sub("", str(one.jaxpr)) for one in traced}) == 1 and all(
        _same(x, constants[0]) for x in constants
    )


def _constants(jaxpr: Any) -> list:
    """The constants of functions that are called in a jaxpr, such as those with `jax.jit`."""
    found = []
    for equation in jaxpr.eqns:
        for inner in jax.tree.leaves(equation.params, is_leaf=is_closed):
            if is_closed(inner):
                found += inner.consts
        for inner in jaxprs_in_params(equation.params):
            found += _constants(inner)
    return found


def _same(left: Any, right: Any) -> bool:
    """Whether two pytrees are equal in every leaf, shape and bit."""
    left, right = (
        [
            np.asarray(jax.random.key_data(leaf) if checks.is_key(leaf) else leaf)
            for leaf in jax.tree.leaves(tree)
        ]
        for tree in (left, right)
    )
    return [(x.shape, x.tobytes()) for x in left] == [(x.shape, x.tobytes()) for x in right]
