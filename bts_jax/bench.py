"""Measures speed: `bts-jax bench`.

Everything is measured in one run on one machine, so that ratios are meaningful. Programs are
compiled before the clock starts, and compile time is shown separately. A rate counts only pulls of
live runs.

Two kinds of ratios are measured. Reference implementations play the same policy without `bts_jax`.
Policies as a user writes them play in `bts_jax`, and show how fast a plainly written policy is.
"""

import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np

from bts_jax import reference_implementations
from bts_jax.arguments import of_batch
from bts_jax.bandits import Bernoulli
from bts_jax.batch import Report, lay_out, lower, simulate_batch
from bts_jax.bench_policies import PlainKUBE, PlainThompson, PlainThompsonJax
from bts_jax.contract import Policy
from bts_jax.policies import POLICIES, KnapsackBTS

RUNS = 500
ENOUGH = 2.0  # seconds of play for a measurement
NAMES = ("bts", "kube", "ucb-bv1", "pd-bwk")
# Arms, and budgets that give each program enough to do: for BTS, for the index policies, and for
# the obvious JAX program.
SIZES = ((10, 2000, 6000, 40), (100, 1000, 2000, 10))
ON_A_GPU = (
    (10, 20_000, 20_000),
    (100, 4_000, 50_000),
    (10, 500, 50_000),
    (100, 500, 50_000),
    (100, 20_000, 1_000),
)
# Policies as a user writes them, and the built-in policies that they are compared with.
WRITTEN_BY_USERS = (
    ("KUBE", PlainKUBE, "kube"),
    ("Thompson sampling, bts_jax.random.beta", PlainThompson, "bts"),
    ("Thompson sampling, jax.random.beta", PlainThompsonJax, "bts"),
)
# Arms, runs, and a budget for each policy, so that a play takes a few seconds at most.
SIZES_FOR_USERS = ((10, 500, (6000, 500, 100)), (100, 500, (1000, 50, 16)))
SIZES_FOR_USERS_ON_A_GPU = (
    (10, 20_000, (20_000, 10_000, 1_000)),
    (100, 4_000, (20_000, 3_000, 500)),
    (10, 500, (20_000, 10_000, 1_000)),
)

# Arms, runs and budget, for KnapsackBTS with two resources beside BTS with one.
TWO_RESOURCES = ((10, 500, 2000), (100, 500, 400))
TWO_RESOURCES_ON_A_GPU = ((10, 20_000, 2000), (100, 4_000, 2000))


def bench(progress: Callable[[str], Any] = lambda text: None) -> dict:
    """Runs all measurements. Returns rows of numbers, with the device and the versions."""
    device = jax.devices()[0]
    on_cpu = device.platform == "cpu"
    rows = _on_cpu(progress) if on_cpu else _on_gpu(progress)
    rows += _with_two_resources(TWO_RESOURCES if on_cpu else TWO_RESOURCES_ON_A_GPU, progress)
    rows += _by_users(SIZES_FOR_USERS if on_cpu else SIZES_FOR_USERS_ON_A_GPU, progress)
    memory = device.memory_stats() or {}
    return {
        "device": device.device_kind
        if device.platform != "cpu"
        else f"CPU, {len(jax.devices())} cores",
        "devices": len(jax.devices()),
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "peak memory of this process, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        // 1024,
        "peak memory on the device, MiB": memory.get("peak_bytes_in_use", 0) // 2**20 or None,
        "rows": rows,
    }


