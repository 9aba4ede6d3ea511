"""Budgeted multi-armed bandits in JAX.

    run = simulate(policy, bandit, budget, key)

Playing     simulate, Run: one run; simulate_batch: many runs, fast; trace, Trace: a run round by
            round; compare: several policies on one bandit
Bandits     Bernoulli, Multinomial, Beta; Correlated, Copula: dependent reward and cost; Empirical:
            your data; FixedPrice: known prices; Scaled: other costs; Pricing, Timed, WithNull:
            several resources; BANDITS lists all of them by name
Policies    BTS; EpsilonFirst, PDBwK, UCBBV1, KUBE: its competitors in the paper; UCBBV2,
            FractionalKUBE, GreedyKUBE, BudgetUCB, IUCB, CUCB, MUCB, BGreedy, OmegaUCB,
            OmegaStarUCB, UCBSCPlus, KLUCBSC, UCBB2, UCBB1, UCBB2C, IRSFH; MatchedBTS, GaussianBTS,
            JointBTS: variants of BTS; PatientOmegaUCB; TemperedBTS, SoftElimination: policies to be
            learned; Oracle, Uniform: baselines; POLICIES lists them by name. For several resources:
            KnapsackBTS, PrimalDualBwK, UCBBwK, TSFixed, TSUpdate, LagrangeBwK, LinConTS,
            BudgetPacer, Uniform; KNAPSACK_POLICIES lists them by name
Posteriors  what Thompson policies believe: Beta, the paper's; Gamma, for costs of any size;
            Dirichlet, Normal, Known; as in BTS(cost=posteriors.Gamma()); see bts_jax.posteriors
Theory      gaps, bounds, the lower bound and the exact optimum in bts_jax.theory
Measuring   regret, pseudo_regret; interval, paired, ranking (bts_jax.intervals describes their
            limits, bts_jax.statistics has more); regret_table in bts_jax.tables; figures in
            bts_jax.plots
Sweeping    sweep: a grid of policies, bandits, budgets and seeds, saved while it runs;
            open_results; merge
Learning    fit: a policy's hyperparameters for a distribution of problems; gradients in
            bts_jax.learn
Your own    Policy, Bandit, Posterior, Problem: the contract (bts_jax.contract); check_policy,
            check_bandit, check_posterior; samplers in bts_jax.random
Starting    enable_cache: stores compiled programs for later processes
The paper   its Figure 1, its observations and further studies in bts_jax.experiments; on the
            command line: bts-jax --help

Importing this package makes every CPU core a device of JAX. simulate_batch and sweep use all of
them. Import it before JAX computes anything: after JAX has started, it keeps one device, and a
warning is logged. If several worker processes run on one machine, set BTS_JAX_WORKERS to their
number; see help(bts_jax.devices.claim_cores).

Each function and class has a docstring with the rule, the arguments and an example, for example
help(bts_jax.BTS). CHANGELOG.md in this package's folder lists the changes.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bts_jax import posteriors
from bts_jax._version import __version__
from bts_jax.bandits import (
    BANDITS,
    Bernoulli,
    Beta,
    Copula,
    Correlated,
    Empirical,
    FixedPrice,
    Multinomial,
    Pricing,
    Scaled,
    Timed,
    WithNull,
)
from bts_jax.batch import simulate_batch
from bts_jax.comparison import compare
from bts_jax.conformance import check_bandit, check_policy, check_posterior
from bts_jax.contract import Bandit, Policy, Posterior, Problem
from bts_jax.devices import claim_cores
from bts_jax.engine.compile.cache import enable_cache
from bts_jax.intervals import interval
from bts_jax.metrics import pseudo_regret, regret
from bts_jax.one_run import simulate
from bts_jax.policies import (
    BTS,
    CUCB,
    IRSFH,
    IUCB,
    KLUCBSC,
    KNAPSACK_POLICIES,
    KUBE,
    MUCB,
    POLICIES,
    UCBB1,
    UCBB2,
    UCBB2C,
    UCBBV1,
    UCBBV2,
    BGreedy,
    BudgetPacer,
    BudgetUCB,
    EpsilonFirst,
    FractionalKUBE,
    GaussianBTS,
    GreedyKUBE,
    JointBTS,
    KnapsackBTS,
    LagrangeBwK,
    LinConTS,
    MatchedBTS,
    OmegaStarUCB,
    OmegaUCB,
    Oracle,
    PatientOmegaUCB,
    PDBwK,
    PrimalDualBwK,
    SoftElimination,
    TemperedBTS,
    TSFixed,
    TSUpdate,
    UCBBwK,
    UCBSCPlus,
    Uniform,
)
from bts_jax.rules import Run
from bts_jax.statistics import paired, ranking
from bts_jax.trace import Trace, trace

if TYPE_CHECKING:
    from bts_jax.learn import fit
    from bts_jax.sweeps.growth import merge
    from bts_jax.sweeps.opening import open_results
    from bts_jax.sweeps.run import sweep

claim_cores()

# Imported when used, because storage is slow to import.
_LATER = {
    "sweep": "bts_jax.sweeps.run",
    "open_results": "bts_jax.sweeps.opening",
    "merge": "bts_jax.sweeps.growth",
    "fit": "bts_jax.learn",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'bts_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


__all__ = [
    "BANDITS",
    "BTS",
    "CUCB",
    "IRSFH",
    "IUCB",
    "KLUCBSC",
    "KNAPSACK_POLICIES",
    "KUBE",
    "MUCB",
    "POLICIES",
    "UCBB1",
    "UCBB2",
    "UCBB2C",
    "UCBBV1",
    "UCBBV2",
    "BGreedy",
    "Bandit",
    "Bernoulli",
    "Beta",
    "BudgetPacer",
    "BudgetUCB",
    "Copula",
    "Correlated",
    "Empirical",
    "EpsilonFirst",
    "FixedPrice",
    "FractionalKUBE",
    "GaussianBTS",
    "GreedyKUBE",
    "JointBTS",
    "KnapsackBTS",
    "LagrangeBwK",
    "LinConTS",
    "MatchedBTS",
    "Multinomial",
    "OmegaStarUCB",
    "OmegaUCB",
    "Oracle",
    "PDBwK",
    "PatientOmegaUCB",
    "Policy",
    "Posterior",
    "Pricing",
    "PrimalDualBwK",
    "Problem",
    "Run",
    "Scaled",
    "SoftElimination",
    "TSFixed",
    "TSUpdate",
    "TemperedBTS",
    "Timed",
    "Trace",
    "UCBBwK",
    "UCBSCPlus",
    "Uniform",
    "WithNull",
    "__version__",
    "check_bandit",
    "check_policy",
    "check_posterior",
    "compare",
    "enable_cache",
    "fit",
    "interval",
    "merge",
    "open_results",
    "paired",
    "posteriors",
    "pseudo_regret",
    "ranking",
    "regret",
    "simulate",
    "simulate_batch",
    "sweep",
    "trace",
]
