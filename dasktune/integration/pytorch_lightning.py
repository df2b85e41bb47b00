"""PyTorch Lightning: callbacks for ``Trainer.fit`` that report results and save checkpoints."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from dasktune.errors import check
from dasktune.integration.reporting import (
    MetricNames,
    check_filename,
    check_installed,
    report_result,
)

try:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        # The older name of the same package: either package's trainers accept both base classes.
        from pytorch_lightning import Callback
except ImportError as error:
    # Lightning requires its own base class. Without Lightning this module can still be imported.
    _PROBLEM, Callback = str(error), object
else:
    _PROBLEM = ""

__all__ = ["TuneCallback", "TuneReportCallback", "TuneReportCheckpointCallback"]

logger = logging.getLogger(__name__)


class TuneCallback(Callback):  # type: ignore[misc]
    """Base class of callbacks that call :meth:`_handle` at the chosen hooks.

    Needs ``pip install lightning``, or pytorch_lightning.

    Parameters
    ----------
    on : str or list of str, default="validation_end"
        Hooks of Lightning without ``on_``, such as ``"train_epoch_end"``.

    Raises
    ------
    ConfigError
        If Lightning is not installed or has no such hook.

    Examples
    --------
    >>> class TellEpoch(TuneCallback):
    ...     def _handle(self, trainer, pl_module):
    ...         print("epoch", trainer.current_epoch)
    >>> callback = TellEpoch(on="train_epoch_end")  # doctest: +SKIP
    """

    def __init__(self, on: str | Sequence[str] = "validation_end") -> None:
        check_installed("PyTorch Lightning", "lightning", _PROBLEM)
        super().__init__()
        hooks = [on] if isinstance(on, str) else list(on)
        known = [name.removeprefix("on_") for name in _HOOKS]
        unknown = [hook for hook in hooks if hook not in known]
        check(not unknown, "on", "hooks of Lightning without on_", unknown, f"It has {known}.")
        self._on = frozenset(f"on_{hook}" for hook in hooks)

    def _handle(self, trainer: Any, pl_module: Any) -> None:
        raise NotImplementedError


class TuneReportCheckpointCallback(TuneCallback):
    """Reports the metrics that Lightning has logged, with a checkpoint of the trainer.

    It reports nothing during Lightning's sanity check of the validation. When the trial
    must end, the hook raises an exception; Lightning tears down the training and re-raises it.
    Give the trainer ``logger=False`` and ``enable_checkpointing=False``, or it writes its own files
    into the worker's directory. Needs ``pip install lightning``, or pytorch_lightning.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        The metrics to report, or ``{reported name: Lightning's name}``, such as
        ``{"loss": "val_loss"}``. All by default. A metric that is not logged yet is left out with a
        warning.
    filename : str, default="checkpoint"
        Name of the trainer's file in a checkpoint.
    save_checkpoints : bool, default=True
        Whether each result has a checkpoint.
    on : str or list of str, default="validation_end"
        Hooks of Lightning at which to report, without ``on_``.

    Raises
    ------
    ConfigError
        If Lightning is not installed, or an argument is invalid.

    Examples
    --------
    >>> def train(config):
    ...     from lightning.pytorch import Trainer
    ...     callback = TuneReportCheckpointCallback({"loss": "val_loss"}, filename="trainer.ckpt")
    ...     trainer = Trainer(max_epochs=10, callbacks=[callback], enable_checkpointing=False)
    ...     checkpoint = tune.get_checkpoint()
    ...     if checkpoint is None:
    ...         trainer.fit(Net(config), data)
    ...     else:
    ...         with checkpoint.as_directory() as directory:
    ...             trainer.fit(Net(config), data, ckpt_path=f"{directory}/trainer.ckpt")
    """

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = "checkpoint",
        save_checkpoints: bool = True,
        on: str | Sequence[str] = "validation_end",
    ) -> None:
        super().__init__(on)
        check_filename(filename)
        self._names = MetricNames(metrics, "PyTorch Lightning")
        self._filename = filename
        self._saves = save_checkpoints
        self._missed: frozenset[str] = frozenset()

    def _handle(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
        self._warn_once(frozenset(self._names.missing(logged)), logged)
        metrics = self._names.select_available(logged)
        if metrics:
            report_result(metrics, partial(self._save, trainer) if self._saves else None)

    def _save(self, trainer: Any, directory: str) -> None:
        trainer.save_checkpoint(os.path.join(directory, self._filename))

    def _warn_once(self, missed: frozenset[str], logged: Mapping[str, float]) -> None:
        """Warn once of each missing metric. Different hooks may have different metrics."""
        if new := missed - self._missed:
            self._missed |= new
            logger.warning(
                "metrics %s are not logged in Lightning and are left out; it has logged %s",
                sorted(new),
                sorted(logged),
            )


class TuneReportCallback(TuneReportCheckpointCallback):
    """Reports the metrics that Lightning has logged, without checkpoints.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        As for :class:`TuneReportCheckpointCallback`.
    on : str or list of str, default="validation_end"
        Hooks of Lightning at which to report, without ``on_``.

    Raises
    ------
    ConfigError
        If Lightning is not installed, or an argument is invalid.

    Examples
    --------
    >>> def train(config):
    ...     from lightning.pytorch import Trainer
    ...     callback = TuneReportCallback({"loss": "val_loss"}, on="validation_end")
    ...     trainer = Trainer(max_epochs=10, callbacks=[callback], logger=False)
    ...     trainer.fit(Net(config), data)
    """

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        on: str | Sequence[str] = "validation_end",
    ) -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)


def _hook(name: str) -> Callable[..., None]:
    def hook(self: TuneCallback, trainer: Any, pl_module: Any = None, *rest: Any) -> None:
        if name in self._on:
            self._handle(trainer, pl_module)

    hook.__name__ = name
    return hook


#: All hooks of the installed Lightning, except the checkpoint hooks: a callback that saves a
#: checkpoint in such a hook would call itself again.
_HOOKS: Final = tuple(
    name
    for name, _ in inspect.getmembers(Callback, inspect.isfunction)
    if name.startswith("on_") and not name.endswith("_checkpoint")
)
for _name in _HOOKS:
    setattr(TuneCallback, _name, _hook(_name))
