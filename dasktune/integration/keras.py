"""Keras 3: a callback for ``model.fit`` that reports results and saves models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from dasktune.errors import check
from dasktune.integration.reporting import MetricNames, check_installed, report_result
from dasktune.storage.checkpoints.checkpoint import Checkpoint

try:
    import keras
    from keras.callbacks import Callback
except ImportError as error:
    # Keras requires its own base class. Without Keras this module can still be imported.
    _PROBLEM, Callback = str(error), object
else:
    _PROBLEM = ""

__all__ = ["TuneReportCheckpointCallback"]

_FILENAME: Final = "model.keras"

#: Hooks of Keras without their ``on_``.
_EVENTS: Final = (
    "epoch_begin",
    "epoch_end",
    "predict_batch_begin",
    "predict_batch_end",
    "predict_begin",
    "predict_end",
    "test_batch_begin",
    "test_batch_end",
    "test_begin",
    "test_end",
    "train_batch_begin",
    "train_batch_end",
    "train_begin",
    "train_end",
)


class TuneReportCheckpointCallback(Callback):  # type: ignore[misc]
    """Reports the metrics of each epoch, with a checkpoint of the model and its optimizer.

    The checkpoint has the model as ``model.keras``, and the number of trained epochs in its
    metadata as ``"epoch"``. Needs ``pip install keras`` and a backend of Keras.

    Parameters
    ----------
    checkpoint_on : str or list of str, default="epoch_end"
        Hooks of Keras at which to report with a checkpoint, without ``on_``. With an empty list,
        no checkpoint is saved.
    report_metrics_on : str or list of str, default="epoch_end"
        Hooks at which to report; only the hooks in `checkpoint_on` save a checkpoint.
    metrics : str, sequence of str, or mapping of str to str, optional
        The metrics to report, or ``{reported name: Keras' name}``, such as
        ``{"loss": "val_loss"}``. All by default.

    Raises
    ------
    ConfigError
        If Keras or its backend is not installed, or an argument is invalid. In the trial, if Keras
        has no such metric at this hook.

    Examples
    --------
    >>> def train(config):
    ...     checkpoint, epoch = tune.get_checkpoint(), 0
    ...     if checkpoint is None:
    ...         model = build(config)
    ...     else:
    ...         model = TuneReportCheckpointCallback.get_model(checkpoint)
    ...         epoch = checkpoint.get_metadata()["epoch"]
    ...     callback = TuneReportCheckpointCallback(metrics={"loss": "val_loss"})
    ...     model.fit(x, y, validation_data=held_out, epochs=10, initial_epoch=epoch,
    ...               callbacks=[callback])
    """

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
    ) -> None:
        check_installed("Keras", "keras", _PROBLEM)
        super().__init__()
        self._saves_on = _events("checkpoint_on", checkpoint_on)
        self._report_on = self._saves_on | _events("report_metrics_on", report_metrics_on)
        self._names = MetricNames(metrics, "Keras")
        self._epochs = 0
        # Set on the object, not the class: Keras waits for the logs of each batch if the class of a
        # callback overrides a batch hook.
        for event in self._report_on - {"epoch_begin", "epoch_end"}:
            setattr(self, f"on_{event}", partial(self._on_event, event))

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> Any:
        """Return the model of a checkpoint that this callback has saved, ready for more training.

        Parameters
        ----------
        checkpoint : Checkpoint
            The checkpoint.

        Returns
        -------
        keras.Model
            The model, with its optimizer's state.
        """
        check_installed("Keras", "keras", _PROBLEM)
        with checkpoint.as_directory() as directory:
            return keras.saving.load_model(os.path.join(directory, _FILENAME))

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the number of the epoch, and report if this hook is selected."""
        self._epochs = epoch
        self._report_at("epoch_begin", logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the number of trained epochs, and report if this hook is selected."""
        self._epochs = epoch + 1
        self._report_at("epoch_end", logs)

    def _on_event(self, event: str, *args: Any, logs: Mapping[str, Any] | None = None) -> None:
        # Batch hooks get the number of the batch first; logs are passed by name or by position.
        for value in args:
            if isinstance(value, Mapping):
                logs = value
        self._report_at(event, logs)

    def _report_at(self, event: str, logs: Mapping[str, Any] | None) -> None:
        if event not in self._report_on:
            return
        save = self._save if event in self._saves_on else None
        report_result(self._names.select(logs or {}), save, metadata={"epoch": self._epochs})

    def _save(self, directory: str) -> None:
        self.model.save(os.path.join(directory, _FILENAME))


def _events(name: str, given: str | Sequence[str]) -> frozenset[str]:
    events = [given] if isinstance(given, str) else list(given)
    unknown = [event for event in events if event not in _EVENTS]
    check(not unknown, name, f"among {list(_EVENTS)}", unknown)
    return frozenset(events)
