"""Update a progress display by the events of an experiment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import fsum
from typing import Final

from dasktune.experiment import ExperimentMachine, HandleResult
from dasktune.placement import ClusterShares
from dasktune.progress.display import Display
from dasktune.progress.progress import Progress
from dasktune.progress.progress_table import best_line, best_lines, failure_lines, format_brief
from dasktune.progress.trial_counts import TrialCounts
from dasktune.text.formatting import one_line, plural
from dasktune.trial.actions import FinishTrial
from dasktune.trial.events import (
    ExperimentEvent,
    ResultReported,
    SessionBegan,
    TimePassed,
    TrialEvent,
    TrialFailed,
)
from dasktune.trial.metrics import lookup
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

logger = logging.getLogger(__name__)

#: Maximum number of failures for which ``verbose=1`` prints a line; all failures are counted.
_MAX_FAILURE_LINES: int = 20

#: Resources that are shown if the cluster has any; others are shown if trials hold them.
_ALWAYS: Final = ("CPU", "GPU")

_GIB: Final = 1 << 30


class ProgressObserver:
    """Counts trials by an experiment's events, and updates a display.

    An event costs O(log trials). The first event costs O(results): a resumed experiment has
    results already. A display that raises is logged and not used again.

    The driver's loop calls every method, so pictures are made in the driver's thread, where the
    trials do not change meanwhile. A `BackgroundStream` writes them. Threads of the user may print
    meanwhile; the displays on a terminal coordinate with them.

    Parameters
    ----------
    display : Display
        The display.
    trial_counts : TrialCounts
        The counts that this observer updates.
    verbose : int, default=1
        With 2, a line is printed for each trial that ends; with 3, for each result, too.
    place : str, default=""
        The experiment's directory, for the summary.
    offers : callable, optional
        Returns the resources of each worker, by address and then by name of the resource.
    shares : callable, optional
        Returns what each experiment on the cluster holds and waits for; None if this one is alone.
    notes : sequence of str, optional
        Lines to print before the first progress.
    """

    def __init__(
        self,
        display: Display,
        trial_counts: TrialCounts,
        *,
        verbose: int = 1,
        place: str = "",
        offers: Callable[[], Mapping[str, Mapping[str, float]]] = dict,
        shares: Callable[[], ClusterShares | None] = lambda: None,
        notes: Sequence[str] = (),
    ) -> None:
        self._display: Display | None = display
        self._trial_counts = trial_counts
        self._verbose = verbose
        self._place = place
        self._offers = offers
        self._shares = shares
        self._notes = notes
        self._started: float | None = None
        self._finished_before = 0
        #: Whether this driver is taking over the trials of an earlier one.
        self._takes_over = False
        self._now = 0.0
        self._shown_best: tuple[float, str] | None = None
        self._failure_lines = 0

    def on_event(self, event: ExperimentEvent, handled: HandleResult, experiment: ExperimentMachine) -> None:
        """Count an event that was handled, and update the display if it is time."""
        display = self._display
        if display is None:
            return
        self._now = event.time
        self._trial_counts.total = experiment.total_trials
        if self._started is None:
            self._begin(experiment)
            for line in self._notes:
                self._try(partial(display.print_line, one_line(line)))
        else:
            self._trial_counts.update(event, handled)
            for line in self._trial_lines(display, event, handled, experiment):
                self._try(partial(display.print_line, one_line(line)))
        if isinstance(event, SessionBegan):
            self._takes_over = True
        elif self._takes_over and isinstance(event, TimePassed):
            # With this event the run begins. Until now trials that the user restarts still counted
            # as ended, so a picture would have shown the end of the last driver.
            self._takes_over = False
            self._finished_before = self._progress().finished
        if not self._takes_over and display.is_due(self._now, self._trial_counts.best != self._shown_best):
            self._shown_best = self._trial_counts.best
            self._try(lambda: display.update(self._progress(), self._trial_counts, self._now))

    def on_end(self, experiment: ExperimentMachine) -> None:
        """Show the final progress and a summary."""
        display = self._display
        if display is not None and self._started is not None:
            # No trial holds resources any more.
            progress = replace(self._progress(), usage="", waits_for="")
            self._try(lambda: display.end(progress, self._trial_counts, list(self._summary())))
        self.close()

    def close(self) -> None:
        """Close the display; later events are ignored."""
        display, self._display = self._display, None
        if display is not None:
            try:
                display.close()
            except Exception:
                logger.debug("the display could not be closed", exc_info=True)

    def _begin(self, experiment: ExperimentMachine) -> None:
        self._trial_counts.load((experiment.settings.metric, experiment.settings.mode))
        self._started = self._now
        self._finished_before = self._progress().finished

    def _try(self, call: Callable[[], None]) -> None:
        if self._display is None:
            return
        try:
            call()
        except Exception:
            logger.exception("progress is no longer shown: its display raised an exception")
            self.close()

    def _progress(self) -> Progress:
        trial_counts = self._trial_counts
        best, shares = trial_counts.best, self._shares()
        return Progress(
            counts=trial_counts.counts,
            total=trial_counts.total,
            results=trial_counts.results,
            metric=trial_counts.metric,
            best_value=None if best is None else trial_counts.best_value(best[1]),
            best_trial_id="" if best is None else best[1],
            elapsed_s=self._now - (self._started or 0.0),
            finished_before=self._finished_before,
            stopped_early=trial_counts.stopped_early,
            workers=trial_counts.workers,
            usage=usage_text(trial_counts.held, self._offers()),
            waits_for="" if shares is None else shares.waiting_text,
        )

    def _summary(self) -> Iterator[str]:
        line = best_line(self._trial_counts, self._trial_counts.metric, self._trial_counts.searched)
        if line:
            yield line
        elif self._trial_counts.metric is not None and self._trial_counts.counts[PublicStatus.TERMINATED]:
            name = one_line(self._trial_counts.metric)
            yield f"No trial has reported {name!r} as a number: report({{{name!r}: ...}})."
        width = None if self._display is None else self._display.width
        if self._display is not None and not self._display.shows_trials:
            yield from best_lines(self._trial_counts, width)
        yield from failure_lines(self._trial_counts, width=width)
        if self._place:
            yield f"Results: {self._place}"

    def _trial_lines(
        self, display: Display, event: ExperimentEvent, handled: HandleResult, experiment: ExperimentMachine
    ) -> Iterator[str]:
        """Yield the lines about single trials that an event causes."""
        finished = [action.trial_id for action in handled.actions if isinstance(action, FinishTrial)]
        if isinstance(event, TrialEvent) and handled.is_current:
            trial = experiment.trials[event.trial_id]
            if isinstance(event, ResultReported):
                if self._verbose > 2 and handled.is_new_result:
                    yield _result(trial, self._trial_counts.metric)
            elif isinstance(event, TrialFailed) and trial.error is not None:
                within_limit = display.shows_failures and self._failure_lines < _MAX_FAILURE_LINES
                if within_limit or self._verbose > 1:
                    self._failure_lines += 1
                    yield _failure(trial)
            elif trial.status.is_final and self._verbose > 1 and trial.trial_id not in finished:
                yield _end(trial, self._trial_counts.metric)
        for trial_id in finished if self._verbose > 1 else ():
            yield _end(experiment.trials[trial_id], self._trial_counts.metric)


def _failure(trial: Trial) -> str:
    message = trial.error.message.split("\n")[0] if trial.error is not None else ""
    again = "" if trial.status.public is PublicStatus.ERROR else "; it will be retried"
    return f"{trial.trial_id} failed: {one_line(message, 200)}{again}"


def _end(trial: Trial, metric: str | None) -> str:
    if trial.status.public is PublicStatus.ERROR:
        return f"{trial.trial_id} failed permanently: {trial.reason}"
    how = "stopped early" if trial.stopped_early else "ended"
    return f"{trial.trial_id} {how}{_figures(trial, metric)}"


def _result(trial: Trial, metric: str | None) -> str:
    return f"{trial.trial_id} reported{_figures(trial, metric)}"


def _figures(trial: Trial, metric: str | None) -> str:
    if not trial.history:
        return " without a result"
    value = "" if metric is None else f" {metric} {format_brief(lookup(trial.last_result, metric))}"
    return f"{value} at iteration {trial.last_iteration}"


def usage_text(held: Iterable[Mapping[str, float]], offers: Mapping[str, Mapping[str, float]]) -> str:
    """Return how much of each resource is held and available; empty if `offers` is empty.

    Parameters
    ----------
    held : iterable of mapping
        The resources of each running trial, by name.
    offers : mapping
        The resources of each worker, by address and then by name.

    Examples
    --------
    >>> usage_text([{"CPU": 1}, {"CPU": 0.5}], {"a": {"CPU": 2}, "b": {"CPU": 2, "GPU": 1}})
    '1.5/4 CPUs, 0/1 GPU'
    """
    if not offers:
        return ""
    used, total = _sum(held), _sum(offers.values())
    others = sorted({kind for kind, amount in used.items() if amount} - set(_ALWAYS))
    kinds = [kind for kind in _ALWAYS if used.get(kind) or total.get(kind)]
    return ", ".join(_format(kind, used.get(kind, 0), total.get(kind, 0)) for kind in (*kinds, *others))


def _sum(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for one in amounts:
        for kind, amount in one.items():
            parts.setdefault(kind, []).append(amount)
    return {kind: fsum(values) for kind, values in parts.items()}


def _format(kind: str, used: float, total: float) -> str:
    if kind == "memory":
        # A worker without a memory limit adds nothing to the total, so more may be held.
        limit = f"/{total / _GIB:.3g}" if total else ""
        return f"{used / _GIB:.3g}{limit} GiB memory"
    name = plural(kind, 1 if total == 1 else 2) if kind in _ALWAYS else kind
    return f"{round(used, 2):g}/{round(total, 2):g} {name}"
