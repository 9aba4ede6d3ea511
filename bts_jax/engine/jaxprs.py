"""What the passes over jaxprs share: an evaluator that inlines calls, and takes other rules for some operations."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

CALLS = "jit pjit closed_call core_call custom_jvp_call custom_vjp_call remat2 checkpoint".split()

Rule = Callable[[Any, Sequence], Sequence | None]  # an equation and its inputs, to its outputs; `None`: the operation itself


def retrace(closed: Any, rule: Rule) -> Any:
    """The closed jaxpr of the same function, with `rule` applied to each equation and calls inlined."""
    arguments = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in closed.jaxpr.invars]
    return jax.make_jaxpr(lambda *inputs: evaluate(closed.jaxpr, closed.consts, inputs, rule))(*arguments)


def evaluate(jaxpr: Any, consts: Sequence, arguments: Sequence, rule: Rule) -> list:
    """The outputs of a jaxpr for these arguments."""
    env = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        inputs = [_read(atom, env) for atom in equation.invars]
        if equation.primitive.name in CALLS:
            inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
            outputs = evaluate(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs, rule)
        else:
            outputs = rule(equation, inputs)
            if outputs is None:
                outputs = bind(equation, inputs)
        env.update(zip(equation.outvars, outputs, strict=True))
    return [_read(atom, env) for atom in jaxpr.outvars]


def bind(equation: Any, inputs: Sequence, rewrite: Callable = lambda body: body) -> Sequence:
    """The outputs of an operation itself; of a loop or a branch, with its bodies rewritten."""
    params = jax.tree.map(lambda x: rewrite(x) if _is_closed(x) else x, equation.params, is_leaf=_is_closed)
    outputs = equation.primitive.bind(*inputs, **params)
    return outputs if equation.primitive.multiple_results else [outputs]


def _is_closed(x: Any) -> bool:
    return isinstance(x, core.ClosedJaxpr)


def _read(atom: Any, env: dict) -> Any:
    return atom.val if isinstance(atom, core.Literal) else env[atom]


def is_float(var: Any) -> bool:
    """Whether a variable of a jaxpr is an array of real floats."""
    return jnp.issubdtype(getattr(var.aval, "dtype", jnp.bool_), jnp.floating)
