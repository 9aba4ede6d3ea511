"""The labelled result of a grid, in memory and on disk.

A grid is computed in chunks. A chunk is one policy on a group of consecutive bandits, with a range of seeds and all budgets.
Usually a group is one bandit. If there are many bandits with few seeds each, a group has several, so that the store has fewer
and larger files. All groups have the same number of bandits, and a store keeps that number.

On disk the grid is one zarr store, which `xarray.open_zarr` reads, too. The files of a chunk are written and read here, by
zarr's rules: they are many and small, and zarr is slow with such files. Every file is replaced as a whole. A chunk counts as
saved once its checksum is there. The checksum is written last and covers all values of the chunk. So whatever is missing or
damaged is found, and computed again. The root of the store holds the specification. Everything but the numbers follows from
it, and is written again if it is lost.
"""

import contextlib
import math
import os
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from bts_jax import files
from bts_jax.sweeps import specification
from bts_jax.sweeps.accessor import Specification
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
    labels_of,
    on_disk,
    replace,
    set_aside,
    unwritable,
)

FREE = 2**28  # bytes of results that are always read into memory
EXPANSION = 1000  # beyond that, at most so many for each byte in the store


class Chunk(NamedTuple):
    """A part of the grid that is computed, and counts as done, as a whole."""

    policy: int
    bandit: int  # which group of bandits: the number of the bandit, where a group is one bandit
    part: int  # which range of seeds


