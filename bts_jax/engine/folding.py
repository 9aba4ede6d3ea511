"""Constant folding: what is known of a step before it runs, from the inputs whose values are known.

Only flags and integers are computed, because floats may be rounded differently on a device.
"""

from typing import Any

import numpy as np
from jax.extend import core

from bts_jax.engine.lanes import is_one_entry

OPERATIONS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "not": np.bitwise_not, "copy": np.array, "convert_element_type": np.array,
}


def fold_constants(equation: Any, known: dict) -> None:
    """Adds the result of an operation to `known`, if it is known.

    A value is a NumPy array, or a variable: the result is then the same as that variable.
    """
    inputs = [np.asarray(atom.val) if isinstance(atom, core.Literal) else known.get(atom, atom) for atom in equation.invars]
    if len(equation.outvars) != 1:
        return
    result, = equation.outvars
    value = _value(equation, inputs)
    if isinstance(value, np.ndarray | np.generic):
        known[result] = np.broadcast_to(value, result.aval.shape).astype(result.aval.dtype)
    elif value is not None and (value.aval.shape, value.aval.dtype) == (result.aval.shape, result.aval.dtype):
        known[result] = value


def _value(equation: Any, inputs: list) -> Any:
    name, params, shape = equation.primitive.name, equation.params, equation.outvars[0].aval.shape
    constant = [isinstance(x, np.ndarray) for x in inputs]
    if name == "select_n" and equation.invars[0].aval.dtype == bool:
        flags, *cases = inputs
        if constant[0] and flags.all() == flags.any():
            return cases[int(flags.all())]
        return cases[0] if all(constant[1:]) and (cases[0] == cases[1]).all() else None
    if name in ("and", "or") and equation.outvars[0].aval.dtype == bool and constant[0] != constant[1]:
        one, other = inputs if constant[0] else inputs[::-1]
        if (one == (name == "or")).all():
            return one
        return other if (one == (name == "and")).all() else None
    if is_one_entry(equation) and constant[1]:
        return None if 0 <= inputs[1].item() < equation.invars[0].aval.shape[0] else inputs[0]
    if name == "iota":
        return np.indices(shape)[params["dimension"]]
    if not all(constant):
        return None
    if name in OPERATIONS and {x.dtype.kind for x in (*inputs, equation.outvars[0].aval)} <= set("biu"):
        with np.errstate(all="ignore"):
            return OPERATIONS[name](*inputs)
    if name == "squeeze" or (name == "reshape" and params["dimensions"] is None):
        return inputs[0].reshape(shape)
    if name == "broadcast_in_dim":
        kept = params["broadcast_dimensions"]
        return inputs[0].reshape([inputs[0].shape[kept.index(axis)] if axis in kept else 1 for axis in range(len(shape))])
    return None
