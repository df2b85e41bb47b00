"""Views of an experiment and its trials, for answers in JSON.

The runner's thread makes a view between two events. The server's thread encodes it as JSON later,
while the runner continues. That is safe because a view holds only values that are replaced and
never changed in place: texts, numbers, and the dicts of configurations and results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from math import isfinite
from typing import Any

from dasktune.experiment import ExperimentMachine
from dasktune.storage.journal.json_lines import plain
from dasktune.trial.metrics import score
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

#: A function of the experiment and the time that returns a view; called in the runner's thread.
View = Callable[[ExperimentMachine, float], Any]


def experiment_view() -> View:
    """Return a view of the experiment as a whole."""
    return _experiment


def trials_view(status: str | None, limit: int, offset: int) -> View:
    """Return a view that lists trials in the order in which they were added.

    Parameters
    ----------
    status : str or None
        List only trials with this public status.
    limit : int
        Maximum number of trials to list.
    offset : int
        The number of trials to skip.
    """

    def view(experiment: ExperimentMachine, now: float) -> dict[str, Any]:
        trials = iter(experiment.trials.values())
        total = len(experiment.trials)
        if status is not None:
            total = experiment.trial_index.public_counts()[PublicStatus(status)]
            trials = (one for one in experiment.trials.values() if one.public_status == status)
        found = [_facts(one) for one in islice(trials, offset, offset + limit)]
        return {"total": total, "offset": offset, "trials": found}

    return view


def trial_view(trial_id: str) -> View:
    """Return a view of a trial; None if there is no such trial.

    Parameters
    ----------
    trial_id : str
        The trial.
    """

    def view(experiment: ExperimentMachine, now: float) -> dict[str, Any] | None:
        trial = experiment.trials.get(trial_id)
        return None if trial is None else _facts(trial)

    return view


def as_json(value: Any) -> Any:
    """Return a value that any JSON parser accepts: NaN and infinity become None."""
    return _finite(plain(value)) if isinstance(value, Mapping) else value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$float"}:
            return None
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _facts(trial: Trial) -> dict[str, Any]:
    """Return the fields of a trial; see the top of this module for why they need no copy."""
    return {
        "trial_id": trial.trial_id,
        "status": trial.public_status.value,
        "paused_by_user": trial.status.is_paused_by_user,
        "config": trial.config,
        "tag": trial.tag,
        "added": trial.added,
        "training_iteration": trial.last_iteration,
        "last_result": trial.last_result,
        "worker": trial.worker,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        "failures": trial.failures,
        "losses": trial.losses,
        "error": None if trial.error is None else trial.error.message,
        "reason": trial.reason or trial.pause_reason,
    }


def _experiment(experiment: ExperimentMachine, now: float) -> dict[str, Any]:
    counts = experiment.trial_index.public_counts()
    state = "held" if experiment.state.on_hold else "running"
    best = _best(experiment)
    return {
        "state": "stopping" if experiment.state.stop_reason else state,
        "reason": experiment.state.stop_reason,
        "time": now,
        "counts": {status.value: count for status, count in counts.items()},
        "paused_by_user": len(experiment.trial_index.paused_by_user),
        "total": experiment.total_trials,
        "metric": experiment.settings.metric,
        "mode": experiment.settings.mode,
        "best": None if best is None else _facts(best),
    }


def _best(experiment: ExperimentMachine) -> Trial | None:
    """Return the trial with the best last result; None without an objective or a result."""
    metric, mode = experiment.settings.metric, experiment.settings.mode
    if metric is None or mode is None:
        return None
    scored = ((score(one.last_result, metric, mode), one) for one in experiment.trials.values())
    known = [(points, one) for points, one in scored if points is not None]
    return max(known, key=lambda pair: pair[0], default=(0.0, None))[1]
