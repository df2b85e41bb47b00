"""Create the progress observer of an experiment from the run configuration."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stderr
from typing import Any, Final, TextIO, cast

from dasktune.callback import TrialStorage
from dasktune.callback.stall import StallWatch
from dasktune.config import RunConfig
from dasktune.errors import without_passwords
from dasktune.experiment import ExperimentMachine, ExperimentSettings
from dasktune.placement import ClusterShares
from dasktune.progress.background_stream import BackgroundStream
from dasktune.progress.choose import choose_mode, open_display
from dasktune.progress.display import Display
from dasktune.progress.log_relay import added_handler, has_handlers, relayed_logs
from dasktune.progress.observer import ProgressObserver
from dasktune.progress.progress import Progress
from dasktune.progress.reporter import CLIReporter, JupyterNotebookReporter, ProgressReporter
from dasktune.progress.trial_counts import Order, TrialCounts
from dasktune.space.domain import Domain
from dasktune.storage.fs.temp_dirs import is_temporary
from dasktune.text.formatting import plural
from dasktune.trial.metrics import Mode, flatten

logger = logging.getLogger(__name__)

#: Seconds that the end of a run waits for the last picture and the summary to be written.
_LAST_S: Final = 1.0

#: Seconds that the end of a run waits for the user's log handlers.
_LOG_S: Final = 5.0


@contextmanager
def open_progress(
    run_config: RunConfig,
    experiment: ExperimentMachine,
    trial_storage: TrialStorage,
    param_space: Mapping[str, Any],
    offers: Callable[[], Mapping[str, Mapping[str, float]]] = dict,
    shares: Callable[[], ClusterShares | None] = lambda: None,
    *,
    notes: Sequence[str] = (),
    last_s: float = _LAST_S,
) -> Iterator[list[ProgressObserver]]:
    """Show the progress of an experiment while the context is open.

    A thread writes the progress, and the warnings of dasktune that no handler of the user gets.
    Another one calls the user's handlers of dasktune's log records. At the end of the context the
    first gets `last_s` seconds for what is left, and the other five. Then they are left behind.

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
    shares : callable, optional
        As for :class:`~dasktune.progress.observer.ProgressObserver`.
    notes : sequence of str, optional
        Lines to print before the first progress.
    last_s : float, default=1.0
        Seconds that the end waits for the last picture and the summary to be written.

    Yields
    ------
    list of ProgressObserver
        Observers that must receive every event of the experiment; none if nothing is shown.
    """
    stream = cast(TextIO, BackgroundStream(sys.stderr))
    with _written(stream, last_s):
        display = _display(run_config, experiment, stream)
        if display is None:
            with _warnings_to(stream), relayed_logs(_LOG_S):
                yield []
            return
        observer = ProgressObserver(
            display,
            _trial_counts(run_config, experiment, trial_storage, param_space),
            verbose=run_config.verbose,
            place=_place(trial_storage),
            offers=offers,
            shares=shares,
            notes=notes,
        )
        warnings = nullcontext() if display.redirects else _warnings_to(display.messages or stream)
        # The display ends last: with rich, handlers of the user write above it.
        with closing(observer), warnings, relayed_logs(_LOG_S):
            yield [observer]


@contextmanager
def _written(stream: TextIO, last_s: float) -> Iterator[None]:
    """Give a background stream a short time at the end, whatever happens."""
    try:
        yield
    finally:
        if isinstance(stream, BackgroundStream) and not stream.finish(last_s):
            logger.debug("the last texts are not shown: the output is not read")


@contextmanager
def _warnings_to(stream: TextIO) -> Iterator[None]:
    """Write dasktune's warnings to a stream inside the ``with`` block if nothing handles them.

    Otherwise Python would write them to ``sys.stderr`` itself, and wait for a terminal that does
    not read, also at the end of the process.
    """
    if has_handlers():
        yield
        return
    # Without a formatter it writes what Python writes then: the message alone.
    handler = logging.StreamHandler(stream)
    handler.setLevel(logging.WARNING)
    with added_handler(handler):
        yield


def _display(run_config: RunConfig, experiment: ExperimentMachine, stream: TextIO) -> Display | None:
    reporter = run_config.progress_reporter
    if not run_config.verbose:
        return None
    if reporter is None:
        return open_display(choose_mode(sys.stderr), stream)
    if not _set_up(reporter, experiment.total_trials, experiment.settings):
        return None
    return ReporterDisplay(reporter, lambda: (experiment.scheduler.debug_string(),), stream)


def _trial_counts(
    run_config: RunConfig,
    experiment: ExperimentMachine,
    trial_storage: TrialStorage,
    param_space: Mapping[str, Any],
) -> TrialCounts:
    ranking: tuple[str | None, Mode | None, Order]
    ranking = experiment.settings.metric, experiment.settings.mode, "best"
    if isinstance(run_config.progress_reporter, CLIReporter):
        ranking = run_config.progress_reporter.ranking
    metric, mode, order = ranking
    names = searched_names(param_space)
    return TrialCounts(
        experiment.trials, trial_storage, metric=metric, mode=mode, order=order, searched=names
    )


def _place(trial_storage: TrialStorage) -> str:
    place = "" if trial_storage.storage is None else without_passwords(trial_storage.storage.url)
    # A scikit-learn search deletes a temporary directory after the fit.
    return "" if is_temporary(place) else place


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
    """Passes the progress to a reporter.

    The reporter is called in the driver's thread, because it reads the trials. What it writes to
    ``sys.stderr`` goes to a background stream. A reporter that takes long is named in a warning.

    Parameters
    ----------
    reporter : ProgressReporter
        The reporter: one of dasktune, or the user's.
    sys_info : callable
        Returns more lines for the report.
    stream : text stream
        The stream for what the reporter writes to ``sys.stderr``.
    """

    #: Seconds between two calls of the reporter's `should_report`, which decides whether to report.
    interval_s = 0.1

    def __init__(
        self, reporter: ProgressReporter, sys_info: Callable[[], tuple[str, ...]], stream: TextIO
    ) -> None:
        super().__init__(stream)
        self._reporter = reporter
        self._sys_info = sys_info
        self._target = stream
        self._stalls = StallWatch()

    def update(self, progress: Progress, trial_counts: TrialCounts, now: float) -> None:
        """Call the reporter, but not one that only prints tables while they are not read."""
        self._next = now + self.interval_s
        only_prints = type(self._reporter) in (CLIReporter, JupyterNotebookReporter)
        if not (only_prints and self.stream.is_behind):
            self.show(progress, trial_counts)

    def show(self, progress: Progress, trial_counts: TrialCounts) -> None:
        """Call the user's reporter if its `should_report` returns True."""
        self._report(progress, trial_counts, done=False)

    def end(self, progress: Progress, trial_counts: TrialCounts, lines: Sequence[str]) -> None:
        """Call the user's reporter for the last time."""
        self._report(progress, trial_counts, done=True)

    def close(self) -> None:
        """Stop watching the reporter."""
        self._stalls.close()

    def _report(self, progress: Progress, trial_counts: TrialCounts, *, done: bool) -> None:
        self._stalls.what = f"progress reporter {type(self._reporter).__name__}"
        with self._stalls, redirect_stderr(self._target):
            if self._reporter.should_report(trial_counts, done=done):
                count = progress.workers
                workers = f"Trials run on {count} {plural('worker', count)}" if count else ""
                usage = f"Resources used: {progress.usage}" if progress.usage else ""
                waits = f"The experiment {progress.waits_for}" if progress.waits_for else ""
                lines = (text for text in (*self._sys_info(), usage, workers, waits) if text)
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
