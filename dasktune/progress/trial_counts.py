"""Count and rank the trials of an experiment while it runs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, Final, Literal

from dasktune.callback import TrialStorage, TrialView, TrialViews
from dasktune.experiment import HandleResult
from dasktune.trial.actions import ReopenTrial
from dasktune.trial.events import ExperimentEvent, ResultReported
from dasktune.trial.metrics import Mode, score
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

#: The order of trials with the same status: by creation, by the best reported value, or by the last
#: reported value.
Order = Literal["made", "best", "last"]

#: Sort key: the score (lower is earlier), the number of the trial, its id.
_Key = tuple[float, int, str]

_NO_KEY: Final[_Key] = (inf, -1, "")


class TrialCounts(TrialViews):
    """The trials of an experiment with counts and rankings that each event updates.

    An event costs O(log trials); reading the first n trials of a status costs O(n).

    Parameters
    ----------
    trials : mapping of str to Trial
        The trials by id; grows during the experiment.
    trial_storage : TrialStorage
        The directories of the trials.
    metric : str, optional
        The metric by which trials are ranked.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better.
    order : {"made", "best", "last"}, default="best"
        The order of trials with the same status; without a metric, the order of creation.
    searched : sequence of str, default=()
        Names of the searched parameters; nested names are joined by ``/``.
    """

    def __init__(
        self,
        trials: Mapping[str, Trial],
        trial_storage: TrialStorage,
        *,
        metric: str | None = None,
        mode: Mode | None = None,
        order: Order = "best",
        searched: Sequence[str] = (),
    ) -> None:
        super().__init__(trials, trial_storage)
        self.metric, self.mode, self.order = metric, mode, order
        self.searched = tuple(searched)
        #: Number of trials that the experiment will have; None if unknown.
        self.total: int | None = None
        #: Number of results so far.
        self.results = 0
        #: Number of ended trials that a scheduler stopped early.
        self.stopped_early = 0
        self.best: tuple[float, str] | None = None
        self._numbers: dict[str, int] = {}
        self._scores: dict[str, float] = {}
        self._keys: dict[str, tuple[PublicStatus, _Key]] = {}
        self._ranks: dict[PublicStatus, list[_Key]] = {status: [] for status in PublicStatus}
        self._failed: dict[str, None] = {}
        self._early: set[str] = set()
        self._worker_of: dict[str, str] = {}
        self._workers: Counter[str] = Counter()
        self._held: dict[str, Mapping[str, float]] = {}

    @property
    def counts(self) -> dict[PublicStatus, int]:
        """The number of trials with each status."""
        return {status: len(keys) for status, keys in self._ranks.items()}

    @property
    def workers(self) -> int:
        """The number of workers that run trials."""
        return len(self._workers)

    @property
    def held(self) -> Collection[Mapping[str, float]]:
        """The resources of each active trial, by name."""
        return self._held.values()

    @property
    def num_failed(self) -> int:
        """The number of trials with a failure."""
        return len(self._failed)

    def load(self, goal: tuple[str | None, str | None] = (None, None)) -> None:
        """Count the trials and results that exist already; call it once.

        Parameters
        ----------
        goal : pair of str or None, default=(None, None)
            The metric and the mode of the scores that the trials keep. If they are those of these
            counts, or these have none, no results are read: after a restore, that could mean to
            read the whole journal.
        """
        needs_rows = self._has_goal and goal != (self.metric, self.mode)
        for trial in self._trials.values():
            if needs_rows:
                for row in trial.history:
                    self._count(trial.trial_id, row)
            else:
                self.results += len(trial.history)
                # None if no result has had a score. Without a metric there is none to count.
                self._count_score(trial.trial_id, trial.best_score if self._has_goal else None)
            self._update_trial(trial)

    def update(self, event: ExperimentEvent, handled: HandleResult) -> None:
        """Count an event that was handled, and the actions that it caused."""
        if isinstance(event, ResultReported) and handled.is_new_result:
            self._count(event.trial_id, event.metrics)
        for action in handled.actions:
            if isinstance(action, ReopenTrial) and action.fresh:
                self._forget(action.trial_id)
        concerned = [event, *handled.actions]
        for trial_id in {getattr(one, "trial_id", "") for one in concerned}:
            trial = self._trials.get(trial_id)
            if trial is not None:
                self._update_trial(trial)

    def top(self, status: PublicStatus, limit: int) -> list[TrialView]:
        """Return the first trials with a status, in the order of their ranks.

        Parameters
        ----------
        status : PublicStatus
            The status.
        limit : int
            Maximum number of trials.
        """
        return [self.named(key[-1]) for key in self._ranks[status][: max(limit, 0)]]

    def best_of(self, statuses: Iterable[PublicStatus], limit: int) -> list[TrialView]:
        """Return the first trials with any of several statuses, in the order of their ranks.

        Parameters
        ----------
        statuses : iterable of PublicStatus
            The statuses.
        limit : int
            Maximum number of trials.
        """
        keys = sorted(key for one in statuses for key in self._ranks[one][: max(limit, 0)])
        return [self.named(key[-1]) for key in keys[: max(limit, 0)]]

    def failed(self, limit: int | None = None) -> list[TrialView]:
        """Return the first trials with a failure, of their code or of their workers.

        Parameters
        ----------
        limit : int, optional
            Maximum number of trials.
        """
        return [self.named(trial_id) for trial_id in islice(self._failed, limit)]

    def best_value(self, trial_id: str) -> float | None:
        """Return the best value that a trial has reported, None if it has reported none.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        points = self._scores.get(trial_id)
        return points if points is None or self.mode == "max" else -points

    def _count(self, trial_id: str, row: Mapping[str, Any]) -> None:
        self.results += 1
        self._count_score(trial_id, self._score(row))

    def _count_score(self, trial_id: str, points: float | None) -> None:
        if points is None or points <= self._scores.get(trial_id, -inf):
            return
        self._scores[trial_id] = points
        if self.best is None or points > self.best[0]:
            self.best = points, trial_id

    def _forget(self, trial_id: str) -> None:
        """Forget the values of a trial whose results are discarded. Costs O(trials)."""
        self._scores.pop(trial_id, None)
        if self.best is not None and self.best[1] == trial_id:
            best = max(self._scores, key=self._scores.__getitem__, default=None)
            self.best = None if best is None else (self._scores[best], best)

    @property
    def _has_goal(self) -> bool:
        return self.metric is not None and self.mode is not None

    def _score(self, row: Mapping[str, Any]) -> float | None:
        if self.metric is None or self.mode is None:
            return None
        return score(row, self.metric, self.mode)

    def _update_trial(self, trial: Trial) -> None:
        trial_id, status = trial.trial_id, trial.public_status
        number = self._numbers.setdefault(trial_id, len(self._numbers))
        key = (self._sort_key(trial), number, trial_id)
        before, old = self._keys.get(trial_id, (None, _NO_KEY))
        if (before, old) != (status, key):
            if before is not None:
                keys = self._ranks[before]
                del keys[bisect_left(keys, old)]
            insort(self._ranks[status], key)
            self._keys[trial_id] = status, key
        self._set_worker(trial_id, trial.worker if trial.status.is_active else "")
        if trial.status.is_active:
            self._held[trial_id] = trial.resources.required_resources
        else:
            self._held.pop(trial_id, None)
        if trial.errors or status is PublicStatus.ERROR:
            self._failed[trial_id] = None
        elif trial_id in self._failed:  # the trial was reset
            del self._failed[trial_id]
        if (trial.stopped_early and trial.status.is_final) != (trial_id in self._early):
            self._early ^= {trial_id}
            self.stopped_early = len(self._early)

    def _sort_key(self, trial: Trial) -> float:
        if self.order == "made":
            return 0.0
        is_last = self.order == "last"
        points = self._score(trial.last_result) if is_last else self._scores.get(trial.trial_id)
        return inf if points is None else -points

    def _set_worker(self, trial_id: str, worker: str) -> None:
        before = self._worker_of.get(trial_id, "")
        if before == worker:
            return
        if before:
            del self._worker_of[trial_id]
            self._workers[before] -= 1
            if not self._workers[before]:
                del self._workers[before]
        if worker:
            self._worker_of[trial_id] = worker
            self._workers[worker] += 1


