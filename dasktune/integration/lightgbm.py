"""LightGBM: results and models from inside ``lightgbm.train``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from dasktune.integration.reporting import BoostingReporter, MetricNames, check_there
from dasktune.storage.checkpoint import Checkpoint

__all__ = ["TuneReportCheckpointCallback"]

_FILENAME: Final = "model.txt"


class TuneReportCheckpointCallback:
    """Reports the metrics of each boosting round, and saves the model now and then.

    For ``lightgbm.train``, ``lightgbm.cv`` (which reports means and deviations, and saves nothing)
    and the ``callbacks`` of LightGBM's estimators. Metrics are named as in
    ``"eval-binary_logloss"``: the name in ``valid_names``, then LightGBM's.

    A trial that is stopped, paused or cloned on the way goes on from a checkpoint of `frequency`:
    set it where a scheduler may do so. LightGBM's own early stopping tells nobody that it ends the
    training, so that then there is no checkpoint of the end. Needs ``pip install
    'dasktune[lightgbm]'``.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        What to report, or what to report it as: ``{"loss": "eval-binary_logloss"}``. All by
        default.
    filename : str, default="model.txt"
        The model's file in a checkpoint.
    frequency : int, default=0
        Boosting rounds from one checkpoint to the next; 0 saves none on the way.
    checkpoint_at_end : bool, default=True
        Whether the last result brings a checkpoint.
    results_postprocessing_fn : callable, optional
        Turns the metrics into those that are reported.

    Raises
    ------
    ConfigError
        If LightGBM is not installed, or an argument breaks its rule; in the trial, if LightGBM does
        not know a metric.

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
            What the callback was told.

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
        # The folds of a cross-validation are no model.
        is_model = isinstance(env.model, _booster_class())
        self._reporter.round_done(
            _told(env.evaluation_result_list or ()),
            partial(_save, env.model, self._reporter.filename) if is_model else None,
            rounds=env.iteration + 1,
            last=env.iteration + 1 == env.end_iteration,
        )


def _told(entries: Sequence[Any]) -> dict[str, float]:
    """Return the metrics of a round; those of a cross-validation as LightGBM names them."""
    told = {}
    for data, metric, value, _, *deviation in entries:
        if deviation:
            told[f"{data}-{metric}-mean"], told[f"{data}-{metric}-stdv"] = value, deviation[0]
        else:
            told[f"{data}-{metric}"] = value
    return told


def _save(model: Any, filename: str, directory: str) -> None:
    # All rounds, whichever was the best one: the training goes on from the last.
    model.save_model(os.path.join(directory, filename), num_iteration=-1)


def _booster_class() -> Any:
    try:
        from lightgbm import Booster
    except ImportError as error:
        check_there("LightGBM", "lightgbm", str(error))
        raise
    return Booster
