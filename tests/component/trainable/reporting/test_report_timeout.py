"""Tests of what notices user code that reports no result."""

from __future__ import annotations

import sys
import threading

import pytest
from trial_run_kit import PATIENCE, Driver, make_spec

from dasktune.config import FailureConfig
from dasktune.errors import ConfigError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.trainable import Trainable, get_checkpoint, report
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.reporting.outbox import Outbox
from dasktune.trainable.reporting.report_timeout import ReportTimeout
from dasktune.trainable.reporting.trial_messages import (
    ContinueAnswer,
    Ended,
    Failed,
    Started,
    StopAnswer,
    Stopped,
)


class Watched:
    """A watched trial in time that is made up: it passes only while the watchdog waits."""

    def __init__(self, limit, *during):
        self.now = 100.0
        #: What user code does during the first waits; it passes the time itself.
        self.during = list(during)
        #: The seconds of each wait.
        self.waits = []
        self.timed_out = threading.Event()
        self.watchdog = ReportTimeout(limit, self.end, timer=lambda: self.now, wait=self.wait)

    def wait(self, seconds):
        self.waits.append(seconds)
        if self.during:
            self.during.pop(0)(self)
        else:
            self.now += seconds
        return False

    def end(self, ident):
        self.timed_out.set()

    def run(self):
        """Watch to the end; return the seconds of all waits."""
        self.watchdog.start()
        assert self.timed_out.wait(PATIENCE)
        return self.waits


def test_the_time_of_user_code_is_counted_from_the_last_result():
    def work(trial):
        trial.now += 3

    def report_late(trial):
        trial.now += 3
        trial.watchdog.reset()

    trial = Watched(8.0, work, report_late)
    assert trial.run() == [8, 5, 8]
    assert trial.now == 114


def test_blocks_do_not_count_though_they_overlap():
    def enter_both(trial):
        trial.now += 2
        trial.watchdog.__enter__()
        trial.now += 50
        trial.watchdog.__enter__()
        trial.now += 50

    def leave_one(trial):
        trial.watchdog.__exit__()
        trial.now += 50

    def leave_the_other(trial):
        trial.watchdog.__exit__()
        trial.now += 1

    assert Watched(8.0, enter_both, leave_one, leave_the_other).run() == [8, 6, 6, 5]


def test_one_that_is_paused_is_not_looked_at_all_the_time():
    def pause(trial):
        trial.now += 7.999
        trial.watchdog.__enter__()

    def resume(trial):
        trial.now += 50
        trial.watchdog.__exit__()

    assert Watched(8.0, pause, resume).run() == pytest.approx([8, 0.8, 0.001])


def test_without_a_limit_nothing_is_watched():
    barked = []
    watchdog = ReportTimeout(None, barked.append)
    before = set(threading.enumerate())  # that of an earlier test may end meanwhile
    watchdog.start()
    with watchdog:
        watchdog.reset()
    assert set(threading.enumerate()) <= before
    assert barked == []


def spin(config):
    while True:
        pass


def test_code_without_a_first_result_has_failed_and_its_place_is_named():
    end = Driver(spin, report_timeout_s=0.2).end()
    assert isinstance(end, Failed)
    assert end.error.message == "no result for 0.2 s (report_timeout_s)"
    assert "in spin" in end.error.traceback
    assert "dasktune/trainable" not in end.error.traceback


def test_code_without_a_further_result_has_failed():
    def train(config):
        report({"x": 1})
        spin(config)

    driver = Driver(train, report_timeout_s=1.0)
    assert isinstance(driver.end(), Failed)
    assert driver.values("x") == [1]


def test_a_class_whose_step_hangs_has_failed_and_is_cleaned_up():
    cleaned = []

    class Model(Trainable):
        def step(self):
            if self.iteration == 2:
                spin(self.config)
            return {"x": self.iteration}

        def cleanup(self):
            cleaned.append(True)

    driver = Driver(Model, report_timeout_s=1.0)
    assert isinstance(driver.end(), Failed)
    assert len(driver.results) == 2
    assert cleaned == [True]


def test_waiting_for_the_driver_and_saving_do_not_count():
    limit = 1.0
    saving = threading.Event()

    class Model(Trainable):
        def step(self):
            return {"done": self.iteration == 1, "should_checkpoint": True}

        def save_checkpoint(self, directory):
            assert not saving.wait(1.5 * limit)  # this time is what is tested
            return {"x": 1}

    from dasktune.trial.milestone import EVERY_RESULT

    driver = Driver(Model, report_timeout_s=limit, milestones=EVERY_RESULT)
    result = driver.awaiting()
    assert not saving.wait(1.5 * limit)
    driver.run.answer(ContinueAnswer(seq=result.seq))
    assert isinstance(driver.end(), Ended)


def test_results_in_time_are_no_hang():
    pause = threading.Event()

    def train(config):
        for number in range(6):
            pause.wait(0.2)
            report({"x": number})

    assert isinstance(Driver(train, report_timeout_s=1.0).end(), Ended)


