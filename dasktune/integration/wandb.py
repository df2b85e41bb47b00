"""Weights & Biases: a logger with a run for each trial, and a run inside a trial."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.callback import TrialView
from dasktune.errors import ConfigError, check
from dasktune.integration.tracked_run import TrackedRun, key_of, run_key
from dasktune.logger.trial_logger import TrialLog, TrialLoggerCallback
from dasktune.storage.experiment.tuner_json import is_being_stored
from dasktune.trainable import get_context
from dasktune.trial.metrics import flatten, number
from dasktune.trial.status import PublicStatus

__all__ = ["WandbLoggerCallback", "setup_wandb"]

logger = logging.getLogger(__name__)


class WandbLoggerCallback(TrialLoggerCallback):
    """Logs each trial as a run of Weights & Biases, from a thread.

    The charts' x axis is ``training_iteration``. A later driver resumes the runs of an earlier one.
    Without a network set ``mode="offline"`` and send the runs later by ``wandb sync``. Needs
    ``pip install wandb``.

    Parameters
    ----------
    project : str, optional
        The project; by default ``WANDB_PROJECT``, else ``"uncategorized"``.
    group : str, optional
        The group of the runs; by default ``WANDB_RUN_GROUP``, else the trainable's name.
    api_key_file : str, optional
        A file on the driver's machine with the key; a later driver reads it again.
    api_key : str, optional
        The key; by default wandb uses ``WANDB_API_KEY`` or the stored login. It is not stored with
        the experiment: a later driver needs that variable, or a new callback.
    excludes : sequence of str, optional
        Metrics and parameters that are not sent.
    log_config : bool, default=False
        Whether to send the configuration with each result, for schedulers that change it.
    upload_checkpoints : bool, default=False
        Whether to log a trial's newest checkpoint as an artifact at its end.
    **kwargs
        Further arguments of ``wandb.init()``, such as ``mode`` or ``dir``.

    Raises
    ------
    ConfigError
        If wandb is not installed, two keys are given, or `kwargs` has an argument that the trial
        sets.

    Examples
    --------
    >>> import dasktune as tune
    >>> logger = WandbLoggerCallback(project="digits", mode="offline")
    >>> run_config = tune.RunConfig(callbacks=[logger])
    """

    #: Whether the key was left out of what an experiment has stored.
    _withheld = False

    def __init__(  # noqa: PLR0917 - Ray Tune has these arguments
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
        check(not own, "kwargs", "without arguments that the trial sets", own, "Remove them.")
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
        """Reset the state of an earlier experiment, and log in."""
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
        return _WandbRun(trial, self)


class _WandbRun(TrackedRun):
    def __init__(self, trial: TrialView, logger: WandbLoggerCallback) -> None:
        super().__init__(trial)
        self._logger = logger
        self._run: Any = None

    def open(self, trial: TrialView) -> int:
        """Begin the run, or resume the run of an earlier driver."""
        settings = self._logger
        group = settings.group or os.environ.get("WANDB_RUN_GROUP") or trial.trainable_name
        self._run = _wandb().init(
            **settings.kwargs,
            project=settings.project,
            group=group,
            id=run_key(trial),
            name=str(trial),
            config=self._shown(trial.config),
            # Runs of other trials are open in this process, too.
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
        """End the run, with the trial's checkpoint and status."""
        self._run.config.update(self._shown(trial.config), allow_val_change=True)
        checkpoint = trial.checkpoint
        if self._logger.upload_checkpoints and checkpoint is not None:
            with checkpoint.as_directory() as path:
                artifact = _wandb().Artifact(f"checkpoint_{trial.trial_id}", type="model")
                artifact.add_dir(path)
                self._run.log_artifact(artifact)
        self._run.finish(exit_code=int(trial.status is PublicStatus.ERROR))

    def suspend(self) -> None:
        """End the run as failed, until a later driver resumes it."""
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
    """Begin a run of Weights & Biases for the calling trial, and return the run.

    Use it in a trainable that calls wandb itself; :class:`WandbLoggerCallback` does not need it and
    has separate runs. End the run by ``run.finish()``, because the process may run another trial
    afterwards. A trial that restarts after a failure or a pause resumes its run.

    Parameters
    ----------
    config : mapping, optional
        The run's configuration; values of :func:`~dasktune.secret` are logged as their names.
    api_key : str, optional
        The key.
    api_key_file : str, optional
        A file on the worker's machine with the key.
    rank_zero_only : bool, default=True
        Ray Tune's argument, without effect: a trial here is one process.
    **kwargs
        Further arguments of ``wandb.init()``. By default ``name`` is the trial's name, ``group``
        the experiment's name, ``id`` a unique id of the trial, and ``resume`` is ``"allow"``.

    Returns
    -------
    wandb.Run
        The run.

    Raises
    ------
    ConfigError
        If wandb is not installed, or two keys are given.

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
        # Other trials may have open runs in this process.
        "reinit": "create_new",
        "resume": "allow",
    }
    return wandb.init(**{**own, "config": context.redacted(config or {}), **kwargs})


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ConfigError("wandb is not installed: pip install wandb") from error
    return wandb


def _key(api_key: str | None, api_key_file: str | None) -> str | None:
    # The message must show neither the key nor the content of the file.
    once = api_key is None or api_key_file is None
    check(once, "api_key", "left out with api_key_file", "***", "Choose one.")
    if api_key_file is None:
        return api_key
    with open(os.path.expanduser(api_key_file)) as file:
        return file.readline().strip()


def _fits(value: object) -> bool:
    return isinstance(value, bool | str) or number(value) is not None
