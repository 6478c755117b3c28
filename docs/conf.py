"""The site: `sphinx-build -W docs build/site`, with the extra [docs]."""

import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.inspect import TypeAliasForwardRef

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import site_pages  # noqa: E402  beside this file

import fedgram  # noqa: E402

project = "fedgram"
copyright = "the fedgram contributors"  # noqa: A001  the name that Sphinx reads
version = release = fedgram.__version__
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "notebooks/*.py"]

myst_enable_extensions = ["dollarmath", "attrs_inline"]
myst_heading_anchors = 4
suppress_warnings = ["myst.xref_missing_doc_suffix"]

autodoc_default_options = {"members": True}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_type_aliases = {"Array": "Array"}  # ndarray of numpy
TypeAliasForwardRef.__repr__ = lambda self: self.name  # in `Array | None`
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = False
napoleon_use_rtype = False
add_module_names = False
nitpicky = True

pygments_dark_style = "github-dark"
html_theme = "furo"
html_title = "fedgram"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # they need a server; pages may be opened as files
html_theme_options = {"navigation_with_keys": True}
html_math_renderer = "mathml"


def whole_source(app, docname, source):
    """Complete a page: generated parts, and links to files beside the folder of the pages."""
    del app
    source[0] = site_pages.completed(source[0], docname)


def documented_elsewhere(app, env, node, contnode):
    """Resolve a type by the name it is imported by; leave types of other packages as text."""
    if node.get("refdomain") != "py" or node.get("reftype") not in ("class", "exc", "obj", "data"):
        return None
    name = node["reftarget"].rpartition(".")[2]
    for module in ("fedgram", "fedgram.checks"):
        if name in sys.modules[module].__all__ and node["reftarget"] != f"{module}.{name}":
            return env.domains["py"].resolve_xref(
                env, node["refdoc"], app.builder, "obj", f"{module}.{name}", node, contnode
            )
    return contnode  # an annotation, such as a type of numpy


def without_foreign_members(app, what, name, value, skip, options):
    """Leave out what scikit-learn adds to estimators, whose texts refer to its own pages."""
    del app, what, value, options
    return skip or bool(re.fullmatch(r"set_\w+_request|get_metadata_routing", name))


def formula_in_line(writer, node):
    """Write a formula as MathML, which browsers draw without a script."""
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def formula(writer, node):
    """Write a formula that stands alone."""
    inside = tex2mathml(node.astext(), as_block=True)
    writer.body.append(f'<div class="math">{inside}</div>')
    raise nodes.SkipNode


def setup(app):
    """Connect the functions of this file."""
    import fedgram.checks  # noqa: F401  in sys.modules for what is above

    app.connect("source-read", whole_source)
    app.connect("missing-reference", documented_elsewhere)
    app.connect("autodoc-skip-member", without_foreign_members)
    app.add_html_math_renderer("mathml", (formula_in_line, None), (formula, None))