def blocked(config):
    """Block where no interrupt of Python's reaches, and train on afterwards."""
    config["entered"].set()
    try:
        assert config["lock"].acquire(timeout=PATIENCE)
        for _ in range(1000):
            pass  # an interrupt strikes here at the latest
    except TrialInterrupted:
        pass
    try:
        report({"late": 1}, checkpoint=Checkpoint.from_dict({"late": 1}))
    finally:
        config["left"].set()


def blocking():
    lock = threading.Lock()
    lock.acquire()
    return {"lock": lock, "entered": threading.Event(), "left": threading.Event()}


@pytest.fixture
def untraced():
    """Do without what measures coverage.

    While an exception waits for a thread that is blocked, CPython 3.11 hangs all traced threads.
    """
    here, in_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    yield
    threading.settrace(in_threads)
    sys.settrace(here)


def test_code_that_cannot_be_interrupted_is_left_and_says_nothing_more(untraced):
    config = blocking()
    driver = Driver(blocked, config=config, report_timeout_s=0.2, stop_grace=0.1)
    last = driver.until(lambda message: isinstance(message, Failed))
    assert driver.run.finished
    assert driver.run.in_use
    assert driver.run.occupied
    config["lock"].release()
    assert config["left"].wait(PATIENCE)
    assert driver.run.join(PATIENCE)
    assert not driver.run.in_use
    assert not driver.run.occupied
    driver.collect()
    assert driver.messages[-1] is last
    assert driver.values("late") == []


def test_a_report_timeout_strikes_code_that_reports_late_once(monkeypatch):
    late, cleaning, cleaned = threading.Event(), threading.Event(), threading.Event()

    def train(config):
        try:
            assert late.wait(PATIENCE)
            report({"x": 1})
        finally:
            cleaning.set()
            for _ in range(200):
                threading.Event().wait(0.001)
            cleaned.set()

    driver = Driver(train, report_timeout_s=0.2, stop_grace=PATIENCE)
    answer = driver.run.answer

    def answer_and_wait(order):
        answer(order)
        # The order would end the report, if it came before the interrupt.
        late.set()
        cleaning.wait(0.2)

    monkeypatch.setattr(driver.run, "answer", answer_and_wait)
    assert isinstance(driver.end(), Failed)
    assert cleaned.is_set()


def test_a_trial_that_is_to_stop_is_left_to_its_driver():
    config = blocking()
    driver = Driver(blocked, config=config, report_timeout_s=1.0, stop_grace=0.0)
    assert config["entered"].wait(PATIENCE)
    driver.run.answer(StopAnswer())
    pause = threading.Event()
    assert not pause.wait(1.5)
    assert not driver.run.finished
    config["lock"].release()
    assert isinstance(driver.end(), Stopped)


def test_time_for_a_checkpoint_that_is_read_does_not_count():
    limit = 1.0
    uploading = threading.Event()

    def fence():
        # It is asked twice, before the first file and after the last one.
        assert not uploading.wait(0.75 * limit)  # this time is what is tested

    def train(config):
        report({"x": 1}, checkpoint=Checkpoint.from_dict({"x": 1}))
        # It is read when its upload has ended.
        assert get_checkpoint().to_dict() == {"x": 1}

    assert isinstance(Driver(train, report_timeout_s=limit, fence=fence).end(), Ended)


# The outbox of an abandoned trial


def test_a_sealed_outbox_has_its_last_word_and_takes_nothing_more():
    rung = []
    outbox = Outbox(rung.append)
    outbox.put(lambda seq: Started(seq=seq))
    outbox.put(lambda seq: Started(seq=seq), held=True)
    outbox.put(lambda seq: Started(seq=seq))
    outbox.close_with(lambda seq: Ended(seq=seq))
    assert [seq for seq, _ in outbox.collect(0, 0)] == [1, 2]
    with pytest.raises(TrialInterrupted):
        outbox.put(lambda seq: Started(seq=seq))
    outbox.release()
    outbox.withdraw()
    assert [seq for seq, _ in outbox.collect(0, 1)] == [2]


def test_a_thread_that_waits_for_room_ends_with_the_outbox():
    outbox = Outbox(lambda urgency: None, max_messages=1)
    outbox.put(lambda seq: Started(seq=seq))
    went = threading.Event()

    def wait():
        with pytest.raises(TrialInterrupted):
            outbox.put(lambda seq: Started(seq=seq), bounded=True)
        went.set()

    thread = threading.Thread(target=wait)
    thread.start()
    outbox.close_with(lambda seq: Ended(seq=seq))
    assert went.wait(PATIENCE)
    thread.join()


@pytest.mark.parametrize("given", [0, -1, "soon", True, float("nan")])
def test_a_limit_must_be_a_positive_number_of_seconds(given):
    with pytest.raises(ConfigError, match="report_timeout_s must be a positive number of seconds"):
        FailureConfig(report_timeout_s=given)
    assert make_spec().report_timeout_s is None
