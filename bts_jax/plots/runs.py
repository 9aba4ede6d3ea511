"""A figure of one run: the arms over time, the spending, and what was recorded for each arm."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bts_jax.plots import looks
from bts_jax.plots.panels import PAGE, SMALL, Panels, check_width, frame, shade, theirs
from bts_jax.plots.saving import blank
from bts_jax.plots.scales import linear
from bts_jax.text import counted, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 20  # arms: more have numbers, where there is room for them
_MANY = 2000  # dots: more are drawn as pixels, so that a PDF stays small


class Bands(NamedTuple):
    """A line for each arm, and a band around it. [n, K]"""

    low: np.ndarray | None
    middle: np.ndarray
    high: np.ndarray | None
    name: str


def run(
    trace: Any,
    *,
    bands: Any = None,
    labels: Sequence[str] | Mapping[int, str] | None = None,
    resources: Sequence[str] | None = None,
    axes: Any = None,
    width: float | None = None,
) -> "Figure":
    """Draws one run in panels that share the rounds as x axis: the arms, the budget and the reward,
    and bands of the arms.

    Args:
        trace: of one run, as `bts_jax.trace` returns it.
        bands: what to draw for each arm in a third panel, over the rounds N and the arms K: one
            array [N, K], or three of them, the limits and the middle of a band. Three arrays are a
            tuple (low, middle, high), or a mapping or a NamedTuple with `low`, `high` and one more
            entry, the line. The name of that entry is the label of the panel. To name a single
            array, give a mapping with one entry, such as {"draw": array}. By default what the trace
            recorded, if it has this form, as with `record=lambda state: state.pulls`. Then the
            label is the name of the recorded field, here "pulls", or of the function `record`.
            False draws none.
        labels: names of the arms, a sequence or a mapping from their numbers.
        resources: names of the resources, if there are several, such as ["stock", "time"].
        axes: matplotlib's Axes to draw in: two, or three with bands.
        width: the width of a new figure, in inches; by default the page's.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> trace = SimpleNamespace(  # as `bts_jax.trace` returns it
        ...     arm=np.array([0, 1, 1, -1]), reward=np.array([0, 1, 1, 0.0]), cost=np.array([1, 1,
        ...     1, 0.0]),
        ...     remaining=np.array([2, 1, 0, 0.0]), played=np.array([True, True, True,
        ...     False]), length=3, truncated=False,
        ...     recorded=np.array([[0, 0], [0, 1], [0, 1], [0, 1.0]]))
        >>> figure = run(trace, labels=["slow", "fast"])
        >>> [panel.get_ylabel() for panel in figure.axes]
        ['arm', 'amount', 'value per arm']
    """
    shape = np.shape(trace.arm)
    if len(shape) != 1:
        raise ValueError(
            f"trace has a batch of shape {shape[:-1]}: select one run, as in jax.tree.map(lambda "
            "x: x[0], trace)"
            if shape
            else "trace.arm is a single number: pass a trace, as bts_jax.trace returns it"
        )
    played = np.asarray(trace.played, bool)
    if not played.any():
        raise ValueError(
            "trace has no round that was played: give the run a budget, and the trace rounds"
        )
    rounds = np.flatnonzero(played) + 1
    arm, reward, cost, left = (
        np.asarray(x)[played] for x in (trace.arm, trace.reward, trace.cost, trace.remaining)
    )
    known = getattr(trace, "recorded_name", ()) if bands is None else ()
    drawn = _bands(trace.recorded if bands is None else bands, played, bands is not None, *known)
    count = max(
        int(arm.max()) + 1,
        drawn.middle.shape[1] if drawn else 0,
        len(labels) if isinstance(labels, Sequence) and not isinstance(labels, str) else 0,
    )
    names, colors = _names(labels, count), looks.arms(count)
    left_labels = _left_labels(resources, left)

    panels = _stacked(
        [min(0.5 + 0.17 * count, 2.2), 1.3, *([1.6] if drawn else [])],
        axes,
        check_width(width, axes, PAGE),
    )
    budget = left[0].astype(float) + cost[0]  # [] or [d]
    _draw_arms(panels, rounds, arm, names, colors)
    earned = np.append(0, np.cumsum(reward, dtype=float))
    _draw_spending(
        panels, np.append(0, rounds), np.concatenate([budget[None], left]), earned, left_labels
    )
    if drawn:
        _draw_bands(panels, rounds, drawn, names, colors)
    panels.axes[-1].set_xlabel("round", **panels.text)
    linear(panels.axes[-1], "x")
    panels.axes[-1].set_xlim(0, rounds[-1] + 0.5)
    most = int(np.bincount(arm).argmax())
    spent = cost.sum(0, dtype=float)
    panels.note(
        f"{counted(len(rounds), 'round')} with a budget of {_amounts(budget, 'g')}: cost "
        f"{_amounts(spent, '.4g')}, reward {earned[-1]:,.4g}; pulled most often: {names[most]} "
        f"({(arm == most).mean():.0%})",
        "; the trace ends before the run does" if bool(trace.truncated) else "",
    )
    return panels.figure


def _stacked(heights: list[float], axes: Any, width: float) -> Panels:
    """Panels below each other that share their x axis, or the user's axes."""
    if axes is not None:
        return theirs(axes, len(heights))
    figure = blank(width, sum(heights) + 0.8)
    panels = list(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights))
    for each in panels:
        frame(each)
        each.set_axisbelow(True)
    return Panels(figure, panels, True)


