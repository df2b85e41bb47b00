"""Feeds a display from the events of an experiment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from dasktune.experiment import Experiment
from dasktune.progress.board import Board
from dasktune.progress.display import Display
from dasktune.progress.progress import Progress
from dasktune.progress.table import best_line, failures
from dasktune.progress.text import crop, printable, short
from dasktune.progress.usage import told_usage
from dasktune.trial.actions import Action, FinishTrial
from dasktune.trial.events import (
    ExperimentEvent,
    ResultReported,
    TrialAddRequested,
    TrialEvent,
    TrialFailed,
)
from dasktune.trial.metrics import lookup
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

__all__ = ["ProgressObserver"]

logger = logging.getLogger(__name__)

#: Failures that are told of as they happen if nobody has asked for each; all are counted.
_TOLD: int = 20


class ProgressObserver:
    """Watches an experiment and lets a display show how far it is.

    An event costs O(log trials); the first one O(results), for a resumed experiment has some
    already. A display that raises is logged and not used again.

    Parameters
    ----------
    display : Display
        Shows it.
    board : Board
        Keeps the books of the trials for it.
    total : int, optional
        How many trials there will be; None if nobody knows.
    verbose : int, default=1
        2 tells of each trial that ends, 3 of each result, too.
    place : str, default=""
        Where the results are kept.
    offers : callable, optional
        Gives what each worker has for the trials, by address and then by name of the resource.
    """

    def __init__(
        self,
        display: Display,
        board: Board,
        *,
        total: int | None = None,
        verbose: int = 1,
        place: str = "",
        offers: Callable[[], Mapping[str, Mapping[str, float]]] = dict,
    ) -> None:
        self._display: Display | None = display
        self._board = board
        self._total = total
        self._verbose = verbose
        self._place = place
        self._offers = offers
        self._started: float | None = None
        self._finished_before = 0
        self._now = 0.0
        self._shown_best: tuple[float, str] | None = None
        self._told = 0

    def on_event(
        self, event: ExperimentEvent, actions: Sequence[Action], experiment: Experiment
    ) -> None:
        """See an event after it was handled."""
        display = self._display
        if display is None:
            return
        self._now = event.time
        if self._started is None:
            self._begin(experiment)
        else:
            self._expect_more(isinstance(event, TrialAddRequested))
            self._board.see(event, actions, experiment)
            for line in self._news(display, event, actions, experiment):
                self._try(partial(display.say, printable(line)))
        if display.is_due(self._now, self._board.best != self._shown_best):
            self._shown_best = self._board.best
            self._try(lambda: display.update(self._progress(), self._board, self._now))

    def on_end(self, experiment: Experiment) -> None:
        """Show how it ended."""
        display = self._display
        if display is not None and self._started is not None:
            # Nothing is held any more, and what there is does not matter now.
            progress = replace(self._progress(), usage="")
            self._try(lambda: display.end(progress, self._board, list(self._summary())))
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was; nothing is shown any more."""
        display, self._display = self._display, None
        if display is not None:
            try:
                display.close()
            except Exception:
                logger.debug("the display could not be closed", exc_info=True)

    def _expect_more(self, count: int) -> None:
        if self._total is not None:
            self._total += count

    def _begin(self, experiment: Experiment) -> None:
        self._board.load()
        self._expect_more(sum(trial.added for trial in experiment.trials.values()))
        self._started = self._now
        self._finished_before = self._progress().finished

    def _try(self, call: Callable[[], None]) -> None:
        if self._display is None:
            return
        try:
            call()
        except Exception:
            logger.exception("the progress is not shown any more: its display has raised")
            self.close()

    def _progress(self) -> Progress:
        board = self._board
        best = board.best
        return Progress(
            counts=board.counts,
            total=self._total,
            results=board.results,
            metric=board.metric,
            best_value=None if best is None else board.best_value(best[1]),
            best_trial_id="" if best is None else best[1],
            elapsed_s=self._now - (self._started or 0.0),
            finished_before=self._finished_before,
            stopped_early=board.stopped_early,
            workers=board.workers,
            usage=told_usage(board.held, self._offers()),
        )

    def _summary(self) -> Iterator[str]:
        line = best_line(self._board, self._board.metric, self._board.searched)
        if line:
            yield line
        elif self._board.metric is not None and self._board.counts[PublicStatus.TERMINATED]:
            name = printable(self._board.metric)
            yield f"No trial has reported {name!r} as a number: report({{{name!r}: ...}})."
        width = None if self._display is None else self._display.width
        yield from failures(self._board, width=width)
        if self._place:
            yield f"Results: {self._place}"

    def _news(
        self,
        display: Display,
        event: ExperimentEvent,
        actions: Sequence[Action],
        experiment: Experiment,
    ) -> Iterator[str]:
        """Yield what there is to say of single trials as it happens."""
        finished = [action.trial_id for action in actions if isinstance(action, FinishTrial)]
        if isinstance(event, TrialEvent) and experiment.heeded:
            trial = experiment.trials[event.trial_id]
            if isinstance(event, ResultReported):
                if self._verbose > 2 and experiment.brought_result:
                    yield _result(trial, self._board.metric)
            elif isinstance(event, TrialFailed) and trial.error is not None:
                told = display.tells_failures and self._told < _TOLD
                if told or self._verbose > 1:
                    self._told += 1
                    yield _failure(trial)
            elif trial.status.is_final and self._verbose > 1 and trial.trial_id not in finished:
                yield _end(trial, self._board.metric)
        for trial_id in finished if self._verbose > 1 else ():
            yield _end(experiment.trials[trial_id], self._board.metric)


def _failure(trial: Trial) -> str:
    message = trial.error.message.split("\n")[0] if trial.error is not None else ""
    again = "" if trial.status.public is PublicStatus.ERROR else "; it is tried again"
    return f"{trial.trial_id} failed: {crop(printable(message), 200)}{again}"


def _end(trial: Trial, metric: str | None) -> str:
    if trial.status.public is PublicStatus.ERROR:
        return f"{trial.trial_id} was given up: {trial.reason}"
    how = "stopped early" if trial.stopped_early else "ended"
    return f"{trial.trial_id} {how}{_figures(trial, metric)}"


def _result(trial: Trial, metric: str | None) -> str:
    return f"{trial.trial_id} reported{_figures(trial, metric)}"


def _figures(trial: Trial, metric: str | None) -> str:
    if not trial.history:
        return " without a result"
    value = "" if metric is None else f" {metric} {short(lookup(trial.last_result, metric))}"
    return f"{value} at iteration {trial.last_iteration}"
