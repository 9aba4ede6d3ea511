"""KnapsackBTS: budgeted Thompson sampling with several resources."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bts_jax.policies.bts import BTS
from bts_jax.policies.thompson_lp import ThompsonLPState, TSUpdate
from bts_jax.posteriors import Gamma, MatchedBeta
from bts_jax.pytrees import pytree


@pytree
class KnapsackBTS(TSUpdate):
    """Budgeted Thompson sampling with several resources: our extension of BTS (Xia et al., IJCAI
    2015, Algorithm 1).

    In each round, draw the expected rewards θ^r and costs θ^c of all arms from their posteriors, as
    in BTS, and solve the linear program with the budgets B_j(t) that remain,

        maximize Σ_i θ_i^r x_i   subject to   Σ_i θ_ij^c x_i ≤ B_j(t),   x ≥ 0.

    Pull arm i with probability x_i / Σ x. With one resource, the linear program has a single arm,
    the one with the largest θ_i^r / θ_i^c, and the policy is `BTS` with the same posteriors, bit
    for bit.

    With several resources it is `TSUpdate` with sharpened posteriors: draws have half the variance.
    At a budget of 1,000 its mean regret is 0.77 to 0.83 times that of `TSUpdate`, on 1,000 problems
    of each of the five kinds of `bts-jax study knapsacks`. At 10,000 it is 0.70 to 0.73 times that
    of `TSUpdate` on shops, and as much (0.99) on Bernoulli arms, where sharper draws lose more
    runs. The posteriors were chosen on other problems.

    Reference: ours. The draws are those of Xia et al. (IJCAI 2015), and the linear program is that
    of Ferreira, Simchi-Levi and Wang (Operations Research 2018).

    Side information: the budgets. The time of a pull is known, if time is a resource. Posteriors
    may have more.

    Guarantee: none known to us for several resources.

    Args:
        reward: the posterior of expected rewards; see `bts_jax.posteriors`.
        cost: the posterior of expected costs: one for all resources, or a tuple with one for each
            resource except time.

    Example:
        >>> import jax, bts_jax
        >>> shop = bts_jax.Timed(bts_jax.Pricing(prices=[[0.4], [0.8]], demand=[[0.7], [0.3]]))
        >>> # 40 units to sell to 100 customers
        >>> run = bts_jax.simulate(KnapsackBTS(), shop, [40, 100], jax.random.key(0))
        >>> bool((run.cost <= run.budget).all())
        True
    """

    renamed: ClassVar[dict[str, str]] = BTS.renamed
    before: ClassVar[dict[str, Any]] = BTS.before

    reward: Any = MatchedBeta(sharpness=2.0)
    cost: Any = Gamma(sharpness=2.0)

    def __call__(self, state: ThompsonLPState, key: jax.Array) -> tuple[jax.Array, ThompsonLPState]:
        if len(state.beliefs.costs) > 1 or state.beliefs.time is not None:
            return super().__call__(state, key)
        reward, (cost,) = self.draw_means(state.beliefs, key)
        return jnp.argmax(reward / cost), state
