"""A trial of a hyperparameter search: a trainer of its own, with the trial's hyperparameters."""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

from dasktune.errors import ConfigError
from dasktune.integration.transformers.trainer_reporter import Objective, TrainerReporter
from dasktune.trainable import get_checkpoint, get_context

#: What belongs to the process of a trainer, to its model, or is sent apart from the trainer.
_LEFT_OUT: Final = (
    "accelerator",
    "args",
    "callback_handler",
    "eval_dataset",
    "gather_function",
    "lr_scheduler",
    "model",
    "model_wrapped",
    "optimizer",
    "train_dataset",
)

#: Callbacks that draw progress bars, which several trials at a time would draw over each other.
_PROGRESS_BARS: Final = frozenset({"NotebookProgressCallback", "ProgressCallback"})


def takes_hyperparameters(model_init: Callable[..., Any]) -> bool:
    """Whether a function that makes a model takes the hyperparameters of the trial.

    Examples
    --------
    >>> takes_hyperparameters(lambda trial: None), takes_hyperparameters(lambda: None)
    (True, False)
    """
    return len(inspect.signature(model_init).parameters) > 0


@dataclass(frozen=True, slots=True)
class TrainerTemplate:
    """What each trial makes its trainer of.

    Parameters
    ----------
    trainer : Trainer
        A copy of the user's trainer, without its model, data and training arguments.
    handler : CallbackHandler
        A copy of what holds its callbacks, without model and optimizer.
    arguments : type
        The class of its training arguments.
    values : mapping
        The values of their fields.
    """

    trainer: Any
    handler: Any
    arguments: type
    values: Mapping[str, Any]

    @classmethod
    def of(cls, trainer: Any) -> TrainerTemplate:
        """Return the template of a trainer, which is not changed.

        Parameters
        ----------
        trainer : Trainer
            The user's trainer.
        """
        copied, args = copy.copy(trainer), trainer.args
        for name in _LEFT_OUT:
            setattr(copied, name, None)
        handler = copy.copy(trainer.callback_handler)
        handler.callbacks = [one for one in handler.callbacks if type(one).__name__ not in _PROGRESS_BARS]
        for name in ("model", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"):
            setattr(handler, name, None)
        # Other attributes of the arguments are devices of this process.
        values = {field.name: getattr(args, field.name) for field in fields(args) if field.init}
        # Nothing is pushed, so no trial needs a secret. Older versions of Transformers have two.
        secrets = {name: None for name in values if name.endswith("_token")}
        return cls(copied, handler, type(args), {**values, **secrets})

    def build(self, config: Mapping[str, Any], directory: str) -> Any:
        """Return a trainer with the hyperparameters of a trial.

        Parameters
        ----------
        config : mapping
            The hyperparameters.
        directory : str
            Where the trainer saves.

        Raises
        ------
        ConfigError
            If a value cannot be converted to the type of the training argument.
        """
        # A worker keeps one template for all of its trials, and callbacks have a state.
        trainer, handler = copy.deepcopy((self.trainer, self.handler))
        trainer.callback_handler = handler
        trainer.args = args = self.arguments(**self._values(config, directory))
        if takes_hyperparameters(trainer.model_init):
            trainer.model_init = partial(trainer.model_init, dict(config))
        # What a trainer derives from its arguments when it is made, and not when it trains.
        trainer._train_batch_size = args.train_batch_size
        trainer.neftune_noise_alpha = args.neftune_noise_alpha
        trainer.label_smoother = _label_smoother(args.label_smoothing_factor)
        trainer.create_accelerator_and_postprocess()
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            # The trainer has decided this without the hyperparameters and the variables of the
            # ranks. A model that they shard may be too large for the device of one rank.
            trainer.place_model_on_device = False
        return trainer

    def _values(self, config: Mapping[str, Any], directory: str) -> dict[str, Any]:
        values = dict(self.values)
        for name, value in config.items():
            if name in values:
                values[name] = _cast(name, value, values[name])
        values |= {"output_dir": directory, "push_to_hub": False}
        # A checkpoint is reported before the next one is saved.
        return values | {"save_total_limit": values["save_total_limit"] or 1}


def transformers_trial(
    config: dict[str, Any],
    template: TrainerTemplate,
    objective: Objective,
    hp_name: Callable[[dict[str, Any]], str] | None,
    data: tuple[Any, Any],
) -> None:
    """Train with the hyperparameters of a trial, from its newest checkpoint if there is one.

    Parameters
    ----------
    config : dict
        The hyperparameters.
    template : TrainerTemplate
        What the trainer is made of.
    objective : Objective
        Computes the objective.
    hp_name : callable, optional
        Returns the name of the run for the hyperparameters.
    data : tuple
        The data sets for training and for evaluations.
    """
    checkpoint = get_checkpoint()
    # Trackers and the metadata of checkpoints get these values.
    context = get_context()
    shown = context.redacted(config)
    name = context.get_trial_id() if hp_name is None else hp_name(shown)
    reporter = TrainerReporter(objective, shown, name, checkpoint)
    with tempfile.TemporaryDirectory(prefix="dasktune-trainer-") as directory:
        trainer = template.build(config, directory)
        trainer.train_dataset, trainer.eval_dataset = data
        reporter.attach(trainer)
        try:
            if checkpoint is None:
                trainer.train()
            else:
                with checkpoint.as_directory() as saved:
                    trainer.train(resume_from_checkpoint=saved)
            if not reporter.has_result:
                trainer.evaluate()
        finally:
            reporter.detach(trainer)


def _cast(name: str, value: Any, present: Any) -> Any:
    """Convert a value to the type of the present one, as Transformers does in its searches."""
    if present is None:
        return value
    try:
        return type(present)(value)
    except (TypeError, ValueError) as error:
        kind = type(present).__name__
        raise ConfigError(
            f"{name} must be a value for {kind}() as in TrainingArguments, got {value!r}"
        ) from error


def _label_smoother(factor: float) -> Any:
    if factor == 0:
        return None
    from transformers.trainer_pt_utils import LabelSmoother

    return LabelSmoother(epsilon=factor)
