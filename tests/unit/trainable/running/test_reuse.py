from __future__ import annotations

import contextvars
import logging
import threading

import pytest
from trial_run_kit import PATIENCE, Driver

from dasktune.trainable.api.session import get_context
from dasktune.trainable.api.trainable import Trainable
from dasktune.trainable.reporting.trial_messages import (
    Ended,
    Failed,
    PauseAnswer,
    Paused,
    StopAnswer,
    Stopped,
)
from dasktune.trainable.running.reuse import Cleanup, Kept, ReusableTrainable
from dasktune.trial.milestone import EVERY_RESULT

variable = contextvars.ContextVar("variable", default="nothing")


class Model(Trainable):
    """Notes what happens to which object; `log` is shared by all of a test."""

    def setup(self, config):
        self.steps = 0
        self.log = config["log"]
        self.log.append(("setup", id(self)))

    def step(self):
        self.steps += 1
        return {"steps": self.steps, "done": self.steps == self.config["until"]}

    def save_checkpoint(self, checkpoint_dir):
        return {"steps": self.steps}

    def load_checkpoint(self, checkpoint):
        self.log.append(("load", id(self)))
        self.steps = checkpoint["steps"]

    def cleanup(self):
        self.log.append(("cleanup", id(self)))


class Reusable(Model):
    def reset_config(self, new_config):
        self.log.append(("reset", id(self)))
        self.steps = 0
        return new_config.get("reusable", True)


class Slot:
    """Runs trials one after the other as a slot does."""

    def __init__(self, trainable=Reusable, grace=10.0):
        self.log = []
        self.trainable = trainable
        self.keeper = ReusableTrainable(grace)

    def start(self, *, until=2, trial_id="t1", config=(), **spec):
        self.keeper.open()
        config = {"log": self.log, "until": until, **dict(config)}
        return Driver(self.trainable, config=config, reusable=self.keeper, trial_id=trial_id, **spec)

    def run(self, **options):
        driver = self.start(**options)
        driver.end()
        return driver

    def leave(self):
        self.keeper.close()
        self.keeper.wait_for_cleanups()

    @property
    def calls(self):
        return [call for call, _ in self.log]

    @property
    def objects(self):
        return {number for _, number in self.log}


@pytest.fixture
def slot():
    return Slot()


def test_an_object_that_can_be_reset_serves_trial_after_trial(slot):
    runs = [slot.run(trial_id=f"t{number}") for number in range(3)]
    assert slot.calls == ["setup", "reset", "reset"]
    assert len(slot.objects) == 1
    for run in runs:
        assert run.values("steps") == [1, 2]
        assert run.values("training_iteration") == [1, 2]
    assert runs[2].values("trial_id") == ["t2", "t2"]


def test_what_is_kept_is_cleaned_up_once_when_none_will_need_it(slot):
    slot.run()
    slot.leave()
    slot.leave()
    assert slot.calls == ["setup", "cleanup"]


def test_nothing_is_kept_before_and_after_the_slot_takes_trials(slot):
    driver = slot.start(until=0, milestones=EVERY_RESULT)
    driver.awaiting()
    slot.keeper.close()
    driver.run.stop("closed")
    assert isinstance(driver.end(), Stopped)
    assert slot.calls == ["setup", "cleanup"]
    assert slot.keeper.take() is None


def test_a_class_that_does_not_override_reset_config_is_not_asked_and_not_kept():
    slot = Slot(Model)
    slot.run()
    slot.run()
    assert slot.calls == ["setup", "cleanup"] * 2


def test_an_object_that_declines_is_cleaned_up_and_the_trial_runs_on_a_new_one(slot):
    slot.run()
    second = slot.run(config={"reusable": False})
    assert isinstance(second.messages[-1], Ended)
    assert second.values("steps") == [1, 2]
    assert slot.calls == ["setup", "reset", "cleanup", "setup"]
    slot.leave()
    assert slot.calls[4:] == ["cleanup"]


