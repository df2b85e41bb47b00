from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest
from trial_run_kit import PATIENCE, Driver

from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint import dict_files
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.trainable.api.session import get_checkpoint, report
from dasktune.trainable.api.trainable import Trainable
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.reporting.trial_messages import (
    CheckpointRequest,
    Committed,
    ContinueAnswer,
    Ended,
    Failed,
    PauseAnswer,
    Paused,
    SaveAnswer,
    StopAnswer,
    Stopped,
)
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.milestone import EVERY_RESULT, Milestone


class Counting(Trainable):
    """Counts its steps and notes which hooks were called."""

    def setup(self, config):
        self.calls = config.setdefault("calls", [])
        self.steps = 0
        self.calls.append("setup")

    def step(self):
        self.steps += 1
        return {"steps": self.steps, "done": self.steps == self.config.get("until")}

    def save_checkpoint(self, checkpoint_dir):
        self.calls.append("save")
        return {"steps": self.steps}

    def load_checkpoint(self, checkpoint):
        self.calls.append("load")
        self.steps = checkpoint["steps"]

    def cleanup(self):
        self.calls.append("cleanup")


class Files(Counting):
    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "steps.json").write_text(json.dumps(self.steps))
        return self.config.get("returns", lambda directory: None)(checkpoint_dir)

    def load_checkpoint(self, checkpoint):
        self.steps = json.loads(Path(checkpoint, "steps.json").read_text())


class Unsavable(Trainable):
    def step(self):
        return {}


def drive(trainable=Counting, config=None, **spec):
    calls = []
    return Driver(trainable, config={"calls": calls, **(config or {})}, **spec), calls


def restored(first, record, trainable=Counting, config=None, **spec):
    storage = first.run.spec.storage
    spec = {"incarnation": 2, "next_checkpoint": record.index + 1, **spec}
    return drive(trainable, config, storage=storage, checkpoint=record, **spec)


def committed(driver):
    return [message.checkpoint for message in driver.messages if isinstance(message, Committed)]


def saved_iterations(driver):
    return [r.metrics["training_iteration"] for r in driver.results if r.checkpoint is not None]


def test_a_class_trains_until_its_result_says_done():
    driver, calls = drive(config={"until": 3})
    assert isinstance(driver.end(), Ended)
    assert driver.values("steps") == [1, 2, 3]
    assert driver.values("training_iteration") == [1, 2, 3]
    assert calls == ["setup", "cleanup"]


def test_a_class_knows_which_of_its_results_will_be_judged():
    class Frugal(Counting):
        def step(self):
            judged = self.is_milestone(), self.is_milestone({"training_iteration": 5})
            return {**super().step(), "judged": list(judged)}

    driver, _ = drive(Frugal, {"until": 4}, milestones=(Milestone("training_iteration", 2),))
    later = (Milestone("training_iteration", 4),)
    driver.run.answer(ContinueAnswer(seq=driver.awaiting().seq, milestones=later))
    assert isinstance(driver.end(), Ended)
    told = [one.metrics["judged"] for one in driver.results]
    assert told == [[False, True], [True, True], [False, True], [True, True]]


def test_a_class_streams_up_to_its_milestone_without_being_asked():
    class Tells(Counting):
        def step(self):
            if self.steps == 99:
                there.set()
            return super().step()

    there = threading.Event()
    driver, _ = drive(Tells, milestones=(Milestone("training_iteration", 100),))
    # The driver has not collected anything yet.
    assert there.wait(PATIENCE)
    driver.run.answer(ContinueAnswer(seq=driver.awaiting().seq, milestones=EVERY_RESULT))
    driver.run.answer(StopAnswer(reason=str(driver.awaiting().seq)))
    assert isinstance(driver.end(), Stopped)
    assert driver.values("steps") == list(range(1, 102))
    assert [result.awaits for result in driver.results] == [False] * 99 + [True] * 2


