"""Builds the package. All settings but one stand in pyproject.toml and setup.cfg."""

import re
from pathlib import Path

from setuptools import setup

#: A picture on a line of its own, and a link. README.md has no nested brackets.
PICTURE = re.compile(r"^!\[[^\]]*\]\((?P<target>[^)\s]+)\)\n+", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def is_relative(target: str) -> bool:
    """Return whether a target is a file of the repository, which a package index does not have."""
    return not re.match(r"[a-z][a-z0-9+.-]*:|#", target)


def long_description(readme: str) -> str:
    """Return README.md for a package index: without relative pictures, and links to files as text.

    Parameters
    ----------
    readme : str
        The text of README.md.
    """
    # The project names no address at which its files could be linked to instead.
    text = PICTURE.sub(lambda found: "" if is_relative(found["target"]) else found[0], readme)
    return LINK.sub(lambda found: found["text"] if is_relative(found["target"]) else found[0], text)


if __name__ == "__main__":
    setup(
        long_description=long_description(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
        long_description_content_type="text/markdown",
    )
