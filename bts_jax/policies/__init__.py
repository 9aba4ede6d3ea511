"""Who decides: one published algorithm per file. `POLICIES` names them all.

To add one, copy the file nearest to it and add a line to `POLICIES`; the tests of the contract then run on it.
"""

from bts_jax.policies.bts import BTS
from bts_jax.policies.epsilon_first import EpsilonFirst
from bts_jax.policies.kube import KUBE
from bts_jax.policies.pd_bwk import PDBwK
from bts_jax.policies.soft_elimination import SoftElimination
from bts_jax.policies.tempered_bts import TemperedBTS
from bts_jax.policies.ucb_bv1 import UCBBV1
from bts_jax.policies.yardsticks import Oracle, Uniform

POLICIES = {
    "bts": BTS,
    "epsilon-first": EpsilonFirst,
    "pd-bwk": PDBwK,
    "ucb-bv1": UCBBV1,
    "kube": KUBE,
    "tempered-bts": TemperedBTS,
    "soft-elimination": SoftElimination,
    "oracle": Oracle,
    "uniform": Uniform,
}

__all__ = [
    "BTS", "KUBE", "POLICIES", "UCBBV1", "EpsilonFirst", "Oracle", "PDBwK", "SoftElimination", "TemperedBTS", "Uniform",
]
