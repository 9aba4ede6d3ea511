"""A grid: `sweep` plays named policies on named bandits, with several budgets and many seeds, and saves as it goes.

What is run does not depend on how: the run of seed number s on a bandit has the key

    fold_in(fold_in(jax.random.key(seed), crc32 of the bandit's name in UTF-8), s)

whatever the policy, so that all policies meet the same luck, and what else is in the grid changes no number.

A grid is computed and saved in units, see `results`. A unit is one policy on one bandit with a range of seeds. Where there are
many bandits and few seeds, a unit has a group of consecutive bandits of the same kind instead: otherwise there would be as many
units as runs, and saving them would take longer than playing. `_group` chooses how many bandits a group has.

Several units of a kind make a call, and calls that leave a GPU room a party, which is one program. All devices of a process
share it, each in a loop of its own; two parties are under way at a time, so that a device which is done with its part of one
goes on with the next.
Several processes deal the units out among each other, by rules that each can follow alone, and save in one store.
"""

import base64
import dataclasses
import heapq
import inspect
import json
import math
import os
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import groupby, islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from bts_jax import checks, game, progress
from bts_jax._version import __version__
from bts_jax.bandits import BANDITS
from bts_jax.batch import Batch, best_cost, lay_out, lower, on_the_host, play
from bts_jax.contract import Bandit, Means, Policy, told
from bts_jax.devices import check_fork, cores
from bts_jax.game import Run
from bts_jax.metrics import pseudo_regret, regret
from bts_jax.policies import POLICIES
from bts_jax.processes import Meeting
from bts_jax.results import Results, Unit, begin, join, now, read_specification
from bts_jax.specification import increasing
from bts_jax.text import counted, shown

UNDER_WAY = 2  # parties at a time
AHEAD = 24  # parties at a time that are compiled before they are played: far fewer than the programs that `batch` keeps
PARTY = 6  # batches in a program: with more it takes long to compile
LARGEST_GROUP = 256  # bandits in a unit
FEWEST_GROUPS = 16  # into which bandits are divided, so that there are units to share out and little is lost by an interruption
RUN_KEY = "fold_in(fold_in(jax.random.key(seed), crc32(bandit name)), seed index)"


def sweep(
    policies: Mapping[str, Policy] | Sequence[str],
    bandits: Mapping[str, Bandit],
    budgets: Sequence[float],
    seeds: int,
    *,
    out: str | os.PathLike | None = None,
    seed: int = 0,
    relative: bool = False,
    chunk: int | None = None,
    memory: int | None = None,
    devices: int | Sequence[Any] | None = None,
    shard: tuple[int, int] | None = None,
    quiet: bool = False,
) -> xr.Dataset:
    """Plays every policy on every bandit with every budget, `seeds` times.

    A policy that is not told the budget plays once, with the budgets as checkpoints; one that is told plays once for each.
    Neither `chunk`, `memory`, `devices`, `shard`, the order nor an interruption changes a bit of the result.

    Args:
        policies: by name; or the names of some in `POLICIES`, with their default settings.
        bandits: by name. They may differ in family and number of arms.
        budgets: in increasing order.
        seeds: how many runs of each.
        out: a folder to save in, a zarr store. If the same sweep was interrupted there, it goes on, and what is damaged
            is computed again; a folder of anything else is refused. Of a class of your own its source is compared too, but
            not that of what it calls.
        seed: where all randomness comes from; see the keys in `bts_jax.grid`.
        relative: budgets are multiples of the smallest expected cost of each bandit, so that a game has at most about that
            many pulls. The axis `budget` has the multiples.
        chunk: how many seeds to save at a time; by default what suits the device. If all seeds of a bandit are fewer than
            that, and there are many bandits of the same kind in a row, groups of bandits are saved at a time; the size of a
            group divides the number of bandits of each kind, so round numbers are saved faster. A store keeps its own sizes.
        memory: how many bytes the results of a call to the devices may take, as far as `chunk` is not given.
        devices: which to use, such as `jax.local_devices()[:2]`, or how many; by default all that this process has. JAX has a
            device for each CPU core only if `bts_jax` is imported before JAX starts.
        shard: `(3, 8)` plays the third of eight shares and no more, and saves it in `out`, where others may save theirs before,
            meanwhile or after; the shares are the same on every machine, and a share played twice does no harm. The Dataset has
            what is saved by then.
        quiet: no progress bar. There is none either where nobody would see it.

    Returns:
        An `xarray.Dataset` with the axes policy, bandit, budget, seed (and arm, for `pulls`): `reward`, `cost`, `rounds`,
        `truncated`, `pulls`, `regret`, `pseudo_regret`; what it was made from is in its attributes. Where a policy or a bandit
        of one's own broke the rules, rewards, costs and regrets are NaN, and a `RuntimeWarning` says so.

    Example:
        >>> from bts_jax import Bernoulli, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], seeds=5)
        >>> dict(results.regret.sizes)
        {'policy': 2, 'bandit': 1, 'budget': 2, 'seed': 5}
        >>> results.regret.sel(policy="kube", budget=20).mean("seed").dims
        ('bandit',)
    """
    return fill(policies, bandits, budgets, seeds, out=out, seed=seed, relative=relative, chunk=chunk, memory=memory,
                devices=devices, shard=shard, quiet=quiet).dataset()


