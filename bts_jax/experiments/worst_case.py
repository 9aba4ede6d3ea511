"""How does regret grow with the budget if the gaps are the worst for each budget? (The paper's
future work 1.)
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax import plots
from bts_jax.bandits import Bernoulli
from bts_jax.experiments.common import METRIC, Instance, look, played, power, regret_table
from bts_jax.experiments.runner import Experiment, Size
from bts_jax.statistics import mean_interval, measured, sample
from bts_jax.text import ALLOWANCE, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

RIVALS = ("bts", "gaussian-bts", "kube", "omega-ucb", "kl-ucb-sc")
# Times the number of arms: smaller budgets are not fitted, since no policy has learnt much there.
FIT_FROM = 50


def settings(size: Size, seed: int) -> dict[str, Any]:
    instances = [
        Instance(
            Bernoulli.hard(arms, budget), arms, f"hard at {budget:g}", 1, {"hard_at": float(budget)}
        )
        for arms in size.arms
        # Gaps on both sides of the worst for each budget.
        for budget in (*size.budgets, 4 * size.budgets[-1])
    ]
    return {"policies": list(RIVALS), **played(instances)}


def exponent(
    runs: "DataArray", *, resamples: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, tuple]:
    """How the regret on the worst of several instances grows with the budget.

    Args:
        runs: regret of one policy, over (bandit, budget, seed).

    Returns:
        The mean regret on the worst instance at each budget [budget]; which instance that is
        [budget]; and the exponent x of the least-squares fit of log regret by x log B + constant,
        with the limits of its 95% interval (bootstrap over runs).
    """
    values = runs.transpose("bandit", "budget", "seed").values
    means = values.mean(-1)  # [bandit, budget]
    count = values.shape[-1]
    weights = (
        np.random.default_rng(seed).multinomial(
            count, np.full(count, 1 / count), (resamples, len(values))
        )
        / count
    )
    drawn = np.einsum("rbs,bts->rbt", weights, values)
    return means.max(0), means.argmax(0), power(runs.budget.values, means.max(0), drawn.max(1))


def _worst(dataset: "Dataset") -> tuple["Dataset", dict[str, tuple]]:
    """The Dataset at the budgets that are fitted, and the fit of each policy."""
    fitted = dataset.isel(
        budget=(dataset.budget.values >= FIT_FROM * dataset.num_arms.values.max())
    )
    runs = measured(fitted, METRIC)
    return fitted, {str(name): exponent(runs.sel(policy=name)) for name in dataset.policy.values}


def _own_exponent(budgets: np.ndarray) -> float:
    """The exponent of √(B ln B), fitted in the same way."""
    return float(np.polyfit(np.log(budgets), 0.5 * np.log(budgets * np.log(budgets)), 1)[0])


def report(dataset: "Dataset") -> str:
    fitted, fits = _worst(dataset)
    budgets, arms = fitted.budget.values, int(dataset.num_arms.values.max())
    hard = dataset.hard_at.values
    medians = measured(fitted, METRIC).median("seed")
    rows, lines, words = [], [], []
    own = _own_exponent(budgets)
    for name, (worst, where, (value, low, high)) in fits.items():
        rows.append(
            [
                name,
                *(f"{regret:,.1f}" for regret in worst),
                f"{value:.3f}",
                f"{low:.3f} … {high:.3f}",
            ]
        )
        typical = medians.sel(policy=name).values[where[-1], -1]
        multiple = np.sqrt(
            np.log(hard[where[-1]]) / hard[where[-1]] / (np.log(budgets[-1]) / budgets[-1])
        )
        words.append("below" if high < own else "above" if low > own else "like it")
        share = worst[-1] / np.sqrt(arms * budgets[-1] * np.log(budgets[-1]))
        lines.append(
            f"  {name}: {'grows like it' if words[-1] == 'like it' else f'{words[-1]} it'}; at "
            f"{budgets[-1]:,g} the worst gap is {multiple:.2g} √(K ln B / B), the regret there "
            f"{worst[-1]:,.1f} in the mean, {typical:,.1f} in the median, {share:.2f} √(K B ln B)"
        )
    head = ["policy", *(f"{budget:,g}" for budget in budgets), "exponent", "95% interval"]
    return "\n\n".join(
        [
            f"Mean regret at each budget on the worst of {dataset.sizes['bandit']} instances with "
            f"{arms} arms, whose gaps are √(K ln b / b) for b = "
            f"{', '.join(f'{b:,g}' for b in hard)};\n{dataset.sizes['seed']} "
            f"runs on each\n" + table(head, rows),
            "\n".join(
                [
                    f"Against √(B ln B), whose exponent over these budgets is {own:.3f}: "
                    + ", ".join(
                        f"{words.count(word)} {text}"
                        for word, text in (
                            ("below", "BELOW"),
                            ("like it", "LIKE IT"),
                            ("above", "ABOVE"),
                        )
                        if word in words
                    ),
                    *lines,
                ]
            ),
            "exponent: of the least-squares fit of log regret by log B, with a bootstrap over the "
            "runs. A bound O(√(K B ln B))\n"
            "for all instances would need an exponent that stays at or below that of √(B ln B) as "
            "budgets grow. All arms have "
            "the mean cost 1/2 here.",
        ]
    )


def figures(dataset: "Dataset") -> dict[str, "Figure"]:
    from matplotlib.figure import Figure

    fitted, fits = _worst(dataset)
    runs, styles = measured(dataset, METRIC), look(dataset)
    figure = Figure(figsize=(plots.COLUMN * 1.2, 4.0), layout="constrained")
    axes = figure.subplots()
    budgets, arms = dataset.budget.values, int(dataset.num_arms.values.max())
    for name, (_, _, (value, low, high)) in fits.items():
        mean, below, above = mean_interval(sample(runs.sel(policy=name), "seed"))
        where = mean.argmax(0), np.arange(mean.shape[1])
        plots.curve(
            axes,
            budgets,
            mean[where],
            below[where],
            above[where],
            styles[name],
            f"{name}: exponent {value:.2f} ({low:.2f} … {high:.2f})",
        )
    anchor = max(worst[-1] for worst, _, _ in fits.values()) * 1.3
    guide = np.sqrt(budgets * np.log(budgets))
    axes.plot(
        budgets,
        anchor * guide / guide[-1],
        color="gray",
        linewidth=0.8,
        linestyle="--",
        label=f"∝ √(B ln B): exponent {_own_exponent(fitted.budget.values):.2f}",
    )
    plots.decades(axes, "x")
    plots.decades(axes, "y")
    axes.set_xlabel("budget (units of cost)", fontsize=8)
    axes.set_ylabel("pseudo-regret on the worst instance\n(units of reward)", fontsize=8)
    plots.frame(axes)
    title = (
        f"mean and its 95% interval over {dataset.sizes['seed']} "
        f"runs;\n{ALLOWANCE};\n{arms} arms, worst of "
        f"{dataset.sizes['bandit']} gaps; exponents fitted from budget "
        f"{fitted.budget.values[0]:,g} on"
    )
    figure.legend(
        loc="outside upper center", fontsize=7, frameon=False, title=title, title_fontsize=7
    )
    return {"worst-case": figure}


STUDY = Experiment(
    "worst-case",
    "How does regret grow with the budget if the gaps are the worst for each budget? (The paper's "
    "future work 1.)",
    {
        "quick": Size((10,), (100, 200, 500, 1000, 2000, 5000), (1,), 100),
        "full": Size(
            (10,), (100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000), (1,), 1000
        ),
    },
    settings,
    report,
    figures,
    regret_table,
    fewest=None,
)
