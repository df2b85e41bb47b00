"""The driver of a submitted experiment: what the task of the cluster runs.

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
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
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
from dasktune.tuner.raise_trial_error import raise_first_error
from dasktune.tuner.restore import RestoredExperiment, restore_experiment
from dasktune.tuner.result_grid import ResultGrid

if TYPE_CHECKING:
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
_POLL_SECONDS = 0.05


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


def _storage_of(parts: Mapping[str, Any]) -> Storage:
    config = parts["run_config"]
    return Storage(config.storage_url, config.storage_options or {}).child(config.name)


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
    parts = pickle.loads(blob)
    origin: SubmittedOrigin | None = parts.pop("origin")
    # The driver sends the registered environments to the trials' workers.
    offer_envs(parts.pop("envs", {}))
    parts["run_config"] = with_initial_checkpoint(parts["run_config"], parts.pop("beginning", None))
    storage = _storage_of(parts) if origin is None else origin.storage
    try:
        session = restored_session(parts, storage, origin, mark)
        tuner = _tuner(parts, session)
        if session is not None and session.experiment.finished and not _is_first(session, origin):
            # The previous driver ended the experiment, and died before it returned the results.
            session.report_end(parts["trainable"])
            raise_first_error(session.experiment)
            return tuner.get_results()
        return _fit(tuner)
    finally:
        offer_envs({})
        # If this worker dies before this line, the marker stays, and the next driver finds it.
        if mark:
            storage.remove(mark)
            remove_if_empty(storage)


def _fit(tuner: Tuner) -> ResultGrid:
    from dasktune.cluster.submitted.driver_task import serve_commands

    ended = threading.Event()

    def stop(by: str) -> None:
        with suppress(ControlError):
            wait_for_runner(tuner, ended).stop_soon("stopped by the user", by=_sent_by(by))

    def interrupt(by: str) -> None:
        logger.info("%s ends the run", _sent_by(by))
        with suppress(ControlError):
            wait_for_runner(tuner, ended).interrupt(by=_sent_by(by))

    def call(name: str, *arguments: Any) -> Future[Any]:
        by = ""
        if name == ISSUED_BY:
            by, name, *arguments = arguments  # type: ignore[assignment]
        if name not in _COMMANDS:
            raise ControlError(f"there is no command {name!r:.100}", "invalid")
        command = getattr(wait_for_runner(tuner, ended).commands, name)
        future: Future[Any] = command(*arguments, by=_sent_by(by))
        return future

    with serve_commands({"stop": stop, "interrupt": interrupt}, call):
        try:
            return tuner.fit()
        finally:
            # Threads that still wait for the runner must end: `serve_commands` joins them.
            ended.set()


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
    session.releases = _is_first(session, origin)
    if origin is not None and session.releases:
        session.resume = origin.resume
    return session


def _is_first(session: RestoredExperiment, origin: SubmittedOrigin | None) -> bool:
    """Whether no driver has appended records since the experiment was submitted."""
    return origin is not None and session.end.position == origin.position


def _tuner(parts: dict[str, Any], session: RestoredExperiment | None) -> Tuner:
    from dasktune.tuner.tuner import Tuner

    return Tuner(**parts) if session is None else Tuner(parts["trainable"], _session=session)


def wait_for_runner(tuner: Tuner, ended: threading.Event) -> Any:
    """Wait until the tuner has created its runner, and return the runner.

    A command may arrive before the tuner has created its runner. The command then waits, and
    reaches the runner before or during its loop; the runner handles commands in its loop only. If
    the tuner fails before it has created a runner, `ended` is set and the command is refused.

    Parameters
    ----------
    tuner : Tuner
        The tuner, which another thread runs.
    ended : threading.Event
        Set when the tuner has ended.

    Raises
    ------
    ControlError
        If the tuner has ended without a runner.
    """
    while (runner := tuner.runner) is None:
        if ended.wait(_POLL_SECONDS):
            raise ControlError("the experiment has ended before its trials could start", "over")
    return runner
