"""Trials as plain values in snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dasktune.errors import StorageError
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.events import ErrorInfo
from dasktune.trial.names import is_one_name
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import NO_STATUS_LOG, Trial

__all__ = ["trial_from_state", "trial_state"]

#: Attributes with plain values.
_PLAIN = (
    "trial_id",
    "config",
    "tag",
    "name",
    "dirname",
    "pickled",
    "added",
    "incarnation",
    "worker",
    "next_checkpoint",
    "failures",
    "losses",
    "worker_losses",
    "shared_losses",
    "reason",
    "pause_reason",
    "started_at",
    "ended_at",
    "last_seq",
    "awaiting_seq",
    "held_at",
    "cloned_in",
    "stopped_early",
)

#: Attributes that snapshots of older versions do not have.
_ADDED_LATER: Final = {"name": "", "dirname": ""}


def trial_state(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain values, without its status log, which only error messages use.

    Parameters
    ----------
    trial : Trial
        Later changes of the trial do not change what is returned.

    Returns
    -------
    dict
        Plain values except where its configuration and its metrics hold something else.
    """
    first = trial.first_resources
    return {
        **{name: getattr(trial, name) for name in _PLAIN},
        "resources": trial.resources.to_json(),
        "first_resources": None if first is None else first.to_json(),
        "status": trial.status.value,
        "progress_at_loss": list(trial.progress_at_loss),
        "history": list(trial.history),
        "checkpoints": [record.to_json() for record in trial.checkpoints],
        "memory": _record_state(trial.memory),
        "origin": _record_state(trial.origin),
        "lent": [record.to_json() for record in trial.lent],
        "held": _record_state(trial.held),
        "ancestry": list(trial.ancestry),
        "errors": [{"message": e.message, "traceback": e.traceback} for e in trial.errors],
    }


def trial_from_state(state: Mapping[str, Any]) -> Trial:
    """Return the trial that :func:`trial_state` has turned into plain values.

    Parameters
    ----------
    state : mapping
        The return value of :func:`trial_state`, possibly read from a snapshot.

    Raises
    ------
    StorageError
        If the trial's name is a path that leads out of the experiment's directory.
    """
    state = {**_ADDED_LATER, **state}
    for name in (state["trial_id"], state["dirname"] or "-"):
        if not is_one_name(name):
            raise StorageError(f"trial_id must be one name, got {name!r:.80}")
    checkpoints, losses = state["progress_at_loss"]
    first = state["first_resources"]
    trial = Trial(
        **{name: state[name] for name in _PLAIN},
        resources=PlacementGroupFactory.from_json(state["resources"]),
        first_resources=None if first is None else PlacementGroupFactory.from_json(first),
        status=TrialStatus(state["status"]),
        progress_at_loss=(checkpoints, losses),
        history=list(state["history"]),
        checkpoints=[CheckpointRecord.from_json(record) for record in state["checkpoints"]],
        memory=_record(state["memory"]),
        origin=_record(state["origin"]),
        lent=tuple(map(CheckpointRecord.from_json, state["lent"])),
        held=_record(state["held"]),
        ancestry=tuple(state["ancestry"]),
        errors=[ErrorInfo(**error) for error in state["errors"]],
    )
    trial.rows = {int(row["training_iteration"]): at for at, row in enumerate(trial.history)}
    if trial.status.is_final:
        trial.status_log = NO_STATUS_LOG
    return trial


def _record_state(record: CheckpointRecord | None) -> dict[str, Any] | None:
    return None if record is None else record.to_json()


def _record(state: Mapping[str, Any] | None) -> CheckpointRecord | None:
    return None if state is None else CheckpointRecord.from_json(state)
