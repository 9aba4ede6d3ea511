"""The paper's theory as numbers: gaps, the bound on BTS, the lower bound, the exact optimum.

The paper numbers the best arm 1. Here the best arm is the arm with the largest ratio, and arrays
have the bandit's order.

Closed forms and the dynamic programs are pure functions of the bandit and work under `vmap`, `jit`
and `grad`. Concrete values are computed in float64 and returned as NumPy arrays, as in
`bts_jax.metrics`. Under `jit`, `vmap` and `grad` the computation is in float32, and nothing is
checked. A bandit may be a batch of bandits, with leading axes: [..., K].

`bts_jax.proof` has the parts of the proof: its facts, its events along a run, and the cases of its
appendix.

`bts_bound` may sum millions of terms that span hundreds of orders of magnitude. It is NumPy in
float64 throughout, for one bandit and concrete values.

Proved and not proved:

- `bts_bound`, and `bts_constant` as its leading term: proved. The paper's proof has gaps in Step 2
  and Step 3. The docstring of `bts_bound` closes them, and the paper's constants remain valid.
- `optimal_reward`, `oracle_reward` and `optimal_arm`: exact, by dynamic programming, up to
  rounding.
- `ucb_bv1_constant`: only evaluated. It is a formula that the paper quotes from Ding et al. (2013).
  We have not checked the proof.
- `lower_bound_slope`: only evaluated. The paper states only the order, and the constant is from
  later work.
- `optimal_reward_bounds`, for continuous costs, and `knapsack`, for costs that never vary: proved
  bounds around the optimum.
- `lp`, `lp_value`: exact, up to rounding. They are for several resources
  (`bts_jax.linear_program`), the others for one.
"""

import math
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bts_jax import checks
from bts_jax.bandits import Bernoulli, Beta, Multinomial
from bts_jax.contract import Bandit, num_resources, scales
from bts_jax.fixed_costs import Knapsack, greedy, knapsack  # noqa: F401  costs that never vary
from bts_jax.linear_program import LinearProgram, lagrangian, lp, lp_value  # noqa: F401  several resources
from bts_jax.typing import ArrayLike

LARGEST_TABLE = 10**7  # the largest number of lattice points of the budget in a dynamic program
MOST_STEPS = 1000  # the finest lattice of costs that is tried
# The smallest ε-gap for which `bts_bound` computes the sum: about 10⁹ terms matter there.
SMALLEST_GAP = 3e-4


class Gaps(NamedTuple):
    """The ratios of the arms and their gaps to the best arm."""

    ratio: Any  # [K] ρ_i, expected reward over expected cost
    gap: Any  # [K] Δ_i = ρ* − ρ_i; 0 for the best arm


def gaps(bandit: Bandit) -> Gaps:
    """Returns the ratio ρ_i of each arm and its gap Δ_i = ρ* − ρ_i to the best arm (Section 2).

    Example:
        >>> gaps(Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75])).gap.tolist()
        [0.0, 1.0]
    """
    arms = _arms(bandit, any_unit=True)
    return Gaps(ratio=arms.ratio, gap=arms.gap)


def delta_gap(bandit: Bandit, gamma: ArrayLike) -> Any:
    """Returns δ_i(γ) = γ μ_i^c Δ_i / (ρ* + 1). [K]

    If the estimates of arm i err by this much, its ratio comes near ρ*. With ε_i(γ) of
    `epsilon_gap`, (μ_i^r + δ_i) / (μ_i^c − δ_i) = (μ_1^r − ε_i) / (μ_1^c + ε_i), between ρ_i and
    ρ*.

    Example:
        >>> from bts_jax import Bernoulli
        >>> bandit = Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75])
        >>> delta_gap(bandit, 0.5).tolist()  # 0.5 · 0.75 · 1 / (2 + 1)
        [0.0, 0.125]
    """
    _check_gamma(gamma)
    arms = _arms(bandit)
    return gamma * arms.cost * arms.gap / (arms.best + 1)


def epsilon_gap(bandit: Bandit, gamma: ArrayLike) -> Any:
    """Returns ε_i(γ) = (1 − γ) μ_1^c Δ_i / (ρ_i + 1). [K]

    If the best arm's estimates err by this much, its ratio falls to that of arm i with the error
    δ_i(γ) of `delta_gap`.

    Example:
        >>> from bts_jax import Bernoulli
        >>> bandit = Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75])
        >>> epsilon_gap(bandit, 0.5).tolist()  # 0.5 · 0.25 · 1 / (1 + 1)
        [0.0, 0.0625]
    """
    _check_gamma(gamma)
    arms = _arms(bandit)
    return (1 - gamma) * arms.best_cost * arms.gap / (arms.ratio + 1)


def bts_constant(bandit: Bandit, gamma: ArrayLike = 0.5**0.5) -> Any:
    """Returns the factor of ln B in the paper's bound on the regret of BTS: Σ_i 2 (ρ* + 1)² / (γ²
    μ_i^c Δ_i) (Theorem 1).

    Theorem 1 holds with this factor: see `bts_bound`. The remark after the theorem compares the
    factor with `ucb_bv1_constant` at γ = 1/√2, the default.

    Example:
        >>> from bts_jax import Bernoulli
        >>> bandit = Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75])
        >>> round(float(bts_constant(bandit)), 3)  # 2 · 3² / (½ · 0.75 · 1)
        48.0
    """
    _check_gamma(gamma)
    arms = _arms(bandit, lone=True)
    return arms.over_others(2 * (arms.best + 1) ** 2 / (gamma**2 * arms.cost * arms.safe_gap))


