"""Studies beyond the paper, as presets: a comparison of the whole field, and the paper's three open questions.

    omega       the setting of Heyden et al. (KDD 2024): random instances of three families (two, in the quick size), a budget
                of 150,000 times the smallest expected cost, all policies
    priors      Beta priors against each other and against a Gaussian one (the paper's future work 2)
    correlated  what it does to BTS that reward and cost of an arm depend on each other (future work 3)
    worst-case  how regret grows with the budget where the gaps are the worst for each budget (future work 1)

Each is a sweep, saved as it goes, from which figures, a table and a report follow. Regret is pseudo-regret throughout: the
expected loss of the arms that were pulled, which has less noise.

What Heyden et al. leave open is done as in the program they published: each repetition has an instance of its own and one run
on it, and a multinomial arm's probabilities are five uniform numbers divided by their sum.
"""

import csv
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bts_jax import checks, files, plots
from bts_jax.bandits import Bernoulli, Beta, Correlated, Multinomial
from bts_jax.batch import on_the_host
from bts_jax.contract import Bandit
from bts_jax.intervals import interval
from bts_jax.metrics import by_kind, measured, multiples, paired, ranking
from bts_jax.policies import BTS, POLICIES, GaussianBTS
from bts_jax.text import counted, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

METRIC = "pseudo_regret"
LEFT_OUT = ("oracle", "uniform", "tempered-bts")  # yardsticks, and what is BTS until something is learnt


@dataclass(frozen=True)
class Size:
    """How large a study is."""

    arms: tuple[int, ...]
    budgets: tuple[float, ...]
    instances: int  # of each kind
    runs: int  # on each instance
    families: tuple[str, ...] = ("Bernoulli", "Multinomial", "Beta")  # of omega; each takes a program for each policy


@dataclass(frozen=True)
class Study:
    """What is played, and what is made of it."""

    about: str
    sizes: dict[str, Size]  # by scale
    settings: Callable[[Size, int], dict[str, Any]]  # size and seed -> policies and bandits, as `sweep` takes them
    report: Callable[["Dataset"], str]
    figures: Callable[["Dataset"], dict[str, "Figure"]]  # by name


def study(
    name: str, scale: str = "quick", *, seed: int = 0, out: str | os.PathLike | None = None, quiet: bool = False
) -> tuple["Dataset", str]:
    """Runs a study, and writes its figures, its numbers and what follows from them. Interrupted, the same call goes on.

    Args:
        name: "omega", "priors", "correlated" or "worst-case"; see the top of this module.
        scale: "quick", up to three minutes on two cores; or "full", which is for a GPU.
        seed: where all randomness comes from, that of the instances and that of the runs.
        out: a folder for figures (PNG and PDF), `table.csv`, `report.txt`, and `runs.zarr` with all runs; the name and the
            scale by default, as in "omega-quick".
        quiet: no progress bar.

    Returns:
        The Dataset of all runs, and the report.
    """
    from bts_jax.grid import sweep

    if name not in STUDIES:
        raise ValueError(f"name = {name!r} is not a study: give {', '.join(map(repr, STUDIES))}")
    chosen = STUDIES[name]
    if scale not in chosen.sizes:
        raise ValueError(f"scale = {scale!r} is not known: give {' or '.join(map(repr, chosen.sizes))}")
    checks.whole("seed", seed, -(2**31))
    folder = Path(out if out is not None else f"{name}-{scale}")
    files.check_folder(folder)
    size = chosen.sizes[scale]
    with on_the_host():
        settings = chosen.settings(size, seed)
    files.make_folder(folder)
    dataset = sweep(budgets=size.budgets, seeds=size.runs, seed=seed, out=folder / "runs.zarr", quiet=quiet, **settings)
    labelled = _labelled(dataset)
    text = f"{chosen.about}\n\n{chosen.report(labelled)}"
    if truncated := int(dataset.truncated.sum()):
        text += f"\n\n{truncated} runs hit the limit of rounds."
    for title, figure in chosen.figures(labelled).items():
        plots.save(figure, folder / title)
    files.write(folder / "report.txt", (text + "\n").encode())
    files.write(folder / "table.csv", _csv(labelled).encode())
    return dataset, text


