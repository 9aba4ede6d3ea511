"""Statistics of a Dataset as `sweep` returns it: samples, intervals, paired comparisons, rankings,
kinds of bandits.

Two questions must not be mixed up. Is one policy better *on this instance*? The seeds are the
sample. Is it better *on instances like these*? The instances are the sample, each with one number,
its mean over the seeds: more seeds do not make up for few instances.

A run is *lost* if the policy stops pulling the best arm early. (With several resources: an arm of
the best mix.) A small sample may contain no lost run even if the policy loses some. So the limits
of means are widened as if the sample had one more lost run; `lost_run` is its regret. Intervals of
plain arrays are in `bts_jax.intervals`.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from bts_jax import checks, linear_program
from bts_jax.contract import Means, ratio
from bts_jax.intervals import (
    ArrayLike,
    Interval,
    check_level,
    interval,
    needed,
    ratio_interval,
    tail,
)
from bts_jax.text import counted

if TYPE_CHECKING:
    from xarray import DataArray, Dataset


def paired(
    dataset: "Dataset",
    policy: str,
    reference: str,
    *,
    over: str = "seed",
    metric: str = "regret",
    statistic: str | float = "mean",
    level: float = 0.95,
    comparisons: int = 1,
) -> "Dataset":
    """How much more regret `policy` has than `reference`, on the same problems and with common
    random numbers.

    Args:
        dataset: as `sweep` returns it.
        over: the sample. "seed": the runs on each instance, for a statement about that instance.
            "bandit": the instances, each with its mean over the seeds, for a statement about
            instances like these.
        metric: "regret" or "pseudo_regret".
        statistic: the statistic of the differences: "mean", "median", "trimmed" or a quantile, as
            for `interval`.
        level: the confidence level.
        comparisons: how many verdicts you look at in all: rivals × kinds of bandits, and × budgets
            if you look at several. The limits are those of the level 1 − (1 − level) / comparisons
            (Bonferroni), so that all verdicts are right with probability `level`.
            `intervals.step_down` decides more.

    Returns:
        A Dataset with values for each budget, and for each bandit unless `over` is "bandit":

        `difference`: the mean difference (or `statistic`), negative where `policy` is better, with
        limits `low` and `high`. The limits of a mean are widened as if the sample had one more lost
        run (`lost_run`): one of `policy` for the upper limit, one of `reference` for the lower
        limit. In notebook 08 such intervals cover in at least 95% of the samples, and Student's in
        30 to 95%.
        `better`: the name of the policy with less regret, by that interval, or "undecided".
        `verdict`: the same as "less", "more" or "undecided": whether `policy` has less or more
        regret than `reference`.
        `needed`: where the mean is undecided, a lower estimate of how many problems (or seeds)
        would decide it; else 0.
        `effect`: the mean difference in standard deviations of the differences.
        `wins`: the share of the sample on which `policy` has less regret. Ties count half.
        `count`: the size of the sample.

        Where a run is missing, the numbers are NaN, and `better` and `verdict` are "undecided".

    Example:
        >>> from bts_jax import Bernoulli, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> pair = paired(results, "kube", "uniform")
        >>> # five runs decide little
        >>> pair.difference.sel(bandit="two", budget=20).item() < 0, pair.better.values.tolist()
        (True, [['undecided', 'undecided']])
    """
    import xarray as xr

    if over not in ("seed", "bandit"):
        raise ValueError(f"over = {over!r} is not a sample: give 'seed' or 'bandit'")
    check_level(level)
    level = 1 - (1 - level) / checks.whole("comparisons", comparisons, 1)
    values = measured(dataset, metric)
    for name, value in (("policy", policy), ("reference", reference)):
        if value not in values.policy:
            raise ValueError(
                f"{name} = {value!r} is not in the dataset: give one of "
                f"{', '.join(values.policy.values)}"
            )
    mine, other = (sample(values.sel(policy=name, drop=True), over) for name in (policy, reference))
    if policy == reference:  # both lose the same runs
        mine, other = (part.drop_vars("lost_run", errors="ignore") for part in (mine, other))
    difference = mine - other
    center, count = difference.values.mean(-1), difference.sizes[over]
    if statistic == "mean":
        estimate, low, high = difference_interval(mine, other, level=level)
    else:
        estimate, low, high = interval(difference.values, level=level, statistic=statistic)
    deviation = difference.values.std(-1, ddof=1) if count > 1 else np.full(center.shape, np.nan)
    # A difference that never varies is infinitely many deviations.
    with np.errstate(divide="ignore"):
        effect = center / np.where(center == 0, 1, deviation)
    wins = ((difference.values < 0) + 0.5 * (difference.values == 0)).mean(-1)
    wins = np.where(np.isnan(difference.values).any(-1), np.nan, wins)
    verdict = np.where(high < 0, "less", np.where(low > 0, "more", "undecided"))
    lost = np.where(center < 0, unseen_excess(mine), unseen_excess(other))
    enough = np.vectorize(needed, otypes=[float])(center, deviation, lost, level)
    enough = (
        np.where(verdict == "undecided", enough, 0)
        if statistic == "mean"
        else np.full(center.shape, np.nan)
    )
    better = np.where(high < 0, policy, np.where(low > 0, reference, "undecided"))
    columns = {
        "difference": estimate,
        "low": low,
        "high": high,
        "better": better,
        "verdict": verdict,
        "needed": enough,
        "effect": effect,
        "wins": wins,
    }
    template = difference.isel({over: 0}, drop=True).drop_vars(
        ["lost_run", "runs"], errors="ignore"
    )
    return xr.Dataset(
        {name: template.copy(data=value) for name, value in columns.items()} | {"count": count},
        attrs={
            "policy": policy,
            "reference": reference,
            "over": over,
            "metric": metric,
            "level": level,
            "statistic": statistic,
        },
    )


def ranking(dataset: "Dataset", *, metric: str = "regret", level: float = 0.95) -> "Dataset":
    """Ranks the policies over the instances of a Dataset. Each instance counts once, with its mean
    over the seeds.

    Instances should be of one kind: select them first, as in `dataset.sel(bandit=dataset.num_arms
    == 10)`.

    Returns:
        A Dataset over (policy, budget).

        Of the mean regrets: `mean`, with the limits `low` and `high` of its interval over the
        instances, widened as if there were one more lost run (see `paired`); `median`, `trimmed`
        (the mean of the middle eight tenths) and `upper_tenth` (the quantile 0.9), each with
        limits, as in `median_low` and `median_high`; `lower_quartile`, `upper_quartile`. Of their
        tail: `tail_index` and `worst_share` (see `intervals.tail`). Of the order: `mean_rank`,
        where 1 is the best and ties share; `best`, the share of the instances on which the policy
        has the least mean regret, where ties share; `clearly_best`, the share on which every other
        policy is worse beyond the paired interval over the seeds, at `level`.

        A policy with a missing run on an instance (NaN) is last there. `count` is the number of
        instances.

    Example:
        >>> from bts_jax import Bernoulli, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> ranking(results).mean_rank.sel(budget=20).values.tolist()
        [1.0, 2.0]
    """
    import xarray as xr

    runs = measured(dataset, metric).transpose("policy", "budget", "bandit", "seed")
    values = sample(runs, "bandit")
    order = np.where(np.isnan(values), np.inf, values)
    less, same = order[:, None] > order, order[:, None] == order  # [policy, other, budget, bandit]
    rank = 0.5 + less.sum(1) + same.sum(1) / 2  # a policy ties with itself
    best = (order == order.min(0)) / (order == order.min(0)).sum(0)
    mean, low, high = mean_interval(values, level=level)
    lower, upper = np.quantile(values.values, [0.25, 0.75], axis=-1)
    columns = {"mean": mean, "low": low, "high": high}
    for name, statistic in (("median", "median"), ("trimmed", "trimmed"), ("upper_tenth", 0.9)):
        limits = interval(values.values, level=level, statistic=statistic)
        columns |= dict(zip((name, f"{name}_low", f"{name}_high"), limits, strict=True))
    tails = np.array([[tail(x) for x in row] for row in values.values])
    columns |= {
        "lower_quartile": lower,
        "upper_quartile": upper,
        "tail_index": tails[..., 0],
        "worst_share": tails[..., 1],
        "mean_rank": rank.mean(-1),
        "best": best.mean(-1),
        "clearly_best": _clearly_best(runs, level),
    }
    template = values.isel(bandit=0, drop=True).drop_vars(["lost_run", "runs"], errors="ignore")
    return xr.Dataset(
        {name: template.copy(data=value) for name, value in columns.items()}
        | {"count": values.sizes["bandit"]},
        attrs={"metric": metric, "level": level},
    )


def _clearly_best(runs: "DataArray", level: float) -> np.ndarray:
    """The share of the instances on which each policy beats every other beyond the paired interval
    over the seeds.
    """
    if runs.sizes["policy"] == 1:
        return np.ones(runs.shape[:2])
    if runs.sizes["seed"] == 1:
        return np.zeros(runs.shape[:2])
    clear = np.ones(runs.shape[:3], bool)
    for me, other in np.ndindex(len(runs), len(runs)):
        if me != other:
            clear[me] &= difference_interval(runs[me], runs[other], level=level).high < 0
    return clear.mean(-1)


def lost_run(reward_mean: ArrayLike, cost_mean: ArrayLike, budget: ArrayLike) -> np.ndarray:
    """The regret of a run that never finds the best arm, but always pulls the second best: (ρ* −
    ρ₂) · budget.

    If several arms are equally good, ρ₂ is the largest ratio below theirs. A run that settles on a
    worse arm loses more.

    Args:
        reward_mean, cost_mean: the means of the arms; NaN where there is no arm. [..., K]
        budget: [..., C]

    Example:
        >>> lost_run([0.5, 0.75], [0.25, 0.75], [100.0]).tolist()
        [100.0]
    """
    rewards = checks.numbers("reward_mean", reward_mean, "give numbers")
    costs = checks.numbers("cost_mean", cost_mean, "give numbers")
    if costs.ndim == 0 or costs.shape[-1] < 2:
        raise ValueError(
            f"cost_mean has shape {costs.shape}: give the expected costs of at least two arms"
        )
    ratios = np.where(np.isnan(costs), -np.inf, ratio(rewards, costs, np))
    best = ratios.max(-1)
    second = np.where(ratios < best[..., None] * (1 - 1e-6), ratios, -np.inf).max(-1)
    # An arm that costs nothing has an infinite ratio.
    known = np.isfinite(second) & np.isfinite(best)
    gap = np.where(known, np.where(known, best, 0) - np.where(known, second, 0), np.nan)
    return gap[..., None] * checks.numbers("budget", budget, "give numbers")


def sample(values: "DataArray", over: str) -> "DataArray":
    """The runs on each instance, or the instances, each with its mean over the seeds. The sample is
    the last axis.

    The coordinate `runs` has the number of runs that a value is the mean of.
    """
    runs = 1 if over == "seed" else values.sizes["seed"]
    values = values if over == "seed" else values.mean("seed", skipna=False)
    return values.transpose(..., over).assign_coords(runs=runs)


def unseen_excess(values: "DataArray") -> np.ndarray:
    """How much one more lost run would add to one value of a `sample`; NaN where that is not known.
    [...]
    """
    over = str(values.dims[-1])
    mean = values.mean(over)
    if "lost_run" not in values.coords:
        return np.full(mean.shape, np.nan)
    lost = values.coords["lost_run"]
    lost = lost.mean("bandit") if over == "bandit" else lost
    return np.maximum((lost - mean).transpose(*mean.dims).values, 0) / int(
        values.coords.get("runs", 1)
    )


def mean_interval(values: "DataArray", *, level: float = 0.95) -> Interval:
    """The mean of a `sample` and its interval, whose upper limit is widened as if one more run were
    lost. [...]
    """
    return interval(
        values.values, level=level, unseen=(np.nan, values.values.mean(-1) + unseen_excess(values))
    )


def difference_interval(mine: "DataArray", other: "DataArray", *, level: float = 0.95) -> Interval:
    """The mean of `mine` − `other`, two samples on the same problems and with common random
    numbers, and its interval. [...]

    The upper limit is widened as if `mine` had one more lost run, the lower limit as if `other`
    had.
    """
    difference = mine.values - other.values
    mean = difference.mean(-1)
    return interval(
        difference, level=level, unseen=(mean - unseen_excess(other), mean + unseen_excess(mine))
    )


def ratio_of_means(mine: "DataArray", base: "DataArray", *, level: float = 0.95) -> Interval:
    """The mean of a sample [n] divided by that of another on the same problems, and its interval,
    widened likewise.
    """
    lost = [float(part.values.mean() + unseen_excess(part)) for part in (mine, base)]
    return ratio_interval(mine.values, base.values, level=level, unseen=(lost[0], lost[1]))


def measured(dataset: "Dataset", metric: str = "regret") -> "DataArray":
    """Returns `dataset[metric]` over (policy, bandit, budget, seed), or raises a `ValueError` that
    names the problem.

    Its coordinate `lost_run` (bandit, budget) has the regret of a lost run, if the Dataset has what
    is needed to compute it.
    """
    if metric not in ("regret", "pseudo_regret"):
        raise ValueError(f"metric = {metric!r} is not known: give 'regret' or 'pseudo_regret'")
    axes = ("policy", "bandit", "budget", "seed")
    values = getattr(dataset, metric, None)
    if values is None or set(getattr(values, "dims", ())) != set(axes):
        raise ValueError(
            f"dataset has no {metric} over {', '.join(axes)}: pass a Dataset as sweep returns it, "
            "and select with lists (dataset.sel(budget=[1000])), which keep all four axes"
        )
    if 0 in values.shape:
        raise ValueError(
            f"dataset is empty along {axes[values.transpose(*axes).shape.index(0)]}: select at "
            "least one"
        )
    values = values.transpose(*axes)
    lost = None if "lost_run" in values.coords else _lost_runs(dataset)
    return values if lost is None else values.assign_coords(lost_run=(("bandit", "budget"), lost))


def with_lost_run(dataset: "Dataset") -> "Dataset":
    """Adds the coordinate `lost_run` (see `measured`) to a Dataset. It is then not computed again
    for each part.
    """
    lost = _lost_runs(dataset)
    return dataset if lost is None else dataset.assign_coords(lost_run=(("bandit", "budget"), lost))


def _lost_runs(dataset: "Dataset") -> np.ndarray | None:
    """The regret of a lost run, if the Dataset has what is needed to compute it. [bandit,
    budget]
    """
    if not {"regret", "reward", "reward_mean", "cost_mean"} <= {*dataset.variables}:
        return None
    rewards = dataset["reward_mean"].transpose("bandit", "arm").values
    costs = dataset["cost_mean"].transpose("bandit", "arm", ...).values
    best, lost = np.array(
        [with_and_without(*means) for means in zip(rewards, costs, strict=True)]
    ).T[..., None]
    # Regret is optimum − reward, so every run that is not missing gives the optimum, `best` times
    # the budget of the bandit.
    optimum = (
        (dataset.regret + dataset.reward)
        .max(("policy", "seed"))
        .transpose("bandit", "budget")
        .values
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        budget = optimum / best
        # Where the rounds are limited, too, the optimum is smaller, and no run counts as lost.
        # Budgets may be relative.
        given = dataset["budget"].values
        smallest = np.min(np.where(costs > 0, costs, np.inf), tuple(range(1, costs.ndim)))[:, None]
        full = np.isclose(budget, given, rtol=1e-4) | np.isclose(
            budget, given * smallest, rtol=1e-4
        )
        return np.where(full, lost * budget, np.nan)


def with_and_without(reward: np.ndarray, cost: np.ndarray) -> tuple[float, float]:
    """The optimum for a budget of 1 of each resource, and what a lost run loses of it.

    A lost run never pulls one arm of the best mix: the one whose absence costs most.

    Args:
        reward: [arm]. NaN where there is no arm.
        cost: [arm], or [arm, resource] with NaN where there is no resource.
    """
    arms = ~np.isnan(reward)
    reward, cost = reward[arms], cost[arms]
    cost = cost if cost.ndim == 1 else cost[:, ~np.isnan(cost).all(0)]
    if cost.ndim == 1 or cost.shape[1] == 1:
        cost = cost.reshape(len(cost))
        return float(ratio(reward, cost, np).max()), float(lost_run(reward, cost, 1.0).item())
    value, pulls, _ = linear_program.lp(Means(reward, cost), 1.0)
    if not np.isfinite(value):
        return np.nan, np.nan
    # If several mixes are equally good, no arm is missed. Then leave out all arms of one mix, and
    # look at the next.
    rest, left = value, reward
    while rest > value * (1 - 1e-6) > 0:
        without = [
            np.where(np.arange(len(left)) == arm, 0, left) for arm in np.flatnonzero(pulls > 0)
        ]
        rest = min(linear_program.lp_value(Means(others, cost), 1.0) for others in without)
        left = np.where(pulls > 0, 0, left)
        pulls = linear_program.lp(Means(left, cost), 1.0).pulls
    return value, value - rest


def kinds(dataset: "Dataset") -> list[str]:
    """The family and number of arms of each bandit, in words; with its number of resources where
    that differs.
    """
    titles = [
        f"{family}, {arms} arms"
        for family, arms in zip(dataset.family.values, dataset.num_arms.values, strict=True)
    ]
    if "resource" not in dataset.dims or "cost_mean" not in dataset.variables:
        return titles
    costs = dataset["cost_mean"].transpose("bandit", "arm", "resource").values
    counts = (~np.isnan(costs).all(1)).sum(-1)
    different = {
        title: {count for other, count in zip(titles, counts, strict=True) if other == title}
        for title in titles
    }
    return [
        f"{title}, {counted(int(count), 'resource')}" if len(different[title]) > 1 else title
        for title, count in zip(titles, counts, strict=True)
    ]


def by_kind(dataset: "Dataset") -> dict[str, "Dataset"]:
    """The Dataset of each kind of bandit."""
    return split(dataset, kinds(dataset))


def split(data: Any, titles: list[str]) -> dict[str, Any]:
    """Splits a Dataset or DataArray by the titles of its bandits. Bandits that follow each other
    are not copied.
    """
    places: dict[str, list[int]] = {}
    for place, title in enumerate(titles):
        places.setdefault(title, []).append(place)
    found = {}
    for title, mine in places.items():
        first, end = mine[0], mine[-1] + 1
        found[title] = data.isel(bandit=slice(first, end) if len(mine) == end - first else mine)
    return found


def multiples(values: np.ndarray, base: np.ndarray) -> np.ndarray:
    """`values` divided by `base`, where `base` is positive. Other entries are left out."""
    return values[base > 0] / base[base > 0]
