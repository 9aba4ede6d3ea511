"""Progress bars, on a terminal or in a notebook only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def bar(quiet: bool, **options: Any) -> Any:
    """A tqdm bar with these options. It is hidden if `quiet`, or outside of terminals and notebooks."""
    from tqdm.auto import tqdm  # imported when used, so that `import bts_jax` is fast

    notebook = any(".notebook" in base.__module__ for base in tqdm.__mro__)
    hidden = quiet or not (notebook or (sys.stderr is not None and sys.stderr.isatty()))
    return (_passing(tqdm) if notebook and not hidden else tqdm)(disable=hidden, leave=False, dynamic_ncols=True, **options)


@contextmanager
def counting(total: int, unit: str, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """Shows a bar that counts to `total`. Yields a function that takes an increment and a label."""
    with bar(quiet, total=total, unit=unit) as shown:

        def advance(more: int, label: str) -> None:
            shown.set_description(label)
            shown.update(more)

        yield advance


def _passing(tqdm: Any) -> Any:
    """A notebook bar that follows changes of its total, and disappears when closed. tqdm's own leaves "starting: 0%" behind."""
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
