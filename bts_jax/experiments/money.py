"""Which posterior and which policy for real costs: amounts of unknown size, one budget, and T
requests for B dollars.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import plots, random
from bts_jax.bandits import Timed
from bts_jax.contract import Means
from bts_jax.experiments.common import (
    CRITERION,
    METRIC,
    Instance,
    at_the_end,
    differences,
    draw,
    look,
    on_instances,
    played,
    regret_table,
    sampled,
    standing,
    tally,
)
from bts_jax.experiments.laws import BERNOULLI, FIVE, SPREAD, TWO, LawArms, log_normal
from bts_jax.experiments.runner import Experiment, Size
from bts_jax.linear_program import lp_value
from bts_jax.policies import ALL_POLICIES, BTS, TSUpdate
from bts_jax.posteriors import Beta, Dirichlet, Gamma, MatchedBeta
from bts_jax.posteriors.moments import Moments
from bts_jax.pytrees import pytree
from bts_jax.statistics import by_kind
from bts_jax.text import ALLOWANCE, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

# A baseline, policies to be learned, "Gamma, Matched".
LEFT_OUT = ("oracle", "tempered-bts", "soft-elimination", "matched-bts")
ONE, BOTH = "B alone", "T and B"
DECADES = 3.0  # over which expected costs are spread

# Posteriors that were compared with `Gamma`. Each is written as a user would write it.


@pytree
class Exponential:
    """Costs are taken for exponential: θ = Σ c / Gamma(n + 1)."""

    def init(self, problem):
        return {"pulls": jnp.zeros(problem.num_arms), "total": jnp.zeros(problem.num_arms)}

    def draw(self, state, key):
        return jnp.maximum(
            state["total"] / random.gamma(key, state["pulls"] + 1), 1e-25 * (state["pulls"] + 1)
        )

    def record(self, state, arm, value, word):
        return {"pulls": state["pulls"].at[arm].add(1), "total": state["total"].at[arm].add(value)}


@pytree
class InverseGamma(Gamma):
    """As `Gamma`, with one over a Gamma draw of the same mean and variance."""

    def draw(self, state, key):
        shape = state.mean / state.squares * state.mean * (state.count * (state.count + 1)) + 2
        shape = jnp.where(state.squares > 0, jnp.minimum(shape, 1e7), 1e7)
        return jnp.maximum(
            state.mean * (shape - 1) / random.gamma(key, shape), 1e-25 * (state.count + 1)
        )


@pytree
class Truncated(Gamma):
    """As `Gamma`, with a normal draw of the same mean and variance. Draws that are not positive are
    rejected.
    """

    def draw(self, state, key):
        spread = jnp.maximum(jnp.sqrt(state.variance), 1e-6 * state.mean)
        return jnp.maximum(
            random.rejection(_positive_normal, key, state.mean, spread), 1e-25 * (state.count + 1)
        )


def _positive_normal(words, mean, spread):
    value = mean + spread * random.normal_pair(words)[0]
    return value, (value > 0) | (mean == 0)


@pytree
class LogNormal:
    """Costs are taken for log-normal: a normal draw of the mean logarithm, with half the observed
    variance added.
    """

    def init(self, problem):
        zeros = jnp.zeros(problem.num_arms)
        return Moments.of(zeros, zeros, zeros)

    def draw(self, state, key):
        n = jnp.maximum(state.count, 1)
        variance = (state.squares + 1) / (n + 1)  # the prior is one logarithm at distance 1
        normal = random.normal_pair(random.bits(key, n.shape))[0]
        value = jnp.exp(state.mean + normal * jnp.sqrt(variance / n) + variance / 2)
        return jnp.where(state.count > 0, value, 1e-25)

    def record(self, state, arm, value, word):
        return state.record(arm, jnp.log(jnp.maximum(value, 1e-7)))


@pytree
class Bootstrap:
    """The exact Bayesian bootstrap of the last 512 costs and one cost of 0 (non-parametric Thompson
    sampling).
    """

    def init(self, problem):
        return {
            "pulls": jnp.zeros(problem.num_arms, jnp.int32),
            "costs": jnp.zeros((problem.num_arms, 512)),
        }

    def draw(self, state, key):
        costs, pulls = state["costs"], state["pulls"]
        weights = random.exponential(random.bits(key, costs.shape)[0])
        # The first place that is free has the cost 0.
        weights = jnp.where(jnp.arange(512) <= pulls[:, None], weights, 0)
        return jnp.maximum((weights * costs).sum(1) / weights.sum(1), 1e-25 * (pulls + 1))

    def record(self, state, arm, value, word):
        place = state["pulls"][arm] % 512
        return {
            "pulls": state["pulls"].at[arm].add(1),
            "costs": state["costs"].at[arm, place].set(value),
        }


LOG_GRID = tuple(np.append(0, np.geomspace(2.0**-16, 1, 17)).tolist())  # steps of a factor of 2
POSTERIORS = {
    "bts": BTS(),
    "Gamma": BTS(cost=Gamma()),
    "Gamma, 1": BTS(cost=Gamma(strength=1.0)),
    "Gamma, 1/4": BTS(cost=Gamma(strength=0.25)),
    "Gamma, Matched": BTS(reward=MatchedBeta(), cost=Gamma()),
    "Gamma, Dirichlet": BTS(reward=Dirichlet(), cost=Gamma()),
    "Matched, Matched": BTS(reward=MatchedBeta(), cost=MatchedBeta()),
    "exponential": BTS(cost=Exponential()),
    "inverse Gamma": BTS(cost=InverseGamma()),
    "truncated normal": BTS(cost=Truncated()),
    "log-normal": BTS(cost=LogNormal()),
    "bootstrap": BTS(cost=Bootstrap()),
    "log grid": BTS(cost=Dirichlet(values=LOG_GRID, prior=0.1)),
}
TRIALS = {"ts-update, trials": TSUpdate(reward=Beta(), cost=Beta())}
QUICK = ("bts", "Gamma", "Gamma, Matched", "exponential")
QUICK_POLICIES = (
    "kube",
    "omega-star-ucb",
    "irs-fh",
    "ts-update",
    "knapsack-bts",
    "primal-dual-bwk",
    "budget-pacer",
)

LAWS: dict[str, dict[str, Any]] = {
    "Bernoulli": {"law": BERNOULLI},
    "five values": {"law": FIVE},
    "fixed prices": {"law": SPREAD},
    "log-normal 0.1": {"law": SPREAD, **log_normal(0.1)},
    "log-normal 1": {"law": SPREAD, **log_normal(1)},
    "log-normal 3": {"law": SPREAD, **log_normal(3)},
    "two values": {"law": TWO},
}


def _arms(fields: dict[str, Any], game: str, arms: int, key: jax.Array) -> Timed:
    """A random problem. In the game "B alone" the time is never used up."""
    key_reward, key_cost = jax.random.split(key)
    if fields["law"] in (BERNOULLI, FIVE):
        cost = jax.random.uniform(key_cost, (arms,), jnp.float32, 0.01, 1)
        level = cost
    else:
        level = jax.random.uniform(key_cost, (arms,), jnp.float32)  # place within the decades
        cost = 10 ** (DECADES * (level - 0.5))
    # Dearer arms are better on average.
    reward = jnp.clip(
        0.2 + 0.5 * level + 0.3 * (jax.random.uniform(key_reward, (arms,), jnp.float32) - 0.5),
        0.01,
        1,
    )
    # In T and B, a unit of money buys as many rounds at the median cost as time allows.
    horizon = 1.5 / cost.min() if game == ONE else 1 / jnp.median(cost)
    fields = {name: jnp.asarray(value) for name, value in fields.items()}
    return Timed(LawArms(reward=reward, cost=cost, **fields), jnp.maximum(horizon, 1))


def settings(size: Size, seed: int) -> dict[str, Any]:
    instances: list[Instance] = []
    for arms, count in zip(size.arms, size.instances, strict=True):
        for place, (law, fields) in enumerate(LAWS.items()):
            if law not in size.families:
                continue
            for i, game in enumerate((ONE, BOTH)):
                instances += draw(
                    partial(_arms, fields, game, arms),
                    f"{law}, {game}",
                    arms,
                    count,
                    seed,
                    2 * place + i,
                )
    quick = len(size.families) < len(LAWS)
    policies: dict[str, Any] = {
        name: policy for name, policy in POSTERIORS.items() if not quick or name in QUICK
    }
    for name, policy in ALL_POLICIES.items():
        if name not in LEFT_OUT and name not in policies and (not quick or name in QUICK_POLICIES):
            policies[name] = policy()
    return {"policies": {**policies, **TRIALS}, **played(instances)}


def shares(part: "Dataset") -> dict[str, np.ndarray]:
    """The share of the linear program that each policy earns at the largest budget, on each
    instance. [bandit]
    """
    budget = float(part.budget[-1])
    values = np.array(
        [
            lp_value(Means(*pair), budget)
            for pair in zip(part.reward_mean.values, part.cost_mean.values, strict=True)
        ]
    )
    return {name: 1 - regret / values for name, regret in on_instances(at_the_end(part)).items()}


def report(dataset: "Dataset") -> str:
    parts = [
        "Gamma: BTS(cost=Gamma()); Gamma, 1 and 1/4: with another strength of the prior; Gamma, "
        "Matched: rewards by MatchedBeta. Other names of posteriors: BTS with that posterior of "
        "costs."
    ]
    rows: dict[str, list[str]] = {}
    best: dict[str, str] = {}
    for title, part in by_kind(dataset).items():
        parts.append(
            f"{title}: regret at a budget of {part.budget.values[-1]:,g}; "
            f"{sampled(part)}\n{standing(part)}"
        )
        found = shares(part)
        for name, share in found.items():
            rows.setdefault(name, []).append(
                f"{share.mean():.3f} ± {1.96 * share.std() / np.sqrt(len(share)):.3f}"
            )
        best[title] = max(
            {name: share.mean() for name, share in found.items()}.items(), key=lambda pair: pair[1]
        )[0]
    verdicts = dict(
        zip(
            best,
            differences([(part, "Gamma", "bts") for part in by_kind(dataset).values()]),
            strict=True,
        )
    )
    words = tally(
        [word for word, _ in verdicts.values()],
        {"less": "helps", "undecided": "is undecided", "more": "hurts"},
    )
    parts.append(
        "\n".join(
            [
                "Gamma posteriors of costs in BTS, in place of Bernoulli trials",
                f"  {words.upper()}",
                *(f"  {title}: {line}" for title, (_, line) in verdicts.items()),
                f"  {CRITERION}",
            ]
        )
    )
    parts.append(
        "The share of the linear program that a policy earns: mean over the instances, with 1.96 "
        "standard errors\n"
        + table(["policy", *best], [[name, *cells] for name, cells in rows.items()])
    )
    parts.append(
        "Largest share\n" + "\n".join(f"  {title}: {name}" for title, name in best.items())
    )
    parts.append(
        "B alone: one budget, and the time is never used up. T and B: as many rounds as "
        "the budget pays at the "
        "median cost. Regret is measured against the linear program in both.\n"
        "worst 1%: the share of the regret that the worst hundredth of the problems "
        "has; best: the share of the "
        f"problems on which the policy has the least regret\nintervals of means: "
        f"{ALLOWANCE}"
    )
    return "\n\n".join(parts)


def figures(dataset: "Dataset") -> dict[str, "Figure"]:
    shown = [
        name
        for name in (
            "bts",
            "Gamma",
            "Gamma, Matched",
            "kube",
            "omega-star-ucb",
            "ts-update",
            "ts-update, trials",
            "primal-dual-bwk",
        )
        if name in dataset.policy.values
    ]
    drawn = {}
    for game, title in ((ONE, "one-budget"), (BOTH, "t-and-b")):
        mine = np.array([kind.endswith(game) for kind in dataset.family.values.tolist()])
        part = dataset.sel(policy=shown).isel(bandit=mine)
        figure = plots.regret(
            part, metric=METRIC, panel="family", scale="log-log", styles=look(part)
        )
        figure.supxlabel("budget", fontsize=8)
        drawn[title] = figure
    return drawn


STUDY = Experiment(
    "money",
    "Posteriors and policies for real costs: amounts of unknown size, with one budget, and with T "
    "requests and B dollars.",
    {
        "quick": Size(
            (10,), (100, 300, 1000), (40,), 1, ("Bernoulli", "log-normal 1", "two values")
        ),
        "full": Size((10,), (100, 300, 1000), (500,), 1, tuple(LAWS)),
    },
    settings,
    report,
    figures,
    regret_table,
)
