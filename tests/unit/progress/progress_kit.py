"""An experiment whose events an observer of its progress sees."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from numpy.random import SeedSequence

from dasktune.callback import TrialStorage
from dasktune.experiment import ExperimentMachine, ExperimentSettings
from dasktune.progress import PlainLines, ProgressObserver, TrialCounts
from dasktune.schedulers.fifo import FIFOScheduler
from dasktune.search.search_algorithm import SearchAlgorithm, Suggestion
from dasktune.stopper import NoopStopper
from dasktune.storage.fs.storage import Storage
from dasktune.trial.events import (
    ResourcesGranted,
    ResultReported,
    Suggested,
    TrialAddRequested,
    TrialEnded,
    TrialFailed,
    TrialLost,
    TrialStarted,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.user_error import ErrorInfo

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


class SizedTerminal(io.StringIO):
    """Keeps what is written, and has the size of a pseudo-terminal."""

    encoding = "utf-8"

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.number


@contextmanager
def pseudo_terminal(columns: int) -> Iterator[SizedTerminal]:
    """Yield a stream to a terminal of so many columns."""
    termios = pytest.importorskip("termios", reason="needs a pseudo-terminal")
    import fcntl
    import struct

    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        yield SizedTerminal(theirs)
    finally:
        os.close(ours)
        os.close(theirs)


class NoSearch(SearchAlgorithm):
    total_samples = None

    def setup(self, spec):
        pass

    def next_trial(self, trial_id):
        return Suggestion(config=None)


def trial_storage():
    return TrialStorage(
        trainable_name="train", storage=Storage("memory://progress"), checkpoint=lambda record: None
    )


class Run:
    """An experiment, its trial_counts, and where lines go."""

    def __init__(self, metric="loss", mode="min", display=PlainLines, verbose=1, order="best", place=""):
        #: What each worker has.
        self.offers = {}
        self.shares = None
        self.experiment = ExperimentMachine(
            ExperimentSettings(metric=metric, mode=mode, max_worker_losses=0),
            search=NoSearch(),
            scheduler=FIFOScheduler(),
            criteria=NoopStopper(),
            stopper=NoopStopper(),
            seed=SeedSequence(0),
        )
        self.stream = io.StringIO()
        self.verbose, self.order, self.place = verbose, order, place
        self.watch(display)

    def watch(self, display):
        settings = self.experiment.settings
        self.trial_counts = TrialCounts(
            self.experiment.trials,
            trial_storage(),
            metric=settings.metric,
            mode=settings.mode,
            order=self.order,
        )
        self.observer = ProgressObserver(
            display(self.stream),
            self.trial_counts,
            verbose=self.verbose,
            place=self.place,
            offers=lambda: self.offers,
            shares=lambda: self.shares,
        )

    def tell(self, event):
        handled = self.experiment.handle(event)
        self.observer.on_event(event, handled, self.experiment)

    def add(self, config=None, time=0.0):
        trial_id = self.experiment.next_trial_id
        config = {"lr": 0.1} if config is None else config
        self.tell(Suggested(trial_id=trial_id, config=config, time=time, resources=ONE_CPU))
        return trial_id

    def add_for_the_user(self, time=1.0):
        trial_id = self.experiment.free_trial_id
        self.tell(TrialAddRequested(trial_id=trial_id, config={"lr": 0.5}, time=time, resources=ONE_CPU))

    def start(self, config=None, worker="w", time=0.0):
        trial_id = self.add(config, time)
        self.tell(ResourcesGranted(trial_id=trial_id, time=time))
        self.tell(TrialStarted(trial_id=trial_id, incarnation=1, time=time, worker=worker))
        return trial_id

    def report(self, trial_id, seq, loss, /, time=1.0, **more):
        metrics = {"loss": loss, "training_iteration": seq, "time_total_s": 60.0 * seq, **more}
        self.tell(ResultReported(trial_id=trial_id, incarnation=1, seq=seq, metrics=metrics, time=time))

    def end(self, trial_id, time=1.0):
        self.tell(TrialEnded(trial_id=trial_id, incarnation=1, time=time))

    def fail(self, trial_id, message, time=1.0):
        error = ErrorInfo(message=message)
        self.tell(TrialFailed(trial_id=trial_id, incarnation=1, error=error, time=time))

    def lose(self, trial_id, reason, time=1.0):
        self.tell(TrialLost(trial_id=trial_id, incarnation=1, reason=reason, time=time))

    @property
    def lines(self):
        return self.stream.getvalue().splitlines()

    @property
    def last_line(self):
        return self.lines[-1]


class Printed:
    """What has been written to ``sys.stderr`` so far."""

    def __init__(self, capsys):
        self._capsys = capsys
        self._text = ""

    def getvalue(self):
        self._text += self._capsys.readouterr().err
        return self._text

    def forget(self):
        self.getvalue()
        self._text = ""
