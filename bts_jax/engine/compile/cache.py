"""A disk cache of compiled programs for later processes: JAX's persistent compilation cache, in a
folder of this user.

JAX reads and writes the programs. This module chooses the folder and manages it:

- The folder is private to this user, because programs that are read from it are executed. No other
  user can exchange it: each folder above it belongs to this user or to root, and nobody else may
  write there (unless its sticky bit is set, as in /tmp).
- Each version of bts_jax, JAX, jaxlib and Python, and each kind of CPU, has its own subfolder. XLA
  compiles for the features of a CPU, and several machines may share a home folder.
- JAX writes a program in place. If a kill or a full disk interrupts the write, the incomplete
  program would never be replaced, and JAX would warn in every process. So programs are checked
  once, before a process first uses the folder. Complete programs become read-only, which
  distinguishes them from new ones. The others are removed. Removing a program that another process
  is currently writing does no harm: it is compiled again later.
- The most recently used programs are kept, up to a size limit. JAX has such a limit, too. But it
  needs another package, takes a lock for each program, and reads one file per stored program
  whenever it adds one.
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

from bts_jax import files
from bts_jax._version import __version__
from bts_jax.jax_internals import jaxlib_version

MOST_BYTES = 2**30
VARIABLE = "BTS_JAX_CACHE"
# Prefix of the folders' names, and JAX's suffix of the programs' names.
_FOLDER, _PROGRAM = "programs-", "-cache"
_UNUSED = "-traced"  # suffix of files that only version 0.2 read
CHECKED = 0o400
_SETTINGS = {
    # A run needs about fifty small programs besides its own.
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    # They have no size limit, and our programs do not use autotuning.
    "jax_persistent_cache_enable_xla_caches": "none",
}
_CPU = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "flags",
    "CPU implementer",
    "CPU part",
    "CPU variant",
    "Features",
    "isa",
    "cpu",
)  # fields of /proc/cpuinfo; each architecture has some of them
_tidied_at_exit = False


def enable_cache(max_bytes: int = MOST_BYTES) -> Path | None:
    """Stores compiled programs on disk, so that later processes need not compile them. The command
    line calls this by itself.

    The programs are in `$XDG_CACHE_HOME/bts-jax` or `~/.cache/bts-jax`. Only this user can read the
    folder. If JAX's own cache is configured by `jax_compilation_cache_dir` or
    `JAX_COMPILATION_CACHE_DIR`, nothing changes. The environment variable `BTS_JAX_CACHE=off` turns
    the cache off. JAX finds a program by its lowered code. So every process traces a program, which
    takes about half a second, and then loads it instead of compiling it.

    Args:
        max_bytes: the size limit in bytes. Above it, the least recently used programs are removed,
            when this function is called and when the process ends. (Many file systems record only
            the day of the last use, some only the time of the last write.)

    Returns:
        The folder that JAX uses. None if there is no folder: the cache is off, or the folder cannot
        be created, or other users can access or exchange it. `bts-jax cache` prints the reason.

    Example:
        >>> import bts_jax
        >>> folder = bts_jax.enable_cache()
    """
    global _tidied_at_exit
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
        raise ValueError(
            f"max_bytes = {max_bytes!r} is not a number of bytes: give a whole number, such as "
            "2**30"
        )
    off, set_before = _off(), jax.config.jax_compilation_cache_dir  # type: ignore
    try:
        if off or (set_before and set_before != str(_path())):
            return Path(set_before) if set_before else None
        folder = _folder()
    except OSError:
        return None
    tidy(folder, max_bytes)
    # A program that another process is currently writing cannot be read, so this process compiles
    # it, too. A full disk is harmless as well.
    warnings.filterwarnings(
        "ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning
    )
    for name, value in _SETTINGS.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if not _tidied_at_exit:
        _tidied_at_exit = True
        atexit.register(tidy, folder, max_bytes)
    return folder


def why_unused() -> str | None:
    """The reason why the command line stores no programs in `place()`. None if it does store
    them.
    """
    if reason := _off():
        return reason
    if set_before := jax.config.jax_compilation_cache_dir:  # type: ignore
        return f"JAX is configured to store programs in {set_before!r}"
    try:
        _folder()
    except OSError as error:
        return str(error)
    return None


def _off() -> str | None:
    """The setting that turns the cache off, if there is one."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "on", "off"):
        raise ValueError(
            f"{VARIABLE} = {value!r} is neither 'on' nor 'off': set one of them, or unset it"
        )
    if value == "off":
        return f"{VARIABLE} is off"
    on = jax.config.jax_enable_compilation_cache  # type: ignore
    return None if on else "jax_enable_compilation_cache is off"


