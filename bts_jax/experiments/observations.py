"""Tests the paper's observations: what its Section 5 says about Figure 1, with verdicts.

Each observation is judged in every panel (observation 2: in every family of arms). It holds, is
contradicted or is undecided.

**Samples.** If a panel has one instance, the sample is the runs on it, and the verdict is about
this instance alone. If it has several, the sample is the instances, and the verdict is about
instances like these. Policies are compared with common random numbers, so the comparisons of
observations 1 and 3 are paired. Observation 2 compares different instances, unpaired.

**Criterion.** A claim combines several comparisons: it says that at least k of m margins are above
zero. For "BTS has less regret than every rival" a margin is the regret of a rival − the regret of
BTS, and k = m. With α = `ALPHA`:

- The claim *holds* if at least k of the lower limits are above zero, each with one-sided error rate
  α / (m − k + 1).
- The claim *is contradicted* if at least m − k + 1 of the upper limits are below zero, each with
  one-sided error rate α / k.

If the limits are exact, each verdict is wrong with probability at most α, however the comparisons
depend on each other. Suppose that the claim is false. Then at least m − k + 1 margins are zero or
negative. For "holds", the lower limit of one of these must be above zero, and the Bonferroni
inequality bounds the probability of this by α. For "is contradicted" swap the roles. If k = m,
"holds" needs no adjustment (an intersection-union test), and "is contradicted" has the usual
Bonferroni adjustment for m comparisons. For other k this is the partial conjunction test of
Benjamini and Heller (Biometrics, 2008).

**Several panels.** Each panel has a verdict of its own, without an adjustment for the number of
panels. A panel's verdict is wrong with probability at most 2α. So for one observation in four
panels, at least one verdict is wrong with probability at most 8α. An observation as a whole holds
only if it holds in every panel; this is wrong with probability at most α.

**Limits.** A mean has Student's limits, a difference of two independent means has Welch's. Both are
widened as if the sample had one more lost run, of the policy for which this shifts the limit
outwards (see `bts_jax.intervals`). The logarithm of a ratio of standard deviations has Student's
limits, which are not widened. On a single instance its standard error is the jackknife's (Miller,
1968), which needs no normal distribution. With several instances each has one such logarithm, and
the instances are the sample.

**Measured error rates.** The limits are exact or nearly so for normal values, and approximate for
skewed ones. The numbers below are from simulations, with samples of 30 and of 500 runs, and without
the widening for a lost run: with it, verdicts on means are wrong less often.

- Observation 1, where BTS ties with all of four rivals: it "is contradicted" in 2.3% and 2.4% of
  the panels if values are normal (8% without the adjustment), in 1.1% and 2.0% if all are lognormal
  with σ = 1, in 4.1% and 3.5% if only the rivals are, and in 9.3% and 3.7% if each rival, but not
  BTS, loses a tenth of its runs. With 5 instances these are 2.3%, 0.8%, 3.0% and 4.0%.
- The verdicts on standard deviations, where ties make them wrong most often: 2.8% and 2.4% if
  values are normal, 7.1% and 3.4% if they are lognormal with σ = 1.
- A single ratio of two standard deviations lies beyond one of its limits, with a nominal rate of
  2.5%, in 2.6% and 2.6% of the samples if values are normal, in 5.8% and 3.5% if they are lognormal
  with σ = 1, and in 5.3% and 2.6% if one policy loses a tenth of its runs. Bootstrap limits
  (percentile and bootstrap-t) were not better on the whole.
- Samples from runs of `bts-jax figure1` with Bernoulli arms and budget 2,000 (4,000 runs with 10
  arms, 1,500 with 100), nominal rate 2.5%: at most 6.1% and 4.0% for a difference of means, at most
  7.8% and 7.2% for a ratio of standard deviations. Runs with 100 multinomial arms were not
  measured.
- **Rare runs are not covered.** With ten multinomial arms, BTS loses 7 of 4,000 runs, and these
  raise its standard deviation from 115 to 148. Of the samples of 30, 95% contain none of them; of
  the samples of 500, 42%. The ratio of the standard deviations of BTS and of another policy lies
  beyond its limits in up to 66% and 47% of the samples, and a difference of means in up to 16% and
  15%, which is why limits of means are widened. Verdicts on standard deviations do not account for
  such rare runs.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bts_jax.contract import ratio
from bts_jax.intervals import interval, student
from bts_jax.statistics import by_kind, measured, ranking
from bts_jax.text import counted, table

if TYPE_CHECKING:
    from xarray import Dataset

ALPHA = 0.025  # probability of a wrong "holds", and of a wrong "is contradicted", in one panel
MUCH = 2.0  # how many times larger is "much larger"
WORDS = ("holds", "is undecided", "is contradicted")
Regrets = Mapping[str, np.ndarray]  # the regret of each policy at one budget, [bandit, seed]


class Verdict(NamedTuple):
    """Whether one of the paper's observations holds in the data."""

    claim: str
    verdict: str
    evidence: list[str]


