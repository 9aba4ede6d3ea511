"""R* for arms whose costs never vary: the unbounded knapsack problem, with the heuristics of the
paper's footnote to Lemma 1.

If the cost of an arm is always the same, a policy that knows the arms chooses numbers of pulls x_i,

    maximize Σ_i μ_i^r x_i   subject to   Σ_i c_i x_i ≤ B,   x_i whole numbers.

This problem is NP-hard. Two greedy heuristics find at least half of the optimum, and a fully
polynomial approximation scheme (FPTAS) comes as close as one likes. Everything is NumPy in float64.
"""

from typing import Any, NamedTuple

import numpy as np

from bts_jax import checks
from bts_jax.contract import num_resources

SLACK = 1e-9  # relative: by which rounding may make a cost too large
MOST_PULLS = 2**31


class Knapsack(NamedTuple):
    """Numbers of pulls for arms with fixed costs, and what they earn."""

    pulls: np.ndarray  # [K] whole numbers
    low: float  # the expected reward of these pulls, at most R*
    high: float  # an upper bound on R*


def knapsack(bandit: Any, budget: float, *, accuracy: float = 0.01) -> Knapsack:
    """Brackets R* for arms whose costs never vary, such as `FixedPrice`: `low` is at least (1 −
    accuracy) R*.

    The larger of the two greedy solutions is improved by an approximation scheme (after Ibarra and
    Kim, 1975). Arms that earn more than accuracy/2 of the greedy solution are combined by dynamic
    programming over their rewards, which are rounded down to whole numbers of small units. The rest
    of the budget is filled by the best of the other arms. It needs up to 8/accuracy² steps: with
    0.01 about a second, with 0.002 half a minute.

    Xia et al. write that such schemes are hardly better than the bound ρ* B of Lemma 1. This is so
    for large budgets: if the budget pays for many pulls, the greedy solution earns nearly ρ* B.

    Args:
        bandit: one bandit with one resource, or `Means`. Its expected costs are taken as the costs
            of every pull.
        budget: one number, in the unit of the costs.
        accuracy: how far `low` may be below R*, relatively. From 0.002 to 0.5.

    Example:
        >>> from bts_jax import FixedPrice
        >>> models = FixedPrice(success=[0.5, 0.8, 0.9], price=[4, 10, 30])
        >>> found = knapsack(models, 17)  # ρ* B is 2.125
        >>> found.pulls.tolist(), found.low, round(found.high, 3)
        ([4, 0, 0], 2.0, 2.02)
    """
    reward, cost, budget = _items(bandit, budget)
    remedy = "give a number from 0.002 to 0.5"
    near = float(checks.numbers("accuracy", accuracy, remedy))
    checks.require("accuracy", near, 0.002 <= near <= 0.5, remedy)
    found = max(
        (greedy(bandit, budget, by=by) for by in ("density", "total")),
        key=lambda pulls: pulls @ reward,
    )
    base = float(found @ reward)
    if base == 0:
        return Knapsack(found, 0.0, 0.0)
    found = max(found, _scheme(reward, cost, budget, near, base), key=lambda pulls: pulls @ reward)
    low = float(found @ reward)
    return Knapsack(
        found, low, max(low, min(low / (1 - near), budget * float((reward / cost).max())))
    )


def greedy(bandit: Any, budget: float, *, by: str = "density") -> np.ndarray:
    """Numbers of pulls by a greedy heuristic for arms whose costs never vary. [K]

    The arms are taken in an order, and each is pulled as often as the rest of the budget allows.

    Args:
        bandit, budget: as for `knapsack`.
        by: "density": the arm with the largest ratio of reward to cost first (Fisher, 1980).
            "total": the arm that earns most with the rest of the budget first (Kohli and
            Krishnamurti, 1992).

    Example:
        >>> from bts_jax import FixedPrice
        >>> models = FixedPrice(success=[0.5, 0.8, 0.9], price=[4, 10, 30])
        >>> greedy(models, 38).tolist(), greedy(models, 11).tolist(), greedy(models, 11,
        ...     by="total").tolist()
        ([9, 0, 0], [2, 0, 0], [2, 0, 0])
    """
    reward, cost, left = _items(bandit, budget)
    if by not in ("density", "total"):
        raise ValueError(f"by = {by!r} is not known: give 'density' or 'total'")
    pulls = np.zeros(len(reward), np.int64)
    open_arms = list(range(len(reward)))
    while open_arms:
        fits = {arm: int(_count(left, cost[arm])) for arm in open_arms}
        worth = {
            arm: reward[arm] / cost[arm] if by == "density" else reward[arm] * fits[arm]
            for arm in open_arms
        }
        arm = max(open_arms, key=lambda one: worth[one])
        pulls[arm] = fits[arm] if reward[arm] > 0 else 0
        left = max(left - pulls[arm] * cost[arm], 0)
        open_arms.remove(arm)
    return pulls