def test_a_reset_that_raises_fails_its_trial_only(slot):
    class Breaks(Reusable):
        def reset_config(self, new_config):
            if new_config.get("breaks"):
                raise ValueError("no such data set")
            return super().reset_config(new_config)

    slot.trainable = Breaks
    slot.run()
    failed = slot.run(config={"breaks": True}).messages[-1]
    assert isinstance(failed, Failed)
    assert failed.error.message == "ValueError: no such data set"
    assert isinstance(slot.run().messages[-1], Ended)
    assert slot.calls == ["setup", "cleanup", "setup"]


def test_a_setup_that_raises_fails_its_trial_and_the_slot_stays(slot):
    class Breaks(Reusable):
        def setup(self, config):
            if config.get("breaks"):
                raise ValueError("no data")
            super().setup(config)

    slot.trainable = Breaks
    failed = slot.run(config={"breaks": True}).messages[-1]
    assert isinstance(failed, Failed)
    assert failed.error.message == "ValueError: no data"
    assert slot.run().values("steps") == [1, 2]
    assert slot.calls == ["setup"]


def test_the_object_of_a_failed_trial_is_never_used_again(slot):
    class Breaks(Reusable):
        def step(self):
            if self.config.get("breaks"):
                raise ValueError("diverged")
            return super().step()

    slot.trainable = Breaks
    slot.run(config={"breaks": True})
    slot.run()
    assert slot.calls == ["setup", "cleanup", "setup"]


def test_the_object_of_an_interrupted_trial_is_never_used_again(slot):
    running = threading.Event()

    class Busy(Reusable):
        def step(self):
            running.set()
            while True:
                pass

    slot.trainable = Busy
    driver = slot.start()
    assert running.wait(PATIENCE)
    driver.run.interrupt()
    assert isinstance(driver.end(), Stopped)
    assert slot.calls == ["setup", "cleanup"]
    assert slot.keeper.take() is None


def test_a_paused_trial_leaves_an_object_and_resumes_from_its_checkpoint_on_any(slot):
    first = slot.start(until=5, milestones=EVERY_RESULT)
    first.awaiting()
    first.run.answer(PauseAnswer(save=True))
    assert isinstance(first.end(), Paused)
    record = next(m.checkpoint for m in first.messages if hasattr(m, "checkpoint") and m.checkpoint)
    assert slot.run(until=1, trial_id="t2").values("steps") == [1]
    again = slot.run(
        until=3,
        incarnation=2,
        next_checkpoint=1,
        checkpoint=record,
        storage=first.run.spec.storage,
    )
    assert again.values("steps") == [2, 3]
    assert again.values("training_iteration") == [2, 3]
    assert again.values("iterations_since_restore") == [1, 2]
    assert slot.calls == ["setup", "reset", "reset", "load"]


def test_a_stopped_trial_leaves_its_object_too(slot):
    driver = slot.start(until=0, milestones=EVERY_RESULT)
    driver.awaiting()
    driver.run.answer(StopAnswer(reason="rung"))
    assert isinstance(driver.end(), Stopped)
    slot.run()
    assert slot.calls == ["setup", "reset"]


def test_each_trial_sees_its_own_context_on_the_same_object(slot):
    told = []

    class Asks(Reusable):
        def tell(self):
            told.append((get_context().get_trial_id(), self.trial_id, variable.get()))

        def reset_config(self, new_config):
            self.tell()
            return super().reset_config(new_config)

        def step(self):
            self.tell()
            variable.set(self.trial_id)
            return super().step()

        def cleanup(self):
            self.tell()

    slot.trainable = Asks
    slot.run(until=1, trial_id="t1")
    slot.run(until=1, trial_id="t2")
    slot.run(until=1, trial_id="t3", config={"reusable": False})
    assert told == [
        ("t1", "t1", "nothing"),
        ("t2", "t2", "nothing"),
        ("t2", "t2", "nothing"),
        ("t3", "t3", "nothing"),
        # The cleanup of what t3 has declined still belongs to t2.
        ("t2", "t2", "t2"),
        ("t3", "t3", "nothing"),
    ]


