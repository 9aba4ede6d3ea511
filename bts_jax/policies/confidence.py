"""Confidence bounds for several resources: upper bounds on rewards and lower bounds on costs."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.policies.index import ArmStatistics
from bts_jax.typing import ArrayLike


class Bounds(NamedTuple):
    """The averages of the arms, and the bounds r̄ + φ(r̄, n) and c̄ − φ(c̄, n) with φ(x, n) =
    √(νx/n) + ν/n.

    The radius is that of Badanidiyuru, Kleinberg and Slivkins (FOCS 2013) and of Agrawal and
    Devanur (EC 2014). Their ν is of the order log(dKT) with an open constant. Here ν = scale ·
    log(dKB), where B is the smallest budget; that of time counts as the number of rounds.
    """

    arms: ArmStatistics
    nu: jax.Array  # ν
    time: Any  # the time of a pull, if time is a resource

    @classmethod
    def zeros(cls, problem: Problem, scale: ArrayLike) -> "Bounds":
        d, least = resources.count(problem), resources.least_budget(problem)
        nu = jnp.maximum(scale * jnp.log(least * (problem.num_arms * d)), 0).astype(jnp.float32)
        return cls(ArmStatistics.zeros(problem.num_arms, resources=(d,)), nu, problem.time_cost)

    @property
    def reward(self) -> jax.Array:
        """The upper bounds on the rewards, at most 1. [K]"""
        mean = self.arms.reward_mean
        return jnp.minimum(mean + self._radius(mean, self.arms.n), 1)

    @property
    def cost(self) -> jax.Array:
        """The lower bounds on the costs, at least 0. The cost of time is known. [K, d]"""
        mean = self.arms.cost_mean
        bound = jnp.maximum(mean - self._radius(mean, self.arms.n[:, None]), 0)
        return bound if self.time is None else bound.at[:, -1].set(self.time)

    def _radius(self, mean: jax.Array, n: jax.Array) -> jax.Array:
        return jnp.sqrt(self.nu * mean / n) + self.nu / n

    def record(self, arm: jax.Array, reward: jax.Array, cost: jax.Array) -> "Bounds":
        """The bounds after a pull."""
        return self._replace(arms=self.arms.record(arm, reward, jnp.reshape(cost, (-1,))))
