"""Shared tools of the passes over jaxprs: a builder that copies equations, and an evaluator with
custom rules.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bts_jax import random
from bts_jax.jax_internals import (
    Atom,
    Closed,
    Equation,
    Jaxpr,
    Literal,
    Var,
    jaxprs_in_params,
    make_jaxpr,
)
from bts_jax.random import EXACT

CALLS = "jit pjit closed_call core_call custom_jvp_call custom_vjp_call remat2 checkpoint".split()
# Of our random number generator and of JAX's.
HASHES = {hash.__name__: hash for hash in (random.hash, random.jax_hash)}
ELEMENTWISE = """
    abs add and atan2 bitcast_convert_type cbrt ceil clamp complex convert_element_type copy cos
    cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le log
    log1p logistic lt max min mul mulhi ne neg nextafter not or pow population_count real rem
    round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt
    square stop_gradient sub tan tanh xor
    """.split()
MOVES = "broadcast_in_dim concatenate reshape squeeze stack".split()  # These compute nothing.
SIMPLE = {*ELEMENTWISE, *MOVES, "iota"}

# (equation, inputs) -> outputs; `None`: evaluate the operation itself.
Rule = Callable[[Equation, Sequence], Sequence | None]


def body_of_call(equation: Equation) -> Closed | None:
    """The closed jaxpr that a call evaluates. `None` for other operations."""
    if equation.primitive.name not in CALLS:
        return None
    inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
    return inner if isinstance(inner, Closed) else Closed(inner, ())


def is_exact(equation: Equation) -> bool:
    """Whether this is the call of a function that rounds its products itself (`random.exact`)."""
    return equation.primitive.name in CALLS and str(equation.params.get("name", "")).startswith(
        EXACT
    )


def is_hash(equation: Equation) -> bool:
    """Whether this is the call of a hash, the core of a random number generator."""
    return equation.primitive.name in CALLS and equation.params.get("name") in HASHES


class Builder:
    """Builds a closed jaxpr from copied equations of other jaxprs and from new equations, which are
    traced.

    Copying an equation takes a tenth of the time that JAX needs to trace it again. The values in
    this class are variables and literals of the new jaxpr, and pytrees of them.
    """

    def __init__(self):
        self.equations: list = []
        self.constants: dict[int, tuple] = {}  # id of the value: its variable, and the value

    def constant(self, var: Var, value: Any) -> Var:
        """The variable of a constant. In another jaxpr it is `var`."""
        return self.constants.setdefault(id(value), (Var(var.aval), value))[0]

    def start(self, closed: Closed, inputs: Sequence) -> dict:
        """Maps the constants and the inputs of a closed jaxpr to their new variables, before its
        equations are copied.
        """
        constants = [
            self.constant(var, value)
            for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True)
        ]
        return dict(zip(closed.jaxpr.constvars, constants, strict=True)) | dict(
            zip(closed.jaxpr.invars, inputs, strict=True)
        )

    def copy(self, equation: Equation, inputs: Sequence, params: dict | None = None) -> list:
        """Copies an equation with new inputs of the same types. Returns its new outputs."""
        outputs = [Var(var.aval) for var in equation.outvars]
        self.equations.append(equation.replace(invars=list(inputs), outvars=outputs, params=params))
        return outputs

    def inline(
        self,
        closed: Closed,
        inputs: Sequence,
        apply: Callable[[Equation, list], list | None] = lambda equation, inputs: None,
        opaque: Callable[[Equation], bool] = lambda _: False,
    ) -> list:
        """Copies a closed jaxpr, and returns its outputs. Calls are inlined unless they are opaque.

        `apply` takes an equation and its inputs. It returns the outputs of a replacement, or `None`
        to copy the equation.
        """
        env = self.start(closed, inputs)
        for equation in closed.jaxpr.eqns:
            given = [new_atom(atom, env) for atom in equation.invars]
            inner = body_of_call(equation)
            if inner is not None and not opaque(equation):
                outputs = self.inline(inner, given, apply, opaque)
            else:
                outputs = apply(equation, given)
                if outputs is None:
                    outputs = self.copy(equation, given)
            env.update(zip(equation.outvars, outputs, strict=True))
        return [new_atom(atom, env) for atom in closed.jaxpr.outvars]

    def trace(self, function: Callable, *values: Any) -> Any:
        """Traces a function of arrays, and returns its outputs for these values."""
        atoms, structure = jax.tree.flatten(values)
        arguments = [shape_of(atom) for atom in atoms]
        closed, out = make_jaxpr(lambda *leaves: function(*structure.unflatten(leaves)), *arguments)
        return jax.tree.unflatten(
            jax.tree.structure(out), self.inline(closed, atoms, opaque=lambda _: True)
        )

    def closed(self, jaxpr: Jaxpr, inputs: Sequence, outputs: Sequence) -> Closed:
        """The closed jaxpr of all equations, with these inputs and outputs. It replaces `jaxpr`."""
        constvars, consts = (
            zip(*self.constants.values(), strict=True) if self.constants else ((), ())
        )
        new = jaxpr.replace(
            constvars=list(constvars),
            invars=list(inputs),
            outvars=list(outputs),
            eqns=self.equations,
        )
        return Closed(new, list(consts))


def new_atom(atom: Atom, env: dict) -> Atom:
    """The new variable for a variable. A literal is returned unchanged."""
    return atom if isinstance(atom, Literal) else env[atom]


def shape_of(atom: Atom) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        atom.aval.shape, atom.aval.dtype, weak_type=getattr(atom.aval, "weak_type", False)
    )


def retrace(
    closed: Closed,
    applies: Callable[[Equation], bool] = lambda _: False,
    rule: Callable[[Equation, Sequence], Sequence] = lambda *_: (),
    opaque: Callable[[Equation], bool] = lambda _: False,
) -> Closed:
    """The same closed jaxpr, with calls inlined unless they are opaque, and with `rule` in place of
    some equations.

    `applies` selects these equations. The rule is a function of an equation and its inputs, and
    returns its outputs.
    """
    builder = Builder()

    def apply(equation: Equation, inputs: list) -> list | None:
        return (
            list(builder.trace(lambda *inputs: rule(equation, inputs), *inputs))
            if applies(equation)
            else None
        )

    outputs = builder.inline(closed, closed.jaxpr.invars, apply, opaque)
    return builder.closed(closed.jaxpr, closed.jaxpr.invars, outputs)


def evaluate(
    jaxpr: Jaxpr,
    consts: Sequence,
    arguments: Sequence,
    rule: Rule,
    opaque: Callable[[Equation], bool] = lambda _: False,
) -> list:
    """The outputs of a jaxpr for these arguments."""
    env = evaluate_env(jaxpr, consts, arguments, rule, opaque)
    return [read(atom, env) for atom in jaxpr.outvars]


def evaluate_env(
    jaxpr: Jaxpr,
    consts: Sequence,
    arguments: Sequence,
    rule: Rule,
    opaque: Callable[[Equation], bool] = lambda _: False,
) -> dict:
    """The values of all variables of a jaxpr for these arguments."""
    env = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(
        zip(jaxpr.invars, arguments, strict=True)
    )
    for equation in jaxpr.eqns:
        inputs = [read(atom, env) for atom in equation.invars]
        inner = body_of_call(equation)
        if inner is not None and not opaque(equation):
            outputs = evaluate(inner.jaxpr, inner.consts, inputs, rule, opaque)
        else:
            outputs = rule(equation, inputs)
            if outputs is None:
                outputs = bind(equation, inputs)
        env.update(zip(equation.outvars, outputs, strict=True))
    return env


def bind(equation: Equation, inputs: Sequence, rewrite: Callable = lambda body: body) -> Sequence:
    """Evaluates an operation. `rewrite` is applied to the bodies of a loop or a branch."""
    params = jax.tree.map(
        lambda x: rewrite(x) if is_closed(x) else x, equation.params, is_leaf=is_closed
    )
    outputs = equation.primitive.bind(*inputs, **params)
    return outputs if equation.primitive.multiple_results else [outputs]


def has_bodies(equation: Equation) -> bool:
    """Whether this is a loop, a branch or a call."""
    return any(True for _ in jaxprs_in_params(equation.params))


def is_closed(x: Any) -> bool:
    return isinstance(x, Closed)


def read(atom: Atom, env: dict) -> Any:
    return atom.val if isinstance(atom, Literal) else env[atom]


def variables(atoms: Sequence) -> list:
    """The atoms that are variables, not literals."""
    return [atom for atom in atoms if isinstance(atom, Var)]


def is_one_entry(equation: Equation) -> bool:
    """Whether this is `x.at[i].set(y)` or `x.at[i].add(y)` for a scalar i. An index out of range
    changes nothing.
    """
    if equation.primitive.name not in ("scatter", "scatter-add"):
        return False
    # `x.at[i].apply(f)`.
    if equation.primitive.name == "scatter" and equation.params["update_jaxpr"] is not None:
        return False
    operand, indices, _ = (atom.aval for atom in equation.invars)
    one = lax.ScatterDimensionNumbers(tuple(range(operand.ndim - 1)), (0,), (0,))
    params = equation.params
    return (
        indices.shape == (1,)
        and params["dimension_numbers"] == one
        and params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    )


def is_float(var: Var) -> bool:
    """Whether a variable of a jaxpr is an array of real floats."""
    return jnp.issubdtype(getattr(var.aval, "dtype", jnp.bool_), jnp.floating)


def is_small(var: Var) -> bool:
    """Whether a variable has at most 4 entries per run, such as a scalar or a key's words. The
    engine calls it a scalar.
    """
    return math.prod(getattr(var.aval, "shape", ())) <= 4


def simplified(closed: Closed) -> Closed:
    """`merged`, of a closed jaxpr."""
    return Closed(merged(closed.jaxpr), closed.consts)


def merged(jaxpr: Jaxpr) -> Jaxpr:
    """Removes operations whose results are not used, and operations that repeat another one."""
    same, seen, equations = {}, {}, []

    def the_one(atom: Atom) -> Atom:
        return same.get(atom, atom) if isinstance(atom, Var) else atom

    def name(atom: Atom) -> Any:
        return atom if isinstance(atom, Var) else (str(atom.aval), np.asarray(atom.val).tobytes())

    maker: dict[Any, Any] = {}
    for equation in jaxpr.eqns:
        if not same.keys().isdisjoint(variables(equation.invars)):
            equation = equation.replace(invars=[the_one(atom) for atom in equation.invars])
        simple = _simplified(equation, maker)
        if simple is not None:
            same.update(zip(equation.outvars, simple, strict=True))
            continue
        maker.update(dict.fromkeys(equation.outvars, equation))
        what = _what(equation)
        if what is not None:
            key = equation.primitive, what, *map(name, equation.invars)
            if key in seen:
                same.update(zip(equation.outvars, seen[key], strict=True))
                continue
            seen[key] = equation.outvars
        equations.append(equation)
    outputs = [the_one(atom) for atom in jaxpr.outvars]
    needed, kept = set(variables(outputs)), []
    for equation in reversed(equations):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            kept.append(equation)
            needed.update(variables(equation.invars))
    return jaxpr.replace(eqns=kept[::-1], outvars=outputs)


def _simplified(equation: Equation, maker: dict) -> Any:
    """The outputs of an operation that computes nothing. `None` for other operations.

    `unwrap(wrap(x))` is x, an entry of a stack of scalars is this scalar, and a literal can be
    converted to any type.
    """
    name = equation.primitive.name
    if name == "convert_element_type" and isinstance(equation.invars[0], Literal):
        aval = equation.outvars[0].aval
        return [Literal(np.asarray(equation.invars[0].val).astype(aval.dtype), aval)]
    made = (
        maker.get(equation.invars[0])
        if equation.invars and isinstance(equation.invars[0], Var)
        else None
    )
    if made is None:
        return None
    if name == "random_unwrap" and made.primitive.name == "random_wrap":
        return made.invars[:1]
    if (
        name == "unstack"
        and made.primitive.name == "stack"
        and equation.params["axis"] == made.params["axis"]
    ):
        return made.invars
    if name == "squeeze" and made.primitive.name == "slice" and isinstance(made.invars[0], Var):
        stack, params = maker.get(made.invars[0]), made.params
        if (
            stack is not None
            and stack.primitive.name == "stack"
            and equation.outvars[0].aval.shape == ()
            and made.invars[0].aval.ndim == 1
        ):
            return [stack.invars[params["start_indices"][0]]]
    return None


def _what(equation: Equation) -> Any:
    """A description of what an operation does with its inputs. `None` if different parameters may
    print alike.
    """
    name = equation.primitive.name
    if is_hash(equation):
        return equation.params["name"]
    if name not in SIMPLE:
        return None
    return tuple(map(str, equation.params.values()))
