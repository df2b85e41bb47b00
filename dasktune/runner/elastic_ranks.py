"""Decides with how many ranks an elastic trial starts, and when it is to get all of them.

A trial that needs at least some of its ranks starts with all of them if there is room. Otherwise it
waits for a short time once there is room for the fewest, because a lost worker is mostly replaced
within seconds. Then it starts with as many as there is room for. Later it leaves with a checkpoint
and starts again, when there is room for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from dasktune.trial.events import RoomForRanks
from dasktune.trial.resources import ElasticPlacement, PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

__all__ = ["GROW_SECONDS", "WAIT_SECONDS", "ElasticRanks"]

#: Seconds for which a trial waits for all of its ranks while there is room for the fewest.
WAIT_SECONDS = 10.0

#: Seconds for which a trial runs with fewer ranks at least, before it starts again with all.
GROW_SECONDS = 60.0

#: Seconds between two looks whether there is room for all ranks of a trial.
_LOOK_SECONDS = 1.0


class ElasticRanks:
    """Chooses the number of ranks of each start.

    It forgets everything when its driver ends: the next driver starts all trials again.

    Parameters
    ----------
    has_room : callable
        ``has_room(request)`` returns whether a trial with this request could start now.
    has_room_instead : callable
        ``has_room_instead(trial_id, request)`` returns whether a request would fit if a running
        trial released its resources.

    Examples
    --------
    >>> from dasktune.trial.resources import HostPlacement
    >>> request = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)
    >>> trial = Trial(trial_id="a", config={}, resources=request)
    >>> elastic = ElasticRanks(lambda one: len(one.bundles) <= 3, lambda key, one: False)
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
        has_room_instead: Callable[[str, PlacementGroupFactory], bool],
    ) -> None:
        self._has_room = has_room
        self._has_room_instead = has_room_instead
        #: The trial that waits for all of its ranks, and since when.
        self._waiting: tuple[str, float] = ("", inf)
        #: The trials that were started with fewer ranks: the incarnation, and the time.
        self._reduced: dict[str, tuple[int, float]] = {}
        self._looked = -inf

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
        if now - self._waiting[1] < WAIT_SECONDS:
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
            self._reduced[trial.trial_id] = trial.incarnation, now

    def room_for_all(self, trials: Mapping[str, Trial], now: float) -> list[RoomForRanks]:
        """Return an event for each trial that should leave to start again with all its ranks.

        Parameters
        ----------
        trials : mapping of str to Trial
            All trials.
        now : float
            Seconds on the runner's clock, after each trial has started for which there is room.
        """
        if not self._reduced or now - self._looked < _LOOK_SECONDS:
            return []
        if self._waiting[0]:
            # The room is for the trial that waits. It starts soon, with as many ranks as fit.
            return []
        self._looked = now
        found = []
        for key, (incarnation, since) in tuple(self._reduced.items()):
            trial = trials[key]
            request = trial.resources
            has_left = trial.incarnation != incarnation or trial.status.is_final
            # A scheduler of the user may have replaced the request by a fixed one.
            if has_left or not isinstance(request, ElasticPlacement):
                del self._reduced[key]
                continue
            # A suspect trial runs alone on its workers, until it has made progress.
            waits = trial.status is not TrialStatus.RUNNING or trial.is_suspect
            every = request.resized(request.max_bundles)
            if waits or now - since < GROW_SECONDS or not self._has_room_instead(key, every):
                continue
            # Once for each start: the next one counts its own time.
            del self._reduced[key]
            reason = f"there is room for all of its {request.max_bundles} ranks"
            found.append(RoomForRanks(trial_id=key, incarnation=incarnation, reason=reason, time=now))
        return found
