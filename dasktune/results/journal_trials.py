"""Read the trials of an experiment from its journal, without running any of the user's code.

Nothing is unpickled, and neither searcher nor scheduler is needed: their decisions are in the
journal. So a directory can be read even if its author is not trusted or its code is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any, Final, NamedTuple

from dasktune.errors import StorageError
from dasktune.experiment.trial_state import trial_from_state
from dasktune.storage.experiment.tuner_json import TunerFile
from dasktune.storage.fs.retry import is_transient
from dasktune.storage.fs.spill_file import SpillFile
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import JournalReader, check_journal_exists
from dasktune.storage.journal.snapshots import Snapshot, Snapshots
from dasktune.trial import actions, events
from dasktune.trial.apply import add_checkpoint, apply_action, apply_event, is_current, new_trial
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.journal_codec import decode_actions, decode_event
from dasktune.trial.retention import Retention
from dasktune.trial.rows.row_blocks import IN_MEMORY, BlockStore
from dasktune.trial.rows.trial_history import History, LastRow
from dasktune.trial.trial import Trial

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
    return _load(storage, last_only=True)


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
    return _load(storage, last_only=False)


def _load(storage: Storage, *, last_only: bool) -> list[Trial]:
    check_journal_exists(storage, may_be_new=True)
    for snapshot in Snapshots(storage).newest_first():
        reader = JournalReader(storage, start=snapshot.position)
        try:
            trials = _trials_of(storage, snapshot, last_only=last_only)
            apply_records(trials, reader, SpillFile(), last_only=last_only)
        except (StorageError, *_MALFORMED) as error:
            # The journal has everything: a snapshot only saves time.
            logger.warning("ignoring an unusable snapshot of %s: %r", storage, error)
        else:
            if reader.end.position >= snapshot.position:
                return list(trials.values())
            # A power cut can keep a snapshot and lose the records before it.
            logger.warning("ignoring a snapshot of %s: it is newer than the journal", storage)
    trials = {}
    apply_records(trials, JournalReader(storage), SpillFile(), last_only=last_only)
    return list(trials.values())


def _trials_of(storage: Storage, snapshot: Snapshot, *, last_only: bool) -> dict[str, Trial]:
    histories, blocks = JournalHistories(storage, snapshot.position), SpillFile()
    trials = [trial_from_state(one, histories, blocks) for one in snapshot.state["trials"]]
    for trial in trials if last_only else ():
        trial.history = LastRow(trial.history[-1:], owner=trial.trial_id)
        _trim(trial)
    return {trial.trial_id: trial for trial in trials}


def _trim(trial: Trial) -> None:
    """Remove what the last result of a trial makes superfluous."""
    trial.checkpoints.clear()
    del trial.errors[:-1]


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
    trials: dict[str, Trial],
    records: Iterable[Record],
    blocks: BlockStore = IN_MEMORY,
    *,
    last_only: bool = False,
    skip_malformed: bool = False,
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
    last_only : bool, default=False
        Keep only the last result and the last error of each trial, and no checkpoints.
    skip_malformed : bool, default=False
        Skip malformed records.

    Raises
    ------
    StorageError
        If a record is malformed and not skipped.
    """
    history = LastRow if last_only else partial(History, store=blocks)
    for record in records:
        try:
            changed = apply_record(trials, record, history).trial
        except _MALFORMED as error:
            if skip_malformed:
                continue
            raise StorageError(f"malformed record {str(record)[:200]}: {error!r}") from error
        if last_only and changed is not None:
            _trim(changed)


class AppliedRecord(NamedTuple):
    """What a record has changed.

    Attributes
    ----------
    event : ExperimentEvent or None
        The event; None if this version does not know it.
    trial : Trial or None
        The trial that the record is about, if it exists.
    is_current : bool
        False for a worker's event of an earlier incarnation, and for a repeated one: it has changed
        nothing.
    actions : list of Action or None
        The actions, in order; None for each that this version does not know.
    """

    event: events.ExperimentEvent | None
    trial: Trial | None
    is_current: bool
    actions: list[actions.Action | None]


def apply_record(
    trials: dict[str, Trial], record: Record, history: Callable[..., History] = LastRow
) -> AppliedRecord:
    """Bring trials up to date with one record; its errors may be of nearly any type.

    Parameters
    ----------
    trials : dict of str to Trial
        As for :func:`apply_records`.
    record : mapping
        The record.
    history : callable, default=LastRow
        ``history(owner=trial_id)`` returns the empty history of a new trial.
    """
    event = decode_event(record)
    is_current = True
    # Nearly all events are results.
    if isinstance(event, events.TrialEvent):
        is_current = _apply_event(trials, event)
    else:
        _apply_other(trials, event, history)
    decided = decode_actions(record) if "actions" in record else []
    for action in decided:
        if isinstance(action, actions.DeleteCheckpoint):
            # A copy in memory has the path of the stored checkpoint, which stays.
            if action.checkpoint.kind is CheckpointKind.PERSISTENT:
                _forget([trials[action.trial_id]], action.checkpoint.path)
        elif isinstance(action, actions.TrialAction):
            apply_action(trials[action.trial_id], action, float(record["time"]))
    return AppliedRecord(event, trials.get(record.get("trial_id", "")), is_current, decided)


def _apply_other(
    trials: dict[str, Trial], event: events.ExperimentEvent | None, history: Callable[..., History]
) -> None:
    match event:
        case events.Suggested(config=None):
            pass
        case events.Suggested() | events.TrialAddRequested():
            if event.trial_id not in trials:
                trials[event.trial_id] = new_trial(event, history(owner=event.trial_id))
        case events.CheckpointStored():
            add_checkpoint(trials[event.trial_id], event.checkpoint)
        case _:  # about the experiment, or of a newer version
            pass


def _apply_event(trials: Mapping[str, Trial], event: events.TrialEvent) -> bool:
    trial = trials.get(event.trial_id)
    if trial is None or not is_current(trial, event):
        return False
    if isinstance(event, events.ResultReported | events.CheckpointCommitted) and event.checkpoint:
        add_checkpoint(trial, event.checkpoint)
    apply_event(trial, event)
    if isinstance(event, events.RestoreFailed):
        _forget(trials.values(), event.path)
    return True


def _forget(trials: Iterable[Trial], path: str) -> None:
    """Remove a checkpoint from the trial that has it."""
    for trial in trials:
        trial.checkpoints = [one for one in trial.checkpoints if one.path != path]
