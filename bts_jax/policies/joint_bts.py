"""Joint BTS: budgeted Thompson sampling that learns how an arm's reward and cost go together."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.pytrees import pytree


class JointBTSState(NamedTuple):
    both: jax.Array  # [K] int32, pulls that earned and cost
    reward_alone: jax.Array  # [K] int32, pulls that earned and did not cost
    cost_alone: jax.Array  # [K] int32, pulls that cost and did not earn


@pytree
class JointBTS:
    """Budgeted Thompson sampling for rewards and costs that may be correlated (future work of Xia et al., IJCAI 2015).

    A pull has one of four outcomes, as it earned or not and cost or not. With N their counts, each round, for every arm i,

        p_i ~ Dirichlet(N_i^11 + α, N_i^10 + α, N_i^01 + α, N_i^00 + α),   θ_i^r = p_i^11 + p_i^10,   θ_i^c = p_i^11 + p_i^01,

    and the arm with the largest θ_i^r / θ_i^c is pulled. A reward in [0, 1] becomes a success with that probability, and so
    does a cost, by a trial each; what correlation the pair has, the trials keep. On Bernoulli feedback they change nothing.

    Side information: none.

    Guarantee: none known to us.

    The paper names the question alone; this answer is ours. With α = 1/2 reward and cost by themselves have uniform priors, as
    in `BTS`; it is Jeffreys's prior, too.

    The draws are exact. θ^r / θ^c = (g^11 + g^10) / (g^11 + g^01), where g are independent Gamma draws whose shapes are
    Dirichlet's: three of them will do.

    Args:
        alpha: α, prior pulls of each outcome, from 0.5 to 10⁷; as for `BTS`.

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
    """A proposal for θ^r / θ^c made of three Gamma draws with these shapes, and whether it is accepted."""
    normals = *random.normal_pair(words[0]), random.normal_pair(words[1])[0]
    shapes = both, reward_alone, cost_alone
    (x, log_x), (y, log_y), (z, log_z) = map(random.propose_gamma, shapes, normals)
    return (x + y) / (x + z), random.accepts(words[1], log_x + log_y + log_z)
