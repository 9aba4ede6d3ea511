"""One step of the loop in all lanes: a function of one run, rewritten by passes (`pipeline`) and
vectorised (`lanes`).
"""

from collections.abc import Callable
from typing import Any

import jax

from bts_jax.engine import pipeline
from bts_jax.engine.failures import naming
from bts_jax.engine.jaxprs import read, variables
from bts_jax.engine.lanes import Lanes, Vectoriser
from bts_jax.engine.passes.storing import store
from bts_jax.jax_internals import Jaxpr, Var, make_jaxpr


class Step:
    """A function `(part, now) -> now` of one run, for all lanes, in a loop.

    The loop carries a list of arrays, the state. `step.enter(part, now)` converts `now` to this
    list, `step(part, state)` returns the next list, and `step.leave(part, state)` converts it back.
    The list also has the values that one step computes for the next (`passes.carrying`).

    This class evaluates one operation after the other. Its subclasses arrange them.
    """

    def __init__(
        self, function: Callable, part: Any, now: Any, platform: str, order: Callable | None = None
    ):
        """`order`: the function of the pass that arranges the operations"""
        self.order: Any = order
        leaves, structure = jax.tree.flatten((part, now))
        single = [jax.ShapeDtypeStruct(leaf.shape[:-1], leaf.dtype) for leaf in leaves]
        closed, out = make_jaxpr(lambda *args: function(*structure.unflatten(args)), *single)
        closed, parts = pipeline.rewritten(closed, platform), len(jax.tree.leaves(part))
        self.structure, self.firsts = jax.tree.structure(out), []
        used: set[int] = set()  # arrays of `now` on which carried values depend
        for one in pipeline.passes(platform, "carry"):
            with naming(f"pass {one.name}"):
                closed, first = one.apply(closed, parts)
            self.firsts.append(first)
            needed = {var for equation in first.jaxpr.eqns for var in variables(equation.invars)}
            used.update(i for i, var in enumerate(first.jaxpr.invars[parts:]) if var in needed)
        self.closed, self.vector = closed, Vectoriser(leaves[0].shape[-1], platform)
        # `places[i]` is the place of array i of `now` in the state, if `changed` may replace it.
        with naming(f"the order of operations of {type(self).__name__}"):
            self.places = {
                i: place for i, place in self.arrange(closed.jaxpr, parts).items() if i not in used
            }

    def arrange(self, jaxpr: Jaxpr, parts: int) -> dict[int, int]:
        """Decides in which order operations are evaluated. Returns the place in the state of arrays
        of `now`.
        """
        return {i: i for i in range(len(jaxpr.invars) - parts)}

    def entered(self, part: Any, values: list[jax.Array]) -> list[jax.Array]:
        """The state, from the arrays of `now` and the carried values."""
        return values

    def left(self, part: Any, state: list[jax.Array]) -> list[jax.Array]:
        """The inverse of `entered`."""
        return state

    def __call__(self, part: Any, state: list[jax.Array]) -> list[jax.Array]:
        env = self.known([*jax.tree.leaves(part), *state])
        self.vector.evaluate_all(self.closed.jaxpr.eqns, env)
        return self.outputs(env)

    def enter(self, part: Any, now: Any) -> list[jax.Array]:
        parts, values = len(jax.tree.leaves(part)), jax.tree.leaves((part, now))
        for first in self.firsts:
            outputs = self.vector.evaluate(
                first.jaxpr, first.consts, [Lanes(value) for value in values]
            )
            values += [self.vector.spread(x) for x in outputs]
        return self.entered(part, values[parts:])

    def leave(self, part: Any, state: list[jax.Array]) -> Any:
        return jax.tree.unflatten(
            self.structure, self.left(part, state)[: self.structure.num_leaves]
        )

    def changed(self, state: list[jax.Array], before: Any, after: Any) -> list[jax.Array]:
        """The state for `after`. `before` is the result of `leave(state)`, and some arrays of
        `after` differ from it.

        These must be arrays on which neither the second half of a step nor a carried value depends.
        """
        state = list(state)
        for i, (old, new) in enumerate(
            zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
        ):
            if new is not old:
                state[self.places[i]] = new
        return state

    def known(self, values: list[jax.Array]) -> dict:
        """The values of constants and of the first inputs."""
        jaxpr = self.closed.jaxpr
        mapped = [Lanes(value) for value in values]
        return dict(zip(jaxpr.constvars, self.closed.consts, strict=True)) | dict(
            zip(jaxpr.invars, mapped, strict=False)
        )

    def outputs(self, env: dict) -> list[jax.Array]:
        return [self.vector.spread(read(atom, env)) for atom in self.closed.jaxpr.outvars]


class StepInLevels(Step):
    """Operations are evaluated in levels, on a CPU. After each level, some results are stored
    (`passes.storing`).
    """

    def arrange(self, jaxpr: Jaxpr, parts: int) -> dict[int, int]:
        self.levels = self.order(jaxpr)
        self.makers = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
        return super().arrange(jaxpr, parts)

    def __call__(self, part: Any, state: list[jax.Array]) -> list[jax.Array]:
        env = self.known([*jax.tree.leaves(part), *state])
        for level in self.levels:
            self.vector.evaluate_all(level.equations, env)
            mapped = [var for var in level.stored if type(env[var]) is Lanes]
            if mapped:
                stored = store(
                    [env[var].array for var in mapped], [self.makers[var] for var in mapped]
                )
                env.update({var: Lanes(x) for var, x in zip(mapped, stored, strict=True)})
        return self.outputs(env)


class StepInHalves(Step):
    """On a GPU, the state is what the first half of a step passes to the second half
    (`passes.halving`).
    """

    def arrange(self, jaxpr: Jaxpr, parts: int) -> dict[int, int]:
        self.halves = self.order(jaxpr, parts)
        self.left = jax.jit(self._left)  # used several times and traced once
        needed = {var for equation in self.halves.last for var in variables(equation.invars)}
        number = {
            var: i
            for i, var in enumerate(jaxpr.outvars)
            if isinstance(var, Var) and var not in needed
        }
        return {number[var]: place for place, var in enumerate(self.halves.passed) if var in number}

    def entered(self, part: Any, values: list[jax.Array]) -> list[jax.Array]:
        """The first half of a step."""
        env = self.known([*jax.tree.leaves(part), *values])
        self.vector.evaluate_all(self.halves.first, env)
        return [self.vector.spread(env[var]) for var in self.halves.passed]

    def _left(self, part: Any, state: list[jax.Array]) -> list[jax.Array]:
        """The second half of a step."""
        passed = zip(self.halves.passed, state, strict=True)
        env = self.known(jax.tree.leaves(part)) | {var: Lanes(x) for var, x in passed}
        self.vector.evaluate_all(self.halves.last, env)
        return self.outputs(env)

    def __call__(self, part: Any, state: list[jax.Array]) -> list[jax.Array]:
        return self.entered(part, self.left(part, state))


# By the name of the pass that arranges the operations.
ARRANGED = {"storing": StepInLevels, "halving": StepInHalves}  # by the name of the pass


def step_of(function: Callable, part: Any, now: Any, platform: str) -> Step:
    """A step on a platform, "cpu" or "gpu"."""
    for one in pipeline.passes(platform, "arrange"):
        return ARRANGED[one.name](function, part, now, platform, one.apply)
    return Step(function, part, now, platform)
