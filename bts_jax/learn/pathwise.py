"""The pathwise gradient of a relaxed game, in which every arm is pulled in part."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bts_jax import checks, random, rules
from bts_jax.contract import Bandit, Policy
from bts_jax.learn.estimates import Estimate, Round, scan_rounds, through_logits, worth_of
from bts_jax.learn.space import Ranges, Values, with_values


def pathwise_gradient(
    policy: Policy,
    bandit_batch: Bandit,
    budget: float,
    key: jax.Array,
    *,
    ranges: Ranges | None = None,
    objective: str = "pseudo_regret",
    runs: int = 1,
    temperature: float = 0.2,
    max_rounds: int | None = None,
) -> Estimate:
    """Estimates the pathwise gradient of a relaxed game, by reverse-mode differentiation through
    all of its rounds.

    In each round every arm is pulled in part, with the weights softmax(logits / temperature). For a
    softmax policy, Gumbel noise is added to the logits first. The rewards and costs of the arms are
    earned and paid with these weights. The new state is the weighted mean of the states after a
    pull of each arm. The last unit of the budget is spent in proportion: with b < 1 left, a round
    counts b. For whole budgets and costs that are 0 or 1, the relaxed game converges to the real
    game as the temperature goes to 0. For other arms the difference is less than one unit of budget
    earns. The estimate is exact for the relaxed game. A lower temperature brings it closer to the
    gradient of the real game, and makes it noisier.

    Memory: rounds are computed in √rounds blocks, and only the starts of the blocks are stored. A
    block is computed again when it is differentiated. So memory grows as √rounds, and the time
    increases by a third.

    Args:
        policy, bandit_batch, budget, key, ranges, objective, max_rounds: as for `score_gradient`.
        runs: the number of runs on each instance.
        temperature: the temperature of the relaxed choice.

    Example:
        >>> import jax, bts_jax as bj
        >>> bandits = jax.vmap(lambda key: bj.Bernoulli.random(key,
        ...     3))(jax.random.split(jax.random.key(0), 50))
        >>> estimate = pathwise_gradient(bj.SoftElimination(), bandits, 5, jax.random.key(1),
        ...     max_rounds=50)
        >>> sorted(estimate.gradient), bool(estimate.error["scale"] > 0)
        (['scale'], True)
    """
    checks.whole("runs", runs, 1)
    return through_logits(
        _pathwise,
        policy,
        bandit_batch,
        budget,
        key,
        ranges,
        objective,
        runs,
        temperature,
        max_rounds,
    )


@partial(jax.jit, static_argnames=("runs", "rounds", "objective"))
def _pathwise(values, policy, bandits, budget, key, temperature, *, runs, rounds, objective):
    """Computes the same as `_score` in `score.py`, for the relaxed game."""

    def play(policy: Any, bandit: Bandit, words: random.Words) -> tuple[jax.Array, jax.Array]:
        """Plays one run. Returns its objective and whether it was truncated."""
        worth, num_arms = worth_of(bandit, objective), jnp.shape(bandit.cost_mean)[0]
        arms = jnp.arange(num_arms)

        def step(carry, now: Round):
            state, left, total = carry
            logits = policy.logits(state, now.decide) + (
                now.noise if getattr(policy, "softmax", False) else 0
            )
            weight = jax.nn.softmax(logits / temperature)
            reward, cost = jax.vmap(bandit.pull, (None, 0))(now.pull, arms)
            counts = jnp.where(now.plays, jnp.minimum(left, 1), 0)
            states = jax.vmap(policy.update, (None, 0, 0, 0, None))(
                state, arms, reward, cost, now.update
            )
            state = jax.tree.map(lambda x: jnp.tensordot(weight, x.astype(jnp.float32), 1), states)
            return (
                state,
                left - counts * (weight @ cost),
                total + counts * (weight @ worth(reward)),
            ), None

        first = rules.first_state(policy, bandit, budget[0])
        start = jax.tree.map(_relaxed, first), budget[0], jnp.float32(0)
        (_, left, total), _ = scan_rounds(step, start, words, rounds, num_arms)
        return total, left > 0.01

    def objective_of(values: Values, bandit: Bandit, key: jax.Array) -> tuple[jax.Array, tuple]:
        words = jax.vmap(random.key_words)(jax.random.split(key, runs))
        total, cut = jax.vmap(partial(play, with_values(policy, values), bandit))(words)
        return total.mean(), (total.mean(), cut.mean())

    keys = jax.random.split(key, jax.tree.leaves(bandits)[0].shape[0])
    gradient, (value, cut) = jax.vmap(jax.grad(objective_of, has_aux=True), (None, 0, 0))(
        values, bandits, keys
    )
    return value, cut, gradient


def _relaxed(leaf: jax.Array) -> jax.Array:
    """Returns a leaf of the policy's state as float32, so that weighted means can be computed."""
    if not (jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.integer)):
        raise ValueError(
            f"the policy's state has an array of {leaf.dtype}, which has no weighted mean: use "
            "numbers in the state, or another method than pathwise"
        )
    return leaf.astype(jnp.float32)
