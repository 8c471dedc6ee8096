"""Settings of Sphinx for `make docs`, and how a docstring of LaneMQ (Markdown) becomes what Sphinx reads."""

import re
from typing import Any

from sphinx.application import Sphinx

project = "LaneMQ"
author = "LaneMQ"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = False

html_theme = "furo"
html_title = "LaneMQ"
html_static_path = ["_own"]
html_css_files = ["lanemq.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_favicon = "_own/lanes.svg"
html_theme_options = {
    "light_css_variables": {
        "font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
        "font-stack--monospace": "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace",
    },
    "footer_icons": [],
}

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header", "autodoc.import_object"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = False
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
default_role = "code"


def as_rest(lines: list[str]) -> list[str]:
    """A docstring in reStructuredText: names in double back-ticks, and indented lines as code.

    Docstrings use Markdown's single back-ticks, and show code by indentation without a mark before it.
    """
    found: list[str] = []
    in_code = False
    for line in lines:
        indented = line.startswith("    ") and not re.match(r"\s+[-*\d]", line)
        if indented and not in_code and (not found or not found[-1].strip()):
            found += [".. code-block:: python", ""]
            in_code = True
        elif line.strip() and not line.startswith(" "):
            in_code = False
        found.append(line if in_code else re.sub(r"(?<![`\w])`([^`\n]+)`(?!`)", r"``\1``", line))
    return found


def _convert(app: Sphinx, what: str, name: str, target: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rest(lines)


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _convert, priority=100)  # before napoleon reads "Args:"
