"""Events and actions as records of the journal, and back.

A record is a dict of plain values: the name and the fields of an event, the actions that the
experiment decided on, and the trial's public status after them. The fields are those of the
dataclasses, so a new event or action needs nothing here unless it has a field of a new type.

Reading is tolerant: fields that this version does not know are ignored, missing ones get their
defaults, and events and actions with unknown names are reported as None. A reader may thus look at
a journal that a newer version wrote; only a replay, which must be exact, refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from dasktune.trial import actions as _actions
from dasktune.trial import events as _events
from dasktune.trial.actions import Action, RestoreTrial, StartTrial
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import ExperimentEvent, ResultReported, TrialEvent
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import ElasticPlacement, HostPlacement, PlacementGroupFactory
from dasktune.trial.status import PUBLIC
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo

Record = Mapping[str, Any]


def journal_record(
    event: ExperimentEvent, actions: Sequence[Action], trial: Trial | None, *, is_current: bool = True
) -> dict[str, Any]:
    """Return the record of an event and of the actions that it led to.

    Parameters
    ----------
    event : ExperimentEvent
        The event.
    actions : sequence of Action
        The actions that followed from the event.
    trial : Trial or None
        The trial of the event, in its state after the event.
    is_current : bool, default=True
        False if the event is outdated or was repeated, and has changed nothing.

    Returns
    -------
    dict
        ``event`` and its fields, ``actions``, the trial's public ``status``, and ``outdated`` if
        the event is not current; plain values except for what the user's own metrics or
        configuration hold.
    """
    if isinstance(event, ResultReported) and event.checkpoint is None:
        record = _encode_result(event)
    else:
        record = {"event": type(event).__name__, **_encode_fields(event)}
        for name in _OMITTED_IF_EMPTY & record.keys():
            if not record[name]:
                del record[name]
    if trial is not None:
        record["trial_id"] = trial.trial_id
        record["status"] = _PUBLIC_NAMES[trial.status]
    if not is_current:
        record["outdated"] = True
    if actions:
        record["actions"] = [_encode_action(action) for action in actions]
    return record


#: Fields of events that most records lack: who has issued a request, the ranks of a trial.
_OMITTED_IF_EMPTY: Final = frozenset({"by", "ranks", "num_ranks"})

#: The status that users see; read once, as the value of an enum's member is slow to look up.
_PUBLIC_NAMES: Final = {status: public.value for status, public in PUBLIC.items()}


def event_type(record: Record) -> type[Any] | None:
    """Return the class of a record's event, or None if this version does not know it.

    Parameters
    ----------
    record : mapping
        A record of the journal.

    Raises
    ------
    KeyError
        If the record names no event.

    Examples
    --------
    >>> event_type({"event": "TimePassed", "time": 3.0}).__name__
    'TimePassed'
    >>> event_type({"event": "MoonRose"})
    """
    return _EVENTS.get(record["event"])


def decode_event(record: Record) -> ExperimentEvent | None:
    """Return the event of a record, or None if this version does not know it.

    Parameters
    ----------
    record : mapping
        A record that :func:`journal_record` returned, possibly read from a journal.

    Raises
    ------
    Exception
        If the record is malformed. The exception can have nearly any type.

    Examples
    --------
    >>> decode_event({"event": "StopRequested", "reason": "enough", "time": 3.0, "mood": "bad"})
    StopRequested(reason='enough', time=3.0, by='')
    """
    kind = _EVENTS.get(record["event"])
    if kind is ResultReported and record.get("checkpoint") is None:
        return _decode_result(record)
    event: ExperimentEvent | None = None if kind is None else _decode(kind, record)
    return event


def decode_actions(record: Record) -> list[Action | None]:
    """Return the actions of a record in order; None for each that this version does not know.

    A start's record does not repeat the configuration, which is in the record of the suggestion.
    The decoded action has an empty one.

    Parameters
    ----------
    record : mapping
        A record that :func:`journal_record` returned, possibly read from a journal.

    Raises
    ------
    Exception
        If the record is malformed. The exception can have nearly any type.
    """
    found: list[Action | None] = []
    for one in record.get("actions", ()):
        kind = _ACTIONS.get(one["do"])
        if kind is StartTrial or kind is RestoreTrial:
            one = {**one, "config": {}}
        found.append(None if kind is None else _decode(kind, one))
    return found


# Writing


def _encode_result(event: ResultReported) -> dict[str, Any]:
    # The same as `_encode_fields` in a third of the time: nearly all records are results.
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


def _encode_action(action: Action) -> dict[str, Any]:
    fields = {"do": type(action).__name__, **_encode_fields(action)}
    if isinstance(action, StartTrial | RestoreTrial):
        # The configuration is in the record of the suggestion already.
        del fields["config"]
    for name in _OMITTED.keys() & fields.keys():
        if fields[name] is _OMITTED[name]:
            del fields[name]
    return fields


#: Fields of actions that most records lack, each with the value that most actions have.
_OMITTED: Final = {"rung": None, "cutoff": None, "at_once": False}


def _encode_fields(value: object) -> dict[str, Any]:
    names, get = _FIELDS.get(type(value)) or _learn_fields(type(value))
    values = get(value)
    # Most values are plain already; a call for each would be most of the work.
    if not _ENCODERS.keys().isdisjoint(map(type, values)):
        values = map(_plain, values)
    return dict(zip(names, values, strict=True))


#: Field names of each event and action type, the inherited ones first, and a getter of all values.
_FIELDS: dict[type, tuple[tuple[str, ...], Callable[[Any], Iterable[Any]]]] = {}


def _learn_fields(kind: type) -> tuple[tuple[str, ...], Callable[[Any], Iterable[Any]]]:
    names = tuple(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    # attrgetter with a single name returns the value, not a tuple.
    get = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    _FIELDS[kind] = names, get
    return names, get


def _plain(value: Any) -> Any:
    encode = _ENCODERS.get(type(value))
    return value if encode is None else encode(value)


#: How values of our own types are written; looked up by the exact type, as most are plain.
_ENCODERS: dict[type, Callable[[Any], Any]] = {
    ErrorInfo: ErrorInfo.to_json,
    Milestone: lambda milestone: [milestone.time_attr, milestone.value],
    PlacementGroupFactory: PlacementGroupFactory.to_json,
    HostPlacement: HostPlacement.to_json,
    ElasticPlacement: ElasticPlacement.to_json,
    CheckpointKind: attrgetter("value"),
    CheckpointRecord: CheckpointRecord.to_json,
    tuple: lambda items: [_plain(item) for item in items],
}


# Reading


def _decode_result(record: Record) -> ResultReported:
    # The same as `_decode` in a third of the time: nearly all records are results.
    return ResultReported(
        trial_id=record["trial_id"],
        incarnation=record["incarnation"],
        time=record["time"],
        seq=record.get("seq", 0),
        metrics=record["metrics"],
        awaits=record.get("awaits", True),
    )


def _decode(kind: Any, fields: Record) -> Any:
    known = {name: fields[name] for name in kind.__dataclass_fields__ if name in fields}
    for name in _DECODERS.keys() & known.keys():
        # A checkpoint or resources may be missing.
        if known[name] is not None or name == "error":
            known[name] = _DECODERS[name](known[name])
    return kind(**known)


#: How fields of our own types, and numbers for the cluster, are read, by the name of the field.
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "error": ErrorInfo.from_json,
    "checkpoint": CheckpointRecord.from_json,
    "kind": CheckpointKind,
    "resources": PlacementGroupFactory.from_json,
    "weight": float,
    "priority": float,
    "ranks": lambda ranks: tuple((str(worker), tuple(map(str, gpus))) for worker, gpus in ranks),
    "milestones": lambda pairs: tuple(Milestone(str(name), float(at)) for name, at in pairs),
}


def _classes_of(module: Any, *bases: type) -> dict[str, type[Any]]:
    """Return the dataclasses that a module defines, by name, without its base classes."""
    return {
        name: kind
        for name, kind in vars(module).items()
        if "__dataclass_params__" in getattr(kind, "__dict__", ())
        and kind.__module__ == module.__name__
        and kind not in bases
    }


_EVENTS: Final = _classes_of(_events, ErrorInfo, TrialEvent)
_ACTIONS: Final = _classes_of(_actions, _actions.TrialAction)
