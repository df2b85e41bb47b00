"""Journal records: one per event, with what was decided about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dasktune.trial.actions import Action, RestoreTrial, StartTrial
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.events import ErrorInfo, ExperimentEvent
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

__all__ = ["journal_record"]


def journal_record(
    event: ExperimentEvent, actions: Sequence[Action], trial: Trial | None
) -> dict[str, Any]:
    """Return what the journal says of an event.

    Parameters
    ----------
    event : ExperimentEvent
        What happened.
    actions : sequence of Action
        What was decided.
    trial : Trial or None
        The trial that the event is about, after the event.

    Returns
    -------
    dict
        ``event`` and its fields, ``actions``, and the trial's public ``status``; plain values
        except where the user's own metrics or configuration hold something else.
    """
    record: dict[str, Any] = {"event": type(event).__name__}
    for name in _fields(event):
        value = getattr(event, name)
        # Most values are none of ours; a call for each would be most of the work.
        convert = _CONVERTERS.get(type(value))
        record[name] = value if convert is None else convert(value)
    if trial is not None:
        record["trial_id"] = trial.trial_id
        record["status"] = trial.public_status.value
    if actions:
        record["actions"] = [_action(action) for action in actions]
    return record


def _action(action: Action) -> dict[str, Any]:
    told: dict[str, Any] = {"do": type(action).__name__}
    for name in _fields(action):
        # The configuration stands in the record of the suggestion already.
        if not (name == "config" and isinstance(action, StartTrial | RestoreTrial)):
            told[name] = _plain(getattr(action, name))
    return told


#: Field names of each event and action type, the inherited ones first; read once, for speed.
_FIELDS: dict[type, tuple[str, ...]] = {}


def _fields(value: object) -> tuple[str, ...]:
    kind = type(value)
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    return names


def _plain(value: Any) -> Any:
    convert = _CONVERTERS.get(type(value))
    return value if convert is None else convert(value)


#: How our own values are written; looked up by the exact type, as most values are none of these.
_CONVERTERS: dict[type, Callable[[Any], Any]] = {
    ErrorInfo: lambda error: {"message": error.message, "traceback": error.traceback},
    Milestone: lambda milestone: [milestone.time_attr, milestone.value],
    PlacementGroupFactory: PlacementGroupFactory.to_json,
    CheckpointRecord: CheckpointRecord.to_json,
    tuple: lambda items: [_plain(item) for item in items],
}
