"""Builds the documentation as a web site, offline: `python .github/docs/build.py`.

The pages are collected in build/docs/source, and Sphinx writes the site to build/docs/html.
Hand-written pages are beside this file. README, CHANGELOG, CONTRIBUTING and the notebooks with
their stored outputs are copied from the repository. Notebooks are not executed. A warning is an
error.
"""

import argparse
import base64
import importlib
import inspect
import json
import os
import posixpath
import re
import shutil
import sys
from pathlib import Path

from formulas import inline
from recipes import labelled, uses

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NOT_PAGES = {"build.py", "__pycache__"}

# Files of the repository that are pages, and the names of these pages.
PAGES = {
    "README.md": "index.md",
    "bts_jax/CHANGELOG.md": "changelog.md",
    "bts_jax/engine/README.md": "engine.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    ".github/SUPPORT.md": "support.md",
}
# Pages that are written in this folder.
OWN = {f".github/docs/{page.name}": page.name for page in HERE.glob("*.md")}
CONTENTS = """
```{toctree}
:hidden:
:caption: Use

recipes
api/index
notebooks/index
gallery
glossary
```

```{toctree}
:hidden:
:caption: Project

engine
measurements
contributing
support
changelog
```
"""
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "build" / "docs",
        help="a folder for the site and its source",
    )
    out = parser.parse_args().out.resolve()
    source, html = out / "source", out / "html"
    for folder in ("source", "html", "doctrees"):
        shutil.rmtree(out / folder, ignore_errors=True)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    collect(source)
    from sphinx.cmd.build import main as sphinx

    failed = sphinx(
        [
            "-W",
            "--keep-going",
            "-q",
            "-b",
            "html",
            "-d",
            str(out / "doctrees"),
            str(source),
            str(html),
        ]
    )
    if failed:
        return failed
    check(html)
    print(f"The documentation is in {html / 'index.html'}")
    return 0


def check(html: Path) -> None:
    """Raises if a page lacks what Sphinx leaves out without a warning: links, and members of
    classes.
    """
    import bts_jax

    used = uses(labelled((HERE / "recipes.md").read_text()))
    reference = (html / "api" / "index.html").read_text()
    linked = re.findall(r'<td><p><a class="reference internal" href="[^"]*#([\w.]+)"', reference)
    missing = {
        f"api/index.html: {full}"
        for _, entries in listed()
        for full, _ in entries
        if full not in linked
    }
    policies = [*bts_jax.POLICIES.values(), *bts_jax.KNAPSACK_POLICIES.values()]
    for module, kinds, members in (
        ("bts_jax", policies, ["init", "__call__", "update"]),
        ("bts_jax", bts_jax.BANDITS.values(), ["pull", "reward_mean", "cost_mean"]),
        ("bts_jax.posteriors", bts_jax.posteriors.POSTERIORS.values(), ["init", "draw", "record"]),
    ):
        for kind in kinds:
            full = f"{module}.{kind.__name__}"
            page = f"api/names/{full}.html"
            text = (html / page).read_text()
            missing |= {
                f"{page}: {member}" for member in members if f'id="{full}.{member}"' not in text
            }
            missing |= {
                f"{page}: {label}"
                for label in used.get(full, ())
                if f"recipes.html#{label}" not in text
            }
    missing |= {
        f"{page.relative_to(html)}: a formula, which is shown as text"
        for page in (html / "api").rglob("*.html")
        if re.search(
            r'<div class="highlight-text[^>]*><div[^>]*><pre><span></span>[^<]*[√Σ≤]',
            page.read_text(),
        )
    }
    if missing:
        raise SystemExit("these are missing:\n" + "\n".join(sorted(missing)))


def collect(source: Path) -> None:
    """Copies all pages into one folder and adapts the links between them."""
    shutil.copytree(HERE, source, ignore=shutil.ignore_patterns(*NOT_PAGES))
    for path, page in {**PAGES, **OWN}.items():
        (source / page).write_text(relinked((ROOT / path).read_text(), path, page, source))
    with (source / "index.md").open("a") as front:
        front.write(CONTENTS)
    recipes = source / "recipes.md"
    recipes.write_text(labelled(recipes.read_text()))
    with (source / "api" / "index.rst").open("a") as reference:
        reference.write(names())

    notebooks = {
        path.name: json.loads(path.read_text())
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    }
    (source / "notebooks").mkdir(exist_ok=True)
    for name, notebook in notebooks.items():
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                page = f"notebooks/{name}"
                cell["source"] = relinked("".join(cell["source"]), page, page, source).splitlines(
                    keepends=True
                )
        (source / "notebooks" / name).write_text(json.dumps(notebook))
    contents = "\n".join(
        ["```{toctree}", ":maxdepth: 1", "", *(Path(name).stem for name in notebooks), "```", ""]
    )
    (source / "notebooks" / "index.md").write_text(
        f"# Notebooks\n\nThey are shown with their stored outputs.\n\n{contents}"
    )
    (source / "gallery.md").write_text(gallery(notebooks, source))
    (source / "api" / "command.md").write_text(commands())


