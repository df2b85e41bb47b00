"""Journal records: one per event, with what was decided about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from dasktune.trial.actions import Action, RestoreTrial, StartTrial
from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.events import ErrorInfo, ExperimentEvent, ResultReported
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
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
    if isinstance(event, ResultReported) and event.checkpoint is None:
        record = _result(event)
    else:
        record = {"event": type(event).__name__, **_told(event)}
    if trial is not None:
        record["trial_id"] = trial.trial_id
        record["status"] = _WORDS[trial.status]
    if actions:
        record["actions"] = [_action(action) for action in actions]
    return record


#: What users see; read once, as the value of an enum's member is dear to look up.
_WORDS = {status: status.public.value for status in TrialStatus}


def _result(event: ResultReported) -> dict[str, Any]:
    # What `_told` gives, in a third of the time: nearly all records are these.
    return {
        "event": "ResultReported",
        "trial_id": event.trial_id,
        "incarnation": event.incarnation,
        "time": event.time,
        "seq": event.seq,
        "metrics": event.metrics,
        "checkpoint": None,
        "awaits": event.awaits,
    }


def _action(action: Action) -> dict[str, Any]:
    told = {"do": type(action).__name__, **_told(action)}
    if isinstance(action, StartTrial | RestoreTrial):
        # The configuration stands in the record of the suggestion already.
        del told["config"]
    return told


def _told(value: object) -> dict[str, Any]:
    names, get = _FIELDS.get(type(value)) or _learn_fields(type(value))
    values = get(value)
    # Most values are none of ours; a call for each would be most of the work.
    if not _CONVERTERS.keys().isdisjoint(map(type, values)):
        values = map(_plain, values)
    return dict(zip(names, values, strict=True))


#: Field names of each event and action type, the inherited ones first, and what reads them all.
_FIELDS: dict[type, tuple[tuple[str, ...], Callable[[Any], Iterable[Any]]]] = {}


def _learn_fields(kind: type) -> tuple[tuple[str, ...], Callable[[Any], Iterable[Any]]]:
    names = tuple(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    # Of a single name it would give the value and no tuple.
    get = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    _FIELDS[kind] = names, get
    return names, get


def _plain(value: Any) -> Any:
    convert = _CONVERTERS.get(type(value))
    return value if convert is None else convert(value)


#: How our own values are written; looked up by the exact type, as most values are none of these.
_CONVERTERS: dict[type, Callable[[Any], Any]] = {
    ErrorInfo: lambda error: {"message": error.message, "traceback": error.traceback},
    Milestone: lambda milestone: [milestone.time_attr, milestone.value],
    PlacementGroupFactory: PlacementGroupFactory.to_json,
    CheckpointKind: attrgetter("value"),
    CheckpointRecord: CheckpointRecord.to_json,
    tuple: lambda items: [_plain(item) for item in items],
}
