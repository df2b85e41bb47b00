"""`whatif`: what an experiment would have cost under other trial schedulers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dasktune.errors import ConfigError, check
from dasktune.forecast.contenders import Schedulers
from dasktune.forecast.recorded_trial import RecordedTrial
from dasktune.forecast.what_if import WhatIf
from dasktune.results.result import Result
from dasktune.results.trial_forecast import Progress, check_searcher, forecast, goal_of, recorded_trials
from dasktune.space.checks import as_float, as_int
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.trial.metrics import Metric, Mode, Modes
from dasktune.tuner.analysis import ExperimentAnalysis
from dasktune.tuner.result_grid import ResultGrid

#: Seconds between two changes of the progress line.
_REDRAW_SECONDS: Final = 0.2


def whatif(
    experiment: str | os.PathLike[str] | ResultGrid | ExperimentAnalysis,
    schedulers: Schedulers | None = None,
    *,
    orders: int = 200,
    seed: int = 0,
    workers: int | None = None,
    max_t: int | None = None,
    min_kept: float = 0.9,
    metric: str | None = None,
    mode: Mode | None = None,
    ignore_searcher: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """Say what an experiment would have cost, and lost, under other trial schedulers.

    The full learning curves of the experiment are replayed in virtual time, many times in random
    orders, through the schedulers themselves. Nothing is trained. A curve is full if its trial has
    reached `max_t`, or if its own code has returned. Trials that were stopped, failed or paused
    before have no full curve: they are left out and counted in `WhatIf.censored`.

    Parameters
    ----------
    experiment : str, path, ResultGrid or ExperimentAnalysis
        The experiment, or its directory or URL, of which nothing is executed or unpickled. At least
        20 of its trials must have full curves.
    schedulers : mapping or iterable of TrialScheduler, str or tuple, optional
        The schedulers to compare, their names, or tuples of a name and a dict of arguments. A
        scheduler that is given by its name gets `max_t` by default. The keys of a mapping are the
        labels of the rows. By default `ASHAScheduler` and `PromotingASHAScheduler` with each
        ``grace_period`` of 1, 3, 9, ... below a third of `max_t`, `HyperBandScheduler`, all with
        ``reduction_factor=3``, and `MedianStoppingRule` with ``time_attr="training_iteration"``,
        once at each result and once only at 3, 9, ... (``check_at``).
    orders : int, default=200
        The number of random orders of the configurations, at least 20.
    seed : int, default=0
        The seed of the orders and of the schedulers' random draws, at least 0.
    workers : int, optional
        The number of trials that run at a time; by default as many as in the experiment.
    max_t : int, optional
        ``training_iteration`` up to which the curves are replayed; by default the highest one.
    min_kept : float, default=0.9
        A scheduler is recommended only if it keeps the best configuration at least with this
        probability; in (0, 1].
    metric : str, optional
        The metric to compare trials by; by default the optimised one.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better; by default the experiment's mode.
    ignore_searcher : bool, default=False
        Replay the configurations although their searcher has learned from results, as if they had
        been drawn at random.
    storage_options : mapping, optional
        Options of fsspec for a URL.
    progress : callable, optional
        ``progress(done, total)`` is called after each replay. By default a line on standard error
        shows the progress if that is a terminal.

    Returns
    -------
    WhatIf
        A row for each scheduler, and a recommendation.

    Raises
    ------
    ConfigError
        If fewer than 20 curves are full, a searcher has learned from results, trials are clones of
        population based training, a scheduler would clone trials or change their resources, no
        trial reports the metric or a scheduler's `time_attr`, or an argument is invalid.
    StorageError
        If there is no experiment, or its journal is damaged.

    See Also
    --------
    dasktune.testing.simulate : Run a whole experiment in virtual time.

    Notes
    -----
    The seconds of each iteration are the recorded ones. Starts, pauses and checkpoints take no time
    in a replay, and a paused trial resumes from where it was.

    Examples
    --------
    >>> import dasktune as tune
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for epoch in range(1, 28):
    ...         yield {"loss": config["x"] + 1 / epoch}, 60.0
    >>> config = tune.TuneConfig(metric="loss", mode="min", num_samples=40, seed=0)
    >>> results = simulate(train, param_space={"x": tune.uniform(0, 1)}, tune_config=config)
    >>> found = tune.whatif(results, ["asha"], workers=4, orders=20)
    >>> [row.scheduler for row in found.rows], found.recommended.scheduler
    (['FIFOScheduler', 'asha'], 'asha')
    """
    orders, seed = as_int("orders", orders, least=20), as_int("seed", seed, least=0)
    limit = None if max_t is None else as_int("max_t", max_t, least=1)
    check(0 < as_float("min_kept", min_kept) <= 1, "min_kept", "in (0, 1]", min_kept)
    trials, goals, storage = _read(experiment, storage_options or {})
    goal = goal_of(metric, mode, goals)
    if storage is not None and not ignore_searcher:
        check_searcher(storage)
    return forecast(
        trials,
        goal,
        schedulers=schedulers,
        orders=orders,
        seed=seed,
        min_kept=min_kept,
        workers=None if workers is None else as_int("workers", workers, least=1),
        max_t=limit,
        progress=progress or _ProgressLine(),
    )


def _read(
    experiment: object, storage_options: Mapping[str, Any]
) -> tuple[list[RecordedTrial], tuple[Metric, Modes], Storage | None]:
    """Return the trials, the goals and the directory of an experiment."""
    if isinstance(experiment, str | os.PathLike):
        storage = Storage(os.fspath(experiment), storage_options)
        spec = ExperimentStore(storage).spec()
        return recorded_trials(storage), (spec.get("metric"), spec.get("mode")), storage
    if isinstance(experiment, ExperimentAnalysis):
        experiment = experiment.to_grid()
    if not isinstance(experiment, ResultGrid):
        rule = "the path of an experiment, a ResultGrid or an ExperimentAnalysis"
        raise ConfigError(f"experiment must be {rule}, got {experiment!r}")
    found = experiment._storage
    trials = list(map(_from_result, experiment)) if found is None else recorded_trials(found)
    return trials, experiment._goals, found


def _from_result(result: Result) -> RecordedTrial:
    return RecordedTrial(
        rows=result.history,
        config=result.config,
        status=result.status,
        reason=result.reason,
        stopped_early=result.stopped_early,
    )


class _ProgressLine:
    """Shows the progress as a line on standard error, if that is a terminal.

    Parameters
    ----------
    timer : callable, default=time.monotonic
        Returns seconds on a monotonic clock.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._shown = sys.stderr is not None and sys.stderr.isatty()
        self._next = timer() + _REDRAW_SECONDS
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        if not self._shown:
            return
        if done < total and self._timer() >= self._next:
            sys.stderr.write(f"\r{done:,} of {total:,} replays ({done / total:.0%})")
            self._next, self._drawn = self._timer() + _REDRAW_SECONDS, True
        elif done == total and self._drawn:
            sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
