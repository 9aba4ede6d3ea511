"""Lost runs and heavy tails: which policy is better by the mean and by the median at which budget,
and what a sample can show.

In this module a run is lost if the best arm has less than a hundredth of its pulls.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax import plots
from bts_jax.bandits import Bernoulli
from bts_jax.contract import ratio
from bts_jax.experiments.common import METRIC, at_the_end, draw, look, played, regret_table, sampled
from bts_jax.experiments.runner import Experiment, Size
from bts_jax.intervals import Interval, interval
from bts_jax.statistics import measured, ranking, sample
from bts_jax.text import ALLOWANCE, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

RIVALS = ("omega-star-ucb", "kube")  # of BTS
SAMPLES = (12, 20, 100, 1000, 2000)  # problems in a sample
LOST = 0.01  # a run is lost if the best arm has a smaller share of the pulls


def settings(size: Size, seed: int) -> dict[str, Any]:
    (arms,), (count,) = size.arms, size.instances
    # The same as in omega.
    instances = draw(lambda key: Bernoulli.random(key, arms), "Bernoulli", arms, count, seed, 0)
    return {"policies": ["bts", *RIVALS], **played(instances), "relative_to_min_cost": True}


def lost(dataset: "Dataset") -> np.ndarray:
    """Whether each run is lost. [policy, bandit, budget, seed]"""
    best = ratio(dataset.reward_mean.values, dataset.cost_mean.values, np).argmax(-1)
    pulls = dataset.pulls.transpose("policy", "bandit", "budget", "seed", "arm").values
    mine = np.take_along_axis(pulls, best[None, :, None, None, None], -1)[..., 0]
    return mine < LOST * pulls.sum(-1)


def crossing(
    budgets: np.ndarray, mine: np.ndarray, base: np.ndarray, resamples: int = 2000
) -> Interval:
    """The budget above which a policy has more mean regret than another, with a 95% interval
    (bootstrap over the problems).

    With fewer than about 1,000 problems the interval is too short, like any bootstrap interval of a
    mean with a heavy tail: it covers in 72 to 80% of the samples of 100 problems, and in 93% of
    those of 1,000 (notebook 08).

    Between two budgets the ratio of the means is a straight line in logarithms. The crossing is 0
    if the policy has more mean regret at all budgets, and infinite if it has less at the largest.

    Args:
        mine, base: regret of the two on the same problems. [budget, problem]
    """

    def place(mine: np.ndarray, base: np.ndarray) -> np.ndarray:
        """The crossing of means [..., budget]."""
        ahead = np.log(mine / base)
        # The first budget from which on there is more.
        after = len(budgets) - np.cumprod((ahead > 0)[..., ::-1], -1).sum(-1)
        at = np.clip(after, 1, len(budgets) - 1)[..., None]
        high, low = (np.take_along_axis(ahead, at - shift, -1)[..., 0] for shift in (0, 1))
        share = np.clip(-low / np.where(high == low, 1, high - low), 0, 1)
        x = np.log(budgets)
        found = np.exp(x[at[..., 0] - 1] + share * (x[at[..., 0]] - x[at[..., 0] - 1]))
        return np.where(after == 0, 0, np.where(after == len(budgets), np.inf, found))

    count = mine.shape[-1]
    rng = np.random.default_rng(0)
    drawn = []
    # A hundred at a time: each takes as much memory as the problems.
    for _ in range(-(-resamples // 100)):
        weights = rng.multinomial(count, np.full(count, 1 / count), 100)
        drawn.append(place(weights @ mine.T, weights @ base.T))
    low, high = np.quantile(np.concatenate(drawn), [0.025, 0.975], method="inverted_cdf")
    return Interval(place(mine.mean(-1), base.mean(-1)), low, high)


def coverage(
    values: np.ndarray,
    unseen: np.ndarray,
    count: int,
    base: np.ndarray | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Measures how often intervals from `count` problems cover, if the given problems are the whole
    population.

    Samples are drawn with replacement, so the mean of `values` is the true mean.

    Args:
        values: regret of a policy on each problem. [n]
        unseen: the regret of a lost run on each problem. [n]
        base: regret of another policy; the intervals are then those of the mean paired difference.

    Returns:
        For each interval ("Student", "one lost run more", "median", "trimmed mean") the share that
        `covers` the truth, the share that excludes 0 on the `wrong` side, the share that excludes
        it on the `right` side, and the median `width`.
    """
    drawn = np.random.default_rng(seed).integers(len(values), size=(resamples, count))
    stakes, mine = unseen[drawn].mean(-1), values[drawn]
    whole, difference, less = values, mine, np.full(resamples, np.nan)
    if base is not None:
        whole, difference, less = (
            values - base,
            mine - base[drawn],
            np.maximum(stakes - base[drawn].mean(-1), 0),
        )
    center, more = difference.mean(-1), np.maximum(stakes - mine.mean(-1), 0)
    found = {
        "Student": (interval(difference), whole.mean()),
        "one lost run more": (
            interval(difference, unseen=(center - less, center + more)),
            whole.mean(),
        ),
        "median": (interval(difference, statistic="median"), np.median(whole)),
        "trimmed mean": (
            interval(difference, statistic="trimmed"),
            interval(whole, statistic="trimmed").estimate,
        ),
    }
    result = {}
    for name, ((_, low, high), truth) in found.items():
        above, below = np.mean(low > 0), np.mean(high < 0)
        wrong, right = (below, above) if truth > 0 else (above, below)
        shares = {
            "covers": np.mean((low <= truth) & (truth <= high)),
            "wrong": wrong,
            "right": right,
        }
        result[name] = {key: float(share) for key, share in shares.items()} | {
            "width": float(np.median(high - low))
        }
    return result


