"""Compiles programs in other threads, and in other processes, while other programs run."""

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from bts_jax.compilers import Compilers, compilers
from bts_jax.devices import cores

AHEAD = 24  # the most programs that are compiled ahead of their use: far fewer than `batch` stores


class Compiling:
    """Compiles programs in other threads. This process traces one program at a time, and compiles several.

    Tracing several programs at a time would not be faster in Python, and the first one would not be ready before the last.
    Other processes can trace at the same time: functions that trace pass `processes` to `batch.lower`.

    With `first_alone`, nothing else is traced or compiled until the first program is ready, because the caller waits for it
    and XLA uses several cores for one program.
    """

    def __init__(
        self, trace_threads: ThreadPoolExecutor, compile_threads: ThreadPoolExecutor, processes: Compilers | None,
        first_alone: bool,
    ):
        self.trace_threads, self.compile_threads = trace_threads, compile_threads
        self.processes, self.first_alone = processes, first_alone
        self.begun: dict[Hashable, Future] = {}

    def begin(self, key: Hashable, trace: Callable[[], Any]) -> Future:
        """Starts to compile the result of `trace`, a function such as `batch.lower`, unless this key was started before."""
        if key not in self.begun:
            first = next(iter(self.begun.values()), None) if self.first_alone else None
            self.begun[key] = self.compile_threads.submit(_compile, self.trace_threads.submit(_trace, trace, first))
        return self.begun[key]


def _trace(trace: Callable[[], Any], first: Future | None) -> Any:
    if first is not None:
        wait([first])
    return trace()


def _compile(traced: Future) -> None:
    traced.result().compile()


@contextmanager
def compiling(count: int, device: Any, first_alone: bool = False) -> Iterator[Compiling]:
    """A context with threads that compile until the end of the block; see `Compiling`.

    Args:
        count: the number of programs.
        device: the first of their devices.
        first_alone: see `Compiling`. If other processes help, there are enough cores, and the first program is not alone.
    """
    with compilers(count, device) as processes:
        others = processes.most if processes else 0
        # XLA uses several cores for a program. If too many are compiled at a time, all of them are ready late.
        at_a_time = cores() // 4 if others else min(cores(), 16)
        with threads(1 + others) as to_trace, threads(max(at_a_time, 2) + others) as to_compile:
            yield Compiling(to_trace, to_compile, processes, first_alone and not others)


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads. Unlike with `ThreadPoolExecutor`, the end of the block does not wait for them. Python's exit does."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def patiently(work: Future, tick: Callable[[], Any]) -> Any:
    """Waits for the result of another thread. Meanwhile Ctrl-C works, and `tick` is called to update a progress bar."""
    while not work.done():
        wait([work], 0.25)
        tick()
    return work.result()
