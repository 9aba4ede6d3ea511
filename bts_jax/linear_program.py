"""The linear program of a bandit with several resources: the benchmark of bandits with knapsacks,
solved on the host.

    maximize Σ_i r_i x_i   subject to   Σ_i c_ij x_i ≤ B_j for every resource j,   x ≥ 0

x_i is the expected number of pulls of arm i. The optimum is an upper bound on the expected reward
of every policy (Badanidiyuru, Kleinberg and Slivkins, "Bandits with Knapsacks", FOCS 2013, Lemma
3.1). With one resource it is ρ* B. Some optimal x has at most as many arms as there are resources.
A limit of rounds, Σ_i x_i ≤ T, is one more resource.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bts_jax import checks


class LinearProgram(NamedTuple):
    """The solution of the linear program. For a batch, batch axes precede the axes named here."""

    value: Any  # the largest expected reward
    pulls: Any  # [K] the expected number of pulls of each arm
    prices: Any  # [d] the dual prices: how much reward one more unit of each budget brings


def lp(bandit: Any, budget: Any, *, max_rounds: Any = None) -> LinearProgram:
    """Solves the linear program of a bandit: the best expected numbers of pulls, their reward, and
    the prices of the resources.

    With one or two resources the solution is computed in closed form and certified; otherwise by
    SciPy's HiGHS.

    Args:
        bandit: the bandit, or a batch of bandits.
        budget: one number for all resources, or one for each; with batch axes first. Infinite if a
            resource has no limit. [d]
        max_rounds: T, the limit of rounds, if there is one. It counts as one more resource, the
            last one. (`Timed` has a limit already.)

    Returns:
        The `LinearProgram`, float64. If an arm earns something and consumes nothing of a limited
        resource, the value is infinite, and pulls and prices are NaN. If the cost of the bandit is
        a number, it counts as d = 1.

    Example:
        >>> from bts_jax import Bernoulli, Timed
        >>> arms = Bernoulli(reward=[0.25, 0.75], cost=[0.25, 1.0])
        >>> # or lp(Timed(arms), [50, 100]): 50 of money, 100 rounds
        >>> found = lp(arms, 50, max_rounds=100)
        >>> round(found.value, 6), found.pulls.round(6).tolist(), found.prices.round(6).tolist()
        (41.666667, [66.666667, 33.333333], [0.666667, 0.083333])
        >>> lp(Timed(arms), [50, 100]).value == found.value
        True
    """
    problems, batch = _problems(bandit, budget, max_rounds)
    found = [_solve(*problem) for problem in problems]
    if not batch:
        return found[0]
    return LinearProgram(
        *(np.array(part).reshape(*batch, *np.shape(part[0])) for part in zip(*found, strict=True))
    )


def lp_value(bandit: Any, budget: Any, *, max_rounds: Any = None) -> Any:
    """The optimum of the linear program, an upper bound on the expected reward of every policy; see
    `lp`.

    Example:
        >>> from bts_jax import Bernoulli
        >>> lp_value(Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75]), 100)  # one resource: ρ* B
        200.0
    """
    problems, batch = _problems(bandit, budget, max_rounds)
    values = [_value(*(part.tobytes() for part in problem)) for problem in problems]
    return np.array(values).reshape(batch) if batch else values[0]


def lagrangian(bandit: Any, budget: Any, pulls: Any, prices: Any) -> Any:
    """The Lagrangian Σ_i r_i x_i + Σ_j λ_j (B_j − Σ_i c_ij x_i) for numbers of pulls x and prices
    λ.

    At the optimum of the linear program it equals the value. This point is a saddle: with other
    prices λ ≥ 0 the maximum over x is not smaller, and with other pulls the minimum over λ ≥ 0 is
    not larger.

    Args:
        bandit: one bandit.
        budget: one number for all resources, or one for each. [d]
        pulls: x. [K]
        prices: λ. [d]

    Example:
        >>> from bts_jax import Bernoulli
        >>> lagrangian(Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75]), 100, pulls=[100, 0],
        ...     prices=[2])
        200.0
    """
    reward, cost, x, price = (
        np.asarray(part, np.float64)
        for part in (bandit.reward_mean, bandit.cost_mean, pulls, prices)
    )
    cost = cost.reshape(len(reward), -1)
    for name, found, shape in (("pulls", x, reward.shape), ("prices", price, cost.shape[1:])):
        if found.shape != shape:
            raise ValueError(
                f"{name} has shape {found.shape}: give {shape[0]} numbers, one for each "
                f"{'arm' if name == 'pulls' else 'resource'}"
            )
    left = np.broadcast_to(np.asarray(budget, np.float64), cost.shape[1:]) - x @ cost
    return float(reward @ x + price @ left)


def _problems(
    bandit: Any, budget: Any, max_rounds: Any = None
) -> tuple[list[tuple[np.ndarray, ...]], tuple[int, ...]]:
    """Rewards [K], costs [K, d] and budgets [d] of each bandit, and the shape of the batch. Rounds
    are the last resource.
    """
    checks.contract(
        "bandit",
        bandit,
        ("reward_mean", "cost_mean"),
        "Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])",
    )
    if not checks.is_concrete((bandit.reward_mean, bandit.cost_mean, budget)):
        raise ValueError(
            "the linear program was given values that are not known yet (under jit, vmap or grad): "
            "solve it outside"
        )
    reward, cost = (np.asarray(mean, np.float64) for mean in (bandit.reward_mean, bandit.cost_mean))
    cost = cost[..., None] if cost.ndim == reward.ndim else cost
    d = cost.shape[-1]
    remedy = f"give positive numbers, one for all resources or {d}"
    amounts = checks.numbers("budget", budget, remedy)
    checks.require("budget", amounts, amounts > 0, remedy)
    if amounts.ndim == 0 or (d == 1 and amounts.shape[-1] != 1):
        amounts = amounts[..., None]
    if amounts.shape[-1] not in (1, d):
        raise ValueError(
            f"budget has shape {np.shape(budget)}, and the bandit has {d} resources: {remedy}"
        )
    amounts = np.broadcast_to(amounts, (*amounts.shape[:-1], d))
    if max_rounds is not None:
        rounds = limit_of_rounds(max_rounds)
        amounts = np.broadcast_to(
            amounts, (*np.broadcast_shapes(amounts.shape[:-1], rounds.shape), d)
        )
        amounts = np.concatenate(
            [amounts, np.broadcast_to(rounds, amounts.shape[:-1])[..., None]], -1
        )
        cost, d = np.concatenate([cost, np.ones((*cost.shape[:-1], 1))], -1), d + 1
    batch = np.broadcast_shapes(reward.shape[:-1], amounts.shape[:-1])
    parts = [
        np.broadcast_to(x, (*batch, *x.shape[x.ndim - axes :]))
        for x, axes in ((reward, 1), (cost, 2))
    ]
    parts.append(np.broadcast_to(amounts, (*batch, d)))
    return [tuple(part[place] for part in parts) for place in np.ndindex(*batch)], batch


def limit_of_rounds(max_rounds: Any) -> np.ndarray:
    """A limit of rounds as float64. Raises a `ValueError` unless it is at least 1."""
    remedy = "give the largest number of rounds, at least 1"
    if not checks.is_concrete(max_rounds):
        raise ValueError(
            f"max_rounds is not known yet (under jit, vmap or grad): {remedy}, outside"
        )
    rounds = checks.numbers("max_rounds", max_rounds, remedy)
    checks.require("max_rounds", rounds, rounds >= 1, remedy)
    return rounds


@lru_cache(2**14)
def _value(*problem: bytes) -> float:
    """The value for one bandit. A sweep asks for it once for each policy and each metric."""
    reward, cost, budget = (np.frombuffer(part) for part in problem)
    return _solve(reward, cost.reshape(len(reward), -1), budget).value


def _solve(reward: np.ndarray, cost: np.ndarray, budget: np.ndarray) -> LinearProgram:
    """The solution for one bandit. `reward`: [K], `cost`: [K, d], `budget`: [d], infinite where a
    resource has no limit
    """
    num_arms, d = cost.shape
    limited, used = np.flatnonzero(np.isfinite(budget)), np.flatnonzero(reward > 0)
    if not len(used):
        return LinearProgram(0.0, np.zeros(num_arms), np.zeros(d))
    part = cost[np.ix_(used, limited)] / budget[limited]  # of each budget, that a pull takes
    if not (part > 0).any(-1).all():
        return LinearProgram(np.inf, np.full(num_arms, np.nan), np.full(d, np.nan))
    size = part.max(-1)  # an arm is measured by the largest part of a budget that a pull takes
    worth = reward[used] / size
    top = worth.max()
    x, prices = _unit_program(worth / top, part / size[:, None])
    pulls, all_prices = np.zeros(num_arms), np.zeros(d)
    pulls[used] = x / size
    all_prices[limited] = prices * top / budget[limited]
    return LinearProgram(float(worth @ x), pulls, all_prices)


def _unit_program(worth: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximizes worth · x subject to xᵀ part ≤ 1 and x ≥ 0. Returns x and the prices. The numbers
    are at most 1.
    """
    if part.shape[1] <= 2:
        found = _closed_form(worth, np.pad(part, ((0, 0), (0, 2 - part.shape[1]))))
        x, prices = found[0], found[1][: part.shape[1]]
        known = bool(np.isfinite(x).all() and np.isfinite(prices).all())
        if (
            known
            and (x @ part).max() <= 1 + 1e-9
            and (part @ prices - worth).min() >= -1e-9
            and (prices.sum() <= worth @ x * (1 + 1e-9))
        ):
            return x, prices  # feasible, and as good as the upper bound
    from scipy.optimize import linprog

    found = linprog(-worth, A_ub=part.T, b_ub=np.ones(part.shape[1]), method="highs")
    if found.status != 0:
        raise RuntimeError(f"the linear program was not solved: {found.message}")
    return found.x, np.maximum(-found.ineqlin.marginals, 0)  # 0 up to rounding


