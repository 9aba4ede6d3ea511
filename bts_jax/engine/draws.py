"""Draws by rejection without loops: one proposal per call, or a few.

A draw by rejection makes proposals until one is accepted. In a batch, a loop of proposals would
make all runs wait for the slowest. So the engine turns each draw into a single proposal. It calls
the policy, saves the proposals that are accepted, and calls the policy again in the same round,
until all elements of all draws have been accepted. Then the round counts.

This is exact because of three rules:

1. All other random numbers of a round are the same in every attempt. Only proposals depend on the
   attempt.
2. If the parameters of a draw depend on another draw, it is accepted only after the other draw is
   complete.
3. In the last attempt, most elements already have a draw, and their accepted proposals are left
   over. A later round uses a proposal that is left over only under three conditions:
   - its parameters are bit for bit the same;
   - the draw has a fresh key in every round. (A key that a policy stores in its state must give the
     same draw whenever it is used.)
   - nothing else in the round uses the same random words. (Otherwise the round would end when the
     other draw is accepted. Proposals would then be left over only for words that suit both draws,
     and these are not fair.)

The third rule saves calls. With 100 arms, BTS needs 1.15 calls per pull instead of 1.7.

On a GPU, a call takes a few microseconds whatever it computes. So a draw by `random.rejection`,
whose proposals are often rejected, makes several proposals per call there, and takes the first
accepted one (`PROPOSALS`).

The draws of a bandit depend only on the key of the pull, so that all policies have common random
numbers. On a CPU they are loops. On a GPU, where loops are slow, each call makes one proposal, and
the round is attempted again if it is rejected (`_InOrder`). The number of rejected proposals is
stored. So a draw is always the first accepted proposal, as in a loop.

`jax.random.gamma`, `loggamma`, `beta`, `dirichlet`, `t` and `chisquare` use one primitive of JAX,
`random_gamma`. It is replaced by our sampler. A draw inside a loop or a branch of the policy or the
bandit stays a loop.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bts_jax import random
from bts_jax.engine.failures import naming
from bts_jax.engine.jaxprs import (
    evaluate,
    evaluate_env,
    is_exact,
    is_hash,
    read,
    retrace,
    simplified,
    variables,
)
from bts_jax.engine.passes.armwise import ARMWISE, OTHER, Changes
from bts_jax.jax_internals import Atom, Closed, Equation, Jaxpr, Var, make_jaxpr
from bts_jax.random import NONE

# Per call, for a policy's draw by `random.rejection`; see `.github/docs/measurements.md`.
PROPOSALS = {"cpu": 1, "gpu": 3}
OWN_STREAM = 2**32 - 2  # of random words, in `_random_gamma`; those of proposals have lower numbers


class Kept(NamedTuple):
    """The saved draws of one `draw` operation of a policy: accepted and not yet used. For a bandit,
    see `_InOrder`.
    """

    value: jax.Array  # `NONE` where there is no draw
    parameters: tuple[
        jax.Array, ...
    ]  # the parameters of the draws; empty if they change only for the pulled arm


class Attempt(NamedTuple):
    """The outcome of one attempt at a round."""

    outputs: Any  # of the function; invalid unless complete
    complete: jax.Array  # bool: all draws were accepted
    keep: Callable  # `keep(counts, again)`: the draws to save if the round counts, or for `again`


def replace_random_gamma(closed: Closed) -> Closed:
    """The same closed jaxpr with our draws instead of JAX's `random_gamma`."""

    def rule(equation: Equation, inputs: Sequence) -> list[jax.Array]:
        return [_random_gamma(*inputs, **equation.params)]

    return retrace(
        closed, lambda equation: equation.primitive.name == "random_gamma", rule, is_exact
    )