def _amounts(values: np.ndarray, form: str) -> str:
    """One amount, or one for each resource, in words."""
    return (
        f"{float(values):,{form}}"
        if values.ndim == 0
        else f"({', '.join(f'{x:,{form}}' for x in values)})"
    )


def _draw_arms(
    panels: Panels, rounds: np.ndarray, arm: np.ndarray, names: list[str], colors: list
) -> None:
    """Draws a row for each arm, with a stroke for each pull. Its name has its colour, which the
    other panels use, too.
    """
    from matplotlib.ticker import MaxNLocator

    axes, few = panels.axes[0], len(rounds) <= 300
    for k, color in enumerate(colors):
        mine = rounds[arm == k]
        axes.plot(
            mine,
            np.full(len(mine), k),
            linestyle="none",
            marker="|",
            markersize=5,
            markeredgewidth=1.2 if few else 0.6,
            color=color,
            alpha=1 if few else 0.6,
            rasterized=len(rounds) > _MANY,
        )
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_ylabel("arm", **panels.text)
    if len(names) > _NAMED:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        return
    axes.set_yticks(range(len(names)), [name.removeprefix("arm ") for name in names])
    for text, color in zip(axes.get_yticklabels(), colors, strict=True):
        text.set_color(color)


def _left_labels(resources: Sequence[str] | None, left: np.ndarray) -> list[str]:
    """The legend text of each line of a remaining budget. `left`: [n] or [n, d]"""
    if left.ndim == 1:
        if resources is not None:
            raise ValueError(
                f"resources = {resources!r} are names of several resources, and the trace has one: "
                "leave it out"
            )
        return ["budget left"]
    if resources is None:
        return [f"budget left of resource {j}" for j in range(left.shape[1])]
    if isinstance(resources, str) or len(resources) != left.shape[1]:
        raise ValueError(
            f"resources = {resources!r} are not {left.shape[1]} names: give one for each resource"
        )
    return [f"{looks.legible(str(name))} left" for name in resources]


def _draw_spending(
    panels: Panels, rounds: np.ndarray, left: np.ndarray, reward: np.ndarray, labels: list[str]
) -> None:
    """Draws the remaining budget and the reward so far, from round 0 on."""
    axes = panels.axes[1]
    for j, (line, label) in enumerate(
        zip(left.T if left.ndim == 2 else [left], labels, strict=True)
    ):
        axes.plot(
            rounds,
            line,
            color="#000000",
            linewidth=1.1,
            linestyle=("-", ":", "-.", (0, (5, 1)))[j % 4],
            label=label,
        )
    axes.plot(rounds, reward, color="#009E73", linewidth=1.1, linestyle="--", label="reward so far")
    axes.set_ylabel("amount", **panels.text)
    if min(left.min(), reward.min()) >= 0:
        axes.set_ylim(bottom=0)
    linear(axes, "y")
    _beside(panels, axes)


