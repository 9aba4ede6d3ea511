"""Draws by rejection without loops: one proposal per call.

A policy that draws by rejection loops until every proposal is accepted. In a batch, all runs would wait for the last one. Here
each draw becomes one proposal. Accepted elements are saved, and the engine calls the policy again, in the same round, until
all elements of all draws are accepted. Then the round counts.

This is exact because of three rules:

1. All other random numbers of a round are the same in every attempt. Only proposals depend on the attempt.
2. If the parameters of a draw depend on another draw, it is accepted only after the other draw is complete.
3. An accepted draw that a round did not need is used in a later round only under three conditions. Its parameters are bit for
   bit the same. Every round has a fresh key: a key that a policy stores in its state gives the same draws whenever it is used.
   And no other draw has the same random words: the round ends when the other one is accepted, so this one would be saved only
   for words that suit both.

The third rule saves calls. In the last attempt of a round, most elements already have a draw, and their proposals would be
wasted. With 100 arms, BTS needs 1.15 calls per pull instead of 1.7.

Some draws need more than one proposal, such as Gamma draws of shapes below 1/2. The first program does not support them,
because it is faster without. If a run needs such a draw, the batch is played again by a program that supports them.

`jax.random.gamma`, `loggamma`, `beta`, `dirichlet`, `t` and `chisquare` use one primitive of JAX, `random_gamma`. It is
replaced by our sampler. A draw inside a loop or a branch of the policy stays a loop.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from bts_jax import random
from bts_jax.engine.armwise import ARMWISE, OTHER, Changes
from bts_jax.engine.jaxprs import evaluate, evaluate_env, is_exact, is_hash, merged, read, retrace, variables
from bts_jax.random import NONE


class Kept(NamedTuple):
    """The saved draws of one `draw` operation of a policy: accepted and not yet used."""

    value: jax.Array  # `NONE` where there is no draw; negative where a draw has begun
    parameters: tuple[jax.Array, ...]  # the parameters of the draws; empty if they change only for the pulled arm


class Attempt(NamedTuple):
    """The outcome of one attempt at a round."""

    outputs: Any  # of the function; invalid unless complete
    complete: jax.Array  # bool: all draws were accepted
    beyond: jax.Array  # bool: a draw needs more than one proposal, and this program does not support such draws
    keep: Callable  # `keep(counts, again)`: the draws to save if the round counts, or if there is another attempt


def replace_random_gamma(closed: Any) -> Any:
    """The same closed jaxpr with our draws instead of JAX's `random_gamma`."""

    def rule(equation: Any, inputs: Sequence) -> list[jax.Array]:
        return [_random_gamma(*inputs, **equation.params)]

    return retrace(closed, lambda equation: equation.primitive.name == "random_gamma", rule, is_exact)


def _random_gamma(keys: jax.Array, shape: jax.Array, *, log_space: bool) -> jax.Array:
    """Gamma draws, or their logarithms. There is one key for each entry along the first axes of `shape`."""
    rest = shape.shape[keys.ndim :]
    words = [word.reshape(keys.shape + (1,) * len(rest)) if rest else word for word in random.key_words(keys)]
    place = lax.iota(jnp.uint32, math.prod(rest)).reshape(rest)
    a = shape.astype(jnp.float32)
    # For small shapes a draw is Gamma(a + 1) · U^(1/a). It may be too small for float32, but its logarithm is not.
    small = a < 0.5
    value = random.draw_p.bind(*words, place, jnp.where(small, a + 1, a), sampler=random.GAMMA)
    energy = random.exponential(random.threefry((words[0], words[1]), (place, jnp.uint32(2**32 - 2)))[0])
    less = energy / jnp.where(small, a, 1)
    draws = random.log(value) - jnp.where(small, less, 0) if log_space else value * jnp.where(small, jnp.exp(-less), 1)
    return draws.astype(shape.dtype)


def looped(function: Callable, platform: str) -> Callable:
    """The same function with complete draws: by a loop on a CPU, by parallel proposals on a GPU, where loops are slow."""

    def drawn(*arguments: Any) -> Any:
        closed, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
        outputs = evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(arguments), rule, is_exact)
        return jax.tree.unflatten(jax.tree.structure(out), outputs)

    def rule(equation: Any, inputs: Sequence) -> Sequence | None:
        if equation.primitive is not random.draw_p:
            return None
        return [random.draw(equation.params["sampler"], None if platform == "cpu" else random.TRIES, *inputs)]

    return drawn


