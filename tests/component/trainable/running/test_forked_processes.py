"""Processes that the code of a trial in a thread forks."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import Any

import pytest
from trial_run_kit import PATIENCE, Driver

import dasktune as tune
from dasktune.errors import TuneError
from dasktune.trainable.api.dask_client import set_client_factory
from dasktune.trainable.reporting.trial_messages import Ended
from dasktune.trial.milestone import EVERY_RESULT

#: Python 3.12 and newer warn of a fork beside threads, as the fork of a trial always is.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def in_fork(work: Callable[[], Any]) -> str:
    """Do something in a fork; return what it raises or returns there."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            outcome = repr(work())
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        os.write(theirs, outcome.encode())
        os._exit(0)
    try:
        # No wait for its end: it may wait for ever itself.
        there, _, _ = select.select([ours], [], [], PATIENCE / 3)
        return os.read(ours, 4096).decode() if there else "it hangs"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)


def outcome_in_a_trial(work: Callable[[], Any], **spec: Any) -> str:
    """Do something in a fork of a trial; return its outcome there."""
    outcomes = []

    def train(config: dict[str, Any]) -> None:
        set_client_factory(lambda: "client")
        outcomes.append(in_fork(work))

    assert isinstance(Driver(train, **spec).end(), Ended)
    return outcomes[0]


def test_a_report_in_a_fork_is_an_error_and_does_not_wait_for_an_answer() -> None:
    outcome = outcome_in_a_trial(lambda: tune.report({"x": 1}), milestones=EVERY_RESULT)
    assert outcome.startswith("TuneError: report() must be called in the process of the trial (pid ")
    assert "multiprocessing.Queue" in outcome


def test_what_else_needs_the_threads_of_the_trial_is_an_error_in_a_fork() -> None:
    for function in (tune.get_checkpoint, tune.get_client):
        assert outcome_in_a_trial(function).startswith(f"TuneError: {function.__name__}() must be called in")


def test_the_names_of_the_trial_are_there_in_a_fork() -> None:
    assert outcome_in_a_trial(lambda: tune.get_context().get_trial_id(), trial_id="t7") == "'t7'"


@pytest.mark.parametrize(
    ("leave", "status"), [("return", 0), ("raise", 1), ("exit", 5), ("message", 1), ("none", 0)]
)
def test_a_fork_that_comes_back_from_user_code_ends_there(leave: str, status: int, capfd: Any) -> None:
    parent, statuses = os.getpid(), []

    def train(config: dict[str, Any]) -> None:
        pid = os.fork()
        if pid:
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        elif leave == "raise":
            raise ValueError("in the fork")
        elif leave in ("exit", "message", "none"):
            raise SystemExit({"exit": 5, "message": "a reason", "none": None}[leave])

    end = Driver(train).end()
    # Otherwise the fork would run the tests that follow, too.
    assert os.getpid() == parent
    assert isinstance(end, Ended)
    assert statuses == [status]
    assert ("ValueError: in the fork" in capfd.readouterr().err) == (leave == "raise")


def test_a_step_that_forks_is_made_once() -> None:
    class Forks(tune.Trainable):
        def step(self) -> dict[str, Any]:
            pid = os.fork()
            if pid:
                assert os.waitpid(pid, 0)[1] == 0
            return {"forked": True, "done": True}

    driver = Driver(Forks)
    assert isinstance(driver.end(), Ended)
    assert driver.values("forked") == [True]


def test_the_error_names_both_processes() -> None:
    from dasktune.trainable.fork_guard import check_not_forked

    with pytest.raises(
        TuneError, match=rf"\(pid {os.getpid() + 1}\), got .* \(pid {os.getpid()}\). Do that."
    ):
        check_not_forked(os.getpid() + 1, "f()", "Do that.")
