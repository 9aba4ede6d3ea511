"""Comparisons of policies."""

from typing import TYPE_CHECKING

import numpy as np

from bts_jax.metrics import difference_interval, mean_interval, measured, multiples
from bts_jax.plots import looks
from bts_jax.plots.panels import COLUMN, PAGE, SMALL, TEXT, curve, legend, name_rows, note, panelled
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
from bts_jax.plots.saving import blank
from bts_jax.plots.scales import both_ways, decades, rescale
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
    width: float | None = None,
) -> "Figure":
    """How much more regret each policy has than `reference`, on the same luck: mean paired difference and its interval.

    Args:
        reference: the policy to compare with, the line at 0.
        scale: "linear", "log-x" or "log-log"; the last is linear around 0.
        metric, panel, level, width: as for `regret`.
    """
    among("scale", scale, "linear", "log-x", "log-log")
    groups = grouped(dataset, metric, panel)
    among("reference", reference, *dataset.policy.values)
    figure, panels = panelled(groups, width, budget_words(dataset),
                             f"{words(metric)} minus that of {reference}\n(units of reward)")
    look = looks.styles(dataset.policy.values)
    others = {name: style for name, style in look.items() if name != reference}
    for axes, sample in panels:
        base = dict(samples(sample))[reference]
        axes.axhline(0, color=look[reference]["color"], linewidth=1)
        means = []
        for name, values in samples(sample):
            if name != reference:
                mean, low, high = difference_interval(values, base, level=level)
                means.append(mean)
                curve(axes, dataset.budget.values, mean, low, high, others[name], name)
        rescale(axes, "linear" if scale == "linear" else "log-x")
        if scale == "log-log":
            largest = np.nanmax(np.abs(means), initial=1)
            both_ways(axes, "y", largest / 30, largest)
    legend(figure, others, f"mean paired difference and its {level:.0%} interval{allowing(groups)}, over "
                           f"{sample_words(groups)}; above 0, {reference} is better{caveats(dataset)}")
    return figure


def relative(
    dataset: "Dataset",
    reference: str,
    *,
    metric: str = "regret",
    panel: str = "family",
    budget: float | None = None,
    width: float | None = None,
) -> "Figure":
    """Regret as a multiple of that of the `reference`, at one budget, the largest unless it is given.

    For each policy the ratio on each instance: its median as a marker and its quartiles as a line; and the ratio of the mean
    regrets as an open diamond, which a few instances may decide. The lowest median, averaged over the panels, stands on top.
    Instances on which the reference has no regret are left out.

    Args:
        metric, panel, width: as for `regret`; where a panel has a single instance, its runs take the place of the instances.
    """
    at = at_budget(dataset, budget)
    groups = grouped(at, metric, panel)
    among("reference", reference, *at.policy.values)
    samples = [{name: values[0] for name, values in by_policy(sample)} for sample in groups.values()]
    ratios = [{name: multiples(values, each[reference]) for name, values in each.items()} for each in samples]
    medians = {name: np.mean([np.log(max(np.median(each[name]), 1e-9)) if len(each[name]) else 0 for each in ratios])
               for name in ratios[0]}
    names = sorted(medians, key=lambda name: medians[name])
    figure, panels = panelled(groups, width, f"{words(metric)} as a multiple of that of {reference}, at budget "
                             f"{at.budget.item():,g}", "", names=len(names))
    look = looks.styles(names)
    for (axes, _), each, sample in zip(panels, ratios, samples, strict=True):
        axes.axvline(1, color=look[reference]["color"], linewidth=0.8)
        drawn = [1.0]
        for row, name in enumerate(names):
            values, style = each[name][np.isfinite(each[name])], {**look[name], "linestyle": "none"}
            if not len(values):
                continue
            low, median, high = np.maximum(np.quantile(values, [0.25, 0.5, 0.75]), 1e-3)
            axes.plot([low, high], [row, row], color=style["color"], linewidth=2, alpha=0.4, solid_capstyle="butt")
            axes.plot(median, row, markersize=5, **style)
            mean = max(np.mean(sample[name]) / np.mean(sample[reference]), 1e-3)
            drawn += [low, high, mean]
            axes.plot(mean, row, marker="D", markersize=3.5, color="black", markerfacecolor="none", linestyle="none",
                      markeredgewidth=0.7)
        axes.set_xlim(min(drawn) / 1.2, max(drawn) * 1.2)
        decades(axes, "x")
        axes.xaxis.set_major_formatter("{x:g}")
        name_rows(axes, names)
    note(figure, f"median and quartiles over {sample_words(groups)}; open diamond: ratio of the means{caveats(at)}")
    return figure


