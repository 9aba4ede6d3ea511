"""Files: written as a whole or not at all, and read only if they are regular files, which end; folders for one user alone."""

import errno
import os
import stat
import uuid
from pathlib import Path
from typing import BinaryIO


def opened(path: str | os.PathLike) -> BinaryIO:
    """A regular file, opened for reading. Anything else raises an `OSError`: a FIFO would block, and a device need not end."""
    # Without O_NONBLOCK, opening a FIFO would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read(path: str | os.PathLike, most: int) -> bytes:
    """The content of a regular file; an `OSError` if it has more than `most` bytes."""
    with opened(path) as file:
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return content


def replace(path: Path, content: bytes) -> None:
    """Writes a file in one step: it has the old content or the new one, whatever happens. A symbolic link is replaced."""
    building = beside(path)
    try:
        with building.open("xb") as out:
            out.write(content)
        building.replace(path)
    except BaseException:
        building.unlink(missing_ok=True)
        raise


def write(path: Path, content: bytes) -> None:
    """As `replace`, with an `OSError` that names the file and the remedy."""
    try:
        replace(path, content)
    except OSError as error:
        raise _unwritable(path, error) from error


def check_folder(path: Path) -> None:
    """Raises if something else is in the place of a folder for results."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"out = {str(path)!r} is a file: give a folder")


def make_folder(path: Path) -> None:
    """Makes a folder for results, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def private_folder(path: Path) -> Path | None:
    """A folder that belongs to this user alone, made unless it is there; None if it cannot be had. No link will do."""
    if not hasattr(os, "getuid"):
        return None
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    good = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return path if good else None


def beside(path: Path) -> Path:
    """A path in the same folder that nothing else has."""
    return path.with_name(f".{uuid.uuid4().hex}")


def _unwritable(path: Path, error: OSError) -> OSError:
    return OSError(f"cannot write to {str(path)!r} ({error.strerror or error}): make sure that the folder exists, is writable "
                   "and has space left, or name another one, and repeat the call")
