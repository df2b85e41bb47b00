"""Experiments in a fork of a process that has run one."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from dasktune.progress.log_relay import relayed_logs

PATIENCE = 30.0


class Noted(logging.Handler):
    """Notes each message with the name of the thread that handled it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.getMessage()} in {threading.current_thread().name}")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_experiment_in_a_fork_has_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch):
    package, noted = logging.getLogger("dasktune"), Noted()
    monkeypatch.setattr(package, "handlers", [noted])
    held, gate = threading.Event(), threading.Event()
    begin = threading.Thread.start

    def begin_late(thread: threading.Thread) -> None:
        # The relay starts its thread, and holds its lock meanwhile.
        if threading.current_thread() is holding:
            held.set()
            gate.wait(PATIENCE)
        begin(thread)

    def hold() -> None:
        with relayed_logs(PATIENCE):
            package.error("of another experiment")

    with relayed_logs(PATIENCE):
        package.error("of the parent")
    # An experiment that begins before the relay's thread has ended would use that thread.
    for thread in threading.enumerate():
        if thread.name == "dasktune-log-relay":
            thread.join(PATIENCE)
    # Another experiment of the parent logs at the moment of the fork.
    holding = threading.Thread(target=hold)
    monkeypatch.setattr(threading.Thread, "start", begin_late)
    holding.start()
    assert held.wait(PATIENCE)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            threading.Timer(PATIENCE, os._exit, (1,)).start()
            package.error("before")
            with relayed_logs(PATIENCE):
                package.error("of the fork")
            os.write(writing, "; ".join(noted.texts).encode())
        finally:
            os._exit(0)
    gate.set()
    holding.join()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0) == (child, 0)
    of_parent, before, of_fork = said.split("; ")
    assert of_parent == "of the parent in dasktune-log-relay"
    assert before == "before in MainThread"
    assert of_fork == "of the fork in dasktune-log-relay"
