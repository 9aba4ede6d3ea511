"""Divides one machine among its worker processes: cores, GPUs, and a cache of compiled programs.

Each worker does this by itself, before JAX starts in it.
"""

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import jax

from bts_jax import files
from bts_jax.devices import cores, has_started
from bts_jax.engine.compile.cache import enable_cache

_held: list[Any] = []  # locked files, for as long as this process lives


def share_machine(at_least: int = 1, one_gpu: bool = False) -> None:
    """Restricts this process to its part of a machine that several workers use. If JAX has started,
    nothing changes.

    Args:
        at_least: the least number of workers on this machine. Some of them may not have started
            yet.
        one_gpu: take a single GPU even if no other worker is found.

    Workers are processes with the same parent and the same command, apart from the numbers in it.
    Examples are the processes of a process pool, of a Dask worker, of `srun` and of `mpirun`.
    Workers that may use the same cores divide them. If several GPUs are visible, each worker takes
    one of them. If workers share a GPU, JAX does not preallocate its memory. Compiled programs are
    cached, see `bts_jax.enable_cache`. Environment variables that the user has set are respected.
    """
    if has_started():
        return
    count, on_these_cores = (max(number, at_least) for number in workers_here())
    chosen = ("BTS_JAX_CPU_DEVICES", "BTS_JAX_WORKERS", "JAX_NUM_CPU_DEVICES")
    if on_these_cores > 1 and not any(os.environ.get(name) for name in chosen):
        jax.config.update("jax_num_cpu_devices", max(cores() // on_these_cores, 1))
    gpus = visible_gpus()
    if (count > 1 or one_gpu) and len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = claimed(gpus)
    if count > len(gpus) > 0:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    enable_cache()


def workers_here(proc: str | os.PathLike = "/proc", process: str | None = None) -> tuple[int, int]:
    """The number of workers on this machine, with this one, and the number of those that may use
    the same cores as this one.
    """
    try:
        *mine, my_cores = _process(Path(proc), process or str(os.getpid()))
        names = [name for name in os.listdir(proc) if name.isdecimal()]
    except OSError:  # not Linux
        return 1, 1
    found = []
    for name in names:
        with contextlib.suppress(OSError, KeyError):  # the process has ended
            *other, other_cores = _process(Path(proc), name)
            found += [other_cores] if other == mine else []
    return max(len(found), 1), max(found.count(my_cores), 1)


def _process(proc: Path, name: str) -> tuple[str, str, str]:
    """The parent of a process, its command without numbers, and the cores that it may use."""
    lines = (proc / name / "status").read_text(errors="replace").splitlines()
    found = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    command = (proc / name / "cmdline").read_bytes().decode(errors="replace")
    return found["PPid"], re.sub("[0-9]+", "0", command), found.get("Cpus_allowed", "")


def visible_gpus(dev: str | os.PathLike = "/dev") -> list[str]:
    """The NVIDIA GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    try:
        return [
            str(number)
            for number in range(
                sum(bool(re.fullmatch("nvidia[0-9]+", name)) for name in os.listdir(dev))
            )
        ]
    except OSError:
        return []


def claimed(gpus: list[str], folder: Path | None = None) -> str:
    """Reserves the first GPU that no other worker of this user has reserved. If there is none,
    chooses one to share.
    """
    folder = folder or private_folder()
    for gpu in gpus if folder is not None else ():
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # not available on Windows

            file = (folder / f"gpu-{re.sub('[^0-9A-Za-z-]', '-', gpu)}").open("a")  # type: ignore
            _held.append(file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return gpu
    return gpus[os.getpid() % len(gpus)]


def private_folder() -> Path | None:
    """A folder on this machine that belongs to this user alone."""
    if not hasattr(os, "getuid"):
        return None
    return files.private_folder(Path(tempfile.gettempdir(), f"bts-jax-{os.getuid()}"))
