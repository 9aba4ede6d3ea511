"""Studies beyond the paper, as presets: the whole field, heavy tails, and the paper's three open questions.

    omega       the setting of Heyden et al. (KDD 2024): random problems of three families (two, in the quick size), a budget
                of 150,000 times the smallest expected cost (5,000 times), all policies
    tails       BTS, ω*-UCB and KUBE on many such problems: lost runs, means and medians by budget, what a sample can tell
    priors      Beta priors and Gaussian posteriors against the uniform prior (the paper's future work 2)
    correlated  what it does to BTS that reward and cost of an arm depend on each other (future work 3)
    worst-case  how regret grows with the budget where the gaps are the worst for each budget (future work 1)

Each is a sweep, saved as it goes, from which figures, a table and a report follow. Regret is pseudo-regret throughout: the
expected loss of the arms that were pulled, which has less noise. Each random problem has one run, because new problems reduce
the variance more than repeated runs. Every verdict names its criterion, and "undecided" says about how many problems it would
take at least to decide.

Where Heyden et al. leave something open, the problems are those of the program they published: each repetition has a problem of
its own and one run on it, and a multinomial arm's probabilities are five uniform numbers divided by their sum. Policies have
the default settings of `bts_jax.policies`, whose docstrings say where they differ from that program.
"""

import csv
import dataclasses
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bts_jax import checks, files, plots
from bts_jax.batch import on_the_host
from bts_jax.intervals import interval, tail
from bts_jax.statistics import by_kind, measured, ranking
from bts_jax.studies import correlated, omega, priors, tails, worst_case
from bts_jax.studies.common import METRIC, labelled

if TYPE_CHECKING:
    from xarray import Dataset

STUDIES = {"omega": omega.STUDY, "tails": tails.STUDY, "priors": priors.STUDY, "correlated": correlated.STUDY,
           "worst-case": worst_case.STUDY}


def study(
    name: str,
    scale: str = "quick",
    *,
    instances: int | None = None,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    quiet: bool = False,
) -> tuple["Dataset", str]:
    """Runs a study, and writes its figures, its numbers and what follows from them. Interrupted, the same call goes on.

    Args:
        name: "omega", "tails", "priors", "correlated" or "worst-case"; see the top of this module.
        scale: "quick", up to three minutes on two cores; or "full", which is for a GPU.
        instances: how many random problems of each kind, if not as many as the scale has. The first are the same whatever
            their number. A round number, such as 500, is saved faster: problems are saved in groups of equal size. The report
            says about how many it would take to decide what is undecided. The worst case has no random problems.
        seed: where all randomness comes from, that of the problems and that of the runs.
        out: a folder for figures (PNG and PDF), `table.csv`, `report.txt`, and `runs.zarr` with all runs; by default
            "omega-quick", or "omega-quick-500" with 500 instances.
        quiet: no progress bar.

    Returns:
        The Dataset of all runs, and the report.
    """
    from bts_jax.sweeps.run import sweep

    if name not in STUDIES:
        raise ValueError(f"name = {name!r} is not a study: give {', '.join(map(repr, STUDIES))}")
    chosen = STUDIES[name]
    if scale not in chosen.sizes:
        raise ValueError(f"scale = {scale!r} is not known: give {' or '.join(map(repr, chosen.sizes))}")
    checks.whole("seed", seed, -(2**31))
    size = chosen.sizes[scale]
    if instances is not None:
        if name == "worst-case":
            raise ValueError(f"instances = {instances!r} is for random problems, and the worst case has none: leave it out")
        size = dataclasses.replace(size, instances=(checks.whole("instances", instances, 2),) * len(size.arms))
    folder = Path(out if out is not None else default_folder(name, scale, instances))
    files.check_folder(folder)
    with on_the_host():
        settings = chosen.settings(size, seed)
    files.make_folder(folder)
    dataset = sweep(budgets=size.budgets, seeds=size.runs, seed=seed, out=folder / "runs.zarr", quiet=quiet, **settings)
    kinds = labelled(dataset)
    text = f"{chosen.about}\n\n{chosen.report(kinds)}"
    if truncated := int(dataset.truncated.sum()):
        text += f"\n\n{truncated} runs hit the limit of rounds."
    for title, figure in chosen.figures(kinds).items():
        plots.save(figure, folder / title)
    files.write(folder / "report.txt", (text + "\n").encode())
    files.write(folder / "table.csv", _csv(kinds).encode())
    return dataset, text


def default_folder(name: str, scale: str, instances: int | None) -> str:
    """Where a study is saved unless a folder is given."""
    return f"{name}-{scale}" if instances is None else f"{name}-{scale}-{instances}"


def _csv(dataset: "Dataset") -> str:
    """Regret of every policy on every kind of instance at every budget, as CSV."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["kind", "policy", "side information", "budget", "mean regret", "95% from", "95% to", "median",
                     "median 95% from", "median 95% to", "lower quartile", "upper quartile", "upper tenth", "tail index",
                     "worst 1%", "mean rank", "instances", "runs on each"])
    columns = ("mean", "low", "high", "median", "median_low", "median_high", "lower_quartile", "upper_quartile", "upper_tenth",
               "tail_index", "worst_share", "mean_rank")
    for kind, part in by_kind(dataset).items():
        ranks = ranking(part, metric=METRIC)
        runs = measured(part, METRIC)
        for policy in map(str, ranks.policy.values):
            for budget in ranks.budget.values:
                row = ranks.sel(policy=policy, budget=budget)
                numbers = [float(row[name]) for name in columns]
                if part.sizes["bandit"] == 1:  # the runs are the sample
                    values = runs.sel(policy=policy, budget=budget)
                    middle = interval(values.values[0], unseen=(np.nan, float(values.lost_run.values[0])))
                    numbers[:6] = *map(float, middle), *map(float, interval(values.values[0], statistic="median"))
                    numbers[6:11] = *np.quantile(values.values[0], [0.25, 0.75, 0.9]), *tail(values.values[0])
                writer.writerow([kind, policy, part.told.sel(policy=policy).item(), f"{budget:g}",
                                 *(f"{number:.6g}" for number in numbers), part.sizes["bandit"], part.sizes["seed"]])
    return file.getvalue()
