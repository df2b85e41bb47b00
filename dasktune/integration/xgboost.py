"""XGBoost: a callback for ``xgboost.train`` that reports results and saves models."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from dasktune.integration.reporting import BoostingReporter, MetricNames, check_installed
from dasktune.storage.checkpoints.checkpoint import Checkpoint

try:
    from xgboost import Booster
    from xgboost.callback import TrainingCallback
except ImportError as error:
    # XGBoost requires its own base class. Without XGBoost this module can still be imported.
    _PROBLEM, TrainingCallback = str(error), object
else:
    _PROBLEM = ""

__all__ = ["TuneReportCheckpointCallback"]

_FILENAME: Final = "model.ubj"


class TuneReportCheckpointCallback(TrainingCallback):  # type: ignore[misc]
    """Reports the metrics of each boosting round, and saves the model every `frequency` rounds.

    It works with ``xgboost.train``, with the ``callbacks`` of XGBoost's estimators, and with
    ``xgboost.cv``, where it reports means and deviations and saves nothing. A metric's name is the
    name in ``evals``, then XGBoost's name: ``"eval-logloss"``.

    A trial that is stopped, paused or cloned during the training resumes from the last checkpoint.
    Set `frequency` if a scheduler does this. Needs ``pip install xgboost``.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        The metrics to report, or ``{reported name: XGBoost's name}``, such as
        ``{"loss": "eval-logloss"}``. All by default.
    filename : str, default="model.ubj"
        Name of the model's file in a checkpoint. Its suffix selects XGBoost's file format.
    frequency : int, default=0
        Number of boosting rounds between two checkpoints; with 0, none is saved before the end.
    checkpoint_at_end : bool, default=True
        Whether the last result has a checkpoint.
    results_postprocessing_fn : callable, optional
        Converts the metrics before they are reported. With ``xgboost.cv`` it gets pairs of a mean
        and a deviation, as in Ray Tune: ``{"test-logloss": (0.5, 0.01)}``.

    Raises
    ------
    ConfigError
        If XGBoost is not installed, or an argument is invalid. In the trial, if XGBoost does not
        have a metric of this name.

    Examples
    --------
    >>> def train(config):
    ...     import xgboost
    ...     checkpoint = tune.get_checkpoint()
    ...     model = TuneReportCheckpointCallback.get_model(checkpoint) if checkpoint else None
    ...     done = model.num_boosted_rounds() if model else 0
    ...     callback = TuneReportCheckpointCallback({"loss": "eval-logloss"}, frequency=5)
    ...     xgboost.train(
    ...         config, d_train, 100 - done, evals=[(d_eval, "eval")], xgb_model=model,
    ...         callbacks=[callback],
    ...     )
    """

    #: XGBoost's own history, which grows: {data: {metric: [a value for each round]}}.
    _history: Mapping[str, Any]

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = _FILENAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        check_installed("XGBoost", "xgboost", _PROBLEM)
        super().__init__()
        self._reporter = BoostingReporter(
            MetricNames(metrics, "XGBoost"), filename, frequency, checkpoint_at_end, results_postprocessing_fn
        )
        self._wants_pairs, self._wants_all = results_postprocessing_fn is not None, metrics is None
        self._start()

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = _FILENAME) -> Any:
        """Return the model of a checkpoint that this callback has saved.

        Parameters
        ----------
        checkpoint : Checkpoint
            The checkpoint.
        filename : str, default="model.ubj"
            The callback's argument `filename`.

        Returns
        -------
        xgboost.Booster
            The model.
        """
        check_installed("XGBoost", "xgboost", _PROBLEM)
        with checkpoint.as_directory() as directory:
            return Booster(model_file=os.path.join(directory, filename))

    def before_training(self, model: Any) -> Any:
        """Reset the state: one callback may serve several trainings."""
        self._start()
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:
        """Report the previous round: only now is it certain that it was not the last one."""
        self._history = evals_log
        if self._has_unreported_round():
            self._report(model, last=False)
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:
        """Note that a round has ended."""
        self._is_done = True
        return False

    def after_training(self, model: Any) -> Any:
        """Report the last round, with the model."""
        if self._has_unreported_round():
            self._report(model, last=True)
        return model

    def _start(self) -> None:
        self._history = {}
        self._is_done = False
        self._rows_reported = 0

    def _has_unreported_round(self) -> bool:
        # If an earlier callback ends the training, XGBoost skips `after_iteration` of this one.
        return self._is_done or self._rows() > self._rows_reported

    def _rows(self) -> int:
        lengths = (len(row) for metrics in self._history.values() for row in metrics.values())
        return max(lengths, default=0)

    def _report(self, model: Any, *, last: bool) -> None:
        self._is_done, self._rows_reported = False, self._rows()
        # In a cross-validation `model` holds the folds, which cannot be saved.
        is_model = isinstance(model, Booster)
        save = partial(_save, model, self._reporter.filename) if is_model else None
        rounds = model.num_boosted_rounds()
        values = self._pairs() if self._wants_pairs and not is_model else _last_round(self._history)
        self._reporter.on_round_end(values, save, rounds=rounds, last=last)

    def _pairs(self) -> dict[str, Any]:
        """Return the pairs of a cross-validation for the user's function.

        A selection of metrics may also name means and deviations.
        """
        pairs = {
            f"{data}-{metric}": values[-1]
            for data, metrics in self._history.items()
            for metric, values in metrics.items()
        }
        return pairs if self._wants_all else {**_last_round(self._history), **pairs}


def _save(model: Any, filename: str, directory: str) -> None:
    model.save_model(os.path.join(directory, filename))


def _last_round(history: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of the last round, with the names that ``xgboost.cv`` uses."""
    newest = {}
    for data, metrics in history.items():
        for metric, values in metrics.items():
            if isinstance(values[-1], tuple):
                mean, deviation = values[-1]
                newest[f"{data}-{metric}-mean"] = mean
                newest[f"{data}-{metric}-std"] = deviation
            else:
                newest[f"{data}-{metric}"] = values[-1]
    return newest
