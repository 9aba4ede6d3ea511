"""BTS: budgeted Thompson sampling, the paper's algorithm."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class BTSState(NamedTuple):
    reward_successes: jax.Array  # [K] int32, S^r
    cost_successes: jax.Array  # [K] int32, S^c
    pulls: jax.Array  # [K] int32


@pytree
class BTS:
    """Budgeted Thompson sampling (Xia et al., IJCAI 2015, Algorithm 1).

    In each round, draw for every arm i

        θ_i^r ~ Beta(S_i^r + α^r, F_i^r + β^r),   θ_i^c ~ Beta(S_i^c + α^c, F_i^c + β^c),

    where S and F count the successes and failures of reward and cost so far. Pull the arm with the largest θ_i^r / θ_i^c. A
    reward or cost in [0, 1] becomes a success with that probability. For Bernoulli arms this changes nothing, so one policy
    works with all bandits.

    Reference: Xia et al., "Thompson Sampling for Budgeted Multi-Armed Bandits", IJCAI 2015.

    Side information: none.

    Guarantee: regret O(ln B) on every fixed bandit (Theorem 1 of the source) for uniform priors, which are the default. For
    other priors we know of no guarantee.

    Deviations from the source: the priors are hyperparameters; the source has uniform priors. The Beta draws are exact:
    rejection sampling continues until a draw is accepted.

    On a classical bandit, where every pull costs 1, this policy is not exactly classical Thompson sampling. It does not know
    the costs, and its draws θ^c ~ Beta(n + 1, 1) make it explore somewhat more. With `BTS(cost_alpha=1e7, cost_beta=0.5)` the
    prior states that pulls cost 1, and the policy is classical Thompson sampling.

    Each prior count is from 0.5 to 10⁷. Smaller counts are rejected, because draws underflow: a fifth of the draws from
    Beta(0.01, 0.01) are too small for float32, and their ratios cannot be compared.

    Args:
        reward_alpha: prior successes α^r. The paper's priors are uniform: every α and β is 1.
        reward_beta: prior failures β^r.
        cost_alpha: prior successes α^c.
        cost_beta: prior failures β^c.

    Example:
        >>> import jax, bts_jax
        >>> bandit = bts_jax.Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9])
        >>> run = bts_jax.simulate(BTS(), bandit, 100, jax.random.key(0))
        >>> run.cost.tolist()
        [100.0]
    """

    requires: ClassVar[tuple[str, ...]] = ()
    learnable: ClassVar[dict[str, tuple[float, float]]] = dict.fromkeys(
        ("reward_alpha", "reward_beta", "cost_alpha", "cost_beta"), (0.5, 1000.0)
    )

    reward_alpha: ArrayLike = 1.0
    reward_beta: ArrayLike = 1.0
    cost_alpha: ArrayLike = 1.0
    cost_beta: ArrayLike = 1.0

    def _check(self) -> None:
        for name in ("reward_alpha", "reward_beta", "cost_alpha", "cost_beta"):
            checks.hyperparameter(self, name, 0.5, 1e7)

    def init(self, problem: Problem) -> BTSState:
        zeros = jnp.zeros(problem.num_arms, jnp.int32)
        return BTSState(reward_successes=zeros, cost_successes=zeros, pulls=zeros)

    def __call__(self, state: BTSState, key: jax.Array) -> tuple[jax.Array, BTSState]:
        key_reward, key_cost = jax.random.split(key)
        reward = random.beta(key_reward, *self.reward_posterior(state))
        cost = random.beta(key_cost, *self.cost_posterior(state))
        return jnp.argmax(reward / cost), state

    def update(self, state: BTSState, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array) -> BTSState:
        words = random.bits(key)
        return BTSState(
            reward_successes=state.reward_successes.at[arm].add(random.happens(words[0], reward).astype(jnp.int32)),
            cost_successes=state.cost_successes.at[arm].add(random.happens(words[1], cost).astype(jnp.int32)),
            pulls=state.pulls.at[arm].add(1),
        )

    def reward_posterior(self, state: BTSState) -> tuple[jax.Array, jax.Array]:
        """Returns the parameters of the arms' Beta distributions of θ^r. [K] each"""
        return self.posterior(state.reward_successes, state.pulls, self.reward_alpha, self.reward_beta)

    def cost_posterior(self, state: BTSState) -> tuple[jax.Array, jax.Array]:
        """Returns the parameters of the arms' Beta distributions of θ^c. [K] each"""
        return self.posterior(state.cost_successes, state.pulls, self.cost_alpha, self.cost_beta)

    def posterior(
        self, successes: jax.Array, pulls: jax.Array, alpha: ArrayLike, beta: ArrayLike
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the parameters of the Beta distributions after `successes` in `pulls`. [K] each"""
        return successes.astype(jnp.float32) + alpha, (pulls - successes).astype(jnp.float32) + beta

    def logits(self, state: BTSState, key: jax.Array) -> jax.Array:
        """Returns log θ^r − log θ^c for draws with `key` that have derivatives. The largest is at the arm to pull. [K]"""
        shapes = jnp.stack([*self.reward_posterior(state), *self.cost_posterior(state)])
        a, b, c, d = jnp.log(random.gamma(key, shapes))  # Beta(a, b) = Gamma(a) / (Gamma(a) + Gamma(b))
        return (a - jnp.logaddexp(a, b)) - (c - jnp.logaddexp(c, d))
