"""What CONTRIBUTING.md says of the tests and of the commands that run them is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

#: What starts a process or a server; `multiprocessing.connection` alone does neither.
HEAVY = re.compile(
    r"^\s*(?:import|from) (?:subprocess|multiprocessing(?!\.connection)|http\.client|selenium|s3_kit"
    r"|dasktune\.control\.server|dasktune\.dashboard\.server\.(?:attach|web))\b"
    r"|\bos\.(?:fork|posix_spawn|system)\(|\bWebServer\(|\bControlServer\(|\bto_html\(",
    re.MULTILINE,
)


def modules_of(folder: str) -> list[Path]:
    found = sorted(set((TESTS / folder).rglob("test_*.py")) - {Path(__file__)})
    assert found
    return found


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["unit", "component"])
def test_folders_of_unit_and_component_tests_are_those_of_the_package(kind):
    folders = {path.parent.relative_to(TESTS / kind) for path in modules_of(kind)}
    assert [one for one in folders if not (ROOT / "dasktune" / one / "__init__.py").exists()] == []


def test_no_two_modules_of_tests_share_a_name():
    """Python could import only one of them, and pytest would collect neither."""
    names = [path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py"]
    names = [name for name in names if name.startswith("test_") or name.endswith("_kit.py")]
    assert {name for name in names if names.count(name) > 1} == set()


def test_unit_tests_start_no_process_and_no_server():
    found = {path.name: HEAVY.findall(text_of(path)) for path in modules_of("unit")}
    assert {name: words for name, words in found.items() if words} == {}
    kinds = re.findall(r"storage_fixture\((.*)\)", text_of(TESTS / "unit/storage/conftest.py"))
    assert kinds == ['"local", "memory", "object"']


def test_a_unit_test_is_not_marked_slow():
    assert [path.name for path in modules_of("unit") if "pytest.mark.slow" in text_of(path)] == []


@pytest.mark.parametrize(
    "name",
    [
        "chaos/test_chaos.py",
        "simulated/test_reproduced.py",
        "simulated/test_reproduced_populations.py",
        "simulated/test_search_quality.py",
        "sklearn/test_conformance.py",
    ],
)
def test_papers_random_faults_and_the_tests_of_scikit_learn_are_slow(name):
    assert re.search(r"^pytestmark = .*\bpytest\.mark\.slow\b", text_of(TESTS / name), re.MULTILINE)


def test_the_name_of_a_test_is_a_sentence():
    names = [
        name
        for path in TESTS.rglob("test_*.py")
        # They are programs, and named after what they show.
        if path.parent.name != "compat"
        for name in re.findall(r"^ *(?:async )?def test_(\w+)\(", text_of(path), re.MULTILINE)
    ]
    assert len(names) > 3000
    assert [name for name in names if name.count("_") < 2] == []


def test_every_seed_is_fixed():
    unseeded = re.compile(
        r"\b(?:default_rng|SeedSequence|RandomState|Random)\(\)|\brandom\.rand\b|\brandom\.seed\b(?!\(\d)"
    )
    paths = sorted(set(TESTS.rglob("*.py")) - {Path(__file__)})
    assert {path.name: found for path in paths if (found := unseeded.findall(text_of(path)))} == {}
    assert "derandomize=True" in text_of(TESTS / "conftest.py")


def test_an_expected_failure_that_passes_is_a_failure():
    assert "\nxfail_strict = true\n" in text_of(ROOT / "pyproject.toml")
    lenient = re.compile(r"xfail\([^)]*strict=False|xfail_strict=False")
    paths = sorted(set(TESTS.rglob("test_*.py")) - {Path(__file__)})
    assert [path.name for path in paths if lenient.search(text_of(path))] == ["test_estimator_checks.py"]


def test_experiments_are_validated_but_in_papers_and_in_tests_of_quality():
    paths = set(TESTS.rglob("test_*.py")) - {Path(__file__)}
    assert {path.name for path in paths if "mark.unvalidated" in text_of(path)} == {
        "test_reproduced.py",
        "test_reproduced_populations.py",
        "test_search_quality.py",
    }


def test_no_unit_test_sleeps_but_to_look_again():
    """A loop that looks whether something has come about may sleep a moment between two looks."""
    sleeps = [
        (path.name, float(seconds))
        for path in modules_of("unit")
        for seconds in re.findall(r"\btime\.sleep\(([\d.]+)\)", text_of(path))
    ]
    assert [one for one in sleeps if one[1] > 0.01] == []


# Commands


def makefile() -> str:
    return text_of(ROOT / "Makefile")


def test_every_make_command_of_a_page_is_a_target_that_make_help_explains():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"(?:`| {4})make ([a-z][a-z-]+)", text_of(page))}
    targets = set(re.findall(r"^([a-z][a-z-]+):", makefile(), re.MULTILINE))
    explained = set(re.findall(r"^#   make ([a-z-]+)", makefile(), re.MULTILINE))
    assert "test-slow" in named
    assert explained <= targets
    assert named <= explained


def test_the_pure_packages_are_those_whose_coverage_must_be_complete():
    table = text_of(ROOT / "docs/architecture.md")
    pure = set(re.findall(r"^\| \d+ \| `(\w+)` \| \*\*pure\*\*", table, re.MULTILINE))
    [covered] = re.findall(
        r"^include = \[(.*?)\]", text_of(ROOT / "pyproject.toml"), re.MULTILINE | re.DOTALL
    )
    # The build reads the version from a module without branches.
    assert set(re.findall(r"dasktune/(\w+)", covered)) == pure - {"version"}
    measured = re.findall(r"^PURE(?:_FILES)? := (.+)$", makefile(), re.MULTILINE)
    assert set(" ".join(measured).split()) == pure - {"version"}
