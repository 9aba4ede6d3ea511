"""A sweep whose chunks are played by the workers of an executor: a process pool, a Dask cluster, jobs of SLURM, an MPI pool.

An executor is any object with `submit(function, *arguments)`, which returns an object with `result()`. Nothing else of it is
needed. `done()` and `cancel()` of what it returns are used where they are there. Chunks are submitted as tasks of about a
minute. A task that fails, or whose worker dies, is submitted again. Results travel through the store.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from bts_jax import checks
from bts_jax._version import __version__
from bts_jax.bandits import BANDITS
from bts_jax.policies import POLICIES
from bts_jax.sweeps import worker
from bts_jax.sweeps.bar import StoreBar
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.playing import Counts
from bts_jax.sweeps.results import Chunk, Results
from bts_jax.sweeps.schedule import tasks
from bts_jax.sweeps.specification import is_ours, remade
from bts_jax.sweeps.store import seal_of
from bts_jax.text import counted, shown

AGAIN = 3  # times that a task is submitted again
ARRAY = 1000  # jobs of SLURM that are submitted at a time: most clusters allow no more
PATIENCE = 30.0  # seconds for which a worker waits until it sees the store
NOT_DONE = (Exception, CancelledError, asyncio.CancelledError)


class TasksFailed(RuntimeError):
    """Tasks that failed again and again, or an executor that does not take them."""


@dataclass(frozen=True)
class Worker:
    """The first worker that an executor has: the sweep is made for workers of its kind. It stands in for a device."""

    platform: str
    device_kind: str
    devices: int


def check(executor: Any, out: Any, task_seconds: Any, **others: Any) -> float:
    """Raises a `ValueError` unless these go together; returns how many seconds a task takes."""
    if not callable(getattr(executor, "submit", None)):
        raise ValueError(f"executor = {executor!r} has no method submit: give a process pool, a dask.distributed.Client, or "
                         "another object with submit(function, *arguments)")
    if out is None:
        raise ValueError("out = None, and results of an executor's workers travel through the store: name a folder that all "
                         "workers share as out")
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} = {value!r} does not go with executor, whose workers use what they have: leave it out")
    seconds = float(checks.numbers("task_seconds", task_seconds, "give a positive number of seconds"))
    checks.require("task_seconds", seconds, 0 < seconds < float("inf"), "give a positive number of seconds")
    return seconds


def first_worker(executor: Any) -> Worker:
    """Asks one worker what it is, as soon as there is one."""
    future = executor.submit(worker.describe, uuid.uuid4().hex, _workers(executor))  # Dask plays what is alike once
    try:
        while _can_be_asked(future) and not future.done():
            time.sleep(0.02)
        found = future.result()
    except BaseException as error:
        _cancel(future)
        if not isinstance(error, NOT_DONE):
            raise
        raise TasksFailed(f"the executor's first worker cannot begin ({_in_words(error)}): workers need bts_jax, and start by "
                          "spawn, never by fork") from error
    for name, here in (("bts_jax", __version__), ("jax", jax.__version__)):
        if found[name] != here:
            raise ValueError(f"worker {found['worker']} has {name} {found[name]}, and here it is {here}: give all machines the "
                             "same versions")
    return Worker(found["platform"], found["device"], found["devices"])


def _workers(executor: Any) -> int:
    """How many workers there are at least on one machine: a process pool starts them one by one."""
    return getattr(executor, "_max_workers", 1) if isinstance(executor, ProcessPoolExecutor) else 1


def own_classes(grid: Grid, described: dict[str, Any]) -> tuple[worker.Classes, worker.Classes]:
    """The classes of the user's own in a grid. A worker makes their instances from the specification."""
    found = []
    for kind, things, registry in (("policies", grid.policies, POLICIES), ("bandits", grid.bandits, BANDITS)):
        own: dict[str, type] = {}
        for name, thing in things.items():
            if thing is None or is_ours(thing, registry):
                continue
            made, where = type(thing), f"{kind}[{name!r}]"
            if own.setdefault(made.__name__, made) is not made:
                raise ValueError(f"{where} is a {made.__name__}, as another is of another class by that name, and the store "
                                 "knows them by name: rename one of the classes")
            try:
                remade(where, described[kind][name], registry, own)
            except ValueError as error:
                raise ValueError(f"{where} cannot be made again by a worker, from its class and the numbers in the store "
                                 f"({str(error).partition(': go on')[0]}): leave executor out, or use shards") from None
        found.append(tuple((name, _whereabouts(made)) for name, made in own.items()))
    return found[0], found[1]


def _whereabouts(made: type) -> Any:
    """Where a worker finds a class: its module and the folder of that. A class that is in no module goes as it is."""
    module = sys.modules.get(made.__module__)
    file = getattr(module, "__file__", None)
    if made.__module__ == "__main__" or file is None or getattr(module, made.__qualname__, None) is not made:
        return made
    folder = Path(file).resolve().parents[made.__module__.count(".") + Path(file).name.startswith("__init__.")]
    return f"{made.__module__}:{made.__qualname__}", str(folder)


