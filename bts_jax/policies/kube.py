"""KUBE: an upper confidence bound on the reward, divided by the average cost."""

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.policies.index import ArmStatistics, IndexPolicy, over
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class KUBE(IndexPolicy):
    """KUBE (Tran-Thanh et al., AAAI 2012), in the variant of Xia et al. (IJCAI 2015).

    In round t, pull the arm with the largest

        (r̄_i + √(scale · ln t / n_i)) / c̄_i.

    Reference: Tran-Thanh et al., "Knapsack Based Optimal Policies for Budget-Limited Multi-Armed
    Bandits", AAAI 2012.

    Side information: none.

    Guarantee: none known to us for this variant. (The guarantee of the source is O(ln B), for costs
    that are fixed and known.)

    Deviations from the source: Xia et al. do not define the index for c̄_i = 0. Here it is
    infinite, and the arm is explored before the others (see `index.choose`).

    Args:
        scale: the factor of the logarithm; 2 in the paper of Xia et al.

    Example:
        >>> KUBE(scale=0.5)  # explores less than the paper's
        KUBE(scale=0.5)
    """

    scale: ArrayLike = 2.0

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 0, 1e6)

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        log_t = jnp.log((state.rounds + 1).astype(jnp.float32))
        width, price = 1 / jnp.sqrt(state.n), over(jnp.float32(1), state.cost_mean)
        return (state.reward_mean + jnp.sqrt(self.scale * log_t) * width) * price
