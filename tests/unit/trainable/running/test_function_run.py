from __future__ import annotations

import asyncio
import contextlib
import contextvars
import pickle
import threading

import numpy as np
import pytest
from trial_run_kit import PATIENCE, Driver, make_spec

from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.api.session import (
    TuneContext,
    get_checkpoint,
    get_context,
    get_notice,
    report,
    should_checkpoint,
)
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.reporting.trial_messages import (
    Committed,
    ContinueAnswer,
    Ended,
    Failed,
    PauseAnswer,
    Paused,
    Reported,
    SaveAnswer,
    Started,
    StopAnswer,
    Stopped,
    Unrestored,
)
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.milestone import EVERY_RESULT, Milestone


def train_for_ever(config):
    while True:
        report({})


# The end of a function.


def test_a_function_that_reports_is_started_reported_and_ended():
    def train(config):
        for step in range(config["steps"]):
            report({"step": step, "loss": np.float32(0.5)})

    driver = Driver(train, config={"steps": 3})
    assert isinstance(driver.end(), Ended)
    assert isinstance(driver.messages[0], Started)
    assert driver.values("step") == [0, 1, 2]
    assert driver.values("training_iteration") == [1, 2, 3]
    assert driver.values("loss") == [0.5] * 3
    assert not any(result.awaits for result in driver.results)
    assert pickle.loads(pickle.dumps(driver.messages)) == driver.messages


def test_a_function_that_reports_nothing_ends():
    driver = Driver(lambda config: None)
    assert isinstance(driver.end(), Ended)
    assert driver.results == []


@pytest.mark.parametrize("value", [0.0, 0, False, 2.5, np.float32(0), np.int64(3), np.bool_(False)])
def test_a_returned_number_is_a_result_even_if_it_is_falsy(value):
    driver = Driver(lambda config: value)
    assert isinstance(driver.end(), Ended)
    assert driver.values("_metric") == [value]


def test_a_returned_dict_is_a_result_even_if_it_is_empty():
    driver = Driver(lambda config: {})
    assert isinstance(driver.end(), Ended)
    assert driver.values("training_iteration") == [1]


def test_a_generator_reports_what_it_yields_and_returns():
    def train(config):
        yield 0
        yield None
        yield {"loss": 1.0}
        return {"loss": 0.0}

    driver = Driver(train)
    assert isinstance(driver.end(), Ended)
    assert driver.values("_metric") == [0, None, None]
    assert driver.values("loss") == [None, 1.0, 0.0]


@pytest.mark.parametrize(
    ("train", "verb"), [(lambda config: "x", "returned"), (lambda config: (yield "x"), "yielded")]
)
def test_an_output_of_another_type_fails_the_trial_and_is_named(train, verb):
    failed = Driver(train).end()
    assert isinstance(failed, Failed)
    assert f"{verb} must be a dict, a number or None, got str" in failed.error.message


def test_a_result_that_says_done_is_the_last_one():
    def train(config):
        for step in range(10):
            report({"done": step == 2})

    driver = Driver(train, milestones=(Milestone("training_iteration", 3),))
    assert isinstance(driver.end(), Ended)
    assert driver.values("done") == [False, False, True]
    assert not driver.results[-1].awaits


# Whatever user code raises fails the trial, once, and nothing else.


class NotPicklable(Exception):
    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class FailsToUnpickle(Exception):
    def __init__(self, a, b):
        super().__init__(a)


