from __future__ import annotations

import errno
import logging
from itertools import pairwise

import pytest

from dasktune.errors import StorageError
from dasktune.storage.fs.retry import RetrySchedule, is_transient, retry


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def attempts_of(outage: RetrySchedule, start: float) -> list[float]:
    """Return when each attempt is made if all of them fail at once."""
    times = [start]
    while outage.failed(times[-1]):
        assert not outage.is_due(times[-1])
        times.append(times[-1] + outage.wait(times[-1]))
        assert outage.is_due(times[-1])
    return times


@pytest.mark.parametrize("seed", range(20))
def test_waits_grow_to_15_s_and_the_last_attempt_is_when_the_patience_is_over(seed: int) -> None:
    times = attempts_of(RetrySchedule(300.0, seed=seed), 50.0)
    waits = [after - before for before, after in pairwise(times)]
    assert times[-1] == 350.0
    for number, wait in enumerate(waits[:-1]):
        longest = min(0.5 * 2**number, 15.0)
        assert longest / 2 <= wait <= longest
    assert 20 < len(waits) < 45


def test_no_two_outages_wait_alike() -> None:
    assert attempts_of(RetrySchedule(60.0), 0.0) != attempts_of(RetrySchedule(60.0), 0.0)


def test_without_patience_there_is_one_attempt() -> None:
    assert attempts_of(RetrySchedule(0.0), 7.0) == [7.0]


def test_what_has_failed_may_be_tried_again_at_once_and_fails_at_once() -> None:
    outage = RetrySchedule(1.0, seed=0)
    end = attempts_of(outage, 0.0)[-1]
    assert outage.is_due(end + 5)
    assert outage.wait(end + 5) == 0.0
    assert not outage.failed(end + 5)


def test_after_a_success_the_patience_is_whole_again() -> None:
    outage = RetrySchedule(10.0, seed=0)
    assert outage.since is None
    assert outage.is_due(0.0)
    assert outage.failed(100.0)
    assert (outage.since, outage.until) == (100.0, 110.0)
    outage.end()
    assert outage.since is None
    assert outage.wait(500.0) == 0.0
    assert outage.failed(500.0)
    assert outage.until == 510.0
    assert outage.wait(500.0) <= 0.5


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.EIO, "An error occurred (SlowDown)"), True),
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (StorageError("no answer"), True),
        (RuntimeError("whatever a client raises"), True),
        (FileNotFoundError(), False),
        (FileExistsError(), False),
        (PermissionError(), False),
        (OSError(errno.EROFS, "read-only"), False),
        (ValueError("a mistake"), False),
    ],
)
def test_what_an_answer_says_finally_is_not_asked_again(error: Exception, passing: bool) -> None:
    assert is_transient(error) is passing


class Flaky:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_it_says_what_failed_and_until_when_it_is_tried_and_that_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = Time()
    attempt = Flaky(OSError("key=hunter2"), OSError("again"), OSError("again"))
    with caplog.at_level(logging.INFO):
        done = retry(
            attempt,
            300.0,
            what="Writing x",
            explain=lambda error: str(error).replace("hunter2", "***"),
            clock=time,
            sleep=time.sleep,
        )
    assert done == "done"
    assert len(time.slept) == 3
    warning, relief = caplog.records
    assert warning.levelno == logging.WARNING
    assert "Writing x failed with key=***" in warning.message
    assert "retried until" in warning.message
    assert "(300 s, RunConfig(storage_patience=...))" in warning.message
    assert "Writing x works again after" in relief.message


def test_it_raises_the_last_error() -> None:
    time = Time()
    attempt = Flaky(*(OSError(f"number {number}") for number in range(100)))
    with pytest.raises(OSError, match="number") as caught:
        retry(attempt, 20.0, what="x", clock=time, sleep=time.sleep)
    assert time.now == 1020.0
    assert str(caught.value) == f"number {len(time.slept)}"


def test_none_waits_for_what_is_not_wanted_any_more() -> None:
    time = Time()
    attempt = Flaky(*(OSError(f"number {number}") for number in range(100)))
    with pytest.raises(OSError, match="number"):
        retry(
            attempt,
            900.0,
            what="x",
            still_needed=lambda: time.now < 1030,
            clock=time,
            sleep=time.sleep,
        )
    assert 1030 <= time.now <= 1030.5
    assert max(time.slept) <= 0.5


def test_what_is_lasting_is_raised_at_once() -> None:
    time = Time()
    with pytest.raises(FileNotFoundError):
        retry(Flaky(FileNotFoundError()), 20.0, what="x", clock=time, sleep=time.sleep)
    assert time.slept == []
