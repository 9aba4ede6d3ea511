"""Formats counts, tables and values as plain text."""

from collections.abc import Sequence
from typing import Any

# About intervals of means; see `bts_jax.intervals`.
ALLOWANCE = "limits are widened as if one more run had missed the best arm"


def counted(number: int, noun: str) -> str:
    """`number` and the noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def reason(error: BaseException) -> str:
    """The first line of an exception's message, cut to 200 characters. Messages of XLA may have
    pages.
    """
    return str(error).split("\n")[0][:200]


def printable(text: str, keep: str = "") -> str:
    """The text with control characters escaped, so that a terminal does not execute them.
    Characters in `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(
        mark if mark.isprintable() or mark in keep else mark.encode("unicode_escape").decode()
        for mark in text
    )


def shown(value: Any, most: int = 200) -> str:
    """`repr(value)`, cut to at most `most` characters."""
    try:
        text = repr(value[:most] if isinstance(value, (list, tuple, str)) else value)
    except ValueError:  # a whole number of more than 4,300 digits has no decimal form
        text = f"<{type(value).__name__} of too many digits>"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: bool = False) -> str:
    """A table with aligned columns. The first is left-aligned. The others are right-aligned, unless
    `left`.
    """
    widths = [max(len(printable(row[i])) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(line(row, widths, left) for row in (head, *rows))


def line(cells: Sequence[str], widths: Sequence[int], left: bool = False) -> str:
    """One line of a `table` whose columns have at least these widths."""
    cells = [printable(cell) for cell in cells]
    padded = [
        cell.ljust(width) if left or i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()
