"""The base class of loggers: a callback with fewer hooks, by Ray Tune's names."""

from __future__ import annotations

from typing import Any

from dasktune.callback import Callback, TrialView, TrialViews

__all__ = ["LoggerCallback"]


class LoggerCallback(Callback):
    """Hears what a logger needs; override the ``log_trial_...`` methods.

    Examples
    --------
    >>> class Shout(LoggerCallback):
    ...     def log_trial_result(self, iteration, trial, result):
    ...         print(f"{trial}: {result['loss']}!")
    """

    def log_trial_start(self, trial: TrialView) -> None:
        """Log that a trial is on a worker, for the first time or again.

        Parameters
        ----------
        trial : TrialView
            The trial.
        """

    def log_trial_restore(self, trial: TrialView) -> None:
        """Log, after its start, that a trial goes on from a checkpoint.

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
            Number of the driver's turn.
        trial : TrialView
            The trial.
        result : dict
            One level of metrics.
        """

    def log_trial_end(self, trial: TrialView, failed: bool = False) -> None:
        """Log the end of a trial.

        Parameters
        ----------
        trial : TrialView
            The trial.
        failed : bool, default=False
            Whether it has failed for good.
        """

    def on_trial_start(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Log it."""
        self.log_trial_start(trial)

    def on_trial_restore(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Log it."""
        self.log_trial_restore(trial)

    def on_trial_save(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Log it."""
        self.log_trial_save(trial)

    def on_trial_result(
        self,
        iteration: int,
        trials: TrialViews,
        trial: TrialView,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """Log it."""
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Log it."""
        self.log_trial_end(trial, failed=False)

    def on_trial_error(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Log it."""
        self.log_trial_end(trial, failed=True)