def fill(
    policies: Any, bandits: Any, budgets: Any, seeds: Any, *, out: Any = None, seed: Any = 0, relative: Any = False,
    chunk: Any = None, memory: Any = None, devices: Any = None, shard: Any = None, quiet: bool = False,
    meeting: Meeting | None = None,
) -> Results:
    """Does what `sweep` does, and leaves the results in the store.

    With a `meeting` of several processes, each plays its share of what process 0 finds missing.
    """
    check_fork()
    devices = _devices(devices)
    with on_the_host():
        grid = _Grid(policies, bandits, budgets, seeds, seed, relative, devices[0])
        attributes = grid.attributes()
    number, count = _share_of(shard, out)
    usual, most = _sizes(grid, None if memory is None else checks.whole("memory", memory, 1), len(devices))
    parts = -(-grid.seeds // usual)
    chunk = -(-grid.seeds // parts) if chunk is None else min(checks.whole("chunk", chunk, 1), grid.seeds)
    group = _group(grid, chunk, usual)
    with _progress(grid, quiet) as bar:
        if meeting is None:
            mine = cache(lambda results: _shares(grid, results, results.units, count)[number - 1])
            results = begin(attributes, chunk, out, mine, group)
            todo = [unit for unit in mine(results) if not results.done[unit]]
        else:
            results = _begin_together(meeting, attributes, chunk, group, out)
            todo = _shares(grid, results, results.missing, meeting.count)[meeting.index]
        bar.begin(todo, results)
        parties = _parties(grid, results, _calls(grid, results, todo, most), most)
        with _threads(UNDER_WAY) as players, _threads(1) as tracer, _threads(min(cores(), 16)) as compilers:
            compiling = _Compiling(grid, results, devices, tracer, compilers)
            lost: Counter[tuple[int, int]] = Counter()  # by policy and bandit
            waiting, under_way = iter(parties), deque()
            for _ in parties:
                for party in islice(waiting, AHEAD - len(under_way)):
                    program = compiling.begin(party)
                    work = players.submit(_play_and_save, program, grid, results, party, devices)
                    under_way.append((party, program, work))
                party, program, work = under_way.popleft()
                units = [unit for call in party for unit in call.units]
                bar.say(units, "" if program.done() else "compiling ")
                _patiently(program, bar.tick)
                bar.say(units)
                outcome = _patiently(work, bar.tick)
                bar.advance(units, [rounds for rounds, _ in outcome])
                for unit, (_, invalid) in zip(units, outcome, strict=True):
                    lost.update({(unit.policy, results.bandits(unit)[i]): int(invalid[i]) for i in np.flatnonzero(invalid)})
    policy_names, bandit_names = list(grid.policies), list(grid.bandits)
    for (policy, bandit), seeds in lost.items():
        warnings.warn(f"policies[{policy_names[policy]!r}] on bandits[{bandit_names[bandit]!r}] came to nothing "
                      f"for {counted(seeds, 'seed')}, where all is NaN: the policy answered an arm that is not there or never "
                      "decided, or a reward or a cost was not in [0, 1]; check_policy and check_bandit may tell",
                      RuntimeWarning, stacklevel=3)
    return results


def stored(path: str | os.PathLike) -> dict[str, Any]:
    """What the sweep in a store plays, as arguments of `sweep`; it must be made of what is in the registries."""
    specification = read_specification(path)
    policies, bandits = (
        {name: _remade(f"{kind}[{shown(name)}]", entry, registry) for name, entry in specification[kind].items()}
        for kind, registry in (("policies", POLICIES), ("bandits", BANDITS))
    )
    return {"policies": policies, "bandits": bandits, "relative": specification.get("relative", False),
            **{name: specification[name] for name in ("budgets", "seeds", "seed")}}


@contextmanager
def _about(where: str) -> Iterator[None]:
    """Says what a `ValueError` is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


class _Grid:
    """What is to be played, checked."""

    def __init__(
        self, policies: Any, bandits: Any, budgets: Any, seeds: Any, seed: Any, relative: Any = False, device: Any = None
    ):
        self.device = jax.local_devices()[0] if device is None else device  # one of those that play
        self.policies: dict[str, Policy] = _named("policies", policies, POLICIES)
        self.bandits: dict[str, Bandit] = _named("bandits", bandits, {})
        self.seeds, self.seed = checks.whole("seeds", seeds, 1), checks.whole("seed", seed, -(2**31))
        amounts = increasing(budgets)
        exact = (amounts == np.floor(amounts)).all()  # whole numbers need not be rounded to float32
        self.budgets = amounts.astype(np.int32) if exact else amounts
        self.key = jax.random.key(self.seed, impl="threefry2x32")
        if not isinstance(relative, bool):
            raise ValueError(f"relative = {relative!r} is not allowed: give True or False")
        self.relative = relative
        self._policies, self._bandits = list(self.policies.values()), list(self.bandits.values())
        costs, self.means, checked = [1.0] * len(self._bandits), [], set()
        for place, (name, bandit) in enumerate(self.bandits.items()):
            where = f"bandits[{name!r}]"
            made = _is_made(bandit, BANDITS)
            if not made or _kind(bandit) not in checked:  # those of ours were checked when they were made, all but their shapes
                with _about(where):
                    game.check(POLICIES["uniform"](), bandit, self.budgets[-1], self.key, self.budgets, None)
            if made:
                checked.add(_kind(bandit))
            means = Means(np.asarray(bandit.reward_mean), np.asarray(bandit.cost_mean))
            self.means.append(means)
            if relative:
                costs[place] = float(np.min(means.cost_mean))
                if costs[place] <= 0:
                    raise ValueError(f"{where} has an arm that costs nothing, and budgets are relative to the smallest "
                                     "expected cost: leave it out")
                with _about(where):
                    amounts = self.budgets * costs[place]
                    game.check_values(means, amounts[-1], amounts, None)
        self.amounts = np.array([self.budgets * cost if relative else self.budgets for cost in costs])
        for name, policy in self.policies.items():
            with _about(f"policies[{name!r}]"):
                game.check(policy, self._bandits[0], self.amounts[0, -1], self.key, self.amounts[0], None)
        self.words = np.array([zlib.crc32(name.encode()) for name in self.bandits], np.uint32)
        self._count_work()
        self._sort_by_kind()

    def _count_work(self) -> None:
        """Counts roughly how many pulls a seed makes on each bandit, those of the best arm, and its work: pulls times arms."""
        best_costs = np.array([float(best_cost(means)) for means in self.means])
        arms = np.array([means.cost_mean.shape[-1] for means in self.means])
        self.most_arms = int(arms.max())
        # By whether the policy is told the budget: if so it plays once with every budget, and otherwise once with the largest.
        budgets = {True: self.amounts.sum(1, dtype=np.float64), False: self.amounts[:, -1].astype(np.float64)}
        self._pulls = {told: budget / best_costs for told, budget in budgets.items()}
        self._work = {told: np.round(pulls * arms).astype(np.int64) for told, pulls in self._pulls.items()}

    def _sort_by_kind(self) -> None:
        """Which bandits may share a call, with their arrays stacked."""
        numbers: dict[Any, int] = {}
        members: dict[int, list[int]] = {}
        self.kinds: list[tuple[int, int | None]] = []  # those that are equal may
        self._rows = np.zeros(len(self._bandits), np.int64)
        for place, bandit in enumerate(self._bandits):
            kind = numbers.setdefault(_kind(bandit), len(numbers))
            # A bandit of one's own need not be fit for a batch along the first axis: it is played alone.
            self.kinds.append((kind, None if _is_made(bandit, BANDITS) else place))
            self._rows[place] = len(members.setdefault(kind, []))
            members[kind].append(place)
        self._members, self._stacks = members, {}

    def told_budget(self, unit: Unit) -> bool:
        return "budget" in told(self.policy(unit))

    def policy(self, unit: Unit) -> Policy:
        return self._policies[unit.policy]

    def bandit(self, place: int) -> Bandit:
        return self._bandits[place]

    def batch(self, places: Sequence[int] | np.ndarray) -> Bandit:
        """A batch of bandits of the same kind."""
        kind, _ = self.kinds[places[0]]
        if kind not in self._stacks:
            bandits = [self._bandits[place] for place in self._members[kind]]
            self._stacks[kind] = jax.tree.map(lambda *leaves: np.stack(leaves), *bandits)
        rows = self._rows[places]
        return jax.tree.map(lambda leaf: leaf[rows], self._stacks[kind])

    def expected_pulls(self, unit: Unit, bandits: range) -> float:
        """Roughly how many pulls a seed of that unit makes on these bandits together."""
        return float(self._pulls[self.told_budget(unit)][bandits.start : bandits.stop].sum())

    def work(self, unit: Unit, bandits: range) -> int:
        """Roughly how long a seed of that unit takes on these bandits together."""
        return int(self._work[self.told_budget(unit)][bandits.start : bandits.stop].sum())

    def attributes(self) -> dict[str, Any]:
        """The attributes of the Dataset."""
        specification = {
            "policies": {name: _entry(policy, POLICIES, told=list(told(policy))) for name, policy in self.policies.items()},
            "bandits": {
                name: _entry(bandit, BANDITS, reward_mean=_listed(means.reward_mean), cost_mean=_listed(means.cost_mean))
                for (name, bandit), means in zip(self.bandits.items(), self.means, strict=True)
            },
            "budgets": [float(budget) for budget in self.budgets],
            "seeds": self.seeds,
            "seed": self.seed,
            **({"relative": True} if self.relative else {}),
            "bts_jax": __version__,
            "jax": jax.__version__,
            "platform": self.device.platform,  # CPU and GPU agree in law, not in bits
        }
        return {
            "bts_jax": __version__,
            "jax": jax.__version__,
            "device": self.device.device_kind,
            "seed": self.seed,
            "run_key": RUN_KEY,
            "created": now(),
            "specification": json.dumps(specification, ensure_ascii=False),
        }


def _begin_together(meeting: Meeting, attributes: dict[str, Any], chunk: int, group: int, out: Any) -> Results:
    """The store that process 0 makes or goes on with, and what it finds in it, for all processes alike."""
    if meeting.index:
        message = meeting.hear()
        results = join(attributes, out, message["attributes"], meeting.timeout)
        done = np.frombuffer(zlib.decompress(base64.b85decode(message["done"])), np.uint8)
        results.done[:] = np.unpackbits(done, count=results.done.size).reshape(results.done.shape)
        return results
    results = begin(attributes, chunk, out, group=group)
    done = base64.b85encode(zlib.compress(np.packbits(results.done).tobytes())).decode()
    meeting.tell({"attributes": results.attributes, "done": done})
    return results


class _Call(NamedTuple):
    """A batch of runs. Calls of the same program have the same shapes."""

    units: list[Unit]  # which have the policy in common, and the kind of bandit
    size: int  # how many units the call is made for: the rest is filled up with repeats
    alike: bool  # all units have the same bandit, as all of that program
    program: Any  # what tells programs apart


def _group(grid: _Grid, chunk: int, usual: int) -> int:
    """How many bandits a unit of `chunk` seeds has, where a unit usually has up to `usual` runs.

    Consecutive bandits of the same kind form a stretch. The number divides the lengths of all stretches, so that no group has
    bandits of two kinds. It is 1 where the seeds alone make a unit large enough.
    """
    if chunk < grid.seeds:
        return 1
    lengths = [len(list(stretch)) for _, stretch in groupby(grid.kinds)]
    most = min(min(usual, _grouped_runs(grid)) // chunk, LARGEST_GROUP, len(grid.kinds) // FEWEST_GROUPS)
    common = math.gcd(*lengths)
    return max((number for number in range(1, min(most, common) + 1) if common % number == 0), default=1)


def _check_groups(grid: _Grid, results: Results) -> None:
    """Raises if a store has groups of bandits that cannot be played together, as `sweep` does not make them."""
    for start in range(0, len(grid.kinds), results.group):
        if len(set(grid.kinds[start : start + results.group])) > 1:
            raise ValueError(f"the store {str(results.path)!r} has groups of {results.group} bandits, and bandits of different "
                             f"kinds in one, from {list(grid.bandits)[start]!r} on: it was changed; name another folder as out")


def _work(grid: _Grid, results: Results, unit: Unit) -> int:
    return grid.work(unit, results.bandits(unit))


def _alike(grid: _Grid, results: Results, units: list[Unit]) -> dict[Any, list[Unit]]:
    """Units that may share a call, the longest first."""
    _check_groups(grid, results)
    alike: dict[Any, list[Unit]] = {}
    for unit in sorted(units, key=partial(_work, grid, results), reverse=True):
        alike.setdefault((unit.policy, *grid.kinds[results.bandits(unit)[0]]), []).append(unit)
    return alike


def _shares(grid: _Grid, results: Results, units: list[Unit], count: int) -> list[list[Unit]]:
    """Deals units out to processes, so that all will take about as long.

    This depends on the grid, the chunks, the units and how many processes there are, not on who asks: all find the same.
    What would make a call on one device stays together, unless there is too little of it for all.
    """
    lists, size = _alike(grid, results, units).values(), max(_usual_runs(grid) // results.runs, 1)
    while count > 1 and size > 1 and sum(-(-len(alike) // size) for alike in lists) < 4 * count:
        size = -(-size // 2)
    hands = [alike[start : start + size] for alike in lists for start in range(0, len(alike), size)]
    shares: list[list[Unit]] = [[] for _ in range(count)]
    loads = [(0, place) for place in range(count)]
    of_a_unit = partial(_work, grid, results)
    for work, hand in sorted(((sum(map(of_a_unit, hand)), hand) for hand in hands), key=lambda pair: -pair[0]):
        load, place = heapq.heappop(loads)
        shares[place] += hand
        heapq.heappush(loads, (load + work, place))
    return shares


def _calls(grid: _Grid, results: Results, units: list[Unit], most: int) -> list[_Call]:
    """All calls that these units take, the longest first: so none is left over that others would wait for."""
    lists = _alike(grid, results, units)
    largest, groups = {}, {}
    for (_, *kind), alike in lists.items():
        largest[tuple(kind)] = max(largest.get(tuple(kind), 1), len(alike))
        groups.setdefault(tuple(kind), set()).update(unit.bandit for unit in alike)
    calls = []
    for (_, *kind), alike in lists.items():
        size = min(max(most // results.runs, 1), largest[tuple(kind)])
        one_bandit = results.group == 1 and len(groups[tuple(kind)]) == 1
        for start in range(0, len(alike), size):
            part = alike[start : start + size]
            calls.append(_Call(part, size, one_bandit, (_kind(grid.policy(part[0])), kind[0], size)))
    return sorted(calls, key=lambda call: -sum(_work(grid, results, unit) for unit in call.units))


def _parties(grid: _Grid, results: Results, calls: list[_Call], most: int) -> list[list[_Call]]:
    """Calls that are played side by side in one program: small ones of several policies on the same bandits.

    The first party is halved, if others follow: its programs compile sooner, and the device need not wait for the others'.
    """
    same: dict[Any, list[_Call]] = {}
    for place, call in enumerate(calls):
        seeds = call.size * results.runs
        runs = seeds * (len(grid.budgets) if grid.told_budget(call.units[0]) else 1)
        alone = runs > _small_call(grid) or seeds > most // PARTY
        same.setdefault((*(unit._replace(policy=0) for unit in call.units), place if alone else None), []).append(call)
    parties = [sorted(group, key=lambda call: call.units[0].policy) for group in same.values()]
    parties = [party[start : start + PARTY] for party in parties for start in range(0, len(party), PARTY)]
    if len(parties) > 2 and len(parties[0]) > 2:
        parties[:1] = parties[0][::2], parties[0][1::2]
    return parties


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


class _Compiling:
    """Compiles programs in other threads: one is traced after the other, several are compiled at a time.

    Python would trace several no faster, and have the first ready no sooner than the last.
    """

    def __init__(self, grid: _Grid, results: Results, devices: Sequence[Any], tracer: ThreadPoolExecutor,
                 compilers: ThreadPoolExecutor):
        self.grid, self.results, self.devices, self.tracer, self.compilers = grid, results, devices, tracer, compilers
        self.begun: dict[Any, Future] = {}

    def begin(self, party: list[_Call]) -> Future:
        """Begins to compile what a party needs, unless that is done or under way."""
        key = tuple(call.program for call in party)
        if key not in self.begun:
            self.begun[key] = self.compilers.submit(self._compile, self.tracer.submit(self._trace, party))
        return self.begun[key]

    def _trace(self, party: list[_Call]) -> Any:
        try:
            return lower(_batches(self.grid, self.results, party, self.devices))
        except Exception as error:
            names = sorted({list(self.grid.policies)[call.units[0].policy] for call in party})
            error.add_note(f"This is about policies {', '.join(map(repr, names))}.")
            raise

    @staticmethod
    def _compile(traced: Future) -> None:
        traced.result().compile()  # `batch` keeps what is compiled, for as long as there is room


def _play_and_save(
    program: Future, grid: _Grid, results: Results, party: list[_Call], devices: Sequence[Any]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns for each unit its rounds [bandit, budget, seed], and how many seeds of each bandit produced invalid runs."""
    try:
        program.result()
    except (Exception, CancelledError):  # which is raised where it is asked for
        return []
    played = play(_batches(grid, results, party, devices))
    outcome = []
    with on_the_host():
        for call, (runs, _, _) in zip(party, played, strict=True):
            shape = call.size, results.group, results.chunk, len(grid.budgets)
            runs = jax.tree.map(lambda x, shape=shape: x.reshape(*shape, *x.shape[2:]), runs)
            for i, unit in enumerate(call.units):
                seeds = results.seeds(unit)
                run = jax.tree.map(lambda x, i=i, seeds=seeds: x[i, :, : seeds.stop - seeds.start], runs)
                means = [grid.means[place] for place in results.bandits(unit)]
                values = _values(run, Means(*map(np.stack, zip(*means, strict=True))), results.sizes["arm"])
                results.put(unit, values)
                outcome.append((values["rounds"], np.isnan(values["reward"]).any(1).sum(1)))
    return outcome


def _batches(grid: _Grid, results: Results, party: list[_Call], devices: Sequence[Any]) -> list[Batch]:
    """The calls of a party, laid out."""
    devices = devices[: party[0].size * results.runs]  # a call may have more runs than another, but none has fewer
    with on_the_host():
        return [_lay_out(grid, results, call, devices) for call in party]


def _lay_out(grid: _Grid, results: Results, call: _Call, devices: Sequence[Any]) -> Batch:
    """The runs of a call."""
    units = [*call.units, *[call.units[-1]] * (call.size - len(call.units))]
    chunk = results.chunk
    places = np.array([results.bandits(unit) for unit in units]).ravel()
    parts = np.repeat([unit.part for unit in units], results.group)
    seeds = parts[:, None] * chunk + np.arange(chunk)  # [bandits, chunk]
    words, amounts = grid.words[places], grid.amounts[places]
    checkpoints, repeats = np.repeat(amounts, chunk, 0), 1  # [runs, budgets]
    budget = checkpoints[:, -1]
    if grid.told_budget(units[0]):
        repeats = len(grid.budgets)
        budget, checkpoints = checkpoints.ravel(), None
    keys = _run_keys(grid.key, words, np.minimum(seeds, grid.seeds - 1).astype(np.int32), repeats)
    bandit = grid.bandit(places[0]) if call.alike else grid.batch(np.repeat(places, chunk * repeats))
    # An array among the hyperparameters of a policy of one's own is the same in all runs, and no batch of them.
    policy = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(keys), *np.shape(leaf))) if np.ndim(leaf) else leaf,
                          grid.policy(units[0]))
    return lay_out(policy, bandit, budget, keys, checkpoints=checkpoints, devices=devices)


