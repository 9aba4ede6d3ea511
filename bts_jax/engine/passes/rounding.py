"""Rounds products before they are added.

Compilers may contract a · b + c into one instruction with one rounding instead of two. This depends
on the surrounding operations, even on the length of the array. `round_products` rounds every
product that reaches an addition, so that a policy or a bandit gives the same bits in every program.
It also rounds quotients that are divided again, because XLA replaces (a / b) / c by a / (b · c).
Functions marked `random.exact` are not changed.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax.engine.jaxprs import bind, has_bodies, is_exact, is_float, retrace
from bts_jax.jax_internals import Closed, Equation, Jaxpr, Var

# Operations that pass a product on unchanged, so that it may be added later.
PASS_ON = """
    broadcast_in_dim concatenate copy dynamic_slice gather neg pad reshape rev scatter select_n
    slice squeeze stack stop_gradient transpose
    """.split()
# Operations whose results are already rounded. All other operations may end with a multiplication.
ROUNDED = """
    add add_any ceil cumsum dot_general floor iota reduce_sum round scatter-add scatter-sub sign
    sqrt sub
    """.split()


def round_product(x: jax.Array) -> jax.Array:
    """Forces a product to be rounded before it is added. Does not change any other number.

    Compilers remove a plain copy, but not this minimum of bit patterns, because it changes one of
    the many patterns of NaN into another. This was observed with the CPU compiler of jaxlib 0.10.2
    and the GPU compiler of 0.11.2. `test_engine.py` notices if it changes. Compilers do remove a
    comparison of x with itself, and the rounding of `lax.reduce_precision`.
    """
    integers = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    bits = lax.bitcast_convert_type(x, integers)
    return lax.bitcast_convert_type(
        lax.min(bits, jnp.array(jnp.iinfo(integers).max - 1, integers)), x.dtype
    )


def round_products(closed: Closed, returned: bool = False) -> Closed:
    """The same closed jaxpr, with every float product that reaches an addition rounded first. Calls
    are inlined.

    If `returned`, outputs may be added to something outside, and count as added.
    """
    closed = retrace(
        closed,
        _has_products,
        lambda equation, inputs: bind(equation, inputs, round_all_products),
        is_exact,
    )
    added = _reaching_additions(closed.jaxpr, returned) | _quotients_divided_again(closed.jaxpr)

    def rule(equation: Equation, inputs: Sequence) -> list[jax.Array]:
        outputs = zip(equation.outvars, bind(equation, inputs), strict=True)
        return [round_product(x) if var in added else x for var, x in outputs]

    return (
        retrace(closed, lambda equation: not added.isdisjoint(equation.outvars), rule, is_exact)
        if added
        else closed
    )


def round_all_products(closed: Closed) -> Closed:
    """`round_products`, also for products that are returned."""
    return round_products(closed, returned=True)


def _has_products(equation: Equation) -> bool:
    """Whether this is a loop or a branch, whose body may have products."""
    return has_bodies(equation) and not is_exact(equation)


def _reaching_additions(jaxpr: Jaxpr, returned: bool) -> set:
    """The variables that may be products and may reach an addition, here, in a body, or outside if
    they are returned.
    """
    todo = [*jaxpr.outvars] if returned else []
    for equation in jaxpr.eqns:
        adds = equation.primitive.name in ("add", "add_any", "sub", "scatter-add", "scatter-sub")
        if adds or has_bodies(equation):
            todo += equation.invars
    return {
        var for var, equation in _origins(jaxpr, todo) if equation.primitive.name not in ROUNDED
    }


def _quotients_divided_again(jaxpr: Jaxpr) -> set:
    """The quotients that are dividends or divisors."""
    todo = [
        atom
        for equation in jaxpr.eqns
        if equation.primitive.name == "div"
        for atom in equation.invars
    ]
    return {var for var, equation in _origins(jaxpr, todo) if equation.primitive.name == "div"}


def _origins(jaxpr: Jaxpr, atoms: Sequence) -> list[tuple]:
    """The float operations that compute these variables, and their results. Operations that only
    pass values on are skipped.
    """
    maker = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
    todo, seen, found = [*atoms], set(), []
    while todo:
        var = todo.pop()
        if not isinstance(var, Var) or var in seen or not is_float(var):
            continue
        seen.add(var)
        equation = maker.get(var)
        if equation is None:
            continue
        name = equation.primitive.name
        # A conversion may do nothing, or convert integers.
        if name in PASS_ON or name == "convert_element_type":
            todo += equation.invars
        else:
            found.append((var, equation))
    return found