def _random_gamma(keys: jax.Array, shape: jax.Array, *, log_space: bool) -> jax.Array:
    """Gamma draws, or their logarithms. There is one key for each entry along the first axes of
    `shape`.
    """
    rest = shape.shape[keys.ndim :]
    words = [
        word.reshape(keys.shape + (1,) * len(rest)) if rest else word
        for word in random.key_words(keys)
    ]
    place = lax.iota(jnp.uint32, math.prod(rest)).reshape(rest)
    a = shape.astype(jnp.float32)
    # For small shapes a draw is Gamma(a + 1) · U^(1/a). It may be too small for float32, but its
    # logarithm is not.
    small = a < 0.5
    value = random.draw_p.bind(*words, place, jnp.where(small, a + 1, a), sampler=random.GAMMA)
    energy = random.exponential(
        random.threefry((words[0], words[1]), (place, jnp.uint32(OWN_STREAM)))[0]
    )
    less = energy / jnp.where(small, a, 1)
    draws = (
        random.log(value) - jnp.where(small, less, 0)
        if log_space
        else value * jnp.where(small, jnp.exp(-less), 1)
    )
    return draws.astype(shape.dtype)


def in_order(function: Callable, platform: str) -> Callable:
    """The same function with draws that are the first accepted proposals: by a loop on a CPU, by
    `_InOrder` on a GPU.
    """

    def drawn(*arguments: Any) -> Any:
        closed, out = make_jaxpr(function, *arguments)
        with naming("draws by rejection"):
            closed = replace_random_gamma(closed)
        outputs = evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(arguments), rule, is_exact)
        return jax.tree.unflatten(jax.tree.structure(out), outputs)

    def rule(equation: Equation, inputs: Sequence) -> Sequence | None:
        if equation.primitive is not random.draw_p:
            return None
        sampler = equation.params["sampler"]
        if platform == "cpu":
            return [random.draw(sampler, *inputs)]
        return [random.draw_p.bind(*inputs, sampler=sampler._replace(in_order=True))]

    return drawn


class Stepwise:
    """A round that makes one proposal per draw and call. On a GPU, some draws make several
    (`PROPOSALS`).

    The round is a function `(constants, state, *others) -> (outputs, state)`.
    """

    def __init__(self, platform: str, function: Callable, constants: Any, state: Any, *others: Any):
        """Traces the function for arguments of these shapes."""
        self.proposals = PROPOSALS[platform]
        closed, out = make_jaxpr(function, constants, state, *others)
        self.structure = jax.tree.structure(out)
        with naming("draws by rejection"):
            self._prepare(closed, constants, state)

    def _prepare(self, closed: Closed, constants: Any, state: Any) -> None:
        self.closed = simplified(retrace(replace_random_gamma(closed), opaque=is_exact))
        self.changes = Changes(
            self.closed.jaxpr, len(jax.tree.leaves(constants)), len(jax.tree.leaves(state))
        )
        self.draws = [one for one in self.closed.jaxpr.eqns if one.primitive is random.draw_p]
        self.needs = _dependencies(self.closed.jaxpr, self.draws)
        self.changing = [self._change(equation) for equation in self.draws]
        first = len(jax.tree.leaves((constants, state)))
        fresh = _with_fresh_keys(
            self.closed.jaxpr, self.draws, len(jax.tree.leaves(constants)), first
        )
        own = _with_own_words(self.closed, self.draws)
        # Whether rule 3 allows it.
        self.saved = [both == (True, True) for both in zip(fresh, own, strict=True)]

    def _change(self, equation: Equation) -> int:
        """How the parameters of a draw change: not at all, only for the pulled arm, or in other
        ways.
        """
        shape = equation.outvars[0].aval.shape
        if any(atom.aval.shape != shape for atom in equation.invars[3:]):
            return OTHER
        change = max(self.changes.of(atom) for atom in equation.invars[3:])
        return OTHER if change == ARMWISE and shape[:1] != (self.changes.entries,) else change

    def none(self) -> list[Kept]:
        """The saved draws before the first round: none."""
        nothing = []
        for equation, change in zip(self.draws, self.changing, strict=True):
            shape = equation.outvars[0].aval.shape
            if equation.params["sampler"].in_order:
                nothing.append(Kept(jnp.zeros(shape, jnp.uint32), ()))
                continue
            parameters = (
                tuple(jnp.zeros(shape, jnp.float32) for _ in equation.invars[3:])
                if change == OTHER
                else ()
            )
            nothing.append(Kept(jnp.full(shape, NONE, jnp.float32), parameters))
        return nothing

    def __call__(self, kept: list[Kept], attempt: jax.Array, *arguments: Any) -> Attempt:
        """Attempt number `attempt` at a round."""
        made: list[_Draw | _InOrder] = []
        index: Any = None

        def rule(equation: Equation, inputs: Sequence) -> Sequence | None:
            if equation.primitive is not random.draw_p:
                return None
            i = len(made)
            before = [made[j] for j in self.needs[i]]
            sampler = equation.params["sampler"]
            count = 1 if sampler.mostly_accepted else self.proposals
            made.append(
                _InOrder(sampler, kept[i], inputs, before)
                if sampler.in_order
                else _Draw(sampler, count, kept[i], self.changing[i], attempt, inputs, before)
            )
            return [made[-1].value]

        env = evaluate_env(
            self.closed.jaxpr, self.closed.consts, jax.tree.leaves(arguments), rule, is_exact
        )
        outputs = [read(atom, env) for atom in self.closed.jaxpr.outvars]
        if self.changes.index is not None:
            index = env[self.changes.index]

        def keep(counts: jax.Array, again: jax.Array) -> list[Kept]:
            return [
                draw.keep(counts, again, index, saved)
                for draw, saved in zip(made, self.saved, strict=True)
            ]

        complete = ~_any([one.lacks for one in made])
        return Attempt(jax.tree.unflatten(self.structure, outputs), complete, keep)


