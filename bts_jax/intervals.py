"""Confidence intervals for means, medians, quantiles and trimmed means, and measures of a heavy
tail.

Regret over random problems has a heavy right tail. On a few problems a policy stops pulling the
best arm after a few unlucky
pulls: the run is *lost*, and its regret grows in proportion to the budget. If 1% of the runs are
lost, a sample of 100 problems contains no lost run with probability 0.37. Its mean is then too low,
and Student's interval is too short: the sample does not show what it has missed. So an interval of
a mean can be widened as if the sample had one more lost run (`unseen`). This is not a guarantee: it
fails if lost runs cost far more than assumed, or occur mostly where they cost most. Medians and
quantiles need no such widening: their intervals cover for every distribution. The coverage of all
intervals is measured in `notebooks/08_what_a_benchmark_can_certify.ipynb`.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing
from typing_extensions import TypeAliasType

from bts_jax import checks

ArrayLike = TypeAliasType("ArrayLike", numpy.typing.ArrayLike)  # lists, too; see `bts_jax.typing`

TRIMMED = 0.1  # the share that a trimmed mean leaves out at each end


class Interval(NamedTuple):
    """An estimate and the limits of its confidence interval."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interval(
    values: ArrayLike,
    axis: int = -1,
    *,
    statistic: str | float = "mean",
    level: float = 0.95,
    unseen: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
) -> Interval:
    """Estimates a statistic of independent `values` along `axis`, with a confidence interval, in
    float64.

    Args:
        values: the measurements, independent along `axis`. The limits are NaN for a single
            measurement, and for a sample with NaN in it.
        statistic: the statistic to estimate.
            "mean": Student's interval. It is exact for normal values. It is too short for skewed
            values unless they are many, and for regret over random problems a thousand may be too
            few (see the top of this module): pass `unseen` there. "median", or a number q in (0,
            1), the quantile q: the interval between two order statistics. It covers with at least
            `level` for every distribution. A limit is infinite if the sample is too small for it.
            "trimmed": the mean without the lowest and the highest tenth, with Tukey's and
            McLaughlin's interval. It is a statement about the middle of the distribution and not
            about its mean.
        level: how often such an interval contains the true value, if its assumptions hold.
        unseen: for the mean: a value that the sample may have missed, or a pair of them, one below
            and one above the mean. Each limit is computed from the sample, and from the sample with
            this value added; the outer one is used. A limit does not change if the value is on the
            other side of the mean, or NaN.

    Example:
        >>> [float(x.round(2)) for x in interval([1.0, 2.0, 3.0, 4.0])]
        [2.5, 0.45, 4.55]
        >>> # the limit of 1, 2, 3, 4 and 10
        >>> [float(x.round(2)) for x in interval([1.0, 2.0, 3.0, 4.0], unseen=10.0)]
        [2.5, 0.45, 8.39]
        >>> [float(x) for x in interval(range(1, 12), statistic="median")]
        [6.0, 2.0, 10.0]
    """
    check_level(level)
    values = checks.numbers("values", values, "give an array of numbers")
    if not -values.ndim <= axis < values.ndim:
        raise ValueError(
            f"axis = {axis} is not an axis of values, whose shape is {values.shape}: give one that "
            "is"
        )
    values = np.moveaxis(values, axis, 0)
    if len(values) == 0:
        raise ValueError(f"values has no entry along axis {axis}: give at least one")
    if statistic == "mean":
        return _of_mean(values, level, unseen)
    if unseen is not None:
        raise ValueError(
            f"unseen is for means, and statistic = {statistic!r}: leave it out, other statistics "
            "do not need it"
        )
    if statistic == "trimmed":
        return _of_trimmed_mean(values, level)
    q = 0.5 if statistic == "median" else statistic
    if isinstance(q, bool) or not isinstance(q, Real) or not 0 < float(q) < 1:
        raise ValueError(
            f"statistic = {statistic!r} is not known: give 'mean', 'median', 'trimmed', or a "
            "number between 0 and 1 for that quantile"
        )
    return _of_quantile(values, float(q), level)


