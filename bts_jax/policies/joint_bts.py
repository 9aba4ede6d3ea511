"""Joint BTS: budgeted Thompson sampling that learns the joint distribution of an arm's reward and cost."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class JointBTSState(NamedTuple):
    both: jax.Array  # [K] int32, pulls with a reward and a cost
    reward_alone: jax.Array  # [K] int32, pulls with a reward and no cost
    cost_alone: jax.Array  # [K] int32, pulls with a cost and no reward


@pytree
class JointBTS:
    """Joint BTS: budgeted Thompson sampling for correlated rewards and costs (future work of Xia et al., IJCAI 2015).

    A pull has one of four outcomes: with or without a reward, and with or without a cost. Let N_i be the counts of these
    outcomes for arm i. In each round, draw for every arm i

        p_i ~ Dirichlet(N_i^11 + α, N_i^10 + α, N_i^01 + α, N_i^00 + α),   θ_i^r = p_i^11 + p_i^10,   θ_i^c = p_i^11 + p_i^01,

    and pull the arm with the largest θ_i^r / θ_i^c. A reward in [0, 1] becomes a success with that probability, and so does a
    cost, in two separate trials. The trials preserve the covariance of reward and cost. On Bernoulli feedback they change
    nothing.

    Reference: Xia et al., "Thompson Sampling for Budgeted Multi-Armed Bandits", IJCAI 2015, only poses the question.

    Side information: none.

    Guarantee: none known to us.

    Deviations from the source: the algorithm is ours. With α = 1/2 the marginal priors of θ^r and θ^c are uniform, as in
    `BTS`. This is also Jeffreys' prior.

    The draws are exact. θ^r / θ^c = (g^11 + g^10) / (g^11 + g^01), where the g are independent Gamma draws with the shapes of
    the Dirichlet distribution. So three Gamma draws are enough.

    Args:
        alpha: α, the prior number of pulls of each outcome, from 0.5 to 10⁷; as for `BTS`.

    Example:
        >>> JointBTS(alpha=1.0)  # uniform over the four outcomes' probabilities
        JointBTS(alpha=1.0)
    """

    requires: ClassVar[tuple[str, ...]] = ()

    alpha: ArrayLike = 0.5

    def _check(self) -> None:
        checks.hyperparameter(self, "alpha", 0.5, 1e7)

    def init(self, problem: Problem) -> JointBTSState:
        zeros = jnp.zeros(problem.num_arms, jnp.int32)
        return JointBTSState(both=zeros, reward_alone=zeros, cost_alone=zeros)

    def __call__(self, state: JointBTSState, key: jax.Array) -> tuple[jax.Array, JointBTSState]:
        shapes = (count.astype(jnp.float32) + self.alpha for count in state)
        return jnp.argmax(random.rejection(propose_ratio, key, *shapes, hashes=2)), state

    def update(
        self, state: JointBTSState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> JointBTSState:
        words = random.bits(key)
        earned, paid = random.happens(words[0], reward), random.happens(words[1], cost)
        return JointBTSState(
            both=state.both.at[arm].add((earned & paid).astype(jnp.int32)),
            reward_alone=state.reward_alone.at[arm].add((earned & ~paid).astype(jnp.int32)),
            cost_alone=state.cost_alone.at[arm].add((paid & ~earned).astype(jnp.int32)),
        )


def propose_ratio(
    words: list[random.Words], both: jax.Array, reward_alone: jax.Array, cost_alone: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Proposes θ^r / θ^c from three Gamma draws with these shapes. Also returns whether the proposal is accepted."""
    normals = *random.normal_pair(words[0]), random.normal_pair(words[1])[0]
    shapes = both, reward_alone, cost_alone
    (x, log_x), (y, log_y), (z, log_z) = map(random.propose_gamma, shapes, normals)
    return (x + y) / (x + z), random.accepts(words[1], log_x + log_y + log_z)
