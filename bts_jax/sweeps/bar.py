"""Progress bars of a sweep."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bts_jax import progress
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.results import Chunk, Results


class Bar:
    """A progress bar that counts pulls. Their total is an estimate, which every finished chunk
    improves.
    """

    def __init__(self, grid: Grid, bar: Any = None):
        self.grid, self.bar = grid, progress.bar(True) if bar is None else bar

    def begin(self, grid: Grid, chunks: list[Chunk], results: Results) -> None:
        """Sets the expected number of pulls of these chunks, in the grid of the results."""
        self.grid, self.results = grid, results
        self.bar.total = sum(map(self._expected, chunks))
        self.bar.unpause()

    def say(self, chunks: list[Chunk], doing: str = "") -> None:
        policies, bandits = list(self.grid.policies), list(self.grid.bandits)
        count = len(chunks) * self.results.group
        more = f" and {count - 1} more" if count > 1 else ""
        first = bandits[self.results.bandits(chunks[0])[0]]
        self.bar.set_description(f"{doing}{policies[chunks[0].policy]} on {first}{more}")

    def tick(self) -> None:
        self.bar.refresh()

    def advance(self, chunks: list[Chunk], rounds: list[np.ndarray]) -> None:
        """Replaces the expected pulls of chunks by the pulls that they made. `rounds`: for each
        chunk [bandit, budget, seed]
        """
        for chunk, of_chunk in zip(chunks, rounds, strict=True):
            made = int(
                (of_chunk if self.grid.requires_budget(chunk) else of_chunk[:, -1]).sum(
                    dtype=np.int64
                )
            )
            self.bar.total += made - self._expected(chunk)
            self.bar.update(made)
        self.bar.refresh()

    def _expected(self, chunk: Chunk) -> int:
        return int(
            len(self.results.gap(chunk).seeds)
            * self.grid.expected_pulls(chunk, self.results.bandits(chunk))
        )


@contextmanager
def progress_bar(grid: Grid, quiet: bool) -> Iterator[Bar]:
    """Shows the progress of a sweep; see `bts_jax.progress`."""
    everywhere = range(len(grid.bandits))
    pulls = (
        grid.expected_pulls(Chunk(policy, 0, 0), everywhere) for policy in range(len(grid.policies))
    )
    total = sum(int(grid.num_seeds * expected) for expected in pulls)
    with progress.bar(quiet, total=total, unit="pull", unit_scale=True, desc="starting") as bar:
        yield Bar(grid, bar)


class StoreBar:
    """A progress bar that counts the finished chunks in a store, whichever process played them."""

    def __init__(self, results: Results, bar: Any):
        self.results, self.bar, self._next = results, bar, 0.0

    def show(self, label: str) -> None:
        """Shows the label, and counts the chunks unless they were just counted: counting many
        chunks takes long.
        """
        begun = time.monotonic()
        self.bar.set_description(label, refresh=False)
        if begun >= self._next and not self.bar.disable:
            self.bar.n = self.results.saved()
            self._next = time.monotonic() + max(0.5, 50 * (time.monotonic() - begun))
        self.bar.refresh()


@contextmanager
def store_bar(results: Results, quiet: bool) -> Iterator[StoreBar]:
    with progress.bar(
        quiet, total=len(results.chunks), initial=results.saved(), unit="chunk", desc="starting"
    ) as bar:
        yield StoreBar(results, bar)