def _draw_bands(
    panels: Panels, rounds: np.ndarray, bands: Bands, names: list[str], colors: list
) -> None:
    axes = panels.axes[2]
    for k, middle in enumerate(bands.middle.T):
        axes.plot(rounds, middle, color=colors[k], linewidth=1.1, label=names[k])
        if bands.low is not None and bands.high is not None:
            axes.fill_between(
                rounds,
                bands.low[:, k],
                bands.high[:, k],
                color=colors[k],
                alpha=shade(len(names)),
                linewidth=0,
            )
    axes.set_ylabel(bands.name, **panels.text)
    linear(axes, "y")
    if len(names) <= _NAMED:
        _beside(panels, axes, -(-len(names) // 8))


def _beside(panels: Panels, axes: Any, columns: int = 1) -> None:
    """A legend on the right of a panel."""
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        frameon=False,
        ncols=columns,
        handlelength=1.6,
        fontsize=SMALL if panels.new else "small",
    )


def _names(labels: Any, count: int) -> list[str]:
    """The names of all arms: those that the user gives, or else their numbers."""
    if labels is None or isinstance(labels, Mapping):
        labels = labels or {}
        return [looks.legible(str(labels.get(k, f"arm {k}"))) for k in range(count)]
    names = [labels] if isinstance(labels, str) else list(labels)
    if isinstance(labels, str) or len(names) < count:
        raise ValueError(
            f"labels = {shown(labels)} has {counted(len(names), 'name')}, and there are {count} "
            "arms: give a sequence with a name for each, or a mapping from the numbers of some to "
            "their names"
        )
    return [looks.legible(str(name)) for name in names]


def _bands(
    given: Any, played: np.ndarray, asked: bool, name: str = "value per arm"
) -> Bands | None:
    """The bands of the arms in the rounds played. If `given` has another form: None, or an error if
    it was `asked` for.

    `name` is that of `given`, unless it has names itself.
    """
    if given is False:
        return None
    fields = (
        dict(given)
        if isinstance(given, Mapping)
        else given._asdict()
        if hasattr(given, "_asdict")
        else None
    )
    if fields is not None and len(fields) == 1:
        ((name, given),) = fields.items()
        parts = [given]
    elif fields is not None and len(fields) == 3 and {"low", "high"} <= set(fields):
        (name,) = (str(key) for key in fields if key not in ("low", "high"))
        parts = [fields["low"], fields[name], fields["high"]]
    elif isinstance(given, tuple) and len(given) == 3:
        parts = list(given)
    else:
        parts = [given]
    try:
        arrays = [np.asarray(part) for part in parts]
    except (TypeError, ValueError):  # a state of another kind
        arrays = []
    shape = arrays[0].shape if arrays else ()
    if shape[:1] == played.shape and all(
        x.ndim == 2 and x.shape == shape and x.dtype.kind in "fiub" for x in arrays
    ):
        shown_rounds = [x[played].astype(float) for x in arrays]
        low, middle, high = shown_rounds if len(arrays) == 3 else (None, shown_rounds[0], None)
        return Bands(low, middle, high, str(name).replace("_", " ").strip())
    if asked:
        kinds = " and ".join(
            f"array of shape {x.shape}" if x.dtype.kind in "fiub" else type(given).__name__
            for x in arrays
        )
        raise ValueError(
            f"bands = {kinds or type(given).__name__} cannot be drawn: give one array over "
            f"({len(played)} rounds, arms), or three as a tuple (low, middle, high) or a mapping "
            "with low, high and one more"
        )
    return None
