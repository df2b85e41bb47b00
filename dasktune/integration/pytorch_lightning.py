"""PyTorch Lightning: results and checkpoints from inside ``Trainer.fit``."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from dasktune.errors import check
from dasktune.integration.reporting import MetricNames, check_filename, check_there, send

try:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        # The same under its older name. Trainers of both take callbacks of either.
        from pytorch_lightning import Callback
except ImportError as error:
    # What Lightning calls must derive from its class; without it there is still something to read.
    _PROBLEM, Callback = str(error), object
else:
    _PROBLEM = ""

__all__ = ["TuneCallback", "TuneReportCallback", "TuneReportCheckpointCallback"]

logger = logging.getLogger(__name__)


class TuneCallback(Callback):  # type: ignore[misc]
    """Calls :meth:`_handle` at the hooks that it is told; to derive others from.

    Needs ``pip install 'dasktune[lightning]'``, or pytorch_lightning.

    Parameters
    ----------
    on : str or list of str, default="validation_end"
        Hooks of Lightning without their ``on_``, such as ``"train_epoch_end"``.

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
        check_there("PyTorch Lightning", "lightning", _PROBLEM)
        super().__init__()
        hooks = [on] if isinstance(on, str) else list(on)
        known = [name.removeprefix("on_") for name in _HOOKS]
        unknown = [hook for hook in hooks if hook not in known]
        check(not unknown, "on", "hooks of Lightning without on_", unknown, f"It has {known}.")
        self._on = frozenset(f"on_{hook}" for hook in hooks)

    def _handle(self, trainer: Any, pl_module: Any) -> None:
        raise NotImplementedError


class TuneReportCheckpointCallback(TuneCallback):
    """Reports what Lightning has logged, with a checkpoint of the trainer.

    Reports nothing while Lightning tries whether the validation works. The end of a trial is raised
    in the hook: Lightning tears down and lets it pass. Give the trainer ``logger=False`` and
    ``enable_checkpointing=False``, or it writes files of its own into the worker's directory. Needs
    ``pip install 'dasktune[lightning]'``, or pytorch_lightning.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        What to report, or what to report it as: ``{"loss": "val_loss"}``. All by default. One that
        is not logged yet is left out with a warning.
    filename : str, default="checkpoint"
        The trainer's file in a checkpoint.
    save_checkpoints : bool, default=True
        Whether each result brings a checkpoint.
    on : str or list of str, default="validation_end"
        Hooks of Lightning without their ``on_``, at which to report.

    Raises
    ------
    ConfigError
        If Lightning is not installed, or an argument breaks its rule.

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
        self._warn_once(frozenset(self._names.absent(logged)), logged)
        metrics = self._names.choose_known(logged)
        if metrics:
            send(metrics, partial(self._save, trainer) if self._saves else None)

    def _save(self, trainer: Any, directory: str) -> None:
        trainer.save_checkpoint(os.path.join(directory, self._filename))

    def _warn_once(self, missed: frozenset[str], logged: Mapping[str, float]) -> None:
        """Warn of metrics that are not there: with several hooks, each may have its own."""
        if news := missed - self._missed:
            self._missed |= news
            logger.warning(
                "%s not logged in Lightning, and left out: there is %s",
                sorted(news),
                sorted(logged),
            )


class TuneReportCallback(TuneReportCheckpointCallback):
    """Reports what Lightning has logged, and saves nothing.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        As of :class:`TuneReportCheckpointCallback`.
    on : str or list of str, default="validation_end"
        Hooks of Lightning without their ``on_``, at which to report.

    Raises
    ------
    ConfigError
        If Lightning is not installed, or an argument breaks its rule.

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


#: All hooks that the installed Lightning calls, but for those of checkpoints: who saves one there
#: would be called for it again.
_HOOKS: Final = tuple(
    name
    for name, _ in inspect.getmembers(Callback, inspect.isfunction)
    if name.startswith("on_") and not name.endswith("_checkpoint")
)
for _name in _HOOKS:
    setattr(TuneCallback, _name, _hook(_name))
