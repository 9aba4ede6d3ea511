"""Adds floats in an order that does not depend on the batch.

Float addition is not associative. XLA chooses the order of a matrix product or a sum by its shape,
and the batch is part of the shape. So the last bit of a score depends on the number of runs in a
loop, and a decision may depend on that bit. `in_fixed_order` rewrites a jaxpr so that each such sum
is a sequence of elementwise additions. Their order depends only on the number of terms.

Matrix factorizations (`cholesky`, `lu`, `qr`, `eigh`, `svd`) are not rewritten, because LAPACK and
cuSOLVER process each matrix of a batch separately. `LEFT_TO_XLA` lists the other operations that
add floats and are not rewritten. `check_policy` reports them.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax.engine.jaxprs import bind, is_exact, is_float, retrace
from bts_jax.engine.passes.rounding import round_product
from bts_jax.jax_internals import Closed, Equation, Jaxpr, jaxpr_as_fun, jaxprs_in_params

# The number of terms of a matrix product that are added as a tree. Trees are added one after the
# other. 4 and 8 terms are equally fast. With all 16 terms in one tree, a 16 × 16 product takes
# twice as long on an Arm core (jaxlib 0.10.2).
GROUP = 8
# A larger matrix product loops over its terms. These are the largest numbers of products and of
# terms in one iteration.
MOST_PRODUCTS, MOST_TERMS = 2**16, 256
# The largest number of unknowns of a triangular system that is solved without a loop.
WRITTEN_OUT = 32
LEFT_TO_XLA = """
    conv_general_dilated fft ragged_dot ragged_dot_general reduce reduce_window reduce_window_sum
    select_and_scatter_add tridiagonal_solve
    """.split()


Rules = dict[str, Callable]  # by the name of a primitive


def in_fixed_order(closed: Closed) -> Closed:
    """The same closed jaxpr, with every sum of floats in a fixed order. A jaxpr without such sums
    is returned unchanged.
    """
    return _rewritten(RULES, closed, is_exact)


def without_reductions(closed: Closed) -> Closed:
    """`in_fixed_order`, which also writes out maxima and minima of floats.

    Maxima and minima are exact in any order. But XLA's CPU compiler (jaxlib 0.10.2) passes large
    reductions to another library, together with the operations around them, and the `exp` of that
    library has other bits. A softmax in `test_engine.py` tests this.
    """
    return _rewritten(RULES | EXTREMES, closed, is_exact)


def left_to_xla(jaxpr: Jaxpr) -> set[str]:
    """The operations of a jaxpr that add floats in an order that XLA chooses."""
    found = {equation.primitive.name for equation in jaxpr.eqns if _is_left(equation)}
    return found.union(
        *(left_to_xla(inner) for one in jaxpr.eqns for inner in jaxprs_in_params(one.params))
    )


def _is_left(equation: Equation) -> bool:
    name, dtype = (
        equation.primitive.name,
        getattr(equation.outvars[0].aval, "dtype", None) if equation.outvars else None,
    )
    if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
        return False
    # Several entries may be added to one, on a GPU in any order.
    if name in ("scatter-add", "scatter-sub", "scatter-mul"):
        return (
            not equation.params["unique_indices"]
            and math.prod(equation.invars[1].aval.shape[:-1]) > 1
        )
    return name in LEFT_TO_XLA or (name in RULES and jnp.issubdtype(dtype, jnp.complexfloating))


def _rewritten(
    rules: Rules, closed: Closed, opaque: Callable[[Any], bool] = lambda _: False
) -> Any:
    """The same closed jaxpr, with rules applied to some operations. A jaxpr without these
    operations is returned unchanged.
    """
    if not any(_applies(rules, equation) for equation in closed.jaxpr.eqns):
        return closed
    return retrace(closed, partial(_applies, rules), partial(_apply, rules), opaque)


def _applies(rules: Rules, equation: Equation) -> bool:
    """Whether there is a rule for an operation or for an operation in its body."""
    if _rule(rules, equation) is not None:
        return True
    return any(
        _applies(rules, one) for body in jaxprs_in_params(equation.params) for one in body.eqns
    )


def _rule(rules: Rules, equation: Equation) -> Callable | None:
    """The rule that computes an operation in a fixed order, if it reduces floats. Integers are
    exact in any order.
    """
    return (
        rules.get(equation.primitive.name)
        if equation.outvars and is_float(equation.outvars[0])
        else None
    )


def _apply(rules: Rules, equation: Equation, inputs: Sequence) -> Sequence:
    """The outputs of an operation to which a rule applies."""
    if rule := _rule(rules, equation):
        return [rule(*inputs, **equation.params)]
    if equation.primitive.name == "custom_linear_solve":
        return _linear_solve(rules, inputs, **equation.params)
    return bind(equation, inputs, partial(_rewritten, rules))


def _linear_solve(rules: Rules, inputs: Sequence, const_lengths: Any, jaxprs: Any) -> list:
    """`jax.lax.custom_linear_solve` without the parts that only derivatives need."""
    first = const_lengths.matvec + const_lengths.vecmat
    consts = inputs[first : first + const_lengths.solve]
    right_hand_sides = inputs[first + const_lengths.solve + const_lengths.transpose_solve :]
    solve = _rewritten(rules, jaxprs.solve)
    return jaxpr_as_fun(solve)(*consts, *right_hand_sides)


def over_last_axis(x: jax.Array) -> jax.Array:
    """The sum over the last axis, term by term, for code that `in_fixed_order` does not reach."""
    return reduce(jnp.add, [x[..., j] for j in range(x.shape[-1])])


def _tree(combine: Callable, terms: jax.Array) -> jax.Array:
    """Combines the terms along the first axis in pairs, then pairs of pairs, and so on. Each level
    is one operation.
    """
    while (count := len(terms)) > 1:
        half = count // 2
        pairs = combine(terms[:half], terms[half : 2 * half])
        terms = lax.concatenate([pairs, terms[2 * half :]], 0) if count % 2 else pairs
    return terms[0]


def _sum_type(dtype: Any) -> Any:
    """The dtype of a sum. 16-bit floats are added as float32, as in XLA."""
    return jnp.float32 if jnp.dtype(dtype).itemsize < 4 else dtype


def _reduce(
    combine: Callable, empty: float, x: jax.Array, axes: Sequence[int], **_: Any
) -> jax.Array:
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [x.shape[axis] for axis in kept]
    if 0 in x.shape:
        return lax.full(shape, empty, x.dtype)
    terms = lax.transpose(x, [*axes, *kept]).reshape(-1, *shape).astype(_sum_type(x.dtype))
    return _tree(combine, round_product(terms)).astype(x.dtype)


def _cumulate(combine: Callable, x: jax.Array, axis: int, reverse: bool) -> jax.Array:
    return lax.associative_scan(combine, round_product(x), reverse=reverse, axis=axis)


def _dot_general(
    left: jax.Array,
    right: jax.Array,
    dimension_numbers: Any,
    preferred_element_type: Any = None,
    **_: Any,
) -> jax.Array:
    (left_summed, right_summed), (left_batch, right_batch) = dimension_numbers
    dtype = preferred_element_type or jnp.result_type(left, right)

    def arranged(
        x: jax.Array, summed: Sequence[int], batch: Sequence[int], before: int, after: int
    ) -> jax.Array:
        """`x` as [terms, *batch, *own], with axes of length 1 `before` or `after` its own, for the
        other operand's axes.
        """
        own = [axis for axis in range(x.ndim) if axis not in (*summed, *batch)]
        shape = [x.shape[axis] for axis in batch], [x.shape[axis] for axis in own]
        terms = math.prod(x.shape[axis] for axis in summed)
        x = lax.transpose(x.astype(_sum_type(dtype)), [*summed, *batch, *own])
        return x.reshape(terms, *shape[0], *[1] * before, *shape[1], *[1] * after)

    others = len(left_summed) + len(left_batch)
    left_own, right_own = left.ndim - others, right.ndim - others
    left, right = (
        arranged(left, left_summed, left_batch, 0, right_own),
        arranged(right, right_summed, right_batch, left_own, 0),
    )
    return _sum_of_products(left, right).astype(dtype)


def _sum_of_products(left: jax.Array, right: jax.Array) -> jax.Array:
    """Σ left[i] · right[i], elementwise and broadcast."""
    shape = jnp.broadcast_shapes(left.shape[1:], right.shape[1:])
    count, size = len(left), math.prod(shape)
    if count * size == 0:
        return jnp.zeros(shape, left.dtype)

    def add(total: jax.Array | None, left: jax.Array, right: jax.Array) -> jax.Array:
        for i in range(0, len(left), GROUP):
            terms = round_product(left[i : i + GROUP] * right[i : i + GROUP])
            total = _tree(lax.add, terms) if total is None else total + _tree(lax.add, terms)
        assert total is not None
        return total

    at_once = min(max(MOST_PRODUCTS // size // GROUP, 1) * GROUP, MOST_TERMS)
    total = add(None, left[:at_once], right[:at_once])
    whole, rest = divmod(count - at_once, at_once) if count > at_once else (0, 0)
    if whole:
        end = (whole + 1) * at_once
        blocks = [x[at_once:end].reshape(whole, at_once, *x.shape[1:]) for x in (left, right)]
        total, _ = lax.scan(lambda total, block: (add(total, *block), None), total, blocks)
    if rest:
        total = add(total, left[-rest:], right[-rest:])
    return total


def _triangular_solve(
    a: jax.Array,
    b: jax.Array,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    unit_diagonal: bool,
    **_: Any,
) -> jax.Array:
    """Solves for one unknown after the other, and subtracts each from all remaining equations."""
    if turned := left_side == transpose_a:  # x a = b is aᵀ xᵀ = bᵀ
        a = jnp.swapaxes(a, -1, -2)
    if not left_side:
        b = jnp.swapaxes(b, -1, -2)
    lower, size = lower != turned, a.shape[-1]
    place = lax.iota(jnp.int32, size)[:, None]

    def eliminate(step: Any, x: jax.Array) -> jax.Array:
        """Replaces row i of the right-hand side by unknown i."""
        i = step if lower else size - 1 - step
        column, row = lax.dynamic_slice_in_dim(a, i, 1, -1), lax.dynamic_slice_in_dim(x, i, 1, -2)
        if not unit_diagonal:
            row = row / lax.dynamic_slice_in_dim(column, i, 1, -2)
        left = place > i if lower else place < i
        return jnp.where(place == i, row, jnp.where(left, x - round_product(column * row), x))

    solve = (
        lax.fori_loop
        if size > WRITTEN_OUT
        else lambda _, stop, step, x: reduce(lambda x, i: step(i, x), range(stop), x)
    )
    x = solve(0, size, eliminate, b)
    return x if left_side else jnp.swapaxes(x, -1, -2)


RULES: Rules = {
    "reduce_sum": partial(_reduce, lax.add, 0),
    "reduce_prod": partial(_reduce, lax.mul, 1),
    "cumsum": partial(_cumulate, lax.add),
    "cumprod": partial(_cumulate, lax.mul),
    "cumlogsumexp": partial(_cumulate, jnp.logaddexp),
    "dot_general": _dot_general,
    "triangular_solve": _triangular_solve,
}
EXTREMES: Rules = {
    "reduce_max": partial(_reduce, lax.max, -math.inf),
    "reduce_min": partial(_reduce, lax.min, math.inf),
}
