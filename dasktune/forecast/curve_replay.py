"""`CurveReplay`: recorded learning curves under a trial scheduler, in virtual time.

`dasktune.testing.simulate` runs a whole experiment with journal and checkpoints, which takes a
second for 100 trials of 81 iterations. This loop only calls the scheduler, in the same order and
with the same arguments, and takes milliseconds. `tests/simulated/test_curve_replay.py` compares the
decisions of the two.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Final

from dasktune.errors import ConfigError
from dasktune.forecast.recorded_trial import FullCurve
from dasktune.schedulers import decision as decisions
from dasktune.schedulers.cluster_view import ClusterView
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.search.basic_variant import BasicVariantGenerator
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

_ONE_CPU: Final = PlacementGroupFactory([{"CPU": 1}])

#: Results are reported in the order of their times; ties in the order in which they were scheduled.
_Event = tuple[float, int, str, int]


@dataclass(slots=True)
class _ReplayedTrial:
    """A trial of the replay, and how far it has trained."""

    trial: Trial
    curve: FullCurve
    #: Number of results that it has reported.
    reported: int = 0
    #: Number of results after the next event.
    next_reported: int = 0
    milestones: tuple[Milestone, ...] = ()


class CurveReplay:
    """Runs trials, whose results are known, under a scheduler.

    A new trial is suggested as by random search. A trial that resumes after a pause continues after
    its last result, as from a checkpoint. Neither starts nor checkpoints take time.

    Parameters
    ----------
    scheduler : TrialScheduler
        The scheduler, with its metric and mode, and seeded. It is changed.
    curves : iterable of FullCurve
        The results of each trial, in the order in which the trials are suggested.
    workers : int
        The number of trials that run at a time.

    Examples
    --------
    >>> from dasktune.schedulers import FIFOScheduler
    >>> rows = [{"training_iteration": n, "time_total_s": 2.0 * n, "loss": 1 / n} for n in (1, 2)]
    >>> replay = CurveReplay(FIFOScheduler(), 3 * [FullCurve(rows, "loss", "min")], workers=2)
    >>> replay.run()
    >>> replay.iterations, replay.seconds
    (6, 8.0)
    """

    def __init__(self, scheduler: TrialScheduler, curves: Iterable[FullCurve], workers: int) -> None:
        self._scheduler = scheduler
        self._to_suggest = deque(curves)
        self._workers = workers
        self._search_ended = False
        self._runs: dict[str, _ReplayedTrial] = {}
        #: All trials in the order in which they were suggested.
        self.trials: dict[str, Trial] = {}
        # As in an experiment, each in the order in which the trials entered the status.
        self._pending: dict[str, Trial] = {}
        self._paused: dict[str, Trial] = {}
        self._active: dict[str, Trial] = {}
        self._by_status = {
            TrialStatus.PENDING: self._pending,
            TrialStatus.PAUSED: self._paused,
            TrialStatus.RUNNING: self._active,
        }
        self._events: list[_Event] = []
        self._numbers = count()
        #: Virtual seconds since the beginning.
        self.seconds = 0.0
        view = ClusterView(
            trials=self.trials,
            pending=self._pending,
            paused=self._paused,
            active=self._active,
            workers={},
        )
        scheduler.observe(view)

    @property
    def iterations(self) -> int:
        """The training iterations of all trials."""
        return sum(run.curve.iterations[run.reported] for run in self._runs.values())

    @property
    def best(self) -> float:
        """The best score that a trial has reported; higher is better, -inf for none."""
        return max((run.curve.best[run.reported] for run in self._runs.values()), default=-inf)

    def run(self) -> None:
        """Run until all trials have ended.

        Raises
        ------
        ConfigError
            If the scheduler changes what a trial is or how fast it trains: no recorded curve is
            that of such a trial.
        """
        while True:
            self._start_ready()
            self._answer_questions()
            if self._events:
                self._next_event()
            elif not self._end_standstill():
                return

    def _start_ready(self) -> None:
        while True:
            while not self._search_ended and len(self._pending) < BasicVariantGenerator.lookahead:
                self._suggest()
            waiting = Waiting(self._pending, self._paused)
            if len(self._active) >= self._workers or not (self._pending or self._paused):
                return
            trial = self._scheduler.choose_trial_to_run(waiting)
            if trial is None:
                return
            self._start(self._runs[trial.trial_id])

    def _suggest(self) -> None:
        if not self._to_suggest:
            self._search_ended = True
            self._execute(self._scheduler.on_search_end())
            return
        curve = self._to_suggest.popleft()
        name = f"whatif_{len(self.trials):05d}"
        trial = Trial(trial_id=name, config=curve.config, resources=_ONE_CPU)
        self.trials[name] = self._pending[name] = trial
        self._runs[name] = _ReplayedTrial(trial, curve)
        self._execute(self._scheduler.on_trial_add(trial) or ())

    def _start(self, run: _ReplayedTrial) -> None:
        self._move(run.trial, TrialStatus.RUNNING)
        run.trial.incarnation += 1
        self._scheduler.on_trial_start(run.trial)
        run.milestones = self._scheduler.next_milestones(run.trial)
        self._train(run)

    def _train(self, run: _ReplayedTrial) -> None:
        """Schedule the trial's next result that may change something."""
        curve, first = run.curve, run.reported
        if first < len(curve):
            run.next_reported = curve.next_row(run.milestones, first) + 1
        when = self.seconds + curve.seconds[run.next_reported] - curve.seconds[first]
        event = when, next(self._numbers), run.trial.trial_id, run.trial.incarnation
        heapq.heappush(self._events, event)

    def _next_event(self) -> None:
        when, _, name, incarnation = heapq.heappop(self._events)
        run = self._runs[name]
        if run.trial.status is TrialStatus.RUNNING and run.trial.incarnation == incarnation:
            self.seconds = when
            if run.reported < len(run.curve):
                self._report(run)
            else:
                self._end(run.trial, "")

    def _report(self, run: _ReplayedTrial) -> None:
        """Report a trial's results up to its next milestone, and carry out the decision there.

        A scheduler with a later milestone does not depend on the order in which it gets results
        before it, so it may get them all at this moment.
        """
        trial = run.trial
        first = run.reported if self._scheduler.looks_between else run.next_reported - 1
        decision: decisions.Decision = decisions.Continue()
        for at in range(first, run.next_reported):
            row, run.reported = run.curve.rows[at], at + 1
            trial.history.append(row)
            decision = self._scheduler.on_trial_result(trial, row)
            if decision.commands:
                self._execute(decision.commands)
            if trial.status is not TrialStatus.RUNNING:
                return  # It was stopped by its own command.
            if not isinstance(decision, decisions.Continue):
                break  # A scheduler may decide before the milestone, too.
        match decision:
            case decisions.Stop():
                self._end(trial, decision.reason)
            case decisions.Pause():
                trial.pause_reason = decision.reason
                self._move(trial, TrialStatus.PAUSED)
            case decisions.Continue():
                run.milestones = self._scheduler.next_milestones(trial)
                self._train(run)
            case _:
                raise self._refusal(decision)

    def _end(self, trial: Trial, reason: str) -> None:
        was_active = trial.status is TrialStatus.RUNNING
        trial.reason = reason
        self._move(trial, TrialStatus.TERMINATED)
        if was_active:
            commands = self._scheduler.on_trial_complete(trial, trial.last_result)
        else:
            commands = self._scheduler.on_trial_remove(trial)
        self._execute(commands)

    def _move(self, trial: Trial, status: TrialStatus) -> None:
        del self._by_status[trial.status][trial.trial_id]
        trial.status = status
        if not status.is_final:
            self._by_status[status][trial.trial_id] = trial

    def _end_standstill(self) -> bool:
        """Let the scheduler decide on the waiting trials; return False if there are none."""
        if not (self._pending or self._paused):
            return False
        waiting = Waiting(self._pending, self._paused)
        commands = self._scheduler.on_standstill(waiting)
        self._execute(commands or TrialScheduler.on_standstill(self._scheduler, waiting))
        return True

    def _answer_questions(self) -> None:
        for number, question in tuple(self._scheduler.questions.items()):
            self._execute(self._scheduler.on_answer(number, question()))

    def _execute(self, commands: tuple[decisions.Command, ...]) -> None:
        for command in commands:
            trial = self.trials[command.trial_id]
            match command:
                case decisions.StopOther():
                    if not trial.status.is_final:
                        self._end(trial, command.reason)
                case decisions.Unpause():
                    if trial.status is TrialStatus.PAUSED:
                        self._move(trial, TrialStatus.PENDING)
                case _:
                    raise self._refusal(command)

    def _refusal(self, what: object) -> ConfigError:
        changes = isinstance(what, decisions.Resize | decisions.ResizeWaiting)
        does = "changes the resources of trials" if changes else "clones trials"
        rule = "schedulers that stop, pause and promote trials"
        return ConfigError(
            f"schedulers must be {rule}, got {type(self._scheduler).__name__}, which {does}: "
            "no recorded curve is that of such a trial. Leave it out."
        )
