"""`fit`: learns hyperparameters for a distribution of problems, and measures the result on fresh
problems.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from bts_jax import checks, progress, statistics
from bts_jax.batch import simulate_batch
from bts_jax.contract import Bandit, Policy
from bts_jax.intervals import Interval, check_level, interval
from bts_jax.learn.estimates import check_arguments, check_objective, horizon, outcomes
from bts_jax.learn.pathwise import pathwise_gradient
from bts_jax.learn.score import score_gradient
from bts_jax.learn.smoothed import smoothed_gradient
from bts_jax.learn.space import Ranges, Space, value_of

METHODS = {"smoothed": smoothed_gradient, "score": score_gradient, "pathwise": pathwise_gradient}


@dataclasses.dataclass(frozen=True)
class Fit:
    """The result of `fit`: the policy that was found, and its gain over the start."""

    policy: Any  # the best on the held-out problems
    start: Any  # the policy that `fit` started from
    objective: str
    before: np.ndarray  # [fresh] the objective of `start` on problems used for nothing else
    after: np.ndarray  # [fresh] that of `policy`, with common random numbers
    gain: Interval  # the improvement on these problems: more reward or less regret
    level: float  # the confidence level of that interval
    steps: list[
        dict[str, Any]
    ]  # for each step "step", "hyperparameters", "objective" on its batch, "held_out" if measured

    @property
    def better(self) -> bool:
        """Whether the gain is significant: its interval is above 0."""
        return bool(self.gain.low > 0)

    def __str__(self) -> str:
        verdict = (
            "better" if self.better else "worse" if self.gain.high < 0 else "not distinguishable"
        )
        changed = ", ".join(
            f"{name} {_shown(value_of(self.start, name))} → {_shown(value_of(self.policy, name))}"
            for name in self.steps[0]["hyperparameters"]
        )
        return (
            f"{type(self.policy).__name__}: {changed}\n"
            f"{self.objective} on {len(self.before):,} fresh problems: "
            f"{self.before.mean():.4g} → {self.after.mean():.4g}; "
            f"gain {self.gain.estimate:.3g}, {100 * self.level:g}% interval "
            f"{self.gain.low:.3g} to {self.gain.high:.3g}: "
            f"{verdict}"
        )


def fit(
    policy: Policy,
    sample_bandit: Callable[[jax.Array], Bandit],
    budget: float,
    key: jax.Array,
    *,
    ranges: Ranges | None = None,
    method: str = "smoothed",
    objective: str = "pseudo_regret",
    steps: int = 100,
    problems: int = 128,
    held_out: int = 512,
    fresh: int = 1024,
    every: int = 5,
    patience: int = 5,
    optimizer: Any = None,
    level: float = 0.99,
    quiet: bool = False,
    **options: Any,
) -> Fit:
    """Learns hyperparameters for a distribution of problems, and measures the gain on fresh
    problems.

    Every step draws new problems, estimates the gradient on them, and takes a step of an optax
    optimizer (`pip install 'bts-jax[learn]'`). Hyperparameters stay within their ranges. A
    hyperparameter with the range (low, high) is

        low · (high / low)^s  with  s = 1 / (1 + e^(−4u / ln(high / low))).

    The unbounded number u is learned. In the middle of the range, u is the logarithm of the
    hyperparameter, up to a constant: a step of 0.1 in u changes the hyperparameter by a tenth. Near
    the ends it changes by less. If low is not positive, the hyperparameter is low + (high − low) /
    (1 + e^(−4u)).

    Three sets of problems are kept apart. The training problems are new at every step. On the
    held-out problems the real policy is measured every few steps, to select the best policy and to
    stop. The fresh problems are used only for the result.

    Args:
        policy: the policy to start from.
        sample_bandit: a function from a key to a random instance, such as `lambda key:
            Bernoulli.random(key, 10)`.
        budget: the budget of a run.
        key: a typed JAX key. The same key gives the same result.
        ranges: the hyperparameters to learn, a dictionary from names to ranges (low, high); by
            default the policy's `learnable`. The hyperparameters of a posterior have names such as
            "cost.strength".
        method: the estimator of gradients, one of "smoothed", "score", "pathwise"; see
            `bts_jax.learn`.
        objective: "pseudo_regret", which is minimized, or "reward", which is maximized.
        steps: the largest number of steps.
        problems: the number of training problems per step.
        held_out: the number of held-out problems.
        fresh: the number of fresh problems.
        every: the number of steps between measurements.
        patience: the number of measurements in a row without improvement after which `fit` stops.
        optimizer: an optax optimizer; by default `optax.adam(0.1)`.
        level: the confidence level of the interval of the gain.
        quiet: show no progress; see `bts_jax.progress`.
        options: further arguments of the method, such as `temperature` or `spread`.

    Example:
        >>> import jax, bts_jax as bj
        >>> problems = lambda key: bj.Bernoulli.random(key, 3, reward_range=(0.4, 0.6),
        ...     cost_range=(0.4, 0.6))
        >>> found = fit(bj.SoftElimination(), problems, 50, jax.random.key(0), steps=20,
        ...     problems=100)
        >>> found.better, bool(found.policy.scale < 1)
        (True, True)
    """
    optax = _optax()
    if not callable(sample_bandit):
        raise ValueError(
            f"sample_bandit = {sample_bandit!r} is not a function: give one from a key to a "
            "bandit, such as lambda key: Bernoulli.random(key, 10)"
        )
    if method not in METHODS:
        raise ValueError(f"method = {method!r} is not known: give one of {', '.join(METHODS)}")
    for name, value, low in (
        ("steps", steps, 1),
        ("problems", problems, 2),
        ("held_out", held_out, 2),
        ("fresh", fresh, 2),
        ("every", every, 1),
        ("patience", patience, 1),
    ):
        checks.whole(name, value, low)
    checks.key(key)
    check_level(level)
    space = Space(policy, ranges)
    # Sign × objective is minimized.
    sign = 1 if check_objective(objective) == "pseudo_regret" else -1
    draw = jax.jit(jax.vmap(sample_bandit))
    key_train, key_held_out, key_fresh = jax.random.split(key, 3)

    def measure(policy: Policy, key: jax.Array, size: int) -> np.ndarray:
        key_problems, key_runs = jax.random.split(key)
        drawn = draw(jax.random.split(key_problems, size))
        return outcomes(
            simulate_batch(policy, drawn, budget, jax.random.split(key_runs, size)),
            drawn,
            objective,
        )

    # One horizon for all steps: one program.
    if method != "smoothed" and options.get("max_rounds") is None:
        drawn = draw(jax.random.split(key_held_out, 1024))
        check_arguments(policy, drawn, budget, key, objective)
        options["max_rounds"] = horizon(drawn, budget)
    estimate = partial(
        METHODS[method], budget=budget, ranges=space.ranges, objective=objective, **options
    )
    optimizer = optax.adam(0.1) if optimizer is None else optimizer
    at = space.start()
    state = optimizer.init(at)
    best, best_value, worse = policy, sign * measure(policy, key_held_out, held_out).mean(), 0
    history = [
        {
            "step": 0,
            "hyperparameters": space.bounded(at),
            "objective": math.nan,
            "held_out": sign * best_value,
        }
    ]
    with progress.counting(steps, "step", quiet) as advance:
        for step in range(1, steps + 1):
            key_problems, key_gradient = jax.random.split(jax.random.fold_in(key_train, step))
            now = space.policy(space.bounded(at))
            found = estimate(now, draw(jax.random.split(key_problems, problems)), key=key_gradient)
            slope = space.slope(at)
            downhill = {name: sign * np.float32(found.gradient[name] * slope[name]) for name in at}
            with jax.numpy_dtype_promotion("standard"):  # optax 0.2.8 mixes types
                change, state = optimizer.update(downhill, state, at)
            at = {
                name: np.asarray(x, np.float64)
                for name, x in optax.apply_updates(at, change).items()
            }
            history.append(
                {"step": step, "hyperparameters": space.bounded(at), "objective": found.value}
            )
            if step % every == 0 or step == steps:
                candidate = space.policy(space.bounded(at))
                value = sign * measure(candidate, key_held_out, held_out).mean()
                history[-1]["held_out"] = sign * value
                worse = 0 if value < best_value else worse + 1
                if value < best_value:
                    best, best_value = candidate, value
            advance(1, f"{objective} {sign * best_value:.4g} held out")
            if worse >= patience:
                break
    before, after = (measure(each, key_fresh, fresh) for each in (policy, best))
    drawn = draw(jax.random.split(jax.random.split(key_fresh)[0], fresh))
    lost = float(np.mean(statistics.lost_run(drawn.reward_mean, drawn.cost_mean, [budget])))
    middle = (sign * (before - after)).mean()
    excess = [lost if sign < 0 else max(lost - values.mean(), 0) for values in (after, before)]
    gain = interval(
        sign * (before - after), level=level, unseen=(middle - excess[0], middle + excess[1])
    )
    return Fit(
        policy=best,
        start=policy,
        objective=objective,
        before=before,
        after=after,
        gain=gain,
        level=level,
        steps=history,
    )


def _optax() -> Any:
    try:
        import optax
    except ImportError:
        raise ImportError("fit needs optax: pip install 'bts-jax[learn]'") from None
    return optax


def _shown(value: Any) -> str:
    return (
        f"{float(value):.3g}"
        if np.ndim(value) == 0
        else np.array2string(np.asarray(value), precision=3)
    )