class FailsToPrint(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def local_exception():
    class Local(Exception):
        pass

    return Local("local")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such loss"),
        OSError("disk"),
        FileNotFoundError("data.csv"),
        MemoryError(),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        StopIteration(1),
        StopAsyncIteration(),
        TrialInterrupted(),
        BaseException("plain"),
        NotPicklable(),
        FailsToUnpickle(1, 2),
        FailsToPrint(),
        local_exception(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_is_raised_becomes_one_failure(error):
    def train(config):
        report({"loss": 1.0})
        raise error

    driver = Driver(train)
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert failed.error.message.startswith(type(error).__name__)
    assert "raise error" in failed.error.traceback
    assert len(driver.results) == 1
    pickle.loads(pickle.dumps(failed))


def test_a_recursion_without_end_becomes_one_failure():
    def train(config):
        return train(config)

    failed = Driver(train).end()
    assert isinstance(failed, Failed)
    assert failed.error.message.startswith("RecursionError")


def test_an_exception_that_travels_is_pickled_and_any_other_is_not():
    def train(config):
        raise config["error"]

    failed = Driver(train, config={"error": ValueError("x")}).end()
    assert isinstance(failed, Failed)
    assert str(pickle.loads(failed.error.pickled)) == "x"
    failed = Driver(train, config={"error": NotPicklable()}).end()
    assert isinstance(failed, Failed)
    assert failed.error.pickled == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("loss",), "metrics must be a dict"),
        (({1: 2},), "a key of metrics must be a string"),
        (({"lock": threading.Lock()},), r"metrics['lock'] must be plain data"),
        (({"training_iteration": "x"},), r"metrics['training_iteration'] must be an int"),
    ],
)
def test_bad_metrics_fail_the_trial_and_nothing_is_reported(arguments, message):
    driver = Driver(lambda config: report(*arguments))
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert message in failed.error.message
    assert driver.results == []


def test_a_checkpoint_that_is_none_fails_the_trial():
    failed = Driver(lambda config: report({}, checkpoint="/tmp/x")).end()
    assert isinstance(failed, Failed)
    assert "checkpoint must be a Checkpoint, got str" in failed.error.message


# Milestones and answers.


def test_user_code_waits_at_its_milestones_only():
    driver = Driver(train_for_ever, milestones=(Milestone("training_iteration", 3),))
    third = driver.awaiting()
    assert third.metrics["training_iteration"] == 3
    assert [result.awaits for result in driver.results] == [False, False, True]
    driver.run.answer(ContinueAnswer(seq=third.seq, milestones=(Milestone("training_iteration", 5),)))
    fifth = driver.awaiting()
    assert fifth.metrics["training_iteration"] == 5
    driver.run.answer(StopAnswer(reason="rung"))
    assert isinstance(driver.end(), Stopped)
    assert driver.values("training_iteration") == [1, 2, 3, 4, 5]


def test_answers_that_are_old_or_repeated_change_nothing():
    driver = Driver(train_for_ever, milestones=EVERY_RESULT)
    first = driver.awaiting()
    for _ in range(3):
        driver.run.answer(ContinueAnswer(seq=first.seq))
    second = driver.awaiting()
    driver.run.answer(ContinueAnswer(seq=first.seq))
    driver.run.answer(StopAnswer())
    driver.run.answer(StopAnswer())
    assert isinstance(driver.end(), Stopped)
    assert driver.results == [first, second]


def test_a_function_asked_to_save_runs_on_as_only_it_can_save():
    driver = Driver(train_for_ever, milestones=EVERY_RESULT)
    driver.run.answer(SaveAnswer(seq=driver.awaiting().seq))
    driver.awaiting()
    driver.run.answer(PauseAnswer())
    assert isinstance(driver.end(), Paused)
    assert not any(isinstance(message, Committed) for message in driver.messages)


@pytest.mark.parametrize(
    ("order", "terminal"),
    [(StopAnswer(reason="budget"), Stopped), (PauseAnswer(reason="x"), Paused)],
)
def test_an_order_in_the_middle_makes_the_next_result_the_last(order, terminal):
    running, gate = threading.Event(), threading.Event()

    def train(config):
        report({"step": 1})
        running.set()
        assert gate.wait(PATIENCE)
        report({"step": 2})
        report({"step": 3})

    driver = Driver(train)
    assert running.wait(PATIENCE)
    driver.run.answer(order)
    gate.set()
    assert isinstance(driver.end(), terminal)
    assert driver.values("step") == [1, 2]


def test_after_an_order_no_milestone_holds_the_last_result_up():
    running, gate = threading.Event(), threading.Event()

    def train(config):
        running.set()
        assert gate.wait(PATIENCE)
        report({})

    driver = Driver(train, milestones=EVERY_RESULT)
    assert running.wait(PATIENCE)
    driver.run.stop("user")
    gate.set()
    assert isinstance(driver.end(), Stopped)
    assert [result.awaits for result in driver.results] == [False]