class Margin(NamedTuple):
    """By how much a comparison favours a claim: an estimate, and the two one-sided limits that
    decide.
    """

    estimate: float
    low: float
    high: float


class Claim(NamedTuple):
    """At least `needed` of `of` margins are above zero."""

    needed: int
    of: int

    @property
    def rates(self) -> tuple[float, float]:
        """The one-sided error rates of each lower and each upper limit."""
        return ALPHA / (self.of - self.needed + 1), ALPHA / self.needed

    def margin(self, estimate: float, error: float, freedom: float) -> Margin:
        """The limits of an estimate with this standard error and these degrees of freedom; NaN if
        there is no error.
        """
        if not np.isfinite(error) or not np.isfinite(estimate):
            return Margin(float(estimate), np.nan, np.nan)
        low, high = (student(1 - 2 * rate, max(1, int(freedom))) * error for rate in self.rates)
        return Margin(float(estimate), float(estimate - low), float(estimate + high))

    def difference(self, values: np.ndarray, policy_excess: float, rival_excess: float) -> Margin:
        """The mean of paired differences, with limits widened as if either side had one more lost
        run. [n]
        """
        mean = values.mean()
        low, high = (
            interval(values, level=1 - 2 * rate, unseen=(mean - policy_excess, mean + rival_excess))
            for rate in self.rates
        )
        return Margin(float(mean), float(low.low), float(high.high))

    def verdict(self, margins: Mapping[str, Margin]) -> str:
        """One of `WORDS`."""
        if sum(margin.low > 0 for margin in margins.values()) >= self.needed:
            return WORDS[0]
        contrary = sum(margin.high < 0 for margin in margins.values())
        return WORDS[2] if contrary >= self.of - self.needed + 1 else WORDS[1]

    def criterion(self, where: str, threshold: str) -> list[str]:
        """Describes the criterion."""
        every = (
            f"all {self.of}" if self.needed == self.of else f"at least {self.needed} of {self.of}"
        )
        some = self.of - self.needed + 1
        some = (
            f"any of {self.of} upper limits is"
            if some == 1
            else f"at least {some} of {self.of} upper limits are"
        )
        low, high = (f"{100 * (1 - rate):.5g}%" for rate in self.rates)
        return [
            f"criterion: holds in a {where} if {every} lower limits are above {threshold}, each "
            f"one-sided at level {low};",
            f"  is contradicted if {some} below {threshold}, each one-sided at level {high}",
        ]


def observations(dataset: "Dataset") -> list[Verdict]:
    """The paper's three observations, the first in two parts, with verdicts computed from the
    Dataset at its largest budget.

    The docstring of the module says how the verdicts are reached and how often they are wrong.
    """
    measured(dataset)
    missing = {"bts", "epsilon-first"} - set(dataset.policy.values.tolist())
    if missing or dataset.sizes["policy"] < 3:
        raise ValueError(
            f"dataset has the policies {', '.join(dataset.policy.values)}: give bts, epsilon-first "
            "and others"
        )
    if dataset.sizes["seed"] < 3:
        raise ValueError(
            f"dataset has {counted(dataset.sizes['seed'], 'run')} of each kind, too few for the "
            "limits of a standard deviation: give at least 3"
        )
    panels = by_kind(dataset.isel(budget=[-1]))
    return [_lowest(panels), _stable(panels), _more_arms(dataset), _unstable(panels)]


