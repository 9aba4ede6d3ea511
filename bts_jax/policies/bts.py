"""BTS: budgeted Thompson sampling, the paper's algorithm."""

from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from bts_jax import checks, random
from bts_jax.contract import Problem


@chex.dataclass(frozen=True, mappable_dataclass=False)
class BTSState:
    reward_successes: jax.Array  # [K] int32, S^r
    cost_successes: jax.Array  # [K] int32, S^c
    pulls: jax.Array  # [K] int32
    drawn: jax.Array  # [K] this round's ratios that were accepted in earlier calls, 0 where there is none yet


@checks.on_creation
@chex.dataclass(frozen=True, mappable_dataclass=False)
class BTS:
    """Budgeted Thompson sampling (Xia et al., IJCAI 2015, Algorithm 1).

    Each round, for every arm i,

        θ_i^r ~ Beta(S_i^r + α, F_i^r + β),   θ_i^c ~ Beta(S_i^c + α, F_i^c + β),

    where S and F count the successes and failures of reward and cost so far; the arm with the largest θ_i^r / θ_i^c is
    pulled. A reward or cost in [0, 1] becomes a success with that probability; for Bernoulli arms this changes nothing,
    so one policy serves all bandits.

    Told in advance: nothing.

    The Beta draws are exact: proposals that were not accepted are drawn again in another call, and those that were are
    kept meanwhile. This costs some calls that answer "not decided yet", and changes no probability.

    Args:
        alpha: prior successes α; the paper's prior is uniform, α = β = 1.
        beta: prior failures β.

    Example:
        >>> import jax, bts_jax
        >>> bandit = bts_jax.Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9])
        >>> run = bts_jax.simulate(BTS(), bandit, 100, jax.random.key(0))
        >>> run.cost.tolist()
        [100.0]
    """

    told: ClassVar[tuple[str, ...]] = ()

    alpha: ArrayLike = 1.0
    beta: ArrayLike = 1.0

    def _check(self) -> None:
        checks.hyperparameter("alpha", self.alpha, 0.5, 1e7)
        checks.hyperparameter("beta", self.beta, 0.5, 1e7)

    def init(self, problem: Problem) -> BTSState:
        none = jnp.zeros((problem.num_arms,), jnp.int32)
        return BTSState(reward_successes=none, cost_successes=none, pulls=none, drawn=jnp.zeros(none.shape, jnp.float32))

    def __call__(self, state: BTSState, key: jax.Array) -> tuple[jax.Array, BTSState]:
        shape = state.pulls.shape

        def gammas(successes: jax.Array, stream: int):
            """Gamma proposals G_S, G_F, whose G_S / (G_S + G_F) is a Beta draw; and their log probability."""
            normals = random.normal_pair(random.bits(key, shape, stream))
            success, log_s = random.propose_gamma(successes.astype(jnp.float32) + self.alpha, normals[0])
            failure, log_f = random.propose_gamma((state.pulls - successes).astype(jnp.float32) + self.beta, normals[1])
            return success, success + failure, log_s + log_f

        reward, reward_sum, log_reward = gammas(state.reward_successes, 0)
        cost, cost_sum, log_cost = gammas(state.cost_successes, 1)
        accepted = random.exponential(random.bits(key, shape, 2)[0]) > -(log_reward + log_cost)
        proposed = jnp.where(accepted, reward * cost_sum / (reward_sum * cost), 0.0)
        ratio = jnp.where(state.drawn > 0, state.drawn, proposed)
        decided = jnp.all(ratio > 0)
        arm = jnp.where(decided, lax.argmax(ratio, 0, jnp.int32), -1)
        return arm, state.replace(drawn=jnp.where(decided, 0.0, ratio))

    def update(self, state: BTSState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array) -> BTSState:
        luck = random.bits(key)
        hit = jnp.arange(state.pulls.shape[0]) == arm
        return state.replace(
            reward_successes=state.reward_successes + (hit & random.happens(luck[0], reward)),
            cost_successes=state.cost_successes + (hit & random.happens(luck[1], cost)),
            pulls=state.pulls + hit,
        )
