"""Makes computations of policies and bandits outside the loop give the same bits in every
program.
"""

from collections.abc import Callable
from typing import Any

import jax

from bts_jax.devices import default_platform
from bts_jax.engine.pipeline import rewritten_once
from bts_jax.jax_internals import jaxpr_as_fun, make_jaxpr


def reproducible(function: Callable) -> Callable:
    """Rewrites `function` so that XLA computes the same bits in every program."""

    def rewritten(*arguments: Any) -> Any:
        closed, out = make_jaxpr(function, *arguments)
        closed = rewritten_once(closed, default_platform())
        outputs = jaxpr_as_fun(closed)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(out), outputs)

    return rewritten
