"""The parts of a figure: panels, curves, legend and note."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bts_jax.plots.saving import blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataArray

COLUMN, PAGE = 3.4, 7.0  # inches: the width of a column, and of the page
TEXT, SMALL = 8, 7  # points


def panelled(
    groups: dict[str, "DataArray"], width: float | None, x: str, y: str, names: int = 0
) -> tuple["Figure", list[tuple[Any, "DataArray"]]]:
    """A figure with one panel per group, two abreast on a page; rows of names set the height where there are any."""
    width = (COLUMN if len(groups) == 1 else PAGE) if width is None else width
    if not width > 0:
        raise ValueError(f"width = {width!r} is not a width: give a positive number of inches, such as {COLUMN} or {PAGE:g}")
    columns = min(len(groups), max(1, int(width // 3)))
    rows = -(-len(groups) // columns)
    height = 0.45 + 0.2 * names if names else min(0.62 * width / columns, 2.3)
    figure = blank(width, rows * (height + 0.25) + 0.75)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(groups):]:
        axes.remove()
    for axes, title in zip(grid.flat, groups, strict=False):
        axes.set_title(title, fontsize=TEXT)
        frame(axes)
        axes.set_axisbelow(True)
    figure.supxlabel(x, fontsize=TEXT)
    if y:
        figure.supylabel(y, fontsize=TEXT, ma="center")
    return figure, list(zip(grid.flat, groups.values(), strict=False))


def frame(axes: Any) -> None:
    """Small ticks, two sides and a faint grid."""
    axes.tick_params(labelsize=SMALL, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(linewidth=0.3, color="lightgray")


def curve(axes: Any, x: ArrayLike, mean: np.ndarray, low: np.ndarray, high: np.ndarray, style: dict, label: str) -> None:
    """A line in a band."""
    axes.plot(x, mean, label=label, linewidth=1.1, markersize=3, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0.5)


def name_rows(axes: Any, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")


def legend(figure: "Figure", look: dict[str, dict], note: str, markers: bool = True) -> None:
    """One legend for all panels, above them, with what is drawn as its title."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, markersize=4 if markers else 0, linewidth=1.1, **style)
               for name, style in look.items()]
    fit = next((count for count in range(len(look), 1, -1) if _legend_width(look, count) < figure.get_figwidth()), 1)
    columns = math.ceil(len(look) / math.ceil(len(look) / fit))  # rows of equal length, if there are several
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, fontsize=SMALL, frameon=False,
                  title=_wrap(figure, note), title_fontsize=SMALL, columnspacing=1.2, handlelength=2)


def _legend_width(names: Iterable[str], columns: int) -> float:
    """Roughly, in inches; names fill one column after the other."""
    lengths = np.array_split([len(name) for name in names], columns)
    return sum(36 + 0.57 * SMALL * column.max() for column in lengths) / 72


def note(figure: "Figure", text: str) -> None:
    figure.suptitle(_wrap(figure, text), fontsize=SMALL)


def _wrap(figure: "Figure", text: str) -> str:
    import textwrap

    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, int(figure.get_figwidth() * 17)))
