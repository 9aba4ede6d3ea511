"""A grid: `sweep` plays named policies on named bandits, with several budgets and many seeds, and saves as it goes.

What is run does not depend on how: the run of seed number s on a bandit has the key

    fold_in(fold_in(jax.random.key(seed), crc32 of the bandit's name in UTF-8), s)

whatever the policy, so that all policies meet the same luck, and what else is in the grid changes no number.
"""

import inspect
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import pairwise, product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from bts_jax import checks, game, progress
from bts_jax._version import __version__
from bts_jax.bandits import BANDITS
from bts_jax.batch import simulate_batch
from bts_jax.contract import Bandit, Policy, ratio, told
from bts_jax.game import Run
from bts_jax.metrics import pseudo_regret, regret
from bts_jax.policies import POLICIES
from bts_jax.results import Results, Unit, begin, now, read_specification

RUN_KEY = "fold_in(fold_in(jax.random.key(seed), crc32(bandit name)), seed index)"


def sweep(
    policies: Mapping[str, Policy] | Sequence[str],
    bandits: Mapping[str, Bandit],
    budgets: Sequence[float],
    seeds: int,
    *,
    out: str | os.PathLike | None = None,
    seed: int = 0,
    chunk: int | None = None,
    memory: int | None = None,
    quiet: bool = False,
) -> xr.Dataset:
    """Plays every policy on every bandit with every budget, `seeds` times.

    A policy that is not told the budget plays once, with the budgets as checkpoints; one that is told plays once for each.
    Neither `chunk`, `memory`, the order nor an interruption changes a bit of the result.

    Args:
        policies: by name; or the names of some in `POLICIES`, with their default settings.
        bandits: by name. They may differ in family and number of arms.
        budgets: in increasing order.
        seeds: how many runs of each.
        out: a folder to save in, a zarr store. If the same sweep was interrupted there, it goes on, and what is damaged
            is computed again; a folder of anything else is refused. Of a class of your own its source is compared too, but
            not that of what it calls.
        seed: where all randomness comes from; see the keys in `bts_jax.grid`.
        chunk: how many seeds to play and save at a time; by default what suits the device. A store keeps its own.
        memory: how many bytes the results of a call to the device may take, as far as `chunk` is not given.
        quiet: no progress bar. There is none either where nobody would see it.

    Returns:
        An `xarray.Dataset` with the axes policy, bandit, budget, seed (and arm, for `pulls`): `reward`, `cost`, `rounds`,
        `truncated`, `pulls`, `regret`, `pseudo_regret`; what it was made from is in its attributes.

    Example:
        >>> from bts_jax import Bernoulli, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], seeds=5)
        >>> dict(results.regret.sizes)
        {'policy': 2, 'bandit': 1, 'budget': 2, 'seed': 5}
        >>> results.regret.sel(policy="kube", budget=20).mean("seed").dims
        ('bandit',)
    """
    grid = _Grid(policies, bandits, budgets, seeds, seed)
    most = _most_runs(grid, None if memory is None else checks.whole("memory", memory, 1))
    parts = -(-grid.seeds // most)
    chunk = -(-grid.seeds // parts) if chunk is None else min(checks.whole("chunk", chunk, 1), grid.seeds)
    with _progress(grid, quiet) as bar:
        results = begin(grid.attributes(), chunk, out)
        bar.skip(results)
        calls = list(_calls(grid, results, most))
        with _threads(1) as player, _threads(min(os.cpu_count() or 1, 8)) as compilers:
            programs = _compile(grid, results, calls, compilers)
            for call in calls:
                bar.say(call.units, "" if programs[call.program].done() else "compiling ")
                _patiently(programs[call.program], bar.tick)
                bar.say(call.units)
                played = _patiently(player.submit(_play, grid, results, call), bar.tick)
                for unit, values in zip(call.units, played, strict=True):
                    results.put(unit, values)
                    bar.advance(unit, values["rounds"])
    return results.dataset()


def resume(path: str | os.PathLike, *, quiet: bool = False) -> xr.Dataset:
    """Goes on with the sweep in a store; what to play is read there, and must be made of what is in the registries."""
    specification = read_specification(path)
    policies, bandits = (
        {name: _remade(f"{kind}[{name!r}]", entry, registry) for name, entry in specification[kind].items()}
        for kind, registry in (("policies", POLICIES), ("bandits", BANDITS))
    )
    return sweep(policies, bandits, specification["budgets"], specification["seeds"], seed=specification["seed"],  # type: ignore
                 out=path, quiet=quiet)


class _Grid:
    """What is to be played, checked."""

    def __init__(self, policies: Any, bandits: Any, budgets: Any, seeds: Any, seed: Any):
        self.policies: dict[str, Policy] = _named("policies", policies, POLICIES)
        self.bandits: dict[str, Bandit] = _named("bandits", bandits, {})
        self.seeds, self.seed = checks.whole("seeds", seeds, 1), checks.whole("seed", seed, -(2**31))
        amounts = _increasing(budgets)
        exact = (amounts == np.floor(amounts)).all()  # whole numbers need not be rounded to float32
        self.budgets = amounts.astype(np.int32) if exact else amounts
        self.key = jax.random.key(self.seed, impl="threefry2x32")
        for name, bandit in self.bandits.items():
            self._check(f"bandits[{name!r}]", POLICIES["uniform"](), bandit)
        for name, policy in self.policies.items():
            self._check(f"policies[{name!r}]", policy, next(iter(self.bandits.values())))
        means = [(np.asarray(bandit.reward_mean), np.asarray(bandit.cost_mean)) for bandit in self.bandits.values()]
        self.best_costs = [max(float(cost[np.argmax(ratio(reward, cost, np))]), 0.01) for reward, cost in means]

    def _check(self, where: str, policy: Any, bandit: Any) -> None:
        try:
            game.check(policy, bandit, self.budgets[-1], self.key, self.budgets, None)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def told_budget(self, unit: Unit) -> bool:
        return "budget" in told(self.policy(unit))

    def policy(self, unit: Unit) -> Policy:
        return list(self.policies.values())[unit.policy]

    def bandit(self, unit: Unit) -> Bandit:
        return list(self.bandits.values())[unit.bandit]

    def expected_pulls(self, unit: Unit) -> float:
        """Roughly how many pulls a seed of that unit makes: those of the best arm."""
        budget = self.budgets.sum(dtype=np.float64) if self.told_budget(unit) else float(self.budgets[-1])
        return budget / self.best_costs[unit.bandit]

    def attributes(self) -> dict[str, Any]:
        """The attributes of the Dataset."""
        specification = {
            "policies": {name: _entry(policy, POLICIES, told=list(told(policy))) for name, policy in self.policies.items()},
            "bandits": {
                name: _entry(bandit, BANDITS, reward_mean=_listed(bandit.reward_mean), cost_mean=_listed(bandit.cost_mean))
                for name, bandit in self.bandits.items()
            },
            "budgets": [float(budget) for budget in self.budgets],
            "seeds": self.seeds,
            "seed": self.seed,
            "bts_jax": __version__,
            "jax": jax.__version__,
            "platform": jax.default_backend(),  # CPU and GPU agree in law, not in bits
        }
        return {
            "bts_jax": __version__,
            "jax": jax.__version__,
            "device": f"{len(jax.devices())} × {jax.devices()[0].device_kind}",
            "seed": self.seed,
            "run_key": RUN_KEY,
            "created": now(),
            "specification": json.dumps(specification, ensure_ascii=False),
        }


class _Call(NamedTuple):
    """One call to the device. Calls of the same program have the same shapes."""

    units: list[Unit]  # which have the policy in common, and the kind of bandit
    size: int  # how many units the call is made for: the rest is filled up with repeats
    program: Any  # what tells programs apart


def _calls(grid: _Grid, results: Results, most: int) -> Iterator[_Call]:
    """All that is missing."""
    kinds: dict[Any, set[int]] = {}
    for place, bandit in enumerate(grid.bandits.values()):
        # A bandit of one's own need not be fit for a batch along the first axis: it is played alone.
        batch = None if type(bandit) in BANDITS.values() else place
        kinds.setdefault((_kind(bandit), batch), set()).add(place)
    missing = results.missing
    for policy, ((kind, _), places) in product(range(len(grid.policies)), kinds.items()):
        units = [unit for unit in missing if unit.policy == policy and unit.bandit in places]
        size = 1 if len(places) == 1 else min(max(most // results.chunk, 1), len(places) * results.done.shape[2])
        for start in range(0, len(units), size):
            part = units[start : start + size]
            yield _Call(part, size, (_kind(grid.policy(part[0])), kind, size))


def _kind(thing: Any) -> Any:
    leaves, structure = jax.tree.flatten(thing)
    return structure, tuple(np.shape(leaf) for leaf in leaves)


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that are not waited for at the end of the block, as those of `ThreadPoolExecutor` are; Python's end waits."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _compile(grid: _Grid, results: Results, calls: list[_Call], pool: ThreadPoolExecutor) -> dict[Any, Future]:
    """Begins to compile all that the calls need, several programs at a time."""
    programs = {}
    for call in calls:
        if call.program not in programs:
            # A game with a budget of 1 is soon over, and its program serves for all budgets that are to each other as these.
            small = np.maximum(grid.budgets / grid.budgets.max(), 1e-4)
            programs[call.program] = pool.submit(_play, grid, results, call, budgets=small)
    return programs


def _play(
    grid: _Grid, results: Results, call: _Call, budgets: np.ndarray | None = None
) -> list[dict[str, np.ndarray]]:
    """What each unit of a call comes to."""
    budgets = grid.budgets if budgets is None else budgets
    units = [*call.units, *[call.units[-1]] * (call.size - len(call.units))]
    names, chunk = list(grid.bandits), results.chunk
    seeds = np.stack([np.arange(chunk) + unit.part * chunk for unit in units])
    words = np.array([zlib.crc32(names[unit.bandit].encode()) for unit in units], np.uint32)
    keys = _run_keys(grid.key, words, np.minimum(seeds, grid.seeds - 1).astype(np.int32)).ravel()
    budget, checkpoints, repeats = budgets[-1], budgets, 1
    if grid.told_budget(units[0]):
        repeats = len(budgets)
        budget, checkpoints, keys = np.tile(budgets, len(keys)), None, jnp.repeat(keys, repeats)
    bandit = grid.bandit(units[0])
    if call.size > 1:
        bandit = jax.tree.map(lambda *rows: np.repeat(np.stack(rows), chunk * repeats, 0), *map(grid.bandit, units))
    runs = jax.device_get(simulate_batch(grid.policy(units[0]), bandit, budget, keys, checkpoints=checkpoints))
    runs = jax.tree.map(lambda x: x.reshape(call.size, chunk, len(budgets), *x.shape[2:]), runs)
    most_arms = results.arrays["pulls"].shape[-1]
    played = []
    for i, unit in enumerate(call.units):
        seeds = results.seeds(unit)
        run = jax.tree.map(lambda x, i=i, seeds=seeds: x[i, : seeds.stop - seeds.start], runs)
        played.append(_values(run, grid.bandit(unit), most_arms))
    return played


def _patiently(work: Future, tick: Callable[[], Any]) -> Any:
    """What the work of another thread comes to. Meanwhile Ctrl-C is heard, and the bar keeps time."""
    while not work.done():
        wait([work], 0.25)
        tick()
    return work.result()


@jax.jit
def _run_keys(key: jax.Array, words: jax.Array, seeds: jax.Array) -> jax.Array:
    """The keys of runs on several bandits. `words`: [units], `seeds`: [units, chunk] -> [units, chunk]"""
    fold = jax.random.fold_in
    return jax.vmap(lambda word, numbers: jax.vmap(lambda number: fold(fold(key, word), number))(numbers))(words, seeds)


def _values(run: Run, bandit: Bandit, most_arms: int) -> dict[str, np.ndarray]:
    """The results of one unit, from its runs [seed, budget]; seeds last, and 0 pulls of arms that are not there."""
    pulls = np.pad(run.pulls, ((0, 0), (0, 0), (0, most_arms - run.pulls.shape[-1])))
    values = {"reward": run.reward, "cost": run.cost, "rounds": run.rounds, "truncated": run.truncated, "pulls": pulls,
              "regret": regret(run, bandit), "pseudo_regret": pseudo_regret(run, bandit)}
    return {name: np.swapaxes(value, 0, 1) for name, value in values.items()}


def _most_runs(grid: _Grid, memory: int | None) -> int:
    """How many seeds to play at a time: enough to keep the device busy, and few enough to fit and to save often."""
    cpu = jax.default_backend() == "cpu"
    arms = max(np.shape(bandit.cost_mean)[-1] for bandit in grid.bandits.values())
    of_a_seed = 3 * len(grid.budgets) * (4 * arms + 40)  # recorded, stored and fetched
    return max(min(100 if cpu else 2**15, (memory or (2**28 if cpu else 2**30)) // of_a_seed), 1)


# What users pass in, and what is written into the store.


def _named(argument: str, value: Any, registry: Mapping[str, Any]) -> dict[str, Any]:
    """`value` as a dict by name: one already, or a list of names in the registry."""
    example = '{"BTS": BTS()}' if registry else '{"two arms": Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])}'
    if not isinstance(value, Mapping):
        if not registry or isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(f"{argument} = {value!r} has no names: give a dict such as {example}")
        for name in value:
            if not isinstance(name, str) or name not in registry:
                raise ValueError(f"{argument} has {name!r}, which is not a name: give a dict such as {example}, or some of "
                                 f"{', '.join(registry)}")
            if list(value).count(name) > 1:
                raise ValueError(f"{argument} has {name!r} twice: name each once")
        value = {name: registry[name]() for name in value}
    if not value:
        raise ValueError(f"{argument} is empty: give a dict such as {example}")
    for name in value:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{argument} has the name {name!r}: give each a name, a string that is not empty")
    return dict(value)


def _increasing(budgets: Any) -> np.ndarray:
    remedy = f"give positive numbers up to {game.LARGEST}, in increasing order"
    amounts = checks.numbers("budgets", budgets, remedy)
    if amounts.ndim != 1 or not amounts.size:
        raise ValueError(f"budgets = {budgets!r} is not a list of at least one budget: {remedy}")
    checks.require("budgets", amounts, (amounts * game.UNIT >= 0.5) & (amounts <= game.LARGEST), remedy)
    for low, high in pairwise(amounts):
        if not (low < high and np.float32(low) < np.float32(high)):
            raise ValueError(f"budgets has {low:g} before {high:g}: {remedy}, each once")
    return amounts


def _entry(thing: Any, registry: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A policy or bandit as JSON: its class and its numbers, as they are computed with."""
    entry = {"class": type(thing).__name__, **more}
    if type(thing) not in registry.values():
        entry["structure"] = str(jax.tree.structure(thing))  # which may hold settings that are not numbers
        with suppress(OSError, TypeError):  # no source at hand
            entry["code"] = zlib.crc32(inspect.getsource(type(thing)).encode())
    leaves = jax.tree.leaves_with_path(thing)
    return {**entry, "fields": {jax.tree_util.keystr(path).removeprefix("."): _listed(leaf) for path, leaf in leaves}}


def _listed(leaf: Any) -> Any:
    return np.asarray(game.settle(leaf)).tolist()


def _remade(where: str, entry: dict[str, Any], registry: Mapping[str, Any]) -> Any:
    classes = {made.__name__: made for made in registry.values()}
    if "structure" in entry or entry["class"] not in classes:
        raise ValueError(f"{where} is a {entry['class']}, which is none of ours: go on with this sweep from Python, by the "
                         "call that began it")
    return classes[entry["class"]](**entry["fields"])


class _Bar:
    """A bar of the work in pulls. How many there will be is known roughly, and better with every unit."""

    def __init__(self, grid: _Grid, bar: Any):
        self.grid, self.bar = grid, bar

    def skip(self, results: Results) -> None:
        """Counts what is in the store already."""
        for place in np.argwhere(results.done):
            unit = Unit(*map(int, place))
            self.bar.n += self._correct(unit, results.arrays["rounds"][unit.policy, unit.bandit, :, results.seeds(unit)])
        self.bar.initial = self.bar.n
        self.bar.unpause()

    def say(self, units: list[Unit], doing: str = "") -> None:
        policies, bandits = list(self.grid.policies), list(self.grid.bandits)
        more = f" and {len(units) - 1} more" if len(units) > 1 else ""
        self.bar.set_description(f"{doing}{policies[units[0].policy]} on {bandits[units[0].bandit]}{more}")

    def tick(self) -> None:
        self.bar.refresh()

    def advance(self, unit: Unit, rounds: np.ndarray) -> None:
        self.bar.update(self._correct(unit, rounds))
        self.bar.refresh()

    def _correct(self, unit: Unit, rounds: np.ndarray) -> int:
        """Puts the pulls that a unit made in the place of those expected, and returns them. `rounds`: [budget, seed]"""
        made = int((rounds if self.grid.told_budget(unit) else rounds[-1]).sum(dtype=np.int64))
        self.bar.total += made - int(rounds.shape[1] * self.grid.expected_pulls(unit))
        return made


class _NoBar:
    def skip(self, *_: Any) -> None: ...

    say = tick = advance = skip


@contextmanager
def _progress(grid: _Grid, quiet: bool) -> Iterator[Any]:
    """A bar on the terminal or in the notebook. Elsewhere, or without tqdm, there is none."""
    tqdm = progress.bar(quiet)
    if tqdm is None:
        yield _NoBar()
        return
    pairs = product(range(len(grid.policies)), range(len(grid.bandits)))
    total = sum(int(grid.seeds * grid.expected_pulls(Unit(*pair, 0))) for pair in pairs)
    with tqdm(total=total, unit="pull", unit_scale=True, leave=False, desc="starting", dynamic_ncols=True) as bar:
        yield _Bar(grid, bar)
