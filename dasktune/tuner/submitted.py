"""Experiments whose driver is a task of the cluster, so that the client process may exit.

If the driver's worker dies, Dask runs the task again on another worker, and `_run_driver` restores
the experiment there. The possible sequences:

- The old driver died before it had written ``tuner.json``: the new one begins from the start. The
  marker file that the client wrote shows that this worker has the same storage.
- The old driver died later: the new one resumes at the end of the journal.
- The old worker only seemed dead, and its driver still runs: the leader lock lets one of them
  write. The new driver waits for the lease to expire; the old one then loses the lock.
- The old driver ended the experiment and died before it could return the results: the new one reads
  them, and calls `on_experiment_end` of the callbacks for which the old one had not done so.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from dasktune.config.resume_config import ResumeConfig
from dasktune.dashboard.server.attach import with_dashboard_link
from dasktune.errors import ControlError, StorageError, check
from dasktune.registry import offer_envs
from dasktune.runner.commands import CommandOutcome
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.experiment.bundled_files import (
    ExpectedDirectory,
    bundle_initial_checkpoint,
    with_absolute_path,
    with_initial_checkpoint,
)
from dasktune.storage.experiment.experiment_store import SPEC_FILE
from dasktune.storage.experiment.tuner_json import SETUP_FILE
from dasktune.storage.fs.probe import remove_if_empty
from dasktune.storage.fs.storage import Storage
from dasktune.tuner.raise_trial_error import raise_first_error
from dasktune.tuner.restore import RestoredExperiment, restore_experiment
from dasktune.tuner.result_grid import ResultGrid

if TYPE_CHECKING:
    from dasktune.cluster.submitted.driver_task import DriverTask
    from dasktune.tuner.tuner import Tuner

__all__ = ["DetachedExperiment", "attach", "submit"]

#: A task of the cluster has no terminal to show progress on.
_SILENT: Final[dict[str, Any]] = {"verbose": 0, "progress_reporter": None}

#: The public status for each status of the Dask task; for any other status it is "failed".
_STATUS = {"pending": "running", "finished": "finished"}

#: Seconds that an attached client waits for a lost scheduler.
_SCHEDULER_TIMEOUT = 300.0

#: Commands that a client may call.
_COMMANDS = frozenset({"add_trial", "hold", "pause_trial", "release", "stop_trial", "unpause_trial"})

#: Seconds between two checks for the runner, while a command waits for the experiment to start.
_POLL_SECONDS = 0.05


class DetachedExperiment:
    """A handle of an experiment whose driver runs on the cluster.

    Returned by :meth:`Tuner.submit` and :func:`attach`. The experiment continues when the handle is
    closed or this process exits.

    Parameters
    ----------
    driver_task : DriverTask
        The task that is the experiment's driver.

    Examples
    --------
    >>> experiment = tuner.submit()  # doctest: +SKIP
    >>> experiment = attach("run", client="tcp://cluster:8786")  # doctest: +SKIP
    >>> results = experiment.result()  # doctest: +SKIP
    """

    def __init__(self, driver_task: DriverTask) -> None:
        self._driver_task = driver_task

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self._driver_task.name

    @property
    def status(self) -> Literal["running", "finished", "failed"]:
        """Whether the experiment is running or has finished, or its driver has failed."""
        return _STATUS.get(self._driver_task.status, "failed")  # type: ignore[return-value]

    def result(self, timeout: float | None = None) -> ResultGrid:
        """Wait for the experiment to end, and return its results.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; no limit by default.

        Raises
        ------
        TimeoutError
            If the experiment has not ended within `timeout`.
        TuneError
            The error of :meth:`Tuner.fit` on the cluster.
        """
        results: ResultGrid = self._driver_task.result(timeout)
        return results

    def stop(self) -> None:
        """Stop all trials and end the experiment; :meth:`result` then returns their results."""
        self._driver_task.send("stop")

    def stop_trial(self, trial_id: str) -> CommandOutcome:
        """Stop a trial.

        Parameters
        ----------
        trial_id : str
            The trial.

        Returns
        -------
        CommandOutcome
            The outcome of the command.

        Raises
        ------
        ControlError
            If there is no such trial, it has ended, or the driver does not answer within 30 s.
        """
        return self._command("stop_trial", trial_id)

    def pause_trial(self, trial_id: str) -> CommandOutcome:
        """Pause a trial until :meth:`unpause_trial`; otherwise like :meth:`stop_trial`.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        return self._command("pause_trial", trial_id)

    def unpause_trial(self, trial_id: str) -> CommandOutcome:
        """Let a paused trial resume; otherwise like :meth:`stop_trial`.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        return self._command("unpause_trial", trial_id)

    def add_trial(self, config: Mapping[str, Any]) -> CommandOutcome:
        """Add a trial; it starts before the searcher's next suggestion.

        Parameters
        ----------
        config : mapping
            The complete configuration.

        Returns
        -------
        CommandOutcome
            The outcome of the command, with the trial's ID.

        Raises
        ------
        ControlError
            If `config` is outside the search space, or the driver does not answer within 30 s.
        """
        return self._command("add_trial", config)

    def hold(self) -> CommandOutcome:
        """Start no trial until :meth:`release`; running trials continue.

        Raises
        ------
        ControlError
            If the experiment has ended, or the driver does not answer within 30 s.
        """
        return self._command("hold")

    def release(self) -> CommandOutcome:
        """Let trials start again after :meth:`hold`, and raise the same errors."""
        return self._command("release")

    def _command(self, name: str, *arguments: Any) -> CommandOutcome:
        if self.status != "running":
            raise ControlError(f"experiment {self.name} is {self.status}", "over")
        outcome: CommandOutcome = self._driver_task.call(name, *arguments)
        return outcome

    def interrupt(self) -> None:
        """End the experiment as Ctrl-C does: `Tuner.restore` can resume the unfinished trials."""
        self._driver_task.send("interrupt")

    def forget(self) -> None:
        """Cancel the driver's task, and delete the experiment's name and results from the cluster.

        A running experiment ends. Its directory in the storage stays.
        """
        self._driver_task.forget()

    def close(self) -> None:
        """Close the connection."""
        self._driver_task.close()

    def __enter__(self) -> DetachedExperiment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def dashboard_link(self) -> str | None:
        """The experiment's page in Dask's dashboard; None if there is none, or not yet."""
        return self._driver_task.dashboard_link or None

    def __repr__(self) -> str:
        link = self.dashboard_link
        shown = f", dashboard {link}" if link else ""
        return f"{type(self).__name__}({self.name!r}, {self.status}{shown})"

    def _repr_html_(self) -> str:
        text = f"{type(self).__name__}({self.name!r}, {self.status})"
        return with_dashboard_link(text, self.dashboard_link)


def attach(name: str, client: Any = None) -> DetachedExperiment:
    """Return a handle of an experiment that was submitted to a cluster.

    Parameters
    ----------
    name : str
        The experiment's name.
    client : optional
        The Dask cluster, as for :class:`Tuner`.

    Raises
    ------
    ConfigError
        If the cluster has no experiment of this name; the message lists the existing ones.
    ClusterError
        If the cluster cannot be reached.

    Examples
    --------
    >>> attach("run", client="tcp://cluster:8786").status  # doctest: +SKIP
    'running'
    """
    from dasktune.cluster.submitted.driver_task import find_driver_task

    return DetachedExperiment(find_driver_task(client, name, timeout_s=_SCHEDULER_TIMEOUT))


@dataclass(frozen=True)
class _Origin:
    """The state of a restored experiment when it was submitted."""

    storage: Storage
    #: Which trials the first driver resumes, restarts or skips.
    resume: ResumeConfig
    #: Number of records in the journal.
    position: int


def submit(
    parts: dict[str, Any],
    name: str,
    client: Any,
    session: RestoredExperiment | None = None,
    beginning: Checkpoint | None = None,
) -> DetachedExperiment:
    """Start the driver of an experiment as a task of a cluster.

    Parameters
    ----------
    parts : dict
        The arguments of a :class:`Tuner`, except its client.
    name : str
        The experiment's name.
    client : object
        The cluster.
    session : RestoredExperiment, optional
        The restored experiment to resume.
    beginning : Checkpoint, optional
        The initial checkpoint, if the experiment has no copy of it yet.
    """
    from dasktune.cluster.protocol.payload import pack_envs
    from dasktune.cluster.protocol.pickling import dumps_user_code
    from dasktune.cluster.submitted.driver_task import start_driver_task

    run_config, origin = parts["run_config"], None
    for served in ("server_port", "dashboard_controls"):
        given = getattr(run_config, served)
        hint = "The server would run on a worker. DetachedExperiment has the same commands."
        check(given is None or given is False, served, "left out for submit()", given, hint)
    timeout_s = run_config.scheduler_wait
    packed = bundle_initial_checkpoint(beginning)
    seen = packed if isinstance(packed, ExpectedDirectory) else None
    files = None if isinstance(packed, ExpectedDirectory) else packed
    if files is not None:
        # A path on this machine may not exist on the driver's worker.
        run_config = replace(run_config, restore=None)
    if session is None:
        run_config = with_absolute_path(run_config)
        parts = {**parts, "run_config": replace(run_config, name=name, **_SILENT)}
        options = run_config.storage_options or {}
        storage = partial(_storage, run_config.storage_url, options, name)
    else:
        parts = {**parts, "run_config": replace(run_config, **_SILENT)}
        origin = _Origin(session.storage, session.resume, session.end.position)
        storage = partial(_same, session.storage)
    parts |= {"origin": origin, "beginning": files, "envs": pack_envs(code=run_config.code)}
    work = partial(_run_driver, dumps_user_code(parts, code=run_config.code))
    return DetachedExperiment(start_driver_task(client, name, work, storage, timeout_s=timeout_s, seen=seen))


def _storage(url: str, options: Mapping[str, Any], name: str) -> Storage:
    """Return an experiment's directory. Call it where it is used: ``~`` depends on the machine."""
    return Storage(url, options).child(name)


