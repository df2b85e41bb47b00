from __future__ import annotations

import math
from math import inf

import pytest
from progress_kit import ONE_CPU, Run, trial_storage

import dasktune as tune
from dasktune.progress import TrialCounts
from dasktune.progress.trial_counts import RankedTrials, rank_trials
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.schedulers import ASHAScheduler, PopulationBasedTraining
from dasktune.testing import ManualClock, MemoryStore, SimulatedTrialExecutor
from dasktune.trial.metrics import score
from dasktune.trial.rows.trial_history import History, StoredRows
from dasktune.trial.status import PublicStatus

_S = PublicStatus


def ids(trials):
    return [trial.trial_id for trial in trials]


def test_trials_are_counted_and_ranked_as_events_come():
    run = Run()
    first, second, third = (run.start(worker=w) for w in ("v", "w", "w"))
    pending = run.add()
    for trial_id, loss in ((first, 3.0), (second, 1.0), (third, 2.0)):
        run.report(trial_id, 1, loss)
    trial_counts = run.trial_counts
    assert ids(trial_counts.top(_S.RUNNING, 2)) == [second, third]
    assert trial_counts.workers == 2
    run.report(first, 2, 0.5)
    run.report(first, 3, 9.0)
    assert ids(trial_counts.top(_S.RUNNING, 10)) == [first, second, third]
    assert trial_counts.best == (-0.5, first)
    assert (trial_counts.best_value(first), trial_counts.best_value(pending)) == (0.5, None)
    run.end(first)
    run.fail(third, "ValueError: no")
    assert trial_counts.counts == {
        _S.PENDING: 1, _S.RUNNING: 1, _S.PAUSED: 0, _S.TERMINATED: 1, _S.ERROR: 1,
    }  # fmt: skip
    assert ids(trial_counts.failed()) == [third]
    assert ids(trial_counts.best_of((_S.TERMINATED, _S.ERROR, _S.PENDING), 2)) == [first, third]
    assert trial_counts.workers == 1
    assert trial_counts.top(_S.RUNNING, 0) == trial_counts.top(_S.RUNNING, -1) == []


def test_trials_may_stand_in_their_order_or_by_their_last_result():
    for order, expected in (("made", [0, 1, 2]), ("last", [1, 2, 0])):
        run = Run(order=order, mode="max")
        trials = [run.start() for _ in range(3)]
        for trial_id, values in zip(trials, ((9, 1), (5, 5), (2, 3)), strict=True):
            for seq, value in enumerate(values, start=1):
                run.report(trial_id, seq, value)
        assert ids(run.trial_counts.top(_S.RUNNING, 9)) == [trials[n] for n in expected]
        assert run.trial_counts.best == (9, trials[0])


class Comparing:
    """Compares a trial_counts, after each event, with a look at all trials."""

    def __init__(self, experiment, order):
        settings = experiment.settings
        self.trial_counts = TrialCounts(
            experiment.trials,
            trial_storage(),
            metric=settings.metric,
            mode=settings.mode,
            order=order,
        )
        self.events = 0
        self.best = {}

    def on_event(self, event, handled, experiment):
        self.trial_counts.update(event, handled)
        self.events += 1
        trial_counts, trials = self.trial_counts, list(experiment.trials.values())
        assert trial_counts.counts == experiment.trial_index.public_counts()
        for status in PublicStatus:
            here = [trial for trial in trials if trial.public_status is status]
            rows = [self._rank(trial) for trial in here]
            wanted = [t.trial_id for _, t in sorted(zip(rows, here, strict=True), key=lambda p: p[0])]
            assert ids(trial_counts.top(status, len(trials))) == wanted
        failed = {t.trial_id for t in trials if t.errors or t.public_status is _S.ERROR}
        assert set(ids(trial_counts.failed())) == failed
        early = [t for t in trials if t.stopped_early and t.status.is_final]
        assert trial_counts.stopped_early == len(early)
        assert trial_counts.workers == len({t.worker for t in trials if t.status.is_active and t.worker})

    def _rank(self, trial):
        metric, mode = self.trial_counts.metric, self.trial_counts.mode
        if self.trial_counts.order == "made":
            return 0.0
        if self.trial_counts.order == "last":
            points = score(trial.last_result, metric, mode)
        else:
            seen = [score(row, metric, mode) for row in trial.history]
            known = [one for one in seen if one is not None] + [self.best.get(trial.trial_id, -inf)]
            points = self.best[trial.trial_id] = max(known)
            points = None if points == -inf else points
        return inf if points is None else -points

    def on_end(self, experiment):
        pass


