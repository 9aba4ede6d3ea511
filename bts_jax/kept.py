"""Compiled programs of built-in policies and bandits, on disk: a later process loads them, and need not trace them.

JAX's own cache finds a compiled program by what it was traced to. So every process has to trace the program first, which takes
about half a second. The files here are found by what the program is made from instead: the source of this package, the classes
of policy and bandit, shapes, devices and JAX's settings. That is known for classes of this package alone. Programs with a class
of a user's own are traced in every process.

The files are in the folder of JAX's cache (`cache`), which is private: to load a program is to run it.
A file that cannot be loaded is ignored, and the program is traced.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import zlib
from collections.abc import Iterator
from functools import cache as once
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bts_jax import cache, files

_LOG = logging.getLogger("bts_jax")
_PACKAGE = Path(__file__).parent
_PLAIN = (str, int, float, bool, bytes, type(None))


class Kept(NamedTuple):
    """The file of a program, which may not exist yet."""

    path: Path
    source: str  # digest of the package's source when the path was chosen
    devices: tuple

    def load(self, arguments: list, results: Any) -> tuple[Any, Any] | None:
        """The program and its notes; None if there is none that can be loaded.

        `arguments`: such as it is called with; `results`: of the structure of what it returns.
        """
        from jax.experimental.serialize_executable import deserialize_and_load

        try:
            notes, program = _unpacked(self.path.read_bytes())
            trees = jax.tree.structure(((arguments,), {})), jax.tree.structure(results)
            return deserialize_and_load(program, *trees, self.devices[0].client, self.devices), notes
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever is wrong with it, the program can be compiled again
            _LOG.info("%s cannot be loaded, and is compiled again (%s)", self.path.name, str(error).split("\n")[0][:200])
            return None

    def save(self, program: Any, notes: Any) -> None:
        """Writes the program, if JAX can and if the source of this package has not changed since it was imported."""
        from jax.experimental.serialize_executable import serialize

        if self.source != _source_now():
            return
        try:
            files.replace(self.path, _packed(notes, serialize(program)[0]))
            self.path.chmod(cache.CHECKED)
        except Exception as error:  # a full disk, or a program that JAX cannot write
            _LOG.info("%s cannot be kept (%s)", self.path.name, str(error).split("\n")[0][:200])


def kept(structures: list, devices: tuple, rest: Any) -> Kept | None:
    """The file for a program with these structures of policy and bandit; None if it has to be traced in every process.

    `rest`: whatever else the program depends on. Its `repr` says all.
    """
    folder = cache.in_use()
    if folder is None:
        return None
    try:
        parts = [list(_parts(structure)) for structure in structures]
    except _Foreign:
        return None
    settings = [(name, repr(getattr(jax.config, name, None))) for name in sorted(jax.config.values) if "cache" not in name]
    settings = re.sub(r" at 0x[0-9a-f]+", "", repr(settings))  # addresses of objects, which differ from process to process
    kinds = [(device.platform, device.device_kind, device.id) for device in devices]
    everything = [_source(), parts, kinds, rest, settings, os.environ.get("XLA_FLAGS", "")]
    name = hashlib.sha256(repr(everything).encode()).hexdigest()
    return Kept(folder / f"{name}{cache.KEPT}", _source(), devices)


class _Foreign(Exception):
    """A class that is not of this package, or a field that has no lasting name, such as a function."""


def _parts(structure: Any) -> Iterator[str]:
    """What a structure consists of: the classes, each with the code of its methods, and fields that are not arrays."""
    node = structure.node_data()
    if node is None:
        yield "*"
        return
    kind, fields = node
    own = kind.__module__.partition(".")[0] == "bts_jax"
    if not (own or kind in (tuple, list, dict, type(None))) or not _is_plain(fields):
        raise _Foreign
    yield f"{kind.__module__}.{kind.__qualname__} {fields!r} {_code(kind) if own else ''} {structure.num_nodes}"
    for child in structure.children():
        yield from _parts(child)


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, (tuple, list)) else type(value) in _PLAIN


def _code(kind: type) -> str:
    """A digest of the methods and numbers of a class, which somebody may have replaced."""
    digest = hashlib.sha256()
    for base in kind.__mro__:
        for name, value in sorted(vars(base).items()):
            function = getattr(value, "__func__", getattr(value, "fget", value))
            code = getattr(function, "__code__", None)
            content = (code.co_code, code.co_names, _constants(code)) if code else value if _is_plain(value) else None
            digest.update(repr((name, content)).encode())
    return digest.hexdigest()


def _constants(code: Any) -> tuple:
    """The constants of a function, with those of functions in it. They are objects, whose `repr` has an address."""
    return tuple((one.co_code, one.co_names, _constants(one)) if hasattr(one, "co_code") else one for one in code.co_consts)


@once
def _source() -> str:
    """A digest of this package's source, as it was when this was first asked for."""
    return _source_now()


def _source_now() -> str:
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE)}\n".encode())
        with contextlib.suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _packed(notes: Any, program: bytes) -> bytes:
    content = zlib.compress(json.dumps(notes).encode() + b"\n" + program, 1)
    return hashlib.sha256(content).digest() + content


def _unpacked(content: bytes) -> tuple[Any, bytes]:
    """The opposite of `_packed`. A file that was cut off, or changed, raises an error before anything in it is used."""
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        raise ValueError("the file is damaged")
    notes, _, program = zlib.decompress(content[32:]).partition(b"\n")
    return json.loads(notes), program
