"""A disk cache of compiled programs of built-in policies and bandits. A later process loads them without tracing.

JAX's own cache finds a compiled program by its lowered code. So every process has to trace the program first, which takes
about half a second. Here the name of a file is a digest of everything that the program depends on: the source of this package,
its functions and classes as they are in this process, the structure of policy and bandit, shapes, devices and JAX's settings.
All of this is known only for classes of this package. Programs with a user-defined class are traced in every process.

The files are in the folder of JAX's cache (`cache`). The folder is private, because loading a program runs code. If a file
cannot be loaded, it is removed, and the program is traced. The file is not written again if JAX's cache has the program
(`engine.programs`).
"""

import contextlib
import hashlib
import json
import logging
import marshal
import os
import re
import sys
import zlib
from collections.abc import Iterator
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bts_jax import cache, files, pytrees
from bts_jax.text import reason

_LOG = logging.getLogger("bts_jax")
_PACKAGE = Path(__file__).parent
_PLAIN = (str, int, float, complex, bool, bytes, type(None), pytrees.Alike)
_VERSIONED = {"builtins", "chex", "dataclasses", "functools", "jax", "jaxlib", "numpy", "typing"}  # not inspected
_MADE_OF = {"bandits", "batch", "contract", "engine", "game", "policies", "pytrees", "random"}  # modules that programs use


class ProgramFile(NamedTuple):
    """The file of a program, which may not exist yet."""

    path: Path
    devices: tuple

    def load(self, arguments: list, results: Any) -> tuple[Any, Any] | None:
        """Loads the program and its notes. Returns None if there is no file, or if the file cannot be loaded.

        The program takes arguments with the shapes of `arguments`, and returns a pytree with the structure of `results`.
        """
        from jax.experimental.serialize_executable import deserialize_and_load

        try:
            notes, program = _unpacked(self.path.read_bytes())
            trees = jax.tree.structure(((arguments,), {})), jax.tree.structure(results)
            return deserialize_and_load(program, *trees, self.devices[0].client, self.devices), notes
        except FileNotFoundError:
            return None
        except Exception as error:  # in any case, the program can be compiled again
            _LOG.info("%s cannot be loaded, and is compiled again (%s)", self.path.name, reason(error))
            self.remove()
            return None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def save(self, program: Any, notes: Any) -> None:
        """Writes the program and its notes. Writes nothing if the source of this package has changed meanwhile."""
        from jax.experimental.serialize_executable import serialize

        if _source() != _source_now():
            return
        try:
            files.replace(self.path, _packed(notes, serialize(program)[0]))
        except Exception as error:  # a full disk, or a program that JAX cannot serialize
            _LOG.info("%s cannot be saved (%s)", self.path.name, reason(error))


def program_file(structures: list, devices: tuple, rest: Any) -> ProgramFile | None:
    """The file of a program. Returns None if the cache is off, or if the class of policy or bandit is user-defined.

    `structures` are the pytree structures of policy and bandit. `rest` is everything else that the program depends on. Two
    programs with the same structures, devices and `repr` of `rest` must be the same.
    """
    folder = cache.in_use()
    if folder is None:
        return None
    try:
        parts = [list(_parts(structure)) for structure in structures]
        settings = [(name, repr(getattr(jax.config, name, None))) for name in sorted(jax.config.values) if "cache" not in name]
        kinds = [(device.platform, device.device_kind, device.id, device.client.platform_version) for device in devices]
    except _Foreign:
        return None
    except Exception as error:  # another version of JAX may lack some of this
        _LOG.info("programs are traced in every process (%s)", reason(error))
        return None
    everything = repr([_source(), _live(), parts, kinds, rest, settings, os.environ.get("XLA_FLAGS", "")])
    everything = re.sub(r" at 0x[0-9a-f]+", "", everything)  # addresses of objects, which differ from process to process
    return ProgramFile(folder / f"{hashlib.sha256(everything.encode()).hexdigest()}{cache.TRACED}", devices)


class _Foreign(Exception):
    """A user-defined class, or a field whose `repr` differs from process to process, such as a function."""


def _parts(structure: Any) -> Iterator[str]:
    """The parts of a structure: its classes, and the fields that are not arrays."""
    node = structure.node_data()
    if node is None:
        yield "*"
        return
    kind, fields = node
    own = kind.__module__.partition(".")[0] == "bts_jax"
    if not (own or kind in (tuple, list, dict, type(None))) or not _is_plain(fields):
        raise _Foreign
    yield f"{kind.__module__}.{kind.__qualname__} {fields!r} {len(structure.children())}"
    for child in structure.children():
        yield from _parts(child)


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, (tuple, list)) else type(value) in _PLAIN


def _live() -> str:
    """A digest of the code that programs use, as it is in this process. A user may have replaced or reloaded a part of it."""
    found: list[bytes] = []
    seen: dict[int, Any] = {}  # objects by address, kept alive so that no other object gets the same address
    for name, module in sorted(sys.modules.items()):
        package, _, rest = name.partition(".")
        if package == "bts_jax" and rest.partition(".")[0] in _MADE_OF:
            for key, value in sorted(vars(module).items()):
                if key == "__builtins__":  # Python's own, of which a notebook replaces some
                    continue
                found.append(f"{name}.{key}".encode())
                _describe(value, found, seen)
    return hashlib.sha256(b"\n".join(found)).hexdigest()


def _describe(value: Any, found: list[bytes], seen: dict[int, Any]) -> None:
    """Adds code of functions, classes of this package, numbers and strings to `found`, and only the type of other objects."""
    if id(value) in seen or isinstance(value, list):  # lists may change while programs are played
        return
    if _is_plain(value):
        found.append(repr(value).encode())
        return
    seen[id(value)] = value
    inside: Any = ()
    code, module = getattr(value, "__code__", None), str(getattr(value, "__module__", "")).partition(".")[0]
    if module in _VERSIONED:
        found.append(f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}".encode())
    elif code is not None:
        found.append(marshal.dumps(code, 2))  # version 2 has no references, which differ from process to process
        inside = value.__defaults__, value.__kwdefaults__, *(cell.cell_contents for cell in value.__closure__ or ())
    elif isinstance(value, type):
        found.append(f"{value.__module__}.{value.__qualname__}".encode())
        inside = (one for _, one in sorted(vars(value).items())) if module == "bts_jax" else ()
    elif isinstance(value, property):
        inside = value.fget, value.fset
    elif isinstance(value, partial):
        inside = value.func, value.args, value.keywords
    elif isinstance(value, np.ndarray):
        found.append(value.tobytes())
    elif isinstance(value, (tuple, dict)):
        inside = value if isinstance(value, tuple) else value.items() if all(isinstance(key, str) for key in value) else ()
    else:
        found.append(type(value).__name__.encode())
        inside = getattr(value, "__func__", None), getattr(value, "__wrapped__", None)
    for one in inside:
        _describe(one, found, seen)


@once
def _source() -> str:
    """A digest of this package's source at the time of the first call."""
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
    """The inverse of `_packed`. Raises an error if the file is incomplete or was changed."""
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        raise ValueError("the file is damaged")
    notes, _, program = zlib.decompress(content[32:]).partition(b"\n")
    return json.loads(notes), program
