"""The labelled result of a grid, in memory and on disk.

A grid is computed in units: one policy on a group of consecutive bandits with a range of seeds and all budgets. Usually a group
is one bandit. If there are many bandits with few seeds each, a group has several, so that the store has fewer and larger files.
All groups have the same number of bandits, and a store keeps that number. On disk the grid is one zarr store, which
`xarray.open_zarr` reads too; the files of a unit are written and read here, by zarr's rules, since they are many and small, for
which zarr takes its time. Every file is replaced as a whole. A unit counts once its checksum is there, which is written last
and covers all that the unit has stored: so whatever is missing or damaged is found, and computed again. The root of the store
holds the specification, from which all else but the numbers follows, and is made anew if need be.
"""

import contextlib
import json
import math
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from bts_jax import files
from bts_jax.sweeps import specification
from bts_jax.sweeps.store import (
    AXES,
    EXPLAINED,
    STORED,
    VARIABLES,
    ZSTD,
    Root,
    axes_of,
    axis_sizes,
    chunk_shape,
    compare,
    create,
    differences_in_words,
    is_empty,
    labels_of,
    mend,
    on_disk,
    read_root,
    replace,
    set_aside,
    tidy,
    unwritable,
)

FREE = 2**28  # bytes of results that are always read into memory
EXPANSION = 1000  # beyond that, at most so many for each byte in the store


class Unit(NamedTuple):
    """A part of the grid that is computed, and counts as done, as a whole."""

    policy: int
    bandit: int  # which group of bandits: the number of the bandit, where a group is one bandit
    part: int  # which range of seeds


