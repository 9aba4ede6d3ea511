"""Leaves the state of some lanes unchanged, without a copy.

If a lane waits, or if its draws are not complete, its state must not change: `where(counts,
updated, state)`. With an update such as `x.at[arm].add(1)`, this is a scatter and a copy of the
whole array. This pass makes the scatter write nothing instead: in the lanes that keep their state,
its index is out of range.
"""

from typing import Any

import jax
from jax import lax

from bts_jax.engine.jaxprs import Builder, is_one_entry, new_atom
from bts_jax.jax_internals import Atom, Closed, Equation, Var


def mask_scatters(closed: Closed) -> Closed:
    """The same closed jaxpr, with `where(condition, x.at[i].add(y), x)` as a scatter that writes if
    the condition is true.
    """
    jaxpr, builder = closed.jaxpr, Builder()
    env = builder.start(closed, jaxpr.invars)
    maker = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
    # Variable: its equation, the variable scattered into, index and update.
    scattered: dict[Any, tuple] = {}

    def masked(condition: Any, new: Any, old: Any) -> Any:
        """`new` where the condition is true, else `old`. `None` if `new` is not the result of
        scatters into `old`.
        """
        if new is old:
            return env[old]
        if new not in scattered:
            return None
        equation, operand, index, update = scattered[new]
        base = masked(condition, operand, old)
        return (
            None
            if base is None
            else builder.copy(equation, [base, masked_index(condition, equation, index), update])[0]
        )

    def masked_index(condition: Any, equation: Equation, index: Any) -> Any:
        def choose(condition: jax.Array, index: jax.Array) -> jax.Array:
            beyond = lax.full_like(index, equation.invars[0].aval.shape[0])
            return lax.select(lax.broadcast_in_dim(condition, index.shape, ()), index, beyond)

        return builder.trace(choose, condition, index)

    for equation in jaxpr.eqns:
        inputs = [new_atom(atom, env) for atom in equation.invars]
        outputs = None
        key = equation.outvars[0] if equation.outvars else None
        # So that an index out of range exists.
        if is_one_entry(equation) and inputs[1].aval.dtype.itemsize >= 4:
            scattered[key] = equation, equation.invars[0], *inputs[1:]
        elif equation.primitive.name == "select_n" and len(inputs) == 3:
            condition = _number(equation.invars[0], maker)
            if condition is not None and all(isinstance(atom, Var) for atom in equation.invars):
                condition = new_atom(condition, env)
                _, old, new = equation.invars
                value = masked(condition, new, old)
                outputs = None if value is None else [value]
                # One scatter, to be masked again.
                if value is not None and new in scattered and scattered[new][1] is old:
                    scatter, _, index, update = scattered[new]
                    scattered[key] = scatter, old, masked_index(condition, scatter, index), update
        env.update(
            zip(
                equation.outvars,
                builder.copy(equation, inputs) if outputs is None else outputs,
                strict=True,
            )
        )
    return builder.closed(jaxpr, jaxpr.invars, [new_atom(atom, env) for atom in jaxpr.outvars])


def _number(var: Atom, maker: dict) -> Atom | None:
    """The scalar from which an array is broadcast. `None` if there is no such scalar."""
    if isinstance(var, Var) and not getattr(var.aval, "shape", None):
        return var
    equation = maker.get(var) if isinstance(var, Var) else None
    if (
        equation is not None
        and equation.primitive is lax.broadcast_in_dim_p
        and not equation.invars[0].aval.ndim
    ):
        return equation.invars[0]
    return None
