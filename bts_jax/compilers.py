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

from bts_jax.devices import cores, number_from
from bts_jax.text import reason

_LOG = logging.getLogger("bts_jax")
MOST = 8  # further processes
MEMORY = 2**34  # the memory of a GPU for each of them; each takes about half a gigabyte of it
_COMMAND = "from bts_jax.compilers import serve; serve()"


class Compilers:
    """This process, and others that start when the first program is missing.

    Args:
        most: the largest number of other processes.
    """

    def __init__(self, most: int):
        self.most, self.lock, self.closed = most, Lock(), False
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
    """The processes that compile `count` programs. None if this process compiles alone, because it has few cores."""
    most = _most(count, device)
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
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        # Option -P: modules are found where this process finds them, and not in the current folder. The memory of a GPU is for
        # this process. In a session of its own, the other process does not get Ctrl-C.
        environment = os.environ | {"PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self.pipe: Any = None
        self.works = True
        try:
            self.pipe = subprocess.Popen([sys.executable, "-P", "-c", _COMMAND], env=environment, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
            self._send(_settings())
        except (OSError, TypeError, ValueError) as error:
            self._fail(error)

    def compile(self, task: Any) -> None:
        """Lets the process compile, and waits."""
        try:
            self._send(task)
        except (OSError, ValueError, AttributeError, pickle.PicklingError) as error:
            self._fail(error)
        self.answer()

    def _send(self, message: Any) -> None:
        self.pipe.stdin.write(pickle.dumps(message))
        self.pipe.stdin.flush()

    def answer(self) -> None:
        """Waits until the process has done what it was asked to do."""
        if self.works:
            try:
                answer = pickle.load(self.pipe.stdout)
            except Exception as error:  # it has ended
                self._fail(error)
            else:
                if answer:
                    _LOG.info("a program is not compiled in another process (%s)", answer)

    def _fail(self, error: Exception) -> None:
        if self.works:
            self.works = False
            _LOG.info("a process that compiles programs has ended (%s)", reason(error))

    def end(self) -> None:
        self.works = False
        if self.pipe:
            self.pipe.kill()
            Thread(target=self._clean_up, daemon=True).start()  # the kernel may take a second to free a GPU's memory

    def _clean_up(self) -> None:
        self.pipe.wait()
        for file in (self.pipe.stdin, self.pipe.stdout):
            with contextlib.suppress(OSError):
                file.close()


def _settings() -> dict[str, Any]:
    """JAX's settings in this process, as far as they are plain values."""
    values = {name: getattr(jax.config, name, None) for name in jax.config.values}
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str))}


def serve() -> None:
    """What another process does: it compiles what it reads from its standard input, until the input ends."""
    tasks: SimpleQueue[Any] = SimpleQueue()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    settings = pickle.load(sys.stdin.buffer)
    for name, value in settings.items():
        if getattr(jax.config, name, None) != value:
            with contextlib.suppress(Exception):  # another process can live without it: names of programs will differ
                jax.config.update(name, value)

    from bts_jax.batch import compile_to_disk
    from bts_jax.cache import enable_cache

    enable_cache()
    jax.local_devices()

    def read() -> None:
        while True:
            try:
                tasks.put(pickle.load(sys.stdin.buffer))
            except EOFError:  # the first process has ended
                os._exit(0)

    Thread(target=read, daemon=True).start()
    message = ""
    while True:
        pickle.dump(message, answers)
        answers.flush()
        task = tasks.get()
        try:
            message = compile_to_disk(*task)
        except Exception as error:
            message = reason(error) or repr(error)
