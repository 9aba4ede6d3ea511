"""`sweep`: plays named policies on named bandits, with several budgets and many seeds, and saves as it goes.

What is run does not depend on how: the run of seed number s on a bandit has the key

    fold_in(fold_in(jax.random.key(seed), crc32 of the bandit's name in UTF-8), s)

for every policy. All policies are compared with common random numbers, and what else is in the sweep changes no number.

A sweep is computed and saved in chunks (`schedule`, `results`). All devices of a process share a program, each in a loop of its
own. Two programs run at a time, so that a device that has finished its part of one goes on with the next. Several processes
divide the chunks among each other, by rules that each can follow alone, and save in one store.
"""

import base64
import os
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from bts_jax import checks
from bts_jax.bandits import BANDITS
from bts_jax.batch import Batch, lay_out, lower, on_the_host, play
from bts_jax.contract import Bandit, Means, Policy
from bts_jax.devices import check_fork, cores
from bts_jax.game import Run
from bts_jax.metrics import pseudo_regret, untruncated_regret
from bts_jax.policies import POLICIES
from bts_jax.sweeps.bar import progress_bar
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.growth import settle
from bts_jax.sweeps.opening import begin, join, read_specification
from bts_jax.sweeps.processes import Meeting
from bts_jax.sweeps.results import Results, Unit
from bts_jax.sweeps.schedule import Call, calls, fused, group_size, shards, sizes
from bts_jax.sweeps.specification import arguments
from bts_jax.text import counted

UNDER_WAY = 2  # parties at a time
AHEAD = 24  # parties at a time that are compiled before they are played: far fewer than the programs that `batch` keeps


