"""Finds the arrays of which a round changes only the entries of the pulled arm.

Most policies store statistics of the arms and update those of the pulled arm, by
`x.at[arm].add(...)` or `x.at[arm].set(...)`. Values that are computed from such statistics arm by
arm change only for the pulled arm. The engine uses this in two ways: draws for the other arms stay
valid (`draws`), and values of the other arms need not be computed again (`carrying`).
"""

from collections.abc import Sequence
from typing import Any

from bts_jax.engine.jaxprs import ELEMENTWISE, is_exact, is_hash, is_one_entry, variables
from bts_jax.jax_internals import Atom, Equation, Jaxpr, Literal, Var

CONSTANT, ARMWISE, OTHER = range(3)
# Operations that compute each entry along the first axis independently of the others, if they
# preserve that axis.
ROWWISE = {*ELEMENTWISE, "squeeze", "slice", "reshape", "broadcast_in_dim", "copy"}


class Changes:
    """How the variables of a round's jaxpr change from round to round.

    The inputs are constants of the run, the leaves of the state, and others. The last outputs are
    the leaves of the state.
    """

    def __init__(self, jaxpr: Jaxpr, constants: int, leaves: int):
        self.jaxpr = jaxpr
        maker = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
        state = jaxpr.invars[constants : constants + leaves]
        updated = jaxpr.outvars[-leaves:] if leaves else []
        self.index: Any = None  # the variable that holds the index of the pulled arm, int32 [1]
        self.change: dict[Any, int] = dict.fromkeys(
            [*jaxpr.constvars, *jaxpr.invars[:constants]], CONSTANT
        )
        chains = {old: _chain(new, old, maker) for old, new in zip(state, updated, strict=True)}
        counts: dict[Any, int] = {}
        for indices in chains.values():
            for index in indices or ():
                counts[index] = counts.get(index, 0) + 1
        if counts:
            self.index = max(counts, key=counts.__getitem__)
        self.entries = 0
        for old, indices in chains.items():
            if indices is not None and all(index is self.index for index in indices):
                self.change[old] = ARMWISE if indices else CONSTANT
                self.entries = old.aval.shape[0] if indices else self.entries
        for equation in jaxpr.eqns:
            self.change.update(dict.fromkeys(equation.outvars, self._change_of(equation)))

    def of(self, atom: Atom) -> int:
        return CONSTANT if isinstance(atom, Literal) else self.change.get(atom, OTHER)

    def _change_of(self, equation: Equation) -> int:
        change = max((self.of(atom) for atom in equation.invars), default=CONSTANT)
        if (
            equation.effects
            or equation.primitive.name.startswith("random_")
            or equation.primitive.name == "draw"
        ):
            return OTHER
        if change != ARMWISE:
            return change
        return ARMWISE if self.is_rowwise(equation) else OTHER

    def is_rowwise(self, equation: Equation) -> bool:
        """Whether an operation on armwise arrays computes each entry along the first axis
        independently of the others.
        """
        name = equation.primitive.name
        if not (name in ROWWISE or (is_exact(equation) and not is_hash(equation))):
            return False
        shapes = [
            var.aval.shape
            for var in (*equation.outvars, *variables(equation.invars))
            if self._varies(var)
        ]
        if not all(shape and shape[0] == self.entries for shape in shapes):
            return False
        params = equation.params
        if name == "slice":
            return (
                params["start_indices"][0] == 0
                and params["limit_indices"][0] == self.entries
                and (params["strides"] is None or params["strides"][0] == 1)
            )
        if name == "squeeze":
            return 0 not in params["dimensions"]
        if name == "reshape":
            return params["dimensions"] is None
        if name == "broadcast_in_dim":
            return params["broadcast_dimensions"][0] == 0
        if is_exact(equation):
            return all(
                var.aval.shape in ((), (self.entries,))
                for var in (*equation.outvars, *equation.invars)
            )
        return True

    def _varies(self, var: Var) -> bool:
        return self.change.get(var, ARMWISE) == ARMWISE


def _chain(new: Any, old: Any, maker: dict) -> Sequence | None:
    """The indices of the scatters that compute `new` from `old`. `None` if `new` is computed in
    another way.
    """
    indices = []
    while new is not old:
        equation = maker.get(new) if isinstance(new, Var) else None
        if (
            equation is None
            or not is_one_entry(equation)
            or not isinstance(equation.invars[1], Var)
        ):
            return None
        indices.append(equation.invars[1])
        new = equation.invars[0]
    return indices


def plain_index(index: Any, entries: int, maker: dict) -> Any:
    """The scalar from which a scatter's index is made, before the mask of `masking`. `None` if it
    is not found.

    The mask selects either the index or `entries`, which is out of range.
    """
    atom: Any = index
    while isinstance(atom, Var) and atom in maker:
        equation = maker[atom]
        if (
            equation.primitive.name == "select_n"
            and len(equation.invars) == 3
            and _shape(atom) == (1,)
        ):
            others = [one for one in equation.invars[1:] if _constant(one, maker) != entries]
            if len(others) != 1:
                return None
            atom = others[0]
        elif equation.primitive.name in ("broadcast_in_dim", "reshape") and _shape(atom) == (1,):
            atom = equation.invars[0]
        else:
            break
    return atom if isinstance(atom, Var) and _shape(atom) == () else None


def _constant(atom: Atom, maker: dict) -> Any:
    """The value with which an array is filled, if it is a literal of the program."""
    while isinstance(atom, Var):
        equation = maker.get(atom)
        if equation is None or equation.primitive.name != "broadcast_in_dim":
            return None
        atom = equation.invars[0]
    return atom.val


def _shape(atom: Atom) -> tuple:
    return atom.aval.shape
