"""Plays many runs, fast: `simulate_batch`.

A batch is divided among the devices of this process: all CPU cores or all GPUs. Each device plays
its shard in a loop of its own. Runs of different lengths share a loop without waiting for each
other: the longest runs start first, and a lane whose run has ended is refilled with the next run.
None of this changes a run's random numbers, so its result is that of `simulate`, bit for bit.
"""

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bts_jax import arguments, random, rules
from bts_jax.arguments import Arguments, BatchArguments, Ends
from bts_jax.contract import Bandit, Policy, num_resources, ratio, scales
from bts_jax.engine import loop
from bts_jax.engine.compile.options import known_on_gpu
from bts_jax.engine.compile.programs import PROGRAMS, Program
from bts_jax.engine.failures import PassFailed, report
from bts_jax.plain import play_run
from bts_jax.rules import Run
from bts_jax.text import counted
from bts_jax.trace import why_nan
from bts_jax.typing import ArrayLike

_LOG = logging.getLogger("bts_jax")


def on_the_host() -> contextlib.AbstractContextManager:
    """A context that runs small computations on a CPU, such as drawing instances. A GPU takes half
    a second to compile each.
    """
    if jax.local_devices()[0].platform == "cpu":
        return contextlib.nullcontext()
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX is configured without CPUs
        return contextlib.nullcontext()


@dataclass(frozen=True)
class Report:
    """How a batch was played."""

    runs: int
    devices: int
    lanes: int  # on each device
    rounds: int  # of all runs
    calls: int  # of all policies: rounds, and attempts that did not complete a round
    computed: int  # calls that were computed, including those of lanes without a run
    blocks: tuple[int, ...]  # iterations of each device's loop, a measure of how long each was busy
    seconds: float  # from the call to the result, including compilation
    # Operations of policy and bandit without a rule for lanes, which `jax.vmap` maps instead. On a
    # GPU also the options that the compiler does not know, and the reasons why attempts to compile
    # this program failed.
    fallbacks: tuple[str, ...] = ()

    @property
    def utilisation(self) -> float:
        """The fraction of computed calls that belonged to an active run."""
        return self.calls / self.computed


