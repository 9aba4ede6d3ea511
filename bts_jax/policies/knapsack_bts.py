"""KnapsackBTS: budgeted Thompson sampling with several resources."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class KnapsackBTSState(NamedTuple):
    counts: resources.Counts
    prices: resources.Prices
    time: Any  # the time of a pull, if time is a resource


@pytree
class KnapsackBTS:
    """Budgeted Thompson sampling with several resources: our extension of BTS (Xia et al., IJCAI 2015, Algorithm 1).

    In each round, draw for every arm i an expected reward θ_i^r and an expected cost θ_ij^c of each resource j from their Beta
    posteriors, as in BTS. Pull the arm with the largest

        θ_i^r / Σ_j λ_j θ_ij^c / B_j.

    λ_j are the prices of the resources. They begin equal. After each pull they are multiplied by (1 + ε)^(B c_j / B_j), where
    c_j is the cost that was paid and B the smallest budget, with ε = √(ln d / B), as in PD-BwK. The budget of time counts as
    the number of rounds. With one resource the price cancels, and the policy is BTS, bit for bit.

    Reference: Xia et al., IJCAI 2015, for the draws, and Badanidiyuru et al., "Bandits with Knapsacks", FOCS 2013, for the
    prices.

    Side information: the budgets. The time of a pull is known, if time is a resource.

    Guarantee: none known to us for several resources.

    Args:
        reward_alpha: prior successes of rewards; from 0.5 to 10⁷. The priors are uniform by default: all four are 1.
        reward_beta: prior failures of rewards.
        cost_alpha: prior successes of costs.
        cost_beta: prior failures of costs.

    Example:
        >>> import jax, bts_jax
        >>> shop = bts_jax.Timed(bts_jax.Pricing(prices=[[0.4], [0.8]], demand=[[0.7], [0.3]]))
        >>> run = bts_jax.simulate(KnapsackBTS(), shop, [40, 100], jax.random.key(0))  # 40 units to sell to 100 customers
        >>> bool((run.cost <= run.budget).all())
        True
    """

    requires: ClassVar[tuple[str, ...]] = ("budget",)
    several_resources: ClassVar[bool] = True

    reward_alpha: ArrayLike = 1.0
    reward_beta: ArrayLike = 1.0
    cost_alpha: ArrayLike = 1.0
    cost_beta: ArrayLike = 1.0

    def _check(self) -> None:
        for name in ("reward_alpha", "reward_beta", "cost_alpha", "cost_beta"):
            checks.hyperparameter(self, name, 0.5, 1e7)

    def init(self, problem: Problem) -> KnapsackBTSState:
        return KnapsackBTSState(resources.Counts.zeros(problem), resources.Prices.equal(problem), problem.time_cost)

    def __call__(self, state: KnapsackBTSState, key: jax.Array) -> tuple[jax.Array, KnapsackBTSState]:
        priors = self.reward_alpha, self.reward_beta, self.cost_alpha, self.cost_beta
        reward, costs = state.counts.draw(key, state.time, priors)
        return jnp.argmax(reward / state.prices.of(costs)), state

    def update(
        self, state: KnapsackBTSState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> KnapsackBTSState:
        cost = jnp.reshape(cost, (-1,))
        return state._replace(counts=state.counts.record(arm, reward, cost, key), prices=state.prices.after(cost))
