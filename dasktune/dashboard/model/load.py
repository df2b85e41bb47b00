"""Load projections from journals, or from the results of trials."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import Any

from dasktune.dashboard.model.curve import MAX_POINTS
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.errors import ConfigError, StorageError
from dasktune.results.result import Result
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import check_journal_exists, read_journal
from dasktune.trial.metrics import Metric, Modes, number
from dasktune.trial.status import PublicStatus

logger = logging.getLogger(__name__)


def load_projection(
    path: str | os.PathLike[str] | Storage,
    *,
    storage_options: Mapping[str, Any] | None = None,
    metric: Metric = None,
    mode: Modes = None,
) -> ExperimentProjection:
    """Return the projection of an experiment's journal, finished or not.

    Nothing is unpickled and no user code is executed, so untrusted directories are safe to read.

    Parameters
    ----------
    path : str, path or Storage
        The experiment's directory, or its URL.
    storage_options : mapping, optional
        Options of fsspec for the URL.
    metric : str or list of str, optional
        The metric to show; by default the optimised one.
    mode : {"min", "max"} or list of them, optional
        Whether lower or higher values are better; by default the experiment's mode.

    Raises
    ------
    StorageError
        If there is no experiment, or its journal is damaged.

    Examples
    --------
    >>> load_projection("~/dasktune_results/train_2026").counts  # doctest: +SKIP
    {'PENDING': 0, 'RUNNING': 0, 'PAUSED': 0, 'TERMINATED': 40, 'ERROR': 0}
    """
    if not isinstance(path, Storage):
        path = Storage(path, storage_options or {})  # type: ignore[arg-type]
    projection = empty_projection(ExperimentStore(path).spec(), metric, mode)
    check_journal_exists(path, may_be_new=True)
    projection.extend(read_journal(path))
    return projection


def empty_projection(
    spec: Mapping[str, Any], metric: Metric = None, mode: Modes = None, max_points: int = MAX_POINTS
) -> ExperimentProjection:
    """Return the empty projection of an experiment.

    Parameters
    ----------
    spec : mapping
        The content of ``experiment.json``.
    metric : str or list of str, optional
        The metric to show; by default the optimised one.
    mode : {"min", "max"} or list of them, optional
        Whether lower or higher values are better; by default the experiment's mode.
    max_points : int, default=512
        Maximum number of points of a curve.

    Raises
    ------
    ConfigError
        If `metric` or `mode` is invalid.
    StorageError
        If the metric or mode in ``experiment.json`` is invalid.
    """
    scales, total = spec.get("scales"), spec.get("total_trials")
    scales = scales if isinstance(scales, Mapping) else {}
    try:
        return ExperimentProjection(
            name=str(spec.get("name", "")),
            metric=spec.get("metric") if metric is None else metric,
            mode=spec.get("mode") if mode is None else mode,
            total=total if type(total) is int else None,
            scales={name: scale for name, scale in scales.items() if scale in ("linear", "log")},
            max_points=max_points,
        )
    except ConfigError as error:
        if metric is None and mode is None:
            raise StorageError(f"experiment.json is damaged: {error}") from error
        raise


def projection_of_results(
    results: Iterable[Result],
    *,
    name: str = "",
    metric: Metric = None,
    mode: Modes = None,
    storage: Storage | None = None,
) -> ExperimentProjection:
    """Return the projection of the results of an experiment.

    Parameters
    ----------
    results : iterable of Result
        One for each trial.
    name : str, default=""
        The experiment's name.
    metric, mode
        The metric to show, and whether lower or higher values are better.
    storage : Storage, optional
        The experiment's directory. Without it, or without a readable journal, the projection is
        made from the results alone and has no rungs, clones, pauses or lost workers.
    """
    if storage is not None:
        try:
            return load_projection(storage, metric=metric, mode=mode)
        except StorageError as error:
            logger.info("figures are made from the results, as the journal cannot be read: %s", error)
    results = list(results)
    projection = ExperimentProjection(name=name, metric=metric, mode=mode, total=len(results))
    projection.extend(records_of_results(results))
    return projection


def records_of_results(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return journal records that describe results, in the order of their times.

    Parameters
    ----------
    results : iterable of Result
        One for each trial.
    """
    timed = [pair for result in results for pair in _timed(result)]
    # The suggestions come first, so that the trials have the order of the results.
    order = {"Suggested": 0}
    timed.sort(key=lambda pair: (order.get(pair[1]["event"], 1), pair[0]))
    first = min((time for time, record in timed if record["event"] != "Suggested"), default=0.0)
    return [{**record, "time": first if record["event"] == "Suggested" else time} for time, record in timed]


def _timed(result: Result) -> Iterator[tuple[float, dict[str, Any]]]:
    about = {"trial_id": result.trial_id, "incarnation": 1}
    start = {"do": "StartTrial", "resources": {"bundles": [{}], "strategy": "PACK"}, **about}
    yield nan, {"event": "Suggested", "config": result.config, "actions": [start], **about}
    rows = result.history
    if not rows:
        yield 0.0, _end(result)
        return
    times = _times(rows)
    worker = f"{rows[-1].get('hostname', '')}:{rows[-1].get('pid', '')}".strip(":")
    begin = times[0] - (number(rows[0].get("time_this_iter_s")) or 0.0)
    yield begin, {"event": "TrialStarted", "worker": worker, "status": "RUNNING", **about}
    for time, row in zip(times, rows, strict=True):
        yield time, {"event": "ResultReported", "metrics": row, "status": "RUNNING", **about}
    yield times[-1], _end(result)


def _times(rows: Sequence[dict[str, Any]]) -> list[float]:
    """Return when the rows of a trial were reported, from their time stamps."""
    last = number(rows[-1].get("timestamp")) or 0.0
    totals = [number(row.get("time_total_s")) or 0.0 for row in rows]
    return [last - (totals[-1] - total) for total in totals]


def _end(result: Result) -> dict[str, Any]:
    record: dict[str, Any] = {
        "event": "TrialEnded",
        "trial_id": result.trial_id,
        "incarnation": 1,
        "status": result.status.value,
    }
    if result.error is not None:
        error = {"message": result.error.message, "traceback": result.error.traceback}
        record.update(event="TrialFailed", error=error)
    elif result.status in (PublicStatus.PENDING, PublicStatus.RUNNING, PublicStatus.PAUSED):
        record["event"] = "TimePassed"
    elif result.reason:
        about = {"trial_id": result.trial_id, "incarnation": 1}
        stop = {"do": "StopTrial", "reason": result.reason, "early": result.stopped_early, **about}
        record.update(event="TrialStopped", actions=[stop])
    return record