def test_a_function_that_ends_before_it_gets_the_order_has_ended():
    running, gate = threading.Event(), threading.Event()

    def train(config):
        running.set()
        assert gate.wait(PATIENCE)

    driver = Driver(train)
    assert running.wait(PATIENCE)
    driver.run.stop("user")
    gate.set()
    assert isinstance(driver.end(), Ended)


# Getting out of user code.


def test_a_stopped_generator_is_closed_at_once():
    closed = []

    def train(config):
        try:
            while True:
                yield 1.0
        except GeneratorExit:
            closed.append(threading.current_thread().name)
            raise

    driver = Driver(train, milestones=EVERY_RESULT)
    driver.awaiting()
    driver.run.stop("rung")
    assert isinstance(driver.end(), Stopped)
    assert closed == ["dasktune-t1"]


def test_a_generator_that_will_not_close_fails():
    def train(config):
        while True:
            with contextlib.suppress(GeneratorExit):
                yield 1.0

    driver = Driver(train, milestones=EVERY_RESULT)
    driver.awaiting()
    driver.run.stop("rung")
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert "generator ignored GeneratorExit" in failed.error.message


def test_user_code_that_swallows_the_interruption_gets_it_again_at_each_report():
    raised = []

    def train(config):
        for _ in range(4):
            try:
                report({})
            except BaseException as error:
                raised.append(type(error))

    driver = Driver(train, milestones=EVERY_RESULT)
    driver.awaiting()
    driver.run.stop("rung")
    assert isinstance(driver.end(), Stopped)
    assert raised == [TrialInterrupted] * 4
    assert len(driver.results) == 1


def test_user_code_that_fails_while_it_is_stopped_is_logged():
    def train(config):
        try:
            report({})
        finally:
            raise ValueError("cannot clean up")

    driver = Driver(train, milestones=EVERY_RESULT)
    driver.awaiting()
    driver.run.stop("rung")
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert failed.error.message == "ValueError: cannot clean up"


@pytest.mark.parametrize("order", [None, StopAnswer(reason="slow")])
def test_a_busy_loop_is_interrupted_and_counts_as_stopped(order):
    running = threading.Event()

    def train(config):
        running.set()
        while True:
            pass

    driver = Driver(train)
    assert running.wait(PATIENCE)
    if order is not None:
        driver.run.answer(order)
    driver.run.interrupt()
    assert isinstance(driver.end(), Stopped)


def test_a_busy_loop_that_is_to_pause_counts_as_paused():
    running = threading.Event()

    def train(config):
        running.set()
        while True:
            pass

    driver = Driver(train)
    assert running.wait(PATIENCE)
    driver.run.answer(PauseAnswer())
    driver.run.interrupt()
    assert isinstance(driver.end(), Paused)


def test_an_interrupt_wakes_user_code_that_waits_for_an_answer():
    driver = Driver(train_for_ever, milestones=EVERY_RESULT)
    driver.awaiting()
    driver.run.interrupt()
    assert isinstance(driver.end(), Stopped)


@pytest.mark.parametrize("order", [None, PauseAnswer()])
def test_an_interrupt_and_the_order_with_it_strike_once(order, monkeypatch):
    cleaning, cleaned = threading.Event(), threading.Event()

    def train(config):
        try:
            train_for_ever(config)
        finally:
            cleaning.set()
            for _ in range(200):
                threading.Event().wait(0.001)
            cleaned.set()

    driver = Driver(train, milestones=EVERY_RESULT)
    driver.awaiting()
    answer = driver.run.answer

    def answer_and_wait(order):
        # The order ends the report in which user code waits. The interrupt comes after that.
        answer(order)
        cleaning.wait(0.2)

    monkeypatch.setattr(driver.run, "answer", answer_and_wait)
    driver.run.interrupt(order) if order else driver.run.interrupt()
    assert isinstance(driver.end(), Paused if order else Stopped)
    assert cleaned.is_set()


def test_an_interrupt_after_the_end_changes_nothing():
    driver = Driver(lambda config: 1.0)
    driver.end()
    driver.run.interrupt()
    driver.run.answer(ContinueAnswer(seq=1))
    assert isinstance(driver.end(), Ended)
    assert not driver.run.is_alive


# Time.


class Timer:
    now = 0.0

    def __call__(self):
        return self.now