def ucb_bv1_constant(bandit: Bandit) -> Any:
    """Returns a lower limit of the factor of ln B in the bound on the regret of UCB-BV1.

    The formula is in the paper's remark, after Ding et al. (2013). With m = min_j μ_j^c and a_i =
    (2 + 2/m + Δ_i) / (Δ_i m), it is ρ* Σ_i a_i² + Σ_i max{μ_1^r − μ_i^r, 0} a_i.

    This is the paper's formula as a number. We have not checked the proof behind it. It is a factor
    in an upper bound, so it says little about the performance of UCB-BV1. The paper gives no
    formula for UCB-BV2.

    Example:
        >>> from bts_jax import Bernoulli
        >>> bandit = Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75])
        >>> float(ucb_bv1_constant(bandit))  # a = (2 + 8 + 1) / 0.25, and 2 a²
        3872.0
    """
    arms = _arms(bandit, lone=True)
    least = arms.cost.min(-1, keepdims=True)
    each = (2 + 2 / least + arms.gap) / (arms.safe_gap * least)
    return arms.over_others(
        arms.best * each**2 + arms.xp.maximum(arms.best_reward - arms.reward, 0) * each
    )


def kl(p: ArrayLike, q: ArrayLike) -> Any:
    """Returns the relative entropy of two Bernoulli trials, p ln(p/q) + (1−p) ln((1−p)/(1−q)).

    It is infinite where q excludes an outcome that p allows.

    Example:
        >>> round(float(kl(0.5, 0.25)), 4)
        0.1438
    """
    xp: Any = np if checks.is_concrete((p, q)) else jnp
    if xp is np:
        for name, value in (("p", p), ("q", q)):
            value = checks.numbers(name, value, "give probabilities")
            checks.require(
                name, value, (value >= 0) & (value <= 1), "give probabilities, numbers in [0, 1]"
            )
    one, other = (xp.asarray(x, np.float64 if xp is np else None) for x in (p, q))
    return _part(xp, one, other - one) + _part(xp, 1 - one, one - other)


def _part(xp: Any, p: Any, more: Any) -> Any:
    """Returns p ln(p/q) for q = p + more, with 0 ln(0/q) = 0.

    It is computed from the difference `more`. The first-order terms in kl's sum then cancel
    exactly, and kl is accurate for p close to q. Values that `where` does not select are kept
    finite, because gradients would be NaN otherwise.
    """
    change = more / xp.where(p > 0, p, 1)
    excluded = (p > 0) & (change <= -1)
    return xp.where(excluded, xp.inf, -p * xp.log1p(xp.where(excluded | (p <= 0), 0, change)))


def least_divergence(bandit: Bandit) -> Any:
    """Returns K_i = min{kl(μ_i^r, x) + kl(μ_i^c, y) : x/y ≥ ρ*}. [K]

    It measures how hard it is to distinguish arm i from an arm that is as good as the best.

    The minimum lies on x = ρ* y, where the derivative vanishes:

        2ρ* y² − b y + μ_i^r + μ_i^c = 0,  b = 1 + ρ* + μ_i^r + ρ* μ_i^c.

    The smaller of the two roots has both x and y in [0, 1]. The discriminant b² − 8ρ*(μ_i^r +
    μ_i^c) is computed without cancellation, as

        (1 + μ_i^r − ρ*(1 + μ_i^c))² + 4ρ*(1 − μ_i^r)(1 − μ_i^c).

    Example:
        >>> from bts_jax import Bernoulli
        >>> bandit = Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75])
        >>> round(float(least_divergence(bandit)[1]), 3)
        0.251
    """
    arms = _arms(bandit)
    xp, best = arms.xp, arms.best
    left, right = 1 + arms.reward, best * (1 + arms.cost)  # b = left + right
    square = (left - right) ** 2 + 4 * best * (1 - arms.reward) * (1 - arms.cost)
    # Avoids the gradient of a root at 0.
    root = xp.sqrt(xp.where(arms.is_best, 1, xp.maximum(square, 1e-30)))
    # y = (b − √…)/4ρ*, without cancellation. For the best arm y is its cost.
    cost = xp.where(arms.is_best, arms.cost, 2 * (arms.reward + arms.cost) / (left + right + root))
    reward = xp.where(arms.is_best, arms.reward, xp.minimum(best * cost, 1))
    return kl(arms.reward, reward) + kl(arms.cost, xp.minimum(cost, 1))


def lower_bound_slope(bandit: Bandit) -> Any:
    """Returns Σ_i μ_i^c Δ_i / K_i, with K_i of `least_divergence`: the smallest asymptotic slope of
    regret against ln B.

    For any policy whose regret grows slower than every power of B on all Bernoulli bandits, liminf
    E[T_i] / ln B ≥ 1/K_i, and so liminf Regret / ln B is at least this slope. (This is consistent
    with Watanabe et al. 2017. The paper states only the order, and we give no proof.) It is a
    slope: slope × ln B is not a lower bound on the regret at any finite budget, and good policies
    are often below it.

    Arms of other families are treated as Bernoulli arms with the same means. This is right for
    policies that see feedback through Bernoulli trials, as BTS does. Other policies may learn more
    from the same pull and have a smaller slope.

    Example:
        >>> from bts_jax import Bernoulli
        >>> bandit = Bernoulli(reward=[0.5, 0.75], cost=[0.25, 0.75])
        >>> round(float(lower_bound_slope(bandit)), 2)  # 0.75 · 1 / 0.251
        2.99
    """
    arms = _arms(bandit, lone=True)
    divergence = arms.xp.where(arms.is_best, 1, least_divergence(bandit))
    return arms.over_others(arms.cost * arms.gap / divergence)