def _patiently(work: Future, tick: Callable[[], Any]) -> Any:
    """What the work of another thread comes to. Meanwhile Ctrl-C is heard, and the bar keeps time."""
    while not work.done():
        wait([work], 0.25)
        tick()
    return work.result()


@partial(jax.jit, static_argnums=3)
def _run_keys(key: jax.Array, words: jax.Array, seeds: jax.Array, repeats: int) -> jax.Array:
    """The keys of runs on several bandits, each repeated. `words`: [bandits], `seeds`: [bandits, chunk] -> [runs]"""
    fold = jax.random.fold_in
    keys = jax.vmap(lambda word, numbers: jax.vmap(lambda number: fold(fold(key, word), number))(numbers))(words, seeds)
    return jnp.repeat(keys.ravel(), repeats)


def _values(run: Run, bandit: Any, most_arms: int) -> dict[str, np.ndarray]:
    """The results of one unit, from its runs [bandit, seed, budget]; seeds last, and 0 pulls of arms that are not there."""
    pulls = np.pad(run.pulls, (*[(0, 0)] * 3, (0, most_arms - run.pulls.shape[-1])))
    values = {"reward": run.reward, "cost": run.cost, "rounds": run.rounds, "truncated": run.truncated, "pulls": pulls,
              "regret": regret(run, bandit), "pseudo_regret": pseudo_regret(run, bandit)}
    return {name: np.swapaxes(value, 1, 2) for name, value in values.items()}


