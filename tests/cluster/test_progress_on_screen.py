"""What a user sees while an experiment runs: in a real terminal, a pipe, and a notebook."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX"),
]

PROGRAM = """
import sys
import distributed
import dasktune as tune

def train(config):
    for epoch in range(3):
        if config["x"] == 2 and epoch:
            raise ValueError("no [bold]such\\x1b[31m loss")
        tune.report({"loss": config["x"] / (epoch + 1)})

class Broken(tune.CLIReporter):
    def report(self, trials, done, *sys_info):
        raise RuntimeError("the reporter is broken")

REPORTERS = {"": None, "table": tune.CLIReporter(max_report_frequency=0), "broken": Broken()}

def main(place, kind="", verbose=1):
    with distributed.Client(
        n_workers=1, threads_per_worker=2, dashboard_address=":0", silence_logs=50
    ) as client:
        results = tune.Tuner(
            train,
            param_space={"x": tune.grid_search([1.0, 2.0, 3.0, 4.0])},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(
                storage_path=place, name="e", verbose=int(verbose),
                progress_reporter=REPORTERS[kind],
            ),
            client=client,
        ).fit()
        print("RETURNED", len(results), results.num_errors, flush=True)
    return results
"""

#: Runs a command in a terminal of 80 columns and 40 lines, and returns what that was sent.
TERMINAL = """
import fcntl, os, pty, struct, sys, termios
def resize(fd):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
pid, fd = pty.fork()
if not pid:
    resize(1)
    os.execv(sys.argv[1], sys.argv[1:])
try:
    while data := os.read(fd, 65536):
        os.write(1, data)
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def run(home, *arguments, terminal=False, **environ):
    """Return what a program writes, to its terminal or to its two pipes."""
    script = home / "script.py"
    script.write_text(PROGRAM + '\nif __name__ == "__main__":\n    main(sys.argv[1], *sys.argv[2:])\n')
    command = [sys.executable, str(script), str(home / "runs"), *arguments]
    if terminal:
        command = [sys.executable, "-c", TERMINAL, *command]
    unset = {"CI", "DASKTUNE_PROGRESS", "COLUMNS", "LINES"}
    env = {name: value for name, value in os.environ.items() if name not in unset}
    root = str(Path(__file__).parents[2])
    env |= {"TERM": "xterm", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": root, **environ}
    done = subprocess.run(command, capture_output=True, env=env, timeout=280, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


def screen(text):
    """Return the lines that a terminal of 80 columns shows in the end, all of them."""
    pyte = pytest.importorskip("pyte")
    shown = pyte.Screen(80, 40)
    pyte.Stream(shown).feed(text)
    return [line.rstrip() for line in shown.display if line.strip()]


def test_a_terminal_shows_a_table_that_stays(tmp_path):
    pytest.importorskip("rich")
    sent, _ = run(tmp_path, terminal=True)
    lines = screen(sent)
    [place] = [n for n, line in enumerate(lines) if line.startswith("4/4 trials done")]
    assert lines[place - 1].strip("━") == ""
    assert " · 1 error · best loss 0.3333 (" in lines[place]
    assert lines[place + 1].split() == ["trial", "iter", "loss", "best", "time", "x"]
    assert [line.split()[0] for line in lines[place + 2 : place + 6]] == ["✓", "✓", "✓", "✗"]
    assert re.match(r"Best: loss 0\.3333 in \w+ with x=1", lines[place + 6])
    assert "1 trial failed:" in lines
    text = "".join(lines)
    assert "ValueError: no [bold]such?[31m loss" in text
    assert text.count("RETURNED 4 1") == 1
    # The table was there while trials ran, and the cursor is left as it was.
    assert sent.count("\x1b[2K") > 3
    assert sent.rfind("\x1b[?25h") > sent.rfind("\x1b[?25l")
    assert "such\x1b[31m" not in sent


@pytest.mark.slow
def test_a_simple_terminal_shows_one_line(tmp_path):
    sent, _ = run(tmp_path, terminal=True, TERM="dumb")
    assert "\x1b" not in sent
    assert sent.count("\r") > sent.count("\r\n")
    lines = [line.rstrip().split("\r")[-1] for line in sent.split("\n")]
    [last] = [line for line in lines if line.startswith("4/4 trials done")]
    assert len(last) < 80


@pytest.mark.slow
def test_continuous_integration_gets_lines_even_on_a_terminal(tmp_path):
    sent, _ = run(tmp_path, terminal=True, CI="true")
    assert "\x1b" not in sent
    lines = sent.split("\r\n")
    assert sum(line.startswith("[dasktune] 4/4 trials done") for line in lines) == 1
    assert sum(" failed: ValueError: no [bold]such?[31m loss" in line for line in lines) == 1


@pytest.mark.slow
def test_a_pipe_gets_lines_and_the_output_is_left_to_the_program(tmp_path):
    output, errors = run(tmp_path, "", "2")
    assert output == "RETURNED 4 1\n"
    told = [line for line in errors.splitlines() if line.startswith("[dasktune] ")]
    assert sum(" ended loss " in line for line in told) == 3
    assert sum(" failed: " in line for line in told) == 1
    assert f"Results: {tmp_path}/runs/e" in errors.splitlines()


@pytest.mark.slow
def test_nothing_is_shown_if_nothing_is_wanted(tmp_path):
    assert run(tmp_path, "", "0") == ("RETURNED 4 1\n", "")


@pytest.mark.slow
def test_a_reporter_prints_its_tables(tmp_path):
    output, errors = run(tmp_path, "table")
    assert output == "RETURNED 4 1\n"
    assert "Trials: 4 of 4 (3 TERMINATED, 1 ERROR)" in errors
    assert "1 trial failed:" in errors
    assert "[dasktune]" not in errors


@pytest.mark.slow
def test_a_reporter_that_raises_costs_nothing_but_itself(tmp_path):
    output, errors = run(tmp_path, "broken")
    assert output == "RETURNED 4 1\n"
    assert errors.count("RuntimeError: the reporter is broken") == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fit", "fit_async", "reporter"])
def test_a_notebook_keeps_the_last_picture(tmp_path, how):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    calls = {
        "fit": f"main({str(tmp_path)!r})",
        "fit_async": f"import asyncio; await asyncio.to_thread(main, {str(tmp_path)!r})",
        "reporter": f"REPORTERS['table'] = tune.JupyterNotebookReporter(); main({str(tmp_path)!r}, 'table')",
    }
    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "x", "language": "python"}
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in (PROGRAM, calls[how] + ";")]
    nbclient.NotebookClient(notebook, timeout=250, iopub_timeout=250, kernel_name="python3").execute()
    outputs = notebook.cells[1].outputs
    pages = [one.data["text/html"] for one in outputs if one.output_type == "display_data"]
    assert len(pages) == 1
    [page] = pages
    assert "ValueError: no [bold]such?[31m loss" in page
    if how == "reporter":
        assert "Trials: 4 of 4 (3 TERMINATED, 1 ERROR)" in page
    else:
        assert '<progress max="4" value="4"' in page
        assert "Best: loss 0.3333 in " in page
    assert len(page) < 10_000
    streams = "".join(one.text for one in outputs if one.output_type == "stream")
    assert "RETURNED 4 1" in streams
    assert "[dasktune]" not in streams


