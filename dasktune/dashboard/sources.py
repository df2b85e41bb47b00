"""Where a chronicle comes from: a directory with a journal, or the results of trials."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from math import nan
from typing import Any

from dasktune.dashboard.chronicle import Chronicle
from dasktune.errors import ConfigError, StorageError
from dasktune.result import Result
from dasktune.storage.experiment_store import ExperimentStore
from dasktune.storage.journal_reader import read_journal
from dasktune.storage.location import Storage
from dasktune.trial.metrics import Metric, Modes, number
from dasktune.trial.status import PublicStatus

__all__ = ["chronicle_of_results", "described", "read_chronicle", "records_of_results"]

logger = logging.getLogger(__name__)


def read_chronicle(
    path: str | os.PathLike[str] | Storage,
    *,
    storage_options: Mapping[str, Any] | None = None,
    metric: Metric = None,
    mode: Modes = None,
) -> Chronicle:
    """Read what the journal of an experiment tells, finished or not.

    Nothing is unpickled and nothing of it is executed, so the directory may be anybody's.

    Parameters
    ----------
    path : str, path or Storage
        The experiment's directory, or its URL.
    storage_options : mapping, optional
        What fsspec needs for the URL.
    metric : str or list of str, optional
        What to look at; by default what was optimised.
    mode : {"min", "max"} or list of them, optional
        Which way it is better; likewise.

    Raises
    ------
    StorageError
        If there is no experiment, or its journal is damaged.

    Examples
    --------
    >>> read_chronicle("~/dasktune_results/train_2026").counts  # doctest: +SKIP
    {'PENDING': 0, 'RUNNING': 0, 'PAUSED': 0, 'TERMINATED': 40, 'ERROR': 0}
    """
    if not isinstance(path, Storage):
        path = Storage(path, storage_options or {})  # type: ignore[arg-type]
    chronicle = described(ExperimentStore(path).spec(), metric, mode)
    chronicle.extend(read_journal(path))
    return chronicle


def described(spec: Mapping[str, Any], metric: Metric = None, mode: Modes = None) -> Chronicle:
    """Return the empty chronicle of an experiment.

    Parameters
    ----------
    spec : mapping
        What its ``experiment.json`` says.
    metric, mode
        What to look at instead, and which way it is better.

    Raises
    ------
    StorageError
        If what `spec` says makes no sense.
    """
    scales, total = spec.get("scales"), spec.get("total_trials")
    scales = scales if isinstance(scales, Mapping) else {}
    try:
        return Chronicle(
            name=str(spec.get("name", "")),
            metric=spec.get("metric") if metric is None else metric,
            mode=spec.get("mode") if mode is None else mode,
            total=total if type(total) is int else None,
            scales={name: scale for name, scale in scales.items() if scale in ("linear", "log")},
        )
    except ConfigError as error:
        if metric is None and mode is None:
            raise StorageError(f"experiment.json is damaged: {error}") from error
        raise


def chronicle_of_results(
    results: Iterable[Result],
    *,
    name: str = "",
    metric: Metric = None,
    mode: Modes = None,
    storage: Storage | None = None,
) -> Chronicle:
    """Return what the trials of an experiment have gone through.

    Parameters
    ----------
    results : iterable of Result
        One for each trial.
    name : str, default=""
        The experiment's.
    metric, mode
        What to look at, and which way it is better.
    storage : Storage, optional
        Where its journal is. Without it, or if it cannot be read any more, what the results tell
        must do: they know nothing of rungs, clones, pauses and losses.
    """
    if storage is not None:
        try:
            return read_chronicle(storage, metric=metric, mode=mode)
        except StorageError as error:
            logger.info("figures are made of the results, as there is no journal: %s", error)
    results = list(results)
    chronicle = Chronicle(name=name, metric=metric, mode=mode, total=len(results))
    chronicle.extend(records_of_results(results))
    return chronicle


def records_of_results(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return records that the journal might have had, in the order of their times.

    Parameters
    ----------
    results : iterable of Result
        One for each trial.
    """
    timed = [pair for result in results for pair in _timed(result)]
    # All trials come first, as their order is that of the results.
    order = {"Suggested": 0}
    timed.sort(key=lambda pair: (order.get(pair[1]["event"], 1), pair[0]))
    first = min((time for time, record in timed if record["event"] != "Suggested"), default=0.0)
    return [
        {**record, "time": first if record["event"] == "Suggested" else time}
        for time, record in timed
    ]


def _timed(result: Result) -> Iterator[tuple[float, dict[str, Any]]]:
    about = {"trial_id": result.trial_id}
    yield nan, {"event": "Suggested", "config": result.config, "status": "PENDING", **about}
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


def _times(rows: list[dict[str, Any]]) -> list[float]:
    """Return when the rows of a trial were reported, as exactly as they tell."""
    last = number(rows[-1].get("timestamp")) or 0.0
    totals = [number(row.get("time_total_s")) or 0.0 for row in rows]
    return [last - (totals[-1] - total) for total in totals]


def _end(result: Result) -> dict[str, Any]:
    record: dict[str, Any] = {
        "event": "TrialEnded",
        "trial_id": result.trial_id,
        "status": result.status.value,
    }
    if result.error is not None:
        told = {"message": result.error.message, "traceback": result.error.traceback}
        record.update(event="TrialFailed", error=told)
    elif result.status in (PublicStatus.PENDING, PublicStatus.RUNNING, PublicStatus.PAUSED):
        record["event"] = "TimePassed"
    elif result.reason:
        stop = {"do": "StopTrial", "trial_id": result.trial_id, "reason": result.reason}
        record.update(event="TrialStopped", actions=[stop])
    return record
