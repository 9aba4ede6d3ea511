"""The contract: bandits, policies, and the side information of a policy. Read this file first.

Bandits and policies are pytrees whose leaves are numbers, so that `jax.vmap` and `jax.jit` apply to
every one of them. They are written for **one run**, without a batch axis. `simulate` plays one run,
and `jax.vmap(simulate)` plays many.
"""

from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

# Of rewards and costs: the limits of what can be counted exactly.
SMALLEST_SCALE, LARGEST_SCALE = 1e-6, 2**23

State = Any  # a policy's state: any pytree of arrays whose shapes and dtypes never change


@runtime_checkable
class Bandit(Protocol):
    """A bandit: a pytree with the parameters of K arms.

    Rewards and costs can have any unit, such as clicks and dollars. The largest reward and the
    largest cost of one pull must be known. If they are not 1, the bandit has the attributes
    `reward_scale` and `cost_scale` with these maxima. They may be class attributes, fields or
    properties. Budgets, expected rewards and costs, runs and regrets are in the same units.
    Policies see rewards and costs divided by their scales, in [0, 1], as their papers assume.

    A pull may consume d resources, each with a budget of its own. Then `pull` returns a vector of d
    costs, `cost_mean` is [K, d], and `cost_scale`, if there is one, is a number or [d]. If the last
    resource is time, the bandit may say so with an attribute `horizon`, the number of rounds per
    unit of its budget (see `Timed`).

    A bandit may have an attribute `arms`, a tuple with the names of its K arms. Names are not
    numbers. So `arms` must be a class attribute, a property, or a field of type
    `bts_jax.pytrees.Names`.

    Example:
        >>> from bts_jax import Bernoulli
        >>> # has all of these; `check_bandit` looks closer
        >>> isinstance(Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5]), Bandit)
        True
    """

    @property
    def reward_mean(self) -> jax.Array:
        """Expected reward of each arm. [K]"""
        ...

    @property
    def cost_mean(self) -> jax.Array:
        """Expected cost of each arm. [K], or [K, d] if there are d resources"""
        ...

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Pulls one arm once. Returns a random reward in [0, reward_scale] and cost in [0,
        cost_scale], float32 scalars.

        If there are d resources, the cost is a vector. [d]

        `key` depends on the run, the arm and the number of its earlier pulls, not on the policy.
        The same arm and the same key always give the same result.
        """
        ...


def num_resources(bandit: Any) -> int | None:
    """The number d of resources if a pull returns a vector of costs. `None` if it returns a number,
    as in the paper.
    """
    rewards, costs = (np.shape(getattr(bandit, name, ())) for name in ("reward_mean", "cost_mean"))
    return costs[-1] if len(costs) > len(rewards) else None


def is_timed(bandit: Any) -> bool:
    """Whether the last resource of a bandit is time: every pull takes the same amount of it."""
    return getattr(bandit, "horizon", None) is not None and num_resources(bandit) is not None


def scales(bandit: Any) -> tuple[Any, Any] | None:
    """The largest reward and the largest cost of one pull. `None` if the bandit has no scales: both
    are 1.
    """
    found = [getattr(bandit, name, None) for name in ("reward_scale", "cost_scale")]
    if all(scale is None for scale in found):
        return None
    reward, cost = (1.0 if scale is None else scale for scale in found)
    return reward, cost


class Means(NamedTuple):
    """The expected rewards and costs of a bandit's arms. Metrics and theory need nothing else."""

    reward_mean: Any  # [K]
    cost_mean: Any  # [K]


