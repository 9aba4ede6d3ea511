"""LinConTS: Thompson sampling in a linear program whose constraint holds in every round."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import random
from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.policies.thompson import Beliefs, Thompson
from bts_jax.posteriors import Beta, Gamma
from bts_jax.pytrees import pytree

LARGE = 100.0  # added to rewards, in multiples of the largest


class LinConTSState(NamedTuple):
    beliefs: Beliefs
    pulls: jax.Array  # [K] int32
    per_round: jax.Array  # [d] B_j / T, and 1 for time


@pytree
class LinConTS(Thompson):
    """LinConTS (Saxena et al., AISTATS 2020): Thompson sampling in a linear program for one round.

    Each arm is pulled once first. In each further round, draw the expected rewards θ^r and costs
    θ^c of all arms from their posteriors, and solve

        maximize Σ_i θ_i^r x_i   subject to   Σ_i θ_ij^c x_i ≤ B_j / T,   Σ_i x_i = 1,   x ≥ 0,

    where T is the number of rounds. Pull arm i with probability x_i. If no mix of the arms
    satisfies the constraints, pull a random arm.

    Reference: Saxena, Gonzalez and Jaldén, "Thompson Sampling for Linearly Constrained Bandits",
    AISTATS 2020, arXiv 2004.09258.

    Side information: the budgets, and time as a resource, from which T follows. Posteriors may
    have more.

    Guarantee: none known to us for budgets. In the source, regret and violation are O(log T).

    Deviations from the source: taken from the authors' program. There, an arm pays a known amount
    with an unknown probability p_i, and the constraint is that a pull pays with a probability of
    at least η, Σ_i p_i x_i ≥ η. One Beta posterior serves the objective and the constraint. Here
    rewards and costs are learned apart, and the constraint keeps costs within the budgets. The
    source's posterior for costs is `Beta()`; the default does not depend on their unit. The source
    breaks the constraint by a small amount; here a run ends when a budget is used up.

    The linear program of `TSFixed` has Σ x ≤ 1. It may leave the cheapest arms alone, and its runs
    then end before the time does. If no mix fits, it pulls the arms that earn most for their cost.
    Here a mix that exceeds a budget per round by up to 1% counts as one that fits. If even the
    cheapest arm exceeds a budget per round, most pulls are of random arms.

    Args:
        reward: the posterior of expected rewards; see `bts_jax.posteriors`.
        cost: the posterior of expected costs: one for all resources, or a tuple with one for each
            resource except time.

    Example:
        >>> LinConTS(cost=Beta())  # as in the source
        LinConTS(reward=Beta(alpha=1.0, beta=1.0), cost=Beta(alpha=1.0, beta=1.0))
    """

    requires: ClassVar[tuple[str, ...]] = ("budget", "time_cost")
    several_resources: ClassVar[bool] = True

    reward: Any = Beta()
    cost: Any = Gamma()

    def init(self, problem: Problem) -> LinConTSState:
        per_round = resources.budgets(problem) / resources.rounds(problem)
        pulls = jnp.zeros(problem.num_arms, jnp.int32)
        return LinConTSState(self.believe(problem), pulls, per_round)

    def __call__(self, state: LinConTSState, key: jax.Array) -> tuple[jax.Array, LinConTSState]:
        key_draw, key_arm = jax.random.split(key)
        reward, costs = self.draw_means(state.beliefs, key_draw)
        # A pull is worth so much more than its reward that Σ x = 1, if that is possible.
        most = reward.max()
        worth = reward / jnp.where(most > 0, most, 1) + LARGE
        mix = resources.solve(worth, jnp.stack(costs, -1), state.per_round)
        share = jnp.where(mix.arms < len(reward), mix.pulls, 0).sum()
        words = random.several_bits(key_arm, 2)
        mixed = mix.choose(words[0], reward)
        other = random.one_of(words[1], jnp.int32(len(reward)))
        arm = jnp.where(share >= 1 - 1 / LARGE, mixed, other)
        fresh = state.pulls == 0
        return jnp.where(fresh.any(), jnp.argmax(fresh).astype(jnp.int32), arm), state

    def update(
        self,
        state: LinConTSState,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> LinConTSState:
        beliefs = self.record_pull(state.beliefs, arm, reward, cost, key)
        return state._replace(beliefs=beliefs, pulls=state.pulls.at[arm].add(1))