# What all studies share. A bandit's name is "kind-arms-number".


def _named(kind: str, arms: int, number: int) -> str:
    return f"{kind}-{arms}-{number + 1}"


def _key(seed: int, place: int, number: int) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), place), number)


def _labelled(dataset: "Dataset") -> "Dataset":
    """The Dataset with the kind of each bandit for its family."""
    return dataset.assign_coords(family=("bandit", [str(name).rsplit("-", 2)[0] for name in dataset.bandit.values]))


def _last(dataset: "Dataset") -> "Dataset":
    return dataset.isel(budget=[-1])


def _on_instances(dataset: "Dataset", policy: str) -> np.ndarray:
    """Mean regret on each instance at the largest budget. [bandit]"""
    return measured(_last(dataset), METRIC).sel(policy=policy).mean("seed").values[:, 0]


def _ratio(mine: np.ndarray, base: np.ndarray) -> tuple[float, float, float]:
    """The median ratio over the instances, and the limits of its 95% interval (bootstrap)."""
    ratio = multiples(mine, base)
    if not len(ratio):
        return np.nan, np.nan, np.nan
    draws = np.random.default_rng(0).integers(len(ratio), size=(2000, len(ratio)))
    return (float(np.median(ratio)), *np.quantile(np.median(ratio[draws], -1), [0.025, 0.975]))


def _standing(part: "Dataset") -> str:
    """How the policies stand at the largest budget, the least mean rank first."""
    ranks = ranking(_last(part), metric=METRIC).isel(budget=0).sortby("mean_rank")
    base = _on_instances(part, "bts")
    rows = []
    for name in map(str, ranks.policy.values):
        row, mine = ranks.sel(policy=name), _on_instances(part, name)
        median, low, high = _ratio(mine, base)
        rows.append([name, str(part.told.sel(policy=name).item()), f"{row['mean_rank']:.1f}", f"{row['mean']:,.1f}",
                     f"{row['low']:,.1f} … {row['high']:,.1f}", f"{row['median']:,.1f}",
                     f"{row['lower_quartile']:,.1f} … {row['upper_quartile']:,.1f}", f"{mine.mean() / base.mean():.2f}",
                     f"{median:.2f} ({low:.2f} … {high:.2f})", f"{row['best']:.0%}"])
    return table(["policy", "told", "rank", "mean", "95% interval", "median", "quartiles", "mean ÷ bts", "median of ÷ bts",
                  "best"], rows)


def _sample(dataset: "Dataset") -> str:
    return f"{counted(dataset.sizes['bandit'], 'instance')}, {counted(dataset.sizes['seed'], 'run')} on each"


def _difference(part: "Dataset", policy: str, reference: str = "bts") -> tuple[str, str]:
    """Whether a policy has less regret than another on instances like these, and the evidence."""
    result = paired(_last(part), policy, reference, over="bandit", metric=METRIC).isel(budget=0)
    difference, low, high = (float(result[name]) for name in ("difference", "low", "high"))
    base = _on_instances(part, reference).mean()
    median, *limits = _ratio(_on_instances(part, policy), _on_instances(part, reference))
    word = "less" if high < 0 else "more" if low > 0 else "undecided"
    return word, (f"{policy} − {reference}: {difference:+,.1f} ({low:+,.1f} … {high:+,.1f}), {difference / base:+.0%} of the "
                  f"mean; median ratio {median:.2f} ({limits[0]:.2f} … {limits[1]:.2f}); less on {float(result.wins):.0%}")


def _look(dataset: "Dataset") -> dict[str, dict[str, Any]]:
    """The styles of the policies; of relatives, which share a colour, all but the first have another."""
    look, taken = plots.styles(dataset.policy.values), set()
    for style in look.values():
        if style["color"] in taken:
            style["color"] = next(color for color in ("#E69F00", "#D55E00", "#56B4E9", "#CC79A7") if color not in taken)
        taken.add(style["color"])
    return look


def _tally(words: list[str], names: dict[str, str]) -> str:
    """How often each word was the answer, in words."""
    counts = [f"{text} in {words.count(word)}" for word, text in names.items() if word in words]
    return f"{', '.join(counts)} of {len(words)} kinds"