class Bound(NamedTuple):
    """A bound on BTS at one budget, in float64. The terms of the best arm are infinite, because its
    pulls are not bounded.
    """

    gamma: np.ndarray  # [K] the γ of each arm's bound
    leading: float  # Theorem 1's leading term: Σ_i 2 ln B (ρ* + 1)² / (γ² μ_i^c Δ_i)
    logarithmic: np.ndarray  # [K] Step 1: 2 ln B / δ_i²
    concentration: np.ndarray  # [K] Step 2: 35 / (δ_i² min_j μ_j^c), or as repaired
    exploration: np.ndarray  # [K] Step 3: Σ_k E[1/p^r] E[1/p^c] − 1
    pulls: np.ndarray  # [K] the bound on E[T_i]: the sum of 1 and these three terms
    regret: float  # the bound: Σ_i μ_i^c Δ_i · pulls_i; for general arms plus 2ρ* (Lemma 2)


PROOFS = ("paper", "repaired")


def bts_bound(
    bandit: Bandit, budget: float, gamma: float | None = None, *, proof: str = "paper"
) -> Bound:
    """Returns the bound on the expected pulls and the regret of BTS that the paper's proof gives
    before O(·) is taken.

    E[T_i] ≤ 1 + 2 ln B / δ_i² + 35 / (δ_i² m) + Σ_{k≥0} (E[1/p^r_{i,k}] E[1/p^c_{i,k}] − 1),
    m = min_j μ_j^c,

    with 70 in place of 35 unless arms are Bernoulli and the budget is whole. Here p^r_{i,k} and
    p^c_{i,k} are the probabilities that the best arm, pulled k times, draws a reward above μ_1^r −
    ε_i and a cost below μ_1^c + ε_i. In the paper, Φ_i(γ) stands for the sum.

    The bound is proved, but not exactly as in the paper. The terms follow one by one. H is the
    history before round t, n is the number of pulls of arm i in H, S_l is the number of successes
    in the first l pulls of arm i, and L = 2 ln B / δ².

    **1 + 2 ln B / δ²** (Step 1) is proved in the paper. It counts the first ⌈L⌉ pulls of arm i.

    **35 / (δ² m)** (Step 2) counts later pulls of arm i at a draw θ_i above (μ_i^r + δ) / (μ_i^c −
    δ). The paper applies Hoeffding's inequality given n = l and B_t > 0. But n and B_t depend on
    the outcomes that the inequality is about. (The result for rewards also names the event Ā_i^r
    where Ē_i^r is meant.) A repair: at such a pull one of four events holds.

    - S_n^r > n (μ_i^r + δ/2), or S_n^c < n (μ_i^c − δ/2). Arm i is pulled at most once with n = l,
      for any budget. So the expected number of such pulls is at most Σ_{l ≥ L} P{S_l > l (μ + δ/2)}
      ≤ Σ_{l ≥ L} e^(−lδ²/2) ≤ 1 / (B (1 − e^(−δ²/2))) for rewards, and the same for costs.
    - θ_i^r > S_n^r/n + δ/2, or θ_i^c < S_n^c/n − δ/2. Given H, by Fact 2 and Hoeffding's inequality
      for n + 1 trials, each has a probability of at most e^(−(n+1)δ²/2) ≤ 1/B, because n ≥ L. The
      event B_t > 0 is part of H. So over all rounds there are at most (2/B) Σ_t P{B_t > 0} ≤ 2 (B +
      s) / (B m) of them, with s = 0 for Bernoulli arms and whole budgets, and s = 1 otherwise.

    The sum of both is 2 / (B (1 − e^(−δ²/2))) + 2 (B + s) / (B m). This is `concentration` with
    `proof="repaired"`. It is at most 4.3 / (δ² m), and for s = 1 at most 5 / (δ² m). So 35 and 70
    are valid, and generous.

    **The sum** (Step 3) counts pulls of arm i at a smaller θ_i. Step A bounds their probability
    given H, and is right. Step C adds expectations given B_t > 0. The condition differs from round
    to round, so these expectations cannot be combined into one. A repair: keep B_t > 0 inside the
    expectation. It is part of H, as is p_{i,t}, and so

        Σ_t P{I_t = i, E_i(t), B_t > 0} ≤ Σ_t E[1{B_t > 0} (1/p_{i,t} − 1) P{I_t = 1 | H}]
                                        = E Σ_t 1{I_t = 1, B_t > 0} (1/p_{i,t} − 1).

    The best arm has its (k+1)-th pull at most once, and p_{i,t} then depends only on its first k
    outcomes: Σ_k (E[1/p] − 1). The result is the paper's. The inequality E[1/p] ≤ E[1/p^r] E[1/p^c]
    needs rewards that are independent of costs. For dependent arms, as `Correlated` and `Empirical`
    may be, the sum is only evaluated. It is computed numerically, to a relative 1e-6, without the
    paper's Θ(·) estimates. For ε_i below 3e-4 it is not computed, and the result is infinite.

    **The regret** follows by Lemma 2, which is proved in the paper.

    Args:
        bandit: one bandit with a unique best arm.
        budget: a number above e, as the proof requires.
        gamma: a number in (0, 1); or None for the γ that minimizes each arm's bound, to about three
            digits of the bound. The bound on E[T_i] holds for every γ, so each arm may have its
            own.
        proof: "paper", for 35 and 70; or "repaired", for the smaller term above. Both are valid.

    Example:
        >>> bandit = Bernoulli(reward=[0.8, 0.2], cost=[0.4, 0.6])
        >>> bound = bts_bound(bandit, 1000, gamma=0.5)
        >>> [f"{term[1]:.4g}" for term in (bound.logarithmic, bound.concentration,
        ...     bound.exploration)]
        ['497.4', '3150', '19.47']
        >>> # 2 / (1000 · 0.0138) + 2 / 0.4
        >>> f"{bts_bound(bandit, 1000, gamma=0.5, proof='repaired').concentration[1]:.4g}"
        '5.145'
    """
    if not checks.is_concrete((bandit, budget, gamma)):
        raise ValueError(
            "bts_bound was given values that are not known yet (under jit, vmap or grad): call it "
            "outside; only its leading term, bts_constant(bandit, gamma) * log(budget), works there"
        )
    if gamma is not None:
        _check_gamma(gamma)
    amount = checks.numbers("budget", budget, "give one number")
    if amount.ndim or not math.e < amount < math.inf:
        raise ValueError(
            f"budget = {budget!r} is not allowed: give one finite number above e = 2.718…, where "
            "the proof holds"
        )
    arms = _arms(bandit, lone=True)
    if arms.cost.ndim != 1:
        raise ValueError(
            f"bandit has costs of shape {arms.cost.shape}, a batch of bandits: give one bandit at "
            "a time"
        )
    if proof not in PROOFS:
        raise ValueError(f"proof = {proof!r} is not known: give 'paper' or 'repaired'")
    simple = isinstance(bandit, Bernoulli) and float(amount).is_integer()
    concentrated = partial(
        _concentration, budget=float(amount), least=arms.cost.min(), simple=simple, proof=proof
    )
    # At γ = 1 and γ = 0.
    delta, epsilon = (
        arms.cost * arms.gap / (arms.best + 1),
        arms.best_cost * arms.gap / (arms.ratio + 1),
    )

    def explored(arm: int, gamma: float, **options: int) -> float:
        return _exploration(
            arms.best_reward[0], arms.best_cost[0], (1 - gamma) * epsilon[arm], **options
        )

    others = np.flatnonzero(~arms.is_best)
    chosen, exploration = (
        np.full(arms.cost.shape, np.nan if gamma is None else gamma),
        np.full(arms.cost.shape, np.inf),
    )
    for arm in others.tolist():
        if gamma is None:
            # For a larger γ the sum is not computed.
            most = 1 - min(SMALLEST_GAP / epsilon[arm], 0.5)
            chosen[arm] = _least(
                lambda g, i=arm: (
                    2 * math.log(amount) / (g * delta[i]) ** 2
                    + concentrated(g * delta[i])
                    + explored(i, g, start=16, count=6)
                ),
                most,
            )
        exploration[arm] = explored(arm, chosen[arm])
    delta = np.where(arms.is_best, np.nan, delta * chosen)
    logarithmic, concentration = (
        np.where(arms.is_best, np.inf, term)
        for term in (2 * math.log(amount) / delta**2, concentrated(delta))
    )
    pulls = 1 + logarithmic + concentration + exploration
    loss = (arms.cost * arms.gap)[others]
    return Bound(
        gamma=chosen,
        leading=float(loss @ logarithmic[others]),
        logarithmic=logarithmic,
        concentration=concentration,
        exploration=exploration,
        pulls=pulls,
        regret=float(loss @ pulls[others] + (0 if simple else 2 * arms.best[0])),
    )


