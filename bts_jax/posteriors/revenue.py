"""`Revenue`: rewards that follow from the costs, because the prices are known."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from bts_jax.contract import Problem
from bts_jax.pytrees import pytree


@pytree
class Revenue:
    """Rewards that are revenues at known prices. Once the costs are known, so are the rewards.

    In a shop (`Pricing`) the costs of a round are the units that were sold, and its reward is what
    they were sold for. Whoever sets the prices knows them. So only the demand is to be learnt, and
    the expected reward of an arm is drawn as

        θ_i^r = Σ_j p_ij θ_ij^c,

    where p_ij is the revenue of arm i per unit of resource j, and θ^c the draws of the expected
    costs. Ferreira, Simchi-Levi and Wang (Operations Research 2018) know the prices: their policy
    is `TSUpdate(reward=Revenue(), cost=Beta())`.

    It is a posterior of rewards, for bandits that have `revenue`: `Pricing`, and `Timed` or
    `WithNull` with a `Pricing` inside. `Gamma` needs a prior mean: with its default prior, an arm
    that was never pulled would cost nothing, and so sell nothing.

    Example:
        >>> from bts_jax import TSUpdate, contract
        >>> from bts_jax.posteriors import Beta
        >>> contract.side_info(TSUpdate(reward=Revenue(), cost=Beta()))
        ('budget', 'revenue')
    """

    follows_costs: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("revenue",)

    def init(self, problem: Problem) -> jax.Array:
        """The revenue of each arm per unit of each resource. [d, K]"""
        revenue = jnp.asarray(problem.required("revenue"), jnp.float32)
        return revenue.reshape(problem.num_arms, -1).T

    def draw(self, state: jax.Array, key: jax.Array, costs: jax.Array) -> jax.Array:
        """The expected rewards for these expected costs. [K]. `costs`: [d, K], without time"""
        return (state * costs).sum(0)

    def record(
        self, state: jax.Array, arm: jax.Array, value: jax.Array, word: jax.Array
    ) -> jax.Array:
        return state
