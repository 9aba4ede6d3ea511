"""The paper's proof as numbers: its facts, its events along a run, and the four cases of its
appendix.

`bts_jax.theory` has the bound that the proof leads to. Here are its parts, so that one can see at
which state each of them is tight or loose. Everything is NumPy in float64, for one Bernoulli bandit
with uniform priors. Arm 1 of the paper is the arm with the largest ratio, wherever it is in the
list.
"""

from typing import Any, NamedTuple

import numpy as np

from bts_jax import checks, theory
from bts_jax.bandits import Bernoulli


class Sides(NamedTuple):
    """The two sides of an equation or of an inequality, left ≤ right."""

    left: Any
    right: Any


def fact_1(n: Any, mean: Any, a: Any) -> Sides:
    """Hoeffding's inequality for n Bernoulli trials: P(S ≥ n μ + a) ≤ exp(−2a²/n).

    Example:
        >>> left, right = fact_1(100, 0.5, 10)
        >>> round(float(left), 4), round(float(right), 4)
        (0.0284, 0.1353)
    """
    least = np.ceil(np.multiply(n, mean) + a - 1e-9)  # the smallest number of successes that counts
    return Sides(_more(least - 1, n, mean), np.exp(-2 * np.square(a) / n))


def fact_2(alpha: Any, beta: Any, y: Any) -> Sides:
    """The Beta distribution by a binomial one: F^Beta_{α,β}(y) = 1 − F^B_{α+β−1,y}(α − 1), for
    whole numbers α and β.
    """
    from scipy.special import bdtr, betainc

    return Sides(
        betainc(alpha, beta, y), 1 - bdtr(np.subtract(alpha, 1), np.add(alpha, beta) - 1, y)
    )


def fact_3(n: Any, p: Any, r: Any) -> Sides:
    """One more trial makes at most r successes less likely: F^B_{n+1,p}(r) ≤ F^B_{n,p}(r)."""
    from scipy.special import bdtr

    return Sides(bdtr(r, np.add(n, 1), p), bdtr(r, n, p))


def fact_4(n: Any, p: Any, delta: Any) -> tuple[Sides, Sides, Sides]:
    """Tails of binomial distributions, the third for n > 1/δ:

    F_{n,p}(np − nδ) ≤ exp(−2nδ²),   1 − F_{n,p}(np + nδ) ≤ exp(−2nδ²),
    1 − F_{n+1,p}(np + nδ) ≤ exp(4δ − 2nδ²).
    """
    low, high = np.multiply(n, p) - np.multiply(n, delta), np.multiply(n, p) + np.multiply(n, delta)
    tail = np.exp(-2 * np.multiply(n, np.square(delta)))
    low, high = (np.floor(x + 1e-9) for x in (low, high))
    failures = np.subtract(n, low)  # or more: as likely as at most `low` successes
    return (
        Sides(_more(failures - 1, n, np.subtract(1, p)), tail),
        Sides(_more(high, n, p), tail),
        Sides(_more(high, np.add(n, 1), p), tail * np.exp(4 * np.asarray(delta))),
    )


def fact_5(j: Any, y: Any, s: Any) -> tuple[Any, Any]:
    """F^B_{j+1,y}(s), and what it is in proportion to, up to constant factors (the paper's Fact 5).

    Below y(j+1) − √((j+1) y (1−y)) that is the last term of its sum, times a factor; above, it is
    1.

    Example:
        >>> exact, order = fact_5(99, 0.5, np.array([20, 40, 60]))
        >>> # of constant order, although F goes from 10⁻¹⁰ to 1
        >>> [round(float(x), 2) for x in exact / order]
        [0.99, 0.87, 0.98]
    """
    from scipy.special import bdtr

    j, y, s = np.asarray(j), np.asarray(y, np.float64), np.asarray(s, np.float64)
    deviation = np.sqrt((j + 1) * y * (1 - y))
    below = s <= y * (j + 1) - deviation
    distance = np.where(below, y * (j + 1) - s, 1)
    return bdtr(s, j + 1, y), np.where(
        below, y * (j + 1 - s) / distance * _chance(s, j + 1, y), 1.0
    )


class Cases(NamedTuple):
    """E[1/p] after k pulls of the best arm, divided into the paper's four cases, and the paper's
    bound on each. [4] each

    The bound on case iv of rewards and on case i of costs, and those on cases ii of rewards and iii
    of costs, hold as they are. The others hold up to constant factors, which are 1 here.
    """

    exact: np.ndarray
    bound: np.ndarray


