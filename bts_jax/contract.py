"""The contract: bandits, policies, and the side information of a policy. Read this file first.

Both are pytrees whose leaves are numbers, so that `jax.vmap` and `jax.jit` reach every one of them. They
are written for **one run**: no batch axis appears in them. `simulate` plays one run, and `jax.vmap(simulate)` plays many.
"""

import warnings
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bts_jax.pytrees import pytree

State = Any  # a policy's state: any pytree of arrays whose shapes and dtypes never change


@runtime_checkable
class Bandit(Protocol):
    """What is pulled: a pytree of K arms' parameters.

    Rewards and costs are in any unit, such as clicks and dollars. What one pull can earn or cost at most must be known. If it
    is not 1, the bandit has the attributes `reward_scale` and `cost_scale` with these maxima: attributes of the class, fields
    or properties. Budgets, expected rewards and costs, runs and regrets are in the same units. Policies see rewards and costs
    divided by their scales, in [0, 1] as their papers assume.

    A bandit may have an attribute `arms`, a tuple of K names of its arms. Names are no numbers: make it an attribute of the
    class or a property, or a field that is a `bts_jax.pytrees.Names`.

    Example:
        >>> from bts_jax import Bernoulli
        >>> isinstance(Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5]), Bandit)  # has all of these; `check_bandit` looks closer
        True
    """

    @property
    def reward_mean(self) -> jax.Array:
        """Expected reward of each arm. [K]"""
        ...

    @property
    def cost_mean(self) -> jax.Array:
        """Expected cost of each arm. [K]"""
        ...

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Pulls one arm once: a random reward in [0, reward_scale] and a random cost in [0, cost_scale], float32 scalars.

        `key` belongs to the run and the round, whatever the policy: pulling the same arm with the same key always gives
        the same answer.
        """
        ...


def scales(bandit: Any) -> tuple[Any, Any] | None:
    """The largest reward and the largest cost of one pull; `None` if the bandit does not say, and both are 1."""
    found = [getattr(bandit, name, None) for name in ("reward_scale", "cost_scale")]
    if all(scale is None for scale in found):
        return None
    reward, cost = (1.0 if scale is None else scale for scale in found)
    return reward, cost


class Means(NamedTuple):
    """The expected rewards and costs of a bandit's arms: all that metrics and theory need of it."""

    reward_mean: Any  # [K]
    cost_mean: Any  # [K]


@pytree
class Problem:
    """What a policy may know before the first pull: its side information.

    Every policy knows the number of arms. The other fields are `None` unless the policy's class names them in `requires`, so
    that no policy knows more than its documentation says. Amounts are in multiples of the bandit's `cost_scale`.

    Example:
        >>> Problem(num_arms=10, budget=100.0)  # for a class with requires = ("budget",)
        Problem(num_arms=10, budget=100.0, min_cost=None, cost_mean=None, best_arm=None)
    """

    num_arms: int  # K, a Python int: shapes may depend on it
    budget: Any = None  # B
    min_cost: Any = None  # a lower bound on the expected costs: here the smallest of them
    cost_mean: Any = None  # [K] the expected costs
    best_arm: Any = None  # the arm with the largest ratio of expected reward to expected cost


@runtime_checkable
class Policy(Protocol):
    """Who decides: a pytree of hyperparameters, itself the pure function `(state, key) -> (arm, state)`.

    The class may have an attribute `requires`, a tuple of the fields of `Problem` that it reads besides `num_arms`. Without
    it, the policy has no side information. What a policy needs so that gradients can be taken through its decisions, a method
    `logits`, is in `bts_jax.learn`.

    Write the algorithm in plain JAX. The engine makes it fast and reproducible (`bts_jax.engine`): it rounds products, stores
    what is used several times, updates statistics in place, and turns draws by rejection (`bts_jax.random.beta`, `gamma`,
    `rejection`, `jax.random.gamma` and what is made of it) into single proposals without a loop.

    Example:
        >>> from bts_jax import BTS
        >>> isinstance(BTS(), Policy)  # has all of these; `check_policy` looks closer
        True
    """

    def init(self, problem: Problem) -> State:
        """The state before the first round."""
        ...

    def __call__(self, state: State, key: jax.Array) -> tuple[ArrayLike, State]:
        """Decides which arm to pull, 0 … K−1."""
        ...

    def update(self, state: State, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array) -> State:
        """The state after pulling `arm`, with a key of its own for policies whose update is random."""
        ...


def side_info(policy: Any) -> tuple[str, ...]:
    """The side information of a policy, or of a class of policies: names of fields of `Problem`."""
    if hasattr(policy, "told") and not hasattr(policy, "requires"):
        warnings.warn("the attribute `told` of a policy is now called `requires`: rename it", DeprecationWarning, stacklevel=2)
        return tuple(policy.told)
    return tuple(getattr(policy, "requires", ()))


def ratio(reward_mean: Any, cost_mean: Any, xp: Any = jnp) -> Any:
    """ρ, expected reward over expected cost: infinite for an arm that earns and never costs, 0 if it does neither.

    `xp` is the array library to compute with, `jax.numpy` or `numpy`.
    """
    costs = cost_mean > 0
    return xp.where(costs, reward_mean / xp.where(costs, cost_mean, 1), xp.where(reward_mean > 0, xp.inf, 0.0))
