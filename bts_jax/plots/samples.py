"""The sample that each panel shows, and descriptions of it."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax.statistics import kinds, measured, split
from bts_jax.statistics import sample as sampled
from bts_jax.text import counted

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

MOST_PANELS = 8  # four rows fill a page


def among(name: str, value: Any, *known: str) -> None:
    if value not in known:
        raise ValueError(
            f"{name} = {value!r} is not known: give {', '.join(map(repr, known[:-1]))} or "
            f"{known[-1]!r}"
        )


def at_budget(dataset: "Dataset", budget: float | None) -> "Dataset":
    """The Dataset at one budget, an axis of length 1."""
    measured(dataset)
    known = dataset.budget.values
    if budget is None:
        return dataset.isel(budget=[int(known.argmax())])
    if budget not in known:
        raise ValueError(
            f"budget = {budget!r} is not in the dataset: give one of "
            f"{', '.join(f'{b:g}' for b in known)}"
        )
    return dataset.sel(budget=[budget])


def grouped(dataset: "Dataset", metric: str, panel: str) -> dict[str, "DataArray"]:
    """The values of each panel, by its title: `dataset[metric]` on some of the bandits."""
    among("panel", panel, "bandit", "family", "all")
    values = measured(dataset, metric)
    values = values.where(np.isfinite(values))
    names = [str(name) for name in values.bandit.values]
    if panel == "all":
        titles = [f"all {len(names)} instances" if len(names) > 1 else names[0]] * len(names)
    elif panel == "bandit":
        titles = names
    else:
        if not {"family", "num_arms"} <= set(dataset.coords):
            raise ValueError(
                "panel = 'family' needs the coordinates family and num_arms, which dataset lacks: "
                "pass it as sweep returns it, or give 'bandit' or 'all'"
            )
        titles = kinds(dataset)
    groups = split(values, titles)
    if len(groups) > MOST_PANELS:
        raise ValueError(
            f"panel = {panel!r} makes {len(groups)} panels, and more than {MOST_PANELS} are not "
            "legible: select fewer bandits, or give 'family' or 'all'"
        )
    return groups


def samples(values: "DataArray") -> Iterator[tuple[str, "DataArray"]]:
    """Each policy's name and its sample: over the runs on a single instance, or over the instances.
    [budget, sample]
    """
    found = (
        sampled(values.isel(bandit=0), "seed")
        if values.sizes["bandit"] == 1
        else sampled(values, "bandit")
    )
    for name in found.policy.values:
        yield str(name), found.sel(policy=name)


def by_policy(values: "DataArray") -> Iterator[tuple[str, np.ndarray]]:
    """The same as `samples`, with arrays."""
    return ((name, sample.values) for name, sample in samples(values))


def unit(groups: dict[str, "DataArray"]) -> str:
    kinds = {"instances" if values.sizes["bandit"] > 1 else "runs" for values in groups.values()}
    return " or ".join(sorted(kinds))


def sample_words(groups: dict[str, "DataArray"]) -> str:
    """Describes the sample of the panels."""
    parts = []
    for values in groups.values():
        runs = counted(values.sizes["seed"], "run")
        parts.append(
            runs
            if values.sizes["bandit"] == 1
            else f"{counted(values.sizes['bandit'], 'instance')} of {runs} each"
        )
    return " or ".join(dict.fromkeys(parts))


def allowing(groups: dict[str, "DataArray"]) -> str:
    """Says that the limits are widened, if they are."""
    known = all("lost_run" in values.coords for values in groups.values())
    return " (widened as if one more run were lost)" if known else ""


def caveats(dataset: "Dataset") -> str:
    """Counts runs that hit the limit of rounds, and runs with missing or infinite regret. A figure
    never hides them.
    """
    truncated = int(dataset.truncated.sum()) if "truncated" in dataset else 0
    missing = int((~np.isfinite(dataset.regret)).sum())
    return (f"; {counted(truncated, 'run')} hit the limit of rounds" if truncated else "") + (
        f"; {counted(missing, 'run')} without a finite regret" if missing else ""
    )


def budget_words(dataset: "Dataset") -> str:
    """The label of an axis of budgets."""
    if "resource" in dataset.dims:
        return "budget of each resource (units of cost)"
    unit = "multiples of the smallest expected cost" if is_relative(dataset) else "units of cost"
    return f"budget ({unit})"


def is_relative(dataset: "Dataset") -> bool:
    return bool(json.loads(dataset.attrs.get("specification", "{}")).get("relative"))


def words(metric: str) -> str:
    return metric.replace("_", "-")