def _concentration(delta: Any, *, budget: float, least: float, simple: bool, proof: str) -> Any:
    """Returns Step 2's term for a δ-gap and a smallest expected cost. `simple`: Bernoulli arms and
    a whole budget.
    """
    if proof == "paper":
        return (35 if simple else 70) / (delta**2 * least)
    return -2 / (budget * np.expm1(-(delta**2) / 2)) + 2 * (1 if simple else 1 + 1 / budget) / least


def _least(function: Any, high: float) -> float:
    """Returns the minimizer of a unimodal function on (0, high), to about 0.002."""
    from scipy.optimize import minimize_scalar  # imported here to keep `import bts_jax` fast

    found: Any = minimize_scalar(
        function, bounds=(0.0, high), method="bounded", options={"xatol": 0.002}
    )
    return float(found.x)


# The sum does not depend on the budget: a curve over budgets uses it several times.
@lru_cache(10_000)
def _exploration(
    reward: float, cost: float, epsilon: float, start: int = 64, count: int = 16
) -> float:
    """Returns Σ_{k≥0} (E[1/p^r] E[1/p^c] − 1) for a best arm with these means, to a relative 1e-6.

    The terms are smooth in k. From `start` on, the sum over each interval from k to 2k is computed
    from `count` terms.
    """
    if epsilon < SMALLEST_GAP:
        return math.inf

    def term(k: int) -> float:
        # A cost below z is a "1 − cost" above 1 − z, so one function is used for both.
        r, c = _excess(k, reward, reward - epsilon), _excess(k, 1 - cost, 1 - cost - epsilon)
        return r + c + r * c

    total = sum(term(k) for k in range(start))
    while True:
        nodes, weights = _stretch(start, count)
        part = sum(w * term(k) for k, w in zip(nodes, weights, strict=True))
        total, start = total + part, 2 * start
        if part < 1e-9 * total:
            return total


