"""The base class of callbacks: Ray Tune's hooks, by its names and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktune.callback.trial_view import TrialView, TrialViews
from dasktune.storage.checkpoint import Checkpoint

__all__ = ["Callback"]


class Callback:
    """Hears of what happens in an experiment, in the process that drives it.

    Override what you need; arguments come by name, so end each signature with ``**info``. A hook
    holds up the driver while it runs, so let it be quick. One that raises is logged, and its
    callback hears nothing more; the experiment goes on.

    Every trial that ends is told of once, by :meth:`on_trial_complete` or :meth:`on_trial_error`;
    a result once, however often a trial has to compute it again. When an experiment is restored,
    :meth:`setup` is called, then :meth:`set_state` with what :meth:`get_state` gave for the last
    snapshot, and then come the hooks for what happened between that and the death of the driver,
    with :attr:`replayed` set: the state knows nothing of it yet, but the outside world may.

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

    #: Whether what it is told happened under an earlier driver, which may have told it already.
    replayed: bool = False

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Get ready, before anything else in each session.

        Parameters
        ----------
        stop : mapping, callable, Stopper or list of Stopper, optional
            As it was given to `RunConfig`.
        num_samples : int, optional
            As it was given to `TuneConfig`.
        total_num_samples : int, optional
            How many trials there will be; None if nobody knows.
        **info : object
            What later versions may add.
        """

    def on_step_begin(self, iteration: int, trials: TrialViews, **info: Any) -> None:
        """Hear that the driver begins a turn: it starts trials, then takes in what has happened.

        Parameters
        ----------
        iteration : int
            Number of the turn, from 1.
        trials : sequence of TrialView
            All trials.
        **info : object
            What later versions may add.
        """

    def on_step_end(self, iteration: int, trials: TrialViews, **info: Any) -> None:
        """Hear that a turn is over; the parameters are those of :meth:`on_step_begin`."""

    def on_trial_start(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Hear that a trial is on a worker, for the first time or again.

        Parameters
        ----------
        iteration : int
            Number of the driver's turn, from 1.
        trials : sequence of TrialView
            All trials.
        trial : TrialView
            The one that this is about, after it happened.
        **info : object
            What later versions may add.
        """

    def on_trial_restore(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Hear, after :meth:`on_trial_start`, that a trial goes on from a checkpoint."""

    def on_trial_result(
        self,
        iteration: int,
        trials: TrialViews,
        trial: TrialView,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """Hear of a result.

        Parameters
        ----------
        iteration : int
            Number of the driver's turn, from 1.
        trials : sequence of TrialView
            All trials.
        trial : TrialView
            Whose it is; its `last_result` already.
        result : dict
            One level of metrics, nested names joined by ``/``. It is a copy: what is changed in it
            reaches the callbacks after this one, and neither the trial's record nor the loggers of
            dasktune, which are read off that.
        **info : object
            What later versions may add.
        """

    def on_checkpoint(
        self,
        iteration: int,
        trials: TrialViews,
        trial: TrialView,
        checkpoint: Checkpoint,
        **info: Any,
    ) -> None:
        """Hear that a checkpoint is in the storage.

        Parameters
        ----------
        iteration : int
            Number of the driver's turn, from 1.
        trials : sequence of TrialView
            All trials.
        trial : TrialView
            Whose it is.
        checkpoint : Checkpoint
            Where it lies; nothing of it has been read. It may be deleted by ``num_to_keep``.
        **info : object
            What later versions may add.
        """

    def on_trial_save(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Hear, after :meth:`on_checkpoint`, that a trial has saved one."""

    def on_trial_recover(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Hear that a trial has failed or lost its worker, and will be tried again."""

    def on_trial_complete(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Hear that a trial has ended, or was ended, and did not fail."""

    def on_trial_error(
        self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any
    ) -> None:
        """Hear that a trial has failed for good."""

    def on_experiment_end(self, trials: TrialViews, **info: Any) -> None:
        """Hear that the experiment has ended or was interrupted.

        Parameters
        ----------
        trials : sequence of TrialView
            All trials.
        **info : object
            What later versions may add.
        """

    def get_state(self) -> dict[str, Any] | None:
        """Return what it must know to go on in another process; None if that is nothing.

        It is called for every snapshot of the experiment, every ten seconds or more, and may hold
        whatever can be pickled.
        """
        return None

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`get_state` gave.

        Parameters
        ----------
        state : mapping
            The state.
        """
