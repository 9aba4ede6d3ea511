"""`compare`: plays policies on one bandit. `bts-jax run` prints what it yields."""

import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib import import_module
from itertools import islice
from typing import NamedTuple

import jax
import numpy as np

from bts_jax import arguments, checks, limits, progress, rules
from bts_jax.batch import Batch, best_cost, is_little, lay_out, lower, play, work_of
from bts_jax.contract import Bandit, Policy, num_resources, ratio
from bts_jax.engine.compile.threads import AHEAD, compiling, patiently
from bts_jax.intervals import Interval, interval
from bts_jax.metrics import pseudo_regret, regret
from bts_jax.names import named
from bts_jax.policies import ALL_POLICIES
from bts_jax.rules import Run
from bts_jax.statistics import lost_run, with_and_without
from bts_jax.text import counted


class Compared(NamedTuple):
    """The results of one policy."""

    policy: str
    regret: Interval  # its mean, and the interval over the runs
    pseudo_regret: Interval
    pulls: float  # per run
    best_arm: float  # the best arm's share of the pulls; NaN with several resources: no arm is best
    truncated: int  # runs that hit the limit of rounds
    compile_seconds: float  # how long the caller waited for its program
    seconds: float  # spent on playing, while other programs may be compiled
    runs: Run  # all of them, with one checkpoint, the budget

    @property
    def pulls_per_second(self) -> float:
        return float(self.runs.rounds.sum(dtype=np.int64) / self.seconds)


def compare(
    policies: Mapping[str, Policy] | Sequence[str],
    bandit: Bandit,
    budget: float,
    keys: jax.Array,
    *,
    level: float = 0.95,
    quiet: bool = False,
) -> Iterator[Compared]:
    """Plays policies on one bandit, one after the other, and yields the results of each as soon as
    it is finished.

    While one plays, other threads compile the programs of the next. All policies are compared with
    common random numbers. The runs are those of `simulate_batch(policy, bandit, budget, keys)`.

    Args:
        policies: a dict of policies by name; or a list of names in `POLICIES` or
            `KNAPSACK_POLICIES`, for policies with their default settings.
        bandit: the bandit to play. A user-defined bandit needs nothing beyond
            `bts_jax.contract.Bandit`. A `UserWarning` names policies that are made for costs in [0,
            1] if mean costs are far below the largest cost (`contract.needs_cost_limit`).
        budget: how much may be spent in a run, of each resource if there are several.
        keys: one typed JAX key for each run.
        level: the confidence level. Upper limits are widened as if one more run were lost, see
            `bts_jax.intervals`.
        quiet: show no progress. By default there is a bar on a terminal or in a notebook, and a
            line every 30 seconds elsewhere.

    Example:
        >>> import jax
        >>> from bts_jax import Bernoulli
        >>> bandit = Bernoulli(reward=[0.3, 0.6, 0.5], cost=[0.6, 0.5, 0.9])
        >>> rows = list(compare(["kube", "uniform"], bandit, 50,
        ...     jax.random.split(jax.random.key(0), 20)))
        >>> [row.policy for row in rows], bool(rows[0].regret.estimate < rows[1].regret.estimate)
        (['kube', 'uniform'], True)
    """
    policies = named("policies", policies, ALL_POLICIES)
    checks.key(keys, batch=True)
    if keys.ndim != 1 or not len(keys):
        raise ValueError(
            f"keys has shape {keys.shape}: give one for each run, as "
            "jax.random.split(jax.random.key(0), 9)"
        )
    for policy in policies.values():
        arguments.check(policy, bandit, budget, None, None)
    limits.warn_of_small_costs(policies, lambda: {"bandit": limits.share_of(bandit)}, stacklevel=2)
    return _compared(policies, bandit, budget, keys, level, quiet)


def alike(rows: Sequence[Compared]) -> list[list[str]]:
    """Groups of two or more policies that made the same pulls and earned the same in every run."""
    groups: dict[bytes, list[str]] = {}
    for row in rows:
        digest = sha256(row.runs.pulls.tobytes() + row.runs.reward.tobytes()).digest()
        groups.setdefault(digest, []).append(row.policy)
    return [names for names in groups.values() if len(names) > 1]


