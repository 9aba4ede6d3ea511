"""User-defined classes, given by name: "my_module:MyPolicy".

Only a file or an argument of the user may name such a class. A store has the names of classes, but
never says what to import.
"""

import importlib
import importlib.machinery
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax.names import suggestion
from bts_jax.text import shown

# Members that a class must have. The means are not listed: they may be fields, which a class does
# not have.
MEMBERS = {
    "policy": ("init", "__call__", "update"),
    "bandit": ("pull",),
    "posterior": ("init", "draw", "record"),
}
EXAMPLE = {
    "policy": "my_module:MyPolicy",
    "bandit": "my_module:MyBandit",
    "posterior": "my_module:MyPosterior",
}


def is_name(text: Any) -> bool:
    """Whether a text is meant as the name of a user-defined class."""
    return isinstance(text, str) and ":" in text


def find(
    text: str, kind: str | None = None, *, folder: str | os.PathLike = ".", where: str = "class"
) -> type:
    """Imports the class that "module:Class" names. This runs the code of the module.

    Args:
        text: a module and a class in it; a module in a package has dots, as in
            "package.module:Class".
        kind: "policy", "bandit" or "posterior": what the class must be. By default it may be a
            policy or a bandit.
        folder: searched for the module first, before Python's search path.
        where: the name of `text` in error messages.

    Example:
        >>> find("bts_jax.policies.kube:KUBE", "policy").__name__
        'KUBE'
    """
    what = f"{where} = {shown(text)}"
    module_name, _, name = text.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(
            f"{what} does not name a class: give a module and a class in it, such as "
            f"{EXAMPLE[kind or 'policy']!r}"
        )
    module = _imported(what, module_name, Path(os.path.abspath(folder)))
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [member for member, value in vars(module).items() if isinstance(value, type)]
        reason = "has no class" if found is None else "has an object that is not a class, named"
        raise ValueError(
            f"{what}: {_named(module)} {reason} {name!r}: give the name of a class in "
            f"it{suggestion(name, classes)}"
        )
    kinds = [kind] if kind else ["policy", "bandit"]
    missing = {one: [member for member in MEMBERS[one] if not _has(found, member)] for one in kinds}
    if all(missing.values()):
        reasons = " or ".join(
            f"a {one} (no {', '.join(members)})" for one, members in missing.items()
        )
        raise ValueError(f"{what} is not {reasons}: add the members that bts_jax.contract lists")
    return found


def arrays(thing: Any) -> Any:
    """Replaces lists of numbers in the fields of a user-defined policy or bandit by arrays: JAX
    treats no list as a leaf.
    """

    def array(part: Any) -> Any:
        if isinstance(part, list):
            with suppress(ValueError):  # a list of lists of different lengths
                if np.asarray(part).dtype.kind in "iufb":
                    return jnp.asarray(part)
        return part

    return jax.tree.map(array, thing, is_leaf=lambda part: isinstance(part, list))


def by_name(
    texts: Sequence[str], *, where: str = "--import"
) -> tuple[dict[str, type], dict[str, type]]:
    """Imports user-defined classes from the current folder. Returns the policies and the bandits
    among them, by class name.
    """
    policies: dict[str, type] = {}
    bandits: dict[str, type] = {}
    for text in texts:
        if not is_name(text):
            raise ValueError(
                f"{where} = {shown(text)} does not name a class: give a module and a class in it, "
                f"such as {EXAMPLE['policy']!r}"
            )
        found = find(text, where=where)
        kinds = [
            one
            for one, kind in ((policies, "policy"), (bandits, "bandit"))
            if all(_has(found, member) for member in MEMBERS[kind])
        ]
        for one in kinds:
            if one.setdefault(found.__name__, found) is not found:
                raise ValueError(
                    f"{where} names two classes {found.__name__!r}, which a store cannot tell "
                    "apart: go on with the sweep by the file or the call that started it"
                )
    return policies, bandits


def call(where: str, make: Any, options: Mapping[str, Any]) -> Any:
    """Calls a user-defined class, or a method of it, with these options. Error messages name the
    line in the user's code.
    """
    try:
        return make(**options)
    except Exception as error:
        module = sys.modules.get(getattr(make, "__module__", ""), None)
        raise ValueError(f"{where}: {located(error, getattr(module, '__file__', None))}") from error


def located(error: BaseException, file: str | os.PathLike | None = None) -> str:
    """Describes an exception in one line, with the last place in `file` (or below that folder) in
    its traceback.
    """
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
        and os.path.abspath(frame.filename) != os.path.abspath(__file__)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    inside = [
        place
        for place in frames
        if file is not None and Path(file) in (Path(place[0]), *Path(place[0]).parents)
    ]
    place = (inside or frames or [None])[-1]
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return said if place is None else f"{said} ({place[0]}, line {place[1]})"


def _imported(what: str, name: str, folder: Path) -> Any:
    try:
        with _searched(folder):
            module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is not None and (name == absent or name.startswith(f"{absent}.")):
            raise ValueError(
                f"{what}: there is no module {absent!r} in {str(folder)!r}, nor where Python "
                "looks: put the file there, or install its package"
            ) from None
        raise ValueError(f"{what}: importing {name!r} failed, {located(error, folder)}") from error
    # Python keeps one module for each name. If two files have the same name, it is the one that was
    # imported first.
    top = sys.modules[name.partition(".")[0]]
    here, loaded = (
        importlib.machinery.PathFinder.find_spec(top.__name__, [str(folder)]),
        getattr(top, "__file__", None),
    )
    if (
        here
        and here.origin
        and loaded
        and os.path.realpath(here.origin) != os.path.realpath(loaded)
    ):
        raise ValueError(
            f"{what}: {here.origin!r} has the name of a module that is loaded already ({loaded}): "
            "rename the file"
        )
    return module


@contextmanager
def _searched(folder: Path) -> Iterator[None]:
    """Makes Python look for modules in that folder first."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()  # the file may be new
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))


def _named(module: Any) -> str:
    file = getattr(module, "__file__", None)
    return f"module {module.__name__!r}" + (f" ({file})" if file else "")


def _has(found: type, member: str) -> bool:
    """Whether instances have a member. `hasattr` does not tell for `__call__`: every class can be
    called.
    """
    return any(member in vars(base) for base in found.__mro__ if base is not object)