def _stretch(start: int, count: int) -> tuple[list[int], np.ndarray]:
    """Returns terms and weights that sum any polynomial in k of degree below `count` exactly over
    start ≤ k < 2 start.
    """
    place = np.cos(np.pi * (np.arange(count) + 0.5) / count)  # Chebyshev nodes in (−1, 1)
    nodes = np.unique(np.round(start * (1.5 + place / 2) - 0.5).astype(int))

    def scaled(k: np.ndarray) -> np.ndarray:
        return (k + 0.5 - 1.5 * start) / (start / 2)

    if start <= 4096:
        moments = np.polynomial.legendre.legvander(
            scaled(np.arange(start, 2 * start)), len(nodes) - 1
        ).sum(0)
    else:  # the sum equals an integral up to start⁻²
        moments = np.zeros(len(nodes))
        moments[0] = start
    vander = np.polynomial.legendre.legvander(scaled(nodes), len(nodes) - 1)
    return nodes.tolist(), np.linalg.solve(vander.T, moments)


def _excess(k: int, mean: float, level: float) -> float:
    """Returns E[1/p] − 1 for p = P{Beta(s+1, k−s+1) > level} and s ~ Binomial(k, mean), with level
    < mean.

    By Fact 2 of the appendix, p is F(s), the distribution function of Binomial(k+1, level). So this
    is the sum over s of f(s) (1 − F(s)) / F(s). It is computed with logarithms, because f and F may
    both be far below the smallest float64.
    """
    if level <= 0:
        return 0.0
    # Below `level` k the terms decrease at least as fast as powers of the odds ratio, and F is soon
    # negligible. Far above `mean` k all terms are negligible.
    odds = math.log(mean * (1 - level) / (level * (1 - mean))) if mean < 1 else math.inf
    reach = max(40 / odds, 9 * math.sqrt(k * level * (1 - level)))
    low = max(0, math.floor(level * k - reach) - 2)
    high = min(k, math.ceil(mean * k + 9 * math.sqrt(k * mean * (1 - mean))) + 30)
    s = np.arange(low, high + 1)
    weight, mass = _log_binomial(k, mean, s), _log_binomial(k + 1, level, np.arange(low, high + 2))
    below, above = mass[:-1].copy(), mass[1:].copy()
    # The terms outside the window, as a geometric series.
    if low > 0:
        below[0] -= math.log1p(-min(low * (1 - level) / ((k + 2 - low) * level), 0.999999))
    if high < k:
        above[-1] -= math.log1p(-min((k - high) * level / ((high + 2) * (1 - level)), 0.999999))
    below = np.logaddexp.accumulate(below)  # ln F(s)
    above = np.logaddexp.accumulate(above[::-1])[::-1]  # ln (1 − F(s))
    return float(np.exp(weight + above - below).sum())


