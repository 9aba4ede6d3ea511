"""Shared code of the gradient estimators: estimates, checks, objectives, and a scan over the rounds
of a game.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bts_jax import arguments, checks, metrics, random, rules
from bts_jax.contract import Bandit, num_resources, ratio, scales
from bts_jax.learn.space import Space, Values


class Estimate(NamedTuple):
    """A gradient with its standard error. Each instance is one measurement."""

    value: float  # mean objective
    gradient: Values  # derivative of the mean objective with respect to each hyperparameter
    error: Values  # standard error of the gradient
    truncated: float  # fraction of the runs that were truncated at `max_rounds`


def check_objective(objective: str) -> str:
    if objective not in ("pseudo_regret", "reward"):
        raise ValueError(
            f"objective = {objective!r} is not known: give 'pseudo_regret' or 'reward'"
        )
    return objective


def check_arguments(policy, bandits, budget, key, objective, **positive: float) -> int:
    """Returns the number of instances. Raises a `ValueError` if an argument is wrong, as far as
    this can be checked.
    """
    arguments.check_contracts(policy, bandits)
    check_objective(objective)
    checks.key(key)
    if num_resources(bandits) is not None:
        raise ValueError(
            f"bandit_batch has {num_resources(bandits)} resources, and learning is for bandits "
            "with one: give a batch of instances whose costs are numbers"
        )
    shape = np.shape(bandits.cost_mean)
    if len(shape) != 2 or shape[0] < 2:
        raise ValueError(
            f"bandit_batch has costs of shape {shape}: give a batch of at least two instances "
            "along its first axis, as jax.vmap makes it"
        )
    if np.ndim(budget):
        raise ValueError(f"budget has shape {np.shape(budget)}: give one number")
    arguments.check_values(bandits, budget, None, None)
    checks.require(
        "the smallest expected cost",
        np.min(bandits.cost_mean),
        np.min(bandits.cost_mean) > 0,
        "give arms that all cost something",
    )
    for name, value in positive.items():
        number = checks.numbers(name, value, "give a positive number")
        checks.require(name, number, (number > 0) & (number < np.inf), "give a positive number")
    return shape[0]


def horizon(bandits: Bandit, budget: float) -> int:
    """Returns a limit of rounds: 3 standard deviations above the expected length of a run that
    pulls only the cheapest arm.
    """
    return math.ceil((budget + 3 * math.sqrt(budget) + 10) / float(np.min(bandits.cost_mean)))


def through_logits(
    estimate, policy, bandits, budget, key, ranges, objective, runs, temperature, max_rounds
) -> Estimate:
    """Returns the estimate of `estimate`, which is the program of `score_gradient` or that of
    `pathwise_gradient`.
    """
    space = Space(policy, ranges)
    check_arguments(policy, bandits, budget, key, objective, temperature=temperature)
    if any(np.any(np.asarray(scale) != 1) for scale in scales(bandits) or ()):
        raise ValueError(
            "the bandits' reward_scale or cost_scale is not 1, and this method needs amounts in "
            "[0, 1]: use smoothed_gradient, or divide rewards and costs by their largest values"
        )
    if not hasattr(policy, "logits"):
        raise ValueError(
            f"policy {type(policy).__name__} has no logits: use smoothed_gradient, or add this "
            "method as help(bts_jax.learn) describes"
        )
    rounds = (
        horizon(bandits, budget)
        if max_rounds is None
        else checks.whole("max_rounds", max_rounds, 1)
    )
    policy, bandits = jax.tree.map(arguments.canonicalize, (policy, bandits))
    # The relaxed game has floats where a policy expects integers.
    with jax.numpy_dtype_promotion("standard"):
        value, truncated, each = estimate(
            space.values(),
            policy,
            bandits,
            arguments.fixed_point(budget),
            key,
            jnp.float32(temperature),
            runs=runs,
            rounds=rounds,
            objective=objective,
        )
    return estimated(value.mean(), each, truncated.mean())


def outcomes(runs: rules.Run, bandits: Bandit, objective: str) -> np.ndarray:
    """Returns the objective of each run of a batch with one run on each instance."""
    values = (
        metrics.pseudo_regret(runs, bandits)
        if objective == "pseudo_regret"
        else np.asarray(runs.reward, np.float64)
    )
    return values[:, 0]


def estimated(value: Any, each: Values, truncated: Any) -> Estimate:
    """Returns the estimate from the gradients on the instances, [instances, …] for each
    hyperparameter.
    """
    each = {name: np.asarray(gradient, np.float64) for name, gradient in each.items()}
    return Estimate(
        value=float(value),
        gradient={name: gradient.mean(0) for name, gradient in each.items()},
        error={
            name: gradient.std(0, ddof=1) / np.sqrt(len(gradient))
            for name, gradient in each.items()
        },
        truncated=float(truncated),
    )


def worth_of(bandit: Bandit, objective: str) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that computes the worth of a pull of each arm: its reward, or its expected
    loss. [K] -> [K]
    """
    if objective == "reward":
        return lambda reward: reward
    means = jnp.asarray(bandit.reward_mean), jnp.asarray(bandit.cost_mean)
    return lambda reward: ratio(*means).max() * means[1] - means[0]


class Round(NamedTuple):
    """The random numbers of one round. They do not depend on the hyperparameters."""

    plays: jax.Array  # bool: False for rounds that only fill the last block
    decide: jax.Array  # keys
    pull: jax.Array
    update: jax.Array
    noise: jax.Array  # [K] Gumbel draws


def scan_rounds(
    step: Callable, carry: Any, words: random.Words, rounds: int, num_arms: int
) -> tuple[Any, Any]:
    """Runs `lax.scan` of `step` over the rounds, in √rounds blocks. Only the starts of the blocks
    are stored for reverse mode.
    """
    size = math.isqrt(rounds - 1) + 1
    count = -(-rounds // size)

    @jax.vmap
    def round_at(t: jax.Array) -> Round:
        decide, choose, pull, update = (random.derive(words, t, purpose) for purpose in range(4))
        return Round(
            t < rounds,
            decide,
            pull,
            update,
            noise=random.gumbel(random.bits(choose, (num_arms,))[0]),
        )

    block = jax.checkpoint(
        lambda carry, first: lax.scan(step, carry, round_at(first + jnp.arange(size)))
    )
    carry, out = lax.scan(block, carry, size * jnp.arange(count))
    return carry, jax.tree.map(lambda x: x.reshape(count * size, *x.shape[2:]), out)
