"""Imports go in one direction: down the list in CONTRIBUTING."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "bts_jax"


def modules(node):
    """The top-level modules of the package that an import statement names."""
    if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "bts_jax":
        return []
    named = node.module.split(".")[1:2] or [alias.name for alias in node.names]
    return [
        name for name in named if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()
    ]


def test_a_module_imports_only_from_modules_before_it():
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    order = re.split(
        r",\s+", re.search(r"before it in this list: (.*?)\. `tests", text, re.DOTALL)[1]
    )
    files = {
        path: path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for path in PACKAGE.rglob("*.py")
    }
    assert {*files.values()} - {"__init__", "__main__", "examples"} == {*order}, (
        "the list has all modules"
    )
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"
        for path, mine in files.items()
        if mine in order
        for node in ast.walk(ast.parse(path.read_text()))
        for name in modules(node)
        if order.index(name) > order.index(mine)
    ]
    assert not wrong, wrong


def test_the_rules_import_nothing_when_they_are_called():
    """Only what starts the package and the command line imports later, so that starting is fast,
    and optional packages.
    """
    for name in "engine policies posteriors bandits arguments.py rules.py plain.py trace.py one_run.py batch.py".split():  # noqa: E501
        paths = [PACKAGE / name] if name.endswith(".py") else (PACKAGE / name).rglob("*.py")
        for path in paths:
            functions = [
                node
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.FunctionDef)
            ]
            late = [
                node.lineno
                for function in functions
                for node in ast.walk(function)
                if modules(node)
            ]
            assert not late, (path.name, late)
