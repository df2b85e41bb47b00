"""What a trial forgets when the user lets it go on after its end, or begin anew."""

from __future__ import annotations

from dasktune.trial.trial import Trial, new_story

__all__ = ["wipe"]


def wipe(trial: Trial, *, fresh: bool) -> None:
    """Forget how a trial ended.

    Parameters
    ----------
    trial : Trial
        It is to wait for a place again.
    fresh : bool
        Forget what came of it so far, too, but for its checkpoints.
    """
    trial.reason, trial.pause_reason, trial.ended_at, trial.stopped_early = "", "", None, False
    trial.failures = trial.worker_losses = trial.shared_losses = 0
    trial.story = new_story()
    if fresh:
        trial.resources, trial.first_resources = trial.base_resources, None
        trial.history, trial.rows, trial.errors = [], {}, []
        trial.started_at, trial.ancestry = None, ()
