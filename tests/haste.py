"""Fast compilation for tests that are not about bits: XLA optimizes a program less, in a third of the time.

`jax.jit` is replaced by `Jitted`, which compiles a function in several ways. The test selects one of them: as usual; without
any optimization, for short runs; or, for long runs, in two thirds of the time, with code that is nearly as fast as usual.
"""

import os
from functools import cache, partial, update_wrapper
from threading import local

import jax
import jax.numpy as jnp

_LONG = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
WAYS = {
    "usual": {},
    "short": {**_LONG, "xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
    "long": _LONG,
}
USUAL_FLAGS = os.environ.get("XLA_FLAGS", "")
usual_jit = jax.jit


class _Now(local):
    tracing = 0  # number of active calls in this thread


NOW = _Now()
way = "usual"


def switch(to):
    global way
    if to != way:
        if "short" in (to, way):  # also for calls without `jax.jit`
            jax.config.update("jax_disable_most_optimizations", to == "short")
            jax.clear_caches()  # drops programs of the other way
        way = to
        programs.QUICKLY = options(to) or QUICKLY
        os.environ["XLA_FLAGS"] = flags(to)  # for processes that a test starts


def flags(way="short"):
    """The XLA_FLAGS with which another process compiles in this way."""
    return " ".join([USUAL_FLAGS, *(f"--{flag}={value}" for flag, value in options(way).items())])


@cache
def options(way):
    """The options that XLA has in this version and on this device."""
    return {option: value for option, value in WAYS[way].items() if known(option, value)}


@cache
def known(option, value):
    """Whether XLA has this option, in this version and on this device."""
    try:
        usual_jit(lambda x: x, compiler_options={option: value}).lower(0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def inside(arguments):
    """Whether this call is part of a larger program or is differentiated. `vmap` alone makes no program."""
    for leaf in jax.tree.leaves(arguments):
        while type(leaf).__name__ == "BatchTracer":
            leaf = leaf.val
        if isinstance(leaf, jax.core.Tracer):
            return True
    return isinstance(jnp.negative(0), jax.core.Tracer)


class Jitted:
    def __init__(self, function, *, compiler_options=None, **rest):
        update_wrapper(self, function)
        self.function, self.compiler_options, self.rest = function, compiler_options, rest
        self.usual = usual_jit(function, compiler_options=compiler_options, **rest)
        self.programs = {"usual": self.usual}

    def now(self):
        if way not in self.programs:
            more = {**options(way), **(self.compiler_options or {})}
            self.programs[way] = usual_jit(self.function, compiler_options=more, **self.rest)
        return self.programs[way]

    def __call__(self, *args, **kwargs):
        if way == "usual" or NOW.tracing or inside((args, kwargs)):  # only the outermost program may have options
            return self.usual(*args, **kwargs)
        NOW.tracing += 1
        try:
            return self.now()(*args, **kwargs)
        finally:
            NOW.tracing -= 1

    def trace(self, *args, **kwargs):
        program = self.now()
        NOW.tracing += 1
        try:
            return program.trace(*args, **kwargs)
        finally:
            NOW.tracing -= 1

    def lower(self, *args, **kwargs):
        return self.trace(*args, **kwargs).lower()

    def clear_cache(self):
        for program in self.programs.values():
            program.clear_cache()

    def __getattr__(self, name):
        return getattr(self.usual, name)

    def __get__(self, instance, owner):
        return self if instance is None else partial(self, instance)


def jit(function=None, **options):
    return partial(jit, **options) if function is None else Jitted(function, **options)


jax.jit = jit

from bts_jax.engine import programs  # noqa: E402  which uses it

QUICKLY = programs.QUICKLY