def test_a_configuration_belongs_to_its_trial(slot):
    configs = []

    class Notes(Reusable):
        def step(self):
            configs.append(self.config["name"])
            self.config["left"] = True
            return super().step()

    slot.trainable = Notes
    slot.run(until=1, config={"name": "first"})
    slot.run(until=1, config={"name": "second"})
    assert configs == ["first", "second"]


# Cleanups that misbehave.


def test_a_late_cleanup_that_raises_fails_no_trial(slot, caplog):
    class Dirty(Reusable):
        def cleanup(self):
            super().cleanup()
            raise ValueError("cannot close")

    slot.trainable = Dirty
    slot.run(trial_id="t1")
    with caplog.at_level(logging.WARNING):
        second = slot.run(trial_id="t2", config={"reusable": False})
    assert isinstance(second.messages[-1], Ended)
    assert slot.calls == ["setup", "reset", "cleanup", "setup"]
    assert "cleanup() failed after the end of trial t1" in caplog.text
    assert "cannot close" in caplog.text


def test_a_cleanup_that_hangs_is_interrupted_and_the_next_trial_begins():
    class Hangs(Reusable):
        def cleanup(self):
            super().cleanup()
            while True:
                pass

    slot = Slot(Hangs, grace=0.05)
    slot.run(trial_id="t1")
    second = slot.run(trial_id="t2", config={"reusable": False})
    assert isinstance(second.messages[-1], Ended)
    assert not slot.keeper.is_cleaning


def test_a_cleanup_that_does_not_even_end_when_interrupted_is_left_behind(caplog):
    release, interrupted = threading.Event(), threading.Event()

    class Deaf(Reusable):
        def cleanup(self):
            super().cleanup()
            while not release.is_set():
                try:
                    release.wait(0.01)
                except BaseException:
                    interrupted.set()

    slot = Slot(Deaf, grace=0.05)
    slot.run(trial_id="t1")
    with caplog.at_level(logging.WARNING):
        second = slot.run(trial_id="t2", config={"reusable": False})
    assert isinstance(second.messages[-1], Ended)
    # The interrupt may reach its thread only after the next trial.
    assert interrupted.wait(PATIENCE)
    assert "does not end" in caplog.text
    [left] = slot.keeper.cleanups
    release.set()
    assert left.join(PATIENCE)
    assert not slot.keeper.is_cleaning


def test_a_cleanup_is_interrupted_only_when_its_time_is_over():
    now = [100.0]
    entered, outcome = threading.Event(), []

    class Waits(Trainable):
        def step(self):
            return {}

        def cleanup(self):
            try:
                entered.set()
                while True:
                    pass
            except BaseException as error:
                outcome.append(type(error).__name__)

    kept = Kept(Waits(), contextvars.copy_context())
    cleanup = Cleanup(kept, 10.0, timer=lambda: now[0])
    assert entered.wait(PATIENCE)
    cleanup.interrupt_if_late()
    assert not cleanup.finished
    now[0] = 111.0
    cleanup.interrupt_if_late()
    assert cleanup.join(PATIENCE)
    assert outcome == ["TrialInterrupted"]


# Threads.


def test_no_thread_is_left_after_trials_and_their_cleanup(slot):
    before = set(threading.enumerate())
    slot.run()
    slot.run(config={"reusable": False})
    slot.leave()
    assert set(threading.enumerate()) <= before


def test_each_function_runs_in_a_thread_and_a_context_of_its_own():
    seen = []

    def train(config):
        seen.append((threading.get_ident(), variable.get(), threading.current_thread()))
        variable.set("the first one's")

    token = variable.set("the worker's")
    for _ in range(2):
        assert isinstance(Driver(train).end(), Ended)
    assert [value for _, value, _ in seen] == ["nothing", "nothing"]
    assert seen[0][2] is not seen[1][2]
    assert not any(thread.is_alive() for _, _, thread in seen)
    assert variable.get() == "the worker's"
    variable.reset(token)
