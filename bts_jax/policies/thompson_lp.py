"""TSFixed and TSUpdate: Thompson sampling with a linear program."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import random
from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.pytrees import pytree

SMALLEST = 1e-6  # a positive budget, for the last round


class ThompsonLPState(NamedTuple):
    counts: resources.Counts
    budget: jax.Array  # [d] the budgets of the linear program
    time: Any  # the time of a pull, if time is a resource


class ThompsonLP:
    """The rule that `TSFixed` and `TSUpdate` share."""

    requires: ClassVar[tuple[str, ...]] = ("budget",)
    several_resources: ClassVar[bool] = True

    def init(self, problem: Problem) -> ThompsonLPState:
        return ThompsonLPState(resources.Counts.zeros(problem), resources.budgets(problem), problem.time_cost)

    def __call__(self, state: ThompsonLPState, key: jax.Array) -> tuple[jax.Array, ThompsonLPState]:
        key_draw, key_arm = jax.random.split(key)
        reward, costs = state.counts.draw(key_draw, state.time)
        mix = resources.solve(reward, jnp.stack(costs, -1), state.budget)
        return mix.choose(random.bits(key_arm)[0], reward), state

    def update(
        self, state: ThompsonLPState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> ThompsonLPState:
        return state._replace(counts=state.counts.record(arm, reward, jnp.reshape(cost, (-1,)), key))


@pytree
class TSFixed(ThompsonLP):
    """Thompson sampling with a linear program (Ferreira, Simchi-Levi and Wang, Operations Research 2018, Algorithm 1).

    In each round, draw the expected rewards θ^r and costs θ^c of all arms from their Beta posteriors, and solve

        maximize Σ_i θ_i^r x_i   subject to   Σ_i θ_ij^c x_i ≤ B_j,   x ≥ 0.

    Pull arm i with probability x_i / Σ x.

    Reference: Ferreira, Simchi-Levi and Wang, "Online Network Revenue Management Using Thompson Sampling", Operations Research
    2018 ("TS-fixed").

    Side information: the budgets. The time of a pull is known, if time is a resource.

    Guarantee: Bayesian regret O(√(TK log K)) for the game of the source, with Bernoulli demand.

    Deviations from the source: the source knows the prices, and learns demand only. Here rewards and costs are learned apart,
    so that the policy fits every bandit. Rewards and costs in [0, 1] become successes with that probability, as in BTS. The
    source pulls no arm with probability 1 − Σ x; here such rounds are left out.

    Example:
        >>> TSFixed()  # nothing to choose
        TSFixed()
    """


@pytree
class TSUpdate(ThompsonLP):
    """Thompson sampling with a linear program of what is left (Ferreira, Simchi-Levi and Wang, 2018, Algorithm 2).

    As `TSFixed`, but the linear program of each round has the budgets that remain.

    Reference: Ferreira, Simchi-Levi and Wang, "Online Network Revenue Management Using Thompson Sampling", Operations Research
    2018 ("TS-update").

    Side information: the budgets. The time of a pull is known, if time is a resource.

    Guarantee: none known to us. The source has it for `TSFixed`, and finds that this policy does better in simulations.

    Deviations from the source: those of `TSFixed`.

    Example:
        >>> TSUpdate()  # nothing to choose
        TSUpdate()
    """

    def update(
        self, state: ThompsonLPState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> ThompsonLPState:
        left = jnp.maximum(state.budget - jnp.reshape(cost, (-1,)), SMALLEST)
        return super().update(state, arm, reward, cost, key)._replace(budget=left)
