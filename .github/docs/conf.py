"""Sphinx's settings. `build.py` collects the pages and calls Sphinx."""

import ast
import inspect
import io
import re
import textwrap
import tokenize

import numpy.typing
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from jax.typing import ArrayLike
from sphinx.util.typing import stringify_annotation

import bts_jax

project, author, copyright = "bts_jax", "The bts_jax authors", "The bts_jax authors"
version = release = bts_jax.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "myst_nb",
              "sphinx_copybutton"]
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
html_math_renderer = "mathml"  # below; the default loads a program from the web
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

default_role = "py:obj"  # `sweep` in a docstring is a link where there is such a name, and code everywhere
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = True
python_maximum_signature_line_length = 120
napoleon_numpy_docstring = False
napoleon_use_rtype = False

SECTION = re.compile(r"^(Args|Returns|Raises|Example|Examples|Note|Yields|References?):$")
LONG = [stringify_annotation(kind, "smart") for kind in (ArrayLike, numpy.typing.ArrayLike)]


def literal(app, what, name, obj, options, lines):
    """Shows indented blocks of a docstring, such as formulas and tables, literally, except in sections such as `Args:`."""
    shown, before, section = [], "", False
    for line in lines:
        indented = line.startswith(" ")
        if line.strip() and not indented:
            section = bool(SECTION.match(line))
        if indented and not section and not before.strip() and not (shown and shown[-1].startswith(" ")):
            last = next((i for i in range(len(shown) - 1, -1, -1) if shown[i].strip()), None)
            if last is not None and not shown[last].startswith(" "):
                shown += [".. code-block:: text", ""]
        shown.append(line)
        before = line
    lines[:] = shown


def fields(app, what, name, obj, options, lines):
    """Lists the fields of a class with the comments that stand beside them in its source."""
    if what != "class" or "Args:" in lines:
        return
    try:
        code = textwrap.dedent(inspect.getsource(obj))
    except (OSError, TypeError):
        return
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokenize.generate_tokens(io.StringIO(code).readline)
                if token.type == tokenize.COMMENT}
    body = [node for node in ast.parse(code).body[0].body if isinstance(node, ast.AnnAssign)]
    found = [(node.target.id, comments[node.end_lineno]) for node in body if node.end_lineno in comments]
    place = next((i for i, line in enumerate(lines) if SECTION.match(line)), len(lines))
    escaped = [(field, re.sub(r"([*`|\\])|_(?=\W|$)", lambda match: "\\" + match.group(), comment)) for field, comment in found]
    lines[place:place] = [""] + [f"* **{field}**: {comment}" for field, comment in escaped] + [""]


def skip(app, what, name, obj, skipped, options):
    """Leaves out what a NamedTuple or chex adds to a class."""
    text = getattr(obj, "__doc__", None) or ""
    return True if text.startswith("Alias for field number") or name in {"from_tuple", "to_tuple", "replace"} else None


def shorten(app, what, name, obj, options, signature, returned):
    """Names array-likes, where Sphinx lists all types that they may have. A protocol is not called: it has no signature."""
    if getattr(obj, "_is_protocol", False):
        return "", None
    for long in LONG:
        signature, returned = (text and text.replace(long, "ArrayLike") for text in (signature, returned))
    return signature, returned


def of_the_package(app, env, node, content):
    """Links `sweep` in any module to `bts_jax.sweep`."""
    if node.get("refdomain") != "py" or node["reftarget"].startswith("bts_jax."):
        return None
    target = f"bts_jax.{node['reftarget']}"
    return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, node["reftype"], target, node, content)


def mathml(display):
    """Writes a formula as MathML, which browsers draw without a program."""

    def visit(self, node):
        tex = re.sub(r"\\([bB]igg?)(?=[(\[])", r"\\\1l", node.astext())  # docutils knows \Bigl and \Bigr, but not \Big
        tex = re.sub(r"\\([bB]igg?)(?=[)\]])", r"\\\1r", tex)
        self.body.append(tex2mathml(tex, as_block=display))
        raise nodes.SkipNode

    return visit, None


def setup(app):
    app.add_html_math_renderer("mathml", mathml(False), mathml(True))
    app.connect("autodoc-process-docstring", literal, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", fields, priority=200)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", of_the_package)
    app.connect("autodoc-process-signature", shorten)
