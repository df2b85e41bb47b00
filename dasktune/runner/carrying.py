"""Actions to the executor and the store; those that change nothing there have been done already."""

from __future__ import annotations

from dasktune.runner.ports import ExperimentStore, TrialExecutor
from dasktune.trial.actions import (
    Action,
    AdmitOthers,
    ChangeRequest,
    ContinueTraining,
    DeleteCheckpoint,
    EndExperiment,
    ExploitTrial,
    FailTrial,
    FinishTrial,
    GiveUp,
    PauseTrial,
    RecallTrial,
    ReopenTrial,
    ResizeTrial,
    RestoreTrial,
    ResumeTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
    SuspendTrial,
    UnpauseTrial,
)
from dasktune.trial.checkpoint import CheckpointKind

__all__ = ["carry_out"]


def carry_out(action: Action, executor: TrialExecutor, store: ExperimentStore) -> None:
    """Pass an action on to whoever does it; returns at once.

    Parameters
    ----------
    action : Action
        What is to be done.
    executor : TrialExecutor
        Has the trials.
    store : ExperimentStore
        Has the checkpoints that are not in memory.
    """
    match action:
        case StartTrial():
            executor.start_trial(action)
        case RestoreTrial():
            executor.restore(action)
        case ContinueTraining():
            executor.continue_training(action)
        case SaveTrial():
            executor.save(action)
        case AdmitOthers():
            executor.admit_others(action)
        case PauseTrial() | ResizeTrial() | RecallTrial():
            executor.pause_trial(action)
        case StopTrial() | FailTrial():
            executor.stop_trial(action)
        case DeleteCheckpoint() if action.checkpoint.kind is CheckpointKind.MEMORY:
            executor.drop_checkpoint(action.checkpoint)
        case DeleteCheckpoint():
            store.delete_checkpoint(action.checkpoint)
        case (  # pragma: no branch - these are all
            UnpauseTrial()
            | SuspendTrial()
            | ResumeTrial()
            | ChangeRequest()
            | ExploitTrial()
            | FinishTrial()
            | GiveUp()
            | ReopenTrial()
            | EndExperiment()
        ):
            pass  # What the experiment has changed itself.
