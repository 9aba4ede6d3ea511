"""Fractional KUBE: an upper confidence bound on the reward, divided by the known expected cost."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies.index import ArmStatistics, IndexPolicy, over
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class FractionalKUBE(IndexPolicy):
    """Fractional KUBE (Tran-Thanh et al., AAAI 2012), for arms whose expected costs are known.

    In round t, pull the arm with the largest

        (r̄_i + √(scale · ln t / n_i)) / μ_i^c.

    Reference: Tran-Thanh et al., "Knapsack Based Optimal Policies for Budget-Limited Multi-Armed
    Bandits", AAAI 2012.

    Side information: the expected costs μ^c. (`KUBE` is the variant that estimates them.)

    Guarantee: regret O(ln B) in the source, for costs that are fixed and known.

    Deviations from the source: the source assumes fixed costs. Here costs may be random, and the
    formula uses their means. An arm that never costs anything has an infinite index and is pulled
    before the others (see `index.choose`).

    Args:
        scale: the factor of the logarithm; 2 in the source.

    Example:
        >>> FractionalKUBE(scale=0.5)  # explores less than the source's
        FractionalKUBE(scale=0.5)
    """

    requires: ClassVar[tuple[str, ...]] = ("cost_mean",)

    scale: ArrayLike = 2.0

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 0, 1e6)

    def side_info(self, problem: Problem) -> jax.Array:
        """1/μ^c, infinite for μ^c = 0. [K]"""
        return over(jnp.float32(1), jnp.asarray(problem.required("cost_mean"), jnp.float32))

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        log_t = jnp.log((state.rounds + 1).astype(jnp.float32))
        width = 1 / jnp.sqrt(state.n)
        return (state.reward_mean + jnp.sqrt(self.scale * log_t) * width) * state.side_info
