"""Warns of policies that are made for costs in [0, 1], where most costs are far below the largest
one.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bts_jax.contract import Bandit, Policy, is_timed, needs_cost_limit, scales

SMALL = 0.01  # of the largest cost


def share_of(bandit: Bandit) -> float:
    """`mean_share` of a bandit."""
    found = scales(bandit)
    return mean_share(bandit, bandit.cost_mean, None if found is None else found[1])


def mean_share(bandit: Bandit, cost_mean: Any, cost_scale: Any) -> float:
    """The mean cost, as a share of the largest cost, on which the warning is based. Infinite if
    there is none.

    If the bandit has a `cost_scale`, it is the smallest mean cost of an arm: one dear arm must not
    hide that the others are cheap. If there is none, so that costs are in [0, 1] as in the papers,
    it is the largest: then all costs are small, as if they were dollars and the `cost_scale` were
    missing. Arms that cost nothing do not count. Nor do bandits whose costs are either 0 or the
    largest cost: there, the trials of the papers lose nothing.
    """
    if getattr(bandit, "all_or_nothing", False):
        return np.inf
    share = np.asarray(cost_mean, np.float64) / np.asarray(
        1.0 if cost_scale is None else cost_scale, np.float64
    )
    share = share[..., :-1] if is_timed(bandit) else share
    positive = share[share > 0]
    if not positive.size:
        return np.inf
    return float(positive.max() if cost_scale is None else positive.min())


def warn_of_small_costs(
    policies: Mapping[str, Policy], shares: Callable[[], dict[str, float]], stacklevel: int
) -> None:
    """Warns once if policies that need a limit on a single cost play where mean costs are below a
    hundredth of this limit.

    `shares` returns the `mean_share` of each bandit by its name.
    """
    names = [name for name, policy in policies.items() if needs_cost_limit(policy)]
    if not names:
        return
    found = shares()
    name, share = min(found.items(), key=lambda pair: pair[1])
    if share >= SMALL:
        return
    many, where = len(names) > 1, f"on bandits[{name!r}]" if len(found) > 1 else "here"
    warnings.warn(
        f"{', '.join(names)} {'are' if many else 'is'} made for costs in [0, 1], and {where} the "
        f"mean cost of an arm is {share:.2g} of the largest cost: {'they' if many else 'it'} may "
        "learn costs slowly and earn little. Take a posterior of costs that needs no limit, as in "
        "BTS(cost=bts_jax.posteriors.Gamma()), or another policy; see "
        "help(bts_jax.contract.needs_cost_limit)",
        UserWarning,
        stacklevel=stacklevel + 1,
    )
