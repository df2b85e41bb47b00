"""Apply the records of a journal to the projection of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import TYPE_CHECKING, Any, Final

from dasktune.dashboard.model.rank_places import RankPlaces
from dasktune.dashboard.model.trial_projection import ExploitMark, TrialProjection
from dasktune.results import journal_trials
from dasktune.trial import actions, events
from dasktune.trial.metrics import flatten, lookup, number
from dasktune.trial.status import PUBLIC, TrialStatus

if TYPE_CHECKING:
    from dasktune.dashboard.model.experiment_projection import ExperimentProjection

Record = Mapping[str, Any]

#: How an attempt ends, by the event that ends it.
_OUTCOMES: Final[dict[type, str]] = {
    events.TrialEnded: "ended",
    events.TrialStopped: "stopped",
    events.TrialPaused: "paused",
    events.TrialFailed: "failed",
    events.TrialLost: "lost",
    events.RestoreFailed: "lost",
}

#: A status for each public one.
_STATUSES: Final = {
    "PENDING": TrialStatus.PENDING,
    "RUNNING": TrialStatus.RUNNING,
    "PAUSED": TrialStatus.PAUSED,
    "TERMINATED": TrialStatus.TERMINATED,
    "ERROR": TrialStatus.ERROR,
}

#: How a visit to a rung ends, by the scheduler's decision.
_RUNG_OUTCOMES: Final[dict[type, str]] = {
    actions.ContinueTraining: "continued",
    actions.SaveTrial: "continued",
    actions.PauseTrial: "waiting",
    actions.ResizeTrial: "continued",
    actions.StopTrial: "stopped",
    actions.FailTrial: "stopped",
    actions.ExploitTrial: "cloned",
}


def apply_record(experiment: ExperimentProjection, record: Record) -> None:
    """Apply a record of the journal to a projection; it costs O(1).

    The trials themselves change as for every other reader. Here is what figures show besides.

    Parameters
    ----------
    experiment : ExperimentProjection
        The projection of all records before this one.
    record : mapping
        The decoded record.

    Raises
    ------
    Exception
        If the record is malformed. The exception may be of nearly any type.
    """
    time, last_time = float(record["time"]), experiment.now
    experiment.advance_time(time)
    event, changed, is_current, decided = journal_trials.apply_record(experiment.folded, record)
    trial = None if changed is None else experiment.projection_of(changed, record, time)
    at_rung = False
    if isinstance(event, events.TrialEvent):
        if trial is not None and is_current:
            at_rung = _apply_trial_event(experiment, trial, event, time)
    elif event is not None:
        _apply_other_event(experiment, event, last_time)
    if trial is not None and getattr(event, "resources", None) is not None:
        trial.request = experiment.intern_resources(trial.trial.resources.bundles)
    for action in decided:
        _apply_action(experiment, action, time, trial if at_rung else None)
    if trial is not None:
        _adopt_status(trial, record)
        experiment.mark_changed(trial)


def _adopt_status(trial: TrialProjection, record: Record) -> None:
    """Set the status that the record states, if this version has skipped what has led to it."""
    stated = record.get("status")
    if stated is not None and stated != PUBLIC[trial.trial.status]:
        trial.trial.status = _STATUSES[stated]


def _apply_other_event(experiment: ExperimentProjection, event: events.OtherEvent, last_time: float) -> None:
    match event:
        case events.Suggested():
            experiment.is_exhausted = event.finished
        case events.HoldRequested() | events.ReleaseRequested():
            experiment.on_hold = isinstance(event, events.HoldRequested)
        case events.SessionBegan():
            experiment.begin_session(last_time, event.time, event.total_samples)
        case events.CapacityChanged():
            experiment.record_capacity({"": event.capacity}, event.time)
        case events.ClusterChanged():
            experiment.record_capacity(event.workers, event.time)
        case events.StopRequested():
            experiment.stop_reason = event.reason
        case _:  # nothing that figures show, or about a trial alone
            pass


def _apply_trial_event(
    experiment: ExperimentProjection, trial: TrialProjection, event: events.TrialEvent, time: float
) -> bool:
    """Apply a worker's event; return whether the trial's scheduler decides about it at a rung."""
    outcome = _OUTCOMES.get(type(event))
    if outcome is not None:
        trial.end_attempt(outcome, time)
    match event:
        case events.ResultReported():
            return _apply_result(experiment, trial, event)
        case events.TrialStarted():
            experiment.begin_attempt(trial, event.worker, time)
            trial.ranks = RankPlaces(event.ranks, trial.max_ranks) if event.ranks else None
        case events.CheckpointCommitted():
            trial.add_checkpoint(event.checkpoint.path)
        case events.TrialPaused():
            trial.pauses += 1
        case events.TrialFailed():
            trial.failed_at = time
            del trial.trial.errors[:-1]
        case _:  # nothing that figures show
            pass
    return False


def _apply_result(
    experiment: ExperimentProjection, trial: TrialProjection, event: events.ResultReported
) -> bool:
    metrics, time = event.metrics, event.time
    if not experiment.metrics:
        experiment.choose_metric(metrics)
    iteration = int(metrics["training_iteration"])
    experiment.count_result(trial, iteration)
    trial.metrics = metrics
    if trial.ranks is not None:
        trial.ranks.count(metrics)
    for goal, name in enumerate(experiment.metrics):
        value = metrics.get(name)
        if type(value) is not float:
            value = _number(metrics, name)
        if trial.record_value(goal, value, iteration, time, experiment.better[goal]):
            experiment.record_best(trial, value, iteration, time, goal)
    if event.checkpoint is not None:
        trial.add_checkpoint(event.checkpoint.path)
    if not event.awaits or not trial.milestones:
        return False
    before = len(trial.rungs)
    trial.visit_rung(lambda name: _number(metrics, name), time)
    return len(trial.rungs) != before


def _number(metrics: Record, name: str) -> float:
    value = number(lookup(metrics, name))
    return nan if value is None else value


def _apply_action(
    experiment: ExperimentProjection,
    action: actions.Action | None,
    time: float,
    judged: TrialProjection | None,
) -> None:
    """Apply an action; `judged` is the trial at a rung that its scheduler decides about, if any."""
    if isinstance(action, actions.EndExperiment):
        experiment.stop_reason = action.reason
    trial = experiment.find(getattr(action, "trial_id", None))
    if trial is None:
        return
    resources = getattr(action, "resources", None)
    if resources is not None:
        trial.request = experiment.intern_resources(resources.bundles)
    milestones = [(one.time_attr, one.value) for one in getattr(action, "milestones", ())]
    if milestones:
        trial.set_milestones(milestones)
        experiment.record_milestones(milestones)
    # A clone is paused, too, before it resumes from its donor's checkpoint.
    if trial is judged and type(action) in _RUNG_OUTCOMES and trial.rungs[-1].outcome != "cloned":
        trial.rungs[-1].outcome = _RUNG_OUTCOMES[type(action)]
        trial.rungs[-1].cutoff = getattr(action, "cutoff", None)
    _change(experiment, trial, action, time)
    experiment.mark_changed(trial)


def _change(
    experiment: ExperimentProjection, trial: TrialProjection, action: actions.Action | None, time: float
) -> None:
    match action:
        case actions.StartTrial() | actions.UnpauseTrial():
            trial.resolve_rung("continued")
        case actions.RestoreTrial():
            trial.resolve_rung("continued")
            trial.restores += 1
            trial.restore_point = action.checkpoint.iteration
        case actions.FinishTrial():
            trial.resolve_rung("stopped")
        case actions.ReopenTrial():
            _reopen(experiment, trial, fresh=action.fresh)
        case actions.ExploitTrial():
            _exploit(experiment, trial, action, time)
        case _:  # nothing that figures show
            pass


def _reopen(experiment: ExperimentProjection, trial: TrialProjection, *, fresh: bool) -> None:
    trial.failed_at = nan
    if fresh:
        experiment.rewind(trial, 0)
        trial.metrics, trial.rungs, trial.parent = {}, [], -1


def _exploit(
    experiment: ExperimentProjection, trial: TrialProjection, action: actions.ExploitTrial, time: float
) -> None:
    reached = resumed = trial.iteration
    trial.config = flatten(action.config)
    trial.resolve_rung("cloned")
    if action.checkpoint is not None:
        resumed = action.checkpoint.iteration
        experiment.rewind(trial, resumed)
        trial.set_iteration(resumed)
    donor = experiment.find(action.donor)
    if donor is None:
        return
    trial.parent = trial.parent if donor is trial else donor.index
    experiment.exploits.append(
        ExploitMark(
            clone=trial.index,
            donor=donor.index,
            time=time,
            reached=reached,
            resumed=resumed,
            reason=action.reason,
        )
    )
