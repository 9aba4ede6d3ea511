"""Makes computations of policies and bandits outside the loop give the same bits in every program."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from bts_jax.devices import default_platform
from bts_jax.engine.pipeline import rewritten_once


def reproducible(function: Callable) -> Callable:
    """Rewrites `function` so that XLA computes the same bits in every program."""

    def rewritten(*arguments: Any) -> Any:
        closed, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
        closed = rewritten_once(closed, default_platform())
        outputs = jaxpr_as_fun(closed)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(out), outputs)

    return rewritten
