"""The linear program of a bandit with several resources: the benchmark of bandits with knapsacks, solved on the host.

    maximize Σ_i r_i x_i   subject to   Σ_i c_ij x_i ≤ B_j for every resource j,   x ≥ 0

x_i is the expected number of pulls of arm i. The optimum is an upper bound on the expected reward of every policy
(Badanidiyuru, Kleinberg and Slivkins, "Bandits with Knapsacks", FOCS 2013, Lemma 3.1). With one resource it is ρ* B. Some
optimal x has at most as many arms as there are resources.
"""

from typing import Any, NamedTuple

import numpy as np

from bts_jax import checks
from bts_jax.contract import num_resources


class LinearProgram(NamedTuple):
    """The solution of the linear program. For a batch, batch axes precede the axes named here."""

    value: Any  # the largest expected reward
    pulls: Any  # [K] the expected number of pulls of each arm
    prices: Any  # [d] the dual prices: how much reward one more unit of each budget brings


def lp(bandit: Any, budget: Any) -> LinearProgram:
    """Solves the linear program of a bandit: the best expected numbers of pulls, their reward, and the prices of the resources.

    With one or two resources the solution is computed in closed form, and otherwise by SciPy's HiGHS.

    Args:
        bandit: the bandit, or a batch of bandits.
        budget: one number for all resources, or one for each; with batch axes first. [d]

    Returns:
        The `LinearProgram`, float64. If an arm earns something and consumes nothing, the value is infinite, and pulls and
        prices are NaN. If the cost of the bandit is a number, it counts as d = 1.

    Example:
        >>> from bts_jax import Bernoulli, Timed
        >>> found = lp(Timed(Bernoulli(reward=[0.25, 0.75], cost=[0.25, 1.0])), [50, 100])  # 50 of money, 100 rounds
        >>> round(found.value, 6), found.pulls.round(6).tolist(), found.prices.round(6).tolist()
        (41.666667, [66.666667, 33.333333], [0.666667, 0.083333])
    """
    if not checks.is_concrete((bandit.reward_mean, bandit.cost_mean, budget)):
        raise ValueError("the linear program was given values that are not known yet (under jit, vmap or grad): solve it "
                         "outside")
    reward, cost = (np.asarray(mean, np.float64) for mean in (bandit.reward_mean, bandit.cost_mean))
    d = num_resources(bandit)
    cost = cost[..., None] if d is None else cost
    d = cost.shape[-1]
    remedy = f"give positive numbers, one for all resources or {d}"
    amounts = checks.numbers("budget", budget, remedy)
    checks.require("budget", amounts, amounts > 0, remedy)
    if amounts.ndim == 0 or (d == 1 and amounts.shape[-1] != 1):
        amounts = amounts[..., None]
    if amounts.shape[-1] not in (1, d):
        raise ValueError(f"budget has shape {np.shape(budget)}, and the bandit has {d} resources: {remedy}")
    batch = np.broadcast_shapes(reward.shape[:-1], amounts.shape[:-1])
    amounts = np.broadcast_to(amounts, (*batch, d))
    reward, cost = np.broadcast_to(reward, (*batch, reward.shape[-1])), np.broadcast_to(cost, (*batch, *cost.shape[-2:]))
    found = [_solve(reward[place], cost[place], amounts[place]) for place in np.ndindex(*batch)]
    if not batch:
        return found[0]
    return LinearProgram(*(np.array(part).reshape(*batch, *np.shape(part[0])) for part in zip(*found, strict=True)))


def lp_value(bandit: Any, budget: Any) -> Any:
    """The optimum of the linear program, an upper bound on the expected reward of every policy; see `lp`.

    Example:
        >>> from bts_jax import Bernoulli
        >>> lp_value(Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75]), 100)  # one resource: ρ* B
        200.0
    """
    return lp(bandit, budget).value