def _same(storage: Storage) -> Storage:
    """Return the directory of a restored experiment, whose storage is already known."""
    return storage


def _storage_of(parts: Mapping[str, Any]) -> Storage:
    config = parts["run_config"]
    return _storage(config.storage_url, config.storage_options or {}, config.name)


def _run_driver(blob: bytes, mark: str) -> ResultGrid:
    """Run or resume an experiment in a task of the cluster.

    `blob` is the pickled arguments of the tuner. `mark` is the name of the marker file in the
    experiment's directory, or empty.
    """
    parts = pickle.loads(blob)
    origin: _Origin | None = parts.pop("origin")
    # The driver sends the registered environments to the trials' workers.
    offer_envs(parts.pop("envs", {}))
    parts["run_config"] = with_initial_checkpoint(parts["run_config"], parts.pop("beginning", None))
    storage = _storage_of(parts) if origin is None else origin.storage
    try:
        session = _session(parts, storage, origin, mark)
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

    def stop() -> None:
        with suppress(ControlError):
            _wait_for_runner(tuner, ended).stop_soon("stopped by the user")

    def interrupt() -> None:
        with suppress(ControlError):
            _wait_for_runner(tuner, ended).interrupt()

    def call(name: str, *arguments: Any) -> Future[Any]:
        if name not in _COMMANDS:
            raise ControlError(f"there is no command {name!r:.100}", "invalid")
        future: Future[Any] = getattr(_wait_for_runner(tuner, ended).commands, name)(*arguments)
        return future

    with serve_commands({"stop": stop, "interrupt": interrupt}, call):
        try:
            return tuner.fit()
        finally:
            # Threads that still wait for the runner must end: `serve_commands` joins them.
            ended.set()


