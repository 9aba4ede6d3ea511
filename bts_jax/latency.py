"""Measures how long commands take from start to end: `bts-jax bench --latency`.

Each command runs in new processes: first with an empty cache of compiled programs, and again with
the programs that the first has cached. Other work on the machine affects the times.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bts_jax.engine.compile.cache import VARIABLE


class Row(NamedTuple):
    """A command to measure."""

    command: str
    has_table: bool = False  # it prints a table, whose first row is timed, too
    again: bool = True
    full: bool = False  # measured only with `full`


ON_CPU = (
    Row("run --policy bts --arms 10 --budget 1000 --seeds 100"),
    Row("run --policy all", has_table=True),
    Row("figure1"),
    Row("study omega"),
    Row("figure1 --scale paper", again=False, full=True),
)
ON_A_GPU = (
    Row("figure1 --scale paper"),
    Row("study omega --scale full"),
)
HEAD = 2  # lines before the first row of a table
# Compiles the program of `bts-jax run --policy bts --arms 10 --seeds 100`, and prints the device.
# This process does not start JAX: it would take most of a GPU's memory.
PROGRAM = """
import json, time
import jax
import bts_jax
from bts_jax.arguments import of_batch
from bts_jax.batch import lay_out, lower

bts_jax.enable_cache()
bandit = bts_jax.Bernoulli.random(jax.random.key(0), 10)
keys = jax.random.split(jax.random.key(1), 100)
batch = lay_out(of_batch(bts_jax.BTS(), bandit, 1000, keys, None, None))
started = time.perf_counter()
lowered = lower([batch])
traced = time.perf_counter()
lowered.compile()
ended = time.perf_counter()
device, count = jax.devices()[0], jax.device_count()
name = f"CPU, {count} cores" if device.platform == "cpu" else device.device_kind
print(json.dumps({"platform": device.platform, "devices": count, "jax": jax.__version__,
                  "device": name,
                  "tracing and lowering": traced - started, "XLA": ended - traced}))
"""


def latency(full: bool = False, progress: Callable[[str], Any] = lambda text: None) -> dict:
    """Measures the commands that suit this machine, and returns rows of seconds. `full` adds those
    that take half an hour.
    """
    title = "one program of BTS"
    programs = {
        when: json.loads(lines[-1][1])
        for when, lines in _runs(["-c", PROGRAM], title, True, progress).items()
    }
    about = programs["first"]
    rows = []
    for row in ON_CPU if about["platform"] == "cpu" else ON_A_GPU:
        if full or not row.full:
            what = f"bts-jax {row.command}"
            runs = _runs(
                ["-m", "bts_jax", *row.command.split(), "--quiet"], what, row.again, progress
            )
            if row.has_table:
                rows.append(
                    {
                        "what": f"{what}: its first row",
                        **{when: lines[HEAD][0] for when, lines in runs.items()},
                    }
                )
            rows.append({"what": what, **{when: lines[-1][0] for when, lines in runs.items()}})
    for part in ("tracing and lowering", "XLA"):
        rows.append(
            {"what": f"{title}: {part}", **{when: found[part] for when, found in programs.items()}}
        )
    return {name: about[name] for name in ("device", "devices", "jax")} | {"rows": rows}


def _runs(
    arguments: list[str], title: str, again: bool, progress: Callable[[str], Any]
) -> dict[str, list[tuple[float, str]]]:
    """Runs `python` with these arguments, see `_run`: the first time, and again."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="bts-jax-latency-") as folder:
        for when in ("first", "again")[: 1 + again]:
            progress(f"{title} ({when})")
            work = Path(folder, when)  # in one folder, the second would resume the first
            work.mkdir()
            found[when] = _run(
                arguments, {"XDG_CACHE_HOME": str(Path(folder, "cache")), VARIABLE: "on"}, work
            )
    return found


def _run(
    arguments: list[str], environment: dict[str, str], folder: Path
) -> list[tuple[float, str]]:
    """Runs `python` with these arguments. Returns its lines, each with the seconds until then; the
    last, until the end.
    """
    # This package.
    path = os.pathsep.join(
        [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment = {**os.environ, **environment, "PYTHONPATH": path}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
    ) as process:
        lines = [(time.perf_counter() - started, line) for line in process.stdout or ()]
    ended = time.perf_counter() - started
    if process.returncode or not lines:
        raise OSError(
            f"python {' '.join(arguments)[:99]} ended with exit code {process.returncode}: see its "
            "messages above"
        )
    return [*lines[:-1], (ended, lines[-1][1])]
