"""What the handlers do; tests with processes are in tests/cluster/test_ctrl_c.py."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from dasktune.control.issuer import this_user
from dasktune.tuner.signals import keep_interrupts, obey_signals

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals are POSIX")


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """Let Python handle SIGINT, which a shell's background processes ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Runner:
    """Counts its interrupts, and notes who has issued them."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.by: list[str] = []

    def interrupt(self, *, by: str) -> None:
        self.interrupts += 1
        self.by.append(by)


@contextmanager
def unchanged() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [*map(signal.getsignal, numbers), sys.unraisablehook]
    yield
    assert [*map(signal.getsignal, numbers), sys.unraisablehook] == before


def status(number: int) -> int:
    return 128 + number


def test_before_the_run_each_signal_ends_fit_as_it_would_end_the_process():
    with unchanged(), pytest.raises(KeyboardInterrupt), obey_signals():
        signal.raise_signal(signal.SIGINT)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        with unchanged(), pytest.raises(SystemExit) as ended, obey_signals():
            signal.raise_signal(number)
        assert ended.value.code == status(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_user_code_swallowed_ends_the_start_before_the_run(number: signal.Signals):
    runner = Runner()

    def fit() -> None:
        with obey_signals() as signals:
            with suppress(KeyboardInterrupt, SystemExit):
                signal.raise_signal(number)
            with signals.obey(runner):  # type: ignore[arg-type]
                pytest.fail("the run has begun")

    with unchanged(), pytest.raises((KeyboardInterrupt, SystemExit)):
        fit()
    assert runner.interrupts == 0


class Swallowing:
    """Python reports what a callback of a weak reference raises, and continues."""


def swallow(number: signal.Signals) -> None:
    it = Swallowing()
    reference = weakref.ref(it, lambda _: signal.raise_signal(number))
    del it
    assert reference() is None


@pytest.mark.parametrize("guard", [obey_signals, keep_interrupts])
def test_an_interrupt_that_a_callback_swallows_is_sent_again(guard: Any):
    def start() -> None:
        with guard():
            swallow(signal.SIGINT)
            assert not threading.Event().wait(60), "the wait is interrupted"

    with unchanged(), pytest.raises(KeyboardInterrupt):
        start()


@pytest.mark.parametrize("guard", [obey_signals, keep_interrupts])
def test_an_interrupt_that_becomes_another_error_ends_the_program_as_an_interrupt(guard: Any):
    def load() -> None:
        with guard():
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("as NumPy's C code does") from None

    with unchanged(), pytest.raises(KeyboardInterrupt):
        load()

    def fail() -> None:
        with guard():
            raise ImportError("without a signal")

    with unchanged(), pytest.raises(ImportError, match="without a signal"):
        fail()


def test_what_other_callbacks_raise_is_reported_as_ever(monkeypatch: pytest.MonkeyPatch):
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    with unchanged(), obey_signals():
        it = Swallowing()
        reference = weakref.ref(it, lambda _: 1 / 0)
        del it
    assert reference() is None
    assert [type(one) for one in told] == [ZeroDivisionError]


def test_the_first_signal_of_a_run_interrupts_it_and_says_so(caplog: pytest.LogCaptureFixture):
    runner, told = Runner(), threading.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    ear = Ear()
    # The root logger calls its handlers in order, so caplog's has the record before this one.
    logging.getLogger().addHandler(ear)
    try:
        with unchanged(), obey_signals() as signals:
            with signals.obey(runner):  # type: ignore[arg-type]
                signal.raise_signal(signal.SIGINT)
                assert told.wait(60)
            signals.end()
    finally:
        logging.getLogger().removeHandler(ear)
    assert runner.by == [f"{this_user()} (SIGINT)"]
    assert "press Ctrl-C again to leave at once" in caplog.text


def test_the_second_signal_leaves_and_a_third_one_ends_the_wait():
    runner = Runner()

    def leave() -> None:
        with obey_signals(force_s=0.001) as signals, signals.obey(runner):  # type: ignore[arg-type]
            signal.raise_signal(signal.SIGTERM)
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                # As the runner waits for its trials while it closes.
                assert not threading.Event().wait(60)

    with unchanged(), pytest.raises(SystemExit) as ended:
        leave()
    assert ended.value.code == status(signal.SIGTERM)
    assert runner.interrupts == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGTERM])
def test_after_sigterm_the_process_says_so_to_its_parent(number: signal.Signals):
    with unchanged(), obey_signals() as signals:
        with signals.obey(Runner()):  # type: ignore[arg-type]
            signal.raise_signal(number)
        if number is not signal.SIGTERM:
            signals.end()
            return
        with pytest.raises(SystemExit) as ended:
            signals.end()
    assert ended.value.code == status(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_what_the_program_handles_itself_is_left_to_it(number: signal.Signals):
    heard: list[int] = []
    before = signal.signal(number, lambda given, frame: heard.append(given))
    try:
        runner = Runner()
        with unchanged(), obey_signals() as signals, signals.obey(runner):  # type: ignore[arg-type]
            signal.raise_signal(number)
        with unchanged(), keep_interrupts():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert heard == [number] * 2
    assert runner.interrupts == 0


def test_in_a_coroutine_ctrl_c_ends_fit_instead_of_waiting_for_it():
    async def fit() -> None:
        with unchanged(), obey_signals():
            signal.raise_signal(signal.SIGINT)
            pytest.fail("fit continues")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(fit())


def test_a_process_in_the_background_of_a_script_may_be_interrupted():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with unchanged(), pytest.raises(KeyboardInterrupt), obey_signals():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone():
    seen: list[Any] = []

    def run() -> None:
        with obey_signals(), keep_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_signal_while_the_handlers_are_restored_is_not_lost(monkeypatch: pytest.MonkeyPatch):
    def fit() -> None:
        with obey_signals() as signals:
            real = signals.close

            def close() -> None:
                real()
                signal.raise_signal(signal.SIGINT)

            monkeypatch.setattr(signals, "close", close)

    with unchanged(), pytest.raises(KeyboardInterrupt):
        fit()
