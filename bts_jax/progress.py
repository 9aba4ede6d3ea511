"""Progress bars: on a terminal and in a notebook, and nowhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def bar(quiet: bool, **options: Any) -> Any:
    """A bar of tqdm with these options. It shows nothing if `quiet`, or where it would not be seen."""
    from tqdm.auto import tqdm  # imported when used: `import bts_jax` stays light

    notebook = any(".notebook" in base.__module__ for base in tqdm.__mro__)
    hidden = quiet or not (notebook or (sys.stderr is not None and sys.stderr.isatty()))
    return (_passing(tqdm) if notebook and not hidden else tqdm)(disable=hidden, leave=False, dynamic_ncols=True, **options)


@contextmanager
def counting(total: int, unit: str, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """A bar that counts to `total`, as a function of how many more there are and of what to say; it may show nothing."""
    with bar(quiet, total=total, unit=unit) as shown:

        def advance(more: int, label: str) -> None:
            shown.set_description(label)
            shown.update(more)

        yield advance


def _passing(tqdm: Any) -> Any:
    """The notebook's bars, true to a total that changes, and gone once closed: tqdm's own leave "starting: 0%" in the file."""
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