class Results:
    """The numbers of a grid: in a store if there is one, and in memory otherwise.

    Args:
        attributes: of the Dataset; "specification" is JSON, from which the labels follow.
        chunk_size: how many seeds a chunk has; the last range may have fewer.
        path: of the store, which exists.
        group: how many consecutive bandits a chunk has; it divides the number of bandits.
        labels: the coordinates, if they are known already: a long specification takes seconds to parse.
        described: the specification, parsed, likewise.

    A sweep may ask for a part of what the store has (`ask`), and the store may have sources: earlier grids of it, whose runs
    are copied instead of played (`growth`).
    """

    def __init__(
        self, attributes: dict[str, Any], chunk_size: int, path: Path | None = None, group: int = 1,
        labels: dict[str, tuple] | None = None, described: dict[str, Any] | None = None,
    ):
        self.attributes, self.chunk_size, self.path, self.group = attributes, chunk_size, path, group
        self.specification = specification.parse(attributes["specification"]) if described is None else described
        self.labels = labels_of(self.specification) if labels is None else labels
        self.sizes = axis_sizes(self.labels, chunk_size, group)
        self.done = np.zeros([self.sizes[axis] for axis in ("policy", "group", "range")], bool)
        self.asked = np.ones(self.done.shape, bool)
        self._covered = self.done  # by this store or its sources
        self.sources: list[Source] = []
        self.stamp: Any = None if path is None else _stamp(path)
        self._part: Part | None = None
        self._gaps: dict[Chunk, Gap] = {}
        self._kept = self._blank() if path is None else None

    @property
    def all_chunks(self) -> list[Chunk]:
        return [Chunk(*map(int, place)) for place in np.ndindex(self.done.shape)]

    @property
    def chunks(self) -> list[Chunk]:
        """Those that are asked for."""
        return [chunk for chunk in self.all_chunks if self.asked[chunk]]

    @property
    def missing(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks if not self.done[chunk]]

    def ask(self, attributes: dict[str, Any]) -> None:
        """Limits the results to those of a sweep with these attributes, which the grid includes."""
        self._part = Part(self.specification, attributes, specification.parse(attributes["specification"]))
        self.asked[:] = False
        groups = sorted({place // self.group for place in self._part.bandits})
        self.asked[np.ix_(self._part.policies, groups, range(-(-self._part.seeds // self.chunk_size)))] = True

    def asks_for_whole_groups(self) -> bool:
        return self.group == 1 or self._part is None or len(self._part.bandits) == self.sizes["bandit"]

    def names(self, chunk: Chunk) -> tuple[str, str]:
        """The policy of a chunk, and its first bandit."""
        return list(self.specification["policies"])[chunk.policy], list(self.specification["bandits"])[self.bandits(chunk)[0]]

    def add_source(self, results: "Results", within: "Results | None" = None) -> None:
        self.sources.append(Source(self, results, within))

    def known(self, chunk: Chunk, sources: "list[Source] | None" = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What the sources have of a chunk, and where: arrays as for `put`, and a mask [bandit, budget, seed]."""
        seeds = self.seeds(chunk)
        values = {name: self._blank_block(name)[:, :, : seeds.stop - seeds.start] for name in VARIABLES}
        mask = np.zeros(values["rounds"].shape, bool)
        for source in self.sources if sources is None else sources:
            source.copy(chunk, values, mask)
        return values, mask

    def is_current(self) -> bool:
        """Whether the store still has the root that it was opened with."""
        return self.stamp is None or self.stamp == _stamp(self.path)

    def check_current(self) -> None:
        """Raises a `ValueError` if another process has given the store another grid."""
        if not self.is_current():
            raise ValueError(f"the store {str(self.path)!r} has got another grid from another process: start the same "
                             "sweep again, which goes on there")

    def adopt(self, chunk: Chunk) -> bool:
        """Whether the sources have all of a chunk; if so, it is put."""
        if not self.sources:
            return False
        values, mask = self.known(chunk)
        if mask.all():
            self.put(chunk, values)
        return bool(mask.all())

    def gap(self, chunk: Chunk) -> "Gap":
        """What of a chunk no source has."""
        seeds = np.arange(self.sizes["seed"])[self.seeds(chunk)]
        if not self.sources:
            return Gap(seeds, tuple(range(self.sizes["budget"])))
        if chunk not in self._gaps:
            missing = ~self.known(chunk)[1]
            self._gaps[chunk] = Gap(seeds[missing.any((0, 1))], tuple(map(int, np.flatnonzero(missing.any((0, 2))))))
        return self._gaps[chunk]

    def put_gap(self, chunk: Chunk, gap: "Gap", values: dict[str, np.ndarray]) -> None:
        """Keeps what was missing of a chunk, with what the sources have of it."""
        if not self.sources:
            return self.put(chunk, values)
        whole, mask = self.known(chunk)
        rest = np.ones(mask.shape, bool)
        rest[:, np.array(gap.budgets)[:, None], gap.seeds - self.seeds(chunk).start] = False
        if not mask[rest].all():  # another process has completed the store, and removed the sources
            saved = self.read(chunk)
            if saved is None:
                raise ValueError(f"the store {str(self.path)!r} was changed by another process: start the same sweep again")
            return self._keep(chunk, saved, self._kept)
        for name, value in values.items():
            whole[name][:, np.array(gap.budgets)[:, None], gap.seeds - self.seeds(chunk).start] = value
        return self.put(chunk, whole)

    @property
    def runs(self) -> int:
        """How many runs a chunk has with each budget; with the last range of seeds it may have fewer."""
        return self.group * self.chunk_size

    def bandits(self, chunk: Chunk) -> range:
        return range(chunk.bandit * self.group, (chunk.bandit + 1) * self.group)

    def seeds(self, chunk: Chunk) -> slice:
        return slice(chunk.part * self.chunk_size, min((chunk.part + 1) * self.chunk_size, self.sizes["seed"]))

    def put(self, chunk: Chunk, values: dict[str, np.ndarray]) -> None:
        """Keeps the results of a chunk, every array [bandit, budget, seed] or [bandit, budget, seed, arm].

        The axis `bandit` may be left out where a group is one bandit.
        """
        values = {name: np.ascontiguousarray(values[name], dtype) for name, (dtype, _) in VARIABLES.items()}
        if self.group == 1:
            values = {name: value if value.ndim == len(axes_of(name)) - 1 else value[None] for name, value in values.items()}
        # There are many kinds of NaN, of which the store gives back one.
        values = {name: np.where(value == value, value, value.dtype.type(fill)) if value.dtype.kind == "f" else value
                  for (name, value), (_, fill) in zip(values.items(), VARIABLES.values(), strict=True)}
        if self.path is not None:
            self.check_current()
            try:
                for name, value in values.items():
                    self._write(name, chunk, value)
                self._write("checksum", chunk, np.array([[_checksum(values)]]))
            except OSError as error:
                raise unwritable(self.path, error) from error
        self._keep(chunk, values, self._kept)

    def load(self, into: dict[str, np.ndarray] | None = None, chunks: list[Chunk] | None = None) -> None:
        """Finds out what the store has, complete and undamaged; and reads it into these arrays, if there are any.

        Of `chunks` alone, if they are given: others then count as missing.
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

    def read(self, chunk: Chunk) -> dict[str, np.ndarray] | None:
        """What the store has of a chunk, if it is complete and undamaged. [bandit, budget, seed] or [..., arm]"""
        seeds = self.seeds(chunk)
        with contextlib.suppress(Exception):  # something is damaged, which makes its decoder raise whatever it likes
            checksum = self._read("checksum", chunk).item()
            values = {name: self._read(name, chunk)[:, :, : seeds.stop - seeds.start] for name in VARIABLES}
            if checksum == _checksum(values):
                return values
        return None

    def _write(self, name: str, chunk: Chunk, value: np.ndarray) -> None:
        """Writes a file of the store: the part of an array that belongs to one chunk alone."""
        file, blank = self._file(name, chunk), self._blank_block(name)
        block = blank.copy()
        block[tuple(map(slice, value.shape))] = value
        if np.array_equal(block, blank, equal_nan=block.dtype.kind == "f"):
            set_aside(file, file.is_dir())
            file.unlink(missing_ok=True)  # as zarr has it
        else:
            replace(file, ZSTD.encode(block.astype(block.dtype.newbyteorder("<"))))

    def _read(self, name: str, chunk: Chunk) -> np.ndarray:
        """What is in such a file, of the last range of seeds too as many as of the others."""
        block = self._blank_block(name)
        with contextlib.suppress(FileNotFoundError):
            content = files.read(self._file(name, chunk), block.nbytes + block.nbytes // 64 + 1024)
            little = block.astype(block.dtype.newbyteorder("<"))
            ZSTD.decode(content, out=little)  # a frame that has more than that is refused before it takes memory
            block = little.astype(block.dtype, copy=False)
        return block

    def _blank_block(self, name: str) -> np.ndarray:
        dtype, fill = STORED[name]
        return np.full(chunk_shape(name, self.sizes, self.chunk_size, self.group)[1:], fill, dtype)

    def dataset(self) -> xr.Dataset:
        """What there is; where a chunk is missing, NaN, or 0 for whole numbers."""
        arrays = self._kept
        if arrays is None:
            self.load(arrays := self._blank())
        labels, attributes = self.labels, self.attributes
        if self._part is not None:
            arrays, labels, attributes = self._part.of(arrays), self._part.labels, {**attributes, **self._part.attributes}
        variables = {name: (axes_of(name), array, {"long_name": EXPLAINED[name]}) for name, array in arrays.items()}
        return xr.Dataset(variables, labels, _shown(attributes, self._state(int((self.asked & ~self._covered).sum()))))

    def lazy(self) -> xr.Dataset:
        """What there is, as `dataset` has it, read when it is computed with. Nothing is checked."""
        stored = xr.open_zarr(self.path, consolidated=False, chunks={})
        variables = {name: (axes_of(name), stored[name].data, {"long_name": EXPLAINED[name]}) for name in VARIABLES}
        return xr.Dataset(variables, self.labels, _shown(self.attributes, self._state(self.done.size - self.saved())))

    def _state(self, missing: int) -> str:
        total = int(self.asked.sum())
        what = "not complete" if self.sources else "missing"
        return f"incomplete: {missing} of {total} chunks are {what} (regret NaN)" if missing else "complete"

    def saved(self) -> int:
        """How many of the requested chunks the store has, by its list of files. Damaged ones count, too."""
        if self.path is None:
            return int(self.done[self.asked].sum())
        return sum(bool(self.asked[chunk]) for chunk in self._there())

    def _there(self) -> Iterator[Chunk]:
        """The chunks of which the store has a checksum, by its list of files."""
        with contextlib.suppress(OSError), os.scandir(self.path / "checksum") as entries:  # type: ignore
            for entry in entries:
                if re.fullmatch(r"c(\.(0|[1-9][0-9]{0,9})){3}", entry.name):
                    chunk = Chunk(*map(int, entry.name.split(".")[1:]))
                    if all(place < size for place, size in zip(chunk, self.done.shape, strict=True)):
                        yield chunk

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

    def _place(self, chunk: Chunk) -> tuple:
        bandits = self.bandits(chunk)
        return chunk.policy, slice(bandits.start, bandits.stop), slice(None), self.seeds(chunk)

    def _keep(self, chunk: Chunk, values: dict[str, np.ndarray], into: dict[str, np.ndarray] | None) -> None:
        for name, array in (into or {}).items():
            array[self._place(chunk)] = values[name]
        self.done[chunk] = True

    def _file(self, name: str, chunk: Chunk) -> Path:
        """Where the store has what belongs to a chunk, and to no other."""
        at = {"policy": chunk.policy, "bandit": chunk.bandit, "group": chunk.bandit, "seed": chunk.part, "range": chunk.part}
        places = [at.get(axis, 0) for axis in axes_of(name)]
        return self.path / name / ".".join(map(str, ("c", *places)))  # type: ignore


def _stamp(path: Path | None) -> tuple[int, ...] | None:
    """What tells one root of a store from the next."""
    try:
        status = os.stat(path / "zarr.json")  # type: ignore
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _shown(attributes: dict[str, Any], state: str) -> dict[str, Any]:
    return {**attributes, "specification": Specification(attributes["specification"]), "state": state}


class Gap(NamedTuple):
    """What is missing of a chunk, for each of its bandits."""

    seeds: np.ndarray  # their numbers
    budgets: tuple[int, ...]  # their places


class Part:
    """The part of a grid that a sweep asks for."""

    def __init__(self, whole: dict[str, Any], attributes: dict[str, Any], described: dict[str, Any]):
        self.policies, self.bandits, self.budgets = (
            [place[name] for name in described[axis]]
            for axis in ("policies", "bandits", "budgets") for place in [{name: i for i, name in enumerate(whole[axis])}]
        )
        self.seeds, self.labels = described["seeds"], labels_of(described)
        self.attributes = {name: value for name, value in attributes.items() if name != "created"}

    def of(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        chosen = np.ix_(self.policies, self.bandits, self.budgets, range(self.seeds))
        arms = len(self.labels["arm"][1])
        return {name: array[chosen][..., :arms] if name == "pulls" else array[chosen] for name, array in arrays.items()}


class Source:
    """Results of another grid, for the same runs."""

    def __init__(self, mine: Results, theirs: Results, within: Results | None):
        self.theirs, self.within = theirs, within
        self._mine = mine
        ours, other = mine.specification, theirs.specification
        self._policies, self._bandits = (
            [place[name] if name in place and other[axis][name] == entry else None for name, entry in ours[axis].items()]
            for axis in ("policies", "bandits") for place in [{name: i for i, name in enumerate(other[axis])}]
        )
        place = {budget: i for i, budget in enumerate(other["budgets"])}
        self._budgets = np.array([(i, place[budget]) for i, budget in enumerate(ours["budgets"]) if budget in place], int)
        self._last: tuple[Any, Any] = (None, None)

    def copy(self, chunk: Chunk, values: dict[str, np.ndarray], mask: np.ndarray) -> None:
        """Copies what the source has of a chunk into these arrays, and marks it."""
        theirs, policy, seeds = self.theirs, self._policies[chunk.policy], self._mine.seeds(chunk)
        if policy is None or not len(self._budgets):
            return
        to, of = self._budgets.T
        for row, bandit in enumerate(self._bandits[place] for place in self._mine.bandits(chunk)):
            if bandit is None:
                continue
            group, line = divmod(bandit, theirs.group)
            for part in range(seeds.start // theirs.chunk_size, -(-min(seeds.stop, theirs.sizes["seed"]) // theirs.chunk_size)):
                there = Chunk(policy, group, part)
                found, span = self._read(there), theirs.seeds(there)
                if found is None:
                    continue
                low, high = max(seeds.start, span.start), min(seeds.stop, span.stop)
                here, away = slice(low - seeds.start, high - seeds.start), slice(low - span.start, high - span.start)
                for name, value in values.items():
                    arms = (slice(theirs.sizes["arm"]),) if name == "pulls" else ()
                    value[row][(to, here, *arms)] = found[name][line][of, away]
                mask[row][to, here] = True

    def _read(self, chunk: Chunk) -> dict[str, np.ndarray] | None:
        last = self._last  # two threads may read
        if last[0] != chunk:
            self._last = last = chunk, self.theirs.read(chunk)
        return last[1]


def opened(path: Path, root: Root) -> Results:
    return Results(root.attributes, root.chunk_size, path, root.group, labels_of(root.specification), root.specification)


def now() -> str:
    """So finely that no two stores are begun at the same time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _checksum(values: dict[str, np.ndarray]) -> int:
    total = 0
    for name in VARIABLES:
        total = zlib.crc32(values[name].tobytes(), total)
    return total
