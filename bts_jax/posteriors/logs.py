"""Logs of values that were observed before a run, from which priors are made."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bts_jax import checks
from bts_jax.text import shown


def columns(
    values: Any, arms: Sequence[str] | None, remedy: str, most: float = np.inf
) -> list[np.ndarray]:
    """The values of each arm as float64. Raises a `ValueError` unless they are finite numbers from
    0 to `most`.

    `arms` has the names of the arms in the order of the bandit, for a mapping from names to values.
    """
    checks.no_table("values", values)
    if isinstance(arms, str):
        raise ValueError(
            f"arms = {shown(arms)} is one name: give a list with the names of all arms, as in "
            "arms=bandit.arms"
        )
    if isinstance(values, Mapping):
        values = _in_order(values, arms)
    elif arms is not None:
        raise ValueError(
            "arms is for values that are a mapping from names to lists: leave it out, and give the "
            "lists in the order of the arms"
        )
    if not isinstance(values, (list, tuple, np.ndarray)) or not len(values):
        raise ValueError(
            f"values = {shown(values)} is not a list with one entry for each arm: give one list of "
            "numbers for each arm, in the order of the arms"
        )
    found = []
    for arm, row in enumerate(values):
        column = checks.numbers(f"values[{arm}]", row, remedy)
        if column.ndim != 1:
            raise ValueError(
                f"values[{arm}] has shape {column.shape}: give one list of numbers for each arm"
            )
        checks.require(
            f"values[{arm}]", column, (column >= 0) & (column <= most) & (column < np.inf), remedy
        )
        found.append(column)
    return found


def _in_order(values: Mapping, arms: Sequence[str] | None) -> list:
    if arms is None:
        raise ValueError(
            "values is a mapping, and the order of the arms is not known: give arms, their names "
            "in the order of the bandit, as in arms=bandit.arms"
        )
    unknown = [name for name in values if name not in arms]
    missing = [name for name in arms if name not in values]
    if unknown or missing:
        raise ValueError(
            f"values has the names {shown(list(values))}, and arms = {shown(list(arms))}: give the "
            "same names in both, and an empty list for an arm without values"
        )
    return [values[name] for name in arms]


def positive(name: str, value: Any, remedy: str) -> float:
    """The value as a number. Raises a `ValueError` unless it is one positive number up to a
    million.
    """
    number = checks.numbers(name, value, remedy)
    if number.ndim:
        raise ValueError(f"{name} has shape {number.shape}: {remedy}")
    checks.require(name, number, (number > 0) & (number <= 1e6), remedy)
    return float(number)


def strength_of(value: Any) -> float:
    return positive(
        "strength",
        value,
        "give the largest number of pulls that the log counts for, a positive number",
    )