def _sizes(grid: _Grid, memory: int | None, devices: int) -> tuple[int, int]:
    """How many seeds to save at a time, and how many to play: enough to keep devices busy, few enough to fit."""
    of_a_seed = 3 * len(grid.budgets) * (4 * grid.most_arms + 40)  # recorded, stored and fetched
    cpu, usual = _on_cpu(grid), _usual_runs(grid)
    fit = (memory or (2**28 if cpu else 2**30)) // of_a_seed
    # Saved is the same number on any number of devices.
    return max(min(usual, fit), 1), max(min(max(usual, 50 * devices) if cpu else usual * devices, fit), 1)


def _on_cpu(grid: _Grid) -> bool:
    return grid.device.platform == "cpu"


def _usual_runs(grid: _Grid) -> int:
    """How many runs at a time suit a device."""
    return 100 if _on_cpu(grid) else 2**15


def _grouped_runs(grid: _Grid) -> int:
    """Up to how many runs bandits are put into one unit for: with more, its eight files no longer matter.

    A GPU plays many units at a time, and fills a call better with small ones.
    """
    return 100 if _on_cpu(grid) else 2**10


def _small_call(grid: _Grid) -> int:
    """How many runs leave room on a device for other calls: a GPU is slow to start kernels, and runs several at once."""
    return 0 if _on_cpu(grid) else 2**13


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
        checks.name(argument, name)
    return dict(value)


