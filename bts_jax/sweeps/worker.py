"""A worker of an executor: plays chunks of a sweep and saves them in the store.

A task names the store and a list of chunks. The worker reads the specification in the store and
creates policies and bandits from it. A user-defined class is named by its module, or sent by value
if it has none. A worker refuses a task if it would not play the same runs: if its versions, its
platform or the user's code differ.
"""

import multiprocessing
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bts_jax._version import __version__
from bts_jax.bandits import BANDITS
from bts_jax.batch import on_the_host
from bts_jax.devices import check_fork
from bts_jax.policies import ALL_POLICIES
from bts_jax.sweeps import classes
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.growth import with_sources
from bts_jax.sweeps.machine import share_machine
from bts_jax.sweeps.playing import play_chunks
from bts_jax.sweeps.results import Chunk, Results
from bts_jax.sweeps.schedule import sizes
from bts_jax.sweeps.specification import arguments, code_of
from bts_jax.sweeps.store import Root, differences_in_words, read_root, seal_of

# By name: each a class, or its place: ("my_module:MyPolicy", folder).
Classes = tuple[tuple[str, Any], ...]


class Order(NamedTuple):
    """A task for a worker."""

    name: str  # 32 hexadecimal digits
    store: str
    made: tuple[str, int]  # when the store was created, and the checksum of its root
    chunks: list[tuple[int, int, int]]
    widest: int  # how many chunks of a policy a task has at most
    asked: tuple[list[str], list[str]] | None  # policies and bandits, if the store has more
    own: tuple[Classes, Classes]  # user-defined policies and bandits
    patience: float  # seconds to wait until the store is visible
    workers: int  # the least number of workers on each machine


_LOCK = threading.Lock()  # a worker may have several threads


class Refusal(Exception):
    """Raised if this worker would not play the same runs."""


def describe(_: str, workers: int = 1) -> dict[str, Any]:
    """Describes this worker. `workers`: the least number on this machine. The first argument makes
    each call unique.
    """
    with _LOCK:
        check_fork()
        _follow_parent()
        share_machine(workers, one_gpu=True)
        devices = jax.local_devices()
    return {
        "worker": _name(),
        "bts_jax": __version__,
        "jax": jax.__version__,
        "platform": devices[0].platform,
        "device": devices[0].device_kind,
        "devices": len(devices),
    }


def work(order: tuple[Any, ...]) -> dict[str, Any]:
    """Plays the chunks of an order that are not in the store yet. Returns how many, and counts of
    invalid and truncated runs.

    Errors are returned as text: not every exception can be sent to another process.
    """
    order = Order(*order)
    # Exists while the task runs; if this process is killed, it is removed later.
    mark = Path(order.store, f".{order.name}")
    try:
        with _LOCK:
            check_fork()
            _follow_parent()
            share_machine(order.workers, one_gpu=True)
            results, grid, devices, most = _opened(order)
        _touch(mark)
        chunks = [Chunk(*place) for place in order.chunks]
        todo = [
            chunk for chunk in chunks if results.read(chunk) is None and not results.adopt(chunk)
        ]
        counts = play_chunks(grid, results, todo, devices, most, widest=order.widest)
    except Refusal as refusal:
        return {"worker": _name(), "refused": str(refusal)}
    except (Exception, SystemExit) as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        return {
            "worker": _name(),
            "failed": f"{type(error).__name__}: {str(error) or 'no message'} {notes}".strip(),
        }
    finally:
        mark.unlink(missing_ok=True)
    return {
        "worker": _name(),
        "played": len(todo),
        "lost": list(counts.lost.items()),
        "cut": list(counts.cut.items()),
    }


_followed: list[Any] = []  # the process that started this one, if it is watched


def _follow_parent() -> None:
    """Ends this process when the process that started it is gone. A worker of a process pool would
    otherwise wait forever.

    Other executors end their workers themselves.
    """
    parent = multiprocessing.parent_process()
    if parent is None or _followed:
        return
    _followed.append(parent)

    def follow() -> None:
        parent.join()
        os._exit(1)  # every file of the store is replaced as a whole

    threading.Thread(target=follow, daemon=True).start()


