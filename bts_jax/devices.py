"""Makes the CPU cores of this process devices of JAX, lets a GPU run several programs at a time,
and detects forks.
"""

import contextlib
import logging
import math
import os
import re
from pathlib import Path
from threading import Lock
from typing import Any

import jax

from bts_jax.jax_internals import backends, gpu_client
from bts_jax.text import reason

STREAMS = 4  # see `streams`; on an H200, eight are no faster (jaxlib 0.11.2)
# The part of a GPU's memory that each further client may use; JAX reserves 3/4 for the first.
MEMORY = 1 / 16
_LOG = logging.getLogger("bts_jax")
_creating = Lock()
_further: dict[int, list] = {}  # the further clients, by the `id` of the first
_forked = False  # whether this process was forked from a process in which JAX had started


def claim_cores() -> None:
    """Makes each CPU core that this process may use a device of JAX. `import bts_jax` calls it.

    JAX by itself runs a program on one core. The number of cores follows from the CPU affinity and
    from the CPU limit of the container (cgroup). Two environment variables change it:
    `BTS_JAX_WORKERS=4` says that four worker processes run on the machine, so that each takes a
    quarter of the cores, and at least one; `BTS_JAX_CPU_DEVICES=2` sets the number of devices and
    takes precedence. JAX's own `jax_num_cpu_devices`, set before this package is imported,
    overrides both.

    JAX cannot add devices once it has started. If it has computed anything before `import bts_jax`,
    it keeps one device, and a warning is logged.
    """
    by_config = jax.config.jax_num_cpu_devices >= 1  # type: ignore
    if by_config or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    available = cores()
    count = number_from("BTS_JAX_CPU_DEVICES", "devices") or available
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has started
        if jax.default_backend() == "cpu" and jax.local_device_count() < count:
            _LOG.warning(
                "JAX started before bts_jax was imported and has %d of %d CPU devices: import "
                "bts_jax before the first computation, or set JAX_NUM_CPU_DEVICES=%d",
                jax.local_device_count(),
                count,
                count,
            )


def cores() -> int:
    """The number of CPU cores that this process may use: by affinity, by the limit of its
    container, and by BTS_JAX_WORKERS.
    """
    number = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    number = math.ceil(min(number, _cgroup_limit()))
    return max(number // (number_from("BTS_JAX_WORKERS", "worker processes") or 1), 1)


def streams(devices: tuple, most: int) -> list[tuple]:
    """Up to `most` tuples of devices for the same GPUs. Programs on different tuples run at the
    same time.

    JAX runs the programs of a GPU one after the other, in one CUDA stream, and a thousand runs
    leave most of a GPU idle. So this function creates further clients of JAX. Each has its own
    stream, and its own devices for the same GPUs. A program belongs to one client. The first tuple
    is `devices`. `.github/docs/measurements.md` has the numbers.

    `BTS_JAX_STREAMS=1` turns this off. It is also off on CPUs, with `jax.distributed`, and if JAX
    cannot create clients.
    """
    count = min(number_from("BTS_JAX_STREAMS", "streams") or STREAMS, most)
    found = [devices]
    if devices[0].platform == "gpu" and jax.process_count() == 1:
        for client in _clients(devices[0].client, count - 1):
            own = {device.local_hardware_id: device for device in client.local_devices()}
            found.append(tuple(own[device.local_hardware_id] for device in devices))
    return found


def _clients(client: Any, count: int) -> list:
    """Up to `count` clients of JAX for the same GPUs. They are created once, and have little
    memory.
    """
    with _creating:
        found = _further.setdefault(id(client), [])
        try:
            visible = [device.local_hardware_id for device in client.local_devices()]
            while len(found) < count and backends().get("cuda") is client:
                found.append(gpu_client(visible, MEMORY))
        except Exception as error:  # another version of JAX, or too little memory
            _LOG.info(
                "fewer programs of a sweep run at a time: JAX cannot create another client (%s)",
                reason(error),
            )
        return found[:count]


def check_fork() -> None:
    """Raises a `RuntimeError` in a process that was forked after JAX had started: it lacks JAX's
    threads and would hang.
    """
    if _forked:
        raise RuntimeError(
            "this process was forked after JAX had started, and JAX would hang in it: start "
            "processes with "
            'multiprocessing.get_context("spawn"), or fork before the first use '
            "of JAX"
        )


def has_started() -> bool:
    """Whether JAX has started in this process. After its start, JAX cannot add devices."""
    count = jax.config.jax_num_cpu_devices  # type: ignore
    try:
        for other in (count + 1, count):
            jax.config.update("jax_num_cpu_devices", other)
    except RuntimeError:  # JAX 0.10.2 has no public function for this
        return True
    return False


def _after_fork() -> None:
    global _forked
    _forked = has_started()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def number_from(name: str, what: str) -> int | None:
    """The positive whole number in an environment variable, if it is set."""
    value = os.environ.get(name, "")
    if not value:
        return None
    if not re.fullmatch("0*[1-9][0-9]{0,4}", value):
        raise ValueError(
            f"{name} = {value!r} is not a number of {what}: set a whole number of at least 1, or "
            "unset it"
        )
    return int(value)


def _cgroup_limit(root: str = "/") -> float:
    """The number of CPUs that the control groups (v1 or v2) of this process allow: at least 1,
    infinity without a limit.
    """
    limit = math.inf
    with contextlib.suppress(OSError, ValueError):
        for line in Path(root, "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            mount = Path(root, "sys/fs/cgroup", controllers)  # version 2 names no controllers
            own = mount / group.lstrip("/")
            for folder in (own, *own.parents):
                if not folder.is_relative_to(mount):
                    break
                with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                    files = (
                        ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
                    )
                    quota, period = map(
                        int, " ".join((folder / file).read_text() for file in files).split()
                    )
                    if quota > 0:
                        limit = min(limit, quota / period)
    return max(limit, 1)


def default_platform() -> str:
    """The platform on which JAX computes by default: "cpu" or "gpu"."""
    device = jax.config.jax_default_device  # type: ignore
    platform = jax.default_backend() if device is None else getattr(device, "platform", device)
    return "cpu" if platform == "cpu" else "gpu"
