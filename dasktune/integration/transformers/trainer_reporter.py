"""Reports the evaluations of a ``Trainer`` whose hyperparameters are searched."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Final

from dasktune.errors import check
from dasktune.integration.reporting import report_result
from dasktune.integration.transformers.trainer_callback import CallbackBase, copy_saved
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.trainable import get_context

#: The name of the metric that the search optimises.
OBJECTIVE: Final = "objective"

#: What the metadata of a checkpoint calls the hyperparameters of its trial.
_HYPERPARAMETERS: Final = "hyperparameters"

#: Hyperparameters with values of other types are not written into the trainer's JSON file.
_PLAIN: Final = (bool, int, float, str, type(None))

#: Hyperparameters of a group of parameters beside the learning rate. Some optimizers also keep a
#: state in a group, which belongs to the checkpoint.
_SETTINGS: Final = ("betas", "eps", "weight_decay")


class OptimizerSettings:
    """Gives the optimizer of a clone the hyperparameters of the clone.

    A checkpoint of a trainer has the optimizer with its learning rate and weight decay, so a trial
    that is made a clone of another one would train with those of the other trial.

    Parameters
    ----------
    trainer : Trainer
        The trainer of the clone, which has no optimizer yet.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        #: The settings of each group, as they are before the checkpoint is loaded.
        self._own: list[dict[str, Any]] = []
        trainer.create_scheduler = partial(self._create_scheduler, trainer.create_scheduler)

    def _create_scheduler(self, create: Callable[..., Any], *args: Any, **options: Any) -> Any:
        # A trainer calls this when it has made the optimizer, and loads the checkpoint then.
        scheduler = create(*args, **options)
        names = ("lr", "initial_lr", *_SETTINGS)
        groups = self._trainer.optimizer.param_groups
        self._own = [{name: group[name] for name in names if name in group} for group in groups]
        return scheduler

    def apply(self) -> None:
        """Set the trial's own settings, after the checkpoint was loaded.

        The learning rate keeps its place in the schedule: it is scaled.
        """
        scheduler, groups = self._trainer.lr_scheduler, self._trainer.optimizer.param_groups
        for group, own in zip(groups, self._own, strict=True):
            reached, donor = group["lr"], group.get("initial_lr")
            group.update(own)
            if donor and "initial_lr" in own:
                group["lr"] = reached * own["initial_lr"] / donor
        if hasattr(scheduler, "base_lrs"):
            scheduler.base_lrs = [group["initial_lr"] for group in groups]


@dataclass(frozen=True, slots=True)
class Objective:
    """Computes the metrics that a search optimises.

    Parameters
    ----------
    compute : callable
        Returns the objective for the metrics of an evaluation; a sequence if there are several.
    count : int, optional
        The number of objectives; None for one that is not in a sequence.

    Examples
    --------
    >>> Objective(lambda metrics: metrics["eval_loss"])({"eval_loss": 0.5})
    {'objective': 0.5}
    >>> Objective(lambda metrics: [metrics["eval_f1"], 3.0], count=2)({"eval_f1": 0.5})
    {'objective_0': 0.5, 'objective_1': 3.0}
    """

    compute: Callable[[dict[str, Any]], Any]
    count: int | None = None

    @property
    def names(self) -> list[str]:
        """The names of the metrics."""
        return [OBJECTIVE] if self.count is None else [f"{OBJECTIVE}_{n}" for n in range(self.count)]

    def __call__(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the objectives of an evaluation by their names.

        Parameters
        ----------
        metrics : mapping
            What the trainer's ``evaluate`` has returned.

        Raises
        ------
        ConfigError
            If the user's function returns anything else than the right number of numbers.
        """
        value = self.compute(dict(metrics))
        values = [value] if self.count is None else value
        fits = isinstance(values, list | tuple) and len(values) == len(self.names)
        rule = "a number" if self.count is None else f"{self.count} numbers, one for each direction"
        is_valid = fits and all(isinstance(one, Real) for one in values)
        check(is_valid, "compute_objective(metrics)", rule, value, f"The metrics are {sorted(metrics)}.")
        return {name: float(one) for name, one in zip(self.names, values, strict=True)}


class TrainerReporter(CallbackBase):  # type: ignore[misc]
    """Reports each evaluation of a trainer, with a checkpoint if the trainer saves one then.

    A checkpoint belongs to a result, so a save waits for the next evaluation. If there is no
    evaluation until the last step, the trainer evaluates there.

    Parameters
    ----------
    objective : Objective
        Computes the objective.
    config : mapping
        The hyperparameters of the trial.
    trial_name : str
        The name of the run for the trainer's other callbacks.
    checkpoint : Checkpoint, optional
        The checkpoint from which the trainer continues.
    """

    def __init__(
        self,
        objective: Objective,
        config: Mapping[str, Any],
        trial_name: str,
        checkpoint: Checkpoint | None,
    ) -> None:
        super().__init__()
        self._objective = objective
        self._plain = {name: value for name, value in config.items() if isinstance(value, _PLAIN)}
        self._trial_name = trial_name
        donor = {} if checkpoint is None else checkpoint.get_metadata()
        #: Whether the trial has a result, also of an earlier start: checkpoints come with results.
        #: A checkpoint that no trial of a search has saved is the experiment's initial one.
        self.has_result = _HYPERPARAMETERS in donor
        self._is_clone = checkpoint is not None and donor.get(_HYPERPARAMETERS) != self._plain
        self._optimizer: OptimizerSettings | None = None
        #: The result of an evaluation after which the trainer has not saved yet.
        self._result: dict[str, Any] | None = None
        #: Whether a save waits for the next evaluation.
        self._save_due = False
        #: How many calls of ``evaluate`` are running. With several data sets it calls itself.
        self._depth = 0

    def attach(self, trainer: Any) -> None:
        """Let a trainer report to this object.

        Parameters
        ----------
        trainer : Trainer
            The trainer of the trial.
        """
        # After the trainer's own callback, which decides when to evaluate and to save, and before
        # those of trackers, which read the name of the trial when the training begins.
        trainer.callback_handler.callbacks.insert(1, self)
        # The event `on_evaluate` comes once for each data set, and before a subclass of Trainer has
        # added its metrics. The objective needs all that `evaluate` returns.
        trainer.evaluate = partial(self._evaluate, trainer, trainer.evaluate)
        if self._is_clone:
            self._optimizer = OptimizerSettings(trainer)

    def detach(self, trainer: Any) -> None:
        """Undo :meth:`attach`, so that the trainer is freed with its last reference.

        The process of a trial may run the next one, which needs the memory of the GPU.

        Parameters
        ----------
        trainer : Trainer
            The trainer of the trial.
        """
        self._optimizer = None
        for name in ("evaluate", "create_scheduler"):
            vars(trainer).pop(name, None)

    def _evaluate(self, trainer: Any, evaluate: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._depth += 1
        try:
            metrics = evaluate(*args, **options)
        finally:
            self._depth -= 1
        if self._depth == 0:
            self._result = {**metrics, **self._objective(metrics), "step": trainer.state.global_step}
            self.has_result = True
            if not (trainer.is_in_train and trainer.control.should_save):
                self._report()
        return metrics

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Name the trial, and adapt the optimizer of a clone; Transformers calls this."""
        state.is_hyper_param_search = True
        state.trial_name, state.trial_params = self._trial_name, self._plain
        if self._optimizer is not None:
            self._optimizer.apply()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Let a save wait for the next evaluation; Transformers calls this."""
        self._save_due = self._save_due or control.should_save
        control.should_save = self._save_due and control.should_evaluate
        if control.should_save:
            self._save_due = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Evaluate at the end if that has not happened before; Transformers calls this."""
        if state.global_step >= state.max_steps and not self.has_result:
            control.should_evaluate = True
        self.on_step_end(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report a result with the checkpoint that was saved; Transformers calls this."""
        # Another callback may have asked for a save without an evaluation.
        if self._result is not None:
            folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            self._report(partial(copy_saved, folder))

    def _report(self, save: Callable[[str], object] | None = None) -> None:
        result, self._result = self._result, None
        assert result is not None
        is_first = get_context().get_world_rank() == 0
        metadata = {_HYPERPARAMETERS: self._plain} if save is not None and is_first else None
        report_result(result, save, metadata=metadata)
