"""The results of an experiment, one for each trial: `ResultGrid`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from dasktune.errors import ConfigError, TrialError, TuneError, check, without_passwords
from dasktune.results.ranking import Scope, best_row, grid_text, ranked_results, result_table
from dasktune.results.result import (
    Result,
    checked_mode,
    is_auto_filled,
    require_pandas,
)
from dasktune.schedulers.pareto import ParetoFronts, hypervolume
from dasktune.text.text_table import html_summary
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.metrics import Metric, Mode, Modes, check_goals, flatten, score
from dasktune.trial.retention import Retention
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

if TYPE_CHECKING:
    import os

    import pandas as pd

    from dasktune.dashboard.model.experiment_projection import ExperimentProjection
    from dasktune.storage.checkpoints.checkpoint import Checkpoint
    from dasktune.storage.fs.storage import Storage
    from dasktune.tuner.analysis import ExperimentAnalysis


class NoResultError(TuneError, RuntimeError):
    """No trial has a value of the metric."""


class ResultGrid(Sequence[Result]):
    """The results of an experiment: a sequence with one `Result` for each trial.

    The results have the order in which the trials were created.

    Parameters
    ----------
    results : iterable of Result or ExperimentAnalysis
        The results of the trials. An `ExperimentAnalysis` has all that the other arguments say.
    experiment_path : str, optional
        The path or URL of the experiment; required with an iterable of results.
    metric : str or list of str, optional
        The optimised metric; a list if there are several objectives.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better; a list if `metric` is one.
    storage : Storage, optional
        The experiment's directory. Figures read its journal, which has more than the results.

    Raises
    ------
    ConfigError
        If `results` is neither, or `experiment_path` is missing.

    Examples
    --------
    >>> from dasktune.trial.status import PublicStatus
    >>> def result(trial_id, loss):
    ...     return Result(trial_id=trial_id, config={"x": 1}, history=[{"loss": loss}],
    ...                   status=PublicStatus.TERMINATED, path="", load_checkpoint=print)
    >>> grid = ResultGrid([result("a", 0.5), result("b", 0.2)], "exp", metric="loss", mode="min")
    >>> grid.get_best_result().trial_id
    'b'
    """

    def __init__(
        self,
        results: Iterable[Result] | ExperimentAnalysis,
        experiment_path: str | None = None,
        metric: Metric = None,
        mode: Modes = None,
        storage: Storage | None = None,
    ) -> None:
        found: Iterable[Result]
        if isinstance(results, Iterable):
            found = results
        else:
            grid = _grid_of(results)
            found, experiment_path = grid, experiment_path or grid.experiment_path
            metric, mode = metric or grid._goals[0], mode or grid._goals[1]
            storage = storage or grid._storage
        check(experiment_path is not None, "experiment_path", "the path or URL of the experiment", None)
        self._results = list(found)
        self._storage: Storage | None = storage
        #: The projection that figures are drawn from, with the objectives that it was made for.
        self._projection: tuple[object, ExperimentProjection] | None = None
        #: The metrics and modes. `_metric` and `_mode` are None if there are several.
        self._goals: tuple[Metric, Modes] = (metric, mode)
        self._metric = None if isinstance(metric, list) else metric
        self._mode = None if isinstance(mode, list) else mode
        #: The path or URL of the experiment.
        self.experiment_path: str = experiment_path or ""

    @classmethod
    def from_trials(
        cls,
        trials: Iterable[Trial],
        experiment_path: str,
        metric: Metric,
        mode: Modes,
        load_checkpoint: Callable[[CheckpointRecord], Checkpoint],
        retention: Retention | None = None,
        *,
        storage: Storage | None = None,
    ) -> ResultGrid:
        """Return the results of the driver's trials.

        Parameters
        ----------
        trials : iterable of Trial
            All trials of the experiment.
        experiment_path : str
            The path or URL of the experiment.
        metric : str, list of str or None
            The optimised metric.
        mode : {"min", "max"}, list of them or None
            Whether lower or higher values are better.
        load_checkpoint : callable
            Returns the checkpoint of a record. Results can be pickled only if this function can.
        retention : Retention, optional
            The rule by which checkpoints were kept.
        storage : Storage, optional
            The experiment's directory.
        """
        base, kept = experiment_path.rstrip("/"), retention or Retention()
        results = [
            Result.from_trial(trial, f"{base}/trials/{trial.folder}", load_checkpoint, kept, storage)
            for trial in trials
        ]
        return cls(results, experiment_path, metric, mode, storage)

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        hint = "A metric of a trial is results[0].metrics['loss']; the best trial is get_best_result()."
        given: object = index
        is_known = isinstance(given, slice) or hasattr(given, "__index__")
        check(is_known, "index", "the number of a trial", index, hint)
        return self._results[index]

    @property
    def default_metric(self) -> Metric:
        """The optimised metric; a list if there are several, None if it is not known."""
        return self._goals[0]

    @property
    def default_mode(self) -> Modes:
        """Whether lower or higher values are better; a list if `default_metric` is one."""
        return self._goals[1]

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem of `experiment_path`; None for a simulation."""
        return None if self._storage is None else self._storage.fs

    @property
    def errors(self) -> list[TrialError]:
        """The errors of the failed trials, in the order of the trials."""
        return [result.error for result in self if result.error is not None]

    @property
    def num_errors(self) -> int:
        """The number of failed trials."""
        return self._count(PublicStatus.ERROR)

    @property
    def num_terminated(self) -> int:
        """The number of trials that finished or were stopped."""
        return self._count(PublicStatus.TERMINATED)

    def _count(self, status: PublicStatus) -> int:
        return sum(result.status is status for result in self)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: Mode | None = None,
        scope: Scope = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """Return the result of the best trial.

        Parameters
        ----------
        metric : str, optional
            The metric to compare; by default the optimised one. Nested names are joined by ``/``.
        mode : {"min", "max"}, optional
            Whether lower or higher values are better; by default the experiment's mode.
        scope : {"last", "all", "avg", "last-5-avg", "last-10-avg"}, default="last"
            The value of a trial: its last one, its best one, or the mean of all, of the last 5 or
            of the last 10 rows that have the metric.
        filter_nan_and_inf : bool, default=True
            Ignore NaN and infinity: the scope ``"all"`` skips such rows, the others skip trials
            with such a value. NaN is the worst value if it is not ignored.

        Returns
        -------
        Result
            The first of the best results. A single trial is the best, whatever it reported.

        Raises
        ------
        ConfigError
            If there are several trials, and metric or mode are unknown.
        NoResultError
            If no trial has a value of the metric; the message has the cause of the first failure,
            if there is one. It is also a RuntimeError.
        """
        if len(self) == 1:
            return self[0]
        if not self:
            raise NoResultError("the experiment has no trials")
        if not (metric or self._metric) and len(self.errors) == len(self):
            raise NoResultError(f"all {len(self)} trials failed{self._first_failure()}")
        metric, mode = self._goal(metric, mode)
        ranked = ranked_results(self._results, metric, mode, scope, finite=filter_nan_and_inf)
        if not ranked:
            raise NoResultError(self._why_none(metric))
        return ranked[0]

    def get_pareto_front(
        self, metric: list[str] | None = None, mode: list[Mode] | None = None
    ) -> list[Result]:
        """Return the Pareto front: the trials that no other trial dominates.

        A trial dominates another one if it is at least as good in each metric and better in one.

        Parameters
        ----------
        metric : list of str, optional
            The metrics to compare in the last results; by default the optimised ones.
        mode : list of {"min", "max"}, optional
            Whether lower or higher values of each are better; by default the experiment's modes.

        Returns
        -------
        list of Result
            The results in the order of the trials, equal ones included. Trials without a finite
            value of each metric are left out.

        Raises
        ------
        ConfigError
            If the metrics are unknown, or there is only one.

        Examples
        --------
        >>> from dasktune.trial.status import PublicStatus
        >>> def result(trial_id, error, seconds):
        ...     row = {"error": error, "seconds": seconds}
        ...     return Result(trial_id=trial_id, config={}, history=[row], path="",
        ...                   status=PublicStatus.TERMINATED, load_checkpoint=print)
        >>> results = [result("a", 0.25, 8.0), result("b", 0.5, 2.0), result("c", 0.75, 4.0)]
        >>> grid = ResultGrid(results, "exp", metric=["error", "seconds"], mode=["min", "min"])
        >>> [one.trial_id for one in grid.get_pareto_front()]
        ['a', 'b']
        >>> grid.get_hypervolume([1.0, 10.0])
        4.5
        """
        goals = self._several_goals(metric, mode)
        scored = [(_scores(result.metrics, goals), result) for result in self]
        fronts = ParetoFronts([scores for scores, _ in scored if scores is not None]).to_lists()
        best = {tuple(point) for point in fronts[0]} if fronts else set()
        return [result for scores, result in scored if scores in best]

    def get_hypervolume(
        self,
        reference_point: Sequence[float],
        metric: list[str] | None = None,
        mode: list[Mode] | None = None,
    ) -> float:
        """Return the hypervolume that the Pareto front dominates, bounded by a reference point.

        Larger is better. Compare two experiments with the same reference point only.

        Parameters
        ----------
        reference_point : sequence of float
            A value for each metric that is just not acceptable. Trials that are not better in all
            of them add nothing.
        metric : list of str, optional
            The metrics to compare in the last results; by default the optimised ones.
        mode : list of {"min", "max"}, optional
            Whether lower or higher values of each are better; by default the experiment's modes.

        Returns
        -------
        float
            The hypervolume, in the product of the metrics' units, exact for any number of metrics.
            With more than four metrics and hundreds of trials on the front it is slow.

        Raises
        ------
        ConfigError
            If the metrics are unknown, there is only one, or the reference point lacks a finite
            number for one.
        """
        goals = self._several_goals(metric, mode)
        rule = f"a finite number for each of {[name for name, _ in goals]}"
        given: object = reference_point
        corner = list(given) if isinstance(given, Sequence | np.ndarray) else []
        fits = len(corner) == len(goals)
        named = {name: value for (name, _), value in zip(goals, corner, strict=False)}
        worst = _scores(named, goals)
        if worst is None or not fits:
            raise ConfigError(f"reference_point must be {rule}, got {reference_point!r}")
        front = self.get_pareto_front([name for name, _ in goals], [mode for _, mode in goals])
        points = [_scores(result.metrics, goals) for result in front]
        return hypervolume(np.array(points, dtype=np.float64).reshape(-1, len(goals)), worst)

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: Mode | None = None
    ) -> pd.DataFrame:
        """Return a table with a row for each trial. Needs pandas.

        Parameters
        ----------
        filter_metric : str, optional
            Use each trial's row with the best value of this metric; by default its last row.
        filter_mode : {"min", "max"}, optional
            Whether lower or higher values of `filter_metric` are better; by default the
            experiment's mode.

        Returns
        -------
        DataFrame
            The columns ``trial_id``, the metrics, the configurations as ``config/a/b``, and
            ``logdir``, the trial's directory.

        Raises
        ------
        ConfigError
            If pandas is missing, or the mode is unknown.
        """
        named = filter_metric is not None
        check(named or filter_mode is None, "filter_metric", "given with filter_mode", None)
        rows = []
        for result in self:
            row: Mapping[str, Any] = result.metrics
            if filter_metric is not None:
                mode = checked_mode(filter_mode or self._mode, "filter_mode")
                row = best_row(result.history, filter_metric, mode)
            own = {k: v for k, v in flatten(row).items() if k.split("/")[0] != "config"}
            config = flatten(result.config, "config/")
            rows.append({"trial_id": result.trial_id, **own, **config, "logdir": result.path})
        return require_pandas().DataFrame(rows)

    # Figures

    def plot(
        self, kind: str = "best_so_far", *, metric: Metric = None, mode: Modes = None, **options: Any
    ) -> Any:
        """Return a Bokeh figure; show it with ``bokeh.plotting.show``.

        Parameters
        ----------
        kind : str, default="best_so_far"
            ``"best_so_far"``, ``"learning_curves"``, ``"parallel_coordinates"``, ``"importance"``,
            ``"slice"``, ``"contour"``, ``"timeline"``, ``"resources"``, ``"rungs"``, ``"lineage"``,
            ``"objectives"`` or ``"hypervolume"``.
        metric : str or list of str, optional
            The metric to draw; by default the optimised one.
        mode : {"min", "max"} or list of them, optional
            Whether lower or higher values are better; by default the experiment's mode.
        **options
            Options of the function of this name in `dasktune.dashboard.figures`.

        Raises
        ------
        ConfigError
            If there is no such kind, or an option breaks its rule.

        Examples
        --------
        >>> from dasktune.trial.status import PublicStatus
        >>> rows = [{"loss": 0.5, "training_iteration": 1}, {"loss": 0.25, "training_iteration": 2}]
        >>> result = Result(trial_id="a", config={"x": 1}, history=rows, path="",
        ...                 status=PublicStatus.TERMINATED, load_checkpoint=print)
        >>> figure = ResultGrid([result], "exp", metric="loss", mode="min").plot("learning_curves")
        >>> figure.title.text
        'Learning curves of loss'
        """
        # Importing Bokeh is slow.
        from dasktune.dashboard.figures import plot

        return plot(self._project(metric, mode), kind, **options)

    @overload
    def to_html(self, path: None = None) -> str: ...

    @overload
    def to_html(self, path: str | os.PathLike[str]) -> None: ...

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Return a report of the experiment as one self-contained HTML page.

        Parameters
        ----------
        path : str or path, optional
            The file to write the page to.

        Returns
        -------
        str or None
            The page; None if `path` is given, because a notebook would show two megabytes.

        Examples
        --------
        >>> from dasktune.testing import simulate
        >>> def train(config):
        ...     yield {"loss": config["x"]}, 1.0
        >>> simulate(train, param_space={"x": 1}).to_html().startswith("<!DOCTYPE html>")
        True
        """
        from dasktune.dashboard.report import to_html

        page = to_html(self._project(None, None))
        if path is None:
            return page
        Path(path).expanduser().write_text(page, encoding="utf-8")
        return None

    def _project(self, metric: Metric, mode: Modes) -> ExperimentProjection:
        from dasktune.dashboard.model.load import projection_of_results

        goals = (metric or self._goals[0], mode or self._goals[1])
        if self._projection is None or self._projection[0] != goals:
            name = without_passwords(self.experiment_path).rstrip("/").rpartition("/")[2]
            projection = projection_of_results(
                self, name=name, metric=goals[0], mode=goals[1], storage=self._storage
            )
            self._projection = goals, projection
        return self._projection[1]

    def __getstate__(self) -> dict[str, Any]:
        # The projection can be made again from the results.
        return {**self.__dict__, "_projection": None}

    def _several_goals(self, metric: list[str] | None, mode: list[Mode] | None) -> list[tuple[str, Mode]]:
        names, modes = metric or self._goals[0], mode or self._goals[1]
        check_goals(names, modes)
        hint = "Give metric and mode, or use get_best_result()."
        if not isinstance(names, list) or not isinstance(modes, list) or len(names) < 2:
            raise ConfigError(f"metric must be a list of at least two, got {names!r}. {hint}")
        return list(zip(names, modes, strict=True))

    def _goal(self, metric: str | None, mode: Mode | None) -> tuple[str, Mode]:
        metric = metric or self._metric
        hint = ". Give it to get_best_result(), or to TuneConfig."
        if metric is None and isinstance(self._goals[0], list):
            hint = f". Choose one of {self._goals[0]}, or call get_pareto_front()."
        if metric is None:
            raise ConfigError(f"metric must be the name of a reported metric, got None{hint}")
        return metric, checked_mode(mode or self._mode, hint=hint)

    def _why_none(self, metric: str) -> str:
        names = {name for r in self for row in r.history for name in flatten(row)}
        if metric in names:
            values = (flatten(row).get(metric) for r in self for row in r.history)
            example = next((value for value in values if value is not None), None)
            return (
                f"no trial has a usable number for {metric!r}, but, for example, {example!r} "
                f"(filter_nan_and_inf=True ignores NaN and infinity){self._failures()}"
            )
        own = sorted(name for name in names if not is_auto_filled(name))
        close = get_close_matches(metric, own, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        missing = f"none of the {len(self)} trials reported {metric!r}"
        if own:
            return f"{missing}; reported: {', '.join(own)}{hint}{self._failures()}"
        if self.errors:
            return f"{missing}{self._failures()}"
        return f"{missing}; reported: nothing. Call tune.report({{{metric!r}: ...}}) in the trainable"

    def _failures(self) -> str:
        count = len(self.errors)
        many = f"all {count} trials" if count == len(self) and count > 1 else str(count)
        return f". {many[0].upper()}{many[1:]} failed{self._first_failure()}" if count else ""

    def _first_failure(self) -> str:
        """Return the cause of the first failure, and where to look, as the end of a sentence."""
        first = next(result for result in self if result.error is not None)
        assert first.error is not None
        message = first.error.message.rstrip(".")
        place = without_passwords(self.experiment_path.rstrip("/"))
        file = without_passwords(f"{first.path}/error.txt")
        where = f". Its traceback is in {file}" if first.error.traceback and first.path else ""
        more = f". All failures: dasktune errors {place}" if place and len(self.errors) > 1 else ""
        return f", the first one ({first.trial_id}) with {message}{where}{more}"

    # Representations

    def __repr__(self) -> str:
        return grid_text(self._headline(), self._table())

    def _repr_html_(self) -> str:
        return html_summary(self._headline(), self._table())

    def _headline(self) -> str:
        counts = [f"{n} {s.value}" for s in PublicStatus if (n := self._count(s))]
        noun = "trial" if len(self) == 1 else "trials"
        what = f": {', '.join(counts)}" if counts else ""
        place = without_passwords(self.experiment_path)
        return f"ResultGrid of {len(self)} {noun}{what}, in {place}"

    def _table(self) -> list[list[str]]:
        return result_table(self._results, self._metric, self._mode)


def _grid_of(analysis: object) -> ResultGrid:
    # Imported here: the module of ExperimentAnalysis imports this one.
    from dasktune.tuner.analysis import ExperimentAnalysis

    hint = "Give ExperimentAnalysis(path), or use Tuner.restore(path, trainable).get_results()."
    is_one = isinstance(analysis, ExperimentAnalysis)
    check(is_one, "results", "an ExperimentAnalysis or a list of Result", analysis, hint)
    return analysis.to_grid()  # type: ignore[attr-defined, no-any-return]


def _scores(row: Mapping[str, Any], goals: Sequence[tuple[str, Mode]]) -> tuple[float, ...] | None:
    """Return the metrics, negated where lower is better; None if one is not finite."""
    scores = [score(row, name, mode) for name, mode in goals]
    defined = tuple(value for value in scores if value is not None and isfinite(value))
    return defined if len(defined) == len(goals) else None
