"""Divides the chunks of a sweep: among processes, into batches, and into programs. Pure functions.

A chunk is one policy on one bandit with a range of seeds. If there are many bandits and few seeds,
a chunk has a group of consecutive bandits of the same kind instead: otherwise there would be as
many chunks as runs, and saving them would take longer than playing. `group_size` chooses how many
bandits a group has.

Chunks of the same policy and kind of bandit form a batch (`Call`). Small batches share a program:
on a GPU, those of several policies are fused.
"""

import heapq
import math
from collections import Counter
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from bts_jax import batch
from bts_jax.sweeps.grid import Grid, kind_of
from bts_jax.sweeps.results import Chunk, Results

MAX_FUSED = 6  # batches in a program: a program with more takes long to compile
LARGEST_GROUP = 256  # bandits in a chunk
# Pulls times arms a second of one device, roughly: of BTS on a core, and on an H200.
CPU_SPEED, GPU_SPEED = 1e8, 1.5e10
FEWEST_TASKS_CPU, FEWEST_TASKS_GPU = 64, 16  # for an executor, if there are that many chunks
# Of bandits, so that there are enough chunks to divide, and an interruption loses little.
FEWEST_GROUPS = 16


class Call(NamedTuple):
    """A batch of runs. Calls of the same program have the same shapes."""

    chunks: list[Chunk]  # with the same policy and the same kind of bandit
    size: int  # how many chunks the program is compiled for: the rest is filled with repeats
    alike: bool  # whether all chunks of that program have the same bandit
    program: Any  # identifies the program
    quickly: bool = False  # whether the program has little to do in total, see `batch.lay_out`


def group_size(grid: Grid, chunk_size: int, usual: int) -> int:
    """The number of bandits in a chunk of `chunk_size` seeds, if a chunk usually has up to `usual`
    runs.

    Consecutive bandits of the same kind form a stretch. The number divides the lengths of all
    stretches, so that no group has bandits of two kinds. It is 1 if the seeds alone make a chunk
    large enough.
    """
    if chunk_size < grid.num_seeds:
        return 1
    if None in grid.bandits.values():  # a store has bandits that are not asked for
        return 1
    lengths = [len(list(stretch)) for _, stretch in groupby(grid.kinds)]
    most = min(
        min(usual, _grouped_runs(grid)) // chunk_size,
        LARGEST_GROUP,
        len(grid.kinds) // FEWEST_GROUPS,
    )
    common = math.gcd(*lengths)
    return max(
        (number for number in range(1, min(most, common) + 1) if common % number == 0), default=1
    )


def _check_groups(grid: Grid, results: Results) -> None:
    """Raises if a store has groups of bandits that cannot be played together. `sweep` does not
    create such groups.
    """
    for start in range(0, len(grid.kinds), results.group):
        if len(set(grid.kinds[start : start + results.group])) > 1:
            raise ValueError(
                f"the store {str(results.path)!r} has groups of {results.group} bandits, and "
                f"bandits of different kinds in one, from {list(grid.bandits)[start]!r} on: it was "
                "changed; name another folder as out"
            )


def work_of(grid: Grid, results: Results, chunk: Chunk) -> int:
    return grid.work(chunk, results.bandits(chunk))


def _longest_first(grid: Grid, results: Results, chunks: list[Chunk]) -> list[Chunk]:
    return sorted(chunks, key=partial(work_of, grid, results), reverse=True)


def _alike(grid: Grid, results: Results, chunks: list[Chunk]) -> dict[Any, list[Chunk]]:
    """Lists of chunks that may share a call, the longest chunk first."""
    _check_groups(grid, results)
    alike: dict[Any, list[Chunk]] = {}
    for chunk in _longest_first(grid, results, chunks):
        alike.setdefault(
            (chunk.policy, *grid.kinds[results.bandits(chunk)[0]], results.gap(chunk).budgets), []
        ).append(chunk)
    return alike


