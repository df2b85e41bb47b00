from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError, PreflightError, StorageError
from dasktune.placement import WorkerCapacity
from dasktune.schedulers import FIFOScheduler
from dasktune.schedulers.decision import Continue, StopOther
from dasktune.space import grid_search
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import ManualClock, MemoryStore, SimulatedTrialExecutor, simulate
from dasktune.trial.actions import CheckpointTrial, ContinueTraining, PauseTrial, StartTrial, StopTrial
from dasktune.trial.events import CheckpointCommitted
from dasktune.trial.resources import PlacementGroupFactory

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


def steps(config: dict[str, Any]) -> Any:
    for epoch in range(3):
        yield {"loss": 1 / (epoch + 1)}, 10.0


def start(trial_id: str = "t", **facts: Any) -> StartTrial:
    return StartTrial(trial_id=trial_id, incarnation=1, config={}, resources=ONE_CPU, **facts)


def only(trainable: Any, **arguments: Any) -> Any:
    """Return the result of a simulation with one trial."""
    (result,) = simulate(trainable, tune_config=TuneConfig(seed=0), **arguments)
    return result


def test_a_clock_moves_only_by_calls_and_never_back():
    clock = ManualClock(5.0)
    assert clock.now() == clock.now() == 5.0
    clock.advance_to(7.0)
    with pytest.raises(ConfigError, match=r"time must be at least 7.0.*got 6.0"):
        clock.advance_to(6.0)


def test_results_get_the_fields_that_a_worker_fills_in():
    rows = only(steps, start_overhead=2.0).history
    assert [row["training_iteration"] for row in rows] == [1, 2, 3]
    assert [row["time_total_s"] for row in rows] == [10.0, 20.0, 30.0]
    assert {row["time_this_iter_s"] for row in rows} == {10.0}
    assert {row["done"] for row in rows} == {False}
    assert len({row["trial_id"] for row in rows}) == 1


def test_the_overhead_of_a_start_takes_time_but_counts_for_no_trial():
    store = MemoryStore()
    only(steps, start_overhead=2.0, store=store)
    times = [decode(line)["time"] for line in store.journal.splitlines()]
    assert times[-1] == 32.0


def test_a_step_may_take_no_time_at_all():
    def quick(config: dict[str, Any]) -> Any:
        yield {"loss": 1.0}, 0

    assert only(quick).history[0]["time_total_s"] == 0.0


def test_a_trial_that_reports_nothing_has_ended_well():
    def silent(config: dict[str, Any]) -> Any:
        return
        yield

    result = only(silent)
    assert result.history == []
    assert result.error is None


def test_a_result_that_says_done_is_the_last():
    def endless(config: dict[str, Any]) -> Any:
        for epoch in range(10):
            yield {"done": epoch == 1}, 1.0

    assert len(only(endless).history) == 2


def test_a_trainable_may_count_its_iterations_itself():
    def doubles(config: dict[str, Any]) -> Any:
        for epoch in (2, 4):
            yield {"training_iteration": epoch}, 1.0

    assert [row["training_iteration"] for row in only(doubles).history] == [2, 4]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"loss": 1.0}, "what a simulated trainable yields must be (metrics, seconds)"),
        (({"loss": 1.0},), "what a simulated trainable yields must be (metrics, seconds)"),
        (({}, 1, None, 4), "what a simulated trainable yields must be (metrics, seconds)"),
        ((0.5, 1.0), "metrics must be a dict, got 0.5"),
        (({}, -1.0), "seconds must be a number, at least 0, got -1.0"),
        (({}, float("nan")), "seconds must be a number, at least 0, got nan"),
        (({}, float("inf")), "seconds must be a number, at least 0, got inf"),
        (({}, "1"), "seconds must be a number, at least 0, got '1'"),
        (({}, True), "seconds must be a number, at least 0, got True"),
        (({}, 1.0, "state"), "checkpoint must be None, as the trainable takes no checkpoint"),
        (({"training_iteration": 1.5}, 1.0), "metrics['training_iteration'] must be an int"),
        (({"training_iteration": float("nan")}, 1.0), "must be an int, got nan"),
    ],
)
def test_a_step_that_breaks_the_rules_fails_the_trial_and_says_which(step: Any, message: str):
    def bad(config: dict[str, Any]) -> Any:
        yield {"loss": 1.0}, 1.0
        yield step

    result = only(bad)
    assert message in str(result.error)
    assert len(result.history) == 1


