"""Read the trials of an experiment from its journal, without running any of the user's code.

Nothing is unpickled, and neither searcher nor scheduler is needed: their decisions are in the
journal. So a directory can be read even if its author is not trusted or its code is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from threading import Lock
from typing import Any, Final

from dasktune.errors import StorageError
from dasktune.experiment.exploit import cut_back
from dasktune.experiment.failures import clear_suspicion, count_failure, count_loss
from dasktune.experiment.policies import record as append_result
from dasktune.experiment.trial_index import apply_resources, is_current
from dasktune.experiment.trial_state import trial_from_state
from dasktune.experiment.user_requests import new_trial, reset_trial
from dasktune.storage.experiment.tuner_json import TunerFile
from dasktune.storage.fs.retry import is_transient
from dasktune.storage.fs.spill_file import SpillFile
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import JournalReader, check_journal_exists
from dasktune.storage.journal.snapshots import Snapshot, Snapshots
from dasktune.trial import actions, events
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.journal_codec import decode_actions, decode_event
from dasktune.trial.retention import Retention
from dasktune.trial.rows.row_blocks import IN_MEMORY, BlockStore
from dasktune.trial.rows.trial_history import History
from dasktune.trial.status import TRANSITIONS
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]

#: Exceptions that reading a damaged journal, or a journal of another version, may raise.
_MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)


def load_last_results(storage: Storage) -> list[Trial]:
    """Return the trials of an experiment, each with its last result only.

    As :func:`load_trials`, in memory for one result of each trial, however long the journal is.
    Histories have at most one row, and neither checkpoints nor errors before the last one are kept.
    A trial that was cloned from an earlier iteration, and has not reported since, has no result.

    Parameters
    ----------
    storage : Storage
        The experiment's directory. The experiment may still be running.

    Raises
    ------
    StorageError
        As for :func:`load_trials`.
    """
    return _load(storage, _trimming)


def load_trials(storage: Storage) -> list[Trial]:
    """Return the trials of an experiment, in the order of their creation.

    Parameters
    ----------
    storage : Storage
        The experiment's directory. The experiment may still be running.

    Returns
    -------
    list of Trial
        The trials as of the end of the journal. A value of a configuration that JSON cannot hold is
        ``{"$repr": text}``.

    Raises
    ------
    StorageError
        If the journal is damaged, or missing although the experiment had trials.
    """
    return _load(storage, lambda trials, records: iter(records))


def _load(
    storage: Storage, filtered: Callable[[dict[str, Trial], Iterable[Record]], Iterator[Record]]
) -> list[Trial]:
    """Return the trials; `filtered` yields the records, and may change trials in between."""
    check_journal_exists(storage, may_be_new=True)
    for snapshot in Snapshots(storage).newest_first():
        reader = JournalReader(storage, start=snapshot.position)
        try:
            trials = _trials_of(storage, snapshot)
            apply_records(trials, filtered(trials, reader), SpillFile())
        except (StorageError, *_MALFORMED) as error:
            # The journal has everything: a snapshot only saves time.
            logger.warning("ignoring an unusable snapshot of %s: %r", storage, error)
        else:
            if reader.end.position >= snapshot.position:
                return list(trials.values())
            # A power cut can keep a snapshot and lose the records before it.
            logger.warning("ignoring a snapshot of %s: it is newer than the journal", storage)
    trials = {}
    apply_records(trials, filtered(trials, JournalReader(storage)), SpillFile())
    return list(trials.values())


def _trimming(trials: dict[str, Trial], records: Iterable[Record]) -> Iterator[Record]:
    """Yield records, and remove from each trial what its last result makes superfluous."""
    for trial in trials.values():
        _trim(trial)
    for record in records:
        yield record
        # The record has been applied now.
        trial_id = record.get("trial_id")
        if isinstance(trial_id, str) and trial_id in trials:
            _trim(trials[trial_id])


def _trim(trial: Trial) -> None:
    trial.history.keep_last()
    trial.checkpoints.clear()
    del trial.errors[:-1]


def _trials_of(storage: Storage, snapshot: Snapshot) -> dict[str, Trial]:
    histories, blocks = JournalHistories(storage, snapshot.position), SpillFile()
    trials = [trial_from_state(one, histories, blocks) for one in snapshot.state["trials"]]
    return {trial.trial_id: trial for trial in trials}


def retention_of(storage: Storage) -> Retention:
    """Return the rule by which an experiment keeps checkpoints; the default if its setup has none.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    """
    try:
        entries = TunerFile.read(storage).entries
    except StorageError:
        return Retention()
    names = ("num_to_keep", "checkpoint_score_attribute", "checkpoint_score_order")
    found = [entries.get(f"run_config.checkpoint_config.{name}", {}) for name in names]
    number, attribute, order = (entry.get("value") for entry in found)
    return Retention(number, attribute, order or "max")


class JournalHistories:
    """Reads the results of all trials from the journal when those of the first one are needed.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    position : int
        Number of records to read.
    records : callable, default=JournalReader
        Returns the records of the journal in a directory.
    """

    def __init__(
        self,
        storage: Storage,
        position: int,
        *,
        records: Callable[[Storage], Iterable[Record]] = JournalReader,
    ) -> None:
        self._storage, self._position, self._records = storage, position, records
        #: Any thread may ask. The first one reads the journal, and others wait.
        self._lock = Lock()
        self._trials: dict[str, Trial] | None = None
        #: Why the journal cannot be read, if another attempt cannot change it.
        self._damage: StorageError | None = None

    def __call__(self, trial_id: str) -> History:
        """Return the results of a trial.

        Parameters
        ----------
        trial_id : str
            The trial.

        Raises
        ------
        StorageError
            If the journal is gone, damaged or cannot be read.
        """
        with self._lock:
            if self._trials is None:
                self._trials = self._read()
        trial = self._trials.get(trial_id)
        return History() if trial is None else trial.history

    def _read(self) -> dict[str, Trial]:
        if self._damage is not None:
            # Each trial may ask again and again, and a long journal takes long to parse.
            raise StorageError(str(self._damage)) from self._damage
        logger.info("reading the results of %s from its journal", self._storage)
        # Not remembered: a journal that is gone may be put back.
        check_journal_exists(self._storage)
        trials: dict[str, Trial] = {}
        try:
            apply_records(trials, islice(self._records(self._storage), self._position), SpillFile())
        except StorageError as error:
            if _is_lasting(error):
                self._damage = error
            raise
        return trials


def _is_lasting(error: StorageError) -> bool:
    """Whether reading a journal again would fail again, so its content is the cause."""
    cause: BaseException | None = error
    while isinstance(cause, StorageError):
        cause = cause.__cause__
    return not isinstance(cause, Exception) or isinstance(cause, _MALFORMED) or not is_transient(cause)


def apply_records(
    trials: dict[str, Trial], records: Iterable[Record], blocks: BlockStore = IN_MEMORY
) -> None:
    """Bring trials up to date with the records of a journal.

    Parameters
    ----------
    trials : dict of str to Trial
        The trials before the first record, by id; they are changed, and new ones are added.
    records : iterable of mapping
        The records, in order.
    blocks : BlockStore, default=IN_MEMORY
        Keeps the older results of new trials.

    Raises
    ------
    StorageError
        If a record is malformed.
    """
    for record in records:
        try:
            _apply(trials, record, blocks)
        except _MALFORMED as error:
            raise StorageError(f"malformed record {str(record)[:200]}: {error!r}") from error


def _apply(trials: dict[str, Trial], record: Record, blocks: BlockStore) -> None:
    event = decode_event(record)
    match event:
        case None:  # an event of a newer version
            pass
        case events.Suggested(config=dict()) | events.TrialAddRequested():
            trials[event.trial_id] = new_trial(event, blocks)
        case events.CheckpointStored():
            _keep(trials[event.trial_id], event.checkpoint)
        case events.TrialEvent():
            trial = trials.get(event.trial_id)
            if trial is not None and is_current(trial, event):
                trial.last_seq = max(trial.last_seq, event.seq)
                _apply_event(trial, event)
                if isinstance(event, events.RestoreFailed):
                    _forget(trials, event.path)
        case _:  # about the experiment, not about a trial
            pass
    for action in decode_actions(record):
        if isinstance(action, actions.DeleteCheckpoint):
            # A copy in memory has the path of the stored checkpoint, which stays.
            if action.checkpoint.kind is CheckpointKind.PERSISTENT:
                _forget({action.trial_id: trials[action.trial_id]}, action.checkpoint.path)
        elif isinstance(action, actions.TrialAction):
            _apply_action(trials[action.trial_id], action, float(record["time"]))


def _apply_event(trial: Trial, event: events.TrialEvent) -> None:
    _move(trial, type(event), event.time)
    match event:
        case events.ResultReported():
            if event.checkpoint is not None:
                _keep(trial, event.checkpoint)
            # A result that was sent before the trial became a clone belongs to its former history.
            if trial.cloned_in < trial.incarnation:
                append_result(trial, event.metrics)
            clear_suspicion(trial)
        case events.CheckpointCommitted():
            _keep(trial, event.checkpoint)
            clear_suspicion(trial)
        case events.TrialStarted():
            trial.worker = event.worker
            trial.started_at = event.time if trial.started_at is None else trial.started_at
        case events.TrialLost():
            count_loss(trial, event, limit=0)  # the journal says whether the trial ended for it
        case events.TrialFailed():
            count_failure(trial, event.error, limit=-1)
            if trial.status.is_final:
                trial.reason = event.error.message
        case _:  # changes only the status
            pass


def _keep(trial: Trial, checkpoint: CheckpointRecord) -> None:
    # A checkpoint in memory that is stored late has a lower number than newer ones.
    trial.next_checkpoint = max(trial.next_checkpoint, checkpoint.index + 1)
    if checkpoint.kind is CheckpointKind.PERSISTENT:
        trial.checkpoints.append(checkpoint)


def _forget(trials: Mapping[str, Trial], path: str) -> None:
    """Remove a checkpoint from the trial that has it."""
    for trial in trials.values():
        trial.checkpoints = [one for one in trial.checkpoints if one.path != path]


def _apply_action(trial: Trial, action: actions.TrialAction, time: float) -> None:
    _move(trial, type(action), time)
    apply_resources(trial, action)
    match action:
        case actions.StartTrial() | actions.RestoreTrial():
            trial.incarnation, trial.last_seq = action.incarnation, 0
        case actions.ReopenTrial():
            reset_trial(trial, fresh=action.fresh)
            if action.fresh:
                trial.checkpoints = []
        case actions.ExploitTrial():
            trial.config, trial.pickled = action.config, action.pickled
            trial.pause_reason = action.reason
            if action.checkpoint is not None:
                cut_back(trial, action.checkpoint.iteration)
                trial.cloned_in = trial.incarnation
        case actions.LeaveWorker() | actions.SuspendTrial():
            trial.pause_reason = action.reason
        case actions.ResumeTrial():
            trial.pause_reason = ""
        case actions.StopTrial() | actions.FinishTrial():
            trial.reason, trial.stopped_early = action.reason, action.early
        case actions.GiveUp():
            trial.reason, trial.stopped_early = action.reason, False
        case actions.FailTrial():
            trial.reason, trial.stopped_early = action.reason, False
            trial.errors.append(ErrorInfo(message=action.reason, traceback=action.traceback))
        case _:  # changes only the status
            pass


def _move(trial: Trial, cause: type[Any], time: float) -> None:
    trial.status = TRANSITIONS.get((trial.status, cause), trial.status)
    trial.ended_at = time if trial.status.is_final else None
