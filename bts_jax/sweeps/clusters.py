"""Clusters for the command line: executors for `--dask` and `--slurm`, and which shard `--shard auto` is."""

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

    A cluster on this machine has a worker process for each GPU, or for each CPU core if there is no GPU.
    """
    try:
        import dask as settings
        from distributed import Client, LocalCluster
    except ImportError:
        raise ValueError(f'--dask = {address!r} needs dask.distributed: pip install "bts_jax[dask]"') from None
    with contextlib.ExitStack() as stack:
        if address == "local":
            count = len(visible_gpus()) or cores()
            stack.enter_context(settings.config.set({"distributed.worker.multiprocessing-method": "spawn"}))
            # Dask would end workers whose memory it finds too large, and does not know what JAX needs.
            where: Any = stack.enter_context(LocalCluster(n_workers=count, threads_per_worker=1, processes=True, memory_limit=0,
                                                          dashboard_address=None, silence_logs=50))
        else:
            where = address
        try:
            client = stack.enter_context(Client(where, timeout=20))
        except (OSError, ValueError) as error:
            raise ValueError(f"--dask = {address!r} is not the address of a scheduler that answers ({error}): give one such as "
                             "tcp://scheduler:8786, or local") from None
        yield client


def slurm(text: str, folder: str) -> Any:
    """An executor that submits jobs to SLURM, with options such as "partition=gpu,gpus_per_node=1,time=60".

    Scripts, logs and what the jobs return are in the folder.
    """
    example = '"partition=gpu,gpus_per_node=1,time=60"'
    try:
        import submitit
    except ImportError:
        raise ValueError(f'--slurm = {text!r} needs submitit: pip install "bts_jax[slurm]"') from None
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not value:
            raise ValueError(f"--slurm = {text!r} has {part!r}, which is not NAME=VALUE: give options of sbatch, such as {example}")
        options[name.replace("-", "_")] = int(value) if value.isdecimal() else value
    try:
        executor = submitit.SlurmExecutor(folder)
        executor.update_parameters(**options)
    except Exception as error:  # no SLURM here, or an option that submitit does not know
        raise ValueError(f"--slurm = {text!r} cannot be used ({error}): start where SLURM is, with options such as {example}") from None
    return executor


# The variables of launchers: the number of a process, the number of all, and what the number of the first one is.
LAUNCHERS = {
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", None),
    "PMI": ("PMI_RANK", "PMI_SIZE", None),
    "SLURM": ("SLURM_PROCID", "SLURM_NTASKS", None),
    "SLURM array": ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    "Kubernetes": ("JOB_COMPLETION_INDEX", None, None),
    "JAX": ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", None),
}


def shard_of(text: str, environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Which shard of how many: of "3/8" the third of eight; of "auto" what the launcher of this process says.

    A launcher that numbers processes and does not count them, as Kubernetes, needs "auto/8".

    Example:
        >>> shard_of("3/8")
        (3, 8)
        >>> shard_of("auto", {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
        (1, 4)
    """
    number, _, count = text.partition("/")
    if number == "auto" and (not count or count.isdecimal()):
        index, found = _launched({**os.environ} if environment is None else environment, int(count) if count else None)
        number, count = str(index + 1), str(found)
    if not number.isdecimal() or not count.isdecimal():
        raise ValueError(f"--shard = {text!r} is no share: give its number and how many there are, such as 3/8; or auto")
    if not 1 <= int(number) <= int(count):
        raise ValueError(f"--shard = {text!r} is share {number} of {count}: give a number from 1 to {max(int(count), 1)}")
    return int(number), int(count)


def _launched(environment: Mapping[str, str], count: int | None) -> tuple[int, int]:
    """The number of this process, from 0 on, and how many there are."""
    def read(name: str | None) -> int | None:
        value = environment.get(name or "", "")
        if not value:
            return None
        if not re.fullmatch("[0-9]{1,9}", value):
            raise ValueError(f"--shard = auto: {name} = {value!r} is not a number: give --shard I/N")
        return int(value)

    for name, (number, total, first) in LAUNCHERS.items():
        index = read(number)
        found = read(total) if count is None else count
        if index is None:
            continue
        if found is None:
            raise ValueError(f"--shard = auto: {name} says by {number} that this is process {index}, and not of how many: give "
                             "--shard auto/8, if there are 8")
        index -= read(first) or 0
        if name == "SLURM" and count is None and (array := read("SLURM_ARRAY_TASK_ID")) is not None:  # an array of steps
            index += (array - (read("SLURM_ARRAY_TASK_MIN") or 0)) * found
            found *= read("SLURM_ARRAY_TASK_COUNT") or 1
        return index, found
    known = ", ".join(number for number, *_ in LAUNCHERS.values())
    raise ValueError(f"--shard = auto finds no launcher in the environment ({known} are not set): start with srun, mpirun or the "
                     "like, or give --shard I/N")
