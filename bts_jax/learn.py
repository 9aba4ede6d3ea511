"""Learning a policy's hyperparameters: gradients of what it earns under a budget, and `fit`.

A run is a matter of discrete decisions and has no derivative; its expectation has. Three ways to estimate that:

`smoothed_gradient` draws the hyperparameters themselves at random, near where they are, and asks which way it paid. It takes
    any policy in the contract and plays real runs.
`score_gradient` asks which decisions paid, and how the hyperparameters change their probabilities (the score function, or
    REINFORCE). Runs on the same instance are each other's baseline (Boutilier et al., NeurIPS 2020): what a run earns after a
    decision is compared with what the others earned once they had spent as much. Not with what they earned after as many
    rounds: under a budget runs differ in length, and one that has spent more by the same round has less ahead of it.
`pathwise_gradient` differentiates through the runs of a relaxed game, in which every arm is pulled in part.

The last two need one method more of a policy, `logits(state, key)`: K numbers by which it chooses, differentiable in the
hyperparameters. It pulls the arm with the largest; or, if its class has `softmax = True`, arm i with probability
softmax(logits)_i. What it draws with `key` must have derivatives too, as draws of `random.gamma` and `jax.random.normal` have.
`BTS`, `TemperedBTS` and `SoftElimination` have it.

A class may also have `learnable`, a dictionary of its hyperparameters' names and the range (low, high) to learn each in.
`TemperedBTS` also has `learnable_schedule`, with the hyperparameters of its schedule, to be passed as `ranges`.

The objective is "pseudo_regret", by default, or "reward". On Bernoulli arms their derivatives are the same but for the
sign, and the former is far less noisy.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bts_jax import checks, game, metrics, progress, random
from bts_jax.batch import simulate_batch
from bts_jax.contract import Bandit, Policy, ratio, scales
from bts_jax.engine.fixed_point import Sum, coins
from bts_jax.intervals import Interval, check_level, interval

Values = dict[str, Any]  # a number, or an array of them, for each hyperparameter
Ranges = Mapping[str, tuple[float, float]]


class Estimate(NamedTuple):
    """A gradient, and how far off it may be. Each instance is one measurement."""

    value: float  # mean objective
    gradient: Values  # its derivative with respect to each hyperparameter
    error: Values  # the standard error of that
    truncated: float  # share of the runs that were cut off at `max_rounds`


def smoothed_gradient(
    policy: Policy,
    bandits: Bandit,
    budget: float,
    key: jax.Array,
    *,
    ranges: Ranges | None = None,
    objective: str = "pseudo_regret",
    spread: float = 0.1,
) -> Estimate:
    """The gradient for a policy whose hyperparameters are drawn at random before the run; any policy will do.

    Each hyperparameter is drawn from a normal distribution of standard deviation `spread` on the scale u that `fit` uses:
    about the share by which it varies, in the middle of its range. Runs come in pairs, with opposite draws, on one
    instance and with the same luck; half the difference of what they come to, times the draw over `spread`, is the
    estimate (evolution strategies; the score function of that draw). It is exact for the mean objective over such
    draws, which differs from the objective by the order of spread².

    Args:
        policy: who decides.
        bandits: a batch of at least two instances along the first axis, as `jax.vmap` makes it.
        budget: how much may be spent in a run.
        key: a typed JAX key.
        ranges: the hyperparameters to differentiate by, each with its range (low, high); by default the class's `learnable`.
        objective: "pseudo_regret" or "reward".
        spread: the standard deviation.

    Example:
        >>> import jax, bts_jax as bj
        >>> bandits = jax.vmap(lambda key: bj.Bernoulli.random(key, 3))(jax.random.split(jax.random.key(0), 50))
        >>> estimate = smoothed_gradient(bj.KUBE(), bandits, 50, jax.random.key(1), ranges={"scale": (0.1, 10)})
        >>> sorted(estimate.gradient), bool(estimate.error["scale"] > 0)
        (['scale'], True)
    """
    space = _Space(policy, ranges)
    size = _check(policy, bandits, budget, key, objective, spread=spread)
    centre = space.start()
    key_play, key_draw = jax.random.split(key)
    draw = {
        name: np.asarray(jax.random.normal(jax.random.fold_in(key_draw, i), (size, *np.shape(at))), np.float64)
        for i, (name, at) in enumerate(centre.items())
    }

    def both(mine: Any, other: Any) -> Any:
        return jax.tree.map(lambda x, y: np.concatenate([x, y]), mine, other)

    drawn = {name: np.concatenate([at + spread * draw[name], at - spread * draw[name]]) for name, at in centre.items()}
    keys = jax.random.split(key_play, size)
    pair = both(bandits, bandits)
    runs = simulate_batch(space.policy(space.bounded(drawn)), pair, budget, jnp.concatenate([keys, keys]))
    value = _measure(runs, pair, objective)
    half = (value[:size] - value[size:]) / (2 * spread)
    slope = space.slope(centre)
    each = {name: half.reshape(-1, *(1,) * (d.ndim - 1)) * d / slope[name] for name, d in draw.items()}
    return _estimate(value.mean(), each, np.asarray(runs.truncated).mean())


def score_gradient(
    policy: Policy,
    bandits: Bandit,
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
    """The score-function gradient: Σ_t ∇ log π(arm_t) · (what came after − what the others earned once they had spent as much).

    Exact for a policy with `softmax = True` at temperature 1. Any other is played with arm i drawn with probability
    softmax(logits / temperature)_i, given its draws: the estimate is exact for that policy, which comes closer to the
    real one, and noisier, as the temperature falls.

    Args:
        policy, bandits, budget, key, ranges, objective: as for `smoothed_gradient`; only the names in `ranges` matter.
        runs: on each instance. Each has the others for a baseline.
        temperature: of the choice.
        baseline: whether to subtract it; without it the mean is the same, and the variance larger.
        max_rounds: where to cut a run off; by default where hardly any run can come.

    Example:
        >>> import jax, bts_jax as bj
        >>> bandits = jax.vmap(lambda key: bj.Bernoulli.random(key, 3))(jax.random.split(jax.random.key(0), 50))
        >>> estimate = score_gradient(bj.SoftElimination(), bandits, 5, jax.random.key(1), runs=4, max_rounds=50)
        >>> sorted(estimate.gradient), bool(estimate.error["scale"] > 0)
        (['scale'], True)
    """
    checks.whole("runs", runs, 2 if baseline else 1)
    return _through_logits(partial(_score, baseline=baseline), policy, bandits, budget, key, ranges, objective, runs,
                           temperature, max_rounds)


def pathwise_gradient(
    policy: Policy,
    bandits: Bandit,
    budget: float,
    key: jax.Array,
    *,
    ranges: Ranges | None = None,
    objective: str = "pseudo_regret",
    runs: int = 1,
    temperature: float = 0.2,
    max_rounds: int | None = None,
) -> Estimate:
    """The gradient along the paths of a relaxed game, in reverse through all of its rounds.

    In a round every arm is pulled in part, with the weights softmax(logits / temperature), a softmax policy's logits
    having Gumbel noise added first: so much of its reward is earned and of its cost paid, and the state becomes that
    weighted mean of the states after a pull of each. The last unit of the budget is spent in proportion: with b < 1 left, a
    round counts b. For whole budgets and arms whose costs are 0 or 1 this becomes the game itself as the temperature goes to
    0; for others it differs by less than one unit of budget earns. The estimate is exact for the relaxed game. A lower
    temperature makes it more like the game's, and noisier.

    Memory: rounds are played in √rounds blocks, of which the starts alone are kept; a block is played again when it is
    differentiated. So memory grows as √rounds, and time by a third.

    Args:
        policy, bandits, budget, key, ranges, objective, max_rounds: as for `score_gradient`.
        runs: on each instance.
        temperature: of the relaxed choice.

    Example:
        >>> import jax, bts_jax as bj
        >>> bandits = jax.vmap(lambda key: bj.Bernoulli.random(key, 3))(jax.random.split(jax.random.key(0), 50))
        >>> estimate = pathwise_gradient(bj.SoftElimination(), bandits, 5, jax.random.key(1), max_rounds=50)
        >>> sorted(estimate.gradient), bool(estimate.error["scale"] > 0)
        (['scale'], True)
    """
    checks.whole("runs", runs, 1)
    return _through_logits(_pathwise, policy, bandits, budget, key, ranges, objective, runs, temperature, max_rounds)


METHODS = {"smoothed": smoothed_gradient, "score": score_gradient, "pathwise": pathwise_gradient}


@dataclasses.dataclass(frozen=True)
class Fit:
    """What `fit` found, and whether it is any better."""

    policy: Any  # the best on the held-out problems
    start: Any  # what it began with
    objective: str
    before: np.ndarray  # [fresh] the objective of `start` on problems that neither training nor stopping has seen
    after: np.ndarray  # [fresh] that of `policy` on the same problems with the same luck
    gain: Interval  # how much better `policy` is on these: more reward or less regret, with limits
    level: float  # of that interval
    steps: list[dict[str, Any]]  # of each: "step", the hyperparameters, "objective" on its batch, "held_out" where measured

    @property
    def better(self) -> bool:
        """Whether the gain is real: its interval is above 0."""
        return bool(self.gain.low > 0)

    def __str__(self) -> str:
        verdict = "better" if self.better else "worse" if self.gain.high < 0 else "not distinguishable"
        changed = ", ".join(f"{name} {_shown(getattr(self.start, name))} → {_shown(getattr(self.policy, name))}"
                            for name in self.steps[0]["hyperparameters"])
        return (f"{type(self.policy).__name__}: {changed}\n"
                f"{self.objective} on {len(self.before):,} fresh problems: {self.before.mean():.4g} → {self.after.mean():.4g}; "
                f"gain {self.gain.estimate:.3g}, {100 * self.level:g}% interval {self.gain.low:.3g} to {self.gain.high:.3g}: "
                f"{verdict}")


def fit(
    policy: Policy,
    bandits: Callable[[jax.Array], Bandit],
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
    """Learns hyperparameters for a distribution of problems, and measures on fresh ones whether that was worth it.

    Every step draws new problems, estimates the gradient on them, and takes a step of an optax optimiser (`pip install
    'bts-jax[learn]'`). Hyperparameters stay within their ranges: one with the range (low, high) is low · (high / low)^s with
    s = 1 / (1 + e^(−4u / ln(high / low))), and u, which is unbounded, is what is learnt. In the middle of the range u is the
    logarithm of the hyperparameter, up to a constant; a step of 0.1 changes it by a tenth, and by less near the ends. Where low
    is not positive it is low + (high − low) / (1 + e^(−4u)).

    Three sets of problems are kept apart: those of the training, new at every step; the held-out ones, on which the real
    policy is measured every few steps, to keep the best and to stop; and the fresh ones, for the result alone.

    Args:
        policy: where to start.
        bandits: makes a random instance of a key, such as `lambda key: Bernoulli.random(key, 10)`.
        budget: how much may be spent in a run.
        key: a typed JAX key: same key, same result.
        ranges: what to learn: names of hyperparameters and their ranges (low, high); by default the class's `learnable`.
        method: how to estimate gradients, one of "smoothed", "score", "pathwise"; see `bts_jax.learn`.
        objective: "pseudo_regret", to be made small, or "reward", to be made large.
        steps: how many at most.
        problems: how many to draw for a step.
        held_out: how many to measure progress on.
        fresh: how many to measure the result on.
        every: how many steps between measurements.
        patience: how many measurements in a row may find nothing better before it stops.
        optimizer: an optax optimiser; `optax.adam(0.1)` by default.
        level: of the interval of the gain.
        quiet: no progress bar.
        options: what else the method takes, such as `temperature` or `spread`.

    Example:
        >>> import jax, bts_jax as bj
        >>> problems = lambda key: bj.Bernoulli.random(key, 3, reward_range=(0.4, 0.6), cost_range=(0.4, 0.6))
        >>> found = fit(bj.SoftElimination(), problems, 50, jax.random.key(0), steps=20, problems=100)
        >>> found.better, bool(found.policy.scale < 1)
        (True, True)
    """
    optax = _optax()
    if not callable(bandits):
        raise ValueError(f"bandits = {bandits!r} is not a function: give one that makes an instance of a key, such as "
                         "lambda key: Bernoulli.random(key, 10)")
    if method not in METHODS:
        raise ValueError(f"method = {method!r} is not known: give one of {', '.join(METHODS)}")
    for name, value, low in (("steps", steps, 1), ("problems", problems, 2), ("held_out", held_out, 2), ("fresh", fresh, 2),
                             ("every", every, 1), ("patience", patience, 1)):
        checks.whole(name, value, low)
    checks.key(key)
    check_level(level)
    space = _Space(policy, ranges)
    sign = 1 if _check_objective(objective) == "pseudo_regret" else -1  # what is multiplied by it is made small
    draw = jax.jit(jax.vmap(bandits))
    key_train, key_held_out, key_fresh = jax.random.split(key, 3)

    def measure(policy: Policy, key: jax.Array, size: int) -> np.ndarray:
        key_problems, key_runs = jax.random.split(key)
        drawn = draw(jax.random.split(key_problems, size))
        return _measure(simulate_batch(policy, drawn, budget, jax.random.split(key_runs, size)), drawn, objective)

    if method != "smoothed" and options.get("max_rounds") is None:  # one horizon for all steps: one program
        drawn = draw(jax.random.split(key_held_out, 1024))
        _check(policy, drawn, budget, key, objective)
        options["max_rounds"] = _horizon(drawn, budget)
    estimate = partial(METHODS[method], budget=budget, ranges=space.ranges, objective=objective, **options)
    optimizer = optax.adam(0.1) if optimizer is None else optimizer
    at = space.start()
    state = optimizer.init(at)
    best, best_value, worse = policy, sign * measure(policy, key_held_out, held_out).mean(), 0
    history = [{"step": 0, "hyperparameters": space.bounded(at), "objective": math.nan, "held_out": sign * best_value}]
    with progress.counting(steps, "step", quiet) as advance:
        for step in range(1, steps + 1):
            key_problems, key_gradient = jax.random.split(jax.random.fold_in(key_train, step))
            now = space.policy(space.bounded(at))
            found = estimate(now, draw(jax.random.split(key_problems, problems)), key=key_gradient)
            slope = space.slope(at)
            downhill = {name: sign * np.float32(found.gradient[name] * slope[name]) for name in at}
            with jax.numpy_dtype_promotion("standard"):  # optax 0.2.8 mixes types
                change, state = optimizer.update(downhill, state, at)
            at = {name: np.asarray(x, np.float64) for name, x in optax.apply_updates(at, change).items()}
            history.append({"step": step, "hyperparameters": space.bounded(at), "objective": found.value})
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
    lost = float(np.mean(metrics.lost_run(drawn.reward_mean, drawn.cost_mean, [budget])))
    middle = (sign * (before - after)).mean()
    excess = [lost if sign < 0 else max(lost - values.mean(), 0) for values in (after, before)]
    gain = interval(sign * (before - after), level=level, unseen=(middle - excess[0], middle + excess[1]))
    return Fit(policy=best, start=policy, objective=objective, before=before, after=after, gain=gain, level=level,
               steps=history)


def _optax() -> Any:
    try:
        import optax
    except ImportError:
        raise ImportError("fit needs optax: pip install 'bts-jax[learn]'") from None
    return optax


def _shown(value: Any) -> str:
    return f"{float(value):.3g}" if np.ndim(value) == 0 else np.array2string(np.asarray(value), precision=3)


class _Space:
    """Some of a policy's hyperparameters, as they are and as unbounded numbers u."""

    def __init__(self, policy: Any, ranges: Ranges | None):
        checks.contract("policy", policy, ("init", "__call__", "update"), "BTS()")
        self.whole, self.ranges = policy, dict(getattr(policy, "learnable", {}) if ranges is None else ranges)
        if not self.ranges:
            raise ValueError(f"policy {type(policy).__name__} does not say what can be learnt: give ranges, such as "
                             "{'scale': (0.1, 10)}")
        fields = [field.name for field in dataclasses.fields(policy)] if dataclasses.is_dataclass(policy) else []
        for name, given in self.ranges.items():
            if name not in fields:
                raise ValueError(f"ranges names {name!r}, which is no hyperparameter of {type(policy).__name__}: there are "
                                 f"{', '.join(fields) or 'none (its class is no dataclass)'}")
            limits = checks.numbers(f"ranges[{name!r}]", given, "give (low, high)")
            if limits.shape != (2,) or not -np.inf < limits[0] < limits[1] < np.inf:
                raise ValueError(f"ranges[{name!r}] = {given!r} is not a range: give (low, high), two finite numbers")
            value = checks.numbers(name, getattr(policy, name), "give a number to start from")
            checks.require(name, value, (value > limits[0]) & (value < limits[1]),
                           f"start within its range, above {limits[0]:g} and below {limits[1]:g}, or give another in ranges")

    def policy(self, values: Values) -> Any:
        """The policy with these hyperparameters."""
        return dataclasses.replace(self.whole, **values)

    def values(self) -> Values:
        return {name: jnp.asarray(getattr(self.whole, name), jnp.float32) for name in self.ranges}

    def start(self) -> Values:
        """u for the policy as it is."""
        at = {}
        for name, (low, high) in self.ranges.items():
            value = np.asarray(getattr(self.whole, name), np.float64)
            s = np.log(value / low) / np.log(high / low) if low > 0 else (value - low) / (high - low)
            at[name] = np.log(s / (1 - s)) / _pace(low, high)
        return at

    def bounded(self, at: Values) -> Values:
        values = {}
        for name, (low, high) in self.ranges.items():
            s = _logistic(_pace(low, high) * np.asarray(at[name], np.float64))
            value = low * (high / low) ** s if low > 0 else low + (high - low) * s
            least, most = np.float32(low), np.float32(high)  # and not those themselves: a policy at a limit could not go on
            values[name] = np.clip(np.float32(value), np.nextafter(least, most), np.nextafter(most, least))
        return values

    def slope(self, at: Values) -> Values:
        """The derivatives of the hyperparameters with respect to u."""
        slopes = {}
        for name, (low, high) in self.ranges.items():
            s = _logistic(_pace(low, high) * np.asarray(at[name], np.float64))
            slopes[name] = 4 * s * (1 - s) * (self.bounded(at)[name] if low > 0 else high - low)
        return slopes


