"""Apply the records of a journal to the projection of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import TYPE_CHECKING, Any, Final

from dasktune.dashboard.model.rank_places import RankPlaces
from dasktune.dashboard.model.trial_projection import ExploitMark, TrialProjection
from dasktune.trial import actions, events
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.journal_codec import decode_actions, decode_event, event_type
from dasktune.trial.metrics import flatten, lookup, number

if TYPE_CHECKING:
    from dasktune.dashboard.model.experiment_projection import ExperimentProjection

Record = Mapping[str, Any]

#: Maximum number of characters kept of a traceback (its end) and of other texts (their beginning).
_MOST_TRACEBACK: Final = 10_000
_MOST_TEXT: Final = 500

#: How an attempt ends, by the event that ends it.
_OUTCOMES: Final[dict[type, str]] = {
    events.TrialEnded: "ended",
    events.TrialStopped: "stopped",
    events.TrialPaused: "paused",
    events.TrialFailed: "failed",
    events.TrialLost: "lost",
    events.RestoreFailed: "lost",
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


def apply_record(experiment: ExperimentProjection, record: Record) -> None:  # noqa: C901, PLR0912, PLR0915 - one case for each event
    """Apply a record of the journal to a projection; it costs O(1).

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
    time = float(record["time"])
    last_time = experiment.now
    experiment.advance_time(time)
    trial = experiment.find(record.get("trial_id"))
    at_rung = False
    # Nearly all records are results: they are read without making an event object of each.
    if event_type(record) is events.ResultReported:
        if trial is None:
            return
        at_rung = _apply_result(experiment, trial, record, time)
    else:
        event = decode_event(record)
        match event:
            case None:  # an event of a newer version
                pass
            case events.Suggested():
                experiment.is_exhausted = event.finished
                trial = experiment.add_trial(event.trial_id, record["config"], time, event.dirname)
            case events.TrialAddRequested():
                if experiment.find(event.trial_id) is None:
                    experiment.count_added()
                trial = experiment.add_trial(event.trial_id, event.config, time)
            case events.HoldRequested() | events.ReleaseRequested():
                experiment.on_hold = isinstance(event, events.HoldRequested)
            case events.SessionBegan():
                experiment.begin_session(last_time, time, event.total_samples)
            case events.CapacityChanged():
                experiment.record_capacity({"": event.capacity}, time)
            case events.ClusterChanged():
                experiment.record_capacity(event.workers, time)
            case events.StopRequested():
                experiment.stop_reason = _short(event.reason)
            case _ if trial is not None:
                _apply_event(experiment, trial, event, time)
            case _:
                pass
        resources = getattr(event, "resources", None)
        if trial is not None and resources is not None:
            _set_request(experiment, trial, resources)
    if "actions" in record:
        for action in decode_actions(record):
            _apply_action(experiment, action, time, trial if at_rung else None)
    if trial is not None:
        experiment.set_status(trial, record.get("status", trial.status))
        experiment.mark_changed(trial)


def _set_request(experiment: ExperimentProjection, trial: TrialProjection, resources: Any) -> None:
    """Set what a trial requests from a `PlacementGroupFactory`."""
    trial.request = experiment.intern_resources(resources.bundles)
    # A request that may shrink says how many bundles are all of them.
    trial.max_ranks = getattr(resources, "max_bundles", 0)


def _apply_result(
    experiment: ExperimentProjection, trial: TrialProjection, record: Record, time: float
) -> bool:
    """Apply a result; return whether the trial's scheduler decides about it."""
    metrics = record["metrics"]
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
    if record.get("checkpoint") is not None:
        trial.add_checkpoint(CheckpointRecord.from_json(record["checkpoint"]))
    if not record.get("awaits") or not trial.milestones:
        return False
    before = len(trial.rungs)
    trial.visit_rung(lambda name: _number(metrics, name), time)
    return len(trial.rungs) != before


def _number(metrics: Record, name: str) -> float:
    value = number(lookup(metrics, name))
    return nan if value is None else value


def _apply_event(
    experiment: ExperimentProjection, trial: TrialProjection, event: events.ExperimentEvent, time: float
) -> None:
    outcome = _OUTCOMES.get(type(event))
    if outcome is not None:
        trial.end_attempt(outcome, time)
    match event:
        case events.TrialStarted():
            experiment.begin_attempt(trial, event.worker, time)
            trial.ranks = RankPlaces(event.ranks, trial.max_ranks) if event.ranks else None
        case events.CheckpointCommitted():
            trial.add_checkpoint(event.checkpoint)
        case events.CheckpointLost():
            trial.stored_checkpoints.pop(event.path, None)
        case events.TrialPaused():
            trial.pauses += 1
        case events.TrialLost():
            trial.losses += 1
            trial.reason = _short(event.reason)
        case events.RestoreFailed():
            trial.stored_checkpoints.pop(event.path, None)
            trial.reason = _short(event.reason)
        case events.TrialFailed():
            trial.failures += 1
            trial.failed_at = time
            trial.error = _short(event.error.message)
            trial.traceback = event.error.traceback[-_MOST_TRACEBACK:]
        case _:  # nothing but the status, which the record states
            pass


