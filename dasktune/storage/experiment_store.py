"""The files of an experiment as its runner uses them."""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from time import perf_counter
from typing import Any, Final

import cloudpickle

from dasktune.errors import StorageError, check, without_passwords
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.storage.journal import JournalEnd, JournalWriter, next_epoch
from dasktune.storage.json_lines import decode, plain
from dasktune.storage.location import Storage
from dasktune.storage.masking import reading
from dasktune.storage.policy_log import PolicyLog
from dasktune.storage.snapshots import Snapshot, Snapshots
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.names import is_one_name

__all__ = ["SPEC_FILE", "ExperimentStore"]

logger = logging.getLogger(__name__)

#: What the experiment is, readable without dasktune.
SPEC_FILE: Final = "experiment.json"

_FAILURE: Final = re.compile(rb"^Failure # \d+ \(occurred at ", re.MULTILINE)


class ExperimentStore:
    """Journal, specification and per-trial files of one experiment, on the driver.

    Used by one thread. Checkpoints are deleted in the background, and only when all that was in the
    journal at that time is durable: a resumed experiment must never look for a deleted one.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.

    Examples
    --------
    >>> store = ExperimentStore(Storage("memory://doctest-experiment"))
    >>> store.create({"metric": "loss", "mode": "min"})
    >>> store.append({"event": "TrialAdded"}), store.commit(force=True)
    (1, 1)
    >>> store.close()
    >>> store.spec()
    {'metric': 'loss', 'mode': 'min'}
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        #: For what may be missing: it is tried once, and once more at the end.
        self._impatient = storage.patient(0.0)
        #: The experiment's checkpoints.
        self.checkpoints = CheckpointStore(storage)
        self._deleter = CheckpointStore(self._impatient)
        self._journal: JournalWriter | None = None
        self._appended = 0
        #: ``(position that must be durable first, checkpoint)``
        self._held: deque[tuple[int, CheckpointRecord]] = deque()
        self._failed: list[CheckpointRecord] = []
        #: Small files to be written with the next commit: one job for all costs less than one each.
        self._params: dict[str, bytes] = {}
        self._policy_log = PolicyLog()
        self._snapshots = Snapshots(self._impatient)
        #: Written as soon as the journal is durable up to its position.
        self._snapshot: Snapshot | None = None
        self._capture_seconds = 0.0
        #: Seconds that the last snapshot took to be made and written.
        self.snapshot_seconds = 0.0
        self._unwritten: list[tuple[str, bytes]] = []
        self._jobs: deque[Future[None]] = deque()
        self._pool = ThreadPoolExecutor(1, "dasktune-store")

    def create(self, spec: Mapping[str, Any]) -> None:
        """Write `spec` as the specification of a new experiment.

        Parameters
        ----------
        spec : mapping
            Any values. ``storage_options`` are left out at any depth: they are secrets. So
            are passwords in URLs.

        Raises
        ------
        StorageError
            If an experiment is there already.
        """
        content = json.dumps(plain(_without_secrets(spec)), indent=2, allow_nan=False)
        try:
            self.storage.create(SPEC_FILE, content.encode("ascii") + b"\n", durable=True)
        except FileExistsError:
            raise StorageError(
                f"an experiment is stored at {self.storage} already. Go on with it by "
                "Tuner.restore(), or give the new one another name."
            ) from None

    def spec(self) -> dict[str, Any]:
        """Return the specification.

        Raises
        ------
        StorageError
            If there is no experiment, or its specification is damaged.
        """
        with reading(SPEC_FILE, self.storage):
            try:
                content = self.storage.read_bytes(SPEC_FILE)
            except FileNotFoundError:
                raise StorageError(
                    f"no experiment is stored at {self.storage}. Name its own directory, as it was "
                    "printed after 'Results:'; `dasktune ls` lists those below a directory."
                ) from None
            try:
                spec: object = decode(content)
            except StorageError as error:
                raise StorageError(f"{SPEC_FILE} in {self.storage} is {error}") from error
        if not isinstance(spec, dict):
            raise StorageError(f"{SPEC_FILE} in {self.storage} is no specification")
        return spec

    def begin(self, after: JournalEnd | None = None) -> int:
        """Take the lead: begin the next epoch of the journal, and return its number.

        Parameters
        ----------
        after : JournalEnd, optional
            Where the reader of the history came to its end. If not given, the journal is read
            through now.

        Raises
        ------
        StorageError
            If another driver does the same at this moment.
        """
        self._journal = JournalWriter(self.storage, next_epoch(self.storage), after=after)
        return self._journal.epoch

    def append(self, record: Mapping[str, Any]) -> int:
        """Add a record to the journal; see :meth:`JournalWriter.append`.

        Parameters
        ----------
        record : mapping
            Any values.
        """
        self._appended = self._writer().append(record)
        return self._appended

    def commit(self, force: bool = False) -> int:
        """Make the journal durable; see :meth:`JournalWriter.commit`.

        Parameters
        ----------
        force : bool, default=False
            Do it now even on an object store.
        """
        durable = self._writer().commit(force)
        while self._held and self._held[0][0] <= durable:
            record = self._held.popleft()[1]
            self._in_background(self._delete, record)
        self._flush_params()
        if self._snapshot is not None and self._snapshot.position <= durable:
            self._in_background(self._write_snapshot, self._snapshot)
            self._snapshot = None
        return durable

    def _writer(self) -> JournalWriter:
        if self._journal is None:
            self.begin()
        assert self._journal is not None
        return self._journal

    def save_snapshot(self, capture: Callable[[], dict[str, Any]]) -> None:
        """Write the experiment's state in the background, once the journal up to here is durable.

        A failure is logged and costs nothing else: the journal has all of it.

        Parameters
        ----------
        capture : callable
            Returns the state, of any values, which must not change any more.
        """
        begun = perf_counter()
        self._snapshot = Snapshot(self._writer().epoch, self._appended, capture())
        self._capture_seconds = perf_counter() - begun

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        begun = perf_counter()
        try:
            self._snapshots.write(snapshot)
        except Exception as error:  # whatever the store's client raises
            logger.warning("Could not write a snapshot of %s: %r.", self.storage, error)
        self.snapshot_seconds = self._capture_seconds + perf_counter() - begun

    def write_params(
        self, trial_dir: str, config: Mapping[str, Any], *, pickled: bool = False
    ) -> None:
        """Write a trial's configuration to its ``params.json``, in the background after a commit.

        A failure is logged and costs nothing else: the journal has the configuration too.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.
        config : mapping
            Any values.
        pickled : bool, default=False
            Write it to ``params.pkl`` as well: JSON does not give back what it is.

        Raises
        ------
        ConfigError
            If `trial_dir` is no single name.
        """
        _check_trial_dir(trial_dir)
        content = json.dumps(plain(config), indent=2, allow_nan=False)
        name = f"trials/{trial_dir}/params"
        self._params[f"{name}.json"] = content.encode("ascii") + b"\n"
        if pickled:
            self._params[f"{name}.pkl"] = cloudpickle.dumps(dict(config))

    def write_policy(
        self, trial_dir: str, rows: Sequence[Sequence[Any]], ancestry: Sequence[int]
    ) -> None:
        """Write who was cloned from whom, in the background after a commit.

        A failure is logged and costs nothing else: the journal has it too.

        Parameters
        ----------
        trial_dir : str
            Name of the directory of the trial that was cloned last.
        rows : sequence
            One for each exploit so far, in order.
        ancestry : sequence of int
            Which of them have led to what the trial is now.

        Raises
        ------
        ConfigError
            If `trial_dir` is no single name.
        """
        _check_trial_dir(trial_dir)
        self._params.update(self._policy_log.files(trial_dir, rows, ancestry))

    def load_params(self, trial_dir: str) -> dict[str, Any]:
        """Return the configuration that ``params.pkl`` holds. It is unpickled: user code may run.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.

        Raises
        ------
        StorageError
            If it is not there, or cannot be unpickled.
        """
        name = f"trials/{trial_dir}/params.pkl"
        try:
            config: dict[str, Any] = cloudpickle.loads(self.storage.read_bytes(name))
            return config
        except Exception as error:  # whatever the classes of the user's objects raise
            raise StorageError(f"{name} of {self.storage} cannot be read: {error!r}") from error

    def _flush_params(self) -> None:
        if self._params:
            files, self._params = self._params, {}
            self._in_background(self._write_quietly, list(files.items()))

    def _write_quietly(self, files: list[tuple[str, bytes]]) -> None:
        """Write what can be written now; where one fails the others would, each after its time."""
        for done, (name, content) in enumerate(files):
            try:
                self._impatient.write_bytes(name, content)
            except Exception:  # whatever the store's client raises
                logger.debug("%s is written later", name, exc_info=True)
                self._unwritten += files[done:]
                return

    def _in_background(self, work: Callable[..., None], *arguments: Any) -> None:
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft()
        self._jobs.append(self._pool.submit(work, *arguments))

    def write_error(self, trial_dir: str, text: str) -> None:
        """Add a failure to a trial's ``error.txt``, in the background.

        A failure to do so is logged: the journal has the text, too.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.
        text : str
            The traceback.

        Raises
        ------
        ConfigError
            If `trial_dir` is no single name.
        """
        _check_trial_dir(trial_dir)
        now = datetime.now(timezone.utc).isoformat(sep=" ", timespec="seconds")
        entry = f"(occurred at {now})\n{text.rstrip()}\n\n"
        self._in_background(self._add_error, f"trials/{trial_dir}/error.txt", entry)

    def _add_error(self, name: str, entry: str) -> None:
        # Failures are rare and the file is small, so it is rewritten whole, as an object must be.
        storage = self._impatient
        try:
            before = storage.read_bytes(name) if storage.exists(name) else b""
            number = len(_FAILURE.findall(before)) + 1
            added = f"Failure # {number} {entry}".encode("utf-8", "replace")
            storage.write_bytes(name, before + added)
        except Exception as error:  # whatever the store's client raises
            self._warn_unwritten(name, error)

    def _warn_unwritten(self, name: str, error: Exception) -> None:
        logger.warning(
            "Could not write %s of %s: %s. The journal holds what would stand there.",
            name,
            self.storage,
            self.storage.explain(error),
        )

    def delete_checkpoint(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint in the background, once the journal up to here is durable.

        A failure is logged, and tried again by :meth:`close`.

        Parameters
        ----------
        record : CheckpointRecord
            What retention gave up.
        """
        self._held.append((self._appended, record))

    def settle_checkpoints(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        """Delete all checkpoints of a trial that has ended but these, in the background.

        Parameters
        ----------
        trial_dir, incarnation, kept
            As for :meth:`CheckpointStore.settle`. A failure is logged.
        """
        self._in_background(self._settle_checkpoints, trial_dir, incarnation, kept)

    def _settle_checkpoints(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        try:
            self._deleter.settle(trial_dir, incarnation, kept)
        except Exception as error:  # whatever the store's client raises
            logger.warning(
                "Could not remove what lost workers left of trial %s in %s: %s",
                trial_dir,
                self.storage,
                self.storage.explain(error),
            )

    def _delete(self, record: CheckpointRecord) -> None:
        try:
            self._deleter.delete(record)
        except Exception as error:  # whatever the store's client raises
            logger.warning(
                "Could not delete checkpoint %s of %s: %s. It is tried again at the end; "
                "if that fails too, delete it by hand.",
                record.path,
                self.storage,
                self.storage.explain(error),
            )
            self._failed.append(record)

    def close(self) -> None:
        """Make the journal durable, and finish what is to be deleted.

        Raises
        ------
        StorageError
            If the journal could not be written. Nothing is lost: call it again.
        """
        if self._journal is not None or self._held:
            self.commit(force=True)
            self._writer().close()
        self._flush_params()
        for job in self._jobs:
            job.result()
        again, self._failed = self._failed, []
        for record in again:
            self._delete(record)
        self._write_last()
        self._pool.shutdown()

    def _write_last(self) -> None:
        files, self._unwritten = self._unwritten, []
        for name, content in files:
            try:
                self._impatient.write_bytes(name, content)
            except Exception as error:  # whatever the store's client raises
                self._warn_unwritten(name, error)
                return


def _check_trial_dir(name: str) -> None:
    check(is_one_name(name), "trial_dir", "one name", name)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _without_secrets(item) for key, item in value.items() if key != "storage_options"
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(item) for item in value]
    return without_passwords(value) if isinstance(value, str) else value
