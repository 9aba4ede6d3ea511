"""Regret and pseudo-regret of runs. Statistics over many runs are in `bts_jax.statistics`."""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

from bts_jax import checks, linear_program, theory
from bts_jax.contract import Bandit, Means, num_resources, ratio
from bts_jax.fingerprint import differs, fingerprint
from bts_jax.rules import Run


def regret(run: Run, bandit: Bandit, *, optimum: str = "linear", max_rounds: Any = None) -> Any:
    """The reward lost compared with always pulling the best arm, at each checkpoint: ρ* b − reward.
    [C]

    ρ* b is the optimum for Bernoulli arms and whole-numbered budgets, and within ρ* of it for
    others (the paper's Lemma 1). A single run may have negative regret by chance. With `optimum` =
    "exact", `theory.optimal_reward` takes the place of ρ* b. This needs arms whose costs are on a
    lattice, and works only outside of `jit` and `vmap`.

    If the bandit has several resources, `theory.lp_value`, the optimum of the linear program, takes
    the place of ρ* b. It is an upper bound on what any policy can earn, and is computed only
    outside of `jit` and `vmap`.

    If the rounds are limited, too, as for T requests and B dollars, give the limit as `max_rounds`,
    as to `simulate`. The linear program with both limits is then the optimum, as for `Timed`.
    Without it, a run that was truncated by its limit of rounds has no regret, because it has not
    spent its budget: it is NaN, and a `RuntimeWarning` says so.

    Regret is in the unit of the bandit's rewards.

    `run` may be a batch of runs. A batch of bandits must be along the first axes of the runs.
    Concrete values are computed in float64, because regret is the difference of two large numbers,
    and returned as a NumPy array. Under `jit` and `vmap` the result is float32, and there is no
    warning.

    A bandit with other means than the one that was played is refused. `bts_jax.contract.Means` is
    not: use it for the regret under other means.

    Example:
        >>> import jax
        >>> from bts_jax import Bernoulli, Oracle, simulate
        >>> bandit = Bernoulli(reward=[1.0, 0.1], cost=[0.5, 0.5])
        >>> run = simulate(Oracle(), bandit, 100, jax.random.key(0))
        >>> (regret(run, bandit) + run.reward).tolist()
        [200.0]
        >>> run = simulate(Oracle(), bandit, 100, jax.random.key(0), max_rounds=150)
        >>> (regret(run, bandit, max_rounds=150) + run.reward).tolist()  # at most 1 in each round
        [150.0]
    """
    _check_order("regret", run, bandit)
    if optimum not in ("linear", "exact"):
        raise ValueError(f"optimum = {optimum!r} is not known: give 'linear' or 'exact'")
    values = untruncated_regret(run, bandit, optimum, max_rounds)
    if checks.is_concrete((values, run.truncated)):
        truncated, size = np.asarray(_is_cut(np, run, max_rounds)).sum(), np.size(run.truncated)
        if truncated:
            other = ", or take pseudo_regret" if num_resources(bandit) is None else ""
            warnings.warn(
                f"regret is NaN where a run was truncated by its limit of rounds, {truncated:,} of "
                f"{size:,}: give the limit to regret, too, as in regret(run, bandit, "
                "max_rounds=1000), for the optimum with that many rounds; or give a larger "
                f"max_rounds to simulate{other}",
                RuntimeWarning,
                stacklevel=2,
            )
    return values


def untruncated_regret(
    run: Run, bandit: Bandit, optimum: str = "linear", max_rounds: Any = None
) -> Any:
    """Computes the same as `regret`, without the warning."""
    xp, (budget, reward), (reward_mean, cost_mean) = _arrays(run, bandit, (run.budget, run.reward))
    reward = xp.where(_is_cut(xp, run, max_rounds), xp.nan, reward)
    if num_resources(bandit) is not None or max_rounds is not None:
        if optimum == "exact":
            what = (
                "one resource, and the bandit has several"
                if max_rounds is None
                else "a budget without a limit of rounds"
            )
            raise ValueError(f"optimum = 'exact' is for {what}: leave it out")
        return _linear_optimum(xp, bandit, budget, max_rounds) - reward
    budget = xp.where(run.truncated, 1, budget)
    if optimum == "exact":
        if xp is not np:
            raise ValueError(
                "optimum = 'exact' was given values that are not known yet (under jit, vmap or "
                "grad): call regret outside, on the whole batch"
            )
        budgets, place = np.unique(budget, return_inverse=True)
        batch = reward_mean.shape[:-1]
        earned = theory.optimal_reward(bandit, budgets)  # [*batch, budgets]
        return (
            np.take_along_axis(earned, place.reshape(*batch, -1), -1).reshape(budget.shape) - reward
        )
    best = ratio(reward_mean, cost_mean, xp).max(-1)
    return best.reshape(*best.shape, *(1,) * (budget.ndim - best.ndim)) * budget - reward


