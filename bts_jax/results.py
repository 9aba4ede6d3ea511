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
import zarr
from numcodecs.zstd import Zstd
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

from bts_jax import files, specification
from bts_jax.text import shown

AXES = ("policy", "bandit", "budget", "seed")
# What is stored, its type, and what stands where it is missing. `pulls` has the arms as a further axis.
VARIABLES = {
    "reward": (np.float32, np.nan),
    "cost": (np.float32, np.nan),
    "rounds": (np.int32, 0),
    "truncated": (np.bool_, False),
    "pulls": (np.int32, 0),
    "regret": (np.float64, np.nan),
    "pseudo_regret": (np.float64, np.nan),
}
EXPLAINED = {
    "reward": "reward earned",
    "cost": "cost paid, at most the budget",
    "rounds": "pulls of all arms",
    "truncated": "the limit of rounds came before the budget's end",
    "pulls": "pulls of each arm",
    "regret": "reward that always pulling the best arm would have earned more",
    "pseudo_regret": "expected regret of the arms that were pulled",
}
FREE = 2**28  # bytes of results that are always read into memory
EXPANSION = 1000  # beyond that, at most so many for each byte in the store
_STORED = {**VARIABLES, "checksum": (np.int64, -1)}  # all arrays of the store, of which each unit has a chunk
_ZSTD = Zstd(level=1)


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
        self.labels = _labels(specification.parse(attributes["specification"])) if labels is None else labels
        self.sizes = _sizes(self.labels, chunk, group)
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
            values = {name: value if value.ndim == len(_axes(name)) - 1 else value[None] for name, value in values.items()}
        # There are many kinds of NaN, of which the store gives back one.
        values = {name: np.where(value == value, value, value.dtype.type(fill)) if value.dtype.kind == "f" else value
                  for (name, value), (_, fill) in zip(values.items(), VARIABLES.values(), strict=True)}
        if self.path is not None:
            try:
                for name, value in values.items():
                    self._write(name, unit, value)
                self._write("checksum", unit, np.array([[_checksum(values)]]))
            except OSError as error:
                raise _unwritable(self.path, error) from error
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
            _set_aside(file, file.is_dir())
            file.unlink(missing_ok=True)  # as zarr has it
        else:
            _replace(file, _ZSTD.encode(chunk.astype(chunk.dtype.newbyteorder("<"))))

    def _read(self, name: str, unit: Unit) -> np.ndarray:
        """What is in such a file, of the last range of seeds too as many as of the others."""
        chunk = self._blank_chunk(name)
        with contextlib.suppress(FileNotFoundError):
            content = files.read(self._file(name, unit), chunk.nbytes + chunk.nbytes // 64 + 1024)
            little = chunk.astype(chunk.dtype.newbyteorder("<"))
            _ZSTD.decode(content, out=little)  # a frame that has more than that is refused before it takes memory
            chunk = little.astype(chunk.dtype, copy=False)
        return chunk

    def _blank_chunk(self, name: str) -> np.ndarray:
        dtype, fill = _STORED[name]
        return np.full(_chunk(name, self.sizes, self.chunk, self.group)[1:], fill, dtype)

    def dataset(self) -> xr.Dataset:
        """What there is; where a unit is missing, NaN, or 0 for whole numbers."""
        arrays = self._kept
        if arrays is None:
            self.load(arrays := self._blank())
        variables = {name: (_axes(name), array, {"long_name": EXPLAINED[name]}) for name, array in arrays.items()}
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
        found = sum(_on_disk(file) for name in VARIABLES for file in (self.path / name).glob("c.*"))  # type: ignore
        if needed > FREE + EXPANSION * found:
            raise ValueError(f"the results in {str(self.path)!r} would take {needed:,} bytes of memory, and its files have "
                             f"{found:,} bytes: read it in parts, with xarray.open_zarr")

    def _blank(self) -> dict[str, np.ndarray]:
        return {name: np.full([self.sizes[axis] for axis in _axes(name)], fill, dtype)
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
        places = [at.get(axis, 0) for axis in _axes(name)]
        return self.path / name / ".".join(map(str, ("c", *places)))  # type: ignore


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
    results = _root(path).results(path)
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
    if _is_empty(path):
        described = specification.parse(attributes["specification"])
        specification.check(described, chunk, group)
        try:
            _create(path, attributes, chunk, group, described)
        except OSError as error:
            raise _unwritable(path, error) from error
    root = _root(path)  # another process may have been faster to make it
    _compare(path, root, attributes)
    results = root.results(path)
    _mend(path, results)
    _tidy(path)
    results.load(units=mine(results))
    if results.missing and not os.access(path, os.W_OK):
        raise _unwritable(path, PermissionError(13, "Permission denied"))
    return results


def join(attributes: dict[str, Any], path: str | os.PathLike, theirs: dict[str, Any], patience: float) -> Results:
    """The results that another process has begun, of which `theirs` are the attributes, in the same store.

    Waits until the store is seen here too, at most `patience` seconds. What is done in it is for that process to tell.
    """
    texts = theirs["specification"], attributes["specification"]
    differences = "" if texts[0] == texts[1] else _told(json.loads(texts[0]), json.loads(texts[1]), "for process 0", "here")
    if differences:
        raise ValueError(f"process 0 has begun another sweep than this one ({differences}): give all processes the same file, "
                         "and all machines the same versions of bts_jax and jax and the same kind of devices")
    path, until = Path(path), time.monotonic() + patience
    while True:
        with contextlib.suppress(ValueError):
            root = _root(path)
            if root.attributes == theirs and all((path / name / "zarr.json").exists() for name in _STORED):
                break
        if time.monotonic() > until:
            raise ValueError(f"the store that process 0 saves in is not seen at {str(path)!r} here, after {patience:g} s: name "
                             "a folder on a file system that all processes share")
        time.sleep(0.2)
    return root.results(path)


def read_specification(path: str | os.PathLike) -> dict[str, Any]:
    """The specification of the grid in a store."""
    return _root(Path(path)).specification


def now() -> str:
    """So finely that no two stores are begun at the same time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _labels(described: dict[str, Any]) -> dict[str, tuple]:
    """The coordinates that a specification implies."""
    policies, bandits = described["policies"], described["bandits"]
    num_arms = [len(bandit["reward_mean"]) for bandit in bandits.values()]

    def padded(name: str) -> np.ndarray:
        means = np.full((len(bandits), max(num_arms)), np.nan)
        for row, bandit in zip(means, bandits.values(), strict=True):
            row[: len(bandit[name])] = bandit[name]
        return means

    return {
        "policy": ("policy", _texts(policies)),
        "bandit": ("bandit", _texts(bandits)),
        "budget": ("budget", np.array(described["budgets"], np.float64)),
        "seed": ("seed", np.arange(described["seeds"])),
        "arm": ("arm", np.arange(max(num_arms))),
        "told": ("policy", _texts(", ".join(policy["told"]) or "nothing" for policy in policies.values())),
        "family": ("bandit", _texts(bandit["class"] for bandit in bandits.values())),
        "num_arms": ("bandit", np.array(num_arms)),
        "reward_mean": (("bandit", "arm"), padded("reward_mean")),
        "cost_mean": (("bandit", "arm"), padded("cost_mean")),
    }


def _texts(values: Any) -> np.ndarray:
    return np.array(list(values), str)


def _axes(name: str) -> tuple[str, ...]:
    return {"pulls": (*AXES, "arm"), "checksum": ("policy", "group", "range")}.get(name, AXES)


def _sizes(labels: dict[str, tuple], chunk: int, group: int) -> dict[str, int]:
    """The lengths of all axes."""
    sizes = {axis: len(labels[axis][1]) for axis in (*AXES, "arm")}
    return {**sizes, "group": sizes["bandit"] // group, "range": -(-sizes["seed"] // chunk)}


def _chunk(name: str, sizes: dict[str, int], seeds: int, bandits: int) -> tuple[int, ...]:
    """The shape of what a unit of so many seeds and bandits has of an array."""
    of_a_unit = {**sizes, "policy": 1, "bandit": bandits, "seed": seeds, "group": 1, "range": 1}
    return tuple(of_a_unit[axis] for axis in _axes(name))


def _checksum(values: dict[str, np.ndarray]) -> int:
    total = 0
    for name in VARIABLES:
        total = zlib.crc32(values[name].tobytes(), total)
    return total


def _seal(attributes: dict[str, Any], chunk: int, group: int = 1) -> int:
    """What shows that the root of a store is as it was written. Where a group is one bandit, the root does not mention it."""
    sizes = f"{chunk}" if group == 1 else f"{chunk} {group}"
    return zlib.crc32(f"{sizes} {attributes['specification']}".encode())


def _root_file(attributes: dict[str, Any], chunk: int, group: int, labels: dict[str, tuple]) -> bytes:
    """The root of a store, which says what the store is."""
    files: dict[str, Any] = {}
    others = " ".join(name for name, (axes, _) in labels.items() if name != axes)
    sizes = {"chunk": chunk, **({} if group == 1 else {"group": group})}
    root = {**attributes, **sizes, "seal": _seal(attributes, chunk, group), "coordinates": others}
    zarr.create_group(MemoryStore(files), attributes=root)
    return files["zarr.json"].to_bytes()


def _frame(labels: dict[str, tuple], chunk: int, bandits: int) -> dict[str, bytes]:
    """All files of an empty store but its root, by name. A unit has so many seeds and bandits."""
    files: dict[str, Any] = {}
    group = zarr.create_group(MemoryStore(files))
    for name, (axes, values) in labels.items():
        text = values.dtype.kind == "U"
        array = group.create_array(name, shape=values.shape, dtype="str" if text else values.dtype, compressors=None,
                                   dimension_names=[axes] if isinstance(axes, str) else axes)
        array[...] = values.astype(object) if text else values
    sizes = _sizes(labels, chunk, bandits)
    for name, (dtype, fill) in _STORED.items():
        group.create_array(
            name,
            shape=[sizes[axis] for axis in _axes(name)],
            chunks=_chunk(name, sizes, chunk, bandits),
            dtype=dtype,
            fill_value=fill,
            compressors=ZstdCodec(level=_ZSTD.level),
            chunk_key_encoding={"name": "default", "separator": "."},  # files rather than folders
            dimension_names=["bandit" if axis == "group" and bandits == 1 else axis for axis in _axes(name)],
            attributes={"long_name": EXPLAINED[name]} if name in EXPLAINED else {},
        )
    return {name: buffer.to_bytes() for name, buffer in files.items() if name != "zarr.json"}


def _create(path: Path, attributes: dict[str, Any], chunk: int, group: int, described: dict[str, Any]) -> None:
    """Makes a store that has nothing but its root, in one step. If there is one by now, that one stays."""
    path = Path(os.path.realpath(path))  # where a dangling link points to
    content = _root_file(attributes, chunk, group, _labels(described))
    try:
        specification.check_length(content)
    except ValueError as error:
        raise ValueError(f"{error}: give fewer bandits or arms, or tables with fewer rows; or leave out out") from None
    path.mkdir(parents=True, exist_ok=True)
    root = path / "zarr.json"
    building = files.beside(root)
    try:
        building.write_bytes(content)
        try:
            os.link(building, root)  # which fails if there is a root, unlike a renaming
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            building.replace(root)
    finally:
        building.unlink(missing_ok=True)


def _mend(path: Path, results: Results) -> None:
    """Writes what is missing or damaged in the frame of a store."""
    try:
        for name, content in _frame(results.labels, results.chunk, results.group).items():
            for parent in list((path / name).relative_to(path).parents)[-2::-1]:
                folder = path / parent  # a link might lead out of the store
                _set_aside(folder, folder.is_symlink() or (folder.exists() and not folder.is_dir()))
            if not _same(path / name, content):
                _replace(path / name, content)
    except OSError as error:
        raise _unwritable(path, error) from error


def _tidy(path: Path) -> None:
    """Removes the temporary files of processes that were killed while they wrote: those that are an hour old.

    A process that still writes needs its file for milliseconds. If it is suspended for longer, it fails, and can start again.
    """
    for file in (*path.glob(".*"), *path.glob("*/.*")):
        with contextlib.suppress(OSError):  # another process has removed it
            if re.fullmatch(r"\.[0-9a-f]{32}", file.name) and file.is_file() and time.time() - file.stat().st_mtime > 3600:
                file.unlink()


def _same(file: Path, content: bytes) -> bool:
    try:
        found = files.read(file, 2 * len(content) + 1024)
        return found == content or (file.name == "zarr.json" and json.loads(found) == json.loads(content))
    except (OSError, ValueError, RecursionError):
        return False


def _replace(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    _set_aside(file, file.is_dir())
    files.replace(file, content)


def _set_aside(path: Path, wrong: bool) -> None:
    """Renames what is in the place of a file or folder of the store, if it is the wrong thing: it is not ours to delete."""
    if wrong:
        path.rename(files.beside(path))


def _on_disk(file: Path) -> int:
    """How many bytes a file takes, without the gaps of a sparse one. Some file systems report no blocks for small files."""
    status = file.lstat()
    return max(512 * getattr(status, "st_blocks", status.st_size // 512), min(status.st_size, 4096))


def _is_empty(path: Path) -> bool:
    """Whether a store can be made there: there may be what other processes are about to make one of."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"out = {str(path)!r} is a file: name a folder that is not there yet, or the store to go on with")
    try:
        return not path.exists() or all(re.fullmatch(r"\.[0-9a-f]{32}", file.name) for file in path.iterdir())
    except OSError as error:
        raise _unwritable(path, error) from error


class _Root(NamedTuple):
    """What the root of a store says, checked."""

    attributes: dict[str, Any]  # of the Dataset
    chunk: int  # how many seeds a unit has
    group: int  # how many bandits a unit has
    specification: dict[str, Any]  # as in the attributes, parsed

    def results(self, path: Path) -> Results:
        return Results(self.attributes, self.chunk, path, self.group, _labels(self.specification))


def _root(path: Path) -> _Root:
    """Reads the root of a store."""
    if not path.exists():
        raise ValueError(f"there is no store at {str(path)!r}: name the folder that a sweep was saved in")
    try:
        content = files.read(path / "zarr.json", specification.MOST_BYTES)
        specification.check_length(content)
        root = specification.parse(content)
        del content
        attributes = root.get("attributes") if isinstance(root, dict) else None
        if not isinstance(attributes, dict) or not isinstance(attributes.get("specification"), str):
            raise ValueError("no specification")
        chunk, seal, _ = (attributes.pop(name, None) for name in ("chunk", "seal", "coordinates"))
        group = attributes.pop("group", 1)  # the first stores did not have groups
        if not isinstance(chunk, int) or not isinstance(group, int) or seal != _seal(attributes, chunk, group):
            raise ValueError("changed since it was written")
        for name, value in attributes.items():
            if not isinstance(value, (str, int, float)):
                raise ValueError(f"{shown(name)} is neither text nor a number")
        described = specification.parse(attributes["specification"])
        specification.check(described, chunk, group)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{str(path)!r} is not a store of a sweep, or its zarr.json is damaged ({reason}): name another "
                         "folder, one that is not there yet for a new sweep") from None
    return _Root(attributes, chunk, group, described)


def _compare(path: Path, root: _Root, attributes: dict[str, Any]) -> None:
    """Raises unless the store at `path` has the same specification."""
    if root.attributes["specification"] == attributes["specification"]:
        return
    ours = specification.parse(attributes["specification"])
    if differences := _told(root.specification, ours, "in the store", "asked for"):
        raise ValueError(f"the store {str(path)!r} belongs to another grid and is left as it is ({differences}): name another "
                         "folder as out, or read it with bts_jax.open_results")


def _told(theirs: Any, ours: Any, there: str, here: str) -> str:
    """How two specifications differ, in words; nothing if they do not."""
    found = [f"{where}: {_shortly(x)} {there}, {_shortly(y)} {here}" for where, x, y in _differences(theirs, ours)]
    return "; ".join([*found[:3], *[f"and {len(found) - 3} more"] * (len(found) > 3)])


def _differences(theirs: Any, ours: Any, where: str = "") -> Any:
    if isinstance(theirs, dict) and isinstance(ours, dict) and list(theirs) == list(ours):
        for name in theirs:
            yield from _differences(theirs[name], ours[name], f"{where}.{name}" if where else name)
    elif theirs != ours or type(theirs) is not type(ours) or isinstance(theirs, dict):
        yield where, theirs, ours


def _shortly(value: Any) -> str:
    value = list(value) if isinstance(value, dict) else value
    return value if isinstance(value, str) and len(value) <= 60 else shown(value, 60)


def _unwritable(path: Path | None, error: OSError) -> OSError:
    return OSError(f"cannot write to {str(path)!r} ({error.strerror or error}): see to that and start the same sweep again; "
                   "what is complete stays")