def ratio_interval(
    values: ArrayLike,
    base: ArrayLike,
    *,
    level: float = 0.95,
    unseen: tuple[float, float] = (np.nan, np.nan),
) -> Interval:
    """Estimates the ratio of two means over the same sample, with a confidence interval (the delta
    method).

    Args:
        values, base: measured on the same problems or with the same random numbers, one number for
            each. [n]
        unseen: a value that the sample of `values` may have missed, and one for `base`; see
            `interval`.

    Example:
        >>> [float(x.round(2)) for x in ratio_interval([2.0, 4.0, 6.0, 9.0], [1.0, 2.0, 3.0, 4.0])]
        [2.1, 1.84, 2.36]
    """
    values, base = (
        checks.numbers(name, x, "give numbers") for name, x in (("values", values), ("base", base))
    )
    if values.ndim != 1 or values.shape != base.shape:
        raise ValueError(
            f"values and base have the shapes {values.shape} and {base.shape}: give two lists of "
            "the same length"
        )
    if not base.mean() > 0:
        return Interval(*np.full(3, np.nan))
    ratio = values.mean() / base.mean()
    lost, base_lost = unseen[0] - ratio * base.mean(), values.mean() - ratio * unseen[1]
    _, low, high = interval(values - ratio * base, level=level, unseen=(base_lost, lost))
    return Interval(ratio, ratio + low / base.mean(), ratio + high / base.mean())


class Tail(NamedTuple):
    """How heavy the upper tail of a sample is."""

    index: float  # Hill's: P(X > x) falls like x^−index. Below 2 the variance is infinite
    worst_share: float  # the share of the sum that the largest hundredth of the values has


