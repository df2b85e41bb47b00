"""From what the user configured to who watches an experiment for it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dasktune.callback import TrialPlaces
from dasktune.config import RunConfig
from dasktune.errors import without_passwords
from dasktune.experiment import Experiment, ExperimentSettings
from dasktune.progress.board import Board, Order
from dasktune.progress.display import Display
from dasktune.progress.modes import choose_mode, open_display
from dasktune.progress.observer import ProgressObserver
from dasktune.progress.progress import Progress
from dasktune.progress.reporter import CLIReporter, ProgressReporter
from dasktune.progress.text import plural
from dasktune.space.domain import Domain
from dasktune.storage.workspace import is_temporary
from dasktune.trial.metrics import Mode, flatten

__all__ = ["ReporterDisplay", "searched_names", "watched"]

logger = logging.getLogger(__name__)


@contextmanager
def watched(
    run_config: RunConfig,
    experiment: Experiment,
    places: TrialPlaces,
    param_space: Mapping[str, Any],
    offers: Callable[[], Mapping[str, Mapping[str, float]]] = dict,
) -> Iterator[list[ProgressObserver]]:
    """Show how far an experiment is for as long as the context lasts.

    Parameters
    ----------
    run_config : RunConfig
        How it is to be shown.
    experiment : Experiment
        Which has not begun.
    places : TrialPlaces
        Where its trials keep things.
    param_space : mapping
        What it searches.
    offers : callable, optional
        Gives what each worker has for the trials, by address and then by name of the resource.

    Yields
    ------
    list of ProgressObserver
        Who has to watch the experiment for it.
    """
    settings, total = experiment.settings, experiment.search.total_samples
    ranking: tuple[str | None, Mode | None, Order] = (settings.metric, settings.mode, "best")
    reporter = run_config.progress_reporter
    display: Display | None = None
    if run_config.verbose and reporter is not None:
        if _is_ready(reporter, total, settings):
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
    board = Board(experiment.trials, places, metric=metric, mode=mode, order=order, searched=names)
    place = "" if places.storage is None else without_passwords(places.storage.url)
    if is_temporary(place):
        # Nobody could look there: a search removes what it was not told to keep.
        place = ""
    observer = ProgressObserver(
        display, board, total=total, verbose=run_config.verbose, place=place, offers=offers
    )
    try:
        yield [observer]
    finally:
        observer.close()


def _is_ready(reporter: Any, total: int | None, settings: ExperimentSettings) -> bool:
    about = {"total_samples": total, "metric": settings.metric, "mode": settings.mode}
    try:
        # Who is only like one, and has no use for it, need not have it.
        if hasattr(reporter, "setup"):
            reporter.setup(start_time=time.time(), **about)
    except Exception:  # the user's code may raise anything
        logger.exception("the progress is not shown: %r has raised in setup", reporter)
        return False
    return True


class ReporterDisplay(Display):
    """Lets a reporter of the user's show how far an experiment is.

    Parameters
    ----------
    reporter : ProgressReporter
        The user's.
    sys_info : callable
        Gives lines that it is told besides.
    """

    #: It decides itself when to report; this is how often it may be asked.
    interval_s = 0.1

    def __init__(self, reporter: ProgressReporter, sys_info: Callable[[], tuple[str, ...]]) -> None:
        super().__init__(sys.stderr)
        self._reporter = reporter
        self._sys_info = sys_info

    def show(self, progress: Progress, board: Board) -> None:
        """Let it report if it wants to."""
        self._report(progress, board, done=False)

    def end(self, progress: Progress, board: Board, lines: Sequence[str]) -> None:
        """Let it report the end."""
        self._report(progress, board, done=True)

    def _report(self, progress: Progress, board: Board, *, done: bool) -> None:
        if self._reporter.should_report(board, done=done):
            count = progress.workers
            workers = f"Trials run on {count} {plural('worker', count)}" if count else ""
            usage = f"Resources used: {progress.usage}" if progress.usage else ""
            told = (text for text in (*self._sys_info(), usage, workers) if text)
            self._reporter.report(board, done, *told)


def searched_names(param_space: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the parameters that differ between trials, nested ones joined by ``/``.

    Parameters
    ----------
    param_space : mapping
        What is searched.

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