def test_a_class_that_steps_faster_than_its_driver_collects_waits():
    class Runs(Counting):
        def step(self):
            assert go.wait(PATIENCE)
            if self.steps == 7:
                there.set()
            return super().step()

    go, there = threading.Event(), threading.Event()
    driver, _ = drive(Runs, {"until": 20}, max_messages=8)
    go.set()
    assert there.wait(PATIENCE)
    # Started and seven results: the eighth, whose step has begun, has no room.
    assert len(driver.run.collect(0, 0)) == 8
    assert not driver.run.finished
    assert isinstance(driver.end(), Ended)
    assert driver.values("steps") == list(range(1, 21))


def test_a_checkpoint_is_saved_at_each_multiple_of_the_frequency():
    driver, _ = drive(config={"until": 5}, checkpoint_frequency=2)
    assert isinstance(driver.end(), Ended)
    assert saved_iterations(driver) == [2, 4]
    assert [r.checkpoint.index for r in driver.results if r.checkpoint] == [0, 1]


def test_a_checkpoint_at_the_end_travels_with_the_last_result():
    driver, calls = drive(config={"until": 3}, checkpoint_at_end=True, checkpoint_frequency=3)
    assert isinstance(driver.end(), Ended)
    assert saved_iterations(driver) == [3]
    assert calls == ["setup", "save", "cleanup"]


def test_a_result_may_ask_for_a_checkpoint():
    class Asks(Counting):
        def step(self):
            return {**super().step(), "should_checkpoint": self.steps == 2}

    driver, _ = drive(Asks, {"until": 3})
    assert isinstance(driver.end(), Ended)
    assert saved_iterations(driver) == [2]
    assert driver.values("should_checkpoint") == [False, True, False]


def test_a_result_that_asks_when_a_checkpoint_is_due_anyway_gets_one():
    class Asks(Counting):
        def step(self):
            return {**super().step(), "should_checkpoint": True}

    driver, calls = drive(Asks, {"until": 2}, checkpoint_frequency=1, checkpoint_at_end=True)
    assert isinstance(driver.end(), Ended)
    assert saved_iterations(driver) == [1, 2]
    assert calls == ["setup", "save", "save", "cleanup"]


class Gated(Counting):
    """Waits for the test before its second step."""

    def step(self):
        if self.steps == 1:
            self.config["reached"].set()
            assert self.config["go"].wait(PATIENCE)
        return super().step()


def gated(trainable, **config):
    reached, go = threading.Event(), threading.Event()
    driver, calls = drive(trainable, {"reached": reached, "go": go, **config})
    assert reached.wait(PATIENCE)
    return driver, calls, go


def test_a_request_of_the_driver_saves_a_checkpoint_with_the_next_result_and_only_with_that():
    driver, calls, go = gated(Gated, until=4)
    # Any message of the driver may arrive twice.
    driver.run.answer(CheckpointRequest(number=3))
    driver.run.answer(CheckpointRequest(number=3))
    go.set()
    assert isinstance(driver.end(), Ended)
    assert saved_iterations(driver) == [2]
    assert driver.values("should_checkpoint") == [None, True, None, None]
    assert calls == ["setup", "save", "cleanup"]


def test_a_request_of_the_driver_is_met_by_a_checkpoint_that_is_due_anyway():
    class Asks(Gated):
        def step(self):
            return {**super().step(), "should_checkpoint": self.steps == 2}

    driver, _, go = gated(Asks, until=4)
    driver.run.answer(CheckpointRequest(number=1))
    go.set()
    assert isinstance(driver.end(), Ended)
    assert saved_iterations(driver) == [2]


def test_a_request_of_the_driver_while_the_trial_waits_saves_the_result_where_it_waits():
    driver, _ = drive(config={"until": 3}, milestones=(Milestone("training_iteration", 2),))
    waits = driver.awaiting()
    driver.run.answer(CheckpointRequest(number=1))
    driver.run.answer(ContinueAnswer(seq=waits.seq, milestones=()))
    assert isinstance(driver.end(), Ended)
    (record,) = committed(driver)
    assert record.iteration == 2
    assert saved_iterations(driver) == []