def test_time_inside_report_does_not_count():
    timer = Timer()

    def train(config):
        for seconds in (1.0, 2.0):
            timer.now += seconds
            report({})
        timer.now += 4.0
        try:
            report(None)
        except ValueError:
            timer.now += 8.0
        report({})

    driver = Driver(train, timer=timer, milestones=(Milestone("training_iteration", 1),))
    first = driver.awaiting()
    timer.now += 100.0  # while it waits for our decision
    driver.run.answer(ContinueAnswer(seq=first.seq, milestones=()))
    assert isinstance(driver.end(), Ended)
    assert driver.values("time_this_iter_s") == [1.0, 2.0, 12.0]
    assert driver.values("time_total_s") == [1.0, 3.0, 15.0]


# Checkpoints.


def train_with_checkpoints(config):
    checkpoint = get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    for step in range(start + 1, config["steps"] + 1):
        report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def test_a_checkpoint_is_committed_with_its_result():
    driver = Driver(train_with_checkpoints, config={"steps": 2}, next_checkpoint=5, incarnation=2)
    assert isinstance(driver.end(), Ended)
    records = [result.checkpoint for result in driver.results]
    assert [record.index for record in records] == [5, 6]
    assert [record.iteration for record in records] == [1, 2]
    assert records[0].metrics["step"] == 1
    assert records[0].path == "trials/t1_dir/checkpoint_000005_i02"
    assert driver.values("checkpoint_dir_name")[0] == "checkpoint_000005_i02"
    assert driver.values("should_checkpoint") == [True, True]


def test_a_restored_function_counts_on():
    first = Driver(train_with_checkpoints, config={"steps": 2})
    first.end()
    record = first.results[-1].checkpoint
    second = Driver(
        train_with_checkpoints,
        config={"steps": 4},
        storage=first.run.spec.storage,
        checkpoint=record,
        next_checkpoint=2,
        incarnation=2,
    )
    assert isinstance(second.end(), Ended)
    assert second.values("step") == [3, 4]
    assert second.values("training_iteration") == [3, 4]
    assert second.values("iterations_since_restore") == [1, 2]
    assert second.values("time_total_s")[0] > first.values("time_total_s")[-1]


def test_the_newest_checkpoint_is_the_one_reported_last():
    seen = []

    def train(config):
        seen.append(get_checkpoint())
        report({}, checkpoint=Checkpoint.from_dict({"step": 7}))
        seen.append(get_checkpoint().to_dict())

    assert isinstance(Driver(train).end(), Ended)
    assert seen == [None, {"step": 7}]


@pytest.mark.parametrize("asks", [False, True])
def test_a_function_that_ignores_its_checkpoint_is_warned_of_once(asks, caplog):
    """Otherwise a user would not notice that its clones are none."""

    def train(config):
        if asks:
            get_checkpoint()
        report({})
        report({})

    first = Driver(train_with_checkpoints, config={"steps": 3})
    first.end()
    record, storage = first.results[-1].checkpoint, first.run.spec.storage
    assert isinstance(Driver(train, checkpoint=record, storage=storage).end(), Ended)
    told = [one.getMessage() for one in caplog.records]
    assert (
        told == []
        if asks
        else [
            "trial t1 should resume from its checkpoint of iteration 3, but has reported a result "
            "without calling get_checkpoint(): it trains from scratch, while its iterations are "
            "counted from the checkpoint"
        ]
    )


def swallow_all(config):
    try:
        get_checkpoint()
    except BaseException:
        report({"from": "scratch"})


@pytest.mark.parametrize("function", [train_with_checkpoints, swallow_all])
def test_a_checkpoint_that_is_gone_ends_the_run_and_is_named(function):
    record = CheckpointRecord(path="trials/t1_dir/checkpoint_000000_i01", index=0, iteration=1)
    driver = Driver(function, config={"steps": 2}, checkpoint=record)
    end = driver.end()
    assert isinstance(end, Unrestored)
    assert end.checkpoint == record
    assert "there is no committed checkpoint" in end.reason
    assert driver.results == []


def test_a_damaged_checkpoint_ends_the_run_and_is_named():
    first = Driver(train_with_checkpoints, config={"steps": 2})
    first.end()
    record, storage = first.results[-1].checkpoint, first.run.spec.storage
    [name] = [name for name in storage.names(record.path) if not name.startswith(".")]
    storage.write_bytes(f"{record.path}/{name}", b"?")
    end = Driver(train_with_checkpoints, config={"steps": 3}, checkpoint=record, storage=storage).end()
    assert isinstance(end, Unrestored)
    assert "is damaged" in end.reason


