"""LightGBM: a callback for ``lightgbm.train`` that reports results and saves models."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from dasktune.integration.reporting import BoostingReporter, MetricNames, check_installed
from dasktune.storage.checkpoints.checkpoint import Checkpoint

__all__ = ["TuneReportCheckpointCallback"]

_FILENAME: Final = "model.txt"


class TuneReportCheckpointCallback:
    """Reports the metrics of each boosting round, and saves the model every `frequency` rounds.

    It works with ``lightgbm.train``, with the ``callbacks`` of LightGBM's estimators, and with
    ``lightgbm.cv``, where it reports means and deviations and saves nothing. A metric's name is the
    name in ``valid_names``, then LightGBM's name: ``"eval-binary_logloss"``.

    A trial that is stopped, paused or cloned during the training resumes from the last checkpoint.
    Set `frequency` if a scheduler does this. LightGBM does not notify callbacks when its own early
    stopping ends the training: `checkpoint_at_end` has no effect then. Needs
    ``pip install lightgbm``.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        The metrics to report, or ``{reported name: LightGBM's name}``, such as
        ``{"loss": "eval-binary_logloss"}``. All by default.
    filename : str, default="model.txt"
        Name of the model's file in a checkpoint.
    frequency : int, default=0
        Number of boosting rounds between two checkpoints; with 0, none is saved before the end.
    checkpoint_at_end : bool, default=True
        Whether the last result has a checkpoint.
    results_postprocessing_fn : callable, optional
        Converts the metrics before they are reported.

    Raises
    ------
    ConfigError
        If LightGBM is not installed, or an argument is invalid. In the trial, if LightGBM does not
        have a metric of this name.

    Examples
    --------
    >>> def train(config):
    ...     import lightgbm
    ...     checkpoint = tune.get_checkpoint()
    ...     model = TuneReportCheckpointCallback.get_model(checkpoint) if checkpoint else None
    ...     done = model.current_iteration() if model else 0
    ...     callback = TuneReportCheckpointCallback({"loss": "eval-binary_logloss"}, frequency=5)
    ...     if done < 100:  # a trial may be paused after its last round
    ...         lightgbm.train(
    ...             config, train_set, 100 - done, valid_sets=[eval_set], valid_names=["eval"],
    ...             init_model=model, callbacks=[callback],
    ...         )
    """

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = _FILENAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        _booster_class()
        self._reporter = BoostingReporter(
            MetricNames(metrics, "LightGBM"),
            filename,
            frequency,
            checkpoint_at_end,
            results_postprocessing_fn,
        )

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = _FILENAME) -> Any:
        """Return the model of a checkpoint that this callback has saved.

        Parameters
        ----------
        checkpoint : Checkpoint
            The checkpoint.
        filename : str, default="model.txt"
            The callback's argument `filename`.

        Returns
        -------
        lightgbm.Booster
            The model.
        """
        booster = _booster_class()
        with checkpoint.as_directory() as directory:
            return booster(model_file=os.path.join(directory, filename))

    def __call__(self, env: Any) -> None:
        """Report a round."""
        # In a cross-validation `model` holds the folds, which cannot be saved.
        is_model = isinstance(env.model, _booster_class())
        self._reporter.on_round_end(
            _metric_values(env.evaluation_result_list or ()),
            partial(_save, env.model, self._reporter.filename) if is_model else None,
            rounds=env.iteration + 1,
            last=env.iteration + 1 == env.end_iteration,
        )


def _metric_values(entries: Sequence[Any]) -> dict[str, float]:
    """Return the metrics of a round, with the names that ``lightgbm.cv`` uses."""
    values = {}
    for data, metric, value, _, *deviation in entries:
        if deviation:
            values[f"{data}-{metric}-mean"], values[f"{data}-{metric}-stdv"] = value, deviation[0]
        else:
            values[f"{data}-{metric}"] = value
    return values


def _save(model: Any, filename: str, directory: str) -> None:
    # Save all rounds, not only up to the best one: the training resumes from the last.
    model.save_model(os.path.join(directory, filename), num_iteration=-1)


def _booster_class() -> Any:
    try:
        from lightgbm import Booster
    except ImportError as error:
        check_installed("LightGBM", "lightgbm", str(error))
        raise
    return Booster