def test_a_trainable_that_raises_fails_with_its_traceback():
    def bad(config: dict[str, Any]) -> Any:
        yield {}, 1.0
        raise ValueError("no such loss")

    result = only(bad)
    assert result.error.message == "ValueError: no such loss"
    assert "in bad" in result.error.traceback


@pytest.mark.parametrize(
    "trainable",
    [
        None,
        lambda config: None,
        steps({}),
        lambda: (yield {}, 1.0),
        lambda config, checkpoint, more: (yield {}, 1.0),
    ],
)
def test_a_trainable_must_be_a_generator_function_of_one_or_two_arguments(trainable: Any):
    with pytest.raises(ConfigError, match="trainable must be a generator function"):
        SimulatedTrialExecutor(trainable, clock=ManualClock())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", 0),
        ("slots", 1.5),
        ("slots", True),
        ("start_overhead", -1),
        ("start_overhead", float("nan")),
        ("lose", {-1.0: 0}),
        ("lose", {float("inf"): 0}),
    ],
)
def test_arguments_are_checked(name: str, value: Any):
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"{name} must be"):
        SimulatedTrialExecutor(steps, clock=ManualClock(), **arguments)


def test_time_passes_where_nothing_happens():
    clock = ManualClock()
    executor = SimulatedTrialExecutor(steps, clock=clock)
    assert executor.next_events(2.5) == []
    assert clock.now() == 2.5


def test_a_loss_of_a_trial_that_does_not_run_is_no_event():
    executor = SimulatedTrialExecutor(steps, clock=ManualClock(), lose={1.0: 0})
    assert executor.next_events(5.0) == []


def test_there_is_room_as_long_as_a_slot_is_free():
    executor = SimulatedTrialExecutor(steps, clock=ManualClock(), slots=2)
    executor.start_trial(start("a"))
    assert executor.has_resources(ONE_CPU)
    executor.start_trial(start("b"))
    assert not executor.has_resources(PlacementGroupFactory([{}]))


def test_closing_lets_user_code_clean_up():
    cleaned = []

    def tidy(config: dict[str, Any]) -> Any:
        try:
            yield {}, 1.0
        finally:
            cleaned.append(True)

    executor = SimulatedTrialExecutor(tidy, clock=ManualClock())
    executor.start_trial(start())
    executor.next_events(1.0)
    executor.close()
    executor.close()
    assert cleaned == [True]
    assert executor.has_resources(ONE_CPU)


def test_a_trial_that_does_not_wait_runs_on_until_it_is_stopped():
    executor = SimulatedTrialExecutor(steps, clock=ManualClock())
    executor.start_trial(start(milestones=()))
    names = [type(executor.next_events(1.0)[0]).__name__ for _ in range(2)]
    executor.stop_trial(StopTrial(trial_id="t", incarnation=1, reason="enough"))
    names += [type(executor.next_events(1.0)[0]).__name__ for _ in range(2)]
    assert names == ["TrialStarted", "ResultReported", "ResultReported", "TrialStopped"]


