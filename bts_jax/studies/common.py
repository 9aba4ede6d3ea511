"""What the studies share: their sizes, random problems, tables and verdicts. A bandit's name is "kind-arms-number"."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bts_jax import plots
from bts_jax.contract import Bandit
from bts_jax.intervals import Interval, interval
from bts_jax.statistics import measured, multiples, paired, ranking, ratio_of_means, sample
from bts_jax.text import ALLOWANCE, counted, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

METRIC = "pseudo_regret"
CRITERION = f"criterion: the 95% interval of the mean paired difference over the instances; {ALLOWANCE}"


@dataclass(frozen=True)
class Size:
    """How large a study is."""

    arms: tuple[int, ...]
    budgets: tuple[float, ...]
    instances: tuple[int, ...]  # of each kind, for each number of arms
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


def draw(make: Callable[[jax.Array], Any], kind: str, arms: int, count: int, seed: int, place: int) -> dict[str, Bandit]:
    """Random bandits by name. Each depends on the seed, the place of its kind and its number, and not on `count`."""
    numbers = np.arange(count)
    keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), place), number))(numbers)
    batch = jax.tree.map(np.asarray, jax.jit(jax.vmap(make))(keys))
    return {f"{kind}-{arms}-{number + 1}": jax.tree.map(lambda x, i=number: x[i], batch) for number in numbers}


def labelled(dataset: "Dataset") -> "Dataset":
    """The Dataset with the kind of each bandit for its family."""
    return dataset.assign_coords(family=("bandit", [str(name).rsplit("-", 2)[0] for name in dataset.bandit.values]))


def last(dataset: "Dataset") -> "Dataset":
    return dataset.isel(budget=[-1])


def on_instances(dataset: "Dataset", policy: str) -> np.ndarray:
    """Mean regret on each instance at the largest budget. [bandit]"""
    return measured(last(dataset), METRIC).sel(policy=policy).mean("seed").values[:, 0]


def median_ratio(mine: np.ndarray, base: np.ndarray) -> Interval:
    """The median over the instances of the ratio of two regrets, with its 95% interval."""
    ratios = multiples(mine, base)
    return interval(ratios, statistic="median") if len(ratios) else Interval(*np.full(3, np.nan))


def mean_ratio(part: "Dataset", policy: str, reference: str) -> Interval:
    """The ratio of the mean regrets at the largest budget, with its 95% interval."""
    if policy == reference:
        return Interval(np.array(1.0), np.array(1.0), np.array(1.0))
    values = sample(measured(last(part), METRIC).isel(budget=0), "bandit")
    mine, base = (values.sel(policy=name) for name in (policy, reference))
    return ratio_of_means(mine, base)


def limits(found: Interval, form: str = ",.2f") -> str:
    """An estimate and its limits, as text."""
    return f"{float(found.estimate):{form}} ({float(found.low):{form}} … {float(found.high):{form}})"


def standing(part: "Dataset") -> str:
    """How the policies do at the largest budget, the least mean rank first."""
    ranks = ranking(last(part), metric=METRIC).isel(budget=0).sortby("mean_rank")
    base = on_instances(part, "bts")
    rows = []
    for name in map(str, ranks.policy.values):
        row, mine = ranks.sel(policy=name), on_instances(part, name)
        rows.append([name, str(part.told.sel(policy=name).item()), f"{row['mean_rank']:.1f}", f"{row['mean']:,.1f}",
                     f"{row['low']:,.1f} … {row['high']:,.1f}", f"{row['median']:,.1f}",
                     f"{row['median_low']:,.1f} … {row['median_high']:,.1f}", limits(mean_ratio(part, name, "bts")),
                     limits(median_ratio(mine, base)), f"{row['worst_share']:.0%}", f"{row['best']:.0%}"])
    return table(["policy", "side information", "rank", "mean", "95% interval", "median", "95% interval", "mean ÷ bts",
                  "median of ÷ bts", "worst 1%", "best"], rows)


def sampled(dataset: "Dataset") -> str:
    return f"{counted(dataset.sizes['bandit'], 'instance')}, {counted(dataset.sizes['seed'], 'run')} on each"


def difference(part: "Dataset", policy: str, reference: str = "bts") -> tuple[str, str]:
    """Whether a policy has less mean regret than another on instances like these, and the evidence."""
    result = paired(last(part), policy, reference, over="bandit", metric=METRIC).isel(budget=0)
    ratio = mean_ratio(part, policy, reference)
    median = median_ratio(on_instances(part, policy), on_instances(part, reference))
    word, needed = str(result.verdict.item()), float(result.needed)
    more = f"; it would take at least {needed:,.0f} problems to decide" if word == "undecided" and needed < 1e9 else ""
    return word, (f"{policy} − {reference}: {float(result.difference):+,.1f} ({float(result.low):+,.1f} … "
                  f"{float(result.high):+,.1f}); ratio of the means {limits(ratio)}; median ratio {limits(median)}; less on "
                  f"{float(result.wins):.0%}{more}")


def look(dataset: "Dataset") -> dict[str, dict[str, Any]]:
    """The styles of the policies; of relatives, which share a colour, all but the first have another."""
    result, taken = plots.styles(dataset.policy.values), set()
    for style in result.values():
        if style["color"] in taken:
            style["color"] = next((color for color in ("#E69F00", "#D55E00", "#56B4E9", "#CC79A7", "#000000", "#7F7F7F")
                                   if color not in taken), style["color"])
        taken.add(style["color"])
    return result


def tally(words: list[str], names: dict[str, str]) -> str:
    """How often each word was the answer, in words."""
    counts = [f"{text} in {words.count(word)}" for word, text in names.items() if word in words]
    return f"{', '.join(counts)} of {len(words)} kinds"
