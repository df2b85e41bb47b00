"""Keras 3: results and models from inside ``model.fit``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from dasktune.errors import check
from dasktune.integration.reporting import MetricNames, check_there, send
from dasktune.storage.checkpoint import Checkpoint

try:
    import keras
    from keras.callbacks import Callback
except ImportError as error:
    # What Keras calls must derive from its class; without it there is still something to read.
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
    """Reports what Keras tells at the end of each epoch, with the model and its optimizer.

    The model lies in a checkpoint as ``model.keras``, and how many epochs it has been trained for
    in the metadata, as ``"epoch"``. Needs ``pip install 'dasktune[keras]'`` and a backend of Keras.

    Parameters
    ----------
    checkpoint_on : str or list of str, default="epoch_end"
        Hooks of Keras without their ``on_``, at which to report with a checkpoint; an empty list
        saves none.
    report_metrics_on : str or list of str, default="epoch_end"
        Hooks at which to report.
    metrics : str, sequence of str, or mapping of str to str, optional
        What to report, or what to report it as: ``{"loss": "val_loss"}``. All by default.

    Raises
    ------
    ConfigError
        If Keras or its backend is not installed, or an argument breaks its rule; in the trial, if
        Keras tells of no such metric at this hook.

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
        check_there("Keras", "keras", _PROBLEM)
        super().__init__()
        self._saves_on = _events("checkpoint_on", checkpoint_on)
        self._on = self._saves_on | _events("report_metrics_on", report_metrics_on)
        self._names = MetricNames(metrics, "Keras")
        self._epochs = 0
        # Not methods of the class: whoever has hooks for batches makes Keras wait for each batch.
        for event in self._on - {"epoch_begin", "epoch_end"}:
            setattr(self, f"on_{event}", partial(self._hear, event))

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> Any:
        """Return the model of a checkpoint that this callback has saved, ready to be trained on.

        Parameters
        ----------
        checkpoint : Checkpoint
            The checkpoint.

        Returns
        -------
        keras.Model
            The model, with its optimizer's state.
        """
        check_there("Keras", "keras", _PROBLEM)
        with checkpoint.as_directory() as directory:
            return keras.saving.load_model(os.path.join(directory, _FILENAME))

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note where the training is, and report if this is a time for it."""
        self._epochs = epoch
        self._at("epoch_begin", logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note where the training is, and report if this is a time for it."""
        self._epochs = epoch + 1
        self._at("epoch_end", logs)

    def _hear(self, event: str, *told: Any, logs: Mapping[str, Any] | None = None) -> None:
        # Batches come with their number; logs by name or by place.
        for value in told:
            if isinstance(value, Mapping):
                logs = value
        self._at(event, logs)

    def _at(self, event: str, logs: Mapping[str, Any] | None) -> None:
        if event not in self._on:
            return
        save = self._save if event in self._saves_on else None
        send(self._names.choose(logs or {}), save, metadata={"epoch": self._epochs})

    def _save(self, directory: str) -> None:
        self.model.save(os.path.join(directory, _FILENAME))


def _events(name: str, given: str | Sequence[str]) -> frozenset[str]:
    events = [given] if isinstance(given, str) else list(given)
    unknown = [event for event in events if event not in _EVENTS]
    check(not unknown, name, f"among {list(_EVENTS)}", unknown)
    return frozenset(events)