def test_a_request_of_the_driver_changes_nothing_for_a_class_that_cannot_save():
    class Mute(Unsavable):
        def step(self):
            if self.iteration == 1:
                self.config["reached"].set()
                assert self.config["go"].wait(PATIENCE)
            return {"done": self.iteration == 2}

    driver, _, go = gated(Mute)
    driver.run.answer(CheckpointRequest(number=1))
    go.set()
    assert isinstance(driver.end(), Ended)
    assert len(driver.results) == 3
    assert saved_iterations(driver) == committed(driver) == []


@pytest.mark.parametrize(("at_end", "saved"), [(None, [3]), (False, []), (True, [3])])
def test_a_class_that_can_save_does_so_at_its_end_unless_it_is_set_not_to(at_end, saved):
    driver, _ = drive(config={"until": 3}, checkpoint_at_end=at_end)
    assert isinstance(driver.end(), Ended)
    assert saved_iterations(driver) == saved


def test_a_class_that_cannot_save_ends_without_a_checkpoint_unless_it_must_save():
    class Ends(Unsavable):
        def step(self):
            return {"done": True}

    assert isinstance(Driver(Ends, checkpoint_at_end=None).end(), Ended)
    failed = Driver(Ends, checkpoint_at_end=True).end()
    assert isinstance(failed, Failed)
    assert "Ends has no save_checkpoint()" in failed.error.message


def test_the_frequency_counts_on_after_a_restart():
    first, _ = drive(config={"until": 3}, checkpoint_frequency=3)
    first.end()
    (record,) = [result.checkpoint for result in first.results if result.checkpoint]
    second, _ = restored(first, record, config={"until": 7}, checkpoint_frequency=3)
    assert isinstance(second.end(), Ended)
    assert saved_iterations(second) == [6]
    assert [r.checkpoint.path for r in second.results if r.checkpoint] == [
        "trials/t1_dir/checkpoint_000001_i02"
    ]


def test_the_driver_gets_a_checkpoint_when_it_asks_for_one_and_training_runs_on():
    driver, _ = drive(milestones=EVERY_RESULT)
    driver.run.answer(SaveAnswer(seq=driver.awaiting().seq))
    driver.awaiting()
    driver.run.answer(StopAnswer(reason="rung"))
    assert isinstance(driver.end(), Stopped)
    assert [record.iteration for record in committed(driver)] == [1]
    assert [type(message).__name__ for message in driver.messages] == [
        "Started",
        "Reported",
        "Committed",
        "Reported",
        "Stopped",
    ]


@pytest.mark.parametrize("save", [True, False])
def test_a_pause_saves_if_it_is_to_and_a_new_run_resumes_from_there(save):
    driver, calls = drive(milestones=EVERY_RESULT)
    driver.run.answer(ContinueAnswer(seq=driver.awaiting().seq))
    driver.awaiting()
    driver.run.answer(PauseAnswer(save=save))
    assert isinstance(driver.end(), Paused)
    assert calls == (["setup", "save", "cleanup"] if save else ["setup", "cleanup"])
    if save:
        (record,) = committed(driver)
        second, calls = restored(driver, record, config={"until": 4})
        assert isinstance(second.end(), Ended)
        assert second.values("steps") == [3, 4]
        assert second.values("training_iteration") == [3, 4]
        assert second.values("iterations_since_restore") == [1, 2]
        assert calls == ["setup", "load", "cleanup"]


def test_nothing_is_saved_twice_for_one_result():
    driver, calls = drive(milestones=EVERY_RESULT, checkpoint_frequency=1, checkpoint_at_end=True)
    driver.awaiting()
    driver.run.answer(PauseAnswer(save=True))
    assert isinstance(driver.end(), Paused)
    assert committed(driver) == []
    assert calls == ["setup", "save", "cleanup"]


