"""Weights & Biases: a run for each trial."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.callback import TrialView
from dasktune.errors import ConfigError, check
from dasktune.integration.tracked import TrackedTrial, key_of, run_key
from dasktune.logger.trial_logger import TrialLog, TrialLoggerCallback
from dasktune.storage.setup_file import is_being_stored
from dasktune.trainable import get_context
from dasktune.trial.metrics import flatten, number
from dasktune.trial.status import PublicStatus

__all__ = ["WandbLoggerCallback", "setup_wandb"]

logger = logging.getLogger(__name__)


class WandbLoggerCallback(TrialLoggerCallback):
    """Keeps a run of Weights & Biases for each trial, from a thread.

    Charts are drawn over ``training_iteration``. A later driver goes on with the runs of an earlier
    one. Without a network set ``mode="offline"`` and send the runs later by ``wandb sync``. Needs
    ``pip install 'dasktune[wandb]'``.

    Parameters
    ----------
    project : str, optional
        The project; by default what ``WANDB_PROJECT`` says, else ``"uncategorized"``.
    group : str, optional
        The group of the runs; by default what ``WANDB_RUN_GROUP`` says, else the trainable's name.
    api_key_file : str, optional
        A file on the driver's machine with the key; a later driver reads it again.
    api_key : str, optional
        The key; by default wandb looks for ``WANDB_API_KEY`` and for who has logged in. It is not
        stored with the experiment: a later driver needs that variable, or a new callback.
    excludes : sequence of str, optional
        Metrics and parameters that are not sent.
    log_config : bool, default=False
        Whether the configuration is sent again with each result, for schedulers that change it.
    upload_checkpoints : bool, default=False
        Whether a trial's newest checkpoint becomes an artifact of its run at its end.
    **kwargs
        More of ``wandb.init()``, such as ``mode`` or ``dir``.

    Raises
    ------
    ConfigError
        If wandb is not installed, there are two keys, or `kwargs` has what the trial settles.

    Examples
    --------
    >>> import dasktune as tune
    >>> logger = WandbLoggerCallback(project="digits", mode="offline")
    >>> run_config = tune.RunConfig(callbacks=[logger])
    """

    # Those that were stored by an earlier version have neither.
    api_key_file: str | None = None
    _withheld = False

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        _wandb()
        own = sorted({"config", "id", "name", "reinit", "resume"} & kwargs.keys())
        check(not own, "kwargs", "without what the trial settles", own, "Leave it out.")
        self.project = project
        self.group = group
        self.api_key = _key(api_key, api_key_file)
        self.api_key_file = api_key_file
        self.excludes = frozenset(excludes or ())
        self.log_config = log_config
        self.upload_checkpoints = upload_checkpoints
        self.kwargs = kwargs

    def __getstate__(self) -> dict[str, Any]:
        if not is_being_stored():
            return dict(self.__dict__)
        given = self.api_key is not None and self.api_key_file is None
        return {**self.__dict__, "api_key": None, "_withheld": given}

    def setup(self, *args: Any, **info: Any) -> None:
        """Forget an earlier experiment, and log in."""
        super().setup(*args, **info)
        if self.api_key is None:
            self.api_key = _key(None, self.api_key_file)
        if self.api_key is not None:
            os.environ["WANDB_API_KEY"] = self.api_key
        elif self._withheld and not os.environ.get("WANDB_API_KEY"):
            logger.warning(
                "api_key is not stored with an experiment: set WANDB_API_KEY, or give "
                "Tuner.restore() a run_config with a new WandbLoggerCallback"
            )

    def open_log(self, trial: TrialView) -> TrialLog:
        """Return the run of a trial."""
        return _Run(trial, self)


class _Run(TrackedTrial):
    def __init__(self, trial: TrialView, logger: WandbLoggerCallback) -> None:
        super().__init__(trial)
        self._logger = logger
        self._run: Any = None

    def open(self, trial: TrialView) -> int:
        """Begin the run, or go on with that of an earlier driver."""
        settings = self._logger
        group = settings.group or os.environ.get("WANDB_RUN_GROUP") or trial.trainable_name
        self._run = _wandb().init(
            **settings.kwargs,
            project=settings.project,
            group=group,
            id=run_key(trial),
            name=str(trial),
            config=self._shown(trial.config),
            # Others run beside it in this process.
            reinit="create_new",
            resume="allow",
            allow_val_change=True,
        )
        self._run.define_metric("training_iteration", hidden=True)
        self._run.define_metric("*", step_metric="training_iteration")
        return int(self._run.summary.get("training_iteration") or 0)

    def send(self, iteration: int, row: Mapping[str, Any]) -> None:
        """Send a result."""
        if self._logger.log_config:
            self._run.config.update(self._shown(self._trial.config), allow_val_change=True)
        self._run.log({name: value for name, value in self._shown(row).items() if _fits(value)})

    def finish(self, trial: TrialView) -> None:
        """End the run with the trial."""
        self._run.config.update(self._shown(trial.config), allow_val_change=True)
        checkpoint = trial.checkpoint
        if self._logger.upload_checkpoints and checkpoint is not None:
            with checkpoint.as_directory() as path:
                artifact = _wandb().Artifact(f"checkpoint_{trial.trial_id}", type="model")
                artifact.add_dir(path)
                self._run.log_artifact(artifact)
        self._run.finish(exit_code=int(trial.status is PublicStatus.ERROR))

    def leave(self) -> None:
        """Send what there is; the trial may go on later."""
        self._run.finish(exit_code=1)

    def _shown(self, values: Mapping[str, Any]) -> dict[str, Any]:
        excludes = self._logger.excludes
        return {
            name: value
            for name, value in flatten(values).items()
            if name not in excludes and name.split("/")[0] not in excludes
        }


def setup_wandb(
    config: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    api_key_file: str | None = None,
    rank_zero_only: bool = True,
    **kwargs: Any,
) -> Any:
    """Begin a run of Weights & Biases for the trial that calls this.

    For trainables that use wandb themselves; :class:`WandbLoggerCallback` needs nothing in them,
    and has runs of its own. End the run by ``run.finish()``: the trial's process may go on to
    another trial. A trial that begins again, after a failure or a pause, goes on with its run.

    Parameters
    ----------
    config : mapping, optional
        The run's configuration.
    api_key : str, optional
        The key.
    api_key_file : str, optional
        A file on the worker's machine with the key.
    rank_zero_only : bool, default=True
        Ray Tune's; a trial here is one process.
    **kwargs
        More of ``wandb.init()``. By default its ``name`` is the trial's, its ``group`` the
        experiment's name, its ``id`` one that no other trial has, and ``resume`` is ``"allow"``.

    Returns
    -------
    wandb.Run
        The run.

    Raises
    ------
    ConfigError
        If wandb is not installed, or there are two keys.

    Examples
    --------
    >>> def train(config):
    ...     with setup_wandb(config, project="digits", mode="offline") as run:
    ...         run.log({"loss": 0.5})
    """
    wandb = _wandb()
    key = _key(api_key, api_key_file)
    if key is not None:
        os.environ["WANDB_API_KEY"] = key
    context = get_context()
    own = {
        "id": key_of(context.get_trial_id(), f"{context.get_trial_dir()}#own"),
        "name": context.get_trial_name(),
        "group": context.get_experiment_name(),
        # Others may run beside it in this process.
        "reinit": "create_new",
        "resume": "allow",
    }
    return wandb.init(**{**own, "config": dict(config or {}), **kwargs})


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ConfigError("wandb is not installed: pip install 'dasktune[wandb]'") from error
    return wandb


def _key(api_key: str | None, api_key_file: str | None) -> str | None:
    # Neither the key nor what is in the file belongs into a message.
    once = api_key is None or api_key_file is None
    check(once, "api_key", "left out with api_key_file", "***", "Choose one.")
    if api_key_file is None:
        return api_key
    with open(os.path.expanduser(api_key_file)) as file:
        return file.readline().strip()


def _fits(value: object) -> bool:
    return isinstance(value, bool | str) or number(value) is not None
