"""Budgeted multi-armed bandits in JAX.

    run = simulate(policy, bandit, budget, key)

Playing     simulate, Run; simulate_batch, the fast way to many runs
Bandits     Bernoulli, Multinomial; BANDITS names them all
Policies    BTS, EpsilonFirst, PDBwK, UCBBV1, KUBE; the yardsticks Oracle, Uniform; POLICIES names them all
Measuring   regret, pseudo_regret; interval, paired, ranking; figures in bts_jax.plots
Your own    Policy, Bandit, Problem: the contract (bts_jax.contract); samplers in bts_jax.random
"""

from bts_jax._version import __version__
from bts_jax.bandits import BANDITS, Bernoulli, Multinomial
from bts_jax.batch import claim_cores, simulate_batch
from bts_jax.contract import Bandit, Policy, Problem
from bts_jax.game import Run, simulate
from bts_jax.metrics import interval, paired, pseudo_regret, ranking, regret
from bts_jax.policies import BTS, KUBE, POLICIES, UCBBV1, EpsilonFirst, Oracle, PDBwK, Uniform

claim_cores()

__all__ = [
    "BANDITS",
    "BTS",
    "KUBE",
    "POLICIES",
    "UCBBV1",
    "Bandit",
    "Bernoulli",
    "EpsilonFirst",
    "Multinomial",
    "Oracle",
    "PDBwK",
    "Policy",
    "Problem",
    "Run",
    "Uniform",
    "__version__",
    "interval",
    "paired",
    "pseudo_regret",
    "ranking",
    "regret",
    "simulate",
    "simulate_batch",
]
