"""Nearly all of the tests' time goes into compiling: what is done about that."""

import gc
import os
import tempfile

import pytest

# Compiled programs are kept while the tests run, for all of their processes: XLA compiles none twice.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # in pytest's first process, before its workers start and import JAX
    PROGRAMS = tempfile.TemporaryDirectory(prefix="bts-jax-programs-")  # until that process ends
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": PROGRAMS.name, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                   "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}

gc.set_threshold(100_000)  # tracing makes many objects, few of them garbage: 3% of all the time

# Files about what is done with runs, and not about their bits: there XLA makes less of the programs, in a quarter of the time;
# likewise for the examples in docstrings. Single tests about bits, and those that would run too long, are marked `with_care`.
HASTY = {f"test_{name}" for name in """
    audit bandits batch bench bench_policies classes cli draws executors game grid growth horizon hostile intervals kept_draws
    learn metrics one_program paper plots policies processes readme results shards studies tasks theory trace units
    """.split()}
EMITTERS = "xla_cpu_use_fusion_emitters"
FLAGS = {"xla_backend_optimization_level": 0, EMITTERS: False}  # for processes that a test starts
USUAL_FLAGS = os.environ.get("XLA_FLAGS", "")


def compile_in_haste(hasty):
    import jax
    from common import known
    from jax._src import compiler  # there is no public way to an option for all programs to come

    def options(*arguments, env_options_overrides=None, **named):
        return usual(*arguments, env_options_overrides={**(env_options_overrides or {}), EMITTERS: False}, **named)

    usual = getattr(compiler.get_compile_options, "usual", compiler.get_compile_options)
    options.usual = usual
    compiler.get_compile_options = options if hasty and known(EMITTERS, False) else usual
    jax.config.update("jax_disable_most_optimizations", hasty)
    flags = [f"--{flag}={value}" for flag, value in FLAGS.items() if hasty and known(flag, value)]
    os.environ["XLA_FLAGS"] = " ".join([USUAL_FLAGS, *flags])  # this process's XLA has read them before
    jax.clear_caches()  # no program made in haste where bits matter


class Haste:
    """A plugin, and no fixture, so that it serves the examples in docstrings, too."""

    hasty = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        file = item.path.stem
        hasty = (file in HASTY or not file.startswith("test_")) and not item.get_closest_marker("with_care")
        if hasty != self.hasty:
            compile_in_haste(hasty)
            self.hasty = hasty


def pytest_configure(config):
    config.addinivalue_line("markers", "with_care: not compiled in haste, whatever the file")
    config.pluginmanager.register(Haste())
