"""What stop and share make of an experiment that runs in a program, and what they say of others."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future
from math import inf
from pathlib import Path
from typing import Any

import pytest

from dasktune.control import address_file
from dasktune.control.issuer import this_user
from dasktune.control.server import ControlServer, run_control_server
from dasktune.runner.commands import CommandOutcome
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.leader_lock import LeaderLock, current_leader


class Commands:
    """Note what they were told, and do nothing."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.given: list[dict[str, Any]] = []
        #: Who has sent them.
        self.issuers: list[str] = []

    def __getattr__(self, what: str) -> Any:
        def do(*, by: str, **given: Any) -> Future[CommandOutcome]:
            self.told.append(what)
            self.issuers.append(by)
            self.given.append(given)
            future: Future[CommandOutcome] = Future()
            future.set_result(CommandOutcome(message="done"))
            return future

        return do


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
def server(commands: Any) -> Iterator[ControlServer]:
    server = ControlServer(commands, token="secret")
    yield server
    server.close()


def test_stop_reaches_a_driver_by_its_server(commands, server, dasktune):
    code, out, _ = dasktune("stop", "--url", server.url, "--token", "secret")
    assert (code, out) == (0, f"{server.url} is being stopped\n")
    code, out, _ = dasktune("stop", "--url", server.url, "--token", "secret", "--interrupt")
    assert (code, out) == (0, f"{server.url} is being interrupted\n")
    assert commands.told == ["stop", "cancel"]
    assert all(by.startswith(f"{this_user()} (HTTP") for by in commands.issuers)


def test_a_wrong_token_is_named_and_stops_nothing(commands, server, dasktune):
    code, _, err = dasktune("stop", "--url", server.url, "--token", "guess")
    assert code == 2
    assert "token missing or wrong" in err
    assert commands.told == []


@pytest.mark.parametrize("given", ["secret", "TuneClient('{url}', token='secret')"])
def test_the_token_may_come_by_standard_input(commands, server, dasktune, monkeypatch, given):
    monkeypatch.setattr("sys.stdin", io.StringIO(given.format(url=server.url) + "\n"))
    assert dasktune("stop", "--url", server.url)[0] == 0
    assert commands.told == ["stop"]


def test_no_answer_is_an_error(dasktune, commands):
    server = ControlServer(commands, token="secret")
    server.close()
    code, _, err = dasktune("stop", "--url", server.url, "--token", "secret")
    assert code == 2
    assert "no answer from" in err
    assert "Check that the driver is alive and runs on this machine." in err


def test_a_directory_tells_where_its_driver_listens(commands, written, tmp_path, dasktune):
    path = written(tmp_path / "exp")
    storage = Storage(path)
    with LeaderLock(storage), run_control_server(True, commands, storage) as server:
        assert server is not None
        assert server.token not in (tmp_path / "exp/driver/control.json").read_text()
        assert dasktune("stop", path, "--token", server.token)[0] == 0
    assert commands.told == ["stop"]
    assert not (tmp_path / "exp/driver/control.json").exists()


def test_a_driver_that_takes_no_commands_says_so(written, tmp_path, dasktune):
    path = written(tmp_path / "exp")
    with LeaderLock(Storage(path)):
        code, _, err = dasktune("stop", path)
    assert code == 2
    assert f"`kill -INT {os.getpid()}`" in err
    assert "RunConfig(server_port=True)" in err


def test_an_experiment_that_does_not_run_is_left_alone(written, tmp_path, dasktune, path):
    code, out, _ = dasktune("stop", path)
    assert (code, out) == (0, "exp is not running: it is finished\n")


def test_what_another_program_wrote_is_not_believed(written, tmp_path):
    path = written(tmp_path / "exp")
    storage, place = Storage(path), tmp_path / "exp/driver/control.json"
    with LeaderLock(storage):
        lease = current_leader(storage)
        assert lease is not None
        assert address_file.read(storage, lease) is None
        address_file.write(storage, "http://127.0.0.1:1")
        assert address_file.read(storage, lease) == "http://127.0.0.1:1"
        good = json.loads(place.read_text())
        for change in ({"url": "http://evil.example:1"}, {"pid": 1}, {"kind": ""}, {"url": 3}):
            place.write_text(json.dumps({**good, **change}))
            assert address_file.read(storage, lease) is None
        for text in ("", "[]", "\xff"):
            place.write_text(text)
            assert address_file.read(storage, lease) is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "EXPERIMENT must be given"),
        (["exp", "--url", "http://x"], "Leave it out with --url"),
        (["--address", "tcp://x:1", "--url", "http://x"], "Leave out --address or --url"),
        (["--url", "x", "--token", "t"], "url must be an http:// address"),
        (["nowhere"], "experiment"),
    ],
)
def test_wrong_arguments_are_named(arguments, told, dasktune):
    code, _, err = dasktune("stop", *arguments)
    assert code == 2
    assert told in err


def test_a_share_is_sent_to_the_server_of_the_driver(commands, server, dasktune):
    place = ["--url", server.url, "--token", "secret"]
    code, out, _ = dasktune("share", *place, "--weight", "2", "--priority", "-1")
    assert (code, out) == (0, f"{server.url} now has weight 2 and priority -1\n")
    code, out, _ = dasktune("share", *place, "--priority=0.5")
    assert (code, out) == (0, f"{server.url} now has priority 0.5\n")
    code, out, _ = dasktune("share", *place, "--yields-after", "60")
    assert (code, out) == (0, f"{server.url} now has yields_after 60\n")
    code, out, _ = dasktune("share", *place, "--yields-after=never")
    assert code == 0
    assert commands.told == ["set_share"] * 4
    assert commands.given == [
        {"weight": 2.0, "priority": -1.0},
        {"priority": 0.5},
        {"yields_after": 60.0},
        {"yields_after": inf},
    ]


def test_a_share_is_sent_to_the_driver_of_a_directory(commands, written, tmp_path, dasktune):
    path = written(tmp_path / "exp")
    storage = Storage(path)
    with LeaderLock(storage):
        code, _, err = dasktune("share", path, "--weight", "2")
        assert code == 2
        assert "accepts no commands. Name a submitted experiment together with --address." in err
        with run_control_server(True, commands, storage) as server:
            assert server is not None
            assert dasktune("share", path, "--weight", "2", "--token", server.token)[0] == 0
    assert commands.given == [{"weight": 2.0}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exp"], "--weight must be given if --priority and --yields-after are not, got None"),
        (["exp", "--weight", "0"], "--weight must be a positive finite number, got 0.0"),
        (["exp", "--priority", "inf"], "--priority must be a finite number, got inf"),
        (["exp", "--weight", "heavy"], "argument --weight: invalid float value: 'heavy'"),
        (["--weight", "2"], "EXPERIMENT must be given"),
    ],
)
def test_an_invalid_share_is_refused_before_a_driver_is_looked_for(arguments, message, dasktune):
    code, _, err = dasktune("share", *arguments)
    assert code == 2
    assert message in err


def test_an_address_that_cannot_be_noted_is_logged(tmp_path: Path, caplog):
    (tmp_path / "driver").write_text("a file in the way")
    address_file.write(Storage(tmp_path), "http://127.0.0.1:1")
    address_file.remove(Storage(tmp_path))
    assert "could not write the URL of the control server" in caplog.text