def relinked(text: str, path: str, page: str, source: Path) -> str:
    """Returns the text of a repository file as the text of a page. Relative links lead to the same
    files, or to their pages.
    """

    def link(match: re.Match) -> str:
        before, target, after = match.groups()
        if ":" in target:  # a scheme
            return match.group()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        target = OWN.get(target, target)
        if target not in PAGES and target not in OWN.values() and not target.endswith(".ipynb"):
            if not (ROOT / target).is_file():
                raise SystemExit(f"{path} links to {target}, which does not exist")
            (source / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / target, source / target)
        return (
            before
            + posixpath.relpath(PAGES.get(target, target), posixpath.dirname(page) or ".")
            + after
        )

    return LINK.sub(link, text)


def listed() -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns the pages of the reference in their order, each with its public names and their
    descriptions in one line.
    """
    folder, pages = HERE / "api", []
    for page in re.findall(r"^   (\w+)$", (folder / "index.rst").read_text(), re.MULTILINE):
        entries, module = [], "bts_jax"
        text = (folder / f"{page}.rst").read_text() if (folder / f"{page}.rst").exists() else ""
        for directive, argument, body in re.findall(
            r"^\.\. ([\w:]+)::(?: (\S+))?\n((?:\n*   "
            r".*\n)*)",
            text,
            re.MULTILINE,
        ):
            found = [argument]
            if directive in ("currentmodule", "automodule"):
                module = argument
            if directive == "autosummary" and ":toctree:" in body:  # each of these names has a page
                found = re.findall(r"^   (\w+)$", body, re.MULTILINE)
            elif directive not in ("autofunction", "autoclass", "py:data"):
                continue
            for name in found:
                full = name if name.startswith("bts_jax.") else f"{module}.{name}"
                entries.append(
                    (full, first_sentence(body if directive == "py:data" else described(full)))
                )
        pages.append((page, entries))
    return pages


def described(full: str) -> str:
    """The docstring of the object with a full name."""
    module, _, name = full.rpartition(".")
    return inspect.getdoc(getattr(importlib.import_module(module), name)) or ""


def first_sentence(text: str) -> str:
    return (
        re.match(
            r"(.*?)(?:[.:](?= [A-Z`:\[]|$)|$)", " ".join(text.strip().split("\n\n")[0].split())
        )[1]
        + "."
    )


def names() -> str:
    """Returns tables of all public names, each with one line, for the first page of the
    reference.
    """
    lines = []
    for page, entries in listed():
        if entries:
            heading = (HERE / "api" / f"{page}.rst").read_text().splitlines()[0]
            title = f":doc:`{heading} <{page}>`"
            lines += ["", title, "-" * len(title), "", ".. list-table::", "   :widths: 1 3", ""]
        for full, summary in entries:
            lines += [
                f"   * - :py:obj:`{full.removeprefix('bts_jax.')} <{full}>`",
                f"     - {inline(summary)}",
            ]
    return "\n".join(lines) + "\n"


def gallery(notebooks: dict[str, dict], source: Path) -> str:
    """Returns a page with all figures of the notebooks, each with its heading in the notebook."""
    (source / "figures").mkdir()
    lines = ["# Gallery", "", "Figures of the notebooks. The code of a figure is in its notebook."]
    for name, notebook in notebooks.items():
        stem, title, heading, count = Path(name).stem, "", "", 0
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                for level, words in re.findall(
                    r"^(#+) (.*)$", "".join(cell["source"]), re.MULTILINE
                ):
                    title, heading = (words, words) if level == "#" else (title, words)
            for output in cell.get("outputs", []):
                if "image/png" not in output.get("data", {}):
                    continue
                count += 1
                figure = f"figures/{stem}-{count}.png"
                (source / figure).write_bytes(
                    base64.b64decode("".join(output["data"]["image/png"]))
                )
                if count == 1:
                    lines += ["", f"## {title}", "", f"From [{stem}](notebooks/{name})."]
                lines += [
                    "",
                    f":::{{figure}} {figure}",
                    f":alt: {heading}",
                    ":width: 100%",
                    "",
                    heading,
                    ":::",
                ]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Returns a page with the help of all commands."""
    os.environ["COLUMNS"] = "88"  # the width of a page
    from bts_jax.options import parser

    top = parser()
    choices = next(
        action.choices for action in top._actions if isinstance(action, argparse._SubParsersAction)
    )
    helps = {"bts-jax": top, **{f"bts-jax {name}": command for name, command in choices.items()}}
    return "# The command line\n" + "".join(
        f"\n## {name}\n\n```text\n{command.format_help().strip()}\n```\n"
        for name, command in helps.items()
    )


if __name__ == "__main__":
    sys.exit(main())
