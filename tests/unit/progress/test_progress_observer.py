from __future__ import annotations

import io
from math import nan

import pytest
from numpy.random import SeedSequence

from dasktune.experiment import Experiment, ExperimentSettings
from dasktune.progress import ProgressLine, ProgressObserver
from dasktune.runner.ports import Observer
from dasktune.schedulers.fifo import FIFOScheduler
from dasktune.search.searcher import SearchAlgorithm, Suggestion
from dasktune.stopper import NoopStopper
from dasktune.trial.events import (
    ResourcesGranted,
    ResultReported,
    Suggested,
    TimePassed,
    TrialEnded,
    TrialStarted,
)
from dasktune.trial.resources import PlacementGroupFactory


class NoSearch(SearchAlgorithm):
    total_samples = None

    def setup(self, spec):
        pass

    def next_trial(self, trial_id):
        return Suggestion(config=None)


class Run:
    """An experiment whose events an observer sees."""

    def __init__(self, metric="loss", mode="min", min_interval_s=0.0):
        self.experiment = Experiment(
            ExperimentSettings(metric=metric, mode=mode),
            search=NoSearch(),
            scheduler=FIFOScheduler(),
            criteria=NoopStopper(),
            stopper=NoopStopper(),
            seed=SeedSequence(0),
        )
        self.stream = io.StringIO()
        self.watch(min_interval_s)

    def watch(self, min_interval_s=0.0):
        settings = self.experiment.settings
        line = ProgressLine(
            self.stream,
            metric=settings.metric,
            mode=settings.mode,
            min_interval_s=min_interval_s,
        )
        self.observer: Observer = ProgressObserver(line)

    def tell(self, event):
        actions = self.experiment.handle(event)
        self.observer.on_event(event, actions, self.experiment)

    def start(self):
        trial_id = self.experiment.next_trial_id
        resources = PlacementGroupFactory([{"CPU": 1}])
        self.tell(Suggested(trial_id=trial_id, config={}, time=0.0, resources=resources))
        self.tell(ResourcesGranted(trial_id=trial_id, time=0.0))
        self.tell(TrialStarted(trial_id=trial_id, incarnation=1, time=0.0, worker="w"))
        return trial_id

    def report(self, trial_id, seq, loss, time=1.0):
        metrics = {"loss": loss, "training_iteration": seq}
        self.tell(
            ResultReported(trial_id=trial_id, incarnation=1, seq=seq, metrics=metrics, time=time)
        )

    @property
    def last_line(self):
        return self.stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize(("mode", "best"), [("min", "1"), ("max", "3")])
def test_the_line_follows_the_experiment(mode, best):
    run = Run(mode=mode)
    trial_id = run.start()
    for seq, loss in enumerate([2.0, nan, 3.0, 1.0, 2.0], start=1):
        run.report(trial_id, seq, loss)
    assert "0 trials done · 1 running · 0 errors" in run.last_line
    assert f"best loss {best} ({trial_id})" in run.last_line
    run.tell(TrialEnded(trial_id=trial_id, incarnation=1, time=62.0))
    assert "1 trial done · 0 running" in run.last_line
    assert run.last_line.endswith("01:02")


def test_without_a_metric_results_are_counted():
    run = Run(metric=None, mode=None)
    trial_id = run.start()
    run.report(trial_id, 1, 0.5)
    run.report(trial_id, 2, 0.5)
    assert " · 2 results · " in run.last_line


def test_a_resumed_experiment_remembers_its_best():
    run = Run()
    trial_id = run.start()
    run.report(trial_id, 1, 0.5)
    run.watch()
    run.report(trial_id, 2, 0.7)
    assert f"best loss 0.5 ({trial_id})" in run.last_line


def test_the_end_is_shown_however_new_the_last_line_is():
    run = Run(min_interval_s=100.0)
    trial_id = run.start()
    run.report(trial_id, 1, 0.5)
    assert run.stream.getvalue().count("\n") == 1
    run.observer.on_end(run.experiment)
    assert "best loss 0.5" in run.last_line


def test_an_experiment_without_events_ends_in_silence():
    run = Run()
    run.observer.on_end(run.experiment)
    assert run.stream.getvalue() == ""


def test_time_that_passes_is_shown():
    run = Run()
    run.tell(TimePassed(time=0.0))
    run.tell(TimePassed(time=7.0))
    assert run.last_line.endswith("00:07")
