"""Fast compilation for tests that are not about bits: XLA optimizes a program less, in a third of
the time.

`jax.jit` is replaced by `Jitted`, which compiles a function in several ways. The test selects one
of them: as usual; without any optimization, for short runs; or, for long runs, in two thirds of the
time, with code that is nearly as fast as usual.

Runs are played on all devices only in tests that are marked `all_devices` or name their devices. In
others `jax.local_devices`, which is replaced, too, returns only the first device. A program for
several devices takes a third longer to compile, because XLA first divides it among them.
"""

import os
from functools import cache, partial, update_wrapper
from threading import local

from jaxlib.version import __version__ as jaxlib_version

# Operations that are not part of a program compile in 60% of the time with XLA's older emitters.
# Those in `SAME_BITS` have the same bits with both. XLA ends a process that has an unknown flag, so
# only versions that know this flag get it. Programs have the option of the same name instead. The
# settings of the user are read once, by pytest's first process.
USUAL_FLAGS = os.environ.setdefault("BTS_JAX_TESTS_FLAGS", os.environ.get("XLA_FLAGS", ""))
USUAL_DEVICES = os.environ.setdefault(
    "BTS_JAX_TESTS_DEVICES", os.environ.get("BTS_JAX_CPU_DEVICES", "")
)
if jaxlib_version.startswith("0.10."):
    os.environ["XLA_FLAGS"] = f"{USUAL_FLAGS} --xla_cpu_use_fusion_emitters=false"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

_LONG = {
    "xla_backend_optimization_level": 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
WAYS = {
    "usual": {"xla_cpu_use_fusion_emitters": True},
    "short": {
        **_LONG,
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
    "long": _LONG,
}
usual_jit = jax.jit
usual_local_devices = jax.local_devices


class _Now(local):
    tracing = 0  # number of active calls in this thread


NOW = _Now()
way = "usual"
all_devices = False


def local_devices(*args, **kwargs):
    found = usual_local_devices(*args, **kwargs)
    return found if all_devices else found[:1]


jax.local_devices = local_devices


def switch(to, on_all_devices=False):
    """Selects how programs are compiled from now on, and whether runs are played on all devices."""
    global way, all_devices
    all_devices = on_all_devices
    # Processes that a test starts do the same. (This process has read its own flags when `options`
    # compiled something.)
    os.environ |= {
        "XLA_FLAGS": flags(to),
        "BTS_JAX_CPU_DEVICES": USUAL_DEVICES if all_devices else "1",
    }
    if to != way:
        if "short" in (to, way):  # also for calls without `jax.jit`
            jax.config.update("jax_disable_most_optimizations", to == "short")
            jax.clear_caches()
        for program in list(programs.PROGRAMS.kept):  # compiled in the other way
            programs.PROGRAMS.drop(program)
        way = to
        compiler.QUICKLY = QUICKLY if to == "usual" else options(to)


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
    """Whether this call is part of a larger program or is differentiated. `vmap` alone makes no
    program.
    """
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
        self.programs = {}

    def now(self):
        if way not in self.programs:
            more = {**options(way), **(self.compiler_options or {})}
            self.programs[way] = usual_jit(self.function, compiler_options=more, **self.rest)
        return self.programs[way]

    def __call__(self, *args, **kwargs):
        if NOW.tracing or inside((args, kwargs)):  # only the outermost program may have options
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
        for program in (self.usual, *self.programs.values()):
            program.clear_cache()

    def __getattr__(self, name):
        return getattr(self.usual, name)

    def __get__(self, instance, owner):
        return self if instance is None else partial(self, instance)


def jit(function=None, **options):
    return partial(jit, **options) if function is None else Jitted(function, **options)


jax.jit = jit

from bts_jax.engine.compile import options as compiler  # noqa: E402  which uses it
from bts_jax.engine.compile import programs  # noqa: E402

QUICKLY = compiler.QUICKLY
