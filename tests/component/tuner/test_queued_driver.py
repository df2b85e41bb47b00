"""The driver of a queued experiment, with trials in this process."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from disk_store import DiskStore

import dasktune as tune
from dasktune.cluster.driver.executor import NoTrialStartsError
from dasktune.errors import ClusterLost, ConfigError, PreflightError, StorageError
from dasktune.sklearn.fits.search_experiment import InProcessTuner
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.segments import segment_name
from dasktune.storage.leader.leader_lease import lease_name
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.storage.queue.experiment_queue import ExperimentQueue
from dasktune.storage.queue.queue_state import QueueState
from dasktune.tuner import experiment_directory
from dasktune.tuner.queued_driver import GIVEN_BACK, DriverOrder, QueuedDriver, count_results
from dasktune.tuner.restore import RestoredExperiment
from dasktune.tuner.short_tracebacks import short_tracebacks


@pytest.fixture
def queue(tmp_path: Path) -> ExperimentQueue:
    return ExperimentQueue(Storage(str(tmp_path / "queue")))


def submit(
    queue: ExperimentQueue,
    trainable: Any,
    *,
    space: dict[str, Any] | None = None,
    tune_config: tune.TuneConfig | None = None,
    **options: Any,
) -> tune.QueuedExperiment:
    place = Path(queue.storage.path()).parent
    run_config = tune.RunConfig(**{"name": "run", "storage_path": place / "results", **options})
    return tune.Tuner(trainable, param_space=space, tune_config=tune_config, run_config=run_config).submit(
        queue=queue.storage.path()
    )


def run_driver(
    queue: ExperimentQueue, experiment: tune.QueuedExperiment, client: Any = None, **options: Any
) -> int:
    """Run a driver that runs the trials in this process, without a cluster."""
    order = DriverOrder(queue.storage, experiment.entry_id, client)
    return QueuedDriver(order, threading.Event(), **{"make_tuner": InProcessTuner, **options}).drive()


def tuner_that_ends_with(make: Callable[[], BaseException]) -> type[InProcessTuner]:
    """Return a tuner that runs nothing, and raises an exception."""

    class Ends(InProcessTuner):
        @short_tracebacks  # as `Tuner.fit`
        def fit(self) -> Any:
            raise make()

    return Ends


def caused(error: BaseException, cause: BaseException | None) -> BaseException:
    """Return an error, with its cause."""
    error.__cause__ = cause
    return error


def histories(experiment: tune.QueuedExperiment) -> list[list[int]]:
    return [[row["training_iteration"] for row in one.history] for one in experiment.result(timeout=0)]


class InterruptedAtOnce(tune.Trainable):
    """Ends its driver, while there is a file."""

    def setup(self, config: dict[str, Any]) -> None:
        self.x, self.gate = config["x"], Path(config["gate"])

    def step(self) -> dict[str, Any]:
        if self.gate.exists():
            raise KeyboardInterrupt
        return {"loss": self.x, "done": True}


class Interrupted(tune.Trainable):
    """Ends its driver in the third step of ten, while there is a file."""

    def setup(self, config: dict[str, Any]) -> None:
        self.gate = Path(config["gate"])

    def step(self) -> dict[str, Any]:
        if self.iteration == 2 and self.gate.exists():
            raise KeyboardInterrupt
        return {"done": self.iteration == 9}


def test_a_result_that_is_reported_again_is_no_new_one(queue, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    experiment = submit(queue, Interrupted, space={"gate": str(gate)})
    counts = []
    for _ in range(3):
        assert run_driver(queue, experiment) == GIVEN_BACK
        counts.append(count_results(experiment.path, queue.storage))
    records = list(read_journal(Storage(experiment.path)))
    assert [one.get("event") for one in records].count("ResultReported") == 6
    assert counts == [2, 2, 2]
    gate.unlink()
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "finished"
    # The last results are packed in the journal.
    assert count_results(experiment.path, queue.storage) == 10


def test_results_without_a_journal_are_unknown(queue, tmp_path):
    assert count_results("", queue.storage) == 0
    damaged = Storage(str(tmp_path / "damaged"))
    damaged.write_bytes(segment_name(1, 0), b"damaged\n" * 2)
    assert count_results(damaged.url, queue.storage) is None


class Steps(tune.Trainable):
    """Ends after one step."""

    def step(self) -> dict[str, Any]:
        return {"done": True}


def test_a_missing_scheduler_file_leaves_the_experiment_in_the_queue(queue, tmp_path):
    experiment = submit(queue, Steps)
    missing = f"{tmp_path}/./scheduler.json"
    assert run_driver(queue, experiment, missing, make_tuner=tune.Tuner) == GIVEN_BACK
    assert experiment.state == "queued"
    assert "scheduler.json" in experiment.reason


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (OSError(errno.EIO, "503 Slow Down"), "queued"),
        (PermissionError("no access"), "failed"),
        (None, "failed"),
    ],
)
@pytest.mark.parametrize("kind", [PreflightError, StorageError])
def test_an_error_of_the_storage_that_may_pass_is_not_the_experiments_own(queue, kind, cause, state):
    experiment = submit(queue, Steps)
    failing = tuner_that_ends_with(lambda: caused(kind("the results cannot be stored"), cause))
    assert run_driver(queue, experiment, make_tuner=failing) == (GIVEN_BACK if state == "queued" else 0)
    assert experiment.state == state
    assert "cannot be stored" in experiment.reason
    assert run_driver(queue, experiment) == 0
    assert experiment.state == ("finished" if state == "queued" else "failed")


class UnknownStoreError(Exception):
    """An exception of a store's client of which dasktune knows nothing."""


