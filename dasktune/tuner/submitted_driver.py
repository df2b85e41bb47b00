"""The driver of a submitted experiment: what the task of a cluster runs.

The driver of an experiment in a queue is in `queued_driver`; both run a tuner by `DriverRun`.

If the driver's worker dies, Dask runs the task again on another worker, and `run_driver` restores
the experiment there. The possible sequences:

- The old driver died before it had written ``tuner.json``: the new one begins from the start. The
  marker file that the client wrote shows that this worker has the same storage. The journal then
  has no record yet; if it has records, ``tuner.json`` was lost later, and the new driver refuses.
- The old driver died later: the new one resumes at the end of the journal.
- The old worker only seemed dead, and its driver still runs: the leader lock lets one of them
  write. The new driver waits for the lease to expire; the old one then loses the lock.
- The old driver ended the experiment and died before it could return the results: the new one reads
  them, and calls `on_experiment_end` of the callbacks for which the old one had not done so.

Commands come in other threads, at any time:

- Before the tuner has created its runner: the tuner remembers an interrupt, and other commands wait
  for the runner. They reach it before or during its loop; the runner handles commands in its loop
  only.
- After the tuner has failed without a runner: an interrupt changes nothing, and other commands are
  refused.
"""

from __future__ import annotations

import inspect
import logging
import pickle
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from dasktune.config.resume_config import ResumeConfig
from dasktune.control.issuer import name_as_given
from dasktune.errors import ControlError, StorageError
from dasktune.registry import offer_envs
from dasktune.storage.experiment.bundled_files import with_initial_checkpoint
from dasktune.storage.experiment.experiment_store import check_no_leftovers
from dasktune.storage.experiment.tuner_json import SETUP_FILE
from dasktune.storage.fs.probe import remove_if_empty
from dasktune.storage.fs.storage import Storage
from dasktune.tuner.experiment_directory import directory_of
from dasktune.tuner.raise_trial_error import raise_first_error
from dasktune.tuner.restore import RestoredExperiment, restore_experiment
from dasktune.tuner.result_grid import ResultGrid
from dasktune.tuner.short_tracebacks import short_tracebacks

if TYPE_CHECKING:
    from dasktune.runner import TrialRunner
    from dasktune.tuner.tuner import Tuner

logger = logging.getLogger(__name__)

#: The name of a call of which the first two arguments are who issues a command, and its name.
ISSUED_BY: Final = "issued_by"

#: Commands that a client may call.
_COMMANDS = frozenset(
    {
        "add_trial",
        "checkpoint_trial",
        "hold",
        "pause_trial",
        "release",
        "set_share",
        "stop_trial",
        "unpause_trial",
    }
)

#: Seconds between two checks for the runner, while a command waits for the experiment to start.
_POLL_SECONDS: Final = 0.05


class DriverOutcome(Enum):
    """How a driver has ended."""

    FINISHED = "finished"
    #: The user has ended the experiment.
    CANCELLED = "cancelled"
    #: By the experiment's own error.
    FAILED = "failed"
    #: A signal has ended the driver, or the user's code behaves as if one had.
    INTERRUPTED = "interrupted"
    #: The cluster, the storage or the directory may be usable later, however long that takes.
    UNAVAILABLE = "unavailable"
    #: By an error that may pass or not: nothing is known of its class.
    UNKNOWN = "unknown"

    @property
    def is_end(self) -> bool:
        """Whether the experiment has ended, too; otherwise another driver may resume it."""
        return self in (DriverOutcome.FINISHED, DriverOutcome.CANCELLED, DriverOutcome.FAILED)


class DriverRun:
    """One run of a driver.

    Parameters
    ----------
    tuner : Tuner
        The tuner to run.
    session : RestoredExperiment or None
        The restored experiment that the tuner resumes.
    stop_reason : str
        Why the experiment stops at :meth:`stop`.
    """

    def __init__(self, tuner: Tuner, session: RestoredExperiment | None, stop_reason: str) -> None:
        self._tuner = tuner
        self._session = session
        self._stop_reason = stop_reason
        self.ended = threading.Event()

    def run(self) -> DriverOutcome:
        """Run the experiment, and raise its error, if there is one, with its causes."""
        tuner, session = self._tuner, self._session
        try:
            if session is not None and session.was_over:
                # The driver that ended it died before it could say so.
                session.report_end(tuner._trainable)
                raise_first_error(session.experiment)
                experiment = session.experiment
            else:
                # Without the decorator that hides the causes of errors.
                inspect.unwrap(type(tuner).fit)(tuner)
                runner = self.runner()
                if runner.interrupted:
                    return DriverOutcome.INTERRUPTED
                experiment = runner.experiment
        finally:
            # Threads that still wait for the runner must end.
            self.ended.set()
        is_cancelled = experiment.state.stop_reason == self._stop_reason
        return DriverOutcome.CANCELLED if is_cancelled else DriverOutcome.FINISHED

    def runner(self) -> TrialRunner:
        """Wait until the tuner has created its runner, and return the runner.

        Raises
        ------
        ControlError
            If the tuner has ended without a runner.
        """
        while (runner := self._tuner.runner) is None:
            if self.ended.wait(_POLL_SECONDS):
                raise ControlError("the experiment has ended before its trials could start", "over")
        return runner

    def interrupt(self, by: str = "") -> None:
        """End the run as Ctrl-C would."""
        self._tuner._interrupt(by)

    def stop(self, by: str) -> None:
        """Let the experiment end with all trials stopped."""
        self.runner().stop_soon(self._stop_reason, by=by)


