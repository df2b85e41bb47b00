"""What user code may do to itself: its trial fails, and no other one does."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    SharedPair,
    fitting,
    journal,
    note,
    notes,
    run_config,
    statuses,
    trial_threads,
    until,
    wait_for_file,
)
from distributed import Client, LocalCluster

import dasktune as tune
from dasktune.schedulers.decision import Continue, Decision, StopOther
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.trial.trial import Trial

pytestmark = pytest.mark.cluster


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle this")


class Unreadable(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("pickles, but cannot be unpickled")


def here_only(base: type) -> type:
    """Return a class that can be imported on this worker, and nowhere else."""
    module = sys.modules.setdefault("only_on_the_worker", types.ModuleType("only_on_the_worker"))
    made = type(f"Here{base.__name__}", (base,), {"__module__": module.__name__})
    setattr(module, made.__name__, made)
    return made


def raise_recursion() -> None:
    raise_recursion()


def report_lock() -> None:
    tune.report({"loss": threading.Lock()})


def report_stranger() -> None:
    tune.report({"loss": here_only(object)()})


#: What a trial does -> what the driver must say about it.
ROWS: dict[str, tuple[Any, str]] = {
    "an exception that cannot be pickled": (Unpicklable("no"), "Unpicklable: no"),
    "an exception that cannot be read": (Unreadable(1, 2), "Unreadable: pickles, but"),
    "a recursion": (raise_recursion, "RecursionError"),
    "StopIteration": (StopIteration("no"), "StopIteration: no"),
    "CancelledError": (asyncio.CancelledError("no"), "CancelledError: no"),
    "GeneratorExit": (GeneratorExit("no"), "GeneratorExit: no"),
    "OSError": (OSError("disk full"), "OSError: disk full"),
    "TimeoutError": (TimeoutError("no"), "TimeoutError: no"),
    "SystemExit": (SystemExit(3), "SystemExit: 3"),
    "KeyboardInterrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "MemoryError": (MemoryError("no"), "MemoryError: no"),
    "a result that cannot be pickled": (report_lock, "metrics['loss'] must be plain data"),
    "a result of a class of the worker": (report_stranger, "the driver cannot unpickle"),
}


def misbehave(config: dict[str, Any]) -> None:
    what = config["what"]
    if what == "nothing":
        tune.report({"step": 1})
    elif what == "a class of the worker":
        raise here_only(Exception)("no")
    elif what == "Unpicklable":
        # It cannot travel in the configuration either.
        raise Unpicklable("no")
    else:
        deed = ROWS[what][0]
        if isinstance(deed, BaseException):
            raise deed
        deed()


CASES = [*ROWS, "a class of the worker", "nothing"]


@pytest.fixture(scope="module")
def outcome(shared_pair: SharedPair, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tune.Result]:
    """Run all cases in one experiment, and see that the workers live."""
    place, pair = tmp_path_factory.mktemp("rows"), shared_pair.cluster()
    with Client(pair, set_as_default=False) as client:
        before = client.run(os.getpid)
        results = tune.Tuner(
            misbehave,
            param_space={"what": tune.grid_search(CASES)},
            run_config=run_config(place),
            client=pair,
        ).fit()
        assert client.run(os.getpid) == before
    assert not journal(place, event="TrialLost")
    return {result.config["what"]: result for result in results}


@pytest.mark.core
@pytest.mark.parametrize("case", ROWS)
def test_what_user_code_raises_fails_its_trial_alone(outcome: dict[str, tune.Result], case: str) -> None:
    result = outcome[case]
    assert result.status.value == "ERROR"
    assert ROWS[case][1] in str(result.error)


def test_an_exception_of_a_class_of_the_worker_arrives_as_text(
    outcome: dict[str, tune.Result],
) -> None:
    assert "HereException: no" in str(outcome["a class of the worker"].error)


def test_a_trial_beside_the_failing_ones_is_not_disturbed(
    outcome: dict[str, tune.Result],
) -> None:
    assert outcome["nothing"].status.value == "TERMINATED"


def die(config: dict[str, Any]) -> None:
    if config["how"] == "exit":
        os._exit(1)
    if config["how"] == "segfault":
        ctypes.string_at(0)
    tune.report({"step": 1})


@pytest.mark.slow
def test_user_code_that_kills_its_worker_fails_and_the_others_run_on(tmp_path: Path) -> None:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        results = tune.Tuner(
            die,
            param_space={"how": tune.grid_search(["exit", "segfault", "not", "not at all"])},
            run_config=run_config(tmp_path, failure_config=tune.FailureConfig(max_worker_losses=1)),
            client=cluster,
        ).fit()
    ends = {result.config["how"]: result for result in results}
    assert [ends[how].status.value for how in ("not", "not at all")] == ["TERMINATED"] * 2
    for how in ("exit", "segfault"):
        assert ends[how].status.value == "ERROR"
        assert "lost its worker 2 times" in ends[how].reason
        assert "died" in ends[how].reason
    lost = [one["trial_id"] for one in journal(tmp_path, event="TrialLost")]
    assert sorted(lost) == sorted([ends["exit"].trial_id, ends["segfault"].trial_id] * 2)


@pytest.mark.slow
def test_a_long_hold_of_the_interpreter_is_no_loss(pair: LocalCluster, tmp_path: Path) -> None:
    def trainable(config: dict[str, Any]) -> None:
        # PyDLL keeps the lock of the interpreter: the whole worker stands still, longer than a
        # call may take and than the driver may be silent before a commit.
        ctypes.PyDLL(None).sleep(6)
        tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))

    results = tune.Tuner(
        trainable,
        run_config=run_config(tmp_path, heartbeat_timeout=15.0),
        client=pair,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    assert len(results[0].records) == 1
    assert not journal(tmp_path, event="TrialLost")


class StopTheStuck(TrialScheduler):
    """At the first result of a helper, stop the trials that are stuck."""

    def __init__(self) -> None:
        self.stuck: list[str] = []

    def on_trial_add(self, trial: Trial) -> None:
        if trial.config["how"] != "helper":
            self.stuck.append(trial.trial_id)

    def on_trial_result(self, trial: Trial, result: Any) -> Decision:
        stuck, self.stuck = self.stuck, []
        return Continue(commands=tuple(StopOther(trial_id=name, reason="stuck") for name in stuck))

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        return next(iter(waiting.pending.values()), None)


def get_stuck(config: dict[str, Any]) -> None:
    place = Path(config["place"])
    note(place, f"{config['how']} begins")
    if config["how"] == "loop":
        try:
            while True:
                pass
        finally:
            note(place, "loop is interrupted")
    if config["how"] == "deaf":
        while not (place / "release").exists():
            try:
                while not (place / "release").exists():
                    time.sleep(0.01)
            except BaseException:
                note(place, "deaf does not listen")
        return
    if config["how"] == "sleep":
        time.sleep(1000)
    wait_for_file(place / "all-are-stuck")
    tune.report({"step": 1})


def test_user_code_that_does_not_obey_is_interrupted_and_then_left_behind(
    tmp_path: Path,
) -> None:
    hows = ["loop", "deaf", "sleep", "helper"]
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        tuner = tune.Tuner(
            get_stuck,
            param_space={"how": tune.grid_search([*hows, "helper"]), "place": str(tmp_path)},
            tune_config=tune.TuneConfig(scheduler=StopTheStuck()),
            run_config=run_config(tmp_path, stop_grace=0.5),
            client=cluster,
        )
        with fitting(tuner) as future:
            until(lambda: {f"{how} begins" for how in hows} <= set(notes(tmp_path)))
            (tmp_path / "all-are-stuck").touch()
            results = future.result(timeout=120)
        assert statuses(results) == {"TERMINATED"}
        # The driver may leave a thread behind before that has noted its interrupt.
        until(lambda: {"loop is interrupted", "deaf does not listen"} <= set(notes(tmp_path)))
        # Their threads still run, there is no way to end them; but nothing waits for them any more.

        def num_threads() -> int:
            return sum(map(len, client.run(trial_threads).values()))

        # The threads of the others have nothing left to do, and end soon.
        until(lambda: num_threads() == 2)
        (tmp_path / "release").touch()
        until(lambda: num_threads() == 1)


def test_what_is_left_behind_keeps_its_resources(tmp_path: Path) -> None:
    hows = ["deaf", "helper", "late helper", "last helper"]

    def trainable(config: dict[str, Any]) -> None:
        if config["how"] == "late helper":
            wait_for_file(tmp_path / "deaf-is-left")
        get_stuck({**config, "how": config["how"].split()[-1]})

    class Stopper(StopTheStuck):
        def on_trial_add(self, trial: Trial) -> None:
            if trial.config["how"] == "deaf":
                self.stuck.append(trial.trial_id)

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        tuner = tune.Tuner(
            trainable,
            param_space={"how": tune.grid_search(hows), "place": str(tmp_path)},
            tune_config=tune.TuneConfig(scheduler=Stopper()),
            run_config=run_config(tmp_path, stop_grace=0.2),
            client=cluster,
        )
        with fitting(tuner) as future:
            until(lambda: {"deaf begins", "helper begins"} <= set(notes(tmp_path)))
            (tmp_path / "all-are-stuck").touch()
            until(lambda: journal(tmp_path, event="TrialStopped"))
            # If its place were free, the last helper would take it now.
            (tmp_path / "deaf-is-left").touch()
            results = future.result(timeout=120)
        (tmp_path / "release").touch()
    assert statuses(results) == {"TERMINATED"}
    started = journal(tmp_path, event="TrialStarted")
    deaf = next(result.trial_id for result in results if result.config["how"] == "deaf")
    [taken] = [one["worker"] for one in started if one["trial_id"] == deaf]
    others = {one["worker"] for one in started if one["trial_id"] != deaf}
    assert taken not in others
    assert len(others) == 1