class _Draw:
    """One attempt at the draws of one `draw` operation."""

    def __init__(
        self,
        sampler: random.Sampler,
        count: int,
        kept: Kept,
        change: int,
        attempt: jax.Array,
        operands: Sequence,
        before: Sequence["_Draw | _InOrder"],
    ):
        key, place, parameters = tuple(operands[:2]), operands[2], tuple(operands[3:])
        self.change, self.parameters = change, parameters if change == OTHER else ()
        self.known = kept.value
        if change == OTHER:
            same = [
                _bits(new) == _bits(old)
                for new, old in zip(parameters, kept.parameters, strict=True)
            ]
            self.known = jnp.where(_both(same), self.known, NONE)
        words = [random.words_of(sampler, attempt * count + i, key, place) for i in range(count)]
        self.proposed = sampler.propose(words[-1], *parameters)
        for one in reversed(words[:-1]):
            value = sampler.propose(one, *parameters)
            self.proposed = jnp.where(value == NONE, self.proposed, value)
        if before:
            self.proposed = jnp.where(_any([one.lacks for one in before]), NONE, self.proposed)
        self.has = self.known != NONE
        self.value = jnp.where(self.has, self.known, self.proposed)
        self.lacks = self.value == NONE

    def keep(self, counts: jax.Array, again: jax.Array, index: Any, saved: bool) -> Kept:
        """The draws to save: those that the round did not need if it counts, all draws so far if
        there is another attempt.
        """
        new = jnp.where(self.has, counts if saved else False, again)
        value = jnp.where(new, self.proposed, jnp.where(counts, NONE, self.known))
        if self.change == ARMWISE:  # the parameters of the pulled arm have changed
            value = jnp.where(counts, value.at[index[0]].set(NONE), value)
        return Kept(value, self.parameters)


class _InOrder:
    """One attempt at the draws of one `draw` operation of a bandit.

    The number of rejected proposals is saved. If the round is attempted again, an accepted proposal
    is made again, too.
    """

    def __init__(
        self,
        sampler: random.Sampler,
        kept: Kept,
        operands: Sequence,
        before: Sequence["_Draw | _InOrder"],
    ):
        self.rejected = kept.value
        proposal, valid = random.proposals(sampler, *operands)
        value, accepted = proposal(self.rejected)
        # `update` gets a valid number, although the round will be attempted again.
        value = jnp.where(accepted, value, 1)
        self.value = jnp.where(valid, value, jnp.nan)
        self.lacks = valid & ~accepted
        self.ready = ~_any([one.lacks for one in before])  # the parameters are known

    def keep(self, counts: jax.Array, again: jax.Array, index: Any, saved: bool) -> Kept:
        """The number of rejected proposals: 0 before the next round."""
        rejected = self.rejected + (again & self.ready & self.lacks).astype(jnp.uint32)
        return Kept(jnp.where(counts, jnp.uint32(0), rejected), ())