def test_a_checkpoint_is_saved_on_request_where_a_trial_waits_or_with_its_next_step():
    def saving(config: dict[str, Any], checkpoint: Any) -> Any:
        for number in range(1, 4):
            yield {"n": number}, 1.0, number

    executor = SimulatedTrialExecutor(saving, clock=ManualClock(), saves_on_demand=True)
    executor.start_trial(start())
    executor.next_events(1.0)
    executor.next_events(1.0)
    executor.checkpoint_trial(CheckpointTrial(trial_id="t", incarnation=1))
    (event,) = executor.next_events(1.0)
    assert isinstance(event, CheckpointCommitted)
    assert event.checkpoint.iteration == 1
    executor.continue_training(ContinueTraining(trial_id="t", incarnation=1, seq=2, milestones=()))
    # The second step is under way, so the third one is saved.
    executor.checkpoint_trial(CheckpointTrial(trial_id="t", incarnation=1))
    saved = [one.checkpoint for _ in range(2) for one in executor.next_events(1.0)]
    assert saved[0] is None
    assert saved[1].iteration == 3


def test_a_trial_that_is_stopped_on_its_way_never_runs():
    executor = SimulatedTrialExecutor(steps, clock=ManualClock())
    executor.start_trial(start())
    executor.pause_trial(PauseTrial(trial_id="t", incarnation=1))
    names = [type(executor.next_events(1.0)[0]).__name__ for _ in range(2)]
    assert names == ["TrialStarted", "TrialPaused"]
    assert executor.has_resources(ONE_CPU)


def test_clean_up_that_fails_makes_the_trial_fail():
    def untidy(config: dict[str, Any]) -> Any:
        try:
            yield {"loss": 1.0}, 1.0
        finally:
            raise OSError("disk full")

    result = only(untidy, run_config=RunConfig(stop={"loss": 0.5}))
    assert result.error.message == "OSError: disk full"


def test_user_code_gets_copies_of_its_configuration_and_its_checkpoint():
    seen = []

    def careless(config: dict[str, Any], checkpoint: Any) -> Any:
        config["layers"].append(1)
        state = checkpoint or {"epochs": 0}
        seen.append((len(config["layers"]), dict(state)))
        while state["epochs"] < 3:
            state["epochs"] += 1
            yield {}, 1.0, state
            state["spoilt"] = True
            if state["epochs"] == 2 and checkpoint is None:
                raise ValueError("once")

    result = only(
        careless,
        param_space={"layers": [64]},
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1)),
    )
    assert seen == [(2, {"epochs": 0}), (2, {"epochs": 2, "spoilt": True})]
    assert result.config == {"layers": [64]}
    assert len(result.history) == 3


def test_a_scheduler_that_wants_checkpoints_gets_those_that_there_are():
    class Saves(FIFOScheduler):
        def on_trial_result(self, trial: Any, result: Any) -> Any:
            return Continue(save=True)

    (result,) = simulate(steps, tune_config=TuneConfig(seed=0, scheduler=Saves()))
    assert len(result.history) == 3
    assert list(result.records) == []


def test_a_trial_that_loses_its_slot_cleans_up_and_is_restarted_whatever_its_clean_up_raises():
    def untidy(config: dict[str, Any]) -> Any:
        try:
            for _ in range(3):
                yield {}, 10.0
        except GeneratorExit:
            raise OSError("no slot") from None

    result = only(untidy, lose={15.0: 0})
    assert (len(result.history), result.error) == (3, None)


def test_a_trial_stopped_by_another_one_reports_its_next_result_and_leaves():
    class FirstWins(FIFOScheduler):
        def on_trial_result(self, trial: Any, result: Any) -> Any:
            others = [name for name in seen if name != trial.trial_id]
            if trial.config["seconds"] == 1:
                return Continue(commands=tuple(StopOther(trial_id=name, reason="beaten") for name in others))
            return Continue()

        def on_trial_add(self, trial: Any) -> None:
            seen.append(trial.trial_id)

    seen: list[str] = []

    def trainable(config: dict[str, Any]) -> Any:
        for _ in range(3):
            yield {}, config["seconds"]

    slow, fast = simulate(
        trainable,
        param_space={"seconds": {"grid_search": [5, 1]}},
        tune_config=TuneConfig(seed=0, scheduler=FirstWins()),
        slots=2,
    )
    assert (len(slow.history), slow.reason) == (1, "beaten")
    assert (len(fast.history), fast.reason) == (3, "")


