"""Lets trials overtake the tasks of other programs that wait on a worker.

Dask books the resources of a task as soon as it is sent to a worker, also while it waits there. So
thousands of tasks that request CPUs fill all workers for as long as they last, and no trial would
start until then. An experiment that has waited for such a worker for a while therefore requests a
lease there all the same. A worker starts the waiting task with the highest priority first, and the
tasks of an experiment have a slightly higher one than other tasks by default. So the lease is the
next task that gets resources.

In the other direction, one trial at a time overtakes the tasks of a worker. As long as tasks wait
there, its lease ends with the trial, and the next trial overtakes tasks only after a pause. So
neither the tasks nor the experiment starve, however many of both there are and however short they
are. That holds for tasks whose own priority is not higher than the experiment's; others are not
overtaken. Shares are not promised: the scheduler does not know which of a worker's tasks run.

A trial on several workers, or one that requests more than one CPU, waits until several tasks have
ended. Meanwhile nothing uses the room of those that have ended first. The trial may keep room idle
like that for 15 s. Then its leases are released, and for three times as long no such trial
overtakes tasks. Each further attempt may last twice as long as the one before, up to eight minutes.
So a worker is idle for at most a quarter of the time, and a trial starts beside longer tasks, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Final

from dasktune.placement import Ledger, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory

#: Seconds for which an experiment waits for a worker before a trial overtakes tasks there.
_PAUSE: Final = 2.0

#: Seconds for which leases that overtake tasks may keep room idle: at first, and at most.
_FIRST_PATIENCE: Final = 15.0
_LONGEST_PATIENCE: Final = 480.0

#: For how many times as long no trial keeps room idle after an attempt that has failed.
_REST: Final = 3

_EPSILON: Final = 1e-6


class TaskQueues:
    """Decides on which workers a trial may overtake tasks of other programs.

    Parameters
    ----------
    pause_s : float, default=2.0
        Seconds for which an experiment waits for a worker before a trial overtakes tasks there.
    """

    def __init__(self, pause_s: float = _PAUSE) -> None:
        self._pause_s = pause_s
        #: Since when the experiment has waited and had no trial on each worker whose tasks wait.
        self._since: dict[str, float] = {}
        #: Seconds for which the leases of the next trial may keep room idle.
        self.patience_s = _FIRST_PATIENCE
        #: Until when no trial overtakes tasks that would keep room idle.
        self._rests_until = -inf

    def on_given_up(self, patience_s: float, now: float) -> None:
        """Handle that a trial has kept room idle for as long as it may, and has not started.

        Parameters
        ----------
        patience_s : float
            The seconds that it had. If several trials had them at the same time, they count once.
        now : float
            The time in seconds.
        """
        self._rests_until = now + _REST * patience_s
        self.patience_s = min(2 * patience_s, _LONGEST_PATIENCE)

    def limit(
        self,
        workers: Mapping[str, WorkerCapacity],
        request: PlacementGroupFactory | None,
        ledger: Ledger,
        now: float,
    ) -> dict[str, WorkerCapacity]:
        """Return the workers with what one trial may overtake there; on most of them nothing.

        Parameters
        ----------
        workers : mapping
            The workers as just read, with what tasks of other programs have booked.
        request : PlacementGroupFactory or None
            The request of the next trial that waits; None if none waits.
        ledger : Ledger
            The allocations of the experiment.
        now : float
            The time in seconds.
        """
        waiting = {
            address
            for address, worker in workers.items()
            if worker.overtakable and request is not None and not ledger.is_used(address)
        }
        self._since = {address: self._since.get(address, now) for address in sorted(waiting)}
        if not any(worker.overtakable for worker in workers.values()):
            # The next tasks that wait may be shorter.
            self.patience_s, self._rests_until = _FIRST_PATIENCE, -inf
        if request is not None and now < self._rests_until and _keeps_room_idle(request):
            request = None
        return {
            address: worker
            if not worker.overtakable
            else replace(
                worker,
                overtakable=_for_one_trial(worker, request)
                if request is not None and now - self._since.get(address, now) >= self._pause_s
                else {},
            )
            for address, worker in workers.items()
        }


def _keeps_room_idle(request: PlacementGroupFactory) -> bool:
    """Whether a trial may have to wait for the ends of several tasks."""
    bundles = [bundle for bundle in request.bundles if bundle]
    # Tasks request no memory of Dask.
    amounts = (v for bundle in bundles for kind, v in bundle.items() if kind != "memory")
    return len(bundles) > 1 or any(amount > 1 for amount in amounts)


def _for_one_trial(worker: WorkerCapacity, request: PlacementGroupFactory) -> dict[str, float]:
    """Return what one trial overtakes on a worker; nothing if no bundle fits there even then.

    A trial whose bundles do not fit there together puts as many of them there as fit, the largest
    ones first.
    """
    bundles = [bundle for bundle in request.bundles if bundle]
    needs: dict[str, float] = {}
    for bundle in sorted(bundles, key=lambda bundle: -bundle.get("CPU", 0)):
        more = {**needs, **{kind: needs.get(kind, 0) + amount for kind, amount in bundle.items()}}
        # `for_trials` has all that the tasks have booked.
        if all(amount - worker.for_trials(kind) <= _EPSILON for kind, amount in more.items()):
            needs = more
    return {
        kind: max(0.0, amount - (worker.for_trials(kind) - worker.overtakable.get(kind, 0)))
        for kind, amount in needs.items()
    }
