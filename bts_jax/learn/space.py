"""The hyperparameters to learn: their ranges, and the unbounded numbers that an optimizer
changes.
"""

import copy
import dataclasses
from collections.abc import Mapping
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np

from bts_jax import checks

Values = dict[str, Any]  # a number, or an array of them, for each hyperparameter
Ranges = Mapping[str, tuple[float, float]]


def names_of(policy: Any) -> list[str]:
    """The names of a policy's hyperparameters. Those of its posteriors have the posterior's name in
    front: "cost.strength".
    """
    if not dataclasses.is_dataclass(policy):
        return []
    found = []
    for field in dataclasses.fields(policy):
        part = getattr(policy, field.name)
        found += (
            [f"{field.name}.{inner}" for inner in names_of(part)]
            if dataclasses.is_dataclass(part)
            else [field.name]
        )
    return found


def value_of(policy: Any, name: str) -> Any:
    """The value of a hyperparameter, such as "scale" or "cost.strength"."""
    return reduce(getattr, name.split("."), policy)


def with_values(policy: Any, values: Values) -> Any:
    """The policy with these hyperparameters. They may be a batch: an array with one number for each
    of several policies.
    """
    own = {name: value for name, value in values.items() if "." not in name}
    inner: dict[str, Values] = {}
    for name in values.keys() - own.keys():
        part, _, rest = name.partition(".")
        inner.setdefault(part, {})[rest] = values[name]
    for part, changed in inner.items():
        # Not made anew: an array given to a posterior would be one number for each arm.
        own[part] = copy.copy(getattr(policy, part))
        for name, value in changed.items():
            object.__setattr__(own[part], name, value)
    return dataclasses.replace(policy, **own)


class Space:
    """Some hyperparameters of a policy, as values in their ranges and as unbounded numbers u."""

    def __init__(self, policy: Any, ranges: Ranges | None):
        checks.contract("policy", policy, ("init", "__call__", "update"), "BTS()")
        self.whole, self.ranges = (
            policy,
            dict(getattr(policy, "learnable", {}) if ranges is None else ranges),
        )
        if not self.ranges:
            raise ValueError(
                f"policy {type(policy).__name__} does not say what can be learnt: "
                f"give ranges, such as "
                "{'scale': (0.1, 10)}"
            )
        fields = names_of(policy)
        for name, given in self.ranges.items():
            if name not in fields:
                raise ValueError(
                    f"ranges names {name!r}, which is no hyperparameter of "
                    f"{type(policy).__name__}: there are "
                    f"{', '.join(fields) or 'none (its class is no dataclass)'}"
                )
            if isinstance(value_of(policy, name), tuple):
                raise ValueError(
                    f"ranges names {name!r}, which has one number for each arm, and single numbers "
                    "are learnt: leave it out of ranges"
                )
            limits = checks.numbers(f"ranges[{name!r}]", given, "give (low, high)")
            if limits.shape != (2,) or not -np.inf < limits[0] < limits[1] < np.inf:
                raise ValueError(
                    f"ranges[{name!r}] = {given!r} is not a range: give (low, high), two finite "
                    "numbers"
                )
            value = checks.numbers(name, value_of(policy, name), "give a number to start from")
            checks.require(
                name,
                value,
                (value > limits[0]) & (value < limits[1]),
                f"start within its range, above {limits[0]:g} and below {limits[1]:g}, or give "
                "another in ranges",
            )

    def policy(self, values: Values) -> Any:
        """Returns the policy with these hyperparameters."""
        return with_values(self.whole, values)

    def values(self) -> Values:
        return {name: jnp.asarray(value_of(self.whole, name), jnp.float32) for name in self.ranges}

    def start(self) -> Values:
        """Returns u for the given policy."""
        at = {}
        for name, (low, high) in self.ranges.items():
            value = np.asarray(value_of(self.whole, name), np.float64)
            s = (
                np.log(value / low) / np.log(high / low)
                if low > 0
                else (value - low) / (high - low)
            )
            at[name] = np.log(s / (1 - s)) / _pace(low, high)
        return at

    def bounded(self, at: Values) -> Values:
        values = {}
        for name, (low, high) in self.ranges.items():
            s = _logistic(_pace(low, high) * np.asarray(at[name], np.float64))
            value = low * (high / low) ** s if low > 0 else low + (high - low) * s
            # Excluded: a fit could not start from a limit.
            least, most = np.float32(low), np.float32(high)
            values[name] = np.clip(
                np.float32(value), np.nextafter(least, most), np.nextafter(most, least)
            )
        return values

    def slope(self, at: Values) -> Values:
        """Returns the derivatives of the hyperparameters with respect to u."""
        slopes = {}
        for name, (low, high) in self.ranges.items():
            s = _logistic(_pace(low, high) * np.asarray(at[name], np.float64))
            slopes[name] = 4 * s * (1 - s) * (self.bounded(at)[name] if low > 0 else high - low)
        return slopes


def _pace(low: float, high: float) -> float:
    return 4 / np.log(high / low) if low > 0 else 4.0


def _logistic(x: np.ndarray) -> np.ndarray:
    """Returns 1 / (1 + e⁻ˣ), without overflow for any x."""
    return (1 + np.tanh(x / 2)) / 2
