"""Arms with fixed prices: each pull costs the price of its arm, and succeeds at random."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.bandits.arms import Arms, check_num_arms, check_range, named_arms
from bts_jax.bandits.bernoulli import random_means, trial
from bts_jax.contract import LARGEST_SCALE, SMALLEST_SCALE
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class FixedPrice(Arms):
    """Arms that cost a fixed price and earn 1 with some probability: models with a price per
    request, ads with a price per view, tests with a price per sample.

    Prices are in any unit, such as dollars or cents, and so is the budget. The unit does not
    matter: policies see shares of the largest price. With a limit on the number of rounds, T
    requests and B dollars, the game is `Timed(FixedPrice(...))` with the budget [B, T]. The same
    key gives the same rewards as for `Bernoulli` (common random numbers).

    Args:
        success: the probability that a pull of the arm earns 1, in [0, 1]. [K]
        price: the cost of each pull of the arm, at least 0. [K]
        arms: the names of the arms, K strings, or no names.

    Example:
        >>> models = FixedPrice(success=[0.6, 0.9], price=[0.0005, 0.03], arms=["small", "large"])
        >>> models.ratio.round().tolist()  # successes per dollar
        [1200.0, 30.0]
        >>> from bts_jax import Timed, theory
        >>> # the best mix for 1,000 requests and $6.40
        >>> theory.lp(Timed(models), [6.4, 1000]).pulls.round().tolist()
        [800.0, 200.0]
    """

    success: ArrayLike  # [K]
    price: ArrayLike  # [K]
    arms: Any = ()  # names

    def _check(self) -> None:
        self._canonicalize(success=1)
        self._canonicalize("prices", 0, LARGEST_SCALE, price=1)
        shape = np.shape(self.success)
        if np.shape(self.price) != shape:
            raise ValueError(
                f"price has shape {np.shape(self.price)}, and success has {shape}: give one of "
                "each per arm"
            )
        object.__setattr__(
            self, "arms", named_arms(() if self.arms is None else self.arms, shape[-1])
        )
        if not checks.is_concrete(self.price):
            return
        price = np.asarray(self.price)
        largest = price.max(-1, keepdims=True)
        checks.require(
            "the largest price",
            largest,
            (largest == 0) | (largest >= np.float32(SMALLEST_SCALE)),
            f"choose a smaller unit, because it must be at least {SMALLEST_SCALE:g}",
        )
        checks.require(
            "price",
            price,
            (price == 0) | (price >= np.float32(SMALLEST_SCALE) * largest),
            f"make it 0, or at least {SMALLEST_SCALE:g} of the largest price, because sums are not "
            "exact enough for both",
        )

    @property
    def cost_scale(self) -> jax.Array:
        """The largest price, or 1 if all are 0."""
        largest = self.cost_mean.max(-1)
        return jnp.where(largest > 0, largest, 1)

    @property
    def reward_mean(self) -> jax.Array:
        return jnp.asarray(self.success)

    @property
    def cost_mean(self) -> jax.Array:
        return jnp.asarray(self.price)

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        return trial(random.bits(key)[0], self.reward_mean[arm]), self.cost_mean[arm]

    @classmethod
    def random(
        cls,
        key: jax.Array,
        num_arms: int,
        *,
        success_range: tuple[float, float] = (0.0, 1.0),
        price_range: tuple[float, float] = (0.01, 1.0),
    ) -> "FixedPrice":
        """Draws a random instance. Probabilities of success and prices are uniform in the given
        ranges.
        """
        check_range("success_range", success_range)
        check_range("price_range", price_range, LARGEST_SCALE)
        check_num_arms(num_arms)
        checks.key(key)
        success, price = random_means(key, (num_arms,), (), success_range, price_range)
        return cls(success=success, price=price)