def report(dataset: "Dataset") -> str:
    ranks, gone, values = ranking(dataset, metric=METRIC), lost(dataset), measured(dataset, METRIC)
    names, budgets = [str(name) for name in dataset.policy.values], dataset.budget.values
    rows = []
    for j, budget in enumerate(budgets):
        for i, name in enumerate(names):
            row, mine = ranks.isel(budget=j, policy=i), values.isel(budget=j, policy=i).values
            rows.append(
                [
                    f"{budget:,g}",
                    name,
                    f"{row['mean']:,.1f} ({row['low']:,.1f} … {row['high']:,.1f})",
                    f"{row['median']:,.1f} ({row['median_low']:,.1f} … {row['median_high']:,.1f})",
                    f"{row['upper_tenth']:,.1f}",
                    f"{row['tail_index']:.1f}",
                    f"{row['worst_share']:.0%}",
                    f"{gone[i, :, j].mean():.2%}",
                    f"{mine[gone[i, :, j]].sum() / mine.sum():.0%}",
                ]
            )
    parts = [
        f"Regret at multiples of the smallest expected cost; {sampled(dataset)}\n"
        + table(
            [
                "budget",
                "policy",
                "mean and 95% interval",
                "median and 95% interval",
                "upper tenth",
                "tail index",
                "worst 1%",
                "lost runs",
                "their share",
            ],
            rows,
        )
        + f"\nintervals of means: {ALLOWANCE}\nlost runs: the best arm has below 1% of the "
        f"pulls; their share: of all regret"
    ]
    by_budget = sample(values, "bandit").transpose("policy", "budget", "bandit")
    lines = []
    for name in RIVALS:
        mine, base = by_budget.sel(policy=name).values, by_budget.sel(policy="bts").values
        found = crossing(budgets, mine, base)
        median = [
            f"{budget:,g}"
            for budget, x, y in zip(budgets, mine, base, strict=True)
            if np.median(x) > np.median(y)
        ]
        lines.append(
            f"  {name}: more mean regret than bts from {_multiple(found.estimate)} on "
            f"({_multiple(found.low)} … {_multiple(found.high)}); more median regret at "
            f"{', '.join(median) or 'no budget'}"
        )
    short = (
        "; the interval is too short with fewer than 1,000 problems"
        if dataset.sizes["bandit"] < 1000
        else ""
    )
    parts.append(
        "\n".join(
            [
                "The budget above which BTS has less mean regret (bootstrap over the "
                f"problems{short})",
                *lines,
            ]
        )
    )
    parts.append(_what_samples_tell(dataset))
    return "\n\n".join(parts)