def _bits(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, jnp.int32)


def _both(conditions: Sequence[jax.Array]) -> jax.Array:
    result = conditions[0]
    for one in conditions[1:]:
        result = result & one
    return result


def _any(flags: Sequence[jax.Array]) -> jax.Array:
    """Whether any entry is true. Arrays of the same shape are combined first."""
    shapes: dict[tuple, jax.Array] = {}
    for one in flags:
        shapes[one.shape] = shapes[one.shape] | one if one.shape in shapes else one
    result = jnp.bool_(False)
    for one in shapes.values():
        result = result | one.any()
    return result


def _dependencies(jaxpr: Jaxpr, draws: Sequence) -> list[list[int]]:
    """For each draw, the draws that its operands depend on."""
    number = {id(equation): i for i, equation in enumerate(draws)}
    depends: dict[Any, frozenset[int]] = {}
    needs = []
    for equation in jaxpr.eqns:
        found = frozenset().union(
            *(depends.get(var, frozenset()) for var in variables(equation.invars))
        )
        if id(equation) in number:
            needs.append(sorted(found))
            found |= {number[id(equation)]}
        depends.update(dict.fromkeys(equation.outvars, found))
    return needs


def _with_fresh_keys(jaxpr: Jaxpr, draws: Sequence, first: int, last: int) -> list[bool]:
    """For each draw, whether its key depends only on the round's key and on constants.

    It must not depend on other draws or on the state, which are the inputs from `first` to `last`.
    """
    state = set(jaxpr.invars[first:last])
    fresh = set(jaxpr.invars[last:])
    for equation in jaxpr.eqns:
        used = set(variables(equation.invars))
        if equation.primitive is random.draw_p or not state.isdisjoint(used):
            state.update(equation.outvars)
        elif not fresh.isdisjoint(used):
            fresh.update(equation.outvars)
    return [
        all(atom in fresh for atom in variables(one.invars[:2]))
        and len(variables(one.invars[:2])) == 2
        for one in draws
    ]


def _with_own_words(closed: Closed, draws: Sequence) -> list[bool]:
    """For each draw, whether each of its elements provably has random words that nothing else in
    the round has.

    The words depend on the key and on the position. So each key must have one use, from the key of
    the round to the draw. It may also be divided: by disjoint slices, or by folding in different
    numbers. Anything else counts as shared.
    """
    keys = _KeyUses(closed)
    result = []
    for one in draws:
        shape = np.broadcast_shapes(*(atom.aval.shape for atom in one.invars[:3]))
        each = math.prod(shape) == math.prod(one.outvars[0].aval.shape)
        result.append(each and all(keys.has_one_use(atom) for atom in one.invars[:2]))
    return result


