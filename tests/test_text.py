"""The project's text: no word that the glossary replaces, and how hard it is to read (`python
tests/test_text.py`).
"""

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The glossary has instead: common random numbers, side information, fixed point, fused batches,
# baselines, reference implementations.
REPLACED = re.compile(
    r"\b(luck|told in advance|is "
    r"told|coins?|part(?:y|ies)|yardsticks?|peers?)\b",
    re.IGNORECASE,
)
# Ordinary uses, and code.
ALLOWED = re.compile(r"third part(?:y|ies)|fair coin|```.*?```|`[^`]*`", re.IGNORECASE | re.DOTALL)


def texts():
    """All text that users read: README, pages, markdown of notebooks, and docstrings."""
    for path in (
        ROOT / "README.md",
        ROOT / "bts_jax" / "CHANGELOG.md",
        ROOT / "bts_jax" / "engine" / "README.md",
        *(ROOT / ".github").rglob("*.md"),
    ):
        yield path, path.read_text(encoding="utf-8")
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield (
            path,
            "\n\n".join(
                "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
            ),
        )
    for path in (ROOT / "bts_jax").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [
            node
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        ]
        yield path, "\n\n".join(filter(None, map(ast.get_docstring, nodes)))


def test_no_word_that_the_glossary_replaces():
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}: "
        f"…{text[max(match.start() - 40, 0) : match.end() + 30]!r}"
        for path, text in texts()
        if path.name != "CHANGELOG.md"
        for match in REPLACED.finditer(ALLOWED.sub("", text))
    ]
    assert not found, "\n".join(found)


def prose(text):
    """Sentences without code, tables and headings."""
    code = re.compile(
        r"```.*?```|^ "
        r"*(?:>>>|\.\.\.|\||#|-{3})[^\n]*$|`[^`]*`|\]\([^)]*\)|\$[^$]*\$",
        re.DOTALL | re.MULTILINE,
    )
    sentences = re.split(r"(?<=[.!?:;])\s+|\n\s*\n", code.sub(" ", text))
    return [sentence for sentence in sentences if len(re.findall(r"[A-Za-z]{2,}", sentence)) > 2]


def grade(text):
    """Flesch and Kincaid's grade (roughly the years of school that a reader needs), words per
    sentence, words.
    """
    sentences = prose(text)
    words = [word for sentence in sentences for word in re.findall(r"[A-Za-z]+", sentence)]
    syllables = sum(
        max(len(re.findall(r"[aeiouy]+", re.sub(r"e$", "", word.lower()))), 1) for word in words
    )
    length = len(words) / len(sentences)
    return 0.39 * length + 11.8 * syllables / len(words) - 15.59, length, len(words)


def test_the_grade_of_a_sentence_by_hand():
    found, length, words = grade(
        "The cat sat on the mat. It is a big dog.\n\n```\ncode is not read\n```\n"
    )
    assert (length, words) == (5.5, 11) and abs(found - (0.39 * 5.5 + 11.8 - 15.59)) < 1e-9


if __name__ == "__main__":
    groups = {}
    for path, text in texts():
        page = "pages of the site" if "docs" in path.parts else path.name
        groups.setdefault(
            {".md": page, ".ipynb": "notebooks", ".py": "docstrings"}[path.suffix], []
        ).append(text)
    print("Flesch-Kincaid grade, words per sentence, words")
    for name, parts in sorted(groups.items()):
        years, length, words = grade("\n\n".join(parts))
        print(f"{name:<24} {years:5.1f} {length:5.1f} {words:7,}")
