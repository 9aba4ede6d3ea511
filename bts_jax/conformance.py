"""Conformance tests for your own policies and bandits: `check_policy`, `check_bandit`.

Both play some runs. If they find errors, they raise one `ValueError` that lists all of them. Otherwise they return `None`.
They cannot prove that a policy follows its paper. For that, compare its decisions with a slow and simple version of your own.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import batch, game
from bts_jax.bandits.arms import named_arms
from bts_jax.contract import Bandit, Policy, scales, side_info
from bts_jax.engine.summation import left_to_xla
from bts_jax.game import simulate
from bts_jax.policies import Uniform

_RUNS, _DRAWS = 12, 20_000


def check_policy(policy: Policy, bandit: Bandit, budget: float = 20) -> None:
    """Raises a `ValueError` that lists all errors of a policy that some runs on `bandit` can reveal.

    - Runs must end.
    - Runs must be the same bit for bit alone, in a batch and on few lanes.
    - Unless the policy requires the budget, a run must be the beginning of the run with a larger budget.
    - The policy must be a function of its state and key.
    - If the policy has `logits`, this method must return K finite numbers.

    A `UserWarning` names operations that add floats in an order that XLA chooses by the shape of the batch, such as a
    convolution. Sums and matrix products are not among them, because runs compute them in a fixed order
    (`bts_jax.engine.summation`).

    Example:
        >>> import bts_jax as bj
        >>> bj.check_policy(bj.Uniform(), bj.Bernoulli(reward=[0.3, 0.6], cost=[0.6, 0.5]))
    """
    name, wrong = f"policy {type(policy).__name__}", []
    keys = jax.random.split(jax.random.key(0), _RUNS)
    checkpoints = np.array([budget / 2, budget])
    runs = jax.vmap(lambda key: simulate(policy, bandit, budget, key, checkpoints=checkpoints))(keys)
    if np.isnan(runs.reward).any():
        wrong.append("runs end with NaN: it returns an arm that does not exist, or a draw is rejected 65,536 times in a row "
                     "(or the bandit returns a reward or cost that is not a number from 0 to its scale: see check_bandit)")
    if np.asarray(runs.truncated).any():
        wrong.append("runs hit the limit of rounds: if all arms have positive costs, this is practically impossible")
    wrong += _differences(policy, bandit, budget, keys, checkpoints, runs)
    if "budget" not in side_info(policy):
        half = jax.vmap(lambda key: simulate(policy, bandit, budget / 2, key, checkpoints=checkpoints[[0, 0]]))(keys)
        if not _same(half, jax.tree.map(lambda x: x[:, [0, 0]], runs)):
            wrong.append("a run with half the budget is not the first half of the run, but it does not require the budget")
    wrong += _one_by_one(policy, bandit, budget)
    if wrong:
        raise ValueError("\n- ".join([f"{name} does not keep the contract:", *wrong]))
    state, one = game.first_state(policy, bandit, jnp.float32(budget)), jnp.float32(1)
    _warn_of_sums(name, (policy, state, keys[0]), (policy.update, state, jnp.int32(0), one, one, keys[0]))


def check_bandit(bandit: Bandit) -> None:
    """Raises a `ValueError` that lists all errors of a bandit that pulls and runs can reveal.

    - Every arm's rewards and costs must be numbers from 0 to `reward_scale` and `cost_scale`. Scales that the bandit does not
      have are 1.
    - Their means must be those that the bandit declares, up to 6 standard errors of 20,000 pulls.
    - The same key must give the same reward and cost.
    - Runs must be the same alone and in a batch.

    Example:
        >>> import bts_jax as bj
        >>> bj.check_bandit(bj.Bernoulli(reward=[0.3, 0.6], cost=[0.6, 0.5]))
    """
    name, wrong = f"bandit {type(bandit).__name__}", []
    game.check_contracts(Uniform(), bandit)
    means = {"reward": np.asarray(bandit.reward_mean), "cost": np.asarray(bandit.cost_mean)}
    if means["reward"].ndim != 1 or means["reward"].shape != means["cost"].shape or len(means["cost"]) < 2:
        raise ValueError(f"{name}: reward_mean and cost_mean have shapes {means['reward'].shape} and {means['cost'].shape}: "
                         "return [K] for both, of one bandit with at least 2 arms")
    most = dict(zip(means, (float(scale) for scale in scales(bandit) or (1.0, 1.0)), strict=True))
    named_arms(getattr(bandit, "arms", None) or (), len(means["cost"]))
    budget = 20 * most["cost"]
    keys, arms = jax.random.split(jax.random.key(0), _DRAWS), jnp.arange(len(means["cost"]))
    drawn = jax.jit(jax.vmap(jax.vmap(bandit.pull, (0, None)), (None, 0)))(keys, arms)
    for kind, draws in zip(means, drawn, strict=True):
        if np.shape(draws) != (len(arms), _DRAWS):
            wrong.append(f"pull returns a {kind} of shape {np.shape(draws)[2:]}: return scalars")
            continue
        draws = np.asarray(draws, np.float64)
        for arm, (values, mean) in enumerate(zip(draws, means[kind], strict=True)):
            outside = values[~((values >= 0) & (values <= np.float32(most[kind])))]
            if len(outside):
                wrong.append(f"arm {arm}'s {kind} is not always a number in [0, {most[kind]:g}]: it is {outside[0]}"
                             + (f"; set {kind}_scale to the largest value" if (outside > most[kind]).any() else ""))
            elif abs(values.mean() - mean) > most[kind] * _error(float(mean) / most[kind]):
                wrong.append(f"arm {arm}'s mean {kind} was {values.mean():.4f} in {_DRAWS:,} pulls, and {kind}_mean says "
                             f"{mean:.4f}")
    if not wrong:
        if not _same(bandit.pull(keys[0], arms[0]), bandit.pull(keys[0], arms[0])):
            wrong.append("two pulls with the same key and arm give different results: take all randomness from the key")
        keys, end = keys[:_RUNS], np.array([budget])
        runs = jax.vmap(lambda key: simulate(Uniform(), bandit, budget, key, checkpoints=end, max_rounds=1000))(keys)
        wrong += _differences(Uniform(), bandit, budget, keys, end, runs, max_rounds=1000)
    if wrong:
        raise ValueError("\n- ".join([f"{name} does not keep the contract:", *wrong]))
    _warn_of_sums(name, (bandit.pull, keys[0], arms[0]))


def _warn_of_sums(name: str, *calls: tuple) -> None:
    """Warns of operations that add floats in an order that XLA chooses. `calls` are tuples of a function and its arguments."""
    found = set().union(*(left_to_xla(jax.make_jaxpr(function)(*arguments).jaxpr) for function, *arguments in calls))
    if found:
        warnings.warn(f"{name} uses {', '.join(sorted(found))}, and XLA may add in another order in another batch: runs may "
                      "differ if a decision depends on the last bit. Use jnp.dot or jnp.sum, which add in a fixed order",
                      stacklevel=3)


def _error(mean: float) -> float:
    """The largest allowed error of the mean of the draws: Bernstein's inequality, as for 6 standard errors of Bernoulli trials.
    """
    return 6 * (max(mean * (1 - mean), 0) / _DRAWS) ** 0.5 + 20 / _DRAWS


def _differences(policy, bandit, budget, keys, checkpoints, runs, max_rounds=None) -> list[str]:
    """The errors that are found if runs alone, or on few lanes, differ from runs in a batch."""
    remedy = "take all randomness from the key, and store nothing outside of the state"
    wrong = []
    alone = game.play_one(policy, bandit, budget, keys[3], checkpoints, max_rounds)
    if not _same(alone, jax.tree.map(lambda x: x[3], runs)):
        wrong.append(f"a run alone differs from the same run in a batch: {remedy}")
    few = batch.lay_out(policy, bandit, budget, keys, checkpoints=checkpoints, max_rounds=max_rounds, lanes=5)
    if not _same(batch.play([few])[0][0], runs):
        wrong.append(f"runs on five lanes differ from the same runs in a batch: {remedy}")
    return wrong


def _one_by_one(policy: Any, bandit: Bandit, budget: float) -> list[str]:
    """The errors that single calls reveal, in a state after some pulls."""
    wrong, key = [], jax.random.key(1)
    policy, bandit = jax.tree.map(lambda leaf: jnp.asarray(game.canonicalize(leaf)), (policy, bandit))
    num_arms = np.shape(bandit.cost_mean)[0]
    state = game.first_state(policy, bandit, jnp.float32(budget))
    for i in range(2 * num_arms):
        reward, cost = jnp.float32(i % 3 == 0), jnp.float32(i % 2 == 0)
        state = policy.update(state, jnp.int32(i % num_arms), reward, cost, jax.random.key(i))
    if not all(_same(policy(state, key), policy(state, key)) for _ in range(3)):
        wrong.append("two calls with the same state and key give different results: take all randomness from the key, and "
                     "store nothing outside of the state")
    if hasattr(policy, "logits"):
        logits = np.asarray(policy.logits(state, key))
        if logits.shape != (num_arms,) or not np.isfinite(logits).all():
            wrong.append(f"logits returns {logits.tolist()}: return {num_arms} finite numbers, one for each arm")
    return wrong


def _same(left: Any, right: Any) -> bool:
    """Whether two pytrees are equal in every leaf, shape and bit."""
    left, right = ([np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in (left, right))
    return [(x.shape, x.tobytes()) for x in left] == [(x.shape, x.tobytes()) for x in right]