def _on_cpu(progress: Callable[[str], Any]) -> list[dict]:
    rows = []
    cores = len(jax.devices())
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        # Starts the processes.
        list(pool.map(_numpy_pulls, [("kube", np.ones(2), np.ones(2), 1, 1, 0)] * cores))
        for num_arms, of_bts, of_others, small in SIZES:
            bandit = problem(num_arms)
            reward, cost = (np.asarray(x, np.float64) for x in (bandit.reward, bandit.cost))
            for name in NAMES:
                progress(f"{name}, {num_arms} arms")
                budget = of_bts if name == "bts" else of_others
                ours = _ours(name, bandit, budget, RUNS)
                arguments = name, reward, cost, budget, RUNS, 0
                theirs = {"NumPy, one process": _time(partial(_numpy_pulls, arguments))}
                if name == "bts":
                    split = [(*arguments[:4], RUNS // cores, seed) for seed in range(cores)]
                    theirs["NumPy, all cores"] = _time(
                        lambda split=split: sum(pool.map(_numpy_pulls, split))
                    )
                    plain = reference_implementations.jax_runs(reward, cost, small, RUNS, 0)
                    theirs["obvious JAX"] = _time(lambda plain=plain: int(plain().sum()))
                    numba = reference_implementations.numba_runs(reward, cost, budget, RUNS, 0)
                    if numba is not None:
                        theirs["numba, all cores"] = _time(lambda numba=numba: int(numba().sum()))
                rows.append(
                    {
                        **ours,
                        "others": theirs,
                        "ratios": {
                            peer: ours["pulls per second"] / rate for peer, rate in theirs.items()
                        },
                    }
                )
    return rows


def _on_gpu(progress: Callable[[str], Any]) -> list[dict]:
    rows = []
    for num_arms, runs, budget in ON_A_GPU:
        for name in ("bts", "kube") if runs > 500 else ("bts",):
            progress(f"{name}, {num_arms} arms, {runs} runs")
            rows.append(
                {**_ours(name, problem(num_arms), budget, runs), "others": {}, "ratios": {}}
            )
    return rows


def problem(num_arms: int) -> Bernoulli:
    return Bernoulli.random(jax.random.key(2015), num_arms, cost_range=(0.2, 1.0))


def _with_two_resources(sizes: tuple, progress: Callable[[str], Any]) -> list[dict]:
    rows = []
    for num_arms, runs, budget in sizes:
        progress(f"knapsack-bts, two resources, {num_arms} arms, {runs} runs")
        two = Bernoulli.random(
            jax.random.key(2015), num_arms, cost_range=(0.2, 1.0), num_resources=2
        )
        (ours,) = measured({"knapsack-bts, d = 2": KnapsackBTS()}, two, budget, runs)
        (base,) = measured({"bts": POLICIES["bts"]()}, problem(num_arms), budget, runs)
        rates = {"bts, one resource": base["pulls per second"]}
        rows.append(
            {
                **ours,
                "written by": "bts_jax",
                "others": rates,
                "ratios": {name: ours["pulls per second"] / rate for name, rate in rates.items()},
            }
        )
    return rows


def _by_users(sizes: tuple, progress: Callable[[str], Any]) -> list[dict]:
    rows = []
    for num_arms, runs, budgets in sizes:
        for (title, policy, name), budget in zip(WRITTEN_BY_USERS, budgets, strict=True):
            progress(f"{title}, as a user writes it, {num_arms} arms, {runs} runs")
            # The built-in policy at the same budget: the time per pull depends on it.
            ours, theirs = measured(
                {name: POLICIES[name](), title: policy()}, problem(num_arms), budget, runs
            )
            rows.append(
                {
                    **theirs,
                    "written by": "user",
                    "built-in": name,
                    "over built-in": ours["pulls per second"] / theirs["pulls per second"],
                    "others": {},
                    "ratios": {},
                }
            )
    return rows


def _ours(name: str, bandit: Bernoulli, budget: int, runs: int) -> dict:
    return {**measured({name: POLICIES[name]()}, bandit, budget, runs)[0], "written by": "bts_jax"}


def measured(policies: dict[str, Policy], bandit: Bernoulli, budget: int, runs: int) -> list[dict]:
    """A row for each policy: the fastest of 2 to 5 plays, or a single play if it takes more than
    `ENOUGH` seconds.

    The policies take turns, so that other work on the machine slows all of them equally.
    """

    def play(policy: Policy, budget: float, seed: int) -> Report:
        reports: list[Report] = []
        simulate_batch(
            policy,
            bandit,
            budget,
            jax.random.split(jax.random.key(seed), runs),
            on_report=reports.append,
        )
        return reports[0]

    def compiled(policy: Policy) -> float:
        started = time.perf_counter()
        keys = jax.random.split(jax.random.key(0), runs)
        batch = lay_out(of_batch(policy, bandit, budget, keys, None, None), quickly=False)
        lower([batch]).compile()  # `simulate_batch` uses this program for all budgets
        return time.perf_counter() - started

    first = [compiled(policy) for policy in policies.values()]
    for policy in policies.values():
        play(policy, 1e-3, 0)  # ends at once: a GPU's first launch takes longer
    turns: list[list[Report]] = []
    while len(turns) < 5 and sum(turn[-1].seconds for turn in turns) < ENOUGH:
        turns.append([play(policy, budget, 1 + len(turns)) for policy in policies.values()])
    rows = []
    for name, seconds, reports in zip(policies, first, zip(*turns, strict=True), strict=True):
        best = min(reports, key=lambda report: report.seconds / report.rounds)
        per_computed = best.seconds / best.computed
        rows.append(
            {
                "policy": name,
                "arms": bandit.num_arms,
                "runs": runs,
                "budget": budget,
                "pulls per second": best.rounds / best.seconds,
                "compile seconds": seconds,
                "utilisation": best.utilisation,
                "calls per pull": best.calls / best.rounds,
                "microseconds per call of all lanes": 1e6
                * per_computed
                * best.lanes
                * best.devices,
            }
        )
    return rows


def _numpy_pulls(arguments: tuple) -> int:
    return int(reference_implementations.numpy_runs(*arguments).sum())


def _time(play: Callable[[], int]) -> float:
    """Measures pulls per second."""
    started = time.perf_counter()
    pulls = play()
    return pulls / (time.perf_counter() - started)