def tail(values: ArrayLike) -> Tail:
    """How heavy the upper tail of `values` is: Hill's index of its largest twentieth, and the share
    of the worst hundredth.

    The index is NaN for fewer than 40 values, or if the largest are not positive. Both are NaN if a
    value is NaN. The index describes only the tail within the sample. Regret is bounded, so an
    index below 2 does not mean that its variance is infinite. It means that few problems decide the
    mean.

    Example:
        >>> # quantiles of a distribution with index 1.5
        >>> pareto = (1 - (np.arange(1000) + 0.5) / 1000) ** (-1 / 1.5)
        >>> index, worst_share = tail(pareto)
        >>> round(index, 1), round(worst_share, 2)
        (1.5, 0.18)
    """
    ordered = np.sort(checks.numbers("values", values, "give an array of numbers").ravel())
    if not len(ordered):
        raise ValueError("values is empty: give at least one number")
    if np.isnan(ordered).any():
        return Tail(math.nan, math.nan)
    worst, total = ordered[-max(len(ordered) // 100, 1) :].sum(), ordered.sum()
    share = float(worst / total) if total > 0 else math.nan
    count = len(ordered) // 20
    if count < 2 or not ordered[-count - 1] > 0:
        return Tail(math.nan, share)
    excess = np.log(ordered[-count:] / ordered[-count - 1]).mean()
    return Tail(float(1 / excess) if excess > 0 else math.inf, share)


def needed(difference: float, deviation: float, lost: float, level: float = 0.95) -> float:
    """Estimates how many problems decide the sign of a mean, if mean and standard deviation do not
    change.

    Args:
        difference: the mean.
        deviation: the standard deviation of a measurement.
        lost: how far one unseen value lies from the mean.

    With n problems, the limit that is widened by the unseen value is lost/n + t √(deviation²/n +
    lost²/n²) from the mean. A sample without the rare values underestimates all of these, so this
    is a lower estimate. It is infinite for a mean of 0, and NaN if the mean or the deviation is
    NaN.

    Example:
        >>> needed(-100.0, 1000.0, 40_000.0)
        1500.0
    """
    from scipy.special import ndtri

    if math.isnan(difference + deviation):
        return math.nan
    if not difference:
        return math.inf
    lost, t = max(np.nan_to_num(lost), 0.0), float(ndtri((1 + level) / 2))
    low, high = 1.0, 2.0
    while lost / high + t * math.sqrt(deviation**2 / high + (lost / high) ** 2) > abs(difference):
        low, high = high, 2 * high
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        enough = lost / middle + t * math.sqrt(deviation**2 / middle + (lost / middle) ** 2) <= abs(
            difference
        )
        low, high = (low, middle) if enough else (middle, high)
    return float(f"{high:.2g}")


def step_down(decided: Callable[[int], Any], comparisons: int) -> int:
    """Holm's step-down procedure (1979): finds for how many comparisons the intervals of a report
    must allow.

    If all intervals of m comparisons have the level 1 − (1 − level)/m, at least one of them finds a
    difference where there is none with probability at most 1 − level (Bonferroni). But once some
    comparisons are decided, the others need to allow only for as many as are still open. The
    procedure repeats this until nothing more is decided. It decides at least as much, with the same
    guarantee, however the comparisons depend on each other. The guarantee is about differences that
    do not exist. That a difference exists, and the verdict has the wrong direction, is much less
    likely, but not covered by the proof.

    Args:
        decided: a function of a number m. It says for each comparison whether an interval that
            allows for m comparisons decides it.
        comparisons: the number of comparisons.

    Returns:
        The number m for which to compute all intervals. Their verdicts are those of the procedure.
        The guarantee is for the verdicts only. For intervals that all contain the true difference,
        use `comparisons` itself.

    Example:
        >>> # the first allows for 3 comparisons, the second for the 2 that are then open
        >>> p = np.array([0.012, 0.02, 0.6])
        >>> step_down(lambda m: p < 0.05 / m, 3)
        1
    """
    allowed = checks.whole("comparisons", comparisons, 1)
    while True:
        still_open = max(comparisons - int(np.sum(decided(allowed))), 1)
        if still_open >= allowed:
            return allowed
        allowed = still_open


@lru_cache(1000)
def student(level: float, freedom: int) -> float:
    """The t for which a variable T with Student's distribution has P(|T| ≤ t) = `level`."""
    from scipy.special import stdtrit  # imported when used: `import bts_jax` stays light

    return float(stdtrit(freedom, (1 + level) / 2))


def check_level(level: float) -> None:
    """Raises unless `level` is a confidence level."""
    if not 0 < level < 1:
        raise ValueError(
            f"level = {level!r} is not a confidence level: give a number between 0 and 1, such as "
            "0.95"
        )


def _of_mean(
    values: np.ndarray, level: float, unseen: ArrayLike | tuple[ArrayLike, ArrayLike] | None
) -> Interval:
    """Student's interval, widened by unseen values. `values`: [n, ...]"""
    count, mean = len(values), values.mean(0)
    if count == 1:
        return Interval(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    squares = ((values - mean) ** 2).sum(0)
    half = student(level, count - 1) * np.sqrt(squares / (count - 1) / count)
    low, high = mean - half, mean + half
    if unseen is not None:
        below, above = unseen if isinstance(unseen, tuple) else (unseen, unseen)
        for value, sign in ((below, -1), (above, 1)):
            # Mean and sum of squares of n + 1 values, from those of n.
            away = np.maximum(
                np.nan_to_num(sign * (checks.numbers("unseen", value, "give numbers") - mean)), 0
            )
            half = student(level, count) * np.sqrt(
                (squares + away**2 * count / (count + 1)) / count / (count + 1)
            )
            limit = mean + sign * (away / (count + 1) + half)
            if sign < 0:
                low = np.where(away > 0, np.minimum(low, limit), low)
            else:
                high = np.where(away > 0, np.maximum(high, limit), high)
    return Interval(mean, low, high)


def _of_trimmed_mean(values: np.ndarray, level: float) -> Interval:
    count, ordered = len(values), np.sort(values, 0)
    cut = int(TRIMMED * count)
    kept = ordered[cut : count - cut]
    mean = kept.mean(0) + _unknown(values)
    if len(kept) == 1:
        return Interval(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    winsorized = np.clip(values, kept[0], kept[-1])
    half = student(level, len(kept) - 1) * winsorized.std(0, ddof=1) * math.sqrt(count) / len(kept)
    return Interval(mean, mean - half, mean + half)


def _of_quantile(values: np.ndarray, q: float, level: float) -> Interval:
    count, ordered = len(values), np.sort(values, 0)
    below, above = _ranks(count, q, level)
    unknown = _unknown(values)
    if count == 1:
        return Interval(
            values[0] + unknown, np.full_like(unknown, np.nan), np.full_like(unknown, np.nan)
        )
    low = ordered[below - 1] if below > 0 else np.full_like(unknown, -np.inf)
    high = ordered[above - 1] if above <= count else np.full_like(unknown, np.inf)
    with np.errstate(invalid="ignore"):  # between two infinite values
        # Interpolated, so it may lie outside.
        estimate = np.clip(np.quantile(values, q, axis=0), low, high)
    return Interval(estimate + unknown, low + unknown, high + unknown)


def _unknown(values: np.ndarray) -> np.ndarray:
    """NaN for samples with NaN, which is sorted to the end, and 0 for others. `values`: [n, ...]"""
    return np.where(np.isnan(values).any(0), np.nan, 0.0)


@lru_cache(1000)
def _ranks(count: int, q: float, level: float) -> tuple[int, int]:
    """The ranks, from 1 on, of the order statistics that enclose the quantile q; 0 and count + 1
    where there is none.

    The number of values below the quantile is binomial. So the r-th smallest is above it with
    probability P(Bin < r), and it is below it with probability P(Bin ≥ r).
    """
    from scipy.special import bdtr, bdtrc

    successes, one_side = np.arange(count + 1), (1 - level) / 2
    # P(Bin ≤ k), P(Bin ≥ k).
    under, over = bdtr(successes, count, q), bdtrc(successes - 1, count, q)
    below = int((under <= one_side).sum())  # the largest r with P(Bin ≤ r − 1) ≤ (1 − level)/2
    # The smallest r with P(Bin ≥ r) ≤ (1 − level)/2.
    above = count + 1 - int((over <= one_side).sum())
    return below, above