def _closed_form(worth: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The solution for two resources, unless rounding or ties prevent it. `part`: [K, 2]

    By duality the optimum is 1 / max_w min_i (w part_i1 + (1 − w) part_i2) / worth_i. The function
    of w is concave and piecewise linear: its maximum is at 0, at 1, or where a line that does not
    rise crosses one that does not fall.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        first, last = part[:, 1] / worth, part[:, 0] / worth
        slope = last - first
        i, k = np.triu_indices(len(part), 1)
        crossings = (first[k] - first[i]) / (slope[i] - slope[k])
        within = (crossings > 0) & (crossings < 1) & (slope[i] * slope[k] <= 0)
        i, k, w = i[within], k[within], crossings[within]
        lowest = (first + slope * w[:, None]).min(-1)
        # A third line is below the two.
        lowest[first[i] + slope[i] * w > lowest + 1e-12 * (first[i] + np.abs(slope[i]))] = 0
        best = np.array([first.min(), last.min(), *lowest])
        chosen, x = int(best.argmax()), np.zeros(len(part))
        if chosen < 2:  # one budget alone limits the reward
            # Of the arms that take least of it, the one that takes least of the other.
            limiting, other = (first, last) if chosen == 0 else (last, first)
            arm = min(np.flatnonzero(limiting == limiting.min()), key=lambda arm: other[arm])
            x[arm], weight = 1 / limiting[arm], float(chosen)
        else:  # two arms that use up both budgets
            pair, weight = [i[chosen - 2], k[chosen - 2]], w[chosen - 2]
            # Of the first, so that both budgets are used equally.
            share = slope[pair[1]] / (slope[pair[1]] - slope[pair[0]])
            x[pair] = np.array([share, 1 - share]) / best[chosen]
        return x / worth, np.array([weight, 1 - weight]) / best[chosen]
