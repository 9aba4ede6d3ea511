"""Figures, each from a Dataset as `sweep` returns it and from nothing else.

Every function returns a `matplotlib.figure.Figure`, in the width of a column of a two-column paper or of the page, with
text of 7 or 8 points: `plots.regret(dataset).savefig("regret.pdf")`. A notebook shows it by itself.

A policy has the same colour and marker in all figures (see `styles`). What a panel shows is chosen with `panel`:

    "bandit"    one panel per instance; the sample is the runs on it
    "family"    one panel per family and number of arms; the sample is the instances, each with its mean over the seeds
    "all"       one panel; likewise

Where a family has a single instance the sample is its runs. Each figure says what its sample is.

Example:
    >>> from bts_jax import Bernoulli, plots, sweep
    >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
    >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], seeds=5)
    >>> figure = plots.regret(results, scale="log-log")  # figure.savefig("regret.pdf")
    >>> figure = plots.final_regret(results, kind="box", budget=20)
    >>> figure = plots.difference(results, "uniform")
    >>> bool(figure.get_figwidth() == plots.COLUMN)
    True
"""

import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bts_jax import files
from bts_jax.bandits import Bernoulli
from bts_jax.contract import Means, ratio
from bts_jax.intervals import Interval, interval
from bts_jax.metrics import difference_interval, kinds, mean_interval, measured, multiples, split
from bts_jax.metrics import sample as sampled
from bts_jax.text import counted
from bts_jax.theory import bts_bound, lower_bound_slope

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

COLUMN, PAGE = 3.4, 7.0  # inches: the width of a column, and of the page
MOST_PANELS = 8  # four rows fill a page
_TEXT, _SMALL = 8, 7  # points

# Okabe and Ito's colours, told apart by the colour-blind, relatives in one colour; and Tol's "muted" ones for policies that are
# not in the registry.
_KNOWN = {
    "bts": ("#0072B2", "o"), "epsilon-first": ("#E69F00", "s"), "pd-bwk": ("#009E73", "^"), "ucb-bv1": ("#CC79A7", "D"),
    "kube": ("#D55E00", "v"), "ucb-bv2": ("#CC79A7", "d"), "fractional-kube": ("#D55E00", "^"), "budget-ucb": ("#CC79A7", "s"),
    "i-ucb": ("#56B4E9", "s"), "c-ucb": ("#56B4E9", "v"), "m-ucb": ("#56B4E9", "X"), "b-greedy": ("#E69F00", "p"),
    "omega-ucb": ("#009E73", "s"), "omega-star-ucb": ("#009E73", "*"), "ucb-sc-plus": ("#000000", "D"),
    "kl-ucb-sc": ("#000000", "o"), "ucb-b2": ("#CC79A7", "P"), "gaussian-bts": ("#0072B2", "s"), "joint-bts": ("#0072B2", "X"),
    "oracle": ("#000000", "*"), "uniform": ("#7F7F7F", "X"),
    "tempered-bts": ("#0072B2", "P"), "soft-elimination": ("#661100", "h"),
}
_OTHERS = "#332288 #CC6677 #44AA99 #882255 #999933 #88CCEE #AA4499 #117733 #AA8800".split()
_MARKERS = "P p h < > d 8 H 1".split()
# The theory, in the colour of what it is about, and without a marker.
_THEORY = {
    "bound": ("bound on BTS", {"color": _KNOWN["bts"][0], "linestyle": "-."}),
    "leading": ("its leading term", {"color": _KNOWN["bts"][0], "linestyle": "--"}),
    "slope": ("lower bound's slope, no floor", {"color": "#000000", "linestyle": (0, (1, 1))}),
}


