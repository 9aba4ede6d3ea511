"""How does a dependence between the reward and the cost of an arm affect BTS? (The paper's future
work 3.)
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax import plots
from bts_jax.bandits import Correlated
from bts_jax.experiments.common import (
    CRITERION,
    Instance,
    at_the_end,
    differences,
    draw,
    look,
    played,
    regret_table,
    sampled,
    tally,
)
from bts_jax.experiments.runner import Experiment, Size
from bts_jax.statistics import by_kind, difference_interval, mean_interval, ratio_of_means, sample
from bts_jax.text import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

CORRELATIONS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)


def settings(size: Size, seed: int) -> dict[str, Any]:
    instances: list[Instance] = []
    for place, (arms, count) in enumerate(zip(size.arms, size.instances, strict=True)):
        for correlation in CORRELATIONS:  # with the same means
            drawn = draw(
                lambda key, arms=arms, correlation=correlation: Correlated.random(
                    key,
                    arms,
                    correlation=correlation,
                    reward_range=(0.1, 0.9),
                    cost_range=(0.1, 0.9),
                ),
                f"{correlation:+.2f}",
                arms,
                count,
                seed,
                place,
            )
            instances += [
                dataclasses.replace(
                    one,
                    coords={
                        "wanted_correlation": correlation,
                        "mean_correlation": float(
                            np.mean(one.bandit.correlation, dtype=np.float64)
                        ),
                    },
                )
                for one in drawn
            ]
    return {"policies": ["bts", "joint-bts"], **played(instances)}


def _correlations(dataset: "Dataset") -> list[tuple[float, float, "Dataset"]]:
    """The wanted correlation, the mean correlation of the arms, and the runs; in increasing
    order.
    """
    rows = [
        (part.wanted_correlation.values[0].item(), part.mean_correlation.mean().item(), part)
        for part in by_kind(dataset).values()
    ]
    return sorted(rows, key=lambda row: row[0])


def _sample(part: "Dataset", policy: str) -> "DataArray":
    """Mean regret on each instance at the largest budget, with the regret of a lost run."""
    return sample(at_the_end(part).sel(policy=policy), "bandit")


def report(dataset: "Dataset") -> str:
    rows, effects = [], []
    found = _correlations(dataset)
    free = _sample(next(part for wanted, _, part in found if wanted == 0), "bts")
    for wanted, mean, part in found:
        row = [f"{wanted:+.2f}", f"{mean:+.2f}"]
        for name in map(str, part.policy.values):
            values = _sample(part, name)
            middle, low, high = mean_interval(values)
            row += [f"{middle:,.1f} ({low:,.1f} … {high:,.1f})", f"{np.median(values):,.1f}"]
        rows.append(row)
        if wanted:
            effects.append(
                (wanted, *(x - 1 for x in ratio_of_means(_sample(part, "bts"), free, level=0.975)))
            )
    gains = [
        (wanted, *line)
        for (wanted, _, _), line in zip(
            found, differences([(part, "joint-bts", "bts") for _, _, part in found]), strict=True
        )
    ]
    head = ["wanted", "mean correlation"]
    for name in map(str, dataset.policy.values):
        head += [f"{name}: mean and 95% interval", "median"]
    parts = [
        f"Regret at budget {dataset.budget.values[-1]:,g}; {sampled(found[0][2])}, with the same "
        f"means at each correlation\n{table(head, rows)}"
    ]
    lines = [
        f"  {wanted:+.2f}: {change:+.1%} ({low:+.1%} … {high:+.1%})"
        for wanted, change, low, high in effects
    ]
    ends = [
        "LOWERS" if high < 0 else "RAISES" if low > 0 else "DOES NOT CLEARLY CHANGE"
        for _, _, low, high in (effects[-1], effects[0])
    ]
    parts.append(
        "\n".join(
            [
                f"The largest correlation {ends[0]} the mean regret of BTS, the least {ends[1]} "
                "it; its change from that at correlation 0 (97.5% intervals):",
                *lines,
            ]
        )
    )
    verdict = tally(
        [word for _, word, _ in gains],
        {"less": "better", "undecided": "undecided", "more": "worse"},
    )
    parts.append(
        "\n".join(
            [
                f"Joint BTS against BTS: {verdict.upper().replace('KINDS', 'CORRELATIONS')}",
                *(f"  {wanted:+.2f}: {line}" for wanted, _, line in gains),
            ]
        )
    )
    parts.append(
        f"{CRITERION}\n"
        "If the means of an arm do not allow a correlation, the arm has the nearest "
        "possible one."
    )
    return "\n\n".join(parts)


def figures(dataset: "Dataset") -> dict[str, "Figure"]:
    from matplotlib.figure import Figure

    found = _correlations(dataset)
    x = [wanted for wanted, _, _ in found]
    styles = look(dataset)
    figure = Figure(figsize=(plots.PAGE, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in map(str, dataset.policy.values):
        samples = [_sample(part, name) for _, _, part in found]
        mean, low, high = np.array([mean_interval(values) for values in samples]).T
        plots.curve(left, x, mean, low, high, styles[name], f"{name}, mean and 95% interval")
        left.plot(
            x,
            [np.median(values) for values in samples],
            label=f"{name}, median",
            **{**styles[name], "linestyle": ":", "markersize": 3},
        )
    left.set_ylim(bottom=0)
    left.set_ylabel("pseudo-regret (units of reward)", fontsize=8)
    left.legend(fontsize=7, frameon=False)
    pairs = [(_sample(part, "joint-bts"), _sample(part, "bts")) for _, _, part in found]
    mean, low, high = np.array([difference_interval(*pair) for pair in pairs]).T
    right.axhline(0, color=styles["bts"]["color"], linewidth=1)
    plots.curve(right, x, mean, low, high, styles["joint-bts"], "joint-bts")
    right.set_ylabel(
        "regret of joint-bts minus that of bts\n(below 0, joint-bts is better)", fontsize=8
    )
    for axes in (left, right):
        axes.set_xlabel("wanted correlation of reward and cost", fontsize=8)
        plots.frame(axes)
    figure.suptitle(
        f"budget {dataset.budget.values[-1]:,g}, {sampled(found[0][2])}, the same means at each "
        "correlation",
        fontsize=7,
    )
    return {"correlation": figure}


STUDY = Experiment(
    "correlated",
    "How does a dependence between the reward and the cost of an arm affect BTS? (The paper's "
    "future work 3.)",
    {
        "quick": Size((10,), (100, 300, 1000, 3000), (300,), 1),
        "full": Size((10,), (300, 1000, 3000, 10_000, 50_000), (2000,), 1),
    },
    settings,
    report,
    figures,
    regret_table,
)