def reward_cases(k: int, mean: float, epsilon: float) -> Cases:
    """E[1/p^r] = Σ_s f_{k,μ}(s) / F^B_{k+1,y}(s) for the rewards of the best arm, with y = μ − ε.
    Their sum is E[1/p^r].

    Args:
        k: the number of pulls of the best arm, at least 1.
        mean: its expected reward μ.
        epsilon: ε_i of `theory.epsilon_gap`, with 0 < ε < μ < 1.

    Example:
        >>> exact, bound = reward_cases(200, 0.6, 0.2)
        >>> # nearly all of it is case iv: p is near 1
        >>> bool(exact.sum() < 1.001), exact.argmax().item()
        (True, 3)
    """
    from scipy.special import bdtr

    y = _check_case(k, mean, epsilon, mean - epsilon)
    s = np.arange(k + 1)
    terms = _chance(s, k, mean) / bdtr(s, k + 1, y)
    low, high = np.floor(y * k), np.ceil(y * k)
    middle = np.floor(mean * k - epsilon / 2 * k)
    case = np.select([s <= low - 1, s <= high, s <= middle], [0, 1, 2], 3)
    odds = mean * (1 - y) / (y * (1 - mean))
    rare = np.exp(-k * float(theory.kl(y, mean)))
    beyond = 1 + 1 / np.expm1(epsilon**2 * k**2 / (2 * (k + 1)))
    bound = np.array(
        [
            3 * odds * rare / (y * (1 - y) * (k + 1) * (odds - 1) ** 2)
            + np.exp(-2 * epsilon**2 * k),
            (1 + odds) / (1 - y) * rare,
            np.exp(-k * epsilon**2 / 2),
            beyond,
        ]
    )
    return Cases(np.bincount(case, terms, 4), bound)


def cost_cases(k: int, mean: float, epsilon: float) -> Cases:
    """E[1/p^c] = Σ_s f_{k,μ}(s) / (1 − F^B_{k+1,z}(s)) for the costs of the best arm, with z = μ +
    ε. Their sum is E[1/p^c].

    Args:
        k, mean, epsilon: as for `reward_cases`, with 0 < μ < μ + ε < 1.

    Example:
        >>> exact, bound = cost_cases(200, 0.3, 0.2)
        >>> bool(exact.sum() < 1.001), exact.argmax().item()  # nearly all of it is case i
        (True, 0)
    """
    from scipy.special import bdtrc

    z = _check_case(k, mean, epsilon, mean + epsilon)
    s = np.arange(k + 1)
    terms = _chance(s, k, mean) / bdtrc(s, k + 1, z)
    middle, low = np.floor(mean * k + epsilon / 2 * k), np.floor(z * k)
    case = np.select([s <= middle, s <= low - 1, s <= low], [0, 1, 2], 3)
    odds = mean * (1 - z) / (z * (1 - mean))
    rare = np.exp(-k * float(theory.kl(z, mean)))
    beyond = 1 + 1 / np.expm1(epsilon**2 * k**2 / (2 * (k + 1)))
    bound = np.array(
        [
            beyond,
            np.exp(-k * epsilon**2 / 2),
            rare / (z * odds),
            2 * rare / (z * (1 - z) * (1 - odds) ** 2) + np.exp(-2 * epsilon**2 * k),
        ]
    )
    return Cases(np.bincount(case, terms, 4), bound)


class Events(NamedTuple):
    """The events of the proof, and the probabilities of others given the history, in each of N
    rounds. [N, K] each

    The column of the best arm is NaN (or False), because the events are about the other arms.
    """

    enough: np.ndarray  # bool: n_i ≥ ⌈L_i⌉ with L_i = 2 ln B / δ_i², so that arm i counts in Step 2
    reward_near: np.ndarray  # bool: A_i^r, the average reward is at most μ_i^r + δ_i / 2
    cost_near: np.ndarray  # bool: A_i^c, the average cost is at least μ_i^c − δ_i / 2
    reward_beyond: np.ndarray  # P(θ_i^r > μ_i^r + δ_i), the probability that E_i^r does not hold
    cost_below: np.ndarray  # P(θ_i^c < μ_i^c − δ_i), the probability that E_i^c does not hold
    best_reward: np.ndarray  # p_i^r = P(θ_1^r ≥ μ_1^r − ε_i)
    best_cost: np.ndarray  # p_i^c = P(θ_1^c ≤ μ_1^c + ε_i)