def dominance(
    dataset: "Dataset", *, metric: str = "regret", budget: float | None = None, width: float | None = None
) -> "Figure":
    """Who beats whom: the share of the instances on which the policy of the row has less mean regret than that of the column.

    At one budget, the largest unless it is given. Ties count half, and a policy of which a run is missing (NaN) loses.
    """
    at = at_budget(dataset, budget)
    values = measured(at, metric).mean("seed", skipna=False).values[:, :, 0]
    values = np.where(np.isnan(values), np.inf, values)
    share = ((values[:, None] < values) + 0.5 * (values[:, None] == values)).mean(-1)
    names, count = list(at.policy.values), at.sizes["bandit"]
    width = min(max(COLUMN, 1.4 + 0.42 * len(names)), PAGE) if width is None else width
    figure = blank(width, width)
    axes = figure.add_subplot()
    off = np.where(np.eye(len(names), dtype=bool), np.nan, 100 * share)
    axes.imshow(off, cmap="PuOr", vmin=0, vmax=100)
    for row in range(len(names)):
        for column in range(len(names)):
            if row != column:
                axes.text(column, row, f"{off[row, column]:.0f}%", ha="center", va="center", fontsize=SMALL,
                          color="white" if abs(off[row, column] - 50) > 27 else "black")
    axes.set_xticks(range(len(names)), names, fontsize=SMALL, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("this policy …", fontsize=TEXT)
    axes.set_xlabel("… has less regret than this one", fontsize=TEXT)
    note(figure, f"share of {counted(count, 'instance')}, by mean {words(metric)} over {counted(at.sizes['seed'], 'run')} "
                  f"each at budget {at.budget.item():,g}{caveats(at)}")
    return figure


def budget_to_reach(
    dataset: "Dataset",
    amount: float,
    *,
    metric: str = "regret",
    panel: str = "bandit",
    level: float = 0.95,
    width: float | None = None,
) -> "Figure":
    """The budget at which the mean regret of each policy reaches `amount`: the larger, the better.

    Between two budgets of the Dataset the mean is taken to be a straight line, and to start from 0. The bar goes from the
    budget at which the upper limit of the mean's interval gets there to that at which the lower limit does. An arrow stands
    for a policy that does not get there within the largest budget.
    """
    if not (np.ndim(amount) == 0 and np.isfinite(amount) and amount > 0):
        raise ValueError(f"amount = {amount!r} is not an amount of regret: give a positive number")
    groups = grouped(dataset, metric, panel)
    figure, panels = panelled(groups, width, f"budget at which mean {words(metric)} reaches {amount:,g} (units of cost)", "",
                             names=dataset.sizes["policy"])
    look = looks.styles(dataset.policy.values)
    budgets, end = dataset.budget.values, dataset.budget.values[-1]
    for axes, sample in panels:
        first = end
        for place, (name, values) in enumerate(samples(sample)):
            color, marker = look[name]["color"], look[name]["marker"]
            mean, low, high = mean_interval(values, level=level)
            at, soonest, latest = (reaches(budgets, curve, amount) for curve in (mean, high, low))
            soonest, latest = min(soonest, end), min(latest, end)  # NaN, of a single run, stays
            axes.plot([soonest, latest], [place, place], color=color, linewidth=2.5, alpha=0.4, solid_capstyle="butt")
            axes.plot(min(at, end), place, marker=marker, color=color, markersize=5)
            if np.isinf(at):
                axes.annotate("", (end * 1.25, place), (end, place), clip_on=False,
                              arrowprops={"arrowstyle": "->", "color": color, "linewidth": 1.1})
            first = min(first, at, soonest) if np.isfinite(soonest) else min(first, at)
        axes.set_xlim(first / 1.3, end * 1.3)
        rescale(axes, "log-x")
        name_rows(axes, list(look))
    note(figure, f"mean and its {level:.0%} interval{allowing(groups)}, over {sample_words(groups)}; an arrow: not reached at "
                  f"{end:,g}{caveats(dataset)}")
    return figure


def reaches(budgets: np.ndarray, curve: np.ndarray, amount: float) -> float:
    """The first budget at which the curve, straight between the budgets and from (0, 0), is `amount`; infinite if none is."""
    if np.isnan(curve).any():
        return np.nan
    budgets, curve = np.append(0, budgets), np.append(0, curve)
    after = int(np.argmax(curve >= amount))
    if after == 0:
        return np.inf
    share = (amount - curve[after - 1]) / (curve[after] - curve[after - 1])
    return float(budgets[after - 1] + share * (budgets[after] - budgets[after - 1]))
