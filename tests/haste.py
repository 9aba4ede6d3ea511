"""Compiling in haste: XLA makes less of a program, in a quarter of the time. For tests that are not about bits.

`jax.jit` is replaced by `Jitted`, which has a function compiled in two ways, as usual and in haste. The test says which one
plays.
"""

import os
from functools import cache, partial, update_wrapper
from threading import local

import jax
import jax.numpy as jnp

FLAGS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
USUAL_FLAGS = os.environ.get("XLA_FLAGS", "")
usual_jit = jax.jit


class _Now(local):
    tracing = 0  # how many functions are being called in haste, in this thread


NOW = _Now()
hasty = False


def switch(on):
    global hasty
    if on != hasty:
        hasty = on
        os.environ["XLA_FLAGS"] = flags() if on else USUAL_FLAGS  # for processes that a test starts


def flags():
    """What makes another process compile in haste: its XLA_FLAGS."""
    return " ".join([USUAL_FLAGS, *(f"--{flag}={value}" for flag, value in options().items())])


@cache
def options():
    """Those that XLA has in this version and on this device."""
    return {option: value for option, value in FLAGS.items() if known(option, value)}


@cache
def known(option, value):
    """Whether XLA has such an option, in this version and on this device."""
    try:
        usual_jit(lambda x: x, compiler_options={option: value}).lower(0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def under_jit(arguments):
    """Whether these are arguments of a function that is being traced, for a program with options of its own."""
    leaves = jax.tree.leaves(arguments)
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves) and isinstance(jnp.zeros(()) + 0, jax.core.Tracer)


class Jitted:
    def __init__(self, function, *, compiler_options=None, **rest):
        update_wrapper(self, function)
        self.function, self.compiler_options, self.rest = function, compiler_options, rest
        self.usual = usual_jit(function, compiler_options=compiler_options, **rest)
        self.in_haste = None

    def now(self):
        if not hasty:
            return self.usual
        if self.in_haste is None:
            self.in_haste = usual_jit(self.function, compiler_options={**options(), **(self.compiler_options or {})}, **self.rest)
        return self.in_haste

    def __call__(self, *args, **kwargs):
        if not hasty or NOW.tracing or under_jit((args, kwargs)):  # only the outermost program may have options
            return self.usual(*args, **kwargs)
        NOW.tracing += 1
        try:
            return self.now()(*args, **kwargs)
        finally:
            NOW.tracing -= 1

    def lower(self, *args, **kwargs):
        program = self.now()
        NOW.tracing += 1
        try:
            return program.lower(*args, **kwargs)
        finally:
            NOW.tracing -= 1

    def clear_cache(self):
        for program in (self.usual, self.in_haste):
            if program is not None:
                program.clear_cache()

    def __getattr__(self, name):
        return getattr(self.usual, name)

    def __get__(self, instance, owner):
        return self if instance is None else partial(self, instance)


def jit(function=None, **options):
    return partial(jit, **options) if function is None else Jitted(function, **options)


jax.jit = jit
