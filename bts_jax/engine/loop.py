"""The loop that plays many runs at once.

All runs of a batch play in one loop. Each lane plays one run. A lane whose run has ended is
refilled with the next run. Rounds are played in blocks. A run that has reached a checkpoint waits
for the end of the block. There, checkpoints are recorded and lanes refilled, for all lanes
together. None of this changes a run's random numbers, so its result does not depend on the batch.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax.engine.lanes import lanes as in_lanes
from bts_jax.engine.passes.storing import behind_a_branch
from bts_jax.engine.step import step_of
from bts_jax.jax_internals import custom_vmap

# Calls in a block. With fewer calls, waiting runs waste less time. With more calls, each call costs
# less. On a GPU, calls are taken two at a time (`compile.options`). So their number is even.
BLOCK = {"cpu": 32, "gpu": 128}
# Blocks in a turn, on a GPU. A turn takes 20 to 50 ms and is one CUDA graph. (If lanes are
# refilled, each block is a graph.) If a whole program were one graph, JAX could not load another
# program until it ends (jaxlib 0.11.2; see `.github/docs/measurements.md`).
TURN = 32


def lane_count(count: int) -> int:
    """`count` lanes or a few more: a number of lanes that does not change the bits of a run.

    XLA multiplies by the reciprocal of a single divisor instead of dividing. And its CPU compiler
    unrolls loops of up to 15
    numbers: in 3, 5, 6, 7, 11, 13, 14 and 15 lanes, `exp` and `log` alone have other bits (jaxlib
    0.10.2; `test_batch.py`).
    """
    return 2 if count <= 2 else -(-count // 4) * 4 if count < 16 else count


class Rules(NamedTuple):
    """The functions that play a run, written for one run."""

    round: Callable  # setting -> a round without loops (`draws.Stepwise`)
    start: Callable  # round, setting -> progress
    call: Callable  # round, setting, progress -> progress: one attempt at a round
    blank: Callable  # setting -> record
    record: Callable  # setting, progress, record -> progress, record


class Runs(NamedTuple):
    """Many runs of one policy, played in `width` lanes.

    `own` has the arrays that differ from run to run, with the runs on the last axis. `common` has
    the arrays that all runs share. Each of them has `None` where the other has an array.
    """

    own: Any
    common: Any
    width: int


class Played(NamedTuple):
    record: Any  # of every run
    calls: jax.Array  # [runs] int32, the number of attempts at rounds
    blocks: jax.Array  # int32, the number of blocks


class _LoopState(NamedTuple):
    """The state of a game."""

    part: Any  # the part of `own` that is in the lanes; `None` if every run has a lane
    state: list[jax.Array]  # see `Step`
    record: Any
    blocks: jax.Array  # int32, the number of blocks so far
    queue: Any = None  # `None` if every run has a lane


class _Queue(NamedTuple):
    run: jax.Array  # [lanes] int32, the run in each lane; `runs` or more if the lane is empty
    line: jax.Array  # int32, the next run
    stored: Any  # records of the runs that have ended
    calls: jax.Array  # [runs] int32, of the runs that have ended


def play(games: Sequence[Runs], rules: Rules, platform: str) -> tuple[list[Played], list[set[str]]]:
    """Plays several games in one loop. It ends with the longest game.

    Returns for each game its results, and the names of operations without a rule for lanes.
    """
    lanes = [_Lanes(game, rules, platform) for game in games]
    steps = [one.step for one in lanes]

    def block(batches: list[_LoopState]) -> list[_LoopState]:
        parts = [one.part(batch) for one, batch in zip(lanes, batches, strict=True)]

        def call(_: jax.Array, states: list) -> list:
            return [
                step(part, state) for step, part, state in zip(steps, parts, states, strict=True)
            ]

        states = lax.fori_loop(0, BLOCK[platform], call, [batch.state for batch in batches])
        return [
            one.after_block(batch, state)
            for one, batch, state in zip(lanes, batches, states, strict=True)
        ]

    def goes_on(batches: list[_LoopState]) -> jax.Array:
        return reduce(
            jnp.logical_or, [one.goes_on(batch) for one, batch in zip(lanes, batches, strict=True)]
        )

    def turn(batches: list[_LoopState]) -> list[_LoopState]:
        def more(carried: tuple) -> jax.Array:
            return (carried[0] < TURN) & goes_on(carried[1])

        _, batches = lax.while_loop(
            more, lambda carried: (carried[0] + 1, block(carried[1])), (jnp.int32(0), batches)
        )

        # A branch ends the graph, because `options.GRAPHS` does not list CONDITIONAL. So here is
        # a branch, which changes nothing. It has a loop, because XLA would replace a branch without
        # a loop by a selection.
        def unchanged(n: jax.Array) -> jax.Array:
            return lax.while_loop(lambda m: m < n, lambda m: m + 1, n)

        first, *rest = batches
        return [
            first._replace(blocks=lax.cond(goes_on(batches), lambda n: n, unchanged, first.blocks)),
            *rest,
        ]

    batches = lax.while_loop(
        goes_on, block if platform == "cpu" else turn, [one.start() for one in lanes]
    )
    return [one.result(batch) for one, batch in zip(lanes, batches, strict=True)], [
        one.vector.fallbacks for one in steps
    ]


def follow(game: Runs, rules: Rules, platform: str, rounds: int, look: Callable) -> tuple[Any, Any]:
    """Plays the runs of a game round by round, and stores the result of `look(setting, before,
    after)` for every round.

    These `rules` are those of `trace`: `call` makes a run wait after each round, and `record` lets
    it continue with the next round, unless it has ended. Each run has the same bits as in `play`:
    the steps are the same, and a step does not depend on when it is taken.

    Returns the stored results, with `rounds` as the first axis and the runs as the last, and the
    progress at the end. For rounds after the end of a run, the result is that of `look` for a round
    in which nothing happens.
    """
    lanes = _Lanes(game._replace(width=game.own.limits.shape[-1]), rules, platform)
    part, step, look = lanes.own, lanes.step, lanes.each(look)
    now = lanes.fresh(part)

    def play_round(carried: tuple) -> tuple:
        number, before, stored = carried
        after = lax.while_loop(
            lambda state: ~step.leave(part, state).waiting.all(),
            partial(step, part),
            step.enter(part, before),
        )
        after = step.leave(part, after)
        stored = jax.tree.map(
            lambda rows, row: rows.at[number].set(row), stored, look(part, before, after)
        )
        after, _ = lanes.each(rules.record)(part, after, None)
        return number + 1, after, stored

    def goes_on(carried: tuple) -> jax.Array:
        number, now, _ = carried
        return (number < rounds) & ~now.waiting.all()

    blank = jax.tree.map(
        lambda row: jnp.broadcast_to(row, (rounds, *row.shape)), look(part, now, now)
    )
    number, now, stored = lax.while_loop(goes_on, play_round, (jnp.int32(0), now, blank))

    def fill(rows: jax.Array, row: jax.Array) -> jax.Array:
        took_place = (jnp.arange(rounds) < number).reshape(-1, *(1,) * row.ndim)
        return jnp.where(took_place, rows, row)

    stored = jax.tree.map(fill, stored, look(part, now, now))
    return jax.tree.map(lambda x: x[..., : lanes.count], (stored, now))


def for_any_batch(play_all: Callable) -> Callable:
    """Gives a function of runs on the last axis a rule for `jax.vmap`: a batch axis is merged into
    the axis of the runs.
    """
    play_all = custom_vmap(play_all)

    @play_all.def_vmap
    def _(size: int, is_batched: list, setting: Any) -> tuple[Any, Any]:
        def merge(leaf: jax.Array, batched: bool) -> jax.Array:
            leaf = (
                jnp.moveaxis(leaf, 0, -2) if batched else jnp.repeat(leaf[..., None, :], size, -2)
            )
            return leaf.reshape(*leaf.shape[:-2], size * leaf.shape[-1])

        runs = setting.limits.shape[-1]
        record = play_all(jax.tree.map(merge, setting, is_batched[0]))
        record = jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], size, runs), -2, 0), record
        )
        return record, jax.tree.map(lambda _: True, record)

    return play_all


class _Lanes:
    """The lanes of one game."""

    def __init__(self, game: Runs, rules: Rules, platform: str):
        self.count = jax.tree.leaves(game.own)[0].shape[-1]  # the number of requested runs
        self.width = lane_count(game.width)
        self.queues = self.width < self.count
        self.runs = self.count if self.queues else lane_count(self.count)
        self.own, self.common = _repeated(game.own, self.runs - self.count), game.common
        self.rules, self.platform = rules, platform
        single = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[:-1], x.dtype), self.own)
        self.round = rules.round(self.setting(single))
        part = self.own
        if self.queues:
            part = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((*x.shape[:-1], self.width), x.dtype), self.own
            )
        self.step = step_of(
            lambda part, now: rules.call(self.round, self.setting(part), now),
            part,
            jax.eval_shape(self.fresh, part),
            platform,
        )

    def setting(self, part: Any) -> Any:
        return jax.tree.map(
            lambda x, y: y if x is None else x, part, self.common, is_leaf=lambda x: x is None
        )

    def each(self, function: Callable) -> Callable:
        return in_lanes(lambda part, *rest: function(self.setting(part), *rest), self.platform)

    def start(self) -> _LoopState:
        if not self.queues:
            return _LoopState(None, *self.entered(self.own), jnp.int32(0))
        run = jnp.arange(self.width, dtype=jnp.int32)
        part = self.take(run)
        queue = _Queue(
            run,
            jnp.int32(self.width),
            self.each(self.rules.blank)(self.own),
            jnp.zeros(self.runs, jnp.int32),
        )
        return _LoopState(part, *self.entered(part), jnp.int32(0), queue)

    def fresh(self, part: Any) -> Any:
        return self.each(partial(self.rules.start, self.round))(part)

    def entered(self, part: Any) -> tuple[list[jax.Array], Any]:
        """The state and the record of lanes at the start of their runs."""
        # XLA would fold the constants of a new state, and the quotients in `enter` would be rounded
        # differently than in a step (jaxlib 0.10.2;
        # `test_what_runs_share_does_not_change_their_bits`). So the constants are hidden from XLA.
        hide = behind_a_branch if self.platform == "cpu" else lax.optimization_barrier
        return self.step.enter(*hide((part, self.fresh(part)))), self.each(self.rules.blank)(part)

    def take(self, index: jax.Array) -> Any:
        return jax.tree.map(lambda x: x[..., index], self.own)

    def part(self, batch: _LoopState) -> Any:
        return batch.part if self.queues else self.own

    def now(self, batch: _LoopState) -> Any:
        return self.step.leave(self.part(batch), batch.state)

    def after_block(self, batch: _LoopState, state: list[jax.Array]) -> _LoopState:
        """Records checkpoints, and refills lanes."""
        part = self.part(batch)
        before = self.step.leave(part, state)
        now, record = self.each(self.rules.record)(part, before, batch.record)
        batch = batch._replace(
            state=self.step.changed(state, before, now), record=record, blocks=batch.blocks + 1
        )
        return (
            lax.cond(now.waiting.any(), self.refill, lambda batch: batch, batch)
            if self.queues
            else batch
        )

    def refill(self, batch: _LoopState) -> _LoopState:
        """Stores the runs that have ended, and refills their lanes with the next runs."""
        record, (run, line, stored, calls) = batch.record, batch.queue
        now = self.now(batch)
        ended = now.waiting & (run < self.runs)
        place = jnp.where(ended, run, self.runs)  # out of range: dropped
        stored = jax.tree.map(
            lambda all, one: all.at[..., place].set(one, mode="drop"), stored, record
        )
        calls = calls.at[place].set(now.calls, mode="drop")
        run = jnp.where(ended, line + jnp.cumsum(ended, dtype=jnp.int32) - 1, run)
        line = line + ended.sum(dtype=jnp.int32)
        part = self.take(jnp.minimum(run, self.runs - 1))
        anew = ended & (run < self.runs)
        state, record = jax.tree.map(
            lambda new, old: jnp.where(anew, new, old), self.entered(part), (batch.state, record)
        )
        return batch._replace(
            part=part, state=state, record=record, queue=_Queue(run, line, stored, calls)
        )

    def goes_on(self, batch: _LoopState) -> jax.Array:
        return (
            (batch.queue.run < self.runs).any() if self.queues else ~self.now(batch).waiting.all()
        )

    def result(self, batch: _LoopState) -> Played:
        queue, now = batch.queue, self.now(batch)
        played = (queue.stored, queue.calls) if self.queues else (batch.record, now.calls)
        if self.runs > self.count:
            played = jax.tree.map(lambda x: x[..., : self.count], played)
        record, calls = played
        return Played(record, calls, batch.blocks)


def _repeated(tree: Any, times: int) -> Any:
    """Appends `times` copies of the last run."""
    if times == 0:
        return tree
    return jax.tree.map(lambda x: jnp.concatenate([x, *[x[..., -1:]] * times], -1), tree)
