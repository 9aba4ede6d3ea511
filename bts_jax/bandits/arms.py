"""Base class of all families of arms: the ratio, the best arm, and the checks of the parameters."""

from collections.abc import Iterable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks
from bts_jax.contract import num_resources, ratio, scales
from bts_jax.pytrees import Names
from bts_jax.text import shown

MOST_NUMBERS = 2**20  # the largest number of parameters of a random instance


class Arms:
    """Base class of the families of arms. A family defines its fields, `reward_mean`, `cost_mean`
    and `pull`.
    """

    reward_mean: jax.Array
    cost_mean: jax.Array

    @property
    def num_arms(self) -> int:
        return self.reward_mean.shape[-1]

    @property
    def num_resources(self) -> int | None:
        """The number of resources, d, if a cost is a vector. `None` if it is a number."""
        return num_resources(self)

    @property
    def ratio(self) -> jax.Array:
        """Expected reward over expected cost, ρ. It is infinite for an arm that earns and never
        costs. [K]
        """
        if self.num_resources is not None:
            raise ValueError(
                f"a bandit with a vector of {self.num_resources} costs has no ratio and no best "
                "arm: see bts_jax.theory.lp_value, which mixes arms"
            )
        return ratio(self.reward_mean, self.cost_mean)

    @property
    def best_arm(self) -> jax.Array:
        """The arm with the largest ratio. Ties go to the arm with the lowest number."""
        return jnp.argmax(self.ratio, axis=-1).astype(jnp.int32)

    def _canonicalize(
        self,
        what: str = "probabilities",
        low: float = 0,
        high: float = 1,
        scaled: bool = False,
        vectors: tuple[str, ...] = (),
        **fields: int,
    ) -> None:
        """Checks the named fields and stores them as float32. `fields[name]` is the number of axes
        that one bandit has.

        Additional leading axes are a batch of bandits, as `jax.vmap` creates and accepts them. A
        field of costs may have one more axis after that of the arms, for resources, if its name is
        in `vectors`. If `scaled`, the numbers in a field x are at most those in the field x_scale.
        """
        remedy = f"give {what}, finite numbers in [{low:g}, {high:g}]"
        shapes = {}
        for name, axes in fields.items():
            given = getattr(self, name)
            checks.no_table(name, given)
            concrete = checks.is_concrete(given)
            value = checks.numbers(name, given, remedy) if concrete else jnp.asarray(given)
            if value.ndim < axes:
                raise ValueError(
                    f"{name} has shape {value.shape}, too few axes: give [{'K, M'[: 3 * axes - 2]}]"
                )
            scale = getattr(self, f"{name}_scale") if scaled else high
            if scaled and concrete and checks.is_concrete(scale):
                scale = np.asarray(scale, np.float32)
                at_most = (
                    f"at most {name}_scale = {np.min(scale):g}, or set {name}_scale to the largest "
                    f"{name} of one pull"
                )
                good = (value >= low) & (
                    np.float32(value) <= scale.reshape(scale.shape + (1,) * axes)
                )
                checks.require(name, value, good, f"give {what} of at least {low:g} and {at_most}")
            elif concrete:
                checks.require(
                    name, value, (value >= low) & (value <= (np.inf if scaled else high)), remedy
                )
            shapes[name] = value.shape
            if name in vectors and value.ndim == len(shapes[next(iter(fields))]) + 1:
                if value.shape[-axes] == 0:
                    raise ValueError(
                        f"{name} has shape {value.shape}, without any resource: give at least one "
                        "cost per arm"
                    )
                shapes[name] = (
                    value.shape[: value.ndim - axes] + value.shape[value.ndim - axes + 1 :]
                )
            object.__setattr__(self, name, jnp.asarray(given, jnp.float32))
        if len(set(shapes.values())) > 1:
            named = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise ValueError(
                f"the arrays of one bandit differ in shape ({named}): give one entry per arm in "
                "each"
            )
        (name, axes), shape = next(iter(fields.items())), next(iter(shapes.values()))
        if shape[-axes] < 2:
            raise ValueError(
                f"{name} describes {shape[-axes]} arm(s), and a bandit has at least 2: add arms"
            )

    def _spread(self, name: str, shape: tuple[int, ...]) -> None:
        """Stores a field as one number per arm. One number for all arms is broadcast. Raises if the
        field has any other shape.
        """
        given, remedy = getattr(self, name), "give one for each arm, or one number for all"
        value = checks.numbers(name, given, remedy) if checks.is_concrete(given) else given
        if value.ndim and value.shape != shape:
            raise ValueError(
                f"{name} has shape {value.shape}, where the arms have {shape}: {remedy}"
            )
        object.__setattr__(self, name, jnp.broadcast_to(jnp.asarray(given, jnp.float32), shape))


