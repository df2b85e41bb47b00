"""Experiments that wait in a queue until a runner starts their drivers: the user's side."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final, Literal

from dasktune.control.issuer import this_user
from dasktune.errors import ConfigError, StorageError, TuneError, check
from dasktune.storage.experiment.bundled_files import with_absolute_path
from dasktune.storage.fs.probe import probe, warn_if_exposed
from dasktune.storage.fs.storage import Storage, protocol_of
from dasktune.storage.queue.experiment_queue import RETRY_SECONDS, ExperimentQueue, may_pass
from dasktune.storage.queue.queue_state import OVER, QueueState
from dasktune.tuner.analysis import ExperimentAnalysis
from dasktune.tuner.result_grid import ResultGrid
from dasktune.tuner.submitted import check_unserved, pack_tuner

logger = logging.getLogger(__name__)

#: Seconds between two looks at the queue.
_POLL_SECONDS: Final = 0.5


class QueuedExperiment:
    """A handle of an experiment in a queue, in any process.

    Parameters
    ----------
    queue : str or path
        The queue's directory or URL.
    entry : str
        The experiment's ID in the queue, or its name; of several with this name the newest.
    storage_options : mapping, optional
        Options of fsspec for the URL.

    Raises
    ------
    ConfigError
        If the queue has no such experiment.

    Examples
    --------
    >>> experiment = tuner.submit(queue="~/queue")  # doctest: +SKIP
    >>> experiment.state  # doctest: +SKIP
    'queued'
    >>> results = QueuedExperiment("~/queue", "first").result()  # doctest: +SKIP
    """

    def __init__(
        self,
        queue: str | os.PathLike[str],
        entry: str,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        storage = Storage(queue, storage_options or {})  # type: ignore[arg-type]
        entries = ExperimentQueue(storage.with_retry(RETRY_SECONDS))
        status = entries.find(entry)
        self._begin(entries, status.entry_id, status.name)

    def _begin(self, queue: ExperimentQueue, entry_id: str, name: str) -> None:
        self._queue = queue
        #: The experiment's ID in the queue.
        self.entry_id = entry_id
        #: The experiment's name as it was submitted.
        self.name = name

    @classmethod
    def _of(cls, storage: Storage, entry_id: str, name: str) -> QueuedExperiment:
        """Return the handle of an entry that was just added; nothing is read that could fail."""
        handle = cls.__new__(cls)
        handle._begin(ExperimentQueue(storage.with_retry(RETRY_SECONDS)), entry_id, name)
        return handle

    @property
    def state(self) -> Literal["queued", "running", "finished", "failed", "cancelled"]:
        """The state of the experiment."""
        state: Any = self._queue.status(self.entry_id).state.value
        return state  # type: ignore[no-any-return]  # never unknown: a failed read raises

    @property
    def reason(self) -> str:
        """Why it has failed, or why it could not start the last time; empty otherwise."""
        return self._queue.status(self.entry_id).reason

    @property
    def path(self) -> str | None:
        """The experiment's directory or URL; None before its first start."""
        return self._queue.status(self.entry_id).directory or None

    def cancel(self) -> None:
        """Take the experiment out of the queue, or stop it if it is running.

        A running one ends within some seconds. Its results so far stay in its directory.
        """
        self._queue.cancel(self.entry_id, this_user())

    def wait(self, timeout: float | None = None) -> str:
        """Wait until the experiment is over, and return its state.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; no limit by default.

        Raises
        ------
        TimeoutError
            If it is not over within `timeout`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (state := self._state_now()).is_over:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.name} is still {state.value} after {timeout:g} s")
            time.sleep(_POLL_SECONDS)
        return state.value

    def _state_now(self) -> QueueState:
        """Return the state; unknown while the storage is away."""
        try:
            return self._queue.status(self.entry_id).state
        except StorageError as error:
            if not may_pass(error):
                raise
            logger.warning("%s. The queue is read again soon.", error)
            return QueueState.UNKNOWN

    def result(self, timeout: float | None = None) -> ResultGrid:
        """Wait until the experiment is over, and return its results.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; no limit by default.

        Raises
        ------
        TimeoutError
            If it is not over within `timeout`.
        TuneError
            If it has failed, or was cancelled before it could start.
        """
        self.wait(timeout)
        status = self._queue.status(self.entry_id)
        if status.state is QueueState.FAILED or not status.directory:
            raise TuneError(f"experiment {self.name} has {status.state.value}: {status.reason}")
        options = options_for(status.directory, self._queue.storage)
        return ExperimentAnalysis(status.directory, storage_options=options).to_grid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._queue.storage)!r}, {self.entry_id!r}, {self.state})"


def prune_queue(
    queue: str | os.PathLike[str],
    *,
    older_than: float,
    states: Collection[Literal["finished", "failed", "cancelled"]] = ("finished", "failed", "cancelled"),
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Remove experiments that are over from a queue, and return their IDs.

    Experiments that wait or run stay, and so do all results. Runners may serve the queue meanwhile.
    A handle of a removed experiment raises `ConfigError`.

    Parameters
    ----------
    queue : str or path
        The queue's directory or URL.
    older_than : float
        Seconds since the end, by the clocks of the machine that has recorded it and of this one.
        At least 0.
    states : collection of {"finished", "failed", "cancelled"}, optional
        Which experiments to remove; by default all that are over.
    storage_options : mapping, optional
        Options of fsspec for the URL.

    Raises
    ------
    ConfigError
        If an argument is not valid.
    StorageError
        If the queue cannot be read or changed.

    Examples
    --------
    >>> prune_queue("memory://doctest-prune", older_than=7 * 24 * 3600)
    []
    """
    check(0 <= older_than < inf, "older_than", "a finite number of seconds, at least 0", older_than)
    known = {state.value: state for state in OVER}
    for state in states:
        check(state in known, "states", f"some of {sorted(known)}", state)
    storage = Storage(queue, storage_options or {}).with_retry(RETRY_SECONDS)  # type: ignore[arg-type]
    chosen = [known[state] for state in states]
    removed = ExperimentQueue(storage).prune(older_than_s=older_than, states=chosen)
    return [one.entry_id for one in removed]