def play_elsewhere(
    executor: Any, grid: Grid, results: Results, todo: list[Chunk], seconds: float, devices: int, bar: StoreBar
) -> tuple[Counts, int]:
    """Has the workers of an executor play chunks; returns what became of the runs, and how many chunks were played.

    Raises a `ValueError` if a worker refuses, and a `RuntimeError` if a task fails again and again; the latter once all other
    tasks have ended. Whatever ends it, tasks that have not begun are cancelled.
    """
    divided, widest = tasks(grid, results, todo, seconds, devices)
    asked = None
    if any(thing is None for things in (grid.policies, grid.bandits) for thing in things.values()):
        asked = _named(grid.policies), _named(grid.bandits)
    own = own_classes(grid, results.specification)
    store = str(results.path)
    made = results.attributes["created"], seal_of(results.attributes, results.chunk_size, results.group)

    def order(chunks: list[Chunk]) -> worker.Order:
        places = [(chunk.policy, chunk.bandit, chunk.part) for chunk in chunks]
        return worker.Order(uuid.uuid4().hex, store, made, places, widest, asked, own, PATIENCE, _workers(executor))

    pending: dict[Any, _Task] = {}  # by identity of what the executor gives: it need not be hashable
    _under_way.append(pending)
    failed: list[tuple[_Task, BaseException]] = []
    counts, played, shown_next = Counts(Counter(), Counter()), 0, 0.0

    def submit(task: _Task) -> None:
        task.order = order(task.chunks)
        try:
            future = executor.submit(worker.work, tuple(task.order))
        except NOT_DONE as error:  # such as a pool one of whose processes has died
            failed.append((task, error))
        else:
            task.future, pending[id(future)] = future, task

    try:
        for start in range(0, len(divided), ARRAY):
            with _submitted_together(executor):
                for chunks in divided[start : start + ARRAY]:
                    submit(_Task(chunks))
        while pending:
            begun = time.monotonic()
            ended = _done(pending)
            for place, task in ended:
                del pending[place]
                Path(store, f".{task.order.name}").unlink(missing_ok=True)  # which a worker that was killed leaves
                try:
                    report = task.future.result()
                    if "failed" in report:
                        raise RuntimeError(f"worker {report['worker']}: {report['failed']}")
                except NOT_DONE as error:
                    task.failures += 1
                    if task.failures > AGAIN:
                        failed.append((task, error))
                    else:
                        submit(task)
                    continue
                if "refused" in report:
                    raise ValueError(f"worker {report['worker']} refuses to play: {report['refused']}. See to that worker, and "
                                     "start the same sweep again; what is complete stays")
                for counter, more in zip(counts, (report["lost"], report["cut"]), strict=True):
                    counter.update({tuple(key): number for key, number in more})
                played += report["played"]
                for chunk in task.chunks:
                    results.done[chunk] = True
            if begun >= shown_next:
                bar.show(_state(store, pending, failed))
                shown_next = time.monotonic() + 0.25
            if not ended:
                time.sleep(max(0.05, time.monotonic() - begun))  # asking after many tasks takes time
    finally:
        _under_way.remove(pending)
        for task in pending.values():
            _cancel(task.future)
    if failed:
        task, error = failed[0]
        policy, bandit = results.names(task.chunks[0])
        chunks = sum(len(task.chunks) for task, _ in failed)
        raise TasksFailed(f"{counted(len(failed), 'task')} of {len(divided)} failed, each {AGAIN + 1} times or for good, with "
                          f"{counted(chunks, 'chunk')}; the first has policy {shown(policy)} on bandit {shown(bandit)} "
                          f"({_in_words(error)}). All else is saved in {str(results.path)!r}: start the same sweep "
                          "again") from error
    return counts, played


_under_way: list[dict[Any, "_Task"]] = []


def cancel_all() -> None:
    """Cancels all tasks that have not begun, in all sweeps of this process: before a signal ends it."""
    def cancel() -> None:
        for task in [task for pending in _under_way for task in list(pending.values())]:
            _cancel(task.future)

    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    thread.join(10)


def _named(things: Mapping[str, Any]) -> list[str]:
    return [name for name, thing in things.items() if thing is not None]


class _Task:
    """Units that a worker plays, and how often that has failed."""

    def __init__(self, chunks: list[Chunk]):
        self.chunks, self.failures = chunks, 0
        self.order: Any = None
        self.future: Any = None


@contextlib.contextmanager
def _submitted_together(executor: Any) -> Iterator[None]:
    """Makes one array of jobs of what submitit submits in the block; other executors have no `batch`."""
    if not callable(getattr(executor, "batch", None)):
        yield
        return
    try:
        with executor.batch():
            yield
    except Exception as error:
        raise TasksFailed(f"the executor does not take the tasks ({_in_words(error)}): see to that, and start the same sweep "
                          "again") from error


def _done(pending: dict[Any, _Task]) -> list[tuple[Any, _Task]]:
    """The tasks that have ended. Where a future cannot be asked, the first is waited for."""
    if any(_can_be_asked(task.future) for task in pending.values()):
        return [(place, task) for place, task in pending.items() if _can_be_asked(task.future) and task.future.done()]
    return list(pending.items())[:1]


def _can_be_asked(future: Any) -> bool:
    return callable(getattr(future, "done", None))


def _cancel(future: Any) -> None:
    cancel = getattr(future, "cancel", None)
    if callable(cancel):
        with contextlib.suppress(Exception):
            cancel()


def _state(store: str, pending: dict[Any, _Task], failed: list[Any]) -> str:
    """How many tasks are waiting, running and failed. A worker leaves a mark in the store while it is at a task."""
    marks = set(os.listdir(store))
    running = sum(f".{task.order.name}" in marks for task in pending.values())
    return f"tasks: {len(pending) - running} waiting, {running} running, {len(failed)} failed"


def _in_words(error: BaseException) -> str:
    """An exception in one line. A job's says first that it failed, and last why, or where its logs are."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return f"{type(error).__name__}: {' ... '.join([*lines[:1], *lines[1:][-1:]])}"[:500]
