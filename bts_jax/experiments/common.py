"""Shared parts of the studies: random problems and their coordinates, tables and verdicts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bts_jax import plots
from bts_jax.intervals import Interval, interval, ratio_interval, step_down, tail
from bts_jax.statistics import (
    by_kind,
    mean_interval,
    measured,
    multiples,
    paired,
    ranking,
    sample,
    unseen_excess,
)
from bts_jax.text import ALLOWANCE, counted, table

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import DataArray, Dataset

METRIC = "pseudo_regret"
CRITERION = (
    "criterion: an interval of the mean paired difference over the instances, at the level "
    "stated. With Holm's step-down procedure over all comparisons of this kind in the report, at "
    "least one verdict finds a difference where there is none with probability 5% or less; "
    f"{ALLOWANCE}"
)


# The columns of the table, by their names in a `ranking`.
COLUMNS = {
    "mean": "mean regret",
    "low": "95% from",
    "high": "95% to",
    "median": "median",
    "median_low": "median 95% from",
    "median_high": "median 95% to",
    "lower_quartile": "lower quartile",
    "upper_quartile": "upper quartile",
    "upper_tenth": "upper tenth",
    "tail_index": "tail index",
    "worst_share": "worst 1%",
    "mean_rank": "mean rank",
}


@dataclass(frozen=True)
class Instance:
    """A bandit of a study, and its coordinates."""

    bandit: Any
    num_arms: int
    kind: str
    number: int  # from 1 on, among those of its kind with as many arms
    coords: dict[str, float] = field(
        default_factory=dict
    )  # further ones; the same names for all instances of a study


_fold_in_each = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))


def draw(
    make: Callable[[jax.Array], Any], kind: str, arms: int, count: int, seed: int, place: int
) -> list[Instance]:
    """Draws random bandits. Each depends on the seed, the index of its kind and its number, but not
    on `count`.
    """
    key = jax.random.fold_in(jax.random.key(seed), place)
    keys = _fold_in_each(key, np.arange(count))
    batch = jax.tree.map(np.asarray, jax.jit(jax.vmap(make))(keys))
    return [
        Instance(jax.tree.map(lambda x, i=i: x[i], batch), arms, kind, i + 1) for i in range(count)
    ]


def played(instances: list[Instance]) -> dict[str, Any]:
    """The bandits by name and their coordinates, as `sweep` takes them. The keys of the runs depend
    on the names.
    """
    coords = {
        "kind": [one.kind for one in instances],
        "instance": [one.number for one in instances],
    }
    coords |= {name: [one.coords[name] for one in instances] for name in instances[0].coords}
    return {
        "bandits": {f"{one.kind}-{one.num_arms}-{one.number}": one.bandit for one in instances},
        "bandit_coords": coords,
    }


def power(
    budgets: np.ndarray, regret: np.ndarray, resampled: np.ndarray
) -> tuple[float, float, float]:
    """The exponent x of the least-squares fit of log regret by x log B + constant, with the limits
    of its 95% interval.

    Args:
        budgets: [budget]
        regret: [budget]
        resampled: the regret in bootstrap samples. [sample, budget]
    """
    centred = np.log(budgets) - np.log(budgets).mean()

    def slope(values: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(values, 1e-9)) @ centred / (centred @ centred)

    low, high = np.quantile(slope(resampled), [0.025, 0.975])
    return float(slope(regret)), float(low), float(high)


def last(dataset: "Dataset") -> "Dataset":
    return dataset.isel(budget=[-1])


def at_the_end(dataset: "Dataset") -> "DataArray":
    """Regret at the largest budget. [policy, bandit, seed]"""
    return measured(last(dataset), METRIC).isel(budget=0)


def on_instances(regret: "DataArray") -> dict[str, np.ndarray]:
    """The mean regret of each policy on each instance. [bandit]"""
    return dict(
        zip(
            map(str, regret.policy.values),
            regret.mean("seed").transpose("policy", "bandit").values,
            strict=True,
        )
    )


def median_ratio(mine: np.ndarray, base: np.ndarray) -> Interval:
    """The median over the instances of the ratio of two regrets, with its 95% interval."""
    ratios = multiples(mine, base)
    return interval(ratios, statistic="median") if len(ratios) else Interval(*np.full(3, np.nan))


def mean_ratios(regret: "DataArray", reference: str) -> dict[str, Interval]:
    """The mean regret of each policy divided by that of the reference, with its 95% interval."""
    values = sample(regret, "bandit")  # [policy, bandit]
    lost = values.values.mean(-1) + unseen_excess(values)
    runs = {
        str(name): both
        for name, *both in zip(values.policy.values, values.values, lost, strict=True)
    }
    base, base_lost = runs[reference]
    found = {
        name: ratio_interval(mine, base, unseen=(mine_lost, base_lost))
        for name, (mine, mine_lost) in runs.items()
    }
    return found | {reference: Interval(np.array(1.0), np.array(1.0), np.array(1.0))}


def limits(found: Interval, form: str = ",.2f") -> str:
    """An estimate and its limits, as text."""
    return (
        f"{float(found.estimate):{form}} ({float(found.low):{form}} … {float(found.high):{form}})"
    )


def standing(part: "Dataset", reference: str = "bts") -> str:
    """A table of the policies at the largest budget, sorted by mean rank."""
    ranks = ranking(last(part), metric=METRIC).isel(budget=0).sortby("mean_rank")
    regret = at_the_end(part)
    values, mean_ratio = on_instances(regret), mean_ratios(regret, reference)
    rows = []
    for name in map(str, ranks.policy.values):
        row = ranks.sel(policy=name)
        rows.append(
            [
                name,
                str(part.requires.sel(policy=name).item()),
                f"{row['mean_rank']:.1f}",
                f"{row['mean']:,.1f}",
                f"{row['low']:,.1f} … {row['high']:,.1f}",
                f"{row['median']:,.1f}",
                f"{row['median_low']:,.1f} … {row['median_high']:,.1f}",
                limits(mean_ratio[name]),
                limits(median_ratio(values[name], values[reference])),
                f"{row['worst_share']:.0%}",
                f"{row['best']:.0%}",
            ]
        )
    return table(
        [
            "policy",
            "side information",
            "rank",
            "mean",
            "95% interval",
            "median",
            "95% interval",
            f"mean ÷ {reference}",
            f"median of ÷ {reference}",
            "worst 1%",
            "best",
        ],
        rows,
    )


def regret_table(dataset: "Dataset") -> "DataFrame":
    """Regret of every policy on every kind of instance at every budget."""
    import pandas as pd

    frames = []
    for kind, part in by_kind(dataset).items():
        found = ranking(part, metric=METRIC)
        found = _over_runs(part, found) if part.sizes["bandit"] == 1 else found
        numbers = (
            found[list(COLUMNS)]
            .to_dataframe(["policy", "budget"])
            .reset_index()
            .rename(columns=COLUMNS)
        )
        about = {
            "kind": kind,
            "policy": numbers["policy"],
            "side information": numbers["requires"],
            "budget": numbers["budget"].astype(float),
        }
        frames.append(
            pd.DataFrame(
                about
                | {name: numbers[name] for name in COLUMNS.values()}
                | {"instances": part.sizes["bandit"], "runs on each": part.sizes["seed"]}
            )
        )
    return pd.concat(frames)


def _over_runs(part: "Dataset", found: "Dataset") -> "Dataset":
    """A ranking with statistics of the runs on the only instance instead of statistics of the
    instances.
    """
    runs = sample(measured(part, METRIC).isel(bandit=0), "seed").transpose(
        "policy", "budget", "seed"
    )
    ends = np.array([[tail(values) for values in row] for row in runs.values])
    columns = (
        *mean_interval(runs),
        *interval(runs.values, statistic="median"),
        *np.quantile(runs.values, [0.25, 0.75, 0.9], axis=-1),
        ends[..., 0],
        ends[..., 1],
    )
    return found.assign(
        {
            name: (("policy", "budget"), values)
            for name, values in zip(COLUMNS, columns, strict=False)
        }
    )


def sampled(dataset: "Dataset") -> str:
    return (
        f"{counted(dataset.sizes['bandit'], 'instance')}, {counted(dataset.sizes['seed'], 'run')} "
        "on each"
    )


def differences(compared: Sequence[tuple["Dataset", str, str]]) -> list[tuple[str, str]]:
    """The verdicts whether a policy has less mean regret than another on instances like these, and
    the evidence.

    Holm's procedure (`intervals.step_down`) adjusts for all comparisons that are given: each is a
    part of a Dataset, a policy and the policy it is compared with.
    """
    ends = [(last(part), policy, reference) for part, policy, reference in compared]

    def results(comparisons: int) -> list["Dataset"]:
        return [
            paired(*one, over="bandit", metric=METRIC, comparisons=comparisons).isel(budget=0)
            for one in ends
        ]

    allowed = step_down(
        lambda comparisons: [one.verdict.item() != "undecided" for one in results(comparisons)],
        len(ends),
    )
    return [_evidence(*one, result) for one, result in zip(compared, results(allowed), strict=True)]


def _evidence(part: "Dataset", policy: str, reference: str, result: "Dataset") -> tuple[str, str]:
    regret = at_the_end(part.sel(policy=sorted({policy, reference})))
    values = on_instances(regret)
    ratio, median = (
        mean_ratios(regret, reference)[policy],
        median_ratio(values[policy], values[reference]),
    )
    word, needed = str(result.verdict.item()), float(result.needed)
    more = (
        f"; it would take at least {needed:,.0f} problems to decide"
        if word == "undecided" and needed < 1e9
        else ""
    )
    return word, (
        f"{policy} − {reference}: {float(result.difference):+,.1f} ({float(result.low):+,.1f} … "
        f"{float(result.high):+,.1f} at {float(result.level):.4g}); with 95% intervals: ratio of "
        f"the means {limits(ratio)}, median ratio {limits(median)}; less on "
        f"{float(result.wins):.0%}{more}"
    )


def look(dataset: "Dataset") -> dict[str, dict[str, Any]]:
    """The styles of the policies. If several have the same colour, all but the first get another
    one.
    """
    result, taken = plots.styles(dataset.policy.values), set()
    for style in result.values():
        if style["color"] in taken:
            style["color"] = next(
                (
                    color
                    for color in ("#E69F00", "#D55E00", "#56B4E9", "#CC79A7", "#000000", "#7F7F7F")
                    if color not in taken
                ),
                style["color"],
            )
        taken.add(style["color"])
    return result


def tally(words: list[str], names: dict[str, str]) -> str:
    """Counts how often each word was the answer, as text."""
    counts = [f"{text} in {words.count(word)}" for word, text in names.items() if word in words]
    return f"{', '.join(counts)} of {len(words)} kinds"
