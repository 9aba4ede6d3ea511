"""Rewrites updates of one arm as operations on all arms, for GPUs.

`x.at[arm].set(f(x[arm], reward))` reads an entry of an array at an index that is a scalar of the run. On a GPU, the array must
be complete before the entry is used, which takes another kernel. This pass computes f for all arms, and uses the result of the
pulled arm: `where(arms == arm, f(x, reward), x)`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from bts_jax.engine.armwise import plain_index
from bts_jax.engine.jaxprs import ELEMENTWISE, bind, read, variables
from bts_jax.engine.lanes import is_one_entry


def spread_updates(closed: Any) -> Any:
    """The same closed jaxpr. A scatter whose update is computed from the entry itself becomes an operation on all entries."""
    jaxpr = closed.jaxpr
    maker = {var: equation for equation in jaxpr.eqns for var in equation.outvars}

    def function(*arguments: Any) -> list:
        env = dict(zip(jaxpr.constvars, closed.consts, strict=True)) | dict(zip(jaxpr.invars, arguments, strict=True))
        for equation in jaxpr.eqns:
            outputs = None
            if is_one_entry(equation) and equation.primitive.name == "scatter":
                update = _Spread(equation, jaxpr, maker, env).update()
                if update is not None:
                    operand, index = (read(atom, env) for atom in equation.invars[:2])
                    place = lax.broadcasted_iota(index.dtype, operand.shape, 0)
                    outputs = [lax.select(lax.eq(place, jnp.broadcast_to(index[0], operand.shape)), update, operand)]
            if outputs is None:
                outputs = bind(equation, [read(atom, env) for atom in equation.invars])
            env.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom, env) for atom in jaxpr.outvars]

    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.invars))


class _Spread:
    """The update of a scatter, computed for all entries."""

    def __init__(self, scatter: Any, jaxpr: Any, maker: dict, env: dict):
        self.scatter, self.maker, self.env = scatter, maker, env
        self.arms = scatter.invars[0].aval.shape[0]
        self.index = plain_index(scatter.invars[1], self.arms, maker)
        self.read: set[Any] = set()  # variables that are computed from entries at the scatter's own index
        self.values: dict[Any, Any] = {}
        for equation in jaxpr.eqns:
            if self._source(equation) is not None or not self.read.isdisjoint(variables(equation.invars)):
                self.read.update(equation.outvars)

    def update(self) -> Any:
        """An array of all entries. `None` if the update is not computed from entries, or not arm by arm."""
        atom = self.scatter.invars[2]
        return self.of(atom) if isinstance(atom, core.Var) and atom in self.read else None

    def of(self, atom: Any) -> Any:
        """A value for each entry along the first axis."""
        if atom not in self.values:
            self.values[atom] = self._of(atom)
        return self.values[atom]

    def _of(self, var: Any) -> Any:
        shape = (self.arms, *var.aval.shape)
        if var not in self.read:
            return jnp.broadcast_to(self.env[var], shape)
        equation = self.maker[var]
        source = self._source(equation)
        if source is not None:
            return self.env[source]
        shapes = [atom.aval.shape for atom in equation.invars]
        name = equation.primitive.name
        if name not in ELEMENTWISE or any(one not in ((), var.aval.shape) for one in shapes):
            return None
        if name == "bitcast_convert_type" and shapes[0] != var.aval.shape:  # one number becomes several
            return None
        inputs = []
        for atom in equation.invars:
            value = atom.val if isinstance(atom, core.Literal) else self.of(atom)
            if value is None:
                return None
            inputs.append(value if isinstance(atom, core.Literal) else _widened(value, shape))
        return bind(equation, inputs)[0]

    def _source(self, equation: Any) -> Any:
        """The array x if this is the last operation of `x[i]`, where i is the scatter's index. Otherwise `None`."""
        if equation.primitive.name != "squeeze" or equation.params["dimensions"] != (0,):
            return None
        slicing = self.maker.get(equation.invars[0])
        if slicing is None or slicing.primitive.name != "dynamic_slice" or slicing.invars[1] is not self.index:
            return None
        x, sizes = slicing.invars[0], slicing.params["slice_sizes"]
        shape = tuple(x.aval.shape)
        return x if isinstance(x, core.Var) and shape[0] == self.arms and sizes == (1, *shape[1:]) else None


def _widened(x: Any, shape: tuple[int, ...]) -> Any:
    return jnp.broadcast_to(x.reshape(len(x), *[1] * (len(shape) - x.ndim), *x.shape[1:]), shape)
