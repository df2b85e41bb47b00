"""The base class of callbacks, whose hooks have Ray Tune's names and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktune.callback.trial_view import TrialView, TrialViews
from dasktune.storage.checkpoints.checkpoint import Checkpoint


class Callback:
    """Base class of callbacks. The driver calls the hooks on the events of an experiment.

    Override the hooks that you need. Arguments are passed by name, so end each signature with
    ``**info``. A hook blocks the driver while it runs, so it must be quick. If a hook raises, the
    exception is logged and its callback is disabled; the experiment continues.

    The end of each trial is reported once, by :meth:`on_trial_complete` or :meth:`on_trial_error`.
    Each result is reported once, even if a trial computes it again. When an experiment is restored,
    the driver calls :meth:`setup`, then :meth:`set_state` with the state of the last snapshot. Then
    it calls the hooks for the events after that snapshot, with :attr:`replayed` set: the state does
    not contain these events, but the earlier driver may have reported them already.

    Examples
    --------
    >>> class Count(Callback):
    ...     results = 0
    ...
    ...     def on_trial_result(self, iteration, trials, trial, result, **info):
    ...         self.results += 1
    >>> import dasktune as tune
    >>> run_config = tune.RunConfig(callbacks=[Count()])
    """

    #: Whether the hook is called for an event of an earlier driver, which may have called it, too.
    replayed: bool = False

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Prepare the callback; called before all hooks in each session.

        Parameters
        ----------
        stop : mapping, callable, Stopper or list of Stopper, optional
            The argument of `RunConfig`.
        num_samples : int, optional
            The argument of `TuneConfig`.
        total_num_samples : int, optional
            Total number of trials; None if it is unknown.
        **info : object
            Arguments that later versions may add.
        """

    def on_step_begin(self, iteration: int, trials: TrialViews, **info: Any) -> None:
        """Handle the beginning of a step: the driver then starts trials and handles new events.

        Parameters
        ----------
        iteration : int
            Number of the step, from 1.
        trials : sequence of TrialView
            All trials.
        **info : object
            Arguments that later versions may add.
        """

    def on_step_end(self, iteration: int, trials: TrialViews, **info: Any) -> None:
        """Handle the end of a step; the parameters are those of :meth:`on_step_begin`."""

    def on_trial_start(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Handle the start of a trial on a worker, for the first time or again.

        Parameters
        ----------
        iteration : int
            Number of the driver's step, from 1.
        trials : sequence of TrialView
            All trials.
        trial : TrialView
            The trial in its state after the event.
        **info : object
            Arguments that later versions may add.
        """

    def on_trial_restore(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Handle, after :meth:`on_trial_start`, that a trial resumes from a checkpoint."""

    def on_trial_result(
        self, iteration: int, trials: TrialViews, trial: TrialView, result: dict[str, Any], **info: Any
    ) -> None:
        """Handle a new result of a trial.

        Parameters
        ----------
        iteration : int
            Number of the driver's step, from 1.
        trials : sequence of TrialView
            All trials.
        trial : TrialView
            The trial; its `last_result` is this result already.
        result : dict
            The metrics as a flat dict, with nested names joined by ``/``. It is a copy: later
            callbacks see your changes. The trial's history does not change, nor do the files of
            dasktune's loggers, which read the history. ``result["should_checkpoint"] = True`` lets
            a class trainable save a checkpoint with a later result, most often its next one.
        **info : object
            Arguments that later versions may add.
        """

    def on_checkpoint(
        self, iteration: int, trials: TrialViews, trial: TrialView, checkpoint: Checkpoint, **info: Any
    ) -> None:
        """Handle a new checkpoint in the storage.

        Parameters
        ----------
        iteration : int
            Number of the driver's step, from 1.
        trials : sequence of TrialView
            All trials.
        trial : TrialView
            The trial that saved it.
        checkpoint : Checkpoint
            The checkpoint; its files have not been read. ``num_to_keep`` may delete it later.
        **info : object
            Arguments that later versions may add.
        """

    def on_trial_save(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Handle, after :meth:`on_checkpoint`, that a trial has saved a checkpoint."""

    def on_trial_recover(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Handle that a trial has failed or lost its worker, and will be retried."""

    def on_trial_complete(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Handle the end of a trial that has not failed."""

    def on_trial_error(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Handle the failure of a trial that will not be retried."""

    def on_experiment_end(self, trials: TrialViews, **info: Any) -> None:
        """Handle the end or the interruption of the experiment.

        Parameters
        ----------
        trials : sequence of TrialView
            All trials.
        **info : object
            Arguments that later versions may add.
        """

    def get_state(self) -> dict[str, Any] | None:
        """Return the state that a restored callback needs; None if it needs none.

        The driver calls it for each snapshot of the experiment, at most every ten seconds. The
        state must be picklable.
        """
        return None

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`get_state` returned.

        Parameters
        ----------
        state : mapping
            The result of :meth:`get_state` in the last snapshot.
        """