class Wrapper(Arms):
    """Base class of bandits that change another one, the field `bandit`."""

    bandit: Any

    def _check(self) -> None:
        checks.contract(
            "bandit",
            self.bandit,
            ("reward_mean", "cost_mean", "pull"),
            "Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])",
        )

    @property
    def arms(self) -> tuple[str, ...]:
        return getattr(self.bandit, "arms", ())

    @property
    def all_or_nothing(self) -> bool:
        """Whether a cost is 0 or the largest cost, of every resource except time."""
        return getattr(self.bandit, "all_or_nothing", False)

    @property
    def reward_scale(self) -> Any:
        found = scales(self.bandit)
        return None if found is None else found[0]

    @property
    def cost_scale(self) -> Any:
        found = scales(self.bandit)
        return None if found is None else found[1]


def named_arms(value: Any, num_arms: int) -> Names:
    """Returns the names of `num_arms` arms, or no names. Raises a `ValueError` if `value` is not a
    collection of names.
    """
    remedy = f"give {num_arms} different strings, one for each arm"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"arms = {shown(value)} are no names: {remedy}")
    names = Names(value)
    for name in names:
        checks.name("arms", name)
    if names and (len(names) != num_arms or len(set(names)) < num_arms):
        raise ValueError(
            f"arms = {shown(tuple(names))} has {len(names)} names, {len(set(names))} of them "
            f"different: {remedy}"
        )
    return names


def largest_of(table: jax.Array) -> jax.Array:
    """The largest number of a table, or 1 if all are 0. `table`: [K, N] -> []"""
    largest = table.max((-2, -1))
    return jnp.where(largest > 0, largest, 1)


def added(terms: jax.Array) -> jax.Array:
    """The sum over the last axis, term by term: a bandit alone and in a batch has the same bits."""
    return reduce(jnp.add, [terms[..., j] for j in range(terms.shape[-1])])


def check_correlation(value: Any) -> None:
    """Raises unless `value` is one correlation, a number in [−1, 1]."""
    remedy = "give one number in [-1, 1]"
    number = checks.numbers("correlation", value, remedy)
    checks.require("correlation", number, (abs(number) <= 1) & (number.ndim == 0), remedy)


def check_range(name: str, value: tuple[float, float], high: float = 1) -> None:
    """Raises unless `value` is a range (low, high) within [0, `high`]."""
    pair = checks.numbers(name, value, "give a pair (low, high)")
    if pair.shape != (2,) or not 0 <= pair[0] <= pair[1] <= high:
        raise ValueError(
            f"{name} = {value!r} is not a range within [0, {high:g}]: give (low, high) with 0 ≤ "
            f"low ≤ high ≤ {high:g}"
        )


def check_num_arms(value: int, each: int = 1) -> None:
    """Raises unless `value` is a number of arms, at least 2 and not too large to draw. Each arm has
    `each` numbers.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 2:
        raise ValueError(
            f"num_arms = {shown(value)} is not a number of arms: give a whole number of at least 2"
        )
    if value * each > MOST_NUMBERS:
        raise ValueError(
            f"num_arms = {shown(value)} is too large with {each} numbers per arm: give at most "
            f"{MOST_NUMBERS} numbers in total"
        )
