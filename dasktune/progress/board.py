"""The trials of an experiment, counted and ranked while it runs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, Final, Literal

from dasktune.callback import TrialPlaces, TrialView, TrialViews
from dasktune.experiment import Experiment
from dasktune.trial.actions import Action
from dasktune.trial.events import ExperimentEvent, ResultReported
from dasktune.trial.metrics import Mode, score
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

__all__ = ["Board", "ListedTrials", "Order", "ranked"]

#: In which order the trials of one status come: as they were made, by the best value that each has
#: ever reported, or by the last one.
Order = Literal["made", "best", "last"]

#: Place in the order, lower is earlier; number of the trial; its id.
_Key = tuple[float, int, str]

_NO_KEY: Final[_Key] = (inf, -1, "")


class Board(TrialViews):
    """The trials of an experiment as others see them, with what is to be known without a pass.

    An event costs O(log trials), and asking for the first ten of a status costs ten steps.

    Parameters
    ----------
    trials : mapping of str to Trial
        By their ids; grows.
    places : TrialPlaces
        Where they keep things.
    metric : str, optional
        What they are ranked by.
    mode : {"min", "max"}, optional
        Which way it is better.
    order : {"made", "best", "last"}, default="best"
        In which order the trials of one status come; as they were made without a metric.
    searched : sequence of str, default=()
        Names of the parameters that are searched; of a nested one joined by ``/``.
    """

    def __init__(
        self,
        trials: Mapping[str, Trial],
        places: TrialPlaces,
        *,
        metric: str | None = None,
        mode: Mode | None = None,
        order: Order = "best",
        searched: Sequence[str] = (),
    ) -> None:
        super().__init__(trials, places)
        self.metric, self.mode, self.order = metric, mode, order
        self.searched = tuple(searched)
        #: Results so far.
        self.results = 0
        #: How many of the trials that have ended a scheduler has ended early.
        self.stopped_early = 0
        self.best: tuple[float, str] | None = None
        self._numbers: dict[str, int] = {}
        self._scores: dict[str, float] = {}
        self._keys: dict[str, tuple[PublicStatus, _Key]] = {}
        self._ranks: dict[PublicStatus, list[_Key]] = {status: [] for status in PublicStatus}
        self._failed: dict[str, None] = {}
        self._early: set[str] = set()
        self._places_taken: dict[str, str] = {}
        self._workers: Counter[str] = Counter()
        self._held: dict[str, Mapping[str, float]] = {}

    @property
    def counts(self) -> dict[PublicStatus, int]:
        """How many trials stand at each status."""
        return {status: len(keys) for status, keys in self._ranks.items()}

    @property
    def workers(self) -> int:
        """On how many workers trials run."""
        return len(self._workers)

    @property
    def held(self) -> Collection[Mapping[str, float]]:
        """What each trial holds that has a place, by name of the resource."""
        return self._held.values()

    @property
    def num_failed(self) -> int:
        """How many trials have failed, or were given up."""
        return len(self._failed)

    def load(self) -> None:
        """Take in all trials as they are; O(results), once for an experiment that goes on."""
        for trial in self._trials.values():
            for row in trial.history:
                self._count(trial.trial_id, row)
            self._touch(trial)

    def see(
        self, event: ExperimentEvent, actions: Sequence[Action], experiment: Experiment
    ) -> None:
        """Take in an event after it was handled, and what was decided."""
        if isinstance(event, ResultReported) and experiment.brought_result:
            self._count(event.trial_id, event.metrics)
        concerned = [event, *actions]
        for trial_id in {getattr(one, "trial_id", "") for one in concerned}:
            trial = self._trials.get(trial_id)
            if trial is not None:
                self._touch(trial)

    def top(self, status: PublicStatus, limit: int) -> list[TrialView]:
        """Return the first trials of a status.

        Parameters
        ----------
        status : PublicStatus
            Which.
        limit : int
            How many at most.
        """
        return [self.named(key[-1]) for key in self._ranks[status][: max(limit, 0)]]

    def best_of(self, statuses: Iterable[PublicStatus], limit: int) -> list[TrialView]:
        """Return the first trials of several statuses together.

        Parameters
        ----------
        statuses : iterable of PublicStatus
            Which.
        limit : int
            How many at most.
        """
        keys = sorted(key for one in statuses for key in self._ranks[one][: max(limit, 0)])
        return [self.named(key[-1]) for key in keys[: max(limit, 0)]]

    def failed(self, limit: int | None = None) -> list[TrialView]:
        """Return the first trials whose code has failed, or that were given up.

        Parameters
        ----------
        limit : int, optional
            How many at most.
        """
        return [self.named(trial_id) for trial_id in islice(self._failed, limit)]

    def best_value(self, trial_id: str) -> float | None:
        """Return the best value that a trial has reported, None if it has reported none.

        Parameters
        ----------
        trial_id : str
            Whose.
        """
        points = self._scores.get(trial_id)
        return points if points is None or self.mode == "max" else -points

    def _count(self, trial_id: str, row: Mapping[str, Any]) -> None:
        self.results += 1
        points = self._score(row)
        if points is None or points <= self._scores.get(trial_id, -inf):
            return
        self._scores[trial_id] = points
        if self.best is None or points > self.best[0]:
            self.best = points, trial_id

    def _score(self, row: Mapping[str, Any]) -> float | None:
        if self.metric is None or self.mode is None:
            return None
        return score(row, self.metric, self.mode)

    def _touch(self, trial: Trial) -> None:
        trial_id, status = trial.trial_id, trial.public_status
        number = self._numbers.setdefault(trial_id, len(self._numbers))
        key = (self._place_of(trial), number, trial_id)
        before, old = self._keys.get(trial_id, (None, _NO_KEY))
        if (before, old) != (status, key):
            if before is not None:
                keys = self._ranks[before]
                del keys[bisect_left(keys, old)]
            insort(self._ranks[status], key)
            self._keys[trial_id] = status, key
        self._note_place(trial_id, trial.worker if trial.status.is_active else "")
        if trial.status.is_active:
            self._held[trial_id] = trial.resources.required_resources
        else:
            self._held.pop(trial_id, None)
        if trial.errors or status is PublicStatus.ERROR:
            self._failed[trial_id] = None
        elif trial_id in self._failed:  # it was made to begin anew
            del self._failed[trial_id]
        if (trial.stopped_early and trial.status.is_final) != (trial_id in self._early):
            self._early ^= {trial_id}
            self.stopped_early = len(self._early)

    def _place_of(self, trial: Trial) -> float:
        if self.order == "made":
            return 0.0
        if self.order == "last":
            points = self._score(trial.last_result)
        else:
            points = self._scores.get(trial.trial_id)
        return inf if points is None else -points

    def _note_place(self, trial_id: str, worker: str) -> None:
        before = self._places_taken.get(trial_id, "")
        if before == worker:
            return
        if before:
            del self._places_taken[trial_id]
            self._workers[before] -= 1
            if not self._workers[before]:
                del self._workers[before]
        if worker:
            self._places_taken[trial_id] = worker
            self._workers[worker] += 1


class ListedTrials:
    """Any trials in a list, looked through once: what is known of a `Board` is worked out.

    Parameters
    ----------
    trials : iterable of TrialView
        The trials.
    metric : str, optional
        What they are ranked by, by their last results.
    mode : {"min", "max"}, optional
        Which way it is better.
    order : {"made", "best", "last"}, default="made"
        ``"best"`` is taken for ``"last"``.
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
        """How many stand at each status."""
        return {status: len(trials) for status, trials in self._by_status.items()}

    @property
    def num_failed(self) -> int:
        """How many have failed, or were given up."""
        return len(self.failed())

    def top(self, status: PublicStatus, limit: int) -> list[TrialView]:
        """Return the first trials of a status.

        Parameters
        ----------
        status : PublicStatus
            Which.
        limit : int
            How many at most.
        """
        return self._by_status[status][: max(limit, 0)]

    def failed(self, limit: int | None = None) -> list[TrialView]:
        """Return the first trials whose code has failed, or that were given up.

        Parameters
        ----------
        limit : int, optional
            How many at most.
        """
        trials = self._trials.values()
        failed = (one for one in trials if one.num_failures or one.status is PublicStatus.ERROR)
        return list(islice(failed, limit))

    def named(self, trial_id: str) -> TrialView:
        """Return a trial by its id.

        Parameters
        ----------
        trial_id : str
            Its id.
        """
        return self._trials[trial_id]


def ranked(
    trials: Iterable[TrialView], metric: str | None, mode: Mode | None, order: Order
) -> Board | ListedTrials:
    """Return trials ranked: a `Board` of that order is, and others are looked through.

    Parameters
    ----------
    trials : iterable of TrialView
        The trials.
    metric : str or None
        What they are ranked by.
    mode : {"min", "max"} or None
        Which way it is better.
    order : {"made", "best", "last"}
        How.
    """
    wanted = (metric, mode, order)
    if isinstance(trials, Board) and (trials.metric, trials.mode, trials.order) == wanted:
        return trials
    return ListedTrials(trials, metric, mode, order)
