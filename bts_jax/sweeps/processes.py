"""Several processes of one sweep, on one machine or on many: how they find each other, through `jax.distributed`.

They meet once, at the beginning, when process 0 tells the others what there is to do. From then on none depends on another.
`jax.distributed` is not made for that: who has joined it is ended when another has died, and by any error while joining. So it
is a child that joins, for a few seconds, and this process stays an ordinary one.
"""

import json
import os
import subprocess
import sys
import time
from threading import Thread, Timer
from typing import Any

import jax

from bts_jax import checks


class Meeting:
    """All processes of a sweep, each of which makes one. What is not given JAX finds out, from SLURM, MPI or Kubernetes.

    Args:
        coordinator: `host:port` of process 0, at which it listens and the others knock.
        processes: how many there are.
        process: which this is, from 0 on.
        timeout: for how many seconds each waits for the others.
    """

    def __init__(
        self, coordinator: str | None = None, processes: int | None = None, process: int | None = None, timeout: int = 60
    ):
        self.timeout = checks.whole("timeout", timeout, 1)
        if coordinator is not None and not coordinator.rpartition(":")[2].isdecimal():
            raise ValueError(f"coordinator = {coordinator!r} has no port: give HOST:PORT of process 0, such as node1:12345")
        code = f"import sys; sys.path[:] = {sys.path!r}; from bts_jax.sweeps.processes import _join; _join()"
        arguments = json.dumps([coordinator, processes, process, self.timeout, os.getpid()])
        self._child = subprocess.Popen([sys.executable, "-c", code, arguments], text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            here = self._line()
        except BaseException:
            self._child.kill()
            self.close()
            raise
        self.index: int = here["index"]
        self.count: int = here["count"]
        for name in _VISIBLE:  # one GPU for each process, where JAX has found a launcher that starts one for each
            jax.config.update(name, here[name])

    def tell(self, message: Any) -> None:
        """What process 0 has to say to the others, once; if it ends without a word, they hear of that."""
        assert self._child.stdin
        try:
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            self._line()  # the child has ended: this says why

    def hear(self) -> Any:
        """What process 0 has to say."""
        return self._line()

    def close(self) -> None:
        """Lets the child end, in process 0 after the others have heard."""
        try:
            self._child.communicate(timeout=2 * self.timeout)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is KeyboardInterrupt:
            self._child.kill()
        self.close()

    def _line(self) -> Any:
        """The next line that the child prints, unless it dies of an error, or does not print any for too long."""
        assert self._child.stdout and self._child.stderr
        timer = Timer(self.timeout + 20, self._child.kill)  # JAX keeps to the time by itself, as a rule
        timer.start()
        try:
            line = self._child.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            _, fatal, error = self._child.stderr.read().strip().rpartition("absl::Status: ")
            line = json.dumps({"failed": error.split("\n")[0 if fatal else -1] or "no answer"})
        answer = json.loads(line)
        if "failed" in answer:
            raise ConnectionError(
                f"the processes of this sweep did not meet within {self.timeout} s ({answer['failed']}): start them at about "
                "the same time by srun, mpirun or the like; or each with --coordinator HOST:PORT, where the others can reach "
                "process 0, --processes N and a --process of its own from 0 on. --timeout waits longer, --shard does without")
        return answer


def _end_with(parent: int) -> None:
    """Ends the child soon after its parent has died, whatever the child waits for."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


_VISIBLE = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")


def _join() -> None:
    """What the child does."""
    coordinator, processes, process, timeout, parent = json.loads(sys.argv[1])
    Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        jax.distributed.initialize(coordinator, processes, process, initialization_timeout=timeout,
                                   heartbeat_timeout_seconds=max(timeout, 10), shutdown_timeout_seconds=timeout)
    except Exception as error:
        print(json.dumps({"failed": str(error).split("\n")[0]}), flush=True)
        return
    from jax._src.distributed import global_state as joined  # it has the one way to pass a message that needs no device

    assert joined.client
    visible = {name: jax.config.values[name] for name in _VISIBLE}
    print(json.dumps({"index": joined.process_id, "count": joined.num_processes, **visible}), flush=True)
    if joined.process_id == 0:
        message = sys.stdin.readline() or json.dumps({"failed": "process 0 has ended; see what it says"})
        joined.client.key_value_set("bts_jax", message)
    else:
        print(joined.client.blocking_key_value_get("bts_jax", 1000 * timeout).strip(), flush=True)
    jax.distributed.shutdown()