def time_of(grid: Grid, results: Results, chunks: list[Chunk]) -> float:
    """A rough measure of the time that these chunks take; see `batch.work_of`."""
    num_arms = len(grid.means[results.bandits(chunks[0])[0]].reward_mean)
    return batch.work_of(
        sum(work_of(grid, results, chunk) for chunk in chunks) * results.chunk_size / num_arms,
        num_arms,
    )


def divided(
    grid: Grid, results: Results, chunks: list[Chunk], most: float, fewest: int, largest: int
) -> list[tuple[int, list[Chunk]]]:
    """Divides chunks into lists that one process plays, with the work of each, the longest first.

    A list has at most the work `most`, but at least `fewest` chunks of each policy, and at most
    `largest`. It has one policy. On a GPU it has all policies of its bandits, if their calls are
    small enough to be fused.
    """
    of_a_chunk = partial(work_of, grid, results)
    together: dict[Any, dict[Any, list[Chunk]]] = {}  # by kind, and by what shares a program
    for (policy, *kind), alike in _alike(grid, results, chunks).items():
        runs = min(len(alike), _chunks_of_a_call(grid, results)) * results.runs
        fuses = _is_small(grid, alike[0], runs, usual_runs(grid))
        for chunk in alike:
            together.setdefault((*kind, None if fuses else policy), {}).setdefault(
                (chunk.bandit, chunk.part), []
            ).append(chunk)
    found = []
    for places in together.values():
        # Chunks of several policies.
        whole = [(sum(map(of_a_chunk, same)), same) for same in places.values()]
        whole.sort(key=lambda pair: -pair[0])
        load, part, count = 0, [], 0
        for work, same in whole:
            if (count >= fewest and load + work > most) or count == largest:
                found.append((load, part))
                load, part, count = 0, [], 0
            part += same
            load, count = load + work, count + 1
        found.append((load, part))
    return sorted(found, key=lambda pair: -pair[0])


def shards(grid: Grid, results: Results, chunks: list[Chunk], count: int) -> list[list[Chunk]]:
    """Divides chunks into shards of about the same work, one for each process.

    The shards depend only on the grid, the chunks and the number of processes: every process
    computes the same shards.
    """
    total = sum(work_of(grid, results, chunk) for chunk in chunks)
    found: list[list[Chunk]] = [[] for _ in range(count)]
    loads = [(0, place) for place in range(count)]
    for work, part in divided(
        grid, results, chunks, total / (4 * count), 1, _chunks_of_a_call(grid, results)
    ):
        load, place = heapq.heappop(loads)
        found[place] += part
        heapq.heappush(loads, (load + work, place))
    return found