def sweep(
    policies: Mapping[str, Policy] | Sequence[str],
    bandits: Mapping[str, Bandit],
    budgets: Sequence[float] | None = None,
    seeds: int | None = None,
    *,
    max_rounds: int | None = None,
    rounds: Sequence[int] | None = None,
    out: str | os.PathLike | None = None,
    seed: int = 0,
    relative: bool = False,
    bandit_coords: Mapping[str, Sequence[Any]] | None = None,
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
        budgets: in increasing order, in the unit of the bandits' costs.
        seeds: how many runs of each.
        max_rounds: every run ends after so many rounds, if its budget is not spent by then. Its regret is then NaN.
        rounds: instead of budgets, the numbers of rounds after which to record a run, in increasing order. Runs then have no
            budget; the axis `budget` has the numbers of rounds, and regret, which is about a budget, is NaN: take
            `pseudo_regret`. A policy that is told the budget is refused.
        out: a folder to save in, a zarr store. If the same sweep was interrupted there, it goes on, and what is damaged
            is computed again. A store that has a part of this sweep grows: only what is missing is computed. A store has one
            list of budgets, which all of its policies play. A store of another seed, or with other settings under the same
            name, is refused. Of a class of your own the code is compared too, without comments, but not that of what it calls;
            if it has changed, its runs are played again, and a warning says so.
        seed: where all randomness comes from; see the keys in `bts_jax.sweeps.run`.
        relative: budgets are multiples of the smallest expected cost of each bandit, so that a game has at most about that
            many pulls. The axis `budget` has the multiples.
        bandit_coords: further coordinates of the bandits, by name: one number or text for each bandit, such as
            `{"gap": [0.1, 0.2]}`. The Dataset has them along the axis `bandit`.
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
        of one's own broke the rules, rewards, costs and regrets are NaN, and a `RuntimeWarning` says so. Amounts are in the
        units of the bandits. Names of arms are the coordinate `arm` if all bandits have the same, else `arm_name`.

    Example:
        >>> from bts_jax import Bernoulli, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], seeds=5)
        >>> dict(results.regret.sizes)
        {'policy': 2, 'bandit': 1, 'budget': 2, 'seed': 5}
        >>> results.regret.sel(policy="kube", budget=20).mean("seed").dims
        ('bandit',)
        >>> hundred = sweep(["uniform"], bandits, seeds=5, rounds=[10, 100])
        >>> hundred.rounds.max("seed").values.tolist()
        [[[10, 100]]]
    """
    return fill(policies, bandits, budgets, seeds, max_rounds=max_rounds, rounds=rounds, out=out, seed=seed,
                relative=relative, bandit_coords=bandit_coords, chunk=chunk,
                memory=memory, devices=devices, shard=shard, quiet=quiet).dataset()


def fill(
    policies: Any, bandits: Any, budgets: Any = None, seeds: Any = None, *, max_rounds: Any = None, rounds: Any = None,
    out: Any = None, seed: Any = 0, relative: Any = False, bandit_coords: Any = None,
    chunk: Any = None, memory: Any = None, devices: Any = None, shard: Any = None, quiet: bool = False,
    meeting: Meeting | None = None,
) -> Results:
    """Does what `sweep` does, and leaves the results in the store.

    With a `meeting` of several processes, each plays its share of what process 0 finds missing.
    """
    check_fork()
    devices = _devices(devices)
    with on_the_host():
        asked = Grid(policies, bandits, budgets, seeds, seed, relative, devices[0], bandit_coords, max_rounds,
                     rounds)
        attributes = asked.attributes()
    number, count = _share_of(shard, out)
    usual, most = sizes(asked, None if memory is None else checks.whole("memory", memory, 1), len(devices))
    parts = -(-asked.seeds // usual)
    chunk = -(-asked.seeds // parts) if chunk is None else min(checks.whole("chunk", chunk, 1), asked.seeds)
    group = group_size(asked, chunk, usual)

    @cache
    def grid_of(results: Results) -> Grid:
        same = results.attributes["specification"] == attributes["specification"]  # the order of names counts
        return asked if same else asked.within(results.specification)

    @cache
    def mine(results: Results) -> list[Unit]:
        return shards(grid_of(results), results, results.units, count)[number - 1]

    def regroup(whole: dict[str, Any], chunk: int) -> int:
        return group_size(asked.within(whole), chunk, usual)

    with progress_bar(asked, quiet) as bar:
        if meeting is None:
            results = begin(attributes, chunk, out, mine, group, regroup)
            todo = [unit for unit in mine(results) if not results.done[unit]]
        else:
            results = _begin_together(meeting, attributes, chunk, group, out)
            todo = shards(grid_of(results), results, results.missing, meeting.count)[meeting.index]
        grid = grid_of(results)
        todo = [unit for unit in todo if not results.adopt(unit)]
        bar.begin(grid, todo, results)
        parties = fused(grid, results, calls(grid, results, todo, most), most)
        with _threads(UNDER_WAY) as players, _threads(1) as tracer, _threads(min(cores(), 16)) as compilers:
            compiling = _Compiling(grid, results, devices, tracer, compilers)
            lost: Counter[tuple[int, int]] = Counter()  # by policy and bandit
            cut: Counter[tuple[int, int]] = Counter()  # likewise, runs that hit the limit of rounds
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
                bar.advance(units, [pulled for pulled, *_ in outcome])
                for unit, (_, *counts) in zip(units, outcome, strict=True):
                    for counter, seeds_of in zip((lost, cut), counts, strict=True):
                        counter.update({(unit.policy, results.bandits(unit)[i]): int(seeds_of[i])
                                        for i in np.flatnonzero(seeds_of)})
    if meeting is None and count == 1:
        settle(results)
    policy_names, bandit_names = list(grid.policies), list(grid.bandits)
    for (policy, bandit), seeds in lost.items():
        warnings.warn(f"policies[{policy_names[policy]!r}] on bandits[{bandit_names[bandit]!r}] came to nothing "
                      f"for {counted(seeds, 'seed')}, where all is NaN: the policy answered an arm that is not there or never "
                      "decided, or a reward or a cost was not in [0, 1], or above reward_scale or cost_scale; check_policy and "
                      "check_bandit may tell", RuntimeWarning, stacklevel=3)
    for (policy, bandit), seeds in cut.items() if grid.longest is None else ():
        warnings.warn(f"policies[{policy_names[policy]!r}] on bandits[{bandit_names[bandit]!r}] hit the limit of rounds for "
                      f"{counted(seeds, 'seed')} before the budget was spent, where regret is NaN: does every arm cost "
                      "something? pseudo_regret is about the pulls that were made", RuntimeWarning, stacklevel=3)
    return results


def stored(
    path: str | os.PathLike, own: tuple[Mapping[str, type], Mapping[str, type]] = ({}, {})
) -> dict[str, Any]:
    """What the sweep in a store plays, as arguments of `sweep`. `own`: policies and bandits that are not in the registries."""
    return arguments(read_specification(path), POLICIES, BANDITS, own)


def _begin_together(meeting: Meeting, attributes: dict[str, Any], chunk: int, group: int, out: Any) -> Results:
    """The store that process 0 makes or goes on with, and what it finds in it, for all processes alike."""
    if meeting.index:
        message = meeting.hear()
        results = join(attributes, out, message["attributes"], message["asked"], meeting.timeout)
        done = np.frombuffer(zlib.decompress(base64.b85decode(message["done"])), np.uint8)
        results.done[:] = np.unpackbits(done, count=results.done.size).reshape(results.done.shape)
        return results
    results = begin(attributes, chunk, out, group=group)
    done = base64.b85encode(zlib.compress(np.packbits(results.done).tobytes())).decode()
    meeting.tell({"attributes": results.attributes, "asked": attributes["specification"], "done": done})
    return results


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

    def __init__(self, grid: Grid, results: Results, devices: Sequence[Any], tracer: ThreadPoolExecutor,
                 compilers: ThreadPoolExecutor):
        self.grid, self.results, self.devices, self.tracer, self.compilers = grid, results, devices, tracer, compilers
        self.begun: dict[Any, Future] = {}

    def begin(self, party: list[Call]) -> Future:
        """Begins to compile what a party needs, unless that is done or under way."""
        key = tuple(call.program for call in party)
        if key not in self.begun:
            self.begun[key] = self.compilers.submit(self._compile, self.tracer.submit(self._trace, party))
        return self.begun[key]

    def _trace(self, party: list[Call]) -> Any:
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
    program: Future, grid: Grid, results: Results, party: list[Call], devices: Sequence[Any]
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns for each unit its rounds [bandit, budget, seed], and how many seeds of each bandit are invalid, and truncated."""
    try:
        program.result()
    except (Exception, CancelledError):  # which is raised where it is asked for
        return []
    played = play(_batches(grid, results, party, devices))
    outcome = []
    with on_the_host():
        for call, (runs, _, _) in zip(party, played, strict=True):
            gaps = [results.gap(unit) for unit in call.units]
            shape = call.size, results.group, results.chunk, len(gaps[0].budgets)
            runs = jax.tree.map(lambda x, shape=shape: x.reshape(*shape, *x.shape[2:]), runs)
            for i, (unit, gap) in enumerate(zip(call.units, gaps, strict=True)):
                run = jax.tree.map(lambda x, i=i, gap=gap: x[i, :, : len(gap.seeds)], runs)
                means = [grid.means[place] for place in results.bandits(unit)]
                values = _values(run, Means(*map(np.stack, zip(*means, strict=True))), results.sizes["arm"])
                results.put_gap(unit, gap, values)
                outcome.append((values["rounds"], np.isnan(values["reward"]).any(1).sum(1), values["truncated"].any(1).sum(1)))
    return outcome


