"""Programs that are compiled in other threads, while something else is played."""

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from bts_jax.devices import cores

AHEAD = 24  # programs at a time that are compiled before they are played: far fewer than those that `batch` keeps


class Compiling:
    """Compiles programs in other threads: one is traced after the other, several are compiled at a time.

    Python would trace several no faster, and have the first ready no sooner than the last. `first_alone`: nothing else is
    traced or compiled beside the first, for which somebody waits, since XLA uses several cores for one program.
    """

    def __init__(self, tracer: ThreadPoolExecutor, compilers: ThreadPoolExecutor, first_alone: bool):
        self.tracer, self.compilers, self.first_alone = tracer, compilers, first_alone
        self.begun: dict[Hashable, Future] = {}

    def begin(self, key: Hashable, trace: Callable[[], Any]) -> Future:
        """Begins to compile what `trace` returns, as `batch.lower` does, unless that is done or under way."""
        if key not in self.begun:
            first = next(iter(self.begun.values()), None) if self.first_alone else None
            self.begun[key] = self.compilers.submit(_compile, self.tracer.submit(_trace, trace, first))
        return self.begun[key]


def _trace(trace: Callable[[], Any], first: Future | None) -> Any:
    if first is not None:
        wait([first])
    return trace()


def _compile(traced: Future) -> None:
    traced.result().compile()


@contextmanager
def compiling(first_alone: bool = False) -> Iterator[Compiling]:
    """Threads that compile until the end of the block, see `Compiling`."""
    with threads(1) as tracer, threads(min(cores(), 16)) as compilers:
        yield Compiling(tracer, compilers, first_alone)


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that are not waited for at the end of the block, as those of `ThreadPoolExecutor` are; Python's end waits."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def patiently(work: Future, tick: Callable[[], Any]) -> Any:
    """What the work of another thread comes to. Meanwhile Ctrl-C is heard, and a bar keeps time."""
    while not work.done():
        wait([work], 0.25)
        tick()
    return work.result()
