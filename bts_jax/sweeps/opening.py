"""Opens a store: to read it, or to fill it in from one process or from several."""

import importlib.util
import json
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xarray as xr

from bts_jax.sweeps import specification
from bts_jax.sweeps.growth import Conflict, chunk_size_of, grow, locked, recovered, union, with_sources
from bts_jax.sweeps.results import Chunk, Results
from bts_jax.sweeps.store import Known, Root, create, is_empty, mend, tidy, unwritable


def open_results(path: str | os.PathLike, *, lazy: bool = False) -> xr.Dataset:
    """Reads the results in a store, as the Dataset that `sweep` returns. The sweep may still be running.

    Where results are missing or damaged, regret is NaN, and the attribute `state` says how much is missing. If a process was
    killed while it enlarged the store, the store is repaired first.

    Args:
        path: the folder of the store.
        lazy: read the arrays chunk by chunk when they are used, so that results larger than memory can be reduced. This needs
            dask. The checksums of the chunks are then not verified.

    Example:
        >>> import tempfile
        >>> from bts_jax import Bernoulli, sweep
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        ...     results = sweep(["uniform"], bandits, budgets=[10, 20], num_seeds=5, out=f"{folder}/runs.zarr")
        ...     again = open_results(f"{folder}/runs.zarr")
        >>> again.attrs["state"], again.identical(results)
        ('complete', True)
    """
    path = Path(path)
    results = with_sources(path, recovered(path))
    if not lazy:
        results.check_size()
        return results.dataset()
    if importlib.util.find_spec("dask") is None:
        raise ValueError('lazy = True needs dask: pip install "bts_jax[dask]", or leave lazy out')
    if results.sources and results.saved() < len(results.chunks):
        raise ValueError(f"the store {str(path)!r} has grown and is not complete: start its sweep again, or leave lazy out")
    try:
        return results.lazy()
    except (KeyError, OSError, ValueError) as error:
        raise ValueError(f"the store {str(path)!r} cannot be read chunk by chunk ({error}): start its sweep again to repair "
                         "it, or leave lazy out") from None


def begin(
    attributes: dict[str, Any],
    chunk_size: int,
    path: str | os.PathLike | None,
    mine: Callable[[Results], list[Chunk] | None] = lambda _: None,
    group: int = 1,
    regroup: Callable[[dict[str, Any], int], int] = lambda _, __: 1,
    asked: dict[str, Any] | None = None,
) -> Results:
    """Prepares results to be filled in: in memory only, or in the store at `path`, which is created or resumed.

    A store that has less than the sweep asks for grows; see `growth`. A store with a conflicting grid is refused, and left
    unchanged. Finds which chunks the store has, among all chunks or among `mine`. A resumed store keeps its own `chunk_size`
    and `group`. A store that grows gets groups of `regroup(specification, chunk_size)` bandits. `asked` is the
    specification in `attributes`, if it is at hand: to parse it may take seconds.
    """
    if path is None:
        return Results(attributes, chunk_size, group=group)
    path = Path(path)
    described = asked or specification.parse(attributes["specification"])
    checked = None
    if is_empty(path):
        specification.check(described, chunk_size, group)
        try:
            create(path, attributes, chunk_size, group, described)
        except OSError as error:
            raise unwritable(path, error) from error
        checked = chunk_size, group
    # Another process may have created it first.
    root = recovered(path, known=Known(attributes["specification"], described, checked))
    whole, changed = _union(path, root, described)
    if not _same(attributes, root) and json.dumps(whole) != json.dumps(root.specification):
        with locked(path):
            root = recovered(path, holding=True)  # another process may have enlarged it first
            whole, _ = _union(path, root, described)
            if json.dumps(whole) != json.dumps(root.specification):
                seeds = chunk_size_of(root.specification["seeds"], whole["seeds"], root.chunk_size, chunk_size)
                bandits = math.gcd(regroup(whole, seeds), len(root.specification["bandits"]))  # no group mixes old and new ones
                root = grow(path, root, whole, seeds, bandits)
    for name in changed:
        warnings.warn(f"the code of {name} has changed since the store {str(path)!r} was written: its runs are played again",
                      stacklevel=5)
    results = with_sources(path, root)
    if not _same(attributes, root) and json.dumps(root.specification) != json.dumps(described):
        results.ask(attributes)
    mend(path, results.labels, results.chunk_size, results.group)
    tidy(path)
    results.load(chunks=mine(results))
    if results.missing and not results.asks_for_whole_groups():
        with locked(path):
            if results.is_current():
                grow(path, root, root.specification, results.chunk_size, 1)
        return begin(attributes, chunk_size, path, mine, group, regroup, described)
    if results.missing and not os.access(path, os.W_OK):
        raise unwritable(path, PermissionError(13, "Permission denied"))
    return results


def _same(attributes: dict[str, Any], root: Root) -> bool:
    """Whether a store has exactly the requested sweep. The texts are compared: to write a long specification takes seconds."""
    return attributes["specification"] == root.attributes["specification"]


def _union(path: Path, root: Root, described: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    try:
        return union(root.specification, described)
    except Conflict as error:
        raise ValueError(f"the store {str(path)!r} belongs to another grid and is left unchanged ({error}): name another "
                         "folder as out, or read it with bts_jax.open_results") from None


def read_specification(path: str | os.PathLike) -> dict[str, Any]:
    """The specification of the grid in a store."""
    return recovered(Path(path)).specification
