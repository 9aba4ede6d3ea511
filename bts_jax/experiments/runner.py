"""Runs an experiment: a sweep that is saved as it is computed, and figures, a table and a report
that are derived from it.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bts_jax import checks, files, plots
from bts_jax.batch import on_the_host
from bts_jax.statistics import with_lost_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from xarray import Dataset


@dataclass(frozen=True)
class Size:
    """The size of an experiment."""

    arms: tuple[int, ...]
    budgets: tuple[float, ...]
    instances: tuple[int, ...]  # of each kind, for each number of arms
    runs: int  # on each instance
    families: tuple[str, ...] = (
        "Bernoulli",
        "Multinomial",
        "Beta",
    )  # used by some; each needs a program for each policy


@dataclass(frozen=True)
class Experiment:
    """An experiment: its settings, and functions that make its report, figures and table."""

    name: str
    about: str  # the first lines of the report
    sizes: dict[str, Size]  # by scale
    settings: Callable[
        [Size, int], dict[str, Any]
    ]  # size and seed -> policies, bandits and so on, as `sweep` takes them
    report: Callable[["Dataset"], str]
    figures: Callable[["Dataset"], dict[str, "Figure"]]  # by name
    table: Callable[["Dataset"], "DataFrame"]
    uses_pulls: bool = False  # whether anything uses the pulls, which take most of the memory
    fewest: int | None = 2  # instances of each kind; None if there are no random problems


def run(
    experiment: Experiment,
    scale: str,
    *,
    instances: int | None = None,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    quiet: bool = False,
) -> tuple["Dataset", str]:
    """Runs an experiment, and writes figures, `report.txt`, `table.csv` and `runs.zarr`.

    After an interruption, the same call continues.

    Args:
        scale: a key of `experiment.sizes`.
        instances: the number of instances of each kind; the default depends on the scale.
        seed: the random seed.
        out: a folder; `default_folder` by default.
        quiet: show no progress; see `bts_jax.progress`.

    Returns:
        The Dataset of all runs, and the report.
    """
    from bts_jax.sweeps.run import sweep

    if scale not in experiment.sizes:
        raise ValueError(
            f"scale = {scale!r} is not known: give {' or '.join(map(repr, experiment.sizes))}"
        )
    checks.whole("seed", seed, -(2**31))
    size = experiment.sizes[scale]
    if instances is not None:
        if experiment.fewest is None:
            raise ValueError(
                f"instances = {instances!r} is for random problems, and {experiment.name} has "
                "none: leave it out"
            )
        size = dataclasses.replace(
            size,
            instances=(checks.whole("instances", instances, experiment.fewest),) * len(size.arms),
        )
    folder = Path(out if out is not None else default_folder(experiment.name, scale, instances))
    files.check_folder(folder)
    with on_the_host():
        settings = experiment.settings(size, seed)
    files.make_folder(folder)
    with warnings.catch_warnings():
        # A study compares them all the same.
        warnings.filterwarnings("ignore", ".*made for costs in", UserWarning)
        dataset = sweep(
            budgets=size.budgets,
            num_seeds=size.runs,
            seed=seed,
            out=folder / "runs.zarr",
            quiet=quiet,
            **settings,
        )
    runs = with_lost_run(labelled(dataset if experiment.uses_pulls else dataset.drop_vars("pulls")))
    parts = [experiment.about, experiment.report(runs)]
    if truncated := int(dataset.truncated.sum()):
        parts.append(f"{truncated} runs hit the limit of rounds.")
    text = "\n\n".join(filter(None, parts))
    for title, figure in experiment.figures(runs).items():
        plots.save(figure, folder / title)
    files.write(folder / "report.txt", (text + "\n").encode())
    table = experiment.table(runs).to_csv(
        index=False, float_format="%.6g", na_rep="nan", lineterminator="\r\n"
    )
    files.write(folder / "table.csv", table.encode())
    return dataset, text


def default_folder(name: str, scale: str, instances: int | None) -> str:
    """The folder of an experiment if none is given."""
    return f"{name}-{scale}" if instances is None else f"{name}-{scale}-{instances}"


def labelled(dataset: "Dataset") -> "Dataset":
    """Replaces the family of each bandit by its `kind`, if the Dataset has this coordinate."""
    return (
        dataset.assign_coords(family=("bandit", dataset.kind.values))
        if "kind" in dataset.coords
        else dataset
    )