def _apply_action(
    experiment: ExperimentProjection,
    action: actions.Action | None,
    time: float,
    judged: TrialProjection | None,
) -> None:
    """Apply an action; `judged` is the trial at a rung that its scheduler decides about, if any."""
    if action is None or isinstance(action, actions.SetShare):  # None: an action of a newer version
        return
    if isinstance(action, actions.EndExperiment):
        experiment.stop_reason = _short(action.reason)
        return
    trial = experiment.find(action.trial_id)
    if trial is None:
        return
    resources = getattr(action, "resources", None)
    if resources is not None:
        _set_request(experiment, trial, resources)
    if isinstance(
        action, actions.StartTrial | actions.RestoreTrial | actions.ContinueTraining | actions.SaveTrial
    ):
        milestones = [(one.time_attr, one.value) for one in action.milestones]
        if milestones:
            trial.set_milestones(milestones)
            experiment.record_milestones(milestones)
    # A clone is paused, too, before it resumes from its donor's checkpoint.
    if trial is judged and type(action) in _RUNG_OUTCOMES and trial.rungs[-1].outcome != "cloned":
        trial.rungs[-1].outcome = _RUNG_OUTCOMES[type(action)]
        trial.rungs[-1].cutoff = getattr(action, "cutoff", None)
    _change(experiment, trial, action, time)
    experiment.mark_changed(trial)


def _change(  # noqa: C901, PLR0912, PLR0915 - one case for each action
    experiment: ExperimentProjection, trial: TrialProjection, action: actions.Action, time: float
) -> None:
    match action:
        case actions.StartTrial():
            _start(trial)
        case actions.RestoreTrial():
            _start(trial)
            trial.restores += 1
            trial.restore_point = action.checkpoint.iteration
        case actions.UnpauseTrial():
            _start(trial)
            if not trial.paused_by_user:
                experiment.set_status(trial, "PENDING")
        case actions.RecallTrial() | actions.SuspendTrial():
            trial.paused_by_user, trial.reason = True, _short(action.reason)
        case actions.ResumeTrial():
            trial.paused_by_user, trial.reason = False, ""
        case actions.PauseTrial() | actions.ResizeTrial() | actions.YieldTrial() | actions.FailTrial():
            trial.reason = _short(action.reason)
        case actions.StopTrial():
            _stop(experiment, trial, action)
        case actions.FinishTrial():
            _stop(experiment, trial, action)
            trial.resolve_rung("stopped")
            experiment.set_status(trial, "TERMINATED")
        case actions.GiveUp():
            trial.reason = _short(action.reason)
            experiment.set_status(trial, "ERROR")
        case actions.ReopenTrial():
            _reopen(experiment, trial, fresh=action.fresh)
        case actions.DeleteCheckpoint():
            trial.stored_checkpoints.pop(action.checkpoint.path, None)
        case actions.ExploitTrial():
            _exploit(experiment, trial, action, time)
        case _:  # nothing that the projection shows
            pass


def _start(trial: TrialProjection) -> None:
    trial.resolve_rung("continued")
    trial.reason = ""


def _stop(
    experiment: ExperimentProjection, trial: TrialProjection, action: actions.StopTrial | actions.FinishTrial
) -> None:
    trial.reason = _short(action.reason)
    if action.early:
        experiment.mark_stopped_early(trial)


def _reopen(experiment: ExperimentProjection, trial: TrialProjection, *, fresh: bool) -> None:
    experiment.clear_stopped_early(trial)
    trial.reason = trial.error = trial.traceback = ""
    trial.failed_at = nan
    trial.paused_by_user = False
    if fresh:
        experiment.rewind(trial, 0)
        trial.metrics, trial.rungs, trial.parent = {}, [], -1
    experiment.set_status(trial, "PENDING")


def _exploit(
    experiment: ExperimentProjection, trial: TrialProjection, action: actions.ExploitTrial, time: float
) -> None:
    reached = resumed = trial.iteration
    trial.config = flatten(action.config)
    trial.resolve_rung("cloned")
    trial.reason = _short(action.reason)
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
            reason=trial.reason,
        )
    )


def _short(text: object) -> str:
    return str(text)[:_MOST_TEXT]
