"""Journal records back to events, and an experiment brought to where they lead.

Replaying asks the policies again, in the order of the journal: so they learn what they had learnt.
Where their answer is another one now, that of the journal stands.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dasktune.callback import Missed
from dasktune.errors import StorageError
from dasktune.experiment import Experiment, Precedent
from dasktune.storage.json_lines import decode, encode
from dasktune.trial import actions, events
from dasktune.trial.actions import Action, DeleteCheckpoint, ExploitTrial
from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.events import ErrorInfo, ExperimentEvent, Suggested
from dasktune.trial.names import is_one_name
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import PUBLIC

__all__ = ["event_of", "replay"]

logger = logging.getLogger(__name__)

#: More than a driver has in hand when it dies: it deletes within a second or so.
_MOST_GIVEN_UP: Final = 1_000

#: Gives the configuration of a trial of which JSON can tell only a part.
ConfigLoader = Callable[[str], dict[str, Any]]


def event_of(record: Mapping[str, Any]) -> ExperimentEvent:
    """Return the event that a record tells of.

    Parameters
    ----------
    record : mapping
        What :func:`~dasktune.runner.records.journal_record` gave, perhaps by way of a journal.

    Raises
    ------
    StorageError
        If it is no such record.
    """
    try:
        kind = _KINDS[record["event"]]
        names = kind.__dataclass_fields__
        told = {name: record[name] for name in names if name in record}
        event: ExperimentEvent = kind(**_converted(told))
        if isinstance(event, Suggested) and event.dirname and not is_one_name(event.dirname):
            raise ValueError("it would lead elsewhere")
        return event
    except Exception as error:  # a damaged or hostile journal may hold anything
        raise StorageError(f"not a record of an event: {str(record)[:200]} ({error!r})") from error


def replay(
    experiment: Experiment,
    records: Iterable[Mapping[str, Any]],
    load_config: ConfigLoader,
    missed: Missed | None = None,
) -> list[CheckpointRecord]:
    """Let an experiment live through what a journal tells.

    Parameters
    ----------
    experiment : Experiment
        In the state before the first record.
    records : iterable of mapping
        The records, in order.
    load_config : callable
        ``load_config(folder)`` gives the configuration of a trial whose record says `pickled`.
    missed : Missed, optional
        Takes down what the callbacks have missed.

    Returns
    -------
    list of CheckpointRecord
        The last checkpoints in the storage that were given up. The driver may have died before it
        had deleted them.

    Raises
    ------
    StorageError
        If a record is malformed, or cannot have followed those before it.
    """
    replaying = _Replay(experiment, load_config, missed)
    for number, record in enumerate(records, 1):
        try:
            replaying.step(record)
        except Exception as error:  # a damaged or hostile journal may lead anywhere
            told = error if isinstance(error, StorageError) else repr(error)
            raise StorageError(f"record {number} of those to be replayed: {told}") from error
    return list(replaying.given_up)


class _Replay:
    def __init__(
        self, experiment: Experiment, load_config: ConfigLoader, missed: Missed | None
    ) -> None:
        self._experiment = experiment
        self._load_config = load_config
        self._missed = missed
        self._has_warned = False
        self._has_overruled = False
        self.given_up: deque[CheckpointRecord] = deque(maxlen=_MOST_GIVEN_UP)

    def step(self, record: Mapping[str, Any]) -> None:
        event = event_of(record)
        if isinstance(event, Suggested):
            event = self._asked_again(event)
        told = record.get("actions", ())
        precedent = Precedent([_action_of(one) for one in told], self._config_of)
        actions = self._experiment.handle(event, precedent)
        # Mostly there is none.
        if actions or told:
            was = [(one["do"], one.get("trial_id")) for one in told]
            now = [(type(one).__name__, getattr(one, "trial_id", None)) for one in actions]
            _check_same(record, was, now)
        if self._missed is not None:
            self._missed.on_event(event, actions, self._experiment)
        self.given_up.extend(
            one.checkpoint
            for one in actions
            if isinstance(one, DeleteCheckpoint)
            and one.checkpoint.kind is CheckpointKind.PERSISTENT
        )
        trial = self._experiment.trials.get(getattr(event, "trial_id", ""))
        status = None if trial is None else PUBLIC[trial.status]
        _check_same(record, record.get("status"), status)
        if precedent.overruled and not self._has_overruled:
            self._has_overruled = True
            self._warn_of(precedent.overruled, record)

    def _config_of(self, told: ExploitTrial, own: dict[str, Any] | None) -> dict[str, Any]:
        """Return what a trial went on with, as the user's code had it."""
        if own is not None and _same(own, told.config):
            return own
        folder = self._experiment.trials[told.trial_id].folder
        return self._load_config(folder) if told.pickled else told.config

    @staticmethod
    def _warn_of(policy: str, record: Mapping[str, Any]) -> None:
        logger.warning(
            "%s decides otherwise than it did (first about %s of trial %s); what was decided then "
            "stands. What decides by nothing but what it is told, and holds all that it learns in "
            "state_dict(), goes on as if nothing had happened",
            policy,
            record["event"],
            record.get("trial_id"),
        )

    def _asked_again(self, event: Suggested) -> Suggested:
        """Return the event with the configuration as the user's code had it."""
        answer = self._experiment.search.next_trial(event.trial_id)
        if _same(answer.config, event.config):
            return _with_config(event, answer.config)
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the search algorithm answers otherwise than it did (first for trial %s); "
                "the trials keep the configurations that they had",
                event.trial_id,
            )
        self._experiment.search.adopt(event.trial_id, event.config)
        if event.pickled:
            return _with_config(event, self._load_config(event.dirname or event.trial_id))
        return event