def _multiple(budget: Any) -> str:
    return (
        "no budget"
        if np.isinf(budget)
        else "the least budget"
        if budget == 0
        else f"{float(f'{budget:.2g}'):,.0f}"
    )


def _what_samples_tell(dataset: "Dataset") -> str:
    """Coverage and wrong signs of the intervals from samples of these problems."""
    values = sample(at_the_end(dataset), "bandit")
    bts, unseen = values.sel(policy="bts").values, values.lost_run.values
    cases = {
        "bts": (bts, None),
        **{name: (values.sel(policy=name).values, None) for name in RIVALS},
        **{f"{name} − bts": (values.sel(policy=name).values, bts) for name in RIVALS},
    }
    rows = []
    for title, (mine, base) in cases.items():
        for count in SAMPLES:
            if count <= len(mine) / 2:
                found = coverage(mine, unseen, count, base)
                cells = [
                    f"{each['covers']:.1%}" + (f", {each['wrong']:.1%}" if base is not None else "")
                    for each in found.values()
                ]
                rows.append([title, f"{count:,}", *cells])
    return (
        f"What samples of these problems show at {dataset.budget.values[-1]:,g}: how often 95% "
        "intervals cover, and for differences how often they have the wrong sign (2,000 samples, "
        "drawn with replacement)\n"
        + table(
            ["what", "problems", "Student", "one lost run more", "median", "trimmed mean"], rows
        )
    )


def figures(dataset: "Dataset") -> dict[str, "Figure"]:
    from matplotlib.figure import Figure

    ranks, gone, styles = ranking(dataset, metric=METRIC), lost(dataset), look(dataset)
    budgets = dataset.budget.values
    figure = Figure(figsize=(plots.PAGE, 2.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for i, (name, style) in enumerate(styles.items()):
        row = ranks.isel(policy=i)
        plots.curve(left, budgets, row["mean"].values, row.low.values, row.high.values, style, name)
        plots.curve(
            middle,
            budgets,
            row["median"].values,
            row.median_low.values,
            row.median_high.values,
            style,
            name,
        )
        share = gone[i].mean((0, 2))
        right.plot(
            budgets,
            np.where(share > 0, 100 * share, np.nan),
            label=name,
            linewidth=1.1,
            markersize=3,
            **style,
        )
    if not gone.any():  # nothing to draw: a logarithmic axis needs positive numbers
        right.set(xlim=(budgets[0], budgets[-1]), ylim=(0.01, 100))
    for axes, title in ((left, "mean regret"), (middle, "median regret"), (right, "lost runs (%)")):
        axes.set_title(title, fontsize=8)
        plots.frame(axes)
        plots.decades(axes, "x")
        plots.decades(axes, "y")
    right.yaxis.set_major_formatter("{x:g}")
    low, high = middle.get_ylim()
    high = max(high, left.get_ylim()[1])
    for axes in (left, middle):
        axes.set_ylim(low, high)
        plots.decades(axes, "y")
    figure.supxlabel("budget (multiples of the smallest expected cost)", fontsize=8)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=3,
        fontsize=7,
        frameon=False,
        title_fontsize=7,
        title=f"{sampled(dataset)}; bands are 95% intervals over the instances\n(for "
        f"the mean, {ALLOWANCE})",
    )
    return {"tails": figure}


STUDY = Experiment(
    "tails",
    "Lost runs and heavy tails: BTS, ω*-UCB and KUBE on many random problems with ten Bernoulli "
    "arms.",
    {
        "quick": Size((10,), (150, 500, 1500, 5000, 15_000), (1000,), 1),
        "full": Size(
            (10,), (150, 500, 1500, 5000, 15_000, 50_000, 150_000, 500_000, 1_500_000), (20_000,), 1
        ),
    },
    settings,
    report,
    figures,
    regret_table,
    uses_pulls=True,
)