def _devices(devices: Any) -> list[Any]:
    """The devices to use, of those that this process has."""
    here = jax.local_devices()
    if devices is None:
        return here
    remedy = f"give a number from 1 to {len(here)}, or some of jax.local_devices()"
    if isinstance(devices, (int, np.integer)) and not isinstance(devices, bool):
        if not 1 <= devices <= len(here):
            raise ValueError(f"devices = {devices}, and there {'is' if len(here) == 1 else 'are'} {len(here)} "
                             f"({here[0].device_kind}): {remedy}; BTS_JAX_CPU_DEVICES in the environment makes more of a CPU")
        return here[:devices]
    if not isinstance(devices, Sequence) or isinstance(devices, str) or not devices:
        raise ValueError(f"devices = {devices!r} is neither a number nor a list of devices: {remedy}")
    for place, device in enumerate(devices):
        if device not in here or device in devices[:place]:
            raise ValueError(f"devices[{place}] = {device!r} is not a device of this process, or there twice: {remedy}")
    return list(devices)


def _share_of(shard: Any, out: Any) -> tuple[int, int]:
    """Which share to play, and of how many."""
    if shard is None:
        return 1, 1
    whole = isinstance(shard, Sequence) and len(shard) == 2 and all(type(part) is int for part in shard)
    if not whole or not 1 <= shard[0] <= shard[1]:
        raise ValueError(f"shard = {shard!r} is no share: give its number from 1 on and how many there are, such as (3, 8)")
    if out is None:
        raise ValueError(f"shard = {shard!r} is not saved anywhere: name the folder of all shares as out")
    return shard[0], shard[1]


