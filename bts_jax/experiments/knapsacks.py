"""Which policy is best if pulls consume several resources? (Bandits with knapsacks.)"""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bts_jax import plots
from bts_jax.bandits import Bernoulli, Pricing, Timed
from bts_jax.experiments.common import (
    CRITERION,
    METRIC,
    Instance,
    differences,
    draw,
    played,
    power,
    regret_table,
    sampled,
    standing,
)
from bts_jax.experiments.runner import Experiment, Size
from bts_jax.policies import KNAPSACK_POLICIES, Uniform
from bts_jax.statistics import by_kind, measured
from bts_jax.text import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

OURS = "knapsack-bts"
LEFT_OUT = ("lincon-ts", "budget-pacer")  # younger than this study
CUSTOMERS = 4.0  # per unit of stock of each product
ROUNDS = 3.0  # per unit of each budget, on Bernoulli arms


def _shop(products: int, arms: int, key: jax.Array) -> Timed:
    return Timed(Pricing.random(key, arms, num_products=products), horizon=CUSTOMERS)


def _arms(costs: int, arms: int, key: jax.Array) -> Timed:
    return Timed(Bernoulli.random(key, arms, num_resources=costs), horizon=ROUNDS)


KINDS = {
    **{
        f"{products} product{'s' * (products > 1)}": partial(_shop, products)
        for products in (1, 2, 3)
    },
    **{f"Bernoulli, d = {costs + 1}": partial(_arms, costs) for costs in (1, 2)},
}


def settings(size: Size, seed: int) -> dict[str, Any]:
    instances: list[Instance] = []
    for arms, count in zip(size.arms, size.instances, strict=True):
        for place, kind in enumerate(size.families):
            instances += draw(
                partial(KINDS[kind], arms), kind, arms, count, seed, 100 * arms + place
            )
    policies: dict[str, Any] = {
        name: kind() for name, kind in KNAPSACK_POLICIES.items() if name not in LEFT_OUT
    }
    return {"policies": {**policies, "uniform": Uniform()}, **played(instances)}


def growth(part: "Dataset", policy: str, *, resamples: int = 2000) -> tuple[float, float, float]:
    """The exponent of the mean regret over the instances (`common.power`), with a bootstrap over
    them.
    """
    values = (
        measured(part, METRIC).sel(policy=policy).mean("seed").transpose("bandit", "budget").values
    )
    count = len(values)
    weights = (
        np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), resamples) / count
    )
    return power(part.budget.values, values.mean(0), weights @ values)


def report(dataset: "Dataset") -> str:
    parts, growing, kinds = [], [], by_kind(dataset)
    policies = [str(name) for name in dataset.policy.values]
    rivals = [name for name in policies if name != OURS]
    pairs = [(name, title) for name in rivals for title in kinds]
    verdicts = dict(
        zip(pairs, differences([(kinds[title], OURS, name) for name, title in pairs]), strict=True)
    )
    for title, part in kinds.items():
        parts.append(
            f"{title}: regret at a budget of {part.budget.values[-1]:,g} of each "
            f"resource; {sampled(part)}\n"
            f"{standing(part, OURS)}"
        )
        growing.append((title, {name: growth(part, name) for name in policies}))
    lines = []
    for name in rivals:
        words = [verdicts[name, title][0] for title in kinds]
        counts = ", ".join(
            f"{text} on {words.count(word)}"
            for word, text in (("less", "BETTER"), ("undecided", "UNDECIDED"), ("more", "WORSE"))
            if word in words
        )
        lines += [
            f"  than {name}: {counts} of {len(words)} kinds",
            *(f"    {title}: {verdicts[name, title][1]}" for title in kinds),
        ]
    parts.append("\n".join([f"Is {OURS} better, with less mean regret", *lines, f"  {CRITERION}"]))
    rows = [
        [
            name,
            *(
                f"{x:.2f} ({low:.2f} … {high:.2f})"
                for x, low, high in (found[name] for _, found in growing)
            ),
        ]
        for name in policies
    ]
    budgets = dataset.budget.values
    below = [name for name in policies if all(found[name][2] < 1 for _, found in growing)]
    parts.append(
        f"Growth of the mean regret with the budget, from {budgets[0]:,g} to {budgets[-1]:,g}: the "
        "exponent x of a fit by B^x, with its 95% interval\n"
        + table(["policy", *(title for title, _ in growing)], rows)
        + f"\nSUBLINEAR (the interval is below 1 on every kind): "
        f"{', '.join(below) or 'none'}"
    )
    parts.append(
        "regret: the optimum of the linear program minus the expected reward of the "
        "pulls. The optimum is an upper "
        "bound for every policy.\nworst 1%: the share of the regret that the worst "
        "hundredth of the problems has; "
        "best: the share of the problems on which the policy has the least regret"
    )
    return "\n\n".join(parts)


def figures(dataset: "Dataset") -> dict[str, "Figure"]:
    figure = plots.regret(dataset, metric=METRIC, panel="family", scale="log-log")
    figure.supxlabel("budget of each resource", fontsize=8)
    return {"regret": figure}


STUDY = Experiment(
    "knapsacks",
    "Policies for several resources: pricing with a limited stock and a limited time, and "
    "Bernoulli arms (bandits with knapsacks).",
    {
        "quick": Size((10,), (100, 300, 1000), (40,), 1, tuple(KINDS)),
        "full": Size((10,), (100, 300, 1000, 3000, 10_000), (1000,), 1, tuple(KINDS)),
    },
    settings,
    report,
    figures,
    regret_table,
)
