"""LagrangeBwK: a repeated game between a player who pulls arms and a player who charges for
resources.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks, random
from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


class LagrangeBwKState(NamedTuple):
    arm_scores: jax.Array  # [K] estimated payoffs of the arms so far, times the learning rate
    resource_scores: jax.Array  # [d] payoffs of the resources so far, times the learning rate
    probs: jax.Array  # [K] with which the last arm was chosen
    resource: jax.Array  # int32, the resource that was chosen with it
    per_budget: jax.Array  # [d] T / B_j
    rounds: jax.Array  # T


@pytree
class LagrangeBwK:
    """LagrangeBwK (Immorlica, Sankararaman, Schapire and Slivkins, FOCS 2019, Algorithm 1), for
    several resources and time.

    Two players play T rounds of a game. The payoff of arm i and resource j is the Lagrangian

        L(i, j) = r_i + 1 − (T / B_j) c_ij,

    which the first player wants to be large, and the second small. The first chooses arms by
    EXP3.P, and sees the payoff of what was chosen. The second chooses resources by Hedge, and sees
    the payoffs of all resources. Time is one of the resources.

    Reference: Immorlica, Sankararaman, Schapire and Slivkins, "Adversarial Bandits with Knapsacks",
    FOCS 2019. EXP3.P with the constants of Bubeck and Cesa-Bianchi (2012, Theorem 3.3), and Hedge
    with the rate √(8 ln d / T).

    Side information: the budgets, and time as a resource, from which T follows.

    Guarantee: regret O((T/B) √(KT)) up to logarithms on stationary bandits, and a constant
    competitive ratio, up to logarithms, against an adversary.

    Largest cost: the rule is made for costs in [0, 1]. It depends on the largest cost of one pull,
    and explores too much or too little if most costs are far below it.

    Deviations from the source: payoffs are scaled to [0, 1] before they are learned from. The
    confidence of EXP3.P is 1/T. Its share of random pulls, 1.05 √(K ln K / T), is at most 1/2: with
    T below 4.4 K ln K, or with another scale, the guarantee does not apply.

    Args:
        scale: a factor of the learning rates of both players.

    Example:
        >>> LagrangeBwK(scale=2.0)  # learns twice as fast
        LagrangeBwK(scale=2.0)
    """

    requires: ClassVar[tuple[str, ...]] = ("budget", "time_cost")
    several_resources: ClassVar[bool] = True
    bounded_costs: ClassVar[bool] = True

    scale: ArrayLike = 1.0

    def _check(self) -> None:
        checks.hyperparameter(self, "scale", 0, 1e6)

    def init(self, problem: Problem) -> LagrangeBwKState:
        budget, k, rounds = resources.budgets(problem), problem.num_arms, resources.rounds(problem)
        return LagrangeBwKState(
            arm_scores=jnp.zeros(k),
            resource_scores=jnp.zeros(len(budget)),
            probs=jnp.full(k, 1 / k, jnp.float32),
            resource=jnp.int32(0),
            per_budget=rounds / budget,
            rounds=jnp.maximum(rounds, 2),
        )

    def __call__(
        self, state: LagrangeBwKState, key: jax.Array
    ) -> tuple[jax.Array, LagrangeBwKState]:
        k = len(state.arm_scores)
        explore = jnp.minimum(1.05 * jnp.sqrt(k * jnp.log(jnp.float32(k)) / state.rounds), 0.5)
        probs = (1 - explore) * _softmax(state.arm_scores) + explore / k
        words = random.bits(key)
        arm, resource = (
            resources.draw(words[0], probs),
            resources.draw(words[1], _softmax(state.resource_scores)),
        )
        return arm, state._replace(probs=probs, resource=resource)

    def update(
        self,
        state: LagrangeBwKState,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> LagrangeBwKState:
        k, d = len(state.arm_scores), len(state.resource_scores)
        most = jnp.max(state.per_budget[:-1], initial=1)  # time always takes 1
        # L, from 1 − T/B to 2, scaled to [0, 1]. [d].
        payoffs = (reward + most - state.per_budget * cost) / (1 + most)
        log_k = jnp.log(jnp.float32(k))
        rate = self.scale * 0.95 * jnp.sqrt(log_k / (k * state.rounds))
        optimism = jnp.sqrt((log_k + jnp.log(state.rounds)) / (k * state.rounds))
        gained = jnp.where(jnp.arange(k) == arm, payoffs[state.resource], 0)
        return state._replace(
            arm_scores=state.arm_scores + rate * ((gained + optimism) / state.probs),
            resource_scores=state.resource_scores
            - self.scale * jnp.sqrt(8 * jnp.log(jnp.float32(d)) / state.rounds) * payoffs,
        )


def _softmax(scores: jax.Array) -> jax.Array:
    weights = jnp.exp(scores - scores.max())
    return weights / weights.sum()
