"""Numbers about a running experiment, for monitoring.

They are read from the experiment when they are requested, so that they cost nothing in between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Final

from dasktune.experiment import ExperimentMachine
from dasktune.trial import actions
from dasktune.trial.status import PublicStatus

#: The actions that are decisions about a trial, and what users call them.
DECISIONS: Final[Mapping[type[actions.Action], str]] = {
    actions.StopTrial: "stop",
    actions.PauseTrial: "pause",
    actions.ResizeTrial: "resize",
    actions.ExploitTrial: "exploit",
    actions.SaveTrial: "save",
    actions.ContinueTraining: "continue",
}


class Durations:
    """Counts durations by their length.

    Examples
    --------
    >>> durations = Durations()
    >>> durations.add(0.2)
    >>> durations.add(500.0)
    >>> durations.cumulative()[0.3], durations.count, durations.seconds
    (1, 2, 500.2)
    """

    #: Upper limits of the classes in seconds; the last class has no limit.
    LIMITS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

    def __init__(self) -> None:
        self._counts = [0] * (len(self.LIMITS) + 1)
        #: The sum of all durations in seconds.
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(self.LIMITS, seconds)] += 1
        self.seconds += seconds

    @property
    def count(self) -> int:
        """Number of all durations."""
        return sum(self._counts)

    def cumulative(self) -> dict[float, int]:
        """Return how many durations are at most as long as each limit."""
        return dict(zip(self.LIMITS, accumulate(self._counts), strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasurement:
    """Numbers about a running experiment at one moment."""

    #: Number of trials by public status.
    trials: Mapping[PublicStatus, int]
    #: Number of trials that the searcher suggests in total; None if it is not known.
    total_trials: int | None
    #: Number of results in the histories of all trials.
    results: int
    #: Number of checkpoints that trials have saved.
    saves: int
    #: Number of failures of user code, and of losses of workers, summed over the trials.
    failures: int
    losses: int
    #: Number of trials that a scheduler has ended early.
    stopped_early: int
    #: Number of each kind of decision since the driver began, by its name.
    decisions: Mapping[str, int]
    #: Number of records in the journal, and of those that are not durable yet.
    journal_records: int
    journal_queue: int
    #: How long it took to write the checkpoints since the driver began.
    saving: Durations
    #: Whether the user lets no trial start.
    on_hold: bool
    #: Seconds that the loop took until it began to measure.
    loop_lag: float
    #: Seconds that the measurement took.
    seconds: float


def measure(
    experiment: ExperimentMachine,
    decisions: Mapping[type[actions.Action], int],
    *,
    journal: tuple[int, int],
    saving: Durations,
    loop_lag: float,
) -> RunMeasurement:
    """Return the numbers about an experiment; the time is proportional to its trials.

    Parameters
    ----------
    experiment : ExperimentMachine
        The experiment, between two events.
    decisions : mapping
        How often each kind of action was carried out.
    journal : tuple of int
        Number of records that were appended to the journal, and of those that are durable.
    saving : Durations
        How long it took to write checkpoints; it is copied.
    loop_lag : float
        Seconds from the request to this call.
    """
    begun = perf_counter()
    results = saves = failures = losses = stopped_early = 0
    for trial in experiment.trials.values():
        results += len(trial.history)
        saves += trial.next_checkpoint
        failures += trial.failures
        losses += trial.losses
        stopped_early += trial.stopped_early and trial.status.is_final
    appended, durable = journal
    return RunMeasurement(
        trials=experiment.trial_index.public_counts(),
        total_trials=experiment.total_trials,
        results=results,
        saves=saves,
        failures=failures,
        losses=losses,
        stopped_early=stopped_early,
        decisions={name: decisions.get(kind, 0) for kind, name in DECISIONS.items()},
        journal_records=appended,
        journal_queue=max(0, appended - durable),
        saving=deepcopy(saving),
        on_hold=experiment.state.on_hold,
        loop_lag=loop_lag,
        seconds=perf_counter() - begun,
    )
