"""Ctrl-C in a real terminal, where the signal reaches the driver and all its workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from dasktune.control.issuer import this_user
from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.tuner.tuner import Tuner

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX"),
]

SCRIPT = """
import os
import sys
import threading
from pathlib import Path
import dasktune as tune

HOME, HOW, ISOLATION, CLUSTER = Path(sys.argv[1]), *sys.argv[2:]

def train(config):
    home = Path(config["home"])
    tune.report({"loss": 1.0})
    tune.report({"loss": 0.5})
    (home / f"pid-{os.getpid()}").touch()
    if config["how"] == "stuck":
        threading.Event().wait()
    while True:
        (home / "breath").touch()
        tune.report({"loss": 0.25})

def fit(client):
    results = tune.Tuner(
        train,
        client=client,
        param_space={"home": str(HOME), "how": HOW, "x": tune.grid_search(list(range(50)))},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            storage_path=HOME / "runs",
            name="e",
            stop_grace=300 if HOW == "stuck" else 10,
            isolation=ISOLATION,
        ),
    ).fit()
    print("RETURNED", len(results), sum(bool(r.history) for r in results), flush=True)

if __name__ == "__main__":
    if CLUSTER == "dasktune's":
        fit(None)
    else:
        from distributed import LocalCluster

        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
            fit(cluster)
"""

#: Runs a command in a terminal of its own, whose keyboard is our standard input.
TERMINAL = """
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""


class Terminal:
    """A script in a pseudo-terminal."""

    def __init__(self, home: Path, how: str, isolation: str = "thread", cluster: str = "dasktune's") -> None:
        script = home / "script.py"
        script.write_text(SCRIPT)
        python = [sys.executable, str(script), str(home), how, isolation, cluster]
        arguments = [sys.executable, "-c", TERMINAL, *python]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.output = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while piece := os.read(self.process.stdout.fileno(), 65536):
            self.output += piece

    def press_ctrl_c(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\x03")
        self.process.stdin.flush()

    def wait(self) -> tuple[int, str]:
        """Wait for the script's end, and return its exit status and what it showed."""
        status = self.process.wait(timeout=60)
        self._reader.join()
        return status, self.output.decode(errors="replace")

    def wait_until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert self.process.poll() is None, self.output.decode(errors="replace")
            assert time.monotonic() < deadline, self.output.decode(errors="replace")
            threading.Event().wait(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def processes_of_session(session: int) -> list[int]:
    """Return the processes of a terminal: the script is the first one of its session."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError):  # it has ended
            found += [pid] if os.getsid(pid) == session else []
    return found


def workers(home: Path) -> list[int]:
    """Return the processes in which trials have run."""
    return [int(path.name.partition("-")[2]) for path in home.glob("pid-*")]


def assert_none_left(home: Path) -> None:
    """Nothing is left in which a trial ran; the kernel ends children when their worker is gone."""
    deadline = time.monotonic() + 60
    while left := [pid for pid in workers(home) if is_running(pid)]:
        assert time.monotonic() < deadline, left
        threading.Event().wait(0.01)


def journal(home: Path) -> list[dict[str, Any]]:
    return list(read_journal(Storage(str(home / "runs" / "e"))))


def reported(home: Path) -> bool:
    """Whether a trial is past its first two results, and the driver has them."""
    told = [record for record in journal(home) if record["event"] == "ResultReported"]
    return bool(workers(home)) and len(told) >= 2


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_ctrl_c_ends_in_good_order_and_keeps_what_there_is(tmp_path: Path, isolation: str) -> None:
    terminal = Terminal(tmp_path, "obedient", isolation)
    terminal.wait_until(lambda: reported(tmp_path))
    terminal.press_ctrl_c()
    status, shown = terminal.wait()
    assert status == 0, shown
    assert "press Ctrl-C again to leave at once" in shown
    assert f"Resume with Tuner.restore('{tmp_path / 'runs' / 'e'}', train).fit()" in shown
    assert re.search(r"RETURNED \d+ [1-9]", shown), shown
    # Workers that had died of the signal would have been reported, and restarted.
    noise = ("Traceback", "ERROR", "WARNING", "lost its worker")
    assert not any(word in shown for word in noise), shown
    assert_none_left(tmp_path)
    records = journal(tmp_path)
    assert sum(record.get("event") == "ResultReported" for record in records) >= 2
    final = {"TERMINATED", "ERROR"}
    assert not final & {record.get("status") for record in records}
    by = [record["by"] for record in records if record.get("event") == "InterruptRequested"]
    assert by == [f"{this_user()} (SIGINT)"]


@pytest.mark.slow
def test_ctrl_c_lets_the_trials_save_on_a_local_cluster_of_the_user(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "obedient", cluster="user's")
    terminal.wait_until(lambda: reported(tmp_path))
    terminal.press_ctrl_c()
    status, shown = terminal.wait()
    assert status == 0, shown
    assert "press Ctrl-C again to leave at once" in shown
    assert re.search(r"RETURNED \d+ [1-9]", shown), shown
    # Its workers got the signal, too, and neither died of it nor were started again.
    assert not any(word in shown for word in ("Traceback", "ERROR", "WARNING", "lost its worker")), shown
    assert_none_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_second_ctrl_c_leaves_at_once(tmp_path: Path, isolation: str) -> None:
    terminal = Terminal(tmp_path, "stuck", isolation)
    terminal.wait_until(lambda: reported(tmp_path))
    terminal.press_ctrl_c()
    terminal.wait_until(lambda: b"press Ctrl-C again" in terminal.output)
    terminal.press_ctrl_c()
    status, shown = terminal.wait()
    assert status != 0
    assert "RETURNED" not in shown
    assert "KeyboardInterrupt" in shown
    assert "During handling" not in shown
    assert "trial_runner.py" not in shown
    assert journal(tmp_path)
    assert_none_left(tmp_path)


def test_ctrl_c_while_the_cluster_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "obedient")
    # Its storage is tried out right before the cluster starts.
    terminal.wait_until(lambda: (tmp_path / "runs").is_dir())
    [script] = psutil.Process(terminal.process.pid).children()
    terminal.press_ctrl_c()
    status, shown = terminal.wait()
    assert status != 0
    assert "RETURNED" not in shown
    deadline = time.monotonic() + 60
    while left := processes_of_session(script.pid):
        assert time.monotonic() < deadline, left
        threading.Event().wait(0.01)


def test_an_interrupted_experiment_does_not_begin_again_by_accident(tmp_path: Path) -> None:
    home = tmp_path / "e"
    home.mkdir()
    (home / "experiment.json").write_text("{}")
    from dasktune import RunConfig

    tuner = Tuner(
        lambda config: None, run_config=RunConfig(storage_path=tmp_path, name="e", if_exists="error")
    )
    with pytest.raises(StorageError, match="holds an experiment already"):
        tuner.fit()