def _same(answer: Mapping[str, Any] | None, told: Mapping[str, Any] | None) -> bool:
    """Whether a configuration is the one that a journal tells of, as far as it can."""
    if answer is None or told is None:
        return answer is told
    # As text, because NaN is not equal to itself.
    return repr(decode(encode(answer))) == repr(told)


def _with_config(event: Suggested, config: dict[str, Any] | None) -> Suggested:
    told = {name: getattr(event, name) for name in Suggested.__dataclass_fields__}
    return Suggested(**{**told, "config": config})


def _check_same(record: Mapping[str, Any], was: object, now: object) -> None:
    if was != now:
        raise StorageError(
            f"{record['event']} led to {was} and leads to {now} now: the journal is damaged, or of "
            "another dasktune"
        )


def _action_of(told: Mapping[str, Any]) -> Action | None:
    """Return an action in which policies have a say; what only the worker must know is left out."""
    kind = _DECISIONS.get(told["do"])
    if kind is None:
        return None
    names = kind.__dataclass_fields__.keys() - {"milestones", "checkpoint"}
    action: Action = kind(**_converted({name: told[name] for name in names & told.keys()}))
    return action


def _converted(told: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an event or an action, with our own values in place of plain ones."""
    for name in _CONVERTERS.keys() & told.keys():
        if told[name] is not None:
            told[name] = _CONVERTERS[name](told[name])
    return told


#: Every event by its name.
_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in vars(events).values()
    if isinstance(kind, type) and kind.__module__ == events.__name__
}
del _KINDS["ErrorInfo"], _KINDS["TrialEvent"]

#: The actions in which policies have a say, by their names.
_DECISIONS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        actions.ChangeRequest,
        actions.ContinueTraining,
        actions.EndExperiment,
        actions.ExploitTrial,
        actions.FailTrial,
        actions.FinishTrial,
        actions.PauseTrial,
        actions.ResizeTrial,
        actions.SaveTrial,
        actions.StopTrial,
        actions.UnpauseTrial,
    )
}

#: By the name of the field.
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "error": lambda told: ErrorInfo(message=told["message"], traceback=told["traceback"]),
    "checkpoint": CheckpointRecord.from_json,
    "kind": CheckpointKind,
    "resources": PlacementGroupFactory.from_json,
}
