"""Compiles programs in other threads, while other programs run."""

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from bts_jax.devices import cores

AHEAD = 24  # the most programs that are compiled ahead of their use: fewer than `programs` stores


class Compiling:
    """Compiles programs in other threads. One program is traced at a time, and several are
    compiled.

    Tracing several programs at a time would not be faster in Python, and the first one would not be
    ready before the last.

    With `first_alone`, nothing else is traced or compiled until the first program is ready, because
    the caller waits for it and XLA uses several cores for one program.
    """

    def __init__(
        self,
        trace_threads: ThreadPoolExecutor,
        compile_threads: ThreadPoolExecutor,
        first_alone: bool,
    ):
        self.trace_threads, self.compile_threads, self.first_alone = (
            trace_threads,
            compile_threads,
            first_alone,
        )
        self.begun: dict[Hashable, Future] = {}

    def begin(self, key: Hashable, trace: Callable[[], Any]) -> Future:
        """Starts to compile the result of `trace`, a function such as `batch.lower`, unless this
        key was started before.
        """
        if key not in self.begun:
            first = next(iter(self.begun.values()), None) if self.first_alone else None
            self.begun[key] = self.compile_threads.submit(
                _compile, self.trace_threads.submit(_trace, trace, first)
            )
        return self.begun[key]


def _trace(trace: Callable[[], Any], first: Future | None) -> Any:
    if first is not None:
        wait([first])
    return trace()


def _compile(traced: Future) -> None:
    traced.result().compile()


@contextmanager
def compiling(first_alone: bool = False) -> Iterator[Compiling]:
    """A context with threads that compile until the end of the block; see `Compiling`."""
    # XLA uses several cores for a program. If too many are compiled at a time, all of them are
    # ready late.
    with threads(1) as to_trace, threads(max(min(cores(), 16), 2)) as to_compile:
        yield Compiling(to_trace, to_compile, first_alone)


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads. Unlike with `ThreadPoolExecutor`, the end of the block does not wait for
    them. Python's exit does.
    """
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def patiently(work: Future, tick: Callable[[], Any]) -> Any:
    """Waits for the result of another thread. Meanwhile Ctrl-C works, and `tick` is called to
    update a progress bar.
    """
    while not work.done():
        wait([work], 0.25)
        tick()
    return work.result()
