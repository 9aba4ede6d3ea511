"""Figures that notebooks display, and files of them."""

import io
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bts_jax import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The width of the narrowest PNG; a notebook may cut off some of the margin, and 1,200 are left.
PIXELS = 1260
SCREEN = 150  # pixels per inch in a notebook


def blank(width: float, height: float) -> "Figure":
    """An empty figure that notebooks display, even if pyplot was not imported. Its PNGs are wide
    enough for any use.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=_dpi(width, 200))
    figure._repr_png_ = partial(_png, figure)  # type: ignore
    figure._repr_mimebundle_ = partial(_bundle, figure)  # type: ignore
    return figure


def _dpi(width: float, least: int) -> int:
    return max(least, math.ceil(PIXELS / width))


def _png(figure: "Figure") -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _bundle(figure: "Figure", **_: Any) -> tuple[dict, dict]:
    """The PNG and its size on screen: that of print, instead of one screen pixel for each of its
    pixels.
    """
    size = dict(
        zip(
            ("width", "height"),
            (round(SCREEN * inches) for inches in figure.get_size_inches()),
            strict=True,
        )
    )
    return {"image/png": _png(figure)}, {"image/png": size}


def save(figure: "Figure", path: Path) -> None:
    """Writes a figure as PNG and as PDF: `path` with these suffixes."""
    write(figure, path.with_name(f"{path.name}.png"))
    layout = figure.get_layout_engine()
    # The PDF has the layout of the PNG: to compute it takes half of the time.
    figure.set_layout_engine("none")
    try:
        write(figure, path.with_name(f"{path.name}.pdf"))
    finally:
        figure.set_layout_engine(layout)


def write(figure: "Figure", path: Path) -> None:
    """Writes a figure as PNG, PDF or SVG, by the suffix of `path`. A PNG has 300 dpi, or more if it
    is narrow.
    """
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # TrueType: publishers refuse Type 3 fonts
        figure.savefig(content, format=image_format(path), dpi=_dpi(figure.get_figwidth(), 300))
    files.write(path, content.getvalue())


def image_format(path: Path) -> str:
    """Returns the format for the suffix of a file, or raises a `ValueError` that names the
    formats.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in ("png", "pdf", "svg"):
        raise ValueError(
            f"out = {str(path)!r} is not the name of an image: give a name that ends in .png, .pdf "
            "or .svg"
        )
    return suffix
