"""Whether to show a progress bar, and with what."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def bar(quiet: bool) -> Any:
    """The class of bars for the terminal or the notebook; `None` elsewhere, if `quiet`, or without tqdm."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    notebook = any(".notebook" in base.__module__ for base in tqdm.__mro__)
    if quiet or not (notebook or (sys.stderr is not None and sys.stderr.isatty())):
        return None
    return _passing(tqdm) if notebook else tqdm


@contextmanager
def counting(total: int, unit: str, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """A bar that counts to `total`, as a function of how many more there are and of what to say; it may show nothing."""
    tqdm = bar(quiet)
    if tqdm is None:
        yield lambda more, label: None
        return
    with tqdm(total=total, unit=unit, leave=False, dynamic_ncols=True) as shown:

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
