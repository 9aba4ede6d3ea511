"""What Thompson policies share: posteriors of rewards and of costs.

A Thompson policy is a rule that is applied to draws of expected rewards and costs. Its fields
`reward` and `cost` are the posteriors from which it draws.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.contract import Problem, State
from bts_jax.posteriors.gamma import Gamma


class Beliefs(NamedTuple):
    """The states of the posteriors of a policy."""

    reward: State
    costs: tuple[State, ...]  # one for each resource except time
    time: Any  # the time of a pull, if time is a resource


class Thompson:
    """A policy with posteriors of rewards and of costs."""

    reward: Any
    cost: Any  # one posterior for all resources, or a tuple with one for each resource except time

    def _check(self) -> None:
        several = isinstance(self.cost, (tuple, list))
        if several:
            object.__setattr__(self, "cost", tuple(self.cost))
        for name, parts in (
            ("reward", (self.reward,)),
            ("cost", self.cost if several else (self.cost,)),
        ):
            if not parts:
                raise ValueError(
                    f"{name} = {parts} is empty: give a posterior, such as "
                    "bts_jax.posteriors.Gamma()"
                )
            for one in parts:
                checks.contract(
                    f"posterior {name}",
                    one,
                    ("init", "draw", "record"),
                    "bts_jax.posteriors.Gamma(), or Gamma(mean=prices, strength=5) for a list of "
                    "prices",
                )
        for one in self.cost if several else (self.cost,):
            if getattr(one, "follows_costs", False):
                raise ValueError(
                    f"cost = {one} is a posterior of rewards: give one of costs, such as "
                    "bts_jax.posteriors.Beta() or Gamma()"
                )
            zero = (
                isinstance(one, Gamma)
                and checks.is_concrete(one.mean)
                and (np.asarray(one.mean) == 0).any()
            )
            if getattr(self.reward, "follows_costs", False) and zero:
                raise ValueError(
                    f"cost = {one} has a prior mean of 0, and reward = {self.reward} follows from "
                    "the costs: arms that were never pulled would cost nothing, and sell nothing. "
                    "Give Gamma a mean, or choose cost = bts_jax.posteriors.Beta() or "
                    "MatchedBeta()"
                )
        if "cost_mean" in getattr(self.reward, "requires", ()):
            raise ValueError(
                f"reward = {self.reward} has the expected costs as side information: give another "
                "posterior of rewards, such as bts_jax.posteriors.Beta()"
            )

    @property
    def learnable(self) -> dict[str, tuple[float, float]]:
        """The hyperparameters that `bts_jax.learn` learns by default, such as "reward.alpha", with
        their ranges.
        """
        return {
            f"{name}.{inner}": limits
            for name in ("reward", "cost")
            for inner, limits in getattr(getattr(self, name), "learnable", {}).items()
            if not isinstance(getattr(getattr(self, name), inner), tuple)
        }

    def believe(self, problem: Problem) -> Beliefs:
        """The beliefs before the first pull."""
        resources = 1 if problem.num_resources is None else problem.num_resources
        unknown = resources - (problem.time_cost is not None)
        posteriors = self._of_costs(unknown)
        costs = tuple(posterior.init(problem.of_cost(j)) for j, posterior in enumerate(posteriors))
        return Beliefs(self.reward.init(problem.of_reward()), costs, problem.time_cost)

    def draw_means(self, beliefs: Beliefs, key: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        """Draws an expected reward of each arm, and an expected cost for each resource. [K] each

        The cost of time is not drawn, but known.
        """
        key_reward, key_cost = jax.random.split(key)
        posteriors = self._of_costs(len(beliefs.costs))
        costs = [
            posterior.draw(state, jax.random.fold_in(key_cost, j) if j else key_cost)
            for j, (posterior, state) in enumerate(zip(posteriors, beliefs.costs, strict=True))
        ]
        known = (jnp.stack(costs),) if getattr(self.reward, "follows_costs", False) else ()
        reward = self.reward.draw(beliefs.reward, key_reward, *known)
        return reward, costs if beliefs.time is None else [
            *costs,
            jnp.full_like(reward, beliefs.time),
        ]

    def record_pull(
        self, beliefs: Beliefs, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> Beliefs:
        """The beliefs after a pull. `cost`: a number, or [d] for several resources"""
        words = random.several_bits(key, 1 + len(beliefs.costs))
        cost = jnp.reshape(cost, (-1,))
        posteriors = self._of_costs(len(beliefs.costs))
        costs = tuple(
            posterior.record(state, arm, cost[j], words[1 + j])
            for j, (posterior, state) in enumerate(zip(posteriors, beliefs.costs, strict=True))
        )
        return beliefs._replace(
            reward=self.reward.record(beliefs.reward, arm, reward, words[0]), costs=costs
        )

    def _of_costs(self, count: int) -> tuple[Any, ...]:
        """The posteriors of the costs of `count` resources."""
        if not isinstance(self.cost, tuple):
            return (self.cost,) * count
        if len(self.cost) != count:
            raise ValueError(
                f"cost of policy {type(self).__name__} has {len(self.cost)} posteriors, and the "
                f"bandit has {count} resource{'s' * (count > 1)} besides time: give one posterior "
                "for all of them, or one for each"
            )
        return self.cost


class LargestRatio(Thompson):
    """The rule of BTS for one resource: pull the arm with the largest drawn ratio of expected
    reward to expected cost.
    """

    requires: ClassVar[tuple[str, ...]] = ()

    def init(self, problem: Problem) -> Beliefs:
        return self.believe(problem)

    def __call__(self, state: Beliefs, key: jax.Array) -> tuple[jax.Array, Beliefs]:
        reward, (cost,) = self.draw_means(state, key)
        return jnp.argmax(reward / cost), state

    def update(
        self, state: Beliefs, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> Beliefs:
        return self.record_pull(state, arm, reward, cost, key)

    @property
    def logits(self) -> Callable[[Beliefs, jax.Array], jax.Array]:
        """A function of state and key: log θ^r − log θ^c for draws that have derivatives, the
        largest at the arm to pull. [K]

        If draws may be negative, they have no logarithm, and there is no such function.
        """
        if any(getattr(posterior, "negative", False) for posterior in (self.reward, self.cost)):
            raise AttributeError(
                f"{type(self).__name__} has no logits: its posteriors draw negative numbers"
            )
        if getattr(self.reward, "follows_costs", False):
            raise AttributeError(
                f"{type(self).__name__} has no logits: its rewards follow from its costs"
            )
        return self._logits

    def _logits(self, state: Beliefs, key: jax.Array) -> jax.Array:
        key_reward, key_cost = jax.random.split(key)
        return log_draw(self.reward, state.reward, key_reward) - log_draw(
            self.cost, state.costs[0], key_cost
        )


def log_draw(posterior: Any, state: State, key: jax.Array) -> jax.Array:
    """The logarithms of draws that have derivatives with respect to the posterior's
    hyperparameters. [K]
    """
    if hasattr(posterior, "log_draw"):
        return posterior.log_draw(state, key)
    return jnp.log(posterior.draw(state, key))