STOPPED = """
import faulthandler
import logging
import os
import sys
import distributed
import dasktune as tune

def train(config):
    for epoch in range(60):
        tune.report({"loss": config["x"] / (epoch + 1)})

if __name__ == "__main__":
    # If it hangs, the test shows where.
    faulthandler.dump_traceback_later(110, exit=True, file=open(sys.argv[1] + ".stacks", "w"))
    # What a worker writes, such as a warning of Python's, must not wait for the terminal, too.
    terminal, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    with distributed.Client(
        n_workers=1, threads_per_worker=2, dashboard_address=":0", silence_logs=50
    ) as client:
        os.dup2(terminal, 2)
        os.close(terminal)
        if len(sys.argv) > 2:
            logging.basicConfig()
            logging.getLogger("dasktune").setLevel(logging.INFO)
        results = tune.Tuner(
            train,
            param_space={"x": tune.grid_search([1.0, 2.0, 3.0, 4.0])},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(storage_path=sys.argv[1], name="e", verbose=3),
            client=client,
        ).fit()
    print("RETURNED", len(results), results.num_errors, flush=True)
"""


def unread(kind):
    """Return the two ends of a terminal or a pipe; the pipe is full."""
    if kind != "pipe":
        return os.openpty()
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writes, b"." * 4096)
    os.set_blocking(writes, True)
    return reads, writes


def environment(term):
    unset = {"CI", "DASKTUNE_PROGRESS", "COLUMNS", "LINES"}
    env = {name: value for name, value in os.environ.items() if name not in unset}
    root = str(Path(__file__).parents[2])
    return env | {"TERM": term, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": root}


@pytest.mark.parametrize(
    "term", ["xterm", *(pytest.param(term, marks=pytest.mark.slow) for term in ("dumb", "pipe"))]
)
def test_an_experiment_runs_on_and_ends_while_its_terminal_does_not_read(tmp_path, term):
    # As after Ctrl-S, in the copy mode of tmux, or in a pager: a process that writes waits.
    script = tmp_path / "script.py"
    script.write_text(STOPPED)
    reads, writes = unread(term)
    try:
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / "runs")],
            stdout=subprocess.PIPE,
            stderr=writes,
            env=environment(term),
            timeout=120,
            check=False,
        )
        os.close(writes)
        assert done.stdout == b"RETURNED 4 0\n", Path(f"{tmp_path}/runs.stacks").read_text()
        assert done.returncode == 0
        # It was full: the text of 240 results did not fit.
        assert len(os.read(reads, 1 << 20)) > 1000
    finally:
        os.close(reads)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_experiment_runs_on_and_ends_while_a_log_handler_of_the_user_waits(tmp_path):
    # `logging.basicConfig` writes to the terminal, here a full pipe that no process reads.
    script = tmp_path / "script.py"
    script.write_text(STOPPED)
    reads, writes = unread("pipe")
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs"), "logs"],
        stdout=subprocess.PIPE,
        stderr=writes,
        env=environment("pipe"),
        start_new_session=True,
    ) as process:
        # A script that hangs writes its stacks after 110 s; what it has started may hold the pipe.
        timer = threading.Timer(130, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            os.close(writes)
            # The thread of the handler has written nothing: the pipe is full.
            returned = process.stdout.readline()
            assert returned == b"RETURNED 4 0\n", Path(f"{tmp_path}/runs.stacks").read_text()
            shown = b""
            # At its end Python waits for the handlers of logging.
            while data := os.read(reads, 1 << 16):
                shown += data
            assert process.wait(60) == 0
        finally:
            timer.cancel()
            process.kill()
            os.close(reads)
    assert b"INFO:dasktune." in shown
