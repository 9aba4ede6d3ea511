"""Index policies: the statistics of the arms, and the choice of the arm with the largest index."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.typing import ArrayLike


class ArmStatistics(NamedTuple):
    """The number of pulls of each arm, and the sums of its rewards and costs.

    Sums are float32. Sums of zeros and ones are exact up to 2²⁴ pulls of an arm.
    """

    pulls: jax.Array  # [K] int32
    # Sums of rewards r [K] and costs c [K] or [K, d]; for variances also of r(1 − r) and c(1 − c);
    # for covariances also of rc.
    totals: tuple[jax.Array, ...]
    rounds: jax.Array  # int32, total number of pulls; t − 1 in round t
    side_info: Any = ()  # what the index needs from the side information

    @classmethod
    def zeros(
        cls,
        num_arms: int,
        variances: bool = False,
        resources: tuple[int, ...] = (),
        products: bool = False,
    ) -> "ArmStatistics":
        """The statistics before the first pull. `resources` is (d,) if costs are vectors.
        `products` needs `variances`.
        """
        shapes = [(num_arms,), (num_arms, *resources)] * (2 if variances else 1) + [
            (num_arms,)
        ] * products
        return cls(jnp.zeros(num_arms, jnp.int32), tuple(map(jnp.zeros, shapes)), jnp.int32(0))

    @property
    def n(self) -> jax.Array:
        """Pulls as float32; 1 for an arm that was never pulled, so that its averages are 0. [K]"""
        return jnp.maximum(self.pulls, 1).astype(jnp.float32)

    @property
    def reward_mean(self) -> jax.Array:
        """r̄ [K]"""
        return self._average(0)

    @property
    def cost_mean(self) -> jax.Array:
        """c̄ [K] or [K, d]"""
        return self._average(1)

    @property
    def reward_rest(self) -> jax.Array:
        """The average of r(1 − r). It is 0 on Bernoulli arms. [K]"""
        return self._average(2)

    @property
    def cost_rest(self) -> jax.Array:
        """The average of c(1 − c). It is 0 on Bernoulli arms. [K]"""
        return self._average(3)

    @property
    def product_mean(self) -> jax.Array:
        """The average of rc. [K]"""
        return self._average(4)

    def _average(self, i: int) -> jax.Array:
        total, n = self.totals[i], self.n
        return total / (n if total.ndim == n.ndim else n[..., None])

    def record(self, arm: jax.Array, reward: jax.Array, cost: jax.Array) -> "ArmStatistics":
        """Returns the statistics after one more pull."""
        amounts = [reward, cost]
        if len(self.totals) > 2:
            amounts += [x * (1 - x) for x in amounts]
        if len(self.totals) > 4:
            amounts.append(reward * cost)

        totals = tuple(
            total.at[arm].add(amount) for total, amount in zip(self.totals, amounts, strict=True)
        )
        return self._replace(pulls=self.pulls.at[arm].add(1), totals=totals, rounds=self.rounds + 1)


class IndexPolicy:
    """A policy that pulls the arm with the largest index.

    A subclass defines `index`. If it has side information (`requires`), it also defines
    `side_info`.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    variances: ClassVar[bool] = False  # whether r(1 − r) and c(1 − c) are also summed
    products: ClassVar[bool] = False  # whether rc is also summed; only with `variances`

    def index(self, state: ArmStatistics) -> jax.Array:
        """The index of each arm. [K]"""
        raise NotImplementedError

    def side_info(self, problem: Problem) -> Any:
        """Returns what the index needs from the side information."""
        return ()

    def init(self, problem: Problem) -> ArmStatistics:
        zeros = ArmStatistics.zeros(problem.num_arms, self.variances, products=self.products)
        return zeros._replace(side_info=self.side_info(problem))

    def __call__(self, state: ArmStatistics, key: jax.Array) -> tuple[jax.Array, ArmStatistics]:
        return choose(self.index(state), state.pulls), state

    def update(
        self,
        state: ArmStatistics,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> ArmStatistics:
        return state.record(arm, reward, cost)


class FloorPolicy(IndexPolicy):
    """An index policy that needs λ, a lower bound on the expected costs.

    λ is the hyperparameter `min_cost` if it is given. Otherwise λ is side information.
    """

    requires: ClassVar[tuple[str, ...]] = ("min_cost",)

    min_cost: ArrayLike | None

    def _check(self) -> None:
        if self.min_cost is not None:
            checks.hyperparameter(self, "min_cost", 0, 1, low_excluded=True)

    def side_info(self, problem: Problem) -> jax.Array:
        """λ"""
        return jnp.asarray(
            problem.required("min_cost") if self.min_cost is None else self.min_cost, jnp.float32
        )


def over(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """Returns the quotient, or infinity where the denominator is not positive."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), jnp.inf)


def choose(index: jax.Array, pulls: jax.Array) -> jax.Array:
    """Returns the arm with the largest index. Ties go to the arm with the lowest number.

    Arms that were never pulled and arms with an infinite index are explored first; among these, the
    arm with the fewest pulls is chosen. So every arm is pulled once, in the order of the arms'
    numbers, before any finite index is used.
    """
    explore = (pulls == 0) | ~(index < jnp.inf)
    # Larger for fewer pulls, and always above 10²⁸.
    first = jnp.float32(1e38) / (1 + pulls.astype(jnp.float32))
    return jnp.argmax(jnp.where(explore, first, jnp.minimum(index, jnp.float32(1e28)))).astype(
        jnp.int32
    )
