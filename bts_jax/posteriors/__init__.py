"""Posteriors: what a Thompson policy believes about the arms' means. One posterior per file.

A Thompson policy is a rule, such as "the largest ratio", applied to draws of expected rewards and
costs. Its fields `reward` and `cost` say what the draws come from, as in `BTS(cost=Gamma())`.
`POSTERIORS` lists all posteriors by name.

    Beta          values in [0, 1] by Bernoulli trials: the paper's
    MatchedBeta   values in [0, 1] without trials: less regret than Beta where they are not just 0
                  and 1
    Gamma         amounts of any size, such as costs in dollars; priors from price lists and logs
    Dirichlet     values in [0, 1], on a grid
    Normal        values in [0, 1], with a learnt variance
    Known         costs that are known exactly
    Revenue       rewards that follow from the costs, at known prices
    TemperedBeta  Beta with more or less weight on what was seen

A posterior of your own has three methods; see `bts_jax.contract.Posterior`.
`bts_jax.check_posterior` finds errors.
"""

from bts_jax.posteriors.beta import Beta
from bts_jax.posteriors.dirichlet import Dirichlet
from bts_jax.posteriors.gamma import Gamma
from bts_jax.posteriors.known import Known
from bts_jax.posteriors.matched_beta import MatchedBeta
from bts_jax.posteriors.normal import Normal
from bts_jax.posteriors.revenue import Revenue
from bts_jax.posteriors.tempered_beta import TemperedBeta

POSTERIORS = {
    "beta": Beta,
    "gamma": Gamma,
    "dirichlet": Dirichlet,
    "normal": Normal,
    "known": Known,
    "matched-beta": MatchedBeta,
    "revenue": Revenue,
    "tempered-beta": TemperedBeta,
}

__all__ = [
    "POSTERIORS",
    "Beta",
    "Dirichlet",
    "Gamma",
    "Known",
    "MatchedBeta",
    "Normal",
    "Revenue",
    "TemperedBeta",
]
