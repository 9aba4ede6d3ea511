"""The paper's experiments and studies beyond it, as presets on one runner.

    figure1     the simulations of the paper's Section 5, with verdicts on its observations
                (`observations`)

    omega       the setting of Heyden et al. (KDD 2024): random problems of three families (two, in
                the quick size), a budget of 150,000 times the smallest expected cost (5,000 times),
                all policies
    tails       BTS, ω*-UCB and KUBE on many such problems: lost runs, means and medians by budget,
                what a sample can show
    priors      Beta priors and Gaussian posteriors against the uniform prior (the paper's future
                work 2)
    correlated  the effect on BTS of a dependence between reward and cost of an arm (future work 3)
    worst-case  how regret grows with the budget where the gaps are the worst for each budget
                (future work 1)
    knapsacks   policies for several resources: pricing with a limited stock and time, and Bernoulli
                arms
    money       posteriors and policies for costs of unknown size, with one budget, and with T
                requests and B dollars

Each is a sweep, which is saved as it is computed. Figures, a table and a report are derived from it
(`runner`). All except `figure1` are studies (`study`). In a study, regret is pseudo-regret
throughout: the expected loss of the arms that were pulled, which has less noise. Each random
problem has one run, because new problems reduce the variance more than repeated runs. Every verdict
names its criterion. If it is "undecided", the report has a lower estimate of how many problems
would decide.

Where Heyden et al. leave something open, the problems are those of the program they published: each
repetition has a new problem with one run on it, and the probabilities of a multinomial arm are five
uniform numbers divided by their sum. Policies have the default settings of `bts_jax.policies`.
Their docstrings say where they differ from that program.
"""

import os
from typing import TYPE_CHECKING

from bts_jax.experiments import (
    correlated,
    knapsacks,
    money,
    omega,
    priors,
    runner,
    tails,
    worst_case,
)
from bts_jax.experiments.runner import default_folder

if TYPE_CHECKING:
    from xarray import Dataset

STUDIES = {
    study.name: study
    for study in (
        omega.STUDY,
        tails.STUDY,
        priors.STUDY,
        correlated.STUDY,
        worst_case.STUDY,
        knapsacks.STUDY,
        money.STUDY,
    )
}
__all__ = ["STUDIES", "default_folder", "study"]


def study(
    name: str,
    scale: str = "quick",
    *,
    instances: int | None = None,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    quiet: bool = False,
) -> tuple["Dataset", str]:
    """Runs a study, and writes its figures, a table and a report. After an interruption, the same
    call continues.

    Args:
        name: "omega", "tails", "priors", "correlated", "worst-case", "knapsacks" or "money"; see
            the top of this module.
        scale: "quick", up to three minutes on two cores; or "full", which is for a GPU.
        instances: the number of random problems of each kind; the default depends on the scale. The
            first problems are the same for every number. A round number, such as 500, is saved
            faster: problems are saved in groups of equal size. The report estimates how many
            problems would decide what is undecided. The worst case has no random problems.
        seed: the random seed, of the problems and of the runs.
        out: a folder for figures (PNG and PDF), `table.csv`, `report.txt`, and `runs.zarr` with all
            runs; by default "omega-quick", or "omega-quick-500" with 500 instances.
        quiet: show no progress; see `bts_jax.progress`.

    Returns:
        The Dataset of all runs, and the report. Coordinates of the bandits are `kind`, `instance`
        (its number, from 1 on) and others that describe the problems of a study.
    """
    if name not in STUDIES:
        raise ValueError(f"name = {name!r} is not a study: give {', '.join(map(repr, STUDIES))}")
    return runner.run(STUDIES[name], scale, instances=instances, seed=seed, out=out, quiet=quiet)