def test_a_stopped_class_leaves_its_checkpoint_at_the_end():
    driver, calls = drive(milestones=EVERY_RESULT, checkpoint_at_end=True)
    driver.awaiting()
    driver.run.stop("rung")
    assert isinstance(driver.end(), Stopped)
    assert [record.iteration for record in committed(driver)] == [1]
    assert calls == ["setup", "save", "cleanup"]


def test_a_class_that_cannot_save_pauses_without_a_checkpoint():
    driver = Driver(Unsavable, milestones=EVERY_RESULT)
    driver.run.answer(SaveAnswer(seq=driver.awaiting().seq))
    driver.awaiting()
    driver.run.answer(PauseAnswer(save=True))
    assert isinstance(driver.end(), Paused)
    assert committed(driver) == []


def test_a_class_that_cannot_save_fails_if_the_user_wants_checkpoints():
    failed = Driver(Unsavable, checkpoint_frequency=1).end()
    assert isinstance(failed, Failed)
    assert "Unsavable has no save_checkpoint()" in failed.error.message


@pytest.mark.parametrize("returns", [lambda d: None, lambda d: d, lambda d: Path(d), lambda d: d + "/"])
def test_files_written_into_the_directory_are_the_checkpoint(returns):
    driver, _ = drive(Files, {"until": 1, "returns": returns}, checkpoint_at_end=True)
    assert isinstance(driver.end(), Ended)
    second, _ = restored(driver, driver.results[0].checkpoint, Files, {"until": 2})
    assert isinstance(second.end(), Ended)
    assert second.values("steps") == [2]


@pytest.mark.parametrize("returns", [lambda d: "/elsewhere", lambda d: 3])
def test_another_path_than_the_given_one_fails_the_trial(returns):
    driver, calls = drive(Files, {"until": 1, "returns": returns}, checkpoint_at_end=True)
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert "what save_checkpoint() returns must be a dict, None or the directory" in (failed.error.message)
    assert driver.results == []
    assert calls[-1] == "cleanup"


def test_a_fence_that_refuses_fails_the_trial_before_its_result_is_sent():
    def fence():
        raise StorageError("the driver has not been heard for 12 s")

    driver, calls = drive(config={"until": 1}, checkpoint_at_end=True, fence=fence)
    assert isinstance(driver.end(), Failed)
    assert driver.results == []
    assert driver.run.spec.storage.find() == []
    assert calls[-1] == "cleanup"


@pytest.mark.parametrize("hook", ["step", "save_checkpoint", "log_result"])
def test_a_hook_that_raises_fails_the_trial_and_cleanup_is_called(hook):
    def broken(self, *args):
        raise SystemExit(hook)

    driver, calls = drive(type("Broken", (Counting,), {hook: broken}), checkpoint_frequency=1)
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert failed.error.message == f"SystemExit: {hook}"
    assert calls[-1] == "cleanup"


def test_a_setup_that_raises_fails_the_trial():
    class Broken(Counting):
        def setup(self, config):
            raise ValueError("no data")

    failed = drive(Broken)[0].end()
    assert isinstance(failed, Failed)
    assert failed.error.message == "ValueError: no data"


def test_a_load_that_raises_fails_the_trial_and_cleanup_is_called():
    class Broken(Counting):
        def load_checkpoint(self, checkpoint):
            raise ValueError("other version")

    first, _ = drive(config={"until": 1}, checkpoint_at_end=True)
    first.end()
    second, calls = restored(first, first.results[0].checkpoint, Broken)
    failed = second.end()
    assert isinstance(failed, Failed)
    assert failed.error.message == "ValueError: other version"
    assert calls == ["setup", "cleanup"]


