"""What the journal has told of one trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan, nan
from typing import Any, Final

from dasktune.dashboard.curve import Curve

__all__ = ["MAX_CHECKPOINTS", "MAX_KEPT", "Attempt", "Better", "Exploit", "RungVisit", "TrialLog"]

#: Attempts and visits to rungs that are kept of a trial, the newest. Population based training can
#: make thousands.
MAX_KEPT: Final = 256

#: Paths of checkpoints that are kept of a trial, the newest.
MAX_CHECKPOINTS: Final = 16

#: Whether a value is better than another one, which may be NaN.
Better = Callable[[float, float], bool]


@dataclass(slots=True)
class Attempt:
    """A stay of a trial on a worker."""

    #: The worker's address, or a slot of the simulator.
    worker: str
    #: Seconds of the runner's clock.
    start: float
    #: None while it lasts.
    end: float | None = None
    #: ``running``, or how it ended: ``ended``, ``stopped``, ``paused``, ``failed`` or ``lost``.
    outcome: str = "running"
    #: ``training_iteration`` of the checkpoint that it began from; None for the beginning.
    restored_from: int | None = None
    #: What it holds there, by name of the resource; shared by all that hold the same.
    holds: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class RungVisit:
    """A trial at a place where its scheduler had to decide about it."""

    #: Where it is, in units of `time_attr`.
    budget: float
    #: The metric by which the scheduler measures how far a trial is.
    time_attr: str
    #: What the trial had come to there; NaN if nothing.
    value: float
    #: Seconds of the runner's clock.
    time: float
    #: ``went on``, ``stopped``, ``waits``, or ``cloned``: it went on as a clone of another trial.
    outcome: str = "went on"
    #: What it was compared with, where the scheduler says so.
    cutoff: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit:
    """A trial that went on as a clone of another one."""

    #: The clone and the donor, by their places among the trials.
    clone: int
    donor: int
    #: Seconds of the runner's clock.
    time: float
    #: ``training_iteration`` that the clone had come to, and that it went on from.
    reached: int
    resumed: int
    reason: str


@dataclass(slots=True, eq=False)
class TrialLog:
    """What a trial was given, what it did and what came of it, in bounded memory.

    Parameters
    ----------
    trial_id : str
        Unique within the experiment.
    index : int
        Its place among the trials, from 0.
    config : dict
        Flat, nested names joined by ``/``.
    curves : list of Curve
        Its values of each goal.
    created : float
        Seconds of the runner's clock.
    """

    trial_id: str
    index: int
    config: dict[str, Any]
    curves: list[Curve]
    created: float
    #: Name of its directory.
    folder: str = ""
    #: One of the five public words.
    status: str = "PENDING"
    #: Number of the last change, as `Chronicle.version` counts them.
    version: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    rungs: list[RungVisit] = field(default_factory=list)
    #: The first of its rungs, which tells brackets apart; NaN before there is one.
    first_rung: float = nan
    #: Where its scheduler decides next: names of metrics and values.
    milestones: list[tuple[str, float]] = field(default_factory=list)
    #: Highest ``training_iteration``.
    iteration: int = 0
    #: The last result, with the filled-in fields.
    metrics: dict[str, Any] = field(default_factory=dict)
    #: Of each goal: ``(training_iteration, value)``, NaN if there is none.
    best: list[tuple[int, float]] = field(default_factory=list)
    starts: int = 0
    restores: int = 0
    pauses: int = 0
    failures: int = 0
    losses: int = 0
    checkpoints: int = 0
    #: Path of the newest one, below the experiment.
    checkpoint: str = ""
    #: ``training_iteration`` of each that has not been deleted, by its path; the newest come last.
    stored: dict[str, int] = field(default_factory=dict)
    #: Why it ended, was stopped or is paused.
    reason: str = ""
    #: The last failure of its code: the message, and the end of the traceback.
    error: str = ""
    traceback: str = ""
    #: When that was, in seconds of the runner's clock; NaN if its code has not failed.
    failed_at: float = nan
    #: What it asks for, by name of the resource; empty if nobody has told.
    request: Mapping[str, float] = field(default_factory=dict)
    #: Whether the user lets it rest, whatever its scheduler wants.
    rests: bool = False
    #: Whether it was ended before its time.
    cut: bool = False
    #: Of whom it is a clone, by its place; -1 if of nobody.
    parent: int = -1
    #: ``training_iteration`` of the checkpoint that its next attempt begins from.
    restore_point: int | None = None
    #: Iterations after which it went on although it had not come to them: as a clone of a trial
    #: that was further. Nothing that it has reported itself leads there.
    jumps: list[int] = field(default_factory=list)

    @property
    def attempt(self) -> Attempt | None:
        """The one that lasts."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.end is None else None

    @property
    def worker(self) -> str:
        """Where it runs or ran last; empty if it never did."""
        return self.attempts[-1].worker if self.attempts else ""

    @property
    def outcome(self) -> str:
        """What became of it, in a word: the status, but ``STOPPED`` if it ended before its time."""
        return "STOPPED" if self.cut and self.status == "TERMINATED" else self.status

    def last_value(self, goal: int = 0) -> float:
        """Return the newest value of a goal; NaN if there is none."""
        return self.curves[goal].last[1] if goal < len(self.curves) else nan

    def best_value(self, goal: int = 0) -> float:
        """Return the best finite value of a goal; NaN if there is none."""
        return self.best[goal][1] if goal < len(self.best) else nan

    def runtime(self, now: float) -> float:
        """Return the seconds that it has been on workers, as far as its attempts are kept.

        Parameters
        ----------
        now : float
            Seconds of the runner's clock.
        """
        return sum((now if one.end is None else one.end) - one.start for one in self.attempts)

    # What happens to it

    def take_value(
        self, goal: int, value: float, iteration: int, time: float, better: Better
    ) -> bool:
        """Take in a value of a goal, and return whether it is the trial's best."""
        was_at, was = self.best[goal]
        self.curves[goal].add(iteration, value, time)
        if isfinite(value) and better(value, was):
            self.best[goal] = iteration, value
            return True
        if iteration == was_at:  # the best is computed again, and comes out worse
            self.best[goal] = self.curves[goal].best(better)
        return False

    def begin_attempt(self, worker: str, time: float) -> None:
        """Note that it has been taken by a worker."""
        self.starts += 1
        attempt = Attempt(worker, time, restored_from=self.restore_point, holds=self.request)
        self.attempts.append(attempt)
        self.restore_point = None
        del self.attempts[:-MAX_KEPT]

    def end_attempt(self, outcome: str, time: float) -> None:
        """Note that it has left its worker."""
        attempt = self.attempt
        if attempt is not None:
            attempt.end, attempt.outcome = time, outcome

    def wait_at(self, milestones: Sequence[tuple[str, float]]) -> None:
        """Note where its scheduler decides next."""
        self.milestones = list(milestones)
        first = min((budget for _, budget in milestones), default=nan)
        if isnan(self.first_rung) and first > 0:
            self.first_rung = first

    def reach(self, get: Callable[[str], float], time: float) -> None:
        """Note that its scheduler decides, if it has come to where that was to be.

        Parameters
        ----------
        get : callable
            Gives the metric of a name, NaN if there is none.
        time : float
            Seconds of the runner's clock.
        """
        reached = [one for one in self.milestones if one[1] > 0 and get(one[0]) >= one[1]]
        if reached:
            time_attr, budget = max(reached, key=lambda one: one[1])
            self.rungs.append(RungVisit(budget, time_attr, self.last_value(), time))
            del self.rungs[:-MAX_KEPT]

    def leave_rung(self, outcome: str) -> None:
        """Note what became of it, if it waits at a rung."""
        if self.rungs and self.rungs[-1].outcome == "waits":
            self.rungs[-1].outcome = outcome

    def cut_off(self, iteration: int, better: Sequence[Better]) -> None:
        """Forget what it has reported after an iteration."""
        self.iteration = min(self.iteration, iteration)
        self.jumps = [one for one in self.jumps if one <= iteration]
        for goal, curve in enumerate(self.curves):
            curve.cut(iteration)
            if self.best[goal][0] > iteration:
                self.best[goal] = curve.best(better[goal])

    def jump(self, iteration: int) -> None:
        """Note that it goes on after an iteration, which it may not have come to itself."""
        if iteration > self.iteration:
            self.jumps.append(iteration)
            del self.jumps[:-MAX_KEPT]

    def keep_checkpoint(self, told: Mapping[str, Any]) -> None:
        """Note that it has saved a checkpoint."""
        self.checkpoints += 1
        self.checkpoint = str(told["path"])
        self.stored.pop(self.checkpoint, None)
        self.stored[self.checkpoint] = int(told["iteration"])
        if len(self.stored) > MAX_CHECKPOINTS:
            del self.stored[next(iter(self.stored))]