def _name() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"


def _touch(mark: Path) -> None:
    try:
        mark.touch()
    except OSError as error:
        raise Refusal(f"it cannot write to {str(mark.parent)!r} ({error.strerror})") from None


# The last store that this process has worked on.
_stores: dict[Any, tuple[Results, Grid, list[Any], int]] = {}


def _opened(order: Order) -> tuple[Results, Grid, list[Any], int]:
    """The results in the store, their grid, the devices to play it on, and how many seeds a call
    has.
    """
    key = order.store, order.made, str(order.asked), order.own
    if key not in _stores or not _stores[key][0].is_current():
        _stores.clear()
        _stores[key] = _open(order)
    return _stores[key]


def _open(order: Order) -> tuple[Results, Grid, list[Any], int]:
    path = Path(order.store)
    root = _seen(order, path)
    described = dict(root.specification)
    for place, kind in enumerate(("policies", "bandits")):
        names = described[kind] if order.asked is None else order.asked[place]
        described[kind] = {name: dict(described[kind][name]) for name in names}
    here = {
        "bts_jax": __version__,
        "jax": jax.__version__,
        "platform": jax.local_devices()[0].platform,
    }
    there = {name: described[name] for name in here}
    if here != there:
        raise Refusal(
            "it is another kind of worker than the first "
            f"({differences_in_words(there, here, 'there', 'here')})"
        )
    with on_the_host():
        try:
            own = tuple(
                {name: made if isinstance(made, type) else _found(*made) for name, made in kind}
                for kind in order.own
            )
            what = arguments(described, ALL_POLICIES, BANDITS, own)  # type: ignore
        except ValueError as error:
            raise Refusal(f"it cannot make what the store describes ({error})") from None
        asked = Grid(
            what["policies"],
            what["bandits"],
            what["budgets"],
            what["num_seeds"],
            what["seed"],
            what["relative_to_min_cost"],
            max_rounds=what["max_rounds"],
            rounds=what.get("rounds"),
        )
        made = asked.specification
    for kind, sent in zip(("policies", "bandits"), order.own, strict=True):
        by_value = {name for name, one in sent if isinstance(one, type)}
        for name, entry in made[kind].items():
            # It was sent by value, without a file.
            if "code" not in entry and entry["class"] in by_value:
                described[kind][name].pop("code", None)
        if made[kind] != described[kind]:
            differences = differences_in_words(described[kind], made[kind], "in the store", "here")
            raise Refusal(f"it has other code or settings of {kind} ({differences})")
    devices = jax.local_devices()
    _, most = sizes(asked, None, len(devices))
    return with_sources(path, root), asked.within(root.specification), devices, most


_loaded: dict[type, str] = {}  # the code of classes when this process imported them


def _found(text: str, folder: str) -> type:
    """Imports the class by that name. Refuses if its file has changed since this process imported
    it.
    """
    made = classes.find(text, folder=folder, where="a class")
    code = code_of(made)
    if _loaded.setdefault(made, code) != code:
        raise Refusal(
            f"it has imported {text} before the file changed; restart the workers, in Dask by "
            "client.restart()"
        )
    return made


def _seen(order: Order, path: Path) -> Root:
    """Waits until the store is visible here, and returns its root."""
    until = time.monotonic() + order.patience
    while True:
        try:
            root = read_root(path)
            if (
                root.attributes["created"],
                seal_of(root.attributes, root.chunk_size, root.group),
            ) == order.made:
                return root
            reason = f"the store at {str(path)!r} is another one there"
            if root.attributes["created"] == order.made[0]:
                reason = "another process has given the store another grid"
        except ValueError as error:
            reason = str(error)
        if time.monotonic() > until:
            raise Refusal(
                f"it does not see the store of this sweep after {order.patience:g} s ({reason}); "
                "the store must be in a folder that all workers share, under the same path"
            )
        time.sleep(0.2)
