"""A stream that is not read: a pipe that is full."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import pytest
from progress_kit import Run, trial_storage

import dasktune as tune
from dasktune.progress import open_progress
from dasktune.progress.background_stream import BackgroundStream, print_promptly
from dasktune.progress.line_display import PlainLines, ProgressLine
from dasktune.progress.progress import Progress
from dasktune.trial.events import TimePassed


class Unread:
    """The two ends of a pipe that is full until somebody reads it."""

    def __init__(self) -> None:
        self.reads, writes = os.pipe()
        os.set_blocking(writes, False)
        self.before = 0
        with suppress(BlockingIOError):
            while True:
                self.before += os.write(writes, b"." * 4096)
        os.set_blocking(writes, True)
        #: As Python opens standard error.
        self.stream = open(writes, "w", encoding="utf-8", buffering=1)  # noqa: SIM115

    def read_until(self, *ends: str) -> str:
        """Return what was written until some texts came, without what has filled the pipe."""
        got = b""
        while not all(end.encode() in got[self.before :] for end in ends):
            got += os.read(self.reads, 65536)
        filled, self.before = self.before, 0
        return got[filled:].decode()

    def close(self) -> None:
        # A thread that still writes gets an error.
        os.close(self.reads)
        self.stream.close()


@pytest.fixture
def unread() -> Iterator[Unread]:
    pipe = Unread()
    yield pipe
    pipe.close()


def test_what_is_written_arrives_in_order():
    written = io.StringIO()
    stream = BackgroundStream(written)
    texts = [f"{n}\n" for n in range(100)]
    for text in texts:
        stream.write(text)
    assert stream.finish(10)
    assert written.getvalue() == "".join(texts)
    stream.write("late")
    assert stream.finish(10)
    assert written.getvalue() == "".join(texts)


def test_a_stream_that_is_not_read_blocks_none_and_gets_all_when_it_is_read(unread: Unread):
    stream = BackgroundStream(unread.stream)
    stream.write("first\n")
    assert stream.is_behind
    assert not stream.finish(0.001)
    assert unread.read_until("first\n") == "first\n"


def test_too_much_text_is_dropped_and_counted(unread: Unread):
    stream = BackgroundStream(unread.stream, max_pending=10)
    for text in ("123456789\n", "dropped\n", "dropped, too\n"):
        stream.write(text)
    got = unread.read_until("789\n")
    while stream.is_behind:
        pass  # it waits a moment
    stream.write("then\n")
    assert stream.finish(10)
    got += unread.read_until("then\n") if "then\n" not in got else ""
    note = "\n[dasktune] 2 texts were not shown: the output was not read\n"
    # The thread takes the first text either before the others are dropped, or after that.
    assert got in (f"123456789\nthen\n{note}", f"123456789\n{note}then\n")


def test_a_stream_that_fails_takes_no_more(unread: Unread):
    stream = BackgroundStream(unread.stream)
    stream.write("first\n")
    os.dup2(os.open(os.devnull, os.O_RDONLY), unread.reads)
    assert stream.finish(10)
    stream.write("second\n")
    assert not stream.is_behind


def test_without_a_stream_nothing_happens():
    stream = BackgroundStream(None)
    assert stream.write("text") == 4
    assert not stream.isatty()
    assert stream.finish(10)
    with pytest.raises(io.UnsupportedOperation):
        stream.fileno()


def test_characters_that_the_encoding_lacks_are_replaced():
    raw = io.BytesIO()
    stream = BackgroundStream(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("a · b …")
    assert stream.finish(10)
    assert raw.getvalue() == b"a - b ~"


@pytest.mark.parametrize("display", [PlainLines, ProgressLine])
def test_pictures_do_not_queue_up_and_the_newest_one_wins(unread: Unread, display: type[PlainLines]):
    stream = BackgroundStream(unread.stream)
    shown = display(stream)
    for n in range(100):
        shown.update(Progress(total=100, results=n), None, float(n))
    stream.write("(read now)\n")
    assert unread.read_until("(read now)\n").count("trials done") == 1
    while stream.is_behind:
        pass
    shown.update(Progress(total=100, results=99), None, 1000.0)
    stream.write("(the end)\n")
    assert "99 results" in unread.read_until("(the end)\n")


def test_an_experiment_runs_on_while_its_progress_is_not_read(
    unread: Unread, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DASKTUNE_PROGRESS", "plain")
    monkeypatch.setattr(sys, "stderr", unread.stream)
    monkeypatch.setattr(logging.root, "handlers", [])
    run = Run()
    config = tune.RunConfig(verbose=3)
    with open_progress(config, run.experiment, trial_storage(), {}, last_s=0.001) as observers:
        [run.observer] = observers
        run.tell(TimePassed(time=0.0))
        trial_id = run.start(time=1.0)
        run.report(trial_id, 1, 0.5, time=2.0)
        # No handler of the user gets it.
        logging.getLogger("dasktune.anything").warning("something is odd")
        run.end(trial_id, time=3.0)
        run.observer.on_end(run.experiment)
    assert logging.getLogger("dasktune").handlers == []
    # A thread passes the warning on, so the last lines may come before it.
    shown = unread.read_until("Results: memory://progress\n", "something is odd\n")
    assert shown.startswith("[dasktune] 0 trials done")
    assert "1 trial done" in shown


def test_a_reporter_that_prints_does_not_wait(unread: Unread, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", unread.stream)
    run = Run()
    config = tune.RunConfig(progress_reporter=tune.CLIReporter(max_report_frequency=0))
    with open_progress(config, run.experiment, trial_storage(), {}, last_s=0.001) as observers:
        [run.observer] = observers
        for n in range(5):
            run.start(time=float(n))
        run.observer.on_end(run.experiment)
    # The first report and the last one: those in between found the first one unwritten.
    shown = unread.read_until("Trials: 5")
    assert shown.count("== Trials ==") == 2


def test_an_address_is_left_to_a_thread_if_the_output_is_not_read(unread: Unread):
    print_promptly(unread.stream, "Dashboard: here\n")
    assert unread.read_until("here\n") == "Dashboard: here\n"


@pytest.mark.usefixtures("complete_notices")
def test_an_address_is_printed_at_once(capsys: pytest.CaptureFixture[str]):
    print_promptly(sys.stderr, "Dashboard: there\n")
    assert capsys.readouterr().err == "Dashboard: there\n"


def test_a_stream_like_standard_error_is_written_through_a_copy(unread: Unread):
    # The interpreter must get the lock of the stream itself when it ends.
    stream: TextIO = unread.stream
    background = BackgroundStream(stream)
    background.write("first\n")
    assert background.is_behind
    stream.flush()
