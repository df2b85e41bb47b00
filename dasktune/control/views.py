"""An experiment and its trials as JSON tells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from math import isfinite
from typing import Any

from dasktune.experiment import Experiment
from dasktune.storage.json_lines import plain
from dasktune.trial.metrics import score
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

__all__ = ["experiment_view", "trial_view", "trials_view"]

#: Looks at an experiment between two of its events, and gives what is to be made JSON of later.
Look = Callable[[Experiment, float], Any]


def experiment_view() -> Look:
    """Return what tells of the experiment as a whole."""
    return _experiment


def trials_view(status: str | None, limit: int, offset: int) -> Look:
    """Return what lists trials in the order in which they were added.

    Parameters
    ----------
    status : str or None
        Only those with this public status.
    limit : int
        How many at most.
    offset : int
        How many are left out before the first.
    """

    def look(experiment: Experiment, now: float) -> dict[str, Any]:
        trials = iter(experiment.trials.values())
        total = len(experiment.trials)
        if status is not None:
            total = experiment.roster.public_counts()[PublicStatus(status)]
            trials = (one for one in experiment.trials.values() if one.public_status == status)
        found = [_facts(one) for one in islice(trials, offset, offset + limit)]
        return {"total": total, "offset": offset, "trials": found}

    return look


def trial_view(trial_id: str) -> Look:
    """Return what tells of a trial; None if there is none of this name.

    Parameters
    ----------
    trial_id : str
        Which.
    """

    def look(experiment: Experiment, now: float) -> dict[str, Any] | None:
        trial = experiment.trials.get(trial_id)
        return None if trial is None else _facts(trial)

    return look


def as_json(value: Any) -> Any:
    """Return what any JSON parser takes: what is no finite number becomes None."""
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
    """Gather what nobody changes any more; it is made JSON of in another thread."""
    return {
        "trial_id": trial.trial_id,
        "status": trial.public_status.value,
        "paused_by_user": trial.status.is_resting,
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


def _experiment(experiment: Experiment, now: float) -> dict[str, Any]:
    counts = experiment.roster.public_counts()
    state = "held" if experiment.on_hold else "running"
    best = _best(experiment)
    return {
        "state": "stopping" if experiment.stop_reason else state,
        "reason": experiment.stop_reason,
        "time": now,
        "counts": {status.value: count for status, count in counts.items()},
        "paused_by_user": len(experiment.roster.resting),
        "total": experiment.search.total_samples,
        "metric": experiment.settings.metric,
        "mode": experiment.settings.mode,
        "best": None if best is None else _facts(best),
    }


def _best(experiment: Experiment) -> Trial | None:
    """Return the trial whose last result is best; None if there is no goal or no result."""
    metric, mode = experiment.settings.metric, experiment.settings.mode
    if metric is None or mode is None:
        return None
    scored = ((score(one.last_result, metric, mode), one) for one in experiment.trials.values())
    known = [(points, one) for points, one in scored if points is not None]
    return max(known, key=lambda pair: pair[0], default=(0.0, None))[1]
