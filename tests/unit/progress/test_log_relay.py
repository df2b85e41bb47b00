"""Log handlers of users that block, raise and come and go while experiments run."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from progress_kit import Run, trial_storage

import dasktune as tune
from dasktune.progress import open_progress
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
    monkeypatch.setattr(package, "propagate", True)
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


def test_a_handler_that_blocks_holds_up_none_and_gets_everything_later(
    package: logging.Logger, own: Noted, above: Noted
):
    own.gate.clear()
    with relayed_logs(0.001):
        log.warning("first")
        assert own.entered.wait(PATIENCE)
        log.warning("second")
    # The experiment has ended, and dasktune still logs.
    log.warning("third")
    assert own.texts == []
    assert package.handlers != [own]
    own.gate.set()
    with relayed_logs(PATIENCE):
        pass
    assert own.texts == above.texts == ["first", "second", "third"]
    assert package.handlers == [own]


def test_what_does_not_fit_is_dropped_and_counted(own: Noted, monkeypatch: pytest.MonkeyPatch):
    # The handlers of pytest would take long for so many records.
    monkeypatch.setattr(logging.root, "handlers", [])
    own.gate.clear()
    with relayed_logs(PATIENCE):
        log.warning("first")
        assert own.entered.wait(PATIENCE)
        for number in range(10_002):
            log.warning("number %s", number)
        own.gate.set()
    dropped = "2 log records were dropped: a handler of logging did not keep up"
    fitting = [f"number {number}" for number in range(10_000)]
    assert sorted(own.texts) == sorted([dropped, "first", *fitting])


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


def test_a_configuration_without_propagate_leaves_it_as_it_was(package: logging.Logger, own: Noted):
    # `dictConfig` does this with the handlers, and sets `propagate` only if it is given.
    with relayed_logs(PATIENCE):
        package.removeHandler(package.handlers[0])
        package.addHandler(new := Noted())
    assert package.handlers == [new]
    assert package.propagate


@pytest.mark.parametrize("value", [True, False])
def test_propagate_that_is_set_meanwhile_stays_so(package: logging.Logger, own: Noted, value: bool):
    with relayed_logs(PATIENCE):
        package.propagate = value
    assert package.handlers == [own]
    assert package.propagate is value


def test_a_handler_that_is_added_twice_gets_each_record_once_afterwards(package: logging.Logger, own: Noted):
    with relayed_logs(PATIENCE):
        package.addHandler(own)
    assert package.handlers == [own]


def test_a_handler_that_exits_ends_no_thread(own: Noted):
    class Exiting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit(1)

    logging.root.addHandler(Exiting())
    with relayed_logs(PATIENCE):
        log.warning("first")
        log.warning("second")
    assert own.texts == ["first", "second"]


def test_ctrl_c_while_a_handler_is_waited_for_leaves_nothing_behind(
    package: logging.Logger, own: Noted, monkeypatch: pytest.MonkeyPatch
):
    wait_for = threading.Condition.wait_for

    def interrupted(
        condition: threading.Condition, predicate: Callable[[], bool], timeout: float | None = None
    ) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return wait_for(condition, predicate, timeout)

    own.gate.clear()
    relayed = relayed_logs(PATIENCE)
    relayed.__enter__()
    log.warning("first")
    assert own.entered.wait(PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            relayed.__exit__(None, None, None)
    own.gate.set()
    with relayed_logs(PATIENCE):
        pass
    assert own.texts == ["first"]
    assert package.handlers == [own]


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
        log.warning("without a handler")
    assert capsys.readouterr().err == "without a handler\n"


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


def test_no_thread_is_left_when_the_last_experiment_has_ended(own: Noted) -> None:
    for number in range(2):
        with relayed_logs(PATIENCE):
            log.info("during %s", number)
        for thread in [one for one in threading.enumerate() if one.name == "dasktune-log-relay"]:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert own.texts == ["during 0", "during 1"]
    assert own.threads == {"dasktune-log-relay"}


@pytest.mark.parametrize("propagates", [True, False])
def test_records_reach_the_handlers_above_once_if_propagate_is_set_meanwhile(
    package: logging.Logger, above: Noted, propagates: bool
) -> None:
    with relayed_logs(PATIENCE):
        package.propagate = propagates
        log.warning("during")
    assert above.texts == ["during"] * propagates
