"""The projection of one trial: its state after the records read so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan, nan
from typing import Any, Final

from dasktune.dashboard.model.curve import Curve
from dasktune.dashboard.model.rank_places import RankPlaces
from dasktune.trial.status import PUBLIC, TrialStatus
from dasktune.trial.trial import Trial

#: Maximum number of attempts and of rung visits kept of a trial: the newest ones. Population based
#: training can cause thousands.
MAX_KEPT: Final = 256

#: Maximum number of paths of checkpoints kept of a trial: the newest ones.
MAX_CHECKPOINTS: Final = 16

#: Maximum number of characters shown of a traceback (its end) and of other texts (their beginning).
_MAX_TRACEBACK: Final = 10_000
_MAX_TEXT: Final = 500

#: Whether the first value is better than the second, which may be NaN.
Better = Callable[[float, float], bool]


@dataclass(slots=True)
class Attempt:
    """One run of a trial on a worker."""

    #: The worker's address, or a simulated worker.
    worker: str
    #: Seconds of the runner's clock.
    start: float
    #: None while it runs.
    end: float | None = None
    #: ``running``, or how it ended: ``ended``, ``stopped``, ``paused``, ``failed`` or ``lost``.
    outcome: str = "running"
    #: ``training_iteration`` of the restored checkpoint; None without one.
    restored_from: int | None = None
    #: The resources that it holds, by name; equal amounts are the same object.
    holds: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class RungVisit:
    """A trial's visit to a rung: a milestone at which the scheduler decided about the trial."""

    #: The milestone, in units of `time_attr`.
    budget: float
    #: The metric that measures the trial's progress.
    time_attr: str
    #: The trial's value at the milestone; NaN without one.
    value: float
    #: Seconds of the runner's clock.
    time: float
    #: ``continued``, ``stopped``, ``waiting``, or ``cloned`` if it became a clone.
    outcome: str = "continued"
    #: The value that it was compared with, if the scheduler recorded it.
    cutoff: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploitMark:
    """An event at which a trial became a clone of another one."""

    #: Indices of the clone and of its donor.
    clone: int
    donor: int
    #: Seconds of the runner's clock.
    time: float
    #: ``training_iteration`` of the clone before, and of the checkpoint from which it continued.
    reached: int
    resumed: int
    reason: str


