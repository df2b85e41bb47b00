"""What the make targets and CI do about programs that are missing."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

CI_SCRIPTS = Path(__file__).parents[2] / ".ci"
BASH = "/bin/bash"

pytestmark = pytest.mark.skipif(not os.path.exists(BASH), reason="needs bash")


@dataclass(frozen=True)
class Setup:
    """A script that installs programs, one of the packages, and the targets that call it."""

    name: str
    programs: tuple[str, ...]
    package: str
    note: str
    targets: frozenset[str]
    #: The exit code in CI without the programs.
    code_in_ci: int


SETUPS = [
    Setup(
        "browser",
        ("google-chrome", "chromedriver"),
        "chromium-driver",
        "browser tests are skipped: install chromium and chromium-driver to run them\n",
        frozenset({"test", "test-slow", "test-all", "screenshots"}),
        1,
    ),
    Setup(
        "engines",
        ("munged", "slurmctld", "slurmd", "sbatch", "sshd"),
        "openssh-server",
        "tests of SLURM and SSH are skipped: install munge, slurmctld, slurmd, slurm-client and "
        "openssh-server to run them\n",
        frozenset({"test-slow", "test-all"}),
        0,
    ),
]


@pytest.fixture(params=SETUPS, ids=lambda setup: setup.name)
def setup(request):
    return request.param


@pytest.fixture
def machine(tmp_path, setup):
    """Return what runs the script where there are no programs but those that were added."""
    programs = tmp_path / "programs"
    programs.mkdir()

    def add(name, code):
        path = programs / name
        path.write_text(f"#!{BASH}\n{code}\n")
        path.chmod(0o755)

    def run(**environment):
        told = subprocess.run(
            [BASH, CI_SCRIPTS / setup.name],
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


def test_what_is_there_is_not_installed(machine, setup):
    for name in setup.programs:
        machine.add(name, "exit 0")
    machine.add("apt-get", "exit 1")
    assert machine(CI="1") == (0, "")


def test_root_installs_it_and_the_script_prints_nothing(machine, setup, tmp_path):
    folder = tmp_path / "programs"
    machine.add(
        "apt-get",
        "echo chatter; echo more >&2\n"
        f'[[ "$*" == *{setup.package}* ]] || exit 0\n'
        f"for name in {' '.join(setup.programs)}; do\n"
        f'  printf "#!{BASH}\\n" > {folder}/$name; /bin/chmod +x {folder}/$name\n'
        "done",
    )
    assert machine() == (0, "")


@pytest.mark.parametrize("why", ["not root", "no apt-get", "no network"])
def test_without_it_one_line_says_what_is_skipped_and_ci_tells_why(machine, setup, why):
    if why != "no apt-get":
        machine.add("apt-get", "echo unreachable >&2; exit 100")
    if why == "not root":
        machine.add("id", "echo 1000")
    assert machine() == (0, setup.note)
    code, told = machine(CI="1")
    assert code == setup.code_in_ci
    assert told.startswith(setup.note)
    assert ("unreachable" in told) == (why == "no network")


def test_make_and_ci_both_call_it(setup):
    makefile = (CI_SCRIPTS.parent / "Makefile").read_text()
    recipes = re.findall(r"^([a-z-]+): [^\n]*\n((?:\t[^\n]*\n)+)", makefile, re.MULTILINE)
    callers = {target for target, recipe in recipes if f".ci/{setup.name}" in recipe}
    assert callers == setup.targets
    assert f".ci/{setup.name}" in (CI_SCRIPTS / "run").read_text().split()
