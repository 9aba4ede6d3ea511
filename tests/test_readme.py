"""What the README shows works as it stands there; its first example with a tenth of the runs."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


IDS = ["quickstart", "sweep", "comparing", "theory", "arms", "learning", "policy of one's own"]


def test_there_are_examples():
    assert len(BLOCKS) == 7


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=IDS)
def test_examples_run(block, capsys):
    names = {}
    exec(block.replace("500)", "50)"), names)
    out = capsys.readouterr().out
    assert re.search(r"\d\.\d", out) and "nan" not in out
    if "Softmax" in names:
        regret = names["bj"].regret(names["runs"], names["bandit"]).mean((1, 2))
        assert regret.shape == (4,) and np.isfinite(regret).all() and (regret > 0).all()


def test_ci_runs_the_readmes_test_command():
    command = next(line for line in README.splitlines() if "pytest" in line and "venv" in line)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_policy_table_is_the_registry():
    import bts_jax as bj

    rows = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \|", README, re.MULTILINE)
    assert rows == [(name, policy.__name__) for name, policy in bj.POLICIES.items()]
