"""Figures that compare policies."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax.plots import looks
from bts_jax.plots.panels import (
    COLUMN,
    PAGE,
    SMALL,
    check_width,
    curve,
    name_rows,
    row_height,
    shade,
    side_by_side,
    single,
)
from bts_jax.plots.samples import (
    allowing,
    among,
    at_budget,
    budget_words,
    by_policy,
    caveats,
    grouped,
    sample_words,
    samples,
    words,
)
from bts_jax.plots.scales import both_ways, ratios, rescale
from bts_jax.statistics import difference_interval, mean_interval, measured, multiples
from bts_jax.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset


def difference(
    dataset: "Dataset",
    reference: str,
    *,
    metric: str = "regret",
    panel: str = "bandit",
    scale: str = "log-x",
    level: float = 0.95,
    axes: Any = None,
    labels: Mapping[str, str] | None = None,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    width: float | None = None,
) -> "Figure":
    """Draws the regret of each policy minus that of `reference`: mean paired difference (common
    random numbers), interval.

    Args:
        reference: the policy to compare with, the line at 0.
        scale: "linear", "log-x" or "log-log"; the last is linear around 0.
        metric, panel, level, axes, labels, styles, width: as for `regret`.

    Example:
        >>> from bts_jax import Bernoulli, plots, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> figure = plots.difference(results, "uniform")  # figure.savefig("difference.pdf")
    """
    among("scale", scale, "linear", "log-x", "log-log")
    groups = grouped(dataset, metric, panel)
    among("reference", reference, *dataset.policy.values)
    look = looks.chosen(dataset.policy.values, styles, labels)
    others = {name: style for name, style in look.items() if name != reference}
    base_name = look[reference]["label"]
    text = f"{words(metric)} minus that of {base_name}\n(units of reward)"
    panels = side_by_side(list(groups), budget_words(dataset), text, axes, width)
    for axes, sample in zip(panels.axes, groups.values(), strict=True):
        base = dict(samples(sample))[reference]
        axes.axhline(0, color=look[reference]["color"], linewidth=1)
        means = []
        for name, values in samples(sample):
            if name != reference:
                mean, low, high = difference_interval(values, base, level=level)
                means.append(mean)
                curve(
                    axes,
                    dataset.budget.values,
                    mean,
                    low,
                    high,
                    others[name],
                    others[name]["label"],
                    shade(len(others)),
                )
        rescale(axes, "linear" if scale == "linear" else "log-x")
        if scale == "log-log":
            largest = np.nanmax(np.abs(means), initial=1)
            both_ways(axes, "y", largest / 30, largest)
    panels.legend(
        others.values(),
        f"mean paired difference and its {level:.0%} interval{allowing(groups)}, over "
        f"{sample_words(groups)}; above 0, {base_name} is better",
        caveats(dataset),
    )
    return panels.figure


def relative(
    dataset: "Dataset",
    reference: str,
    *,
    metric: str = "regret",
    panel: str = "family",
    budget: float | None = None,
    axes: Any = None,
    labels: Mapping[str, str] | None = None,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    width: float | None = None,
) -> "Figure":
    """Draws regret as a multiple of that of the `reference`, at one budget, by default the largest.

    For each policy, a marker shows the median of the ratio on each instance, and a line shows its
    quartiles. An open diamond shows the ratio of the mean regrets, which a few instances may
    decide. The policy with the lowest median, averaged over the panels, is on top. Instances on
    which the reference has no regret are left out.

    Args:
        metric, panel, axes, labels, styles, width: as for `regret`; if a panel has a single
            instance, its runs take the place of the instances.

    Example:
        >>> from bts_jax import Bernoulli, plots, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> # figure.savefig("relative.pdf")
        >>> figure = plots.relative(results, "uniform", panel="all")
    """
    at = at_budget(dataset, budget)
    groups = grouped(at, metric, panel)
    among("reference", reference, *at.policy.values)
    values_of = [
        {name: values[0] for name, values in by_policy(sample)} for sample in groups.values()
    ]
    multiple = [
        {name: multiples(values, each[reference]) for name, values in each.items()}
        for each in values_of
    ]
    medians = {
        name: np.mean(
            [
                np.log(max(np.median(each[name]), 1e-9)) if len(each[name]) else 0
                for each in multiple
            ]
        )
        for name in multiple[0]
    }
    names = sorted(medians, key=lambda name: medians[name])
    look = looks.chosen(names, styles, labels)
    text = (
        f"{words(metric)} as a multiple of that of {look[reference]['label']}, at budget "
        f"{at.budget.item():,g}"
    )
    panels = side_by_side(list(groups), text, "", axes, width, row_height(len(names)))
    for axes, each, sample in zip(panels.axes, multiple, values_of, strict=True):
        axes.axvline(1, color=look[reference]["color"], linewidth=0.8)
        drawn = [1.0]
        for row, name in enumerate(names):
            values, style = each[name][np.isfinite(each[name])], {**look[name], "linestyle": "none"}
            if not len(values):
                continue
            low, median, high = np.maximum(np.quantile(values, [0.25, 0.5, 0.75]), 1e-3)
            axes.plot(
                [low, high],
                [row, row],
                color=style["color"],
                linewidth=2,
                alpha=0.4,
                solid_capstyle="butt",
            )
            axes.plot(median, row, **{"markersize": 5, **style})
            mean = max(np.mean(sample[name]) / np.mean(sample[reference]), 1e-3)
            drawn += [low, high, mean]
            axes.plot(
                mean,
                row,
                marker="D",
                markersize=3.5,
                color="black",
                markerfacecolor="none",
                linestyle="none",
                markeredgewidth=0.7,
            )
        axes.set_xlim(min(drawn) / 1.2, max(drawn) * 1.2)
        ratios(axes, "x")
        name_rows(axes, [look[name]["label"] for name in names])
    panels.note(
        f"median and quartiles over {sample_words(groups)}; open diamond: ratio of the means",
        caveats(at),
    )
    return panels.figure


def dominance(
    dataset: "Dataset",
    *,
    metric: str = "regret",
    budget: float | None = None,
    axes: Any = None,
    labels: Mapping[str, str] | None = None,
    width: float | None = None,
) -> "Figure":
    """Draws the share of the instances on which the policy of a row has less mean regret than the
    policy of a column.

    This is at one budget, by default the largest. Ties count half, and a policy with a missing run
    (NaN) loses.

    Args:
        metric, axes, labels, width: as for `regret`.

    Example:
        >>> from bts_jax import Bernoulli, plots, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> figure = plots.dominance(results)  # figure.savefig("dominance.pdf")
    """
    at = at_budget(dataset, budget)
    values = measured(at, metric).mean("seed", skipna=False).values[:, :, 0]
    values = np.where(np.isnan(values), np.inf, values)
    share = ((values[:, None] < values) + 0.5 * (values[:, None] == values)).mean(-1)
    names, count = (
        [style["label"] for style in looks.chosen(at.policy.values, None, labels).values()],
        at.sizes["bandit"],
    )
    width = check_width(width, axes, min(max(COLUMN, 1.4 + 0.42 * len(names)), PAGE))
    panels = single(axes, width, width)
    axes = panels.axes[0]
    off = np.where(np.eye(len(names), dtype=bool), np.nan, 100 * share)
    axes.imshow(off, cmap="PuOr", vmin=0, vmax=100)
    for row in range(len(names)):
        for column in range(len(names)):
            if row != column:
                axes.text(
                    column,
                    row,
                    f"{off[row, column]:.0f}%",
                    ha="center",
                    va="center",
                    fontsize=SMALL,
                    color="white" if abs(off[row, column] - 50) > 27 else "black",
                )
    axes.set_xticks(
        range(len(names)), names, fontsize=SMALL, rotation=40, ha="right", rotation_mode="anchor"
    )
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("this policy …", **panels.text)
    axes.set_xlabel("… has less regret than this one", **panels.text)
    panels.note(
        f"share of {counted(count, 'instance')}, by mean {words(metric)} over "
        f"{counted(at.sizes['seed'], 'run')} each at budget {at.budget.item():,g}",
        caveats(at),
    )
    return panels.figure


def budget_to_reach(
    dataset: "Dataset",
    amount: float,
    *,
    metric: str = "regret",
    panel: str = "bandit",
    level: float = 0.95,
    axes: Any = None,
    labels: Mapping[str, str] | None = None,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    width: float | None = None,
) -> "Figure":
    """Draws the budget at which the mean regret of each policy reaches `amount`: the larger, the
    better.

    The mean is interpolated linearly between the budgets of the Dataset, and starts from 0. The bar
    goes from the budget at which the upper limit of the mean's interval reaches `amount` to the
    budget at which the lower limit does. An arrow marks a policy that does not reach it within the
    largest budget.

    Args:
        metric, panel, level, axes, labels, styles, width: as for `regret`.

    Example:
        >>> from bts_jax import Bernoulli, plots, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> figure = plots.budget_to_reach(results, 3)  # figure.savefig("budget_to_reach.pdf")
    """
    if not (np.ndim(amount) == 0 and np.isfinite(amount) and amount > 0):
        raise ValueError(f"amount = {amount!r} is not an amount of regret: give a positive number")
    groups = grouped(dataset, metric, panel)
    look = looks.chosen(dataset.policy.values, styles, labels)
    text = f"budget at which mean {words(metric)} reaches {amount:,g} (units of cost)"
    panels = side_by_side(list(groups), text, "", axes, width, row_height(len(look)))
    budgets, end = dataset.budget.values, dataset.budget.values[-1]
    for axes, sample in zip(panels.axes, groups.values(), strict=True):
        first = end
        for place, (name, values) in enumerate(samples(sample)):
            color, marker = look[name]["color"], look[name]["marker"]
            mean, low, high = mean_interval(values, level=level)
            at, soonest, latest = (reaches(budgets, curve, amount) for curve in (mean, high, low))
            # NaN, if there is a single run, stays.
            soonest, latest = min(soonest, end), min(latest, end)
            axes.plot(
                [soonest, latest],
                [place, place],
                color=color,
                linewidth=2.5,
                alpha=0.4,
                solid_capstyle="butt",
            )
            axes.plot(min(at, end), place, marker=marker, color=color, markersize=5)
            if np.isinf(at):
                axes.annotate(
                    "",
                    (end * 1.25, place),
                    (end, place),
                    clip_on=False,
                    arrowprops={"arrowstyle": "->", "color": color, "linewidth": 1.1},
                )
            first = min(first, at, soonest) if np.isfinite(soonest) else min(first, at)
        axes.set_xlim(first / 1.3, end * 1.3)
        rescale(axes, "log-x")
        name_rows(axes, [style["label"] for style in look.values()])
    panels.note(
        f"mean and its {level:.0%} interval{allowing(groups)}, over {sample_words(groups)}; an "
        f"arrow: not reached at {end:,g}",
        caveats(dataset),
    )
    return panels.figure


def reaches(budgets: np.ndarray, curve: np.ndarray, amount: float) -> float:
    """The first budget at which the curve, linear from (0, 0) and between budgets, reaches
    `amount`; infinite if none does.
    """
    if np.isnan(curve).any():
        return np.nan
    budgets, curve = np.append(0, budgets), np.append(0, curve)
    after = int(np.argmax(curve >= amount))
    if after == 0:
        return np.inf
    share = (amount - curve[after - 1]) / (curve[after] - curve[after - 1])
    return float(budgets[after - 1] + share * (budgets[after] - budgets[after - 1]))