@pytest.mark.parametrize("result", [None, 0.5, [1]])
def test_a_step_must_return_a_dict(result):
    driver, _ = drive(type("Wrong", (Counting,), {"step": lambda self: result}))
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert "what step() returns must be a dict" in failed.error.message


class DirtyEnd(Counting):
    def cleanup(self):
        super().cleanup()
        raise ValueError("cannot close")


def test_a_cleanup_that_raises_after_a_good_end_fails_the_trial():
    failed = drive(DirtyEnd, {"until": 1})[0].end()
    assert isinstance(failed, Failed)
    assert failed.error.message == "ValueError: cannot close"


def test_a_cleanup_that_raises_after_a_failure_does_not_hide_it(caplog):
    class Broken(DirtyEnd):
        def step(self):
            raise KeyError("column")

    with caplog.at_level(logging.WARNING):
        failed = drive(Broken)[0].end()
    assert isinstance(failed, Failed)
    assert failed.error.message == "KeyError: 'column'"
    assert "cannot close" in caplog.text


def test_a_step_without_end_is_interrupted_and_cleaned_up():
    running = threading.Event()

    class Busy(Counting):
        def step(self):
            running.set()
            while True:
                pass

    driver, calls = drive(Busy, checkpoint_at_end=True)
    assert running.wait(PATIENCE)
    driver.run.stop("slow")
    driver.run.interrupt()
    assert isinstance(driver.end(), Stopped)
    assert calls == ["setup", "cleanup"]


def test_an_interrupt_at_a_milestone_does_not_reach_the_cleanup():
    driver, calls = drive(milestones=EVERY_RESULT)
    driver.awaiting()
    driver.run.interrupt()
    assert isinstance(driver.end(), Stopped)
    assert calls == ["setup", "cleanup"]


def test_log_result_sees_the_filled_result_before_it_is_sent():
    seen = []

    class Looks(Counting):
        def log_result(self, result):
            seen.append(result["training_iteration"])
            result["noted"] = True

    driver, _ = drive(Looks, {"until": 2})
    assert isinstance(driver.end(), Ended)
    assert seen == [1, 2]
    assert driver.values("noted") == [True, True]


def test_a_class_knows_its_trial_and_may_not_report():
    told = {}

    class Reports(Counting):
        def setup(self, config):
            super().setup(config)
            told["id"], told["name"] = self.trial_id, self.trial_name
            told["cpus"] = self.trial_resources.head_cpus
            told["logdir"] = self.logdir
            told["checkpoint"] = get_checkpoint()

        def step(self):
            report({})

    driver, _ = drive(Reports)
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert "Return the metrics from step()" in failed.error.message
    assert told["logdir"].endswith("/trials/t1_dir")
    assert (told["id"], told["name"], told["cpus"]) == ("t1", "train_t1", 1)
    assert told["checkpoint"] is None


def pause_in_memory(trainable=Counting, limit=10_000, **options):
    """Pause a trial after its first result, and return it with what it wants to be kept."""
    kept = {}
    driver, calls = drive(trainable, keep=kept.__setitem__, milestones=EVERY_RESULT, **options)
    driver.awaiting()
    driver.run.answer(PauseAnswer(in_memory=limit))
    assert isinstance(driver.end(), Paused)
    return driver, calls, kept


@pytest.mark.parametrize("trainable", [Counting, Files])
def test_a_pause_in_memory_writes_nothing_and_a_new_run_resumes_from_there(trainable):
    driver, _, kept = pause_in_memory(trainable)
    [told] = [message for message in driver.messages if isinstance(message, Committed)]
    assert told.checkpoint.kind is CheckpointKind.MEMORY
    assert kept.keys() == {told.checkpoint.path}
    [packed] = kept.values()
    assert told.size == len(packed)
    storage = driver.run.spec.storage
    assert storage.names("trials", driver.run.spec.trial_dir) == []
    again, _ = drive(
        trainable,
        {"until": 3},
        packed=packed,
        checkpoint=told.checkpoint,
        next_checkpoint=1,
        incarnation=2,
        storage=storage,
    )
    again.end()
    assert again.values("steps") == [2, 3]
    assert again.values("training_iteration") == [2, 3]


