"""The examples in the README and in the text of the notebooks work unchanged; the first two with
fewer and shorter runs.
"""

import importlib
import inspect
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# The words of the README for what a class declares as side information.
SIDE_INFORMATION = {
    (): "none",
    ("budget",): "budget",
    ("min_cost",): "lower bound on costs",
    ("cost_mean",): "mean costs",
    ("budget", "cost_mean"): "budget, mean costs",
    ("best_arm",): "best arm",
}


def examples(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def text_of(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


NAMES = ["quickstart", "sweep", "real money", "several resources", "policy of one's own"]
EXAMPLES = dict(zip(NAMES, examples(README), strict=True))
EXAMPLES |= {
    f"{path.stem}, {i}": block
    for path in NOTEBOOKS
    for i, block in enumerate(examples(text_of(path)))
}


# Full sizes of the README, and those of the tests, which compile to slow code.
REDUCED = {
    "key(0), 500)": "key(0), 50)",
    "bandit, 2000, keys, checkpoints=[500, 1000, 2000]": "bandit, 200, keys, checkpoints=[50, "
    "100, 200]",
    "budgets=[100, 300, 1000]": "budgets=[10, 30, 100]",
}


def test_there_are_examples():
    assert all(README.count(full) == 1 for full in REDUCED), "adapt the reduced sizes"
    elsewhere = [name for name in EXAMPLES if name[0].isdigit()]
    assert elsewhere == ["03_your_own_policy_and_arms, 0"]


@pytest.mark.slow
@pytest.mark.parametrize("block", EXAMPLES.values(), ids=EXAMPLES)
def test_examples_run(block, capsys):
    names = {}
    for full, less in REDUCED.items():
        block = block.replace(full, less)
    exec(block, names)
    out = capsys.readouterr().out
    assert re.search(r"\d\.\d", out) and "nan" not in out
    if "Softmax" in names:
        regret = names["bj"].regret(names["runs"], names["bandit"])
        assert regret.shape == (200, 1) and np.isfinite(regret).all() and regret.mean() > 0


def test_ci_runs_the_readmes_test_command():
    command = next(line for line in README.splitlines() if "pytest" in line and "venv" in line)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_commands_exist():
    """Those of the README's set-up and of its block of commands are parsed, and the block has every
    command.
    """
    from bts_jax.options import parser

    lines = [
        shlex.split(line, comments=True)
        for line in re.findall(r"(?:^|bin/)bts-jax (\w.*)$", README, re.MULTILINE)
    ]
    parsed = [
        parser().parse_args(line[: line.index(">")] if ">" in line else line) for line in lines
    ]
    commands = next(
        action.choices for action in parser()._actions if isinstance(action.choices, dict)
    )
    assert {arguments.command for arguments in parsed} == set(commands)


def test_the_policy_table_is_the_registry():
    import bts_jax as bj

    rows = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| ([^|]+) \|", README, re.MULTILINE)
    assert rows == [
        (name, policy.__name__, SIDE_INFORMATION[tuple(policy.requires)])
        for name, policy in bj.POLICIES.items()
    ]


def test_policies_for_several_resources_are_named():
    import bts_jax as bj

    named = README.split("`KNAPSACK_POLICIES`: ")[1].split("\n\n")[0]
    assert re.findall(r"`(\w+)`", named) == [
        policy.__name__ for policy in bj.KNAPSACK_POLICIES.values()
    ]


def test_the_bandit_table_is_the_registry():
    import inspect

    import bts_jax as bj

    rows = re.findall(r"^\| `([\w-]+)` \| `(\w+)\(([\w, ]+)\)` \|", README, re.MULTILINE)
    assert [(name, kind) for name, kind, _ in rows] == [
        (name, bandit.__name__) for name, bandit in bj.BANDITS.items()
    ]
    for name, _, arguments in rows:
        fields = set(inspect.signature(bj.BANDITS[name]).parameters)
        assert set(arguments.split(", ")) <= fields, name


def test_the_readme_is_short():
    assert len(README.encode()) <= 12_000


def test_every_path_in_the_readme_exists():
    links = [
        link
        for link in re.findall(r"\]\(([^)\s]+)\)", README)
        if "://" not in link and not link.startswith("#")
    ]
    paths = re.findall(r"(?<![\w/.])(?:bts_jax|notebooks|tests|\.github|\.ci)/[\w./-]*\w", README)
    assert links and all((ROOT / path).exists() for path in {*links, *paths}), {*links, *paths}


def test_every_notebook_is_named_in_the_readme():
    named = re.findall(r"\(notebooks/(\w+\.ipynb)\)", README)
    assert named == [path.name for path in NOTEBOOKS]


def test_every_path_in_the_engines_readme_exists():
    text = (ROOT / "bts_jax" / "engine" / "README.md").read_text()
    names = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|md|ipynb))`", text))
    places = (ROOT, ROOT / "bts_jax", ROOT / "bts_jax" / "engine", ROOT / "tests")
    missing = {name for name in names if not any((place / name).exists() for place in places)}
    assert names and not missing


@pytest.mark.parametrize("module", ["bts_jax", "bts_jax.plots"])
def test_every_public_name_has_an_example(module):
    place = importlib.import_module(module)
    names = [name for name in place.__all__ if callable(getattr(place, name))]
    # Of figures; their page has the examples.
    parts = {"curve", "decades", "frame", "image_format", "save", "write"}
    missing = [
        name
        for name in names
        if ">>>" not in inspect.getdoc(getattr(place, name)) and name not in parts
    ]
    assert not missing
