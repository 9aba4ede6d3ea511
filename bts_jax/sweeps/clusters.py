"""Clusters for the command line: executors for `--dask` and `--slurm`, and the shard that `--shard
auto` selects.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bts_jax.devices import cores
from bts_jax.sweeps.machine import visible_gpus


@contextlib.contextmanager
def dask(address: str) -> Iterator[Any]:
    """A client of the Dask scheduler at an address; or, for "local", of a cluster on this machine.

    A cluster on this machine has a worker process for each GPU, or for each CPU core if there is no
    GPU.
    """
    try:
        from dask import config
        from distributed import Client, LocalCluster
    except ImportError:
        raise ValueError(
            f'--dask = {address!r} needs dask.distributed: pip install "bts_jax[dask]"'
        ) from None
    with contextlib.ExitStack() as stack:
        if address == "local":
            count = len(visible_gpus()) or cores()
            stack.enter_context(config.set({"distributed.worker.multiprocessing-method": "spawn"}))
            options: dict[str, Any] = {
                "n_workers": count,
                "dashboard_address": ":0",
                "silence_logs": 50,
            }
            # Dask ends workers that exceed its memory limit, and does not know how much memory JAX
            # needs.
            where: Any = stack.enter_context(
                LocalCluster(**options, threads_per_worker=1, processes=True, memory_limit=0)
            )
        else:
            where = address
        try:
            client = stack.enter_context(Client(where, timeout=20, set_as_default=False))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"--dask = {address!r} is not the address of a scheduler that answers ({error}): "
                "give one such as tcp://scheduler:8786, or local"
            ) from None
        yield client


def slurm(text: str, folder: str) -> Any:
    """An executor that submits jobs to SLURM, with options such as
    "partition=gpu,gpus_per_node=1,time=60".

    The folder gets the scripts, the logs and the return values of the jobs.
    """
    example = '"partition=gpu,gpus_per_node=1,time=60"'
    try:
        import submitit
    except ImportError:
        raise ValueError(
            f'--slurm = {text!r} needs submitit: pip install "bts_jax[slurm]"'
        ) from None
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not value:
            raise ValueError(
                f"--slurm = {text!r} has {part!r}, which is not NAME=VALUE: give options of "
                f"sbatch, such as {example}"
            )
        options[name.replace("-", "_")] = int(value) if value.isdecimal() else value
    try:
        executor = submitit.SlurmExecutor(folder)
        executor.update_parameters(**options)
    except Exception as error:  # no SLURM here, or an option that submitit does not know
        raise ValueError(
            f"--slurm = {text!r} cannot be used ({error}): start where SLURM is, with options such "
            f"as {example}"
        ) from None
    return executor


# The variables of launchers: the number of a process, how many there are, and the number of the
# first.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", None),
    ("PMI_RANK", "PMI_SIZE", None),
    ("SLURM_PROCID", "SLURM_NTASKS", None),
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    ("JOB_COMPLETION_INDEX", None, None),  # Kubernetes
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", None),
)


def shard_of(text: str, environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Parses a shard: "3/8" is the third of eight shards; "auto" takes both numbers from the
    launcher of this process.

    A launcher such as Kubernetes numbers the processes but does not say how many there are. It
    needs "auto/8".

    Example:
        >>> shard_of("3/8")
        (3, 8)
        >>> shard_of("auto", {"PMI_RANK": "0", "PMI_SIZE": "4"})
        (1, 4)
    """
    number, _, count = text.partition("/")
    if number == "auto" and (not count or count.isdecimal()):
        shard, found = _launched(
            {**os.environ} if environment is None else environment, int(count) if count else None
        )
        number, count = str(shard), str(found)
    if not number.isdecimal() or not count.isdecimal():
        raise ValueError(
            f"--shard = {text!r} is not a shard: give its number and the number of shards, such as "
            "3/8; or auto"
        )
    if not 1 <= int(number) <= int(count):
        raise ValueError(
            f"--shard = {text!r} is shard {number} of {count}: give a number from 1 to "
            f"{max(int(count), 1)}"
        )
    return int(number), int(count)


def _launched(environment: Mapping[str, str], count: int | None) -> tuple[int, int]:
    """The shard of this process, counted from 1, and the number of shards. Launchers count from
    0.
    """

    def read(name: str | None) -> int | None:
        value = environment.get(name or "", "")
        if not value:
            return None
        if not re.fullmatch("[0-9]{1,9}", value):
            raise ValueError(
                f"--shard = auto: {name} = {value!r} is not a number: give --shard I/N"
            )
        return int(value)

    for number, total, first in LAUNCHERS:
        index, found = read(number), read(total)
        if index is None:
            continue
        index -= read(first) or 0
        array = read("SLURM_ARRAY_TASK_ID")
        if number == "SLURM_PROCID" and (found or 1) > 1 and read("SLURM_STEP_ID") is None:
            raise ValueError(
                f"--shard = auto: SLURM_NTASKS = {found}, but srun did not start this process: put "
                "srun before the command, or give --shard I/N"
            )
        # Each job of an array has processes.
        if not number.startswith("SLURM_ARRAY") and array is not None:
            index += (array - (read("SLURM_ARRAY_TASK_MIN") or 0)) * (found or 1)
            found = (found or 1) * (read("SLURM_ARRAY_TASK_COUNT") or 1)
        if count is None and found is None:
            raise ValueError(
                f"--shard = auto: {number} makes this process shard {index + 1}, but the number of "
                "shards is unknown: give --shard auto/8 if there are 8"
            )
        return index + 1, count or found or 1
    known = ", ".join(number for number, *_ in LAUNCHERS)
    raise ValueError(
        f"--shard = auto finds no launcher in the environment ({known} are not set): start with "
        "srun, mpirun or a similar launcher, or give --shard I/N"
    )
