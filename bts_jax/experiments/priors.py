"""Does another prior than the uniform one help BTS? (The paper's future work 2.)"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bts_jax import plots, posteriors
from bts_jax.bandits import Bernoulli, Beta
from bts_jax.contract import Bandit
from bts_jax.experiments.common import (
    CRITERION,
    METRIC,
    Instance,
    differences,
    draw,
    played,
    regret_table,
    sampled,
    standing,
    tally,
)
from bts_jax.experiments.runner import Experiment, Size
from bts_jax.policies import BTS, GaussianBTS
from bts_jax.statistics import by_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

PRIORS = {
    "bts": BTS(),
    "Jeffreys": BTS(reward=posteriors.Beta(0.5, 0.5), cost=posteriors.Beta(0.5, 0.5)),
    "Beta(2, 2)": BTS(reward=posteriors.Beta(2, 2), cost=posteriors.Beta(2, 2)),
    "optimist": BTS(reward=posteriors.Beta(2, 1), cost=posteriors.Beta(1, 2)),
    "pessimist": BTS(reward=posteriors.Beta(1, 2), cost=posteriors.Beta(2, 1)),
    "Gaussian 1": GaussianBTS(variance=1.0, learn=0.0),
    "Gaussian 0.25": GaussianBTS(variance=0.25, learn=0.0),
    "Gaussian 0.1": GaussianBTS(variance=0.1, learn=0.0),
    "Gaussian learnt": GaussianBTS(variance=0.25, learn=0.3),
}
RANGES = {"Bernoulli, means 0.1–0.9": (0.1, 0.9), "Bernoulli, means 0.4–0.6": (0.4, 0.6)}


def settings(size: Size, seed: int) -> dict[str, Any]:
    instances: list[Instance] = []
    for place, (arms, count) in enumerate(zip(size.arms, size.instances, strict=True)):
        makers: dict[str, Callable[..., Bandit]] = {
            kind: partial(Bernoulli.random, num_arms=arms, reward_range=means, cost_range=means)
            for kind, means in RANGES.items()
        }
        makers["Beta, shapes 1–5"] = partial(Beta.random, num_arms=arms, shape_range=(1, 5))
        for i, (kind, make) in enumerate(makers.items()):
            instances += draw(make, kind, arms, count, seed, 3 * place + i)
    return {"policies": PRIORS, **played(instances)}


def report(dataset: "Dataset") -> str:
    parts = [
        "Jeffreys: Beta(1/2, 1/2); optimist: Beta(2, 1) for rewards and Beta(1, 2) for "
        "costs; pessimist: the reverse\n"
        "Gaussian: normal posteriors with this variance, or with one that is learnt from "
        "the arm's rewards and costs"
    ]
    for title, part in by_kind(dataset).items():
        parts.append(
            f"{title}: regret at budget {part.budget.values[-1]:,g}; "
            f"{sampled(part)}\n{standing(part)}"
        )
    names = [name for name in map(str, dataset.policy.values) if name != "bts"]
    kinds = by_kind(dataset)
    found = differences([(part, name, "bts") for name in names for part in kinds.values()])
    for i, name in enumerate(names):
        mine = found[i * len(kinds) : (i + 1) * len(kinds)]
        verdict = tally(
            [word for word, _ in mine],
            {"less": "helps", "undecided": "is undecided", "more": "hurts"},
        )
        parts.append(
            "\n".join(
                [
                    f"{name} in place of the uniform prior",
                    f"  {verdict.upper()}",
                    *(f"  {title}: {line}" for title, (_, line) in zip(kinds, mine, strict=True)),
                ]
            )
        )
    return "\n\n".join([*parts, CRITERION])


def figures(dataset: "Dataset") -> dict[str, "Figure"]:
    return {
        "ratios": plots.relative(dataset, "bts", metric=METRIC),
        "regret": plots.regret(dataset, metric=METRIC, panel="family", scale="log-log"),
    }


STUDY = Experiment(
    "priors",
    "Does another prior than the uniform one help BTS? (The paper's future work 2.)",
    {
        "quick": Size((10,), (100, 300, 1000, 3000), (200,), 1),
        "full": Size((10, 100), (300, 1000, 3000, 10_000, 50_000), (2000, 500), 1),
    },
    settings,
    report,
    figures,
    regret_table,
)
