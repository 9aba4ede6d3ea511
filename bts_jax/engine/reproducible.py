"""Makes user-defined policies and bandits give the same bits in every program."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from bts_jax.engine.rounding import round_products
from bts_jax.engine.summation import without_reductions


def reproducible(function: Callable, owner: Any) -> Callable:
    """`function`, rewritten so that XLA can compute it in one way only. It calls `owner`, a policy or a bandit.

    Classes of this package are not rewritten: they contain no sums of floats, and their products are rounded by hand.
    """
    if _is_ours(jax.tree.structure(owner)):
        return function

    def rewritten(*arguments: Any) -> Any:
        closed, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
        closed = without_reductions(round_products(closed))
        outputs = jaxpr_as_fun(closed)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(out), outputs)

    return rewritten


def call(owner: Any, method: str, *arguments: Any) -> Any:
    """What a method of a policy or a bandit returns, reproducibly."""

    def function(owner: Any, *arguments: Any) -> Any:
        return getattr(owner, method)(*arguments)

    function.__name__ = f"{type(owner).__name__}.{method}"  # for JAX's messages
    return reproducible(function, owner)(owner, *arguments)


def _is_ours(structure: Any) -> bool:
    """Whether all classes in a pytree belong to this package: a bandit may be made from one that does not."""
    node = structure.node_data()
    known = node is None or node[0].__module__.partition(".")[0] in ("builtins", __name__.partition(".")[0])
    return known and all(map(_is_ours, structure.children()))
