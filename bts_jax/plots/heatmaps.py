"""Figures of regret over two hyperparameters."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax.plots.panels import COLUMN, PAGE, SMALL, check_width, single
from bts_jax.plots.samples import among, at_budget, caveats, words
from bts_jax.plots.scales import linear, ratios
from bts_jax.statistics import measured
from bts_jax.text import counted, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

_ANNOTATED = 12  # rows or columns: more have no room for numbers


def heatmap(
    results: "Dataset",
    x: str,
    y: str,
    *,
    metric: str = "regret",
    budget: float | None = None,
    scale: str = "linear",
    annotate: bool | None = None,
    axes: Any = None,
    width: float | None = None,
) -> "Figure":
    """Draws the mean regret for each pair of values of two hyperparameters, over bandits and seeds.
    The best is framed.

    Policies without one of the two hyperparameters are left out. A pair of values that no policy
    has, or whose mean is not finite because a run is missing, is blank.

    Args:
        results: as `sweep` returns it, with hyperparameters as coordinates along `policy`.
        x, y: the names of two of these.
        metric: "regret" or "pseudo_regret".
        budget: one of the budgets, by default the largest.
        scale: the scale of the colours, "linear" or "log".
        annotate: whether to write the mean in each cell; by default if there are at most 12
            columns.
        axes: one of matplotlib's Axes to draw in, instead of a new figure. Say in your caption what
            is averaged.
        width: the width of a new figure, in inches.

    Example:
        >>> from bts_jax import Bernoulli, GaussianBTS, plots, sweep
        >>> pairs = [(variance, learn) for variance in (0.1, 0.25) for learn in (0.0, 0.3)]
        >>> policies = {f"{pair}": GaussianBTS(variance=pair[0], learn=pair[1]) for pair in pairs}
        >>> results = sweep(policies, {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])},
        ...     budgets=[20], num_seeds=5)
        >>> # those that it has not by itself
        >>> results = results.assign_coords({name: ("policy", list(values))
        ...                                  for name, values in zip(("variance", "learn"),
        ...     zip(*pairs))})
        >>> figure = plots.heatmap(results, "variance", "learn")  # figure.savefig("heatmap.pdf")
    """
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.patches import Rectangle

    among("scale", scale, "linear", "log")
    at = at_budget(results, budget)
    means, columns, rows = _pivot(at, metric, x, y)  # [row, column]
    finite = means[np.isfinite(means) & ((means > 0) | (scale == "linear"))]
    if not len(finite):
        raise ValueError(
            f"no mean {words(metric)} can be drawn over x = {x!r} and y = {y!r}: each is missing"
            + (", or not positive: give scale = 'linear'" if scale == "log" else "")
        )
    best = int(np.nanargmin(np.where(np.isfinite(means), means, np.nan)))
    row, column = np.unravel_index(best, means.shape)
    annotate = len(columns) <= _ANNOTATED if annotate is None else annotate
    width = check_width(width, axes, min(max(COLUMN, 1.6 + 0.48 * len(columns)), PAGE))
    panels = single(
        axes, width, max(1.4 + min(0.9 * (width - 1.6) / len(columns), 0.4) * len(rows), 2)
    )
    axes = panels.axes[0]
    norm = (LogNorm if scale == "log" else Normalize)(finite.min(), finite.max())
    image = axes.imshow(means, cmap="viridis_r", norm=norm, aspect="auto", origin="lower")
    if annotate:
        inches = width - 1.6 if panels.new else axes.get_window_extent().width / panels.figure.dpi
        texts = {
            place: f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
            for place, value in np.ndenumerate(means)
            if np.isfinite(value)
        }
        size = min(
            SMALL if panels.new else 9,
            72 * inches / len(columns) / (0.62 * max(map(len, texts.values()))),
        )
        for place, text in texts.items():
            dark = np.dot(image.cmap(image.norm(means[place]))[:3], [0.299, 0.587, 0.114]) < 0.5
            axes.text(
                place[1],
                place[0],
                text,
                ha="center",
                va="center",
                fontsize=size,
                color="white" if dark else "black",
            )
    axes.add_patch(
        Rectangle(
            (column - 0.5, row - 0.5),
            1,
            1,
            fill=False,
            edgecolor="#D55E00",
            linewidth=2,
            clip_on=False,
        )
    )
    small = {"fontsize": SMALL} if panels.new else {}
    crowded = max(map(len, columns)) > 4 and len(columns) > 5
    step, skip = -(-len(columns) // _ANNOTATED), -(-len(rows) // _ANNOTATED)
    axes.set_xticks(
        range(0, len(columns), step), columns[::step], rotation=40 if crowded else 0, **small
    )
    axes.set_yticks(range(0, len(rows), skip), rows[::skip], **small)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(x, **panels.text)
    axes.set_ylabel(y, **panels.text)
    bar = panels.figure.colorbar(image, ax=axes)
    (ratios if scale == "log" else linear)(bar.ax, "y")
    bar.outline.set_visible(False)  # type: ignore
    bar.ax.tick_params(**({"labelsize": SMALL, "width": 0.6} if panels.new else {}))
    bar.set_label(f"mean {words(metric)} (units of reward)", **panels.text)
    panels.note(
        f"mean over {counted(at.sizes['bandit'], 'instance')} of "
        f"{counted(at.sizes['seed'], 'run')} each at budget {at.budget.item():,g}; framed, the "
        f"best: {x} = {columns[column]}, {y} = {rows[row]}",
        caveats(at.isel(policy=np.isfinite(at[x].values) & np.isfinite(at[y].values))),
    )
    return panels.figure


def _pivot(at: "Dataset", metric: str, x: str, y: str) -> tuple[np.ndarray, list[str], list[str]]:
    """The mean regret by the values of y and x, NaN where there is none; and those values as
    text.
    """
    known = [
        str(name)
        for name, values in at.coords.items()
        if values.dims == ("policy",) and values.dtype.kind in "fiu"
    ]
    for name, value in (("x", x), ("y", y)):
        if value not in known:
            remedy = (
                f"give one of {', '.join(map(repr, known))}"
                if known
                else (
                    "it has none; they are numbers along policy, as in "
                    "results.assign_coords(scale=('policy', [1, 2]))"
                )
            )
            raise ValueError(
                f"{name} = {shown(value)} is not a hyperparameter in the dataset: {remedy}"
            )
    if x == y:
        raise ValueError(
            f"x = y = {x!r}: give two "
            f"hyperparameters{'' if len(known) < 2 else ' of ' + ', '.join(known)}"
        )
    # [policy].
    values = measured(at, metric).mean(("bandit", "budget", "seed"), skipna=False).values
    pairs = np.stack([at[x].values, at[y].values]).astype(float)
    have = np.isfinite(pairs).all(0)
    if not have.any():
        raise ValueError(
            f"no policy has both x = {x!r} and y = {y!r}: give two hyperparameters of the same "
            "policies"
        )
    (columns, column), (rows, row) = (
        np.unique(values[have], return_inverse=True) for values in pairs
    )
    names = at.policy.values[have]
    means = np.full((len(rows), len(columns)), np.nan)
    for i, place in enumerate(zip(row, column, strict=True)):
        twins = [str(name) for name in names[(row == place[0]) & (column == place[1])]]
        if len(twins) > 1:
            raise ValueError(
                f"{len(twins)} policies have {x} = {columns[place[1]]:g} and {y} = "
                f"{rows[place[0]]:g} ({shown(', '.join(twins))}): select those of one kind first, "
                "as in results.sel(policy=[...])"
            )
        means[place] = values[have][i]
    return means, *([f"{value:.3g}" for value in each] for each in (columns, rows))  # type: ignore
