"""The dataclasses that users make: policies, bandits, runs."""

import functools
from typing import TypeVar, dataclass_transform

import chex

Class = TypeVar("Class", bound=type)


@dataclass_transform(frozen_default=True)
def pytree(cls: Class) -> Class:
    """Class decorator: a frozen dataclass whose fields are the leaves of a pytree.

    A method `_check` is called when a user makes an instance, and not when JAX puts one together again. (`__post_init__`
    will not do: pytrees are rebuilt through it, with tracers and placeholders for leaves.)
    """
    made = chex.dataclass(frozen=True, mappable_dataclass=False)(cls)
    if hasattr(made, "_check"):
        init = made.__init__

        @functools.wraps(init)
        def checked(self, *args, **kwargs):
            init(self, *args, **kwargs)
            self._check()

        made.__init__ = checked
    return made