@dataclass(slots=True, eq=False)
class TrialProjection:
    """What figures and tables need of a trial, in bounded memory.

    Parameters
    ----------
    trial : Trial
        The trial as the journal's records have left it, with few of its results and checkpoints.
    index : int
        The index of the trial, from 0.
    config : dict
        The flat configuration; nested names are joined by ``/``.
    curves : list of Curve
        The values of each goal.
    created : float
        The time of creation, by the runner's clock.
    """

    trial: Trial
    index: int
    config: dict[str, Any]
    curves: list[Curve]
    created: float
    #: As what the experiment counts it: its status, whether it was stopped early, its iteration.
    counted: tuple[TrialStatus, bool, int] = (TrialStatus.PENDING, False, 0)
    #: The `ExperimentProjection.version` of the last change.
    version: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    rungs: list[RungVisit] = field(default_factory=list)
    #: The first rung, which identifies the bracket; NaN before the first rung.
    first_rung: float = nan
    #: The milestones of the next decision: names of metrics and values.
    milestones: list[tuple[str, float]] = field(default_factory=list)
    #: Highest ``training_iteration``.
    iteration: int = 0
    #: The last result, with the fields that dasktune adds.
    metrics: dict[str, Any] = field(default_factory=dict)
    #: ``(training_iteration, value)`` of the best value of each goal; NaN without one.
    best: list[tuple[int, float]] = field(default_factory=list)
    starts: int = 0
    restores: int = 0
    pauses: int = 0
    checkpoints: int = 0
    #: Path of the newest checkpoint, relative to the experiment.
    checkpoint: str = ""
    #: When its code last failed since it was last reopened, by the runner's clock; NaN if never.
    failed_at: float = nan
    #: The requested resources, by name; empty if the journal does not have them.
    request: Mapping[str, float] = field(default_factory=dict)
    #: Index of the trial that it is a clone of; -1 if it is not a clone.
    parent: int = -1
    #: ``training_iteration`` of the checkpoint that the next attempt restores.
    restore_point: int | None = None
    #: ``training_iteration`` of donors' checkpoints from which the trial continued although it had
    #: not reached that iteration itself, and the one that it had reached: its curve has a gap.
    jumps: dict[int, int] = field(default_factory=dict)
    #: The ranks of the last attempt; None for a trial of one process.
    ranks: RankPlaces | None = None

    @property
    def trial_id(self) -> str:
        """The id, unique within the experiment."""
        return self.trial.trial_id

    @property
    def folder(self) -> str:
        """The name of the trial's directory."""
        return self.trial.folder

    @property
    def status(self) -> str:
        """One of the five public statuses."""
        return PUBLIC[self.trial.status].value

    @property
    def stopped_early(self) -> bool:
        """Whether a scheduler has ended it, or is about to, before its training was complete."""
        return self.trial.stopped_early

    @property
    def reason(self) -> str:
        """Why the trial ended, is being stopped, or waits."""
        return (self.trial.reason or self.trial.pause_reason)[:_MAX_TEXT]

    @property
    def failures(self) -> int:
        """How often its code has failed since it was last reopened."""
        return self.trial.failures

    @property
    def losses(self) -> int:
        """How often it has lost its worker."""
        return self.trial.losses

    @property
    def error(self) -> str:
        """The message of the last failure of its code since it was last reopened, or empty."""
        return "" if isnan(self.failed_at) else self.trial.errors[-1].message[:_MAX_TEXT]

    @property
    def traceback(self) -> str:
        """The end of that failure's traceback."""
        return "" if isnan(self.failed_at) else self.trial.errors[-1].traceback[-_MAX_TRACEBACK:]

    @property
    def max_ranks(self) -> int:
        """With how many ranks it trains if there is room; 0 unless it may train with fewer."""
        # A request that may shrink says how many bundles are all of them.
        return getattr(self.trial.resources, "max_bundles", 0)

    @property
    def stored_checkpoints(self) -> dict[str, int]:
        """``training_iteration`` of each checkpoint in the storage by its path, oldest first."""
        return {record.path: record.iteration for record in self.trial.checkpoints}

    @property
    def attempt(self) -> Attempt | None:
        """The present attempt; None if the trial does not run."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.end is None else None

    @property
    def worker(self) -> str:
        """The worker of the last attempt; empty without attempts."""
        return self.trial.worker

    @property
    def outcome(self) -> str:
        """The status, or ``STOPPED`` if it was stopped early."""
        return "STOPPED" if self.stopped_early and self.status == "TERMINATED" else self.status

    def last_value(self, goal: int = 0) -> float:
        """Return the newest value of a goal; NaN without values."""
        return self.curves[goal].last[1] if goal < len(self.curves) else nan

    def best_value(self, goal: int = 0) -> float:
        """Return the best finite value of a goal; NaN without values."""
        return self.best[goal][1] if goal < len(self.best) else nan

    def runtime(self, now: float) -> float:
        """Return the total seconds of the attempts that are kept.

        Parameters
        ----------
        now : float
            Seconds of the runner's clock.
        """
        return sum((now if one.end is None else one.end) - one.start for one in self.attempts)

    # Applying records

    def record_value(self, goal: int, value: float, iteration: int, time: float, better: Better) -> bool:
        """Add a value of a goal; return whether it is the trial's best."""
        was_at, was = self.best[goal]
        self.curves[goal].add(iteration, value, time)
        if isfinite(value) and better(value, was):
            self.best[goal] = iteration, value
            return True
        if iteration == was_at:  # a retry has replaced the best value by a worse one
            self.best[goal] = self.curves[goal].best(better)
        return False

    def begin_attempt(self, worker: str, time: float) -> None:
        """Begin an attempt on a worker."""
        self.starts += 1
        attempt = Attempt(worker, time, restored_from=self.restore_point, holds=self.request)
        self.attempts.append(attempt)
        self.restore_point = None
        del self.attempts[:-MAX_KEPT]

    def end_attempt(self, outcome: str, time: float) -> None:
        """End the present attempt, if there is one."""
        attempt = self.attempt
        if attempt is not None:
            attempt.end, attempt.outcome = time, outcome

    def set_milestones(self, milestones: Sequence[tuple[str, float]]) -> None:
        """Set the milestones of the next decision."""
        self.milestones = list(milestones)
        first = min((budget for _, budget in milestones), default=nan)
        if isnan(self.first_rung) and first > 0:
            self.first_rung = first

    def visit_rung(self, get: Callable[[str], float], time: float) -> None:
        """Add a rung visit if the trial has reached a milestone.

        Parameters
        ----------
        get : callable
            Returns the value of a metric by its name; NaN without one.
        time : float
            Seconds of the runner's clock.
        """
        reached = [one for one in self.milestones if one[1] > 0 and get(one[0]) >= one[1]]
        if reached:
            time_attr, budget = max(reached, key=lambda one: one[1])
            self.rungs.append(RungVisit(budget, time_attr, self.last_value(), time))
            del self.rungs[:-MAX_KEPT]

    def resolve_rung(self, outcome: str) -> None:
        """Set the outcome of the last rung visit if it is still waiting."""
        if self.rungs and self.rungs[-1].outcome == "waiting":
            self.rungs[-1].outcome = outcome

    def discard_after(self, iteration: int, better: Sequence[Better]) -> None:
        """Discard the results after an iteration."""
        # Within a gap there are only the results before it.
        gap = (before for resumed, before in self.jumps.items() if before < iteration <= resumed)
        self.iteration = min(self.iteration, next(gap, iteration))
        self.jumps = {resumed: before for resumed, before in self.jumps.items() if resumed < iteration}
        for goal, curve in enumerate(self.curves):
            curve.discard_after(iteration)
            if self.best[goal][0] > iteration:
                self.best[goal] = curve.best(better[goal])

    def set_iteration(self, iteration: int) -> None:
        """Record a jump if the trial continues after an iteration that it has not reached."""
        if iteration > self.iteration:
            self.jumps[iteration] = self.iteration
            if len(self.jumps) > MAX_KEPT:
                del self.jumps[next(iter(self.jumps))]

    def add_checkpoint(self, path: str) -> None:
        """Count a checkpoint; its trial keeps the newest ones."""
        self.checkpoints, self.checkpoint = self.checkpoints + 1, path
        del self.trial.checkpoints[:-MAX_CHECKPOINTS]
