"""Splits a step in two halves, for loops on a GPU.

The first half computes the scalars of a run, such as the pulled arm and the outcome. The second
half computes the arrays that depend on these scalars and on which no scalar depends, such as the
statistics of the arms. In a loop that does the second half first, a GPU needs only one kernel for
the last arrays of a step and the first arrays of the next.

The loop carries a step whose first half is done.
"""

from typing import NamedTuple

from bts_jax.engine.jaxprs import MOVES, is_small, variables
from bts_jax.jax_internals import Equation, Jaxpr

COMPARISONS = "eq ne lt le gt ge".split()


class Halves(NamedTuple):
    """The operations of the first half, those of the second half, and the variables to pass from
    the first to the second.
    """

    first: list
    last: list
    passed: list


def halves(jaxpr: Jaxpr, parts: int) -> Halves:
    """Splits a step. The first `parts` inputs of the jaxpr are available in both halves."""
    first, last = _halves(jaxpr)
    at_hand = {
        *jaxpr.constvars,
        *jaxpr.invars[:parts],
        *(var for one in last for var in one.outvars),
    }
    wanted = dict.fromkeys(
        [*variables(jaxpr.outvars), *(var for one in last for var in variables(one.invars))]
    )
    passed = [var for var in wanted if var not in at_hand]
    # Two kinds of values are not passed, but computed again: those without inputs, and the results
    # of one comparison of values that are passed anyway.
    at_hand.update(passed)

    def cheap(equation: Equation) -> bool:
        if equation.primitive.name not in COMPARISONS:
            return not variables(equation.invars) and not equation.effects
        return not is_small(equation.outvars[0]) and at_hand.issuperset(variables(equation.invars))

    again = [one for one in first if one.outvars and one.outvars[0] in passed and cheap(one)]
    return Halves(
        first,
        again + last,
        [var for var in passed if not any(var is one.outvars[0] for one in again)],
    )


def _halves(jaxpr: Jaxpr) -> tuple[list, list]:
    # Scalars that depend on arrays; arrays that depend on such scalars.
    dependent, late = set(), set()
    for equation in jaxpr.eqns:
        used = variables(equation.invars)
        if _makes_numbers(equation):
            dependent.update(
                equation.outvars
                if any(var in dependent or not is_small(var) for var in used)
                else ()
            )
        elif any(var in dependent or var in late for var in used):
            late.update(equation.outvars)
    maker = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
    needed = [
        var
        for equation in jaxpr.eqns
        if _makes_numbers(equation)
        for var in variables(equation.invars)
    ]
    while needed:  # to compute a scalar
        var = needed.pop()
        if var in late:
            late.difference_update(maker[var].outvars)
            needed += variables(maker[var].invars)
    kept = set(variables(jaxpr.outvars))  # variables that must exist after the first half
    for equation in reversed(jaxpr.eqns):
        # Used only in the second half.
        if equation.primitive.name in MOVES and kept.isdisjoint(equation.outvars):
            late.update(equation.outvars)
        elif late.isdisjoint(equation.outvars):
            kept.update(variables(equation.invars))
    first, last = [], []
    for equation in jaxpr.eqns:
        (first if late.isdisjoint(equation.outvars) else last).append(equation)
    return first, last


def _makes_numbers(equation: Equation) -> bool:
    return all(map(is_small, equation.outvars))
