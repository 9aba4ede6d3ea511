"""Sphinx's settings. `build.py` collects the pages and calls Sphinx."""

import ast
import inspect
import io
import re
import sys
import textwrap
import tokenize
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import bts_jax

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from formulas import APART, inline, is_formula, tex  # noqa: E402, because they are beside this file
from recipes import uses  # noqa: E402

project, author, copyright = "bts_jax", "The bts_jax authors", "The bts_jax authors"
version = release = bts_jax.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
    "sphinx_copybutton",
]
exclude_patterns = ["templates"]
templates_path = ["templates"]

html_theme = "furo"
html_static_path, html_css_files = ["static"], ["wide.css"]
html_title = f"bts_jax {release}"
html_copy_source = False
html_show_sphinx = False

nb_execution_mode = "off"  # outputs are those that are stored
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_dmath_allow_digits = myst_dmath_allow_space = False  # "$5 and $6" are amounts
html_math_renderer = "mathml"  # below
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# `sweep` in a docstring is a link where there is such a name, and code everywhere.
default_role = "py:obj"
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = True
python_maximum_signature_line_length = 120
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# Such as ln: docutils leaves no space around it.
FUNCTION = re.compile(r"<mi>(\w+)</mi>\s*<mo>&ApplyFunction;</mo>")
SECTION = re.compile(r"^(Args|Returns|Raises|Example|Examples|Note|Yields|References?):$")
CONTRACT = {
    name: inspect.getdoc(getattr(protocol, name))
    for protocol, names in (
        (bts_jax.Posterior, ["draw", "record"]),
        (bts_jax.Policy, ["init", "__call__", "update"]),
        (bts_jax.Bandit, ["reward_mean", "cost_mean", "pull"]),
    )
    for name in names
}
USED_IN = uses((HERE / "recipes.md").read_text())


def blocks(app, what, name, obj, options, lines):
    """Sets formulas as mathematics, and shows other indented blocks, such as tables, literally. In
    sections such as `Args:`, indented text is text.
    """
    shown, section, literal = [], "", False
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines).rstrip()):
        outer = [line for line in paragraph.split("\n") if not line.startswith(" ")]
        if outer:
            section = outer[-1] if SECTION.match(outer[-1]) else ""
        block, before = not outer and not section, literal
        literal = block and not is_formula(paragraph)
        if literal and not before:
            shown += [".. code-block:: text", ""]
        elif block and not literal:
            paragraph = f".. math:: {tex(paragraph)}"
        elif not block and not section.startswith("Example"):
            paragraph = inline(paragraph)
        shown += [*paragraph.split("\n"), ""]
    lines[:] = shown


def fields(app, what, name, obj, options, lines):
    """Lists the fields of a class with the comments that stand beside them in its source."""
    if what != "class" or "Args:" in lines:
        return
    try:
        code = textwrap.dedent(inspect.getsource(obj))
    except (OSError, TypeError):
        return
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    body = [node for node in ast.parse(code).body[0].body if isinstance(node, ast.AnnAssign)]
    found = [
        (node.target.id, comments[node.end_lineno]) for node in body if node.end_lineno in comments
    ]
    place = next((i for i, line in enumerate(lines) if SECTION.match(line)), len(lines))
    escaped = [
        (field, re.sub(r"([*`|\\])|_(?=\W|$)", r"\\\g<0>", comment)) for field, comment in found
    ]
    lines[place:place] = (
        [""] + [f"* **{field}**: {inline(comment)}" for field, comment in escaped] + [""]
    )


def skip(app, what, name, obj, skipped, options):
    """Leaves out what a NamedTuple or chex adds to a class. Shows the members of the contract, even
    without a docstring.
    """
    text = getattr(obj, "__doc__", None) or ""
    if text.startswith("Alias for field number") or name in {"from_tuple", "to_tuple", "replace"}:
        return True
    return (
        False
        if name in CONTRACT and (inspect.isfunction(obj) or isinstance(obj, property))
        else None
    )


def inherit(app, what, name, obj, options, lines):
    """A member of the contract without a docstring has the docstring of the contract."""
    member = name.rpartition(".")[2]
    if member in CONTRACT and what in {"method", "property"} and not obj.__doc__:
        lines[:] = CONTRACT[member].splitlines()


def recipes(app, what, name, obj, options, lines):
    """Links to the recipes that use a class or a function."""
    if found := USED_IN.get(name):
        lines += [
            "",
            ".. seealso::",
            "",
            "   How do I",
            "",
            *(f"   * :ref:`{label}`" for label in found),
            "",
        ]


def unsigned(app, what, name, obj, options, signature, returned):
    """Leaves out the signature of a protocol, which is not called."""
    return ("", None) if getattr(obj, "_is_protocol", False) else None


def of_the_package(app, env, node, content):
    """Links `sweep` in any module to `bts_jax.sweep`, and `Gamma` to `bts_jax.posteriors.Gamma`."""
    if node.get("refdomain") != "py" or node["reftarget"].startswith("bts_jax."):
        return None
    kind, domain = node["reftype"], env.get_domain("py")
    for module in ("bts_jax", "bts_jax.posteriors"):
        target = f"{module}.{node['reftarget']}"
        if found := domain.resolve_xref(
            env, node["refdoc"], app.builder, kind, target, node, content
        ):
            return found
    return None


def mathml(display):
    """Writes a formula as MathML, which browsers draw without a program. Sphinx's default, MathJax,
    is loaded from the web, and without it a page shows TeX.
    """

    def visit(self, node):
        # Docutils knows \Bigl and \Bigr, but not \Big.
        text = re.sub(r"\\([bB]igg?)(?=[(\[])", r"\\\1l", node.astext())
        text = re.sub(r"\\([bB]igg?)(?=[)\]])", r"\\\1r", text)
        parts = [tex2mathml(part, as_block=display) for part in text.split(APART)]
        shown = FUNCTION.sub(r'<mo lspace="0.17em" rspace="0.17em">\1</mo>', "".join(parts))
        self.body.append(f'<div class="math">{shown}</div>' if display else shown)
        raise nodes.SkipNode

    return visit, None


def setup(app):
    app.add_html_math_renderer("mathml", mathml(False), mathml(True))
    app.connect("autodoc-process-docstring", blocks, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", fields, priority=200)
    app.connect("autodoc-process-docstring", inherit, priority=50)
    app.connect("autodoc-process-docstring", recipes, priority=900)  # after napoleon
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", of_the_package)
    app.connect("autodoc-process-signature", unsigned)
