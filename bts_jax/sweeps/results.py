"""The labelled result of a grid, in memory and on disk.

A grid is computed in chunks. A chunk is one policy on a group of consecutive bandits, with a range
of seeds and all budgets. Usually a group is one bandit. If there are many bandits with few seeds
each, a group has several, so that the store has fewer and larger files. All groups have the same
number of bandits, and a store keeps that number.

On disk the grid is one zarr store, which `xarray.open_zarr` reads, too. This module writes and
reads the files of a chunk itself, by zarr's rules: they are many and small, and zarr is slow with
such files. Every file is replaced as a whole. A chunk counts as saved once its checksum is there.
The checksum is written last. It covers all values of the chunk and what the chunk is: its sweep,
policy, bandits and seeds. So chunks that are missing, damaged or copied from elsewhere are
detected, and computed again. The root of the store holds the specification. Everything but the
numbers follows from it, and is written again if it is lost.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import xarray as xr

from bts_jax import files
from bts_jax.sweeps import specification
from bts_jax.sweeps.accessor import Specification
from bts_jax.sweeps.store import (
    AXES,
    EXPLAINED,
    OLD,
    STORED,
    VARIABLES,
    ZSTD,
    Root,
    axes_of,
    axis_sizes,
    chunk_shape,
    format_of,
    labels_of,
    on_disk,
    read,
    real_folder,
    replace,
    seal_of,
    set_aside,
    unwritable,
)

FREE = 2**28  # bytes of results that are always read into memory
EXPANSION = 1000  # beyond that, at most this many bytes for each byte in the store


class Chunk(NamedTuple):
    """A part of the grid that is computed and saved as a whole."""

    policy: int
    bandit: int  # the index of the group of bandits; a group may be one bandit
    part: int  # the index of the range of seeds


class Results:
    """The numbers of a grid, in a store or in memory.

    Args:
        attributes: of the Dataset; "specification" is JSON, from which the labels follow.
        chunk_size: how many seeds a chunk has; the last range may have fewer.
        path: the folder of the store, which exists; without it, results are in memory.
        group: how many consecutive bandits a chunk has; it divides the number of bandits.
        labels: the coordinates, if they are known already: a long specification takes seconds to
            parse.
        described: the parsed specification, if it is known already.
        moving: the folder in which those arrays still are that an interrupted growth has not moved
            to `path`.

    A sweep may ask for a part of what the store has (`ask`). The store may have sources, its
    earlier grids: their runs are copied instead of played (`growth`).
    """

    def __init__(
        self,
        attributes: dict[str, Any],
        chunk_size: int,
        path: Path | None = None,
        group: int = 1,
        labels: dict[str, tuple] | None = None,
        described: dict[str, Any] | None = None,
        moving: Path | None = None,
    ):
        self.attributes, self.chunk_size, self.path, self.group = (
            attributes,
            chunk_size,
            path,
            group,
        )
        self.specification = (
            specification.parse(attributes["specification"]) if described is None else described
        )
        self.labels = labels_of(self.specification) if labels is None else labels
        self.sizes = axis_sizes(self.labels, chunk_size, group)
        self.done = np.zeros([self.sizes[axis] for axis in ("policy", "group", "range")], bool)
        self.asked = np.ones(self.done.shape, bool)
        self._covered = self.done  # by this store or its sources
        self.sources: list[Source] = []
        self.moving = moving
        self.stamp: Any = None if path is None else _stamp(path)
        self._part: Part | None = None
        self._gaps: dict[Chunk, Gap] = {}
        self._kept = self._blank() if path is None else None

    @property
    def all_chunks(self) -> list[Chunk]:
        return [Chunk(*map(int, place)) for place in np.ndindex(self.done.shape)]

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks that the sweep asks for."""
        return [chunk for chunk in self.all_chunks if self.asked[chunk]]

    @property
    def missing(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks if not self.done[chunk]]

    def ask(self, attributes: dict[str, Any]) -> None:
        """Restricts the results to those of a sweep with these attributes, which is a part of the
        grid.
        """
        self._part = Part(
            self.specification, attributes, specification.parse(attributes["specification"])
        )
        self.asked[:] = False
        groups = sorted({place // self.group for place in self._part.bandits})
        self.asked[
            np.ix_(self._part.policies, groups, range(-(-self._part.seeds // self.chunk_size)))
        ] = True

    def asks_for_whole_groups(self) -> bool:
        return (
            self.group == 1 or self._part is None or len(self._part.bandits) == self.sizes["bandit"]
        )

    def names(self, chunk: Chunk) -> tuple[str, str]:
        """The policy of a chunk, and its first bandit."""
        policies, bandits = self._names
        return policies[chunk.policy], bandits[self.bandits(chunk)[0]]

    def add_source(self, results: "Results", within: "Results | None" = None) -> None:
        self.sources.append(Source(self, results, within))

    def known(
        self, chunk: Chunk, sources: "list[Source] | None" = None
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The values of a chunk that the sources have, as for `put`, and a mask of these values
        [bandit, budget, seed].
        """
        seeds = self.seeds(chunk)
        values = {
            name: self._blank_block(name)[:, :, : seeds.stop - seeds.start] for name in VARIABLES
        }
        mask = np.zeros(values["rounds"].shape, bool)
        for source in self.sources if sources is None else sources:
            source.copy(chunk, values, mask)
        return values, mask

    def is_current(self) -> bool:
        """Whether the store still has the root that it was opened with."""
        grown = self.moving is not None and os.path.lexists(self.moving / "zarr.json")
        return self.stamp is None or (self.stamp == _stamp(self.path) and not grown)

    def stamp_root(self) -> None:
        """Notes the root that the store has now; see `is_current`."""
        self.stamp = _stamp(self.path)

    def check_current(self) -> None:
        """Raises a `ValueError` if another process has given the store another grid."""
        if not self.is_current():
            raise ValueError(
                f"the store {str(self.path)!r} has got another grid from another process: start "
                "the same sweep again, to continue with that grid"
            )

    def adopt(self, chunk: Chunk) -> bool:
        """Saves a chunk if the sources have all of it. Returns whether they do."""
        if not self.sources:
            return False
        values, mask = self.known(chunk)
        if mask.all():
            self.put(chunk, values)
        return bool(mask.all())

    def gap(self, chunk: Chunk) -> "Gap":
        """The part of a chunk that no source has."""
        seeds = np.arange(self.sizes["seed"])[self.seeds(chunk)]
        if not self.sources:
            return Gap(seeds, tuple(range(self.sizes["budget"])))
        if chunk not in self._gaps:
            missing = ~self.known(chunk)[1]
            self._gaps[chunk] = Gap(
                seeds[missing.any((0, 1))], tuple(map(int, np.flatnonzero(missing.any((0, 2)))))
            )
        return self._gaps[chunk]

    def put_gap(self, chunk: Chunk, gap: "Gap", values: dict[str, np.ndarray]) -> None:
        """Saves a chunk: the values of the gap, and the rest from the sources."""
        if not self.sources:
            return self.put(chunk, values)
        whole, mask = self.known(chunk)
        rest = np.ones(mask.shape, bool)
        rest[:, np.array(gap.budgets)[:, None], gap.seeds - self.seeds(chunk).start] = False
        if not mask[rest].all():  # another process has completed the store, and removed the sources
            saved = self.read(chunk)
            if saved is None:
                raise ValueError(
                    f"the store {str(self.path)!r} was changed by another process: start the same "
                    "sweep again"
                )
            return self._keep(chunk, saved, self._kept)
        for name, value in values.items():
            whole[name][:, np.array(gap.budgets)[:, None], gap.seeds - self.seeds(chunk).start] = (
                value
            )
        return self.put(chunk, whole)

    @property
    def runs(self) -> int:
        """The number of runs of a chunk with each budget. A chunk of the last range of seeds may
        have fewer.
        """
        return self.group * self.chunk_size

    def bandits(self, chunk: Chunk) -> range:
        return range(chunk.bandit * self.group, (chunk.bandit + 1) * self.group)

    def seeds(self, chunk: Chunk) -> slice:
        return slice(
            chunk.part * self.chunk_size,
            min((chunk.part + 1) * self.chunk_size, self.sizes["seed"]),
        )

    def put(self, chunk: Chunk, values: dict[str, np.ndarray]) -> None:
        """Saves the results of a chunk, every array [bandit, budget, seed], [..., arm] or [...,
        resource].

        The axis `bandit` may be left out if a group is one bandit.
        """
        values = {
            name: np.ascontiguousarray(values[name], dtype)
            for name, (dtype, _) in VARIABLES.items()
        }
        if self.group == 1:
            values = {
                name: value if value.ndim == len(axes_of(name, self.sizes)) - 1 else value[None]
                for name, value in values.items()
            }
        # NaN has many bit patterns, and the store returns one of them.
        values = {
            name: np.where(value == value, value, value.dtype.type(fill))
            if value.dtype.kind == "f"
            else value
            for (name, value), (_, fill) in zip(values.items(), VARIABLES.values(), strict=True)
        }
        if self.path is not None:
            self.check_current()
            try:
                for name, value in values.items():
                    self._write(name, chunk, value)
                self._write("checksum", chunk, np.array([[self._checksum(chunk, values)]]))
            except OSError as error:
                raise unwritable(self.path, error) from error
        self._keep(chunk, values, self._kept)

    def load(
        self, into: dict[str, np.ndarray] | None = None, chunks: list[Chunk] | None = None
    ) -> None:
        """Finds the chunks that the store has, complete and undamaged. Reads them into the arrays
        `into`, if given.

        If `chunks` are given, only these are read, and the others count as missing.
        """
        if self.path is None:
            return
        self.done[:] = False
        chosen = None if chunks is None else set(chunks)
        for chunk in self._there():
            if chosen is not None and chunk not in chosen:
                continue
            values = self.read(chunk)
            if values is not None:
                self._keep(chunk, values, into)
        self._covered = self.done.copy()
        if into and self.sources:
            for chunk in self.all_chunks:
                if not self.done[chunk]:
                    values, mask = self.known(chunk)
                    self._covered[chunk] = mask.all()
                    for name, array in into.items():
                        array[self._place(chunk)][mask] = values[name][mask]

    def has_any(self) -> bool:
        """Whether the store has any chunk that is complete and undamaged."""
        return any(self.read(chunk) is not None for chunk in self._there())

    def read(self, chunk: Chunk) -> dict[str, np.ndarray] | None:
        """Reads a chunk: arrays [bandit, budget, seed], [..., arm] or [..., resource]. None unless
        complete and undamaged.
        """
        seeds = self.seeds(chunk)
        with contextlib.suppress(Exception):  # a decoder may raise anything if a file is damaged
            checksum = self._read("checksum", chunk).item()
            values = {
                name: self._read(name, chunk)[:, :, : seeds.stop - seeds.start]
                for name in VARIABLES
            }
            if checksum == self._checksum(chunk, values):
                return values
        return None

    def _checksum(self, chunk: Chunk, values: dict[str, np.ndarray]) -> int:
        """The checksum of a chunk: of what it is, and of its values."""
        if format_of(self.attributes) == 1:
            total = 0
            for name in VARIABLES:
                total = zlib.crc32(values[name].tobytes(), total)
            return total
        policies, bandits = self._names
        identity = [
            self._seal,
            policies[chunk.policy],
            [bandits[place] for place in self.bandits(chunk)],
            int(chunk.part),
        ]
        digest = hashlib.blake2b(json.dumps(identity).encode(), digest_size=8)
        for name in VARIABLES:
            digest.update(values[name].tobytes())
        return int.from_bytes(digest.digest(), "little") >> 1  # an int64 that is not negative

    @cached_property
    def _seal(self) -> int:
        return seal_of(self.attributes, self.chunk_size, self.group)

    @cached_property
    def _names(self) -> tuple[list[str], list[str]]:
        """The names of all policies and of all bandits."""
        return list(self.specification["policies"]), list(self.specification["bandits"])

    def _write(self, name: str, chunk: Chunk, value: np.ndarray) -> None:
        """Writes one file of the store: the part of an array that belongs to this chunk."""
        path, blank = cast(Path, self.path), self._blank_block(name)
        block = blank.copy()
        block[tuple(map(slice, value.shape))] = value
        if np.array_equal(block, blank, equal_nan=block.dtype.kind == "f"):
            file = real_folder(path / name) / self._file(name, chunk)
            set_aside(file, file.is_dir())
            file.unlink(missing_ok=True)  # as in zarr, a missing file means empty
        else:
            replace(
                path,
                f"{name}/{self._file(name, chunk)}",
                ZSTD.encode(block.astype(block.dtype.newbyteorder("<"))),
            )

    def _read(self, name: str, chunk: Chunk) -> np.ndarray:
        """Reads such a file. The last range of seeds is padded to the length of the others."""
        block = self._blank_block(name)
        with contextlib.suppress(FileNotFoundError):
            content = self._content(
                f"{name}/{self._file(name, chunk)}", block.nbytes + block.nbytes // 64 + 1024
            )
            little = block.astype(block.dtype.newbyteorder("<"))
            ZSTD.decode(content, out=little)  # a longer frame is refused before it takes memory
            block = little.astype(block.dtype, copy=False)
        return block

    def _content(self, name: str, most: int) -> bytes:
        """Reads a file of the store. A growth that is under way moves whole arrays from one folder
        to the other.
        """
        if self.moving is not None:
            with contextlib.suppress(FileNotFoundError):
                return read(self.moving, name, most)
        return read(cast(Path, self.path), name, most)

    def _blank_block(self, name: str) -> np.ndarray:
        dtype, fill = STORED[name]
        return np.full(chunk_shape(name, self.sizes, self.chunk_size, self.group)[1:], fill, dtype)

    def dataset(self) -> xr.Dataset:
        """The Dataset of the results so far. Where a chunk is missing, it has NaN, or 0 for whole
        numbers.
        """
        arrays = self._kept
        if arrays is None:
            self.load(arrays := self._blank())
        labels, attributes = self.labels, self.attributes
        if self._part is not None:
            arrays, labels, attributes = (
                self._part.of(arrays),
                self._part.labels,
                {**attributes, **self._part.attributes},
            )
        variables = {
            name: (axes_of(name, labels), array, {"long_name": EXPLAINED[name]})
            for name, array in arrays.items()
        }
        return xr.Dataset(
            variables,
            labels,
            _shown(attributes, self._state(int((self.asked & ~self._covered).sum()))),
        )

    def lazy(self) -> xr.Dataset:
        """The Dataset as in `dataset`, with arrays that are read when they are used. Of the files
        only the kind is checked.
        """
        for name in VARIABLES:
            if not all(entry.is_file(follow_symlinks=False) for entry in self._entries(name)):
                raise ValueError(f"{name} has a link or another file that is not a regular one")
        stored = xr.open_zarr(self.path, consolidated=False, chunks={})
        variables = {
            name: (axes_of(name, self.sizes), stored[name].data, {"long_name": EXPLAINED[name]})
            for name in VARIABLES
        }
        return xr.Dataset(
            variables,
            self.labels,
            _shown(self.attributes, self._state(self.done.size - self.saved())),
        )

    def _state(self, missing: int) -> str:
        total = int(self.asked.sum())
        what = "not complete" if self.sources else "missing"
        return (
            f"incomplete: {missing} of {total} chunks are {what} (regret NaN)"
            if missing
            else "complete"
        )

    def saved(self) -> int:
        """How many of the requested chunks the store has, by its list of files. Damaged ones count,
        too.
        """
        if self.path is None:
            return int(self.done[self.asked].sum())
        return sum(bool(self.asked[chunk]) for chunk in self._there())

    def _there(self) -> Iterator[Chunk]:
        """The chunks of which the store has a checksum, by its list of files."""
        for entry in self._entries("checksum"):
            if re.fullmatch(r"c(\.(0|[1-9][0-9]{0,9})){3}", entry.name):
                chunk = Chunk(*map(int, entry.name.split(".")[1:]))
                if all(place < size for place, size in zip(chunk, self.done.shape, strict=True)):
                    yield chunk

    def _entries(self, name: str) -> Iterator[os.DirEntry]:
        """The files of an array, if there is a folder for them."""
        for path in (self.moving, self.path):
            if path is not None and files.is_real_folder(path / name):
                with contextlib.suppress(OSError), os.scandir(path / name) as entries:
                    yield from entries

    def check_size(self) -> None:
        """Raises if the results would take much more memory than the files of the store can
        contain.
        """
        runs = math.prod(self.sizes[axis] for axis in AXES)
        needed = runs * specification.bytes_of_a_run(
            self.sizes["arm"], self.sizes.get("resource", 1)
        )
        if needed <= FREE:
            return
        found = sum(
            on_disk(Path(entry))
            for name in VARIABLES
            for entry in self._entries(name)
            if entry.name.startswith("c.")
        )
        if needed > FREE + EXPANSION * found:
            raise ValueError(
                f"the results in {str(self.path)!r} would take {needed:,} bytes of memory, and its "
                f"files have {found:,} bytes: read it in parts, with xarray.open_zarr"
            )

    def _blank(self) -> dict[str, np.ndarray]:
        return {
            name: np.full([self.sizes[axis] for axis in axes_of(name, self.sizes)], fill, dtype)
            for name, (dtype, fill) in VARIABLES.items()
        }

    def _place(self, chunk: Chunk) -> tuple:
        bandits = self.bandits(chunk)
        return chunk.policy, slice(bandits.start, bandits.stop), slice(None), self.seeds(chunk)

    def _keep(
        self, chunk: Chunk, values: dict[str, np.ndarray], into: dict[str, np.ndarray] | None
    ) -> None:
        for name, array in (into or {}).items():
            array[self._place(chunk)] = values[name]
        self.done[chunk] = True

    def chunk_files(self) -> Iterator[tuple[str, Path]]:
        """All files with numbers, each with the name of its array. Links and the like are left
        out.
        """
        for name in STORED:
            for entry in self._entries(name):
                if entry.name.startswith("c.") and entry.is_file(follow_symlinks=False):
                    yield name, Path(entry)

    def _file(self, name: str, chunk: Chunk) -> str:
        """The name of the file that has the part of an array that belongs to this chunk."""
        at = {
            "policy": chunk.policy,
            "bandit": chunk.bandit,
            "group": chunk.bandit,
            "seed": chunk.part,
            "range": chunk.part,
        }
        return ".".join(map(str, ("c", *(at.get(axis, 0) for axis in axes_of(name, self.sizes)))))


def _stamp(path: Path | None) -> tuple[int, ...] | None:
    """Identifies the root of a store, to detect that it was replaced."""
    try:
        status = os.stat(path / "zarr.json")  # type: ignore
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _shown(attributes: dict[str, Any], state: str) -> dict[str, Any]:
    note = {"note": OLD} if format_of(attributes) == 1 else {}
    return {
        **attributes,
        "specification": Specification(attributes["specification"]),
        "state": state,
        **note,
    }


class Gap(NamedTuple):
    """The missing part of a chunk, the same for each of its bandits."""

    seeds: np.ndarray  # the missing seeds
    budgets: tuple[int, ...]  # the indices of the missing budgets


class Part:
    """The part of a grid that a sweep asks for."""

    def __init__(
        self, whole: dict[str, Any], attributes: dict[str, Any], described: dict[str, Any]
    ):
        self.policies, self.bandits, self.budgets = (
            [place[name] for name in described[axis]]
            for axis in ("policies", "bandits", "budgets")
            for place in [{name: i for i, name in enumerate(whole[axis])}]
        )
        self.seeds, self.labels = described["seeds"], labels_of(described)
        self.attributes = {name: value for name, value in attributes.items() if name != "created"}

    def of(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        chosen = np.ix_(self.policies, self.bandits, self.budgets, range(self.seeds))
        return {
            name: narrowed(name, array[chosen], self.labels, 4) for name, array in arrays.items()
        }


def narrowed(name: str, array: np.ndarray, labels: dict[str, tuple], axes: int) -> np.ndarray:
    """An array of a larger grid without the arms and resources that this grid lacks. They are after
    the first `axes` axes.
    """
    if name == "pulls":
        return array[..., : len(labels["arm"][1])]
    if name == "cost" and array.ndim > axes:
        return array[..., : len(labels["resource"][1])] if "resource" in labels else array[..., 0]
    return array


class Source:
    """Results of another grid that has some of the same runs."""

    def __init__(self, mine: Results, theirs: Results, within: Results | None):
        self.theirs, self.within = theirs, within
        self._mine = mine
        ours, other = mine.specification, theirs.specification
        self._policies, self._bandits = (
            [
                place[name] if name in place and other[axis][name] == entry else None
                for name, entry in ours[axis].items()
            ]
            for axis in ("policies", "bandits")
            for place in [{name: i for i, name in enumerate(other[axis])}]
        )
        place = {budget: i for i, budget in enumerate(other["budgets"])}
        self._budgets = np.array(
            [(i, place[budget]) for i, budget in enumerate(ours["budgets"]) if budget in place], int
        )
        self._last: tuple[Any, Any] = (None, None)

    def copy(self, chunk: Chunk, values: dict[str, np.ndarray], mask: np.ndarray) -> None:
        """Copies what the source has of a chunk into these arrays, and marks it in the mask."""
        theirs, policy, seeds = self.theirs, self._policies[chunk.policy], self._mine.seeds(chunk)
        if policy is None or not len(self._budgets):
            return
        to, of = self._budgets.T
        for row, bandit in enumerate(self._bandits[place] for place in self._mine.bandits(chunk)):
            if bandit is None:
                continue
            group, line = divmod(bandit, theirs.group)
            for part in range(
                seeds.start // theirs.chunk_size,
                -(-min(seeds.stop, theirs.sizes["seed"]) // theirs.chunk_size),
            ):
                there = Chunk(policy, group, part)
                found, span = self._read(there), theirs.seeds(there)
                if found is None:
                    continue
                low, high = max(seeds.start, span.start), min(seeds.stop, span.stop)
                here, away = (
                    slice(low - seeds.start, high - seeds.start),
                    slice(low - span.start, high - span.start),
                )
                for name, value in values.items():
                    known = narrowed(name, found[name][line][of, away], self._mine.labels, 2)
                    more = known.shape[2:]
                    # A cost without resources in a grid that has some.
                    if not more and value.ndim > 3:
                        known, more = known[..., None], (1,)
                    value[row][(to, here, *map(slice, more))] = known
                mask[row][to, here] = True

    def _read(self, chunk: Chunk) -> dict[str, np.ndarray] | None:
        last = self._last  # two threads may read
        if last[0] != chunk:
            self._last = last = chunk, self.theirs.read(chunk)
        return last[1]


def opened(path: Path, root: Root, moving: Path | None = None) -> Results:
    labels = labels_of(root.specification)
    return Results(
        root.attributes, root.chunk_size, path, root.group, labels, root.specification, moving
    )


def now() -> str:
    """The current time as text, to the microsecond, so that no two stores have the same."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
