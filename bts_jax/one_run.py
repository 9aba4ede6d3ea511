"""`simulate`: one run of the game, and many of them at once under `jax.vmap`."""

import warnings
from collections.abc import Callable
from functools import cache, partial

import jax
import numpy as np
from jax import lax

from bts_jax import arguments, checks, random, rules
from bts_jax.arguments import Arguments
from bts_jax.contract import Bandit, Policy
from bts_jax.devices import default_platform
from bts_jax.engine.failures import PassFailed, report
from bts_jax.engine.loop import Runs, for_any_batch, play
from bts_jax.plain import play_run
from bts_jax.rules import Run
from bts_jax.trace import why_nan
from bts_jax.typing import ArrayLike


def simulate(
    policy: Policy,
    bandit: Bandit,
    budget: ArrayLike,
    key: jax.Array,
    *,
    checkpoints: ArrayLike | None = None,
    max_rounds: ArrayLike | None = None,
) -> Run:
    """Plays one run of `policy` on `bandit` with `budget`. All random numbers are derived from
    `key`.

    The function is pure. It is compiled once per class of policy and bandit, number of arms and
    number of checkpoints. Other values of hyperparameters, arms, budget, checkpoints and key do not
    recompile it. To map over one or several arguments, use `jax.vmap`. The runs are the same bit
    for bit, and the whole batch plays in one loop.

    To map over policies, map over their hyperparameters: `jax.vmap(lambda scale:
    simulate(KUBE(scale=scale), ...))(scales)`. A run consists of discrete decisions. Its derivative
    with respect to any argument is zero, and is not computed.

    Under `jit` and `vmap`, values cannot be checked. In the following cases, reward and cost are
    then NaN: a budget or checkpoint is not a positive number; a checkpoint is above the budget; an
    arm's probability is outside [0, 1]; a reward or cost is outside [0, `reward_scale`] or [0,
    `cost_scale`]; the policy chooses an arm that does not exist; a draw is rejected 65,536 times in
    a row. Outside of `jit` and `vmap`, a `RuntimeWarning` states the reason.

    Args:
        policy: the policy, such as `BTS()`; see `bts_jax.contract.Policy`.
        bandit: the bandit, such as `Bernoulli(reward=..., cost=...)`; see
            `bts_jax.contract.Bandit`.
        budget: the amount that may be spent, a positive number below 2³¹, in the unit of the
            bandit's costs. It may be infinite if `max_rounds` is given. The run then ends after
            `max_rounds` rounds. If the bandit has d resources: one number for all of them, or one
            for each [d].
        key: a typed JAX key, such as `jax.random.key(0)`.
        checkpoints: budgets up to `budget` at which the run is recorded, in any order [C]. The run
            ends at the largest one. The default is the budget alone. If the bandit has several
            resources: fractions of the budget, above 0 and at most 1, and the run at checkpoint f
            is that with the budget f · budget, as float32.
        max_rounds: the limit of rounds. By default, each checkpoint b has the limit (2b + 200) /
            (smallest positive expected cost), with b and costs in multiples of `cost_scale`. If all
            arms have positive costs, a run exceeds this limit with a probability below 10⁻²⁰. With
            several resources, b and costs are sums over the resources, and 200 is multiplied by
            their number. If you limit the rounds, give the limit to `regret`, too.

    Returns:
        The `Run`, with one entry per checkpoint.

    Example:
        >>> import jax
        >>> from bts_jax import BTS, Bernoulli, simulate
        >>> bandit = Bernoulli(reward=[0.3, 0.6, 0.5], cost=[0.6, 0.5, 0.9])
        >>> keys = jax.random.split(jax.random.key(0), 100)
        >>> play = lambda key: simulate(BTS(), bandit, 500, key, checkpoints=[100, 500])
        >>> runs = jax.vmap(play)(keys)
        >>> runs.pulls.shape  # runs, checkpoints, arms
        (100, 2, 3)
    """
    run = play_one(policy, bandit, budget, key, checkpoints, max_rounds)
    if checks.is_concrete(run) and np.isnan(run.reward).any():
        warnings.warn(
            why_nan(policy, bandit, budget, key, int(np.max(run.rounds))),
            RuntimeWarning,
            stacklevel=2,
        )
    return run


def play_one(policy, bandit, budget, key, checkpoints, max_rounds) -> Run:
    """`simulate` without a warning."""
    checks.key(key)
    given = arguments.of_run(policy, bandit, budget, checkpoints, max_rounds)
    return _simulate(default_platform(), given, key)


@partial(jax.jit, static_argnums=0)
def _simulate(platform: str, given: Arguments, key: jax.Array) -> Run:
    given = lax.stop_gradient(given)
    setting = rules.setting_of(given, random.key_words(key))
    record = _play_on(platform)(jax.tree.map(lambda x: x[..., None], setting))
    run = arguments.finish(jax.tree.map(lambda x: x[..., 0], record), given.ends)
    return rules.with_fingerprint(run, *rules.means(given.bandit))


@cache
def _play_on(platform: str) -> Callable[[rules.Setting], Run]:
    """A function that plays the runs on the last axis of every array in a setting, all at once."""

    def play_all(setting: rules.Setting) -> Run:
        runs = Runs(setting, jax.tree.map(lambda _: None, setting), setting.limits.shape[-1])
        try:
            return play([runs], rules.rules(platform), platform)[0][0].record
        except PassFailed as error:
            report(str(error))
            return jax.vmap(play_run, -1, -1)(setting)

    return for_any_batch(play_all)
