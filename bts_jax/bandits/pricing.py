"""Dynamic pricing with limited inventory, the standard example of bandits with knapsacks."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, random
from bts_jax.bandits.arms import Arms, added, check_num_arms
from bts_jax.bandits.bernoulli import trial
from bts_jax.contract import LARGEST_SCALE, SMALLEST_SCALE
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike


@pytree
class Pricing(Arms):
    """An arm is a list of prices, one for each of d products. In each round a customer buys some of
    them, or nothing.

    At the prices of arm k the customer buys product j with probability demand[k, j], independently
    of the other products. The reward is the revenue. The resources are the stocks of the products:
    a sold unit costs 1 / inventory. With time as one more resource, the game is that of Besbes and
    Zeevi (Operations Research 2012): `Timed(Pricing(...), horizon)`.

    Args:
        prices: the price of each product in each arm, at least 0, in any unit. [K, d]
        demand: the probability that a customer buys the product at this price. [K, d]
        inventory: the number of units of each product per unit of budget, at least 1. By default 1:
            a unit sold costs 1, and the budget is the stock. [d]

    Example:
        >>> shop = Pricing(prices=[[1, 4], [2, 3]], demand=[[0.8, 0.2], [0.4, 0.3]])
        >>> shop.num_arms, shop.num_resources, float(shop.reward_scale)
        (2, 2, 5.0)
        >>> [round(revenue, 3) for revenue in shop.reward_mean.tolist()]
        [1.6, 1.7]
    """

    all_or_nothing: ClassVar[bool] = True  # a cost is 0 or the largest cost

    prices: ArrayLike  # [K, d]
    demand: ArrayLike  # [K, d]
    inventory: ArrayLike = 1.0  # [d]

    def _check(self) -> None:
        for name in ("prices", "demand"):
            if np.ndim(getattr(self, name)) < 2:
                raise ValueError(
                    f"{name} has shape {np.shape(getattr(self, name))}: give one number for each "
                    "arm and product [K, d]; with one product [[2], [3]]"
                )
        self._canonicalize("prices", 0, LARGEST_SCALE, prices=2)
        self._canonicalize("probabilities", demand=2)
        shape = jnp.shape(self.prices)
        if jnp.shape(self.demand) != shape:
            raise ValueError(
                f"demand has shape {jnp.shape(self.demand)}, and prices have {shape}: give one "
                "probability for each price"
            )
        if checks.is_concrete(self.inventory):
            remedy = (
                "give the number of units per unit of budget, from 1 to 10⁶, one for each product "
                "or one for all"
            )
            inventory = checks.numbers("inventory", self.inventory, remedy)
            checks.require("inventory", inventory, (inventory >= 1) & (inventory <= 1e6), remedy)
            if inventory.shape not in ((), shape[-1:], (*shape[:-2], shape[-1])):
                raise ValueError(
                    f"inventory has shape {inventory.shape}, and there are {shape[-1]} products: "
                    f"{remedy}"
                )
        inventory = jnp.broadcast_to(
            jnp.asarray(self.inventory, jnp.float32), (*shape[:-2], shape[-1])
        )
        object.__setattr__(self, "inventory", inventory)
        if checks.is_concrete(self.reward_scale):
            largest = np.asarray(self.reward_scale)
            fits = (largest >= np.float32(SMALLEST_SCALE)) & (largest <= LARGEST_SCALE)
            checks.require(
                "the largest sum of prices of an arm",
                largest,
                fits,
                f"make it 0, or a number from {SMALLEST_SCALE:g} to {LARGEST_SCALE}: choose "
                "another unit",
            )

    @property
    def reward_scale(self) -> jax.Array:
        """The largest revenue of one round, or 1 if all prices are 0."""
        largest = added(jnp.asarray(self.prices)).max(-1)
        return jnp.where(largest > 0, largest, 1)

    @property
    def cost_scale(self) -> jax.Array:
        """One unit of each product. [d]"""
        return 1 / jnp.asarray(self.inventory)

    @property
    def reward_mean(self) -> jax.Array:
        return added(jnp.asarray(self.prices) * jnp.asarray(self.demand))

    @property
    def cost_mean(self) -> jax.Array:
        return jnp.asarray(self.demand) / jnp.asarray(self.inventory)[..., None, :]

    @property
    def revenue(self) -> jax.Array:
        """The revenue of each arm per unit of each resource. [K, d]"""
        return jnp.asarray(self.prices) * jnp.asarray(self.inventory)[..., None, :]

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        demand = jnp.asarray(self.demand)[arm]
        sold = trial(random.several_bits(key, len(demand)), demand)
        return (jnp.asarray(self.prices)[arm] * sold).sum(), sold / jnp.asarray(self.inventory)

    @classmethod
    def random(
        cls, key: jax.Array, num_arms: int, *, num_products: int = 1, inventory: ArrayLike = 1.0
    ) -> "Pricing":
        """Draws a random instance with prices in [0.1, 1] and exponential demand.

        Each product has a demand a · exp(−b · price), with a uniform in [0.5, 1] and b uniform in
        [0.5, 4]. The prices of an arm are uniform in [0.1, 1].
        """
        check_num_arms(num_arms, checks.whole("num_products", num_products, 1))
        checks.key(key)
        prices, demand = _random_shop(key, num_arms, num_products)
        return cls(prices=prices, demand=demand, inventory=inventory)


@partial(jax.jit, static_argnums=(1, 2))
def _random_shop(key: jax.Array, num_arms: int, num_products: int) -> tuple[jax.Array, jax.Array]:
    key_price, key_size, key_slope = jax.random.split(key, 3)
    prices = jax.random.uniform(key_price, (num_arms, num_products), jnp.float32, 0.1, 1)
    size = jax.random.uniform(key_size, (num_products,), jnp.float32, 0.5, 1)
    slope = jax.random.uniform(key_slope, (num_products,), jnp.float32, 0.5, 4)
    return prices, size * jnp.exp(-slope * prices)
