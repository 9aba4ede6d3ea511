"""Plays chunks of a sweep on the devices of this process, and saves them.

All devices of the process share a program, and each runs its own loop. On CPUs two programs run at
a time, so that a device that has finished its part of one continues with the next. On GPUs one
program runs in each stream (`devices.streams`), and the results of one are saved while the next
runs. Meanwhile other threads compile the next programs.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from bts_jax import arguments, batch
from bts_jax.batch import Batch, is_little, lay_out, lower, on_the_host, play
from bts_jax.checks import is_key
from bts_jax.contract import Means, num_resources
from bts_jax.devices import streams
from bts_jax.engine.compile.threads import AHEAD, compiling, threads
from bts_jax.metrics import pseudo_regret, untruncated_regret
from bts_jax.random import fold_in_words
from bts_jax.rules import Run
from bts_jax.sweeps.bar import Bar
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.results import Chunk, Results
from bts_jax.sweeps.schedule import Call, calls, fuse, time_of
from bts_jax.text import reason

_LOG = logging.getLogger("bts_jax")
MANY = 12  # programs of a sweep, see `_frees`
# Programs at a time; in a stream of a GPU one plays, and results of the other are saved.
UNDER_WAY = 2


class Counts(NamedTuple):
    """The numbers of invalid runs and of runs that hit the limit of rounds, by the indices of
    policy and bandit.
    """

    lost: Counter[tuple[int, int]]
    cut: Counter[tuple[int, int]]

    def add(self, policy: int, bandits: range, lost: np.ndarray, cut: np.ndarray) -> None:
        """Adds the numbers of a chunk, one for each of its bandits."""
        for counter, seeds in ((self.lost, lost), (self.cut, cut)):
            counter.update({(policy, bandits[i]): int(seeds[i]) for i in np.flatnonzero(seeds)})


def play_chunks(
    grid: Grid,
    results: Results,
    todo: list[Chunk],
    devices: Sequence[Any],
    most: int,
    bar: Bar | None = None,
    widest: int | None = None,
) -> Counts:
    """Plays chunks and saves their values in the results. If a program cannot be compiled, this
    ends at once.

    Args:
        most: the largest number of runs in a call to the devices.
        widest: see `schedule.calls`.
    """
    fusions = fuse(grid, results, calls(grid, results, todo, most, widest), most)
    # Of all calls with the same `program`, see `time_of`.
    times: defaultdict[Any, float] = defaultdict(float)
    loads: defaultdict[Any, float] = defaultdict(float)  # the same for each program of fused calls
    for fused in fusions:
        for call in fused:
            time = time_of(grid, results, call.chunks)
            times[call.program] += time
            loads[_program_of(fused)] += time
    fusions = [
        [call._replace(quickly=is_little(times[call.program])) for call in fused]
        for fused in fusions
    ]
    counts = Counts(Counter(), Counter())
    bar = bar or Bar(grid)
    bar.begin(grid, todo, results)
    left = Counter(map(_program_of, fusions))  # how many times each program is still used
    frees = _frees(devices, len(left))
    stream_of = _stream_of_each(loads, tuple(devices))
    with ExitStack() as stack, compiling() as programs:
        players = {stream: stack.enter_context(threads(UNDER_WAY)) for stream in stream_of.values()}
        stack.callback(_stop, players)
        waiting, under_way = iter(fusions), []
        while True:
            for fused in islice(waiting, AHEAD - len(under_way)):
                stream = stream_of[_program_of(fused)]
                program = programs.begin(
                    _program_of(fused), partial(_trace, grid, results, fused, stream)
                )
                under_way.append(_UnderWay(fused, stream, program))
            if not under_way:
                break
            # In the order in which they are compiled, so that no stream waits.
            for one in under_way:
                if one.work is None and one.program.done():
                    one.program.result()
                    one.work = players[one.stream].submit(
                        _play_and_save, one.stream, grid, results, one.fused, frees
                    )
            first = under_way[0]
            bar.say(first.chunks, "compiling " if first.work is None else "")
            wait([one.work or one.program for one in under_way], 0.25, FIRST_COMPLETED)
            bar.tick()
            for one in [one for one in under_way if one.work and one.work.done()]:
                under_way.remove(one)
                outcome, batches = one.work.result()
                left[_program_of(one.fused)] -= 1
                if frees and not left[_program_of(one.fused)]:
                    batch.forget(batches)
                bar.advance(one.chunks, [pulled for pulled, *_ in outcome])
                for chunk, (_, lost, cut) in zip(one.chunks, outcome, strict=True):
                    counts.add(chunk.policy, results.bandits(chunk), lost, cut)
    return counts


@dataclass(eq=False)
class _UnderWay:
    """Fused calls that are being compiled or played."""

    fused: list[Call]
    stream: "_Stream"
    program: Future
    work: Future | None = None  # playing and saving, once the program is compiled

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for call in self.fused for chunk in call.chunks]


class _Stream:
    """Devices on which programs run, on GPUs one at a time.

    The first stream has most of the memory (`devices.streams`). If there is too little in another
    one, the first takes over.
    """

    def __init__(self, devices: tuple, first: "_Stream | None" = None):
        self.devices, self.first = devices, first
        self.turn = nullcontext() if devices[0].platform == "cpu" else Lock()
        # The first stream, once there was too little memory in this one.
        self.instead: _Stream | None = None
        self.stopped = False

    def is_full(self, error: Exception) -> bool:
        """Whether this error says that there is too little memory, and the first stream may have
        more.
        """
        return self.first is not None and "RESOURCE_EXHAUSTED" in str(error)


# The place of a program's stream in the last sweep that had the program.
_PLACES: dict[Any, int] = {}


def _stream_of_each(loads: Mapping[Any, float], devices: tuple) -> dict[Any, _Stream]:
    """The stream of each program: that of an earlier sweep, which has it compiled, or the one with
    the least work so far.
    """
    if not loads:
        return {}
    first, *others = streams(devices, len(loads))
    found = [_Stream(first)]
    found += [_Stream(same, found[0]) for same in others]
    places: dict[Any, int] = {}
    totals = [0.0] * len(found)
    known = {
        program: _PLACES[program]
        for program in loads
        if _PLACES.get(program, len(found)) < len(found)
    }
    for program in sorted(loads, key=lambda program: (program not in known, -loads[program])):
        places[program] = known[program] if program in known else totals.index(min(totals))
        totals[places[program]] += loads[program]
    if len(_PLACES) > 1000:
        _PLACES.clear()
    _PLACES.update(places)
    return {program: found[place] for program, place in places.items()}


def _stop(players: Iterable[_Stream]) -> None:
    """Keeps threads that wait for their turn from playing."""
    for stream in players:
        stream.stopped = True


def _frees(devices: Sequence[Any], count: int) -> bool:
    """Whether each of `count` programs is freed after its last use.

    A GPU slows down if a process has many programs. On an H200 (jaxlib 0.11.2), one of the 40
    programs of `study omega --scale full` took 147 s when all programs were kept, 11 s when they
    were freed, and 9 s alone (one measurement each).
    """
    return devices[0].platform != "cpu" and count > MANY


class _Lowered(NamedTuple):
    """A lowered program. If there is too little memory to load it, `_play` plays it in another
    stream.
    """

    lowered: Any
    stream: _Stream

    def compile(self) -> None:
        try:
            self.lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if not self.stream.is_full(error):
                raise


def _trace(grid: Grid, results: Results, fused: list[Call], stream: _Stream) -> _Lowered:
    try:
        return _Lowered(lower(_batches(grid, results, fused, stream.devices)), stream)
    except Exception as error:
        names = sorted({list(grid.policies)[call.chunks[0].policy] for call in fused})
        error.add_note(f"This is about policies {', '.join(map(repr, names))}.")
        raise


def _play_and_save(
    stream: _Stream, grid: Grid, results: Results, fused: list[Call], frees: bool
) -> tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray]], list[Batch]]:
    """Returns for each chunk its rounds [bandit, budget, seed], and how many seeds of each bandit
    are invalid or truncated.

    Also returns the batches, if their program is freed after its last use.
    """
    batches, played = _play(stream, grid, results, fused)
    outcome = []
    with on_the_host():
        for call, (runs, _, _) in zip(fused, played, strict=True):
            gaps = [results.gap(chunk) for chunk in call.chunks]
            shape = call.size, results.group, results.chunk_size, len(gaps[0].budgets)
            runs = jax.tree.map(lambda x, shape=shape: x.reshape(*shape, *x.shape[2:]), runs)
            for i, (chunk, gap) in enumerate(zip(call.chunks, gaps, strict=True)):
                run = jax.tree.map(lambda x, i=i, gap=gap: x[i, :, : len(gap.seeds)], runs)
                means = [grid.means[place] for place in results.bandits(chunk)]
                limit = None if grid.in_rounds else grid.longest
                values = _values(
                    run, Means(*map(np.stack, zip(*means, strict=True))), results.sizes, limit
                )
                results.put_gap(chunk, gap, values)
                outcome.append(
                    (
                        values["rounds"],
                        np.isnan(values["reward"]).any(1).sum(1),
                        values["truncated"].any(1).sum(1),
                    )
                )
    return outcome, batches if frees else []


def _play(
    stream: _Stream, grid: Grid, results: Results, fused: list[Call]
) -> tuple[list[Batch], list]:
    """Plays fused calls in a stream, or in the first one if there is too little memory. Also
    returns their batches.
    """
    stream = stream.instead or stream
    batches = _batches(grid, results, fused, stream.devices)
    try:
        with stream.turn:
            if stream.stopped:
                raise CancelledError
            return batches, play(batches)
    except jax.errors.JaxRuntimeError as error:
        if not stream.is_full(error):
            raise
        _LOG.info(
            "a stream of the GPU has too little memory: its programs run in another one (%s)",
            reason(error),
        )
    batch.forget(batches)
    stream.instead = first = cast(_Stream, stream.first)
    _trace(grid, results, fused, first).compile()  # before its turn, so that others play meanwhile
    return _play(first, grid, results, fused)


def _program_of(fused: list[Call]) -> tuple:
    """Identifies the program of fused calls."""
    return tuple(call.program for call in fused)


def _batches(
    grid: Grid, results: Results, fused: list[Call], devices: Sequence[Any]
) -> list[Batch]:
    """Lays out the fused calls."""
    devices = devices[: fused[0].size * results.runs]  # no call has fewer runs than this
    with on_the_host():
        return [_lay_out(grid, results, call, devices) for call in fused]


def _lay_out(grid: Grid, results: Results, call: Call, devices: Sequence[Any]) -> Batch:
    """Lays out the runs of a call."""
    chunks = [*call.chunks, *[call.chunks[-1]] * (call.size - len(call.chunks))]
    chunk_size = results.chunk_size
    places = np.array([results.bandits(chunk) for chunk in chunks]).ravel()
    gaps = [results.gap(chunk) for chunk in chunks]
    # The rest is filled with repeats.
    seeds = np.stack([np.resize(gap.seeds, chunk_size) for gap in gaps])
    seeds = np.repeat(seeds, results.group, 0)  # [bandits, chunk_size]
    words, amounts = grid.words[places], grid.amounts[places][:, gaps[0].budgets]
    checkpoints, repeats = np.repeat(amounts, chunk_size, 0), 1  # [runs, budgets]
    budget = checkpoints[:, -1]
    if grid.requires_budget(chunks[0]):
        repeats = amounts.shape[1]
        budget = checkpoints.ravel()
        checkpoints = budget[:, None]
    keys = _run_keys(grid.key, words, seeds.astype(np.int32), repeats)
    bandit = (
        grid.bandit(places[0])
        if call.alike
        else grid.batch(np.repeat(places, chunk_size * repeats))
    )
    # An array among the hyperparameters of a user-defined policy is the same in all runs. It is not
    # a batch.
    policy = jax.tree.map(
        lambda leaf: np.broadcast_to(leaf, (len(keys), *np.shape(leaf))) if np.ndim(leaf) else leaf,
        grid.policy(chunks[0]),
    )
    limits = grid.budgets[list(gaps[0].budgets)] if grid.in_rounds else grid.longest
    policy, bandit = jax.tree.map(_on_no_device, (policy, bandit))
    d = num_resources(bandit)
    if d is not None:  # all resources have the same budgets
        budget, checkpoints = (
            np.repeat(np.expand_dims(x, -1), d, -1) for x in (budget, checkpoints)
        )
    ends = arguments.ends_of(budget, checkpoints, limits, d is not None)
    return lay_out(
        arguments.batch_of(policy, bandit, ends, keys), devices=devices, quickly=call.quickly
    )


def _on_no_device(leaf: Any) -> Any:
    """Converts JAX arrays to NumPy arrays: those of a user may belong to another stream. Keys stay
    JAX arrays.
    """
    return np.asarray(leaf) if isinstance(leaf, jax.Array) and not is_key(leaf) else leaf


def _run_keys(key: jax.Array, words: np.ndarray, seeds: np.ndarray, repeats: int) -> jax.Array:
    """The keys of runs on several bandits, each repeated. `words`: [bandits], `seeds`: [bandits,
    chunk_size] -> [runs]
    """
    of_bandits = fold_in_words(tuple(jax.random.key_data(key)), words)
    data = np.stack(fold_in_words(tuple(word[:, None] for word in of_bandits), seeds), -1)
    return jax.random.wrap_key_data(np.repeat(data.reshape(-1, 2), repeats, 0), impl="threefry2x32")  # type: ignore


def _values(
    run: Run, bandit: Any, sizes: dict[str, int], max_rounds: int | None
) -> dict[str, np.ndarray]:
    """The results of a chunk from its runs [bandit, seed, budget], with seeds last.

    With `max_rounds`, regret is against the optimum with that many rounds. Where a bandit has no
    arm, there are 0 pulls. Where it has no resource, the cost is NaN.
    """
    pulls, cost = (
        np.pad(run.pulls, (*[(0, 0)] * 3, (0, sizes["arm"] - run.pulls.shape[-1]))),
        run.cost,
    )
    if "resource" in sizes:
        cost = cost if cost.ndim == 4 else cost[..., None]
        cost = np.pad(
            cost, (*[(0, 0)] * 3, (0, sizes["resource"] - cost.shape[-1])), constant_values=np.nan
        )
    values = {
        "reward": run.reward,
        "cost": cost,
        "rounds": run.rounds,
        "truncated": run.truncated,
        "pulls": pulls,
        "regret": untruncated_regret(run, bandit, max_rounds=max_rounds),
        "pseudo_regret": pseudo_regret(run, bandit, max_rounds=max_rounds),
    }
    return {name: np.swapaxes(value, 1, 2) for name, value in values.items()}
