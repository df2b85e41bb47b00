"""`QueueRunner`, which starts the drivers of queued experiments, each in a process of its own.

Several runners may serve one queue, on one or more machines: the lock of each experiment lets one
driver pass. A runner holds no state that must survive it.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from dasktune.errors import StorageError, TuneError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.leader_lease import LeaderLease
from dasktune.storage.leader.leader_lock import current_leader
from dasktune.storage.queue.experiment_queue import ExperimentQueue
from dasktune.storage.queue.queue_state import QueueState, QueueStatus, start_order
from dasktune.tuner.queued_driver import GIVEN_BACK, DriverOrder

logger = logging.getLogger(__name__)

#: Times of its lease's ttl after which a driver without a lock is frozen. A new driver may need
#: minutes to start where files are slow, and one more ttl to watch the lease of the one before it.
_FROZEN_TTLS: Final = 20.0

#: Longest time in seconds until an experiment that could not start is tried again.
_LONGEST_PAUSE: Final = 60.0


@dataclass
class _Pause:
    """When an experiment that a driver has left may be started again."""

    until: float = 0.0
    attempts: int = 0
    started: float = 0.0


@dataclass
class QueueRunner:
    """Starts the drivers of queued experiments.

    Parameters
    ----------
    queue : Storage
        The queue's directory.
    client : str or None
        The cluster of the experiments; None lets each start one on this machine.
    limit : int, default=1
        How many experiments this runner runs at the same time.
    ttl_s : float, default=30.0
        As for :class:`DriverOrder`.
    on_change : callable, optional
        Called with each experiment and a text when its driver starts or ends.
    clock : callable, default=time.monotonic
        Returns seconds, for the pauses.
    """

    queue: Storage
    client: str | None
    limit: int = 1
    ttl_s: float = 30.0
    on_change: Callable[[QueueStatus, str], None] | None = None
    clock: Callable[[], float] = time.monotonic
    #: The processes of the drivers by the ID of their experiment.
    drivers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _pauses: dict[str, _Pause] = field(default_factory=dict)
    _over: dict[str, QueueStatus] = field(default_factory=dict)
    #: Since when each driver of this runner has held no lock.
    _silent: dict[str, float] = field(default_factory=dict)
    #: The newest lease of each driver of another runner, and since when it has not changed.
    _leases: dict[str, tuple[LeaderLease, float]] = field(default_factory=dict)

    def run(self, *, until_empty: bool = False, poll_s: float = 1.0) -> None:
        """Run experiments until this process is interrupted.

        Parameters
        ----------
        until_empty : bool, default=False
            Return when all experiments of the queue are over.
        poll_s : float, default=1.0
            Seconds between two looks at the queue.

        Raises
        ------
        ConfigError
            If `client` names no cluster.
        StorageError
            If other users of this machine can change the queue.
        """
        ExperimentQueue(self.queue).check_unexposed()
        if self.client is not None:
            from dasktune.cluster.connection.connect import check_address

            check_address(self.client)
        try:
            while not (self.step() and until_empty):
                time.sleep(poll_s)
        finally:
            self.close()

    def step(self) -> bool:
        """Collect drivers that have ended, start others, and return whether all is over."""
        entries = ExperimentQueue(self.queue)
        try:
            found = entries.statuses(self._over)
        except StorageError as error:
            logger.warning("%s. The queue is read again soon.", error)
            return False
        # Other states may change: a read may succeed later, and a cancelled experiment may finish.
        self._over = {one.entry_id: one for one in found if one.is_recorded}
        for entry_id in [key for key, process in self.drivers.items() if process.poll() is not None]:
            self._collect(entry_id, entries)
            return False  # the states that were read may be older than the end of the driver
        self._kill_frozen(found)
        now = self.clock()
        for entry in start_order([self._with_silent_driver(one, entries) for one in found], time.time()):
            if len(self.drivers) >= self.limit:
                break
            if entry.entry_id not in self.drivers and self._pause(entry.entry_id).until <= now:
                self._start(entry)
        return not self.drivers and all(one.state.is_over for one in found)

    def _kill_frozen(self, found: list[QueueStatus]) -> None:
        """Kill drivers of this runner that have held no lock for long: they occupy its places.

        A driver takes the lock after its start, and renews its lease every third of the ttl. A
        driver that was suspended, or does not end after it has released the lock, does neither.
        The experiments are safe: another driver may have taken them over long ago.
        """
        now = self.clock()
        states = {one.entry_id: one.state for one in found}
        for entry_id, process in self.drivers.items():
            # If its state is not known this time, it may be running.
            if states.get(entry_id, QueueState.UNKNOWN) in (QueueState.RUNNING, QueueState.UNKNOWN):
                self._silent.pop(entry_id, None)
            elif now - self._silent.setdefault(entry_id, now) > _FROZEN_TTLS * self.ttl_s:
                logger.warning("the driver of %s (pid %d) seems frozen, and is killed", entry_id, process.pid)
                process.kill()

    def _with_silent_driver(self, entry: QueueStatus, entries: ExperimentQueue) -> QueueStatus:
        """Return an experiment as queued if its driver has renewed no lease for a whole ttl.

        The state of an experiment trusts the clock of the driver's machine. If that clock is ahead,
        a driver that died with its machine would count as alive for as long.
        """
        if entry.state is not QueueState.RUNNING or entry.entry_id in self.drivers:
            self._leases.pop(entry.entry_id, None)
            return entry
        try:
            lease = current_leader(entries.entry(entry.entry_id))
        except StorageError:  # the next look may succeed
            return entry
        if lease is None:
            return entry
        now = self.clock()
        seen, since = self._leases.get(entry.entry_id, (None, now))
        if seen != lease:
            self._leases[entry.entry_id] = lease, now
        elif now - since > lease.ttl_s:
            # Its own driver waits for another ttl before it takes the lock.
            return replace(entry, state=QueueState.QUEUED)
        return entry

    def close(self) -> None:
        """Let the drivers end as after Ctrl-C, and wait for them."""
        if self.drivers:
            logger.warning(
                "the runner ends: %d of its experiments save and stay in the queue. Press Ctrl-C to "
                "leave at once; their drivers then end by themselves",
                len(self.drivers),
            )
        for process in self.drivers.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self.drivers.values():
            process.wait()
        self.drivers.clear()

    def _tell(self, entry: QueueStatus, text: str) -> None:
        if self.on_change is not None:
            self.on_change(entry, text)

    def _pause(self, entry_id: str) -> _Pause:
        return self._pauses.setdefault(entry_id, _Pause())

    def _start(self, entry: QueueStatus) -> None:
        self._pause(entry.entry_id).started = self.clock()
        order = DriverOrder(self.queue, entry.entry_id, self.client, self.ttl_s)
        # Ctrl-C in the terminal reaches the runner only, which closes the input of its drivers.
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "dasktune.tuner.queued_driver"],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:  # this machine has too many processes, or no memory
            logger.warning("%s stays queued: its driver cannot be started: %s", entry.name, error)
            self._postpone(entry.entry_id)
            return
        self.drivers[entry.entry_id] = process
        assert process.stdin is not None
        # Credentials travel through the pipe, since other users can see command lines.
        with contextlib.suppress(OSError):  # it has died already
            process.stdin.write(pickle.dumps(order))
            process.stdin.flush()
        self._tell(entry, "starts")

    def _collect(self, entry_id: str, entries: ExperimentQueue) -> None:
        process = self.drivers.pop(entry_id)
        self._silent.pop(entry_id, None)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            entry = entries.status(entry_id)
        except TuneError as error:
            logger.warning("%s. The queue is read again soon.", error)
            self._postpone(entry_id)
            return
        if entry.state is QueueState.RUNNING:
            self._tell(entry, "is run by another driver")
            return
        if entry.state is not QueueState.QUEUED:
            self._tell(entry, f"has {entry.state.value}")
            return
        status = process.returncode
        self._postpone(entry_id, at_once=status < 0)
        why = f"its driver has ended with status {status}"  # it has not even read its order
        if status < 0:
            why = f"its driver was killed by signal {-status}"
        elif status in (0, GIVEN_BACK):
            why = entry.reason or "another driver runs it"
        self._tell(entry, f"is queued again: {why}")

    def _postpone(self, entry_id: str, *, at_once: bool = False) -> None:
        """Let an experiment wait until it may start again, longer each time."""
        pause, now = self._pause(entry_id), self.clock()
        if now - pause.started >= _LONGEST_PAUSE:
            pause.attempts = 0  # this driver has worked
        pause.attempts += 1
        # An experiment may kill its drivers: only the first one in a row is replaced at once.
        at_once = at_once and pause.attempts == 1
        pause.until = now + (0.0 if at_once else min(_LONGEST_PAUSE, 2.0 ** (pause.attempts - 1)))
