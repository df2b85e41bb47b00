"""A callback that reports results and checkpoints of a ``Trainer``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dasktune.errors import check
from dasktune.integration.reporting import MetricNames, check_installed, report_result

try:
    from transformers import TrainerCallback as CallbackBase
except ImportError as error:
    # Transformers requires its own base class. Without it this module can still be imported.
    _PROBLEM, CallbackBase = str(error), object
else:
    _PROBLEM = ""

__all__ = ["CallbackBase", "TuneReportCheckpointCallback", "copy_saved"]


class TuneReportCheckpointCallback(CallbackBase):  # type: ignore[misc]
    """Reports what ``Trainer`` has logged, with its checkpoint if it saves one.

    Each save of the trainer is a result with that checkpoint, and each evaluation without a save is
    one without. So let the trainer evaluate and save at the same times: ``eval_strategy`` and
    ``save_strategy`` are both ``"epoch"``, or both ``"steps"``. In a trial of
    :func:`~dasktune.with_ranks` each rank has the callback and hands in the files that it has
    written. Needs ``pip install transformers``.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        The metrics to report, or ``{reported name: name in Transformers}``, such as
        ``{"loss": "eval_loss"}``. All by default. Those of the last evaluation and of the last log
        are there.

    Raises
    ------
    ConfigError
        If Transformers is not installed or an argument is invalid; later, if a metric is missing,
        or ``save_strategy`` is ``"best"``.

    Examples
    --------
    >>> def train(config):
    ...     arguments = TrainingArguments(
    ...         output_dir=tempfile.mkdtemp(), eval_strategy="epoch", save_strategy="epoch"
    ...     )
    ...     callback = TuneReportCheckpointCallback({"loss": "eval_loss"})
    ...     trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[callback])
    ...     checkpoint = tune.get_checkpoint()
    ...     if checkpoint is None:
    ...         trainer.train()
    ...     else:
    ...         with checkpoint.as_directory() as directory:
    ...             trainer.train(resume_from_checkpoint=directory)
    """

    def __init__(self, metrics: str | Sequence[str] | Mapping[str, str] | None = None) -> None:
        check_installed("Transformers", "transformers", _PROBLEM)
        super().__init__()
        self._names = MetricNames(metrics, "Transformers")
        #: The newest value of each metric.
        self._values: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Check that the trainer saves at known times; Transformers calls this."""
        strategy = getattr(args.save_strategy, "value", args.save_strategy)
        hint = "The trainer decides only after an evaluation whether it saves. Write 'epoch' or 'steps'."
        check(strategy != "best", "save_strategy", "other than 'best'", strategy, hint)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """Keep what was logged; Transformers calls this."""
        self._values.update(logs or {})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **more: Any) -> None:
        """Report an evaluation after which nothing is saved; Transformers calls this."""
        self._values.update(metrics or {})
        if not control.should_save:
            report_result(self._names.select(self._values))

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report a result with the checkpoint that was saved; Transformers calls this."""
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        report_result(self._names.select(self._values), partial(copy_saved, folder))


def copy_saved(source: str, directory: str) -> None:
    """Add the files that a trainer has saved to a checkpoint of dasktune.

    Parameters
    ----------
    source : str
        The folder of the trainer's checkpoint. Without it nothing is copied.
    directory : str
        The directory of dasktune's checkpoint.
    """
    # Links, so that ranks which share a folder hand in the same files, and nothing is copied twice.
    if os.path.isdir(source):
        shutil.copytree(source, directory, dirs_exist_ok=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
