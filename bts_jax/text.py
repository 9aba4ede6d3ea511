"""Counts and tables in plain text."""

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """`number` of them, with the noun in the plural unless it is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: bool = False) -> str:
    """Columns that line up: the first on the left, the others on the right, or all on the left."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [cell.ljust(width) if left or i == 0 else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
