"""Compiled programs, kept on disk for later processes: JAX's persistent compilation cache, in a folder of this user.

JAX reads and writes the programs. This module says where, and keeps the place in order:

- The folder belongs to this user alone, since a program that is read from it is run.
- Each version of bts_jax, JAX, jaxlib and Python, and each kind of CPU, has a folder of its own in it: XLA compiles for the
  features of a CPU, and a home folder may be shared by several machines.
- JAX writes a program in place. One that was cut off, by a kill or by a full disk, would never be written again, and JAX would
  warn in every process. So programs are checked once, before a process first uses the folder. Those that are whole become
  read-only, which tells them from new ones; the others are removed. To remove one that another process is writing just now does
  no harm: it is compiled once more some day.
- Programs that were used last stay, up to a limit. JAX has such a limit, too, but needs another package for it, takes a lock
  for each program, and reads a file for each that it keeps whenever it adds one.
"""

import atexit
import contextlib
import hashlib
import os
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
from jaxlib.version import __version__ as jaxlib_version

from bts_jax import files
from bts_jax._version import __version__

MOST_BYTES = 2**30
VARIABLE = "BTS_JAX_CACHE"
_FOLDER, _PROGRAM = "programs-", "-cache"  # how names of folders begin, and how JAX ends those of programs
TRACED = "-traced"  # how names of the files of `program_cache` end
CHECKED = 0o400
_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,  # a run needs some fifty small programs besides its own
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_persistent_cache_enable_xla_caches": "none",  # they have no limit, and our programs do without autotuning
}
_CPU = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "CPU variant", "Features",
        "isa", "cpu")  # in /proc/cpuinfo; which of them there are depends on the architecture
_in_use: Path | None = None
_tidied_at_exit = False


def enable_cache(max_bytes: int = MOST_BYTES) -> Path | None:
    """Keeps compiled programs on disk, so that later processes need not compile them. The command line does so by itself.

    They are in `$XDG_CACHE_HOME/bts-jax`, or `~/.cache/bts-jax`, which only this user can read. If JAX's own cache has been set
    up, by `jax_compilation_cache_dir` or `JAX_COMPILATION_CACHE_DIR`, nothing changes. `BTS_JAX_CACHE=off` in the environment
    turns the cache off. Programs of built-in policies and bandits are loaded as they are. Those with a class of your own are
    traced in every process, which takes about half a second each, and then loaded.

    Args:
        max_bytes: how much to keep. Beyond that, the programs whose last use is longest ago are removed, when this is called
            and when the process ends. (Many file systems record the day of the last use, some only when a file was written.)

    Returns:
        The folder that JAX uses; None if there is none: the cache is off, or the folder cannot be made or is open to others.

    Example:
        >>> import bts_jax
        >>> folder = bts_jax.enable_cache()
    """
    global _in_use, _tidied_at_exit
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
        raise ValueError(f"max_bytes = {max_bytes!r} is not a number of bytes: give a whole number, such as 2**30")
    off, set_before = _off(), jax.config.jax_compilation_cache_dir  # type: ignore
    try:
        if off or (set_before and set_before != str(_path())):
            return Path(set_before) if set_before else None
        folder = _folder()
    except OSError:
        return None
    tidy(folder, max_bytes)
    # A program that another process is writing just now cannot be read: this one compiles it, too. Nor does a full disk matter.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning)
    for name, value in _SETTINGS.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    _in_use = folder
    if not _tidied_at_exit:
        _tidied_at_exit = True
        atexit.register(tidy, folder, max_bytes)
    return folder


def in_use() -> Path | None:
    """The folder that `enable_cache` has set up, if JAX still uses it."""
    used = jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir  # type: ignore
    return _in_use if _in_use is not None and used == str(_in_use) else None


def why_unused() -> str | None:
    """Why the command line keeps no programs in `place()`; None if it does."""
    if reason := _off():
        return reason
    if set_before := jax.config.jax_compilation_cache_dir:  # type: ignore
        return f"JAX is set up to keep programs in {set_before!r}"
    try:
        _folder()
    except OSError as error:
        return str(error)
    return None


