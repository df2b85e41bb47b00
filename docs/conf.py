"""Configuration of the documentation, built by ``make docs``."""

from dasktune.version import __version__

project = "dasktune"
author = "The dasktune developers"
project_copyright = f"2026, {author}"
release = version = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings give the types
default_role = "code"
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"dasktune {release}"
