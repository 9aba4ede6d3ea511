"""Compiled programs are kept while the tests run, for all of their processes: none is compiled twice by XLA."""

import os
import tempfile

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # in pytest's first process, before its workers start and import JAX
    PROGRAMS = tempfile.TemporaryDirectory(prefix="bts-jax-programs-")  # until that process ends
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": PROGRAMS.name, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                   "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
