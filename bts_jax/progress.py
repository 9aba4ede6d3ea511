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
    shown = sys.stderr.isatty() or any(".notebook" in base.__module__ for base in tqdm.__mro__)
    return tqdm if shown and not quiet else None


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
