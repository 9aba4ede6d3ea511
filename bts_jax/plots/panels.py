"""The parts of a figure: panels, curves, legend and note."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bts_jax.intervals import ArrayLike
from bts_jax.plots.looks import legible
from bts_jax.plots.saving import blank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

COLUMN, PAGE = 3.4, 7.0  # inches: the width of a column, and of the page
TEXT, SMALL = 8, 7  # points
LINE = 0.15  # inches: the height of a line of a legend


class Blank(NamedTuple):
    """The part of the last row that has no panels."""

    part: "SubFigure"
    width: float  # inches
    height: float
    rows: int  # of the figure


@dataclass
class Panels:
    """The panels of a new figure, with legend and note above them, or the user's own axes.

    If the last row is not full, legend and note are in its blank part instead. The figure grows
    with its legend, so that the panels keep their size.

    The user's axes keep their fonts and frames, and their figure keeps its size. The first of them
    gets the legend. The note is left to the caption of the figure, except for caveats that must not
    be hidden, such as truncated runs: these are added to the titles.
    """

    figure: "Figure"
    axes: list["Axes"]
    new: bool  # whether the figure is ours
    blank: Blank | None = None

    @property
    def text(self) -> dict[str, Any]:
        """The font of titles and labels."""
        return {"fontsize": TEXT} if self.new else {}

    def legend(
        self, look: Iterable[Mapping[str, Any]], note: str, caveats: str = "", markers: bool = True
    ) -> None:
        """Adds one legend for all panels, with the note as its title; in the user's axes, in the
        first of them.
        """
        from matplotlib.lines import Line2D

        look = list(look)
        size = {"linewidth": 1.1, "markersize": 4}
        handles = [
            Line2D([], [], **{**size, **style, **({} if markers else {"marker": ""})})
            for style in look
        ]
        if not self.new:
            self.axes[0].legend(handles=handles, frameon=False, fontsize="small")
            self._warn(caveats)
            return
        names, width = [str(style["label"]) for style in look], self._width
        fit = next(
            (count for count in range(len(names), 1, -1) if _legend_width(names, count) < width), 1
        )
        rows = math.ceil(len(names) / fit)
        title = wrapped(width, note + caveats)
        self._grow(rows + title.count("\n") + 1)
        where, place = (
            (self.blank.part, "center") if self.blank else (self.figure, "outside upper center")
        )
        columns = math.ceil(len(names) / rows)  # rows of equal length, if there are several
        where.legend(
            handles=handles,
            loc=place,
            ncols=columns,
            fontsize=SMALL,
            frameon=False,
            title=title,
            title_fontsize=SMALL,
            columnspacing=1.2,
            handlelength=2.6,
        )

    def note(self, text: str, caveats: str = "") -> None:
        """Writes a note on what is drawn."""
        text = wrapped(self._width, text + caveats)
        if not self.new:
            self._warn(caveats)
        elif self.blank:
            self.blank.part.text(0.5, 0.5, text, fontsize=SMALL, ha="center", va="center")
        else:
            self.figure.suptitle(text, fontsize=SMALL)

    @property
    def _width(self) -> float:
        """The width for legend and note, in inches."""
        return self.blank.width if self.blank else self.figure.get_figwidth()

    def _grow(self, lines: int) -> None:
        """Makes the figure higher if there is no room for a legend of so many lines."""
        more = (
            self.blank.rows * (LINE * (lines + 1) - self.blank.height)
            if self.blank
            else LINE * (lines - 3)
        )
        self.figure.set_figheight(self.figure.get_figheight() + max(more, 0))

    def _warn(self, caveats: str) -> None:
        for axes in self.axes if caveats else []:
            axes.set_title(f"{axes.get_title()}\n{caveats.removeprefix('; ')}")


def side_by_side(
    titles: Sequence[str],
    x: str,
    y: str,
    axes: Any = None,
    width: float | None = None,
    height: float | None = None,
) -> Panels:
    """Panels with these titles, two side by side on a page, or in the user's axes.

    Args:
        x, y: the labels of their axes.
        width: the width of a new figure, in inches; by default a column's for one panel, the page's
            for more.
        height: the height of a panel, in inches; the default suits the width.
    """
    width = check_width(width, axes, COLUMN if len(titles) == 1 else PAGE)
    if axes is None:
        rows = -(-len(titles) // max(1, int(width // 3)))
        columns = -(-len(titles) // rows)
        height = min(0.62 * width / columns, 2.3) if height is None else height
        figure = blank(width, rows * (height + 0.25) + 0.75)
        grid = figure.add_gridspec(rows, columns)
        places = [divmod(place, columns) for place in range(len(titles))]
        panels = Panels(figure, [figure.add_subplot(grid[place]) for place in places], True)
        if missing := rows * columns - len(titles):
            part = figure.add_subfigure(grid[-1, -missing:])
            panels.blank = Blank(part, 0.95 * width * missing / columns, height, rows)
        figure.supxlabel(x, fontsize=TEXT)
        if y:
            figure.supylabel(y, fontsize=TEXT, ma="center")
    else:
        panels = theirs(axes, len(titles))
        for each in panels.axes:
            each.set(xlabel=x, ylabel=y)
    for each, title in zip(panels.axes, titles, strict=True):
        each.set_title(legible(title), **panels.text)
        each.set_axisbelow(True)
        if panels.new:
            frame(each)
    return panels


def single(axes: Any, width: float, height: float) -> Panels:
    """One panel, in a new figure of this size or in the user's axes."""
    if axes is not None:
        return theirs(axes, 1)
    figure = blank(width, height)
    return Panels(figure, [figure.add_subplot()], True)


