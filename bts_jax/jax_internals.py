"""The one door to the parts of JAX that are not fully public. Other modules import them from here.

If a release of JAX changes one of them, this is the file to mend. The classes below name what the
engine uses of JAX's own.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.custom_batching import custom_vmap
from jax.extend.backend import backends
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxlib.version import __version__ as jaxlib_version
from jaxlib.version import __version_info__ as jaxlib_version_info

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    class Type:
        """The type of a variable: a shape and a dtype."""

        shape: tuple[int, ...]
        dtype: np.dtype
        ndim: int
        size: int

    class Var:
        """A variable of a jaxpr."""

        aval: Type

        def __init__(self, aval: Type): ...

    class Literal:
        """A constant in an equation."""

        aval: Type
        val: Any

        def __init__(self, val: Any, aval: Type): ...

    Atom = Var | Literal

    class Equation:
        """One operation of a jaxpr."""

        primitive: Primitive
        invars: list[Atom]
        outvars: list[Var]
        params: dict[str, Any]
        effects: Any

        def replace(self, **changes: Any) -> "Equation": ...

    class Jaxpr:
        """A function, as a list of operations."""

        constvars: list[Var]
        invars: list[Var]
        outvars: list[Atom]
        eqns: list[Equation]

        def replace(self, **changes: Any) -> "Jaxpr": ...

    class Closed:
        """A jaxpr with the values of its constants."""

        jaxpr: Jaxpr
        consts: Sequence

        def __init__(self, jaxpr: Jaxpr, consts: Sequence): ...

    def jaxpr_as_fun(closed: Closed) -> Callable[..., list]: ...

    def jaxprs_in_params(params: dict[str, Any]) -> Sequence[Jaxpr]: ...
else:
    from jax.extend.core import ClosedJaxpr as Closed
    from jax.extend.core import Jaxpr, Literal, Var, jaxpr_as_fun, jaxprs_in_params
    from jax.extend.core import JaxprEqn as Equation

    Atom = Var | Literal


def make_jaxpr(function: "Callable", *arguments: Any) -> "tuple[Closed, Any]":
    """The closed jaxpr of a function for arguments of these shapes, and the shapes of its
    results.
    """
    return jax.make_jaxpr(function, return_shape=True)(*arguments)  # type: ignore


def gpu_client(visible: list[int], memory: float) -> Any:
    """Another client of JAX for these GPUs, which may use this part of their memory."""
    from jaxlib import xla_client  # not public in JAX 0.11, and slow to import

    options = dict(xla_client.generate_pjrt_gpu_plugin_options())  # of the first client
    options |= {"preallocate": False, "memory_fraction": memory, "visible_devices": visible}
    return xla_client.make_c_api_client("cuda", options, None)


__all__ = [
    "Atom",
    "Closed",
    "Equation",
    "Jaxpr",
    "Literal",
    "Primitive",
    "ShapedArray",
    "Tracer",
    "Var",
    "backends",
    "batching",
    "custom_vmap",
    "gpu_client",
    "jaxlib_version",
    "jaxlib_version_info",
    "jaxpr_as_fun",
    "jaxprs_in_params",
    "make_jaxpr",
    "mlir",
]