def tuner_without_storage(make: Callable[[], BaseException]) -> type[InProcessTuner]:
    """Return a tuner whose storage cannot be used, because of an exception."""
    return tuner_that_ends_with(lambda: caused(PreflightError("the results cannot be stored"), make()))


def test_an_experiment_fails_after_many_failures_of_an_unknown_kind(queue):
    experiment = submit(queue, Steps)
    numbers = iter(range(100))
    # The text differs each time, as those with the number of a request do.
    unknown = tuner_without_storage(lambda: UnknownStoreError(f"request {next(numbers)}"))
    busy = tuner_without_storage(lambda: OSError(errno.EIO, "503 Slow Down"))
    for _ in range(2):
        assert run_driver(queue, experiment, make_tuner=unknown, most_failures=3) == GIVEN_BACK
        assert experiment.state == "queued"
        # Another error in between changes nothing.
        assert run_driver(queue, experiment, make_tuner=busy, most_failures=3) == GIVEN_BACK
    assert run_driver(queue, experiment, make_tuner=unknown, most_failures=3) == 0
    assert experiment.state == "failed"
    assert "3 drivers have failed with this kind of error without a new result" in experiment.reason
    assert "cannot be stored" in experiment.reason


def http_error(name: str, **answer: Any) -> Exception:
    """Return the exception of a store's client that is no OSError."""
    error = type(name, (Exception,), {})()
    vars(error).update(answer)
    return error