def _batches(grid: Grid, results: Results, party: list[Call], devices: Sequence[Any]) -> list[Batch]:
    """The calls of a party, laid out."""
    devices = devices[: party[0].size * results.runs]  # a call may have more runs than another, but none has fewer
    with on_the_host():
        return [_lay_out(grid, results, call, devices) for call in party]


def _lay_out(grid: Grid, results: Results, call: Call, devices: Sequence[Any]) -> Batch:
    """The runs of a call."""
    units = [*call.units, *[call.units[-1]] * (call.size - len(call.units))]
    chunk = results.chunk
    places = np.array([results.bandits(unit) for unit in units]).ravel()
    gaps = [results.gap(unit) for unit in units]
    seeds = np.stack([np.resize(gap.seeds, chunk) for gap in gaps])  # the rest of a chunk is filled up with repeats
    seeds = np.repeat(seeds, results.group, 0)  # [bandits, chunk]
    words, amounts = grid.words[places], grid.amounts[places][:, gaps[0].budgets]
    checkpoints, repeats = np.repeat(amounts, chunk, 0), 1  # [runs, budgets]
    budget = checkpoints[:, -1]
    if grid.told_budget(units[0]):
        repeats = amounts.shape[1]
        budget, checkpoints = checkpoints.ravel(), None
    keys = _run_keys(grid.key, words, seeds.astype(np.int32), repeats)
    bandit = grid.bandit(places[0]) if call.alike else grid.batch(np.repeat(places, chunk * repeats))
    # An array among the hyperparameters of a policy of one's own is the same in all runs, and no batch of them.
    policy = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(keys), *np.shape(leaf))) if np.ndim(leaf) else leaf,
                          grid.policy(units[0]))
    limits = grid.budgets[list(gaps[0].budgets)] if grid.in_rounds else None
    return lay_out(policy, bandit, budget, keys, checkpoints=checkpoints, devices=devices, max_rounds=grid.longest,
                   limits=limits)


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
              "regret": untruncated_regret(run, bandit), "pseudo_regret": pseudo_regret(run, bandit)}
    return {name: np.swapaxes(value, 1, 2) for name, value in values.items()}


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
