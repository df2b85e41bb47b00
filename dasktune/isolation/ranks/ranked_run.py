"""Runs a distributed trial, seen from the worker of rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dasktune.errors import ConfigError
from dasktune.isolation.ranks.rank_group import (
    EXIT_SECONDS,
    AgentLink,
    FullReport,
    NewCheckpointAsked,
    RankFailed,
    RankGroup,
    RanksKilled,
    UsableCheckpointLost,
    owners_of_files,
)
from dasktune.isolation.ranks.rank_messages import NewestCheckpoint, UnusableCheckpoint
from dasktune.isolation.ranks.shard_transfers import WorkerGone
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.sharded import ShardedCheckpoint
from dasktune.trainable.api.session import Session
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.reporting.outbox import Urgency
from dasktune.trainable.reporting.recorder import CheckpointHooks
from dasktune.trainable.reporting.trial_messages import Order, Terminal
from dasktune.trainable.running.error_info import error_info
from dasktune.trainable.running.thread_run import ThreadRun
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.user_error import ErrorInfo

#: Seconds between two looks whether the driver has decided what a lost worker means.
_LOOK_SECONDS: Final = 0.1


class RankedRun(ThreadRun):
    """Runs one start of a distributed trial; used like a `ThreadRun`.

    The run's thread is the coordinator. It reports each full report of the ranks as a function in a
    thread reports its results. So results, checkpoints, milestones and the order to end are those
    of an ordinary trial, and user code does not run on the worker.

    Parameters
    ----------
    spec : TrialSpec
        The trial, with `ranks`.
    config : bytes
        The pickled configuration.
    link : AgentLink
        The connections to the agents on the workers of the trial.
    notify : callable
        As for `ThreadRun`.
    hooks : CheckpointHooks, optional
        As for `ThreadRun`.
    on_end : callable, optional
        As for `ThreadRun`.
    """

    # An order to end is obeyed at a release, so all ranks leave at the same report. `interrupt` and
    # `on_driver_lost` kill the ranks from other threads; the coordinator then finds them killed,
    # and the run ends by the order.
    #
    # If another worker of the trial is lost, this run does not tell the driver: the driver sees the
    # loss of the worker itself, and then the trial resumes without a failure. The coordinator kills
    # the other ranks and waits for that.

    def __init__(
        self,
        spec: TrialSpec,
        config: bytes,
        link: AgentLink,
        notify: Callable[[Urgency], None],
        hooks: CheckpointHooks | None = None,
        *,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        # The ranks write their output themselves, and the group measures the report timeout.
        own = replace(spec, log_files=None, report_timeout_s=None)
        super().__init__(own, lambda: (_coordinate, {}), notify, hooks, on_end=on_end)
        self._group = RankGroup(spec, config, link)
        self._rank_error: ErrorInfo | None = None

    @property
    def in_use(self) -> bool:
        """Whether a process of a rank may be there."""
        return super().in_use or self._group.is_occupied

    @property
    def occupied(self) -> bool:
        """Whether the trial has ended although a process of a rank is still there."""
        return self.finished and self._group.is_occupied

    def interrupt(self, order: Order | None = None) -> None:
        """Kill all ranks. A trial without an order to pause is stopped.

        Parameters
        ----------
        order : Order, optional
            An order that comes with the interrupt.
        """
        if order is not None:
            self.answer(order)
        elif self._gate.order is None:
            self.stop("interrupted")
        self._group.kill()

    def on_driver_lost(self) -> None:
        """Kill all ranks: without a driver nothing may be committed."""
        self._group.kill()

    def _outcome(self) -> Callable[..., Terminal]:
        try:
            return super()._outcome()
        finally:
            # Not before: the agents upload what the ranks have saved, also when these have ended.
            self._group.close()

    def _train(self, trainable: Any, config: dict[str, Any]) -> None:
        session = Session(self.spec, self._recorder, self._interrupter, self._timer, _pass)
        grace = 0.0
        try:
            if self.spec.relayed:
                raise ConfigError(
                    "storage_path must be visible to all workers of a distributed trial, got "
                    f"{self.spec.storage.url}, which a worker of this trial cannot access"
                )
            self._group.start()
            self._coordinate(session)
            grace = EXIT_SECONDS
        except TrialInterrupted:
            grace = EXIT_SECONDS
            raise
        except RankFailed as failure:
            self._rank_error = failure.error
            raise
        except RanksKilled:
            raise TrialInterrupted from None
        except WorkerGone as loss:
            self._group.end()
            self._wait_for_driver()
            if self._gate.order is not None:
                raise TrialInterrupted from None
            message = f"{loss}, and the driver has not lost it"
            self._rank_error = ErrorInfo(message=message, traceback=f"{message}\n")
            raise
        finally:
            session.close()
            self._group.end(grace)

    def _conclude(self, failure: ErrorInfo | None, interruption: ErrorInfo | None) -> Callable[..., Terminal]:
        return super()._conclude(self._rank_error or failure, interruption)

    def _coordinate(self, session: Session) -> None:
        while (event := self._group.next_event()) is not None:
            match event:
                case FullReport():
                    self._record(session, event)
                case NewCheckpointAsked(rank=rank):
                    session.note_checkpoint_read()
                    record = self._recorder.newest_record()
                    if record is not None:
                        record = replace(record, metrics={})  # these may hold objects of user code
                    self._group.answer_checkpoint(rank, NewestCheckpoint(record=record))
                case UsableCheckpointLost(message=message):
                    self._lose_checkpoint(message)

    def _record(self, session: Session, report: FullReport) -> None:
        """Record a result, and release the ranks with what follows from it."""
        try:
            session.report(self._with_slowest(report), self._checkpoint_of(report))
        except TrialInterrupted:
            self._group.release(report.number, leave=True)
            raise
        except (RankFailed, RanksKilled, WorkerGone):
            raise
        except Exception as error:
            # User code may catch it, as in an ordinary trial.
            self._group.release(report.number, error=error_info(error))
        else:
            self._release_with_notice(report)

    def _with_slowest(self, report: FullReport) -> dict[str, Any]:
        """Return the metrics with the rank for which the others waited; the user's names stand."""
        if self._group.world_size == 1:
            return report.metrics
        seen = {"slowest_rank": report.slowest_rank, "rank_wait_s": round(report.rank_wait_s, 6)}
        return {**seen, **report.metrics}

    def _release_with_notice(self, report: FullReport) -> None:
        """Let the ranks continue, all with the same notice.

        They get a later notice at the next report, so that no rank saves alone.
        """
        save_due, notice = self._recorder.has_notice, None
        # Asking leaves user code time to save, and it gets that only if it asks, too.
        if report.asks_for_notices:
            save_due, notice = self._recorder.is_save_due(), self._recorder.ask_notice()
        self._group.release(report.number, save_due=save_due, notice=notice)

    def _checkpoint_of(self, report: FullReport) -> Checkpoint | None:
        if not report.offers:
            return None
        if report.checkpoint is not None:
            # Rank 0 runs on this host, so this is a checkpoint like any other.
            return Checkpoint.from_directory(report.checkpoint)
        owners = owners_of_files(report.offers)
        directory = next(iter(report.offers.values())).checkpoint
        assert directory is not None
        return ShardedCheckpoint(
            directory,
            partial(self._group.write_shards, owners),
            partial(self._group.stage_shards, owners, report.offers),
        )

    def _lose_checkpoint(self, message: UnusableCheckpoint) -> None:
        self._recorder.lose(message.reason)
        raise TrialInterrupted

    def _wait_for_driver(self) -> None:
        """Wait until the driver has ended the trial, because it has lost one of its workers."""
        ranks = self.spec.ranks
        deadline = time.monotonic() + (0.0 if ranks is None else ranks.lost_after_s)
        while self._gate.order is None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


def _coordinate(config: dict[str, Any]) -> None:
    """Stand for the user's function, which runs in the ranks."""


def _pass() -> None:
    """Do nothing: the group bounds how long user code may clean up."""
