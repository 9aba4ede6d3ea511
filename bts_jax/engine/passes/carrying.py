"""Carries values from one step of the loop to the next.

These passes find values that a step computes at its beginning, from the outputs of the previous
step. The previous step computes them instead, and the loop carries them. Two kinds of values are
worth it:

- *Numbers ahead* (`compute_ahead`, for GPUs): random words that all arms share, such as those of
  `jax.random.split(key)`. They depend only on scalars of the run, and are computed together with
  the other scalars at the end of the previous step. This saves a kernel.
- *Rows* (`cache_rows`, for CPUs), the arm cache: values that are computed arm by arm from the
  statistics of the arms, such as means and their reciprocal roots. They change only for the pulled
  arm (`armwise`), and are recomputed only for that arm.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from bts_jax.engine.jaxprs import (
    ELEMENTWISE,
    Builder,
    is_hash,
    is_small,
    new_atom,
    read,
    simplified,
    variables,
)
from bts_jax.engine.passes.armwise import ARMWISE, CONSTANT, Changes, plain_index
from bts_jax.engine.passes.storing import weight_of
from bts_jax.jax_internals import Atom, Closed, Equation, Jaxpr, Literal, Var

CACHE = 600  # the weight of updating the rows of one cached array, in units of `storing.WEIGHTS`
LOAD = 2  # the weight of reading an entry of it
MIN_WEIGHT = 8  # the smallest weight of a value that is cached: a division


class Carried(NamedTuple):
    """A step with additional inputs, the carried values, and additional outputs, the carried values
    for the next step.
    """

    step: Any  # closed jaxpr
    first: Any  # closed jaxpr that computes the carried values from the other inputs of the step


def compute_ahead(closed: Closed, parts: int) -> Carried:
    """Carries the random words that depend only on scalars, and that are used with arrays.

    The first `parts` inputs of a step are the same in all steps. Its outputs are the other inputs
    of the next step.
    """
    jaxpr = closed.jaxpr
    chosen = _words_ahead(jaxpr, parts)
    number = {var: i for i, var in enumerate(jaxpr.invars)}

    def carried(builder: Builder, env: dict) -> list:
        outputs = [new_atom(atom, env) for atom in jaxpr.outvars]
        inputs = [
            env[var] if number[var] < parts else outputs[number[var] - parts]
            for var in jaxpr.invars
        ]
        return _wanted(builder, closed, inputs, chosen)

    return _carried(closed, chosen, carried)


def _words_ahead(jaxpr: Jaxpr, parts: int) -> list:
    """The scalars that depend only on a hash and on other scalars, and that operations with array
    results use.

    They do not depend on flags of the state, such as whether a run waits: those also change between
    blocks (`Step.changed`). So do its goal and its limit, but no hash is computed from those.
    """
    numbers, hashed = set(jaxpr.constvars), set()
    numbers.update(var for var in jaxpr.invars if is_small(var) and var.aval.dtype != bool)
    moving, used_late = set(jaxpr.invars[parts:]), []
    for equation in jaxpr.eqns:
        used = variables(equation.invars)
        if not moving.isdisjoint(used):
            moving.update(equation.outvars)
        if (
            all(map(is_small, equation.outvars))
            and numbers.issuperset(used)
            and not equation.effects
        ):
            numbers.update(equation.outvars)
            if is_hash(equation) or not hashed.isdisjoint(used):
                hashed.update(equation.outvars)
        elif not all(map(is_small, equation.outvars)):
            used_late += used
    return [var for var in dict.fromkeys(used_late) if var in hashed and var in moving]


def cache_rows(closed: Closed, parts: int) -> Carried:
    """Carries values that change only for the pulled arm, if that is worth it; as
    `compute_ahead`.
    """
    jaxpr = closed.jaxpr
    changes = Changes(jaxpr, parts, len(jaxpr.invars) - parts)
    chosen = _worth_caching(changes)

    def carried(builder: Builder, env: dict) -> list:
        if not chosen:
            return []

        def update(values: list) -> tuple[list, list]:
            arrays = dict(zip(env, values, strict=True))
            rows, index = _Rows(changes, arrays), arrays[changes.index]
            caches = [_set(arrays[var], index, rows.of(var)) for var in chosen]
            # An array of the state is written after its row was read. So XLA updates it in place,
            # and does not copy it.
            written.extend((old, new) for old, new in rows.updated.items() if old in rows.rows)
            return caches, [_set(arrays[old], index, rows.of(old)) for old, _ in written]

        written: list[tuple] = []
        caches, states = builder.trace(update, list(env.values()))
        env.update({new: state for (_, new), state in zip(written, states, strict=True)})
        return caches

    return _carried(closed, chosen, carried)


def _worth_caching(changes: Changes) -> list:
    """The variables to cache: those that an operation uses that is not arm by arm, and that are
    expensive enough to compute.
    """
    jaxpr, chosen = changes.jaxpr, []
    if changes.index is None:
        return chosen
    armwise = {
        var for equation in jaxpr.eqns for var in equation.outvars if changes.of(var) == ARMWISE
    }
    used = {
        var
        for equation in jaxpr.eqns
        if armwise.isdisjoint(equation.outvars)
        for var in variables(equation.invars)
    }
    used.update(variables(jaxpr.outvars))
    cones: dict[Any, frozenset] = {}
    whole = sum(
        weight_of(equation) for equation in jaxpr.eqns if not all(map(is_small, equation.outvars))
    )
    for i, equation in enumerate(jaxpr.eqns):
        if armwise.isdisjoint(equation.outvars):
            continue
        cone = frozenset([i]).union(*(cones.get(var, ()) for var in variables(equation.invars)))
        for var in equation.outvars:
            weight = sum(weight_of(jaxpr.eqns[j]) for j in cone)
            # A small part of a long computation costs little, because a core executes several
            # instructions at a time.
            cost = CACHE * max(1, whole / (10 * weight)) if weight else math.inf
            large = weight >= MIN_WEIGHT and (weight - LOAD) * changes.entries > cost
            if var in used and var.aval.dtype.itemsize == 4 and large:
                chosen.append(var)
                cones[var] = frozenset()
            else:
                cones[var] = cone
    return chosen


class _Rows:
    """The rows of the pulled arm, after its update."""

    def __init__(self, changes: Changes, env: dict):
        self.changes, self.env = changes, env
        jaxpr = changes.jaxpr
        self.maker = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
        state = jaxpr.invars[len(jaxpr.invars) - len(jaxpr.outvars) :]
        self.updated = {
            old: new
            for old, new in zip(state, jaxpr.outvars, strict=True)
            if changes.of(old) == ARMWISE
        }
        self.rows: dict[Any, Any] = {}
        # The index before the mask of `masking`: the index with which the policy itself reads these
        # arrays.
        plain = plain_index(changes.index, changes.entries, self.maker)
        self.index = env[changes.index][0] if plain is None else env[plain]

    def of(self, var: Var) -> Any:
        """The row of a variable of the next step, as an array whose first axis has length 1."""
        if var not in self.rows:
            self.rows[var] = self._computed(var)
        return self.rows[var]

    def _computed(self, var: Var) -> Any:
        equation = self.maker.get(var)
        if equation is None:
            return (
                self._scattered(self.updated[var], var)
                if self.changes.of(var) == ARMWISE
                else self._taken(self.env[var])
            )
        if self.changes.of(var) == CONSTANT and not _is_like_a_row(equation):
            return self._taken(self.env[var])
        inputs = [self._operand(atom, equation) for atom in equation.invars]
        params = _for_one_row(equation)
        outputs = equation.primitive.bind(*inputs, **params)
        return outputs[0] if equation.primitive.multiple_results else outputs

    def _operand(self, atom: Atom, equation: Equation) -> Any:
        if isinstance(atom, Literal) or not atom.aval.shape:
            return read(atom, self.env)
        makes_rows = (
            equation.primitive.name == "broadcast_in_dim"
            and 0 not in equation.params["broadcast_dimensions"]
        )
        return self.env[atom] if makes_rows else self.of(atom)

    def _scattered(self, new: Any, old: Any) -> Any:
        """The row of an updated state."""
        if new is old:
            return self._taken(self.env[old])
        equation = self.maker[new]
        update = jnp.asarray(read(equation.invars[2], self.env))[None]
        if equation.primitive.name == "scatter":
            return update
        return self._scattered(equation.invars[0], old) + update

    def _taken(self, value: Any) -> Any:
        index, value = self.index, jnp.asarray(value)
        zeros = [jnp.zeros((), index.dtype)] * (value.ndim - 1)
        return lax.dynamic_slice_p.bind(value, index, *zeros, slice_sizes=(1, *value.shape[1:]))


def _is_like_a_row(equation: Equation) -> bool:
    """Whether it is better to compute a row of a constant than to take it from the whole array."""
    name, shape = equation.primitive.name, equation.outvars[0].aval.shape
    if name == "broadcast_in_dim":
        return 0 not in equation.params["broadcast_dimensions"]
    return name in ELEMENTWISE and all(atom.aval.shape in ((), shape) for atom in equation.invars)


def _for_one_row(equation: Equation) -> dict:
    """The parameters of an operation if its arrays have one row."""
    params, name = dict(equation.params), equation.primitive.name
    for key in {
        "broadcast_in_dim": ["shape"],
        "slice": ["limit_indices"],
        "reshape": ["new_sizes"],
    }.get(name, []):
        params[key] = (1, *params[key][1:])
    return params


def _set(cache: Any, index: Any, row: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers(tuple(range(cache.ndim - 1)), (0,), (0,))
    return lax.scatter(cache, index, row[0], numbers, mode=lax.GatherScatterMode.FILL_OR_DROP)


def _carried(closed: Closed, chosen: list, carried: Callable[[Builder, dict], list]) -> Carried:
    """A step with the chosen variables as inputs. `carried` computes their next values from the
    values of this step.
    """
    jaxpr, builder, given = closed.jaxpr, Builder(), [Var(var.aval) for var in chosen]
    env = builder.start(closed, jaxpr.invars) | dict(zip(chosen, given, strict=True))
    for equation in jaxpr.eqns:
        outputs = builder.copy(equation, [new_atom(atom, env) for atom in equation.invars])
        env.update(
            (var, x) for var, x in zip(equation.outvars, outputs, strict=True) if var not in env
        )
    last = carried(builder, env)
    outputs = [*(new_atom(atom, env) for atom in jaxpr.outvars), *last]
    step = builder.closed(jaxpr, [*jaxpr.invars, *given], outputs)
    builder = Builder()
    first = builder.closed(jaxpr, jaxpr.invars, _wanted(builder, closed, jaxpr.invars, chosen))
    return Carried(simplified(step), simplified(first))


def _wanted(builder: Builder, closed: Closed, inputs: Sequence, wanted: Sequence) -> list:
    """Copies the equations that compute `wanted` from `inputs`. Returns the new variables."""
    env = builder.start(closed, inputs)
    for equation in _needed(closed.jaxpr.eqns, wanted):
        outputs = builder.copy(equation, [new_atom(atom, env) for atom in equation.invars])
        env.update(zip(equation.outvars, outputs, strict=True))
    return [env[var] for var in wanted]


def _needed(equations: Sequence, wanted: Sequence) -> list:
    """The equations that are needed to compute `wanted`."""
    needed, found = set(wanted), []
    for equation in reversed(equations):
        if not needed.isdisjoint(equation.outvars):
            found.append(equation)
            needed.update(variables(equation.invars))
    return found[::-1]
