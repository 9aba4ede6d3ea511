"""Stores that grow, and stores that are merged.

A sweep may ask for more than its store has: further policies, bandits, seeds or budgets. The store
then gets a larger grid. Its files move into the folder `grown/0` of the store, and serve as a
source: what they have is copied, and the rest is computed. The folder is removed once all of it has
been copied. After an interruption at any point, the sweep can continue, and a reader sees the grid
as it was before.

Policies and bandits keep their places when a grid grows, and new ones follow. Only one process at a
time enlarges a store (`locked`). Another process that still works on the smaller grid detects this
before it saves its next chunk, and ends with a message.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import xarray as xr

from bts_jax import files
from bts_jax.sweeps import specification
from bts_jax.sweeps.results import Results, opened
from bts_jax.sweeps.store import (
    FORMAT,
    STORED,
    Known,
    Root,
    create,
    differences_in_words,
    is_empty,
    labels_of,
    mend,
    read,
    read_root,
    real_folder,
    set_aside,
    unwritable,
)
from bts_jax.text import shown

FOLDER = "grown"
MOST = 100  # earlier grids of a store
# Parts of a specification that a larger grid may have more of.
GROWING = ("policies", "bandits", "budgets", "seeds", "coords")


class Conflict(ValueError):
    """Raised if two specifications cannot be parts of one grid."""


def union(
    theirs: dict[str, Any],
    ours: dict[str, Any],
    there: str = "in the store",
    here: str = "asked for",
    revise: bool = True,
) -> tuple[dict[str, Any], list[str]]:
    """Returns the smallest grid that contains both, and the policies and bandits whose code has
    changed. `theirs` comes first.

    With `revise`, a policy or bandit whose class has changed code replaces the one in the store.
    """

    def refuse(where: str, x: Any, y: Any) -> None:
        differences = differences_in_words({where: x}, {where: y}, there, here)
        raise Conflict(differences or f"{where} differs")

    for name in dict.fromkeys([*ours, *theirs]):
        if name not in GROWING and theirs.get(name) != ours.get(name):
            refuse(
                "relative_to_min_cost" if name == "relative" else name,
                theirs.get(name),
                ours.get(name),
            )
    whole, changed = {**theirs, **ours}, []
    for kind in ("policies", "bandits"):
        whole[kind] = dict(theirs[kind])
        for name, entry in ours[kind].items():
            old = whole[kind].setdefault(name, entry)
            if old == entry:
                continue
            if not revise or not _is_revised(old, entry):
                refuse(f"{kind}.{name}", old, entry)
            changed.append(f"{kind}[{name!r}]")
            whole[kind][name] = entry
    whole["budgets"] = sorted({*theirs["budgets"], *ours["budgets"]})
    whole["seeds"] = max(theirs["seeds"], ours["seeds"])
    coords = {}
    for name in dict.fromkeys([*theirs.get("coords", {}), *ours.get("coords", {})]):
        values: dict[str, Any] = {}
        for one in (theirs, ours):
            for bandit, value in zip(
                one["bandits"], one.get("coords", {}).get(name, ()), strict=False
            ):
                if _is_blank(values.get(bandit, "")):
                    values[bandit] = value
                elif not _is_blank(value) and values[bandit] != value:
                    refuse(f"coords.{name} of {bandit}", values[bandit], value)
        blank = "" if isinstance(next(iter(values.values())), str) else float("nan")
        coords[name] = [values.get(bandit, blank) for bandit in whole["bandits"]]
    return whole | ({"coords": coords} if coords else {}), changed


def _is_blank(value: Any) -> bool:
    """Whether this stands for a coordinate that was not given."""
    return value == "" or value != value


def _is_revised(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether these are the same policy or bandit of a user-defined class whose code has
    changed.
    """
    return (
        "structure" in old
        and "structure" in new
        and all(old[part] == new[part] for part in ("class", "fields"))
    )


