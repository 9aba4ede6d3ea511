"""Curves of the theory, to draw beside the regret of an instance."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax.bandits import Bernoulli
from bts_jax.contract import Means
from bts_jax.plots.looks import KNOWN
from bts_jax.theory import bts_bound, lower_bound_slope

if TYPE_CHECKING:
    from xarray import Dataset

# Lines about BTS have its colour. None has a marker.
LINES = {
    "bound": {"label": "bound on BTS", "color": KNOWN["bts"][0], "linestyle": "-."},
    "leading": {"label": "its leading term", "color": KNOWN["bts"][0], "linestyle": "--"},
    "slope": {"label": "slope of the lower bound", "color": "#000000", "linestyle": (0, (1, 1))},
}


def theory_lines(
    bandit: Any, budgets: np.ndarray, mean: np.ndarray, wanted: tuple[str, ...]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields the name, x and y of each curve. The line of the slope starts at `mean` in the middle
    of the budgets.
    """
    proven = budgets[budgets > np.e]  # where the proof holds
    bounds = (
        [bts_bound(bandit, budget) for budget in proven]
        if {"bound", "leading"} & set(wanted)
        else []
    )
    for name in wanted:
        if name == "slope":
            middle = np.abs(np.log(budgets) - np.log(budgets[[0, -1]]).mean()).argmin()
            x = np.geomspace(budgets[middle], budgets[-1], 50)
            yield name, x, mean[middle] + lower_bound_slope(bandit) * np.log(x / budgets[middle])
        else:
            y = np.array([bound.regret if name == "bound" else bound.leading for bound in bounds])
            yield name, proven, np.where(np.isfinite(y), y, np.nan)


def instance(dataset: "Dataset", name: str) -> Any:
    """The bandit of this name, with what the theory needs."""
    if not {"reward_mean", "cost_mean", "num_arms", "family"} <= set(dataset.coords):
        raise ValueError(
            "theory needs the coordinates reward_mean, cost_mean, num_arms and family, which "
            "dataset lacks: pass it as sweep returns it"
        )
    if "resource" in dataset.dims:
        raise ValueError(
            "theory is about one resource, and dataset has bandits with several: leave theory out"
        )
    one = dataset.sel(bandit=name)
    means = Means(*(one[field].values[: one.num_arms.item()] for field in Means._fields))
    return (
        Bernoulli(reward=means.reward_mean, cost=means.cost_mean)
        if one.family.item() == "Bernoulli"
        else means
    )