def options_for(url: str, queue: Storage) -> Mapping[str, Any]:
    """Return the storage options of an experiment: those of its queue, if both have one protocol.

    Parameters
    ----------
    url : str
        The experiment's directory or storage path.
    queue : Storage
        The queue's directory.
    """
    return queue.storage_options if protocol_of(url) == protocol_of(queue.url) else {}


def enqueue(
    parts: dict[str, Any], name: str, queue: str | os.PathLike[str], beginning: Any
) -> QueuedExperiment:
    """Add an experiment to a queue.

    Parameters
    ----------
    parts : dict
        The arguments of a :class:`Tuner`, except its client, and the user's `given_tune_config`.
    name : str
        The experiment's name.
    queue : str or path
        The queue's directory or URL.
    beginning : Checkpoint or None
        The initial checkpoint.

    Raises
    ------
    ConfigError
        If an object cannot be pickled, no other process can see the queue or the results, or the
        initial checkpoint has storage options.
    PreflightError
        If the queue's storage cannot be used, or does not create a file only once.
    """
    run_config = parts["run_config"]
    place = os.fspath(queue)
    same = protocol_of(place) == protocol_of(run_config.storage_url)
    storage = Storage(place, (run_config.storage_options or {}) if same else {})
    hint = "Use a directory or an object store."
    check(not storage.is_process_private, "queue", "visible to other processes", place, hint)
    url = run_config.storage_url
    check(not Storage(url).is_process_private, "storage_path", "visible to other processes", url, hint)
    if getattr(getattr(beginning, "filesystem", None), "storage_options", None):
        raise ConfigError(
            f"restore must have no storage options for submit(queue=...), got {beginning!r}. They would be "
            "written into the queue. Copy the checkpoint into a directory, and give its path."
        )
    check_unserved(run_config, "submit(queue=...)")
    # Credentials are in no file: the runner has options of its own.
    run_config = replace(with_absolute_path(run_config), name=name, storage_options=None)
    blob, _ = pack_tuner(parts, run_config, beginning)
    # Two runners must not claim one experiment, so the storage must create a file only once.
    probe(storage)
    entries = ExperimentQueue(storage)
    entry_id = entries.add(
        name, blob, priority=run_config.priority, weight=run_config.weight, submitted=time.time()
    )
    warn_if_exposed(storage)
    return QueuedExperiment._of(storage, entry_id, name)
