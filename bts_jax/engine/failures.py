"""What happens if a part of the engine fails, for example with a new release of JAX.

Any error in the engine's own work becomes a `PassFailed`. Whoever plays then reports it in one line
of the log, and lets `bts_jax.plain` play. Errors of a user's policy or bandit are raised as they
are.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from bts_jax import text

_LOG = logging.getLogger("bts_jax")


class PassFailed(RuntimeError):
    """A part of the engine does not work for a program."""


@contextmanager
def naming(what: str) -> Iterator[None]:
    """A context in which any error becomes a `PassFailed` that says what failed."""
    try:
        yield
    except PassFailed:
        raise
    except Exception as error:
        raise PassFailed(f"{what}: {type(error).__name__}: {text.reason(error)}") from error


@cache
def report(reason: str) -> None:
    """Logs once that the plain engine plays."""
    _LOG.warning(
        "the fast engine fails (%s): runs are played by the plain engine, which is slower; "
        "please report this, with the version of JAX",
        reason,
    )