def chunk_size_of(old: int, seeds: int, chunk_size: int, wanted: int) -> int:
    """The number of seeds in a chunk of the larger grid, if the smaller grid has `old` seeds in
    chunks of `chunk_size`.

    If a chunk ends where the smaller grid ended, no chunk has to be played in part.
    """
    if seeds == old or (old % chunk_size == 0 and chunk_size <= 2 * wanted):
        return chunk_size
    divisors = [number for number in range(max(wanted // 8, 1), wanted + 1) if old % number == 0]
    return min(max(divisors, default=wanted), seeds)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits until no other process enlarges the store. If files cannot be locked, it does not
    wait.
    """
    with contextlib.ExitStack() as stack:
        while True:
            try:
                name = _folder(path) / "lock"
                set_aside(name, os.path.lexists(name) and not files.is_real_file(name))
                flags = (
                    os.O_RDWR
                    | os.O_CREAT
                    | getattr(os, "O_NONBLOCK", 0)
                    | getattr(os, "O_NOFOLLOW", 0)
                )
                file = stack.enter_context(open(os.open(name, flags, 0o666)))
            except OSError as error:
                raise unwritable(path, error) from error
            try:
                import fcntl  # not available on Windows

                fcntl.flock(file, fcntl.LOCK_EX)
                if name.lstat().st_ino == os.fstat(file.fileno()).st_ino:
                    break
            except FileNotFoundError:  # the process that held the lock has removed the folder
                continue
            except (ImportError, OSError):
                break
        yield


def grow(path: Path, root: Root, whole: dict[str, Any], chunk_size: int, group: int) -> Root:
    """Gives a store a larger grid, or the same grid in other chunks. Its old files become a source,
    to copy from.
    """
    attributes = {
        **root.attributes,
        "specification": json.dumps(whole, ensure_ascii=False),
        "store_format": FORMAT,
    }
    try:
        specification.check(whole, chunk_size, group)
    except ValueError as error:
        raise ValueError(
            f"the store {str(path)!r} cannot grow to this sweep, and is left unchanged: {error}"
        ) from None
    try:
        folder = _next(path)
        os.rename(path / "zarr.json", folder / "zarr.json")
        _move(path, folder)
        create(path, attributes, chunk_size, group, whole)
        mend(path, labels_of(whole), chunk_size, group)
    except OSError as error:
        raise unwritable(path, error) from error
    return read_root(path)


def recovered(path: Path, holding: bool = False, known: Known | None = None) -> Root:
    """Reads the root of a store. If a process was killed while it enlarged the store, the store is
    repaired first.

    `holding`: this process has the lock. `known`: see `read_root`.
    """
    if _half_grown(path):
        with contextlib.nullcontext() if holding else locked(path):
            if place := _half_grown(path):
                found = read_root(place)
                try:
                    _move(path, place)
                    create(
                        path, found.attributes, found.chunk_size, found.group, found.specification
                    )
                    mend(path, labels_of(found.specification), found.chunk_size, found.group)
                except OSError as error:
                    raise unwritable(path, error) from error
    return read_root(path, known)


def reading(path: Path) -> Results:
    """The results in a store and in its sources, to be read: nothing is written. A growth that was
    interrupted is ignored.
    """
    place = _half_grown(path)
    if not place:
        return with_sources(path, read_root(path))
    return with_sources(path, read_root(place), place)


def with_sources(path: Path, root: Root, place: Path | None = None) -> Results:
    """The results in a store and in its sources. `place`: where they are, if a growth was
    interrupted.
    """
    results = opened(path, root) if place is None else opened(place, root, moving=path)
    for other in _places(path):
        if other != place:
            with contextlib.suppress(ValueError):  # a damaged source is ignored
                results.add_source(opened(other, read_root(other)))
    return results


def drop_sources(results: Results) -> None:
    """Copies the chunks that only the sources have. Removes the sources if nothing else in them is
    needed.
    """
    if results.path is None or not os.path.lexists(results.path / FOLDER):
        return
    with locked(results.path):
        if not results.is_current() or {source.theirs.path for source in results.sources} != {
            *_places(results.path)
        }:
            return  # the store has grown meanwhile
        for chunk in results.all_chunks:
            if (
                not results.done[chunk]
                and not results.adopt(chunk)
                and results.known(chunk)[1].any()
            ):
                return  # this chunk is known in part: the source is still needed
        results.sources.clear()
        with contextlib.suppress(OSError):
            shutil.rmtree(results.path / FOLDER)


def merge(*stores: str | os.PathLike, out: str | os.PathLike) -> xr.Dataset:
    """Joins the stores of several sweeps into one new store.

    The sweeps must agree in their seed, their platform and versions, and in every policy and bandit
    that has the same name. No run may be in two of them. The new grid has all policies, bandits,
    budgets and seeds. Runs that no store has are missing in it; `sweep(..., out=out)` computes
    them.

    After an interruption, the same call continues.

    Args:
        stores: folders that sweeps were saved in, at least two. They are not changed.
        out: the new folder.

    Returns:
        The Dataset of the new store.

    Example:
        >>> import tempfile
        >>> from bts_jax import Bernoulli, merge, sweep
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        ...     for name in ("uniform", "oracle"):
        ...         _ = sweep([name], bandits, budgets=[10, 20], num_seeds=5,
        ...     out=f"{folder}/{name}")
        ...     both = merge(f"{folder}/uniform", f"{folder}/oracle", out=f"{folder}/both")
        >>> both.policy.values.tolist(), both.attrs["state"]
        (['uniform', 'oracle'], 'complete')
    """
    paths, path = [Path(store) for store in stores], Path(out)
    if len(paths) < 2:
        raise ValueError(
            f"stores = {[str(store) for store in paths]!r} has nothing to merge: name at least two "
            "stores"
        )
    for place, store in enumerate(paths):
        if any(store.resolve() == other.resolve() for other in (*paths[:place], path)):
            raise ValueError(
                f"{str(store)!r} is named twice: name each store once, and a new folder as out"
            )
    kept = [reading(store) for store in paths]
    whole = kept[0].specification
    for store, one in zip(paths[1:], kept[1:], strict=True):
        try:
            whole, _ = union(whole, one.specification, "before", f"in {str(store)!r}", revise=False)
        except Conflict as error:
            raise ValueError(
                f"the stores are not parts of one sweep ({error}): merge those that agree, or "
                "rename"
            ) from None
    chunk_size = min(one.chunk_size for one in kept)
    same = all(list(one.specification["bandits"]) == list(whole["bandits"]) for one in kept)
    group = kept[0].group if same and len({one.group for one in kept}) == 1 else 1
    specification.check(whole, chunk_size, group)
    specification.words_of(whole["bandits"])
    attributes = {
        **kept[0].attributes,
        "specification": json.dumps(whole, ensure_ascii=False),
        "store_format": FORMAT,
    }
    begun = not is_empty(path)
    if begun:
        _check_begun(path, attributes)
    results = Results(attributes, chunk_size, path, group, labels_of(whole), whole)
    for one in kept:
        one.load()
        for source in (one, *(source.theirs for source in one.sources)):
            results.add_source(source, within=one)
    _refuse_duplicates(results, paths, kept)
    try:
        create(path, attributes, chunk_size, group, whole)
        _check_begun(path, attributes)  # another process may have created it
        mend(path, results.labels, chunk_size, group)
        results.stamp_root()
        if begun:
            results.load()
        for chunk in results.all_chunks:
            if not results.done[chunk]:
                results.adopt(chunk)
        if any(
            not results.done[chunk] and results.known(chunk)[1].any()
            for chunk in results.all_chunks
        ):
            # Known in part: the sources stay.
            _copy_sources(path, [source.theirs for source in results.sources])
    except OSError as error:
        raise unwritable(path, error) from error
    return reading(path).dataset()


def _check_begun(path: Path, attributes: dict[str, Any]) -> None:
    """Raises a `ValueError` unless the store at `path` is what an earlier call of `merge` with
    these arguments has begun.
    """
    try:
        found = read_root(path).attributes
    except ValueError:
        found = {}
    if found != attributes:
        raise ValueError(f"out = {str(path)!r} exists: name a folder that is not there yet")


def _copy_sources(path: Path, sources: Sequence[Results]) -> None:
    """Copies other stores into the folder of earlier grids, unless an interrupted merge has done
    that. Copies no links.
    """
    with locked(path):
        for folder in (path / FOLDER).iterdir():
            if files.is_real_folder(folder) and not files.is_real_file(folder / "zarr.json"):
                shutil.rmtree(folder)  # half copied
        there = [read_root(place).attributes for place in _places(path)]
        for one in sources:
            if one.attributes in there:
                continue
            place, root = (
                _next(path),
                read(cast(Path, one.path), "zarr.json", specification.MOST_BYTES),
            )
            mend(place, one.labels, one.chunk_size, one.group)
            for name, file in one.chunk_files():
                shutil.copyfile(file, place / name / file.name, follow_symlinks=False)
            files.replace(place / "zarr.json", root)  # last: without it the copy does not count


def _refuse_duplicates(results: Results, paths: Sequence[Path], kept: Sequence[Results]) -> None:
    for chunk in results.all_chunks:
        masks = [
            results.known(chunk, [source for source in results.sources if source.within is one])[1]
            for one in kept
        ]
        for place, mask in enumerate(masks):
            for other, earlier in enumerate(masks[:place]):
                if (mask & earlier).any():
                    policy, bandit = results.names(chunk)
                    raise ValueError(
                        f"{str(paths[other])!r} and {str(paths[place])!r} both have runs of policy "
                        f"{shown(policy)} on bandit {shown(bandit)}: merge stores that have "
                        "different runs"
                    )


def _places(path: Path) -> list[Path]:
    """The folders of the earlier grids of a store, in order."""
    places = (
        [path / FOLDER / str(number) for number in range(MOST)]
        if files.is_real_folder(path / FOLDER)
        else []
    )
    return [
        place
        for place in places
        if files.is_real_folder(place) and files.is_real_file(place / "zarr.json")
    ]


def _half_grown(path: Path) -> Path | None:
    """The folder that has the root, if a process was killed while it enlarged the store."""
    return None if os.path.lexists(path / "zarr.json") else next(reversed(_places(path)), None)


def _next(path: Path) -> Path:
    """A new folder for an earlier grid."""
    folder = _folder(path)
    for number in range(MOST):
        with contextlib.suppress(FileExistsError):
            (folder / str(number)).mkdir()
            return folder / str(number)
    raise ValueError(
        f"the store {str(path)!r} has grown {MOST} times without being completed: complete it first"
    )


def _folder(path: Path) -> Path:
    folder = real_folder(path / FOLDER)
    if not files.is_real_file(folder / "zarr.json"):  # otherwise zarr warns about an unknown folder
        set_aside(folder / "zarr.json", os.path.lexists(folder / "zarr.json"))
        files.replace(
            folder / "zarr.json",
            json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode(),
        )
    return folder


def _move(path: Path, folder: Path) -> None:
    """Moves the arrays of a store."""
    names = {*STORED, *(file.parent.name for file in path.glob("*/zarr.json"))} - {FOLDER}
    for name in names:
        # Moved before the process was killed; chunks saved since are computed again.
        if (folder / name).exists():
            shutil.rmtree(path / name, ignore_errors=True)
            continue
        with contextlib.suppress(FileNotFoundError):
            os.rename(path / name, folder / name)
