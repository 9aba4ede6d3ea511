"""Measures what each pass of the engine buys: `bts-jax bench --ablate`.

Each pass that makes programs faster is switched off in turn. A process of its own plays BTS and
KUBE without it, as fast as it can, and another one plays them with all passes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bts_jax.engine.pipeline import PASSES, VARIABLE

# Plays each policy on 10 and 100 arms, and prints the time of a call in microseconds.
PROGRAM = """
import json
import jax
from bts_jax.bench import SIZES, problem, measured
from bts_jax.policies import POLICIES

device = jax.devices()[0]
on_cpu = device.platform == "cpu"
times = {}
for arms, of_bts, of_kube, _ in SIZES:
    for name, budget in (("bts", of_bts), ("kube", of_kube)):
        budget = budget if on_cpu else 10 * budget
        (row,) = measured({name: POLICIES[name]()}, problem(arms), budget, 500)
        times[f"{name}, {arms} arms"] = row["microseconds per call of all lanes"]
about = f"CPU, {len(jax.devices())} cores" if on_cpu else device.device_kind
print(json.dumps({"device": about, "jax": jax.__version__, "times": times}))
"""


def ablation(progress: Callable[[str], Any] = lambda text: None) -> dict:
    """Returns for each pass the time of a call without it, divided by the time with all passes.

    The program with all passes is measured before and after, and the faster time counts.
    """
    progress("all passes")
    whole = _times("")
    platform = "cpu" if whole["device"].startswith("CPU") else "gpu"
    speeding = [one for one in PASSES if one.for_speed and platform in one.platforms]
    without = {}
    for one in speeding:
        progress(f"without {one.name}")
        without[one.name] = _times(f"-{one.name}")["times"]
    progress("all passes, again")
    again = _times("")["times"]
    fastest = {row: min(time, again[row]) for row, time in whole["times"].items()}
    rows = [
        {
            "pass": one.name,
            "buys": one.buys,
            **{row: without[one.name][row] / time for row, time in fastest.items()},
        }
        for one in speeding
    ]
    return {"device": whole["device"], "jax": whole["jax"], "rows": rows}


def _times(passes: str) -> dict:
    environment = {**os.environ, VARIABLE: passes}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise RuntimeError(f"the measurement with {VARIABLE}={passes!r} failed: its error is above")
    return json.loads(done.stdout.splitlines()[-1])