def error_rates(panels: int, runs: int) -> str:
    """Describes the error rates of the verdicts."""
    rate, any_rate = f"{ALPHA:.1%}", f"{min(1, 2 * ALPHA * panels):.0%}"
    return "\n".join(
        [
            "How far the verdicts can be trusted",
            f'  In a panel where a claim is false, its verdict is "holds" with probability at most '
            f"{rate}. In a panel where",
            f'  the contrary is false, it is "is contradicted" with probability at most {rate}. If '
            f"values are skewed, these",
            '  rates are approximate: help("bts_jax.experiments.observations") has measured ones.',
            "  There is no adjustment for the number of panels: for each observation, at least one "
            "of the verdicts in",
            f"  {panels} panels is wrong with probability at most {any_rate}. If an observation "
            "holds in every panel, this is",
            f"  wrong with probability at most {rate}.",
            f"  Runs that are rarer than one in {runs:,} seldom show in {runs:,} runs. A few of "
            "them with a very large regret can",
            "  dominate a standard deviation. The verdicts on standard deviations do not account "
            "for such rare runs.",
        ]
    )


def failures(dataset: "Dataset", policy: str = "epsilon-first") -> "Dataset":
    """Finds the runs in which a policy settled on a wrong arm: for ε-first, where it "cannot
    identify the optimal arm".

    A run has settled on the arm that it pulled most.

    Returns:
        A Dataset over (bandit, budget): `runs`, the number of these runs; `mean_wrong` and
        `mean_right`, the mean regret of these and of the other runs, NaN where there are none;
        `explained`, the share of the variance of regret that this difference explains.
    """
    import xarray as xr

    regret = measured(dataset).sel(policy=policy)
    if np.isnan(regret).any():
        raise ValueError(f"dataset lacks some runs of {policy}: finish the sweep first")
    ratios = ratio(dataset.reward_mean.values, dataset.cost_mean.values, np)  # [bandit, arm]
    best = ratios == np.nanmax(ratios, axis=-1, keepdims=True)  # several arms may be
    settled = (
        dataset.pulls.sel(policy=policy)
        .transpose("bandit", "budget", "seed", "arm")
        .values.argmax(-1)
    )
    right = np.take_along_axis(best, settled.reshape(len(best), -1), -1).reshape(settled.shape)
    right = xr.DataArray(right, dims=("bandit", "budget", "seed"))
    runs, others = (~right).sum("seed"), right.sum("seed")
    mean_wrong = regret.where(~right, 0).sum("seed") / runs.where(runs > 0)
    mean_right = regret.where(right, 0).sum("seed") / others.where(others > 0)
    between = (runs * others * (mean_wrong - mean_right) ** 2).fillna(0) / regret.sizes["seed"] ** 2
    variance = regret.var("seed")
    columns = {
        "runs": runs,
        "mean_wrong": mean_wrong,
        "mean_right": mean_right,
        "explained": (between / variance.where(variance > 0)).fillna(0),
    }
    return xr.Dataset(
        {
            name: column.drop_vars(["policy", "lost_run"], errors="ignore")
            for name, column in columns.items()
        }
    )


def lowest(
    regrets: Regrets, policy: str = "bts", lost: float = np.nan
) -> tuple[Claim, dict[str, Margin]]:
    """The claim that the mean regret of a policy is less than that of every rival: mean of a rival
    − mean of the policy.

    A lower limit is widened as if the policy had one more lost run, an upper limit as if the rival
    had. `lost` is the regret of such a run.
    """
    rivals = [name for name in regrets if name != policy]
    claim = Claim(len(rivals), len(rivals))
    mine = _sample(regrets[policy])
    return claim, {
        name: claim.difference(
            _sample(regrets[name]) - mine,
            _excess(regrets[policy], lost),
            _excess(regrets[name], lost),
        )
        for name in rivals
    }


