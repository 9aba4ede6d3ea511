"""How good a run was, and how sure we are: regret, intervals, paired comparisons, rankings.

The last two take a Dataset as `sweep` returns it. Two questions must not be mixed up. Is one policy better *on this
instance*? The seeds are the sample. Is it better *on instances like these*? The instances are, each with one number, its
mean over the seeds: more seeds do not make up for few instances.
"""

from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bts_jax import checks, theory
from bts_jax.contract import Bandit, ratio
from bts_jax.game import Run

if TYPE_CHECKING:
    from xarray import DataArray, Dataset


def regret(run: Run, bandit: Bandit, *, optimum: str = "linear") -> Any:
    """Reward that always pulling the best arm would have earned more, at each checkpoint: ρ* b − reward. [C]

    ρ* b is the optimum for Bernoulli arms and whole-numbered budgets, and within ρ* of it for others (the paper's
    Lemma 1). A single run may have negative regret, by luck. With `optimum` = "exact" the regret is measured from
    `theory.optimal_reward`, for arms whose costs are on a lattice, and outside of `jit` and `vmap`.

    Batches of runs are welcome; a batch of bandits must run along the first axes of the runs. Concrete values are
    computed in float64 and come back as a NumPy array, since the difference of two large numbers is taken; under `jit`
    and `vmap` it is float32.

    Example:
        >>> import jax
        >>> from bts_jax import Bernoulli, Oracle, simulate
        >>> bandit = Bernoulli(reward=[1.0, 0.1], cost=[0.5, 0.5])
        >>> run = simulate(Oracle(), bandit, 100, jax.random.key(0))
        >>> (regret(run, bandit) + run.reward).tolist()
        [200.0]
    """
    if optimum not in ("linear", "exact"):
        raise ValueError(f"optimum = {optimum!r} is not known: give 'linear' or 'exact'")
    xp, (budget, reward), (reward_mean, cost_mean) = _arrays(run, bandit, (run.budget, run.reward))
    if optimum == "exact":
        if xp is not np:
            raise ValueError("optimum = 'exact' was given values that are not known yet (under jit, vmap or grad): call regret "
                             "outside, on the whole batch")
        budgets, place = np.unique(budget, return_inverse=True)
        batch = reward_mean.shape[:-1]
        earned = theory.optimal_reward(bandit, budgets)  # [*batch, budgets]
        return np.take_along_axis(earned, place.reshape(*batch, -1), -1).reshape(budget.shape) - reward
    best = ratio(reward_mean, cost_mean, xp).max(-1)
    return best.reshape(*best.shape, *(1,) * (budget.ndim - best.ndim)) * budget - reward


def pseudo_regret(run: Run, bandit: Bandit) -> Any:
    """Expected regret of the arms that were pulled, at each checkpoint: Σ_i μ_i^c Δ_i T_i (the paper's Lemma 2). [C]

    For Bernoulli arms it has the same mean as `regret`, and far less variance. For others its mean is higher by at most
    ρ* (the last pull may cost more than was left) and lower by at most 1 (it then earns nothing). Arms that cost
    nothing lose nothing by being pulled. Batches and precision are as for `regret`; and so is NaN, where a run has come to
    nothing because policy or bandit broke the rules.

    Example:
        >>> import numpy as np
        >>> from bts_jax import Bernoulli, Run
        >>> bandit = Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75])  # a pull of arm 1 loses 0.75 · (2 − 1)
        >>> run = Run(budget=np.array([10.0]), reward=np.array([18.0]), cost=np.array([10.0]), rounds=np.array([34]),
        ...           pulls=np.array([[30, 4]]), truncated=np.array([False]))
        >>> pseudo_regret(run, bandit).tolist(), regret(run, bandit).tolist()
        ([3.0], [2.0])
    """
    xp, (pulls, reward), (reward_mean, cost_mean) = _arrays(run, bandit, (run.pulls, run.reward))
    best = ratio(reward_mean, cost_mean, xp).max(-1, keepdims=True)
    costs = cost_mean > 0
    loss = xp.where(costs, xp.where(costs, cost_mean, 1) * best - reward_mean, 0)
    loss = loss.reshape(*loss.shape[:-1], *(1,) * (pulls.ndim - loss.ndim), loss.shape[-1])
    return xp.where(xp.isnan(reward), xp.nan, (xp.where(pulls > 0, loss, 0) * pulls).sum(-1))