def test_a_checkpoint_that_is_too_large_for_the_memory_goes_into_the_storage():
    driver, _, kept = pause_in_memory(limit=10)
    [told] = [message for message in driver.messages if isinstance(message, Committed)]
    assert (told.checkpoint.kind, told.size, kept) == (CheckpointKind.PERSISTENT, 0, {})
    assert CheckpointStore(driver.run.spec.storage).load(told.checkpoint).to_dict() == {"steps": 1}


def test_a_trial_that_pauses_where_it_has_saved_needs_no_checkpoint_in_memory():
    driver, calls, kept = pause_in_memory(checkpoint_frequency=1)
    assert calls.count("save") == 1
    assert kept == {}
    assert driver.results[0].checkpoint.kind is CheckpointKind.PERSISTENT


def test_a_class_that_cannot_save_pauses_without_a_checkpoint_in_memory():
    _, _, kept = pause_in_memory(Unsavable)
    assert kept == {}


def test_a_class_that_trains_may_save_into_the_memory_and_sees_what_it_saved():
    seen = []

    class Looking(Counting):
        def step(self):
            seen.append(get_checkpoint())
            return super().step()

    kept = {}
    driver, _ = drive(Looking, {"until": 2}, keep=kept.__setitem__, milestones=EVERY_RESULT)
    waiting = driver.awaiting()
    driver.run.answer(SaveAnswer(seq=waiting.seq, milestones=(), in_memory=10_000))
    assert isinstance(driver.end(), Ended)
    assert len(kept) == 1
    assert seen[0] is None
    assert seen[1].to_dict() == {"steps": 1}


def test_a_trial_can_resume_from_another_one_s_checkpoint():
    donor, _, kept = pause_in_memory(trial_id="donor", trial_dir="donor")
    [told] = [message for message in donor.messages if isinstance(message, Committed)]
    [packed] = kept.values()
    stored, _ = drive(Counting, {"until": 2}, trial_id="other", trial_dir="other")
    stored.end()
    storage = stored.run.spec.storage
    record = CheckpointStore(storage).commit(
        {**dict_files({"steps": 7})},
        trial_dir="third",
        index=0,
        incarnation=1,
        iteration=7,
        metrics={"training_iteration": 7},
    )
    for origin, blob, steps in ((told.checkpoint, packed, [2, 3]), (record, b"", [8, 9])):
        clone, _ = drive(Counting, {"until": steps[-1]}, checkpoint=origin, packed=blob, storage=storage)
        clone.end()
        assert clone.values("steps") == clone.values("training_iteration") == steps
        assert set(clone.values("trial_id")) == {"t1"}


def test_a_class_that_does_not_call_its_base_fails():
    class Alone(Counting):
        def __init__(self, config):
            self.calls = []
            self.steps = 0

    driver, _ = drive(Alone)
    told = driver.end()
    assert isinstance(told, Failed)
    assert "Alone.__init__() must call super().__init__(config), and has not" in told.error.message


# A clean-up that takes too long


class CleansUpForLong(Counting):
    """Waits in its clean-up, and once more if it is interrupted and `config` has an `again`."""

    def cleanup(self):
        super().cleanup()
        try:
            while not self.config["first"].wait(0.005):
                pass
        except TrialInterrupted:
            self.calls.append("interrupted")
            if (again := self.config.get("again")) is None:
                raise
            again.wait(PATIENCE)


def test_a_clean_up_after_the_trial_s_own_end_is_interrupted_after_the_grace_period(caplog):
    driver, calls = drive(CleansUpForLong, {"until": 2, "first": threading.Event()}, stop_grace=0.02)
    assert isinstance(driver.end(), Ended)
    assert driver.values("steps") == [1, 2]
    assert calls == ["setup", "cleanup", "interrupted"]
    assert "its clean-up takes more than 0.02 s (stop_grace)" in caplog.text