def test_a_trial_that_is_to_stop_does_not_care_for_its_checkpoint():
    ordered = threading.Event()

    def train(config):
        ordered.wait(PATIENCE)
        get_checkpoint()

    record = CheckpointRecord(path="trials/t1_dir/checkpoint_000000_i01", index=0, iteration=1)
    driver = Driver(train, checkpoint=record)
    driver.run.stop("enough")
    ordered.set()
    assert isinstance(driver.end(), Stopped)


def test_an_initial_checkpoint_that_is_gone_fails_the_trial():
    record = CheckpointRecord(path="trials/initial/checkpoint_000000_i01", index=0, iteration=0)
    failed = Driver(train_with_checkpoints, config={"steps": 2}, initial_checkpoint=record).end()
    assert isinstance(failed, Failed)
    assert failed.error.message.startswith("CheckpointNotFound")


def test_a_fence_that_refuses_leaves_no_checkpoint_and_no_result():
    def fence():
        raise StorageError("the driver has not been heard for 12 s")

    driver = Driver(train_with_checkpoints, config={"steps": 1}, fence=fence)
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert "not been heard" in failed.error.message
    assert driver.results == []
    assert driver.run.spec.storage.find() == []


def test_a_failed_commit_that_user_code_catches_costs_a_number_and_no_result(tmp_path):
    refusals = [StorageError("now not")]

    def fence():
        if refusals:
            raise refusals.pop()

    def train(config):
        with pytest.raises(StorageError):
            report({}, checkpoint=Checkpoint.from_dict({}))
        report({}, checkpoint=Checkpoint.from_dict({}))

    # On a local disk it is committed in `report` itself.
    driver = Driver(train, fence=fence, storage=Storage(tmp_path))
    assert isinstance(driver.end(), Ended)
    assert driver.values("training_iteration") == [1]
    # A store that was away may still carry out what the first one asked for.
    assert [result.checkpoint.index for result in driver.results] == [1]


# Inside and outside of a trial.


def test_a_trial_knows_itself(tmp_path):
    def train(config):
        context = get_context()
        report(
            {
                "experiment": context.get_experiment_name(),
                "name": context.get_trial_name(),
                "id": context.get_trial_id(),
                "cpus": context.get_trial_resources().head_cpus,
                "dir": context.get_trial_dir(),
            }
        )

    driver = Driver(train, storage=Storage(tmp_path))
    assert isinstance(driver.end(), Ended)
    directory = tmp_path / "trials" / "t1_dir"
    assert directory.is_dir()
    told = driver.results[0].metrics
    assert [told[name] for name in ("experiment", "name", "id", "cpus")] == [
        "exp",
        "train_t1",
        "t1",
        1,
    ]
    assert told["dir"] == str(directory)


def test_a_trial_knows_its_gpus_and_the_workers_of_its_bundles():
    asked = TuneContext(make_spec(devices=("2", "GPU-a"), bundle_workers=("tcp://a:1", "tcp://b:1")))
    assert asked.get_gpu_ids() == ["2", "GPU-a"]
    assert asked.get_bundle_workers() == ["tcp://a:1", "tcp://b:1"]
    assert TuneContext(make_spec()).get_gpu_ids() == []


def test_the_directory_of_a_remote_trial_is_its_url():
    driver = Driver(lambda config: report({"dir": get_context().get_trial_dir()}))
    assert isinstance(driver.end(), Ended)
    assert driver.values("dir")[0].startswith("memory://")


def test_reports_from_a_helper_thread_with_the_context_belong_to_the_trial():
    def train(config):
        inside = contextvars.copy_context().run
        helper = threading.Thread(target=inside, args=(report, {"from": "helper"}))
        helper.start()
        helper.join()

    driver = Driver(train)
    assert isinstance(driver.end(), Ended)
    assert driver.values("from") == ["helper"]