def _is_cut(xp: Any, run: Run, max_rounds: Any) -> Any:
    """Whether a run was truncated by another limit of rounds than `max_rounds`. [..., C]"""
    truncated = xp.asarray(run.truncated)
    if max_rounds is None:
        return truncated
    if xp is not np:
        raise ValueError(
            "regret with max_rounds needs values that are known (not under jit, vmap or grad): "
            "call it outside, on the whole batch"
        )
    rounds, limit = (
        np.asarray(run.rounds),
        _per_run(linear_program.limit_of_rounds(max_rounds), truncated.ndim),
    )
    checks.require(
        "the number of rounds of the run",
        rounds,
        rounds <= limit,
        f"give the limit of rounds that simulate had as max_rounds; it is {np.min(limit):g} now",
    )
    return truncated & (rounds < limit)


def _per_run(limit: np.ndarray, axes: int) -> np.ndarray:
    """A limit of rounds, one number or one for each run along the first axes, with as many axes as
    the checkpoints have.
    """
    return limit.reshape(limit.shape + (1,) * (axes - limit.ndim))


def _linear_optimum(
    xp: Any, bandit: Bandit, budget: np.ndarray, max_rounds: Any = None
) -> np.ndarray:
    """The value of the linear program at each checkpoint, NaN where all budgets are infinite. [...,
    C]

    Budgets that are multiples of each other, as those of all checkpoints of a run, need one
    solution.

    Args:
        budget: [..., C, d], or [..., C] if the bandit has one resource.
        max_rounds: the limit of rounds, which is one more resource, or `None`.
    """
    if xp is not np:
        raise ValueError(
            "the regret of a bandit with several resources needs values that are known (not under "
            "jit, vmap or grad): call it outside, on the whole batch"
        )
    reward, cost = (np.asarray(mean, np.float64) for mean in (bandit.reward_mean, bandit.cost_mean))
    if cost.ndim == reward.ndim:
        cost, budget = cost[..., None], budget[..., None]
    if max_rounds is not None:
        limit = _per_run(linear_program.limit_of_rounds(max_rounds), budget.ndim - 1)
        budget = np.concatenate([budget, np.broadcast_to(limit, budget.shape[:-1])[..., None]], -1)
        cost = np.concatenate([cost, np.ones((*cost.shape[:-1], 1))], -1)
    batch, known = reward.shape[:-1], np.isfinite(budget).any(-1)
    size = np.where(known, np.where(np.isfinite(budget), budget, 0).max(-1), 1)
    shape = np.where(np.expand_dims(known, -1), budget / np.expand_dims(size, -1), 1)
    values = np.empty(size.shape)
    for place in np.ndindex(*batch):
        shapes, which = np.unique(
            np.float32(shape[place]).reshape(-1, shape.shape[-1]), axis=0, return_inverse=True
        )
        found = theory.lp_value(Means(reward[place], cost[place]), shapes)
        values[place] = found[which.ravel()].reshape(size[place].shape)
    return np.where(known, values * size, np.nan)