def styles(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each policy, as matplotlib's arguments.

    Those of the registry are fixed, in capitals or not, and drawn with a full line. Others are drawn dashed in a colour and
    marker that follow from the name; only where two of one figure would look the same does one of them take the next that is
    free.

    Example:
        >>> styles(["bts", "mine"])["bts"]
        {'color': '#0072B2', 'marker': 'o', 'linestyle': '-'}
    """
    result, taken = {}, set()
    for name in sorted(policies):
        if name.lower() in _KNOWN:
            color, marker, line = *_KNOWN[name.lower()], "-"
        else:
            start, count = zlib.crc32(name.encode()), len(_OTHERS)
            places = [(start + i) % count for i in range(count)] + [(start + i) % count**2 for i in range(count**2)]
            place = next((place for place in places if place not in taken), places[0])
            taken.add(place)
            color, marker, line = _OTHERS[place % count], _MARKERS[(place + place // count) % count], "--"
        result[name] = {"color": color, "marker": marker, "linestyle": line}
    return {name: result[name] for name in policies}


def regret(
    dataset: "Dataset",
    *,
    metric: str = "regret",
    panel: str = "bandit",
    scale: str | None = None,
    band: str = "interval",
    level: float = 0.95,
    theory: bool | str | Sequence[str] = False,
    width: float | None = None,
) -> "Figure":
    """Mean regret against budget, with a band.

    Args:
        metric: "regret" or "pseudo_regret".
        panel: "bandit", "family" or "all"; see the top of this module.
        scale: "linear", "log-x", "log-y" or "log-log". A logarithmic axis leaves out what is not positive. By default linear;
            with `theory` "log-log", since the bound is hundreds of times the regret.
        band: "interval", the confidence interval of the mean, whose upper limit allows for one lost run more than the sample
            has (see `bts_jax.intervals`); "deviation", the mean ± one standard deviation; "quantiles", the middle of the
            sample. `level` is that of the interval, or the share in the middle.
        theory: what `bts_jax.theory` says of the instance, in panels of a single one: one or several of "bound", what the
            paper's proof bounds the mean regret of BTS by (`bts_bound`, with the best γ for each arm); "leading", the part of
            it that Theorem 1 spells out; and "slope" (`lower_bound_slope`), a line that leaves the curve of BTS, or of the
            first policy, in the middle of the budgets. It tells how steep a curve becomes at least in the long run, and not
            how high it is: it is no floor. True is "bound" and "slope".
        width: in inches; a column's for one panel, the page's for more.
    """
    wanted = ("bound", "slope") if theory is True else (theory,) if isinstance(theory, str) else tuple(theory or ())
    for name in wanted:
        _among("theory", name, *_THEORY)
    scale = scale or ("log-log" if wanted else "linear")
    _among("scale", scale, "linear", "log-x", "log-y", "log-log")
    _among("band", band, "interval", "deviation", "quantiles")
    groups = _groups(dataset, metric, panel)
    if wanted and _is_relative(dataset):
        raise ValueError(f"theory = {theory!r} is about budgets in units of cost, and those of this dataset are multiples of "
                         "each bandit's smallest expected cost: leave it out")
    if wanted and all(sample.sizes["bandit"] > 1 for sample in groups.values()):
        raise ValueError(f"theory = {theory!r} is about a single instance, and panel = {panel!r} has none to itself: give "
                         "panel = 'bandit', or select one")
    what = {"interval": f"mean and its {level:.0%} interval{_allowing(groups)}", "deviation": "mean ± one standard deviation",
            "quantiles": f"mean, and the middle {level:.0%}"}[band]
    figure, panels = _figure(groups, width, _budget(dataset), f"{_words(metric)} (units of reward)")
    look = styles(dataset.policy.values)
    for axes, sample in panels:
        logarithmic, means, tops = scale in ("log-y", "log-log"), [], []
        for name, values in _samples(sample):
            mean, low, high = _band(values, band, level)
            means.append(_positive(mean) if logarithmic else mean)
            tops.append(high)
            curve(axes, dataset.budget.values, means[-1], low, high, look[name], name)
        if wanted and sample.sizes["bandit"] == 1:
            start = next((i for i, name in enumerate(look) if name.lower() == "bts"), 0)
            for name, x, y in _theory(_instance(dataset, sample.bandit.item()), dataset.budget.values, means[start], wanted):
                label, style = _THEORY[name]
                axes.plot(x, y, label=label, linewidth=1.3, **style)
                tops.append(y)
        if logarithmic:
            _span(axes, means, tops)
        _scale(axes, scale)
    look |= {_THEORY[name][0]: _THEORY[name][1] for name in wanted}
    _legend(figure, look, f"{what}, over {_sample(groups)}{_caveats(dataset)}")
    return figure


def final_regret(
    dataset: "Dataset",
    *,
    kind: str = "box",
    metric: str = "regret",
    panel: str = "bandit",
    budget: float | None = None,
    scale: str = "linear",
    width: float | None = None,
) -> "Figure":
    """How regret is distributed at one budget, the largest unless it is given.

    Args:
        kind: "box" has the quartiles, whiskers to the furthest value within 1.5 times their distance, all values beyond, and
            the mean as a marker; "violin" has the density and the mean; "histogram" counts.
        scale: "linear" or "log", of the regret; a logarithmic one is linear around 0 where some is negative.
        metric, panel, width: as for `regret`.
    """
    from matplotlib.ticker import EngFormatter

    _among("kind", kind, "box", "violin", "histogram")
    _among("scale", scale, "linear", "log")
    at = _at(dataset, budget)
    groups = _groups(at, metric, panel)
    label = f"{_words(metric)} at budget {at.budget.item():,g} (units of reward)"
    figure, panels = _figure(groups, width, label, f"number of {_unit(groups)}" if kind == "histogram" else "",
                             names=0 if kind == "histogram" else at.sizes["policy"])
    look = styles(at.policy.values)
    for axes, sample in panels:
        rows = [(name, values[0][np.isfinite(values[0])]) for name, values in _by_policy(sample)]
        everything = np.concatenate([values for _, values in rows])
        if scale == "log" and (everything > 0).all():
            low, high = (everything.min(), everything.max()) if len(everything) else (1, 10)
            axes.set_xlim(low / 1.2, high * 1.2)
            decades(axes, "x")
        elif scale == "log":
            _both_ways(axes, "x", -everything.min(), abs(everything).max())
        else:
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if kind == "histogram":
            edges = _even(axes, everything, 31)
            for name, values in rows:
                axes.hist(values, edges, histtype="stepfilled", alpha=0.15, color=look[name]["color"])
                axes.hist(values, edges, histtype="step", color=look[name]["color"], linestyle=look[name]["linestyle"])
            continue
        for place, (name, values) in enumerate(rows):
            color, marker = look[name]["color"], look[name]["marker"]
            if kind == "violin" and len(np.unique(values)) > 1:
                x = _even(axes, values, 200)
                height = _density(axes, values, x)
                axes.fill_between(x, place - 0.4 * height, place + 0.4 * height, color=color, alpha=0.5, linewidth=0.6)
            elif kind == "box":
                axes.boxplot(values, positions=[place], orientation="horizontal", widths=0.6, patch_artist=True,
                             boxprops={"facecolor": color, "alpha": 0.4, "linewidth": 0.6},
                             medianprops={"color": "black", "linewidth": 0.9}, whiskerprops={"linewidth": 0.6},
                             capprops={"linewidth": 0.6}, flierprops={"marker": ".", "markersize": 2, "alpha": 0.4,
                                                                      "markerfacecolor": color, "markeredgecolor": color})
            if len(values):
                axes.plot(values.mean(), place, marker=marker, color=color, markersize=4, markeredgecolor="white",
                          markeredgewidth=0.4)
        _name_rows(axes, [name for name, _ in rows])
    if kind == "histogram":
        _legend(figure, look, f"{_sample(groups)}{_caveats(at)}", markers=False)
    else:
        _note(figure, f"{_sample(groups)} each; the marker is the mean{_caveats(at)}")
    return figure


def pulls(
    dataset: "Dataset", *, panel: str = "bandit", budget: float | None = None, width: float | None = None
) -> "Figure":
    """Mean number of pulls of each arm in a run, at one budget (the largest unless it is given), the best arm first.

    Arms stand in the order of their ratios, so that instances can be averaged.
    """
    at = _at(dataset, budget)
    if "pulls" not in at or not {"reward_mean", "cost_mean"} <= set(at.coords):
        raise ValueError("dataset has no pulls, or no reward_mean and cost_mean of its arms: pass it as sweep returns it")
    order = np.argsort(-np.nan_to_num(ratio(at.reward_mean.values, at.cost_mean.values, np), nan=-1), axis=-1, kind="stable")
    counts = at.pulls.where(np.isfinite(at.regret)).transpose("policy", "bandit", "budget", "seed", "arm").values[:, :, 0]
    ordered = np.take_along_axis(counts, order[None, :, None, :], -1)  # [policy, bandit, seed, arm]
    groups = _groups(at, "regret", panel)
    figure, panels = _figure(groups, width, "arm, by its ratio of reward to cost (1 is the best)",
                             f"pulls per run at budget {at.budget.item():,g}")
    look = styles(at.policy.values)
    for (axes, sample), chosen in zip(panels, groups.values(), strict=True):
        places = [list(at.bandit.values).index(name) for name in chosen.bandit.values]
        arms = int(at.num_arms.values[places].min()) if "num_arms" in at.coords else ordered.shape[-1]
        means, tops = [], []
        for row, (name, _) in enumerate(_by_policy(sample)):
            values = ordered[row, places, :, :arms]
            sample = values.mean(1) if len(places) > 1 else values[0]
            mean, low, high = interval(sample, axis=0)
            low = np.maximum(low, 0)  # as numbers of pulls are
            means.append(_positive(mean))
            tops.append(high)
            style = look[name] if arms <= 20 else look[name] | {"marker": None}
            curve(axes, np.arange(1, arms + 1), means[-1], low, high, style, name)
        _span(axes, means, tops)
        decades(axes, "y")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(0.5, arms + 0.5)
    _legend(figure, look, f"mean and its 95% interval, over {_sample(groups)}{_caveats(at)}")
    return figure


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
    _among("scale", scale, "linear", "log-x", "log-log")
    groups = _groups(dataset, metric, panel)
    _among("reference", reference, *dataset.policy.values)
    figure, panels = _figure(groups, width, _budget(dataset),
                             f"{_words(metric)} minus that of {reference}\n(units of reward)")
    look = styles(dataset.policy.values)
    others = {name: style for name, style in look.items() if name != reference}
    for axes, sample in panels:
        base = dict(_samples(sample))[reference]
        axes.axhline(0, color=look[reference]["color"], linewidth=1)
        means = []
        for name, values in _samples(sample):
            if name != reference:
                mean, low, high = difference_interval(values, base, level=level)
                means.append(mean)
                curve(axes, dataset.budget.values, mean, low, high, others[name], name)
        _scale(axes, "linear" if scale == "linear" else "log-x")
        if scale == "log-log":
            largest = np.nanmax(np.abs(means), initial=1)
            _both_ways(axes, "y", largest / 30, largest)
    _legend(figure, others, f"mean paired difference and its {level:.0%} interval{_allowing(groups)}, over {_sample(groups)}; "
                            f"above 0, {reference} is better{_caveats(dataset)}")
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
    at = _at(dataset, budget)
    groups = _groups(at, metric, panel)
    _among("reference", reference, *at.policy.values)
    samples = [{name: values[0] for name, values in _by_policy(sample)} for sample in groups.values()]
    ratios = [{name: multiples(values, each[reference]) for name, values in each.items()} for each in samples]
    medians = {name: np.mean([np.log(max(np.median(each[name]), 1e-9)) if len(each[name]) else 0 for each in ratios])
               for name in ratios[0]}
    names = sorted(medians, key=lambda name: medians[name])
    figure, panels = _figure(groups, width, f"{_words(metric)} as a multiple of that of {reference}, at budget "
                             f"{at.budget.item():,g}", "", names=len(names))
    look = styles(names)
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
        _name_rows(axes, names)
    _note(figure, f"median and quartiles over {_sample(groups)}; open diamond: ratio of the means{_caveats(at)}")
    return figure


def save(figure: "Figure", path: Path) -> None:
    """Writes a figure as PNG and as PDF: `path` with these suffixes."""
    for suffix in ("png", "pdf"):
        write(figure, path.with_name(f"{path.name}.{suffix}"))


def write(figure: "Figure", path: Path) -> None:
    """Writes a figure as PNG, PDF or SVG, by the suffix of `path`."""
    import matplotlib
    from matplotlib.mathtext import MathTextParser
    from matplotlib.text import Text

    for text in figure.findobj(Text):  # a name may have dollar signs without being a formula
        try:
            MathTextParser("path").parse(text.get_text() if "$" in text.get_text() else "")  # type: ignore
        except ValueError:
            text.set_parse_math(False)  # type: ignore
    content = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # publishers refuse the other kind of fonts
        figure.savefig(content, format=image_format(path), dpi=300)
    files.write(path, content.getvalue())


def image_format(path: Path) -> str:
    """The format that the suffix of a file stands for, or a `ValueError` that names those there are."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in ("png", "pdf", "svg"):
        raise ValueError(f"out = {str(path)!r} is not the name of an image: let it end in .png, .pdf or .svg")
    return suffix


def dominance(
    dataset: "Dataset", *, metric: str = "regret", budget: float | None = None, width: float | None = None
) -> "Figure":
    """Who beats whom: the share of the instances on which the policy of the row has less mean regret than that of the column.

    At one budget, the largest unless it is given. Ties count half, and a policy of which a run is missing (NaN) loses.
    """
    at = _at(dataset, budget)
    values = measured(at, metric).mean("seed", skipna=False).values[:, :, 0]
    values = np.where(np.isnan(values), np.inf, values)
    share = ((values[:, None] < values) + 0.5 * (values[:, None] == values)).mean(-1)
    names, count = list(at.policy.values), at.sizes["bandit"]
    width = min(max(COLUMN, 1.4 + 0.42 * len(names)), PAGE) if width is None else width
    figure = _blank(width, width)
    axes = figure.add_subplot()
    off = np.where(np.eye(len(names), dtype=bool), np.nan, 100 * share)
    axes.imshow(off, cmap="PuOr", vmin=0, vmax=100)
    for row in range(len(names)):
        for column in range(len(names)):
            if row != column:
                axes.text(column, row, f"{off[row, column]:.0f}%", ha="center", va="center", fontsize=_SMALL,
                          color="white" if abs(off[row, column] - 50) > 27 else "black")
    axes.set_xticks(range(len(names)), names, fontsize=_SMALL, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names, fontsize=_SMALL)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("this policy …", fontsize=_TEXT)
    axes.set_xlabel("… has less regret than this one", fontsize=_TEXT)
    _note(figure, f"share of {counted(count, 'instance')}, by mean {_words(metric)} over {counted(at.sizes['seed'], 'run')} "
                  f"each at budget {at.budget.item():,g}{_caveats(at)}")
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
    groups = _groups(dataset, metric, panel)
    figure, panels = _figure(groups, width, f"budget at which mean {_words(metric)} reaches {amount:,g} (units of cost)", "",
                             names=dataset.sizes["policy"])
    look = styles(dataset.policy.values)
    budgets, end = dataset.budget.values, dataset.budget.values[-1]
    for axes, sample in panels:
        first = end
        for place, (name, values) in enumerate(_samples(sample)):
            color, marker = look[name]["color"], look[name]["marker"]
            mean, low, high = mean_interval(values, level=level)
            at, soonest, latest = (_reaches(budgets, curve, amount) for curve in (mean, high, low))
            soonest, latest = min(soonest, end), min(latest, end)  # NaN, of a single run, stays
            axes.plot([soonest, latest], [place, place], color=color, linewidth=2.5, alpha=0.4, solid_capstyle="butt")
            axes.plot(min(at, end), place, marker=marker, color=color, markersize=5)
            if np.isinf(at):
                axes.annotate("", (end * 1.25, place), (end, place), clip_on=False,
                              arrowprops={"arrowstyle": "->", "color": color, "linewidth": 1.1})
            first = min(first, at, soonest) if np.isfinite(soonest) else min(first, at)
        axes.set_xlim(first / 1.3, end * 1.3)
        _scale(axes, "log-x")
        _name_rows(axes, list(look))
    _note(figure, f"mean and its {level:.0%} interval{_allowing(groups)}, over {_sample(groups)}; an arrow: not reached at "
                  f"{end:,g}{_caveats(dataset)}")
    return figure


# What the figures share.


def _among(name: str, value: Any, *known: str) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r} is not known: give {', '.join(map(repr, known[:-1]))} or {known[-1]!r}")


def _at(dataset: "Dataset", budget: float | None) -> "Dataset":
    """The Dataset at one budget, an axis of length 1."""
    measured(dataset)
    known = dataset.budget.values
    if budget is None:
        return dataset.isel(budget=[int(known.argmax())])
    if budget not in known:
        raise ValueError(f"budget = {budget!r} is not in the dataset: give one of {', '.join(f'{b:g}' for b in known)}")
    return dataset.sel(budget=[budget])


def _groups(dataset: "Dataset", metric: str, panel: str) -> dict[str, "DataArray"]:
    """What each panel shows, by its title: `dataset[metric]` on some of the bandits."""
    _among("panel", panel, "bandit", "family", "all")
    values = measured(dataset, metric)
    values = values.where(np.isfinite(values))
    names = [str(name) for name in values.bandit.values]
    if panel == "all":
        titles = [f"all {len(names)} instances" if len(names) > 1 else names[0]] * len(names)
    elif panel == "bandit":
        titles = names
    else:
        if not {"family", "num_arms"} <= set(dataset.coords):
            raise ValueError("panel = 'family' needs the coordinates family and num_arms, which dataset lacks: pass it "
                             "as sweep returns it, or give 'bandit' or 'all'")
        titles = kinds(dataset)
    groups = split(values, titles)
    if len(groups) > MOST_PANELS:
        raise ValueError(f"panel = {panel!r} makes {len(groups)} panels, and more than {MOST_PANELS} are not legible: select "
                         "fewer bandits, or give 'family' or 'all'")
    return groups