@pytree
class Problem:
    """The side information of a policy: everything that it may know before the first pull.

    Every policy knows the numbers of arms and of resources, the units of rewards and costs and, if
    the last resource is time, the time of a pull. The other fields are `None` unless the policy's
    class, or that of one of its posteriors, names them in `requires`, so that no policy knows more
    than its documentation says. Amounts are in multiples of the bandit's `cost_scale`. The units
    serve to convert amounts that the user gave to the policy, such as a price list.

    Example:
        >>> Problem(num_arms=10, budget=100.0).budget  # for a class with requires = ("budget",)
        100.0
    """

    num_arms: int  # K, a Python int: shapes may depend on it
    num_resources: int | None = None  # d, a Python int; None if a cost is a number and not a vector
    reward_scale: Any = None  # the unit of rewards: a reward of 1 is as much in the bandit
    cost_scale: Any = None  # the same for costs; [d] if there are several resources
    time_cost: Any = None  # how much of the last resource each pull takes, if that is time
    budget: Any = None  # B, or [d]
    min_cost: Any = None  # a lower bound on the expected costs: here the smallest of them
    cost_mean: Any = None  # [K] or [K, d] the expected costs
    revenue: Any = None  # [K] or [K, d], reward per unit of each resource except time
    best_arm: Any = None  # the arm with the largest ratio of expected reward to expected cost
    scale: Any = None  # for a posterior: the unit of its values

    def of_reward(self) -> "Problem":
        """The problem as the posterior of rewards sees it."""
        return replace(self, scale=self.reward_scale, cost_mean=None, min_cost=None)

    def of_cost(self, resource: int = 0) -> "Problem":
        """The problem as the posterior of one resource's costs sees it."""
        scale, mean = self.cost_scale, self.cost_mean
        if self.num_resources is not None:
            scale = (
                scale if scale is None else jnp.broadcast_to(scale, (self.num_resources,))[resource]
            )
            mean = mean if mean is None else mean[:, resource]
        return replace(self, scale=scale, cost_mean=mean)

    def required(self, name: str) -> Any:
        """The value of a field that a policy requires. Raises a `ValueError` if it is not given.

        Example:
            >>> Problem(num_arms=10, budget=100.0).required("budget")
            100.0
        """
        value = getattr(self, name)
        if value is None:
            raise ValueError(
                f"the problem has no {name}, which this policy requires as side information: give "
                f"it, as in Problem(num_arms={self.num_arms}, {name}=...). A run gives it if the "
                f"policy's class names it in its attribute requires, as in requires = ({name!r},)"
            )
        return value


