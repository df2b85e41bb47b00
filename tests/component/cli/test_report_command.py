"""The pages that report and dashboard make, and what a process of the command imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from importlib import import_module

import pytest

from dasktune.dashboard.server.web import WebServer


def test_a_report_overwrites_a_file_only_if_forced(path, tmp_path, dasktune):
    page = tmp_path / "page.html"
    page.write_text("an earlier report")
    code, _, err = dasktune("report", path, "-o", str(page))
    assert (code, "--force overwrites it" in err) == (2, True)
    assert page.read_text() == "an earlier report"
    assert dasktune("report", path, "-o", str(page), "--force") == (0, f"{page}\n", "")
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_a_report_is_written_into_a_directory_that_there_is(path, tmp_path, dasktune):
    assert dasktune("report", path, "-o", str(tmp_path)) == (0, f"{tmp_path}/exp.html\n", "")
    assert (tmp_path / "exp.html").stat().st_size > 100_000
    code, _, err = dasktune("report", path, "-o", str(tmp_path / "nowhere" / "page.html"))
    assert code == 2
    assert "--output must be in an existing directory" in err


def test_a_dashboard_is_served_until_the_user_has_seen_enough(path, dasktune, monkeypatch):
    def looks(server):
        with urllib.request.urlopen(server.url, timeout=60) as page:
            assert page.status == 200
        raise KeyboardInterrupt

    monkeypatch.setattr(WebServer, "wait", looks)
    code, out, err = dasktune("dashboard", path, "--port", "0")
    assert (code, err) == (0, "")
    assert out.startswith("http://127.0.0.1:")


def test_an_interrupt_that_an_import_swallows_keeps_a_dashboard_from_being_served(
    path, dasktune, monkeypatch
):
    # The module, not the function of the same name.
    module = import_module("dasktune.dashboard.server.serve")
    begin, servers = module.serve, []

    def swallow(*arguments, **more):
        # As the callbacks do that the import system runs.
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        servers.append(begin(*arguments, **more))
        return servers[0]

    monkeypatch.setattr(module, "serve", swallow)
    monkeypatch.setattr(WebServer, "wait", lambda server: pytest.fail("the interrupt was lost"))
    assert dasktune("dashboard", path, "--port", "0") == (0, "", "")
    # The command waits for no server that was never shown.
    servers[0].close()


#: The command, which prints at its end whether the objects are frozen.
PROGRAM = """
import atexit, gc, sys
from dasktune.cli import main

# The functions of atexit are called from the last one to the first.
atexit.register(lambda: print("frozen:", gc.get_freeze_count() > 0))
sys.exit(main())
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_a_dashboard_in_the_background_of_a_script_ends_by_an_interrupt(path):
    # The shells of scripts start what is in the background like this.
    script = 'trap "" INT; exec "$@"'
    command = [sys.executable, "-c", PROGRAM, "dashboard", path, "--port", "0"]
    started = subprocess.Popen(
        ["sh", "-c", script, "sh", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout.readline().startswith("http://")
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
    finally:
        started.kill()
    # The end of the process searches nothing for cycles, which takes seconds on a busy machine.
    assert (started.returncode, out, err) == (0, "frozen: True\n", "")


def test_help_and_version_are_there_and_nothing_heavy_is_imported_for_ls():
    probe = """
import sys
import urllib.request
from dasktune.cli import main
assert main(["--help"]) == 0
assert main(["--version"]) == 0
assert main(["ls", "/nowhere/at/all"]) == 0
heavy = {"distributed", "dask", "bokeh", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout
