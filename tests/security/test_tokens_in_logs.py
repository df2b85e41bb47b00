"""A token is shown on a terminal, and in no log or notebook that others may read."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dasktune.cli import main
from dasktune.control.secret_notice import secret_notice
from dasktune.dashboard.server.web import WebServer
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage

SECRET = "TuneClient('http://127.0.0.1:1', token='s3cret')"

pytestmark = pytest.mark.usefixtures("complete_notices")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "dasktune"


def path_in(text: str) -> Path:
    found = re.fullmatch(r"Control: see (\S+), which contains a token and which only you can read\n", text)
    assert found is not None
    return Path(found[1])


def test_a_terminal_shows_the_token(state: Path):
    stream = Terminal()
    with secret_notice(stream, "Control", SECRET):
        assert stream.getvalue() == f"Control: {SECRET}\n"
    assert not state.exists()


def test_a_log_gets_the_path_of_a_file_that_only_the_user_can_read(state: Path):
    stream = io.StringIO()
    before = os.umask(0)
    try:
        with secret_notice(stream, "Control", SECRET):
            path = path_in(stream.getvalue())
            assert path.read_text() == f"{SECRET}\n"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(state.stat().st_mode) == 0o700
            assert path.parent == state
    finally:
        os.umask(before)
    assert not path.exists()
    assert "s3cret" not in stream.getvalue()


def test_a_directory_that_was_open_to_others_is_closed(state: Path):
    state.mkdir(parents=True)
    state.chmod(0o777)
    with secret_notice(io.StringIO(), "Control", SECRET):
        assert stat.S_IMODE(state.stat().st_mode) == 0o700


@pytest.mark.parametrize("bad", ["link", "file", "of another user", "relative"])
def test_a_directory_that_is_not_the_user_s_is_not_used(
    state: Path, tmp_path: Path, bad: str, monkeypatch: pytest.MonkeyPatch
):
    state.parent.mkdir()
    if bad == "link":
        (tmp_path / "theirs").mkdir()
        state.symlink_to(tmp_path / "theirs")
    elif bad == "file":
        state.write_text("")
    elif bad == "relative":
        monkeypatch.setenv("XDG_STATE_HOME", "state")
    elif os.geteuid() != 0:
        pytest.skip("only root can create files of another user")
    else:
        state.mkdir()
        os.chown(state, 65534, 65534)
    stream = io.StringIO()
    with secret_notice(stream, "Control", SECRET):
        path = path_in(stream.getvalue())
        # In the temporary directory, with a name that cannot be guessed.
        assert path.parent not in (state, tmp_path / "theirs")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


def test_without_a_place_for_the_file_the_token_is_not_shown_at_all(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("tempfile.mkstemp", lambda **options: os.open("/dev/full/none", os.O_RDONLY))
    caplog.set_level(logging.DEBUG)
    stream = io.StringIO()
    with secret_notice(stream, "Control", SECRET):
        assert stream.getvalue() == ""
    assert "the token of the control could not be stored" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("stream", [None, object()])
def test_a_strange_stream_is_no_terminal(state: Path, stream: object):
    with secret_notice(stream, "Control", SECRET):  # type: ignore[arg-type]
        [path] = state.iterdir()
        assert path.read_text() == f"{SECRET}\n"


KILLED = """
import io, os, signal
from dasktune.control.secret_notice import secret_notice
with secret_notice(io.StringIO(), "Control", "old"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_file_of_a_killed_driver_is_deleted_and_that_of_a_living_one_is_not(state: Path):
    ended = subprocess.run([sys.executable, "-c", KILLED], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    [left] = state.iterdir()
    with secret_notice(io.StringIO(), "Control", "first"):
        assert not left.exists()
        [first] = state.iterdir()
        with secret_notice(io.StringIO(), "Control", "second"):
            assert first.exists()
            assert len(list(state.iterdir())) == 2


def test_the_output_of_the_command_for_other_machines_has_no_token_unless_a_terminal_shows_it(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    store = ExperimentStore(Storage(tmp_path / "exp"))
    store.create({"name": "exp"})
    links: list[str] = []

    def look(server: WebServer) -> None:
        links.append(server.link)
        [path] = state.iterdir()
        assert path.read_text() == f"{server.link}\n"
        raise KeyboardInterrupt

    monkeypatch.setattr(WebServer, "wait", look)
    assert main(["dashboard", str(tmp_path / "exp"), "--host", "0.0.0.0", "--port", "0"]) == 0
    told = capsys.readouterr()
    assert "?token=" in links[0]
    assert "token=" not in told.out + told.err
    assert list(state.iterdir()) == []


DRIVER = """
import time
from dasktune.progress import background_stream
background_stream.PROMPT_SECONDS = 120.0
from dasktune.dashboard.server.attach import serve_dashboard
from dasktune.control.open_server import controlled
from dasktune.storage.fs.storage import Storage
storage = Storage("memory://x")
with serve_dashboard(1, dict, storage=storage, runner_time=time.time, commander=lambda: None):
    with controlled(True, None):
        pass
"""


@pytest.mark.slow
def test_the_log_of_a_driver_under_slurm_or_nohup_has_no_token(tmp_path: Path):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=True,
    )
    assert "token=" not in ended.stdout + ended.stderr
    assert re.findall(r"^(\w+): see ", ended.stderr, re.MULTILINE) == ["Dashboard", "Control"]
