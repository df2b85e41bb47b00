"""XGBoost: results and models from inside ``xgboost.train``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from dasktune.integration.reporting import BoostingReporter, MetricNames, check_there
from dasktune.storage.checkpoint import Checkpoint

try:
    from xgboost import Booster
    from xgboost.callback import TrainingCallback
except ImportError as error:
    # What XGBoost calls must derive from its class; without it there is still something to read.
    _PROBLEM, TrainingCallback = str(error), object
else:
    _PROBLEM = ""

__all__ = ["TuneReportCheckpointCallback"]

_FILENAME: Final = "model.ubj"


class TuneReportCheckpointCallback(TrainingCallback):  # type: ignore[misc]
    """Reports the metrics of each boosting round, and saves the model now and then.

    For ``xgboost.train``, ``xgboost.cv`` (which reports means and deviations, and saves nothing)
    and the ``callbacks`` of XGBoost's estimators. Metrics are named as in ``"eval-logloss"``: the
    name in ``evals``, then XGBoost's.

    A trial that is stopped, paused or cloned on the way goes on from a checkpoint of `frequency`:
    set it where a scheduler may do so. Needs ``pip install 'dasktune[xgboost]'``.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        What to report, or what to report it as: ``{"loss": "eval-logloss"}``. All by default.
    filename : str, default="model.ubj"
        The model's file in a checkpoint. Its ending says how it is written.
    frequency : int, default=0
        Boosting rounds from one checkpoint to the next; 0 saves none on the way.
    checkpoint_at_end : bool, default=True
        Whether the last result brings a checkpoint.
    results_postprocessing_fn : callable, optional
        Turns the metrics into those that are reported.

    Raises
    ------
    ConfigError
        If XGBoost is not installed, or an argument breaks its rule; in the trial, if XGBoost does
        not know a metric.

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

    #: XGBoost's own record, which grows: {data: {metric: [a value for each round]}}.
    _history: Mapping[str, Any]

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = _FILENAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        check_there("XGBoost", "xgboost", _PROBLEM)
        super().__init__()
        self._reporter = BoostingReporter(
            MetricNames(metrics, "XGBoost"),
            filename,
            frequency,
            checkpoint_at_end,
            results_postprocessing_fn,
        )
        self._start()

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = _FILENAME) -> Any:
        """Return the model of a checkpoint that this callback has saved.

        Parameters
        ----------
        checkpoint : Checkpoint
            The checkpoint.
        filename : str, default="model.ubj"
            What the callback was told.

        Returns
        -------
        xgboost.Booster
            The model.
        """
        check_there("XGBoost", "xgboost", _PROBLEM)
        with checkpoint.as_directory() as directory:
            return Booster(model_file=os.path.join(directory, filename))

    def before_training(self, model: Any) -> Any:
        """Begin anew: one callback may serve several trainings."""
        self._start()
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:
        """Report the round before; only now is it known that it was not the last one."""
        self._history = evals_log
        if self._has_news():
            self._report(model, last=False)
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:
        """Hear that a round is done."""
        self._is_done = True
        return False

    def after_training(self, model: Any) -> Any:
        """Report the last round, with the model."""
        if self._has_news():
            self._report(model, last=True)
        return model

    def _start(self) -> None:
        self._history = {}
        self._is_done = False
        self._rows_told = 0

    def _has_news(self) -> bool:
        # A callback before this one that ends the training keeps this one from `after_iteration`.
        return self._is_done or self._rows() > self._rows_told

    def _rows(self) -> int:
        lengths = (len(row) for metrics in self._history.values() for row in metrics.values())
        return max(lengths, default=0)

    def _report(self, model: Any, *, last: bool) -> None:
        self._is_done, self._rows_told = False, self._rows()
        # The folds of a cross-validation are no model.
        is_model = isinstance(model, Booster)
        save = partial(_save, model, self._reporter.filename) if is_model else None
        rounds = model.num_boosted_rounds()
        self._reporter.round_done(_newest(self._history), save, rounds=rounds, last=last)


def _save(model: Any, filename: str, directory: str) -> None:
    model.save_model(os.path.join(directory, filename))


def _newest(history: Mapping[str, Any]) -> dict[str, float]:
    """Return the last round of XGBoost's record, with the names of XGBoost's own tables."""
    told = {}
    for data, metrics in history.items():
        for metric, values in metrics.items():
            if isinstance(values[-1], tuple):
                mean, deviation = values[-1]
                told[f"{data}-{metric}-mean"] = mean
                told[f"{data}-{metric}-std"] = deviation
            else:
                told[f"{data}-{metric}"] = values[-1]
    return told
