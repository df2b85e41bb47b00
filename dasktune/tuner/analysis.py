"""`ExperimentAnalysis`, Ray Tune's older interface to the results of an experiment."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dasktune.config import DEFAULT_METRIC
from dasktune.errors import ConfigError, check
from dasktune.results.journal_trials import load_trials, retention_of
from dasktune.results.ranking import Scope
from dasktune.results.result import Result, checked_mode, require_pandas
from dasktune.storage.experiment.experiment_store import SPEC_FILE, ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.trial.metrics import Metric, Mode, Modes, check_goals, flatten, lookup, number
from dasktune.tuner.result_grid import NoResultError, ResultGrid

if TYPE_CHECKING:
    import pandas as pd

    from dasktune.storage.checkpoints.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


class ExperimentAnalysis:
    """The results of an experiment with the names of Ray Tune's older interface.

    The results are read from the experiment's directory. `trials` holds `Result` objects.

    Parameters
    ----------
    experiment_checkpoint_path : str or path
        The directory or URL of an experiment, which may still be running. Nothing in it is executed
        or unpickled.
    storage_options : mapping, optional
        Options of fsspec for the URL.
    trials : sequence of Result, optional
        The results of the trials. If given, the directory is not read.
    default_metric : str or list of str, optional
        The metric to compare; by default the optimised one.
    default_mode : {"min", "max"} or list of them, optional
        Whether lower or higher values are better; by default the experiment's mode.

    Raises
    ------
    ConfigError
        If metric and mode do not match.
    StorageError
        If there is no experiment, or its journal is damaged.

    Examples
    --------
    >>> analysis = ExperimentAnalysis("~/dasktune_results/train")  # doctest: +SKIP
    >>> analysis.best_config  # doctest: +SKIP
    {'lr': 0.03}
    """

    def __init__(
        self,
        experiment_checkpoint_path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        trials: Sequence[Result] | None = None,
        default_metric: Metric = None,
        default_mode: Modes = None,
    ) -> None:
        path = os.fspath(experiment_checkpoint_path).removesuffix(f"/{SPEC_FILE}")
        self._storage = Storage(path, storage_options or {})
        if default_metric is None and default_mode is not None:
            default_metric = DEFAULT_METRIC
        check_goals(default_metric, default_mode)
        if trials is None:
            spec = self._spec
            metric, mode = default_metric or spec["metric"], default_mode or spec["mode"]
            self._grid = _read(self._storage, metric, mode)
        else:
            metric, mode = default_metric, default_mode
            self._grid = ResultGrid(trials, self._storage.url, metric, mode)
        #: The metric to compare by default; None if there are several objectives.
        self.default_metric = None if isinstance(metric, list) else metric
        #: Whether lower or higher values are better; None if there are several objectives.
        self.default_mode: Mode | None = None if isinstance(mode, list) else mode

    @cached_property
    def _spec(self) -> dict[str, Any]:
        return {"metric": None, "mode": None, **ExperimentStore(self._storage).spec()}

    @property
    def trials(self) -> list[Result]:
        """The result of each trial, in the order in which the trials were created."""
        return list(self._grid)

    @property
    def experiment_path(self) -> str:
        """The path or URL of the experiment."""
        return self._grid.experiment_path

    # The best, by default metric and mode

    @property
    def best_trial(self) -> Result:
        """The trial with the best last result."""
        return self._found(self.get_best_trial())

    @property
    def best_config(self) -> dict[str, Any]:
        """The configuration of `best_trial`."""
        return self.best_trial.config

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The best checkpoint of `best_trial`; None if it has none."""
        return self.get_best_checkpoint(self.best_trial)

    @property
    def best_logdir(self) -> str:
        """The directory of `best_trial`."""
        return self.best_trial.path

    @property
    def best_dataframe(self) -> pd.DataFrame:
        """The history of `best_trial`. Needs pandas."""
        return self.best_trial.metrics_dataframe

    @property
    def best_result(self) -> dict[str, Any]:
        """The last result of `best_trial`."""
        return self.best_trial.metrics

    @property
    def best_result_df(self) -> pd.DataFrame:
        """The last result of `best_trial` as a table of one row. Needs pandas."""
        return _table([self.best_trial])

    # All of them

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last result of each trial, by trial ID."""
        return {trial.trial_id: trial.metrics for trial in self._grid}

    @property
    def results_df(self) -> pd.DataFrame:
        """The last results as a table with a row for each trial. Needs pandas."""
        return _table(self.trials)

    @property
    def trial_dataframes(self) -> dict[str, pd.DataFrame]:
        """The history of each trial, by trial ID. Needs pandas."""
        return {trial.trial_id: trial.metrics_dataframe for trial in self._grid}

    def dataframe(self, metric: str | None = None, mode: Mode | None = None) -> pd.DataFrame:
        """Return a table with a row for each trial. Needs pandas.

        Parameters
        ----------
        metric : str, optional
            Use each trial's row with the best value of this metric; by default its last row.
        mode : {"min", "max"}, optional
            Whether lower or higher values are better; without it each trial's last row is used.

        Returns
        -------
        DataFrame
            The columns ``trial_id``, the metrics, the configurations as ``config/a/b``, and
            ``logdir``.

        Raises
        ------
        ConfigError
            If pandas is missing, or `mode` is given without `metric`.
        """
        check(metric is not None or mode is None, "metric", "given with mode", metric)
        return self._grid.get_dataframe(metric if mode else None, mode)

    def get_all_configs(self, prefix: bool = False) -> dict[str, dict[str, Any]]:
        """Return the configuration of each trial, by trial ID.

        Parameters
        ----------
        prefix : bool, default=False
            Return flat configurations, with names such as ``config/optimizer/lr``.
        """
        return {
            trial.trial_id: flatten(trial.config, "config/") if prefix else trial.config
            for trial in self._grid
        }

    # One of them

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: Mode | None = None,
        scope: Scope = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result | None:
        """Return the best trial; log a warning and return None if no trial has the metric.

        Parameters
        ----------
        metric : str, optional
            The metric to compare; by default `default_metric`.
        mode : {"min", "max"}, optional
            Whether lower or higher values are better; by default `default_mode`.
        scope : {"last", "all", "avg", "last-5-avg", "last-10-avg"}, default="last"
            The value of a trial, as for :meth:`ResultGrid.get_best_result`.
        filter_nan_and_inf : bool, default=True
            Ignore NaN and infinity.

        Raises
        ------
        ConfigError
            If there are several trials, and metric or mode are unknown.
        """
        try:
            return self._grid.get_best_result(metric, mode, scope, filter_nan_and_inf)
        except NoResultError as error:
            logger.warning("there is no best trial: %s", error)
            return None

    def get_best_config(
        self, metric: str | None = None, mode: Mode | None = None, scope: Scope = "last"
    ) -> dict[str, Any] | None:
        """Return the configuration of the trial that :meth:`get_best_trial` finds.

        Parameters
        ----------
        metric, mode, scope : optional
            As for :meth:`get_best_trial`.
        """
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.config

    def get_best_logdir(
        self, metric: str | None = None, mode: Mode | None = None, scope: Scope = "last"
    ) -> str | None:
        """Return the directory of the trial that :meth:`get_best_trial` finds.

        Parameters
        ----------
        metric, mode, scope : optional
            As for :meth:`get_best_trial`.
        """
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.path

    def get_best_checkpoint(
        self, trial: Result | str, metric: str | None = None, mode: Mode | None = None
    ) -> Checkpoint | None:
        """Return a trial's best checkpoint, or None if none has the metric.

        Parameters
        ----------
        trial : Result or str
            The trial, its ID or its directory.
        metric : str, optional
            The metric to compare; by default `default_metric`, or ``training_iteration`` if there
            is none.
        mode : {"min", "max"}, optional
            Whether lower or higher values are better; by default `default_mode`.

        Raises
        ------
        ConfigError
            If there is no such trial, or the mode is unknown.
        """
        name = metric or self.default_metric or "training_iteration"
        way = checked_mode(mode or self.default_mode, hint=". Give it.")
        return self._of(trial).get_best_checkpoint(name, way)

    def get_last_checkpoint(
        self, trial: Result | str | None = None, metric: str = "training_iteration", mode: Mode = "max"
    ) -> Checkpoint | None:
        """Return a trial's newest checkpoint, or None if it has none.

        Parameters
        ----------
        trial : Result or str, optional
            The trial, its ID or its directory; by default the best one by `metric`.
        metric : str, default="training_iteration"
            The metric to compare trials by.
        mode : {"min", "max"}, default="max"
            Whether lower or higher values are better.

        Raises
        ------
        ConfigError
            If there is no such trial.
        """
        found = self.get_best_trial(metric, mode) if trial is None else self._of(trial)
        return None if found is None else found.checkpoint

    def get_trial_checkpoints_paths(
        self, trial: Result | str, metric: str | None = None
    ) -> list[tuple[str, Any]]:
        """Return the paths of a trial's kept checkpoints, each with a metric of its result.

        Parameters
        ----------
        trial : Result or str
            The trial, its ID or its directory.
        metric : str, optional
            The metric; by default `default_metric`, or ``training_iteration`` if there is none.

        Raises
        ------
        ConfigError
            If there is no such trial.
        """
        name = metric or self.default_metric or "training_iteration"
        base = self.experiment_path.rstrip("/")
        records = self._of(trial).records
        return [(f"{base}/{one.path}", lookup(one.metrics, name)) for one in records]

    # The experiment

    def to_grid(self) -> ResultGrid:
        """Return the same results as a `ResultGrid`."""
        return self._grid

    def stats(self) -> dict[str, float | None]:
        """Return when the experiment began and when its last result was reported.

        Returns
        -------
        dict
            ``start_time`` and ``timestamp``, in seconds since the epoch; the latter is None before
            the first result.

        Raises
        ------
        StorageError
            If the directory does not exist.
        """
        begun = datetime.fromisoformat(self._spec["created"]).timestamp()
        stamps = [number(trial.metrics.get("timestamp")) for trial in self._grid]
        known = (stamp for stamp in stamps if stamp is not None)
        return {"start_time": begun, "timestamp": max(known, default=None)}

    def runner_data(self) -> dict[str, Any]:
        """Return the contents of ``experiment.json``.

        Raises
        ------
        StorageError
            If the directory does not exist.
        """
        return dict(self._spec)

    def __len__(self) -> int:
        return len(self._grid)

    def __repr__(self) -> str:
        return repr(self._grid).replace("ResultGrid", "ExperimentAnalysis", 1)

    def _repr_html_(self) -> str:
        return self._grid._repr_html_().replace("ResultGrid", "ExperimentAnalysis", 1)

    def _found(self, best: Result | None) -> Result:
        if best is None:
            raise NoResultError(
                f"no trial has a value of {self.default_metric!r}. "
                "Call get_best_trial(metric, mode) with another metric."
            )
        return best

    def _of(self, trial: Result | str) -> Result:
        if isinstance(trial, Result):
            return trial
        for one in self._grid:
            if trial in (one.trial_id, one.path):
                return one
        hint = "See ExperimentAnalysis.trials."
        raise ConfigError(f"trial must be a Result, or the ID of a trial, got {trial!r}. {hint}")


def _read(storage: Storage, metric: Metric, mode: Modes) -> ResultGrid:
    store = ExperimentStore(storage)
    kept, load = retention_of(storage), store.checkpoints.load
    trials = load_trials(storage)
    return ResultGrid.from_trials(trials, storage.url, metric, mode, load, kept, storage=storage)


def _table(trials: Sequence[Result]) -> pd.DataFrame:
    rows = [{**flatten(trial.metrics), "trial_id": trial.trial_id} for trial in trials]
    return require_pandas().DataFrame(rows).set_index("trial_id")
