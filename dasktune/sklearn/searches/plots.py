"""Figures of a fitted search, which show its candidates like the trials of an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sklearn.utils.validation import check_is_fitted

from dasktune.results.result import Result
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.status import PublicStatus
from dasktune.tuner.result_grid import ResultGrid

#: Types that a figure can show on an axis, or as a category.
_PLAIN = (str, int, float, bool, type(None))


class Plots:
    """Adds :meth:`plot` to a search."""

    cv_results_: dict[str, Any]

    def plot(self, kind: str = "best_so_far", **options: Any) -> Any:
        """Return a Bokeh figure of the results; show it by ``bokeh.plotting.show``.

        Parameters
        ----------
        kind : str, default="best_so_far"
            The kind of figure, as in `ResultGrid.plot`: ``"best_so_far"``,
            ``"parallel_coordinates"``, ``"importance"``, ``"slice"``, ``"contour"``, or
            ``"learning_curves"`` if candidates were scored several times. An empty figure says why
            it is empty.
        **options
            Options of the function in `dasktune.dashboard.figures` that is named like `kind`.

        Raises
        ------
        ConfigError
            If `kind` does not exist, or an option is invalid.
        NotFittedError
            If the search has not been fitted.
        """
        check_is_fitted(self, "cv_results_")
        return self._to_plot().plot(kind, **options)

    def _to_plot(self) -> ResultGrid:
        """Return the candidates as trials, with one row of history for each score."""
        results = self.cv_results_
        metric = f"mean_test_{self._plotted_metric()}"
        # Successive halving has a row for each iteration that a candidate reached.
        rounds = results.get("iter", [0] * len(results["params"]))
        calls = results.get("training_iteration", [int(one) + 1 for one in rounds])
        spent = results["mean_fit_time"] + results["mean_score_time"]
        found: dict[str, tuple[Mapping[str, Any], list[dict[str, Any]]]] = {}
        begun = 0.0
        for params, score, step, seconds in zip(
            results["params"], results[metric], calls, spent, strict=True
        ):
            # cv_results_ has no time stamps, so the fits are shown as if they ran in sequence.
            begun += float(seconds)
            row = {metric: float(score), "training_iteration": int(step), "timestamp": begun}
            found.setdefault(repr(params), (params, []))[1].append(row)
        return grid_of(found.values(), metric)

    def _plotted_metric(self) -> str:
        refit = getattr(self, "refit", None)
        if getattr(self, "multimetric_", False):
            named = sorted(k for k in self.cv_results_ if k.startswith("mean_test_"))
            return refit if isinstance(refit, str) else named[0].removeprefix("mean_test_")
        return "score"


def grid_of(candidates: Iterable[tuple[Mapping[str, Any], list[dict[str, Any]]]], metric: str) -> ResultGrid:
    """Return candidates as the trials of an experiment that is not stored.

    Parameters
    ----------
    candidates : iterable of tuple
        The parameters of each candidate, and a row for each of its scores.
    metric : str
        The name of the score; higher is better.

    Examples
    --------
    >>> rows = [{"score": 0.5, "training_iteration": 1}]
    >>> grid_of([({"C": 1.0}, rows)], "score").get_best_result().config
    {'C': 1.0}
    """
    trials = [
        Result(
            trial_id=f"candidate_{number:05d}",
            config=plain_params(params),
            history=_timed(rows),
            path="",
            status=PublicStatus.TERMINATED,
            load_checkpoint=_no_checkpoint,
        )
        for number, (params, rows) in enumerate(candidates)
    ]
    return ResultGrid(trials, "search", metric=metric, mode="max")


def _timed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with ``time_total_s``, the seconds since the first row."""
    first = rows[0].get("timestamp", 0.0)
    return [{**row, "time_total_s": row.get("timestamp", 0.0) - first} for row in rows]


def plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters for a figure: all values but numbers, bools, strings and None as text."""
    return {name: _plain(value) for name, value in params.items()}


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") and not getattr(value, "ndim", 0) else value
    return value if isinstance(value, _PLAIN) else str(value)


def _no_checkpoint(record: CheckpointRecord) -> Checkpoint:
    raise FileNotFoundError(f"this search stored no checkpoint at {record.path}")
