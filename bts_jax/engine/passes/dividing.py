"""Prevents XLA from replacing a division by a multiplication with a reciprocal.

XLA replaces x / w by x · (1 / w) if w is a broadcast of fewer numbers. This rounds twice. Whether w
is a broadcast depends on which arrays the runs of a batch share, and on whether one arm or all arms
are computed. This pass adds a zero to the bits of each divisor that may be a broadcast. The zero is
computed from the numerator's bits. XLA does not see that it is zero. LLVM does, and removes it, so
that it costs nothing in the end (jaxlib 0.10.2; `test_exactness.py`).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax.engine.jaxprs import ELEMENTWISE, bind, retrace, variables
from bts_jax.jax_internals import Closed, Equation, Jaxpr, Var


def divide_truly(closed: Closed) -> Closed:
    """The same closed jaxpr with float32 divisors that are not broadcasts. Its constants are shared
    by all runs.
    """
    small = _broadcasts(closed.jaxpr)

    def rule(equation: Equation, inputs: Sequence) -> Sequence:
        return bind(equation, [inputs[0], _hidden(*inputs)])

    return retrace(
        closed, lambda equation: _is_hidden(equation, small), rule, opaque=lambda _: True
    )


def _broadcasts(jaxpr: Jaxpr) -> set:
    """The variables that may be broadcasts for XLA: constants, broadcasts, and values that are
    computed only from these.
    """
    small = set(jaxpr.constvars)
    for equation in jaxpr.eqns:
        name, used = equation.primitive.name, variables(equation.invars)
        if name in ("broadcast_in_dim", "iota") or (
            name in {*ELEMENTWISE, "reshape", "squeeze", "slice"}
            and used
            and small.issuperset(used)
        ):
            small.update(equation.outvars)
    return small


def _is_hidden(equation: Equation, small: set) -> bool:
    if equation.primitive.name != "div" or equation.outvars[0].aval.dtype != jnp.float32:
        return False
    shapes = [atom.aval.shape for atom in equation.invars]
    over, under = equation.invars
    varies = (
        isinstance(over, Var) and over not in small and shapes[0] == equation.outvars[0].aval.shape
    )
    return varies and isinstance(under, Var) and (under in small or shapes[0] != shapes[1])


def divide(over: jax.Array, under: jax.Array) -> jax.Array:
    """The quotient, for code that `divide_truly` does not reach."""
    return over / _hidden(over, under)


def _hidden(over: jax.Array, under: jax.Array) -> jax.Array:
    bits = [
        lax.bitcast_convert_type(jnp.broadcast_to(x, over.shape), jnp.uint32) for x in (over, under)
    ]
    zero = lax.shift_right_logical(bits[0] & jnp.uint32(1), jnp.uint32(1))
    return lax.bitcast_convert_type(bits[1] | zero, jnp.float32)
