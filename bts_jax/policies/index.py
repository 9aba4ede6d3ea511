"""What index policies share: the statistics of the arms, and how the largest index is chosen."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.engine.fixed_point import Sum, coins


class ArmStatistics(NamedTuple):
    """How often each arm was pulled, what it earned and cost, and what the policy makes of that."""

    pulls: jax.Array  # [K] int32, n
    totals: Sum  # [K, 2], rewards r and costs c; or [K, 4], also r(1 − r) and c(1 − c), of which variances are made
    kept: Any  # arrays [K] float32: functions of n and the averages, worked out anew for the arm that was pulled alone
    rounds: jax.Array  # int32, pulls of all arms together; t − 1 in round t
    fact: Any = ()  # what the policy was told, and keeps

    @classmethod
    def zeros(cls, num_arms: int, keep: "Keep", variances: bool = False) -> "ArmStatistics":
        totals = Sum.zeros((num_arms, 4 if variances else 2))
        one = jnp.ones(num_arms, jnp.float32)  # a stand-in: the index of an arm that was never pulled does not count
        return cls(jnp.zeros(num_arms, jnp.int32), totals, keep(one, *[one] * totals.whole.shape[1]), jnp.int32(0))

    def record(self, arm: jax.Array, reward: jax.Array, cost: jax.Array, keep: "Keep") -> "ArmStatistics":
        """These statistics and one more pull."""
        pulls = self.pulls[arm] + 1
        amounts = [reward, cost]
        if self.totals.whole.shape[1] == 4:
            amounts += [x * (1 - x) for x in amounts]
        sums = zip(self.totals.whole[arm], self.totals.rest[arm], amounts, strict=True)
        sums = [Sum(whole, rest).add(coins(amount)) for whole, rest, amount in sums]
        n = pulls.astype(jnp.float32)
        totals = jax.tree.map(lambda *parts: jnp.stack(parts), *sums)
        old = self._replace(rounds=(), fact=())
        new = old._replace(pulls=pulls, totals=totals, kept=keep(n, *(total.value() / n for total in sums)))
        arms = jax.tree.map(lambda new, old: old.at[arm].set(new), new, old)
        return arms._replace(rounds=self.rounds + 1, fact=self.fact)


Keep = Callable[..., Any]  # n and the averages of what is summed, r̄, c̄ and so on, to what is kept of an arm


class Averages(NamedTuple):
    """What several policies keep of an arm."""

    reward: jax.Array  # [K] r̄
    cost: jax.Array  # [K] c̄
    width: jax.Array  # [K] 1/√n

    @classmethod
    def of(cls, n: jax.Array, reward_mean: jax.Array, cost_mean: jax.Array) -> "Averages":
        return cls(reward=reward_mean, cost=cost_mean, width=1 / jnp.sqrt(n))


class IndexPolicy:
    """A policy that pulls the arm with the largest index.

    The class gives `keep`, what it keeps of an arm, and `index`, made of what is kept of all arms, unless that is the index
    already; and `fact`, what it keeps of what it is told, if it names something in `told`.
    """

    told: ClassVar[tuple[str, ...]] = ()
    variances: ClassVar[bool] = False  # whether `keep` gets the averages of r(1 − r) and c(1 − c), too

    keep: Keep

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        return state.kept

    def fact(self, problem: Problem) -> Any:
        """What is kept of what is told."""
        return ()

    def init(self, problem: Problem) -> ArmStatistics:
        return ArmStatistics.zeros(problem.num_arms, self.keep, self.variances)._replace(fact=self.fact(problem))

    def __call__(self, state: ArmStatistics, key: jax.Array) -> tuple[jax.Array, ArmStatistics]:
        return choose(self.index(state), state.pulls), state

    def update(
        self, state: ArmStatistics, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> ArmStatistics:
        return state.record(arm, reward, cost, self.keep)


class FloorPolicy(IndexPolicy):
    """One that is told λ, a lower bound on the expected costs, unless it is given as `min_cost`."""

    told: ClassVar[tuple[str, ...]] = ("min_cost",)

    min_cost: ArrayLike | None

    def _check(self) -> None:
        if self.min_cost is not None:
            checks.hyperparameter(self, "min_cost", 0, 1, low_excluded=True)

    def fact(self, problem: Problem) -> jax.Array:
        """λ"""
        return jnp.asarray(problem.min_cost if self.min_cost is None else self.min_cost, jnp.float32)


def over(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """The quotient, infinite where the denominator is not positive."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), jnp.inf)


def choose(index: jax.Array, pulls: jax.Array) -> jax.Array:
    """The arm with the largest index, the lowest number among equals.

    An infinite index, and that of an arm never pulled, means "explore me": such arms go first, the least pulled of them
    before the others. So every arm is pulled once before any index counts, in the order of their numbers.
    """
    # One number per arm decides, and one pass over the arms: floats in the order of their bits, and above all finite ones
    # those that are to be explored. (There is room for 2²³ pulls: more count as that many.)
    bits = lax.bitcast_convert_type(index, jnp.int32)
    ordered = bits ^ ((bits >> 31) & jnp.int32(0x7FFFFFFF))
    explore = (pulls == 0) | ~(index < jnp.inf)
    rank = jnp.where(explore, jnp.int32(0x7FFFFFFF) - jnp.minimum(pulls, jnp.int32(0x7FFFFF)), ordered)
    return lax.argmax(rank, 0, jnp.int32)
