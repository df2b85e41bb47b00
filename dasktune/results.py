"""What came of an experiment, as its user reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from dasktune.comparison import Scope, best_row
from dasktune.errors import ConfigError, TrialError, TuneError, check, without_passwords
from dasktune.result import AUTO_FILLED, Result, checked_mode, is_auto_filled, require_pandas
from dasktune.result_table import ranked_results, result_table, table_html, table_text
from dasktune.schedulers.fronts import Fronts, hypervolume
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.metrics import Metric, Mode, Modes, check_goals, flatten, score
from dasktune.trial.retention import Retention
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

if TYPE_CHECKING:
    import os

    import pandas as pd

    from dasktune.dashboard.chronicle import Chronicle
    from dasktune.storage.checkpoint import Checkpoint
    from dasktune.storage.location import Storage

__all__ = ["AUTO_FILLED", "NoResultError", "Result", "ResultGrid", "Scope"]


class NoResultError(TuneError, RuntimeError):
    """No trial has a result that can be compared."""


class ResultGrid(Sequence[Result]):
    """What came of an experiment: its trials' results, in the order in which the trials were made.

    Parameters
    ----------
    results : iterable of Result
        One for each trial.
    experiment_path : str
        Where the experiment is kept.
    metric : str or list of str, optional
        What was optimised; a list if there were several goals.
    mode : {"min", "max"}, optional
        Which way it is better; a list, one for each, if `metric` is one.
    storage : Storage, optional
        Where its journal is, which figures tell more from than from the results.

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
        results: Iterable[Result],
        experiment_path: str,
        metric: Metric = None,
        mode: Modes = None,
        storage: Storage | None = None,
    ) -> None:
        self._results = list(results)
        self._storage = storage
        #: What the figures were last made of, and for which goals.
        self._chronicle: tuple[object, Chronicle] | None = None
        #: As it was optimised; the next two are None if there were several goals.
        self._goals = metric, mode
        self._metric = None if isinstance(metric, list) else metric
        self._mode = None if isinstance(mode, list) else mode
        #: Where the experiment is kept: a path or a URL.
        self.experiment_path = experiment_path

    @classmethod
    def from_trials(
        cls,
        trials: Iterable[Trial],
        experiment_path: str,
        metric: Metric,
        mode: Modes,
        load_checkpoint: Callable[[CheckpointRecord], Checkpoint],
        retention: Retention | None = None,
        storage: Storage | None = None,
    ) -> ResultGrid:
        """Read it off the driver's books.

        Parameters
        ----------
        trials : iterable of Trial
            All trials of the experiment.
        experiment_path : str
            Where the experiment is kept.
        metric : str, list of str or None
            What was optimised.
        mode : {"min", "max"}, list of them or None
            Which way it is better.
        load_checkpoint : callable
            Opens a record's checkpoint. The results travel with it if it can be pickled.
        retention : Retention, optional
            By what checkpoints were kept.
        storage : Storage, optional
            Where its journal is.
        """
        base, kept = experiment_path.rstrip("/"), retention or Retention()
        results = [
            Result.from_trial(
                trial, f"{base}/trials/{trial.folder}", load_checkpoint, kept, storage
            )
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
        return self._results[index]

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem that `experiment_path` lies in; None of a simulation."""
        return None if self._storage is None else self._storage.fs

    @property
    def errors(self) -> list[TrialError]:
        """Why trials failed for good, in the order of the trials."""
        return [result.error for result in self if result.error is not None]

    @property
    def num_errors(self) -> int:
        """How many trials failed for good."""
        return self._count(PublicStatus.ERROR)

    @property
    def num_terminated(self) -> int:
        """How many trials came to their end, or were stopped."""
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
        """Return the trial that was best.

        Parameters
        ----------
        metric : str, optional
            What to compare; by default what was optimised. Nested names are joined by ``/``.
        mode : {"min", "max"}, optional
            Which way it is better; by default as it was optimised.
        scope : {"last", "all", "avg", "last-5-avg", "last-10-avg"}, default="last"
            What of a trial counts: its last value, its best one, or the mean of all, of the last 5
            or of the last 10 rows that have the metric.
        filter_nan_and_inf : bool, default=True
            Leave out what is NaN or infinite: under ``"all"`` such rows, otherwise trials that come
            to such a value. NaN is the worst value if it is not left out.

        Returns
        -------
        Result
            The first of the best; the only one there is, whatever it reported.

        Raises
        ------
        ConfigError
            If there is more than one trial, and it is open what to compare or which way.
        NoResultError
            If no trial has a value to compare. It is a RuntimeError, too.
        """
        if len(self) == 1:
            return self[0]
        if not self:
            raise NoResultError("there is no trial to take the best of")
        metric, mode = self._goal(metric, mode)
        ranked = ranked_results(self._results, metric, mode, scope, finite=filter_nan_and_inf)
        if not ranked:
            raise NoResultError(self._why_none(metric))
        return ranked[0]

    def get_pareto_front(
        self, metric: list[str] | None = None, mode: list[Mode] | None = None
    ) -> list[Result]:
        """Return the trials that no other one dominates: nowhere worse, and somewhere better.

        Parameters
        ----------
        metric : list of str, optional
            What to compare by the last results; by default what was optimised.
        mode : list of {"min", "max"}, optional
            Which way each is better; by default as it was optimised.

        Returns
        -------
        list of Result
            In the order of the trials; equals of one that is there are there, too. Trials that lack
            a metric, or have none that is finite, are left out.

        Raises
        ------
        ConfigError
            If it is open what to compare, or it is a single metric.

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
        fronts = Fronts([scores for scores, _ in scored if scores is not None]).state()
        best = {tuple(point) for point in fronts[0]} if fronts else set()
        return [result for scores, result in scored if scores in best]

    def get_hypervolume(
        self,
        reference_point: Sequence[float],
        metric: list[str] | None = None,
        mode: list[Mode] | None = None,
    ) -> float:
        """Return how much the Pareto front dominates of what is better than a reference point.

        Larger is better. Of two experiments, compare it with the same reference point only.

        Parameters
        ----------
        reference_point : sequence of float
            A value for each metric that is just not good enough; trials that are not better in all
            of them add nothing.
        metric : list of str, optional
            What to compare by the last results; by default what was optimised.
        mode : list of {"min", "max"}, optional
            Which way each is better; by default as it was optimised.

        Returns
        -------
        float
            In the product of the metrics' units, exact for any number of metrics; with more than
            four and hundreds of trials on the front it takes long.

        Raises
        ------
        ConfigError
            If it is open what to compare, it is a single metric, or the reference point has not a
            finite number for each.
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
            Take each trial's row in which this metric was best; by default its last row.
        filter_mode : {"min", "max"}, optional
            Which way `filter_metric` is better; by default as the experiment was optimised.

        Returns
        -------
        DataFrame
            ``trial_id``, the metrics, and the configurations as ``config/a/b``.

        Raises
        ------
        ConfigError
            If pandas is missing, or if it is open what is best.
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
            rows.append({"trial_id": result.trial_id, **own, **config})
        return require_pandas().DataFrame(rows)

    # Figures

    def plot(
        self,
        kind: str = "best_so_far",
        *,
        metric: Metric = None,
        mode: Modes = None,
        **options: Any,
    ) -> Any:
        """Return a figure of Bokeh's, to be shown by ``bokeh.plotting.show``.

        Parameters
        ----------
        kind : str, default="best_so_far"
            ``"best_so_far"``, ``"learning_curves"``, ``"parallel_coordinates"``, ``"importance"``,
            ``"slice"``, ``"contour"``, ``"timeline"``, ``"resources"``, ``"rungs"``, ``"lineage"``,
            ``"objectives"`` or ``"hypervolume"``.
        metric : str or list of str, optional
            What to look at; by default what was optimised.
        mode : {"min", "max"} or list of them, optional
            Which way it is better; likewise.
        **options
            Those of the function of that name in `dasktune.dashboard.figures`.

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
        # Bokeh takes a while to import.
        from dasktune.dashboard.figures import plot

        return plot(self._told(metric, mode), kind, **options)

    @overload
    def to_html(self, path: None = None) -> str: ...

    @overload
    def to_html(self, path: str | os.PathLike[str]) -> None: ...

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Return a report of the experiment as one HTML page, which needs nothing else.

        Parameters
        ----------
        path : str or path, optional
            A file that it is written to instead.

        Returns
        -------
        str or None
            The page; None if it is written to a file, as a notebook would show two megabytes.

        Examples
        --------
        >>> from dasktune.testing import simulate
        >>> def train(config):
        ...     yield {"loss": config["x"]}, 1.0
        >>> simulate(train, param_space={"x": 1}).to_html().startswith("<!DOCTYPE html>")
        True
        """
        from dasktune.dashboard.report import to_html

        page = to_html(self._told(None, None))
        if path is None:
            return page
        Path(path).expanduser().write_text(page, encoding="utf-8")
        return None

    def _told(self, metric: Metric, mode: Modes) -> Chronicle:
        from dasktune.dashboard.sources import chronicle_of_results

        goals = (metric or self._goals[0], mode or self._goals[1])
        if self._chronicle is None or self._chronicle[0] != goals:
            name = without_passwords(self.experiment_path).rstrip("/").rpartition("/")[2]
            told = chronicle_of_results(
                self, name=name, metric=goals[0], mode=goals[1], storage=self._storage
            )
            self._chronicle = goals, told
        return self._chronicle[1]

    def __getstate__(self) -> dict[str, Any]:
        # It can be made again.
        return {**self.__dict__, "_chronicle": None}

    def _several_goals(
        self, metric: list[str] | None, mode: list[Mode] | None
    ) -> list[tuple[str, Mode]]:
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
            hint = f". There are several: choose one of {self._goals[0]}, or get_pareto_front()."
        if metric is None:
            raise ConfigError(f"metric must be the name of a reported metric, got None{hint}")
        return metric, checked_mode(mode or self._mode, hint=hint)

    def _why_none(self, metric: str) -> str:
        names = {name for r in self for row in r.history for name in flatten(row)}
        if metric in names:
            values = (flatten(row).get(metric) for r in self for row in r.history)
            example = next((value for value in values if value is not None), None)
            return (
                f"{metric!r} is in no trial a number that counts, but {example!r}, for example "
                "(filter_nan_and_inf=True leaves out NaN and infinity)"
            )
        own = sorted(name for name in names if not is_auto_filled(name))
        close = get_close_matches(metric, own, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        missing = f"none of the {len(self)} trials reported {metric!r}"
        if own:
            return f"{missing}; reported: {', '.join(own)}{hint}"
        if self.errors:
            first = self.errors[0]
            return (
                f"{missing}: {len(self.errors)} failed before that, the first one "
                f"({first.trial_id}) with {first.message}"
            )
        return (
            f"{missing}; reported: nothing. Call tune.report({{{metric!r}: ...}}) in the trainable"
        )

    # How it shows itself

    def __repr__(self) -> str:
        return table_text(self._headline(), self._table())

    def _repr_html_(self) -> str:
        return table_html(self._headline(), self._table())

    def _headline(self) -> str:
        counts = [f"{n} {s.value}" for s in PublicStatus if (n := self._count(s))]
        noun = "trial" if len(self) == 1 else "trials"
        what = f": {', '.join(counts)}" if counts else ""
        place = without_passwords(self.experiment_path)
        return f"ResultGrid of {len(self)} {noun}{what}, in {place}"

    def _table(self) -> list[list[str]]:
        return result_table(self._results, self._metric, self._mode)


def _scores(row: Mapping[str, Any], goals: Sequence[tuple[str, Mode]]) -> tuple[float, ...] | None:
    """Return all metrics turned so that higher is better, or None if one is not finite."""
    scores = [score(row, name, mode) for name, mode in goals]
    defined = tuple(value for value in scores if value is not None and isfinite(value))
    return defined if len(defined) == len(goals) else None