def _csv(dataset: "Dataset") -> str:
    """Regret of every policy on every kind of instance at every budget, as CSV."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["kind", "policy", "told", "budget", "mean regret", "95% from", "95% to", "median", "lower quartile",
                     "upper quartile", "mean rank", "instances", "runs on each"])
    for kind, part in by_kind(dataset).items():
        ranks = ranking(part, metric=METRIC)
        runs = measured(part, METRIC)
        for policy in map(str, ranks.policy.values):
            for budget in ranks.budget.values:
                row = ranks.sel(policy=policy, budget=budget)
                numbers = [float(row[name]) for name in
                           ("mean", "low", "high", "median", "lower_quartile", "upper_quartile", "mean_rank")]
                if part.sizes["bandit"] == 1:  # the runs are the sample
                    values = runs.sel(policy=policy, budget=budget).values[0]
                    numbers[:6] = *map(float, interval(values)), *np.quantile(values, [0.5, 0.25, 0.75])
                writer.writerow([kind, policy, part.told.sel(policy=policy).item(), f"{budget:g}",
                                 *(f"{number:.6g}" for number in numbers), part.sizes["bandit"], part.sizes["seed"]])
    return file.getvalue()


# The whole field, as Heyden et al. compared it.


def _omega_settings(size: Size, seed: int) -> dict[str, Any]:
    bandits: dict[str, Bandit] = {}
    for place, arms in enumerate(size.arms):
        for number in range(size.instances):
            for kind in size.families:
                key = _key(seed, 3 * place + Size.families.index(kind), number)
                if kind == "Bernoulli":
                    bandit = Bernoulli.random(key, arms)
                elif kind == "Beta":
                    bandit = Beta.random(key, arms)
                else:
                    probs = np.asarray(jax.random.uniform(key, (2, arms, 5)), np.float64)
                    bandit = Multinomial(*probs / probs.sum(-1, keepdims=True))
                bandits[_named(kind, arms, number)] = bandit
    return {"policies": [name for name in POLICIES if name not in LEFT_OUT], "bandits": bandits, "relative": True}


def _omega_report(dataset: "Dataset") -> str:
    parts, star, winners = [], [], []
    for title, part in by_kind(dataset).items():
        parts.append(f"{title}: regret at {part.budget.values[-1]:,g} times the smallest expected cost; {_sample(part)}\n"
                     f"{_standing(part)}")
        ranks = ranking(_last(part), metric=METRIC).isel(budget=0)
        mean, median, rank = (str(ranks.policy.values[ranks[name].values.argmin()]) for name in ("mean", "median", "mean_rank"))
        winners.append(f"{title}: {mean} by the mean, {median} by the median, {rank} by the mean rank")
        star.append((title, *_difference(part, "omega-star-ucb")))
    parts.append("Least regret\n" + "\n".join(f"  {line}" for line in winners))
    words = {"less": "holds", "undecided": "is undecided", "more": "is contradicted"}
    verdict = _tally([word for _, word, _ in star], words)
    parts.append("\n".join(["ω*-UCB has less regret than BTS, as Heyden et al. found", f"  {verdict.upper()}",
                            *(f"  {title}: {line}" for title, _, line in star),
                            "  criterion: the 95% interval of the mean paired difference over the instances"]))
    told = [str(name) for name in dataset.policy.values if "cost" in dataset.told.sel(policy=name).item()]
    nothing = [str(name) for name in dataset.policy.values if dataset.told.sel(policy=name).item() == "nothing"]
    lines = []
    for title, part in by_kind(dataset).items():
        medians = {name: float(np.median(_on_instances(part, name))) for name in (*told, *nothing)}
        with_it, without = (min(names, key=lambda name: medians[name]) for names in (told, nothing))
        lines.append(f"  {title}: {with_it} {medians[with_it]:,.1f}, {without} {medians[without]:,.1f}")
    parts.append("What knowing costs is worth: least median of those told something about them, and of those told nothing\n"
                 + "\n".join(lines))
    return "\n\n".join(parts)


def _omega_figures(dataset: "Dataset") -> dict[str, "Figure"]:
    figures = {}
    for family in dict.fromkeys(dataset.family.values.tolist()):
        part = dataset.isel(bandit=(dataset.family == family).values)
        figure = plots.relative(part, "bts", metric=METRIC)
        figure.supxlabel(f"{METRIC.replace('_', '-')} as a multiple of that of bts, at a budget of\n"
                         f"{part.budget.values[-1]:,g} times the smallest expected cost", fontsize=8)
        figures[f"ratios-{family.lower()}"] = figure
    ranks = ranking(_last(dataset), metric=METRIC).isel(budget=0).sortby("mean_rank").policy.values.tolist()
    shown = [name for name in dataset.policy.values if name == "bts" or name in ranks[:6]]
    few = dataset.sel(policy=shown).isel(bandit=(dataset.num_arms == dataset.num_arms.min()).values)
    figure = plots.regret(few, metric=METRIC, panel="family", scale="log-log")
    figure.supxlabel("budget (multiples of the smallest expected cost); BTS, and the policies with the least mean ranks",
                     fontsize=8)
    return {**figures, "regret": figure}


# Priors.

PRIORS = {
    "bts": BTS(),
    "Jeffreys": BTS(reward_alpha=0.5, reward_beta=0.5, cost_alpha=0.5, cost_beta=0.5),
    "Beta(2, 2)": BTS(reward_alpha=2.0, reward_beta=2.0, cost_alpha=2.0, cost_beta=2.0),
    "optimist": BTS(reward_alpha=2.0, reward_beta=1.0, cost_alpha=1.0, cost_beta=2.0),
    "pessimist": BTS(reward_alpha=1.0, reward_beta=2.0, cost_alpha=2.0, cost_beta=1.0),
    "gaussian-bts": GaussianBTS(),
}


def _priors_settings(size: Size, seed: int) -> dict[str, Any]:
    bandits: dict[str, Bandit] = {}
    for place, arms in enumerate(size.arms):
        for number in range(size.instances):
            wide, close, beta = (_key(seed, 3 * place + i, number) for i in range(3))
            means = {"reward_range": (0.1, 0.9), "cost_range": (0.1, 0.9)}
            bandits[_named("Bernoulli, means 0.1–0.9", arms, number)] = Bernoulli.random(wide, arms, **means)
            means = {"reward_range": (0.4, 0.6), "cost_range": (0.4, 0.6)}
            bandits[_named("Bernoulli, means 0.4–0.6", arms, number)] = Bernoulli.random(close, arms, **means)
            bandits[_named("Beta, shapes 1–5", arms, number)] = Beta.random(beta, arms, shape_range=(1, 5))
    return {"policies": PRIORS, "bandits": bandits}


def _priors_report(dataset: "Dataset") -> str:
    parts = ["Jeffreys: Beta(1/2, 1/2); optimist: Beta(2, 1) for rewards and Beta(1, 2) for costs; pessimist: the reverse"]
    for title, part in by_kind(dataset).items():
        parts.append(f"{title}: regret at budget {part.budget.values[-1]:,g}; {_sample(part)}\n{_standing(part)}")
    for name in map(str, dataset.policy.values):
        if name == "bts":
            continue
        found = [(title, *_difference(part, name)) for title, part in by_kind(dataset).items()]
        verdict = _tally([word for _, word, _ in found], {"less": "helps", "undecided": "is undecided", "more": "hurts"})
        parts.append("\n".join([f"{name} in place of the uniform prior", f"  {verdict.upper()}",
                                *(f"  {title}: {line}" for title, _, line in found)]))
    parts.append("criterion: the 95% interval of the mean paired difference over the instances")
    return "\n\n".join(parts)


def _priors_figures(dataset: "Dataset") -> dict[str, "Figure"]:
    return {"ratios": plots.relative(dataset, "bts", metric=METRIC),
            "regret": plots.regret(dataset, metric=METRIC, panel="family", scale="log-log")}


# Correlation.

CORRELATIONS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)


def _correlated_settings(size: Size, seed: int) -> dict[str, Any]:
    bandits: dict[str, Bandit] = {}
    for place, arms in enumerate(size.arms):
        for number in range(size.instances):
            for correlation in CORRELATIONS:  # with the same means
                bandits[_named(f"{correlation:+.2f}", arms, number)] = Correlated.random(
                    _key(seed, place, number), arms, correlation=correlation, reward_range=(0.1, 0.9), cost_range=(0.1, 0.9))
    return {"policies": ["bts", "joint-bts"], "bandits": bandits}


def _correlations(dataset: "Dataset") -> list[tuple[float, float, "Dataset"]]:
    """What was wanted, the mean correlation of the arms, and the runs; in increasing order."""
    arms = json.loads(dataset.specification)["bandits"]
    rows = []
    for part in by_kind(dataset).values():
        mean = np.mean([arms[str(name)]["fields"]["correlation"] for name in part.bandit.values])
        rows.append((float(part.family.values[0]), float(mean), part))
    return sorted(rows, key=lambda row: row[0])


def _correlated_report(dataset: "Dataset") -> str:
    rows, effects, gains = [], [], []
    found = _correlations(dataset)
    free = _on_instances(next(part for wanted, _, part in found if wanted == 0), "bts")
    for wanted, mean, part in found:
        row = [f"{wanted:+.2f}", f"{mean:+.2f}"]
        for name in map(str, part.policy.values):
            values = _on_instances(part, name)
            middle, low, high = interval(values)
            row += [f"{middle:,.1f} ({low:,.1f} … {high:,.1f})", f"{np.median(values):,.1f}"]
        rows.append(row)
        change, low, high = interval(_on_instances(part, "bts") - free)
        effects.append((wanted, change / free.mean(), low / free.mean(), high / free.mean()))
        gains.append((wanted, *_difference(part, "joint-bts")))
    head = ["wanted", "mean correlation"]
    for name in map(str, dataset.policy.values):
        head += [f"{name}: mean and 95% interval", "median"]
    parts = [f"Regret at budget {dataset.budget.values[-1]:,g}; {_sample(found[0][2])}, with the same means at each "
             f"correlation\n{table(head, rows)}"]
    lines = [f"  {wanted:+.2f}: {change:+.0%} ({low:+.0%} … {high:+.0%})" for wanted, change, low, high in effects if wanted]
    ends = ["LOWERS" if high < 0 else "RAISES" if low > 0 else "DOES NOT CLEARLY CHANGE"
            for _, _, low, high in (effects[-1], effects[0])]
    parts.append("\n".join([f"The largest correlation {ends[0]} the regret of BTS, the least {ends[1]} it; mean paired "
                            "difference to that at correlation 0:", *lines]))
    verdict = _tally([word for _, word, _ in gains], {"less": "less", "undecided": "undecided", "more": "more"})
    parts.append("\n".join([f"Regret of joint BTS against that of BTS: {verdict.upper().replace('KINDS', 'CORRELATIONS')}",
                            *(f"  {wanted:+.2f}: {line}" for wanted, _, line in gains)]))
    parts.append("criterion: 95% intervals of mean paired differences over the instances; where the means of an arm do not\n"
                 "allow a correlation, it has the nearest that they do")
    return "\n\n".join(parts)


def _correlated_figures(dataset: "Dataset") -> dict[str, "Figure"]:
    from matplotlib.figure import Figure

    found = _correlations(dataset)
    x = [wanted for wanted, _, _ in found]
    look = _look(dataset)
    figure = Figure(figsize=(plots.PAGE, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in map(str, dataset.policy.values):
        values = np.array([_on_instances(part, name) for _, _, part in found])
        mean, low, high = interval(values)
        plots.curve(left, x, mean, low, high, look[name], f"{name}, mean and 95% interval")
        left.plot(x, np.median(values, -1), label=f"{name}, median", **{**look[name], "linestyle": ":", "markersize": 3})
    left.set_ylim(bottom=0)
    left.set_ylabel("pseudo-regret (units of reward)", fontsize=8)
    left.legend(fontsize=7, frameon=False)
    mean, low, high = interval([_on_instances(part, "joint-bts") - _on_instances(part, "bts") for _, _, part in found])
    right.axhline(0, color=look["bts"]["color"], linewidth=1)
    plots.curve(right, x, mean, low, high, look["joint-bts"], "joint-bts")
    right.set_ylabel("regret of joint-bts minus that of bts\n(below 0, joint-bts is better)", fontsize=8)
    for axes in (left, right):
        axes.set_xlabel("wanted correlation of reward and cost", fontsize=8)
        plots.frame(axes)
    figure.suptitle(f"budget {dataset.budget.values[-1]:,g}, {_sample(found[0][2])}, the same means at each correlation",
                    fontsize=7)
    return {"correlation": figure}


# The worst case.

RIVALS = ("bts", "gaussian-bts", "kube", "omega-ucb", "kl-ucb-sc")
FIT_FROM = 50  # budgets of at least this many per arm are fitted: with less, no policy has learnt much


def _worst_settings(size: Size, seed: int) -> dict[str, Any]:
    bandits: dict[str, Bandit] = {}
    for arms in size.arms:
        for budget in (*size.budgets, 4 * size.budgets[-1]):  # gaps on both sides of the worst for each budget
            bandits[_named(f"hard at {budget:g}", arms, 0)] = Bernoulli.hard(arms, budget)
    return {"policies": list(RIVALS), "bandits": bandits}


def exponent(runs: "DataArray", *, resamples: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, tuple]:
    """How the regret on the worst of several instances grows with the budget.

    Args:
        runs: regret of one policy, over (bandit, budget, seed).

    Returns:
        The mean regret on the worst instance at each budget [budget]; which instance that is [budget]; and the exponent x of
        the least-squares fit of log regret by x log B + constant, with the limits of its 95% interval (bootstrap over runs).
    """
    values = runs.transpose("bandit", "budget", "seed").values
    log_budget = np.log(runs.budget.values)
    centred = log_budget - log_budget.mean()

    def slope(worst: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(worst, 1e-9)) @ centred / (centred @ centred)

    means = values.mean(-1)  # [bandit, budget]
    count = values.shape[-1]
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), (resamples, len(values))) / count
    drawn = np.einsum("rbs,bts->rbt", weights, values)
    low, high = np.quantile(slope(drawn.max(1)), [0.025, 0.975])
    return means.max(0), means.argmax(0), (float(slope(means.max(0))), float(low), float(high))


def _worst(dataset: "Dataset") -> tuple["Dataset", dict[str, tuple]]:
    """The budgets that are fitted, and the fit of each policy there."""
    fitted = dataset.isel(budget=(dataset.budget.values >= FIT_FROM * dataset.num_arms.values.max()))
    runs = measured(fitted, METRIC)
    return fitted, {str(name): exponent(runs.sel(policy=name)) for name in dataset.policy.values}


def _own_exponent(budgets: np.ndarray) -> float:
    """That of √(B ln B), fitted in the same way."""
    return float(np.polyfit(np.log(budgets), 0.5 * np.log(budgets * np.log(budgets)), 1)[0])


def _worst_report(dataset: "Dataset") -> str:
    fitted, fits = _worst(dataset)
    budgets, arms = fitted.budget.values, int(dataset.num_arms.values.max())
    hard = np.array([float(str(name).rsplit("-", 2)[0].removeprefix("hard at ")) for name in dataset.bandit.values])
    medians = measured(fitted, METRIC).median("seed")
    rows, lines, words = [], [], []
    own = _own_exponent(budgets)
    for name, (worst, where, (value, low, high)) in fits.items():
        rows.append([name, *(f"{regret:,.1f}" for regret in worst), f"{value:.3f}", f"{low:.3f} … {high:.3f}"])
        typical = medians.sel(policy=name).values[where[-1], -1]
        multiple = np.sqrt(np.log(hard[where[-1]]) / hard[where[-1]] / (np.log(budgets[-1]) / budgets[-1]))
        words.append("below" if high < own else "above" if low > own else "like it")
        share = worst[-1] / np.sqrt(arms * budgets[-1] * np.log(budgets[-1]))
        lines.append(f"  {name}: {'grows like it' if words[-1] == 'like it' else f'{words[-1]} it'}; at {budgets[-1]:,g} the "
                     f"worst gap is {multiple:.2g} √(K ln B / B), the regret there {worst[-1]:,.1f} in the mean, "
                     f"{typical:,.1f} in the median, {share:.2f} √(K B ln B)")
    head = ["policy", *(f"{budget:,g}" for budget in budgets), "exponent", "95% interval"]
    return "\n\n".join([
        f"Mean regret at each budget on the worst of {dataset.sizes['bandit']} instances with {arms} arms, whose gaps are "
        f"√(K ln b / b) for b = {', '.join(f'{b:,g}' for b in hard)};\n{dataset.sizes['seed']} runs on each\n"
        + table(head, rows),
        "\n".join([f"Against √(B ln B), whose exponent over these budgets is {own:.3f}: "
                   + ", ".join(f"{words.count(word)} {text}" for word, text in
                               (("below", "BELOW"), ("like it", "LIKE IT"), ("above", "ABOVE")) if word in words), *lines]),
        "exponent: of the least-squares fit of log regret by log B, with a bootstrap over the runs. A bound O(√(K B ln B))\n"
        "for all instances would need one that stays at or below that of √(B ln B) as budgets grow. All arms cost 1/2 in "
        "the mean here.",
    ])


def _worst_figures(dataset: "Dataset") -> dict[str, "Figure"]:
    from matplotlib.figure import Figure

    fitted, fits = _worst(dataset)
    runs, look = measured(dataset, METRIC), _look(dataset)
    figure = Figure(figsize=(plots.COLUMN * 1.2, 4.0), layout="constrained")
    axes = figure.subplots()
    budgets, arms = dataset.budget.values, int(dataset.num_arms.values.max())
    for name, (_, _, (value, low, high)) in fits.items():
        mean, below, above = interval(runs.sel(policy=name).transpose("bandit", "budget", "seed").values)
        where = mean.argmax(0), np.arange(mean.shape[1])
        plots.curve(axes, budgets, mean[where], below[where], above[where], look[name],
                    f"{name}: exponent {value:.2f} ({low:.2f} … {high:.2f})")
    anchor = max(worst[-1] for worst, _, _ in fits.values()) * 1.3
    guide = np.sqrt(budgets * np.log(budgets))
    axes.plot(budgets, anchor * guide / guide[-1], color="gray", linewidth=0.8, linestyle="--",
              label=f"∝ √(B ln B): exponent {_own_exponent(fitted.budget.values):.2f}")
    plots.decades(axes, "x")
    plots.decades(axes, "y")
    axes.set_xlabel("budget (units of cost)", fontsize=8)
    axes.set_ylabel("pseudo-regret on the worst instance\n(units of reward)", fontsize=8)
    plots.frame(axes)
    title = (f"mean and its 95% interval over {dataset.sizes['seed']} runs; {arms} arms, worst of\n"
             f"{dataset.sizes['bandit']} gaps; exponents fitted from budget {fitted.budget.values[0]:,g} on")
    figure.legend(loc="outside upper center", fontsize=7, frameon=False, title=title, title_fontsize=7)
    return {"worst-case": figure}


_TENTHS = (0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
STUDIES = {
    "omega": Study(
        "All policies on random instances, as in Heyden et al. (KDD 2024).",
        {"quick": Size((10,), (500, 1500, 5000, 15_000), 20, 1, ("Bernoulli", "Beta")),
         "full": Size((10, 50, 100), tuple(150_000 * part for part in _TENTHS), 100, 1)},
        _omega_settings, _omega_report, _omega_figures),
    "priors": Study(
        "Does another prior than the uniform one help BTS? (The paper's future work 2.)",
        {"quick": Size((10,), (100, 300, 1000, 3000), 16, 8),
         "full": Size((10, 100), (300, 1000, 3000, 10_000, 50_000), 100, 20)},
        _priors_settings, _priors_report, _priors_figures),
    "correlated": Study(
        "What does it do to BTS that reward and cost of an arm depend on each other? (The paper's future work 3.)",
        {"quick": Size((10,), (100, 300, 1000, 3000), 24, 6), "full": Size((10,), (300, 1000, 3000, 10_000, 50_000), 100, 50)},
        _correlated_settings, _correlated_report, _correlated_figures),
    "worst-case": Study(
        "How does regret grow with the budget where the gaps are the worst for it? (The paper's future work 1.)",
        {"quick": Size((10,), (100, 200, 500, 1000, 2000, 5000), 1, 100),
         "full": Size((10,), (100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000), 1, 1000)},
        _worst_settings, _worst_report, _worst_figures),
}
