"""Formulas of docstrings as mathematics. In a docstring they are plain text for `help()`, such as
`r̄_i + √(2 ln t / n_i)`.
"""

import re
import unicodedata

APART = r"\qquad"  # between parts of a formula that may be on different lines
ACCENTS = {"\N{COMBINING MACRON}": r"\bar", "\N{COMBINING CIRCUMFLEX ACCENT}": r"\hat"}
SIGNS = str.maketrans(
    {
        "√": r"\sqrt",
        "Σ": r"\sum ",
        "ℓ": r"\ell ",
        "·": r"\cdot ",
        "~": r"\sim ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "±": r"\pm ",
        "−": "-",
        "|": r"\mid ",
        "*": "^⟨*⟩",
        "²": "^⟨2⟩",
        "₂": "_⟨2⟩",
        "{": r"\{",
        "}": r"\}",
        "…": r"\ldots ",
    }
)
WORD = r"(?![A-Z]+\b)[A-Za-z]{2,}"  # capital letters, such as BK, are a product
WORDS = re.compile(rf"( ?)(?<![_^\\A-Za-z])({WORD}(?: {WORD})*)( ?)")
SCRIPT = re.compile(r"([_^])([A-Za-z0-9]+|\\pm)")
# A letter with indices in the text of a docstring, such as θ_i^c or c̄. Names such as x_scale are
# not meant.
SCRIPTS = r"(?:(?:_[a-z0-9]{1,2}|\^[a-z0-9]+|\^\*)(?!\w))"
SYMBOL = re.compile(rf"(?<![\w`\\])[^\W\d_](?:[{''.join(ACCENTS)}]{SCRIPTS}*|{SCRIPTS}+)(?!\w)")


def is_formula(block: str) -> bool:
    """Whether an indented block of a docstring is a formula. Code is ASCII, and tables have wide
    gaps between their columns.
    """
    return not block.isascii() and not re.search(r"\S {4}", block)


def tex(formula: str) -> str:
    """Returns a formula as TeX. Its parts are those between wide spaces."""
    text = f"{APART} ".join(re.split(r"\s{2,}", unicodedata.normalize("NFD", formula.strip())))
    text = re.sub(r"([_^])\{([^}]*)\}", r"\1⟨\2⟩", text)
    while match := re.search(r"[√^](\()", text):  # these parentheses are not shown
        start = match.start(1)
        end = closing(text, start)
        text = f"{text[:start]}⟨{text[start + 1 : end]}⟩{text[end + 1 :]}"
    text = text.translate(SIGNS)
    # The indices of an accented letter stand at an empty {} after it: docutils would set them above
    # and below the letter.
    for accent, command in ACCENTS.items():
        # A capital letter leans to the right.
        text = re.sub(rf"([A-Z]){accent}", rf"{{\{command}{{\1}}}}{{\\,}}", text)
        text = re.sub(rf"(\w){accent}", rf"{{\{command}{{\1}}}}{{}}", text)
    text = SCRIPT.sub(script, WORDS.sub(upright, text))
    return text.replace("⟨", "{").replace("⟩", "}")


def closing(text: str, start: int) -> int:
    """The place of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"a parenthesis is not closed in {text}")


def upright(match: re.Match) -> str:
    before, words, after = match.groups()
    if " " in words:
        return rf"\text{{{before}{words}{after}}}"
    return r"\:" * len(before) + rf"\operatorname{{{words}}}" + r"\:" * len(after)


def script(match: re.Match) -> str:
    place, index = match.groups()
    return (
        rf"{place}⟨\operatorname{{{index}}}⟩"
        if index.isalpha() and len(index) > 2
        else f"{place}⟨{index}⟩"
    )


def inline(line: str) -> str:
    """Sets the symbols with indices in a line of text, outside of code, as mathematics."""
    parts = re.split(r"(`[^`]*`)", unicodedata.normalize("NFD", line))
    parts[::2] = [
        SYMBOL.sub(lambda match: rf"\ :math:`{tex(match[0])}`\ ", part) for part in parts[::2]
    ]
    return unicodedata.normalize("NFC", "".join(parts))
