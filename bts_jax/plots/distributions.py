"""Figures of the distribution of regret at one budget."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax.plots import looks
from bts_jax.plots.panels import name_rows, row_height, side_by_side
from bts_jax.plots.samples import (
    among,
    at_budget,
    by_policy,
    caveats,
    grouped,
    sample_words,
    unit,
    words,
)
from bts_jax.plots.scales import both_ways, decades, even, linear

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset


def final_regret(
    dataset: "Dataset",
    *,
    kind: str = "box",
    metric: str = "regret",
    panel: str = "bandit",
    budget: float | None = None,
    scale: str = "linear",
    axes: Any = None,
    labels: Mapping[str, str] | None = None,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    width: float | None = None,
) -> "Figure":
    """Draws the distribution of regret at one budget, by default the largest.

    Args:
        kind: "box" shows the quartiles, whiskers to the furthest value within 1.5 times their
            distance, all values beyond, and the mean as a marker; "violin" shows the density and
            the mean; "histogram" shows counts.
        scale: the scale of the regret, "linear" or "log". A logarithmic scale is linear around 0 if
            some regret is negative.
        metric, panel, axes, labels, styles, width: as for `regret`.

    Example:
        >>> from bts_jax import Bernoulli, plots, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> # figure.savefig("final_regret.pdf")
        >>> figure = plots.final_regret(results, kind="box", budget=20)
    """
    among("kind", kind, "box", "violin", "histogram")
    among("scale", scale, "linear", "log")
    at = at_budget(dataset, budget)
    groups = grouped(at, metric, panel)
    label = f"{words(metric)} at budget {at.budget.item():,g} (units of reward)"
    look = looks.chosen(at.policy.values, styles, labels)
    panels = side_by_side(
        list(groups),
        label,
        f"number of {unit(groups)}" if kind == "histogram" else "",
        axes,
        width,
        None if kind == "histogram" else row_height(len(look)),
    )
    for axes, sample in zip(panels.axes, groups.values(), strict=True):
        rows = [(name, values[0][np.isfinite(values[0])]) for name, values in by_policy(sample)]
        everything = np.concatenate([values for _, values in rows])
        if scale == "log" and (everything > 0).all():
            low, high = (everything.min(), everything.max()) if len(everything) else (1, 10)
            axes.set_xlim(low / 1.2, high * 1.2)
            decades(axes, "x")
        elif scale == "log":
            both_ways(axes, "x", -everything.min(), abs(everything).max())
        else:
            linear(axes, "x")
        if kind == "histogram":
            edges = even(axes, everything, 31)
            for name, values in rows:
                axes.hist(
                    values, edges, histtype="stepfilled", alpha=0.15, color=look[name]["color"]
                )
                axes.hist(
                    values,
                    edges,
                    histtype="step",
                    color=look[name]["color"],
                    linestyle=look[name]["linestyle"],
                )
            continue
        for place, (name, values) in enumerate(rows):
            color, marker = look[name]["color"], look[name]["marker"]
            if kind == "violin" and len(np.unique(values)) > 1:
                x = even(axes, values, 200)
                height = _density(axes, values, x)
                axes.fill_between(
                    x,
                    place - 0.4 * height,
                    place + 0.4 * height,
                    color=color,
                    alpha=0.5,
                    linewidth=0.6,
                )
            elif kind == "box":
                axes.boxplot(
                    values,
                    positions=[place],
                    orientation="horizontal",
                    widths=0.6,
                    patch_artist=True,
                    boxprops={"facecolor": color, "alpha": 0.4, "linewidth": 0.6},
                    medianprops={"color": "black", "linewidth": 0.9},
                    whiskerprops={"linewidth": 0.6},
                    capprops={"linewidth": 0.6},
                    flierprops={
                        "marker": ".",
                        "markersize": 2,
                        "alpha": 0.4,
                        "markerfacecolor": color,
                        "markeredgecolor": color,
                    },
                )
            if len(values):
                axes.plot(
                    values.mean(),
                    place,
                    marker=marker,
                    color=color,
                    markersize=4,
                    markeredgecolor="white",
                    markeredgewidth=0.4,
                )
        name_rows(axes, [look[name]["label"] for name, _ in rows])
    if kind == "histogram":
        panels.legend(look.values(), sample_words(groups), caveats(at), markers=False)
    else:
        panels.note(f"{sample_words(groups)} each; the marker is the mean", caveats(at))
    return panels.figure


def _density(axes: Any, values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A Gaussian kernel estimate of the density at x, along the x axis as it is drawn; its largest
    value is 1.
    """
    transform = axes.xaxis.get_transform()
    values, x = transform.transform(values), transform.transform(x)
    bandwidth = 1.06 * values.std() * len(values) ** -0.2
    height = np.exp(-0.5 * ((x[:, None] - values) / bandwidth) ** 2).sum(-1)
    return height / height.max()
