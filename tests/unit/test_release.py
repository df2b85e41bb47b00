"""What a release says of itself is consistent, and true before it is uploaded anywhere."""

from __future__ import annotations

import configparser
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import dasktune

ROOT = Path(__file__).parents[2]

#: Links, pictures and reference definitions of Markdown, and HTML's.
TARGETS = re.compile(r"""\]\(\s*<?([^)\s>]+)|^\[[^\]]+\]:\s*(\S+)|(?:src|href)=["']([^"']+)""", re.MULTILINE)


def setup_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def targets(text: str) -> list[str]:
    return ["".join(found) for found in TARGETS.findall(text)]


# The version


def test_the_version_stands_in_the_package_and_the_build_reads_it_there():
    project = text_of("pyproject.toml")
    assert re.search(r'^dynamic = \[.*"version".*\]$', project, re.MULTILINE)
    assert 'version = { attr = "dasktune.version.__version__" }' in project
    assert not re.search(r'^version = "', project, re.MULTILINE)
    assert f'__version__: Final = "{dasktune.__version__}"' in text_of("dasktune/version.py")


def test_the_citation_names_this_version():
    assert f"\nversion: {dasktune.__version__}\n" in text_of("CITATION.cff")


def test_the_newest_section_of_the_changelog_is_this_version_or_the_one_before_it():
    newest = re.search(r"^## (\d+\.\d+\.\d+) ", text_of("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    numbers = tuple(map(int, newest[1].split(".")))
    assert numbers <= tuple(map(int, re.findall(r"^\d+|(?<=\.)\d+", dasktune.__version__)))


# The page of a package index


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("see [the tutorial](docs/tutorial.md).", "see the tutorial."),
        ("[a\nb](docs/plots.md), [c](LICENSE).", "a\nb, c."),
        ("a\n\n![a picture](docs/a.png)\n\nb\n", "a\n\nb\n"),
        (
            "a\n\n![a badge](https://example.org/a.png)\n\nb",
            "a\n\n![a badge](https://example.org/a.png)\n\nb",
        ),
        (
            "[above](#install), [there](https://example.org)",
            "[above](#install), [there](https://example.org)",
        ),
        ("[us](mailto:us@example.org)", "[us](mailto:us@example.org)"),
    ],
)
def test_links_to_files_become_text_and_pictures_in_files_are_left_out(written, shown):
    assert setup_script().long_description(written) == shown


def test_nothing_in_the_long_description_needs_the_repository():
    script = setup_script()
    readme = text_of("README.md")
    assert any(script.is_relative(target) for target in targets(readme))
    shown = script.long_description(readme)
    assert [target for target in targets(shown) if script.is_relative(target)] == []
    # Only links and pictures differ, and no code is touched.
    assert re.findall(r"^```.*?^```$", shown, re.MULTILINE | re.DOTALL) == re.findall(
        r"^```.*?^```$", readme, re.MULTILINE | re.DOTALL
    )
    assert shown.count("\n## ") == readme.count("\n## ") > 5


def test_every_relative_link_of_the_pages_at_the_top_is_a_file():
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        relative = [one for one in targets(text_of(page)) if setup_script().is_relative(one)]
        assert [one for one in relative if not (ROOT / one.partition("#")[0]).exists()] == [], page


# Installing


def readable_files() -> list[Path]:
    folders = [path for name in ("dasktune", "docs", "examples") for path in (ROOT / name).rglob("*")]
    pages = [*ROOT.glob("*.md"), *folders]
    return [
        path
        for path in pages
        if path.suffix in (".py", ".md", ".html", ".js", ".ipynb")
        and not {"_build", "generated"} & set(path.relative_to(ROOT).parts)
    ]


def test_no_text_installs_dasktune_from_an_index_that_does_not_have_it():
    # `[extra]` of a checkout is written ".[extra]".
    advice = re.compile(r"""pip\s+install\s[^\n.;]*?["'` ]dasktune\b|\bdasktune\[[a-z]""")
    files = readable_files()
    assert len(files) > 400
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        for text in [path.read_text(encoding="utf-8")]
        if "pip" in text or "dasktune[" in text
        for match in advice.finditer(text)
    ]
    assert found == []


# The source distribution


def test_the_source_distribution_has_every_folder_and_page_of_the_checkout():
    manifest = text_of("MANIFEST.in")
    named = set(re.findall(r"[\w./-]+", manifest))
    # The build takes these without being told.
    named |= {"dasktune", "LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py", "MANIFEST.in"}
    generated = {
        "__pycache__",
        "build",
        "dist",
        "htmlcov",
        "dask-worker-space",
        "dask-scratch-space",
        "scratch",
        "shared",
        "PKG-INFO",
    }
    there = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    there = {name for name in there if not name.endswith(".egg-info")} | {".ci", ".pre-commit-config.yaml"}
    assert there - generated - named == set()


def test_every_file_that_the_package_reads_is_in_the_wheel():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    data = config["options.package_data"]
    packed = {
        ROOT / package.replace(".", "/") / name.strip()
        for package, names in data.items()
        for name in names.split(",")
    }
    others = {
        path
        for path in (ROOT / "dasktune").rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert packed == others
