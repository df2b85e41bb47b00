"""The Dask actor that runs an experiment's trials on a worker, one after another.

Its methods for the driver are short, idempotent coroutines, because the driver repeats a call that
gets no answer. User code never runs on the worker's event loop nor on Dask's single
actor thread: a `ThreadRun` has its own thread, a `ProcessRun` its own process.

The constructor runs on Dask's actor thread. After that all state belongs to the worker's event
loop. A trial's own thread calls only `_on_end`, `_notify`, `_fence` and `_keep_checkpoint`. The
first two pass their work to the loop. The docstrings of the others state why they are safe.
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from distributed.worker import get_worker

from dasktune.cluster.data.kept_checkpoints import key_of
from dasktune.cluster.protocol.wire_messages import ACTOR_CALL, Reply, Request, TransferCall, pickled_call
from dasktune.cluster.worker.assignment import AssignedTrial
from dasktune.cluster.worker.endpoint import WorkerEndpoint
from dasktune.cluster.worker.trainable_loader import TrainableLoader
from dasktune.errors import StorageError
from dasktune.isolation.environment import needs_process
from dasktune.isolation.process import ChildProcess
from dasktune.isolation.process_run import ProcessRun, WarmProcess
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.checkpoints.relay import Transfer
from dasktune.trainable.reporting.outbox import Urgency
from dasktune.trainable.reporting.recorder import CheckpointHooks
from dasktune.trainable.reporting.trial_messages import NoticeAnswer, StopAnswer
from dasktune.trainable.running.reuse import Cleanup, ReusableTrainable
from dasktune.trainable.running.run_base import RunBase
from dasktune.trainable.running.thread_run import ThreadRun

logger = logging.getLogger(__name__)

#: Seconds that a trial may run while others are queued behind it. They were prefetched to save
#: round trips between trials that take milliseconds. Behind a longer trial they would only wait,
#: although another actor may be free to run them.
_MAX_QUEUE_SECONDS: Final = 0.1

#: Largest number of seconds between the interrupt of user code and the kill of its process.
_MAX_INTERRUPT_SECONDS: Final = 1.0

#: With more queued trials than this, the actor stays busy during the batch window. So the driver
#: need not be notified at once of a trial's end.
_ENOUGH_QUEUED: Final = 4


class TrialActor:
    """Runs the trials that the driver assigns, one at a time.

    Parameters
    ----------
    key : str
        The actor's key in Dask. Once Dask has released the key, the driver is gone or does not need
        the actor.
    plugin : str
        Name of the experiment's worker plugin, which holds the trainable.
    topic : str
        The topic of the notifications.
    driver_ttl : float
        Seconds of silence after which the driver counts as gone, and the trial is stopped.
    fence_after : float
        Seconds of silence of the driver after which no checkpoint is committed.
    stop_grace : float
        Seconds from a stop order to the interrupt of user code.
    reuse : bool, default=True
        Whether the object of a class trainable is reused for the next trial, if it can be reset.
    worker : distributed.Worker, optional
        The worker; by default the one on which this runs.
    make_run : callable, default=ThreadRun
        Makes the run of a trial that needs no process of its own.
    """

    def __init__(
        self,
        key: str,
        *,
        plugin: str,
        topic: str,
        driver_ttl: float,
        fence_after: float,
        stop_grace: float,
        reuse: bool = True,
        worker: Any = None,
        make_run: Callable[..., RunBase] = ThreadRun,
    ) -> None:
        self._worker = get_worker() if worker is None else worker
        self._make_thread_run = make_run
        self.key = key
        self._plugin = self._worker.plugins[plugin]
        self._driver_ttl = driver_ttl
        self._stop_grace = stop_grace
        self._reuse = reuse
        self._reusable = ReusableTrainable(stop_grace)
        #: The trial that runs now, or ran last.
        self._current: AssignedTrial | None = None
        #: Trials that wait for the current one to end.
        self._queue: deque[AssignedTrial] = deque()
        self._orphaned_at: float | None = None
        self._loader = TrainableLoader(self._worker, self._plugin, self, 2 * stop_grace)
        self._warm_process = WarmProcess()
        _accept_calls(self._worker)
        self._endpoint = WorkerEndpoint.of(self._worker, self._plugin, topic, fence_after)
        self._plugin.actors[key] = self
        self._endpoint.start_watch()

    # Methods for the driver

    @pickled_call
    async def poll(self, request: Request) -> Reply:
        """Apply a request of the driver, and return what the driver does not have yet."""
        return self._endpoint.poll(request)

    @pickled_call
    async def transfer_step(self, call: TransferCall) -> Transfer | bytes | None:
        """Perform one step of a transfer for a trial of this worker."""
        return await self._endpoint.transfer_step(call)

    async def has_driver(self) -> bool:
        """Whether the driver is in contact; the leases of the trial's other bundles ask this."""
        return not self._is_abandoned

    # Methods for the worker's event loop

    def enqueue(self, trial: AssignedTrial) -> None:
        """Run a trial as soon as the trials before it have ended."""
        self._queue.append(trial)
        self._advance()

    @property
    def is_busy(self) -> bool:
        """Whether user code is still running, even if it was ordered to stop."""
        return self._is_running or self.is_cleaning

    @property
    def is_cleaning(self) -> bool:
        """Whether the cleanup of a reusable trainable is running."""
        return self._reusable.is_cleaning

    @property
    def is_forgotten(self) -> bool:
        """Whether Dask has released the actor: its driver is gone, or no longer needs it."""
        return self.key not in self._worker.state.actors

    @property
    def is_needed(self) -> bool:
        """Whether a trial runs here, or the driver has not fetched the last trial's messages."""
        owes = self._current is not None and not self._current.delivered
        return self.is_busy or (owes and not self.is_forgotten)

    def retire(self, seconds: float) -> None:
        """Let each trial save a checkpoint and leave, because the worker retires.

        Parameters
        ----------
        seconds : float
            Seconds until the worker's end.
        """
        self._reusable.close()
        notice = NoticeAnswer(seconds=seconds, reason="its worker is retiring", urgent=True)
        for trial in (self._current, *self._queue):
            if trial is not None:
                self._endpoint.notice_trial(trial, notice)
        self._warm_process.close()

    def release_idle(self) -> Sequence[RunBase | Cleanup | ChildProcess]:
        """Release the objects kept for the next trial; return the user code that still runs."""
        self._reusable.close()
        self._warm_process.release_idle()
        return self._in_use()

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for user code to end. Thread-safe."""
        deadline = time.monotonic() + timeout
        for running in self._in_use():
            running.join(max(0.0, deadline - time.monotonic()))

    def discard(self) -> None:
        """Drop all references to the experiment, because Dask may keep this actor for long."""
        self._warm_process.close()
        self._loader.close()
        self._current = None
        self._plugin.actors.pop(self.key, None)

    def check_driver(self) -> None:
        """Stop the trial of a driver that is gone or silent; called every second.

        A silent driver may call again after its trial was stopped. It learns that from the trial's
        last message, unless it has marked the worker lost.
        """
        forgotten = self.is_forgotten
        if self._current and self._is_abandoned:
            if self._current.is_busy:
                silence = self._endpoint.liveness.silence
                why = "Dask released its actor" if forgotten else f"silent for {silence:.0f} s"
                self._stop_orphan(self._current, why)
            # End the leases, because Dask does not if the driver hangs but stays connected.
            for key, released in self._plugin.leases.items():
                if key.startswith(f"{self.key}-lease-"):
                    released.set()
        if forgotten:
            self._reusable.close()
        self._reusable.interrupt_if_late()
        if forgotten and not self.is_busy:
            self.discard()

    @property
    def _is_abandoned(self) -> bool:
        """Whether the driver is gone, or silent although it should fetch messages."""
        trial = self._current
        awaited = trial is not None and (trial.is_busy or not trial.delivered)
        is_silent = self._endpoint.liveness.silence > self._driver_ttl
        return awaited and (self.is_forgotten or is_silent)

    @property
    def _is_running(self) -> bool:
        return self._current is not None and self._current.is_busy

    def _in_use(self) -> list[RunBase | Cleanup | ChildProcess]:
        """Return what still runs: the trial's run, earlier trials' cleanups and processes."""
        run = None if self._current is None else self._current.run
        runs = [run] if run is not None and run.in_use else []
        return [*runs, *self._reusable.cleanups, *self._warm_process.exiting]

    def _advance(self) -> None:
        """Start the next trial if the actor is free, and limit how long others wait.

        It runs on the loop after each end and each assignment, in any order, because only the
        actor's state matters. A second call for one end finds a busy actor or an empty queue.
        """
        if self._reusable.has_abandoned_cleanup:
            self._return_queue()
        while self._queue and not self._is_running:
            trial = self._queue.popleft()
            if trial.is_waiting:
                self._begin(trial)
        if self._queue and self._current is not None:
            # The timer may be late: `_return_if_slow` checks that this trial is still current.
            self._worker.loop.call_later(_MAX_QUEUE_SECONDS, self._return_if_slow, self._current)

    def _begin(self, trial: AssignedTrial) -> None:
        self._current = trial
        self._orphaned_at = None
        trial.begin(self._make_run(trial))

    def _make_run(self, trial: AssignedTrial) -> RunBase:
        spec, config = trial.assignment.spec, trial.assignment.config
        notify = functools.partial(self._notify, trial)
        hooks = CheckpointHooks(
            fence=functools.partial(self._fence, trial),
            keep_in_memory=self._keep_checkpoint,
            packed=trial.checkpoint,
        )
        on_end = functools.partial(self._on_end, trial)
        if spec.ranks is not None:
            # At the top these would be two fifths of this module's imports, and the first trial of
            # each worker would wait for them.
            from dasktune.cluster.worker.agent_link import CommAgentLink
            from dasktune.isolation.ranks.ranked_run import RankedRun

            relayed = spec.relayed or spec.storage.is_process_private
            topic, lost_after_s = self._endpoint.topic, spec.ranks.lost_after_s
            link = CommAgentLink(self._worker, self._plugin, self.key, topic, lost_after_s)
            return RankedRun(replace(spec, relayed=relayed), config, link, notify, hooks, on_end=on_end)
        if needs_process(spec):
            # A child process has its own memory, even where this process shares the driver's.
            relayed = spec.relayed or spec.storage.is_process_private
            return ProcessRun(
                replace(spec, relayed=relayed),
                functools.partial(self._loader.child_payload, config),
                self._warm_process,
                notify,
                hooks,
                on_end=on_end,
                reuse=self._reuse,
                # Shorter than `stop_grace`, which the driver waits after the interrupt before it
                # abandons the trial.
                kill_delay=min(_MAX_INTERRUPT_SECONDS, self._stop_grace / 2),
            )
        if self._reuse:
            self._reusable.open()
        opener = functools.partial(self._loader.open, config)
        return self._make_thread_run(spec, opener, notify, hooks, reusable=self._reusable, on_end=on_end)

    def _on_end(self, trial: AssignedTrial) -> None:
        # Called in the trial's own thread. The loop may run `_advance` before this thread has
        # ended: it starts the next trial if `is_busy` says that user code has ended.
        trial.note_end()
        self._worker.loop.add_callback(self._advance)

    def _return_if_slow(self, trial: AssignedTrial) -> None:
        """Return the queued trials to the driver if the current one takes long."""
        if trial is self._current and trial.is_busy:
            self._return_queue()

    def _return_queue(self) -> None:
        if self._queue:
            for waiting in self._queue:
                waiting.return_unstarted()
            self._queue.clear()
            self._endpoint.notify_now()

    def _stop_orphan(self, trial: AssignedTrial, why: str) -> None:
        now = time.monotonic()
        if self._orphaned_at is None:
            self._orphaned_at = now
            incarnation = trial.assignment.incarnation
            logger.warning("the driver of %s is gone (%s); stopping the trial", incarnation, why)
            for orphan in (trial, *self._queue):
                orphan.end_with(StopAnswer(reason="its driver is gone"))
                if orphan.run is not None:
                    orphan.run.transfers.close(StorageError("the driver is gone"))
        elif now - self._orphaned_at > self._stop_grace:
            trial.interrupt()
        if trial.run is not None:
            trial.run.on_driver_lost()

    # Methods for a trial's own thread

    def _notify(self, trial: AssignedTrial, urgency: Urgency) -> None:
        """Notify the driver of a message. The end of a trial before many queued ones is not urgent.

        The loop may change the queue at the same time. A length that is out of date only makes the
        notification earlier or later.
        """
        if trial.has_ended and len(self._queue) > _ENOUGH_QUEUED:
            urgency = min(urgency, Urgency.LAZY)
        self._endpoint.notify(trial, urgency)

    def _keep_checkpoint(self, path: str, packed: bytes) -> None:
        """Keep a checkpoint until Dask holds it. The assignment to the dict is atomic."""
        self._plugin.checkpoints[key_of(self._plugin.name, path)] = packed

    def _fence(self, trial: AssignedTrial) -> None:
        """Allow a checkpoint to be committed only while the driver is in contact.

        A driver that has lost contact may have started the trial elsewhere. It waits for
        `heartbeat_timeout`, three times as long as `fence_after`, before it does so.
        """
        liveness = self._endpoint.liveness
        if liveness.wait_until_alive() and not self.is_forgotten:
            return
        reason = f"the driver has been silent for {liveness.silence:.0f} s"
        # A stop order first: without one, the exception would count as a failure of user code.
        trial.end_with(StopAnswer(reason=reason))
        raise TrialInterrupted(reason)


def _accept_calls(worker: Any) -> None:
    """Let a worker call the methods of its actors for drivers, from now on. Thread-safe.

    Several actors may do this at the same time: one of the equal handlers stays.
    """
    # Dask keeps each handler that was called for as long as the process lives.
    host = weakref.ref(worker)

    async def call(actor: str, method: str, blob: bytes) -> bytes | None:
        serving = host()
        found = None if serving is None else serving.state.actors.get(actor)
        if found is None:  # Dask has released the actor
            return None
        answer: bytes = await getattr(found, method)(blob)
        return answer

    if ACTOR_CALL not in worker.handlers:
        worker.handlers[ACTOR_CALL] = call