def check_width(width: float | None, axes: Any, default: float) -> float:
    """Returns the width of a new figure, or raises a `ValueError`."""
    if width is not None and axes is not None:
        raise ValueError(
            f"width = {width!r} is that of a new figure, and axes have a figure: leave one of the "
            "two out"
        )
    if width is not None and not width > 0:
        raise ValueError(
            f"width = {width!r} is not a width: give a positive number of inches, such as {COLUMN} "
            f"or {PAGE:g}"
        )
    return default if width is None else width


def theirs(axes: Any, count: int) -> Panels:
    """Returns the user's axes as panels, or raises a `ValueError` unless there are `count` of
    them.
    """
    from matplotlib.axes import Axes

    found = [axes] if isinstance(axes, Axes) else list(np.ravel(np.asarray(axes, object)))
    if not all(isinstance(each, Axes) for each in found):
        raise ValueError(
            f"axes = {axes!r} are not axes: give one of matplotlib's Axes, or several as subplots "
            "returns them"
        )
    if len(found) != count:
        raise ValueError(
            f"axes has {len(found)}, and there "
            f"{'is 1 panel' if count == 1 else f'are {count} panels'}: give one for each panel"
        )
    figure = found[0].get_figure(root=True)
    if figure is None:
        raise ValueError(f"axes = {axes!r} were removed from their figure: give axes of a figure")
    return Panels(figure, found, False)


def frame(axes: Any) -> None:
    """Gives axes small tick labels, two sides and a faint grid."""
    axes.tick_params(labelsize=SMALL, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(linewidth=0.3, color="lightgray")


def curve(
    axes: Any,
    x: ArrayLike,
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    style: Mapping[str, Any],
    label: str,
    alpha: float = 0.15,
) -> None:
    """Draws a line in a band. `style` has the properties of the line, and `alpha` is the opacity of
    the band.
    """
    axes.plot(x, mean, **{"linewidth": 1.1, "markersize": 3, **style, "label": label})
    axes.fill_between(x, low, high, color=style["color"], alpha=alpha, linewidth=0.5)


def shade(count: int) -> float:
    """The opacity of this many bands. Curves stay visible where many bands overlap."""
    return min(0.15, 0.5 / count)


def name_rows(axes: Any, names: list[str]) -> None:
    """Labels rows with these names, from top to bottom."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")


def row_height(rows: int) -> float:
    """The height of a panel with this many rows, in inches."""
    return 0.45 + 0.2 * rows


def _legend_width(names: Iterable[str], columns: int) -> float:
    """The approximate width of a legend, in inches. Names fill one column after the other."""
    lengths = np.array_split([len(name) for name in names], columns)
    return sum(40 + 0.57 * SMALL * column.max() for column in lengths) / 72


def wrapped(width: float, text: str) -> str:
    """Wraps text into lines of this width, in inches."""
    import textwrap

    return "\n".join(
        line for part in text.split("\n") for line in textwrap.wrap(part, int(width * 17))
    )
