"""Dataclasses that are pytrees: policies, bandits, runs."""

import dataclasses
import functools
import warnings
from typing import Any, TypeVar, dataclass_transform

import chex
import jax
import numpy as np

from bts_jax.names import suggestion

Class = TypeVar("Class", bound=type)


@dataclass_transform(frozen_default=True)
def pytree(cls: Class) -> Class:
    """Class decorator: a frozen dataclass whose fields are the leaves of a pytree.

    The method `_check`, if there is one, is called when a user creates an instance, and not when
    JAX rebuilds one. (`__post_init__` does not work for this: JAX rebuilds pytrees through it, with
    tracers and placeholders as leaves.)
    """
    made = chex.dataclass(frozen=True, mappable_dataclass=False)(cls)
    init, has_check = made.__init__, hasattr(made, "_check")
    fields = [field.name for field in dataclasses.fields(made)]

    @functools.wraps(init)
    def checked(self, *args, **kwargs):
        kwargs = _renamed(made, kwargs)
        for name in kwargs:
            if name not in fields:
                known = f"its fields are {', '.join(fields)}" if fields else "it has no fields"
                raise TypeError(
                    f"{cls.__name__} has no field {name!r}: {known}{suggestion(name, fields)}"
                )
        init(self, *args, **kwargs)
        if has_check:
            self._check()

    made.__init__ = checked
    return made


def _renamed(made: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Replaces old names of fields, which `made.renamed` maps to names such as "reward.alpha", a
    field of a field.

    `made.before` has these fields as they were with the old defaults. Old names work for one
    version, with a warning.
    """
    new_names = getattr(made, "renamed", {})
    old = [name for name in given if name in new_names]
    if not old:
        return given
    found = {name: value for name, value in given.items() if name not in new_names}
    parts: dict[str, dict[str, Any]] = {}
    for name in old:
        part, inner = new_names[name].split(".")
        parts.setdefault(part, {})[inner] = given[name]
    # What the parts were, when these were fields of the whole.
    for part, before in made.before.items():
        if part in found:
            raise TypeError(
                f"{made.__name__} got {part!r} and the old names of its fields: give {part!r} alone"
            )
        values = parts.get(part, {})
        numbers = {inner: value for inner, value in values.items() if np.ndim(value) == 0}
        found[part] = dataclasses.replace(before, **numbers)
        for inner in values.keys() - numbers.keys():  # a batch, as it was
            object.__setattr__(found[part], inner, values[inner])
    calls = ", ".join(
        f"{part}={type(found[part]).__name__}({', '.join(f'{name}=...' for name in values)})"
        for part, values in parts.items()
    )
    warnings.warn(
        f"the fields {', '.join(old)} of {made.__name__} have moved to its posteriors: write "
        f"{made.__name__}({calls})",
        DeprecationWarning,
        stacklevel=3,
    )
    return found


class Names(tuple):
    """Names of arms: a tuple of strings that may be a field of a bandit, although it has no
    numbers.

    It has no leaves, and all names count as equal in pytree structures. So bandits with different
    names share programs and can be stacked. `jax.tree.map` keeps the names of its first tree. A
    function under `jax.jit` that returns a bandit returns the names with which it was traced.

    Example:
        >>> jax.tree.structure([Names(("A", "B")), 1]) == jax.tree.structure([Names(("C",)), 1])
        True
        >>> jax.tree.map(lambda x: x + 1, [Names(("A", "B")), 1])
        [Names('A', 'B'), 2]
    """

    def __repr__(self) -> str:
        return f"Names({', '.join(map(repr, self))})"


class Alike:
    """The static data of `Names` in a pytree. All instances are equal."""

    def __init__(self, names: Names):
        self.names = names

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "names"


jax.tree_util.register_pytree_node(
    Names, lambda names: ((), Alike(names)), lambda kept, _: kept.names
)