def test_a_checkpoint_of_a_simulation_cannot_be_opened():
    def saves(config: dict[str, Any], checkpoint: Any) -> Any:
        yield {}, 1.0, "state"

    result = only(saves)
    with pytest.raises(StorageError, match="is a checkpoint of a simulation and has no files"):
        _ = result.checkpoint


def test_a_memory_store_holds_what_a_file_would():
    store = MemoryStore()
    assert [store.append({"n": n}) for n in range(2)] == [1, 2]
    assert store.commit() == store.commit(force=True) == 2
    assert store.journal == b'{"n":0}\n{"n":1}\n'
    store.write_params("t", {})
    store.write_error("t", "bad")
    store.close()
    assert store.errors == {"t": ["bad"]}


# Workers


def test_trials_are_placed_on_simulated_workers_as_on_real_ones():
    store = MemoryStore()
    results = simulate(
        steps,
        tune_config=TuneConfig(num_samples=6, seed=0),
        workers=[2, WorkerCapacity(address="large", nthreads=4)],
        resources={"cpu": 2},
        store=store,
    )
    assert len(results) == 6
    records = [decode(line) for line in store.journal.splitlines()]
    started = [one for one in records if one["event"] == "TrialStarted"]
    assert [one["worker"] for one in started] == ["worker-0", "large", "large"] * 2
    # Three at a time, each for three steps of 10 s.
    assert records[-1]["time"] == 60.0


def test_a_simulated_request_may_depend_on_the_configuration():
    results = simulate(
        steps,
        param_space={"cpus": grid_search([1, 2])},
        workers=[2],
        resources=lambda config: PlacementGroupFactory([{"CPU": 1}] * config["cpus"]),
    )
    assert [len(result.history) for result in results] == [3, 3]


def test_a_simulated_request_that_never_fits_is_refused_with_a_table():
    with pytest.raises(PreflightError, match=r"asked +3\nworker-0 +running +2/2"):
        simulate(steps, workers=[2, 1], resources={"cpu": 3})


@pytest.mark.parametrize("workers", [[], ["large"]])
def test_simulated_workers_must_be_given_by_size(workers: Any):
    with pytest.raises(ConfigError, match="workers must be a list of sizes or WorkerCapacity"):
        simulate(steps, workers=workers)


def test_a_step_can_ask_to_be_saved_where_that_is_done_on_demand():
    def counting(config, checkpoint):
        for number in range(checkpoint or 0, 4):
            yield {"n": number, "should_checkpoint": number == 1}, 10.0, number + 1

    store = MemoryStore()
    result = only(counting, saves_on_demand=True, lose={35.0: 0}, store=store)
    assert b"checkpoint_000000_i01" in store.journal
    assert b"checkpoint_000001" not in store.journal
    # It was lost in its fourth step, and resumed from its third.
    assert result.metrics["n"] == 3
    assert store.journal.count(b'"ResultReported"') == 3 + 2


def counting(config: dict[str, Any], checkpoint: Any) -> Any:
    count = 0 if checkpoint is None else checkpoint["count"]
    for _ in range(2):
        count += 1
        yield {"count": count}, 10.0, {"count": count}


def test_trials_begin_from_the_checkpoint_that_all_are_to_begin_from():
    given = RunConfig(restore=Checkpoint.from_dict({"count": 40}))
    first, second = simulate(
        counting, run_config=given, tune_config=TuneConfig(num_samples=2, seed=0), slots=2
    )
    for one in (first, second):
        assert [row["count"] for row in one.history] == [41, 42]
        assert [row["training_iteration"] for row in one.history] == [1, 2]


