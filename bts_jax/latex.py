"""Tables of regret in LaTeX."""

import math
import re
from collections.abc import Sequence
from typing import Any

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}
_GREEK = zip(
    "αβγδεζηθικλμνξπρστυφχψωςϵϑϕΓΔΘΛΞΠΣΥΦΨΩ",
    "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau "
    "upsilon varphi chi psi omega varsigma epsilon vartheta phi Gamma Delta Theta Lambda Xi Pi "
    "Sigma "
    "Upsilon Phi Psi Omega".split(),
    strict=True,
)
_SYMBOLS = {
    "∞": "infty",
    "→": "to",
    "≤": "le",
    "≥": "ge",
    "×": "times",
    "±": "pm",
    "√": "surd",
    "·": "cdot",
    "…": "ldots",
    "*": "ast",
}
_MATH = {mark: f"$\\{name}$" for mark, name in (*_GREEK, *_SYMBOLS.items())} | {
    "−": "$-$",
    "½": "$1/2$",
}
_MATH |= {mark: f"$^{{{digit}}}$" for digit, mark in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_MATH |= {mark: f"$_{{{digit}}}$" for digit, mark in enumerate("₀₁₂₃₄₅₆₇₈₉")}


def escaped(text: str) -> str:
    """The text for LaTeX: special characters are escaped, and Greek letters and symbols such as ε,
    * and ∞ become math.
    """
    return "".join(_SPECIAL.get(mark) or _MATH.get(mark, mark) for mark in text)


def number(value: float, form: str = ",.12g") -> str:
    """A number as math."""
    return f"${_digits(value, form)}$"


def labels(kind: str, names: Sequence[str]) -> list[str]:
    """A label of a table for each of these names, no two alike: letters, digits and hyphens."""
    found = [f"tab:{kind}-" + "-".join(re.findall("[a-z0-9]+", name.lower())) for name in names]
    unique = len({*found}) == len(found)
    # The places end them differently.
    return found if unique else [f"{one}-{place}" for place, one in enumerate(found, 1)]


def estimate(found: Any) -> str:
    r"""An estimate with its interval, as math: 12.3 \pm 1.2, or 12.3^{+4.5}_{-1.2} if the two
    distances differ.

    Distances are measured from the estimate as it is printed, and are rounded up. So the interval
    that a reader computes contains the interval itself. One distance is printed if the two differ
    by at most one unit of the last digit: the larger.

    Example:
        >>> estimate((1234.5, 1233.5, 1235.5))
        '$1{,}234.5 \\pm 1.0$'
        >>> estimate((12.34, 11.12, math.inf))
        '$12.3^{+\\infty}_{-1.2}$'
    """
    value, low, high = map(float, found)
    if math.isnan(value):
        return "--"
    if math.isnan(low) or not math.isfinite(value):
        return number(value, ",.1f")
    printed = round(value, 1) + 0.0  # −0.0 becomes 0.0
    above, below = (
        math.ceil(round(10 * distance, 6)) if distance < math.inf else distance
        for distance in (max(high - printed, 0), max(printed - low, 0))
    )  # in tenths
    if above == below or abs(above - below) <= 1:
        return f"${_digits(printed)} \\pm {_digits(max(above, below) / 10)}$"
    return f"${_digits(printed)}^{{+{_digits(above / 10)}}}_{{-{_digits(below / 10)}}}$"


def _digits(value: float, form: str = ",.1f") -> str:
    return f"{value:{form}}".replace(",", "{,}").replace("inf", r"\infty")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str) -> str:
    """A table with the rules of booktabs. The cells of `rows` are LaTeX; the other arguments are
    text.
    """
    lines = [" & ".join(cells) + r" \\" for cells in (map(escaped, head), *rows)]
    return "\n".join(
        [
            # Limits of two rows do not touch.
            r"\begin{table}",
            r"  \centering",
            r"  \renewcommand{\arraystretch}{1.25}",
            f"  \\caption{{{escaped(caption)}}}",
            f"  \\label{{{label}}}",
            r"  \medskip",
            f"  \\begin{{tabular}}{{{'r' * len(head)}}}",
            r"    \toprule",
            f"    {lines[0]}",
            r"    \midrule",
            *(f"    {line}" for line in lines[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )
