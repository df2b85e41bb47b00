"""The hyperparameters of an optimizer that continues from the checkpoint of another trial."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

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
