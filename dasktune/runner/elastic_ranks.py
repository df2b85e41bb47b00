"""Decides with how many ranks an elastic trial starts, and when it is to get all of them.

A trial that needs at least some of its ranks starts with all of them if there is room. Otherwise it
waits for a short time once there is room for the fewest, because a lost worker is mostly replaced
within seconds. Then it starts with as many as there is room for. Later it leaves with a checkpoint
and starts again, when there is room for all.

Each start costs time, which the user knows: both times are settings of `with_ranks`. By default a
trial waits for 10 s, in which a nanny starts another worker, and trains for 60 s with fewer ranks,
so that starts that take some seconds cost less than a tenth of its time, even if workers come and
go all the time.

A trial may need long until it saves. So the room for which it leaves is promised to it until then:
no other trial leaves for the same room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from dasktune.trial.events import RoomForRanks
from dasktune.trial.resources import ElasticPlacement, PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

#: Seconds between two looks whether there is room for all ranks of a trial.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ElasticTimes:
    """How long a trial waits for all of its ranks, and how long it trains without them.

    Parameters
    ----------
    wait_s : float
        Seconds for which a trial waits for all of its ranks while there is room for the fewest.
    grow_after_s : float
        Seconds for which a trial runs with fewer ranks at least, before it starts again with all.
    """

    wait_s: float = 10.0
    grow_after_s: float = 60.0


@dataclass(slots=True)
class _Reduced:
    """A start of a trial with fewer ranks."""

    incarnation: int
    since: float
    #: Whether it is to leave with its next checkpoint. The room for all of its ranks is promised.
    leaves: bool = False


class ElasticRanks:
    """Chooses the number of ranks of each start.

    It forgets everything when its driver ends: the next driver starts all trials again.

    Parameters
    ----------
    has_room : callable
        ``has_room(request)`` returns whether a trial with this request could start now.
    has_room_instead : callable
        ``has_room_instead(requests)`` returns whether all requests of some running trials, by their
        ids, would fit if these released their resources.
    times : ElasticTimes, optional
        How long a trial waits, and trains with fewer ranks.

    Attributes
    ----------
    growing : mapping of str to ElasticPlacement
        At the last look: the requests for all ranks of the trials that leave for them, or would if
        there was room. New workers may be started for these, and should be kept.

    Examples
    --------
    >>> from dasktune.trial.resources import HostPlacement
    >>> request = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)
    >>> trial = Trial(trial_id="a", config={}, resources=request)
    >>> elastic = ElasticRanks(lambda one: len(one.bundles) <= 3, lambda requests: False)
    >>> request, fits = elastic.place(trial, 0.0)
    >>> len(request.bundles), fits
    (4, False)
    >>> request, fits = elastic.place(trial, 10.0)
    >>> len(request.bundles), fits
    (3, True)
    """

    def __init__(
        self,
        has_room: Callable[[PlacementGroupFactory], bool],
        has_room_instead: Callable[[Mapping[str, PlacementGroupFactory]], bool],
        times: ElasticTimes | None = None,
    ) -> None:
        self._has_room = has_room
        self._has_room_instead = has_room_instead
        self._times = times or ElasticTimes()
        #: The trial that waits for all of its ranks, and since when.
        self._waiting: tuple[str, float] = ("", inf)
        #: The last start of each trial that runs with fewer ranks.
        self._reduced: dict[str, _Reduced] = {}
        self._looked = -inf
        self.growing: Mapping[str, ElasticPlacement] = {}

    def place(self, trial: Trial, now: float) -> tuple[PlacementGroupFactory, bool]:
        """Return the request with which a trial starts next, and whether there is room for it.

        Parameters
        ----------
        trial : Trial
            The trial that should get the next free place.
        now : float
            Seconds on the runner's clock.
        """
        request = trial.request
        if not isinstance(request, ElasticPlacement):
            self.note_none_waits()
            return request, self._has_room(request)
        every, *_, fewest = (request.resized(size) for size in request.sizes)
        # In this order, because an executor reports a lasting shortage of what it is asked for.
        if not self._has_room(fewest):
            self.note_none_waits()
            return every, False
        if self._has_room(every):
            self.note_none_waits()
            return every, True
        if self._waiting[0] != trial.trial_id:
            self._waiting = trial.trial_id, now
        if now - self._waiting[1] < self._times.wait_s:
            return every, False
        smaller = (request.resized(size) for size in request.sizes[1:])
        return next((one for one in smaller if self._has_room(one)), fewest), True

    def note_none_waits(self) -> None:
        """Note that no trial waits for all of its ranks: the one that did may have been stopped."""
        self._waiting = "", inf

    def note_start(self, trial: Trial, now: float) -> None:
        """Note that a trial has got its resources.

        Parameters
        ----------
        trial : Trial
            The trial after its start.
        now : float
            Seconds on the runner's clock.
        """
        self._reduced.pop(trial.trial_id, None)
        self.note_none_waits()
        if isinstance(trial.resources, ElasticPlacement) and trial.resources.is_reduced:
            self._reduced[trial.trial_id] = _Reduced(trial.incarnation, now)

    def room_for_all(self, trials: Mapping[str, Trial], now: float) -> list[RoomForRanks]:
        """Return an event for each trial that should leave to start again with all its ranks.

        Parameters
        ----------
        trials : mapping of str to Trial
            All trials.
        now : float
            Seconds on the runner's clock, after each trial has started for which there is room.
        """
        if not self._reduced:
            self.growing = {}
            return []
        if now - self._looked < _LOOK_SECONDS:
            return []
        if self._waiting[0]:
            # The room is for the trial that waits. It starts soon, with as many ranks as fit.
            return []
        self._looked = now
        due = self._due(trials, now)
        promised = {key: request for key, request in due.items() if self._reduced[key].leaves}
        found = []
        for key, every in due.items():
            start = self._reduced[key]
            # One that waits at a milestone may be paused or stopped there.
            may_leave = trials[key].status is TrialStatus.RUNNING and not start.leaves
            if not may_leave or not self._has_room_instead({**promised, key: every}):
                continue
            # Once for each start: the next one counts its own time.
            start.leaves = True
            promised[key] = every
            reason = f"there is room for all of its {every.max_bundles} ranks"
            incarnation = start.incarnation
            found.append(RoomForRanks(trial_id=key, incarnation=incarnation, reason=reason, time=now))
        # A trial that has saved nothing yet may never do so, and then it never leaves.
        self.growing = {key: one for key, one in due.items() if trials[key].restore_point is not None}
        return found

    def _due(self, trials: Mapping[str, Trial], now: float) -> dict[str, ElasticPlacement]:
        """Return requests for all ranks of the trials that have run long enough with fewer."""
        due = {}
        for key, start in tuple(self._reduced.items()):
            trial = trials[key]
            request = trial.resources
            has_left = trial.incarnation != start.incarnation or trial.status.is_final
            # A scheduler of the user may have replaced the request by a fixed one.
            if has_left or not isinstance(request, ElasticPlacement):
                del self._reduced[key]
                continue
            # A suspect trial runs alone on its workers, until it has made progress.
            is_due = trial.status.is_active and (start.leaves or not trial.is_suspect)
            if is_due and now - start.since >= self._times.grow_after_s:
                due[key] = request.resized(request.max_bundles)
        return due
