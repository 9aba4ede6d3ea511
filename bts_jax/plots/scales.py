"""Axes: scales, limits and ticks."""

from typing import Any

import numpy as np


def decades(axes: Any, which: str) -> None:
    """Makes an axis logarithmic, with legible labels: 1, 2, 5, 10 … where there is room for
    them.
    """
    from bts_jax.plots import ticks

    _logarithmic(axes, which, ticks.Short())


def ratios(axes: Any, which: str) -> None:
    """Makes an axis logarithmic, for ratios, with numbers written out: 0.5, 1, 2, 5."""
    from bts_jax.plots import ticks

    _logarithmic(axes, which, ticks.Plain())


def _logarithmic(axes: Any, which: str, formatter: Any) -> None:
    from matplotlib.ticker import NullFormatter

    from bts_jax.plots import ticks

    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(ticks.Logarithmic())
    axis.set_major_formatter(formatter)
    axis.set_minor_formatter(NullFormatter())


def linear(axes: Any, which: str) -> None:
    """Labels a linear axis, with 1k for 1,000."""
    from bts_jax.plots import ticks

    getattr(axes, f"{which}axis").set_major_formatter(ticks.Short())


def rescale(axes: Any, scale: str) -> None:
    """Sets the scales of both axes: "linear", "log-x", "log-y" or "log-log"."""
    # Nothing that is drawn has a place on a logarithmic axis.
    if not np.isfinite(axes.dataLim.minpos[0]):
        axes.set_xlim(1, 10)
    for which, scales in (("x", ("log-x", "log-log")), ("y", ("log-y", "log-log"))):
        (decades if scale in scales else linear)(axes, which)


def is_geometric(values: np.ndarray) -> bool:
    """Whether at least three values grow geometrically, to four times the first or more: their
    ratios differ less than their differences."""
    ordered = np.unique(values)
    steps, ratios = np.diff(ordered), np.diff(np.log(ordered))
    if len(steps) < 2 or ordered[-1] < 4 * ordered[0]:
        return False
    return bool(ratios.max() / ratios.min() < steps.max() / steps.min())


def both_ways(axes: Any, which: str, around: float, largest: float) -> None:
    """Makes an axis linear `around` 0, up to the next power of ten, and logarithmic beyond on both
    sides.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    from bts_jax.plots import ticks

    end = 10 ** np.ceil(np.log10(max(around, 1)))
    steps = end * 10.0 ** np.arange(max(np.ceil(np.log10(max(largest, 1) / end)), 0) + 1)
    fine = np.outer(
        steps, [0.5, 1, 2] if len(steps) < 3 else [0.5, 1] if len(steps) == 3 else [1]
    ).ravel()
    getattr(axes, f"set_{which}scale")("symlog", linthresh=end)
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator([*-fine, 0, *fine]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(ticks.Short())


def span(axes: Any, means: list[np.ndarray], tops: list[np.ndarray]) -> None:
    """Ends a logarithmic y axis below the lowest mean: the lower limit of a band may be anywhere
    below, or negative.
    """
    if np.isfinite(means).any():
        axes.set_ylim(np.nanmin(means) / 1.5, 1.2 * np.nanmax(np.concatenate([*means, *tops])))
    else:  # no mean is positive, and none is drawn
        axes.set_ylim(1, 10)


def positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.nan)


def even(axes: Any, values: np.ndarray, count: int) -> np.ndarray:
    """Points from the smallest value to the largest, evenly spaced on the x axis as it is drawn."""
    transform = axes.xaxis.get_transform()
    low, high = transform.transform(
        np.array([values.min(), values.max()]) if len(values) else np.array([1.0, 2.0])
    )
    return transform.inverted().transform(
        np.linspace(low, high, count) if low < high else low + np.linspace(-0.5, 0.5, count)
    )