def curve(config):
    for epoch in range(8):
        if config["x"] > 0.9 and epoch == 3:
            raise ValueError("too large")
        yield {"loss": (config["x"] - 0.5) ** 2 / (epoch + 1) - 0.1 * (epoch % 3)}, 10.0


@pytest.mark.parametrize("order", ["made", "best", "last"])
@pytest.mark.parametrize(
    "scheduler",
    [
        None,
        ASHAScheduler(max_t=8, grace_period=1, reduction_factor=2),
        PopulationBasedTraining(
            perturbation_interval=2,
            time_attr="training_iteration",
            hyperparam_mutations={"x": tune.uniform(0, 1)},
        ),
    ],
    ids=["fifo", "asha", "pbt"],
)
def test_the_board_agrees_with_a_look_at_all_trials(order, scheduler):
    experiment = build_experiment(
        tune.TuneConfig(metric="loss", mode="min", num_samples=14, seed=3, scheduler=scheduler),
        tune.RunConfig(verbose=0, failure_config=tune.FailureConfig(max_failures=1)),
        {"x": tune.uniform(0, 1)},
    )
    comparing, clock = Comparing(experiment, order), ManualClock()
    runner = TrialRunner(
        experiment,
        SimulatedTrialExecutor(curve, clock=clock, slots=4, lose={25.0: 2}),
        store=MemoryStore(),
        clock=clock,
        resources_for=lambda config: ONE_CPU,
        observers=[comparing],
    )
    runner.run()
    assert comparing.events > 60
    counts = comparing.trial_counts.counts
    # ASHA stops those that would fail before they do.
    assert counts[_S.ERROR] > 0 or isinstance(scheduler, ASHAScheduler)
    assert counts[_S.TERMINATED] + counts[_S.ERROR] == len(comparing.trial_counts) == 14


def test_a_board_that_comes_later_knows_what_the_first_one_knew():
    run = Run()
    for loss in (2.0, 1.0):
        trial_id = run.start()
        run.report(trial_id, 1, loss)
    run.fail(trial_id, "ValueError: no")
    later = TrialCounts(run.experiment.trials, trial_storage(), metric="loss", mode="min")
    later.load()
    for one in (run.trial_counts, later):
        assert one.best == (-1.0, trial_id)
        assert one.results == 2
        assert ids(one.failed()) == [trial_id]
    assert later.counts == run.trial_counts.counts


@pytest.mark.parametrize("metric", ["loss", None])
def test_counts_of_a_restored_experiment_do_not_read_the_journal(metric):
    mode = "min" if metric else None
    run = Run()
    trials = []
    for loss in (2.0, math.nan):
        trial_id = run.start()
        run.report(trial_id, 1, loss)
        trials.append(run.experiment.trials[trial_id])
    for trial in trials:
        trial.history = History(list(trial.history), stored=StoredRows(9, unreadable))
    # A trial whose results are all undefined keeps no score, as one without a metric does.
    assert [trial.best_score for trial in trials] == [-2.0, None]
    later = TrialCounts(run.experiment.trials, trial_storage(), metric=metric, mode=mode)
    later.load((metric, mode))
    assert later.results == 20
    assert later.best == ((-2.0, trials[0].trial_id) if metric else None)
    other = TrialCounts(run.experiment.trials, trial_storage(), metric="other", mode="min")
    with pytest.raises(AssertionError, match="read the journal"):
        other.load((metric, mode))


def unreadable():
    raise AssertionError("read the journal")


def test_any_list_of_trials_is_ranked_by_a_pass():
    run = Run()
    for loss in (2.0, 1.0, 3.0):
        trial_id = run.start()
        run.report(trial_id, 1, loss)
    run.fail(trial_id, "ValueError: no")
    assert rank_trials(run.trial_counts, "loss", "min", "best") is run.trial_counts
    listed = rank_trials(list(run.trial_counts), "loss", "min", "last")
    assert isinstance(listed, RankedTrials)
    first, second, third = ids(run.trial_counts)
    assert ids(listed.top(_S.RUNNING, 5)) == [second, first]
    assert listed.best == (-1.0, second)
    assert (listed.num_failed, ids(listed.failed(3))) == (1, [third])
    assert listed.counts == run.trial_counts.counts
    assert listed.named(first).trial_id == first
    assert ids(rank_trials(list(run.trial_counts), None, None, "made").top(_S.RUNNING, 5)) == [
        first,
        second,
    ]