def events(bandit: Bernoulli, trace: Any, *, gamma: float = 0.5**0.5) -> Events:
    """The events of the paper's Steps 2 and 3 along a run, and their probabilities before each of
    its decisions.

    The probabilities are those of the posteriors of BTS with the run's history, whichever policy
    has made it.

    Args:
        bandit: the bandit that was played.
        trace: one run on it, as `bts_jax.trace` returns it.
        gamma: γ, which divides the gap between the arms.

    Example:
        >>> import jax
        >>> from bts_jax import BTS, trace
        >>> bandit = Bernoulli(reward=[0.8, 0.3], cost=[0.4, 0.6])
        >>> found = events(bandit, trace(BTS(), bandit, 200, jax.random.key(0)))
        >>> # p^r grows as the best arm becomes known
        >>> [round(float(x), 2) for x in found.best_reward[[0, 300], 1]]
        [0.32, 1.0]
    """
    from scipy.special import betainc

    if not isinstance(bandit, Bernoulli) or np.ndim(bandit.cost_mean) != 1:
        raise ValueError(
            f"bandit is a {type(bandit).__name__} with costs of shape "
            f"{np.shape(bandit.cost_mean)}: give one Bernoulli bandit with one resource"
        )
    arm, reward, cost = (np.asarray(part) for part in (trace.arm, trace.reward, trace.cost))
    if arm.ndim != 1:
        raise ValueError(f"trace has arms of shape {arm.shape}: give the trace of one run")
    played = np.asarray(trace.played)
    delta, epsilon = (
        np.asarray(gap(bandit, gamma), np.float64) for gap in (theory.delta_gap, theory.epsilon_gap)
    )
    means = np.asarray(bandit.reward_mean, np.float64), np.asarray(bandit.cost_mean, np.float64)
    best = int((means[0] / means[1]).argmax())
    others = np.arange(len(delta)) != best
    budget = float(np.asarray(trace.remaining)[0] + cost[0])
    pulls = (arm[:, None] == np.arange(len(delta))) & played[:, None]

    def before(each: np.ndarray) -> np.ndarray:
        """Sums over all earlier rounds. [N, K]"""
        return np.cumsum(each, 0) - each

    n, won, paid = (
        before(pulls * part) for part in (np.ones((len(arm), 1)), reward[:, None], cost[:, None])
    )
    known = np.maximum(n, 1)
    rows = {
        "reward_beyond": 1 - betainc(won + 1, n - won + 1, np.minimum(means[0] + delta, 1)),
        "cost_below": betainc(paid + 1, n - paid + 1, np.maximum(means[1] - delta, 0)),
        "best_reward": 1
        - betainc(
            won[:, [best]] + 1, (n - won)[:, [best]] + 1, np.maximum(means[0][best] - epsilon, 0)
        ),
        "best_cost": betainc(
            paid[:, [best]] + 1, (n - paid)[:, [best]] + 1, np.minimum(means[1][best] + epsilon, 1)
        ),
    }
    least = np.ceil(2 * np.log(budget) / np.where(others, delta, 1) ** 2)
    return Events(
        enough=(n >= least) & others,
        reward_near=(won / known <= means[0] + delta / 2) & others,
        cost_near=(np.where(n > 0, paid / known, 1) >= means[1] - delta / 2) & others,
        **{name: np.where(others, row, np.nan) for name, row in rows.items()},
    )


def _more(s: Any, n: Any, p: Any) -> Any:
    """The probability of more than s successes in n trials, for every whole number s."""
    from scipy.special import bdtrc

    return np.where(np.less(s, 0), 1.0, bdtrc(np.clip(s, 0, n), n, p))


def _chance(s: Any, n: Any, p: Any) -> Any:
    """The probability of s successes in n trials."""
    from scipy.special import gammaln, xlog1py, xlogy

    return np.exp(
        gammaln(n + 1) - gammaln(s + 1) - gammaln(n - s + 1) + xlogy(s, p) + xlog1py(n - s, -p)
    )


def _check_case(k: int, mean: float, epsilon: float, level: float) -> float:
    checks.whole("k", k, 1)
    for name, value in (("mean", mean), ("epsilon", epsilon), ("mean and epsilon together", level)):
        number = checks.numbers(name, value, "give a number between 0 and 1")
        checks.require(
            name,
            number,
            (number > 0) & (number < 1),
            "give numbers for which it is between 0 and 1",
        )
    return float(level)
