"""The files of a store: writes, reads and compares its root and its frame of empty arrays."""

import contextlib
import json
import os
import re
import time
import uuid
import zlib
from collections.abc import Container
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from numcodecs.zstd import Zstd
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

from bts_jax import files
from bts_jax.sweeps import specification
from bts_jax.text import shown

AXES = ("policy", "bandit", "budget", "seed")
# The stored variables: dtype, and the value of missing entries. `pulls` has the arms as a further
# axis. If a bandit has several resources, `cost` has the resources as a further axis.
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
# All arrays of the store, divided into the sweep's chunks.
STORED = {**VARIABLES, "checksum": (np.int64, -1)}
ZSTD = Zstd(level=1)
# Of stores. In the first one, up to version 0.2, checksums did not say which chunk they belong to.
FORMAT = 2
OLD = (
    "written by bts_jax 0.2 or earlier: its checksums find damaged chunks, but not chunks that "
    "were copied from another place or from another store"
)


def labels_of(described: dict[str, Any]) -> dict[str, tuple]:
    """The coordinates that a specification implies."""
    policies, bandits = described["policies"], described["bandits"]
    num_arms = [len(bandit["reward_mean"]) for bandit in bandits.values()]
    most = max(num_arms)

    # If all bandits have the same names of arms, these are the labels.
    named = [bandit.get("arms", []) for bandit in bandits.values()]
    several = not named[0] or any(names != named[0] for names in named)
    rows = [[*names, *[""] * (most - len(names))] for names in named]

    resources = [
        len(cost) for bandit in bandits.values() if isinstance(cost := bandit["cost_mean"][0], list)
    ]

    def padded(name: str) -> np.ndarray:
        axes = (max(resources),) if resources and name == "cost_mean" else ()
        means = np.full((len(bandits), most, *axes), np.nan)
        for row, bandit in zip(means, bandits.values(), strict=True):
            values = np.array(bandit[name])
            if axes and values.ndim == 1:
                values = values[:, None]
            row[tuple(map(slice, values.shape))] = values
        return means

    return {
        "policy": ("policy", _texts(policies)),
        "bandit": ("bandit", _texts(bandits)),
        "budget": ("budget", np.array(described["budgets"], np.float64)),
        "seed": ("seed", np.arange(described["seeds"])),
        "arm": ("arm", np.arange(most) if several else _texts(named[0])),
        "requires": (
            "policy",
            _texts(", ".join(policy["requires"]) or "none" for policy in policies.values()),
        ),
        "family": ("bandit", _texts(bandit["class"] for bandit in bandits.values())),
        "num_arms": ("bandit", np.array(num_arms)),
        "reward_mean": (("bandit", "arm"), padded("reward_mean")),
        "cost_mean": (
            ("bandit", "arm", "resource") if resources else ("bandit", "arm"),
            padded("cost_mean"),
        ),
        **({"resource": ("resource", np.arange(max(resources)))} if resources else {}),
        **(
            {"arm_name": (("bandit", "arm"), np.array(rows, str))} if several and any(named) else {}
        ),
        **{name: ("policy", values) for name, values in _hyperparameters(described).items()},
        **{
            name: ("bandit", np.array(values))
            for name, values in described.get("coords", {}).items()
        },
    }


def _hyperparameters(described: dict[str, Any]) -> dict[str, np.ndarray]:
    """The hyperparameters in which policies of the same class differ; NaN where a policy does not
    have it.

    The hyperparameter `strength` of the posterior `cost` is called cost_strength.
    """
    numbers: dict[str, dict[str, float]] = {}
    for name, entry in described["policies"].items():
        for field, value in _fields(entry).items():
            usable = (
                field.isidentifier()
                and field not in specification.RESERVED
                and field not in described.get("coords", {})
            )
            if usable and type(value) in (int, float):
                numbers.setdefault(field, {})[name] = value
    classes = {name: entry["class"] for name, entry in described["policies"].items()}

    def differs(values: dict[str, float]) -> bool:
        return len({(classes[name], value) for name, value in values.items()}) > len(
            {classes[name] for name in values}
        )

    return {
        field: np.array([values.get(name, np.nan) for name in classes])
        for field, values in numbers.items()
        if differs(values)
    }


