"""Arms from observations: a table of observed rewards and costs, for example of an advertising
campaign.
"""

import csv
import io
import os
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax import checks, files, random
from bts_jax.bandits.arms import Arms, check_num_arms, largest_of, named_arms
from bts_jax.contract import LARGEST_SCALE, SMALLEST_SCALE
from bts_jax.pytrees import pytree
from bts_jax.text import counted, shown
from bts_jax.typing import ArrayLike

MOST_ROWS = 2**19  # per arm; sums over more rows would overflow
LONGEST_LINE = 2**20  # of a CSV file, in characters


@pytree
class Empirical(Arms):
    """Arms that resample observations: a pull draws one of the arm's rows uniformly, with its
    reward and cost together.

    `Empirical.load` creates a bandit from a file or a DataFrame. Rewards and costs are in the units
    of the data, such as clicks and dollars, or cents. The unit does not matter: policies see shares
    of the largest reward and of the largest cost.

    Args:
        reward: the observed rewards of each arm, at least 0, padded with 0 to the length of the
            longest. [K, N]
        cost: the costs that were observed with these rewards, at least 0. [K, N]
        rows: the number of rows of each arm; the first ones are used. By default all rows. [K]
        reward_scale: the largest reward of one pull. Policies see rewards divided by it. By default
            the largest of the table.
        cost_scale: the largest cost of one pull. Policies see costs divided by it. By default the
            largest of the table.
        arms: the names of the arms, K strings, or no names.

    Example:
        >>> bandit = Empirical(reward=[[0, 1, 1], [0.5, 0, 0]], cost=[[0.5, 1, 0], [0.25, 0, 0]],
        ...     rows=[3, 1])
        >>> bandit.cost_mean.tolist()
        [0.5, 0.25]
        >>> dollars = Empirical(reward=[[0, 1], [1, 1]], cost=[[4, 5], [3, 3]], arms=["search",
        ...     "video"])
        >>> dollars.cost_mean.tolist(), float(dollars.cost_scale), dollars.arms
        ([4.5, 3.0], 5.0, Names('search', 'video'))
    """

    reward: ArrayLike  # [K, N]
    cost: ArrayLike  # [K, N]
    rows: Any = None  # [K] int32
    reward_scale: Any = None
    cost_scale: Any = None
    arms: Any = ()  # names

    def _check(self) -> None:
        for name in ("reward", "cost"):
            if np.ndim(getattr(self, name)) == 1:  # such as a column of a table
                raise ValueError(
                    f"{name} has shape {np.shape(getattr(self, name))}: give one row for each arm "
                    "[K, N]; if each row of your table is one observation, load the table with "
                    "Empirical.load"
                )
        self._canonicalize("amounts", 0, LARGEST_SCALE, reward=2, cost=2)
        self._canonicalize_scales(np.shape(self.reward)[:-2])
        self._canonicalize("amounts", scaled=True, reward=2, cost=2)
        for name in ("reward", "cost"):
            table, scale = getattr(self, name), getattr(self, f"{name}_scale")
            if checks.is_concrete((table, scale)):
                largest = np.max(np.asarray(table), (-2, -1))
                good = (largest == 0) | (largest >= np.float32(SMALLEST_SCALE) * np.asarray(scale))
                checks.require(
                    f"the largest {name}",
                    largest,
                    good,
                    f"set {name}_scale to the largest {name} of one pull; it is {np.max(scale):g}, "
                    "more than a million times as much",
                )
        *shape, most = np.shape(self.reward)
        object.__setattr__(
            self, "arms", named_arms(() if self.arms is None else self.arms, shape[-1])
        )
        if not 1 <= most <= MOST_ROWS:
            raise ValueError(f"reward has {most} rows for each arm: give from 1 to {MOST_ROWS}")
        given: Any = jnp.full(shape, most, jnp.int32) if self.rows is None else self.rows
        if np.shape(given) != tuple(shape):
            raise ValueError(
                f"rows has shape {np.shape(given)}, and there are {shape[-1]} arms: give one "
                "number for each"
            )
        if checks.is_concrete(given):
            remedy = f"give whole numbers from 1 to {most}, the number of rows there are"
            rows = checks.numbers("rows", given, remedy)
            checks.require(
                "rows", rows, (rows >= 1) & (rows <= most) & (rows == np.floor(rows)), remedy
            )
        object.__setattr__(self, "rows", jnp.asarray(given, jnp.int32))

    def _canonicalize_scales(self, shape: tuple[int, ...]) -> None:
        """Checks the scales and stores them as float32, one for each bandit of a batch."""
        for name in ("reward_scale", "cost_scale"):
            given = getattr(self, name)
            given = largest_of(jnp.asarray(getattr(self, name[:-6]))) if given is None else given
            remedy = (
                f"give the largest {name[:-6]} of one pull, a number from {SMALLEST_SCALE:g} to "
                f"{LARGEST_SCALE}; "
            )
            remedy += "if it is smaller or larger, choose another unit"
            if checks.is_concrete(given):
                value = checks.numbers(name, given, remedy)
                checks.require(
                    name, value, (value >= SMALLEST_SCALE) & (value <= LARGEST_SCALE), remedy
                )
            if np.shape(given) not in ((), shape):
                raise ValueError(f"{name} has shape {np.shape(given)}: {remedy}")
            object.__setattr__(self, name, jnp.broadcast_to(jnp.asarray(given, jnp.float32), shape))

    @property
    def reward_mean(self) -> jax.Array:
        return _mean(
            jnp.asarray(self.reward), jnp.asarray(self.rows), jnp.asarray(self.reward_scale)
        )

    @property
    def cost_mean(self) -> jax.Array:
        return _mean(jnp.asarray(self.cost), jnp.asarray(self.rows), jnp.asarray(self.cost_scale))

    def pull(self, key: jax.Array, arm: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = jnp.asarray(self.rows)[arm]
        row = random.one_of(random.bits(key)[0], rows)
        good = (rows >= 1) & (rows <= jnp.shape(self.reward)[-1])
        reward, cost = (
            jnp.where(good, jnp.asarray(table)[arm, row], jnp.nan)
            for table in (self.reward, self.cost)
        )
        return reward, cost

    @classmethod
    def random(cls, key: jax.Array, num_arms: int, *, num_rows: int = 20) -> "Empirical":
        """Creates a random table. Rewards and costs of an arm are uniform below upper limits, which
        are random for each arm.

        The scales are 1, the largest possible limit.
        """
        checks.whole("num_rows", num_rows, 1)
        check_num_arms(num_arms, num_rows)
        checks.key(key)
        key_ends, key_rows = jax.random.split(key)
        ends = jax.random.uniform(key_ends, (2, num_arms, 1), jnp.float32, 0.02, 1.0)
        table = ends * jax.random.uniform(key_rows, (2, num_arms, num_rows), jnp.float32)
        return cls(reward=table[0], cost=table[1], reward_scale=1, cost_scale=1)

    @classmethod
    def load(
        cls,
        table: Any,
        *,
        arm: str = "arm",
        reward: str = "reward",
        cost: str = "cost",
        reward_max: float | None = None,
        cost_max: float | None = None,
        min_rows: int = 10,
        on_report: "Callable[[Loaded], Any] | None" = None,
    ) -> "Empirical":
        """Creates arms from a table with one observation in each row. Units and names of the arms
        are those of the table.

        A row is left out if its arm, reward or cost is missing, is not a number, or is negative.
        Then arms with fewer than `min_rows` rows are left out, and arms that never cost anything. A
        warning lists what was left out, unless `on_report` is given. A number that is written in
        another way, such as $0.01 or 0,01, is refused. The arms are numbered in the order in which
        they first appear in the table.

        Args:
            table: the name of a CSV file with a header, cells separated by commas and decimal
                points; or of a Parquet file (which needs pyarrow); or a DataFrame, or any mapping
                from names to columns.
            arm, reward, cost: the names of the columns.
            reward_max, cost_max: the largest reward and cost of one pull, `reward_scale` and
                `cost_scale`; by default the largest in the rows that are kept.
            min_rows: the smallest number of rows of an arm.
            on_report: a function such as `print`. It is called with a `Loaded`, which lists what
                was kept and what was left out.

        Example:
            >>> seen = {"ad": ["A", "B", "A", "B", "B"], "clicks": [0, 1, 1, 0, None], "price": [2,
            ...     1, 4, 1, 1]}
            >>> bandit = Empirical.load(seen, arm="ad", reward="clicks", cost="price", min_rows=2,
            ...     on_report=print)
            4 of 5 rows kept, 2 arms (A, B); rewards up to 1, costs up to 4
            left out: 1 row without a number for clicks
            >>> bandit.cost_mean.tolist(), bandit.arms
            ([3.0, 1.0], Names('A', 'B'))
        """
        checks.whole("min_rows", min_rows, 1)
        where = repr(str(table)) if isinstance(table, (str, os.PathLike)) else "the table"
        columns = _columns(table, where, [arm, reward, cost])
        names = ["" if value is None else str(value).strip() for value in columns[arm]]
        values = {
            name: _numbers(columns[name], f"column {name!r} of {where}") for name in (reward, cost)
        }
        keep = np.ones(len(names), bool)
        dropped: dict[str, int] = {}

        def drop(reason: str, bad: np.ndarray) -> None:
            nonlocal keep
            if count := int((keep & bad).sum()):
                dropped[f"{counted(count, 'row')} {reason}"] = count
                keep &= ~bad

        drop(
            f"without a name in {arm}",
            np.array([name in ("", "nan", "None", "<NA>", "NaN") for name in names], bool),
        )
        for name in (reward, cost):
            drop(f"without a number for {name}", ~np.isfinite(values[name]))
            drop(f"with a negative {name}", values[name] < 0)
        places: dict[str, list[int]] = {}
        for place in np.flatnonzero(keep):
            places.setdefault(names[place], []).append(int(place))
        few = {name: rows for name, rows in places.items() if len(rows) < min_rows}
        free = {
            name: rows
            for name, rows in places.items()
            if name not in few and not values[cost][rows].any()
        }
        for reason, arms in (
            (f"with fewer than {min_rows} rows", few),
            (f"whose {cost} is always 0", free),
        ):
            if arms:
                dropped[f"{counted(len(arms), 'arm')} {reason} ({_listed(arms)})"] = sum(
                    map(len, arms.values())
                )
        kept = {name: rows for name, rows in places.items() if name not in few and name not in free}
        loaded = Loaded(
            rows=sum(map(len, kept.values())),
            total=len(names),
            arms=tuple(kept),
            dropped=tuple(dropped),
            reward_max=_largest("reward_max", reward_max, values[reward], kept),
            cost_max=_largest("cost_max", cost_max, values[cost], kept),
        )
        if len(kept) < 2:
            raise ValueError(
                f"the table has {counted(len(kept), 'arm')} to play, and a bandit has at least 2 "
                f"({loaded})"
            )
        most = max(map(len, kept.values()))
        padded = np.zeros((2, len(kept), most))
        for row, rows in enumerate(kept.values()):
            padded[0, row, : len(rows)] = values[reward][rows]
            padded[1, row, : len(rows)] = values[cost][rows]
        if on_report is not None:
            on_report(loaded)
        elif dropped:
            warnings.warn(str(loaded), stacklevel=2)
        return cls(
            reward=padded[0],
            cost=padded[1],
            rows=[len(rows) for rows in kept.values()],
            reward_scale=loaded.reward_max,
            cost_scale=loaded.cost_max,
            arms=tuple(kept),
        )


@dataclass(frozen=True)
class Loaded:
    """A report of `Empirical.load`: what was kept of a table and what was left out. `print` shows
    it as text.
    """

    rows: int  # number of rows that were kept
    total: int  # number of rows of the table
    arms: tuple[str, ...]  # their names, by number
    dropped: tuple[str, ...]  # what was left out, and why
    reward_max: float  # the largest reward of one pull, as given or as observed
    cost_max: float  # the largest cost of one pull, as given or as observed

    def __str__(self) -> str:
        text = (
            f"{self.rows:,} of {self.total:,} rows kept, {counted(len(self.arms), 'arm')} "
            f"({_listed(self.arms)}); rewards up to {self.reward_max:g}, costs up to "
            f"{self.cost_max:g}"
        )
        return text + (f"\nleft out: {'; '.join(self.dropped)}" if self.dropped else "")


# Means are computed in whole numbers, as for multinomial arms, and in two parts that do not
# overflow.


@jax.jit
def _mean(values: jax.Array, rows: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns the mean of the first rows of each arm. `values`: [K, N], `rows`: [K] -> [K]"""
    there = jnp.arange(values.shape[-1], dtype=jnp.int32) < rows[..., None]
    # Values are added as integers, in multiples of a power of two: a float32 sum of half a million
    # rows is inexact.
    per_unit = jnp.ldexp(jnp.float32(1), 23 - jnp.frexp(jnp.asarray(scale, jnp.float32))[1])
    parts = jnp.where(there, jnp.round(values * per_unit[..., None, None]), 0).astype(jnp.int32)
    high, low = (parts >> 12).sum(-1, dtype=jnp.int32), (parts & 0xFFF).sum(-1, dtype=jnp.int32)
    total = high.astype(jnp.float32) * 4096 + low.astype(jnp.float32)
    # XLA replaces some quotients by a product with the reciprocal. So the reciprocal is explicit.
    return total * (1 / (rows.astype(jnp.float32) * per_unit[..., None]))


def _columns(table: Any, where: str, names: list[str]) -> dict[str, Any]:
    """Returns the named columns of a file, or of a mapping such as a DataFrame. `where` names it in
    messages.
    """
    if isinstance(table, (str, os.PathLike)):
        path = Path(table)
        try:
            table = (
                _parquet(path)
                if path.suffix.lower() in (".parquet", ".pq")
                else _csv(path, where, names)
            )
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a CSV file in UTF-8"
            raise ValueError(
                f"cannot read {where} ({reason}): name a CSV or Parquet file"
            ) from None
    elif hasattr(table, "to_list"):
        raise ValueError(
            f"table is a {type(table).__name__}, one column of a table: give the whole DataFrame"
        )
    elif not hasattr(table, "keys"):
        raise ValueError(
            f"table = {shown(table)} is not a table: give the name of a CSV or Parquet file, or a "
            "DataFrame"
        )
    _check_header([str(name) for name in table.keys()], where, names, table)  # noqa: SIM118 (a DataFrame has keys, too)
    there = {str(name): name for name in table.keys()}  # noqa: SIM118
    try:
        columns = {name: list(table[there[name]]) for name in names}
    except TypeError:
        raise ValueError(f"a column of {where} is not a list: give lists of equal length") from None
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"the columns of {where} differ in length ({lengths}): give one entry of each for "
            "every row"
        )
    return columns


def _check_header(header: list[str], where: str, names: list[str], table: Any = None) -> None:
    """Raises unless a table has each of these columns once."""
    for name in names:
        if header.count(name) > 1:
            raise ValueError(
                f"{where} has {header.count(name)} columns {name!r}: give them different names"
            )
        if name in header:
            continue
        missing = (
            f"there is no column {name!r} in {where}, which has "
            f"{shown(', '.join(header))[1:-1] or 'none'}"
        )
        for mark in ";\t|":
            if any(name in (part.strip(' "') for part in cell.split(mark)) for cell in header):
                raise ValueError(
                    f"{missing}: separate cells by commas instead of {mark!r}, or give a "
                    f"DataFrame, such as pandas.read_csv(..., sep={mark!r}), with decimal=',' if "
                    "numbers have decimal commas"
                )
        if name in getattr(getattr(table, "index", None), "names", ()):
            raise ValueError(f"{missing}: {name!r} is its index, so give table.reset_index()")
        raise ValueError(f"{missing}: name the columns, as in arm={(header or ['ad'])[0]!r}")


def _csv(path: Path, where: str, names: list[str]) -> dict[str, list]:
    """The named columns of a CSV file."""
    with files.opened(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        reader = csv.reader(_lines(text))
        header = [name.strip() for name in next(reader, [])]
        _check_header(header, where, names)
        places = {name: header.index(name) for name in names}
        table: dict[str, list] = {name: [] for name in names}
        for number, row in enumerate(filter(None, reader), 1):
            if any(cell.strip() for cell in row[len(header) :]):
                raise ValueError(
                    f"row {number} of {where}, the header not counted, has {len(row)} cells, and "
                    f"the header has {len(header)}: write decimal points instead of commas, or put "
                    "cells with commas in quotes"
                )
            for name, place in places.items():
                table[name].append(row[place] if place < len(row) else None)
    return table


def _lines(text: TextIO) -> Iterator[str]:
    """Yields the lines of a file and limits their length: a file that is not text may be one line
    of any length.
    """
    while line := text.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise csv.Error("the line is too long")
        yield line


def _parquet(path: Path) -> dict[str, list]:
    try:
        from pyarrow import parquet  # type: ignore
    except ImportError:
        raise ValueError(
            f"cannot read {str(path)!r} without pyarrow: install it, or save the table as CSV"
        ) from None
    return parquet.read_table(path).to_pydict()


def _numbers(column: list, where: str) -> np.ndarray:
    """Returns a column as float64, with NaN where there is no number. `where` names it in
    messages.
    """

    def number(row: int, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            if remedy := _remedy(value):
                raise ValueError(
                    f"{where} has {value!r} in row {row}, the header not counted: {remedy}"
                ) from None
            return np.nan

    return np.array([number(row, value) for row, value in enumerate(column, 1)], np.float64)


def _remedy(value: Any) -> str:
    """How to write a cell that is a number with other marks, such as $0.01. Empty if the cell is
    not a number.
    """
    if not isinstance(value, str) or len(value) > 50:
        return ""
    amount = value.replace("%", "")
    # Such as EUR.
    bare = re.sub(
        r"\b[A-Z]{3}\b", "", "".join(mark for mark in amount if unicodedata.category(mark) != "Sc")
    )
    if not re.search(r"\d", bare) or not re.fullmatch(r"[-+]?[\d.,'’\s]+", bare.strip()):
        return ""
    remedies = ["write percentages as fractions"] * ("%" in value) + [
        "remove the currency sign"
    ] * (bare != amount)
    if not re.fullmatch(r"[-+]?[\d.]+", bare.strip()):
        remedies.append("write a decimal point, and no commas or spaces")
    return " and ".join(remedies)


def _largest(
    name: str, given: float | None, values: np.ndarray, kept: dict[str, list[int]]
) -> float:
    largest = max((float(values[rows].max()) for rows in kept.values()), default=1.0)
    if given is None:
        return largest or 1.0
    remedy = f"give a positive number, at least {largest:g}, which is the largest in the table"
    number = checks.numbers(name, given, remedy)
    if number.ndim or not largest <= number < np.inf or number <= 0:
        raise ValueError(f"{name} = {given!r} is not allowed: {remedy}")
    return float(number)


def _listed(names: Any, most: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
