"""Policies and bandits of one's own, made to give the same bits in every program."""

from collections.abc import Callable
from typing import Any

import jax

from bts_jax.engine.jaxprs import evaluate
from bts_jax.engine.rounding import round_products
from bts_jax.engine.summation import without_reductions


def reproducible(function: Callable, owner: Any) -> Callable:
    """`function`, which calls a method of `owner`, with all that XLA might compute in several ways made definite.

    Classes of this package are left alone: they use no sums of floats, and their products are rounded by hand.
    """
    if type(owner).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return function

    def rewritten(*arguments: Any) -> Any:
        closed, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
        closed = without_reductions(round_products(closed))
        outputs = evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(arguments), lambda *_: None)
        return jax.tree.unflatten(jax.tree.structure(out), outputs)

    return rewritten
