"""The driver of a queued experiment: a process that runs one experiment, and records its end.

A runner starts it with ``python -m dasktune.tuner.queued_driver``, and writes a pickled
:class:`DriverOrder` to its standard input, which stays open. When the runner dies or closes it, the
driver ends as after Ctrl-C, and leaves the experiment in the queue.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from dasktune.cluster.driver.executor import NoTrialStartsError
from dasktune.config import RunConfig
from dasktune.config.resume_config import ResumeConfig
from dasktune.control.issuer import name_as_given, this_user
from dasktune.errors import (
    ClusterError,
    ConfigError,
    PreflightError,
    StorageError,
    TrialError,
    without_passwords,
)
from dasktune.storage.fs.retry import is_outage
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.leader.leader_lock import LeaderLock, OtherDriverLeadsError, current_leader
from dasktune.storage.queue.experiment_queue import (
    ExperimentQueue,
    ExposedQueueError,
    check_unexposed,
    may_pass,
    root_cause,
)
from dasktune.storage.queue.queue_state import MOST_FAILURES, QueueState
from dasktune.text.formatting import one_line
from dasktune.trial.events import ResultReported
from dasktune.trial.journal_codec import event_type
from dasktune.tuner.experiment_directory import (
    can_resume,
    check_queued_owner,
    directory_of,
    free_names,
    queued_owner,
    reserve_for_entry,
    reserved_directory,
    set_queued_owner,
)
from dasktune.tuner.queued import options_for
from dasktune.tuner.restore import check_trainable, restore_experiment
from dasktune.tuner.submitted_driver import DriverOutcome, DriverRun, unpack_tuner
from dasktune.tuner.tuner import Tuner

logger = logging.getLogger(__name__)

#: The exit status of a driver that leaves its experiment in the queue.
GIVEN_BACK: Final = 75

#: Seconds between two looks whether the user has cancelled the experiment.
_LOOK_SECONDS: Final = 2.0


@dataclass(frozen=True)
class DriverOrder:
    """What a runner tells a driver.

    Parameters
    ----------
    queue : Storage
        The queue's directory.
    entry_id : str
        The experiment.
    client : str or None
        The cluster.
    ttl_s : float, default=30.0
        Seconds after which the lease of a dead driver ends on another machine.
    """

    queue: Storage
    entry_id: str
    client: str | None
    ttl_s: float = 30.0


#: Exit statuses above this one stand for signals.
_SIGNALS: Final = 128
#: Why an experiment stops that the user has cancelled.
_CANCELLED: Final = "cancelled in the queue"
#: What the queue shows of a driver that has ended without an error.
_REASONS: Final = {
    DriverOutcome.CANCELLED: "cancelled while it ran",
    DriverOutcome.INTERRUPTED: "its driver was ended",
}
#: What the class of an error says about its driver; the first row that fits counts.
_OUTCOMES: Final = (
    ((KeyboardInterrupt, SystemExit), DriverOutcome.INTERRUPTED),
    (NoTrialStartsError, DriverOutcome.UNKNOWN),
    ((ClusterError, OtherDriverLeadsError, ExposedQueueError), DriverOutcome.UNAVAILABLE),
)


def _outcome_of(error: BaseException, client: str | None) -> DriverOutcome:
    if isinstance(error, TrialError) or isinstance(error.__cause__, TrialError):
        return DriverOutcome.FAILED  # by a trial, whatever its error is
    for classes, outcome in _OUTCOMES:
        if isinstance(error, classes):
            return outcome
    if isinstance(error, ConfigError) and isinstance(error.__cause__, OSError):
        # `connect` has not found the scheduler file: the scheduler has not written it yet.
        missing = error.__cause__.filename
        if client is not None and missing is not None and Path(missing) == Path(client):
            return DriverOutcome.UNAVAILABLE
    cause = root_cause(error)
    is_of_storage = isinstance(error, StorageError | PreflightError | OSError)
    if cause is None or not (is_of_storage and may_pass(error)):
        return DriverOutcome.FAILED
    return DriverOutcome.UNAVAILABLE if is_outage(cause) else DriverOutcome.UNKNOWN


def _is_of_signal(error: BaseException) -> bool:
    """Whether an exception says that a signal has ended the driver, such as SystemExit(143)."""
    return isinstance(error, SystemExit) and type(error.code) is int and error.code > _SIGNALS


def _class_names(error: BaseException) -> str:
    """Return the classes of an error and of its cause; their texts may differ each time."""
    cause = root_cause(error)
    classes = [type(error), *([] if cause is None or cause is error else [type(cause)])]
    return " from ".join(kind.__qualname__ for kind in classes)


def _text_of(error: BaseException) -> str:
    return without_passwords(one_line(f"{type(error).__name__}: {error}"))


@dataclass
class QueuedDriver:
    """A driver of a queued experiment.

    Parameters
    ----------
    order : DriverOrder
        The experiment.
    closed : threading.Event
        Set when the runner is gone.
    make_tuner : callable, default=Tuner
        Makes the tuner that runs the experiment, from the arguments of a :class:`Tuner`.
    make_lock : callable, default=LeaderLock
        Makes the lock of the experiment, from the arguments of a :class:`LeaderLock`.
    make_queue : callable, default=ExperimentQueue
        Returns the experiments in a queue's directory.
    most_failures : int, default=MOST_FAILURES
        Number of drivers that may fail with one kind of error, without a new result between them,
        before the experiment has failed.
    """

    order: DriverOrder
    closed: threading.Event
    make_tuner: Callable[..., Tuner] = Tuner
    make_lock: Callable[..., LeaderLock] = LeaderLock
    make_queue: Callable[[Storage], ExperimentQueue] = ExperimentQueue
    most_failures: int = MOST_FAILURES

    def __post_init__(self) -> None:
        self._queue = self.make_queue(self.order.queue)
        # Without retries: a renewal that waits for the storage would notice a loss too late.
        place = self._queue.entry(self.order.entry_id).with_retry(0)
        self._lock = self.make_lock(place, ttl_s=self.order.ttl_s, on_lost=self._interrupt)
        #: The run, once it can be interrupted.
        self._run: DriverRun | None = None

    def drive(self) -> int:
        """Run the experiment, and return the exit status: 0, or `GIVEN_BACK` if it stays queued."""
        queue, entry_id = self._queue, self.order.entry_id
        try:
            with self._lock as lock:
                reason = self._run_and_record()
                if reason is None:
                    return 0
                if not lock.lost:
                    queue.give_back(entry_id, lock.epoch, reason)
        except OtherDriverLeadsError as error:
            logger.info("%s", error)
        except Exception as error:  # mostly the queue's storage is away
            logger.exception("the driver of the queued experiment %s has failed", entry_id)
            with suppress(Exception):
                queue.note(entry_id, _text_of(error))
        return GIVEN_BACK

    def _interrupt(self) -> None:
        """End the run, because the lock is lost; in any thread."""
        if self._run is not None:
            self._run.interrupt()

    def _run_and_record(self) -> str | None:
        """Run the experiment and record its end, or return why it stays in the queue."""
        entry_id, queue, epoch, results = self.order.entry_id, self._queue, self._lock.epoch, None
        try:
            results = count_results(queue.directory(entry_id), self.order.queue)
            if not queue.begin(entry_id, epoch, results):
                return None
            outcome = self._fit()
            text = _REASONS.get(outcome, "")
        except BaseException as error:  # the user's code may raise any exception
            outcome, text = self._handle_error(error, results)
        if not outcome.is_end:
            return text
        queue.end(entry_id, QueueState(outcome.value), text)
        return None

    def _handle_error(self, error: BaseException, results: int | None) -> tuple[DriverOutcome, str]:
        """Return how the driver ends, and the reason; count errors that may pass or not."""
        entry_id, lock = self.order.entry_id, self._lock
        outcome, text = _outcome_of(error, self.order.client), _text_of(error)
        if outcome is DriverOutcome.INTERRUPTED:
            if self.closed.is_set() or _is_of_signal(error):
                return outcome, _REASONS[outcome]
            outcome = DriverOutcome.UNKNOWN
        if outcome is DriverOutcome.UNAVAILABLE:
            return outcome, text
        if lock.lost or not lock.confirm():
            return DriverOutcome.INTERRUPTED, "another driver has taken the experiment over"
        if outcome is DriverOutcome.UNKNOWN:
            times = self._queue.add_failure(entry_id, lock.epoch, _class_names(error), results)
            if times < self.most_failures:
                return outcome, text
            text = f"{times} drivers have failed with this kind of error without a new result: {text}"
        logger.error("the queued experiment %s has failed", entry_id, exc_info=error)
        return DriverOutcome.FAILED, text

    def _new_run(self) -> DriverRun:
        """Return a run that begins the experiment, or resumes it."""
        order, queue = self.order, self._queue
        parts = unpack_tuner(queue.pickled(order.entry_id))
        given_tune_config, config = parts.pop("given_tune_config", None), parts["run_config"]
        options = options_for(config.storage_url, order.queue)
        config = replace(config, storage_options=options or None)
        if config.queue_trials is None:
            # The cluster of a queue may be too small now, and have room later.
            config = replace(config, queue_trials=True)
        config = _placed(queue, order.entry_id, config)
        storage, session = directory_of(config), None
        make_tuner = partial(self.make_tuner, client=order.client, _queue_entry=order.entry_id)
        if can_resume(storage):
            check_unexposed(storage, "the experiment")
            check_trainable(storage, parts["trainable"])
            session = restore_experiment(
                storage,
                tune_config=given_tune_config,
                run_config=config,
                param_space=parts["param_space"],
                resume=ResumeConfig(),
            )
            # The user has asked to continue, unless this driver replaces one that has begun.
            session.releases = session.end.position == queue.resumed_at(order.entry_id)
            if session.was_over:
                # A driver outside of the queue may have replaced the experiment since it was
                # placed.
                check_queued_owner(storage, order.entry_id)
            tuner = make_tuner(parts["trainable"], _session=session)
        else:
            config = replace(config, if_exists="error")
            tuner = make_tuner(**{**parts, "run_config": config})
        return DriverRun(tuner, session, _CANCELLED)

    def _fit(self) -> DriverOutcome:
        queue, entry_id, closed = self._queue, self.order.entry_id, self.closed
        self._run = run = self._new_run()
        # A loss before this line found no run to interrupt, and one after it finds this one.
        if self._lock.lost:
            return DriverOutcome.INTERRUPTED

        def watch() -> None:
            while not run.ended.wait(0 if closed.is_set() else _LOOK_SECONDS):
                if closed.is_set():
                    run.interrupt(f"{this_user()} (queue)")
                    return
                with suppress(Exception):  # the storage is away: look again
                    if queue.is_cancelled(entry_id):
                        run.stop(f"{name_as_given(queue.cancelled_by(entry_id))} (queue)")
                        return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            return run.run()
        finally:
            watcher.join()


def _placed(queue: ExperimentQueue, entry_id: str, config: RunConfig) -> RunConfig:
    """Return the configuration with the experiment's directory, which the first driver chooses.

    Two entries of a queue never get one directory, unless the later one shall replace or resume the
    experiment of the older one, which then has failed.
    """
    known = queue.directory(entry_id)
    if known:
        config = replace(config, name=known.rstrip("/").rpartition("/")[2])
        check_queued_owner(directory_of(config), entry_id)
        return config
    wanted, resumed_at = config.name, -1
    assert wanted is not None
    if config.if_exists == "new":
        for name in free_names(config, wanted, entry_id):
            config = replace(config, name=name)
            if reserve_for_entry(directory_of(config), entry_id):
                break  # else another entry or driver was faster
    elif config.if_exists == "replace":
        with reserved_directory(config, wanted, lambda: None) as (_, storage, _):
            set_queued_owner(storage, entry_id, replaces=True)  # the old experiment is deleted
    elif config.if_exists == "resume" and can_resume(directory_of(config)):
        storage = directory_of(config)
        if current_leader(storage) is not None:
            raise OtherDriverLeadsError(f"the experiment in {storage} has a driver that lives")
        resumed_at = sum(1 for _ in read_journal(storage))
        set_queued_owner(storage, entry_id, replaces=True)
    else:
        _reserve_new(directory_of(config), entry_id)
    url = directory_of(config).url
    queue.set_directory(entry_id, url, resumed_at)
    if queue.directory(entry_id) != url:
        # This driver was frozen, and the next one has chosen another directory.
        raise OtherDriverLeadsError(f"another driver runs {entry_id} in {queue.directory(entry_id)}")
    return config


def _reserve_new(storage: Storage, entry_id: str) -> None:
    """Reserve the directory of a new experiment for an entry of the queue."""
    if can_resume(storage):
        raise StorageError(f"{storage} has an experiment already, and if_exists='error' is set")
    if not reserve_for_entry(storage, entry_id):
        if queued_owner(storage):
            check_queued_owner(storage, entry_id)
        raise OtherDriverLeadsError(f"another driver begins an experiment in {storage}")


def count_results(directory: str, queue: Storage) -> int | None:
    """Return the number of the experiment's results; None if its journal cannot be read.

    A trial without a checkpoint begins again after each death of a driver, and reports its results
    again. So a result counts once for each trial and iteration.

    Parameters
    ----------
    directory : str
        The URL of the experiment's directory; empty before there is one.
    queue : Storage
        The queue, whose options apply.
    """
    if not directory:
        return 0
    newest: dict[str, int] = {}
    try:
        for record in read_journal(Storage(directory, options_for(directory, queue))):
            if event_type(record) is ResultReported:
                trial_id, iteration = record["trial_id"], record["metrics"].get("training_iteration")
                if type(iteration) is int:
                    newest[trial_id] = max(iteration, newest.get(trial_id, 0))
    except (StorageError, LookupError, TypeError, AttributeError):  # damaged records, too
        return None
    return sum(newest.values())


def _watch_runner(closed: threading.Event) -> None:
    # Not by `sys.stdin`: Python aborts at its end if a thread holds the lock of that object.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    closed.set()


def main() -> Any:
    """Read the order, run the experiment, and return the exit status."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logging.getLogger("dasktune").addHandler(handler)
    order: DriverOrder = pickle.load(sys.stdin.buffer)
    closed = threading.Event()
    threading.Thread(target=_watch_runner, args=(closed,), daemon=True).start()
    return QueuedDriver(order, closed).drive()


if __name__ == "__main__":
    # The order's class must be that of the importable module, not of `__main__`.
    from dasktune.tuner import queued_driver

    sys.exit(queued_driver.main())