def _log_binomial(n: int, p: float, s: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the probability of s successes in n trials, for consecutive s."""
    if p >= 1:
        return np.where(s == n, 0.0, -np.inf)
    first, last = int(s[0]), int(s[-1])
    anchor = min(max(int(n * p), first), last)
    value = math.lgamma(n + 1) - math.lgamma(anchor + 1) - math.lgamma(n - anchor + 1)
    value += anchor * math.log(p) + (n - anchor) * math.log1p(-p)
    steps = np.log((n - s[:-1]) / (s[:-1] + 1.0)) + (math.log(p) - math.log1p(-p))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    return logs - logs[anchor - first] + value


def optimal_reward(bandit: Bandit, budgets: ArrayLike, *, steps: int | None = None) -> Any:
    """Returns R*(b), the exact largest expected reward of any policy with budget b. [..., like
    budgets]

    The policy may know the arms. R* is computed by dynamic programming over the remaining budget,
    for arms whose costs are multiples of 1/`steps`:

        R*(b) = max_i E[1{c ≤ b} (r + R*(b − c))],  R*(0) = 0.

    A pull that costs more than is left earns nothing and ends the game. Reward and cost of a pull
    are independent. For Bernoulli arms and whole budgets R*(b) = ρ* b. For others ρ*(b − 1) ≤
    `oracle_reward` ≤ R*(b) ≤ ρ*(b + 1) (Lemma 1).

    The program computes R*(b) − ρ* b, a number within ρ* of 0, so that float32 is sufficient. The
    error is about 1e-5 ρ*.

    Args:
        bandit: Bernoulli or Multinomial; or a batch of them, whose axes come first in the result.
        budgets: one or several numbers, at least 0, on the lattice or off it. They must be
            concrete, because they determine the size of the table.
        steps: the number of lattice steps per unit of cost. By default it is found from the
            support. Under `jit` and `vmap`, where a Multinomial's support is not known, it must be
            given.

    Example:
        >>> bandit = Multinomial(reward_probs=[[0, 0, 1], [0, 1, 0]], cost_probs=[[0, 0, 1], [0, 1,
        ...     0]])
        >>> # arm 0 earns 1 for 1, arm 1 earns ½ for ½
        >>> optimal_reward(bandit, [0.5, 1, 1.5]).tolist()
        [0.5, 1.0, 1.5]
        >>> oracle_reward(bandit, [0.5, 1, 1.5]).tolist()
        [0.0, 1.0, 1.0]
    """
    return _planned(bandit, budgets, steps, False)[0]


def oracle_reward(bandit: Bandit, budgets: ArrayLike, *, steps: int | None = None) -> Any:
    """Returns the expected reward of always pulling the best arm with budget b, exact as
    `optimal_reward`. [..., like budgets]

    It is below `optimal_reward` by at most 2ρ* (Lemma 1), and by 0 for Bernoulli arms and whole
    budgets.
    """
    return _planned(bandit, budgets, steps, True)[0]


def optimal_arm(bandit: Bandit, budgets: ArrayLike, *, steps: int | None = None) -> Any:
    """Returns the arm to pull with this remaining budget to earn `optimal_reward`; −1 if nothing is
    left. [..., like budgets]

    With a large remaining budget it is the best arm. Near the end it may be an arm whose cost fits
    into the remaining budget. If several arms are equally good in float32, it is the one with the
    lowest number.

    Example:
        >>> bandit = Multinomial(reward_probs=[[0, 0, 1], [0.5, 0.5, 0]], cost_probs=[[0, 0, 1],
        ...     [0, 1, 0]])
        >>> bandit.ratio.tolist()  # arm 0 earns 1 for 1, arm 1 earns ¼ for ½
        [1.0, 0.5]
        >>> optimal_arm(bandit, [0, 0.5, 1]).tolist()  # nothing left; no room for arm 0; room
        [-1, 1, 0]
        >>> # what always arm 0 falls short by
        >>> (optimal_reward(bandit, 1.5) - oracle_reward(bandit, 1.5)).item()
        0.25
    """
    return _planned(bandit, budgets, steps, False)[1]


class Bracket(NamedTuple):
    """A lower and an upper bound."""

    low: Any
    high: Any


def optimal_reward_bounds(bandit: Bandit, budgets: ArrayLike, *, steps: int = 200) -> Bracket:
    """Brackets R*(b) where costs are continuous: for `Beta` arms. Each bound has the shape of
    `budgets`.

    The costs are rounded down to multiples of 1/`steps`. Every policy for the true costs can be
    imitated in this game, and earns as much: draw the part that was cut off, and stop when the true
    costs would have used up the budget. So the optimum of this game, `optimal_reward`, is an upper
    bound. With costs that are rounded up it is a lower bound, for the same reason. Rounding changes
    the optimum by about ρ* b / (2 · steps · μ^c). For large budgets the bounds of Lemma 1, ρ*(b −
    1) and ρ*(b + 1), may be closer, and are returned. The bounds are widened by 10⁻⁵ ρ*, the error
    of `optimal_reward`.

    Args:
        bandit: one `Beta` bandit.
        budgets: one or several numbers, at least 0.
        steps: the number of lattice steps per unit of cost, at least 2. The time grows with its
            square.

    Example:
        >>> from bts_jax import Beta
        >>> bandit = Beta(reward_alpha=[2, 1], reward_beta=[1, 1], cost_alpha=[1, 1], cost_beta=[1,
        ...     2])
        >>> low, high = optimal_reward_bounds(bandit, [1, 3])
        >>> bool((low < high).all()), bool((high - low < 0.2).all())
        (True, True)
    """
    from scipy.special import betainc

    if (
        not isinstance(bandit, Beta)
        or np.ndim(bandit.reward_mean) != 1
        or not checks.is_concrete(bandit)
    ):
        raise ValueError(
            f"bandit is a {type(bandit).__name__}: give one Beta bandit; where costs are on a "
            "lattice, optimal_reward is exact"
        )
    steps = checks.whole("steps", steps, 2)
    reward = np.asarray(bandit.reward_mean, np.float64)
    shapes = (
        np.asarray(shape, np.float64)[:, None] for shape in (bandit.cost_alpha, bandit.cost_beta)
    )
    cells = np.diff(betainc(*shapes, np.arange(steps + 1) / steps), axis=1)  # [K, steps]
    rewards = np.zeros((len(reward), steps + 1))
    rewards[:, 0], rewards[:, -1] = 1 - reward, reward

    def optimum(costs: np.ndarray) -> np.ndarray:
        return np.asarray(
            optimal_reward(
                Multinomial(reward_probs=rewards, cost_probs=costs), budgets, steps=steps
            )
        )

    nothing = np.zeros((len(reward), 1))
    amounts, best = (
        np.asarray(budgets, np.float64),
        float(np.max(reward / np.asarray(bandit.cost_mean, np.float64))),
    )
    low, high = optimum(np.concatenate([nothing, cells], 1)), best * (amounts + 1)
    if (cells[:, 1:].sum(1) > 1e-6).all():  # otherwise an arm would cost nothing
        high = np.minimum(high, optimum(np.concatenate([cells, nothing], 1)))
    error = 1e-5 * best
    return Bracket(np.maximum(low, best * np.maximum(amounts - 1, 0)) - error, high + error)


def _planned(
    bandit: Bandit, budgets: ArrayLike, steps: int | None, oracle: bool
) -> tuple[Any, Any]:
    """Returns the expected reward and the best arm at each budget."""
    arms = _arms(bandit)
    if not checks.is_concrete(budgets):
        raise ValueError(
            "budgets is not known yet (under jit, vmap or grad), but it determines the size of a "
            "table: close over it, as in jax.jit(lambda bandit: optimal_reward(bandit, 100))"
        )
    amounts = checks.numbers("budgets", budgets, "give numbers of at least 0")
    checks.require(
        "budgets", amounts, (amounts >= 0) & (amounts < np.inf), "give finite numbers of at least 0"
    )
    probs, steps = _lattice(bandit, steps)
    points = amounts * steps
    # A budget in float32 may differ slightly from the intended lattice point.
    nearest = np.round(points)
    fits = abs(points - nearest) <= np.maximum(1e-6, 2.0**-23 * points)
    index = np.where(fits, nearest, np.floor(points)).astype(np.int64)
    largest, count = int(index.max(initial=0)), math.prod(arms.cost.shape[:-1])
    if largest * count > LARGEST_TABLE:
        many = f" for each of {count:,} bandits" if count > 1 else ""
        raise ValueError(
            f"budgets has {amounts.max():g}, {largest:,} steps of 1/{steps}{many}, more than a "
            f"table of {LARGEST_TABLE:,} holds: give smaller budgets; ρ* b is within ρ* of the "
            "optimum"
        )
    table = jnp.vectorize(
        partial(_table, largest=largest), signature="(k),(k),(k),(o),(k,m)->(n,r),(n,r)"
    )
    allowed = arms.is_best if oracle else arms.xp.ones_like(arms.is_best)
    row = np.where(fits, 0, 1)
    excess, arm = (
        x[..., index, row]
        for x in table(allowed, arms.reward, arms.cost * arms.gap, arms.best, probs)
    )
    if arms.xp is np:
        excess, arm = np.asarray(excess, np.float64), np.asarray(arm)
    best = arms.best.reshape(arms.best.shape[:-1] + (1,) * index.ndim)
    return best * (index / steps) + excess, arm


@partial(jax.jit, static_argnames="largest")
def _table(
    allowed: jax.Array,
    reward: jax.Array,
    lost: jax.Array,
    best: jax.Array,
    probs: jax.Array,
    largest: int,
) -> tuple[jax.Array, jax.Array]:
    """Returns R*(b) − ρ* j/m at b = j/m and slightly above it, and the best arm there. -> 2 ×
    [largest+1, 2]

    `allowed`: [K], which arms may be pulled. `lost`: [K], μ_i^c Δ_i; the caller computes it,
    because float32 cannot resolve an arm that is almost as good as the best. `best`: [1], ρ*.
    `probs`: [K, m+1].

    Let D(j) be this difference. Only pulls with a positive cost change the budget. Dividing by
    their probability w_i gives

        D(j) = max_i −μ_i^c Δ_i / w_i + Σ_{c ≥ 1} P_i(c)/w_i D_i(j − c),

    where D_i(j − c) is D(j − c) for c ≤ j. For c > j it is ρ* (c − j)/m − μ_i^r, because such a
    pull earns nothing. At j = 0 the game is over if nothing is left. If a little is left, it
    continues until a pull has a positive cost. D(j − 1) is taken out of the sum, so that rounding
    errors do not accumulate.
    """
    steps = probs.shape[1] - 1
    costs = probs[:, 1:].sum(1)  # [K] w
    weight = probs[:, 1:] / costs[:, None]  # [K, m]
    jump = jnp.arange(1, steps + 1)  # [m] costs, in steps

    def pick(value: jax.Array) -> tuple[jax.Array, jax.Array]:
        value = jnp.where(allowed, value, -jnp.inf)
        return value.max(), jnp.argmax(value).astype(jnp.int32)

    def advance(last: jax.Array, j: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """`last`: [m, 2], D(j−1) … D(j−m)."""

        def one(last: jax.Array) -> tuple[jax.Array, jax.Array]:
            missed = best * (jump - j) / steps - reward[:, None]  # [K, m]
            reached = jnp.where(jump > j, missed, last)  # [K, m]
            return pick(last[0] - lost / costs + (weight * (reached - last[0])).sum(1))

        value, arm = jax.vmap(one, 1)(last)
        return jnp.concatenate([value[None], last[:-1]]), (value, arm)

    free, arm = pick(reward * probs[:, 0] / costs)
    start = jnp.stack([jnp.zeros_like(free), free])  # nothing left, a little left
    last = jnp.zeros((steps, 2)).at[0].set(start)
    _, (values, picked) = lax.scan(advance, last, jnp.arange(1, largest + 1))
    first = jnp.stack([jnp.full_like(arm, -1), arm])
    return jnp.concatenate([start[None], values]), jnp.concatenate([first[None], picked])


def _lattice(bandit: Bandit, steps: int | None) -> tuple[Any, int]:
    """Returns the probability of each cost 0, 1/m, …, 1 for each arm, and m. [..., K, m+1]"""
    steps = None if steps is None else checks.whole("steps", steps, 1)
    if isinstance(bandit, Bernoulli):
        if steps not in (None, 1):
            raise ValueError(
                f"steps = {steps} does not fit Bernoulli arms, which cost 0 or 1: leave it out"
            )
        return jnp.stack([1 - bandit.cost_mean, bandit.cost_mean], -1), 1
    if not isinstance(bandit, Multinomial):
        raise ValueError(
            f"bandit is of class {type(bandit).__name__}, but the exact optimum is only known for "
            "Bernoulli and Multinomial: pass a Multinomial with the same probabilities, if "
            "rewards and costs are independent and on a lattice; or use ρ* b, the linear optimum, "
            "which is within ρ* of it"
        )
    support = bandit.support
    if checks.is_concrete(support):
        points = np.asarray(support, np.float64)
        found = next(
            (m for m in ([steps] if steps else range(1, MOST_STEPS + 1)) if _on_lattice(points, m)),
            None,
        )
        if found is None:
            named = f"steps = {steps} does" if steps else f"steps up to {MOST_STEPS} do"
            raise ValueError(
                f"{named} not fit the support {np.unique(points)}, whose points must be multiples "
                "of 1/steps: give a support on a lattice, such as quarters"
                + (", or leave steps out" if steps else "")
            )
        steps = found
    if steps is None:
        raise ValueError(
            "steps = None, and the support is not known yet (under jit, vmap or grad): give steps, "
            "such as 4 for costs in quarters"
        )
    place = jnp.round(jnp.asarray(support) * steps)  # [..., M]
    here = place[..., None, :, None] == jnp.arange(steps + 1, dtype=place.dtype)  # [..., 1, M, m+1]
    return jnp.where(here, jnp.asarray(bandit.cost_probs)[..., None], 0).sum(-2), steps


def _on_lattice(points: np.ndarray, steps: int) -> bool:
    return bool((abs(points * steps - np.round(points * steps)) <= 2**-23 * steps).all())


class _Arms(NamedTuple):
    """Means and gaps. Those of the best arm have an axis of length 1, so that they broadcast with
    the others.
    """

    xp: Any  # NumPy, or jax.numpy under a transformation
    reward: Any  # [..., K] μ^r
    cost: Any  # [..., K] μ^c
    ratio: Any  # [..., K] ρ
    gap: Any  # [..., K] Δ
    is_best: Any  # [..., K]
    best: Any  # [..., 1] ρ*
    best_reward: Any  # [..., 1] μ_1^r
    best_cost: Any  # [..., 1] μ_1^c

    @property
    def safe_gap(self) -> Any:
        """Δ, and 1 for the best arm, as a divisor. [..., K]"""
        return self.xp.where(self.is_best, 1, self.gap)

    def over_others(self, values: Any) -> Any:
        """Returns the sum over all arms but the best."""
        return self.xp.where(self.is_best, 0, values).sum(-1)


def _arms(bandit: Bandit, lone: bool = False, any_unit: bool = False) -> _Arms:
    """Returns the means and gaps of a bandit.

    Args:
        bandit: its rewards and costs must be in [0, 1], unless `any_unit`.
        lone: whether to raise if another arm is as good as the best in float32.
        any_unit: whether other units are allowed.
    """
    checks.contract(
        "bandit",
        bandit,
        ("reward_mean", "cost_mean"),
        "Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])",
    )
    if num_resources(bandit) is not None:
        raise ValueError(
            f"bandit has {num_resources(bandit)} resources, and this theory is about one: see "
            "bts_jax.theory.lp"
        )
    reward, cost = bandit.reward_mean, bandit.cost_mean
    concrete = checks.is_concrete((reward, cost))
    if not any_unit:
        for name, scale, mean in zip(
            ("reward", "cost"), scales(bandit) or (1.0, 1.0), (reward, cost), strict=True
        ):
            if checks.is_concrete((scale, mean)) and (
                np.any(np.asarray(scale) != 1) or np.any(np.asarray(mean) > 1 + 1e-5)
            ):
                raise ValueError(
                    f"bandit has {name}s of another scale than 1, {np.max(scale):g} ({name}_mean "
                    f"up to {np.max(mean):g}), and the theory is about rewards and costs in [0, "
                    "1]: divide them and the budget by their scales, as in Means(reward_mean / "
                    "reward_scale, cost_mean / cost_scale), and multiply regrets by reward_scale"
                )
    xp: Any = np if concrete else jnp
    if concrete:
        reward, cost = np.asarray(reward, np.float64), np.asarray(cost, np.float64)
        checks.require(
            "the expected cost, cost_mean",
            cost,
            cost > 0,
            "give arms that cost something, as the paper assumes",
        )
    rho = reward / cost
    place = rho.argmax(-1)[..., None]
    is_best = xp.arange(rho.shape[-1]) == place
    best, best_reward, best_cost = (xp.take_along_axis(x, place, -1) for x in (rho, reward, cost))
    gap = best - rho
    if concrete and lone:
        ties = ((gap <= 2**-22 * best) & ~is_best).any(-1)
        checks.require(
            "the best ratio",
            best[..., 0],
            ~ties,
            "two arms have it, and the bounds divide by the gap between them: give a bandit with "
            "one best arm",
        )
    return _Arms(xp, reward, cost, rho, gap, is_best, best, best_reward, best_cost)


def _check_gamma(gamma: Any) -> None:
    if not checks.is_concrete(gamma):
        return
    remedy = "give a number between 0 and 1, both excluded, such as 0.7"
    value = checks.numbers("gamma", gamma, remedy)
    checks.require("gamma", value, (value > 0) & (value < 1), remedy)
