"""Progress of long work: a bar on a terminal or in a notebook, and a line every 30 seconds
elsewhere, as in a log file.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

SECONDS = 30.0  # between two lines


def bar(quiet: bool, **options: Any) -> Any:
    """A tqdm bar with these options. It is hidden if `quiet`, and prints lines outside of terminals
    and notebooks.
    """
    from tqdm.auto import tqdm  # imported when used, so that `import bts_jax` is fast

    notebook = any(".notebook" in base.__module__ for base in tqdm.__mro__)
    kind = (
        _passing(tqdm)
        if notebook and not quiet
        else tqdm
        if on_terminal() or quiet
        else _lines(tqdm)
    )
    return kind(
        disable=quiet or getattr(sys.stderr, "closed", sys.stderr is None),
        leave=False,
        dynamic_ncols=True,
        **options,
    )


def on_terminal() -> bool:
    """Whether stderr is a terminal, and not a file, closed, or an object of another kind."""
    with suppress(AttributeError, ValueError):
        return sys.stderr.isatty()
    return False


def say(text: str) -> None:
    """Prints a line to stderr, if there is one."""
    with suppress(AttributeError, ValueError, OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def printed() -> Callable[[str], None]:
    """A function that prints what is being done: each time on a terminal, and at most every 30
    seconds elsewhere.
    """
    last = time.monotonic()

    def tell(doing: str) -> None:
        nonlocal last
        if on_terminal() or time.monotonic() - last >= SECONDS:
            last = time.monotonic()
            say(f"{doing} ...")

    return tell


@contextmanager
def counting(total: int, unit: str, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """Shows a bar that counts to `total`. Yields a function that takes an increment and a label."""
    with bar(quiet, total=total, unit=unit) as shown:

        def advance(more: int, label: str) -> None:
            shown.set_description(label)
            shown.update(more)

        yield advance


def _lines(tqdm: Any) -> Any:
    """A bar that prints a line every 30 seconds. A thread prints, because the main thread may wait
    for a program.
    """

    class Lines(tqdm):
        def __init__(self, **options: Any):
            super().__init__(
                bar_format="{desc}: {percentage:.0f}% of {total_fmt} {unit}s after {elapsed}",
                **options,
            )
            self.closed = Event()
            if not self.disable:
                Thread(target=self._print, daemon=True).start()

        def _print(self) -> None:
            while not self.closed.wait(SECONDS):
                say(str(self).replace(": : ", ": "))  # tqdm may add a colon of its own

        def display(self, *arguments: Any, **options: Any) -> None:
            """tqdm calls this to draw the bar."""

        def close(self) -> None:
            self.closed.set()
            super().close()

    return Lines


def _passing(tqdm: Any) -> Any:
    """A notebook bar that follows changes of its total, and disappears when closed. tqdm's own
    leaves "starting: 0%" behind.
    """
    from IPython.display import display

    class Bar(tqdm):
        def __init__(self, **options: Any):
            super().__init__(display=False, **options)
            self.shown: Any = display(self.container, display_id=True)

        def display(self, *arguments: Any, **options: Any) -> Any:
            self.container.children[1].max = self.total
            return super().display(*arguments, **options)

        def close(self) -> None:
            if not self.disable:
                super().close()
                self.container.close()
                self.shown.update({}, raw=True)

    return Bar
