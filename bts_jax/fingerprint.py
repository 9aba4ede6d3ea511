"""A fingerprint of a bandit's means. `regret` compares it to notice that a run was played on
another bandit.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_DROPPED = 6  # the last bits of a mean, which may differ between two programs
_MOST = 15  # the largest weight


def fingerprint(reward_mean: Any, cost_mean: Any, xp: Any = jnp) -> Any:
    """A number that tells bandits apart by their expected rewards and costs, uint32. It is the same
    with NumPy and JAX.

    It is a weighted sum, modulo 2³², of the leading bits of all means. So it hardly changes with
    the last bit of a mean.

    Args:
        reward_mean, cost_mean: [..., K], and [..., K] or [..., K, d]
        xp: the array library to use, `jax.numpy` or `numpy`.
    """
    rewards, costs = (xp.asarray(mean, np.float32) for mean in (reward_mean, cost_mean))
    means = xp.abs(xp.concatenate([rewards, costs.reshape(*rewards.shape[:-1], -1)], -1))  # −0 is 0
    bits = means.view(np.uint32) if xp is np else jax.lax.bitcast_convert_type(means, jnp.uint32)
    weights = (
        np.random.default_rng(0)
        .choice(np.arange(1, _MOST + 1, 2), means.shape[-1])
        .astype(np.uint32)
    )
    return ((bits >> _DROPPED) * weights).sum(-1, dtype=np.uint32)


def differs(played: np.ndarray, own: np.ndarray, num_means: int) -> np.ndarray:
    """Whether two fingerprints differ by more than the last bits of so many means."""
    return np.abs((played - own).astype(np.int32)) > _MOST * num_means
