"""TSFixed and TSUpdate: Thompson sampling with a linear program."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import random
from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.policies.thompson import Beliefs, Thompson
from bts_jax.posteriors import Gamma, MatchedBeta
from bts_jax.pytrees import pytree

SMALLEST = 1e-6  # a positive budget, for the last round


class ThompsonLPState(NamedTuple):
    beliefs: Beliefs
    budget: resources.Left  # [d] the budgets of the linear program


class ThompsonLP(Thompson):
    """The rule that `TSFixed` and `TSUpdate` share."""

    requires: ClassVar[tuple[str, ...]] = ("budget",)
    several_resources: ClassVar[bool] = True

    def init(self, problem: Problem) -> ThompsonLPState:
        return ThompsonLPState(
            self.believe(problem), resources.Left.all(resources.budgets(problem))
        )

    def __call__(self, state: ThompsonLPState, key: jax.Array) -> tuple[jax.Array, ThompsonLPState]:
        key_draw, key_arm = jax.random.split(key)
        reward, costs = self.draw_means(state.beliefs, key_draw)
        mix = resources.solve(
            reward, jnp.stack(costs, -1), jnp.maximum(state.budget.amount, SMALLEST)
        )
        return mix.choose(random.bits(key_arm)[0], reward), state

    def update(
        self,
        state: ThompsonLPState,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> ThompsonLPState:
        return state._replace(beliefs=self.record_pull(state.beliefs, arm, reward, cost, key))


@pytree
class TSFixed(ThompsonLP):
    """Thompson sampling with a linear program (Ferreira, Simchi-Levi and Wang, Operations Research
    2018, Algorithm 1).

    In each round, draw the expected rewards θ^r and costs θ^c of all arms from their posteriors,
    and solve

        maximize Σ_i θ_i^r x_i   subject to   Σ_i θ_ij^c x_i ≤ B_j,   x ≥ 0.

    Pull arm i with probability x_i / Σ x.

    Reference: Ferreira, Simchi-Levi and Wang, "Online Network Revenue Management Using Thompson
    Sampling", Operations Research 2018 ("TS-fixed").

    Side information: the budgets. The time of a pull is known, if time is a resource. Posteriors
    may have more.

    Guarantee: Bayesian regret O(√(TK log K)) for the game of the source, with Bernoulli demand and
    Beta posteriors.

    Deviations from the source: the source knows the prices, and learns demand only. Here rewards
    and costs are learned apart, so that the policy fits every bandit. The source has Beta
    posteriors of a demand that is 0 or 1: `TSFixed(Beta(), Beta())`. The default posteriors have
    less regret on other amounts, and do not depend on the unit of costs. The source pulls no arm
    with probability 1 − Σ x; here such rounds are left out.

    Args:
        reward: the posterior of expected rewards; see `bts_jax.posteriors`.
        cost: the posterior of expected costs: one for all resources, or a tuple with one for each
            resource except time.

    Example:
        >>> from bts_jax.posteriors import Beta
        >>> TSFixed(Beta(), Beta()).cost  # as in the source
        Beta(alpha=1.0, beta=1.0)
    """

    reward: Any = MatchedBeta()
    cost: Any = Gamma()


@pytree
class TSUpdate(ThompsonLP):
    """Thompson sampling with a linear program of what is left (Ferreira, Simchi-Levi and Wang,
    2018, Algorithm 2).

    As `TSFixed`, but the linear program of each round has the budgets that remain.

    Reference: Ferreira, Simchi-Levi and Wang, "Online Network Revenue Management Using Thompson
    Sampling", Operations Research 2018 ("TS-update").

    Side information: the budgets. The time of a pull is known, if time is a resource. Posteriors
    may have more.

    Guarantee: none known to us. The source has it for `TSFixed`, and finds that this policy does
    better in simulations.

    Deviations from the source: those of `TSFixed`.

    Args:
        reward, cost: as for `TSFixed`.

    Example:
        >>> # prices are roughly known in advance
        >>> policy = TSUpdate(cost=Gamma(mean=[0.001, 0.03], strength=5))
        >>> policy.cost.mean
        (0.001, 0.03)
    """

    reward: Any = MatchedBeta()
    cost: Any = Gamma()

    def update(
        self,
        state: ThompsonLPState,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> ThompsonLPState:
        left = state.budget.after(jnp.reshape(cost, (-1,)))
        return super().update(state, arm, reward, cost, key)._replace(budget=left)