def _samples(values: "DataArray") -> Iterator[tuple[str, "DataArray"]]:
    """Each policy's name and its sample: over the runs on a single instance, or over the instances. [budget, sample]"""
    for name in values.policy.values:
        mine = values.sel(policy=name)
        yield str(name), sampled(mine.isel(bandit=0), "seed") if mine.sizes["bandit"] == 1 else sampled(mine, "bandit")


def _by_policy(values: "DataArray") -> Iterator[tuple[str, np.ndarray]]:
    """The same, as arrays."""
    return ((name, sample.values) for name, sample in _samples(values))


def _instance(dataset: "Dataset", name: str) -> Any:
    """The bandit of this name, as far as theory wants to know it."""
    if not {"reward_mean", "cost_mean", "num_arms", "family"} <= set(dataset.coords):
        raise ValueError("theory needs the coordinates reward_mean, cost_mean, num_arms and family, which dataset lacks: pass "
                         "it as sweep returns it")
    one = dataset.sel(bandit=name)
    means = Means(*(one[field].values[: one.num_arms.item()] for field in Means._fields))
    return Bernoulli(reward=means.reward_mean, cost=means.cost_mean) if one.family.item() == "Bernoulli" else means


def _theory(
    bandit: Any, budgets: np.ndarray, mean: np.ndarray, wanted: tuple[str, ...]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The name of each curve, and the curve; the slope leaves `mean` in the middle of the budgets."""
    proven = budgets[budgets > np.e]  # where the proof holds
    bounds = [bts_bound(bandit, budget) for budget in proven] if {"bound", "leading"} & set(wanted) else []
    for name in wanted:
        if name == "slope":
            middle = np.abs(np.log(budgets) - np.log(budgets[[0, -1]]).mean()).argmin()
            x = np.geomspace(budgets[middle], budgets[-1], 50)
            yield name, x, mean[middle] + lower_bound_slope(bandit) * np.log(x / budgets[middle])
        else:
            y = np.array([bound.regret if name == "bound" else bound.leading for bound in bounds])
            yield name, proven, np.where(np.isfinite(y), y, np.nan)


def _unit(groups: dict[str, "DataArray"]) -> str:
    kinds = {"instances" if values.sizes["bandit"] > 1 else "runs" for values in groups.values()}
    return " or ".join(sorted(kinds))


def _sample(groups: dict[str, "DataArray"]) -> str:
    """What the sample of the panels is, in words."""
    parts = []
    for values in groups.values():
        runs = counted(values.sizes["seed"], "run")
        parts.append(runs if values.sizes["bandit"] == 1 else f"{counted(values.sizes['bandit'], 'instance')} of {runs} each")
    return " or ".join(dict.fromkeys(parts))


def _allowing(groups: dict[str, "DataArray"]) -> str:
    """What the limits allow for, in words."""
    known = all("lost_run" in values.coords for values in groups.values())
    return " (which allows for one lost run more)" if known else ""


def _caveats(dataset: "Dataset") -> str:
    """A run that hit its limit of rounds is never hidden, nor one that is missing, or whose regret is infinite."""
    truncated = int(dataset.truncated.sum()) if "truncated" in dataset else 0
    missing = int((~np.isfinite(dataset.regret)).sum())
    return (f"; {counted(truncated, 'run')} hit the limit of rounds" if truncated else "") + (
        f"; {counted(missing, 'run')} without a finite regret" if missing else "")


def _budget(dataset: "Dataset") -> str:
    """What the budgets are, for an axis."""
    return f"budget ({'multiples of the smallest expected cost' if _is_relative(dataset) else 'units of cost'})"


def _is_relative(dataset: "Dataset") -> bool:
    return bool(json.loads(dataset.attrs.get("specification", "{}")).get("relative"))


def _words(metric: str) -> str:
    return metric.replace("_", "-")


def _band(sample: "DataArray", band: str, level: float) -> Interval:
    if band == "interval":
        return mean_interval(sample, level=level)
    values = sample.values
    mean = values.mean(-1)
    if band == "deviation":
        spread = values.std(-1, ddof=1) if values.shape[-1] > 1 else np.full_like(mean, np.nan)
        return Interval(mean, mean - spread, mean + spread)
    return Interval(mean, *np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=-1))


def _reaches(budgets: np.ndarray, curve: np.ndarray, amount: float) -> float:
    """The first budget at which the curve, straight between the budgets and from (0, 0), is `amount`; infinite if none is."""
    if np.isnan(curve).any():
        return np.nan
    budgets, curve = np.append(0, budgets), np.append(0, curve)
    after = int(np.argmax(curve >= amount))
    if after == 0:
        return np.inf
    share = (amount - curve[after - 1]) / (curve[after] - curve[after - 1])
    return float(budgets[after - 1] + share * (budgets[after] - budgets[after - 1]))


def _positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.nan)


def _span(axes: Any, means: list[np.ndarray], tops: list[np.ndarray]) -> None:
    """Ends a logarithmic y axis below the lowest mean: the lower limit of a band may be anywhere below, or negative."""
    if np.isfinite(means).any():
        axes.set_ylim(np.nanmin(means) / 1.5, 1.2 * np.nanmax(np.concatenate([*means, *tops])))
    else:  # no mean is positive, and none is drawn
        axes.set_ylim(1, 10)


def decades(axes: Any, which: str) -> None:
    """A logarithmic axis with legible labels: 1, 2, 5, 10 … where there is room for them."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    low, high = getattr(axes, f"get_{which}lim")()
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_formatter(NullFormatter())


def _both_ways(axes: Any, which: str, around: float, largest: float) -> None:
    """An axis that is linear `around` 0, up to the next power of ten, and logarithmic beyond on both sides."""
    from matplotlib.ticker import EngFormatter, FixedLocator, NullLocator

    end = 10 ** np.ceil(np.log10(max(around, 1)))
    steps = end * 10.0 ** np.arange(max(np.ceil(np.log10(max(largest, 1) / end)), 0) + 1)
    fine = np.outer(steps, [0.5, 1, 2] if len(steps) < 3 else [0.5, 1] if len(steps) == 3 else [1]).ravel()
    getattr(axes, f"set_{which}scale")("symlog", linthresh=end)
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator([*-fine, 0, *fine]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(EngFormatter(sep=""))


def _even(axes: Any, values: np.ndarray, count: int) -> np.ndarray:
    """Points from the smallest value to the largest, evenly spaced on the x axis as it is drawn."""
    transform = axes.xaxis.get_transform()
    low, high = transform.transform(np.array([values.min(), values.max()]) if len(values) else np.array([1.0, 2.0]))
    return transform.inverted().transform(np.linspace(low, high, count) if low < high else low + np.linspace(-0.5, 0.5, count))


def _density(axes: Any, values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A Gaussian kernel estimate of the density at x, along the x axis as it is drawn; its largest value is 1."""
    transform = axes.xaxis.get_transform()
    values, x = transform.transform(values), transform.transform(x)
    bandwidth = 1.06 * values.std() * len(values) ** -0.2
    height = np.exp(-0.5 * ((x[:, None] - values) / bandwidth) ** 2).sum(-1)
    return height / height.max()


def _figure(
    groups: dict[str, "DataArray"], width: float | None, x: str, y: str, names: int = 0
) -> tuple["Figure", list[tuple[Any, "DataArray"]]]:
    """A figure with one panel per group, two abreast on a page; rows of names set the height where there are any."""
    width = (COLUMN if len(groups) == 1 else PAGE) if width is None else width
    if not width > 0:
        raise ValueError(f"width = {width!r} is not a width: give a positive number of inches, such as {COLUMN} or {PAGE:g}")
    columns = min(len(groups), max(1, int(width // 3)))
    rows = -(-len(groups) // columns)
    height = 0.45 + 0.2 * names if names else min(0.62 * width / columns, 2.3)
    figure = _blank(width, rows * (height + 0.25) + 0.75)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(groups):]:
        axes.remove()
    for axes, title in zip(grid.flat, groups, strict=False):
        axes.set_title(title, fontsize=_TEXT)
        frame(axes)
        axes.set_axisbelow(True)
    figure.supxlabel(x, fontsize=_TEXT)
    if y:
        figure.supylabel(y, fontsize=_TEXT, ma="center")
    return figure, list(zip(grid.flat, groups.values(), strict=False))


def _blank(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure._repr_png_ = partial(_png, figure)  # type: ignore  # a notebook shows it, whether pyplot was imported or not
    return figure


def _png(figure: "Figure") -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def frame(axes: Any) -> None:
    """Small ticks, two sides and a faint grid."""
    axes.tick_params(labelsize=_SMALL, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(linewidth=0.3, color="lightgray")


def curve(axes: Any, x: ArrayLike, mean: np.ndarray, low: np.ndarray, high: np.ndarray, style: dict, label: str) -> None:
    """A line in a band."""
    axes.plot(x, mean, label=label, linewidth=1.1, markersize=3, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0.5)


def _scale(axes: Any, scale: str) -> None:
    from matplotlib.ticker import EngFormatter

    if not np.isfinite(axes.dataLim.minpos[0]):  # nothing is drawn that has a place on a logarithmic axis
        axes.set_xlim(1, 10)
    for which, scales in (("x", ("log-x", "log-log")), ("y", ("log-y", "log-log"))):
        if scale in scales:
            decades(axes, which)
        else:
            getattr(axes, f"{which}axis").set_major_formatter(EngFormatter(sep=""))


def _name_rows(axes: Any, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")


def _legend(figure: "Figure", look: dict[str, dict], note: str, markers: bool = True) -> None:
    """One legend for all panels, above them, with what is drawn as its title."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, markersize=4 if markers else 0, linewidth=1.1, **style)
               for name, style in look.items()]
    fit = next((count for count in range(len(look), 1, -1) if _legend_width(look, count) < figure.get_figwidth()), 1)
    columns = math.ceil(len(look) / math.ceil(len(look) / fit))  # rows of equal length, if there are several
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, fontsize=_SMALL, frameon=False,
                  title=_wrap(figure, note), title_fontsize=_SMALL, columnspacing=1.2, handlelength=2)


def _legend_width(names: Iterable[str], columns: int) -> float:
    """Roughly, in inches; names fill one column after the other."""
    lengths = np.array_split([len(name) for name in names], columns)
    return sum(36 + 0.57 * _SMALL * column.max() for column in lengths) / 72


def _note(figure: "Figure", text: str) -> None:
    figure.suptitle(_wrap(figure, text), fontsize=_SMALL)


def _wrap(figure: "Figure", text: str) -> str:
    import textwrap

    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, int(figure.get_figwidth() * 17)))
