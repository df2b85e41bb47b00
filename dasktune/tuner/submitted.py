"""Experiments whose driver is a task of the cluster, so that the client process may exit.

This module runs in the client process; `submitted_driver` is what the task runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from dasktune.config import RunConfig
from dasktune.config.validation import normalised_name
from dasktune.control.issuer import this_user
from dasktune.dashboard.server.attach import with_dashboard_link
from dasktune.errors import ControlError, check
from dasktune.runner.commands import CommandOutcome
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.experiment.bundled_files import (
    ExpectedDirectory,
    bundle_initial_checkpoint,
    with_absolute_path,
)
from dasktune.storage.fs.storage import Storage
from dasktune.tuner.restore import RestoredExperiment
from dasktune.tuner.result_grid import ResultGrid
from dasktune.tuner.submitted_driver import ISSUED_BY, SubmittedOrigin, run_driver

if TYPE_CHECKING:
    from dasktune.cluster.submitted.driver_task import DriverTask

#: The public status for each status of the Dask task; for any other status it is "failed".
_STATUS = {"pending": "running", "finished": "finished"}

#: Seconds that an attached client waits for a lost scheduler.
_SCHEDULER_TIMEOUT = 300.0


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
        self._driver_task.send("stop", this_user())

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

    def checkpoint_trial(self, trial_id: str) -> CommandOutcome:
        """Let a running trial of the class API save a checkpoint; else as :meth:`stop_trial`.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        return self._command("checkpoint_trial", trial_id)

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

    def set_share(
        self,
        weight: float | None = None,
        priority: float | None = None,
        yields_after: float | None = None,
    ) -> CommandOutcome:
        """Change the experiment's share of the cluster.

        The share applies to trials that start from now on, also after the driver has moved to
        another worker.

        Parameters
        ----------
        weight, priority, yields_after : float, optional
            The new values, as for :class:`~dasktune.RunConfig`. At least one is needed; the others
            stay as they are.

        Raises
        ------
        ControlError
            If an argument breaks its rule, the experiment has ended, or the driver does not answer
            within 30 s.
        """
        return self._command("set_share", weight, priority, yields_after)

    def _command(self, name: str, *arguments: Any) -> CommandOutcome:
        if self.status != "running":
            raise ControlError(f"experiment {self.name} is {self.status}", "over")
        outcome: CommandOutcome = self._driver_task.call(ISSUED_BY, this_user(), name, *arguments)
        return outcome

    def interrupt(self) -> None:
        """End the experiment as Ctrl-C does: `Tuner.restore` can resume the unfinished trials."""
        self._driver_task.send("interrupt", this_user())

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
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
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

    return DetachedExperiment(find_driver_task(client, normalised_name(name), timeout_s=_SCHEDULER_TIMEOUT))


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
    from dasktune.cluster.submitted.driver_task import start_driver_task

    run_config, origin = parts["run_config"], None
    hint = "The server would run on a worker. DetachedExperiment has the same commands."
    check_unserved(run_config, "submit()", hint)
    if session is None:
        run_config = replace(with_absolute_path(run_config), name=name)
        storage = partial(_storage, run_config.storage_url, run_config.storage_options or {}, name)
    else:
        origin = SubmittedOrigin(session.storage, session.resume, session.end.position)
        storage = partial(_same, session.storage)
    blob, seen = pack_tuner({**parts, "origin": origin}, run_config, beginning)
    work, timeout_s = partial(run_driver, blob), run_config.scheduler_wait
    return DetachedExperiment(start_driver_task(client, name, work, storage, timeout_s=timeout_s, seen=seen))


def check_unserved(run_config: RunConfig, call: str, hint: str = "") -> None:
    """Check that no driver elsewhere shall serve HTTP."""
    for name in ("server_port", "dashboard_controls"):
        given = getattr(run_config, name)
        check(given is None or given is False, name, f"left out for {call}", given, hint)


def pack_tuner(
    parts: dict[str, Any], run_config: RunConfig, beginning: Checkpoint | None
) -> tuple[bytes, ExpectedDirectory | None]:
    """Return the pickled arguments of a tuner, and a directory that must be seen where it runs.

    Parameters
    ----------
    parts : dict
        The arguments of a :class:`Tuner`, except its client, and what else its driver needs.
    run_config : RunConfig
        The configuration for the driver, which has no terminal to show progress on.
    beginning : Checkpoint or None
        The initial checkpoint, if the experiment has no copy of it yet.
    """
    from dasktune.cluster.protocol.payload import pack_envs
    from dasktune.cluster.protocol.pickling import dumps_user_code

    run_config = replace(run_config, verbose=0, progress_reporter=None)
    files, seen = bundle_initial_checkpoint(beginning), None
    if isinstance(files, ExpectedDirectory):
        files, seen = None, files
    if files is not None:
        # A path on this machine may not exist where the driver runs.
        run_config = replace(run_config, restore=None)
    envs = pack_envs(code=run_config.code)
    content = {**parts, "run_config": run_config, "beginning": files, "envs": envs}
    return dumps_user_code(content, code=run_config.code), seen


def _storage(url: str, options: Mapping[str, Any], name: str) -> Storage:
    """Return an experiment's directory. Call it where it is used: ``~`` depends on the machine."""
    return Storage(url, options).child(name)


def _same(storage: Storage) -> Storage:
    """Return the directory of a restored experiment, whose storage is already known."""
    return storage
