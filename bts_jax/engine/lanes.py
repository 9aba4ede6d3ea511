"""Vectorisation with the batch on the last axis: the runs of a batch are lanes.

Policies and bandits are written for one run, with arrays of K arms. `jax.vmap` over N runs makes
arrays [N, K]. With small K this is slow, both in XLA's loops on a CPU and in a GPU's memory. Here
the arrays are [K, N]. `RULES` has a rule for each primitive. Operations without a rule are mapped
by `jax.vmap`. This changes no result, and is reported (`fallbacks`). On 2 Arm cores with 10 arms,
BTS is 2.4 times as fast as with `jax.vmap`, and KUBE 1.7 times. With 100 arms it is 1.1 and 3.2
times.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bts_jax.engine.failures import naming
from bts_jax.engine.jaxprs import (
    ELEMENTWISE,
    HASHES,
    bind,
    body_of_call,
    is_hash,
    is_one_entry,
    read,
)
from bts_jax.engine.pipeline import rewritten_once
from bts_jax.jax_internals import Equation, Jaxpr, Tracer, make_jaxpr

# The parameters of these operations name axes, counted from the front. Lanes on the last axis do
# not change them.
SAME_AXES = """
    argmax argmin concatenate cumlogsumexp cummax cummin cumprod cumsum reduce_and reduce_max
    reduce_min reduce_or reduce_prod reduce_sum reduce_xor rev squeeze stack unstack
    """.split()
REDUCTIONS = {
    "reduce_and": lax.bitwise_and,
    "reduce_or": lax.bitwise_or,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_sum": lax.add,
}
# The largest number of arms that is reduced without a loop: by XLA's CPU compiler, and here for
# GPUs.
WRITTEN_OUT = 24

_LOG = logging.getLogger("bts_jax")
_REPORTED: set[str] = set()


def lanes(function: Callable, platform: str = "cpu") -> Callable:
    """Maps `function` over the last axis of every array in its arguments. Results have the lanes
    last, too.
    """

    def mapped(*arguments: Any) -> Any:
        closed, out, count = traced(function, arguments)
        closed = rewritten_once(closed, platform)
        vector = Vectoriser(count, platform)
        results = vector.evaluate(
            closed.jaxpr, closed.consts, [Lanes(leaf) for leaf in jax.tree.leaves(arguments)]
        )
        return jax.tree.unflatten(out, [vector.spread(x) for x in results])

    return mapped


def traced(function: Callable, arguments: tuple) -> tuple[Any, Any, int]:
    """The closed jaxpr of the function for one lane, the pytree structure of its results, and the
    number of lanes.
    """
    leaves, structure = jax.tree.flatten(arguments)
    single = [jax.ShapeDtypeStruct(leaf.shape[:-1], leaf.dtype) for leaf in leaves]
    closed, out = make_jaxpr(lambda *args: function(*structure.unflatten(args)), *single)
    return closed, jax.tree.structure(out), leaves[0].shape[-1]


class Lanes:
    """A value that differs from lane to lane: an array with the lanes last. Other values are common
    to all lanes.
    """

    def __init__(self, array: Any):
        self.array = array


class KeyLanes(Lanes):
    """Keys that differ from lane to lane, as their data, uint32 [..., words, lanes]. They are
    wrapped only where necessary.
    """


def _wrap(data: jax.Array) -> jax.Array:
    return jax.vmap(
        lambda words: jax.random.wrap_key_data(words, impl="threefry2x32"), in_axes=-1, out_axes=-1
    )(data)


class Vectoriser:
    """Evaluates jaxprs of one lane for `count` lanes, for a platform, "cpu" or "gpu"."""

    def __init__(self, count: int, platform: str):
        self.count, self.platform = count, platform
        self.fallbacks: set[str] = set()  # operations without a rule
        # Scalars in full shape, for the equations that are being evaluated.
        self.literals: dict[Any, jax.Array] = {}

    def spread(self, value: Any) -> jax.Array:
        """The array of a value. A common value is repeated for every lane."""
        if isinstance(value, KeyLanes):
            return _wrap(value.array)
        if isinstance(value, Lanes):
            return value.array
        return jnp.broadcast_to(jnp.asarray(value)[..., None], (*jnp.shape(value), self.count))

    def align(self, value: Any, shape: tuple[int, ...]) -> jax.Array:
        """Broadcasts an operand of an elementwise operation to the full shape of arms and lanes."""
        if not isinstance(value, Lanes):
            return self.align_common(value, shape)
        array = value.array
        if array.shape == shape:
            return array
        return lax.broadcast_in_dim(array, shape, range(len(shape) - array.ndim, len(shape)))

    def align_common(self, value: Any, shape: tuple[int, ...]) -> jax.Array:
        if np.ndim(value) or isinstance(value, Tracer):
            value = jnp.asarray(value)
            return lax.broadcast_in_dim(value, shape, range(value.ndim))
        number = np.asarray(value)
        key = number.dtype, number.tobytes(), shape
        if key not in self.literals:
            self.literals[key] = lax.broadcast_in_dim(value, shape, ())
        return self.literals[key]

    def evaluate(self, jaxpr: Jaxpr, consts: Sequence, values: Sequence) -> list:
        env = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(
            zip(jaxpr.invars, values, strict=True)
        )
        self.evaluate_all(jaxpr.eqns, env)
        return [read(atom, env) for atom in jaxpr.outvars]

    def evaluate_all(self, equations: Sequence, env: dict) -> None:
        """Adds the outputs of the equations to `env`."""
        outside, self.literals = self.literals, {}
        for equation in equations:
            inputs = [read(atom, env) for atom in equation.invars]
            inner = body_of_call(equation)
            if is_hash(equation):
                outputs = self.hash(equation, inputs)
            elif inner is not None:
                outputs = self.evaluate(inner.jaxpr, inner.consts, inputs)
            elif any(isinstance(x, Lanes) for x in inputs):
                outputs = self.apply(equation, inputs)
            else:
                outputs = bind(equation, inputs)
            env.update(zip(equation.outvars, outputs, strict=True))
        self.literals = outside

    def hash(self, equation: Equation, inputs: list) -> list:
        """Evaluates a hash as a call. JAX traces and lowers it once for all uses with the same
        shapes, and XLA inlines it.
        """
        arrays = [x.array if isinstance(x, Lanes) else jnp.asarray(x)[..., None] for x in inputs]
        return [
            Lanes(self.align(Lanes(x), (*equation.outvars[0].aval.shape, self.count)))
            for x in HASHES[equation.params["name"]](*arrays)
        ]

    def apply(self, equation: Equation, inputs: list) -> list:
        """The outputs of one operation with at least one input that differs from lane to lane."""
        name = equation.primitive.name
        if rule := KEY_RULES.get(name):
            with naming(f"the rule of {name} for lanes"):
                outputs = rule(self, equation, *inputs)
            if outputs is not None:
                return outputs
        inputs = [Lanes(_wrap(x.array)) if isinstance(x, KeyLanes) else x for x in inputs]
        for rule in RULES.get(name, ()):
            with naming(f"the rule of {name} for lanes"):
                outputs = rule(self, equation, *inputs)
            if outputs is not None:
                return outputs
        return self.fall_back(equation, inputs)

    def fall_back(self, equation: Equation, inputs: list) -> list:
        """Evaluates an operation by `jax.vmap`."""
        name = equation.primitive.name
        if name not in SILENT:
            self.fallbacks.add(name)
            if name not in _REPORTED:
                _REPORTED.add(name)
                _LOG.info(
                    "the operation %s has no rule for lanes and is mapped by jax.vmap, which may "
                    "be slower",
                    name,
                )
        # `dividing` does not rewrite quotients there, so shared values are repeated.
        if name in ("while", "scan", "cond"):
            inputs = [x if isinstance(x, Lanes) else Lanes(self.spread(x)) for x in inputs]
        axes = [-1 if isinstance(x, Lanes) else None for x in inputs]
        arrays = [x.array if isinstance(x, Lanes) else x for x in inputs]
        return [
            Lanes(x)
            for x in jax.vmap(lambda *args: bind(equation, args), in_axes=axes, out_axes=-1)(
                *arrays
            )
        ]


# A rule takes the vectoriser, the equation and its inputs. It returns the outputs, or `None` if it
# does not apply.


def _random_wrap(vector: Vectoriser, equation: Equation, data: Any) -> list | None:
    return [KeyLanes(data.array)] if equation.params["impl"].name == "threefry2x32" else None


def _random_unwrap(vector: Vectoriser, equation: Equation, keys: Any) -> list | None:
    return [Lanes(keys.array)] if isinstance(keys, KeyLanes) else None


def _elementwise(vector: Vectoriser, equation: Equation, *inputs: Any) -> list:
    shape = (*equation.outvars[0].aval.shape, vector.count)
    return [Lanes(x) for x in bind(equation, [vector.align(x, shape) for x in inputs])]


def _bitcast(vector: Vectoriser, equation: Equation, x: Any) -> list:
    if equation.invars[0].aval.shape == equation.outvars[0].aval.shape:
        return _elementwise(vector, equation, x)
    # Several numbers become one, or one becomes several, along the last axis of a lane.
    return [
        Lanes(jax.vmap(partial(bind, equation), out_axes=-1)([jnp.moveaxis(x.array, -1, 0)])[0])
    ]


def _cond(vector: Vectoriser, equation: Equation, index: Any, *operands: Any) -> list | None:
    """A branch. If lanes take different branches, both are computed; on a CPU only if some lane
    takes the second.
    """
    mapped = [isinstance(x, Lanes) for x in operands]
    arrays = [vector.spread(x) for x in operands if isinstance(x, Lanes)]

    def called(branch: Any) -> Callable:
        def call(*arrays: Any) -> list:
            mine = iter(arrays)
            values = [
                Lanes(next(mine)) if is_mapped else x
                for x, is_mapped in zip(operands, mapped, strict=True)
            ]
            return [vector.spread(x) for x in vector.evaluate(branch.jaxpr, branch.consts, values)]

        return call

    branches = [called(branch) for branch in equation.params["branches"]]
    if not isinstance(index, Lanes):
        return [Lanes(x) for x in lax.switch(index, branches, *arrays)]
    if len(branches) != 2 or index.array.ndim != 1:
        return None
    takes = index.array.astype(bool)

    def some(*arrays: Any) -> list:
        return [
            jnp.where(takes, new, old)
            for new, old in zip(branches[1](*arrays), branches[0](*arrays), strict=True)
        ]

    results = (
        lax.cond(takes.any(), some, branches[0], *arrays)
        if vector.platform == "cpu"
        else some(*arrays)
    )
    return [Lanes(x) for x in results]


def _broadcast(vector: Vectoriser, equation: Equation, x: Any, *rest: Any) -> list | None:
    shape, kept = equation.params["shape"], equation.params["broadcast_dimensions"]
    return (
        None
        if rest
        else [Lanes(lax.broadcast_in_dim(x.array, (*shape, vector.count), (*kept, len(shape))))]
    )


def _slice(vector: Vectoriser, equation: Equation, x: Any) -> list:
    params = equation.params
    strides = params["strides"] or [1] * len(params["start_indices"])
    bounds = (*params["start_indices"], 0), (*params["limit_indices"], vector.count), (*strides, 1)
    return [Lanes(lax.slice(x.array, *bounds))]


def _transpose(vector: Vectoriser, equation: Equation, x: Any) -> list:
    order = equation.params["permutation"]
    return [Lanes(lax.transpose(x.array, (*order, len(order))))]


def _reshape(vector: Vectoriser, equation: Equation, x: Any) -> list | None:
    params = equation.params
    return (
        [Lanes(x.array.reshape(*params["new_sizes"], vector.count))]
        if params["dimensions"] is None
        else None
    )


def _same_axes(vector: Vectoriser, equation: Equation, *inputs: Any) -> list:
    return [Lanes(x) for x in bind(equation, [vector.spread(x) for x in inputs])]


def _dynamic_slice(
    vector: Vectoriser, equation: Equation, operand: Any, *indices: Any
) -> list | None:
    """`x[i]` for a scalar i, by its position in memory. Otherwise XLA would first assemble the
    indices of a gather on a GPU.
    """
    shape = equation.invars[0].aval.shape
    if not (
        shape and equation.params["slice_sizes"] == (1, *shape[1:]) and isinstance(operand, Lanes)
    ):
        return None
    x, index = operand.array, vector.spread(indices[0])
    if vector.platform == "cpu" or x.size >= 2**31:
        return None
    inner = x.shape[1:]
    size = math.prod(inner)
    index = index.astype(jnp.int32) if index.dtype.itemsize < 4 else index
    place = jnp.clip(index, 0, len(x) - 1).astype(jnp.int32) * size + lax.iota(
        jnp.int32, size
    ).reshape(inner)
    return [Lanes(x.reshape(-1).at[place[None]].get(mode="promise_in_bounds"))]


def _scatter(vector: Vectoriser, equation: Equation, *inputs: Any) -> list | None:
    """Sets one entry of every lane, or adds to it. In place on a CPU only: a GPU would start a
    kernel for each such array.
    """
    if not is_one_entry(equation):
        return None
    operand, index, update = (vector.spread(x) for x in inputs)
    adds = equation.primitive.name == "scatter-add"
    # XLA's CPU compiler never ends on an empty scatter.
    if vector.platform != "cpu" or operand.size == 0:
        place = lax.broadcasted_iota(index.dtype, operand.shape, 0)
        return [Lanes(jnp.where(place == index, operand + update if adds else update, operand))]
    lane = operand.ndim - 1
    numbers = lax.ScatterDimensionNumbers(tuple(range(lane - 1)), (0,), (0,), (lane,), (0,))
    return [
        Lanes(
            (lax.scatter_add if adds else lax.scatter)(
                operand,
                index.T,
                update,
                numbers,
                unique_indices=True,
                mode=lax.GatherScatterMode.FILL_OR_DROP,
            )
        )
    ]


def _argmax(vector: Vectoriser, equation: Equation, x: Any) -> list | None:
    # Bools have no smallest number.
    if equation.params["axes"] != (0,) or equation.invars[0].aval.dtype == bool:
        return None
    values = x.array
    if vector.platform == "cpu" and values.dtype == jnp.float32:
        values = ordered_integers(values)
    return [Lanes(largest(values, vector.platform)[1].astype(equation.params["index_dtype"]))]


def ordered_integers(x: jax.Array) -> jax.Array:
    """Integers in the order of the floats. −0 equals 0, and NaN is the largest.

    XLA's CPU compiler does not vectorise a search for the largest float well, because each
    comparison must treat NaN. With 100 arms, a search for the largest integer takes a fifth of the
    time (jaxlib 0.10.2, 2 Arm cores).
    """
    bits = lax.bitcast_convert_type(x, jnp.int32)
    key = bits ^ (lax.shift_right_arithmetic(bits, jnp.int32(31)) & jnp.int32(0x7FFFFFFF))
    key = jnp.where(key == -1, 0, key)  # −0
    return jnp.where(
        (bits & jnp.int32(0x7FFFFFFF)) > jnp.int32(0x7F800000), jnp.int32(0x7FFFFFFF), key
    )


def _reduce_arms(vector: Vectoriser, equation: Equation, x: Any) -> list | None:
    """A reduction over arms that is exact in any order. (`summation` has already rewritten sums of
    floats.)

    A reduction over many arms takes two steps (`fold`). A GPU would start a kernel for each step.
    So they are written out there, and become part of other kernels.
    """
    name, values, platform = equation.primitive.name, x.array, vector.platform
    exact = name != "reduce_sum" or not jnp.issubdtype(values.dtype, jnp.inexact)
    short = len(values) <= WRITTEN_OUT if values.ndim else True
    if (
        tuple(equation.params["axes"]) != (0,)
        or not exact
        or len(values) == 0
        or (platform == "cpu" and short)
    ):
        return None

    def step(values: jax.Array) -> jax.Array:
        written_out = platform != "cpu" and len(values) <= WRITTEN_OUT
        return (
            _written_out(REDUCTIONS[name], list(values))
            if written_out
            else bind(equation, [values])[0]
        )

    if not short:
        folded, left = fold(values, platform)
        rows = step(folded).reshape(-1, *values.shape[1:])
        values = jnp.concatenate([rows, left]) if len(left) else rows
    return [Lanes(step(values))]


def _written_out(combine: Callable, parts: list) -> Any:
    """Combines all parts: in pairs, then in pairs of pairs, and so on."""
    while len(parts) > 1:
        parts = [reduce(combine, parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


def fold(values: jax.Array, platform: str) -> tuple[jax.Array, jax.Array]:
    """Splits a long first axis in two, [rows, groups · others]. Also returns the entries that are
    left over.

    Arms i, i + groups, i + 2 groups, … form a column, and the columns of all groups are adjacent,
    like lanes. XLA's CPU compiler unrolls a loop over a short axis and vectorises the lanes. It
    does neither with a long axis. So the maximum of 100 arms is 3.5 times as fast. On a GPU, more
    threads take part.
    """
    values = _stored(values, platform)
    arms = len(values)
    rows = _rows(arms, platform)
    left = arms % rows
    return values[: arms - left].reshape(rows, -1), values[arms - left :]


def _stored(values: Any, platform: str) -> Any:
    """The same values. On a GPU they are materialized first.

    Otherwise XLA computes them again for each group of arms that is compared. A user-defined KUBE
    with 100 arms and 4,000 runs is 16% faster with it (jaxlib 0.11.2, H200). XLA's GPU compiler
    respects barriers, its CPU compiler does not.
    """
    return values if platform == "cpu" else lax.optimization_barrier(values)


def largest(values: jax.Array, platform: str) -> tuple[jax.Array, jax.Array]:
    """The maximum along the first axis and its lowest index. NaN counts as the largest number, as
    for `lax.argmax`.
    """
    arms, others = len(values), values.shape[1:]
    if arms <= WRITTEN_OUT:
        return _reduce(values, lax.broadcasted_iota(jnp.int32, values.shape, 0), platform)
    folded, left = fold(values, platform)
    groups = arms // len(folded)
    best, row = _reduce(folded, lax.broadcasted_iota(jnp.int32, folded.shape, 0), platform)
    best, row = best.reshape(groups, *others), row.reshape(groups, *others)
    best, row = _stored((best, row), platform)
    places = row * groups + lax.broadcasted_iota(jnp.int32, row.shape, 0)
    if len(left):
        best = jnp.concatenate([best, left])
        places = jnp.concatenate(
            [places, arms - len(left) + lax.broadcasted_iota(jnp.int32, left.shape, 0)]
        )
    return _reduce(best, places, platform)


def _rows(arms: int, platform: str) -> int:
    """The number of rows for `fold`, chosen so that few arms are left over.

    On a GPU, the maximum over the groups and the arms left over is written out. If there are few of
    them, XLA computes it in the next kernel. For index policies five are few enough, and ten are
    not (jaxlib 0.11.2; `.github/docs/measurements.md`).
    """
    if platform == "cpu":
        return min(range(16, 5, -1), key=lambda rows: arms % rows)
    sizes = sorted(range(6, WRITTEN_OUT + 1), key=lambda rows: abs(rows * rows - arms))
    return min(sizes, key=lambda rows: (max(arms // rows + arms % rows, 8), arms % rows))


def _larger(one: tuple, other: tuple) -> tuple:
    """The larger of two numbers and its index. If they are equal, the lower index."""
    (x, place), (y, other_place) = one, other
    wins, ties = (x > y) | ((x != x) & (y == y)), (x == y) | ((x != x) & (y != y))
    return lax.select(wins, x, y), lax.select(
        wins | (ties & (place < other_place)), place, other_place
    )


def _reduce(values: jax.Array, places: jax.Array, platform: str) -> tuple[jax.Array, jax.Array]:
    if platform == "cpu" or len(values) > WRITTEN_OUT:
        least = (
            -jnp.inf if jnp.issubdtype(values.dtype, jnp.floating) else jnp.iinfo(values.dtype).min
        )
        none = jnp.array(least, values.dtype), jnp.int32(2**31 - 1)
        return lax.reduce((values, places), none, _larger, (0,))  # type: ignore
    # A GPU needs another kernel for a reduction, but not for this.
    return _written_out(_larger, list(zip(values, places, strict=True)))


KEY_RULES: dict[str, Callable] = {
    "random_wrap": _random_wrap,
    "random_unwrap": _random_unwrap,
}
RULES: dict[str, tuple[Callable, ...]] = {
    **dict.fromkeys(SAME_AXES, (_same_axes,)),
    **dict.fromkeys(ELEMENTWISE, (_elementwise,)),
    **dict.fromkeys(REDUCTIONS, (_reduce_arms, _same_axes)),
    "bitcast_convert_type": (_bitcast,),
    "cond": (_cond,),
    "broadcast_in_dim": (_broadcast,),
    "slice": (_slice,),
    "transpose": (_transpose,),
    "reshape": (_reshape,),
    "dynamic_slice": (_dynamic_slice,),
    "scatter": (_scatter,),
    "scatter-add": (_scatter,),
    "argmax": (_argmax, _same_axes),
}
SILENT = "dynamic_slice gather reshard".split()  # for these, `jax.vmap` is as fast as a rule