def place() -> Path:
    """The folder of the programs of all versions and machines."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        # XDG: ignore relative paths.
        return (given if given.is_absolute() else Path.home() / ".cache") / "bts-jax"
    except RuntimeError as error:
        raise OSError("there is no home folder: set XDG_CACHE_HOME") from error


def _path() -> Path:
    """The folder for the programs of this version on this machine."""
    return place() / f"{_FOLDER}{__version__}-{_key()}"


def _folder() -> Path:
    """Returns this folder, and creates it if it does not exist. Raises an `OSError` if that is
    impossible.
    """
    top, folder = place(), _path()
    if exposed := files.exposed(top):
        raise OSError(
            f"{str(exposed)!r} belongs to another user, or others may write to it, so that they "
            "could exchange the programs: set XDG_CACHE_HOME to a folder that only you can change"
        )
    top.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (files.private_folder(top) and files.private_folder(folder)):
        raise OSError(
            f"{str(top)!r} cannot be created, or is open to other users: make it a folder of yours "
            "with mode 700, or set XDG_CACHE_HOME"
        )
    return folder


def _key() -> str:
    """Versions, and a digest of what compiled programs depend on beyond JAX's own key. (That key
    has the kind of GPU.)
    """
    # Python's version: JAX uses a compressor that this Python has, and its key does not always
    # contain which one.
    parts = [jax.__version__, jaxlib_version, *map(str, sys.version_info[:2]), *_cpu()]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    return f"{jax.__version__}-{jaxlib_version}-{digest}"


def _cpu(proc: str | os.PathLike = "/proc") -> list[str]:
    """Returns the model and the features of the CPU, without starting JAX."""
    found = [platform.machine()]
    try:
        with Path(proc, "cpuinfo").open(errors="replace") as lines:
            for line in lines:
                if not line.strip():  # the first core is enough
                    break
                found += [" ".join(line.split())] if line.partition(":")[0].strip() in _CPU else []
    except OSError:  # not Linux
        found.append(platform.processor())
    return found


class Program(NamedTuple):
    """A file of the cache."""

    path: Path
    size: int
    used: float  # time of the last use
    checked: bool


def programs(top: Path) -> list[Program]:
    """All programs of all versions and machines. Other files and symbolic links are ignored,
    because they are not ours.
    """
    found = []
    with contextlib.suppress(OSError):
        folders = [
            entry
            for entry in os.scandir(top)
            if entry.name.startswith(_FOLDER) and entry.is_dir(follow_symlinks=False)
        ]
        for folder in folders:
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):  # another process has removed it
                    if entry.name.endswith((_PROGRAM, _UNUSED)) and entry.is_file(
                        follow_symlinks=False
                    ):
                        status = entry.stat(follow_symlinks=False)
                        found.append(
                            Program(
                                Path(entry),
                                status.st_size,
                                max(status.st_atime, status.st_mtime),
                                status.st_mode & 0o777 == CHECKED,
                            )
                        )
    return found


def tidy(folder: Path, max_bytes: int) -> None:
    """Removes damaged programs from a folder. Then removes the least recently used programs of all
    folders, down to a size.
    """
    for path in folder.glob(".*"):  # unfinished files of processes that were killed
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
    """Removes all programs, and returns those that were removed. Folders stay: a process may be
    about to write there.
    """
    return [program for program in programs(top) if _remove(program.path)]


def _is_whole(path: Path) -> bool:
    """Whether a program can be read and decompressed. If so, it is marked, so that it is not
    checked again.
    """
    if path.name.endswith(_UNUSED):
        return False
    try:
        whole = len(_decompressed(path.read_bytes())) > 0
    except Exception:  # the exceptions of decompressors have no common class
        return False
    # On a read-only file system, all programs are checked each time.
    with contextlib.suppress(OSError):
        path.chmod(CHECKED)
    return whole


def _decompressed(content: bytes) -> bytes:
    """Decompresses `content` with the library that JAX uses: the first of these that is
    installed.
    """
    try:
        from compression.zstd import decompress  # type: ignore
    except ImportError:
        try:
            from zstandard import decompress  # type: ignore
        except ImportError:
            from zlib import decompress
    return decompress(content)


def _remove(path: Path) -> bool:
    """Removes a program. Returns whether it no longer exists."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        return True
    return False