class _KeyUses:
    """The keys of a round, and how they are used. Variables that are computed in the same way have
    the same name.
    """

    MOVES = """
        concatenate random_unwrap random_wrap reshape slice split squeeze stack transpose unstack
        """.split()
    OTHERS = "broadcast_in_dim random_fold_in random_split".split()

    def __init__(self, closed: Closed):
        self.constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        self.names: dict[Any, Any] = {}  # by variable
        # The operation that computes a variable, by variable and by name.
        self.makers: dict[Any, Any] = {}
        self.uses: dict[Any, dict[Any, Any]] = {}  # by name: the operations that use it, each once
        numbers: dict[Any, int] = {}
        for equation in closed.jaxpr.eqns:
            operation, inputs, use = (
                equation.primitive.name,
                [self.name(atom) for atom in equation.invars],
                id(equation),
            )
            self.makers.update(dict.fromkeys(equation.outvars, equation))
            if operation in (*self.MOVES, *self.OTHERS) or is_hash(equation):
                use = (
                    operation,
                    equation.params["name"] if is_hash(equation) else str(equation.params),
                    *inputs,
                )
                number = numbers.setdefault(use, len(numbers))
                self.names.update(
                    {var: (place, number) for place, var in enumerate(equation.outvars)}
                )
                self.makers.update({self.names[var]: equation for var in equation.outvars})
            for atom in inputs:
                self.uses.setdefault(atom, {})[use] = equation
        for atom in closed.jaxpr.outvars:
            self.uses.setdefault(self.name(atom), {})["output"] = None

    def name(self, atom: Atom) -> Any:
        if isinstance(atom, Var):
            return self.names.get(atom, atom)
        return str(atom.aval), np.asarray(atom.val).tobytes()

    def has_one_use(self, atom: Atom, user: str = "") -> bool:
        """Whether a key, or its words, and all keys that it was made from are used once.

        JAX makes new keys with another hash than the one that makes words of proposals. So a key
        may have a use of each kind. `user` is the operation that uses it.
        """
        if not isinstance(atom, Var) or atom in self.constants:
            return False
        new_keys, words = ("random_fold_in", "random_split"), ("random_unwrap",)
        others = words if user in new_keys else new_keys if user in words else ()
        uses = [
            use
            for use in self.uses[self.name(atom)].values()
            if not self.is_harmless(use) and (use is None or use.primitive.name not in others)
        ]
        if len(uses) > 1 and not (self.are_disjoint(uses) or self.fold_in_different_numbers(uses)):
            return False
        maker = self.makers.get(self.name(atom))
        if maker is None:
            return True  # a key of the round or of the run
        operation, inputs = maker.primitive.name, maker.invars
        if is_hash(maker):
            return all(map(self.has_one_use, inputs[:2])) and not maker.outvars[0].aval.shape
        if operation == "random_split":
            return self.has_one_use(inputs[0], operation)
        if operation == "random_fold_in":
            data = self.value(inputs[1])
            different = inputs[1].aval.shape == () or (
                data is not None and len(np.unique(data)) == data.size
            )
            return different and self.has_one_use(inputs[0], operation)
        if operation not in (*self.MOVES, "broadcast_in_dim"):
            return False
        grows = math.prod(maker.outvars[0].aval.shape) > sum(
            math.prod(atom.aval.shape) for atom in inputs
        )
        different = len({self.name(atom) for atom in inputs}) == len(inputs)
        return (
            different
            and (operation == "random_unwrap" or not grows)
            and all(self.has_one_use(atom, operation) for atom in inputs)
        )

    def is_harmless(self, use: Any) -> bool:
        """Whether this is the hash in `_random_gamma`, which has a stream of its own."""
        if use is None or not is_hash(use):
            return False
        stream = self.value(use.invars[-1])
        return stream is not None and np.array_equal(stream, OWN_STREAM)

    def are_disjoint(self, uses: list) -> bool:
        if any(use is None or use.primitive.name != "slice" for use in uses):
            return False
        bounds = [
            list(zip(use.params["start_indices"], use.params["limit_indices"], strict=True))
            for use in uses
        ]
        return all(
            any(a[1] <= b[0] or b[1] <= a[0] for a, b in zip(one, other, strict=True))
            for i, one in enumerate(bounds)
            for other in bounds[:i]
        )

    def fold_in_different_numbers(self, uses: list) -> bool:
        """Whether these fold different numbers into a key: by `fold_in`, or by a hash with a
        different last number.
        """
        folds = all(use is not None and use.primitive.name == "random_fold_in" for use in uses)
        if not folds and not all(use is not None and is_hash(use) for use in uses):
            return False
        data = [self.value(use.invars[-1]) for use in uses]
        numbers = {int(x) for x in data if x is not None and x.shape == ()}
        return len(numbers) == len(uses)

    def value(self, atom: Atom) -> np.ndarray | None:
        """The value of a constant. `None` if it is no constant, or not a simple one."""
        if not isinstance(atom, Var):
            return np.asarray(atom.val)
        if atom in self.constants:
            return np.asarray(self.constants[atom])
        maker = self.makers.get(atom)
        if maker is None:
            return None
        if maker.primitive.name == "iota" and len(maker.params["shape"]) == 1:
            return np.arange(maker.params["shape"][0])
        integer = maker.primitive.name == "convert_element_type" and jnp.issubdtype(
            maker.params["new_dtype"], jnp.integer
        )
        return self.value(maker.invars[0]) if integer else None
