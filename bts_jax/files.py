"""Atomic writes of files, reads of regular files only, and private folders."""

import errno
import os
import stat
import uuid
from pathlib import Path
from typing import BinaryIO


def opened(path: str | os.PathLike, links: bool = True) -> BinaryIO:
    """Opens a regular file for reading. Raises an `OSError` otherwise: a FIFO would block, and a
    device may be endless.

    `links`: whether the file may be a symbolic link.
    """
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags | (0 if links else getattr(os, "O_NOFOLLOW", 0)))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read(path: str | os.PathLike, most: int, links: bool = True) -> bytes:
    """Reads a regular file. Raises an `OSError` if it has more than `most` bytes."""
    with opened(path, links) as file:
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return content


def inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder, such as "regret/c.0". Raises an `OSError` if a folder on the
    way is a link.
    """
    path = folder
    for part in Path(name).parts[:-1]:
        path /= part
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "a link, or not a folder", str(path))
    return folder / name


def is_real_folder(path: Path) -> bool:
    """Whether this is a folder and not a link."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def is_real_file(path: Path) -> bool:
    """Whether this is a regular file and not a link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def replace(path: Path, content: bytes) -> None:
    """Writes a file atomically: it always has either the old content or the new one. A symbolic
    link is replaced.
    """
    building = beside(path)
    try:
        with building.open("xb") as out:
            out.write(content)
        building.replace(path)
    except BaseException:
        building.unlink(missing_ok=True)
        raise


def write(path: Path, content: bytes) -> None:
    """Like `replace`, but its `OSError` names the file and the remedy."""
    try:
        replace(path, content)
    except OSError as error:
        raise _unwritable(path, error) from error


def check_folder(path: Path) -> None:
    """Raises a `ValueError` if the path of a folder for results exists and is not a folder."""
    if os.path.exists(path) and not path.is_dir():
        raise ValueError(f"out = {str(path)!r} is a file: give a folder")


def make_folder(path: Path) -> None:
    """Creates a folder for results, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def private_folder(path: Path) -> Path | None:
    """Creates a private folder of this user, unless it exists. None if that fails, or if the path
    is a link or not private.
    """
    if not hasattr(os, "getuid"):
        return None
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    good = (
        stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    )
    return path if good else None


def exposed(path: Path) -> Path | None:
    """The first folder above an absolute path in which another user could exchange what is there.
    None if there is none.

    Links are followed step by step, because each folder on the way counts. Folders that do not
    exist yet are safe: only this user can create them.
    """
    if not hasattr(os, "getuid"):
        return None
    folder, ahead, links = Path(path.anchor), list(path.parts[-2:0:-1]), 0
    while folder.exists():
        if not _is_safe(folder.stat()):
            return folder
        if not ahead:
            break
        step = folder / ahead.pop()
        if step.is_symlink():
            links += 1
            if links > 40 or step.lstat().st_uid not in (0, os.getuid()):
                return folder
            target = Path(os.readlink(step))
            folder = Path(target.anchor) if target.is_absolute() else folder
            ahead += [part for part in reversed(target.parts) if part != target.anchor]
        else:
            folder = folder.parent if step.name == ".." else step
    return None


def _is_safe(folder: os.stat_result) -> bool:
    """Whether only this user and root can rename what is in a folder."""
    if folder.st_uid not in (0, os.getuid()):
        return False
    shared = folder.st_mode & stat.S_IWOTH or (
        folder.st_mode & stat.S_IWGRP and not _is_private_group(folder.st_gid)
    )
    return not shared or bool(folder.st_mode & stat.S_ISVTX)


def _is_private_group(number: int) -> bool:
    """Whether this user is the only member of a group. Many systems create such a group for each
    user, with the user's name.
    """
    import grp  # not available on Windows
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


def beside(path: Path) -> Path:
    """A new, unused path in the same folder."""
    return path.with_name(f".{uuid.uuid4().hex}")


def _unwritable(path: Path, error: OSError) -> OSError:
    return OSError(
        f"cannot write to {str(path)!r} ({error.strerror or error}): make sure that the folder "
        "exists, is writable and has space left, or name another one, and repeat the call"
    )