def lagrangian(bandit: Any, budget: Any, pulls: Any, prices: Any) -> Any:
    """The Lagrangian Σ_i r_i x_i + Σ_j λ_j (B_j − Σ_i c_ij x_i) for numbers of pulls x and prices λ.

    At the optimum of the linear program it equals the value. Other prices λ ≥ 0 make its maximum over x larger, or leave it as
    it is, and other pulls make its minimum over λ ≥ 0 smaller.

    Args:
        bandit: one bandit.
        budget: one number for all resources, or one for each. [d]
        pulls: x. [K]
        prices: λ. [d]

    Example:
        >>> from bts_jax import Bernoulli
        >>> lagrangian(Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75]), 100, pulls=[100, 0], prices=[2])
        200.0
    """
    reward, cost, x, price = (np.asarray(part, np.float64) for part in (bandit.reward_mean, bandit.cost_mean, pulls, prices))
    cost = cost.reshape(len(reward), -1)
    left = np.broadcast_to(np.asarray(budget, np.float64), cost.shape[1:]) - x @ cost
    return float(reward @ x + price @ left)


def _solve(reward: np.ndarray, cost: np.ndarray, budget: np.ndarray) -> LinearProgram:
    """The solution for one bandit. `reward`: [K], `cost`: [K, d], `budget`: [d]"""
    num_arms, d = cost.shape
    if ((reward > 0) & ~(cost > 0).any(-1)).any():
        return LinearProgram(np.inf, np.full(num_arms, np.nan), np.full(d, np.nan))
    if not (reward > 0).any():
        return LinearProgram(0.0, np.zeros(num_arms), np.zeros(d))
    if d > 2:
        return _highs(reward, cost, budget)
    used = np.flatnonzero(reward > 0)
    part = cost[used] / budget / reward[used, None]  # the part of each budget that a unit of reward takes
    x, prices = _closed_form(np.pad(part, ((0, 0), (0, 2 - d))))
    pulls = np.zeros(num_arms)
    pulls[used] = x / reward[used]
    return LinearProgram(float(x.sum()), pulls, prices[:d] / budget)


def _closed_form(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximizes Σ x subject to Σ_i x_i part_ij ≤ 1 for two resources. Returns x and the prices. `part`: [K, 2]

    By duality the optimum is 1 / max_w min_i (w part_i1 + (1 − w) part_i2). The function of w is concave and piecewise linear:
    its maximum is at 0, at 1, or where two lines cross.
    """
    first, slope = part[:, 1], part[:, 0] - part[:, 1]
    i, k = np.triu_indices(len(part), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings = (first[k] - first[i]) / (slope[i] - slope[k])
    opposite = (crossings > 0) & (crossings < 1) & (slope[i] * slope[k] < 0)
    i, k, w = i[opposite], k[opposite], crossings[opposite]
    lowest = (first + slope * w[:, None]).min(-1)
    lowest[first[i] + slope[i] * w > lowest * (1 + 1e-12)] = 0  # a third line is below the two that cross
    best = np.array([first.min(), part[:, 0].min(), *lowest])
    chosen, x = int(best.argmax()), np.zeros(len(part))
    if chosen < 2:  # one budget alone limits the reward
        # Of the arms that take least of it, the one that takes least of the other.
        limiting, other = (first, part[:, 0]) if chosen == 0 else (part[:, 0], first)
        arm = min(np.flatnonzero(limiting == limiting.min()), key=lambda arm: other[arm])
        x[arm] = 1 / limiting[arm]
        weight = float(chosen)
    else:  # two arms that use up both budgets
        pair, weight = [i[chosen - 2], k[chosen - 2]], w[chosen - 2]
        share = slope[pair[1]] / (slope[pair[1]] - slope[pair[0]])  # of the first arm, so that both budgets are used equally
        x[pair] = np.array([share, 1 - share]) / best[chosen]
    return x, np.array([weight, 1 - weight]) / best[chosen]


def _highs(reward: np.ndarray, cost: np.ndarray, budget: np.ndarray) -> LinearProgram:
    from scipy.optimize import linprog

    found = linprog(-reward, A_ub=(cost / budget).T, b_ub=np.ones(len(budget)), method="highs")
    if found.status != 0:
        raise RuntimeError(f"the linear program was not solved: {found.message}")
    return LinearProgram(float(-found.fun), found.x, np.maximum(-found.ineqlin.marginals, 0) / budget)  # 0 up to rounding
