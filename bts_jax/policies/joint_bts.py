"""Joint BTS: budgeted Thompson sampling that learns the joint distribution of an arm's reward and
cost.
"""

from typing import ClassVar

import jax

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies.thompson import LargestRatio
from bts_jax.posteriors.joint import Joint, JointState
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class JointBTS(LargestRatio):
    """Joint BTS: budgeted Thompson sampling for correlated rewards and costs (future work of Xia et
    al., IJCAI 2015).

    A pull has one of four outcomes: with or without a reward, and with or without a cost. Let N_i
    be the counts of these outcomes for arm i. In each round, draw for every arm i

        p_i ~ Dirichlet(N_i^11 + α, N_i^10 + α, N_i^01 + α, N_i^00 + α),
        θ_i^r = p_i^11 + p_i^10,   θ_i^c = p_i^11 + p_i^01,

    and pull the arm with the largest θ_i^r / θ_i^c. A reward in [0, 1] becomes a success with that
    probability, and so does a cost, in two separate trials. The trials preserve the covariance of
    reward and cost. On Bernoulli feedback they change nothing.

    Reference: Xia et al., "Thompson Sampling for Budgeted Multi-Armed Bandits", IJCAI 2015, only
    poses the question.

    Side information: none.

    Guarantee: none known to us.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: the algorithm is ours. With α = 1/2 the marginal priors of θ^r and
    θ^c are uniform, as in `BTS`. This is also Jeffreys' prior.

    Args:
        alpha: α, the prior number of pulls of each outcome, from 0.5 to 10⁷; as for `BTS`.

    Example:
        >>> JointBTS(alpha=1.0)  # uniform over the four outcomes' probabilities
        JointBTS(alpha=1.0)
    """

    bounded_costs: ClassVar[bool] = True

    alpha: ArrayLike = 0.5

    def _check(self) -> None:
        checks.hyperparameter(self, "alpha", 0.5, 1e7)

    def believe(self, problem: Problem) -> JointState:
        return Joint(self.alpha).init(problem)

    def draw_means(self, beliefs: JointState, key: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        reward, cost = Joint(self.alpha).draw(beliefs, key)
        return reward, [cost]

    def record_pull(
        self,
        beliefs: JointState,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> JointState:
        return Joint(self.alpha).record(beliefs, arm, reward, cost, key)
