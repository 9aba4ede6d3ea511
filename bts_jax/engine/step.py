"""One step of the loop in all lanes: a function of one run, rewritten by passes and vectorised.

The passes, in order:

1. `keys`: replace keys by integers.
2. `functions` (CPU, jaxlib 0.11 and later): write out `exp`, `log` and the like.
3. `rounding`: round products.
4. `summation`: add in a fixed order.
5. `ordering`: compare integers instead of floats.
6. `dividing`: prevent multiplications by reciprocals.
7. `masking`: mask scatters.
8. `spreading` (GPU): update all arms.
9. `carrying`: carry values from one step to the next.
10. `packing` (CPU): pack the pulled arm's statistics into one array.
11. `storing` (CPU): materialize values.
12. `rotation` (GPU): split the step in two halves.

Between passes, unused and repeated operations are removed (`jaxprs.merged`).
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

from bts_jax.engine import storing
from bts_jax.engine.carrying import ahead, cache_rows
from bts_jax.engine.dividing import divide_truly
from bts_jax.engine.functions import write_out_functions
from bts_jax.engine.jaxprs import is_hash, merged, read, retrace, variables
from bts_jax.engine.keys import write_out_keys
from bts_jax.engine.lanes import Lanes, Vectoriser
from bts_jax.engine.masking import mask_scatters
from bts_jax.engine.ordering import compare_integers
from bts_jax.engine.packing import pack_columns, packed, unpacked
from bts_jax.engine.rotation import at_rest, in_two
from bts_jax.engine.rounding import round_products
from bts_jax.engine.spreading import spread_updates
from bts_jax.engine.summation import without_reductions


def optimised(closed: Any, platform: str = "cpu") -> Any:
    """The same closed jaxpr after the passes 1 to 7. Only hashes remain calls."""
    closed = write_out_functions(write_out_keys(closed), platform)
    closed = without_reductions(round_products(closed, returned=False))
    closed = divide_truly(_clean(compare_integers(closed)))
    return _clean(mask_scatters(_inlined(closed)))


def _inlined(closed: Any) -> Any:
    return retrace(closed, opaque=is_hash)


def _clean(closed: Any) -> Any:
    """Inlines calls except hashes, and removes unused and repeated operations."""
    closed = _inlined(closed)
    return core.ClosedJaxpr(merged(closed.jaxpr), closed.consts)


class Step:
    """A function `(part, now) -> now` of one run, for all lanes, in a loop.

    The loop carries a list of arrays, the state. `step.enter(part, now)` converts `now` to this list, `step(part, state)`
    returns the next list, and `step.leave(part, state)` converts it back. The list also has the values that one step computes
    for the next (`carrying`). On a GPU it has what the first half of a step passes to the second half (`rotation`).

    A step does not change a run that rests: `rests(now)` is the flag for it. On a GPU the loop then starts with a step that
    changes nothing. If there is no such flag, or no such step is found, `enter` computes the first half of the first step.
    """

    def __init__(self, function: Callable, part: Any, now: Any, platform: str, rests: Callable | None = None):
        leaves, structure = jax.tree.flatten((part, now))
        single = [jax.ShapeDtypeStruct(leaf.shape[:-1], leaf.dtype) for leaf in leaves]
        closed, out = jax.make_jaxpr(lambda *args: function(*structure.unflatten(args)), return_shape=True)(*single)
        closed, parts = optimised(closed, platform), len(jax.tree.leaves(part))
        if platform != "cpu":
            closed = _clean(spread_updates(closed))
        self.structure, self.firsts = jax.tree.structure(out), []
        used: set[int] = set()  # arrays of `now` that are packed, or on which carried values depend
        for find in (ahead, cache_rows) if platform == "cpu" else (ahead,):
            closed, first = find(closed, parts)
            self.firsts.append(first)
            needed = {var for equation in first.jaxpr.eqns for var in variables(equation.invars)}
            used.update(i for i, var in enumerate(first.jaxpr.invars[parts:]) if var in needed)
        self.dtypes = [var.aval.dtype for var in closed.jaxpr.invars[parts:]]
        self.columns: list[int] = []
        if platform == "cpu":
            closed, self.columns = pack_columns(closed, parts)
            closed = _clean(closed) if self.columns else closed
            used.update(self.columns)
        self.closed, jaxpr, self.platform = closed, closed.jaxpr, platform
        self.vector = Vectoriser(leaves[0].shape[-1], platform)
        if platform == "cpu":
            self.levels = storing.levels(jaxpr)
            self.makers = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
            alone = [i for i in range(len(self.dtypes)) if i not in self.columns]
        else:
            self.first, self.last, self.passed = in_two(jaxpr, parts)
            self.end = jax.jit(self._end)  # used several times and traced once
            self.rest = None  # the step that changes nothing
            if rests is not None:
                flag = parts + rests(jax.tree.unflatten(self.structure, range(self.structure.num_leaves)))
                self.rest = at_rest(jaxpr, parts, self.first, self.last, self.passed, flag)
            needed = {var for equation in self.last for var in variables(equation.invars)}
            number = {var: i for i, var in enumerate(jaxpr.outvars) if isinstance(var, core.Var) and var not in needed}
            alone = [number.get(var) for var in self.passed]
        self.places = {i: place for place, i in enumerate(alone) if i is not None and i not in used}  # see `changed`

    def enter(self, part: Any, now: Any) -> list[jax.Array]:
        parts, values = len(jax.tree.leaves(part)), jax.tree.leaves((part, now))
        for first in self.firsts:
            outputs = self.vector.evaluate(first.jaxpr, first.consts, [Lanes(value) for value in values])
            values += [self.vector.spread(x) for x in outputs]
        if self.platform == "cpu":
            return packed(values[parts:], self.columns)
        if self.rest is None:
            return self.begin(part, values[parts:])
        return [values[x] if isinstance(x, int) else self.vector.spread(x) for x in self.rest]

    def leave(self, part: Any, state: list[jax.Array]) -> Any:
        state = unpacked(state, self.columns, self.dtypes) if self.platform == "cpu" else self.end(part, state)
        return jax.tree.unflatten(self.structure, state[: self.structure.num_leaves])

    def changed(self, state: list[jax.Array], before: Any, after: Any) -> list[jax.Array]:
        """The list for `after`. `before` is the result of `leave(state)`, and some arrays of `after` differ from it.

        These must be arrays on which neither the second half of a step nor a carried value depends.
        """
        state = list(state)
        for i, (old, new) in enumerate(zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)):
            if new is not old:
                state[self.places[i]] = new
        return state

    def __call__(self, part: Any, state: list[jax.Array]) -> list[jax.Array]:
        if self.platform != "cpu":
            return self.begin(part, self.end(part, state))
        env = self._known([*jax.tree.leaves(part), *state])
        for level in self.levels:
            self.vector.evaluate_all(level.equations, env)
            self._store(level.stored, env)
        return self._outputs(env)

    def begin(self, part: Any, values: list[jax.Array]) -> list[jax.Array]:
        """The first half of a step, on a GPU. Returns what it passes to the second half."""
        env = self._known([*jax.tree.leaves(part), *values])
        self.vector.evaluate_all(self.first, env)
        return [self.vector.spread(env[var]) for var in self.passed]

    def _end(self, part: Any, state: list[jax.Array]) -> list[jax.Array]:
        """The second half of a step, on a GPU."""
        env = self._known(jax.tree.leaves(part)) | {var: Lanes(x) for var, x in zip(self.passed, state, strict=True)}
        self.vector.evaluate_all(self.last, env)
        return self._outputs(env)

    def _known(self, values: list[jax.Array]) -> dict:
        jaxpr = self.closed.jaxpr
        mapped = [Lanes(value) for value in values]
        return dict(zip(jaxpr.constvars, self.closed.consts, strict=True)) | dict(zip(jaxpr.invars, mapped, strict=False))

    def _outputs(self, env: dict) -> list[jax.Array]:
        return [self.vector.spread(read(atom, env)) for atom in self.closed.jaxpr.outvars]

    def _store(self, variables: list, env: dict) -> None:
        """Materializes the values of these variables (`storing`)."""
        mapped = [var for var in variables if type(env[var]) is Lanes]
        if mapped:
            stored = storing.store([env[var].array for var in mapped], [self.makers[var] for var in mapped])
            env.update({var: Lanes(x) for var, x in zip(mapped, stored, strict=True)})