def test_a_clean_up_that_catches_its_interrupt_is_abandoned_and_the_trial_has_ended():
    again = threading.Event()
    config = {"until": 1, "first": threading.Event(), "again": again}
    driver, calls = drive(CleansUpForLong, config, stop_grace=0.02)
    assert isinstance(driver.until(lambda message: isinstance(message, Ended)), Ended)
    # Its resources stay in use until its thread ends.
    assert driver.run.finished
    assert driver.run.occupied
    again.set()
    assert isinstance(driver.end(), Ended)
    assert not driver.run.occupied
    assert calls == ["setup", "cleanup", "interrupted"]


def test_a_failure_is_reported_although_the_clean_up_after_it_never_ends():
    class Fails(CleansUpForLong):
        def step(self):
            raise ValueError("first")

    again = threading.Event()
    driver, _ = drive(Fails, {"first": threading.Event(), "again": again}, stop_grace=0.02)
    failed = driver.until(lambda message: isinstance(message, Failed))
    assert failed.error.message == "ValueError: first"
    again.set()
    assert driver.end() is failed


def test_a_clean_up_in_time_is_not_disturbed():
    first = threading.Event()
    first.set()
    driver, calls = drive(CleansUpForLong, {"until": 1, "first": first}, stop_grace=PATIENCE)
    assert isinstance(driver.end(), Ended)
    assert calls == ["setup", "cleanup"]


def test_what_a_function_does_after_its_last_result_is_bounded_too():
    again, caught = threading.Event(), []

    def train(config):
        try:
            report({"x": 1, "done": True})
        finally:
            try:
                while not again.wait(0.005):
                    pass
            except TrialInterrupted:
                caught.append("interrupted")
                again.wait(PATIENCE)

    driver = Driver(train, stop_grace=0.02)
    driver.until(lambda message: isinstance(message, Ended))
    assert driver.run.occupied
    again.set()
    assert isinstance(driver.end(), Ended)
    assert driver.values("x") == [1]
    assert caught == ["interrupted"]


def test_a_class_with_notice_is_saved_at_its_next_step_and_leaves():
    driver, calls = drive(milestones=EVERY_RESULT)
    first = driver.awaiting()
    driver.run.notice(120.0, "spot")
    # The driver still decides on the result at which the trial waits.
    driver.run.answer(ContinueAnswer(seq=first.seq, milestones=()))
    assert isinstance(driver.end(), Paused)
    assert saved_iterations(driver) == [2]
    assert calls == ["setup", "save", "cleanup"]


def test_a_class_with_notice_that_is_to_pause_saves_in_the_storage_not_in_memory():
    driver, _ = drive(milestones=EVERY_RESULT)
    driver.awaiting()
    driver.run.notice(120.0, "spot")
    driver.run.answer(PauseAnswer(in_memory=1 << 20))
    assert isinstance(driver.end(), Paused)
    [record] = committed(driver)
    assert record.kind is CheckpointKind.PERSISTENT


def test_a_class_that_cannot_save_runs_on_after_a_notice_until_it_is_to_leave():
    driver, _ = drive(Unsavable, milestones=EVERY_RESULT)
    first = driver.awaiting()
    driver.run.notice(120.0, "spot")
    driver.run.answer(ContinueAnswer(seq=first.seq))
    driver.awaiting()
    driver.run.answer(PauseAnswer())
    assert isinstance(driver.end(), Paused)


def test_a_class_saves_and_leaves_at_once_after_an_urgent_notice():
    driver, _ = drive(milestones=EVERY_RESULT)
    driver.awaiting()
    driver.run.notice(5.0, "SIGTERM", urgent=True)
    assert isinstance(driver.end(), Paused)
    assert [record.iteration for record in committed(driver)] == [1]
