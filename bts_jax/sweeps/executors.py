"""Plays the chunks of a sweep with the workers of an executor: a process pool, a Dask cluster, jobs
of SLURM, an MPI pool.

An executor is any object with `submit(function, *arguments)`, which returns an object with
`result()`. Nothing else is needed. If the returned object has `done()` and `cancel()`, these are
used, too. Chunks are submitted as tasks of about a minute. A task that fails, or whose worker dies,
is submitted again. Workers save the results in the store.
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
from bts_jax.policies import ALL_POLICIES
from bts_jax.sweeps import worker
from bts_jax.sweeps.bar import StoreBar
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.playing import Counts
from bts_jax.sweeps.results import Chunk, Results
from bts_jax.sweeps.schedule import tasks
from bts_jax.sweeps.specification import is_ours, remade
from bts_jax.sweeps.store import seal_of
from bts_jax.text import counted, shown

AGAIN = 3  # how often a failed task is submitted again
ARRAY = 1000  # jobs of SLURM that are submitted at a time: most clusters allow no more
PATIENCE = 30.0  # seconds for which a worker waits until it sees the store
NOT_DONE = (Exception, CancelledError, asyncio.CancelledError)


class TasksFailed(RuntimeError):
    """Raised if tasks fail repeatedly, or if the executor does not accept them."""


@dataclass(frozen=True)
class Worker:
    """The first worker of an executor. All workers must be of its kind. It takes the place of a
    device in a `Grid`.
    """

    platform: str
    device_kind: str
    devices: int


def check(executor: Any, out: Any, task_seconds: Any, **others: Any) -> float:
    """Returns how many seconds a task takes, or raises a `ValueError` if the arguments cannot be
    combined.
    """
    if not callable(getattr(executor, "submit", None)):
        raise ValueError(
            f"executor = {executor!r} has no method submit: give a process pool, a "
            "dask.distributed.Client, or another object with submit(function, *arguments)"
        )
    if out is None:
        raise ValueError(
            "out = None, but the workers of an executor save their results in a store: give as out "
            "a folder that all workers share"
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"{name} = {value!r} does not go with executor: leave it out, each worker chooses "
                "its own"
            )
    seconds = float(
        checks.numbers("task_seconds", task_seconds, "give a positive number of seconds")
    )
    checks.require(
        "task_seconds", seconds, 0 < seconds < float("inf"), "give a positive number of seconds"
    )
    return seconds


def first_worker(executor: Any) -> Worker:
    """Asks the first available worker for its versions and devices."""
    # Dask runs equal calls once.
    future = executor.submit(worker.describe, uuid.uuid4().hex, _workers(executor))
    try:
        while _can_be_asked(future) and not future.done():
            time.sleep(0.02)
        found = future.result()
    except BaseException as error:
        _cancel(future)
        if not isinstance(error, NOT_DONE):
            raise
        raise TasksFailed(
            f"the executor's first worker failed ({_in_words(error)}): give workers bts_jax, and "
            "start them by spawn, never by fork"
        ) from error
    for name, here in (("bts_jax", __version__), ("jax", jax.__version__)):
        if found[name] != here:
            raise ValueError(
                f"worker {found['worker']} has {name} {found[name]}, and here it is {here}: "
                "install the same versions on all machines"
            )
    return Worker(found["platform"], found["device"], found["devices"])


def _workers(executor: Any) -> int:
    """The least number of workers on one machine. A process pool starts its workers one by one."""
    return getattr(executor, "_max_workers", 1) if isinstance(executor, ProcessPoolExecutor) else 1


def own_classes(grid: Grid, described: dict[str, Any]) -> tuple[worker.Classes, worker.Classes]:
    """The user-defined classes in a grid. A worker creates their instances from the
    specification.
    """
    found = []
    for kind, things, registry in (
        ("policies", grid.policies, ALL_POLICIES),
        ("bandits", grid.bandits, BANDITS),
    ):
        own: dict[str, type] = {}
        for name, thing in things.items():
            if thing is None or is_ours(thing, registry):
                continue
            made, where = type(thing), f"{kind}[{name!r}]"
            if own.setdefault(made.__name__, made) is not made:
                raise ValueError(
                    f"{where} is a {made.__name__}, and another class has the same name: rename "
                    "one of the two, since the store identifies classes by name"
                )
            try:
                remade(where, described[kind][name], registry, own)
            except ValueError as error:
                raise ValueError(
                    f"{where} cannot be recreated by a worker, from its class and the numbers in "
                    f"the store ({str(error).partition(': go on')[0]}): leave executor out, or use "
                    "shards"
                ) from None
        found.append(tuple((name, _whereabouts(made)) for name, made in own.items()))
    return found[0], found[1]


def _whereabouts(made: type) -> Any:
    """Where a worker finds a class: its module and the folder of the module. A class without a
    module is sent by value.
    """
    module = sys.modules.get(made.__module__)
    file = getattr(module, "__file__", None)
    if (
        made.__module__ == "__main__"
        or file is None
        or getattr(module, made.__qualname__, None) is not made
    ):
        return made
    folder = (
        Path(file)
        .resolve()
        .parents[made.__module__.count(".") + Path(file).name.startswith("__init__.")]
    )
    return f"{made.__module__}:{made.__qualname__}", str(folder)


def play_elsewhere(
    executor: Any,
    grid: Grid,
    results: Results,
    todo: list[Chunk],
    seconds: float,
    devices: int,
    bar: StoreBar,
) -> tuple[Counts, int]:
    """Plays chunks with the workers of an executor. Returns the counts of invalid and truncated
    runs, and of chunks played.

    Raises a `ValueError` if a worker refuses a task. Raises a `RuntimeError` if a task fails
    repeatedly, after all other tasks have ended. In any case, tasks that have not started are
    cancelled.
    """
    divided, widest = tasks(grid, results, todo, seconds, devices)
    asked = None
    if any(thing is None for things in (grid.policies, grid.bandits) for thing in things.values()):
        asked = _named(grid.policies), _named(grid.bandits)
    own = own_classes(grid, results.specification)
    store = str(results.path)
    made = (
        results.attributes["created"],
        seal_of(results.attributes, results.chunk_size, results.group),
    )

    def order(chunks: list[Chunk]) -> worker.Order:
        places = [(chunk.policy, chunk.bandit, chunk.part) for chunk in chunks]
        return worker.Order(
            uuid.uuid4().hex, store, made, places, widest, asked, own, PATIENCE, _workers(executor)
        )

    pending: dict[Any, _Task] = {}  # by the identity of the future, which need not be hashable
    _under_way.append(pending)
    failed: list[tuple[_Task, BaseException]] = []
    counts, played, shown_next = Counts(Counter(), Counter()), 0, 0.0

    def submit(task: _Task) -> None:
        task.order = order(task.chunks)
        try:
            future = executor.submit(worker.work, tuple(task.order))
        except NOT_DONE as error:  # for example, a process of the pool has died
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
                # Left over if the worker was killed.
                Path(store, f".{task.order.name}").unlink(missing_ok=True)
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
                    raise ValueError(
                        f"worker {report['worker']} refuses to play: {report['refused']}. Fix that "
                        "worker, and start the same sweep again; complete chunks are kept"
                    )
                for counter, more in zip(counts, (report["lost"], report["cut"]), strict=True):
                    counter.update({tuple(key): number for key, number in more})
                played += report["played"]
                for chunk in task.chunks:
                    results.done[chunk] = True
            if begun >= shown_next:
                bar.show(_state(store, pending, failed))
                shown_next = time.monotonic() + 0.25
            if not ended:
                time.sleep(max(0.05, time.monotonic() - begun))  # polling many tasks takes time
    finally:
        _under_way.remove(pending)
        for task in pending.values():
            _cancel(task.future)
    if failed:
        task, error = failed[0]
        policy, bandit = results.names(task.chunks[0])
        chunks = sum(len(task.chunks) for task, _ in failed)
        raise TasksFailed(
            f"{counted(len(failed), 'task')} of {len(divided)} failed, each {AGAIN + 1} times or "
            f"when it was submitted, with {counted(chunks, 'chunk')}; the first has policy "
            f"{shown(policy)} on bandit {shown(bandit)} ({_in_words(error)}). All else is saved in "
            f"{str(results.path)!r}: start the same sweep again"
        ) from error
    return counts, played


_under_way: list[dict[Any, "_Task"]] = []


def cancel_all() -> None:
    """Cancels all tasks that have not started, in all sweeps of this process. Called before a
    signal ends the process.
    """

    def cancel() -> None:
        for task in [task for pending in _under_way for task in list(pending.values())]:
            _cancel(task.future)

    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    thread.join(10)


def _named(things: Mapping[str, Any]) -> list[str]:
    return [name for name, thing in things.items() if thing is not None]


class _Task:
    """Chunks that a worker plays, and how often this has failed."""

    def __init__(self, chunks: list[Chunk]):
        self.chunks, self.failures = chunks, 0
        self.order: Any = None
        self.future: Any = None


@contextlib.contextmanager
def _submitted_together(executor: Any) -> Iterator[None]:
    """Submits the tasks of the block as one job array, if the executor is one of submitit. Others
    have no `batch`.
    """
    if not callable(getattr(executor, "batch", None)):
        yield
        return
    try:
        with executor.batch():
            yield
    except Exception as error:
        raise TasksFailed(
            f"the executor does not accept the tasks ({_in_words(error)}): fix this, and start the "
            "same sweep again"
        ) from error


def _done(pending: dict[Any, _Task]) -> list[tuple[Any, _Task]]:
    """The tasks that have ended. If no future has `done()`, only the first task: the caller then
    waits for its result.
    """
    if any(_can_be_asked(task.future) for task in pending.values()):
        return [
            (place, task)
            for place, task in pending.items()
            if _can_be_asked(task.future) and task.future.done()
        ]
    return list(pending.items())[:1]


def _can_be_asked(future: Any) -> bool:
    return callable(getattr(future, "done", None))


def _cancel(future: Any) -> None:
    cancel = getattr(future, "cancel", None)
    if callable(cancel):
        with contextlib.suppress(Exception):
            cancel()


def _state(store: str, pending: dict[Any, _Task], failed: list[Any]) -> str:
    """How many tasks are waiting, running and failed. While a worker runs a task, a file in the
    store marks it.
    """
    marks = set(os.listdir(store))
    running = sum(f".{task.order.name}" in marks for task in pending.values())
    return f"tasks: {len(pending) - running} waiting, {running} running, {len(failed)} failed"


def _in_words(error: BaseException) -> str:
    """An exception in one line: the first and last line of its message. For a job, the last line
    has the reason or the logs.
    """
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return f"{type(error).__name__}: {' ... '.join([*lines[:1], *lines[1:][-1:]])}"[:500]
