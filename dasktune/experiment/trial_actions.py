"""Makes actions from the policies' decisions, and decisions from recorded actions.

A decision and its action have the same fields, except that only the action names the trial. Both
conversions are here, so that a replay reads back what the live experiment wrote.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dasktune.schedulers import decision as decisions
from dasktune.trial import actions
from dasktune.trial.milestone import Milestone
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo

_CONTINUE: Final = decisions.Continue()


@dataclass(frozen=True, slots=True)
class Fail:
    """End the trial as failed, because the user's stopper raised.

    Parameters
    ----------
    error : ErrorInfo
        The exception that the stopper raised.
    commands : tuple of Command, default=()
        The scheduler's commands for other trials.
    """

    error: ErrorInfo
    commands: tuple[decisions.Command, ...] = ()


#: The decision of all policies together about a trial that has reported a result.
PolicyDecision = decisions.Decision | Fail

#: The action that a scheduler's command leads to.
CommandAction = (
    actions.UnpauseTrial
    | actions.ChangeRequest
    | actions.StopTrial
    | actions.FinishTrial
    | actions.ExploitTrial
)


def start_action(
    trial: Trial, incarnation: int, milestones: tuple[Milestone, ...]
) -> actions.StartTrial | actions.RestoreTrial:
    """Return the action that starts a trial, from its checkpoint if it has one."""
    checkpoint = trial.restore_point
    if checkpoint is None:
        return actions.StartTrial(
            trial_id=trial.trial_id,
            incarnation=incarnation,
            config=trial.config,
            resources=trial.request,
            milestones=milestones,
            next_checkpoint=trial.next_checkpoint,
        )
    return actions.RestoreTrial(
        trial_id=trial.trial_id,
        incarnation=incarnation,
        config=trial.config,
        resources=trial.request,
        checkpoint=checkpoint,
        milestones=milestones,
        next_checkpoint=trial.next_checkpoint,
    )


def continue_action(
    trial: Trial, milestones: tuple[Milestone, ...], decision: decisions.Continue
) -> actions.ContinueTraining | actions.SaveTrial:
    """Return the answer to a trial that waits at a milestone and may continue."""
    key, incarnation, seq = trial.trial_id, trial.incarnation, trial.awaiting_seq
    if decision.save:
        return actions.SaveTrial(
            trial_id=key,
            incarnation=incarnation,
            seq=seq,
            milestones=milestones,
            kind=decision.kind,
            hold=decision.hold,
        )
    return actions.ContinueTraining(
        trial_id=key, incarnation=incarnation, seq=seq, milestones=milestones, hold=decision.hold
    )


def pause_action(trial: Trial, decision: decisions.Pause) -> actions.PauseTrial:
    """Return the action that pauses a running trial."""
    return actions.PauseTrial(
        trial_id=trial.trial_id,
        incarnation=trial.incarnation,
        save=decision.save,
        reason=decision.reason,
        kind=decision.kind,
        hold=decision.hold,
    )


def resize_action(trial: Trial, decision: decisions.Resize) -> actions.ResizeTrial:
    """Return the action that takes a trial off its worker to restart it with other resources."""
    return actions.ResizeTrial(
        trial_id=trial.trial_id,
        incarnation=trial.incarnation,
        resources=decision.resources,
        save=decision.save,
        reason=decision.reason,
        kind=decision.kind,
        hold=decision.hold,
    )


def fail_action(trial: Trial, error: ErrorInfo) -> actions.FailTrial:
    """Return the action that ends a trial in error because the driver could not decide on it."""
    return actions.FailTrial(
        trial_id=trial.trial_id,
        incarnation=trial.incarnation,
        reason=error.message,
        traceback=error.traceback,
    )


def stop_action(
    trial: Trial, decision: decisions.Stop, *, at_once: bool = False
) -> actions.StopTrial | actions.FinishTrial:
    """Return the action that ends a trial: on its worker, or at once if it is on none.

    Parameters
    ----------
    trial : Trial
        The trial.
    decision : Stop
        Why it ends.
    at_once : bool, default=False
        Whether user code on the worker is interrupted at once.
    """
    common: dict[str, Any] = {
        "trial_id": trial.trial_id,
        "incarnation": trial.incarnation,
        "reason": decision.reason,
        "early": decision.early,
        "rung": decision.rung,
        "cutoff": decision.cutoff,
    }
    if trial.status.is_active:
        return actions.StopTrial(**common, at_once=at_once)
    return actions.FinishTrial(**common)


def decision_of(action: actions.TrialAction | actions.DeleteCheckpoint) -> PolicyDecision:
    """Return the decision that led to an action; Continue if the action comes from no decision."""
    match action:
        case actions.StopTrial():
            return decisions.Stop(action.reason, early=action.early, rung=action.rung, cutoff=action.cutoff)
        case actions.PauseTrial():
            return decisions.Pause(action.reason, save=action.save, kind=action.kind, hold=action.hold)
        case actions.ResizeTrial():
            return decisions.Resize(
                action.resources, action.reason, save=action.save, kind=action.kind, hold=action.hold
            )
        case actions.ExploitTrial():
            return decisions.Exploit(
                action.donor, action.config, action.reason, iteration=action.donor_iteration
            )
        case actions.FailTrial():
            return Fail(ErrorInfo(message=action.reason, traceback=action.traceback))
        case actions.SaveTrial():
            return decisions.Continue(save=True, kind=action.kind, hold=action.hold)
        case actions.ContinueTraining(hold=True):
            return decisions.Continue(hold=True)
        case _:
            return _CONTINUE


def ends_anyway(trial: Trial) -> bool:
    """Whether a trial has ended or is being stopped."""
    return trial.status.is_final or trial.status in (TrialStatus.STOPPING, TrialStatus.FAILING)


def next_command_action(
    commands: deque[decisions.Command],
    trials: Mapping[str, Trial],
    to_exploit: Callable[[Trial, decisions.ExploitOther], actions.ExploitTrial | None],
) -> CommandAction | None:
    """Remove commands until one still has an effect, and return its action; None if none has.

    Parameters
    ----------
    commands : deque of Command
        The scheduler's commands, in order. Trials may have changed since they were given, so a
        command may come too late: to unpause a trial that has ended, for example.
    trials : mapping of str to Trial
        All trials.
    to_exploit : callable
        Returns the action that clones a trial; None if the donor has no usable checkpoint.
    """
    while commands:
        command = commands.popleft()
        trial = trials[command.trial_id]
        waits = not (trial.status.is_active or trial.status.is_final)
        match command:
            case decisions.Unpause():
                if trial.status in (TrialStatus.PAUSED, TrialStatus.SHELVED):
                    return actions.UnpauseTrial(trial_id=trial.trial_id, incarnation=trial.incarnation)
            case decisions.ResizeWaiting():
                if waits and trial.resources != command.resources:
                    return actions.ChangeRequest(
                        trial_id=trial.trial_id, incarnation=trial.incarnation, resources=command.resources
                    )
            case decisions.ExploitOther():
                action = to_exploit(trial, command) if waits else None
                if action is not None:
                    return action
            case decisions.StopOther():  # pragma: no branch - these are all
                if not ends_anyway(trial):
                    return stop_action(trial, decisions.Stop(command.reason))
    return None