def _entry(thing: Any, registry: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A policy or bandit as JSON: its class and its numbers, as they are computed with."""
    entry = {"class": type(thing).__name__, **more}
    if not _is_made(thing, registry):
        entry["structure"] = str(jax.tree.structure(thing))  # which may hold settings that are not numbers
        with suppress(OSError, TypeError):  # no source at hand
            entry["code"] = zlib.crc32(inspect.getsource(type(thing)).encode())
    fields = {}
    for path, leaf in jax.tree.leaves_with_path(thing, is_leaf=lambda part: part is not thing and _is_made(part, registry)):
        inner = _is_made(leaf, registry)  # a bandit made from another
        fields[jax.tree_util.keystr(path).removeprefix(".")] = _entry(leaf, registry) if inner else _listed(leaf)
    return {**entry, "fields": fields}


def _is_made(thing: Any, registry: Mapping[str, Any]) -> bool:
    """Whether a thing is one of ours, and so is all that it is made of."""
    if type(thing) not in registry.values():
        return False
    parts = [getattr(thing, field.name) for field in dataclasses.fields(thing)]
    return all(part is None or jax.tree_util.all_leaves([part]) or _is_made(part, registry) for part in parts)


def _listed(leaf: Any) -> Any:
    return np.asarray(game.settle(leaf)).tolist()


def _remade(where: str, entry: dict[str, Any], registry: Mapping[str, Any]) -> Any:
    classes = {made.__name__: made for made in registry.values()}
    if "structure" in entry or entry["class"] not in classes:
        raise ValueError(f"{where} is a {entry['class']:.60}, which is none of ours: go on with this sweep from Python, by the "
                         "call that began it")
    fields = {name: _remade(where, value, registry) if isinstance(value, dict) else value
              for name, value in entry["fields"].items()}
    try:
        return classes[entry["class"]](**fields)
    except (TypeError, ValueError) as error:  # such as a field that the class does not have
        raise ValueError(f"{where}: {error}") from None


class _Bar:
    """A bar of the work in pulls. How many there will be is known roughly, and better with every unit."""

    def __init__(self, grid: _Grid, bar: Any):
        self.grid, self.bar = grid, bar

    def begin(self, units: list[Unit], results: Results) -> None:
        """Counts what is to be played."""
        self.results = results
        self.bar.total = sum(map(self._expected, units))
        self.bar.unpause()

    def say(self, units: list[Unit], doing: str = "") -> None:
        policies, bandits = list(self.grid.policies), list(self.grid.bandits)
        count = len(units) * self.results.group
        more = f" and {count - 1} more" if count > 1 else ""
        first = bandits[self.results.bandits(units[0])[0]]
        self.bar.set_description(f"{doing}{policies[units[0].policy]} on {first}{more}")

    def tick(self) -> None:
        self.bar.refresh()

    def advance(self, units: list[Unit], rounds: list[np.ndarray]) -> None:
        """Puts the pulls that units made in the place of those expected. `rounds`: of each [bandit, budget, seed]"""
        for unit, of_unit in zip(units, rounds, strict=True):
            made = int((of_unit if self.grid.told_budget(unit) else of_unit[:, -1]).sum(dtype=np.int64))
            self.bar.total += made - self._expected(unit)
            self.bar.update(made)
        self.bar.refresh()

    def _expected(self, unit: Unit) -> int:
        seeds = self.results.seeds(unit)
        return int((seeds.stop - seeds.start) * self.grid.expected_pulls(unit, self.results.bandits(unit)))


class _NoBar:
    def begin(self, *_: Any) -> None: ...

    say = tick = advance = begin


@contextmanager
def _progress(grid: _Grid, quiet: bool) -> Iterator[Any]:
    """A bar on the terminal or in the notebook. Elsewhere, or without tqdm, there is none."""
    tqdm = progress.bar(quiet)
    if tqdm is None:
        yield _NoBar()
        return
    everywhere = range(len(grid.bandits))
    total = sum(int(grid.seeds * grid.expected_pulls(Unit(policy, 0, 0), everywhere)) for policy in range(len(grid.policies)))
    with tqdm(total=total, unit="pull", unit_scale=True, leave=False, desc="starting", dynamic_ncols=True) as bar:
        yield _Bar(grid, bar)