def simulate_batch(
    policy: Policy,
    bandit: Bandit,
    budget: ArrayLike,
    keys: jax.Array,
    *,
    checkpoints: ArrayLike | None = None,
    max_rounds: ArrayLike | None = None,
    lanes: int | None = None,
    devices: Sequence[Any] | None = None,
    on_report: Callable[["Report"], Any] | None = None,
    engine: str = "fast",
) -> Run:
    """Plays many runs on all devices. Returns the same bits as `jax.vmap(simulate)`, and is faster
    (with the fast engine).

    Each of the first four arguments may be a batch of size N along its first axis: `keys` [N];
    `budget` [N]; a bandit whose arrays have N as their first axis, as `jax.vmap` makes it; a policy
    with hyperparameters that are arrays [N]. Arguments that are not a batch are shared by all runs.

    Args:
        policy: the policy. If a hyperparameter is an array, its first axis has one value per run.
        bandit: the bandit.
        budget: the amount that may be spent in a run. If the bandit has d resources: a number, [d]
            or [N, d].
        keys: typed JAX keys, such as `jax.random.split(jax.random.key(0), N)`, or one key for all
            runs.
        checkpoints: as for `simulate`, the same for all runs [C] or one row per run [N, C].
        max_rounds: as for `simulate`.
        lanes: the number of runs that each device plays at a time; 1 counts as 2. The default suits
            the device.
        devices: the devices to use. The default is all devices of this process on JAX's default
            platform. JAX has a device for each CPU core only if `bts_jax` is imported before JAX
            starts.
        on_report: a function such as `print`. It is called at the end with a `Report` of how the
            batch was played: devices, lanes, utilisation.
        engine: "fast" or "plain". The plain engine is a page of code, `bts_jax.plain`: a
            `while_loop` over the budget under `jax.vmap`. It is slower, uses the first device, and
            needs no `lanes`. Policies that draw by rejection, such as `BTS`, get other draws of the
            same distribution.

    Returns:
        The `Run`, with N as the first axis of every array. If a run is NaN (see `simulate`), a
        `RuntimeWarning` states why.

    Example:
        >>> import jax
        >>> from bts_jax import BTS, Bernoulli, simulate_batch
        >>> bandit = Bernoulli(reward=[0.3, 0.6, 0.5], cost=[0.6, 0.5, 0.9])
        >>> reports = []
        >>> runs = simulate_batch(BTS(), bandit, 100, jax.random.split(jax.random.key(0), 50),
        ...     on_report=reports.append)
        >>> runs.reward.shape, reports[0].rounds == runs.rounds.sum()
        ((50, 1), Array(True, dtype=bool))
    """
    started = time.perf_counter()
    if engine not in ("fast", "plain"):
        raise ValueError(f"engine = {engine!r} is not known: give 'fast' or 'plain'")
    plain = engine == "plain"
    if plain:
        devices = (jax.local_devices() if devices is None else devices)[:1]
    given = arguments.of_batch(policy, bandit, budget, keys, checkpoints, max_rounds)
    batch = lay_out(given, lanes=lanes, devices=devices, quickly=False if plain else None)
    runs, calls, blocks = _play_plainly(batch) if plain else play([batch])[0]
    lost = np.flatnonzero(np.isnan(runs.reward).any(-1))
    if len(lost):
        reason = _why_nan(policy, bandit, budget, keys, runs, lost[0])
        warnings.warn(
            f"{len(lost):,} of {counted(len(runs.reward), 'run')}, the first is run {lost[0]}: "
            f"{reason}",
            RuntimeWarning,
            stacklevel=2,
        )
    if on_report is not None:
        size, count = len(batch.back), len(batch.devices)
        width = size if plain else min(batch.signature.width, loop.lane_count(-(-size // count)))
        block = 1 if plain else loop.BLOCK[_platform(batch.devices)]
        on_report(
            Report(
                runs=size,
                devices=count,
                lanes=width,
                rounds=int(np.asarray(runs.rounds, np.int64).max(-1).sum()),
                calls=int(calls.sum(dtype=np.int64)),
                computed=int(blocks.sum(dtype=np.int64)) * block * width,
                blocks=tuple(map(int, blocks)),
                seconds=time.perf_counter() - started,
                fallbacks=() if plain else _fallbacks(batch),
            )
        )
    return jax.tree.map(
        jnp.asarray, rules.with_fingerprint(runs, bandit.reward_mean, bandit.cost_mean, np)
    )


def _why_nan(policy, bandit, budget, keys, runs: Run, place: int) -> str:
    """Why run number `place` of a batch is NaN."""

    def own(leaf: Any) -> Any:
        return leaf[place] if np.ndim(leaf) else leaf

    vector = num_resources(bandit) is not None
    if np.ndim(bandit.reward_mean) > 1:
        bandit = jax.tree.map(own, bandit)
    policy, budget = jax.tree.map(own, policy), np.asarray(budget)
    budget = own(budget) if budget.ndim > vector else budget
    return why_nan(policy, bandit, budget, own(keys), int(runs.rounds[place].max()))


class Signature(NamedTuple):
    """Everything that the program of a batch depends on, except shapes and devices."""

    structure: Any  # of policy and bandit
    varies: tuple[bool, ...]  # whether each of their leaves differs from run to run
    several: bool  # several resources: costs are vectors
    width: int  # lanes on each device
    quickly: bool  # compiled quickly; see `options.ways`


class Batch(NamedTuple):
    """Runs, arranged for the devices."""

    signature: Signature
    own: Any  # the arrays that differ from run to run; the shards of the devices follow one another
    common: list  # the arrays that all runs share
    back: np.ndarray  # [N], the position of each run in `own`
    devices: tuple
    ends: Ends  # of the runs in their original order


def lay_out(
    given: BatchArguments,
    *,
    lanes: int | None = None,
    devices: Sequence[Any] | None = None,
    quickly: bool | None = None,
) -> Batch:
    """Arranges runs for the devices.

    `quickly` says whether to compile the program quickly (`options.ways`). By default, this depends
    on the total work of all batches of this signature so far.
    """
    policy, bandit, ends, keys, varies = given
    if lanes is not None and (not isinstance(lanes, (int, np.integer)) or lanes < 1):
        raise ValueError(
            f"lanes = {lanes!r} is not a number of runs to play at a time: give a whole number of "
            "at least 1"
        )
    size, several, checkpoints = len(ends.order), ends.budget.ndim > 1, ends.checkpoints
    devices = tuple(jax.local_devices() if devices is None else devices)[:size]
    if not devices:
        raise ValueError("devices is empty: give some of jax.local_devices(), or None for all")
    # The longest runs come first. Every second row is reversed, so that the devices get similar
    # amounts of work. Copies of the last run fill up the rows, so that all devices get the same
    # number of runs.
    amounts = checkpoints.amounts.astype(np.float64)
    # The run ends with the first budget that is used up.
    amounts = amounts.min(-1) if several else amounts
    lengths = amounts.max(1) / best_cost(bandit)
    if checkpoints.limits is not None:
        lengths = np.minimum(lengths, checkpoints.limits.max(1))
    longest = np.argsort(-lengths, kind="stable")
    per_device = -(-size // len(devices))
    at_once = np.ceil(lengths.sum() / (lengths.max() * len(devices)) - 1e-6)
    spread = np.pad(longest, (0, per_device * len(devices) - size), mode="edge").reshape(
        per_device, len(devices)
    )
    spread[1::2] = spread[1::2, ::-1]
    order = spread.T.ravel()
    back = np.empty(size, np.int64)
    back[order] = np.arange(len(order))
    leaves, structure = jax.tree.flatten((policy, bandit))
    own_leaves = [np.asarray(leaf) for leaf, varied in zip(leaves, varies, strict=True) if varied]
    own = jax.tree.map(lambda x: x[order], (own_leaves, ends._replace(order=None), keys))
    common = [leaf for leaf, varied in zip(leaves, varies, strict=True) if not varied]
    num_arms, platform = (
        np.prod(np.shape(bandit.cost_mean)[np.ndim(bandit.reward_mean) - 1 :]),
        devices[0].platform,
    )
    width = lanes or _width(
        per_device, int(at_once), int(num_arms), checkpoints.valid.shape[-1], platform
    )
    signature = Signature(structure, varies, several, loop.lane_count(int(width)), False)
    if quickly is None:
        PROGRAMS.work[signature] += work_of(lengths.sum(), num_arms)
        quickly = is_little(PROGRAMS.work[signature])
    return Batch(
        signature._replace(quickly=platform == "cpu" and quickly), own, common, back, devices, ends
    )


def play(batches: Sequence[Batch]) -> list[tuple[Run, np.ndarray, np.ndarray]]:
    """Plays several batches on the same devices in one program. A GPU can play small batches in
    parallel.

    Returns for each batch the runs, the number of calls of each run's policy, and the number of
    blocks of each device.
    """
    program, inputs = _program_of(batches)
    played = jax.device_get(program(inputs))
    return [
        (_finish(batch, record), calls[batch.back], blocks)
        for batch, (record, calls, blocks) in zip(batches, played, strict=True)
    ]


def _play_plainly(batch: Batch) -> tuple[Run, np.ndarray, np.ndarray]:
    """As `play`, with `bts_jax.plain`."""
    own, common = jax.device_put((batch.own, batch.common), batch.devices[0])
    record, calls, blocks = jax.device_get(
        _plain_program(batch.signature._replace(width=0))(own, common)
    )
    return _finish(batch, record), calls[batch.back], blocks[None]


@lru_cache(maxsize=64)
def _plain_program(signature: Signature) -> Any:
    return jax.jit(partial(_played_plainly, signature))


def _played_plainly(signature: Signature, own: Any, common: list, block: int = 1) -> loop.Played:
    """What `loop.play` returns for one game, computed by `bts_jax.plain`. A block is `block` rounds
    of all runs.
    """

    def play_one(leaves: list, ends: Ends, key: random.Words) -> Run:
        return play_run(_setting(signature, common, leaves, ends, key))

    record = jax.vmap(play_one, out_axes=-1)(*own)
    rounds = record.rounds.max(0)
    return loop.Played(record, rounds, jnp.maximum(-(-rounds.max() // block), 1))


def _finish(batch: Batch, record: Run) -> Run:
    """The runs in their original order. In `record` they are in the order of the devices, along the
    last axis.
    """
    record = jax.tree.map(lambda x: np.ascontiguousarray(np.moveaxis(x, -1, 0))[batch.back], record)
    return arguments.finish(record, batch.ends, np)


def lower(batches: Sequence[Batch]) -> Any:
    """Traces the program that plays these batches. After a call of its method `compile`, `play`
    uses the compiled program.
    """
    program, inputs = _program_of(batches)
    return program.lower(inputs)


def work_of(pulls: Any, num_arms: Any) -> Any:
    """The time that a quickly compiled program loses, in units of 10 ns: for each pull one per arm,
    and ten more.
    """
    return pulls * (num_arms + 10)


def is_little(work: float) -> bool:
    """Whether quick compilation saves more time than it costs. It saves about a second of CPU
    time.
    """
    return bool(work <= 1.5e8)


def best_cost(bandit: Bandit) -> np.ndarray:
    """The expected cost of the best arm, one per bandit of a batch. It determines the approximate
    length of a run.
    """
    reward, cost = np.asarray(bandit.reward_mean), np.asarray(bandit.cost_mean)
    # Of the resource that it uses up first, if all budgets are the same.
    if cost.ndim > reward.ndim:
        cost = cost.max(-1)
    best = np.argmax(ratio(reward, cost, np), -1)
    _, scale = scales(bandit) or (1.0, 1.0)
    cost = np.take_along_axis(cost, np.expand_dims(best, -1), -1)[..., 0].astype(np.float64)
    scale = np.asarray(scale, np.float64)
    return np.fmax(cost, 0.01 * (scale if scale.ndim < reward.ndim else scale.max(-1)))


def _program_of(batches: Sequence[Batch]) -> tuple[Program, list]:
    """The program for these batches, and its arguments."""
    key, inputs = _key_of(batches)
    return PROGRAMS.get(key, lambda: _program(*key)), inputs


def _key_of(batches: Sequence[Batch]) -> tuple[tuple, list]:
    """What identifies the program for these batches, and its arguments."""
    inputs = [(batch.own, batch.common) for batch in batches]
    signatures, rest = (
        tuple(batch.signature for batch in batches),
        (batches[0].devices, _shapes(inputs)),
    )
    carefully = tuple(signature._replace(quickly=False) for signature in signatures)
    # A faster one, if there is one.
    return (carefully if (carefully, *rest) in PROGRAMS.kept else signatures, *rest), inputs


def forget(batches: Sequence[Batch]) -> None:
    """Frees the program of these batches."""
    PROGRAMS.drop(_key_of(batches)[0])


def _program(signatures: tuple[Signature, ...], devices: tuple, shapes: Any) -> Program:
    """The program that plays a shard of each batch on each device. It is compiled for the shapes of
    its arguments.
    """

    def play_shard(batches: list) -> list[tuple]:
        games = [
            _game(signature, own, common)
            for signature, (own, common) in zip(signatures, batches, strict=True)
        ]
        platform = _platform(devices)
        try:
            played, program.fallbacks = loop.play(games, rules.rules(platform), platform)
        except PassFailed as error:
            report(str(error))
            played = [
                _played_plainly(signature, *batch, block=loop.BLOCK[platform])
                for signature, batch in zip(signatures, batches, strict=True)
            ]
            program.fallbacks = [{str(error)}] * len(signatures)
        return [(record, calls, blocks[None]) for record, calls, blocks in played]

    # On one device nothing is divided, and the program takes less time to lower.
    play = play_shard if len(devices) == 1 else _divided(play_shard, signatures, devices)
    program = Program(play, devices, all(signature.quickly for signature in signatures))
    return program


def _divided(play_shard: Callable, signatures: tuple[Signature, ...], devices: tuple) -> Callable:
    """The function that plays a shard of each batch on each of several devices."""
    each, same = PartitionSpec("device"), PartitionSpec()
    # Records have the runs last.
    row, table = PartitionSpec(None, "device"), PartitionSpec(None, None, "device")

    def record(signature: Signature) -> Run:
        cost = table if signature.several else row
        return Run(budget=None, reward=row, cost=cost, rounds=row, pulls=table, truncated=row)  # type: ignore

    return jax.shard_map(
        play_shard,
        mesh=Mesh(np.array(devices), ("device",)),
        in_specs=([(each, same)] * len(signatures),),
        out_specs=[(record(signature), each, each) for signature in signatures],
        check_vma=False,
    )


def _fallbacks(batch: Batch) -> tuple[str, ...]:
    """The fallbacks of this batch; see `Report`."""
    program, _ = _program_of([batch])
    found = program.fallbacks[0] if program.fallbacks else ()  # none if it was dropped meanwhile
    return (*sorted(found), *known_on_gpu(batch.devices[0])[1], *program.failed)


def _platform(devices: Sequence) -> str:
    return "cpu" if devices[0].platform == "cpu" else "gpu"


def _shapes(batches: list) -> Any:
    leaves, structure = jax.tree.flatten(batches)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def _game(signature: Signature, own: Any, common: list) -> loop.Runs:
    """The shard of a batch as an argument of `loop.play`."""

    own_leaves, setting = own[0], jax.vmap(partial(_setting, signature, common))(*own)
    own_leaves, setting = jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), (own_leaves, setting))
    policy, bandit = _assemble(signature, own_leaves, [None] * len(common))
    shared_policy, shared_bandit = _assemble(signature, [None] * len(own_leaves), common)
    return loop.Runs(
        setting._replace(policy=policy, bandit=bandit),
        jax.tree.map(lambda _: None, setting)._replace(policy=shared_policy, bandit=shared_bandit),
        signature.width,
    )


def _setting(
    signature: Signature, common: list, own: list, ends: Ends, key: random.Words
) -> rules.Setting:
    """The setting of one run."""
    return rules.setting_of(Arguments(*_assemble(signature, own, common), ends), key)


def _assemble(signature: Signature, own: list, common: list) -> tuple[Policy, Bandit]:
    """The policy and the bandit, from their leaves that differ from run to run and those that do
    not.
    """
    parts = {True: iter(own), False: iter(common)}
    return jax.tree.unflatten(
        signature.structure, [next(parts[varied]) for varied in signature.varies]
    )


def _width(runs: int, at_once: int, num_arms: int, num_checkpoints: int, platform: str) -> int:
    """The number of lanes for `runs` runs: up to 512 on a CPU, and as many as fit into memory on a
    GPU.

    A step on a CPU consists of about 40 small loops, and starting a loop takes time. Index policies
    with 10 or 100 arms are up to twice as fast with 500 lanes as with 64. With 1,000 arms, and for
    policies that sample, the speed is the same. If there are more runs than lanes, the program
    needs a queue, and takes longer to compile.

    With more than `at_once` lanes, some lanes would wait for the longest run to end. On a CPU every
    lane costs time, so only a quarter of `at_once` is used. On a GPU a thousand lanes take as long
    as one. The result is rounded, so that batches of similar length share a program. It is a
    multiple of four where possible, because vectors have four entries: 63 lanes take longer than
    64.
    """
    if platform == "cpu":
        most, busy = min(max(2**19 // num_arms, 64), 512), max(at_once // 4, 32)
    else:
        most, busy = 2**30 // (4 * num_arms * (num_checkpoints + 12)), max(at_once, 1024)
    most = max(most - most % 4, 1)
    if at_once < 0.75 * runs:
        return min(most, busy - busy % (16 if busy < 128 else 64), runs)
    width = -(-runs // -(-runs // most))  # the last turn has as many runs as the others
    return min(-(-width // 4) * 4, runs)
