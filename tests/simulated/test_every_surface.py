"""Whatever happens in an experiment, each surface shows the same facts of its trials."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_commands_replayed import BusyCluster, RestlessUser
from test_recall import facts
from test_replay import SCHEDULERS, Recorder, fresh

from dasktune.callback import TrialStorage
from dasktune.cli.commands.trials import TrialTable
from dasktune.control.views import experiment_view, trials_view
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.experiment import ExperimentMachine
from dasktune.progress.trial_counts import TrialCounts
from dasktune.results.journal_trials import apply_records
from dasktune.runner import TrialRunner
from dasktune.runner.measurement import Durations, measure
from dasktune.runner.replay import replay
from dasktune.testing import ManualClock
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

pytestmark = pytest.mark.usefixtures("quick_bandit")

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])

#: What each surface shows of a trial.
SHOWN = ("status", "reason", "failures", "losses", "iteration", "worker")


def shown_of(trial: Trial) -> dict[str, Any]:
    reason = trial.reason or trial.pause_reason
    status, iteration = trial.public_status.value, trial.last_iteration
    values = (status, reason, trial.failures, trial.losses, iteration, trial.worker)
    return dict(zip(SHOWN, values, strict=True))


class Surfaces:
    """Follows the journal as its readers do, and compares them with the experiment now and then."""

    def __init__(self, store: Recorder) -> None:
        self.store, self.seen, self.looks = store, 0, 0
        self.folded: dict[str, Trial] = {}
        self.projection = ExperimentProjection(metric="loss", mode="min")
        self.counts: TrialCounts | None = None
        self.errors: list[BaseException] = []

    def on_event(self, event: Any, handled: Any, experiment: ExperimentMachine) -> None:
        if self.counts is None:
            places = TrialStorage(trainable_name="curve", storage=None, checkpoint=lambda record: None)
            self.counts = TrialCounts(experiment.trials, places)
        self.counts.update(event, handled)
        if len(self.store.records) >= self.seen + 7:
            self.on_end(experiment)

    def on_end(self, experiment: ExperimentMachine) -> None:
        try:
            self.compare(experiment)
        except BaseException as error:  # the runner survives what an observer raises
            self.errors.append(error)

    def compare(self, experiment: ExperimentMachine) -> None:
        new, self.seen = self.store.records[self.seen :], len(self.store.records)
        self.looks += 1
        apply_records(self.folded, new)
        self.projection.extend(new)
        assert self.projection.malformed == 0
        live = {key: shown_of(trial) for key, trial in experiment.trials.items()}
        told = {key: facts(trial) for key, trial in self.folded.items()}
        assert told == {key: facts(trial, lent=True) for key, trial in experiment.trials.items()}
        table = TrialTable(self.projection)
        assert live == {
            one.trial_id: {name: table.value(one, name) or type(live[one.trial_id][name])() for name in SHOWN}
            for one in self.projection.trials
        }
        views = trials_view(None, 1000, 0)(experiment, 0.0)["trials"]
        names = {"iteration": "training_iteration"}
        assert live == {
            one["trial_id"]: {name: one[names.get(name, name)] for name in SHOWN} for one in views
        }
        self.compare_counts(experiment)

    def compare_counts(self, experiment: ExperimentMachine) -> None:
        assert self.counts is not None
        early = {key for key, one in experiment.trials.items() if one.stopped_early}
        assert early == {one.trial_id for one in self.projection.trials if one.stopped_early}
        ended = sum(experiment.trials[key].status.is_final for key in early)
        measured = measure(experiment, {}, journal=(0, 0), saving=Durations(), loop_lag=0.0)
        assert self.projection.num_stopped_early == measured.stopped_early == ended
        assert self.counts.stopped_early == ended
        counts = experiment_view()(experiment, 0.0)["counts"]
        assert counts == self.projection.counts
        assert counts == {status.value: number for status, number in self.counts.counts.items()}


@settings(max_examples=12)
@given(
    scheduler=st.sampled_from(sorted(SCHEDULERS)),
    search=st.sampled_from(["variants", "limited"]),
    seed=st.integers(0, 1000),
    lose=st.dictionaries(st.floats(10, 400), st.integers(0, 9), max_size=6),
)
def test_at_each_moment_every_surface_shows_the_same(scheduler, search, seed, lose):
    store, user, clock = Recorder(), RestlessUser(seed), ManualClock()
    experiment, surfaces = fresh(scheduler, search), Surfaces(store)
    place = {"workers": [2, 2], "start_overhead": 1.5, "lose": lose, "saves_on_demand": True}
    user.runner = TrialRunner(
        experiment,
        BusyCluster(experiment, seed=seed, clock=clock, **place),
        store=store,
        clock=clock,
        resources_for=lambda config: ONE_CPU,
        observers=[surfaces, user],
    )
    user.runner.run()
    for error in surfaces.errors:
        raise error
    assert surfaces.looks > 3
    again = fresh(scheduler, search)
    replay(again, store.records, lambda trial_id: {})
    assert {key: facts(one) for key, one in again.trials.items()} == {
        key: facts(one) for key, one in experiment.trials.items()
    }
