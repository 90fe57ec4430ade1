"""How the site is built: `python -m sphinx -W -n docs <folder>`, with what `pip install ".[docs]"` brings.

Sphinx, because it is well kept (9.1.1 and 9.2.0 in October 2026), while Material for MkDocs is in maintenance since
November 2025 (squidfunk/mkdocs-material, issue 8523) and MkDocs 1.6.1 dates from August 2024; and because it reads
docstrings as ours are written. Pages are Markdown, by MyST. The theme brings its own style and script: no page asks
another server for anything, which `.ci/check_site.py` looks after.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_code"))

from colabkeep._version import __version__

project = "colabkeep"
release = version = __version__
author = "the colabkeep authors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "from_code"]
exclude_patterns = ["_code", "pictures/README.md"]
nitpicky = True  # a reference to something that is not there is an error
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures: most are of other packages, and are not linked
default_role = "code"
smartquotes = False  # what is quoted is often typed

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # so that a link may end in #a-heading, as on GitHub
suppress_warnings = ["myst.header"]  # a page may begin with a smaller heading

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False
toc_object_entries = False

html_theme = "furo"
html_title = f"colabkeep {__version__}"
html_show_sourcelink = False
html_copy_source = False
