"""What a decision costs with many trials: ``python -m benchmarks.schedulers``.

Without experiment, runner and journal: trials report in turn directly to the scheduler. When a
trial stops or is paused, the scheduler chooses the next one. ASHA's trials reach four rungs; those
of median stopping report 100 times each, unless they are stopped.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from numpy.random import SeedSequence, default_rng

from benchmarks._measure import load
from dasktune.schedulers import (
    ASHAScheduler,
    Continue,
    Decision,
    MedianStoppingRule,
    MultiObjectiveASHAScheduler,
    Pause,
    PromotingASHAScheduler,
    Stop,
    TrialScheduler,
    Waiting,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

__all__ = ["NeverStoppingMedianRule", "cost"]

_SLOTS = 64

_ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


class _ReportingTrials:
    """Trials that report in turn, `_SLOTS` at a time; measures the cost of the scheduler."""

    def __init__(self, scheduler: TrialScheduler, trials: int, times: tuple[int, ...]) -> None:
        self.scheduler = scheduler
        self.seconds = 0.0
        self.decisions = 0
        self._times = times
        rng = default_rng(0)
        self._losses, self._noise = rng.random(trials), rng.random(4096)
        self._pending: dict[str, Trial] = {}
        self._paused: dict[str, Trial] = {}
        self._waiting = Waiting(self._pending, self._paused)
        self._done: dict[str, int] = {}
        self._running: deque[Trial] = deque()
        self._added = 0

    def step(self) -> bool:
        """Start trials while there is room, let one report, and return whether there was one."""
        while len(self._running) < _SLOTS and self._start():
            pass
        if not self._running:
            return False
        trial = self._running.popleft()
        step = self._done.get(trial.trial_id, 0)
        self._done[trial.trial_id] = step + 1
        result = self._result(trial, step)
        begun = time.process_time()
        decision = self.scheduler.on_trial_result(trial, result)
        ends = isinstance(decision, Stop) or step + 1 == len(self._times)
        if ends:
            self.scheduler.on_trial_complete(trial, result)
        else:
            self.scheduler.next_milestones(trial)
        self.seconds += time.process_time() - begun
        self.decisions += 1
        if isinstance(decision, Pause) and not ends:
            self._paused[trial.trial_id] = trial
        elif not ends:
            self._running.append(trial)
        return True

    def _start(self) -> bool:
        begun = time.process_time()
        if not self._pending and self._added < len(self._losses):
            trial = Trial(trial_id=f"{self._added:07d}", config={}, resources=_ONE_CPU)
            self._pending[trial.trial_id] = trial
            self._added += 1
            self.scheduler.on_trial_add(trial)
        chosen = self.scheduler.choose_trial_to_run(self._waiting)
        if chosen is not None:
            self.scheduler.on_trial_start(chosen)
        self.seconds += time.process_time() - begun
        if chosen is None:
            return False
        queue = self._pending if chosen.trial_id in self._pending else self._paused
        self._running.append(queue.pop(chosen.trial_id))
        return True

    def _result(self, trial: Trial, step: int) -> dict[str, Any]:
        quality, iteration = self._losses[int(trial.trial_id)], self._times[step]
        noise = self._noise[self.decisions % 4096], self._noise[7 * self.decisions % 4096]
        return {
            "training_iteration": iteration,
            "loss": float(quality + noise[0] / iteration),
            "size": float(1 - quality + noise[1]),
        }


def cost(scheduler: TrialScheduler, trials: int, times: tuple[int, ...]) -> tuple[int, float]:
    """Let trials report; return the number of decisions, and the seconds that each took.

    Parameters
    ----------
    scheduler : TrialScheduler
        Its metric is "loss", and its time attribute ``training_iteration``.
    trials : int
        The number of trials.
    times : tuple of int
        The iterations at which each of them reports.
    """
    scheduler.set_search_properties("loss", "min")
    scheduler.seed(SeedSequence(0))
    reporting = _ReportingTrials(scheduler, trials, times)
    while reporting.step():
        pass
    return reporting.decisions, reporting.seconds / reporting.decisions


_RUNGS = (1, 4, 16, 64)

_CASES: Mapping[str, tuple[Callable[[], TrialScheduler], tuple[int, ...], tuple[int, ...]]] = {
    "ASHA, stopping": (lambda: ASHAScheduler(max_t=64), _RUNGS, (1_000, 10_000, 100_000)),
    "ASHA, promoting": (
        lambda: PromotingASHAScheduler(max_t=64),
        _RUNGS,
        (1_000, 10_000, 100_000),
    ),
    "ASHA, two objectives": (
        lambda: MultiObjectiveASHAScheduler(metrics=["loss", "size"], modes="min", max_t=64),
        _RUNGS,
        (100, 1_000, 10_000),
    ),
    "median stopping": (
        lambda: MedianStoppingRule(time_attr="training_iteration", grace_period=1),
        tuple(range(1, 101)),
        (100, 1_000, 10_000),
    ),
    "median stopping that stops none": (
        lambda: NeverStoppingMedianRule(time_attr="training_iteration", grace_period=1),
        tuple(range(1, 101)),
        (100, 1_000, 10_000),
    ),
}


class NeverStoppingMedianRule(MedianStoppingRule):
    """Stops no trial, so that all trials report to the end."""

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        decision = super().on_trial_result(trial, result)
        return Continue() if isinstance(decision, Stop) else decision


def main() -> None:
    print(f"load average at the beginning: {load():.1f}")
    print("| scheduler | trials | decisions | cost of one |")
    print("|---|---|---|---|")
    for name, (make, times, sizes) in _CASES.items():
        for trials in sizes:
            gc.collect()
            decisions, seconds = cost(make(), trials, times)
            print(f"| {name} | {trials:,} | {decisions:,} | {1e6 * seconds:.1f} us |", flush=True)
    print(f"load average at the end: {load():.1f}")


if __name__ == "__main__":
    main()