def unpack_tuner(blob: bytes) -> dict[str, Any]:
    """Return the `parts` of :func:`pack_tuner`, and register the environments."""
    parts: dict[str, Any] = pickle.loads(blob)
    # The driver sends the registered environments to the trials' workers.
    offer_envs(parts.pop("envs", {}))
    parts["run_config"] = with_initial_checkpoint(parts["run_config"], parts.pop("beginning", None))
    return parts


@dataclass(frozen=True)
class SubmittedOrigin:
    """The state of a restored experiment when it was submitted.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    resume : ResumeConfig
        Which trials the first driver resumes, restarts or skips.
    position : int
        Number of records in the journal.
    """

    storage: Storage
    resume: ResumeConfig
    position: int


@short_tracebacks
def run_driver(blob: bytes, mark: str) -> ResultGrid:
    """Run or resume an experiment in a task of the cluster, and return its results.

    Parameters
    ----------
    blob : bytes
        The pickled arguments of the tuner.
    mark : str
        The name of the marker file in the experiment's directory, or empty.

    Raises
    ------
    StorageError
        If this worker cannot access the experiment's directory.
    """
    from dasktune.tuner.tuner import Tuner

    parts = unpack_tuner(blob)
    origin: SubmittedOrigin | None = parts.pop("origin")
    storage = directory_of(parts["run_config"]) if origin is None else origin.storage
    try:
        session = restored_session(parts, storage, origin, mark)
        tuner = Tuner(**parts) if session is None else Tuner(parts["trainable"], _session=session)
        driver = DriverRun(tuner, session, "stopped by the user")
        was_over = session is not None and session.was_over
        with nullcontext() if was_over else _obeying_clients(driver):
            driver.run()
        return tuner.get_results()
    finally:
        offer_envs({})
        # If this worker dies before this line, the marker stays, and the next driver finds it.
        if mark:
            storage.remove(mark)
            remove_if_empty(storage)


def _obeying_clients(driver: DriverRun) -> AbstractContextManager[None]:
    from dasktune.cluster.submitted.driver_task import serve_commands

    def stop(by: str) -> None:
        with suppress(ControlError):
            driver.stop(_sent_by(by))

    def interrupt(by: str) -> None:
        logger.info("%s ends the run", _sent_by(by))
        driver.interrupt(_sent_by(by))

    def call(name: str, *arguments: Any) -> Future[Any]:
        by = ""
        if name == ISSUED_BY:
            by, name, *arguments = arguments  # type: ignore[assignment]
        if name not in _COMMANDS:
            raise ControlError(f"there is no command {name!r:.100}", "invalid")
        command = getattr(driver.runner().commands, name)
        future: Future[Any] = command(*arguments, by=_sent_by(by))
        return future

    return serve_commands({"stop": stop, "interrupt": interrupt}, call)


def _sent_by(name: str) -> str:
    """Return the issuer of a command that came over the cluster, which knows no users."""
    return f"{name_as_given(name)} (Dask)"


def restored_session(
    parts: dict[str, Any], storage: Storage, origin: SubmittedOrigin | None, mark: str
) -> RestoredExperiment | None:
    """Return the restored experiment; None if no driver has stored one.

    Parameters
    ----------
    parts : dict
        The arguments of the tuner.
    storage : Storage
        The experiment's directory.
    origin : SubmittedOrigin or None
        The state at the submission, if a restored experiment was submitted.
    mark : str
        The name of the marker file in the experiment's directory, or empty.

    Raises
    ------
    StorageError
        If this worker cannot access the experiment's directory.
    """
    if not storage.exists(SETUP_FILE):
        if mark and not storage.exists(mark):
            # This worker joined later and has another storage. Starting the experiment here would
            # run all trials again.
            raise StorageError(
                f"the driver was moved to a worker that cannot access {storage}. Resume with Tuner.restore() "
                "on a machine that can, and start all workers with the same storage."
            )
        if origin is None:
            # The previous driver may have died after it wrote the specification alone: `fit` starts
            # the experiment then. Only `fit` may remove that file, with the leader lock held,
            # because it may be the file of a driver that another cluster starts at this moment.
            check_no_leftovers(storage)
            return None
    session = restore_experiment(
        storage,
        # Use the objects of the task: the worker may lack the modules of the stored objects.
        tune_config=parts["tune_config"],
        run_config=parts["run_config"],
        param_space=parts["param_space"],
        resume=ResumeConfig(),
    )
    # Whether no driver has appended records since the experiment was submitted.
    session.releases = origin is not None and session.end.position == origin.position
    if origin is not None and session.releases:
        session.resume = origin.resume
    return session