def tasks(
    grid: Grid, results: Results, chunks: list[Chunk], seconds: float, devices: int
) -> tuple[list[list[Chunk]], int]:
    """Divides chunks into tasks for an executor, the longest first. Also returns the most chunks of
    a policy in a task.

    A task takes a worker with this many devices about this many seconds. If there is little work in
    total, tasks are shorter: each worker then gets several tasks, and a faster worker gets more of
    them. The number of workers is not known.
    """
    total = sum(work_of(grid, results, chunk) for chunk in chunks)
    speed = devices * (CPU_SPEED if _on_cpu(grid) else GPU_SPEED)
    fewest = FEWEST_TASKS_CPU if _on_cpu(grid) else FEWEST_TASKS_GPU
    most = min(seconds * speed / results.chunk_size, total / fewest)
    # A GPU is not faster with less.
    smallest = 1 if _on_cpu(grid) else -(-_small_call(grid) // results.runs)
    found = [part for _, part in divided(grid, results, chunks, most, smallest, len(chunks))]
    return found, max(
        (max(Counter(chunk.policy for chunk in part).values()) for part in found), default=1
    )


def _chunks_of_a_call(grid: Grid, results: Results) -> int:
    return max(usual_runs(grid) // results.runs, 1)


def calls(
    grid: Grid, results: Results, chunks: list[Chunk], most: int, widest: int | None = None
) -> list[Call]:
    """Forms calls from chunks. The longest calls come first, so that no long call is left at the
    end.

    If the chunks are one task of several, `widest` is how many chunks of a policy a task has at
    most. Then the calls of all tasks have the same shapes, and a worker compiles each program once.
    """
    lists = _alike(grid, results, chunks)
    bandits = Counter(grid.kinds)
    largest, groups = {}, {}
    for (_, *rest), alike in lists.items():
        largest[tuple(rest)] = max(largest.get(tuple(rest), 1), len(alike))
        groups.setdefault(tuple(rest), set()).update(chunk.bandit for chunk in alike)
    calls = []
    for (_, *rest), alike in lists.items():
        kind, alone, budgets = rest
        size = min(max(most // results.runs, 1), largest[tuple(rest)] if widest is None else widest)
        one_bandit = (
            results.group == 1
            and (len(groups[tuple(rest)]) if widest is None else bandits[kind, alone]) == 1
        )
        for start in range(0, len(alike), size):
            part = alike[start : start + size]
            program = kind_of(grid.policy(part[0])), kind, len(budgets), size
            calls.append(Call(part, size, one_bandit, program))
    return sorted(
        calls, key=lambda call: -sum(work_of(grid, results, chunk) for chunk in call.chunks)
    )


def fuse(grid: Grid, results: Results, calls: list[Call], most: int) -> list[list[Call]]:
    """Groups calls that are compiled into one program: small calls of several policies on the same
    bandits.

    If there are several groups, the first is halved: its programs compile sooner, so that the
    device starts earlier.
    """
    same: dict[Any, list[Call]] = {}
    for place, call in enumerate(calls):
        alone = not _is_small(grid, call.chunks[0], call.size * results.runs, most)
        same.setdefault(
            (*(chunk._replace(policy=0) for chunk in call.chunks), place if alone else None), []
        ).append(call)
    fusions = [sorted(group, key=lambda call: call.chunks[0].policy) for group in same.values()]
    fusions = [
        fused[start : start + MAX_FUSED]
        for fused in fusions
        for start in range(0, len(fused), MAX_FUSED)
    ]
    if len(fusions) > 2 and len(fusions[0]) > 2:
        fusions[:1] = fusions[0][::2], fusions[0][1::2]
    return fusions


def _is_small(grid: Grid, chunk: Chunk, seeds: int, most: int) -> bool:
    """Whether a call with this many seeds leaves room on the device for others."""
    return (
        seeds * (len(grid.budgets) if grid.requires_budget(chunk) else 1) <= _small_call(grid)
        and seeds <= most // MAX_FUSED
    )


def sizes(grid: Grid, memory: int | None, devices: int) -> tuple[int, int]:
    """The numbers of seeds to save and to play at a time: enough to keep the devices busy, few
    enough to fit in memory.
    """
    of_a_seed = 3 * len(grid.budgets) * (4 * grid.most_arms + 40)  # recorded, stored and fetched
    cpu, usual = _on_cpu(grid), usual_runs(grid)
    fit = (memory or (2**28 if cpu else 2**30)) // of_a_seed
    # The number to save does not depend on the number of devices.
    return max(min(usual, fit), 1), max(
        min(max(usual, 50 * devices) if cpu else usual * devices, fit), 1
    )


def _on_cpu(grid: Grid) -> bool:
    return grid.device.platform == "cpu"


def usual_runs(grid: Grid) -> int:
    """The number of runs at a time that suits a device."""
    return 100 if _on_cpu(grid) else 2**15


def _grouped_runs(grid: Grid) -> int:
    """The largest number of runs for which bandits are grouped into one chunk: with more, its eight
    files no longer matter.

    A GPU plays many chunks at a time, and fills a call better with small chunks.
    """
    return 100 if _on_cpu(grid) else 2**10


def _small_call(grid: Grid) -> int:
    """The most runs that leave room on a device for other calls: a GPU is slow to start kernels,
    and runs several at once.
    """
    return 0 if _on_cpu(grid) else 2**13