def no_better(
    rows: Sequence[Compared], bandit: Bandit, reference: str = "uniform", level: float = 0.95
) -> list[str]:
    """The policies whose mean pseudo-regret is not clearly below that of `reference`, by the
    interval of the paired difference.

    A policy with an invalid run is among them.
    """
    found = {row.policy: pseudo_regret(row.runs, bandit)[:, 0] for row in rows}
    if reference not in found or len(found[reference]) < 2:
        return []
    base = found.pop(reference)
    return [
        name for name, values in found.items() if not interval(values - base, level=level).high < 0
    ]


def _compared(
    policies: dict[str, Policy],
    bandit: Bandit,
    budget: float,
    keys: jax.Array,
    level: float,
    quiet: bool,
) -> Iterator[Compared]:
    count = len(keys)
    reward_mean, cost_mean = np.asarray(bandit.reward_mean), np.asarray(bandit.cost_mean)
    several = num_resources(bandit) is not None  # no arm is the best then
    best = -1 if several else int(ratio(reward_mean, cost_mean, np).argmax())
    if several:  # the linear program depends on costs as parts of the budgets
        lost = with_and_without(reward_mean, cost_mean / np.asarray(budget, np.float64))[1]
    else:
        lost = float(lost_run(reward_mean, cost_mean, [budget])[0])
    # One program serves all chunks: the last chunk is filled with runs that are then dropped.
    chunks = min(max(count // 512, 1), 20)
    size = -(-count // chunks)
    data = np.asarray(jax.random.key_data(keys))
    data = np.resize(data, (chunks, size, data.shape[-1]))  # repeats the first ones
    filled = [jax.random.wrap_key_data(chunk, impl=jax.random.key_impl(keys)) for chunk in data]  # type: ignore
    little = is_little(work_of(np.min(budget) / float(best_cost(bandit)) * count, len(cost_mean)))

    def batch(policy: Policy, keys: jax.Array) -> Batch:
        return lay_out(arguments.of_batch(policy, bandit, budget, keys, None, None), quickly=little)

    with compiling(first_alone=True) as programs:
        waiting, ahead = iter(policies.items()), deque()
        for name, policy in policies.items():
            for coming, other in islice(waiting, AHEAD - len(ahead)):
                ahead.append(
                    programs.begin(coming, lambda other=other: lower([batch(other, filled[0])]))
                )
                # For the intervals, while XLA compiles.
                programs.trace_threads.submit(import_module, "scipy.special")
            # Closed before the caller prints.
            with progress.counting(count, "run", quiet) as advance:
                tick = partial(advance, 0, f"{name}, compiling")
                tick()
                started = time.perf_counter()
                patiently(ahead.popleft(), tick)
                compiled = time.perf_counter()
                parts = []
                for chunk, some in enumerate(filled):
                    advance(0, name)
                    parts.append(play([batch(policy, some)])[0][0])
                    advance(min(size, count - chunk * size), name)
                ended = time.perf_counter()
            runs = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *parts)
            runs = rules.with_fingerprint(runs, reward_mean, cost_mean, np)
            if invalid := int(np.isnan(runs.reward).any(-1).sum()):
                warnings.warn(
                    f"policies[{name!r}] produced {counted(invalid, 'invalid run')} (NaN): the "
                    "policy chose an arm that does not exist or never decided, or a reward or a "
                    "cost was not in [0, 1]; check_policy and check_bandit may find the reason",
                    RuntimeWarning,
                    stacklevel=2,
                )
            measured = (regret(runs, bandit)[:, 0], pseudo_regret(runs, bandit)[:, 0])
            found = [interval(values, level=level, unseen=(np.nan, lost)) for values in measured]
            rounds = runs.rounds[:, 0]
            yield Compared(
                policy=name,
                regret=found[0],
                pseudo_regret=found[1],
                pulls=float(rounds.mean()),
                best_arm=np.nan
                if several
                else float((runs.pulls[:, 0, best] / np.maximum(rounds, 1)).mean()),
                truncated=int(runs.truncated.sum()),
                compile_seconds=compiled - started,
                seconds=ended - compiled,
                runs=runs,
            )