class Stepwise:
    """A round that makes one proposal per draw and call.

    The round is a function `(constants, state, *others) -> (outputs, state)`.
    """

    def __init__(self, general: bool, function: Callable, constants: Any, state: Any, *others: Any):
        """Traces the function for arguments of these shapes. If `general`, draws may need more than one proposal."""
        self.general = general
        closed, out = jax.make_jaxpr(function, return_shape=True)(constants, state, *others)
        closed = retrace(replace_random_gamma(closed), opaque=is_exact)
        self.closed = core.ClosedJaxpr(merged(closed.jaxpr), closed.consts)
        self.structure = jax.tree.structure(out)
        self.changes = Changes(self.closed.jaxpr, len(jax.tree.leaves(constants)), len(jax.tree.leaves(state)))
        self.draws = [one for one in self.closed.jaxpr.eqns if one.primitive is random.draw_p]
        self.needs = _dependencies(self.closed.jaxpr, self.draws)
        self.kinds = [self._kind(equation) for equation in self.draws]
        first = len(jax.tree.leaves((constants, state)))
        fresh = _with_fresh_keys(self.closed.jaxpr, self.draws, len(jax.tree.leaves(constants)), first)
        own = _with_own_words(self.closed.jaxpr, self.draws)
        self.saved = [both == (True, True) for both in zip(fresh, own, strict=True)]  # whether rule 3 allows it

    def _kind(self, equation: Any) -> int:
        """How the parameters of a draw change: not at all, only for the pulled arm, or in other ways."""
        shape = equation.outvars[0].aval.shape
        if any(atom.aval.shape != shape for atom in equation.invars[3:]):
            return OTHER
        kind = max(self.changes.of(atom) for atom in equation.invars[3:])
        return OTHER if kind == ARMWISE and shape[:1] != (self.changes.entries,) else kind

    def none(self) -> list[Kept]:
        """The saved draws before the first round: none."""
        nothing = []
        for equation, kind in zip(self.draws, self.kinds, strict=True):
            shape = equation.outvars[0].aval.shape
            parameters = tuple(jnp.zeros(shape, jnp.float32) for _ in equation.invars[3:]) if kind == OTHER else ()
            nothing.append(Kept(jnp.full(shape, NONE, jnp.float32), parameters))
        return nothing

    def __call__(self, kept: list[Kept], attempt: jax.Array, *arguments: Any) -> Attempt:
        """Attempt number `attempt` at a round."""
        made: list[_Draw] = []
        index: Any = None

        def rule(equation: Any, inputs: Sequence) -> Sequence | None:
            if equation.primitive is not random.draw_p:
                return None
            i = len(made)
            before = [made[j] for j in self.needs[i]]
            made.append(_Draw(equation.params["sampler"], self.general, kept[i], self.kinds[i], attempt, inputs, before))
            return [made[-1].value]

        env = evaluate_env(self.closed.jaxpr, self.closed.consts, jax.tree.leaves(arguments), rule, is_exact)
        outputs = [read(atom, env) for atom in self.closed.jaxpr.outvars]
        if self.changes.index is not None:
            index = env[self.changes.index]

        def keep(counts: jax.Array, again: jax.Array) -> list[Kept]:
            return [draw.keep(counts, again, index, saved) for draw, saved in zip(made, self.saved, strict=True)]

        worst = _worst([one.lacks for one in made])
        return Attempt(jax.tree.unflatten(self.structure, outputs), worst == 0, worst == 2, keep)


class _Draw:
    """One attempt at the draws of one `draw` operation."""

    def __init__(
        self, sampler: random.Sampler, general: bool, kept: Kept, kind: int, attempt: jax.Array, operands: Sequence,
        before: Sequence["_Draw"],
    ):
        key, place, parameters = tuple(operands[:2]), operands[2], tuple(operands[3:])
        self.kind, self.parameters = kind, parameters if kind == OTHER else ()
        self.known = kept.value
        if kind == OTHER:
            same = [_bits(new) == _bits(old) for new, old in zip(parameters, kept.parameters, strict=True)]
            self.known = jnp.where(_both(same), self.known, NONE)
        words = random.words_of(sampler, attempt, key, place)
        staged = general and sampler.advance is not None
        if staged:
            self.proposed = sampler.advance(words,  # type: ignore
                                            jnp.where(self.known < 0, self.known, NONE), *parameters)
        else:
            self.proposed = sampler.propose(words, *parameters)
        if before:
            self.proposed = jnp.where(_worst([one.lacks for one in before]) == 0, self.proposed, NONE)
        self.has = (self.known >= 0) & (self.known < NONE) if staged else self.known != NONE
        self.value = jnp.where(self.has, self.known, self.proposed)
        # What is missing. 0: nothing, also if the value is NaN. 1: an accepted proposal. 2: a program that supports draws with
        # more than one proposal.
        self.lacks = (self.value == NONE).astype(jnp.int8)
        if sampler.advance is not None:
            self.lacks = jnp.where(self.value < 0, jnp.int8(1 if staged else 2), self.lacks)

    def keep(self, counts: jax.Array, again: jax.Array, index: Any, saved: bool) -> Kept:
        """The draws to save: those that the round did not need if it counts, all draws so far if there is another attempt."""
        new = jnp.where(self.has, counts if saved else False, again)
        value = jnp.where(new, self.proposed, jnp.where(counts, NONE, self.known))
        if self.kind == ARMWISE:  # the parameters of the pulled arm have changed
            value = jnp.where(counts, value.at[index[0]].set(NONE), value)
        return Kept(value, self.parameters)


