from __future__ import annotations

from math import inf

import pytest
from progress_kit import Run, places

import dasktune as tune
from dasktune.callback import Callback
from dasktune.progress import Board
from dasktune.progress.board import ListedTrials, ranked
from dasktune.schedulers import ASHAScheduler, PopulationBasedTraining
from dasktune.testing import simulate
from dasktune.trial.metrics import score
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
    board = run.board
    assert ids(board.top(_S.RUNNING, 2)) == [second, third]
    assert board.workers == 2
    run.report(first, 2, 0.5)
    run.report(first, 3, 9.0)
    assert ids(board.top(_S.RUNNING, 10)) == [first, second, third]
    assert board.best == (-0.5, first)
    assert (board.best_value(first), board.best_value(pending)) == (0.5, None)
    run.end(first)
    run.fail(third, "ValueError: no")
    assert board.counts == {
        _S.PENDING: 1, _S.RUNNING: 1, _S.PAUSED: 0, _S.TERMINATED: 1, _S.ERROR: 1,
    }  # fmt: skip
    assert ids(board.failed()) == [third]
    assert ids(board.best_of((_S.TERMINATED, _S.ERROR, _S.PENDING), 2)) == [first, third]
    assert board.workers == 1
    assert board.top(_S.RUNNING, 0) == board.top(_S.RUNNING, -1) == []


def test_trials_may_stand_in_their_order_or_by_their_last_result():
    for order, expected in (("made", [0, 1, 2]), ("last", [1, 2, 0])):
        run = Run(order=order, mode="max")
        trials = [run.start() for _ in range(3)]
        for trial_id, values in zip(trials, ((9, 1), (5, 5), (2, 3)), strict=True):
            for seq, value in enumerate(values, start=1):
                run.report(trial_id, seq, value)
        assert ids(run.board.top(_S.RUNNING, 9)) == [trials[n] for n in expected]
        assert run.board.best == (9, trials[0])


class Comparing:
    """Compares a board, after each event, with a look at all trials."""

    def __init__(self, experiment, order):
        settings = experiment.settings
        self.board = Board(
            experiment.trials, places(), metric=settings.metric, mode=settings.mode, order=order
        )
        self.events = 0
        self.best = {}

    def on_event(self, event, actions, experiment):
        self.board.see(event, actions, experiment)
        self.events += 1
        board, trials = self.board, list(experiment.trials.values())
        assert board.counts == experiment.roster.public_counts()
        for status in PublicStatus:
            here = [trial for trial in trials if trial.public_status is status]
            rows = [self._rank(trial) for trial in here]
            wanted = [
                t.trial_id for _, t in sorted(zip(rows, here, strict=True), key=lambda p: p[0])
            ]
            assert ids(board.top(status, len(trials))) == wanted
        failed = {t.trial_id for t in trials if t.errors or t.public_status is _S.ERROR}
        assert set(ids(board.failed())) == failed
        early = [t for t in trials if t.stopped_early and t.status.is_final]
        assert board.stopped_early == len(early)
        assert board.workers == len({t.worker for t in trials if t.status.is_active and t.worker})

    def _rank(self, trial):
        metric, mode = self.board.metric, self.board.mode
        if self.board.order == "made":
            return 0.0
        if self.board.order == "last":
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
def test_the_board_agrees_with_a_look_at_all_trials(order, scheduler, monkeypatch):
    from dasktune.runner import TrialRunner

    seen = []
    making = TrialRunner.__init__

    def make(self, experiment, executor, **options):
        seen.append(Comparing(experiment, order))
        making(self, experiment, executor, **{**options, "observers": seen})

    monkeypatch.setattr(TrialRunner, "__init__", make)
    simulate(
        curve,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=24, seed=3, scheduler=scheduler
        ),
        run_config=tune.RunConfig(
            verbose=0, failure_config=tune.FailureConfig(max_failures=1), callbacks=[Callback()]
        ),
        slots=4,
        lose={25.0: 2},
    )
    [comparing] = seen
    assert comparing.events > 100
    counts = comparing.board.counts
    assert counts[_S.TERMINATED] + counts[_S.ERROR] == len(comparing.board) == 24


def test_a_board_that_comes_later_knows_what_the_first_one_knew():
    run = Run()
    for loss in (2.0, 1.0):
        trial_id = run.start()
        run.report(trial_id, 1, loss)
    run.fail(trial_id, "ValueError: no")
    later = Board(run.experiment.trials, places(), metric="loss", mode="min")
    later.load()
    for one in (run.board, later):
        assert one.best == (-1.0, trial_id)
        assert one.results == 2
        assert ids(one.failed()) == [trial_id]
    assert later.counts == run.board.counts


def test_any_list_of_trials_is_ranked_by_a_pass():
    run = Run()
    for loss in (2.0, 1.0, 3.0):
        trial_id = run.start()
        run.report(trial_id, 1, loss)
    run.fail(trial_id, "ValueError: no")
    assert ranked(run.board, "loss", "min", "best") is run.board
    listed = ranked(list(run.board), "loss", "min", "last")
    assert isinstance(listed, ListedTrials)
    first, second, third = ids(run.board)
    assert ids(listed.top(_S.RUNNING, 5)) == [second, first]
    assert listed.best == (-1.0, second)
    assert (listed.num_failed, ids(listed.failed(3))) == (1, [third])
    assert listed.counts == run.board.counts
    assert listed.named(first).trial_id == first
    assert ids(ranked(list(run.board), None, None, "made").top(_S.RUNNING, 5)) == [first, second]