def _items(bandit: Any, budget: Any) -> tuple[np.ndarray, np.ndarray, float]:
    checks.contract(
        "bandit",
        bandit,
        ("reward_mean", "cost_mean"),
        "FixedPrice(success=[0.5, 0.9], price=[0.3, 0.8])",
    )
    reward, cost = map(_decimal, (bandit.reward_mean, bandit.cost_mean))
    if num_resources(bandit) is not None or reward.ndim != 1:
        raise ValueError(
            f"bandit has costs of shape {cost.shape}: give one bandit with one resource"
        )
    checks.require(
        "reward_mean of the bandit",
        reward,
        (reward >= 0) & (reward < np.inf),
        "give numbers of at least 0",
    )
    checks.require(
        "cost_mean of the bandit",
        cost,
        (cost > 0) & (cost < np.inf),
        "give arms that cost something",
    )
    remedy = "give one positive number"
    amount = checks.numbers("budget", budget, remedy)
    checks.require(
        "budget", amount, (amount > 0) & np.isfinite(amount) & (amount.ndim == 0), remedy
    )
    checks.require(
        "budget",
        amount,
        amount / cost.min() <= MOST_PULLS,
        "give one that pays for at most 2³¹ pulls",
    )
    return reward, cost, float(amount)


def _decimal(means: Any) -> np.ndarray:
    """float64. A float32 becomes the number that it is printed as: a price of 0.1, and not
    0.10000000149.
    """
    array = np.asarray(means)
    if array.dtype != np.float32:
        return array.astype(np.float64)
    return np.array([float(str(x)) for x in array.ravel()]).reshape(array.shape)


def _count(left: Any, cost: Any) -> Any:
    """How many pulls a budget pays for."""
    quotient = left / cost
    return np.floor(quotient + np.minimum(quotient * SLACK, 1e-3))


def _scheme(
    reward: np.ndarray, cost: np.ndarray, budget: float, near: float, base: float
) -> np.ndarray:
    """The numbers of pulls of the approximation scheme. `base`: at least half of the optimum"""
    pulls = np.zeros(len(reward), np.int64)
    affordable = (cost <= budget * (1 + SLACK)) & (reward > 0)
    # Filling the rest with one small arm loses at most one pull, at most near/2 of the optimum.
    large = near / 2 * base
    unit = near / 2 * large  # so a rounded reward is at least 1 − near/2 of it
    great = np.flatnonzero(affordable & (reward >= large))
    small = np.flatnonzero(affordable & (reward < large))
    units = (reward[great] / unit).astype(np.int64)
    most = int(2 * base / unit) + 1
    spent, last = np.full(most + 1, np.inf), np.full(most + 1, -1)
    spent[0] = 0
    for total in range(1, most + 1 if len(great) else 0):
        before = np.where(units <= total, spent[np.maximum(total - units, 0)] + cost[great], np.inf)
        last[total] = before.argmin()
        spent[total] = before[last[total]]
    fits = spent <= budget * (1 + SLACK)
    filler = small[(reward[small] / cost[small]).argmax()] if len(small) else None
    filled = np.zeros(most + 1, np.int64)
    if filler is not None:
        left = np.where(fits, budget - np.where(fits, spent, 0), 0)
        filled = _count(np.maximum(left, 0), cost[filler]).astype(np.int64)
    earned = np.arange(most + 1) * unit + filled * (0 if filler is None else reward[filler])
    total = int(np.where(fits, earned, -1).argmax())
    if filler is not None:
        pulls[filler] = filled[total]
    while total > 0:
        arm = int(last[total])
        pulls[great[arm]] += 1
        total -= int(units[arm])
    return pulls
