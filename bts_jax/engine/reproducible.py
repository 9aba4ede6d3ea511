"""Makes computations of policies and bandits outside the loop give the same bits in every program."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from bts_jax.devices import default_platform
from bts_jax.engine.functions import write_out_functions
from bts_jax.engine.rounding import round_products
from bts_jax.engine.summation import without_reductions


def reproducible(function: Callable) -> Callable:
    """Rewrites `function` so that XLA computes the same bits in every program."""

    def rewritten(*arguments: Any) -> Any:
        closed, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
        closed = without_reductions(round_products(write_out_functions(closed, default_platform())))
        outputs = jaxpr_as_fun(closed)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(out), outputs)

    return rewritten
