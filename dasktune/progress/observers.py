"""Create the progress observer of an experiment from the run configuration."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dasktune.callback import TrialStorage
from dasktune.config import RunConfig
from dasktune.errors import without_passwords
from dasktune.experiment import ExperimentMachine, ExperimentSettings
from dasktune.progress.choose import choose_mode, open_display
from dasktune.progress.display import Display
from dasktune.progress.observer import ProgressObserver
from dasktune.progress.progress import Progress
from dasktune.progress.reporter import CLIReporter, ProgressReporter
from dasktune.progress.trial_counts import Order, TrialCounts
from dasktune.space.domain import Domain
from dasktune.storage.fs.temp_dirs import is_temporary
from dasktune.text.formatting import plural
from dasktune.trial.metrics import Mode, flatten

__all__ = ["ReporterDisplay", "open_progress", "searched_names"]

logger = logging.getLogger(__name__)


@contextmanager
def open_progress(
    run_config: RunConfig,
    experiment: ExperimentMachine,
    trial_storage: TrialStorage,
    param_space: Mapping[str, Any],
    offers: Callable[[], Mapping[str, Mapping[str, float]]] = dict,
) -> Iterator[list[ProgressObserver]]:
    """Show the progress of an experiment while the context is open.

    Parameters
    ----------
    run_config : RunConfig
        The run configuration; its ``verbose`` and ``progress_reporter`` are used.
    experiment : ExperimentMachine
        The experiment, before its first event.
    trial_storage : TrialStorage
        The directories of its trials.
    param_space : mapping
        The search space.
    offers : callable, optional
        Returns the resources of each worker, by address and then by name of the resource.

    Yields
    ------
    list of ProgressObserver
        Observers that must receive every event of the experiment; none if nothing is shown.
    """
    settings, total = experiment.settings, experiment.search.total_samples
    ranking: tuple[str | None, Mode | None, Order] = (settings.metric, settings.mode, "best")
    reporter = run_config.progress_reporter
    display: Display | None = None
    if run_config.verbose and reporter is not None:
        if _set_up(reporter, total, settings):
            display = ReporterDisplay(reporter, lambda: (experiment.scheduler.debug_string(),))
        if isinstance(reporter, CLIReporter):
            ranking = reporter.ranking
    elif run_config.verbose:
        display = open_display(choose_mode(sys.stderr), sys.stderr)
    if display is None:
        yield []
        return
    metric, mode, order = ranking
    names = searched_names(param_space)
    trial_counts = TrialCounts(
        experiment.trials, trial_storage, metric=metric, mode=mode, order=order, searched=names
    )
    place = "" if trial_storage.storage is None else without_passwords(trial_storage.storage.url)
    if is_temporary(place):
        # A scikit-learn search deletes this directory after the fit.
        place = ""
    observer = ProgressObserver(
        display, trial_counts, total=total, verbose=run_config.verbose, place=place, offers=offers
    )
    try:
        yield [observer]
    finally:
        observer.close()


def _set_up(reporter: Any, total: int | None, settings: ExperimentSettings) -> bool:
    about = {"total_samples": total, "metric": settings.metric, "mode": settings.mode}
    try:
        # A reporter need not derive from ProgressReporter, so it may lack `setup`.
        if hasattr(reporter, "setup"):
            reporter.setup(start_time=time.time(), **about)
    except Exception:  # the user's code may raise anything
        logger.exception("progress is not shown: %r raised an exception in setup", reporter)
        return False
    return True


class ReporterDisplay(Display):
    """Passes the progress to a reporter of the user.

    Parameters
    ----------
    reporter : ProgressReporter
        The user's reporter.
    sys_info : callable
        Returns more lines for the report.
    """

    #: Seconds between two calls of the reporter's `should_report`, which decides whether to report.
    interval_s = 0.1

    def __init__(self, reporter: ProgressReporter, sys_info: Callable[[], tuple[str, ...]]) -> None:
        super().__init__(sys.stderr)
        self._reporter = reporter
        self._sys_info = sys_info

    def show(self, progress: Progress, trial_counts: TrialCounts) -> None:
        """Call the user's reporter if its `should_report` returns True."""
        self._report(progress, trial_counts, done=False)

    def end(self, progress: Progress, trial_counts: TrialCounts, lines: Sequence[str]) -> None:
        """Call the user's reporter for the last time."""
        self._report(progress, trial_counts, done=True)

    def _report(self, progress: Progress, trial_counts: TrialCounts, *, done: bool) -> None:
        if self._reporter.should_report(trial_counts, done=done):
            count = progress.workers
            workers = f"Trials run on {count} {plural('worker', count)}" if count else ""
            usage = f"Resources used: {progress.usage}" if progress.usage else ""
            lines = (text for text in (*self._sys_info(), usage, workers) if text)
            self._reporter.report(trial_counts, done, *lines)


def searched_names(param_space: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the parameters that differ between trials, nested ones joined by ``/``.

    Parameters
    ----------
    param_space : mapping
        The search space.

    Examples
    --------
    >>> import dasktune as tune
    >>> searched_names({"x": tune.uniform(0, 1), "net": {"n": tune.grid_search([1, 2])}, "k": 3})
    ('x', 'net/n')
    """
    names = []
    for name, value in flatten(param_space).items():
        above, _, last = name.rpartition("/")
        if last == "grid_search" and above:
            names.append(above)
        elif isinstance(value, Domain):
            names.append(name)
    return tuple(names)
