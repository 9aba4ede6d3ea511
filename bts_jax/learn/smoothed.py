"""The gradient for hyperparameters that are drawn at random before each run (evolution
strategies).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax.batch import simulate_batch
from bts_jax.contract import Bandit, Policy
from bts_jax.learn.estimates import Estimate, check_arguments, estimated, outcomes
from bts_jax.learn.space import Ranges, Space


def smoothed_gradient(
    policy: Policy,
    bandit_batch: Bandit,
    budget: float,
    key: jax.Array,
    *,
    ranges: Ranges | None = None,
    objective: str = "pseudo_regret",
    spread: float = 0.1,
) -> Estimate:
    """Estimates the gradient for hyperparameters that are drawn at random before each run. It works
    with every policy.

    Each hyperparameter is drawn from a normal distribution with standard deviation `spread` on the
    scale u of `fit`. In the middle of its range, `spread` is about the relative variation of the
    hyperparameter. Runs come in pairs with opposite draws, on the same instance and with common
    random numbers. The estimate is half the difference of their objectives, times the draw over
    `spread` (evolution strategies; the score function of that draw). It is exact for the mean
    objective over such draws. This mean differs from the objective by the order of spread².

    Args:
        policy: the policy.
        bandit_batch: a batch of at least two instances along the first axis, as `jax.vmap` creates
            it.
        budget: the budget of a run.
        key: a typed JAX key.
        ranges: the hyperparameters to differentiate by, each with its range (low, high); by default
            the class's `learnable`.
        objective: "pseudo_regret" or "reward".
        spread: the standard deviation of the draws.

    Example:
        >>> import jax, bts_jax as bj
        >>> bandits = jax.vmap(lambda key: bj.Bernoulli.random(key,
        ...     3))(jax.random.split(jax.random.key(0), 50))
        >>> estimate = smoothed_gradient(bj.KUBE(), bandits, 50, jax.random.key(1),
        ...     ranges={"scale": (0.1, 10)})
        >>> sorted(estimate.gradient), bool(estimate.error["scale"] > 0)
        (['scale'], True)
    """
    space = Space(policy, ranges)
    size = check_arguments(policy, bandit_batch, budget, key, objective, spread=spread)
    centre = space.start()
    key_play, key_draw = jax.random.split(key)
    draw = {
        name: np.asarray(
            jax.random.normal(jax.random.fold_in(key_draw, i), (size, *np.shape(at))), np.float64
        )
        for i, (name, at) in enumerate(centre.items())
    }

    def both(mine: Any, other: Any) -> Any:
        return jax.tree.map(lambda x, y: np.concatenate([x, y]), mine, other)

    drawn = {
        name: np.concatenate([at + spread * draw[name], at - spread * draw[name]])
        for name, at in centre.items()
    }
    keys = jax.random.split(key_play, size)
    pair = both(bandit_batch, bandit_batch)
    runs = simulate_batch(
        space.policy(space.bounded(drawn)), pair, budget, jnp.concatenate([keys, keys])
    )
    value = outcomes(runs, pair, objective)
    half = (value[:size] - value[size:]) / (2 * spread)
    slope = space.slope(centre)
    each = {
        name: half.reshape(-1, *(1,) * (d.ndim - 1)) * d / slope[name] for name, d in draw.items()
    }
    return estimated(value.mean(), each, np.asarray(runs.truncated).mean())