def _pace(low: float, high: float) -> float:
    return 4 / np.log(high / low) if low > 0 else 4.0


def _logistic(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e⁻ˣ), for any x."""
    return (1 + np.tanh(x / 2)) / 2


def _check_objective(objective: str) -> str:
    if objective not in ("pseudo_regret", "reward"):
        raise ValueError(f"objective = {objective!r} is not known: give 'pseudo_regret' or 'reward'")
    return objective


def _check(policy, bandits, budget, key, objective, **positive: float) -> int:
    """Raises a `ValueError` for what can be seen to be wrong; the number of instances."""
    game.check_contracts(policy, bandits)
    _check_objective(objective)
    checks.key(key)
    shape = np.shape(bandits.cost_mean)
    if len(shape) != 2 or shape[0] < 2:
        raise ValueError(f"bandits has costs of shape {shape}: give a batch of at least two instances along the first axis, as "
                         "jax.vmap makes it")
    if np.ndim(budget):
        raise ValueError(f"budget has shape {np.shape(budget)}: give one number")
    game.check_values(bandits, budget, None, None)
    checks.require("the smallest expected cost", np.min(bandits.cost_mean), np.min(bandits.cost_mean) > 0,
                   "give arms that all cost something")
    for name, value in positive.items():
        number = checks.numbers(name, value, "give a positive number")
        checks.require(name, number, (number > 0) & (number < np.inf), "give a positive number")
    return shape[0]


def _horizon(bandits: Bandit, budget: float) -> int:
    """More rounds than a run can be expected to take even if it pulls the cheapest arm alone, by 3 standard deviations."""
    return math.ceil((budget + 3 * math.sqrt(budget) + 10) / float(np.min(bandits.cost_mean)))


def _through_logits(estimate, policy, bandits, budget, key, ranges, objective, runs, temperature, max_rounds) -> Estimate:
    """What `estimate` finds, `_score` or `_pathwise`."""
    space = _Space(policy, ranges)
    _check(policy, bandits, budget, key, objective, temperature=temperature)
    if any(np.any(np.asarray(scale) != 1) for scale in scales(bandits) or ()):
        raise ValueError("the bandits' reward_scale or cost_scale is not 1, and this method plays with amounts in [0, 1]: take "
                         "smoothed_gradient, or give rewards and costs as shares of the largest")
    if not hasattr(policy, "logits"):
        raise ValueError(f"policy {type(policy).__name__} has no logits: take smoothed_gradient, or give it that method; what "
                         "it must return is in bts_jax.learn")
    rounds = _horizon(bandits, budget) if max_rounds is None else checks.whole("max_rounds", max_rounds, 1)
    policy, bandits = jax.tree.map(game.settle, (policy, bandits))
    with jax.numpy_dtype_promotion("standard"):  # the relaxed game has floats where a policy expects integers
        value, truncated, each = estimate(space.values(), policy, bandits, game.money(budget), key, jnp.float32(temperature),
                                          runs=runs, rounds=rounds, objective=objective)
    return _estimate(value.mean(), each, truncated.mean())


def _measure(runs: game.Run, bandits: Bandit, objective: str) -> np.ndarray:
    """The objective of each run of a batch, one on each instance."""
    values = metrics.pseudo_regret(runs, bandits) if objective == "pseudo_regret" else np.asarray(runs.reward, np.float64)
    return values[:, 0]


def _estimate(value: Any, each: Values, truncated: Any) -> Estimate:
    """From the gradient on each instance, [instances, …] for each hyperparameter."""
    each = {name: np.asarray(gradient, np.float64) for name, gradient in each.items()}
    return Estimate(
        value=float(value),
        gradient={name: gradient.mean(0) for name, gradient in each.items()},
        error={name: gradient.std(0, ddof=1) / np.sqrt(len(gradient)) for name, gradient in each.items()},
        truncated=float(truncated),
    )


def _worth(bandit: Bandit, objective: str) -> Callable[[jax.Array], jax.Array]:
    """What a pull is worth, given its reward: that, or what it loses in expectation. Arrays [K], one entry per arm."""
    if objective == "reward":
        return lambda reward: reward
    means = jnp.asarray(bandit.reward_mean), jnp.asarray(bandit.cost_mean)
    return lambda reward: ratio(*means).max() * means[1] - means[0]


class _Luck(NamedTuple):
    """The random numbers of one round. None depends on a hyperparameter."""

    plays: jax.Array  # bool: the round is one of those to be played, not one that fills the last block
    decide: jax.Array  # keys
    pull: jax.Array
    update: jax.Array
    noise: jax.Array  # [K] Gumbel draws


def _blocks(step: Callable, carry: Any, words: random.Words, rounds: int, num_arms: int) -> tuple[Any, Any]:
    """`lax.scan` of `step` over the rounds' luck, in √rounds blocks, of which only the starts are kept to go back."""
    size = math.isqrt(rounds - 1) + 1
    count = -(-rounds // size)

    @jax.vmap
    def luck(t: jax.Array) -> _Luck:
        decide, choose, pull, update = (random.derive(words, t, purpose) for purpose in range(4))
        return _Luck(t < rounds, decide, pull, update, noise=random.gumbel(random.bits(choose, (num_arms,))[0]))

    block = jax.checkpoint(lambda carry, first: lax.scan(step, carry, luck(first + jnp.arange(size))))
    carry, out = lax.scan(block, carry, size * jnp.arange(count))
    return carry, jax.tree.map(lambda x: x.reshape(count * size, *x.shape[2:]), out)


@partial(jax.jit, static_argnames=("runs", "rounds", "objective", "baseline"))
def _score(values, policy, bandits, budget, key, temperature, *, runs, rounds, objective, baseline):
    """For each instance: the mean objective, the share of runs cut off, and the gradient of each hyperparameter."""

    def play(policy: Any, bandit: Bandit, words: random.Words) -> tuple[jax.Array, ...]:
        """One run: for each round the logarithm of its arm's probability, its worth and what was spent before it; cut off."""
        worth, num_arms, goal = _worth(bandit, objective), jnp.shape(bandit.cost_mean)[0], budget[1]

        def step(carry, luck: _Luck):
            state, spent, over = carry
            logits = policy.logits(state, luck.decide) / temperature
            arm = lax.argmax(lax.stop_gradient(logits) + luck.noise, 0, jnp.int32)
            reward, cost = bandit.pull(luck.pull, arm)
            paid = spent.add(coins(cost))
            plays = ~over & luck.plays
            earns = plays if objective == "pseudo_regret" else plays & goal.reaches(paid)  # a pull too dear earns nothing
            out = (
                jnp.where(plays, jax.nn.log_softmax(logits)[arm], 0),
                jnp.where(earns, jnp.broadcast_to(worth(reward), (num_arms,))[arm], 0),
                spent.value(),
            )
            state = policy.update(state, arm, reward, cost, luck.update)
            spent = jax.tree.map(partial(jnp.where, plays), paid, spent)
            return (state, spent, over | spent.reaches(goal)), out

        start = game.first_state(policy, bandit, budget[0]), Sum.zeros(), jnp.bool_(False)
        (_, _, over), out = _blocks(step, start, words, rounds, num_arms)
        return *out, ~over

    def surrogate(values: Values, bandit: Bandit, key: jax.Array) -> tuple[jax.Array, tuple]:
        """Its derivative is the estimate on this instance."""
        words = jax.vmap(random.key_words)(jax.random.split(key, runs))
        log_prob, worth, spent, cut = jax.vmap(partial(play, dataclasses.replace(policy, **values), bandit))(words)  # [runs, T]
        later = jnp.cumsum(worth[:, ::-1], 1)[:, ::-1]  # from this round on
        weight = later - _others(later, spent) if baseline else later
        return (lax.stop_gradient(weight) * log_prob).sum() / runs, (worth.sum(1).mean(), cut.mean())

    keys = jax.random.split(key, jax.tree.leaves(bandits)[0].shape[0])
    gradient, (value, cut) = jax.vmap(jax.grad(surrogate, has_aux=True), (None, 0, 0))(values, bandits, keys)
    return value, cut, gradient


def _others(later: jax.Array, spent: jax.Array) -> jax.Array:
    """What the other runs earned, on average, from the round on in which they had spent as much. [runs, T] each"""

    def at_least(mine: jax.Array, theirs: jax.Array, their_later: jax.Array) -> jax.Array:
        place = jnp.searchsorted(theirs, mine)
        return jnp.where(place < len(theirs), their_later[jnp.minimum(place, len(theirs) - 1)], 0)

    pairs = jax.vmap(jax.vmap(at_least, (None, 0, 0)), (0, None, None))(spent, spent, later)  # [mine, theirs, T]
    mask = 1 - jnp.eye(len(later))
    return jnp.einsum("ijt,ij->it", pairs, mask) / (len(later) - 1)


@partial(jax.jit, static_argnames=("runs", "rounds", "objective"))
def _pathwise(values, policy, bandits, budget, key, temperature, *, runs, rounds, objective):
    """As `_score`, in the relaxed game."""

    def play(policy: Any, bandit: Bandit, words: random.Words) -> tuple[jax.Array, jax.Array]:
        """One run: what it comes to, and whether it was cut off."""
        worth, num_arms = _worth(bandit, objective), jnp.shape(bandit.cost_mean)[0]
        arms = jnp.arange(num_arms)

        def step(carry, luck: _Luck):
            state, left, total = carry
            logits = policy.logits(state, luck.decide) + (luck.noise if getattr(policy, "softmax", False) else 0)
            weight = jax.nn.softmax(logits / temperature)
            reward, cost = jax.vmap(bandit.pull, (None, 0))(luck.pull, arms)
            counts = jnp.where(luck.plays, jnp.minimum(left, 1), 0)
            states = jax.vmap(policy.update, (None, 0, 0, 0, None))(state, arms, reward, cost, luck.update)
            state = jax.tree.map(lambda x: jnp.tensordot(weight, x.astype(jnp.float32), 1), states)
            return (state, left - counts * (weight @ cost), total + counts * (weight @ worth(reward))), None

        first = game.first_state(policy, bandit, budget[0])
        start = jax.tree.map(_relaxed, first), budget[0], jnp.float32(0)
        (_, left, total), _ = _blocks(step, start, words, rounds, num_arms)
        return total, left > 0.01

    def objective_of(values: Values, bandit: Bandit, key: jax.Array) -> tuple[jax.Array, tuple]:
        words = jax.vmap(random.key_words)(jax.random.split(key, runs))
        total, cut = jax.vmap(partial(play, dataclasses.replace(policy, **values), bandit))(words)
        return total.mean(), (total.mean(), cut.mean())

    keys = jax.random.split(key, jax.tree.leaves(bandits)[0].shape[0])
    gradient, (value, cut) = jax.vmap(jax.grad(objective_of, has_aux=True), (None, 0, 0))(values, bandits, keys)
    return value, cut, gradient


def _relaxed(leaf: jax.Array) -> jax.Array:
    """A part of a policy's state as numbers of which weighted means can be taken."""
    if not (jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.integer)):
        raise ValueError(f"the policy's state has an array of {leaf.dtype}, of which there is no weighted mean: keep numbers "
                         "in it, or take another method than pathwise")
    return leaf.astype(jnp.float32)
