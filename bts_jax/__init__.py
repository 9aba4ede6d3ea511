"""Budgeted multi-armed bandits in JAX.

    run = simulate(policy, bandit, budget, key)

Playing     simulate, Run; simulate_batch, the fast way to many runs; trace, Trace, a run round by round; compare, policies
            side by side on one bandit
Bandits     Bernoulli, Multinomial, Beta, Correlated, Empirical; Scaled, with other costs; BANDITS names them all
Policies    BTS; EpsilonFirst, PDBwK, UCBBV1, KUBE, its rivals in the paper; UCBBV2, FractionalKUBE, BudgetUCB, IUCB, CUCB,
            MUCB, BGreedy, OmegaUCB, OmegaStarUCB, UCBSCPlus, KLUCBSC, UCBB2; GaussianBTS and JointBTS, variants of BTS; to be
            learnt, TemperedBTS, SoftElimination; the baselines Oracle, Uniform; POLICIES names them all
Theory      gaps, bounds, the lower bound and the exact optimum in bts_jax.theory
Measuring   regret, pseudo_regret; interval, paired, ranking (how far to trust them: bts_jax.intervals; more of the kind in
            bts_jax.statistics); regret_table in bts_jax.tables; figures in
            bts_jax.plots
Sweeping    sweep, a grid of all these, saved as it goes; open_results; merge
Learning    fit, a policy's hyperparameters for a distribution of problems; gradients in bts_jax.learn
Your own    Policy, Bandit, Problem: the contract (bts_jax.contract); check_policy, check_bandit; samplers in bts_jax.random
Starting    enable_cache, which keeps compiled programs for later processes
The paper   its Figure 1, its observations and studies beyond it in bts_jax.experiments; on the command line: bts-jax --help

Importing this package makes every CPU core a device of JAX, on which simulate_batch and sweep run. Import it before JAX
computes anything: once JAX has started, it keeps one device, and a warning is logged. If several worker processes run on one
machine, set BTS_JAX_WORKERS to their number; see help(bts_jax.devices.claim_cores).

Each has a docstring with the rule, the arguments and an example: help(bts_jax.BTS). What is new is in CHANGELOG.md, in this
package's folder.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bts_jax._version import __version__
from bts_jax.bandits import BANDITS, Bernoulli, Beta, Correlated, Empirical, Multinomial, Scaled
from bts_jax.batch import simulate_batch
from bts_jax.cache import enable_cache
from bts_jax.comparison import compare
from bts_jax.conformance import check_bandit, check_policy
from bts_jax.contract import Bandit, Policy, Problem
from bts_jax.devices import claim_cores
from bts_jax.game import Run, simulate
from bts_jax.intervals import interval
from bts_jax.metrics import pseudo_regret, regret
from bts_jax.policies import (
    BTS,
    CUCB,
    IUCB,
    KLUCBSC,
    KUBE,
    MUCB,
    POLICIES,
    UCBB2,
    UCBBV1,
    UCBBV2,
    BGreedy,
    BudgetUCB,
    EpsilonFirst,
    FractionalKUBE,
    GaussianBTS,
    JointBTS,
    OmegaStarUCB,
    OmegaUCB,
    Oracle,
    PDBwK,
    SoftElimination,
    TemperedBTS,
    UCBSCPlus,
    Uniform,
)
from bts_jax.statistics import paired, ranking
from bts_jax.trace import Trace, trace

if TYPE_CHECKING:
    from bts_jax.learn import fit
    from bts_jax.sweeps.growth import merge
    from bts_jax.sweeps.opening import open_results
    from bts_jax.sweeps.run import sweep

claim_cores()

# Imported when used: storage is heavy.
_LATER = {"sweep": "bts_jax.sweeps.run", "open_results": "bts_jax.sweeps.opening", "merge": "bts_jax.sweeps.growth",
          "fit": "bts_jax.learn"}


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
    "IUCB",
    "KLUCBSC",
    "KUBE",
    "MUCB",
    "POLICIES",
    "UCBB2",
    "UCBBV1",
    "UCBBV2",
    "BGreedy",
    "Bandit",
    "Bernoulli",
    "Beta",
    "BudgetUCB",
    "Correlated",
    "Empirical",
    "EpsilonFirst",
    "FractionalKUBE",
    "GaussianBTS",
    "JointBTS",
    "Multinomial",
    "OmegaStarUCB",
    "OmegaUCB",
    "Oracle",
    "PDBwK",
    "Policy",
    "Problem",
    "Run",
    "Scaled",
    "SoftElimination",
    "TemperedBTS",
    "Trace",
    "UCBSCPlus",
    "Uniform",
    "__version__",
    "check_bandit",
    "check_policy",
    "compare",
    "enable_cache",
    "fit",
    "interval",
    "merge",
    "open_results",
    "paired",
    "pseudo_regret",
    "ranking",
    "regret",
    "simulate",
    "simulate_batch",
    "sweep",
    "trace",
]
