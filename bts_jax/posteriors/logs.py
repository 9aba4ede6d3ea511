"""Logs of values that were observed before a run, from which priors are made."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bts_jax import checks


def columns(values: Any, remedy: str, most: float = np.inf) -> list[np.ndarray]:
    """The values of each arm as float64. Raises a `ValueError` unless they are finite numbers from 0 to `most`."""
    rows = list(values.values()) if isinstance(values, Mapping) else values
    if not isinstance(rows, (list, tuple, np.ndarray)) or np.ndim(rows[0] if len(rows) else 0) != 1:
        raise ValueError(f"values of type {type(values).__name__} are not a list for each arm: give one list of numbers for "
                         "each arm, in the order of the arms")
    found = []
    for arm, row in enumerate(rows):
        column = checks.numbers(f"values[{arm}]", row, remedy)
        checks.require(f"values[{arm}]", column, (column >= 0) & (column <= most) & (column < np.inf), remedy)
        found.append(column)
    return found


def check_strength(strength: float) -> float:
    remedy = "give the number of pulls that the log counts for, a positive number"
    number = checks.numbers("strength", strength, remedy)
    checks.require("strength", number, (number > 0) & (number <= 1e6), remedy)
    return float(number)