def stable(regrets: Regrets, policy: str = "bts") -> tuple[Claim, dict[str, Margin]]:
    """The claim that the standard deviation of a policy is less than those of at least half of its
    rivals: log ratios.
    """
    rivals = [name for name in regrets if name != policy]
    claim = Claim((len(rivals) + 1) // 2, len(rivals))
    return claim, {name: _deviation_ratio(regrets[name], regrets[policy], claim) for name in rivals}


def unstable(regrets: Regrets, policy: str = "epsilon-first") -> tuple[Claim, dict[str, Margin]]:
    """The claim that the standard deviation of a policy is more than `MUCH` times that of every
    other: log(ratio / `MUCH`).
    """
    others = [name for name in regrets if name != policy]
    claim = Claim(len(others), len(others))
    return claim, {
        name: _deviation_ratio(regrets[policy], regrets[name], claim, MUCH) for name in others
    }


def more_arms(
    many: Regrets, few: Regrets, lost: tuple[float, float] = (np.nan, np.nan)
) -> tuple[Claim, dict[str, Margin]]:
    """The claim that every policy has more regret with many arms than with few: differences of
    independent means.

    A lower limit is widened as if there were one more lost run with few arms, an upper limit as if
    there were one with many. `lost` has the regret of such a run with many arms, and with few.
    """
    claim, margins = Claim(len(many), len(many)), {}
    for name in many:
        high, low = (
            (sample := _sample(regrets[name]), sample.mean() + _excess(regrets[name], cost))
            for regrets, cost in zip((many, few), lost, strict=True)
        )
        plain = _welch(high[0], low[0], claim)
        below = plain if np.isnan(low[1]) else _welch(high[0], np.append(*low), claim)
        above = plain if np.isnan(high[1]) else _welch(np.append(*high), low[0], claim)
        margins[name] = Margin(
            plain.estimate, np.minimum(plain.low, below.low), np.maximum(plain.high, above.high)
        )
    return claim, margins


def _lowest(panels: dict[str, "Dataset"]) -> Verdict:
    outcomes, evidence, claim = [], [], Claim(1, 1)
    for title, part in panels.items():
        claim, margins = lowest(_regrets(part), lost=_lost_run(part))
        outcomes.append(claim.verdict(margins))
        best = min(margins, key=lambda name: margins[name].estimate)
        evidence.append(
            f"{title}: {outcomes[-1]}; {best}, the best rival: {_signed(margins[best])}"
            + _exceptions(margins, "clearly less regret than bts")
        )
        if part.sizes["bandit"] > 1:
            ranks = ranking(part).sel(policy="bts")
            evidence.append(
                f"  bts has the least mean regret on {ranks.best.item():.0%} of the instances, and "
                f"clearly so on {ranks.clearly_best.item():.0%}"
            )
    return Verdict(
        "BTS has clearly the lowest regret in every panel.",
        _tally(outcomes, "panels"),
        [
            "mean regret of a rival − mean regret of bts, with lower and upper limit",
            *evidence,
            *claim.criterion("panel", "0"),
            _sample_words(panels, "its mean regrets"),
        ],
    )


def _stable(panels: dict[str, "Dataset"]) -> Verdict:
    outcomes, rows, claim, margins = [], [], Claim(1, 1), {}
    for title, part in panels.items():
        claim, margins = stable(_regrets(part))
        outcomes.append(claim.verdict(margins))
        rows.append([title, outcomes[-1], *map(_factor, margins.values())])
    return Verdict(
        "The standard deviation of the regret of BTS is small: smaller than those of at least half "
        "of its rivals.",
        _tally(outcomes, "panels"),
        [
            "standard deviation of a rival / standard deviation of bts, with lower and upper limit",
            *table(["panel", "", *margins], rows).splitlines(),
            *claim.criterion("panel", "1"),
            _sample_words(panels, "the logarithm of its ratio"),
        ],
    )


def _more_arms(dataset: "Dataset") -> Verdict:
    counts = sorted(set(dataset.num_arms.values.tolist()))
    text = (
        f"With more arms ({counts[0]} to {counts[-1]}) the regret of every policy is higher, given "
        "the same budget."
    )
    outcomes, columns, higher, parts, claim, names = {}, [], [], {}, Claim(1, 1), []
    for family in dict.fromkeys(dataset.family.values.tolist()) if len(counts) > 1 else ():
        few, many = (
            dataset.isel(bandit=((dataset.family == family) & (dataset.num_arms == arms)).values)
            for arms in (counts[0], counts[-1])
        )
        if not few.sizes["bandit"] or not many.sizes["bandit"]:
            continue
        parts |= {f"{family}, few": few, f"{family}, many": many}
        claim, margins = more_arms(_regrets(many), _regrets(few), (_lost_run(many), _lost_run(few)))
        names, outcomes[family] = list(margins), claim.verdict(margins)
        # [policy, budget].
        mean, base = (
            measured(part).mean(("bandit", "seed"), skipna=False).values for part in (many, few)
        )
        higher.append(mean > base)
        columns += [
            list(map(_signed, margins.values())),
            [f"{value:.1f} times" for value in mean[:, -1] / base[:, -1]],
        ]
    if not outcomes:
        return Verdict(
            text,
            WORDS[1],
            ["no family of arms has instances with fewer and with more arms: nothing to compare"],
        )
    head = [
        "policy",
        *(cell for family, word in outcomes.items() for cell in (f"{family}: {word}", "")),
    ]
    rows = [list(row) for row in zip(names, *columns, strict=True)]
    return Verdict(
        text,
        _tally(list(outcomes.values()), "families"),
        [
            f"mean regret with {counts[-1]} arms − mean regret with {counts[0]}, with lower and "
            "upper limit; the ratio",
            *table(head, rows).splitlines(),
            f"at all budgets together the mean is higher in {np.mean(higher):.0%} of the cases "
            "(not a test)",
            *claim.criterion("family", "0"),
            _sample_words(parts, "its mean regrets"),
        ],
    )


def _unstable(panels: dict[str, "Dataset"]) -> Verdict:
    outcomes, evidence, claim = [], [], Claim(1, 1)
    for title, part in panels.items():
        claim, margins = unstable(_regrets(part))
        outcomes.append(claim.verdict(margins))
        least = min(margins, key=lambda name: margins[name].estimate)
        failed = failures(part)
        runs, total = int(failed.runs.sum()), part.sizes["bandit"] * part.sizes["seed"]
        evidence.append(
            f"{title}: {outcomes[-1]}; least for {least}: "
            f"{_factor(margins[least], MUCH)}" + _exceptions(margins, f"clearly below {MUCH:g}")
        )
        evidence.append(
            f"  {runs} of {total} runs of epsilon-first settled on a wrong arm; their distance "
            f"from the others makes up {failed.explained.median().item():.0%} of its variance"
        )
    return Verdict(
        "The standard deviation of the regret of ε-first is much larger than those of the others: "
        f"more than {MUCH:g} times.",
        _tally(outcomes, "panels"),
        [
            "standard deviation of epsilon-first / standard deviation of another policy, with "
            "lower and upper limit",
            *evidence,
            *claim.criterion("panel", f"{MUCH:g}"),
            _sample_words(panels, "the logarithm of its ratio"),
        ],
    )


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean of independent values, and its standard error: NaN for a single value."""
    if len(values) < 2:
        return float(values.mean()), np.nan
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def _welch(one: np.ndarray, other: np.ndarray, claim: Claim) -> Margin:
    """The difference of the means of two independent samples, with Welch's limits."""
    (mean, error), (base, base_error) = _mean_and_error(one), _mean_and_error(other)
    variance = error**2 + base_error**2
    if not variance > 0:  # NaN, or both samples are constant
        return claim.margin(mean - base, np.sqrt(variance), 1)
    freedom = variance**2 / (error**4 / (len(one) - 1) + base_error**4 / (len(other) - 1))
    return claim.margin(mean - base, np.sqrt(variance), freedom)


def _deviation_ratio(
    mine: np.ndarray, others: np.ndarray, claim: Claim, over: float = 1.0
) -> Margin:
    """The logarithm of the ratio of two standard deviations over the runs on an instance, minus
    that of `over`. [bandit, seed]

    If there are several instances, the mean of their logarithms. If a standard deviation is 0,
    there are no limits.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = _log_deviation(mine) - _log_deviation(others) - np.log(over)  # [bandit]
        if len(logs) > 1:
            return claim.margin(*_mean_and_error(logs), len(logs) - 1)
        _, error = _mean_and_error(_pseudovalues(mine[0]) - _pseudovalues(others[0]))
    return claim.margin(logs[0], error, mine.shape[1] - 1)


def _log_deviation(values: np.ndarray) -> np.ndarray:
    return np.log(values.std(-1, ddof=1))


def _pseudovalues(values: np.ndarray) -> np.ndarray:
    """The jackknife's pseudo-values of the logarithm of the standard deviation: one for each value
    that is left out. [n]
    """
    count = len(values)
    squares = (values - values.mean()) ** 2
    # Variance without each value.
    rest = np.maximum(squares.sum() - squares * count / (count - 1), 0) / (count - 2)
    return count * _log_deviation(values) - (count - 1) * np.log(rest) / 2


def _regrets(part: "Dataset") -> Regrets:
    """The regret of every policy at the largest budget."""
    regret = measured(part).values  # [policy, bandit, budget, seed]
    return {str(name): regret[i, :, -1] for i, name in enumerate(part.policy.values)}


def _lost_run(part: "Dataset") -> float:
    """The mean regret of a lost run at the largest budget."""
    regret = measured(part)
    return float(regret.lost_run.values[:, -1].mean()) if "lost_run" in regret.coords else np.nan


def _excess(regret: np.ndarray, lost: float) -> float:
    """How much one more lost run would add to one value of the sample. `regret`: [bandit, seed]"""
    return max(lost - regret.mean(), 0.0) / (1 if len(regret) == 1 else regret.shape[1])


def _sample(regret: np.ndarray) -> np.ndarray:
    """The runs on a single instance, or the means over the runs on several. [bandit, seed]"""
    return regret[0] if len(regret) == 1 else regret.mean(-1)


def _exceptions(margins: dict[str, Margin], against: str) -> str:
    """The comparisons that are not clearly in favour of the claim."""
    contrary = [name for name, margin in margins.items() if margin.high < 0]
    unclear = [
        name for name, margin in margins.items() if not margin.high < 0 and not margin.low > 0
    ]
    lists = ((against, contrary), ("undecided", unclear))
    return "".join(f"; {word}: {', '.join(names)}" for word, names in lists if names)


def _signed(margin: Margin) -> str:
    return f"{margin.estimate:+,.1f} ({margin.low:+,.1f} … {margin.high:+,.1f})"


def _factor(margin: Margin, over: float = 1.0) -> str:
    """A logarithmic margin as a ratio."""
    estimate, low, high = (over * np.exp(value) for value in margin)
    return f"{estimate:.3g} ({low:.3g} … {high:.3g})"


def _tally(outcomes: list[str], what: str) -> str:
    counts = [f"{word} in {outcomes.count(word)}" for word in WORDS if word in outcomes]
    return (
        WORDS[0]
        if outcomes.count(WORDS[0]) == len(outcomes)
        else f"{', '.join(counts)} of {len(outcomes)} {what}"
    )


def _sample_words(parts: dict[str, "Dataset"], number: str) -> str:
    """Describes the sample of a verdict."""
    words = []
    for part in parts.values():
        count, runs = part.sizes["bandit"], part.sizes["seed"]
        words.append(
            f"the {runs} runs on the only instance of each panel; the verdicts are about these "
            "instances alone"
            if count == 1
            else f"the {count} instances of each panel; each contributes "
            f"{number} over its {runs} runs"
        )
    return f"sample: {'; or '.join(dict.fromkeys(words))}"
