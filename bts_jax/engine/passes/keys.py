"""Replaces keys by the words that they consist of.

A typed key is a wrapper of two 32-bit words. This pass replaces the operations on keys (`split`,
`fold_in`, `bits`, indexing) by operations on the words. They give the same bits as JAX. Then other
passes and the vectorisation see plain integers, and each hash is one operation.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax import random
from bts_jax.engine.jaxprs import Builder, is_exact
from bts_jax.jax_internals import Closed, Equation, Jaxpr, jaxprs_in_params

IMPL = "threefry2x32"
# Operations on an array of keys that are the same operation on each of the two words.
EACH = """
    broadcast_in_dim concatenate copy dynamic_slice gather reshape rev select_n slice squeeze
    stack transpose
    """.split()
FEW = [(count,) for count in range(1, 5)]  # shapes whose entries are hashed separately


class _SplitKeys(NamedTuple):
    """An array of keys. Each word has the shape of the array."""

    first: jax.Array
    second: jax.Array

    def typed(self) -> jax.Array:
        return jax.random.wrap_key_data(jnp.stack(self, axis=-1), impl=IMPL)


def depend_on_the_batch(jaxpr: Jaxpr) -> bool:
    """Whether random numbers in a jaxpr depend on the shape of the batch, as those of XLA's own
    generator do (keys `rbg`).
    """
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("rng_bit_generator", "rng_uniform"):
            return True
        draws = equation.primitive.name in ("random_bits", "random_split", "random_fold_in")
        if draws and "rbg" in str(equation.invars[0].aval.dtype):
            return True
    return any(
        depend_on_the_batch(body) for one in jaxpr.eqns for body in jaxprs_in_params(one.params)
    )


def write_out_keys(closed: Closed) -> Closed:
    """The same closed jaxpr, with operations on the words of keys instead of operations on keys
    wherever possible.
    """

    builder = Builder()

    def apply(equation: Equation, inputs: list) -> list | None:
        if not is_wrap(equation) and not any(isinstance(x, _SplitKeys) for x in inputs):
            return None
        return list(builder.trace(lambda *inputs: _written_out(equation, inputs), *inputs))

    def is_wrap(equation: Equation) -> bool:
        return equation.primitive.name == "random_wrap" and equation.params["impl"].name == IMPL

    outputs = builder.inline(closed, closed.jaxpr.invars, apply, is_exact)
    outputs = [
        builder.trace(_SplitKeys.typed, x) if isinstance(x, _SplitKeys) else x for x in outputs
    ]
    return builder.closed(closed.jaxpr, closed.jaxpr.invars, outputs)


def _written_out(equation: Equation, inputs: Sequence) -> Sequence:
    name, params = equation.primitive.name, equation.params
    if name == "random_wrap":
        return [_SplitKeys(inputs[0][..., 0], inputs[0][..., 1])]
    keys = inputs[0]
    if name == "random_unwrap":
        return [jnp.stack(keys, axis=-1)]
    if isinstance(keys, _SplitKeys) and jax.config.jax_threefry_partitionable:  # type: ignore
        if name == "random_split":
            hashes = _few if keys.first.shape == () and params["shape"] in FEW else _hashes
            return [_SplitKeys(*hashes(keys, params["shape"]))]
        if name == "random_bits" and params["bit_width"] == 32:
            first, second = _hashes(keys, params["shape"])
            return [first ^ second]
    if name == "random_fold_in" and isinstance(keys, _SplitKeys):
        data = inputs[1].astype(jnp.uint32)
        return [_SplitKeys(*random.jax_hash(keys.first, keys.second, jnp.zeros_like(data), data))]
    if name in EACH and all(
        isinstance(x, _SplitKeys) == jnp.issubdtype(atom.aval.dtype, jax.dtypes.prng_key)
        for x, atom in zip(inputs, equation.invars, strict=True)
    ):
        return [
            _SplitKeys(
                *(
                    equation.primitive.bind(
                        *(x[i] if isinstance(x, _SplitKeys) else x for x in inputs), **params
                    )
                    for i in range(2)
                )
            )
        ]
    if name == "unstack" and isinstance(keys, _SplitKeys):
        return [
            _SplitKeys(*words)
            for words in zip(
                *(equation.primitive.bind(word, **params) for word in keys), strict=True
            )
        ]
    typed = [x.typed() if isinstance(x, _SplitKeys) else x for x in inputs]
    outputs = equation.primitive.bind(*typed, **params)
    return outputs if equation.primitive.multiple_results else [outputs]


def _few(keys: _SplitKeys, shape: tuple[int, ...]) -> list[jax.Array]:
    """`_hashes` for few positions, each computed separately.

    With an array of positions, a GPU would compute the whole preceding step once per position.
    """
    words = [
        random.jax_hash(keys.first, keys.second, jnp.uint32(0), jnp.uint32(i))
        for i in range(shape[0])
    ]
    return [jnp.stack(word) for word in zip(*words, strict=True)]


def _hashes(keys: _SplitKeys, shape: tuple[int, ...]) -> random.Words:
    """JAX's hash of each key and of the positions in an array of this shape."""
    place = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    full = (*keys.first.shape, *shape)
    first, second = (
        jnp.broadcast_to(word.reshape(*word.shape, *[1] * len(shape)), full) for word in keys
    )
    return random.jax_hash(
        first, second, jnp.zeros(full, jnp.uint32), jnp.broadcast_to(place, full)
    )