def _fields(entry: dict[str, Any]) -> dict[str, Any]:
    """The fields of a policy, and those of its posteriors, by name."""
    found = {}
    for field, value in entry["fields"].items():
        inner = _fields(value) if isinstance(value, dict) else None
        found |= (
            {field: value}
            if inner is None
            else {f"{field}_{name}": part for name, part in inner.items()}
        )
    return found


def _texts(values: Any) -> np.ndarray:
    return np.array(list(values), str)


def axes_of(name: str, sizes: Container[str]) -> tuple[str, ...]:
    """The axes of a stored array. `sizes` has an entry "resource" if a bandit has several
    resources.
    """
    if name == "cost" and "resource" in sizes:
        return (*AXES, "resource")
    return {"pulls": (*AXES, "arm"), "checksum": ("policy", "group", "range")}.get(name, AXES)


def axis_sizes(labels: dict[str, tuple], chunk_size: int, group: int) -> dict[str, int]:
    """The lengths of all axes."""
    sizes = {axis: len(labels[axis][1]) for axis in (*AXES, "arm", "resource") if axis in labels}
    return {**sizes, "group": sizes["bandit"] // group, "range": -(-sizes["seed"] // chunk_size)}


def chunk_shape(name: str, sizes: dict[str, int], seeds: int, bandits: int) -> tuple[int, ...]:
    """The shape of the part of an array that belongs to a chunk of this many seeds and bandits."""
    of_a_chunk = {**sizes, "policy": 1, "bandit": bandits, "seed": seeds, "group": 1, "range": 1}
    return tuple(of_a_chunk[axis] for axis in axes_of(name, sizes))


def seal_of(attributes: dict[str, Any], chunk_size: int, group: int = 1) -> int:
    """A checksum that shows whether the root of a store has changed. If a group is one bandit, the
    root does not mention it.
    """
    sizes = f"{chunk_size}" if group == 1 else f"{chunk_size} {group}"
    if (number := format_of(attributes)) > 1:
        sizes += f" format {number}"
    return zlib.crc32(f"{sizes} {attributes['specification']}".encode())


def format_of(attributes: dict[str, Any]) -> int:
    """The format of a store with these attributes."""
    return attributes.get("store_format", 1)


def _root_file(
    attributes: dict[str, Any], chunk_size: int, group: int, labels: dict[str, tuple]
) -> bytes:
    """The content of the root of a store."""
    files: dict[str, Any] = {}
    others = " ".join(name for name, (axes, _) in labels.items() if name != axes)
    sizes = {"chunk": chunk_size, **({} if group == 1 else {"group": group})}
    root = {
        **attributes,
        **sizes,
        "seal": seal_of(attributes, chunk_size, group),
        "coordinates": others,
    }
    zarr.create_group(MemoryStore(files), attributes=root)
    return files["zarr.json"].to_bytes()


def _frame(labels: dict[str, tuple], chunk_size: int, bandits: int) -> dict[str, bytes]:
    """All files of an empty store except its root, by name. A chunk has this many seeds and
    bandits.
    """
    files: dict[str, Any] = {}
    group = zarr.create_group(MemoryStore(files))
    for name, (axes, values) in labels.items():
        text = values.dtype.kind == "U"
        array = group.create_array(
            name,
            shape=values.shape,
            dtype="str" if text else values.dtype,
            compressors=None,
            dimension_names=[axes] if isinstance(axes, str) else axes,
        )
        array[...] = values.astype(object) if text else values
    sizes = axis_sizes(labels, chunk_size, bandits)
    for name, (dtype, fill) in STORED.items():
        group.create_array(
            name,
            shape=[sizes[axis] for axis in axes_of(name, sizes)],
            chunks=chunk_shape(name, sizes, chunk_size, bandits),
            dtype=dtype,
            fill_value=fill,
            compressors=ZstdCodec(level=ZSTD.level),
            chunk_key_encoding={"name": "default", "separator": "."},  # files rather than folders
            dimension_names=[
                "bandit" if axis == "group" and bandits == 1 else axis
                for axis in axes_of(name, sizes)
            ],
            attributes={"long_name": EXPLAINED[name]} if name in EXPLAINED else {},
        )
    return {name: buffer.to_bytes() for name, buffer in files.items() if name != "zarr.json"}


def create(
    path: Path, attributes: dict[str, Any], chunk_size: int, group: int, described: dict[str, Any]
) -> None:
    """Creates a store with only its root, in one step. If another process has created one by now,
    that one is kept.
    """
    path = Path(os.path.realpath(path))  # where a dangling link points to
    content = _root_file(attributes, chunk_size, group, labels_of(described))
    try:
        specification.check_length(content)
    except ValueError as error:
        raise ValueError(
            f"{error}: give fewer bandits or arms, or tables with fewer rows; or give no out"
        ) from None
    path.mkdir(parents=True, exist_ok=True)
    root = path / "zarr.json"
    building = files.beside(root)
    try:
        building.write_bytes(content)
        try:
            os.link(building, root)  # unlike a rename, this fails if there is a root
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            building.replace(root)
    finally:
        building.unlink(missing_ok=True)


def mend(path: Path, labels: dict[str, tuple], chunk_size: int, group: int) -> None:
    """Repairs the frame of a store: writes files that are missing or damaged."""
    try:
        for name, content in _frame(labels, chunk_size, group).items():
            if not _same(path, name, content):
                replace(path, name, content)
    except OSError as error:
        raise unwritable(path, error) from error


def tidy(path: Path) -> None:
    """Removes temporary files of processes that were killed while they wrote: files that are more
    than an hour old.

    A process that still writes needs its file for milliseconds. If it is suspended for longer, it
    fails, and can be restarted.
    """
    for folder in (path, *(one for one in path.iterdir() if files.is_real_folder(one))):
        for file in folder.glob(".*"):
            with contextlib.suppress(OSError):  # another process has removed it
                old = time.time() - file.lstat().st_mtime > 3600
                if re.fullmatch(r"\.[0-9a-f]{32}", file.name) and files.is_real_file(file) and old:
                    file.unlink()


def read(path: Path, name: str, most: int) -> bytes:
    """Reads a file of a store. Raises an `OSError` unless it is a regular file in real folders: no
    link is followed.
    """
    return files.read(files.inside(path, name), most, links=False)


def _same(path: Path, name: str, content: bytes) -> bool:
    try:
        found = read(path, name, 2 * len(content) + 1024)
        return found == content or (
            name.endswith("zarr.json") and json.loads(found) == json.loads(content)
        )
    except (OSError, ValueError, RecursionError):
        return False


def replace(path: Path, name: str, content: bytes) -> None:
    """Writes a file of a store. A link or a file in the place of one of its folders is set
    aside.
    """
    for parent in list(Path(name).parents)[-2::-1]:
        real_folder(path / parent)
    set_aside(path / name, (path / name).is_dir())
    files.replace(path / name, content)


def real_folder(path: Path) -> Path:
    """Makes a folder of a store, unless it is there. What is in its place is set aside: a link may
    lead out of the store.
    """
    set_aside(path, os.path.lexists(path) and not files.is_real_folder(path))
    path.mkdir(exist_ok=True)
    return path


def set_aside(path: Path, wrong: bool) -> None:
    """Renames a file or folder that is in the place of one of the store, if it is `wrong`. It may
    be the user's: keep it.
    """
    if wrong:
        path.rename(path.with_name(f".set-aside-{uuid.uuid4().hex}"))


def on_disk(file: Path) -> int:
    """How many bytes a file takes, without the gaps of a sparse one. Some file systems report no
    blocks for small files.
    """
    status = file.lstat()
    return max(512 * getattr(status, "st_blocks", status.st_size // 512), min(status.st_size, 4096))


def is_empty(path: Path) -> bool:
    """Whether a store can be created there. Temporary files of other processes that create one do
    not count.
    """
    there = os.path.exists(path)  # unlike `Path.exists`, also False if the path is too long
    if there and not path.is_dir():
        raise ValueError(
            f"out = {str(path)!r} is a file: name a folder that is not there yet, or the store to "
            "continue"
        )
    try:
        return not there or all(
            re.fullmatch(r"\.[0-9a-f]{32}", file.name) for file in path.iterdir()
        )
    except OSError as error:
        raise unwritable(path, error) from error


class Root(NamedTuple):
    """The checked content of the root of a store."""

    attributes: dict[str, Any]  # of the Dataset
    chunk_size: int  # how many seeds a chunk has
    group: int  # how many bandits a chunk has
    specification: dict[str, Any]  # as in the attributes, parsed


class Known(NamedTuple):
    """A specification that need not be parsed or checked again, which takes seconds if there are
    thousands of bandits.
    """

    text: str
    described: dict[str, Any]
    checked: tuple[int, int] | None  # with chunks of this many seeds and bandits


class NoStore(ValueError):
    """Raised if a folder has no root of a store, or a damaged one."""


def read_root(path: Path, known: Known | None = None) -> Root:
    """Reads the root of a store."""
    if not os.path.exists(path):
        raise ValueError(
            f"there is no store at {str(path)!r}: name the folder that a sweep was saved in"
        )
    if not os.path.isdir(path) or not any(
        os.path.lexists(path / name) for name in ("zarr.json", *STORED)
    ):
        raise _no_store(path)
    try:
        content = read(path, "zarr.json", specification.MOST_BYTES)
        specification.check_length(content)
        root = specification.parse(content)
        del content
        attributes = root.get("attributes") if isinstance(root, dict) else None
        if not isinstance(attributes, dict) or not isinstance(attributes.get("specification"), str):
            raise ValueError("no specification")
        chunk_size, seal, _ = (
            attributes.pop(name, None) for name in ("chunk", "seal", "coordinates")
        )
        group = attributes.pop("group", 1)  # the first stores did not have groups
        if (
            not isinstance(chunk_size, int)
            or not isinstance(group, int)
            or seal != seal_of(attributes, chunk_size, group)
        ):
            raise ValueError("changed since it was written")
        for name, value in attributes.items():
            if not isinstance(value, (str, int, float)):
                raise ValueError(f"{shown(name)} is neither text nor a number")
            text = f"{name} {'' if name == 'specification' else value}"
            if not text.isprintable() or len(text) > 1000:  # it is printed with the Dataset
                raise ValueError(f"{shown(name, 60)} is too long, or has control characters")
        if format_of(attributes) not in (1, FORMAT):
            raise ValueError(
                f"it has the format {shown(format_of(attributes))}, and this version knows the "
                f"formats 1 to {FORMAT}: install the version of bts_jax that wrote it"
            )
        known = known if known and known.text == attributes["specification"] else None
        described = known.described if known else specification.parse(attributes["specification"])
        if not known or known.checked != (chunk_size, group):
            specification.check(described, chunk_size, group)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NoStore(
            f"{str(path)!r} is not a store of a sweep, or its zarr.json is damaged ({reason}): "
            "name another folder, one that is not there yet for a new sweep. If a sweep was saved "
            "there, start it again by its grid file or call, which writes zarr.json anew"
        ) from None
    return Root(attributes, chunk_size, group, described)


def _no_store(path: Path) -> NoStore:
    """The error about a path that has nothing of a store. It names up to three stores that the
    folder contains.
    """
    what = "a folder without zarr.json" if os.path.isdir(path) else "a file"
    found = []
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        found = [
            entry.path for entry in islice(entries, 1000) if _looks_like_a_store(Path(entry.path))
        ]
    there = f", such as {', '.join(map(repr, sorted(found)[:3]))}" if found else ""
    return NoStore(
        f"{str(path)!r} is not a store of a sweep, but {what}: name the folder that a sweep was "
        f"saved in{there}; for a new sweep, name a folder that is not there yet"
    )


def _looks_like_a_store(path: Path) -> bool:
    return os.path.isfile(path / "zarr.json") and os.path.isdir(path / "checksum")


def differences_in_words(theirs: Any, ours: Any, there: str, here: str) -> str:
    """Describes how two specifications differ; empty if they do not."""
    found = [
        f"{where}: {_shortly(x)} {there}, {_shortly(y)} {here}"
        for where, x, y in _differences(theirs, ours)
    ]
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


def unwritable(path: Path | None, error: OSError) -> OSError:
    return OSError(
        f"cannot write to {str(path)!r} ({error.strerror or error}): fix this and start the same "
        "sweep again; complete chunks are kept"
    )
