"""The progress bar of a sweep."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bts_jax import progress
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.results import Results, Unit


class Bar:
    """A bar of the work in pulls. How many there will be is known roughly, and better with every unit."""

    def __init__(self, grid: Grid, bar: Any = None):
        self.grid, self.bar = grid, progress.bar(True) if bar is None else bar

    def begin(self, grid: Grid, units: list[Unit], results: Results) -> None:
        """Counts what is to be played, in the grid of the results."""
        self.grid, self.results = grid, results
        self.bar.total = sum(map(self._expected, units))
        self.bar.unpause()

    def say(self, units: list[Unit], doing: str = "") -> None:
        policies, bandits = list(self.grid.policies), list(self.grid.bandits)
        count = len(units) * self.results.group
        more = f" and {count - 1} more" if count > 1 else ""
        first = bandits[self.results.bandits(units[0])[0]]
        self.bar.set_description(f"{doing}{policies[units[0].policy]} on {first}{more}")

    def tick(self) -> None:
        self.bar.refresh()

    def advance(self, units: list[Unit], rounds: list[np.ndarray]) -> None:
        """Puts the pulls that units made in the place of those expected. `rounds`: of each [bandit, budget, seed]"""
        for unit, of_unit in zip(units, rounds, strict=True):
            made = int((of_unit if self.grid.requires_budget(unit) else of_unit[:, -1]).sum(dtype=np.int64))
            self.bar.total += made - self._expected(unit)
            self.bar.update(made)
        self.bar.refresh()

    def _expected(self, unit: Unit) -> int:
        return int(len(self.results.gap(unit).seeds) * self.grid.expected_pulls(unit, self.results.bandits(unit)))


@contextmanager
def progress_bar(grid: Grid, quiet: bool) -> Iterator[Bar]:
    """A bar on the terminal or in the notebook. Elsewhere it shows nothing."""
    everywhere = range(len(grid.bandits))
    total = sum(int(grid.seeds * grid.expected_pulls(Unit(policy, 0, 0), everywhere)) for policy in range(len(grid.policies)))
    with progress.bar(quiet, total=total, unit="pull", unit_scale=True, desc="starting") as bar:
        yield Bar(grid, bar)


class StoreBar:
    """A bar of the finished chunks in a store, whoever plays them."""

    def __init__(self, results: Results, bar: Any):
        self.results, self.bar, self._next = results, bar, 0.0

    def show(self, label: str) -> None:
        """Counts the chunks, unless that was done just now: it takes long where there are many."""
        begun = time.monotonic()
        self.bar.set_description(label, refresh=False)
        if begun >= self._next and not self.bar.disable:
            self.bar.n = self.results.saved()
            self._next = time.monotonic() + max(0.5, 50 * (time.monotonic() - begun))
        self.bar.refresh()


@contextmanager
def store_bar(results: Results, quiet: bool) -> Iterator[StoreBar]:
    with progress.bar(quiet, total=len(results.units), initial=results.saved(), unit="chunk", desc="starting") as bar:
        yield StoreBar(results, bar)
