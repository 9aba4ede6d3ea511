"""Checks of the documentation that do not build it: names, recipes, links."""

import ast
import importlib
import inspect
import json
import pydoc
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

import bts_jax
from bts_jax.cli import main
from bts_jax.options import parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / ".github" / "docs"
BLOCK = re.compile(
    r"^```\{code-block\} (\w+)\n(?::caption: (\S+)\n)?\n?(.*?)^```$", re.MULTILINE | re.DOTALL
)
RECIPE = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
COLUMNS = 120  # of code fit the site's column in a window of 1,400 pixels (static/wide.css)
RECIPES = {
    title: BLOCK.findall(text) for title, text in RECIPE.findall((DOCS / "recipes.md").read_text())
}


def script(name):
    """A module in the folder of the documentation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        return importlib.import_module(name)


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
                listing = False
            elif line.startswith(".. "):
                listing = line == ".. autosummary::"
            elif listing and line.strip() == ":toctree: names":
                listing = "pages"
            elif listing == "pages" and re.match(r"   \w", line):
                names.add(f"{module}.{line.strip()}")
    return names


@pytest.mark.parametrize(
    "module",
    [
        "bts_jax",
        "bts_jax.bandits",
        "bts_jax.policies",
        "bts_jax.plots",
        "bts_jax.learn",
        "bts_jax.experiments",
        "bts_jax.theory",
        "bts_jax.posteriors",
    ],
)
def test_the_reference_has_all_public_names(module):
    names, place = documented(), importlib.import_module(module)
    found = [find(name) for name in names]
    public = getattr(place, "__all__", None) or [
        name
        for name, value in vars(place).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "") == module
    ]
    missing = [
        name
        for name in public
        if f"{module}.{name}" not in names
        and not any(getattr(place, name) is x for x in found)
        and not inspect.ismodule(getattr(place, name))
    ]
    assert not missing, f"add them to a page in .github/docs/api: {missing}"


def test_the_first_page_of_the_reference_has_a_line_for_each_name():
    rows = {name: line for _, entries in script("build").listed() for name, line in entries}
    assert rows.keys() == documented()
    assert all(5 < len(line) < 200 and line.endswith(".") for line in rows.values()), rows


def test_pages_link_to_the_recipes_that_use_a_name():
    recipes = script("recipes")
    page = recipes.labelled((DOCS / "recipes.md").read_text())
    titles = dict(re.findall(r"^\((recipe-\d+)\)=\n## (.*)$", page, re.MULTILINE))
    assert list(titles.values()) == list(RECIPES)
    used = {
        name: [titles[label] for label in labels] for name, labels in recipes.uses(page).items()
    }
    assert used.keys() <= documented()
    assert used["bts_jax.Scaled"] == ["… use costs above one?"]
    assert "… use costs in dollars?" in used["bts_jax.posteriors.Gamma"], "the name is imported"
    assert "… divide a sweep between two processes?" in used["bts_jax.Uniform"], (
        "the name stands in a grid file"
    )


@pytest.mark.parametrize(
    "module",
    [
        "bts_jax",
        "bts_jax.bandits",
        "bts_jax.policies",
        "bts_jax.theory",
        "bts_jax.intervals",
        "bts_jax.learn",
        "bts_jax.plots",
        "bts_jax.random",
        "bts_jax.statistics",
    ],
)
def test_help_shows_array_like(module):
    """It does not show the union that it stands for, which takes four lines."""
    place = importlib.import_module(module)
    for name in getattr(place, "__all__", None) or dir(place):
        if callable(found := getattr(place, name)) and getattr(found, "__module__", "").startswith(
            "bts_jax"
        ):
            assert not re.search(r"numpy\.number|_Buffer", pydoc.render_doc(found)), name
    policy, function = (
        re.sub(r"[\s|]+", " ", pydoc.plain(pydoc.render_doc(one))).replace("( ", "(")
        # Python 3.13 divides long signatures into lines.
        for one in (bts_jax.KUBE, bts_jax.simulate)
    )
    assert "(scale: ArrayLike = 2.0" in policy
    assert "budget: ArrayLike, key: " in function


def test_fourteen_recipes():
    assert len(RECIPES) == 14 and all(RECIPES.values())
    assert all(str(RECIPES).count(full) == 1 for full in REDUCED), "adapt the reduced budgets"


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


# What each recipe leads to, and its largest number of lines in Python: daily tasks take a few.
# Imports and blank lines do not count. `test_growth.test_task_j` tests the bits of the last one.
# The budgets of the first and of the heat map are reduced.


def has_curves(folder, results, **_):
    assert (folder / "regret.pdf").read_bytes().startswith(b"%PDF")
    assert dict(results.sizes)["bandit"] == 20 and results.regret.notnull().all()


def plays_the_same_from_a_file(folder, results, **_):
    assert bts_jax.open_results(folder / "grid.zarr").drop_attrs().equals(results.drop_attrs())


def has_a_trace(trace, figure, **_):
    assert isinstance(figure, Figure) and trace.played.any()


def has_a_heat_map(results, figure, **_):
    assert results.reward_beta.shape == results.cost_alpha.shape == (25,) and isinstance(
        figure, Figure
    )


def has_a_frame(results, frame, means, **_):
    assert len(frame) == results.regret.size == 2 * 2 * 20
    np.testing.assert_allclose(
        means["uniform", 100], results.regret.sel(policy="uniform", budget=100).mean()
    )


def buys_twenty_pulls(bandit, run, **_):
    assert run.rounds.item() == 20 and run.cost.item() == 100
    np.testing.assert_allclose(bandit.ratio, [0.5 / 4, 1.5 / 5], rtol=1e-6)
    assert bandit.arms == ("A", "B")


def is_complete(folder, shown, **_):
    assert bts_jax.open_results(folder / "grid.zarr").attrs["state"] == "complete"
    assert "grid.zarr" in shown and "uniform" in shown


def costs_more(bandit, **_):
    np.testing.assert_allclose(bandit.cost_mean, [1.5, 4.0], rtol=1e-6)
    assert bts_jax.simulate(bts_jax.Uniform(), bandit, 20, jax.random.key(0)).rounds.item() < 40


def has_priors(results, policies, **_):
    assert results.policy.values.tolist() == list(policies) and results.regret.notnull().all()
    assert policies["log"].cost.strength == (2, 2, 2)


def spends_a_dollar(run, models, **_):
    assert 0.99 < run.cost <= 1 and run.reward > 0.8 * 0.5 / 0.004, "the first arm is the best one"


def has_so_many_rounds(results, **_):
    assert (
        results.pulls.sum("arm") == results.budget
    ).all() and results.pseudo_regret.notnull().all()


def has_both_limits(models, run, planned, timed, **_):
    optimum = bts_jax.theory.lp_value(timed, [5, 10_000])
    np.testing.assert_allclose(
        bts_jax.regret(run, models, max_rounds=10_000), optimum - run.reward, rtol=1e-4
    )
    assert run.rounds <= 10_000 and run.cost <= 5 and 0.9 * optimum < planned.reward < 1.1 * optimum


def has_grown(results, **_):
    assert dict(results.sizes)["seed"] == 200 and results.policy.values.tolist() == [
        "kube",
        "uniform",
    ]
    assert results.attrs["state"] == "complete"


REDUCED = {
    "budgets=[30, 100, 300]": "budgets=[3, 10, 30]",
    "budgets=[100], num_seeds=5": "budgets=[10], num_seeds=2",
}


def has_verdicts(results, shown, **_):
    verdicts = dict(line.split() for line in shown.splitlines())
    assert verdicts.keys() == {"kube", "omega-ucb", "uniform"} and verdicts["uniform"] == "more"


OUTCOMES = dict(
    zip(
        RECIPES,
        [
            (3, has_curves),
            (28, plays_the_same_from_a_file),
            (3, has_a_trace),
            (5, has_a_heat_map),
            (4, has_verdicts),
            (4, has_a_frame),
            (3, buys_twenty_pulls),
            (0, is_complete),
            (1, costs_more),
            (7, has_priors),
            (15, spends_a_dollar),
            (2, has_so_many_rounds),
            (6, has_both_limits),
            (4, has_grown),
        ],
        strict=True,
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("title", RECIPES)
def test_recipes_run(title, tmp_path, capsys):
    names, (most, reached) = {"folder": tmp_path}, OUTCOMES[title]
    lines = [
        line for kind, _, code in RECIPES[title] if kind == "python" for line in code.splitlines()
    ]
    assert (
        sum(bool(line.strip()) and not line.startswith(("import ", "from ")) for line in lines)
        <= most
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.syspath_prepend(tmp_path)
        for kind, file, code in RECIPES[title]:
            if file:
                (tmp_path / file).write_text(code)
            elif kind == "python":
                for full, less in REDUCED.items():
                    code = code.replace(full, less)
                exec(code, names)
            else:
                for command in commands(code):
                    main(command)
    reached(**names, shown=capsys.readouterr().out)


def test_code_fits_the_column_of_the_site():
    fence = re.compile(r"^```.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
    codes = fence.findall((DOCS / "recipes.md").read_text())
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"])
            codes += [source] if cell["cell_type"] == "code" else fence.findall(source)
    wide = [line for code in codes for line in code.splitlines() if len(line) > COLUMNS]
    assert len(codes) > 100 and not wide, f"wrap these lines to {COLUMNS} columns: {wide}"


@pytest.mark.parametrize(
    ("plain", "tex"),
    [
        ("r̄_i / √(2n_ij),   e^(−t)", r"{\bar{r}}{}_{i} / \sqrt{2n_{ij}},\qquad e^{-t}"),
        ("N_1, …, N_M, M₂", r"N_{1}, \ldots , N_{M}, M_{2}"),
        ("p ln x · ρ̂*", r"p\:\operatorname{ln}\:x \cdot  {\hat{ρ}}{}^{*}"),
        (
            "{y² : Σ_j c_j ≤ B for every j}",
            r"\{y^{2} : \sum _{j} c_{j} \le  B\text{ for every }j\}",
        ),
    ],
)
def test_formulas_become_tex(plain, tex):
    assert script("formulas").tex(plain) == tex


def test_all_formulas_of_docstrings_are_understood():
    formulas, found = script("formulas"), 0
    for path in (ROOT / "bts_jax").rglob("*.py"):
        nodes = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.ClassDef, ast.FunctionDef))
        ]
        for paragraph in re.split(
            r"\n\s*\n", "\n\n".join(filter(None, map(ast.get_docstring, nodes)))
        ):
            if (
                paragraph.startswith(" ")
                and formulas.is_formula(paragraph)
                and ">>>" not in paragraph
            ):
                tex, found = formulas.tex(paragraph), found + 1
                assert re.fullmatch(r"[\x20-\x7eͰ-Ͽ]+", tex), (
                    f"formulas.py does not know all signs of {paragraph}"
                )
                assert tex.count("{") == tex.count("}")
    assert found > 30


def test_symbols_in_text_are_set_as_formulas():
    inline = script("formulas").inline
    assert (
        inline("the largest θ_i^r of x_scale and `c_i`")
        == r"the largest \ :math:`θ_{i}^{r}`\  of x_scale and `c_i`"
    )
    assert inline("Rôle, Erdős, n_arms, e.g. 10⁻⁷") == "Rôle, Erdős, n_arms, e.g. 10⁻⁷"


def test_links_lead_to_files():
    # By build.py.
    made = {"index.md", "gallery.md", "contributing.md", "changelog.md", "support.md", "engine.md"}
    pages = {path.name for path in DOCS.glob("*.md")} | made
    sources = [
        ROOT / "README.md",
        ROOT / "bts_jax" / "CHANGELOG.md",
        *(ROOT / ".github").glob("*.md"),
        *DOCS.rglob("*.md"),
    ]
    for source in sources:
        text = re.sub(r"^```.*?^```", "", source.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if ":" in target:
                continue
            page = DOCS in source.parents
            assert (page and target in pages) or (source.parent / target).exists(), (
                f"{source} links to {target}"
            )
    for page in DOCS.glob("api/*.rst"):
        for name in re.findall(r":(?:func|class|data):`(?:[^`<]*<)?([\w.]+)>?`", page.read_text()):
            assert hasattr(bts_jax, name) or find(name)


def test_headings_that_are_linked_to_exist():
    for source in [ROOT / "README.md", *DOCS.glob("*.md")]:
        text = source.read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {
            re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
        }
        assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_the_citation_names_this_version():
    assert f"\nversion: {bts_jax.__version__}\n" in (ROOT / ".github" / "CITATION.cff").read_text()
