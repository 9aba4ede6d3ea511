"""Compiled programs, and the registry that stores them."""

import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock, RLock
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from bts_jax import text
from bts_jax.engine.compile.options import ways

_LOG = logging.getLogger("bts_jax")
# About the memory of a program: 8 to 20 MiB on a CPU (jaxlib 0.10.2 and 0.11.2).
PROGRAM_BYTES = 16 * 2**20


class Program:
    """A function of arrays of fixed shapes. It is first lowered, that is, traced, and then
    compiled.

    If the compiler fails, or the program fails at its launch, it is compiled in the next of several
    ways (`options.ways`). A log line reports the failure. Threads may use a program at the same
    time.
    """

    def __init__(self, function: Callable, devices: tuple, quickly: bool = False):
        """`quickly`: whether to compile quickly on a CPU, if that changes no bit. `function` may be
        divided among devices.
        """
        self.devices, self.quickly, self.lock = devices, quickly, RLock()
        one = SingleDeviceSharding(devices[0]) if len(devices) == 1 else None
        self.function: Any = jax.jit(function, in_shardings=one)
        self.lowered: Any = None
        self.compiled: Any = None
        self.ways: list[dict | None] | None = None  # that are left
        self.failed: list[str] = []  # the reasons why other ways were given up
        self.fallbacks: list[set[str]] = []  # operations that `jax.vmap` maps, by game

    def lower(self, *arguments: Any) -> "Program":
        with self.lock:
            if self.lowered is None and self.compiled is None:
                traced = self.function.trace(*arguments)
                self.lowered = traced.lower()
                if self.ways is None:
                    self.ways = ways(self.devices[0], self.quickly, traced, self.lowered)
        return self

    def compile(self) -> Any:
        """Compiles what was lowered: nothing, if it was dropped meanwhile."""
        with self.lock:
            lowered = self.lowered  # `clear_cache` may drop it at any time
            while self.compiled is None and lowered is not None:
                assert self.ways is not None
                try:
                    self.compiled = lowered.compile(self.ways[0])
                except jax.errors.JaxRuntimeError as error:
                    self._give_up(error)
            self.lowered = None
            return self.compiled

    def __call__(self, *arguments: Any) -> Any:
        while True:
            with self.lock:
                compiled = self.compiled or self.lower(*arguments).compile()
            if compiled is None:  # dropped by another thread
                continue
            try:
                # Waiting raises the error of a failed launch.
                return jax.block_until_ready(compiled(*arguments))
            except jax.errors.JaxRuntimeError as error:
                with self.lock:
                    if compiled is self.compiled:  # otherwise another thread has given up this way
                        self._give_up(error)
                        self.compiled = None

    def _give_up(self, error: Exception) -> None:
        """Switches to the next way. Raises the error if no other way would help."""
        reason = text.reason(error)
        assert self.ways is not None
        if len(self.ways) == 1 or "RESOURCE_EXHAUSTED" in reason or "callback" in reason.lower():
            raise error
        self.ways = self.ways[1:]
        self.failed.append(reason)
        _LOG.warning("a program failed and is compiled without some optimisations (%s)", reason)

    def clear_cache(self) -> None:
        """Drops what was compiled. It does not wait for a thread that is compiling."""
        self.compiled = self.lowered = None
        self.function.clear_cache()


class Registry:
    """Stores the `most` most recently used programs. Others are dropped, also from JAX's caches.

    Each compiled program takes about 170 memory maps. Linux allows a process 65,530 of them
    (`vm.max_map_count`). Beyond that, LLVM ends the process. It also takes about `PROGRAM_BYTES` of
    memory, mostly for what JAX caches while it traces. Only `jax.clear_caches` frees this memory,
    together with everything else. So it is called after every `most` dropped programs.
    """

    def __init__(self, most: int):
        self.most, self.kept, self.lock, self.dropped = most, OrderedDict(), Lock(), 0
        # Of all batches of a kind so far, see `batch.lay_out`.
        self.work: Counter[Hashable] = Counter()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        with self.lock:
            if key not in self.kept:
                self.kept[key] = make()
            self.kept.move_to_end(key)
            program = self.kept[key]
            while len(self.kept) > self.most:
                self._drop(next(iter(self.kept)))
        return program

    def drop(self, key: Any) -> None:
        with self.lock:
            if key in self.kept:
                self._drop(key)

    def _drop(self, key: Any) -> None:
        self.kept.pop(key).clear_cache()
        self.dropped += 1
        if self.dropped >= self.most:
            self.dropped = 0
            jax.clear_caches()


def most_programs() -> int:
    """How many programs a process stores: up to 128, and no more than fit into an eighth of the
    machine's memory.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # 24 may be compiled ahead of their use, see `threads`.
    return min(max(memory // 8 // PROGRAM_BYTES, 32), 128)


PROGRAMS = Registry(most_programs())
