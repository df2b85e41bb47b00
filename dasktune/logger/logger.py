"""The base class of loggers: a callback with Ray Tune's ``log_trial_...`` hooks."""

from __future__ import annotations

from typing import Any

from dasktune.callback import Callback, TrialView, TrialViews


class LoggerCallback(Callback):
    """Base class of loggers; override the ``log_trial_...`` methods.

    Examples
    --------
    >>> class Shout(LoggerCallback):
    ...     def log_trial_result(self, iteration, trial, result):
    ...         print(f"{trial}: {result['loss']}!")
    """

    def log_trial_start(self, trial: TrialView) -> None:
        """Log that a trial has started on a worker, for the first time or again.

        Parameters
        ----------
        trial : TrialView
            The trial.
        """

    def log_trial_restore(self, trial: TrialView) -> None:
        """Log, after the start, that a trial resumes from a checkpoint.

        Parameters
        ----------
        trial : TrialView
            The trial.
        """

    def log_trial_save(self, trial: TrialView) -> None:
        """Log that a trial has saved a checkpoint.

        Parameters
        ----------
        trial : TrialView
            The trial.
        """

    def log_trial_result(self, iteration: int, trial: TrialView, result: dict[str, Any]) -> None:
        """Log a result.

        Parameters
        ----------
        iteration : int
            Number of the driver's step.
        trial : TrialView
            The trial.
        result : dict
            The metrics as a flat dict, with nested names joined by ``/``.
        """

    def log_trial_end(self, trial: TrialView, failed: bool = False) -> None:
        """Log the end of a trial.

        Parameters
        ----------
        trial : TrialView
            The trial.
        failed : bool, default=False
            Whether it has failed and will not be retried.
        """

    def on_trial_start(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Call :meth:`log_trial_start`."""
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Call :meth:`log_trial_restore`."""
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Call :meth:`log_trial_save`."""
        self.log_trial_save(trial)

    def on_trial_result(
        self, iteration: int, trials: TrialViews, trial: TrialView, result: dict[str, Any], **info: Any
    ) -> None:
        """Call :meth:`log_trial_result`."""
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Call :meth:`log_trial_end`."""
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Call :meth:`log_trial_end` with ``failed=True``."""
        self.log_trial_end(trial, failed=True)
