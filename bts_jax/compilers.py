"""Compiles programs in other processes.

Python traces on one core, about half a second for each policy. A large sweep on a GPU has 40 programs of several policies, and
it would wait for them to be traced. So on a machine with many cores, other processes trace and compile as well. They write the
programs to the disk cache (`program_cache`), and this process loads them from there.

Nothing depends on these processes. The name of a program's file is a digest of everything that the program depends on. If the
file is not there in the end, this process traces the program itself.
"""

import contextlib
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import jax

from bts_jax.cache import enable_cache, in_use
from bts_jax.devices import cores, number_from
from bts_jax.text import reason

_LOG = logging.getLogger("bts_jax")
MOST = 8  # further processes
MEMORY = 2**34  # the memory of a GPU for each of them; each takes about half a gigabyte of it
_COMMAND = "import sys; sys.path[:] = {path!r}; from bts_jax.compilers import serve; serve({answers})"


class Compilers:
    """This process, and others that start when the first program is missing.

    Args:
        most: the largest number of other processes.
    """

    def __init__(self, most: int):
        self.most, self.lock, self.closed = most, Lock(), False
        self.tracing = Lock()  # this process traces one program at a time
        self.others: list[_Process] = []
        self.free: SimpleQueue[_Process | None] = SimpleQueue()  # None is this process
        self.free.put(None)

    @contextlib.contextmanager
    def one(self, task: Any) -> Iterator[None]:
        """Waits for a free process. If it is another one, lets it compile the task before the block, and write it to disk.

        `task` are arguments of `batch.compile_to_disk` that can be pickled.
        """
        self._start()
        process = self.free.get()
        try:
            if process is not None:
                process.compile(task)
            if self.closed:
                raise CancelledError
            yield
        finally:
            if process is None or process.works:
                self.free.put(process)

    def _start(self) -> None:
        with self.lock:
            while len(self.others) < self.most and not self.closed:
                self.others.append(_Process())
                Thread(target=self._await, args=(self.others[-1],), daemon=True).start()

    def _await(self, process: "_Process") -> None:
        """Uses a process once it has started."""
        process.answer()
        if process.works:
            self.free.put(process)

    def close(self) -> None:
        """Ends the other processes."""
        with self.lock:
            self.closed = True
            for process in self.others:
                process.end()


@contextlib.contextmanager
def compilers(count: int, device: Any) -> Iterator[Compilers | None]:
    """The processes that compile `count` programs. None if this process compiles alone: it has few cores, or no cache."""
    most = _most(count, device) if in_use() else 0
    found = Compilers(most) if most else None
    try:
        yield found
    finally:
        if found:
            found.close()


def _most(count: int, device: Any) -> int:
    """How many other processes may help to compile `count` programs."""
    asked = number_from("BTS_JAX_COMPILERS", "processes that compile")
    if asked is not None:
        return max(min(asked, count) - 1, 0)
    most = min(MOST, cores() // 2 - 1, (count - 1) // 5)  # a process takes seconds to start: it must be worth it
    if device.platform != "cpu":
        memory = (device.memory_stats() or {}).get("bytes_limit", 0)
        most = min(most, memory // MEMORY)
    return max(most, 0) if jax.process_count() == 1 else 0


class _Process:
    """Another process that compiles programs, one at a time."""

    def __init__(self) -> None:
        self.process: Any = None
        self.works = True
        reading, writing = os.pipe()  # for its answers: anything may print to its standard output
        self.answers = os.fdopen(reading, "rb")
        try:
            # The memory of a GPU is for this process. In a session of its own, the other process does not get Ctrl-C.
            self.process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND.format(path=sys.path, answers=writing)], pass_fds=[writing],
                env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            self._send(_settings())
        except Exception as error:
            self._fail(error)
        finally:
            os.close(writing)

    def compile(self, task: Any) -> None:
        """Lets the process compile, and waits."""
        try:
            self._send(task)
        except Exception as error:  # it has ended, or the task cannot be pickled
            self._fail(error)
        self.answer()

    def _send(self, message: Any) -> None:
        self.process.stdin.write(pickle.dumps(message))
        self.process.stdin.flush()

    def answer(self) -> None:
        """Waits until the process has done what it was asked to do. If it could not, it is not asked again."""
        if self.works:
            try:
                answer = pickle.load(self.answers)
                if answer:
                    raise RuntimeError(answer)
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.works:  # not ended by this process
            why = "it has ended" if isinstance(error, (EOFError, BrokenPipeError)) else reason(error)
            _LOG.info("another process does not help to compile any more (%s)", why)
            self.end()

    def end(self) -> None:
        self.works = False
        if self.process:
            self.process.kill()
        with contextlib.suppress(RuntimeError):  # when Python exits, no thread can start
            Thread(target=self._clean_up, daemon=True).start()  # the kernel may take a second to free a GPU's memory

    def _clean_up(self) -> None:
        if self.process:
            self.process.wait()
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        self.answers.close()


def _settings() -> dict[str, Any]:
    """JAX's settings in this process, as far as they are plain values."""
    values = {name: getattr(jax.config, name, None) for name in jax.config.values}
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str))}


def serve(answers: int) -> None:
    """What another process does: it compiles what it reads from its standard input, until the input ends.

    `answers` is the file descriptor to which it writes that it is ready, and why not, if it could not compile something.
    """
    tasks: SimpleQueue[Any] = SimpleQueue()
    settings = pickle.load(sys.stdin.buffer)
    for name, value in settings.items():
        if getattr(jax.config, name, None) != value:
            with contextlib.suppress(Exception):  # another process can live without it: names of programs will differ
                jax.config.update(name, value)

    from bts_jax.batch import compile_to_disk

    enable_cache(sys.maxsize)  # the first process removes old programs
    jax.local_devices()

    def read() -> None:
        try:
            while True:
                tasks.put(pickle.load(sys.stdin.buffer))
        finally:  # the first process has ended, or has sent what cannot be read here
            os._exit(0)

    Thread(target=read, daemon=True).start()
    message = ""
    while True:
        os.write(answers, pickle.dumps(message))
        task = tasks.get()
        try:
            message = compile_to_disk(*task)
        except Exception as error:
            message = reason(error) or repr(error)
