"""The driver's store of one experiment: journal, snapshots, specification and trial files."""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from time import monotonic, perf_counter
from typing import Any, Final
from uuid import uuid4

import cloudpickle

from dasktune.config import TuneConfig
from dasktune.errors import StorageError, check, without_passwords
from dasktune.space.inspection import parameter_scales
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.experiment.pbt_policy_files import PbtPolicyFiles
from dasktune.storage.experiment.tuner_json import SETUP_FILE
from dasktune.storage.fs.format import FORMAT
from dasktune.storage.fs.probe import STALE, remove_stale_files
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.fs.unpickling import loads
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.storage.journal.json_lines import decode, plain
from dasktune.storage.journal.segments import JournalEnd, next_epoch
from dasktune.storage.journal.snapshots import Snapshot, Snapshots
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.names import is_one_name
from dasktune.version import __version__

logger = logging.getLogger(__name__)

#: File with the experiment's specification, readable without dasktune.
SPEC_FILE: Final = "experiment.json"

#: Seconds for which the last attempt to remove what lost workers have left is repeated.
_LAST_ATTEMPT: Final = 10.0

_FAILURE: Final = re.compile(rb"^Failure # \d+ \(occurred at ", re.MULTILINE)


class ExperimentStore:
    """Journal, specification and per-trial files of one experiment, on the driver.

    One thread uses it. Small files are written, and checkpoints deleted, in a background thread. A
    checkpoint is deleted only when the journal is durable up to the decision to delete it, so a
    resumed experiment never refers to a deleted checkpoint.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    lock : LeaderLock, optional
        The lock that this driver holds. Checkpoints and snapshots are deleted only while it leads,
        and after it has lost the lead the background thread writes nothing more.
    compress_journal : bool, default=False
        Whether to compress the journal, as for :class:`JournalWriter`.

    Examples
    --------
    >>> store = ExperimentStore(Storage("memory://doctest-experiment"))
    >>> store.create({"metric": "loss", "mode": "min"})
    >>> store.append({"event": "TrialAdded"}), store.commit(force=True)
    (1, 1)
    >>> store.close()
    >>> store.spec()["metric"]
    'loss'
    """

    # Orders of events:
    #
    # - The driver's thread decides to delete a checkpoint and notes the journal's position
    #   (`_to_delete`). `commit` starts the deletion when this position is durable. After a crash
    #   before that, the checkpoint exists, whether or not the decision is in the journal. After a
    #   later crash, the decision is in the journal, and the resumed experiment does not refer to
    #   the checkpoint.
    # - A snapshot is written in the same way, when the journal is durable up to its position.
    # - A superseded driver that wakes up may try to delete a checkpoint that its successor keeps,
    #   as that does not know the decision. So `_leads` is asked before each deletion. A driver that
    #   freezes between the question and the deletion deletes one checkpoint.
    # - The background thread runs one job after the other, and appends to `_failed`, `_uncleaned`
    #   and `_unwritten`. The driver's thread reads them in `close`, after all jobs have ended.

    def __init__(
        self, storage: Storage, lock: LeaderLock | None = None, *, compress_journal: bool = False
    ) -> None:
        self.storage = storage
        self._compress_journal = compress_journal
        self._lock = lock
        #: Storage for work that may fail: such work is tried once, and once more in `close`.
        self._without_retry = storage.with_retry(0.0)
        #: The experiment's checkpoints.
        self.checkpoints = CheckpointStore(storage)
        self._deleter = CheckpointStore(self._without_retry)
        self._journal: JournalWriter | None = None
        self._appended = 0
        #: ``(position that must be durable first, checkpoint)``
        self._to_delete: deque[tuple[int, CheckpointRecord]] = deque()
        self._failed: list[CheckpointRecord] = []
        #: Trials whose checkpoints of lost workers could not be removed.
        self._uncleaned: list[tuple[str, int, Collection[str]]] = []
        #: Small files to write after the next commit; one job for all costs less than one each.
        self._params: dict[str, bytes] = {}
        self._policy_log = PbtPolicyFiles()
        self._snapshots = Snapshots(self._without_retry)
        #: The snapshot to write when the journal is durable up to its position.
        self._snapshot: Snapshot | None = None
        self._capture_seconds = 0.0
        #: Seconds for capturing and writing the last snapshot.
        self.snapshot_seconds = 0.0
        self._unwritten: list[tuple[str, bytes]] = []
        #: When old files were looked for, in seconds of the monotonic clock.
        self._cleaned: float | None = None
        self._jobs: deque[Future[None]] = deque()
        self._pool = ThreadPoolExecutor(1, "dasktune-store")

    def create(self, spec: Mapping[str, Any]) -> None:
        """Write `spec` as the specification of a new experiment, with an id of this writer.

        Parameters
        ----------
        spec : mapping
            Any values. ``storage_options`` are left out at any depth, since they are secrets, and
            so are passwords in URLs.

        Raises
        ------
        StorageError
            If there is an experiment already, or parts of one.
        """
        if not self.storage.exists(SPEC_FILE):
            check_no_leftovers(self.storage)
        # By the id, a writer whose answer was lost recognises its own file.
        named = {**_without_secrets(spec), "writer": uuid4().hex}
        content = json.dumps(plain(named), indent=2, allow_nan=False)
        try:
            self.storage.claim(SPEC_FILE, content.encode("ascii") + b"\n", durable=True)
        except FileExistsError:
            raise StorageError(
                f"there is an experiment at {self.storage} already. Resume it with "
                "Tuner.restore(), or give the new one another name."
            ) from None

    def remove_half_created(self) -> None:
        """Remove the specification if its driver died before it had stored anything else.

        Nothing can resume such an experiment, and :meth:`create` would refuse the next driver. Call
        it with the leader lock held: no other driver is creating the experiment then.
        """
        if is_half_created(self.storage):
            logger.info("removing %s of a driver that died at the start", SPEC_FILE)
            self.storage.remove(SPEC_FILE)

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
                    f"no experiment is stored at {self.storage}. Give the experiment's own "
                    "directory, which was printed after 'Results:'. `dasktune ls` lists the "
                    "experiments below a directory."
                ) from None
            try:
                spec: object = decode(content)
            except StorageError as error:
                raise StorageError(f"{SPEC_FILE} in {self.storage} is {error}") from error
        if not isinstance(spec, dict):
            raise StorageError(f"{SPEC_FILE} in {self.storage} is not a specification")
        return spec

    def begin(self, after: JournalEnd | None = None) -> int:
        """Start the next epoch of the journal, and return its number.

        Parameters
        ----------
        after : JournalEnd, optional
            The end of the history that this driver has read. By default the journal is read now.

        Raises
        ------
        StorageError
            If another driver starts the same epoch at this moment.
        """
        self._journal = JournalWriter(
            self.storage, next_epoch(self.storage), after=after, compress=self._compress_journal
        )
        return self._journal.epoch

    @property
    def epoch(self) -> int:
        """The number of this driver's epoch of the journal, which is begun if it has not been.

        The storage has the header of the epoch, so no other driver gets the same number.
        """
        return self._writer().epoch

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
            Wait until all records are durable, also on an object store.
        """
        durable = self._writer().commit(force)
        while self._to_delete and self._to_delete[0][0] <= durable:
            record = self._to_delete.popleft()[1]
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

    def save_snapshot(self, capture: Callable[..., dict[str, Any]]) -> None:
        """Write the experiment's state in the background, when the journal is durable up to here.

        A failure is logged and has no other effect: the journal has everything.

        Parameters
        ----------
        capture : callable
            ``capture(rows=False)`` returns the state, of any values, which must not change any
            more. It needs no results that are in the journal.
        """
        begun = perf_counter()
        journal = self._writer()
        self._snapshot = Snapshot(journal.epoch, self._appended, capture(rows=False), journal.identity)
        self._capture_seconds = perf_counter() - begun

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        begun = perf_counter()
        try:
            if self._leads():  # older snapshots are deleted
                self._snapshots.write(snapshot)
        except Exception as error:  # the store's client may raise any exception
            logger.warning("could not write a snapshot of %s: %r", self.storage, error)
        self.snapshot_seconds = self._capture_seconds + perf_counter() - begun

    def write_params(self, trial_dir: str, config: Mapping[str, Any], *, pickled: bool = False) -> None:
        """Write a trial's configuration to its ``params.json``, in the background after a commit.

        A failure is logged and has no other effect: the journal has the configuration, too.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.
        config : mapping
            Any values.
        pickled : bool, default=False
            Write it to ``params.pkl`` as well, since JSON cannot represent it exactly.

        Raises
        ------
        ConfigError
            If `trial_dir` is not a single name.
        """
        _check_trial_dir(trial_dir)
        content = json.dumps(plain(config), indent=2, allow_nan=False)
        name = f"trials/{trial_dir}/params"
        self._params[f"{name}.json"] = content.encode("ascii") + b"\n"
        if pickled:
            self._params[f"{name}.pkl"] = cloudpickle.dumps(dict(config))

    def write_policy(self, trial_dir: str, rows: Sequence[Sequence[Any]], ancestry: Sequence[int]) -> None:
        """Write the exploits so far to Ray Tune's policy files, in the background after a commit.

        A failure is logged and has no other effect: the journal has the exploits, too.

        Parameters
        ----------
        trial_dir : str
            Name of the directory of the trial that was cloned last.
        rows : sequence
            A row for each exploit so far, in order.
        ancestry : sequence of int
            Indices of the exploits that have led to the trial's current state.

        Raises
        ------
        ConfigError
            If `trial_dir` is not a single name.
        """
        _check_trial_dir(trial_dir)
        self._params.update(self._policy_log.files(trial_dir, rows, ancestry))

    def load_params(self, trial_dir: str) -> dict[str, Any]:
        """Return the configuration in ``params.pkl``. Unpickling it may run user code.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.

        Raises
        ------
        StorageError
            If the file does not exist or cannot be unpickled.
        """
        name = f"trials/{trial_dir}/params.pkl"
        try:
            config: dict[str, Any] = loads(self.storage.read_bytes(name))
            return config
        except Exception as error:  # whatever the classes of the user's objects raise
            raise StorageError(f"{name} of {self.storage} cannot be read: {error!r}") from error

    def _flush_params(self) -> None:
        if self._params:
            files, self._params = self._params, {}
            self._in_background(self._write_quietly, list(files.items()))

    def _write_quietly(self, files: list[tuple[str, bytes]]) -> None:
        """Write the files. After a failure the rest waits for `close`: it would fail as well."""
        for done, (name, content) in enumerate(files):
            try:
                self._without_retry.write_bytes(name, content)
            except Exception:  # the store's client may raise any exception
                logger.debug("could not write %s, trying again at the end", name, exc_info=True)
                self._unwritten += files[done:]
                return

    def _in_background(self, work: Callable[..., None], *arguments: Any) -> None:
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft()
        self._jobs.append(self._pool.submit(self._work, work, *arguments))

    def _work(self, work: Callable[..., None], *arguments: Any) -> None:
        # The directory of a driver that has lost the lead may belong to another driver, or be gone.
        if self._lock is None or not self._lock.lost:
            work(*arguments)

    def _leads(self) -> bool:
        """Whether this driver leads; StorageError if the storage cannot tell."""
        return self._lock is None or self._lock.confirm()

    def write_error(self, trial_dir: str, text: str) -> None:
        """Append a failure to a trial's ``error.txt``, in the background.

        A failure to write it is logged and has no other effect: the journal has the text, too.

        Parameters
        ----------
        trial_dir : str
            Name of the trial's directory.
        text : str
            The traceback.

        Raises
        ------
        ConfigError
            If `trial_dir` is not a single name.
        """
        _check_trial_dir(trial_dir)
        now = datetime.now(timezone.utc).isoformat(sep=" ", timespec="seconds")
        entry = f"(occurred at {now})\n{text.rstrip()}\n\n"
        self._in_background(self._add_error, f"trials/{trial_dir}/error.txt", entry)

    def _add_error(self, name: str, entry: str) -> None:
        # Rewritten as a whole, as an object store requires: failures are rare, the file is small.
        storage = self._without_retry
        try:
            before = storage.read_bytes(name) if storage.exists(name) else b""
            number = len(_FAILURE.findall(before)) + 1
            added = f"Failure # {number} {entry}".encode("utf-8", "replace")
            storage.write_bytes(name, before + added)
        except Exception as error:  # the store's client may raise any exception
            self._warn_unwritten(name, error)

    def _warn_unwritten(self, name: str, error: Exception) -> None:
        logger.warning(
            "could not write %s of %s: %s. The journal has its content.",
            name,
            self.storage,
            self.storage.explain(error),
        )

    def delete_checkpoint(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint in the background, when the journal is durable up to here.

        A failure is logged, and :meth:`close` tries again.

        Parameters
        ----------
        record : CheckpointRecord
            The checkpoint that retention no longer keeps.
        """
        self._to_delete.append((self._appended, record))

    def remove_stale_checkpoints(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        """Delete all checkpoints of an ended trial but the kept ones, in the background.

        Parameters
        ----------
        trial_dir, incarnation, kept
            As for :meth:`CheckpointStore.remove_all_but`. If it fails, :meth:`close` tries again.
        """
        self._in_background(self._remove_stale_checkpoints, trial_dir, incarnation, kept)

    def remove_stale_files(self) -> None:
        """Delete small files that drivers which were killed have left, in the background.

        Call it when the experiment has begun. A failure is logged and has no other effect. After a
        long run, :meth:`close` does it again for files that are not old enough yet.
        """
        self._cleaned = monotonic()
        self._in_background(self._remove_stale_files)

    def _remove_stale_files(self) -> None:
        try:
            remove_stale_files(self._without_retry)
        except Exception as error:  # the store's client may raise any exception
            logger.info("could not remove old files of %s: %r", self.storage, error)

    def _remove_stale_checkpoints(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        try:
            if self._leads():
                self._deleter.remove_all_but(trial_dir, incarnation, kept)
        except Exception as error:  # the store's client may raise any exception
            logger.debug("could not clean up after trial %s, trying again at the end: %r", trial_dir, error)
            self._uncleaned.append((trial_dir, incarnation, kept))

    def _remove_last(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        """Remove them in a last attempt, which outlasts a short outage of the storage."""
        try:
            if self._leads():
                store = CheckpointStore(self.storage.with_retry(_LAST_ATTEMPT))
                store.remove_all_but(trial_dir, incarnation, kept)
        except Exception as error:  # the store's client may raise any exception
            logger.warning(
                "could not remove the checkpoints that lost workers of trial %s left in %s: %s",
                trial_dir,
                self.storage,
                self.storage.explain(error),
            )

    def _delete(self, record: CheckpointRecord) -> None:
        try:
            if self._leads():
                self._deleter.delete(record)
        except Exception as error:  # the store's client may raise any exception
            logger.warning(
                "could not delete checkpoint %s of %s: %s. It is tried again at the end; "
                "if that fails too, delete it by hand.",
                record.path,
                self.storage,
                self.storage.explain(error),
            )
            self._failed.append(record)

    def close(self) -> None:
        """Make the journal durable, and finish the work of the background thread.

        Raises
        ------
        StorageError
            If the journal could not be written. Nothing is lost: it may be called again.
        """
        if self._journal is not None or self._to_delete:
            self.commit(force=True)
            self._writer().close()
        self._flush_params()
        if self._cleaned is not None and monotonic() - self._cleaned > STALE:
            self.remove_stale_files()
        for job in self._jobs:
            job.result()
        again, self._failed = self._failed, []
        for record in again:
            self._work(self._delete, record)
        uncleaned, self._uncleaned = self._uncleaned, []
        for arguments in uncleaned:
            self._work(self._remove_last, *arguments)
        self._work(self._write_last)
        self._pool.shutdown()

    def _write_last(self) -> None:
        files, self._unwritten = self._unwritten, []
        for name, content in files:
            try:
                self._without_retry.write_bytes(name, content)
            except Exception as error:  # the store's client may raise any exception
                self._warn_unwritten(name, error)
                return


def is_half_created(storage: Storage) -> bool:
    """Whether there is only a specification: its driver has died, or stores the rest just now.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    """
    if not storage.exists(SPEC_FILE) or _leftovers(storage):
        return False
    try:
        # A file of this name may be of another program, and must stay then.
        return "dasktune" in ExperimentStore(storage).spec()
    except StorageError:
        return False


def has_parts(storage: Storage) -> bool:
    """Whether a directory has a setup, snapshots, trials, or a journal with records.

    Parameters
    ----------
    storage : Storage
        The directory.
    """
    return bool(_leftovers(storage))


def check_no_leftovers(storage: Storage) -> None:
    """Refuse a directory with parts of another experiment, which would be mixed with a new one.

    Parameters
    ----------
    storage : Storage
        The directory of the new experiment.

    Raises
    ------
    StorageError
        If it has a setup, snapshots, trials, or a journal with records.
    """
    found = _leftovers(storage)
    if found:
        missing = " and ".join(name for name in (SPEC_FILE, SETUP_FILE) if not storage.exists(name))
        raise StorageError(
            f"name must be new to its storage_path: {storage} has {', '.join(found)} of another experiment, "
            f"which has lost its {missing}. Put it back from a copy to resume that experiment, or give the "
            "new one another name."
        )


def _leftovers(storage: Storage) -> list[str]:
    """Return what is there of an experiment besides its specification.

    A journal without records does not count: a driver may have died right after it had begun one.
    """
    found = [SETUP_FILE] if storage.exists(SETUP_FILE) else []
    found += [f"{name}/" for name in ("snapshots", "trials") if storage.names(name)]
    try:
        has_records = any(True for _ in read_journal(storage))
    except StorageError:
        has_records = True  # it is damaged, so it is not new
    return [*found, "journal/"] if has_records else found


def experiment_json(
    name: str,
    trainable_name: str,
    tune_config: TuneConfig,
    param_space: Mapping[str, Any],
    total_trials: int | None,
) -> dict[str, Any]:
    """Return the content of ``experiment.json``.

    Parameters
    ----------
    name, trainable_name : str
        Names of the experiment and of its trainable.
    tune_config : TuneConfig
        The experiment's metric, searcher and scheduler.
    param_space : mapping
        The search space.
    total_trials : int or None
        The number of trials, if known.
    """
    return {
        "format": FORMAT,
        "dasktune": __version__,
        "name": name,
        "trainable": trainable_name,
        "metric": tune_config.metric,
        "mode": tune_config.mode,
        "num_samples": tune_config.num_samples,
        "total_trials": total_trials,
        "scales": parameter_scales(param_space),
        "created": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _check_trial_dir(name: str) -> None:
    check(is_one_name(name), "trial_dir", "one name", name)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_secrets(item) for key, item in value.items() if key != "storage_options"}
    if isinstance(value, list | tuple):
        return [_without_secrets(item) for item in value]
    return without_passwords(value) if isinstance(value, str) else value
