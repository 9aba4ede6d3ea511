"""All policies on random problems, in the setting of Heyden et al. (KDD 2024)."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bts_jax import plots
from bts_jax.bandits import Bernoulli, Beta, Multinomial
from bts_jax.experiments.common import (
    CRITERION,
    METRIC,
    Instance,
    at_the_end,
    differences,
    draw,
    last,
    on_instances,
    played,
    regret_table,
    sampled,
    standing,
    tally,
)
from bts_jax.experiments.runner import Experiment, Size
from bts_jax.policies import POLICIES
from bts_jax.statistics import by_kind, ranking
from bts_jax.text import ALLOWANCE

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

# Baselines, a policy that is BTS until it is trained, and rivals that this study leaves out.
LEFT_OUT = ("oracle", "uniform", "tempered-bts", "ucb-b1", "ucb-b2c", "irs-fh", "greedy-kube")
FIRST = 3  # how many places of the order by mean are tested for stability
TENTHS = (0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


def _make(family: str, arms: int) -> Any:
    """A function that draws a bandit of the family."""
    if family == "Bernoulli":
        return lambda key: Bernoulli.random(key, arms)
    if family == "Beta":
        return lambda key: Beta.random(key, arms)

    def multinomial(key: jax.Array) -> Multinomial:
        probs = jax.random.uniform(key, (2, arms, 5))
        return Multinomial(*probs / probs.sum(-1, keepdims=True))

    return multinomial


def settings(size: Size, seed: int) -> dict[str, Any]:
    instances: list[Instance] = []
    for place, (arms, count) in enumerate(zip(size.arms, size.instances, strict=True)):
        for family in size.families:
            instances += draw(
                _make(family, arms),
                family,
                arms,
                count,
                seed,
                3 * place + Size.families.index(family),
            )
    return {
        "policies": [name for name in POLICIES if name not in LEFT_OUT],
        **played(instances),
        "relative_to_min_cost": True,
    }


def stability(values: np.ndarray, resamples: int = 1000) -> tuple[list[int], float]:
    """The first policies by mean regret, and the share of bootstrap samples of the problems in
    which they come first, in order.

    Args:
        values: regret [policy, problem].
    """
    first = np.argsort(values.mean(-1), kind="stable")[:FIRST]
    count = values.shape[-1]
    weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), resamples)
    orders = np.argsort(weights @ values.T, axis=-1, kind="stable")[:, :FIRST]
    return first.tolist(), float((orders == first).all(-1).mean())


def report(dataset: "Dataset") -> str:
    parts, winners, kinds = [], [], by_kind(dataset)
    for title, part in by_kind(dataset).items():
        parts.append(
            f"{title}: regret at {part.budget.values[-1]:,g} times the smallest "
            f"expected cost; {sampled(part)}\n"
            f"{standing(part)}"
        )
        ranks = ranking(last(part), metric=METRIC).isel(budget=0)
        median, rank = (
            str(ranks.policy.values[ranks[name].values.argmin()])
            for name in ("median", "mean_rank")
        )
        values = at_the_end(part).mean("seed").values
        places, share = stability(values)
        first = ", ".join(str(part.policy.values[place]) for place in places)
        winners.append(
            f"{title}: {first} by the mean (in this order in {share:.0%} of 1,000 bootstrap "
            f"samples), {median} by the median, {rank} by the mean rank"
        )
    parts.append("Least regret\n" + "\n".join(f"  {line}" for line in winners))
    words = {"less": "holds", "undecided": "is undecided", "more": "is contradicted"}
    star = dict(
        zip(
            kinds,
            differences([(part, "omega-star-ucb", "bts") for part in kinds.values()]),
            strict=True,
        )
    )
    verdict = tally([word for word, _ in star.values()], words)
    parts.append(
        "\n".join(
            [
                "ω*-UCB has less mean regret than BTS",
                f"  {verdict.upper()}",
                *(f"  {title}: {line}" for title, (_, line) in star.items()),
                f"  {CRITERION}",
            ]
        )
    )
    informed = [
        str(name)
        for name in dataset.policy.values
        if "cost" in dataset.requires.sel(policy=name).item()
    ]
    uninformed = [
        str(name)
        for name in dataset.policy.values
        if dataset.requires.sel(policy=name).item() == "none"
    ]
    lines = []
    for title, part in by_kind(dataset).items():
        medians = {
            name: float(np.median(values))
            for name, values in on_instances(at_the_end(part)).items()
        }
        with_it, without = (
            min(names, key=lambda name: medians[name]) for names in (informed, uninformed)
        )
        lines.append(
            f"  {title}: {with_it} {medians[with_it]:,.1f}, {without} {medians[without]:,.1f}"
        )
    parts.append(
        "The value of side information about costs: least median regret of the policies that have "
        "it, and of those "
        "without any side information\n" + "\n".join(lines)
    )
    parts.append(
        "worst 1%: the share of the regret that the worst hundredth of the problems "
        "has; best: the share of the "
        f"problems on which the policy has the least regret\nintervals of means: "
        f"{ALLOWANCE}"
    )
    return "\n\n".join(parts)


def figures(dataset: "Dataset") -> dict[str, "Figure"]:
    drawn = {}
    for family in dict.fromkeys(dataset.family.values.tolist()):
        part = dataset.isel(bandit=(dataset.family == family).values)
        figure = plots.relative(part, "bts", metric=METRIC)
        figure.supxlabel(
            f"{METRIC.replace('_', '-')} as a multiple of that of bts, at a budget "
            f"of\n"
            f"{part.budget.values[-1]:,g} times the smallest expected cost",
            fontsize=8,
        )
        drawn[f"ratios-{family.lower()}"] = figure
    ranks = (
        ranking(last(dataset), metric=METRIC)
        .isel(budget=0)
        .sortby("mean_rank")
        .policy.values.tolist()
    )
    shown = [name for name in dataset.policy.values if name == "bts" or name in ranks[:6]]
    few = dataset.sel(policy=shown).isel(bandit=(dataset.num_arms == dataset.num_arms.min()).values)
    figure = plots.regret(few, metric=METRIC, panel="family", scale="log-log")
    figure.supxlabel(
        "budget (multiples of the smallest expected cost); BTS, and the policies with the least "
        "mean ranks",
        fontsize=8,
    )
    return {**drawn, "regret": figure}


STUDY = Experiment(
    "omega",
    "All policies on random instances, as in Heyden et al. (KDD 2024).",
    {
        "quick": Size((10,), (500, 1500, 5000), (200,), 1, ("Bernoulli", "Beta")),
        "full": Size((10, 100), tuple(150_000 * part for part in TENTHS), (2000, 1000), 1),
    },
    settings,
    report,
    figures,
    regret_table,
)
