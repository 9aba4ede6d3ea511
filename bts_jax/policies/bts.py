"""BTS: budgeted Thompson sampling, the paper's algorithm; and matched BTS, without its Bernoulli
trials.
"""

from typing import Any, ClassVar

from bts_jax.policies.thompson import LargestRatio
from bts_jax.posteriors import Beta, Gamma, MatchedBeta
from bts_jax.pytrees import pytree


@pytree
class BTS(LargestRatio):
    """Budgeted Thompson sampling (Xia et al., IJCAI 2015, Algorithm 1).

    In each round, draw for every arm i

        θ_i^r ~ Beta(S_i^r + α^r, F_i^r + β^r),   θ_i^c ~ Beta(S_i^c + α^c, F_i^c + β^c),

    where S and F count the successes and failures of reward and cost so far. Pull the arm with the
    largest θ_i^r / θ_i^c. A reward or cost in [0, 1] becomes a success with that probability. For
    Bernoulli arms this changes nothing, so one policy works with all bandits.

    With other posteriors, the draws are from those. If costs are amounts of money, use
    `BTS(cost=Gamma())`: it does not depend on the largest cost. The trials of the paper see only
    failures if most costs are far below the largest one.

    Reference: Xia et al., "Thompson Sampling for Budgeted Multi-Armed Bandits", IJCAI 2015.

    Side information: none, unless a posterior has it.

    Guarantee: regret O(ln B) on every fixed bandit (Theorem 1 of the source) for `Beta(1, 1)`, the
    default. For other posteriors we know of no guarantee.

    Deviations from the source: the posteriors are a choice; the source has `Beta(1, 1)`. The Beta
    draws are exact: rejection sampling continues until a draw is accepted.

    On a classical bandit, where every pull costs 1, this policy is not exactly classical Thompson
    sampling. It does not know the costs, and its draws θ^c ~ Beta(n + 1, 1) make it explore
    somewhat more. `BTS(cost=Known())` knows the costs, and is classical Thompson sampling there.

    Args:
        reward: the posterior of expected rewards; see `bts_jax.posteriors`.
        cost: the posterior of expected costs.

    Example:
        >>> import jax, bts_jax
        >>> from bts_jax.posteriors import Gamma
        >>> bandit = bts_jax.Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9])
        >>> run = bts_jax.simulate(BTS(), bandit, 100, jax.random.key(0))
        >>> run.cost.tolist()
        [100.0]
        >>> BTS(cost=Gamma()).reward
        Beta(alpha=1.0, beta=1.0)
    """

    renamed: ClassVar[dict[str, str]] = {
        "reward_alpha": "reward.alpha",
        "reward_beta": "reward.beta",
        "cost_alpha": "cost.alpha",
        "cost_beta": "cost.beta",
    }

    before: ClassVar[dict[str, Any]] = {"reward": Beta(), "cost": Beta()}

    reward: Any = Beta()
    cost: Any = Beta()


@pytree
class MatchedBTS(BTS):
    """Matched BTS: `BTS(reward=MatchedBeta(), cost=Gamma())`, under its own name. Ours.

    The rule is that of `BTS`. In place of Bernoulli trials, the draws have the means and the
    variances of the Bayesian bootstrap. So arms whose rewards and costs vary little are explored
    less, and costs may have any size.

    On random problems with costs in [0, 1] it has a smaller median regret than BTS. It has a
    smaller mean, too, but this is undecided on ten Bernoulli arms (notebook 07). If costs are
    amounts of money, it has far less regret (notebook 10).

    Reference: ours; see `MatchedBeta` and `Gamma` for the posteriors.

    Side information: none, unless a posterior has it.

    Guarantee: none known to us. (With `Beta(1, 1)` twice the policy is BTS, which has one.)

    Args:
        reward: the posterior of expected rewards; see `bts_jax.posteriors`.
        cost: the posterior of expected costs.

    Example:
        >>> MatchedBTS().cost
        Gamma(mean=0.0, strength=0.5, variation=1.0, sharpness=1.0)
    """

    renamed: ClassVar[dict[str, str]] = {}
    before: ClassVar[dict[str, Any]] = {}

    reward: Any = MatchedBeta()
    cost: Any = Gamma()