def _off() -> str | None:
    """Who has turned the cache off, if anyone has."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "on", "off"):
        raise ValueError(f"{VARIABLE} = {value!r} is neither 'on' nor 'off': set one of them, or unset it")
    if value == "off":
        return f"{VARIABLE} is off"
    return None if jax.config.jax_enable_compilation_cache else "jax_enable_compilation_cache is off"  # type: ignore


def place() -> Path:
    """Where the programs of all versions and machines are."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "bts-jax"  # a relative path is void, says XDG
    except RuntimeError as error:
        raise OSError("there is no home folder: set XDG_CACHE_HOME") from error


def _path() -> Path:
    """The folder for the programs of this version on this machine."""
    return place() / f"{_FOLDER}{__version__}-{_key()}"


def _folder() -> Path:
    """That folder, made if need be; an `OSError` if it cannot be had."""
    top, folder = place(), _path()
    top.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (files.private_folder(top) and files.private_folder(folder)):
        raise OSError(f"{str(top)!r} cannot be made, or is open to other users: make it a folder of yours with mode 700, or "
                      "set XDG_CACHE_HOME")
    return folder


def _key() -> str:
    """What a compiled program depends on, and JAX's own key for it leaves out. (That has the kind of a GPU.)"""
    # Python: JAX compresses with what this Python has, and its key does not always tell with what.
    parts = [jax.__version__, jaxlib_version, *map(str, sys.version_info[:2]), *_cpu()]
    return f"{jax.__version__}-{jaxlib_version}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def _cpu(proc: str | os.PathLike = "/proc") -> list[str]:
    """Model and features of the CPU, without starting JAX."""
    found = [platform.machine()]
    try:
        with Path(proc, "cpuinfo").open(errors="replace") as lines:
            for line in lines:
                if not line.strip():  # the first core will do
                    break
                found += [" ".join(line.split())] if line.partition(":")[0].strip() in _CPU else []
    except OSError:  # not Linux
        found.append(platform.processor())
    return found


class Program(NamedTuple):
    """A file of the cache."""

    path: Path
    size: int
    used: float  # when, the last time
    checked: bool


def programs(top: Path) -> list[Program]:
    """All programs of all versions and machines. Other files, and what is behind links, are not ours."""
    found = []
    with contextlib.suppress(OSError):
        folders = [entry for entry in os.scandir(top) if entry.name.startswith(_FOLDER) and entry.is_dir(follow_symlinks=False)]
        for folder in folders:
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):  # another process has removed it
                    if entry.name.endswith((_PROGRAM, TRACED)) and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append(Program(Path(entry), status.st_size, max(status.st_atime, status.st_mtime),
                                             status.st_mode & 0o777 == CHECKED))
    return found


def tidy(folder: Path, max_bytes: int) -> None:
    """Removes damaged programs from a folder; then, from all, those whose last use is longest ago, down to a size."""
    for path in folder.glob(".*"):  # a process that was killed has not finished it
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_mtime < time.time() - 3600:
                _remove(path)
    kept = []
    for program in programs(folder.parent):
        if program.checked or program.path.parent != folder or _is_whole(program.path):
            kept.append(program)
        else:
            _remove(program.path)
    size = sum(program.size for program in kept)
    for program in sorted(kept, key=lambda program: program.used):
        if size <= max_bytes:
            break
        if _remove(program.path):
            size -= program.size


def clear(top: Path) -> list[Program]:
    """Removes all programs, and returns those that are gone. Folders stay: a process may be about to write there."""
    return [program for program in programs(top) if _remove(program.path)]


def _is_whole(path: Path) -> bool:
    """Whether a program can be read and decompressed. If so, it is marked, so as not to be checked again."""
    if path.name.endswith(TRACED):  # written in one step, and checked by whoever loads it
        return True
    try:
        whole = len(_decompressed(path.read_bytes())) > 0
    except Exception:  # there is no common class of what decompressors raise
        return False
    with contextlib.suppress(OSError):  # of a file system that cannot be written, all are checked each time
        path.chmod(CHECKED)
    return whole


def _decompressed(content: bytes) -> bytes:
    """By what JAX compresses with: the first of these that there is."""
    try:
        from compression.zstd import decompress  # type: ignore
    except ImportError:
        try:
            from zstandard import decompress  # type: ignore
        except ImportError:
            from zlib import decompress
    return decompress(content)


def _remove(path: Path) -> bool:
    """Whether a program is gone."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        return True
    return False
