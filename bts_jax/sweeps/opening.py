"""Opens a store: to read it, or to fill it in from one process or from several."""

import contextlib
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
from bts_jax.sweeps.growth import (
    FOLDER,
    Conflict,
    chunk_size_of,
    grow,
    locked,
    reading,
    recovered,
    union,
    with_sources,
)
from bts_jax.sweeps.results import Chunk, Results
from bts_jax.sweeps.store import (
    Known,
    NoStore,
    Root,
    create,
    is_empty,
    labels_of,
    mend,
    read,
    read_root,
    set_aside,
    tidy,
    unwritable,
)

TRIES = 5  # readings of a store that other processes enlarge at the same time


def open_results(path: str | os.PathLike, *, lazy: bool = False) -> xr.Dataset:
    """Reads the results in a store, as the Dataset that `sweep` returns. The sweep may still be
    running.

    Where results are missing or damaged, regret is NaN, and the attribute `state` says how much is
    missing. Nothing is written. If a process was killed while it enlarged the store, the results
    are those before; the next `sweep` repairs the store.

    Args:
        path: the folder of the store.
        lazy: read the arrays chunk by chunk when they are used, so that results larger than memory
            can be reduced. This needs dask. The checksums of the chunks are then not verified.

    Example:
        >>> import tempfile
        >>> from bts_jax import Bernoulli, sweep
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        ...     results = sweep(["uniform"], bandits, budgets=[10, 20], num_seeds=5,
        ...     out=f"{folder}/runs.zarr")
        ...     again = open_results(f"{folder}/runs.zarr")
        >>> again.attrs["state"], again.identical(results)
        ('complete', True)
    """
    path = Path(path)
    if not lazy:
        return _read(path)
    results = reading(path)
    if importlib.util.find_spec("dask") is None:
        raise ValueError('lazy = True needs dask: pip install "bts_jax[dask]", or leave lazy out')
    if results.moving or (results.sources and results.saved() < len(results.chunks)):
        raise ValueError(
            f"the store {str(path)!r} has grown and is not complete: start its sweep again, or "
            "leave lazy out"
        )
    try:
        return results.lazy()
    except (KeyError, OSError, ValueError) as error:
        raise ValueError(
            f"the store {str(path)!r} cannot be read chunk by chunk ({error}): start its sweep "
            "again to repair it, or leave lazy out"
        ) from None


def _read(path: Path) -> xr.Dataset:
    """Reads a store into memory. If another process enlarges it meanwhile, it is read again."""
    for more in range(TRIES - 1, -1, -1):
        try:
            results = reading(path)
            results.check_size()
            dataset = results.dataset()
        except ValueError:
            if more and not os.path.lexists(path / "zarr.json") and os.path.lexists(path / FOLDER):
                continue  # it has lost its root since it was looked for
            raise
        if not more or all(
            one.is_current() for one in (results, *(source.theirs for source in results.sources))
        ):
            break
    return dataset


def begin(
    attributes: dict[str, Any],
    chunk_size: int,
    path: str | os.PathLike | None,
    mine: Callable[[Results], list[Chunk] | None] = lambda _: None,
    group: int = 1,
    regroup: Callable[[dict[str, Any], int], int] = lambda _, __: 1,
    asked: dict[str, Any] | None = None,
) -> Results:
    """Prepares results to be filled in: in memory only, or in the store at `path`, which is created
    or resumed.

    A store that has less than the sweep asks for grows; see `growth`. A store with a conflicting
    grid is refused, and left unchanged. Finds which chunks the store has, among all chunks or among
    `mine`. A resumed store keeps its own `chunk_size` and `group`. A store that grows gets groups
    of `regroup(specification, chunk_size)` bandits. `asked` is the specification in `attributes`,
    if it is at hand: to parse it may take seconds.
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
    known = Known(attributes["specification"], described, checked)
    try:
        root = recovered(path, known=known)  # another process may have created it first
    except NoStore:
        if not _rebuild(path, attributes, chunk_size, group, described):
            raise
        root = read_root(path, known)
    whole, changed = _union(path, root, described)
    if not _same(attributes, root) and json.dumps(whole) != json.dumps(root.specification):
        with locked(path):
            root = recovered(path, holding=True)  # another process may have enlarged it first
            whole, _ = _union(path, root, described)
            if json.dumps(whole) != json.dumps(root.specification):
                seeds = chunk_size_of(
                    root.specification["seeds"], whole["seeds"], root.chunk_size, chunk_size
                )
                # No group mixes old and new ones.
                bandits = math.gcd(regroup(whole, seeds), len(root.specification["bandits"]))
                root = grow(path, root, whole, seeds, bandits)
    for name in changed:
        warnings.warn(
            f"the code of {name} has changed since the store {str(path)!r} was written: its runs "
            "are played again",
            stacklevel=4,
        )
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


def _rebuild(
    path: Path, attributes: dict[str, Any], chunk_size: int, group: int, described: dict[str, Any]
) -> bool:
    """Writes a damaged root anew, if a chunk of the store proves that it was the root of this
    sweep.

    The checksum of a chunk depends on the root, so that no other sweep has such a chunk.
    """
    labels = labels_of(described)
    for seeds, bandits in ((chunk_size, group), _chunks_on_disk(path)):
        with contextlib.suppress(ValueError):
            specification.check(described, seeds, bandits)
            if not Results(attributes, seeds, path, bandits, labels, described).has_any():
                continue
            with locked(path):
                try:
                    read_root(path)  # another process may have written it meanwhile
                except NoStore:
                    set_aside(path / "zarr.json", os.path.lexists(path / "zarr.json"))
                    create(path, attributes, seeds, bandits, described)
            return True
    return False


def _chunks_on_disk(path: Path) -> tuple[Any, Any]:
    """How many seeds and bandits a chunk of a store has, by the metadata of an array. Nothing of
    this has been checked.
    """
    try:
        _, bandits, _, seeds = json.loads(read(path, "regret/zarr.json", 10**5))["chunk_grid"][
            "configuration"
        ]["chunk_shape"]
        return seeds, bandits
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 1, 1


def _same(attributes: dict[str, Any], root: Root) -> bool:
    """Whether a store has exactly the requested sweep. The texts are compared: to write a long
    specification takes seconds.
    """
    return attributes["specification"] == root.attributes["specification"]


def _union(path: Path, root: Root, described: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    try:
        whole, changed = union(root.specification, described)
        specification.words_of(whole["bandits"])
        return whole, changed
    except Conflict as error:
        raise ValueError(
            f"the store {str(path)!r} belongs to another grid and is left unchanged ({error}): "
            "name another folder as out, or read it with bts_jax.open_results"
        ) from None


def read_specification(path: str | os.PathLike) -> dict[str, Any]:
    """The specification of the grid in a store."""
    return reading(Path(path)).specification
