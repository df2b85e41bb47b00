"""What `make test` and CI do about a browser that is missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "browser"
BASH = "/bin/bash"

pytestmark = pytest.mark.skipif(not os.path.exists(BASH), reason="needs bash")

NOTE = "browser tests are skipped: install chromium and chromium-driver to run them\n"


@pytest.fixture
def machine(tmp_path):
    """Return what runs the script where there are no programs but those that were added."""
    programs = tmp_path / "programs"
    programs.mkdir()

    def add(name, code):
        path = programs / name
        path.write_text(f"#!{BASH}\n{code}\n")
        path.chmod(0o755)

    def run(**environment):
        told = subprocess.run(
            [BASH, SCRIPT],
            env={"PATH": str(programs), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.stdout == ""
        return told.returncode, told.stderr

    run.add = add
    add("id", "echo 0")
    return run


def test_what_is_there_is_not_installed(machine):
    for name in ("google-chrome", "chromedriver"):
        machine.add(name, "exit 0")
    machine.add("apt-get", "exit 1")
    assert machine(CI="1") == (0, "")


def test_root_installs_it_and_nobody_hears_of_it(machine, tmp_path):
    folder = tmp_path / "programs"
    machine.add(
        "apt-get",
        "echo chatter; echo more >&2\n"
        f'[[ "$*" == *chromium-driver* ]] || exit 0\n'
        f"for name in chromium chromedriver; do\n"
        f'  printf "#!{BASH}\\n" > {folder}/$name; /bin/chmod +x {folder}/$name\n'
        "done",
    )
    assert machine() == (0, "")


@pytest.mark.parametrize("why", ["nobody may", "no apt-get", "no network"])
def test_without_it_one_line_says_what_is_skipped_and_ci_fails(machine, why):
    if why != "no apt-get":
        machine.add("apt-get", "echo unreachable >&2; exit 100")
    if why == "nobody may":
        machine.add("id", "echo 1000")
    assert machine() == (0, NOTE)
    code, told = machine(CI="1")
    assert code == 1
    assert told.startswith(NOTE)
    assert ("unreachable" in told) == (why == "no network")


def test_make_and_ci_both_ask_for_it():
    makefile = (SCRIPT.parents[1] / "Makefile").read_text()
    recipe = makefile.partition("\ntest: ")[2].partition("\n\n")[0]
    assert ".ci/browser" in recipe
    assert "\n.ci/browser\n" in (SCRIPT.parent / "run").read_text()