def pseudo_regret(run: Run, bandit: Bandit, *, max_rounds: Any = None) -> Any:
    """The expected regret of the arms that were pulled, at each checkpoint: Σ_i μ_i^c Δ_i T_i (the
    paper's Lemma 2). [C]

    For Bernoulli arms and a whole-numbered budget it has the same mean as `regret`, and far less
    variance. Otherwise the means differ by less than ρ* + 1 (times the scales of costs and
    rewards), because the last pull may cost more than was left: it then earns nothing, and does not
    count in T_i. Pulls of arms that cost nothing add nothing. Batches and precision are as for
    `regret`. It is NaN for an invalid run, in which the policy or the bandit broke the rules, and
    so is `regret`.

    If the bandit has several resources, it is the optimum of the linear program minus Σ_i μ_i^r
    T_i, the expected reward of the pulls. What is left of a budget when another is used up counts
    as lost, and a truncated run is NaN. The same holds with `max_rounds`, the limit of rounds that
    the run had: it is one more resource, and a run that reaches it is not NaN.

    Example:
        >>> import numpy as np
        >>> from bts_jax import Bernoulli, Run
        >>> # a pull of arm 1 loses 0.75 · (2 − 1)
        >>> bandit = Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75])
        >>> run = Run(budget=np.array([10.0]), reward=np.array([18.0]), cost=np.array([10.0]),
        ...     rounds=np.array([34]),
        ...           pulls=np.array([[30, 4]]), truncated=np.array([False]))
        >>> pseudo_regret(run, bandit).tolist(), regret(run, bandit).tolist()
        ([3.0], [2.0])
    """
    _check_order("pseudo_regret", run, bandit)
    xp, (pulls, reward), (reward_mean, cost_mean) = _arrays(run, bandit, (run.pulls, run.reward))
    if num_resources(bandit) is not None or max_rounds is not None:
        cut = _is_cut(xp, run, max_rounds)
        optimum = _linear_optimum(xp, bandit, np.asarray(run.budget, np.float64), max_rounds)
        means = reward_mean.reshape(
            *reward_mean.shape[:-1], *(1,) * (pulls.ndim - reward_mean.ndim), reward_mean.shape[-1]
        )
        return np.where(np.isnan(reward) | cut, np.nan, optimum - (pulls * means).sum(-1))
    best = ratio(reward_mean, cost_mean, xp).max(-1, keepdims=True)
    costs = cost_mean > 0
    loss = xp.where(costs, xp.where(costs, cost_mean, 1) * best - reward_mean, 0)
    loss = loss.reshape(*loss.shape[:-1], *(1,) * (pulls.ndim - loss.ndim), loss.shape[-1])
    return xp.where(xp.isnan(reward), xp.nan, (xp.where(pulls > 0, loss, 0) * pulls).sum(-1))


def _check_order(name: str, run: Any, bandit: Any) -> None:
    """Raises unless the arguments are a run and a bandit, in this order."""
    for argument, value, members, example in (
        ("run", run, ("budget", "reward", "pulls"), "as simulate returns it"),
        ("bandit", bandit, ("reward_mean", "cost_mean"), "the one that was played"),
    ):
        missing = [member for member in members if not hasattr(value, member)]
        if missing:
            raise ValueError(
                f"{argument} is a {type(value).__name__}, which has no {', '.join(missing)}: call "
                f"{name}(run, bandit), in this order, with a {argument}, {example}"
            )
    _check_played(run, bandit)


def _check_played(run: Run, bandit: Bandit) -> None:
    """Raises if the run is known to be from another bandit. Means alone, without arms to pull, go
    with every run.
    """
    played = run.bandit if isinstance(run, Run) else None
    if played is None or not hasattr(bandit, "pull") or not checks.is_concrete((played, bandit)):
        return
    played, (*batch, _) = np.asarray(played), np.shape(bandit.reward_mean)
    if (
        played.dtype != np.uint32
        or np.asarray(run.truncated).dtype != bool
        or played.shape[: len(batch)] != (*batch,)
    ):
        # The user has added runs or averaged them; or the shapes do not fit, which `_arrays`
        # reports.
        return
    own = np.asarray(fingerprint(bandit.reward_mean, bandit.cost_mean, np))
    num_means = (np.size(bandit.reward_mean) + np.size(bandit.cost_mean)) // max(own.size, 1)
    if differs(played, own.reshape(*batch, *[1] * (played.ndim - len(batch))), num_means).any():
        raise ValueError(
            "bandit is not the one that was played: it has other means. Pass the bandit of the "
            "run; for the regret under other means, pass bts_jax.contract.Means(reward_mean, "
            "cost_mean)"
        )


def _arrays(run: Run, bandit: Bandit, fields: tuple) -> tuple[Any, list, list]:
    """NumPy and float64 arrays for concrete values, `jax.numpy` and float32 under a
    transformation.
    """
    means = bandit.reward_mean, bandit.cost_mean
    batch, axes = means[0].shape[:-1], np.shape(run.reward)
    if (
        batch != axes[: len(batch)]
        or len(batch) >= len(axes)
        or means[0].shape[-1] != np.shape(run.pulls)[-1]
    ):
        raise ValueError(
            f"bandit of shape {means[0].shape} does not fit runs whose pulls have shape "
            f"{np.shape(run.pulls)}: pass the bandit that was played, its batch along the first "
            "axes"
        )
    if checks.is_concrete((run, means)):
        return (
            np,
            [np.asarray(x, np.float64) for x in fields],
            [np.asarray(x, np.float64) for x in means],
        )
    return jnp, [jnp.asarray(x, jnp.float32) for x in fields], list(means)
