"""Materializes values: forces XLA's CPU compiler to store them.

The compiler fuses an operation with every operation that uses it. A value with several uses is
computed again in each fusion, and a scalar of the run that is combined with K arms is computed K
times. This pass finds such values, and stores them if that saves more work than it costs. Only a
branch forces the compiler to store a value: it removes copies and barriers (jaxlib 0.10.2; `bts-jax
bench` shows when this changes). GPUs do not need this pass.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax.engine.jaxprs import ELEMENTWISE, is_hash, variables
from bts_jax.jax_internals import Equation, Jaxpr

FUSED = {
    *ELEMENTWISE,
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "slice",
    "iota",
    "dynamic_slice",
    "gather",
    "transpose",
}
WEIGHTS = {
    **dict.fromkeys(
        "broadcast_in_dim reshape squeeze slice transpose stop_gradient copy".split(), 0
    ),
    **dict.fromkeys("div rem sqrt rsqrt dynamic_slice gather".split(), 8),
    **dict.fromkeys(
        "exp exp2 expm1 log log1p tanh logistic sin cos tan erf erfc erf_inv pow "
        "cbrt atan2 sinh cosh".split(),
        20,
    ),
}
HASH_WEIGHT = 100
STORE = 30  # the weight of storing an entry of an array and reading it again
NUMBER_STORE = 40  # the same for a scalar of the run, including its branch
# The inputs of a reduction over arms are stored: XLA does not vectorise a reduction that is fused
# with its inputs.
REDUCTIONS = (
    "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_sum reduce_prod".split()
)


class Level(NamedTuple):
    """Operations to evaluate, and the variables to store after them."""

    equations: list
    stored: list[Any]


def levels(jaxpr: Jaxpr) -> list[Level]:
    """Groups the operations into levels. The variables of one level can be stored together."""
    chosen = _chosen(jaxpr)
    ready: dict[Any, int] = {}  # the first level in which a variable can be used
    found: list[Level] = [Level([], [])]
    for i, equation in enumerate(jaxpr.eqns):
        level = max((ready.get(var, 0) for var in variables(equation.invars)), default=0)
        while len(found) <= level + 1:
            found.append(Level([], []))
        found[level].equations.append(equation)
        if i in chosen:
            found[level].stored.extend(equation.outvars)
            level += 1
        ready.update(dict.fromkeys(equation.outvars, level))
    return found


def _chosen(jaxpr: Jaxpr) -> set[int]:
    """The indices of the equations whose results are stored."""
    equations = jaxpr.eqns
    number = {var: i for i, equation in enumerate(equations) for var in equation.outvars}
    uses: list[set[int]] = [set() for _ in equations]
    for i, equation in enumerate(equations):
        for var in variables(equation.invars):
            if var in number:
                uses[number[var]].add(i)
    returned = {number[var] for var in variables(jaxpr.outvars) if var in number}
    fused = [is_hash(one) or one.primitive.name in FUSED for one in equations]
    size = [
        max(1, *(math.prod(var.aval.shape) for var in one.outvars)) if one.outvars else 1
        for one in equations
    ]
    weight = [weight_of(one) for one in equations]
    candidates = [i for i, one in enumerate(equations) if fused[i] and not _is_cheap(one)]
    reduced = {
        number[var]
        for one in equations
        if one.primitive.name in REDUCTIONS
        for var in variables(one.invars)
        if var in number
    }
    # The operands of a branch are stored in any case. This pass stores them together with other
    # values; see `store`.
    operands = {
        number[var]
        for one in equations
        if one.primitive.name == "cond"
        for var in variables(one.invars)
        if var in number
    }
    chosen: set[int] = set()

    def gain(i: int, roots: set[int], cone: int) -> bool:
        """Whether storing is worth it. `roots` are the operations whose fusions compute the
        value.
        """
        times = (
            sum(max(size[i], size[root]) if fused[root] else size[i] for root in roots) / size[i]
        )
        if size[i] > 1 and ((i in reduced and cone > 1) or (i in operands and cone > 100)):
            return True
        return (times - 1) * cone > (STORE if size[i] > 1 else NUMBER_STORE)

    for again in range(3):
        cones = _cones(equations, number, fused, weight, chosen)
        roots: list[set[int]] = [set() for _ in equations]
        selected: set[int] = set()
        for i in reversed(range(len(equations))):
            for use in uses[i]:
                roots[i] |= (
                    {use} if not fused[use] or use in selected or use in returned else roots[use]
                )
                if use in returned and fused[use]:
                    roots[i] |= roots[use]
            if i in returned:
                roots[i] |= {i}
            if i in candidates and (not again or i in chosen) and gain(i, roots[i], cones[i]):
                selected.add(i)
        chosen = selected
    return chosen


def weight_of(equation: Equation) -> int:
    """The work of an operation, for one entry."""
    return HASH_WEIGHT if is_hash(equation) else WEIGHTS.get(equation.primitive.name, 1)


def _is_cheap(equation: Equation) -> bool:
    name = equation.primitive.name
    return name == "iota" or (name != "slice" and WEIGHTS.get(name, 1) == 0)


def _cones(
    equations: Sequence, number: dict, fused: list[bool], weight: list[int], chosen: set[int]
) -> list[int]:
    """The weight of computing one entry of each result from stored values."""
    masks, cones, kinds = [], [], sorted(set(weight))
    of_kind = {
        kind: sum(1 << i for i, w in enumerate(weight) if w == kind) for kind in kinds if kind
    }
    for i, equation in enumerate(equations):
        mask = 1 << i
        for var in variables(equation.invars):
            before = number.get(var)
            if before is not None and fused[before] and before not in chosen:
                mask |= masks[before]
        masks.append(mask)
        cones.append(sum(kind * (mask & which).bit_count() for kind, which in of_kind.items()))
    return cones


def store(arrays: Sequence[jax.Array], makers: Sequence) -> list[jax.Array]:
    """The same arrays, computed once and stored before they are used. `makers` are the equations
    that compute them.

    Two arrays of 32-bit numbers are stored as one array of complex numbers if they are the two
    words of a hash, or if they have an axis of arms. The compiler then computes both in one loop.
    So the hash is computed once, and two long computations
    overlap: two Beta proposals take 60 ns on an Arm core, instead of 85 ns in two loops (jaxlib
    0.10.2). For two scalars that are not used together, this would cost more than it saves: loops
    that read only one of them cannot be fully vectorised.
    """
    pairs, waiting, single = [], {}, []
    for i, (x, maker) in enumerate(zip(arrays, makers, strict=True)):
        hashed = is_hash(maker)
        key = (id(maker) if hashed else None, x.shape)
        if x.dtype.itemsize != 4 or (not hashed and x.ndim == 1):
            single.append(i)
        elif key in waiting:
            pairs.append((waiting.pop(key), i))
        else:
            waiting[key] = i
    single += waiting.values()
    given = [arrays[i] for i in single] + [_packed(arrays[i], arrays[j]) for i, j in pairs]
    taken = behind_a_branch(given)
    stored = dict(zip(single, taken, strict=False))
    for (i, j), both in zip(pairs, taken[len(single) :], strict=True):
        parts = zip((i, j), (lax.real(both), lax.imag(both)), strict=True)
        stored |= {k: lax.bitcast_convert_type(part, arrays[k].dtype) for k, part in parts}
    return [stored[i] for i in range(len(arrays))]


def behind_a_branch(tree: Any) -> Any:
    """The same arrays, behind a branch. XLA's CPU compiler stores them, and does not see how they
    were computed.
    """
    always = lax.optimization_barrier(jnp.bool_(True))
    return lax.cond(always, lambda x: x, lax.optimization_barrier, tree)


def _packed(first: jax.Array, second: jax.Array) -> jax.Array:
    return lax.complex(*(lax.bitcast_convert_type(x, jnp.float32) for x in (first, second)))
