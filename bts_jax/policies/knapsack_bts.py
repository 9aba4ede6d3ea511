"""KnapsackBTS: budgeted Thompson sampling with several resources."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.policies.bts import BTS
from bts_jax.policies.thompson import Beliefs, Thompson
from bts_jax.posteriors import Gamma, MatchedBeta
from bts_jax.pytrees import pytree


class KnapsackBTSState(NamedTuple):
    beliefs: Beliefs
    prices: resources.Prices


@pytree
class KnapsackBTS(Thompson):
    """Budgeted Thompson sampling with several resources: our extension of BTS (Xia et al., IJCAI 2015, Algorithm 1).

    In each round, draw for every arm i an expected reward θ_i^r and an expected cost θ_ij^c of each resource j from their
    posteriors, as in BTS. Pull the arm with the largest

        θ_i^r / Σ_j λ_j θ_ij^c / B_j.

    λ_j are the prices of the resources. They begin equal. After each pull they are multiplied by (1 + ε)^(B c_j / B_j), where
    c_j is the cost that was paid and B the smallest budget, with ε = √(ln d / B), as in PD-BwK. The budget of time counts as
    the number of rounds. With one resource the price cancels, and the policy is `BTS` with the same posteriors, bit for bit.

    Reference: Xia et al., IJCAI 2015, for the draws, and Badanidiyuru et al., "Bandits with Knapsacks", FOCS 2013, for the
    prices.

    Side information: the budgets. The time of a pull is known, if time is a resource. Posteriors may have more.

    Guarantee: none known to us for several resources.

    Args:
        reward: the posterior of expected rewards; see `bts_jax.posteriors`.
        cost: the posterior of expected costs: one for all resources, or a tuple with one for each resource except time.

    Example:
        >>> import jax, bts_jax
        >>> shop = bts_jax.Timed(bts_jax.Pricing(prices=[[0.4], [0.8]], demand=[[0.7], [0.3]]))
        >>> run = bts_jax.simulate(KnapsackBTS(), shop, [40, 100], jax.random.key(0))  # 40 units to sell to 100 customers
        >>> bool((run.cost <= run.budget).all())
        True
    """

    requires: ClassVar[tuple[str, ...]] = ("budget",)
    several_resources: ClassVar[bool] = True
    renamed: ClassVar[dict[str, str]] = BTS.renamed
    before: ClassVar[dict[str, Any]] = BTS.before

    reward: Any = MatchedBeta()
    cost: Any = Gamma()

    def init(self, problem: Problem) -> KnapsackBTSState:
        return KnapsackBTSState(self.believe(problem), resources.Prices.equal(problem))

    def __call__(self, state: KnapsackBTSState, key: jax.Array) -> tuple[jax.Array, KnapsackBTSState]:
        reward, costs = self.draw_means(state.beliefs, key)
        return jnp.argmax(reward / state.prices.of(costs)), state

    def update(
        self, state: KnapsackBTSState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> KnapsackBTSState:
        return KnapsackBTSState(self.record_pull(state.beliefs, arm, reward, cost, key),
                                state.prices.after(jnp.reshape(cost, (-1,))))
