"""`sweep`: plays named policies on named bandits, with several budgets and many seeds, and saves
results as it computes them.

The runs do not depend on how they are computed. The run of seed number s on a bandit has the key

    fold_in(fold_in(jax.random.key(seed), crc32 of the bandit's name in UTF-8), s)

for every policy. So all policies are compared with common random numbers, and a run does not depend
on what else is in the sweep.

A sweep is computed and saved in chunks (`schedule`, `results`): by this process (`playing`), or by
the workers of an executor (`executors`). Shards divide the chunks among processes. Each process
computes the same division alone, and all save in one store.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import numpy as np
import xarray as xr

from bts_jax import checks, limits, progress
from bts_jax.bandits import BANDITS
from bts_jax.batch import on_the_host
from bts_jax.contract import Bandit, Policy
from bts_jax.devices import check_fork
from bts_jax.policies import ALL_POLICIES
from bts_jax.sweeps import executors
from bts_jax.sweeps.bar import progress_bar, store_bar
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.growth import drop_sources
from bts_jax.sweeps.opening import begin, read_specification
from bts_jax.sweeps.playing import Counts, play_chunks
from bts_jax.sweeps.results import Chunk, Results
from bts_jax.sweeps.schedule import group_size, shards, sizes
from bts_jax.sweeps.specification import arguments
from bts_jax.text import counted


def sweep(
    policies: Mapping[str, Policy] | Sequence[str],
    bandits: Mapping[str, Bandit],
    budgets: Sequence[float] | None = None,
    num_seeds: int | None = None,
    *,
    max_rounds: int | None = None,
    rounds: Sequence[int] | None = None,
    out: str | os.PathLike | None = None,
    seed: int = 0,
    relative_to_min_cost: bool = False,
    bandit_coords: Mapping[str, Sequence[Any]] | None = None,
    chunk_size: int | None = None,
    memory_bytes: int | None = None,
    devices: int | Sequence[Any] | None = None,
    shard: tuple[int, int] | None = None,
    executor: Any = None,
    task_seconds: float = 60,
    quiet: bool = False,
) -> xr.Dataset:
    """Plays every policy on every bandit with every budget, `num_seeds` times.

    A policy that does not require the budget plays once, with the budgets as checkpoints. A policy
    that requires it plays once for each budget. The results do not depend on `chunk_size`,
    `memory_bytes`, `devices`, `shard`, `executor`, the order of computation or an interruption.

    Args:
        policies: a dict of policies by name; or a list of names in `POLICIES` or
            `KNAPSACK_POLICIES`, for policies with their default settings.
        bandits: a dict of bandits by name. They may differ in family and number of arms. A
            `UserWarning` names policies that are made for costs in [0, 1] if mean costs are far
            below the largest cost (`contract.needs_cost_limit`).
        budgets: in increasing order, in the unit of the bandits' costs. If a bandit has several
            resources, each of them has this budget. (`Timed` and `Pricing` take the time and the
            stock per unit of budget.)
        num_seeds: the number of runs of each policy on each bandit with each budget.
        max_rounds: the largest number of rounds in a run, T, as for T requests and B dollars.
            Regret and pseudo-regret are then against the optimum with both limits, the linear
            program (`theory.lp_value`).
        rounds: instead of budgets, the numbers of rounds after which to record a run, in increasing
            order. Runs then have no budget, and the axis `budget` has the numbers of rounds. Regret
            is NaN, since it is defined for a budget: use `pseudo_regret`. A policy that requires
            the budget is refused.
        out: a folder to save in, a zarr store. If the same sweep was interrupted there, it
            continues, and damaged parts are computed again. If the store has a part of this sweep,
            it grows, and only the missing part is computed. A store has one list of budgets for all
            of its policies. A store of another seed, or with other settings under the same name, is
            refused. For a user-defined class the code is compared, too, without comments and
            without the code that it calls. If it has changed, its runs are played again, with a
            warning.
        seed: the random seed. The keys of the runs also depend on the names of the bandits.
        relative_to_min_cost: whether budgets are multiples of the smallest expected cost of each
            bandit, so that a run has at most about that many pulls. The axis `budget` then has the
            multiples.
        bandit_coords: further coordinates of the bandits, by name: one number or text for each
            bandit, such as `{"gap": [0.1, 0.2]}`. The Dataset has them along the axis `bandit`.
        chunk_size: how many seeds to save at a time; the default suits the device. If all seeds of
            a bandit are fewer than the default, and many consecutive bandits are of the same kind,
            groups of bandits are saved at a time. The size of a group divides the number of bandits
            of each kind, so round numbers of bandits are saved faster. A store keeps its own sizes.
        memory_bytes: how many bytes the results of a call to the devices may take, if `chunk_size`
            is not given.
        devices: the devices to use, such as `jax.local_devices()[:2]`, or their number; by default
            all devices of this process. JAX has a device for each CPU core only if `bts_jax` is
            imported before JAX starts.
        shard: `(3, 8)` plays only the third of eight shards, and saves it in `out`. Other processes
            may save the other shards there, before, after or at the same time. The shards are the
            same on every machine, and playing a shard twice does no harm. The Dataset has
            everything that is saved by then.
        executor: plays with its workers instead of this process. It is a process pool (started by
            spawn), a `dask.distributed.Client`, an executor of submitit, an MPI pool, or another
            object with `submit(function, *arguments)`, which returns an object with `result()`. All
            workers must reach `out` under the same path, and have the same versions and kind of
            device. A task that fails or whose worker dies is submitted again, up to three times. If
            it still fails, a `RuntimeError` names it after all other tasks have ended. Ctrl-C
            cancels the tasks that have not started.
        task_seconds: with an executor, about how many seconds a task takes. If there is little to
            do, tasks are shorter, so that there are more tasks than workers.
        quiet: show no progress. By default there is a bar on a terminal or in a notebook, and a
            line every 30 seconds elsewhere.

    Returns:
        An `xarray.Dataset` with the axes policy, bandit, budget, seed (and arm, for `pulls`; and
        resource, for `cost`, if a bandit has several): `reward`, `cost`, `rounds`, `truncated`,
        `pulls`, `regret`, `pseudo_regret`. Its attributes say what it was computed from. If a
        user-defined policy or bandit broke the rules in a run, its rewards, costs and regrets are
        NaN, and a `RuntimeWarning` says so. Amounts are in the units of the bandits. Names of arms
        are the coordinate `arm` if all bandits have the same, else `arm_name`.

    Example:
        >>> from bts_jax import Bernoulli, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> dict(results.regret.sizes)
        {'policy': 2, 'bandit': 1, 'budget': 2, 'seed': 5}
        >>> results.regret.sel(policy="kube", budget=20).mean("seed").dims
        ('bandit',)
        >>> hundred = sweep(["uniform"], bandits, num_seeds=5, rounds=[10, 100])
        >>> hundred.rounds.max("seed").values.tolist()
        [[[10, 100]]]
    """
    with _interruptible(out):
        return fill(
            policies,
            bandits,
            budgets,
            num_seeds,
            max_rounds=max_rounds,
            rounds=rounds,
            out=out,
            seed=seed,
            relative_to_min_cost=relative_to_min_cost,
            bandit_coords=bandit_coords,
            chunk_size=chunk_size,
            memory_bytes=memory_bytes,
            devices=devices,
            shard=shard,
            executor=executor,
            task_seconds=task_seconds,
            quiet=quiet,
        ).dataset()


@contextmanager
def _interruptible(out: Any) -> Iterator[None]:
    """Says how to continue after Ctrl-C, as the command line does."""
    try:
        yield
    except KeyboardInterrupt:
        hint = "nothing is saved: give out= to continue later"
        if out is not None:
            hint = f"to continue: the same call with out={os.fspath(out)!r}"
        progress.say(f"sweep: interrupted; {hint}")
        raise


def fill(
    policies: Any,
    bandits: Any,
    budgets: Any = None,
    num_seeds: Any = None,
    *,
    max_rounds: Any = None,
    rounds: Any = None,
    out: Any = None,
    seed: Any = 0,
    relative_to_min_cost: Any = False,
    bandit_coords: Any = None,
    chunk_size: Any = None,
    memory_bytes: Any = None,
    devices: Any = None,
    shard: Any = None,
    executor: Any = None,
    task_seconds: Any = 60,
    quiet: bool = False,
) -> Results:
    """Does the work of `sweep`. Returns the results without reading them from the store."""
    check_fork()
    if executor is None:
        here = _devices(devices)
        device, count = here[0], len(here)
    else:
        seconds = executors.check(
            executor, out, task_seconds, devices=devices, shard=shard, memory_bytes=memory_bytes
        )
        device = executors.first_worker(executor)
        count, out = device.devices, os.path.abspath(out)
    with on_the_host():
        asked = Grid(
            policies,
            bandits,
            budgets,
            num_seeds,
            seed,
            relative_to_min_cost,
            device,
            bandit_coords,
            max_rounds,
            rounds,
        )
        attributes = asked.attributes()
        limits.warn_of_small_costs(asked.policies, asked.mean_shares, stacklevel=3)
    number, shard_count = _shard_of(shard, out)
    usual, most = sizes(
        asked,
        None if memory_bytes is None else checks.whole("memory_bytes", memory_bytes, 1),
        count,
    )
    if chunk_size is None:
        # All chunks are about equally large.
        chunk_size = -(-asked.num_seeds // -(-asked.num_seeds // usual))
    chunk_size = min(checks.whole("chunk_size", chunk_size, 1), asked.num_seeds)
    group = group_size(asked, chunk_size, usual)

    @cache
    def grid_of(results: Results) -> Grid:
        # The order of names counts.
        same = results.attributes["specification"] == attributes["specification"]
        return asked if same else asked.within(results.specification)

    @cache
    def mine(results: Results) -> list[Chunk]:
        if shard_count == 1:
            return results.chunks
        return shards(grid_of(results), results, results.chunks, shard_count)[number - 1]

    def regroup(whole: dict[str, Any], chunk_size: int) -> int:
        return group_size(asked.within(whole), chunk_size, usual)

    if executor is None:
        with progress_bar(asked, quiet) as bar:
            results = begin(attributes, chunk_size, out, mine, group, regroup, asked.specification)
            grid = grid_of(results)
            todo = [
                chunk
                for chunk in mine(results)
                if not results.done[chunk] and not results.adopt(chunk)
            ]
            counts = play_chunks(grid, results, todo, here, most, bar)
    else:
        results = begin(attributes, chunk_size, out, mine, group, regroup, asked.specification)
        grid = grid_of(results)
        todo = [chunk for chunk in results.missing if not results.adopt(chunk)]
        with store_bar(results, quiet) as bar:
            counts, _ = executors.play_elsewhere(executor, grid, results, todo, seconds, count, bar)
        results.check_current()
    if shard_count == 1:
        drop_sources(results)
    _warn(grid, counts)
    return results


def _warn(grid: Grid, counts: Counts) -> None:
    """Warns of invalid runs, and of runs that hit the limit of rounds."""
    policy_names, bandit_names = list(grid.policies), list(grid.bandits)
    for (policy, bandit), seeds in sorted(counts.lost.items()):
        warnings.warn(
            f"policies[{policy_names[policy]!r}] on bandits[{bandit_names[bandit]!r}] produced "
            f"invalid runs (NaN) for {counted(seeds, 'seed')}: the policy chose an arm that does "
            "not exist or never decided, or a reward or a cost was not in [0, 1], or above "
            "reward_scale or cost_scale; check_policy and check_bandit may find the reason",
            RuntimeWarning,
            stacklevel=4,
        )
    for (policy, bandit), seeds in sorted(counts.cut.items()) if grid.longest is None else ():
        warnings.warn(
            f"policies[{policy_names[policy]!r}] on bandits[{bandit_names[bandit]!r}] hit the "
            f"limit of rounds for {counted(seeds, 'seed')} before the budget was spent, and regret "
            "is NaN there: check that every arm costs something, or use pseudo_regret, which is "
            "about the pulls made",
            RuntimeWarning,
            stacklevel=4,
        )


def stored(
    path: str | os.PathLike, own: tuple[Mapping[str, type], Mapping[str, type]] = ({}, {})
) -> dict[str, Any]:
    """The sweep in a store, as arguments of `sweep`. `own`: user-defined policies and bandits,
    which are in no registry.
    """
    return arguments(read_specification(path), ALL_POLICIES, BANDITS, own)


def _devices(devices: Any) -> list[Any]:
    """The devices to use, among those of this process. They may be CPUs even if there is a GPU."""
    here = jax.local_devices()
    if devices is None:
        return here
    remedy = f"give a number from 1 to {len(here)}, or some of jax.local_devices()"
    if isinstance(devices, (int, np.integer)) and not isinstance(devices, bool):
        if not 1 <= devices <= len(here):
            raise ValueError(
                f"devices = {devices}, and there {'is' if len(here) == 1 else 'are'} {len(here)} "
                f"({here[0].device_kind}): {remedy}; to divide a CPU into more, set "
                "BTS_JAX_CPU_DEVICES"
            )
        return here[:devices]
    if not isinstance(devices, Sequence) or isinstance(devices, str) or not devices:
        raise ValueError(
            f"devices = {devices!r} is neither a number nor a list of devices: {remedy}"
        )
    for place, device in enumerate(devices):
        if (
            device not in jax.local_devices(backend=getattr(device, "platform", None))
            or device in devices[:place]
        ):
            raise ValueError(
                f"devices[{place}] = {device!r} is not a device of this process, or it is given "
                f"twice: {remedy}"
            )
    return list(devices)


def _shard_of(shard: Any, out: Any) -> tuple[int, int]:
    """The shard to play, and the number of shards."""
    if shard is None:
        return 1, 1
    whole = (
        isinstance(shard, Sequence) and len(shard) == 2 and all(type(part) is int for part in shard)
    )
    if not whole or not 1 <= shard[0] <= shard[1]:
        raise ValueError(
            f"shard = {shard!r} is not a shard: give its number, from 1, and the number of shards, "
            "such as (3, 8)"
        )
    if out is None:
        raise ValueError(
            f"shard = {shard!r} has no folder to save in: give the folder of all shards as out"
        )
    return shard[0], shard[1]