OUTAGES = {
    "errno": lambda: OSError(errno.EIO, "503 Slow Down"),
    "connection": lambda: ConnectionResetError(),
    "name": lambda: http_error("EndpointConnectionError"),
    "code": lambda: http_error("HttpError", code=503),
    "status": lambda: http_error("InternalServerError", code=HTTPStatus.INTERNAL_SERVER_ERROR),
    "response": lambda: http_error("ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 429}}),
}


@pytest.mark.parametrize("make", OUTAGES.values(), ids=OUTAGES)
def test_a_storage_that_is_away_for_long_is_waited_for(queue, make):
    experiment = submit(queue, Steps)
    away = tuner_without_storage(make)
    for _ in range(5):
        assert run_driver(queue, experiment, make_tuner=away, most_failures=2) == GIVEN_BACK
    assert experiment.state == "queued"
    assert run_driver(queue, experiment, most_failures=2) == 0
    assert experiment.state == "finished"


@pytest.mark.parametrize(("error", "state"), [(ClusterLost, "queued"), (NoTrialStartsError, "failed")])
def test_a_cluster_that_is_away_is_waited_for_and_one_that_starts_no_trial_is_not(queue, error, state):
    failing = tuner_that_ends_with(lambda: error("of the cluster"))
    experiment = submit(queue, Steps)
    for _ in range(2):
        run_driver(queue, experiment, make_tuner=failing, most_failures=2)
    assert experiment.state == state
    assert "of the cluster" in experiment.reason


def test_code_of_the_user_that_ends_its_driver_again_and_again_fails(queue, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    experiment = submit(queue, InterruptedAtOnce, space={"x": 1, "gate": str(gate)})
    closed = threading.Event()
    closed.set()
    for _ in range(5):  # the runner has ended these drivers
        order = DriverOrder(queue.storage, experiment.entry_id, None)
        interrupted = tuner_that_ends_with(KeyboardInterrupt)
        driver = QueuedDriver(order, closed, make_tuner=interrupted, most_failures=3)
        assert driver.drive() == GIVEN_BACK
    ends = [run_driver(queue, experiment, most_failures=3) for _ in range(3)]
    assert ends == [GIVEN_BACK, GIVEN_BACK, 0]
    assert experiment.state == "failed"
    assert "KeyboardInterrupt" in experiment.reason


@pytest.mark.parametrize(("code", "state"), [(143, "queued"), (1, "failed"), ("why", "failed")])
def test_only_signals_may_end_the_drivers_of_an_experiment_again_and_again(queue, code, state):
    ended = tuner_that_ends_with(lambda: SystemExit(code))
    experiment = submit(queue, Steps)
    for _ in range(2):
        run_driver(queue, experiment, make_tuner=ended, most_failures=2)
    assert experiment.state == state


def queue_that_cannot_begin(error: BaseException) -> type[ExperimentQueue]:
    """Return a queue in which no driver can begin, because of an exception."""

    class CannotBegin(ExperimentQueue):
        def begin(self, entry_id: str, epoch: int, results: int | None) -> bool:
            raise error

    return CannotBegin


def test_an_experiment_whose_files_cannot_be_read_for_a_moment_says_so(queue):
    experiment = submit(queue, Steps)
    busy = queue_that_cannot_begin(caused(StorageError("cannot read the queue"), OSError(errno.EIO, "busy")))
    assert run_driver(queue, experiment, make_queue=busy) == GIVEN_BACK
    assert experiment.state == "queued"
    assert "cannot read the queue" in experiment.reason
    assert run_driver(queue, experiment) == 0


def test_a_bug_of_the_queue_itself_ends_the_experiment_with_its_cause(queue):
    experiment = submit(queue, Steps)
    buggy = queue_that_cannot_begin(RuntimeError("a bug"))
    assert run_driver(queue, experiment, make_queue=buggy) == 0
    assert (experiment.state, experiment.reason) == ("failed", "RuntimeError: a bug")


def test_a_driver_that_cannot_take_the_lead_says_why(queue):
    class Refused(LeaderLock):
        def acquire(self) -> None:
            raise StorageError("cannot take the lead")

    experiment = submit(queue, Steps)
    assert run_driver(queue, experiment, make_lock=Refused) == GIVEN_BACK
    assert (experiment.state, experiment.reason) == ("queued", "StorageError: cannot take the lead")


def fail_to_unpickle(text: str) -> None:
    raise RuntimeError(text)


class Broken:
    """Cannot be unpickled."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> Any:
        return fail_to_unpickle, (self.text,)


def test_an_error_of_the_users_own_objects_is_the_experiments_own(queue):
    experiment = submit(queue, Steps, space={"x": Broken("a bug")})
    assert run_driver(queue, experiment) == 0
    assert (experiment.state, experiment.reason) == ("failed", "RuntimeError: a bug")


def test_a_reason_has_no_password(queue):
    experiment = submit(queue, Steps, space={"x": Broken("ftp://me:hunter2@host/x")})
    assert run_driver(queue, experiment) == 0
    assert (experiment.state, experiment.reason) == ("failed", "RuntimeError: ftp://***@host/x")


def test_an_experiment_that_ended_before_its_cancelling_was_seen_has_finished(queue):
    class CancelledAtItsEnd(InProcessTuner):
        def fit(self) -> Any:
            results = super().fit()
            experiment.cancel()
            return results

    experiment = submit(queue, Steps)
    assert run_driver(queue, experiment, make_tuner=CancelledAtItsEnd) == 0
    assert experiment.state == "finished"


class Unreachable(tune.Trainable):
    """Fails with an error that would be transient in a storage."""

    def step(self) -> dict[str, Any]:
        raise ConnectionResetError("no answer from the service of the user")


def test_errors_of_trials_are_not_taken_for_errors_of_the_storage(queue):
    experiment = submit(queue, Unreachable, failure_config=tune.FailureConfig(fail_fast="raise"))
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "failed"
    assert "service of the user" in experiment.reason


class Unending(ExperimentQueue):
    """A queue that no driver can tell how an experiment has ended: it dies before."""

    def end(self, entry_id: str, outcome: QueueState, reason: str = "") -> bool:
        raise StorageError("the queue is away")


@pytest.mark.parametrize("kind", [ConnectionResetError, KeyboardInterrupt, SystemExit])
def test_an_error_that_a_dead_driver_has_not_raised_ends_the_experiment(queue, monkeypatch, kind):
    experiment = submit(queue, Unreachable, failure_config=tune.FailureConfig(fail_fast="raise"))
    assert run_driver(queue, experiment, make_queue=Unending) == GIVEN_BACK
    assert experiment.state == "queued"
    # Trials in this process record no pickled exceptions.
    monkeypatch.setattr("dasktune.tuner.raise_trial_error._unpickled", lambda blob: kind("of the trial"))
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "failed"
    assert experiment.reason == f"{kind.__name__}: of the trial"


@pytest.mark.parametrize(("given", "used"), [(None, True), (True, True), (False, False)])
def test_trials_wait_for_a_cluster_without_room_unless_the_user_forbids_it(queue, given, used):
    found = []

    def make_tuner(*parts: Any, run_config: tune.RunConfig, **options: Any) -> InProcessTuner:
        found.append(run_config.queue_trials)
        return InProcessTuner(*parts, run_config=run_config, **options)

    run_driver(queue, submit(queue, Steps, queue_trials=given), make_tuner=make_tuner)
    assert found == [used]


def test_an_experiment_whose_queue_becomes_exposed_waits(queue):
    experiment = submit(queue, Steps)
    os.chmod(queue.storage.path(), 0o777)
    assert run_driver(queue, experiment) == GIVEN_BACK
    assert experiment.state == "queued"
    assert "only you can change" in experiment.reason
    os.chmod(queue.storage.path(), 0o700)
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "finished"


def fit(queue: ExperimentQueue, *, make_tuner: Any = InProcessTuner, **options: Any) -> Path:
    """Run an experiment that is in no queue, and return its directory."""
    place = Path(queue.storage.path()).parent / "results"
    config = tune.RunConfig(name="run", storage_path=place, verbose=0, **options)
    return Path(make_tuner(Steps, run_config=config).fit().experiment_path)


def test_a_submitted_experiment_resumes_an_older_one_whose_seed_was_drawn(queue):
    place = fit(queue)
    samples = tune.TuneConfig(num_samples=3)
    experiment = submit(queue, Steps, if_exists="resume", tune_config=samples)
    assert run_driver(queue, experiment) == 0
    assert (experiment.state, experiment.reason) == ("finished", "")
    assert experiment.path == str(place)
    assert len(experiment.result()) == 3


def test_a_queued_experiment_learns_from_what_was_there_when_it_was_submitted(queue, tmp_path):
    pytest.importorskip("sklearn")
    config = {"metric": "loss", "mode": "min", "num_samples": 12, "seed": 1}
    space = {"x": tune.uniform(0, 1), "gate": str(tmp_path / "gate")}
    place = tune.RunConfig(storage_path=tmp_path / "past", name="past", verbose=0)
    InProcessTuner(
        InterruptedAtOnce, param_space=space, tune_config=tune.TuneConfig(**config), run_config=place
    ).fit()
    learning = tune.TuneConfig(**config, learn_from=tmp_path / "past")
    experiment = submit(queue, InterruptedAtOnce, space=space, tune_config=learning)
    parts = pickle.loads(queue.pickled(experiment.entry_id))
    line = "learns from 1 experiment with 12 trials: past (12)"
    assert [parts[name].learn_from.text for name in ("tune_config", "given_tune_config")] == [line] * 2
    shutil.rmtree(tmp_path / "past")
    (tmp_path / "gate").touch()
    assert run_driver(queue, experiment) == GIVEN_BACK
    (tmp_path / "gate").unlink()
    # The next driver resumes it, and has the configuration that the user gave.
    assert run_driver(queue, experiment) == 0
    assert (experiment.state, len(experiment.result())) == ("finished", 12)


def test_an_experiment_that_is_to_be_resumed_is_queued_without_the_passwords_of_places(queue):
    pytest.importorskip("sklearn")
    fit(queue)
    config = tune.TuneConfig(metric="loss", mode="min", learn_from="s3://me:hunter2@bucket/past")
    experiment = submit(queue, Steps, if_exists="resume", tune_config=config)
    blob = queue.pickled(experiment.entry_id)
    assert b"hunter2" not in blob
    parts = pickle.loads(blob)
    assert [parts[name].learn_from for name in ("tune_config", "given_tune_config")] == [
        ["s3://***@bucket/past"]
    ] * 2


def test_only_the_driver_that_resumes_for_the_user_releases_paused_trials(queue, tmp_path):
    fit(queue)
    found = []

    def make_tuner(*parts: Any, _session: RestoredExperiment | None = None, **options: Any) -> InProcessTuner:
        found.append(_session is not None and _session.releases)
        return InProcessTuner(*parts, _session=_session, **options)

    gate = tmp_path / "gate"
    gate.touch()
    new = submit(queue, Interrupted, space={"gate": str(gate)})
    for _ in range(2):
        run_driver(queue, new, make_tuner=make_tuner)
    assert found == [False, False]
    # It takes the experiment over.
    samples = tune.TuneConfig(num_samples=2)
    options: Any = {"name": "run_2", "if_exists": "resume", "tune_config": samples}
    resumed = submit(queue, Interrupted, space={"gate": str(gate)}, **options)
    for _ in range(2):
        assert run_driver(queue, resumed, make_tuner=make_tuner) == GIVEN_BACK
    assert found == [False, False, True, False]


def test_an_experiment_is_resumed_with_its_own_trainable_only(queue):
    fit(queue)
    experiment = submit(queue, Unreachable, if_exists="resume")
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "failed"
    assert "trainable must be 'Steps' as at the start" in experiment.reason


@pytest.mark.parametrize("if_exists", ["replace", "resume"])
def test_an_experiment_that_a_later_one_has_taken_over_is_not_resumed(queue, tmp_path, if_exists):
    gate = tmp_path / "gate"
    gate.touch()
    space = {"gate": str(gate)}
    first, second = (
        submit(queue, Interrupted, space=space, if_exists="new"),
        submit(queue, Interrupted, space=space, if_exists=if_exists),
    )
    assert run_driver(queue, first) == GIVEN_BACK
    assert run_driver(queue, second) == GIVEN_BACK
    assert first.path == second.path
    assert run_driver(queue, first) == 0
    assert first.state == "failed"
    assert f"belongs to entry {second.entry_id!r} of a queue" in first.reason
    gate.unlink()
    assert run_driver(queue, second) == 0
    assert histories(second) == [list(range(1, 11))]


def test_a_directory_that_another_entry_has_reserved_is_not_used(queue, tmp_path):
    reserved = tmp_path / "results" / "run"
    reserved.mkdir(parents=True)
    (reserved / "queued.txt").write_text("other")
    refused, free = submit(queue, Steps, if_exists="error"), submit(queue, Steps)
    assert run_driver(queue, refused) == 0
    assert refused.state == "failed"
    assert "belongs to entry 'other'" in refused.reason
    assert run_driver(queue, free) == 0
    assert free.path == f"{reserved}_2"
    assert fit(queue).name == "run_3"
    assert [one.name for one in reserved.iterdir()] == ["queued.txt"]


@pytest.mark.parametrize("if_exists", ["error", "resume"])
def test_a_plain_tuner_does_not_take_a_directory_that_an_entry_has_reserved(queue, tmp_path, if_exists):
    reserved = tmp_path / "results" / "run"
    reserved.mkdir(parents=True)
    (reserved / "queued.txt").write_text("other")
    with pytest.raises(StorageError, match="is reserved for entry 'other' of a queue"):
        fit(queue, if_exists=if_exists)
    assert [one.name for one in reserved.iterdir()] == ["queued.txt"]


@pytest.mark.parametrize("if_exists", ["error", "resume"])
def test_an_entry_does_not_take_the_experiment_of_a_driver_that_begins_meanwhile(queue, if_exists):
    class Connecting(InProcessTuner):
        @contextmanager
        def _open_environment(self, *args: Any) -> Any:
            # A plain tuner has the lock of its directory, and connects to its cluster.
            assert run_driver(queue, experiment) == GIVEN_BACK
            states.append((experiment.state, experiment.path))
            with super()._open_environment(*args) as environment:
                yield environment

    experiment = submit(queue, Steps, if_exists=if_exists)
    states: list[tuple[str, str | None]] = []
    place = fit(queue, make_tuner=Connecting, if_exists=if_exists)
    assert states == [("queued", None)]
    assert not (place / "queued.txt").exists()
    assert run_driver(queue, experiment) == 0
    if if_exists == "error":
        assert experiment.state == "failed"
        assert "has an experiment already" in experiment.reason
    else:
        assert experiment.state == "finished"


@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize("if_exists", ["error", "new"])
def test_an_entry_releases_its_reservation_if_another_driver_was_faster(
    queue, tmp_path, monkeypatch, if_exists, is_over
):
    experiment = submit(queue, Steps, if_exists=if_exists)
    place = Storage(str(tmp_path / "results" / "run"))
    lock, set_owner = LeaderLock(place), experiment_directory.set_queued_owner

    def begin_before(storage: Storage, entry_id: str, **options: Any) -> bool:
        if storage.url == place.url and not place.exists("leader"):
            fit(queue) if is_over else lock.acquire()
        return set_owner(storage, entry_id, **options)

    monkeypatch.setattr(experiment_directory, "set_queued_owner", begin_before)
    assert run_driver(queue, experiment) == (0 if if_exists == "new" else GIVEN_BACK)
    assert not place.exists("queued.txt")
    if not is_over:
        lock.close()
    if if_exists == "new":
        assert experiment.state == "finished"
        assert Path(experiment.path).name == "run_2"
    else:
        assert experiment.state == "queued"
        assert "another driver begins an experiment" in experiment.reason


def test_a_plain_tuner_that_replaces_an_experiment_ends_its_reservation(queue, tmp_path, caplog):
    gate = tmp_path / "gate"
    gate.touch()
    experiment = submit(queue, Interrupted, space={"gate": str(gate)})
    assert run_driver(queue, experiment) == GIVEN_BACK
    place = fit(queue, if_exists="replace")
    assert str(place) == experiment.path
    assert f"no longer belongs to entry {experiment.entry_id!r}" in caplog.text
    gate.unlink()
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "failed"
    assert "belongs to no entry of a queue" in experiment.reason
    assert len(tune.ExperimentAnalysis(place).trials[0].history) == 1


@pytest.mark.parametrize("finished", [True, False])
def test_a_driver_resumes_no_experiment_that_was_replaced_while_it_was_read(queue, tmp_path, finished):
    class Ended(ExperimentQueue):
        def end(self, entry_id: str, outcome: QueueState, reason: str = "") -> bool:
            return True  # the driver dies before it has written it

    class Replaced(ExperimentQueue):
        def resumed_at(self, entry_id: str) -> int:
            # The driver has read the experiment, and looks why.
            Storage(self.directory(entry_id)).remove("queued.txt")
            return super().resumed_at(entry_id)

    gate = tmp_path / "gate"
    gate.touch()
    experiment = submit(queue, Interrupted, space={"gate": str(gate)})
    assert run_driver(queue, experiment) == GIVEN_BACK
    if finished:
        gate.unlink()
        assert run_driver(queue, experiment, make_queue=Ended) == 0
    assert run_driver(queue, experiment, make_queue=Replaced) == 0
    assert experiment.state == "failed"
    assert "belongs to no entry of a queue" in experiment.reason


def test_a_driver_begins_no_experiment_where_its_reservation_was_ended(queue):
    class Replaced(ExperimentQueue):
        def set_directory(self, entry_id: str, directory: str, resumed_at: int = -1) -> None:
            super().set_directory(entry_id, directory, resumed_at)
            Storage(directory).remove("queued.txt")

    experiment = submit(queue, Steps)
    assert run_driver(queue, experiment, make_queue=Replaced) == 0
    assert experiment.state == "failed"
    assert "belongs to no entry of a queue" in experiment.reason


def test_a_driver_that_was_frozen_while_another_one_chose_the_directory_runs_nothing(queue):
    class Frozen(ExperimentQueue):
        def set_directory(self, entry_id: str, directory: str, resumed_at: int = -1) -> None:
            super().set_directory(entry_id, f"{directory}_2", resumed_at)
            super().set_directory(entry_id, directory, resumed_at)

    experiment = submit(queue, Steps)
    assert run_driver(queue, experiment, make_queue=Frozen) == GIVEN_BACK
    assert experiment.state == "queued"
    place = Path(queue.storage.path()).parent / "results" / "run"
    assert [one.name for one in place.iterdir()] == ["queued.txt"]


def test_a_driver_that_has_lost_the_lead_before_its_trials_start_runs_none(queue):
    locks = []

    def make_lock(place: Storage, **options: Any) -> LeaderLock:
        locks.append(LeaderLock(place, **options))
        return locks[-1]

    class Frozen(InProcessTuner):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            [lock] = locks
            successor = {"epoch": lock.epoch + 1}
            lock.storage.write_bytes(lease_name(lock.epoch + 1), json.dumps(successor).encode())
            assert not lock.renew()

        def fit(self) -> Any:
            raise AssertionError("it has lost the lead")

    experiment = submit(queue, Steps)
    assert run_driver(queue, experiment, make_lock=make_lock, make_tuner=Frozen) == GIVEN_BACK
    queue.storage.remove(f"{experiment.entry_id}/{lease_name(2)}")
    assert (experiment.state, experiment.reason) == ("queued", "")


def test_an_experiment_that_other_users_can_change_is_not_restored(queue, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    experiment = submit(queue, Interrupted, space={"gate": str(gate)})
    assert run_driver(queue, experiment) == GIVEN_BACK
    gate.unlink()
    place = Path(experiment.path or "")
    os.chmod(place, 0o777)
    assert run_driver(queue, experiment) == GIVEN_BACK
    assert "only you can change" in experiment.reason
    os.chmod(place, 0o755)
    assert run_driver(queue, experiment) == 0
    assert experiment.state == "finished"


# What the queue holds


def test_a_queue_has_the_tuner_without_credentials(queue, tmp_path):
    def train(config: dict[str, Any], bound: str) -> None:
        tune.report({"bound": bound})

    experiment = submit(
        queue, tune.with_parameters(train, bound="bound text"), storage_options={"password": "hunter2"}
    )
    files = {path.name: path.read_bytes() for path in (tmp_path / "queue").rglob("*") if path.is_file()}
    assert b"bound text" in files["tuner.pkl"]
    assert [name for name, content in files.items() if b"hunter2" in content] == []
    assert run_driver(queue, experiment) == 0


def test_a_checkpoint_with_options_is_not_written_into_a_queue(queue):
    store = fsspec.filesystem("memory", password="hunter2", skip_instance_cache=True)
    store.pipe("/checkpoint/weights", b"1")
    beginning = tune.Checkpoint("/checkpoint", store)
    with pytest.raises(ConfigError, match="restore must have no storage options") as caught:
        submit(queue, lambda config: None, restore=beginning)
    assert "hunter2" not in str(caught.value)
    assert queue.ids() == []


def test_results_in_the_memory_of_a_driver_are_refused(queue):
    with pytest.raises(ConfigError, match="storage_path must be visible to other processes"):
        submit(queue, lambda config: None, storage_path="memory://results")


class WatchedStore(DiskStore):
    """A store that knows which paths were looked at."""

    protocol = "watched"
    seen: ClassVar[list[str]] = []

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.seen.append(path)
        return super().open(path, mode, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self.seen.append(path)
        super().pipe_file(path, value, mode, **options)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        self.seen.append(path)
        return super().info(path, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        self.seen.append(path)
        return super().ls(path, detail, **options)


def test_a_submission_reads_no_other_experiment(tmp_path):
    fsspec.register_implementation("watched", WatchedStore, clobber=True)
    config = tune.RunConfig(name="run", storage_path=tmp_path / "results")

    def submit_one() -> tune.QueuedExperiment:
        tuner = tune.Tuner(lambda config: None, run_config=config)
        return tuner.submit(queue=f"watched://{tmp_path}/queue")

    first = submit_one()
    assert any(first.entry_id in path for path in WatchedStore.seen)
    WatchedStore.seen.clear()
    second = submit_one()
    assert second.name == "run"
    assert any(second.entry_id in path for path in WatchedStore.seen)
    assert [path for path in WatchedStore.seen if first.entry_id in path] == []