class Results:
    """The numbers of a grid: in a store if there is one, and in memory otherwise.

    Args:
        attributes: of the Dataset; "specification" is JSON, from which the labels follow.
        chunk: how many seeds a unit has; the last range may have fewer.
        path: of the store, which exists.
        group: how many consecutive bandits a unit has; it divides the number of bandits.
        labels: the coordinates, if they are known already: a long specification takes seconds to parse.
    """

    def __init__(
        self, attributes: dict[str, Any], chunk: int, path: Path | None = None, group: int = 1,
        labels: dict[str, tuple] | None = None,
    ):
        self.attributes, self.chunk, self.path, self.group = attributes, chunk, path, group
        self.labels = labels_of(specification.parse(attributes["specification"])) if labels is None else labels
        self.sizes = axis_sizes(self.labels, chunk, group)
        self.done = np.zeros([self.sizes[axis] for axis in ("policy", "group", "range")], bool)
        self._kept = self._blank() if path is None else None

    @property
    def units(self) -> list[Unit]:
        return [Unit(*map(int, place)) for place in np.ndindex(self.done.shape)]

    @property
    def missing(self) -> list[Unit]:
        return [unit for unit in self.units if not self.done[unit]]

    @property
    def runs(self) -> int:
        """How many runs a unit has with each budget; with the last range of seeds it may have fewer."""
        return self.group * self.chunk

    def bandits(self, unit: Unit) -> range:
        return range(unit.bandit * self.group, (unit.bandit + 1) * self.group)

    def seeds(self, unit: Unit) -> slice:
        return slice(unit.part * self.chunk, min((unit.part + 1) * self.chunk, self.sizes["seed"]))

    def put(self, unit: Unit, values: dict[str, np.ndarray]) -> None:
        """Keeps the results of a unit, every array [bandit, budget, seed] or [bandit, budget, seed, arm].

        The axis `bandit` may be left out where a group is one bandit.
        """
        values = {name: np.ascontiguousarray(values[name], dtype) for name, (dtype, _) in VARIABLES.items()}
        if self.group == 1:
            values = {name: value if value.ndim == len(axes_of(name)) - 1 else value[None] for name, value in values.items()}
        # There are many kinds of NaN, of which the store gives back one.
        values = {name: np.where(value == value, value, value.dtype.type(fill)) if value.dtype.kind == "f" else value
                  for (name, value), (_, fill) in zip(values.items(), VARIABLES.values(), strict=True)}
        if self.path is not None:
            try:
                for name, value in values.items():
                    self._write(name, unit, value)
                self._write("checksum", unit, np.array([[_checksum(values)]]))
            except OSError as error:
                raise unwritable(self.path, error) from error
        self._keep(unit, values, self._kept)

    def load(self, into: dict[str, np.ndarray] | None = None, units: list[Unit] | None = None) -> None:
        """Finds out what the store has, complete and undamaged; and reads it into these arrays, if there are any.

        Of `units` alone, if they are given: others then count as missing.
        """
        if self.path is None:
            return
        self.done[:] = False
        chosen = None if units is None else set(units)
        for unit in self._there():
            if chosen is not None and unit not in chosen:
                continue
            seeds = self.seeds(unit)
            with contextlib.suppress(Exception):  # something is damaged, which makes its decoder raise whatever it likes
                checksum = self._read("checksum", unit).item()
                values = {name: self._read(name, unit)[:, :, : seeds.stop - seeds.start] for name in VARIABLES}
                if checksum == _checksum(values):
                    self._keep(unit, values, into)

    def _write(self, name: str, unit: Unit, value: np.ndarray) -> None:
        """Writes a file of the store: the chunk of an array that belongs to a unit, and to no other."""
        file, blank = self._file(name, unit), self._blank_chunk(name)
        chunk = blank.copy()
        chunk[tuple(map(slice, value.shape))] = value
        if np.array_equal(chunk, blank, equal_nan=chunk.dtype.kind == "f"):
            set_aside(file, file.is_dir())
            file.unlink(missing_ok=True)  # as zarr has it
        else:
            replace(file, ZSTD.encode(chunk.astype(chunk.dtype.newbyteorder("<"))))

    def _read(self, name: str, unit: Unit) -> np.ndarray:
        """What is in such a file, of the last range of seeds too as many as of the others."""
        chunk = self._blank_chunk(name)
        with contextlib.suppress(FileNotFoundError):
            content = files.read(self._file(name, unit), chunk.nbytes + chunk.nbytes // 64 + 1024)
            little = chunk.astype(chunk.dtype.newbyteorder("<"))
            ZSTD.decode(content, out=little)  # a frame that has more than that is refused before it takes memory
            chunk = little.astype(chunk.dtype, copy=False)
        return chunk

    def _blank_chunk(self, name: str) -> np.ndarray:
        dtype, fill = STORED[name]
        return np.full(chunk_shape(name, self.sizes, self.chunk, self.group)[1:], fill, dtype)

    def dataset(self) -> xr.Dataset:
        """What there is; where a unit is missing, NaN, or 0 for whole numbers."""
        arrays = self._kept
        if arrays is None:
            self.load(arrays := self._blank())
        variables = {name: (axes_of(name), array, {"long_name": EXPLAINED[name]}) for name, array in arrays.items()}
        missing = int((~self.done).sum())
        state = "complete" if not missing else f"incomplete: {missing} of {self.done.size} units are missing (regret NaN)"
        return xr.Dataset(variables, self.labels, {**self.attributes, "state": state})

    def saved(self) -> int:
        """How many units the store has, by its list of files: whether they are undamaged takes reading them."""
        return int(self.done.sum()) if self.path is None else sum(1 for _ in self._there())

    def _there(self) -> Iterator[Unit]:
        """The units of which the store has a checksum, by its list of files."""
        with contextlib.suppress(OSError), os.scandir(self.path / "checksum") as entries:  # type: ignore
            for entry in entries:
                if re.fullmatch(r"c(\.(0|[1-9][0-9]{0,9})){3}", entry.name):
                    unit = Unit(*map(int, entry.name.split(".")[1:]))
                    if all(place < size for place, size in zip(unit, self.done.shape, strict=True)):
                        yield unit

    def check_size(self) -> None:
        """Raises if the results take much more memory than the files of the store account for: they are not in there."""
        runs = math.prod(self.sizes[axis] for axis in AXES)
        needed = runs * specification.bytes_of_a_run(self.sizes["arm"])
        if needed <= FREE:
            return
        found = sum(on_disk(file) for name in VARIABLES for file in (self.path / name).glob("c.*"))  # type: ignore
        if needed > FREE + EXPANSION * found:
            raise ValueError(f"the results in {str(self.path)!r} would take {needed:,} bytes of memory, and its files have "
                             f"{found:,} bytes: read it in parts, with xarray.open_zarr")

    def _blank(self) -> dict[str, np.ndarray]:
        return {name: np.full([self.sizes[axis] for axis in axes_of(name)], fill, dtype)
                for name, (dtype, fill) in VARIABLES.items()}

    def _place(self, unit: Unit) -> tuple:
        bandits = self.bandits(unit)
        return unit.policy, slice(bandits.start, bandits.stop), slice(None), self.seeds(unit)

    def _keep(self, unit: Unit, values: dict[str, np.ndarray], into: dict[str, np.ndarray] | None) -> None:
        for name, array in (into or {}).items():
            array[self._place(unit)] = values[name]
        self.done[unit] = True

    def _file(self, name: str, unit: Unit) -> Path:
        """Where the store has what belongs to a unit, and to no other."""
        at = {"policy": unit.policy, "bandit": unit.bandit, "group": unit.bandit, "seed": unit.part, "range": unit.part}
        places = [at.get(axis, 0) for axis in axes_of(name)]
        return self.path / name / ".".join(map(str, ("c", *places)))  # type: ignore


def _opened(path: Path, root: Root) -> Results:
    return Results(root.attributes, root.chunk, path, root.group, labels_of(root.specification))


def open_results(path: str | os.PathLike) -> xr.Dataset:
    """The results in a store that `sweep` has made or is making, as the Dataset that `sweep` returns.

    Where they are not complete, or damaged, regret is NaN, and the attribute `state` says how much is missing.

    Example:
        >>> import tempfile
        >>> from bts_jax import Bernoulli, sweep
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        ...     results = sweep(["uniform"], bandits, budgets=[10, 20], seeds=5, out=f"{folder}/runs.zarr")
        ...     again = open_results(f"{folder}/runs.zarr")
        >>> again.attrs["state"], again.identical(results)
        ('complete', True)
    """
    path = Path(path)
    results = _opened(path, read_root(path))
    results.check_size()
    return results.dataset()


def begin(
    attributes: dict[str, Any],
    chunk: int,
    path: str | os.PathLike | None,
    mine: Callable[[Results], list[Unit] | None] = lambda _: None,
    group: int = 1,
) -> Results:
    """Results to be filled in: in memory alone, or in the store at `path`, which is made, or gone on with.

    A store of another specification is refused, and left as it is. What is in it is found out, of all units or of `mine`.
    A store that is gone on with keeps its own `chunk` and `group`.
    """
    if path is None:
        return Results(attributes, chunk, group=group)
    path = Path(path)
    if is_empty(path):
        described = specification.parse(attributes["specification"])
        specification.check(described, chunk, group)
        try:
            create(path, attributes, chunk, group, described)
        except OSError as error:
            raise unwritable(path, error) from error
    root = read_root(path)  # another process may have been faster to make it
    compare(path, root, attributes)
    results = _opened(path, root)
    mend(path, results.labels, results.chunk, results.group)
    tidy(path)
    results.load(units=mine(results))
    if results.missing and not os.access(path, os.W_OK):
        raise unwritable(path, PermissionError(13, "Permission denied"))
    return results


def join(attributes: dict[str, Any], path: str | os.PathLike, theirs: dict[str, Any], patience: float) -> Results:
    """The results that another process has begun, of which `theirs` are the attributes, in the same store.

    Waits until the store is seen here too, at most `patience` seconds. What is done in it is for that process to tell.
    """
    texts = theirs["specification"], attributes["specification"]
    differences = ""
    if texts[0] != texts[1]:
        differences = differences_in_words(json.loads(texts[0]), json.loads(texts[1]), "for process 0", "here")
    if differences:
        raise ValueError(f"process 0 has begun another sweep than this one ({differences}): give all processes the same file, "
                         "and all machines the same versions of bts_jax and jax and the same kind of devices")
    path, until = Path(path), time.monotonic() + patience
    while True:
        with contextlib.suppress(ValueError):
            root = read_root(path)
            if root.attributes == theirs and all((path / name / "zarr.json").exists() for name in STORED):
                break
        if time.monotonic() > until:
            raise ValueError(f"the store that process 0 saves in is not seen at {str(path)!r} here, after {patience:g} s: name "
                             "a folder on a file system that all processes share")
        time.sleep(0.2)
    return _opened(path, root)


def read_specification(path: str | os.PathLike) -> dict[str, Any]:
    """The specification of the grid in a store."""
    return read_root(Path(path)).specification


def now() -> str:
    """So finely that no two stores are begun at the same time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _checksum(values: dict[str, np.ndarray]) -> int:
    total = 0
    for name in VARIABLES:
        total = zlib.crc32(values[name].tobytes(), total)
    return total
