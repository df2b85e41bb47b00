"""Log handlers of users that block, raise and come and go while experiments run."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest
from progress_kit import Run, trial_storage

import dasktune as tune
from dasktune.progress import log_relay, open_progress
from dasktune.progress.log_relay import relayed_logs

PATIENCE = 60.0

log = logging.getLogger("dasktune.somewhere")


class Noted(logging.Handler):
    """Notes messages, and blocks while its gate is closed."""

    def __init__(self, level: int = 0) -> None:
        super().__init__(level)
        self.texts: list[str] = []
        self.threads: set[str] = set()
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        self.threads.add(threading.current_thread().name)
        self.texts.append(record.getMessage())


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The package's logger, without a handler here and above."""
    package = logging.getLogger("dasktune")
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(package, "handlers", [])
    monkeypatch.setattr(package, "level", logging.INFO)
    logging.root.manager._clear_cache()  # type: ignore[attr-defined]
    yield package
    logging.root.manager._clear_cache()  # type: ignore[attr-defined]


@pytest.fixture
def own(package: logging.Logger) -> Noted:
    """A handler of the user on the package's logger."""
    package.addHandler(handler := Noted())
    return handler


@pytest.fixture
def above(package: logging.Logger) -> Noted:
    """A handler of the user on the root logger, for warnings."""
    logging.root.addHandler(handler := Noted(logging.WARNING))
    return handler


def test_a_thread_calls_the_handlers_of_the_user_and_each_once(
    package: logging.Logger, own: Noted, above: Noted
):
    with relayed_logs(PATIENCE):
        log.info("first %s", 1)
        log.warning("second")
    assert own.texts == ["first 1", "second"]
    assert above.texts == ["second"]
    assert own.threads == above.threads == {"dasktune-log-relay"}
    assert package.handlers == [own]
    assert package.propagate


def test_a_handler_that_blocks_holds_up_nobody_and_gets_everything_later(
    package: logging.Logger, own: Noted, above: Noted
):
    own.gate.clear()
    with relayed_logs(0.001):
        log.warning("first")
        assert own.entered.wait(PATIENCE)
        log.warning("second")
    # The experiment has ended, and dasktune goes on to log.
    log.warning("third")
    assert own.texts == []
    assert package.handlers != [own]
    own.gate.set()
    with relayed_logs(PATIENCE):
        pass
    assert own.texts == above.texts == ["first", "second", "third"]
    assert package.handlers == [own]


def test_what_does_not_fit_is_dropped_and_counted(own: Noted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_relay, "_MAX_RECORDS", 3)
    own.gate.clear()
    with relayed_logs(PATIENCE):
        log.warning("first")
        assert own.entered.wait(PATIENCE)
        for number in range(5):
            log.warning("number %s", number)
        own.gate.set()
    dropped = "2 log records were dropped: a handler of logging did not keep up"
    assert sorted(own.texts) == [dropped, "first", "number 0", "number 1", "number 2"]


def test_a_handler_that_raises_costs_no_other_record(own: Noted, capsys: pytest.CaptureFixture[str]):
    class Raising(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("no handler")

    logging.root.addHandler(Raising())
    with relayed_logs(PATIENCE):
        log.warning("first")
        log.warning("second")
    assert own.texts == ["first", "second"]
    assert "no handler" in capsys.readouterr().err


def test_experiments_at_the_same_time_share_the_thread(package: logging.Logger, own: Noted):
    with relayed_logs(PATIENCE):
        with relayed_logs(PATIENCE):
            log.warning("first")
        log.warning("second")
    assert own.texts == ["first", "second"]
    assert own.threads == {"dasktune-log-relay"}
    assert package.handlers == [own]


def test_handlers_that_come_meanwhile_stay(package: logging.Logger, own: Noted):
    with relayed_logs(PATIENCE):
        package.addHandler(added := Noted())
        log.warning("first")
    assert package.handlers == [own, added]
    assert own.texts == added.texts == ["first"]


def test_logging_that_is_configured_meanwhile_stays_so(package: logging.Logger, own: Noted):
    with relayed_logs(PATIENCE):
        package.handlers = [new := Noted()]
    assert package.handlers == [new]
    package.propagate = True


def test_a_fork_logs_by_itself(own: Noted):
    with relayed_logs(PATIENCE), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        log.warning("first")
        assert own.texts == ["first"]
    assert own.threads == {threading.current_thread().name}


def test_warnings_without_a_handler_reach_standard_error(
    package: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    # pytest has added its own since the fixture began.
    monkeypatch.setattr(logging.root, "handlers", [])
    with relayed_logs(PATIENCE):
        log.warning("nobody asked for it")
    assert capsys.readouterr().err == "nobody asked for it\n"


def test_the_warnings_of_an_experiment_reach_its_own_stream_while_another_one_ends(
    package: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logging.root, "handlers", [])
    run, config = Run(), tune.RunConfig(verbose=0)
    first = open_progress(config, run.experiment, trial_storage(), {})
    second = open_progress(config, run.experiment, trial_storage(), {})
    first.__enter__()
    second.__enter__()
    log.warning("first")
    first.__exit__(None, None, None)
    log.warning("second")
    second.__exit__(None, None, None)
    assert capsys.readouterr().err == "first\nsecond\n"
    assert package.handlers == []
