"""Figures of curves: regret against the budget, and pulls against the arms."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax.contract import ratio
from bts_jax.intervals import Interval, interval
from bts_jax.plots import looks
from bts_jax.plots.bounds import LINES, instance, theory_lines
from bts_jax.plots.panels import curve, shade, side_by_side
from bts_jax.plots.samples import (
    allowing,
    among,
    at_budget,
    budget_words,
    by_policy,
    caveats,
    grouped,
    is_relative,
    sample_words,
    samples,
    words,
)
from bts_jax.plots.scales import decades, is_geometric, positive, rescale, span
from bts_jax.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset


def regret(
    dataset: "Dataset",
    *,
    metric: str = "regret",
    panel: str = "bandit",
    scale: str | None = None,
    band: str = "interval",
    level: float = 0.95,
    theory: bool | str | Sequence[str] = False,
    axes: Any = None,
    labels: Mapping[str, str] | None = None,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    width: float | None = None,
) -> "Figure":
    """Draws the mean regret against the budget, with a band.

    Args:
        metric: "regret" or "pseudo_regret".
        panel: "bandit", "family" or "all"; see `bts_jax.plots`.
        scale: "linear", "log-x", "log-y" or "log-log". A logarithmic axis leaves out values that
            are not positive. By default "log-log" with `theory`, since the bound is hundreds of
            times the regret. Otherwise "log-x" if there are at least three budgets and they grow
            geometrically, such as 100, 200, 500, 1000; and else "linear".
        band: "interval", the confidence interval of the mean, whose upper limit is widened as if
            one more run were lost (see `bts_jax.intervals`); "deviation", the mean ± one standard
            deviation; "quantiles", the middle of the sample. `level` is the confidence level, or
            the share in the middle. On a logarithmic axis, where a mean minus its deviation may be
            0 or less, the lower limit of a deviation is at least half the mean; the figure says so.
        theory: curves of `bts_jax.theory`, in panels of a single instance: one or several of
            "bound", the bound of the paper's proof on the mean regret of BTS (`bts_bound`, with the
            best γ for each arm); "leading", the part of it that Theorem 1 states; and "slope"
            (`lower_bound_slope`), a line that starts at the curve of BTS, or of the first policy,
            in the middle of the budgets. The slope shows how steep a curve becomes at least in the
            long run, but not how high it is: the line is not a lower bound. True is "bound" and
            "slope".
        axes: your own axes to draw in: one of matplotlib's Axes if there is one panel, or one for
            each panel. They keep their fonts and frames. The first gets the legend. Name the sample
            in your caption.
        labels: the legend text of policies, by their names; the names by default. Other names are
            ignored, so that one mapping serves all figures.
        styles: properties of matplotlib's lines, by the names of policies, which replace those of
            `plots.styles`, as in `{"mine": {"color": "black", "linewidth": 2}}`.
        width: the width of a new figure, in inches; by default a column's for one panel, the page's
            for more.

    Example:
        >>> from bts_jax import Bernoulli, plots, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> figure = plots.regret(results, scale="log-log")  # figure.savefig("regret.pdf")
    """
    wanted = (
        ("bound", "slope")
        if theory is True
        else (theory,)
        if isinstance(theory, str)
        else tuple(theory or ())
    )
    for name in wanted:
        among("theory", name, *LINES)
    groups = grouped(dataset, metric, panel)
    scale = scale or (
        "log-log" if wanted else "log-x" if is_geometric(dataset.budget.values) else "linear"
    )
    among("scale", scale, "linear", "log-x", "log-y", "log-log")
    among("band", band, "interval", "deviation", "quantiles")
    if wanted and is_relative(dataset):
        raise ValueError(
            f"theory = {theory!r} is about budgets in units of cost, and those of this dataset are "
            "multiples of each bandit's smallest expected cost: leave it out"
        )
    if wanted and all(sample.sizes["bandit"] > 1 for sample in groups.values()):
        raise ValueError(
            f"theory = {theory!r} is about a single instance, and panel = {panel!r} has several in "
            "each: give panel = 'bandit', or select one"
        )
    logarithmic = scale in ("log-y", "log-log")
    cut = " (not below half the mean)" if logarithmic else ""
    what = {
        "interval": f"mean and its {level:.0%} interval{allowing(groups)}",
        "deviation": f"mean ± one standard deviation{cut}",
        "quantiles": f"mean, and the middle {level:.0%}",
    }[band]
    look = looks.chosen(dataset.policy.values, styles, labels)
    panels = side_by_side(
        list(groups), budget_words(dataset), f"{words(metric)} (units of reward)", axes, width
    )
    for axes, sample in zip(panels.axes, groups.values(), strict=True):
        means, tops = [], []
        for name, values in samples(sample):
            mean, low, high = _band(values, band, level)
            if logarithmic and band == "deviation":
                low = np.maximum(low, mean / 2)
            means.append(positive(mean) if logarithmic else mean)
            tops.append(high)
            curve(
                axes,
                dataset.budget.values,
                means[-1],
                low,
                high,
                look[name],
                look[name]["label"],
                shade(len(look)),
            )
        if wanted and sample.sizes["bandit"] == 1:
            start = next((i for i, name in enumerate(look) if name.lower() == "bts"), 0)
            bandit = instance(dataset, sample.bandit.item())
            for name, x, y in theory_lines(bandit, dataset.budget.values, means[start], wanted):
                axes.plot(x, y, linewidth=1.3, **LINES[name])
                tops.append(y)
        if logarithmic:
            span(axes, means, tops)
        rescale(axes, scale)
    limit = "; the slope is for B → ∞, not a bound at any B" if "slope" in wanted else ""
    what += f", over {sample_words(groups)}{limit}"
    panels.legend([*look.values(), *(LINES[name] for name in wanted)], what, caveats(dataset))
    return panels.figure


def pulls(
    dataset: "Dataset",
    *,
    panel: str = "bandit",
    budget: float | None = None,
    axes: Any = None,
    labels: Mapping[str, str] | None = None,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    width: float | None = None,
) -> "Figure":
    """Draws the mean number of pulls of each arm in a run, at one budget (by default the largest),
    the best arm first.

    Arms are sorted by their ratios, so that instances can be averaged. With several resources they
    keep their order.

    Args:
        panel, axes, labels, styles, width: as for `regret`.

    Example:
        >>> from bts_jax import Bernoulli, plots, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> figure = plots.pulls(results)  # figure.savefig("pulls.pdf")
    """
    at = at_budget(dataset, budget)
    if "pulls" not in at or not {"reward_mean", "cost_mean"} <= set(at.coords):
        raise ValueError(
            "dataset has no pulls, or no reward_mean and cost_mean of its arms: pass it as sweep "
            "returns it"
        )
    means = at.reward_mean.values, at.cost_mean.values
    several = "resource" in at.dims
    index = (
        np.stack([np.arange(len(row), 0, -1.0) for row in means[0]])
        if several
        else ratio(*means, np)
    )
    order = np.argsort(-np.nan_to_num(index, nan=-1), axis=-1, kind="stable")
    counts = (
        at.pulls.where(np.isfinite(at.reward))
        .transpose("policy", "bandit", "budget", "seed", "arm")
        .values[:, :, 0]
    )
    ordered = np.take_along_axis(counts, order[None, :, None, :], -1)  # [policy, bandit, seed, arm]
    groups = grouped(at, "regret", panel)
    look = looks.chosen(at.policy.values, styles, labels)
    panels = side_by_side(
        list(groups),
        "arm" if several else "arm, by its ratio of reward to cost (1 is the best)",
        f"pulls per run at budget {at.budget.item():,g}",
        axes,
        width,
    )
    for axes, group in zip(panels.axes, groups.values(), strict=True):
        places = [list(at.bandit.values).index(name) for name in group.bandit.values]
        arms = (
            int(at.num_arms.values[places].min()) if "num_arms" in at.coords else ordered.shape[-1]
        )
        means, tops = [], []
        for row, (name, _) in enumerate(by_policy(group)):
            values = ordered[row, places, :, :arms]
            sample = values.mean(1) if len(places) > 1 else values[0]
            mean, low, high = interval(sample, axis=0)
            low = np.maximum(low, 0)  # numbers of pulls are not negative
            means.append(positive(mean))
            tops.append(high)
            style = look[name] if arms <= 20 else look[name] | {"marker": None}
            curve(
                axes,
                np.arange(1, arms + 1),
                means[-1],
                low,
                high,
                style,
                look[name]["label"],
                shade(len(look)),
            )
        span(axes, means, tops)
        decades(axes, "y")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(0.5, arms + 0.5)
    panels.legend(
        look.values(), f"mean and its 95% interval, over {sample_words(groups)}", caveats(at)
    )
    return panels.figure


def _band(sample: "DataArray", band: str, level: float) -> Interval:
    if band == "interval":
        return mean_interval(sample, level=level)
    values = sample.values
    mean = values.mean(-1)
    if band == "deviation":
        spread = values.std(-1, ddof=1) if values.shape[-1] > 1 else np.full_like(mean, np.nan)
        return Interval(mean, mean - spread, mean + spread)
    return Interval(mean, *np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=-1))