@runtime_checkable
class Policy(Protocol):
    """A policy: a pytree of hyperparameters that is also the pure function `(state, key) -> (arm,
    state)`.

    The class may have an attribute `requires`, a tuple with the names of the fields of `Problem`
    that it reads besides `num_arms` and `num_resources`. A policy that needs a time limit names
    `time_cost`. Without `requires`, the policy has no side information. A policy that can play with
    several resources says so with a class attribute `several_resources = True`; its `update` then
    receives costs [d], and `problem.num_resources` is d. (With one resource this is `None`, and
    costs are numbers.) A policy for one resource also plays with one resource and a time limit, and
    does not see the time. Gradients through decisions need a method `logits`; see `bts_jax.learn`.

    A policy whose rule is made for costs in [0, 1], such as a confidence radius, says so with a
    class attribute `bounded_costs = True`; see `needs_cost_limit`.

    Write the algorithm in plain JAX. The engine makes it fast and reproducible (`bts_jax.engine`).
    It rounds products, stores values that are used several times, updates statistics in place, and
    turns draws by rejection into proposals without a loop. These are the draws of
    `bts_jax.random.beta`, `gamma` and `rejection`, of `jax.random.gamma` and of functions built on
    it.

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

    def update(
        self, state: State, arm: jax.Array, reward: jax.Array, cost: jax.Array, key: jax.Array
    ) -> State:
        """The state after a pull of `arm`. `key` is for policies whose update is random."""
        ...


@runtime_checkable
class Posterior(Protocol):
    """A posterior: a pytree of hyperparameters that says what a Thompson policy believes about the
    arms' means.

    The fields `reward` and `cost` of policies such as `BTS` are posteriors. The values that a
    posterior records, and the means that it draws, are in multiples of `problem.scale`, or as they
    are if that is `None`. So a hyperparameter that is an amount, such as a price, must be divided
    by `problem.scale` in `init`. A hyperparameter that is a count need not.

    The class may have an attribute `requires`, as a policy has. If the posterior is made for values
    in [0, 1], its class says so with an attribute `bounded = True`. If its draws may be negative,
    it says `negative = True`. If `draw` has no derivatives with respect to the hyperparameters, add
    a method `log_draw(state, key)`, the logarithms of draws that have derivatives; see
    `bts_jax.learn`. If expected rewards follow from expected costs, the class says `follows_costs =
    True`, and `draw` has a third argument, the draws of the costs [d, K]; see
    `bts_jax.posteriors.Revenue`.

    Example:
        >>> from bts_jax.posteriors import Gamma
        >>> isinstance(Gamma(), Posterior)  # has all of these; `check_posterior` looks closer
        True
    """

    def init(self, problem: Problem) -> State:
        """The state before the first pull."""
        ...

    def draw(self, state: State, key: jax.Array) -> jax.Array:
        """Draws the mean of each arm. Not negative, except for rewards. [K] float32"""
        ...

    def record(self, state: State, arm: jax.Array, value: jax.Array, word: jax.Array) -> State:
        """The state after a pull of `arm` with this value, in [0, 1].

        `word` has 32 random bits, uint32, for posteriors that record at random, as by
        `bts_jax.random.happens(word, value)`.
        """
        ...


def posteriors_of(policy: Any) -> list[Any]:
    """The posteriors of a policy: those of rewards and of costs."""
    found = []
    for part in (getattr(policy, "reward", None), getattr(policy, "cost", None)):
        found += [
            one for one in (part if isinstance(part, tuple) else [part]) if hasattr(one, "record")
        ]
    return found


def needs_cost_limit(policy: Any) -> bool:
    """Whether a policy, or its posterior of costs, is made for costs in [0, 1]: then it needs an
    upper limit on a single cost.

    Such a policy sees costs as shares of the largest cost of one pull, `cost_scale`: it has a
    confidence radius for numbers in [0, 1], or records a cost as a success with that probability.
    If mean costs are far below the largest cost, it learns little from a pull, and explores too
    much or too little. `check_policy`, `compare` and `sweep` warn if they are below a hundredth. A
    policy says so with a class attribute `bounded_costs = True`, and a posterior with `bounded =
    True`.

    If costs are amounts of money, take a policy that does not depend on the largest cost. `BTS`,
    `TSFixed`, `TSUpdate` and `KnapsackBTS` do not with `cost=Gamma()`, nor do index policies that
    divide by the average cost, such as `KUBE`.

    Example:
        >>> from bts_jax import BTS, KUBE
        >>> from bts_jax.posteriors import Gamma
        >>> [needs_cost_limit(policy) for policy in (BTS(), BTS(cost=Gamma()), KUBE())]
        [True, False, False]
    """
    part = getattr(policy, "cost", None)
    costs = part if isinstance(part, tuple) else (part,)
    return bool(getattr(policy, "bounded_costs", False)) or any(
        getattr(one, "bounded", False) for one in costs
    )


def side_info(policy: Any) -> tuple[str, ...]:
    """The side information of a policy and its posteriors, or of a class of policies, as names of
    fields of `Problem`.
    """
    parts = [] if isinstance(policy, type) else posteriors_of(policy)
    return tuple(
        dict.fromkeys(name for part in (policy, *parts) for name in getattr(part, "requires", ()))
    )


def hides_time(policy: Any, bandit: Any) -> bool:
    """Whether a policy for one resource plays on a bandit with one resource and time.

    The policy then sees the cost of the resource as a number, and its budget. It does not see the
    time, which only ends the run.
    """
    one = not getattr(policy, "several_resources", False) and "time_cost" not in side_info(policy)
    return one and is_timed(bandit) and num_resources(bandit) == 2


def ratio(reward_mean: Any, cost_mean: Any, xp: Any = jnp) -> Any:
    """ρ, the ratio of expected reward to expected cost. If the cost is 0: infinite for a positive
    reward, 0 otherwise.

    `xp` is the array library to use, `jax.numpy` or `numpy`.
    """
    costs = cost_mean > 0
    return xp.where(
        costs, reward_mean / xp.where(costs, cost_mean, 1), xp.where(reward_mean > 0, xp.inf, 0.0)
    )
