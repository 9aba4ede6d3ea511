"""The notebooks run from top to bottom at a reduced size, and are committed with the outputs of
their full size.

A cell with the tag `parameters` assigns the sizes of a notebook. Its metadata has a text `small`,
which assigns reduced sizes. The tests append this text to the source of the cell. So the cells that
a reader sees have only the full sizes.
"""

import ast
import os
import re
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.util import run_sync

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Code that chooses a reduced size. Reduced sizes belong in the metadata of the cell with the tag
# `parameters`.
PLUMBING = re.compile(r"\bsmall\b|\benviron\b|\bgetenv\b|NOTEBOOK_SCALE", re.IGNORECASE)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def has_parameters(cell):
    return "parameters" in cell.metadata.get("tags", [])


def reduced(path):
    """The notebook with its reduced sizes."""
    notebook = read(path)
    for cell in notebook.cells:
        if has_parameters(cell):
            cell.source += "\n\n" + cell.metadata["small"]
    return notebook


def assigned(source):
    """The names to which the top level of a source assigns."""
    targets = [
        target
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
    ]
    return {
        name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
    }


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks. So Python starts, and imports JAX, once."""
    manager = AsyncKernelManager(kernel_name="python3")  # the first notebook starts it
    yield manager
    if manager.has_kernel:
        run_sync(manager.shutdown_kernel)(now=True)


def begin(folder):
    """A cell before the others: no names of an earlier notebook, a folder of its own, and programs
    compiled in haste.
    """
    return nbformat.v4.new_code_cell(
        f"%reset_selective -f .\n%cd -q {folder}\n__import__('haste').switch('short')"
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, kernel, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    notebook = reduced(path)
    notebook.cells.insert(0, begin(tmp_path))
    client = NotebookClient(notebook, km=kernel, timeout=300)
    try:
        client.execute()
    finally:
        if client.kc:
            client.kc.stop_channels()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_one_cell_has_the_sizes(path):
    cells = code_cells(path)
    tagged = [cell for cell in cells if has_parameters(cell)]
    assert len(tagged) <= 1
    for cell in tagged:
        assert isinstance(cell.metadata.get("small"), str), "the reduced sizes"
        assert assigned(cell.metadata["small"]) and assigned(cell.metadata["small"]) <= assigned(
            cell.source
        )
    found = [match[0] for cell in cells for match in PLUMBING.finditer(cell.source)]
    assert not found, "a cell with the tag `parameters` has the reduced sizes in its metadata"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_with_their_outputs(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), (
        "run it from top to bottom"
    )
    outputs = [output for cell in cells for output in cell.outputs]
    assert not any(
        output.output_type == "error" or output.get("name") == "stderr" for output in outputs
    )
    assert any("image/png" in output.get("data", {}) for output in outputs)
    texts = " ".join(
        str({kind: text for kind, text in output.get("data", {}).items() if "image" not in kind})
        + output.get("text", "")
        for output in outputs
    )
    assert not re.search(r"/(tmp|home|root|Users|work)/", texts), (
        "no paths of the machine it was run on"
    )