def _session(
    parts: dict[str, Any], storage: Storage, origin: _Origin | None, mark: str
) -> RestoredExperiment | None:
    """Return the restored experiment; None if no driver has stored one."""
    if not storage.exists(SETUP_FILE):
        if mark and not storage.exists(mark):
            # This worker joined later and has another storage. Starting the experiment here would
            # run all trials again.
            raise StorageError(
                f"the driver was moved to a worker that cannot access {storage}. Resume with Tuner.restore() "
                "on a machine that can, and start all workers with the same storage."
            )
        if origin is None:
            # The previous driver may have died after it wrote this file, and `fit` refuses to start
            # an experiment whose file exists.
            storage.remove(SPEC_FILE)
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


def _is_first(session: RestoredExperiment, origin: _Origin | None) -> bool:
    """Whether no driver has appended records since the experiment was submitted."""
    return origin is not None and session.end.position == origin.position


def _tuner(parts: dict[str, Any], session: RestoredExperiment | None) -> Tuner:
    from dasktune.tuner.tuner import Tuner

    return Tuner(**parts) if session is None else Tuner(parts["trainable"], _session=session)


def _wait_for_runner(tuner: Tuner, ended: threading.Event) -> Any:
    """Wait until the tuner has created its runner, and return the runner.

    A command may arrive before the tuner has created its runner. The command then waits, and
    reaches the runner before or during its loop; the runner handles commands in its loop only. If
    the tuner fails before it has created a runner, `ended` is set and the command is refused.
    """
    while (runner := tuner.runner) is None:
        if ended.wait(_POLL_SECONDS):
            raise ControlError("the experiment has ended before its trials could start", "over")
    return runner
