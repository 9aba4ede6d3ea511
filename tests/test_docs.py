"""Checks of the documentation that do not build it: names, recipes, links."""

import ast
import importlib
import inspect
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import test_tasks

import bts_jax
from bts_jax.cli import main
from bts_jax.options import parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / ".github" / "docs"
BLOCK = re.compile(r"^```\{code-block\} (\w+)\n(?::caption: (\S+)\n)?\n?(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPE = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
RECIPES = {title: BLOCK.findall(text) for title, text in RECIPE.findall((DOCS / "recipes.md").read_text())}


def find(path):
    """The object with a dotted name."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"there is no {path}")


def documented():
    """The dotted names that the API reference describes."""
    names = set()
    for page in (DOCS / "api").glob("*.rst"):
        module, listing = "bts_jax", False
        for line in page.read_text().splitlines():
            if match := re.match(r"\.\. (currentmodule|automodule):: (\S+)", line):
                module = match[2]
            elif match := re.match(r"\.\. (?:auto(?:function|class)|py:data):: (\S+)", line):
                names.add(match[1] if match[1].startswith("bts_jax.") else f"{module}.{match[1]}")
            elif line.startswith(".. "):
                listing = line == ".. autosummary::"
            elif listing and line.strip() == ":toctree: names":
                listing = "pages"
            elif listing == "pages" and re.match(r"   \w", line):
                names.add(f"{module}.{line.strip()}")
    return names


@pytest.mark.parametrize("module", ["bts_jax", "bts_jax.bandits", "bts_jax.policies", "bts_jax.plots", "bts_jax.learn",
                                    "bts_jax.experiments", "bts_jax.theory"])
def test_the_reference_has_all_public_names(module):
    names, place = documented(), importlib.import_module(module)
    found = [find(name) for name in names]
    public = getattr(place, "__all__", None) or [name for name, value in vars(place).items() if not name.startswith("_")
                                                 and callable(value) and getattr(value, "__module__", "") == module]
    missing = [name for name in public if f"{module}.{name}" not in names and not any(getattr(place, name) is x for x in found)]
    assert not missing, f"add them to a page in .github/docs/api: {missing}"


def test_ten_recipes():
    assert len(RECIPES) == 10 and all(RECIPES.values())


def calls(tree):
    """Each call of a dotted name in the code, with the names of its keyword arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.fullmatch(r"[\w.]+", ast.unparse(node.func)):
            yield ast.unparse(node.func), [keyword.arg for keyword in node.keywords]


@pytest.mark.parametrize("title", RECIPES)
def test_recipes_use_what_exists(title):
    modules = {"bj": bts_jax, "plots": importlib.import_module("bts_jax.plots")}
    for kind, _, code in RECIPES[title]:
        if kind == "python":
            for name, keywords in calls(compile(code, title, "exec", ast.PyCF_ONLY_AST)):
                start, *rest = name.split(".")
                if start in modules and rest:
                    value = modules[start]
                    for part in rest:
                        value = getattr(value, part)
                    inspect.signature(value).bind_partial(**dict.fromkeys(keywords))
        elif kind == "bash":
            for command in commands(code):
                parser().parse_args(command)


def commands(code):
    """The arguments of each call of bts-jax."""
    lines = [line.removesuffix("&") for line in code.splitlines() if line != "wait"]
    assert all(line.startswith("bts-jax ") for line in lines)
    return [shlex.split(line)[1:] for line in lines]


class Shape(ast.NodeTransformer):
    """Code without its constants: recipes have other numbers and other names of policies than the tests."""

    def visit_Constant(self, node):
        return ast.Constant(0)

    def visit_JoinedStr(self, node):
        return ast.Constant(0)

    def visit_List(self, node):
        return ast.Constant(0) if all(isinstance(item, ast.Constant) for item in node.elts) else self.generic_visit(node)


def statements(code):
    return [ast.unparse(Shape().visit(statement)) for statement in ast.parse(code).body
            if not isinstance(statement, (ast.Import, ast.ImportFrom))]


def test_recipes_are_the_tasks_that_are_tested():
    """Each statement that `test_tasks` runs as a user's code is in a recipe, up to constants."""
    tested = [node.args[0].value for node in ast.walk(ast.parse(inspect.getsource(test_tasks)))
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run"]
    shown = {statement for blocks in RECIPES.values() for kind, _, code in blocks if kind == "python"
             for statement in statements(code)}
    for code in [*tested, test_tasks.MINE]:
        code = code.replace("Tuned(", "bj.BTS(")  # a policy of the tests with two hyperparameters
        if "bj.BTS" in code:
            code = code.replace("scale", "reward_beta").replace("epsilon", "cost_alpha")
        assert set(statements(code)) <= shown, f"the recipes lack {set(statements(code)) - shown}"
    grids = [tomllib.loads(code) for blocks in RECIPES.values() for kind, _, code in blocks if kind == "toml"]
    tested = tomllib.loads(test_tasks.GRID.replace("mine_of_task_b", "mine"))
    assert any(grid["policies"] == tested["policies"] and grid["bandits"] == tested["bandits"] for grid in grids)


@pytest.mark.slow
@pytest.mark.parametrize("title", RECIPES)
def test_recipes_run(title, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = {}
    for kind, file, code in RECIPES[title]:
        if file:
            (tmp_path / file).write_text(code)
        elif kind == "python":
            exec(code, names)
        else:
            for command in commands(code):
                main(command)


def test_links_lead_to_files():
    made = {"index.md", "gallery.md", "contributing.md", "changelog.md", "support.md", "engine.md"}  # by build.py
    pages = {path.name for path in DOCS.glob("*.md")} | made
    sources = [ROOT / "README.md", ROOT / "bts_jax" / "CHANGELOG.md", *(ROOT / ".github").glob("*.md"), *DOCS.rglob("*.md")]
    for source in sources:
        text = re.sub(r"^```.*?^```", "", source.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if ":" in target:
                continue
            page = DOCS in source.parents
            assert (page and target in pages) or (source.parent / target).exists(), f"{source} links to {target}"
    for page in DOCS.glob("api/*.rst"):
        for name in re.findall(r":(?:func|class|data):`(?:[^`<]*<)?([\w.]+)>?`", page.read_text()):
            assert hasattr(bts_jax, name) or find(name)


def test_headings_that_are_linked_to_exist():
    for source in [ROOT / "README.md", *DOCS.glob("*.md")]:
        text = source.read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_the_citation_names_this_version():
    assert f"\nversion: {bts_jax.__version__}\n" in (ROOT / ".github" / "CITATION.cff").read_text()
