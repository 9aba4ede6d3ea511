"""Figures that notebooks show, and files of them."""

import io
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bts_jax import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def blank(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure._repr_png_ = partial(_png, figure)  # type: ignore  # a notebook shows it, whether pyplot was imported or not
    return figure


def _png(figure: "Figure") -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def save(figure: "Figure", path: Path) -> None:
    """Writes a figure as PNG and as PDF: `path` with these suffixes."""
    for suffix in ("png", "pdf"):
        write(figure, path.with_name(f"{path.name}.{suffix}"))


def write(figure: "Figure", path: Path) -> None:
    """Writes a figure as PNG, PDF or SVG, by the suffix of `path`."""
    import matplotlib
    from matplotlib.mathtext import MathTextParser
    from matplotlib.text import Text

    for text in figure.findobj(Text):  # a name may have dollar signs without being a formula
        try:
            MathTextParser("path").parse(text.get_text() if "$" in text.get_text() else "")  # type: ignore
        except ValueError:
            text.set_parse_math(False)  # type: ignore
    content = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # publishers refuse the other kind of fonts
        figure.savefig(content, format=image_format(path), dpi=300)
    files.write(path, content.getvalue())


def image_format(path: Path) -> str:
    """The format that the suffix of a file stands for, or a `ValueError` that names those there are."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in ("png", "pdf", "svg"):
        raise ValueError(f"out = {str(path)!r} is not the name of an image: let it end in .png, .pdf or .svg")
    return suffix
