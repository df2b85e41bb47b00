"""The trials of an experiment as its directory tells of them, without a line of the user's code.

Nothing is unpickled, and neither searcher nor scheduler is needed: what they decided stands in the
journal. So a directory can be read that one does not trust, or whose code is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dasktune.errors import StorageError
from dasktune.experiment.cloning import cut_back
from dasktune.experiment.judging import record as keep_result
from dasktune.experiment.reopening import wipe
from dasktune.experiment.roster import is_news
from dasktune.experiment.setbacks import count_failure
from dasktune.experiment.trial_state import trial_of
from dasktune.storage.journal_reader import JournalReader
from dasktune.storage.location import Storage
from dasktune.storage.setup_file import SetupFile
from dasktune.storage.snapshots import Snapshots
from dasktune.trial import actions, events
from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.events import ErrorInfo, TrialEvent
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.retention import Retention
from dasktune.trial.status import TRANSITIONS
from dasktune.trial.trial import Trial

__all__ = ["follow", "recalled", "retention_of"]

logger = logging.getLogger(__name__)

Told = Mapping[str, Any]

#: What the journal's damage, or another version of it, may lead to.
_NONSENSE: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)


def recalled(storage: Storage) -> list[Trial]:
    """Return the trials of an experiment, in the order in which they were made.

    Parameters
    ----------
    storage : Storage
        Its directory. The experiment may still be running.

    Returns
    -------
    list of Trial
        As they stood at the end of the journal. What JSON cannot tell of a configuration is there
        as ``{"$repr": text}``.

    Raises
    ------
    StorageError
        If the journal is damaged.
    """
    trials, start = _newest(storage)
    follow(trials, JournalReader(storage, start=start))
    return list(trials.values())


def _newest(storage: Storage) -> tuple[dict[str, Trial], int]:
    """Return the trials of the newest snapshot that can be read, and its place in the journal."""
    for snapshot in Snapshots(storage).newest_first():
        try:
            trials = [trial_of(state) for state in snapshot.state["trials"]]
        except (StorageError, *_NONSENSE) as error:
            # It is a shortcut only.
            logger.warning("a snapshot of %s makes no sense: %r", storage, error)
        else:
            return {trial.trial_id: trial for trial in trials}, snapshot.position
    return {}, 0


def retention_of(storage: Storage) -> Retention:
    """Return by what an experiment keeps checkpoints; by age if its setup does not tell.

    Parameters
    ----------
    storage : Storage
        Its directory.
    """
    try:
        entries = SetupFile.read(storage).entries
    except StorageError:
        return Retention()
    names = ("num_to_keep", "checkpoint_score_attribute", "checkpoint_score_order")
    told = [entries.get(f"run_config.checkpoint_config.{name}", {}) for name in names]
    number, attribute, order = (entry.get("value") for entry in told)
    return Retention(number, attribute, order or "max")


def follow(trials: dict[str, Trial], records: Iterable[Told]) -> None:
    """Let trials go through what a journal tells.

    Parameters
    ----------
    trials : dict of str to Trial
        As they stood before the first record; what is new is added, and they are changed.
    records : iterable of mapping
        The records, in order.

    Raises
    ------
    StorageError
        If a record makes no sense.
    """
    for told in records:
        try:
            _take(trials, told)
        except _NONSENSE as error:
            raise StorageError(f"{str(told)[:200]} makes no sense: {error!r}") from error


def _take(trials: dict[str, Trial], told: Told) -> None:
    event = told["event"]
    if event in _BRINGING and told["config"] is not None:
        trials[told["trial_id"]] = _new_trial(told)
    kind = _EVENTS[event]
    trial = trials.get(told.get("trial_id", ""))
    if trial is not None and issubclass(kind, TrialEvent):
        seen = TrialEvent(
            trial_id=trial.trial_id,
            incarnation=told["incarnation"],
            time=told["time"],
            seq=told["seq"],
        )
        if is_news(trial, seen):
            trial.last_seq = max(trial.last_seq, seen.seq)
            _take_event(trial, kind, told)
    elif trial is not None and kind is events.CheckpointStored:
        _keep(trial, told["checkpoint"])
    for action in told.get("actions", ()):
        _take_action(trials[action["trial_id"]] if "trial_id" in action else None, action, told)


def _new_trial(told: Told) -> Trial:
    added = told["event"] == "TrialAddRequested"
    return Trial(
        trial_id=told["trial_id"],
        config=told["config"],
        resources=PlacementGroupFactory.from_json(told["resources"]),
        tag=told.get("tag", "added" if added else ""),
        name=told.get("name", ""),
        dirname=told.get("dirname", ""),
        added=added,
        pickled=told.get("pickled", False),
    )


def _take_event(trial: Trial, kind: type[TrialEvent], told: Told) -> None:
    _move(trial, kind, told["time"])
    if kind is events.ResultReported:
        if told["checkpoint"] is not None:
            _keep(trial, told["checkpoint"])
        # What crosses the order to be a clone on the wire is of another past.
        if trial.cloned_in < trial.incarnation:
            keep_result(trial, told["metrics"])
    elif kind is events.CheckpointCommitted:
        _keep(trial, told["checkpoint"])
    elif kind is events.TrialStarted:
        trial.worker = told["worker"]
        trial.started_at = told["time"] if trial.started_at is None else trial.started_at
    elif kind is events.TrialFailed:
        error = ErrorInfo(message=told["error"]["message"], traceback=told["error"]["traceback"])
        count_failure(trial, error, limit=-1)
        if trial.status.is_final:
            trial.reason = error.message


def _keep(trial: Trial, told: Told) -> None:
    record = CheckpointRecord.from_json(told)
    trial.next_checkpoint = record.index + 1
    if record.kind is CheckpointKind.PERSISTENT:
        trial.checkpoints.append(record)


def _take_action(trial: Trial | None, action: Told, told: Told) -> None:
    kind = _ACTIONS[action["do"]]
    if trial is None:
        return
    if kind is actions.DeleteCheckpoint:
        path = action["checkpoint"]["path"]
        trial.checkpoints = [one for one in trial.checkpoints if one.path != path]
        return
    _move(trial, kind, told["time"])
    if kind in (actions.StartTrial, actions.RestoreTrial):
        trial.incarnation, trial.last_seq = action["incarnation"], 0
    elif kind is actions.ReopenTrial:
        wipe(trial, fresh=action["fresh"])
        if action["fresh"]:
            trial.checkpoints = []
    elif kind is actions.ExploitTrial:
        trial.config, trial.pickled = action["config"], action["pickled"]
        trial.pause_reason = action["reason"]
        if action["checkpoint"] is not None:
            cut_back(trial, action["checkpoint"]["iteration"])
            trial.cloned_in = trial.incarnation
    elif kind in _PAUSING:
        trial.pause_reason = action.get("reason", "")
    elif kind in _TELLING_WHY:
        trial.reason = action["reason"]
        trial.stopped_early = action.get("early", False)
        if kind is actions.FailTrial:
            error = ErrorInfo(message=action["reason"], traceback=action["traceback"])
            trial.errors.append(error)


def _move(trial: Trial, cause: type[Any], time: float) -> None:
    trial.status = TRANSITIONS.get((trial.status, cause), trial.status)
    trial.ended_at = time if trial.status.is_final else None


def _of_module(module: Any) -> Iterator[tuple[str, type[Any]]]:
    for name, kind in vars(module).items():
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            yield name, kind


_EVENTS: Final = dict(_of_module(events))
_ACTIONS: Final = dict(_of_module(actions))

#: Events with which trials come.
_BRINGING: Final = ("Suggested", "TrialAddRequested")

#: Actions that say why a trial is off its worker, or no longer has to be.
_PAUSING: Final = (
    actions.PauseTrial,
    actions.ResizeTrial,
    actions.RecallTrial,
    actions.SuspendTrial,
    actions.ResumeTrial,
)

#: Actions whose reason is that of the trial's end.
_TELLING_WHY: Final = (
    actions.StopTrial,
    actions.FinishTrial,
    actions.GiveUp,
    actions.FailTrial,
)
