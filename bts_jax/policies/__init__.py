"""Policies: one published algorithm, or one family of algorithms, per file.

`POLICIES` lists those for one resource by name, and `KNAPSACK_POLICIES` those for several
resources. To add a policy, copy the file that is most similar and add a line to `POLICIES` or
`KNAPSACK_POLICIES`. The contract tests then include it.
"""

from bts_jax.policies.baselines import Oracle, Uniform
from bts_jax.policies.bts import BTS, MatchedBTS
from bts_jax.policies.budget_pacer import BudgetPacer
from bts_jax.policies.budget_ucb import BudgetUCB
from bts_jax.policies.epsilon_first import EpsilonFirst
from bts_jax.policies.fractional_kube import FractionalKUBE
from bts_jax.policies.gaussian_bts import GaussianBTS
from bts_jax.policies.greedy_kube import GreedyKUBE
from bts_jax.policies.icm_ucb import CUCB, IUCB, MUCB, BGreedy
from bts_jax.policies.irs_fh import IRSFH
from bts_jax.policies.joint_bts import JointBTS
from bts_jax.policies.kl_ucb_sc import KLUCBSC
from bts_jax.policies.knapsack_bts import KnapsackBTS
from bts_jax.policies.kube import KUBE
from bts_jax.policies.lagrange_bwk import LagrangeBwK
from bts_jax.policies.lincon_ts import LinConTS
from bts_jax.policies.omega_ucb import OmegaStarUCB, OmegaUCB, PatientOmegaUCB
from bts_jax.policies.pd_bwk import PDBwK
from bts_jax.policies.primal_dual_bwk import PrimalDualBwK
from bts_jax.policies.soft_elimination import SoftElimination
from bts_jax.policies.tempered_bts import TemperedBTS
from bts_jax.policies.thompson_lp import TSFixed, TSUpdate
from bts_jax.policies.ucb_b1 import UCBB1
from bts_jax.policies.ucb_b2 import UCBB2
from bts_jax.policies.ucb_b2c import UCBB2C
from bts_jax.policies.ucb_bv1 import UCBBV1
from bts_jax.policies.ucb_bv2 import UCBBV2
from bts_jax.policies.ucb_bwk import UCBBwK
from bts_jax.policies.ucb_sc import UCBSCPlus

POLICIES = {
    "bts": BTS,
    "epsilon-first": EpsilonFirst,
    "pd-bwk": PDBwK,
    "ucb-bv1": UCBBV1,
    "kube": KUBE,
    "ucb-bv2": UCBBV2,
    "fractional-kube": FractionalKUBE,
    "greedy-kube": GreedyKUBE,
    "budget-ucb": BudgetUCB,
    "i-ucb": IUCB,
    "c-ucb": CUCB,
    "m-ucb": MUCB,
    "b-greedy": BGreedy,
    "omega-ucb": OmegaUCB,
    "omega-star-ucb": OmegaStarUCB,
    "patient-omega-ucb": PatientOmegaUCB,
    "ucb-sc-plus": UCBSCPlus,
    "kl-ucb-sc": KLUCBSC,
    "ucb-b2": UCBB2,
    "ucb-b1": UCBB1,
    "ucb-b2c": UCBB2C,
    "irs-fh": IRSFH,
    "matched-bts": MatchedBTS,
    "gaussian-bts": GaussianBTS,
    "joint-bts": JointBTS,
    "tempered-bts": TemperedBTS,
    "soft-elimination": SoftElimination,
    "oracle": Oracle,
    "uniform": Uniform,
}

# Policies for several resources. They also play with one, except the last three, which need time as
# a resource.
KNAPSACK_POLICIES = {
    "knapsack-bts": KnapsackBTS,
    "primal-dual-bwk": PrimalDualBwK,
    "ucb-bwk": UCBBwK,
    "ts-fixed": TSFixed,
    "ts-update": TSUpdate,
    "lagrange-bwk": LagrangeBwK,
    "lincon-ts": LinConTS,
    "budget-pacer": BudgetPacer,
}

ALL_POLICIES = POLICIES | KNAPSACK_POLICIES

__all__ = [
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
    "BudgetPacer",
    "BudgetUCB",
    "EpsilonFirst",
    "FractionalKUBE",
    "GaussianBTS",
    "GreedyKUBE",
    "JointBTS",
    "KnapsackBTS",
    "LagrangeBwK",
    "LinConTS",
    "MatchedBTS",
    "OmegaStarUCB",
    "OmegaUCB",
    "Oracle",
    "PDBwK",
    "PatientOmegaUCB",
    "PrimalDualBwK",
    "SoftElimination",
    "TSFixed",
    "TSUpdate",
    "TemperedBTS",
    "UCBBwK",
    "UCBSCPlus",
    "Uniform",
]
