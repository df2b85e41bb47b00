"""Trials as plain values in snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.errors import StorageError
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.names import is_one_name
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.result_keys import TRAINING_ITERATION
from dasktune.trial.rows.row_blocks import IN_MEMORY, BlockStore
from dasktune.trial.rows.trial_history import History, StoredRows
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo

#: Returns the results of a trial that preceded the state, by the trial's id.
StoredHistories = Callable[[str], History]

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
    "best_score",
)


def trial_state(trial: Trial, *, rows: bool = True, since: int | None = None) -> dict[str, Any]:
    """Return a trial as plain values, without its status log, which only error messages use.

    Parameters
    ----------
    trial : Trial
        Later changes of the trial do not change what is returned.
    rows : bool, default=True
        Whether the state has all results. Otherwise it has their number and the last one.
    since : int, optional
        Without `rows`, the state also has the results from this ``training_iteration`` on, as far
        as they are in memory as they came.

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
        **_history_state(trial.history, rows=rows, since=since),
        "checkpoints": [record.to_json() for record in trial.checkpoints],
        "memory": _record_state(trial.memory),
        "origin": _record_state(trial.origin),
        "lent": [record.to_json() for record in trial.lent],
        "held": _record_state(trial.held),
        "ancestry": list(trial.ancestry),
        "errors": [error.to_json() for error in trial.errors],
    }


def trial_from_state(
    state: Mapping[str, Any], histories: StoredHistories | None = None, blocks: BlockStore = IN_MEMORY
) -> Trial:
    """Return the trial that :func:`trial_state` has turned into plain values.

    Parameters
    ----------
    state : mapping
        The return value of :func:`trial_state`, possibly read from a snapshot.
    histories : callable, optional
        ``histories(trial_id)`` returns the trial's results up to the state, if the state has only
        the last one. It is called when they are needed, in any thread.
    blocks : BlockStore, default=IN_MEMORY
        Keeps the older results of the trial.

    Raises
    ------
    StorageError
        If the trial's name is a path that leads out of the experiment's directory, or the number of
        its results is none. Later, when its results are read, if they are others than the state
        says.
    """
    for name in (state["trial_id"], state["dirname"] or "-"):
        if not is_one_name(name):
            raise StorageError(f"trial_id must be one name, got {name!r:.80}")
    checkpoints, losses = state["progress_at_loss"]
    first = state["first_resources"]
    return Trial(
        **{name: state[name] for name in _PLAIN},
        resources=PlacementGroupFactory.from_json(state["resources"]),
        first_resources=None if first is None else PlacementGroupFactory.from_json(first),
        status=TrialStatus(state["status"]),
        progress_at_loss=(checkpoints, losses),
        history=_history(state, histories, blocks),
        checkpoints=[CheckpointRecord.from_json(record) for record in state["checkpoints"]],
        memory=_record(state["memory"]),
        origin=_record(state["origin"]),
        lent=tuple(map(CheckpointRecord.from_json, state["lent"])),
        held=_record(state["held"]),
        ancestry=tuple(state["ancestry"]),
        errors=list(map(ErrorInfo.from_json, state["errors"])),
    )


def _history_state(history: History, *, rows: bool, since: int | None) -> dict[str, Any]:
    if rows or not history:
        return {"history": list(history)}
    *before, last = history.newest
    kept = [] if since is None else [row for row in before if int(row[TRAINING_ITERATION]) >= since]
    return {
        "num_results": len(history),
        "last_result": last,
        **({"results_before_last": kept} if kept else {}),
    }


def _history(state: Mapping[str, Any], histories: StoredHistories | None, blocks: BlockStore) -> History:
    trial_id: str = state["trial_id"]
    if "history" in state:
        return History(state["history"], store=blocks, owner=trial_id)
    number, last = state["num_results"], state["last_result"]
    if type(number) is not int or number < 1:
        raise StorageError(f"num_results must be a whole number, at least 1, got {number!r:.80}")
    before = state.get("results_before_last", [])
    if type(before) is not list or len(before) >= number:
        raise StorageError(f"the state of trial {trial_id} has more results than their number, {number}")
    if histories is None:
        raise StorageError(f"the state of trial {trial_id} has no results, and nothing to read them from")

    def read() -> History:
        found = histories(trial_id)
        if len(found) != number:
            raise StorageError(
                f"trial {trial_id} has {len(found)} results in the journal and had {number} when its "
                "state was saved: the journal is damaged, or another one was put in its place"
            )
        return found

    stored = StoredRows(number - 1 - len(before), read)
    return History([*before, last], store=blocks, stored=stored, owner=trial_id)


def _record_state(record: CheckpointRecord | None) -> dict[str, Any] | None:
    return None if record is None else record.to_json()


def _record(state: Mapping[str, Any] | None) -> CheckpointRecord | None:
    return None if state is None else CheckpointRecord.from_json(state)
