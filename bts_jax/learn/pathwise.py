"""The gradient along the paths of a relaxed game, in which every arm is pulled in part."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bts_jax import checks, game, random
from bts_jax.contract import Bandit, Policy
from bts_jax.deprecated import renamed
from bts_jax.learn.estimates import Estimate, Round, scan_rounds, through_logits, worth_of
from bts_jax.learn.space import Ranges, Values


@renamed(bandits="bandit_batch")
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
    """The gradient along the paths of a relaxed game, in reverse through all of its rounds.

    In a round every arm is pulled in part, with the weights softmax(logits / temperature), a softmax policy's logits
    having Gumbel noise added first: so much of its reward is earned and of its cost paid, and the state becomes that
    weighted mean of the states after a pull of each. The last unit of the budget is spent in proportion: with b < 1 left, a
    round counts b. For whole budgets and arms whose costs are 0 or 1 this becomes the game itself as the temperature goes to
    0; for others it differs by less than one unit of budget earns. The estimate is exact for the relaxed game. A lower
    temperature makes it more like the game's, and noisier.

    Memory: rounds are played in √rounds blocks, of which the starts alone are kept; a block is played again when it is
    differentiated. So memory grows as √rounds, and time by a third.

    Args:
        policy, bandit_batch, budget, key, ranges, objective, max_rounds: as for `score_gradient`.
        runs: on each instance.
        temperature: of the relaxed choice.

    Example:
        >>> import jax, bts_jax as bj
        >>> bandits = jax.vmap(lambda key: bj.Bernoulli.random(key, 3))(jax.random.split(jax.random.key(0), 50))
        >>> estimate = pathwise_gradient(bj.SoftElimination(), bandits, 5, jax.random.key(1), max_rounds=50)
        >>> sorted(estimate.gradient), bool(estimate.error["scale"] > 0)
        (['scale'], True)
    """
    checks.whole("runs", runs, 1)
    return through_logits(_pathwise, policy, bandit_batch, budget, key, ranges, objective, runs, temperature, max_rounds)


@partial(jax.jit, static_argnames=("runs", "rounds", "objective"))
def _pathwise(values, policy, bandits, budget, key, temperature, *, runs, rounds, objective):
    """As `_score` of `score`, in the relaxed game."""

    def play(policy: Any, bandit: Bandit, words: random.Words) -> tuple[jax.Array, jax.Array]:
        """One run: what it comes to, and whether it was cut off."""
        worth, num_arms = worth_of(bandit, objective), jnp.shape(bandit.cost_mean)[0]
        arms = jnp.arange(num_arms)

        def step(carry, now: Round):
            state, left, total = carry
            logits = policy.logits(state, now.decide) + (now.noise if getattr(policy, "softmax", False) else 0)
            weight = jax.nn.softmax(logits / temperature)
            reward, cost = jax.vmap(bandit.pull, (None, 0))(now.pull, arms)
            counts = jnp.where(now.plays, jnp.minimum(left, 1), 0)
            states = jax.vmap(policy.update, (None, 0, 0, 0, None))(state, arms, reward, cost, now.update)
            state = jax.tree.map(lambda x: jnp.tensordot(weight, x.astype(jnp.float32), 1), states)
            return (state, left - counts * (weight @ cost), total + counts * (weight @ worth(reward))), None

        first = game.first_state(policy, bandit, budget[0])
        start = jax.tree.map(_relaxed, first), budget[0], jnp.float32(0)
        (_, left, total), _ = scan_rounds(step, start, words, rounds, num_arms)
        return total, left > 0.01

    def objective_of(values: Values, bandit: Bandit, key: jax.Array) -> tuple[jax.Array, tuple]:
        words = jax.vmap(random.key_words)(jax.random.split(key, runs))
        total, cut = jax.vmap(partial(play, dataclasses.replace(policy, **values), bandit))(words)
        return total.mean(), (total.mean(), cut.mean())

    keys = jax.random.split(key, jax.tree.leaves(bandits)[0].shape[0])
    gradient, (value, cut) = jax.vmap(jax.grad(objective_of, has_aux=True), (None, 0, 0))(values, bandits, keys)
    return value, cut, gradient


def _relaxed(leaf: jax.Array) -> jax.Array:
    """A part of a policy's state as numbers of which weighted means can be taken."""
    if not (jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.integer)):
        raise ValueError(f"the policy's state has an array of {leaf.dtype}, of which there is no weighted mean: keep numbers "
                         "in it, or take another method than pathwise")
    return leaf.astype(jnp.float32)
