"""Configuration of the documentation, built by ``make docs``."""

from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

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


def shorten_side_bar(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Leave the page of each name out of the side bar, which every page has: `api` links to them.

    With them, rendering the side bars takes longer than all else.
    """
    for toctree in list(env.tocs["api"].findall(addnodes.toctree)):
        toctree.parent.remove(toctree)
    return []


def setup(app: Sphinx) -> None:
    app.connect("env-updated", shorten_side_bar)


html_theme = "furo"
html_title = f"dasktune {release}"