def test_a_trial_that_has_a_checkpoint_of_its_own_resumes_from_that():
    given = RunConfig(restore=Checkpoint.from_dict({"count": 40}))
    # It is lost before its first checkpoint, and again after it.
    result = only(counting, run_config=given, lose={5.0: 0, 20.0: 0})
    assert [row["count"] for row in result.history] == [41, 42, 43]


def test_a_checkpoint_of_files_is_passed_as_it_is(tmp_path):
    (tmp_path / "count").write_text("7")

    def read(config: dict[str, Any], checkpoint: Any) -> Any:
        with checkpoint.as_directory() as directory:
            yield {"count": int(Path(directory, "count").read_text())}, 1.0

    assert only(read, run_config=RunConfig(restore=tmp_path)).metrics["count"] == 7


@pytest.mark.parametrize(
    ("trainable", "options", "match"),
    [
        (steps, {"restore": "."}, r"restore must be left out, .* def trainable\(config, checkp"),
        (counting, {"restore": "no/such"}, "restore must be a checkpoint"),
        (steps, {"export_formats": ["onnx"]}, "export_formats must be left out of a simulation"),
        (
            counting,
            {"checkpoint_config": CheckpointConfig(checkpoint_frequency=2)},
            "checkpoint_frequency must be left out of a simulation, got 2. .* saves_on_demand",
        ),
    ],
)
def test_what_makes_no_sense_in_a_simulation_is_refused(trainable, options, match):
    with pytest.raises(ConfigError, match=match):
        simulate(trainable, run_config=RunConfig(**options))


def slow_in_the_middle(config: dict[str, Any]) -> Any:
    for seconds in (10.0, 30.0, 10.0):
        yield {"loss": 1.0}, seconds


@pytest.mark.parametrize(("limit", "rows"), [(29.0, 1), (30.0, 3)])
def test_a_step_that_takes_too_long_fails_in_virtual_time(limit, rows):
    store = MemoryStore()
    config = RunConfig(failure_config=FailureConfig(report_timeout_s=limit))
    result = only(slow_in_the_middle, run_config=config, store=store, start_overhead=50.0)
    assert len(result.history) == rows
    last = decode(store.journal.splitlines()[-1])["time"]
    if rows == 3:
        assert (result.error, last) == (None, 100.0)
    else:
        assert "no result for 29 s (report_timeout_s)" in str(result.error)
        assert last == 50.0 + 10.0 + 29.0


def test_a_trial_that_hangs_is_tried_again_and_cleans_up():
    closed: list[int] = []

    def once(config: dict[str, Any]) -> Any:
        try:
            yield {"loss": 1.0}, 1.0 if closed else 100.0
        finally:
            closed.append(1)

    config = RunConfig(failure_config=FailureConfig(report_timeout_s=9.0, max_failures=1))
    result = only(once, run_config=config)
    assert (result.error, len(result.history), len(closed)) == (None, 1, 2)


def test_a_trial_that_hangs_when_it_is_to_stop_has_not_failed():
    class StopsTheOther(FIFOScheduler):
        def on_trial_result(self, trial: Any, result: Any) -> Any:
            other = {"0": "00001", "1": "00000"}[trial.trial_id[-1]]
            stop = StopOther(trial_id=f"{trial.trial_id[:-5]}{other}", reason="enough")
            return Continue(commands=(stop,))

    def one_hangs(config: dict[str, Any]) -> Any:
        yield {"loss": 1.0}, config["seconds"]

    results = simulate(
        one_hangs,
        param_space={"seconds": grid_search([5.0, 100.0])},
        tune_config=TuneConfig(scheduler=StopsTheOther(), seed=0),
        run_config=RunConfig(failure_config=FailureConfig(report_timeout_s=50.0)),
        slots=2,
    )
    assert [result.error for result in results] == [None, None]
    assert [len(result.history) for result in results] == [1, 0]
