"""Random experiments without a runner, which confront a scheduler with every kind of event."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, nan
from typing import Any, Final

from numpy.random import default_rng

from dasktune.schedulers import decision as decisions
from dasktune.schedulers.cluster_view import ClusterView
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.trial.milestone import reached
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

_S = TrialStatus

#: Values of a metric that cannot be compared; the last one means that the metric is missing.
_UNDEFINED = (nan, inf, -inf, "diverged", None)

#: Numbers of CPUs per slot that the cluster has in turn, and the events between two changes.
_CPUS_PER_SLOT: Final = (2, 1, 3)
_CHANGE_EVERY: Final = 40

#: The probability that a question is answered before the next event.
_ANSWERED_AT_ONCE: Final = 0.5

#: More events than any drill needs.
_MAX_EVENTS: Final = 5_000


@dataclass(frozen=True)
class Trouble:
    """Probabilities of losses, failures and undefined metrics."""

    #: A trial loses its worker instead of reporting a result.
    losses: float = 0.0
    #: A trial fails finally instead of reporting a result.
    failures: float = 0.0
    #: A metric of a result is undefined.
    undefined: float = 0.0


class _At(Mapping[str, Trial]):
    """A live view of the trials that have a given status."""

    def __init__(self, trials: Mapping[str, Trial], status: TrialStatus) -> None:
        self._trials = trials
        self._status = status

    def __getitem__(self, key: str) -> Trial:
        trial = self._trials[key]
        if trial.status is not self._status:
            raise KeyError(key)
        return trial

    def __iter__(self) -> Iterator[str]:
        return (key for key, trial in self._trials.items() if trial.status is self._status)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class SchedulerDrill:
    """Drives a scheduler without experiment, runner and clock.

    Parameters
    ----------
    scheduler : TrialScheduler
        The scheduler, set up and seeded.
    trials : int, default=16
        The number of trials; they are added a few at a time.
    slots : int, default=4
        The number of trials that run at a time.
    longest : int, default=20
        The number of iterations after which a trial ends by itself.
    seed : int, default=0
        The seed of the drill's random events.
    trouble : Trouble, optional
        Probabilities of losses and failures; 0 by default.

    Attributes
    ----------
    decisions : list of Decision
        The scheduler's decisions about results.
    stops_of_others : list of StopOther
        The commands to stop other trials.
    exploits_of_others : list of ExploitOther
        The commands that let other trials exploit a donor.
    story : list of str
        All events and commands as texts.
    """

    def __init__(
        self,
        scheduler: TrialScheduler,
        *,
        trials: int = 16,
        slots: int = 4,
        longest: int = 20,
        seed: int = 0,
        trouble: Trouble | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.trials: dict[str, Trial] = {}
        self.decisions: list[decisions.Decision] = []
        self.stops_of_others: list[decisions.StopOther] = []
        self.exploits_of_others: list[decisions.ExploitOther] = []
        self.story: list[str] = []
        self._to_come = trials
        self._slots = slots
        self._longest = longest
        self._trouble = trouble or Trouble()
        self._rng = default_rng(seed)
        #: Results by trial and iteration, so that a result does not depend on when it is requested.
        self._rows: dict[tuple[str, int], dict[str, Any]] = {}
        self._events = 0
        self._workers: dict[str, dict[str, float]] = {}
        #: The view of the trials and the cluster that the scheduler gets.
        self.view = ClusterView(
            trials=self.trials,
            pending=_At(self.trials, _S.PENDING),
            paused=_At(self.trials, _S.PAUSED),
            active=_At(self.trials, _S.RUNNING),
            workers=self._workers,
            limit=slots,
        )
        scheduler.observe(self.view)

    @property
    def waiting(self) -> Waiting:
        """The trials that could run."""
        return Waiting(self._at(_S.PENDING), self._at(_S.PAUSED))

    def run(self, events: int = _MAX_EVENTS) -> None:
        """Run for a number of events, or to the end.

        Raises
        ------
        AssertionError
            If the scheduler contradicts itself, or its trials never end.
        """
        for _ in range(events):
            if not self._step():
                return
        assert events < _MAX_EVENTS, f"trials never end: {self.waiting}"

    def free_results(self) -> Iterator[tuple[Trial, dict[str, Any]]]:
        """Yield the results that running trials will report before their next milestones."""
        for trial in self._at(_S.RUNNING).values():
            milestones = self.scheduler.next_milestones(trial)
            for iteration in range(trial.last_iteration + 1, self._longest):
                row = self._row(trial, iteration)
                if reached(milestones, row):
                    break
                yield trial, row

    def _at(self, status: TrialStatus) -> dict[str, Trial]:
        return {key: trial for key, trial in self.trials.items() if trial.status is status}

    def _step(self) -> bool:
        """Let the next event happen; return False at the end."""
        self._change_cluster()
        if self.scheduler.questions and self._rng.random() < _ANSWERED_AT_ONCE:
            self._answer()
        running = list(self._at(_S.RUNNING).values())
        if self._to_come and len(self.waiting.pending) < 2:
            self._add()
        elif len(running) < self._slots and self._start():
            pass
        elif running:
            self._report(running[int(self._rng.integers(len(running)))])
        elif self.scheduler.questions:
            self._answer()
        elif self.waiting.pending or self.waiting.paused:
            self._end_standstill()
        else:
            return False
        return True

    def _add(self) -> None:
        trial = Trial(
            trial_id=f"drill_{len(self.trials):05d}",
            config={"x": float(self._rng.random())},
            resources=PlacementGroupFactory([{"CPU": 1}]),
        )
        self._to_come -= 1
        self.trials[trial.trial_id] = trial
        self.story.append(f"{trial.trial_id} is added")
        self._execute(self.scheduler.on_trial_add(trial) or ())

    def _start(self) -> bool:
        waiting = self.waiting
        trial = self.scheduler.choose_trial_to_run(waiting)
        assert trial is self.scheduler.choose_trial_to_run(waiting), "another answer"
        if trial is None or not self._has_room(trial):
            return False
        known = waiting.pending.get(trial.trial_id) or waiting.paused.get(trial.trial_id)
        assert trial is known, f"{trial} does not wait"
        trial.status, trial.worker = _S.RUNNING, "drill"
        self.story.append(f"{trial.trial_id} starts")
        self.scheduler.on_trial_start(trial)
        return True

    def _answer(self) -> None:
        """Answer the oldest question, sometimes with None, as if it had raised an exception."""
        number, question = next(iter(self.scheduler.questions.items()))
        answer = None if self._rng.random() < self._trouble.failures else question()
        assert json.loads(json.dumps(answer)) == answer, f"no plain value: {answer}"
        self.story.append(f"question {number} is answered: {answer}")
        commands = self.scheduler.on_answer(number, answer)
        assert number not in self.scheduler.questions, f"question {number} is open for ever"
        self._execute(commands)

    def _change_cluster(self) -> None:
        """Let the cluster grow or shrink every `_CHANGE_EVERY` events, if the scheduler uses it."""
        turn, rest = divmod(self._events, _CHANGE_EVERY)
        self._events += 1
        if self.scheduler.follows_cluster and not rest:
            cpus = self._slots * _CPUS_PER_SLOT[turn % len(_CPUS_PER_SLOT)]
            self._workers["drill"] = {"CPU": cpus}
            self.story.append(f"there are {cpus} CPUs")
            self._execute(self.scheduler.on_cluster_change())

    def _has_room(self, trial: Trial) -> bool:
        """Whether there is room for a trial; there must be if no trial is running."""
        if not self._workers:
            return True
        running = list(self._at(_S.RUNNING).values())
        used, total = self.view.claimed_by(running), self.view.total_resources
        wanted = trial.resources.required_resources
        fits = all(used.get(k, 0) + amount <= total.get(k, 0) for k, amount in wanted.items())
        assert fits or running, f"{trial} asks for more than there is: {trial.resources}"
        return fits

    def _report(self, trial: Trial) -> None:
        trouble, dice = self._trouble, self._rng.random()
        if dice < trouble.losses:
            trial.status = _S.PENDING
            return
        if dice < trouble.losses + trouble.failures:
            self._end(trial, failed=True)
            return
        row = self._row(trial, trial.last_iteration + 1)
        is_milestone = reached(self.scheduler.next_milestones(trial), row)
        trial.history.append(row)
        decision = self.scheduler.on_trial_result(trial, row)
        continues = not isinstance(
            decision, decisions.Pause | decisions.Resize | decisions.Exploit | decisions.Stop
        )
        assert is_milestone or continues, f"{decision} at no milestone"
        self.decisions.append(decision)
        self.story.append(f"{trial.trial_id} reports {row}: {decision}")
        if isinstance(decision, decisions.Stop) or trial.last_iteration >= self._longest:
            self._end(trial)
        elif isinstance(decision, decisions.Pause):
            trial.status = _S.PAUSED
        elif isinstance(decision, decisions.Resize):
            trial.status = _S.PENDING
            _resize(trial, decision.resources)
        elif isinstance(decision, decisions.Exploit):
            trial.status = _S.PAUSED
            self._exploit(trial, decision)
        self._execute(decision.commands)

    def _exploit(self, trial: Trial, exploit: decisions.Exploit | decisions.ExploitOther) -> None:
        donor = self.trials[exploit.donor]
        assert not donor.status.is_final, f"{donor} has ended and is cloned"
        trial.config = exploit.config
        if exploit.iteration is not None:
            trial.history.cut_back(exploit.iteration)
        self.scheduler.on_trial_exploit(trial, donor)

    def _end(self, trial: Trial, *, failed: bool = False) -> None:
        was_running = trial.status is _S.RUNNING
        trial.status = _S.ERROR if failed else _S.TERMINATED
        self.story.append(f"{trial.trial_id} ends")
        if failed:
            commands = self.scheduler.on_trial_error(trial)
        elif was_running:
            commands = self.scheduler.on_trial_complete(trial, trial.last_result)
        else:
            commands = self.scheduler.on_trial_remove(trial)
        self._execute(commands)

    def _end_standstill(self) -> None:
        waiting = self.waiting
        commands = self.scheduler.on_standstill(waiting)
        if not self.scheduler.questions:
            commands = commands or TrialScheduler.on_standstill(self.scheduler, waiting)
        self._execute(commands)

    def _execute(self, commands: tuple[decisions.Command, ...]) -> None:
        queue = deque(commands)
        while queue:
            command = queue.popleft()
            trial = self.trials[command.trial_id]
            self.story.append(str(command))
            match command:
                case decisions.StopOther():
                    self.stops_of_others.append(command)
                    if not trial.status.is_final:
                        self._end(trial)
                case decisions.ResizeWaiting():
                    if trial.trial_id in {one.trial_id for one in self.view.waiting()}:
                        _resize(trial, command.resources)
                case decisions.Unpause():
                    if trial.status is _S.PAUSED:
                        trial.status = _S.PENDING
                case decisions.ExploitOther():
                    self.exploits_of_others.append(command)
                    assert trial in [*self.waiting.pending.values(), *self.waiting.paused.values()]
                    self._exploit(trial, command)

    def _row(self, trial: Trial, iteration: int) -> dict[str, Any]:
        key = trial.trial_id, iteration
        if key not in self._rows:
            rng = default_rng([int(trial.trial_id[-5:]), iteration])
            x = trial.config["x"]
            row: dict[str, Any] = {
                "training_iteration": iteration,
                "time_total_s": 20.0 * iteration * (1 + x),
                "loss": x + 1 / iteration + 0.05 * float(rng.normal()),
                "accuracy": x - 1 / iteration + 0.05 * float(rng.normal()),
            }
            for name in ("loss", "accuracy"):
                if rng.random() < self._trouble.undefined:
                    row[name] = _UNDEFINED[int(rng.integers(len(_UNDEFINED)))]
                    if row[name] is None:
                        del row[name]
            self._rows[key] = row
        return self._rows[key]


def _resize(trial: Trial, resources: PlacementGroupFactory) -> None:
    trial.first_resources, trial.resources = trial.base_resources, resources
