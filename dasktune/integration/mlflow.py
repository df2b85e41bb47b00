"""MLflow: a logger with a run for each trial, and a run inside a trial."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from math import isinf
from typing import Any, Final

from dasktune.callback import TrialView
from dasktune.errors import ConfigError, check
from dasktune.integration.tracked_run import TrackedRun, run_key
from dasktune.logger.trial_logger import TrialLog, TrialLoggerCallback
from dasktune.storage.experiment.tuner_json import is_being_stored
from dasktune.trainable import get_context
from dasktune.trial.metrics import flatten, number
from dasktune.trial.status import PublicStatus

__all__ = ["MLflowLoggerCallback", "setup_mlflow"]

logger = logging.getLogger(__name__)

#: The tag that stores the key of a run's trial.
_KEY: Final = "dasktune.trial"

#: Maximum numbers of metrics and parameters in one request to MLflow.
_MOST_METRICS: Final = 1000
_MOST_PARAMS: Final = 100

#: Maximum number of characters of a parameter's value.
_LONGEST_VALUE: Final = 6000

#: The characters that MLflow allows in names.
_SAFE: Final = frozenset("_-./ abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


#: The user and the password in a URL.
_PASSWORD: Final = re.compile(r"(://[^/:@\s]*):[^@]*@")

_CREDENTIALS: Final = frozenset({"MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"})


class MLflowLoggerCallback(TrialLoggerCallback):
    """Logs each trial as a run of MLflow, from a thread.

    A run has the trial's configuration as parameters, and its numbers by ``training_iteration``. A
    later driver resumes the runs of an earlier one. Needs ``pip install mlflow``.

    Parameters
    ----------
    tracking_uri : str, optional
        The tracking server or store; MLflow's own setting by default. A password in it is not
        stored with the experiment.
    registry_uri : str, optional
        The model registry; `tracking_uri` by default.
    experiment_name : str, optional
        MLflow's experiment, which is created if needed; by default ``MLFLOW_EXPERIMENT_NAME``, else
        ``"dasktune"``.
    tags : mapping of str to str, optional
        Tags of each run.
    tracking_token : str, optional
        The access token, like ``MLFLOW_TRACKING_TOKEN``. It is not stored with the experiment: a
        later driver needs that variable, or a new callback.
    save_artifact : bool, default=False
        Whether to log the files of a trial's newest checkpoint as artifacts at its end.
    log_params_on_trial_end : bool, default=False
        Whether to log the parameters at a trial's end instead of its start. MLflow's parameters
        cannot be changed, so this logs the last parameters that population based training has set.

    Raises
    ------
    ConfigError
        If MLflow is not installed.

    Examples
    --------
    >>> import dasktune as tune
    >>> logger = MLflowLoggerCallback("sqlite:///runs.db", experiment_name="digits")
    >>> run_config = tune.RunConfig(callbacks=[logger])
    """

    #: Whether credentials were removed when the callback was stored.
    _withheld = False

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
    ) -> None:
        super().__init__()
        _client_class()
        self.tracking_uri = tracking_uri
        self.registry_uri = registry_uri
        self.experiment_name = experiment_name
        self.tags = dict(tags or {})
        self.tracking_token = tracking_token
        self.save_artifact = save_artifact
        self.log_params_on_trial_end = log_params_on_trial_end
        self._client: Any = None
        self._experiment_id = ""

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_client": None}
        if is_being_stored():
            shown = {
                "tracking_uri": _without_password(self.tracking_uri),
                "registry_uri": _without_password(self.registry_uri),
                "tracking_token": None,
            }
            withheld = any(state[name] != value for name, value in shown.items())
            state |= {**shown, "_withheld": withheld}
        return state

    def setup(self, *args: Any, **info: Any) -> None:
        """Reset the state of an earlier experiment."""
        super().setup(*args, **info)
        if self._withheld and not _CREDENTIALS & os.environ.keys():
            logger.warning(
                "credentials of MLflow are not stored with an experiment: set "
                "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, "
                "or give Tuner.restore() a run_config with a new MLflowLoggerCallback"
            )

    def open_log(self, trial: TrialView) -> TrialLog:
        """Return the run of a trial."""
        return _MLflowRun(trial, self)

    def connected(self) -> tuple[Any, str]:
        """Return the MLflow client and the experiment id; connect at the first call."""
        if self._client is None:
            if self.tracking_token is not None:
                os.environ["MLFLOW_TRACKING_TOKEN"] = self.tracking_token
            client = _client_class()(self.tracking_uri, self.registry_uri or self.tracking_uri)
            name = self.experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "dasktune"
            known = client.get_experiment_by_name(name)
            self._experiment_id = client.create_experiment(name) if known is None else known.experiment_id
            self._client = client
        return self._client, self._experiment_id


class _MLflowRun(TrackedRun):
    def __init__(self, trial: TrialView, logger: MLflowLoggerCallback) -> None:
        super().__init__(trial)
        self._logger = logger
        self._id = ""
        #: Buffered results.
        self._rows: list[tuple[int, Mapping[str, Any]]] = []

    def open(self, trial: TrialView) -> int:
        """Begin the run, or resume the run of an earlier driver."""
        client, experiment_id = self._logger.connected()
        key = run_key(trial)
        known = client.search_runs([experiment_id], f"tags.`{_KEY}` = '{key}'", max_results=1)
        if known:
            self._id = known[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            history = client.get_metric_history(self._id, "training_iteration")
            return max((point.step for point in history), default=0)
        tags = {**self._logger.tags, "trial_id": trial.trial_id, _KEY: key}
        run = client.create_run(experiment_id, tags=tags, run_name=str(trial))
        self._id = run.info.run_id
        if not self._logger.log_params_on_trial_end:
            self._log_params(trial.config)
        return 0

    def send(self, iteration: int, row: Mapping[str, Any]) -> None:
        """Buffer a result for the next request."""
        self._rows.append((iteration, row))

    def flush(self) -> None:
        """Send the buffered results."""
        from mlflow.entities import Metric

        client, _ = self._logger.connected()
        points = (
            Metric(name, value, int(1000 * float(row.get("timestamp", 0))), iteration)
            for iteration, row in self._rows
            for name, value in _metrics(row)
        )
        while part := list(islice(points, _MOST_METRICS)):
            client.log_batch(self._id, metrics=part)
        self._rows = []

    def finish(self, trial: TrialView) -> None:
        """End the run, with the trial's checkpoint and status."""
        client, _ = self._logger.connected()
        if self._logger.log_params_on_trial_end:
            self._log_params(trial.config)
        checkpoint = trial.checkpoint
        if self._logger.save_artifact and checkpoint is not None:
            with checkpoint.as_directory() as path:
                client.log_artifacts(self._id, path, "checkpoint")
        failed = trial.status is PublicStatus.ERROR
        client.set_terminated(self._id, "FAILED" if failed else "FINISHED")

    def suspend(self) -> None:
        """Mark the run as killed, until a later driver resumes it."""
        client, _ = self._logger.connected()
        client.set_terminated(self._id, "KILLED")

    def _log_params(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        client, _ = self._logger.connected()
        params = (Param(_name(key), str(value)[:_LONGEST_VALUE]) for key, value in _flat(config))
        while part := list(islice(params, _MOST_PARAMS)):
            client.log_batch(self._id, params=part)


def setup_mlflow(  # noqa: PLR0917 - Ray Tune has these arguments
    config: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
    experiment_id: str | None = None,
    experiment_name: str | None = None,
    tracking_token: str | None = None,
    artifact_location: str | None = None,
    run_name: str | None = None,
    create_experiment_if_not_exists: bool = False,
    tags: Mapping[str, str] | None = None,
    rank_zero_only: bool = True,
) -> Any:
    """Begin a run of MLflow for the calling trial, and return the module ``mlflow``.

    Use it in a trainable that calls MLflow itself; :class:`MLflowLoggerCallback` does not need it.
    End the run by ``mlflow.end_run()``, because the process may run another trial afterwards.

    Parameters
    ----------
    config : mapping, optional
        The run's parameters; values of :func:`~dasktune.secret` are logged as their names.
    tracking_uri, registry_uri : str, optional
        As for :class:`MLflowLoggerCallback`.
    experiment_id, experiment_name : str, optional
        MLflow's experiment; the id wins. By default ``MLFLOW_EXPERIMENT_ID`` or
        ``MLFLOW_EXPERIMENT_NAME``.
    tracking_token : str, optional
        As for :class:`MLflowLoggerCallback`.
    artifact_location : str, optional
        The location of the artifacts of a newly created experiment.
    run_name : str, optional
        The run's name; the trial's name by default.
    create_experiment_if_not_exists : bool, default=False
        Whether to create a missing experiment.
    tags : mapping of str to str, optional
        Tags of the run.
    rank_zero_only : bool, default=True
        Ray Tune's argument, without effect: a trial here is one process.

    Returns
    -------
    module
        ``mlflow``, with the run active.

    Raises
    ------
    ConfigError
        If MLflow is not installed, or there is no such experiment.

    Examples
    --------
    >>> def train(config):
    ...     mlflow = setup_mlflow(config, "sqlite:///runs.db", experiment_name="digits")
    ...     with mlflow.active_run():
    ...         mlflow.log_metric("loss", 0.5)
    """
    client_class = _client_class()
    import mlflow

    if tracking_token is not None:
        os.environ["MLFLOW_TRACKING_TOKEN"] = tracking_token
    if tracking_uri is not None:
        mlflow.set_tracking_uri(tracking_uri)
    if registry_uri is not None:
        mlflow.set_registry_uri(registry_uri)
    name, chosen_id = experiment_name, experiment_id
    if not name and not chosen_id:
        # `mlflow.set_experiment()` of an earlier trial in this process has set the variable, too.
        name, chosen_id = (os.environ.get(f"MLFLOW_EXPERIMENT_{kind}") for kind in ("NAME", "ID"))
    if not chosen_id and name:
        known = client_class().get_experiment_by_name(name)
        hint = "Create it, or set create_experiment_if_not_exists=True."
        exists = known is not None or create_experiment_if_not_exists
        check(exists, "experiment_name", "the name of an experiment", name, hint)
        chosen_id = (
            client_class().create_experiment(name, artifact_location)
            if known is None
            else known.experiment_id
        )
    context = get_context()
    run_tags = {"trial_id": context.get_trial_id(), **(tags or {})}
    run_name = run_name or context.get_trial_name()
    mlflow.start_run(experiment_id=chosen_id or None, run_name=run_name, tags=run_tags)
    params = ((_name(key), value) for key, value in _flat(context.redacted(config or {})))
    while part := dict(islice(params, _MOST_PARAMS)):
        mlflow.log_params(part)
    return mlflow


def _client_class() -> Any:
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise ConfigError("MLflow is not installed: pip install mlflow") from error
    return MlflowClient


def _without_password(uri: str | None) -> str | None:
    return None if uri is None else _PASSWORD.sub(r"\1@", uri)


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return iter(flatten(config).items())


def _metrics(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a result, without infinities, which databases cannot store."""
    for name, value in _flat(row):
        points = number(value)
        if points is not None and not isinf(points):
            yield _name(name), points


def _name(name: str) -> str:
    return "".join(letter if letter in _SAFE else "_" for letter in name)
