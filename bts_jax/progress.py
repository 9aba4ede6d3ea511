"""Whether to show a progress bar, and with what."""

import sys
from typing import Any


def bar(quiet: bool) -> Any:
    """The class of bars for the terminal or the notebook; `None` elsewhere, if `quiet`, or without tqdm."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    shown = sys.stderr.isatty() or any(".notebook" in base.__module__ for base in tqdm.__mro__)
    return tqdm if shown and not quiet else None
