"""Settings that reduce compilation, which takes nearly all of the tests' time."""

import gc
import os
import sys
import tempfile

import pytest

gc.set_threshold(100_000)  # tracing creates many objects but little garbage: 3% of the total time

# If the user has turned bytecode off, each process that a test starts would compile the source of
# this package, in 0.2 s.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Compiled programs are stored while the tests run and shared by all of their processes. To store a
# small one takes longer than to compile it again.
if "BTS_JAX_TESTS" not in os.environ:  # in pytest's first process, before its workers start
    PROGRAMS = tempfile.TemporaryDirectory(prefix="bts-jax-programs-")  # until that process ends
    os.environ |= {
        "BTS_JAX_TESTS": PROGRAMS.name,
        "XDG_CACHE_HOME": PROGRAMS.name,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

import haste  # noqa: E402  before the package is imported: it replaces `jax.jit`

from bts_jax import progress  # noqa: E402
from bts_jax.engine.compile import cache  # noqa: E402

progress.SECONDS = 1e6  # tests look at what is printed, and a machine may be slow

PLACE = cache.enable_cache()
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(PLACE)  # also for processes that do not enable it

# These files test how runs are used, not their bits. There XLA optimizes programs less, in a third
# of the time; the same holds for the examples in docstrings. Single tests about bits are marked
# `with_care`, and those with many or long runs `long_runs`.
HASTY = {
    f"test_{name}"
    for name in """
    bandits batch bench bench_policies classes cli compiling conformance docs draws executors
    fixed_costs game grid growth horizon hostile intervals kept_draws knapsack_policies learn
    limited_rounds metrics money_units one_program paper plots policies posteriors priced
    processes proof readme resources results rivals shards studies theory trace units
    """.split()
}

SLOW_EXAMPLES = {
    f"bts_jax.{name}"
    for name in """
    batch.simulate_batch conformance.check_bandit conformance.check_policy
    conformance.check_posterior comparison.compare one_run.simulate learn.fitting.fit
    learn.pathwise.pathwise_gradient learn.score.score_gradient learn.smoothed.smoothed_gradient
    plots plots.heatmaps.heatmap policies.knapsack_bts.KnapsackBTS
    policies.tempered_bts.TemperedBTS tables.regret_table trace.trace
    """.split()
}


def way(item):
    """How the programs of a test are compiled: one of `haste.WAYS`."""
    file = item.path.stem
    hasty = (file in HASTY or not file.startswith("test_")) and not item.get_closest_marker(
        "with_care"
    )
    return "long" if item.get_closest_marker("long_runs") else "short" if hasty else "usual"


def pytest_collection_modifyitems(items):
    """Tests that are compiled in the same way follow each other, for `haste.switch` drops the
    programs of the other way.
    """
    for item in items:
        if item.name in SLOW_EXAMPLES:
            item.add_marker("slow")
    files = list(dict.fromkeys(item.path for item in items))
    files.sort(key=lambda path: path.stem.startswith("test_") and path.stem not in HASTY)
    items.sort(key=lambda item: (files.index(item.path), way(item) != "short"))


class Haste:
    """A plugin instead of a fixture, so that it also applies to the examples in docstrings."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        haste.switch(way(item), item.get_closest_marker("all_devices") is not None)


def pytest_configure(config):
    config.addinivalue_line("markers", "with_care: not compiled in haste, whatever the file")
    config.addinivalue_line(
        "markers", "all_devices: plays on all devices, and not only on the first one"
    )
    config.addinivalue_line("markers", "long_runs: compiled in haste, but to code that is fast")
    config.addinivalue_line(
        "markers", "slow: takes long and fails rarely; left out by -m 'not slow'"
    )
    config.pluginmanager.register(Haste())
