"""Ends the command line on Ctrl-C and SIGTERM: immediately, with one line of text, at any time."""

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDED: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_hint: Callable[[], str] = str  # how to resume, if there is something to resume


@contextmanager
def ending() -> Iterator[None]:
    """On SIGINT or SIGTERM, the process prints one line and exits with code 130 or 143. An ignored
    signal stays ignored.

    A thread waits for the signal. Python itself would call a handler, or raise `KeyboardInterrupt`,
    in the main thread, and only after the compiled program there has ended. The exception would be
    lost if a callback were running.
    """
    # Python allows handlers in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    handlers = {
        number: signal.signal(number, _note)
        for number in _ENDED
        if signal.getsignal(number) != signal.SIG_IGN
    }
    thread = threading.Thread(target=_exit_on_signal, args=(reading,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        writing.close()
        thread.join()
        reading.close()


@contextmanager
def resumable(hint: Callable[[], str]) -> Iterator[None]:
    """Adds a hint to the line that is printed when a signal ends the block."""
    global _hint
    before, _hint = _hint, hint
    try:
        yield
    finally:
        _hint = before


def _note(*_: object) -> None:
    """An empty handler. Without a Python handler, no signal is written to the socket."""


def _exit_on_signal(reading: socket.socket) -> None:
    while number := reading.recv(1):
        if number[0] in _ENDED:
            try:
                clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # the progress bar
                os.write(2, f"{clear}bts-jax: {_ENDED[number[0]]}{_hint()}\n".encode())
                for child in multiprocessing.active_children():
                    child.kill()
            finally:
                os._exit(128 + number[0])  # a normal exit would wait for the device
