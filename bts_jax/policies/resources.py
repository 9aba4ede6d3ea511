"""What policies for several resources share: costs as vectors, prices of the resources, and a small
linear program.

The policies also play with one resource. Their costs are then vectors of length 1.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax import random
from bts_jax.contract import Problem


def count(problem: Problem) -> int:
    """The number of resources, d."""
    return 1 if problem.num_resources is None else problem.num_resources


def budgets(problem: Problem) -> jax.Array:
    """The budgets as a vector. [d]"""
    return jnp.reshape(problem.required("budget"), (count(problem),)).astype(jnp.float32)


def least_budget(problem: Problem) -> jax.Array:
    """The smallest budget, B. That of time counts as its number of rounds, T, so that the unit of
    time does not matter.
    """
    amounts = budgets(problem)
    return jnp.min(amounts if problem.time_cost is None else amounts.at[-1].set(rounds(problem)))


def rounds(problem: Problem) -> jax.Array:
    """T, the number of rounds for which the time is enough."""
    return budgets(problem)[-1] / problem.required("time_cost")


def draw(word: jax.Array, weights: jax.Array) -> jax.Array:
    """A random index with probabilities in proportion to the weights."""
    reached = jnp.cumsum(weights)
    below = (reached < random.unit(word) * reached[-1]).sum(dtype=jnp.int32)
    return lax.min(below, jnp.int32(len(weights) - 1))


class Left(NamedTuple):
    """What is left of the budgets.

    A cost may be smaller than the last bit of a large budget. So what rounding has taken is added
    to the next cost (Kahan's compensation).
    """

    amount: jax.Array  # [] or [d] float32
    lost: jax.Array

    @classmethod
    def all(cls, budget: jax.Array) -> "Left":
        """What is left before the first pull."""
        return cls(budget, jnp.zeros_like(budget))

    def after(self, cost: jax.Array) -> "Left":
        """What is left after a pull with this cost."""
        step = self.lost - cost
        amount = self.amount + step
        return Left(amount, step - (amount - self.amount))


class Prices(NamedTuple):
    """Prices of the resources by multiplicative weights: a resource whose budget is used up faster
    becomes more expensive.

    The price of resource j is the product of (1 + ε)^(B c_j / B_j) over all pulls, where c_j is its
    cost, B_j its budget and B the smallest budget, with ε = √(ln d / B) (Badanidiyuru, Kleinberg
    and Slivkins, FOCS 2013, Algorithm 2).
    """

    logs: jax.Array  # [d] the logarithms of the prices
    rate: jax.Array  # [d] ln(1 + ε) · B / B_j
    per_budget: jax.Array  # [d] B / B_j

    @classmethod
    def equal(cls, problem: Problem) -> "Prices":
        """The prices before the first pull."""
        budget, least = budgets(problem), least_budget(problem)
        per_budget = least / budget
        epsilon = jnp.sqrt(jnp.log(jnp.float32(len(budget))) / least)
        return cls(jnp.zeros_like(budget), jnp.log1p(epsilon) * per_budget, per_budget)

    def after(self, cost: jax.Array) -> "Prices":
        """The prices after a pull with this cost. [d]"""
        return self._replace(logs=self.logs + self.rate * cost)

    def of(self, costs: Sequence[jax.Array]) -> jax.Array:
        """The price of each arm's costs, which are one array [K] for each resource. [K]"""
        if len(costs) == 1:
            return costs[0]
        weights = jnp.exp(self.logs - self.logs.max())
        weights = weights / weights.sum() * self.per_budget
        return reduce(jnp.add, [cost * weight for cost, weight in zip(costs, weights, strict=True)])


class Mix(NamedTuple):
    """The solution of a small linear program: at most d arms, and how often each is to be
    pulled.
    """

    arms: jax.Array  # [d] int32, K or more if an entry is not an arm
    pulls: jax.Array  # [d] float32
    prices: jax.Array  # [d] float32, the dual prices

    def choose(self, word: jax.Array, reward: jax.Array) -> jax.Array:
        """One of the arms at random, by its pulls. If there are none, the arm with the largest
        reward. `reward`: [K]
        """
        pulls = jnp.where(self.arms < len(reward), self.pulls, 0)
        level, reached, arm = (
            random.unit(word) * pulls.sum(),
            jnp.float32(0),
            jnp.argmax(reward).astype(jnp.int32),
        )
        for j in reversed(range(len(pulls))):
            # From the last to the first, so that rounding cannot lead to an arm without pulls.
            arm = jnp.where((level > reached) & (pulls[j] > 0), self.arms[j], arm)
            reached = reached + pulls[j]
        return arm


MOST_PIVOTS = 100  # far more than are needed: about two for each resource
TOLERANCE = 1e-6  # of gains and of pivots, which are of the order of 1


class Vertex(NamedTuple):
    """A vertex of the linear program: as many variables as there are resources, its basis, and
    their values.
    """

    basis: jax.Array  # [d] int32, arms, or K + j for what is left of budget j
    inverse: jax.Array  # [d, d] the inverse of their columns
    level: jax.Array  # [d] their values
    steps: jax.Array  # int32
    done: jax.Array  # bool


def solve(reward: jax.Array, cost: jax.Array, budget: jax.Array) -> Mix:
    """Maximizes Σ_i r_i x_i subject to Σ_i c_ij x_i ≤ B_j and x ≥ 0, by the simplex method.

    The method walks from vertex to vertex. Each step replaces one variable of the basis. The last
    vertex is the optimum, up to rounding. Pulls are counted in multiples of the largest part of a
    budget that one takes, and rewards in multiples of the largest reward, so that all numbers are
    of the order of 1. `gap` certifies a solution.

    Args:
        reward: at least 0. [K]
        cost: at least 0. An arm with a positive reward has a positive cost. [K, d]
        budget: positive. [d]
    """
    num_arms, d = cost.shape
    part, unit = cost / budget, jnp.eye(d, dtype=jnp.float32)
    size = part.max(-1)
    size = jnp.where(size > 0, size, 1)
    worth = reward / size
    top = jnp.max(worth)
    top = jnp.where(top > 0, top, 1)
    columns = jnp.concatenate([part / size[:, None], unit])  # [K + d, d]
    worth = jnp.concatenate([worth / top, jnp.zeros(d)])

    def prices(vertex: Vertex) -> jax.Array:
        return (worth[vertex.basis][:, None] * vertex.inverse).sum(0)

    def step(vertex: Vertex) -> Vertex:
        gains = worth - (columns * prices(vertex)).sum(-1)
        gains = jnp.where(
            (jnp.arange(num_arms + d)[:, None] == vertex.basis).any(-1), -jnp.inf, gains
        )
        enters = jnp.argmax(gains).astype(jnp.int32)
        column = (vertex.inverse * columns[enters]).sum(-1)
        usable = column > 10 * TOLERANCE * jnp.abs(column).max()
        ratio = jnp.where(usable, vertex.level / jnp.where(usable, column, 1), jnp.inf)
        tied = usable & (ratio <= jnp.min(ratio) + TOLERANCE)
        # Of tied variables, that with the largest pivot.
        leaves = jnp.arange(d) == jnp.argmax(jnp.where(tied, column, -1))
        row = (
            jnp.where(leaves[:, None], vertex.inverse, 0).sum(0)
            / jnp.where(leaves, column, 0).sum()
        )
        inverse = jnp.where(leaves[:, None], row, vertex.inverse - column[:, None] * row)
        # Also if a number is NaN.
        done = ~(gains[enters] > TOLERANCE) | ~usable.any() | (vertex.steps >= MOST_PIVOTS)
        new = Vertex(
            jnp.where(leaves, enters, vertex.basis),
            inverse,
            jnp.maximum(inverse.sum(-1), 0),
            vertex.steps + 1,
            done,
        )
        return jax.tree.map(lambda new, old: jnp.where(done, old, new), new, vertex)._replace(
            done=done
        )

    start = Vertex(
        num_arms + jnp.arange(d, dtype=jnp.int32), unit, jnp.ones(d), jnp.int32(0), jnp.bool_(False)
    )
    found = lax.while_loop(lambda vertex: ~vertex.done, step, start)
    sizes = jnp.concatenate([size, jnp.ones(d)])
    return Mix(found.basis, found.level / sizes[found.basis], prices(found) * top / budget)


def gap(mix: Mix, reward: jax.Array, cost: jax.Array, budget: jax.Array) -> jax.Array:
    """How far the reward of a mix is at most from the optimum. Infinite if the mix exceeds a budget
    by more than rounding.

    The prices of the mix, made feasible, are an upper bound on the optimum.
    """
    arms, is_arm = jnp.minimum(mix.arms, len(reward) - 1), mix.arms < len(reward)
    pulls = jnp.where(is_arm, mix.pulls, 0)
    fits = ((pulls[:, None] * cost[arms]).sum(0) <= budget * (1 + 1e-4)).all()
    price = jnp.maximum(mix.prices, 0)
    charge = (cost * price).sum(-1)
    factor = jnp.max(
        jnp.where(
            reward > 0, reward / jnp.where(charge > 0, charge, jnp.finfo(jnp.float32).tiny), 0
        )
    )
    return jnp.where(fits, factor * (price * budget).sum() - (pulls * reward[arms]).sum(), jnp.inf)