class RankedTrials:
    """Trials counted and ranked once, with the reading methods of `TrialCounts`.

    Parameters
    ----------
    trials : iterable of TrialView
        The trials.
    metric : str, optional
        The metric by which their last results are ranked.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better.
    order : {"made", "best", "last"}, default="made"
        ``"best"`` means the same as ``"last"``.
    """

    def __init__(
        self,
        trials: Iterable[TrialView],
        metric: str | None = None,
        mode: Mode | None = None,
        order: Order = "made",
    ) -> None:
        self.metric, self.mode = metric, mode
        self.best: tuple[float, str] | None = None
        self.searched: tuple[str, ...] = ()
        #: Number of trials that the experiment will have; None if unknown.
        self.total: int | None = None
        self._trials = {trial.trial_id: trial for trial in trials}
        scores: dict[str, float] = {}
        for trial_id, trial in self._trials.items():
            known = metric is not None and mode is not None
            points = score(trial.last_result, metric, mode) if known else None  # type: ignore[arg-type]
            scores[trial_id] = -inf if points is None else points
            if points is not None and (self.best is None or points > self.best[0]):
                self.best = points, trial_id
        ids = list(self._trials)
        if order != "made":
            ids.sort(key=lambda trial_id: -scores[trial_id])
        self._by_status: dict[PublicStatus, list[TrialView]] = {one: [] for one in PublicStatus}
        for trial_id in ids:
            self._by_status[self._trials[trial_id].status].append(self._trials[trial_id])

    @property
    def counts(self) -> dict[PublicStatus, int]:
        """The number of trials with each status."""
        return {status: len(trials) for status, trials in self._by_status.items()}

    @property
    def num_failed(self) -> int:
        """The number of trials with a failure."""
        return len(self.failed())

    def top(self, status: PublicStatus, limit: int) -> list[TrialView]:
        """Return the first trials with a status, in the order of their ranks.

        Parameters
        ----------
        status : PublicStatus
            The status.
        limit : int
            Maximum number of trials.
        """
        return self._by_status[status][: max(limit, 0)]

    def failed(self, limit: int | None = None) -> list[TrialView]:
        """Return the first trials with a failure, of their code or of their workers.

        Parameters
        ----------
        limit : int, optional
            Maximum number of trials.
        """
        trials = self._trials.values()
        failed = (one for one in trials if one.num_failures or one.status is PublicStatus.ERROR)
        return list(islice(failed, limit))

    def named(self, trial_id: str) -> TrialView:
        """Return a trial by its id.

        Parameters
        ----------
        trial_id : str
            The trial's id.
        """
        return self._trials[trial_id]


def rank_trials(
    trials: Iterable[TrialView], metric: str | None, mode: Mode | None, order: Order
) -> TrialCounts | RankedTrials:
    """Return ranked trials; a `TrialCounts` with the requested order is returned as it is.

    Parameters
    ----------
    trials : iterable of TrialView
        The trials.
    metric : str or None
        The metric by which trials are ranked.
    mode : {"min", "max"} or None
        Whether lower or higher values are better.
    order : {"made", "best", "last"}
        The order of trials with the same status.
    """
    wanted = (metric, mode, order)
    if isinstance(trials, TrialCounts) and (trials.metric, trials.mode, trials.order) == wanted:
        return trials
    ranked = RankedTrials(trials, metric, mode, order)
    ranked.total = trials.total if isinstance(trials, TrialCounts) else None
    return ranked
