"""Ticks of logarithmic axes and their labels. Only this module of `plots` imports matplotlib at its
top.
"""

import numpy as np
from matplotlib.ticker import EngFormatter, Formatter, Locator, MaxNLocator

MOST = 9  # labels on an axis in a column of a paper


class Logarithmic(Locator):
    """Places at least three and at most nine ticks, at round numbers.

    These are 1, 2, 5, 10, 20 … if there is room for them, or else powers of ten. If the axis has
    less than three of them, ticks are finer, up to evenly spaced numbers such as 0.95, 1, 1.05.
    """

    def __call__(self) -> np.ndarray:
        return self.tick_values(*self.axis.get_view_interval())  # type: ignore

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        low, high = sorted((vmin, vmax))
        if not (low > 0 and np.isfinite(high)):
            return np.array([])
        first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
        powers = 10.0 ** np.arange(first, last + 1)

        def inside(values: np.ndarray) -> np.ndarray:
            return values[(values >= low * (1 - 1e-9)) & (values <= high * (1 + 1e-9))]

        ticks = inside(np.outer(powers, [1, 2, 5]).ravel())
        if len(ticks) > MOST:
            ticks = inside(powers)
            return (
                ticks[(-first) % (step := -(-len(ticks) // MOST)) :: step]
                if len(ticks) > MOST
                else ticks
            )
        if len(ticks) < 3:
            ticks = inside(np.outer(powers, [1, 1.5, 2, 3, 4, 5, 6, 8]).ravel())
        if len(ticks) < 3:
            ticks = inside(
                np.asarray(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
            )
        return ticks


class Short(EngFormatter):
    """Writes 2k for 2,000, and 0.2 instead of 200m."""

    def __init__(self) -> None:
        super().__init__(sep="")

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}".replace("-", "−") if abs(x) < 1 else super().__call__(x, pos)


class Plain(Formatter):
    """Writes 0.5, 1, 2 or 10,000: never a power of ten, nor a prefix."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:,.6f}".rstrip("0").rstrip(".") if abs(x) >= 1e-6 else f"{x:g}"