class Interval(NamedTuple):
    """A mean and the limits of its confidence interval."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interval(
    values: ArrayLike,
    axis: int = -1,
    *,
    level: float = 0.95,
    method: str = "normal",
    seed: int = 0,
    resamples: int = 2000,
) -> Interval:
    """The mean of independent `values` along `axis`, with a confidence interval; in float64.

    Args:
        values: what was measured; `axis` runs over independent measurements. One measurement alone has limits NaN, and
            so has a mean of NaN.
        level: how often such an interval contains the true mean.
        method: "normal" is Student's interval: right for values with a normal distribution, however few, and for any
            others once they are many. "bootstrap" takes quantiles of the means of `resamples` samples drawn from the
            values; it follows a skewed distribution, and is too short for fewer than about 20 values.
        seed: of the bootstrap's random numbers. The same samples are drawn for all means.

    Example:
        >>> [float(x.round(2)) for x in interval([1.0, 2.0, 3.0, 4.0])]
        [2.5, 0.45, 4.55]
    """
    if not 0 < level < 1:
        raise ValueError(f"level = {level!r} is not a confidence level: give a number between 0 and 1, such as 0.95")
    if method not in ("normal", "bootstrap"):
        raise ValueError(f"method = {method!r} is not known: give 'normal' or 'bootstrap'")
    values = checks.numbers("values", values, "give an array of numbers")
    if not -values.ndim <= axis < values.ndim:
        raise ValueError(f"axis = {axis} is not an axis of values, whose shape is {values.shape}: give one that is")
    values = np.moveaxis(values, axis, 0)
    count = len(values)
    if count == 0:
        raise ValueError(f"values has no entry along axis {axis}: give at least one")
    mean = values.mean(0)
    if count == 1:
        return Interval(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    if method == "normal":
        half = student(level, count - 1) * values.std(0, ddof=1) / np.sqrt(count)
        return Interval(mean, mean - half, mean + half)
    if resamples < 1:
        raise ValueError(f"resamples = {resamples} is not a number of samples: give a whole number of at least 1")
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), resamples)  # how often each is drawn
    means = np.tensordot(draws / count, values, 1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Interval(mean, low, high)


def paired(
    dataset: "Dataset",
    policy: str,
    reference: str,
    *,
    over: str = "seed",
    metric: str = "regret",
    level: float = 0.95,
    method: str = "normal",
    seed: int = 0,
) -> "Dataset":
    """How much more regret `policy` has than `reference`, on the same instances and the same luck.

    Args:
        dataset: as `sweep` returns it.
        over: the sample. "seed": the runs on each instance, for a statement about that instance. "bandit": the instances,
            each with its mean over the seeds, for a statement about instances like these.
        metric: "regret" or "pseudo_regret".
        level, method, seed: as for `interval`.

    Returns:
        A Dataset, for each budget, and for each bandit unless `over` is "bandit":
        `difference`, the mean difference, negative where `policy` is better, with its limits `low` and `high`;
        `effect`, the mean difference in standard deviations of the differences; `wins`, the share of the sample on which
        `policy` has less regret, ties counting half; `count`, the size of the sample. Where a run is missing, all is NaN.

    Example:
        >>> from bts_jax import Bernoulli, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], seeds=5)
        >>> pair = paired(results, "kube", "uniform")
        >>> pair.difference.sel(bandit="two", budget=20).item() < 0
        True
    """
    import xarray as xr

    if over not in ("seed", "bandit"):
        raise ValueError(f"over = {over!r} is not a sample: give 'seed' or 'bandit'")
    values = measured(dataset, metric)
    for name, value in (("policy", policy), ("reference", reference)):
        if value not in values.policy:
            raise ValueError(f"{name} = {value!r} is not in the dataset: give one of {', '.join(values.policy.values)}")
    values = values.mean("seed", skipna=False) if over == "bandit" else values
    difference = (values.sel(policy=policy, drop=True) - values.sel(policy=reference, drop=True)).transpose(..., over)
    mean, low, high = interval(difference.values, level=level, method=method, seed=seed)
    count = difference.sizes[over]
    deviation = difference.values.std(-1, ddof=1) if count > 1 else np.full(mean.shape, np.nan)
    with np.errstate(divide="ignore"):  # a difference that never varies is infinitely many deviations
        effect = mean / np.where(mean == 0, 1, deviation)
    wins = ((difference.values < 0) + 0.5 * (difference.values == 0)).mean(-1)
    wins = np.where(np.isnan(difference.values).any(-1), np.nan, wins)
    columns = {"difference": mean, "low": low, "high": high, "effect": effect, "wins": wins}
    template = difference.isel({over: 0}, drop=True)
    return xr.Dataset({name: template.copy(data=value) for name, value in columns.items()} | {"count": count},
                      attrs={"policy": policy, "reference": reference, "over": over, "metric": metric, "level": level})


def ranking(dataset: "Dataset", *, metric: str = "regret", level: float = 0.95) -> "Dataset":
    """How the policies do over the instances of a Dataset, each instance counting once, with its mean over the seeds.

    Instances should be of one kind: select them first, as in `dataset.sel(bandit=dataset.num_arms == 10)`.

    Returns:
        A Dataset over (policy, budget). Of the mean regrets: `mean`, with the limits `low` and `high` of its interval over
        the instances, `lower_quartile`, `median`, `upper_quartile`. Of the order: `mean_rank`, 1 being the best and ties
        sharing; `best`, the share of the instances on which the policy has the least mean regret, ties sharing;
        `clearly_best`, the share on which every other policy is worse beyond the paired interval over the seeds, at `level`.
        A policy of which a run is missing on an instance (NaN) is last there. `count` is the number of instances.

    Example:
        >>> from bts_jax import Bernoulli, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], seeds=5)
        >>> ranking(results).mean_rank.sel(budget=20).values.tolist()
        [1.0, 2.0]
    """
    import xarray as xr

    runs = measured(dataset, metric)
    values = runs.mean("seed", skipna=False).transpose("policy", "budget", "bandit")
    order = np.where(np.isnan(values), np.inf, values)
    less, same = order[:, None] > order, order[:, None] == order  # [policy, other, budget, bandit]
    rank = 0.5 + less.sum(1) + same.sum(1) / 2  # a policy ties with itself
    best = (order == order.min(0)) / (order == order.min(0)).sum(0)
    by_policy = runs.transpose("policy", "budget", "bandit", "seed").values
    clear = np.stack([
        np.all([interval(mine - other, level=level).high < 0 for i, other in enumerate(by_policy) if i != me], axis=0)
        for me, mine in enumerate(by_policy)
    ]) if len(by_policy) > 1 else np.ones_like(best)
    mean, low, high = interval(values.values, level=level)
    lower, median, upper = np.quantile(values.values, [0.25, 0.5, 0.75], axis=-1)
    columns = {"mean": mean, "low": low, "high": high, "lower_quartile": lower, "median": median, "upper_quartile": upper,
               "mean_rank": rank.mean(-1), "best": best.mean(-1), "clearly_best": clear.mean(-1)}
    template = values.isel(bandit=0, drop=True)
    return xr.Dataset({name: template.copy(data=value) for name, value in columns.items()} | {"count": values.sizes["bandit"]},
                      attrs={"metric": metric, "level": level})


def measured(dataset: "Dataset", metric: str = "regret") -> "DataArray":
    """`dataset[metric]`, over (policy, bandit, budget, seed), or a `ValueError` that says what is wrong."""
    if metric not in ("regret", "pseudo_regret"):
        raise ValueError(f"metric = {metric!r} is not known: give 'regret' or 'pseudo_regret'")
    axes = ("policy", "bandit", "budget", "seed")
    values = getattr(dataset, metric, None)
    if values is None or set(getattr(values, "dims", ())) != set(axes):
        raise ValueError(f"dataset has no {metric} over {', '.join(axes)}: pass a Dataset as sweep returns it, and select "
                         "with lists (dataset.sel(budget=[1000])), which keep all four axes")
    if 0 in values.shape:
        raise ValueError(f"dataset is empty along {axes[values.transpose(*axes).shape.index(0)]}: select at least one")
    return values.transpose(*axes)


def kinds(dataset: "Dataset") -> list[str]:
    """The family and number of arms of each bandit, in words."""
    return [f"{family}, {arms} arms" for family, arms in zip(dataset.family.values, dataset.num_arms.values, strict=True)]


def by_kind(dataset: "Dataset") -> dict[str, "Dataset"]:
    """The Dataset of each kind of bandit."""
    return split(dataset, kinds(dataset))


def split(data: Any, titles: list[str]) -> dict[str, Any]:
    """The part of a Dataset or DataArray that is about the bandits of each title."""
    return {title: data.isel(bandit=np.array(titles) == title) for title in dict.fromkeys(titles)}


def multiples(values: np.ndarray, base: np.ndarray) -> np.ndarray:
    """`values` over `base`, where that is positive; the others are left out."""
    return values[base > 0] / base[base > 0]


def student(level: float, freedom: int) -> float:
    """The t that a Student variable stays below in absolute value with probability `level`."""
    # With t = √n tan θ the density is that of θ: proportional to cosⁿ⁻¹ θ.
    if freedom > 10**4:  # all but normal: the next term of the expansion is below 10⁻⁷
        normal = NormalDist().inv_cdf((1 + level) / 2)
        return normal + (normal**3 + normal) / (4 * freedom)
    angle = np.linspace(0, np.pi / 2, 2**17)
    density = np.cos(angle) ** (freedom - 1)
    mass = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return float(np.sqrt(freedom) * np.tan(np.interp(level, mass / mass[-1], angle)))


def _arrays(run: Run, bandit: Bandit, fields: tuple) -> tuple[Any, list, list]:
    """NumPy and float64 arrays for concrete values, `jax.numpy` and float32 under a transformation."""
    means = bandit.reward_mean, bandit.cost_mean
    batch, axes = means[0].shape[:-1], np.shape(run.budget)
    if batch != axes[: len(batch)] or len(batch) >= len(axes) or means[0].shape[-1] != np.shape(run.pulls)[-1]:
        raise ValueError(f"bandit of shape {means[0].shape} does not fit runs whose pulls have shape "
                         f"{np.shape(run.pulls)}: pass the bandit that was played, its batch along the first axes")
    if checks.is_concrete((run, means)):
        return np, [np.asarray(x, np.float64) for x in fields], [np.asarray(x, np.float64) for x in means]
    return jnp, [jnp.asarray(x, jnp.float32) for x in fields], list(means)