def _bits(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, jnp.int32)


def _both(conditions: Sequence[jax.Array]) -> jax.Array:
    result = conditions[0]
    for one in conditions[1:]:
        result = result & one
    return result


def _worst(lacks: Sequence[jax.Array]) -> jax.Array:
    """The maximum of all entries. Arrays of the same shape are combined first."""
    shapes: dict[tuple, jax.Array] = {}
    for one in lacks:
        shapes[one.shape] = jnp.maximum(shapes[one.shape], one) if one.shape in shapes else one
    worst = jnp.int8(0)
    for one in shapes.values():
        worst = jnp.maximum(worst, one.max(initial=0))
    return worst


def _dependencies(jaxpr: Any, draws: Sequence) -> list[list[int]]:
    """For each draw, the draws that its operands depend on."""
    number = {id(equation): i for i, equation in enumerate(draws)}
    depends: dict[Any, frozenset[int]] = {}
    needs = []
    for equation in jaxpr.eqns:
        found = frozenset().union(*(depends.get(var, frozenset()) for var in variables(equation.invars)))
        if id(equation) in number:
            needs.append(sorted(found))
            found |= {number[id(equation)]}
        depends.update(dict.fromkeys(equation.outvars, found))
    return needs


def _with_fresh_keys(jaxpr: Any, draws: Sequence, first: int, last: int) -> list[bool]:
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
    return [all(atom in fresh for atom in variables(one.invars[:2])) and len(variables(one.invars[:2])) == 2 for one in draws]


def _with_own_words(jaxpr: Any, draws: Sequence) -> list[bool]:
    """For each draw, whether each of its elements has random words that no other element and no other draw has.

    The words depend on the key and on the position. Two keys are taken to be different unless they are computed in the same
    way, or one key is repeated in an array of keys.
    """
    numbers: dict[Any, int] = {}  # of what is computed
    known: dict[Any, int] = {}  # the number of each variable
    repeated: set[int] = set()  # of arrays in which a key is repeated

    def name(atom: Any) -> Any:
        return known.get(atom, atom) if isinstance(atom, core.Var) else (str(atom.aval), np.asarray(atom.val).tobytes())

    for equation in jaxpr.eqns:
        kind = equation.primitive.name
        if kind not in _OF_KEYS and not is_hash(equation):
            continue
        inputs = tuple(map(name, equation.invars))
        more = kind == "broadcast_in_dim" and _size(equation.outvars[0]) > _size(equation.invars[0])
        twice = kind in ("concatenate", "stack") and len(set(inputs)) < len(inputs)
        moved = kind in _MOVES and not repeated.isdisjoint(inputs)
        what = equation.params["name"] if is_hash(equation) else str(equation.params)
        for place, var in enumerate(equation.outvars):
            known[var] = numbers.setdefault((kind, what, place, inputs), len(numbers))
            if more or twice or moved:
                repeated.add(known[var])
    keys = [tuple(map(name, one.invars[:2])) for one in draws]
    result = []
    for one, key in zip(draws, keys, strict=True):
        shape = np.broadcast_shapes(*(atom.aval.shape for atom in one.invars[:3]))
        each = math.prod(shape) == _size(one.outvars[0])
        result.append(each and keys.count(key) == 1 and repeated.isdisjoint(key))
    return result


# Operations that only move numbers, and those that make keys.
_MOVES = "broadcast_in_dim concatenate random_unwrap random_wrap reshape slice squeeze stack transpose".split()
_OF_KEYS = [*_MOVES, "random_fold_in", "random_split"]


def _size(atom: Any) -> int:
    return math.prod(atom.aval.shape)
