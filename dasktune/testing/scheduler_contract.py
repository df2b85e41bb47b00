"""The contract of trial schedulers as tests, also for schedulers of other packages."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator

from numpy.random import SeedSequence

from dasktune.schedulers.decision import (
    Continue,
    Exploit,
    ExploitOther,
    Pause,
    Resize,
    Stop,
    StopOther,
)
from dasktune.schedulers.trial_scheduler import TrialScheduler
from dasktune.testing.scheduler_drill import SchedulerDrill, Trouble
from dasktune.trial.metrics import Mode
from dasktune.trial.trial import Trial

_SEEDS = range(3)


class SchedulerContract(ABC):
    """The contract of :class:`~dasktune.schedulers.TrialScheduler`, as tests.

    Derive a class whose name begins with ``Test``, implement `make_scheduler`, and let pytest
    collect it. Each test simulates experiments of a few dozen trials: trials are added, start,
    report, lose their workers, fail and end; the scheduler's decisions are carried out; the cluster
    grows and shrinks. Results have ``training_iteration``, ``time_total_s``, ``loss`` (lower is
    better) and ``accuracy`` (higher is better). The last two conflict.

    Attributes
    ----------
    metric : str, default="loss"
        The experiment's metric.
    mode : {"min", "max"}, default="min"
        Whether lower or higher values are better.
    longest : int, default=20
        The number of iterations after which a trial ends by itself.
    num_trials : int, default=16
        The number of trials of an experiment.

    Examples
    --------
    >>> class TestMine(SchedulerContract):
    ...     def make_scheduler(self):
    ...         from dasktune.schedulers import ASHAScheduler
    ...         return ASHAScheduler(max_t=20, grace_period=2)
    >>> TestMine().test_every_stop_and_pause_has_a_reason()
    """

    metric: str = "loss"
    mode: Mode = "min"
    longest: int = 20
    num_trials: int = 16

    @abstractmethod
    def make_scheduler(self) -> TrialScheduler:
        """Return a new scheduler with the same arguments each time."""

    def test_every_trial_comes_to_its_end(self) -> None:
        """Every trial ends despite losses and failures; repeated calls choose the same trial."""
        for drill in self._drills(trouble=Trouble(losses=0.05, failures=0.02)):
            drill.run()
            assert all(trial.status.is_final for trial in drill.trials.values())

    def test_the_same_seed_gives_the_same_decisions(self) -> None:
        """Decisions depend on seed and events only, not on a clock or global random numbers."""
        for one, other in zip(self._drills(), self._drills(), strict=True):
            one.run()
            other.run()
            assert one.story == other.story
            assert one.scheduler.state_dict() == other.scheduler.state_dict()

    def test_a_state_survives_json_and_goes_on_as_if_nothing_had_happened(self) -> None:
        """A scheduler restored at any event decides like one that was never restored."""
        for whole, cut in zip(self._drills(), self._drills(), strict=True):
            whole.run()
            for events in (0, 1, 6, 15, 30, 60):
                cut.run(events=events)
                cut.scheduler = self._restored(cut)
            cut.run()
            assert cut.story == whole.story
            assert cut.scheduler.state_dict() == whole.scheduler.state_dict()

    def test_a_saved_state_does_not_change_afterwards(self) -> None:
        """Later events do not change a saved state, which is written in the background."""
        for drill in self._drills():
            drill.run(events=60)
            state = drill.scheduler.state_dict()
            text = json.dumps(state)
            drill.run()
            assert json.dumps(state) == text

    def test_results_between_milestones_commute(self) -> None:
        """Results between milestones lead to the same state in any order of the trials."""
        for drill in self._drills(slots=6):
            for _ in range(12):
                drill.run(events=10)
                free = [*drill.free_results()]
                # The results of each trial stay in order.
                turned = sorted(free, key=lambda pair: pair[0].trial_id, reverse=True)
                by_time = sorted(free, key=lambda pair: pair[1]["training_iteration"])
                states = []
                for order in (free, turned, by_time):
                    scheduler = self._restored(drill)
                    for trial, row in order:
                        decision = scheduler.on_trial_result(trial, row)
                        assert decision == Continue(), f"{decision} at no milestone: {row}"
                    states.append(scheduler.state_dict())
                assert states[0] == states[1] == states[2]

    def test_asking_changes_nothing(self) -> None:
        """Choosing a trial, milestones, questions and `debug_string` leave the state unchanged."""
        for drill in self._drills():
            for _ in range(10):
                drill.run(events=9)
                before = json.dumps(drill.scheduler.state_dict())
                waiting = drill.waiting
                chosen = [drill.scheduler.choose_trial_to_run(waiting) for _ in range(3)]
                assert chosen[0] is chosen[1] is chosen[2]
                for trial in drill.trials.values():
                    first, second = (drill.scheduler.next_milestones(trial) for _ in range(2))
                    assert first == second
                for question in drill.scheduler.questions.values():
                    assert question() == question()
                summary = drill.scheduler.debug_string()
                assert all(line.strip() for line in summary.split("\n")), f"an empty line: {summary!r}"
                assert json.dumps(drill.scheduler.state_dict()) == before

    def test_every_stop_and_pause_has_a_reason(self) -> None:
        """Users read the reason of each stop, pause, resize and exploit."""
        for drill in self._drills(trouble=Trouble(undefined=0.1)):
            drill.run()
            for decision in drill.decisions:
                if isinstance(decision, Stop | Pause | Resize | Exploit):
                    assert decision.reason.strip(), f"{decision} has no reason"
            commands: list[StopOther | ExploitOther] = [
                *drill.stops_of_others,
                *drill.exploits_of_others,
            ]
            for command in commands:
                assert command.reason.strip(), f"{command} has no reason"

    def test_undefined_metrics_do_no_harm(self) -> None:
        """With missing, NaN, infinite and text metrics all trials end, and the state is JSON."""
        for share in (0.2, 1.0):
            for drill in self._drills(trouble=Trouble(undefined=share)):
                drill.run()
                assert all(trial.status.is_final for trial in drill.trials.values())
                json.dumps(drill.scheduler.state_dict(), allow_nan=False)

    def test_an_end_may_come_at_any_time_and_twice(self) -> None:
        """A trial may end before its first result, waiting or running; a second end is ignored."""
        for drill in self._drills():
            drill.run(events=25)
            scheduler, trials = drill.scheduler, list(drill.trials.values())
            for number, trial in enumerate(trials):
                _report_end(scheduler, trial, number % 3)
                once = json.dumps(scheduler.state_dict())
                _report_end(scheduler, trial, number % 3)
                assert json.dumps(scheduler.state_dict()) == once

    def _drills(self, *, slots: int = 4, trouble: Trouble | None = None) -> Iterator[SchedulerDrill]:
        for seed in _SEEDS:
            yield SchedulerDrill(
                self._made(),
                trials=self.num_trials,
                slots=slots,
                longest=self.longest,
                seed=seed,
                trouble=trouble,
            )

    def _made(self) -> TrialScheduler:
        scheduler = self.make_scheduler()
        scheduler.set_search_properties(self.metric, self.mode)
        scheduler.seed(SeedSequence(5))
        return scheduler

    def _restored(self, drill: SchedulerDrill) -> TrialScheduler:
        restored = self._made()
        restored.observe(drill.view)
        restored.load_state_dict(json.loads(json.dumps(drill.scheduler.state_dict())))
        return restored


def _report_end(scheduler: TrialScheduler, trial: Trial, kind: int) -> None:
    match kind:
        case 0:
            scheduler.on_trial_error(trial)
        case 1:
            scheduler.on_trial_remove(trial)
        case _:
            scheduler.on_trial_complete(trial, trial.last_result)