def test_a_helper_thread_that_outlives_its_trial_is_interrupted():
    ended, outcome = threading.Event(), []

    def helper():
        assert ended.wait(PATIENCE)
        try:
            report({})
        except BaseException as error:
            outcome.append(type(error))

    threads = []

    def train(config):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(helper,))
        thread.start()
        threads.append(thread)

    driver = Driver(train)
    assert isinstance(driver.end(), Ended)
    ended.set()
    threads[0].join(PATIENCE)
    assert outcome == [TrialInterrupted]
    assert driver.results == []


def test_the_thread_is_a_daemon_named_after_the_trial():
    told = []

    def train(config):
        thread = threading.current_thread()
        told.append((thread.name, thread.daemon))

    Driver(train).end()
    assert told == [("dasktune-t1", True)]


def test_a_message_is_seen_only_with_its_number():
    driver = Driver(train_for_ever, milestones=EVERY_RESULT)
    waiting = driver.awaiting()
    assert isinstance(waiting, Reported)
    [(seq, blob)] = driver.run.collect(ack=0, received=waiting.seq - 1)
    assert (seq, pickle.loads(blob)) == (waiting.seq, waiting)
    assert driver.run.collect(ack=waiting.seq, received=0) == []
    driver.run.stop("")
    assert isinstance(driver.end(), Stopped)


def test_a_result_without_a_metric_that_decides_fails_the_trial():
    driver = Driver(lambda config: report({"los": 0.5}), required_metrics=("eval/loss",))
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert "metrics must hold 'eval/loss', got ['los']. Report it" in failed.error.message
    assert failed.error.fails_all_trials
    assert driver.results == []


@pytest.mark.parametrize("metrics", [{"eval": {"loss": None}}, {"eval/loss": None}])
def test_a_metric_that_decides_must_have_a_value(metrics):
    driver = Driver(lambda config: report(metrics), required_metrics=("eval/loss",))
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert "metrics['eval/loss'] must be a value, got None. Report float('nan')" in failed.error.message
    assert "Did you mean" not in failed.error.message
    assert not failed.error.fails_all_trials


# Notices.


def save_when_due(config):
    """Save when the trial should, and report the notice."""
    step = 0
    while True:
        step += 1
        is_due, notice = should_checkpoint(), get_notice()
        result = {"step": step, "reason": notice and notice.reason, "left": notice and notice.seconds}
        report(result, checkpoint=Checkpoint.from_dict(result) if is_due else None)


def test_a_function_with_notice_leaves_with_its_next_checkpoint():
    driver = Driver(save_when_due, milestones=EVERY_RESULT)
    first = driver.awaiting()
    driver.run.notice(120.0, "spot")
    driver.run.answer(ContinueAnswer(seq=first.seq))
    second = driver.awaiting()
    # It has saved, and the driver still decides on the result.
    driver.run.answer(ContinueAnswer(seq=second.seq))
    assert isinstance(driver.end(), Paused)
    assert driver.values("reason") == [None, "spot"]
    assert 0 < second.metrics["left"] <= 120
    assert [result.checkpoint is not None for result in driver.results] == [False, True]


def test_a_stop_at_the_result_that_has_the_checkpoint_counts_more_than_the_notice():
    driver = Driver(save_when_due, milestones=EVERY_RESULT)
    first = driver.awaiting()
    driver.run.notice(120.0, "spot")
    driver.run.answer(ContinueAnswer(seq=first.seq))
    driver.awaiting()
    driver.run.answer(StopAnswer())
    assert isinstance(driver.end(), Stopped)


def test_an_urgent_notice_leaves_a_function_that_asks_time_to_save():
    driver = Driver(save_when_due, milestones=EVERY_RESULT)
    first = driver.awaiting()
    driver.run.notice(5.0, "SIGTERM", urgent=True)
    driver.run.answer(ContinueAnswer(seq=first.seq, milestones=()))
    assert isinstance(driver.end(), Paused)
    assert driver.values("step") == [1, 2]
    assert driver.results[-1].checkpoint is not None


def test_a_function_that_does_not_ask_leaves_at_once_after_an_urgent_notice():
    driver = Driver(train_for_ever, milestones=EVERY_RESULT)
    driver.awaiting()
    driver.run.notice(5.0, "SIGTERM", urgent=True)
    assert isinstance(driver.end(), Paused)
    assert len(driver.results) == 1


def test_outside_of_a_trial_there_is_no_notice_and_nothing_to_save():
    assert should_checkpoint() is False
    assert get_notice() is None
