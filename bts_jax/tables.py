"""The regret in a Dataset as a table: one row for each budget and policy, with an interval and its
sample.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax.intervals import Interval, interval
from bts_jax.statistics import kinds, measured, sample, split, unseen_excess
from bts_jax.text import counted

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import DataArray, Dataset

MOST_KINDS = 8  # tables, or panels of a figure


def grouping(dataset: "Dataset") -> str:
    """How tables and figures group the bandits by default: "kind", "bandit" or "all".

    A kind is a family of arms with a number of arms. If there are more than eight kinds, all
    bandits are one group. Otherwise each kind is a group if one of them has several instances, and
    else each bandit. The intervals of a group of several instances are about instances like these,
    as in `ranking`.
    """
    titles = kinds(dataset)
    few = len(set(titles)) <= MOST_KINDS
    return "all" if not few else "bandit" if len(set(titles)) == len(titles) else "kind"


def regret_table(
    dataset: "Dataset",
    *,
    metric: str = "regret",
    statistic: str | float = "mean",
    by: str | None = None,
    over: str | None = None,
    level: float = 0.95,
) -> "DataFrame":
    """The regret at each budget, with confidence intervals.

    Args:
        dataset: as `sweep` returns it.
        metric: "regret" or "pseudo_regret".
        statistic: "mean", whose upper limit is widened as if one more run were lost; "median",
            "trimmed" or a quantile. See `bts_jax.interval`.
        by: the groups that are averaged: the instances of each "kind" (a family with a number of
            arms), each "bandit" alone, or "all". By default what `grouping` returns.
        over: the sample of the intervals. "bandit": the instances, each with its mean over the
            seeds, for a statement about instances like these. "seed": the seeds, each with its mean
            over the bandits, for a statement about these bandits alone. By default "bandit" if a
            group has several instances, as in `ranking` and in figures; else "seed".
        level: the confidence level.

    Returns:
        A `pandas.DataFrame` with the columns `bandits` (the name of the group), `instances` (how
        many it has), `budget`, `policy`, `estimate`, `low`, `high` (NaN if the sample has one
        value), `over`, and `count`, the size of the sample. Seeds or instances with a missing run
        are left out of the sample.

    Example:
        >>> from bts_jax import Bernoulli, sweep
        >>> bandits = {f"two-{i}": Bernoulli(reward=[0.9, 0.5 + i / 10], cost=[0.5,
        ...     0.5]) for i in range(3)}
        >>> table = regret_table(sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5))
        >>> table[["bandits", "budget", "policy", "over", "count"]].values[0].tolist()
        ['Bernoulli, 2 arms', 10.0, 'kube', 'bandit', 3]
    """
    import pandas as pd

    values, by = measured(dataset, metric), by or grouping(dataset)
    titles = {
        "bandit": [str(name) for name in dataset.bandit.values],
        "all": ["all"] * dataset.sizes["bandit"],
    }
    if by not in ("bandit", "kind", "all"):
        raise ValueError(
            f"by = {by!r} is not a way to group bandits: give 'kind', 'bandit' or 'all'"
        )
    if over not in (None, "seed", "bandit"):
        raise ValueError(f"over = {over!r} is not a sample: give 'seed' or 'bandit'")
    groups = split(values, titles.get(by) or kinds(dataset))
    if over == "bandit" and all(group.sizes["bandit"] == 1 for group in groups.values()):
        raise ValueError(
            f"over = 'bandit' is a sample of one with by = {by!r}: give over = 'seed', or another "
            "by"
        )
    rows = []
    for title, group in groups.items():
        several = group.sizes["bandit"] > 1
        axis = "bandit" if several and over != "seed" else "seed"
        for j, budget in enumerate(group.budget.values):
            for i, policy in enumerate(group.policy.values):
                found, count = _estimate(group.isel(policy=i, budget=j), axis, statistic, level)
                rows.append(
                    (
                        title,
                        group.sizes["bandit"],
                        float(budget),
                        str(policy),
                        *map(float, found),
                        axis,
                        count,
                    )
                )
    columns = [
        "bandits",
        "instances",
        "budget",
        "policy",
        "estimate",
        "low",
        "high",
        "over",
        "count",
    ]
    return pd.DataFrame(rows, columns=columns)


def sample_in_words(rows: Any) -> str:
    """Describes the sample of the intervals of one group in a `regret_table`, and what they are
    about.
    """
    row = rows.iloc[0]
    if row.over == "bandit":
        return f"over the {row.instances} bandits: about bandits like these"
    return f"over the seeds: about {'this bandit' if row.instances == 1 else 'these bandits'} alone"


def group_in_words(rows: Any, by: str) -> str:
    """Describes a group in a `regret_table`."""
    row = rows.iloc[0]
    if by == "bandit":
        return f"bandit {row.bandits}"
    kind = "" if by == "all" else f" ({row.bandits})"
    return (
        f"average over {counted(int(row.instances), 'bandit')}{kind}"
        if row.instances > 1
        else f"one bandit{kind}"
    )


def _estimate(
    values: "DataArray", over: str, statistic: str | float, level: float
) -> tuple[Interval, int]:
    """A statistic of the regret [bandit, seed], its interval, and the size of the sample."""
    missing = np.isnan(values.values)
    values = (
        values.isel(seed=~missing.any(0)) if over == "seed" else values.isel(bandit=~missing.any(1))
    )
    if 0 in values.shape:
        return Interval(*np.full(3, np.nan)), 0
    drawn = values.values.mean(0 if over == "seed" else 1)
    if statistic != "mean":
        return interval(drawn, statistic=statistic, level=level), len(drawn)
    # A value is the mean over the other axis, and one more lost run would be one of the runs in it.
    excess = unseen_excess(
        sample(values, "bandit").assign_coords(
            runs=values.sizes["bandit" if over == "seed" else "seed"]
        )
    )
    return interval(drawn, level=level, unseen=(np.nan, drawn.mean() + excess.item())), len(drawn)
