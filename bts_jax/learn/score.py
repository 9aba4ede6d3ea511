"""The score-function gradient (REINFORCE), with the other runs on the same instance as a
baseline.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax import checks, random, rules
from bts_jax.contract import Bandit, Policy
from bts_jax.engine.fixed_point import Sum, quantize
from bts_jax.learn.estimates import Estimate, Round, scan_rounds, through_logits, worth_of
from bts_jax.learn.space import Ranges, Values, with_values


def score_gradient(
    policy: Policy,
    bandit_batch: Bandit,
    budget: float,
    key: jax.Array,
    *,
    ranges: Ranges | None = None,
    objective: str = "pseudo_regret",
    runs: int = 8,
    temperature: float = 1.0,
    baseline: bool = True,
    max_rounds: int | None = None,
) -> Estimate:
    """Estimates the score-function gradient Σ_t ∇ log π(arm_t) · (later reward − later reward of
    the other runs).

    "Later" means from round t on. For the other runs it means from the round on in which they had
    spent as much as this run before round t. With the objective "pseudo_regret", the expected loss
    takes the place of the reward.

    The estimate is exact for a policy with `softmax = True` at temperature 1. Any other policy is
    played with arm i drawn with probability softmax(logits / temperature)_i, given its draws. The
    estimate is exact for this softened policy. At a lower temperature the softened policy is closer
    to the real one, and the estimate is noisier.

    Args:
        policy, bandit_batch, budget, key, ranges, objective: as for `smoothed_gradient`; only the
            names in `ranges` matter.
        runs: the number of runs on each instance. The baseline of a run is the mean of the others.
        temperature: the temperature of the choice.
        baseline: whether to subtract the baseline. Without it the mean is the same, and the
            variance is larger.
        max_rounds: the limit of rounds at which a run is truncated; by default so large that hardly
            any run reaches it.

    Example:
        >>> import jax, bts_jax as bj
        >>> bandits = jax.vmap(lambda key: bj.Bernoulli.random(key,
        ...     3))(jax.random.split(jax.random.key(0), 50))
        >>> estimate = score_gradient(bj.SoftElimination(), bandits, 5, jax.random.key(1), runs=4,
        ...     max_rounds=50)
        >>> sorted(estimate.gradient), bool(estimate.error["scale"] > 0)
        (['scale'], True)
    """
    checks.whole("runs", runs, 2 if baseline else 1)
    return through_logits(
        partial(_score, baseline=baseline),
        policy,
        bandit_batch,
        budget,
        key,
        ranges,
        objective,
        runs,
        temperature,
        max_rounds,
    )


@partial(jax.jit, static_argnames=("runs", "rounds", "objective", "baseline"))
def _score(values, policy, bandits, budget, key, temperature, *, runs, rounds, objective, baseline):
    """Returns for each instance the mean objective, the fraction of truncated runs, and the
    gradient of each hyperparameter.
    """

    def play(policy: Any, bandit: Bandit, words: random.Words) -> tuple[jax.Array, ...]:
        """Plays one run. Returns arrays over the rounds, and whether the run was truncated.

        The arrays are the logarithm of the probability of the arm, the worth of the pull, and what
        was spent before the round.
        """
        worth, num_arms, goal = (
            worth_of(bandit, objective),
            jnp.shape(bandit.cost_mean)[0],
            budget[1],
        )

        def step(carry, now: Round):
            state, spent, over = carry
            logits = policy.logits(state, now.decide) / temperature
            arm = lax.argmax(lax.stop_gradient(logits) + now.noise, 0, jnp.int32)
            reward, cost = bandit.pull(now.pull, arm)
            paid = spent.add(quantize(cost))
            plays = ~over & now.plays
            # A pull that exceeds the budget earns nothing.
            earns = plays if objective == "pseudo_regret" else plays & goal.reaches(paid)
            out = (
                jnp.where(plays, jax.nn.log_softmax(logits)[arm], 0),
                jnp.where(earns, jnp.broadcast_to(worth(reward), (num_arms,))[arm], 0),
                spent.value(),
            )
            state = policy.update(state, arm, reward, cost, now.update)
            spent = jax.tree.map(partial(jnp.where, plays), paid, spent)
            return (state, spent, over | spent.reaches(goal)), out

        start = rules.first_state(policy, bandit, budget[0]), Sum.zeros(), jnp.bool_(False)
        (_, _, over), out = scan_rounds(step, start, words, rounds, num_arms)
        return *out, ~over

    def surrogate(values: Values, bandit: Bandit, key: jax.Array) -> tuple[jax.Array, tuple]:
        """Returns a number whose derivative is the estimate on this instance."""
        words = jax.vmap(random.key_words)(jax.random.split(key, runs))
        # [runs, T].
        log_prob, worth, spent, cut = jax.vmap(partial(play, with_values(policy, values), bandit))(
            words
        )
        later = jnp.cumsum(worth[:, ::-1], 1)[:, ::-1]  # from this round on
        weight = later - _others(later, spent) if baseline else later
        return (lax.stop_gradient(weight) * log_prob).sum() / runs, (
            worth.sum(1).mean(),
            cut.mean(),
        )

    keys = jax.random.split(key, jax.tree.leaves(bandits)[0].shape[0])
    gradient, (value, cut) = jax.vmap(jax.grad(surrogate, has_aux=True), (None, 0, 0))(
        values, bandits, keys
    )
    return value, cut, gradient


def _others(later: jax.Array, spent: jax.Array) -> jax.Array:
    """Returns the mean later worth of the other runs, from the round on in which they had spent as
    much. [runs, T] each
    """

    def at_least(mine: jax.Array, theirs: jax.Array, their_later: jax.Array) -> jax.Array:
        place = jnp.searchsorted(theirs, mine)
        return jnp.where(place < len(theirs), their_later[jnp.minimum(place, len(theirs) - 1)], 0)

    # [mine, theirs, T].
    pairs = jax.vmap(jax.vmap(at_least, (None, 0, 0)), (0, None, None))(spent, spent, later)
    mask = 1 - jnp.eye(len(later))
    return jnp.einsum("ijt,ij->it", pairs, mask) / (len(later) - 1)
