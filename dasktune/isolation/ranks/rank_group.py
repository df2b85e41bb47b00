"""Coordinates the ranks of a distributed trial: starts them, completes reports, finds failures."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NoReturn, Protocol

from dasktune.errors import ConfigError
from dasktune.isolation.ranks.rank_layout import RankPlace, lay_out, rank_environment
from dasktune.isolation.ranks.rank_messages import (
    AgentLost,
    AskCheckpoint,
    CheckpointLoaded,
    DumpStacks,
    FromAgent,
    FromRank,
    HoldPort,
    KillRanks,
    NewestCheckpoint,
    OfferedFile,
    PortHeld,
    RankBegan,
    RankDied,
    RankEnded,
    RankNews,
    RankReport,
    RankStart,
    Reduced,
    ReduceMetrics,
    Release,
    RendezvousLate,
    Shard,
    ShardsStaged,
    ShardsUploaded,
    ShardWritten,
    StacksDumped,
    StartRanks,
    TellRanks,
    ToAgent,
    ToRank,
    UnusableCheckpoint,
    WordOfRank,
    WriteShard,
    unpack_metrics,
)
from dasktune.isolation.ranks.rank_session import exception_of
from dasktune.isolation.ranks.rendezvous_watch import is_in_rendezvous
from dasktune.isolation.ranks.shard_transfers import ShardTransfers, WorkerGone
from dasktune.placement import host_of
from dasktune.storage.checkpoints.manifest import FileEntry
from dasktune.storage.checkpoints.sharded import StagedShards
from dasktune.trainable.ranks import RankSettings
from dasktune.trainable.running.error_info import error_info
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.user_error import ErrorInfo

logger = logging.getLogger(__name__)

#: Seconds that ranks may take to exit after user code has ended on all of them.
EXIT_SECONDS: Final = 2.0

#: Seconds to wait for the end of killed processes. The kernel cannot end a process that waits for a
#: device or a network disk.
_KILL_SECONDS: Final = 10.0

#: Seconds to wait after a rank has raised whether another one was killed. The others then raise,
#: too, because their connections break, and the first cause is what the user needs.
_SETTLE_SECONDS: Final = 0.2

#: Seconds to wait for the stacks of ranks that hang.
_STACKS_SECONDS: Final = 5.0


class RankFailed(Exception):
    """A rank has failed, so the trial has.

    Parameters
    ----------
    error : ErrorInfo
        The cause.
    """

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error)
        self.error = error


class RanksKilled(Exception):
    """The ranks were killed by an order."""


@dataclass(frozen=True, slots=True)
class _Killed:
    """Somebody has killed the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullReport:
    """All ranks wait in the same report."""

    number: int
    #: The metrics of the result.
    metrics: dict[str, Any] = field(repr=False)
    #: The reports of the ranks that hand in files of a checkpoint.
    offers: Mapping[int, RankReport]
    #: Whether user code of a rank has asked for notices.
    asks_for_notices: bool = False
    #: The rank that came last, and the seconds for which the first one had waited then.
    slowest_rank: int = 0
    rank_wait_s: float = 0.0

    @property
    def checkpoint(self) -> str | None:
        """The local directory of the checkpoint, if rank 0 alone hands in files."""
        return self.offers[0].checkpoint if set(self.offers) == {0} else None


@dataclass(frozen=True, slots=True)
class NewCheckpointAsked:
    """A rank waits for the newest checkpoint."""

    rank: int


@dataclass(frozen=True, slots=True)
class UsableCheckpointLost:
    """A rank has found the newest checkpoint missing or damaged."""

    message: UnusableCheckpoint


#: What the inbox of the coordinator holds.
Arrived = RankNews | _Killed

#: What `RankGroup.next_event` returns; None once user code has ended on all ranks.
GroupEvent = FullReport | NewCheckpointAsked | UsableCheckpointLost | None


class AgentLink(Protocol):
    """Connections to the agents. All methods are thread-safe and return at once."""

    def open(self, addresses: Sequence[str], receive: Callable[[str, FromAgent], None]) -> None:
        """Connect to the agents; `receive` gets the address and each message, in order."""

    def send(self, address: str, message: ToAgent) -> None:
        """Send a message to the agent on a worker; it is dropped if the connection has ended."""

    def close(self) -> None:
        """End all connections, upon which the agents kill what still runs."""


class RankGroup:
    """The ranks of one start of a trial, as the trial's own worker sees them.

    Parameters
    ----------
    spec : TrialSpec
        The trial, with `ranks`.
    config : bytes
        The pickled configuration.
    link : AgentLink
        The connections to the agents.
    timer : callable, default=time.monotonic
        Returns seconds.
    """

    # One thread, the trial's, calls all methods but `kill` and `is_occupied`, and what
    # `stage_shards` returns, which the thread of the uploader calls. Messages come through
    # `_inbox`, so nothing else changes the state; those about staged shards go to `_transfers`. If
    # processes are left at the end, the thread of `_end_later` takes over the inbox, and the
    # trial's thread does not read it any more.
    #
    # The ranks end before the connections do if a checkpoint is still uploaded: `end` leaves the
    # connections open then, and `close` ends them.

    #: The port that rank 0 has for the rendezvous.
    _port = 0
    _rendezvous_failed = False
    _is_link_closed = False

    def __init__(
        self,
        spec: TrialSpec,
        config: bytes,
        link: AgentLink,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        assert spec.ranks is not None
        self._settings: RankSettings = spec.ranks
        self._spec = spec
        self._config = config
        self._link = link
        self._timer = timer
        self._places: tuple[RankPlace, ...] = lay_out(spec.bundle_workers)
        self._addresses = tuple(dict.fromkeys(place.address for place in self._places))
        self._limit = self._settings.report_timeout_s or spec.report_timeout_s
        self._inbox: queue.SimpleQueue[tuple[str, Arrived]] = queue.SimpleQueue()
        self._kill_lock = threading.Lock()
        self._opened = False
        #: The process id of each rank that has begun.
        self._began: dict[int, int] = {}
        self._ended: dict[int, ErrorInfo | None] = {}
        self._died: dict[int, ErrorInfo] = {}
        #: Workers whose connection has ended, with the reason.
        self._lost: dict[str, str] = {}
        #: The report that is being completed: what each rank has handed in.
        self._number = 1
        self._reports: dict[int, RankReport] = {}
        self._reducing = False
        #: When the first rank has come to the report, and the last one with its time.
        self._first_came = 0.0
        self._last_came: tuple[int, float] = (0, 0.0)
        #: Since when the limit of the report timeout runs.
        self._waiting_since = 0.0
        #: The ranks that read a checkpoint from the storage, which no limit bounds.
        self._loading: set[int] = set()
        self._stacks: dict[int, str] = {}
        #: Events that `next_event` has not returned.
        self._events: deque[FullReport | NewCheckpointAsked | UsableCheckpointLost] = deque()
        #: The ranks whose agents were told to start them; each of them dies.
        self._started: set[int] = set()
        self._over = False
        #: Waits for processes that cannot be killed now; None without any.
        self._waiting: threading.Thread | None = None
        self._transfers = ShardTransfers(link.send)
        #: What the ranks have copied of the checkpoint that is being written.
        self._written: dict[int, ShardWritten] = {}

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self._places)

    def start(self) -> None:
        """Start all ranks; returns when user code runs on all of them.

        Raises
        ------
        RankFailed
            If that takes too long, or a rank fails before.
        RanksKilled, WorkerGone
            See the classes.
        """
        deadline = self._timer() + self._settings.start_timeout_s
        self._link.open(self._addresses, self._receive)
        # A kill before this line kills nothing, but its message in the inbox ends the start.
        self._opened = True
        self._port = self._reserve_port(deadline)
        # Ranks ask for the newest checkpoint. Its record may hold objects among the metrics, which
        # Dask's event loop must not unpickle.
        spec = replace(self._spec, checkpoint=None, initial_checkpoint=None)
        for address in self._addresses:
            ranks = tuple(
                RankStart(
                    info=place.info,
                    environment=rank_environment(self._spec, place, self._places, port=self._port),
                )
                for place in self._places
                if place.address == address
            )
            self._started.update(rank.info.world_rank for rank in ranks)
            self._link.send(address, StartRanks(spec=spec, config=self._config, ranks=ranks))
        while len(self._began) < self.world_size:
            # A fast rank may have come to its first report before the last one has begun.
            if not self._take(deadline):
                late = sorted(set(range(self.world_size)) - self._began.keys())
                self._fail(
                    f"{_ranks(late)} did not start within {self._settings.start_timeout_s:g} s "
                    "(start_timeout_s of with_ranks)"
                )
        self._waiting_since = self._timer()

    def next_event(self) -> GroupEvent:
        """Wait for the next full report or question; None once all ranks have ended.

        Raises
        ------
        RankFailed
            If a rank fails, ends before the others, or does not come to a report in time.
        RanksKilled, WorkerGone
            See the classes.
        """
        while True:
            self._complete_report()
            if self._events:
                return self._events.popleft()
            if len(self._ended) == self.world_size:
                return None
            self._check_same_end()
            unlimited = self._limit is None or self._loading
            if not self._take(None if unlimited else self._waiting_since + (self._limit or 0.0)):
                self._fail_late()

    def answer_checkpoint(self, rank: int, message: NewestCheckpoint) -> None:
        """Answer a rank that waits for the newest checkpoint. The report timeout starts again."""
        self._waiting_since = self._timer()
        if message.record is not None:
            self._loading.add(rank)
        self._tell(message, rank)

    def write_shards(self, owners: Mapping[int, frozenset[str]], path: str) -> dict[str, FileEntry]:
        """Let the ranks copy their files into a checkpoint, and wait until they have.

        Parameters
        ----------
        owners : mapping of int to frozenset of str
            The names of the files that each rank copies.
        path : str
            The checkpoint's path below the experiment.

        Raises
        ------
        Exception
            The error of a rank that could not copy its files, once all others are done.
        RankFailed, RanksKilled, WorkerGone
            See the classes.
        """
        self._written = {}
        for rank, names in owners.items():
            self._tell(WriteShard(path=path, names=names), rank)
        try:
            while waiting := owners.keys() - self._written.keys():
                if ended := sorted(waiting & self._ended.keys()):
                    self._fail(f"{_ranks(ended)} ended before its files of the checkpoint were copied")
                self._take(None)
        except (RankFailed, RanksKilled, WorkerGone):
            # The caller deletes the directory, in which no rank may write any more.
            self.end()
            raise
        for shard in self._written.values():
            if shard.error is not None:
                raise exception_of(shard.error)
        return {name: entry for one in self._written.values() for name, entry in one.entries.items()}

    def stage_shards(
        self, owners: Mapping[int, frozenset[str]], offers: Mapping[int, RankReport]
    ) -> StagedShards | None:
        """Let the agents copy the files of a checkpoint; None if the disk of a host is full.

        Parameters
        ----------
        owners : mapping of int to frozenset of str
            The names of the files of each rank that are copied.
        offers : mapping of int to RankReport
            The reports of the ranks that hand in files.

        Raises
        ------
        Exception
            The error of an agent that could not copy files.
        TrialInterrupted
            If the ranks were killed.
        WorkerGone
            See the class.
        """
        shards: dict[str, dict[int, Shard]] = {}
        for rank, names in owners.items():
            directory = offers[rank].checkpoint
            assert directory is not None
            own = shards.setdefault(self._places[rank].address, {})
            own[rank] = Shard(directory=directory, names=names)
        number = self._transfers.stage(shards)
        if number is None:
            return None
        directory = next(iter(offers.values())).checkpoint
        assert directory is not None
        upload, drop = self._transfers.upload, self._transfers.drop
        return StagedShards(directory, partial(upload, number), partial(drop, number))

    def release(
        self,
        number: int,
        *,
        leave: bool = False,
        error: ErrorInfo | None = None,
        save_due: bool = False,
        notice: tuple[float, str] | None = None,
    ) -> None:
        """Let all ranks continue after a report, or end there.

        Parameters
        ----------
        number : int
            Number of the report.
        leave : bool, default=False
            Whether user code ends.
        error : ErrorInfo, optional
            What `report` raises on all ranks.
        save_due : bool, default=False
            Whether user code should save in its next report.
        notice : tuple of float and str, optional
            The seconds that a notice leaves, and its reason.
        """
        self._number, self._reports, self._reducing = number + 1, {}, False
        self._waiting_since = self._timer()
        self._tell(Release(number=number, leave=leave, error=error, save_due=save_due, notice=notice))

    def kill(self) -> None:
        """Kill all ranks at once; from any thread."""
        # First, so that no death by this kill counts as a failure.
        self._inbox.put(("", _Killed()))
        self._transfers.kill()
        self._kill_all(and_uploads=True)

    @property
    def is_occupied(self) -> bool:
        """Whether the trial has ended although processes of its ranks are still there."""
        return self._waiting is not None and self._waiting.is_alive()

    def end(self, grace: float = 0.0) -> None:
        """Wait until no process of a rank is left; kill those that are after `grace` seconds.

        A process that waits for a device is not waited for: `is_occupied` says so until it ends.
        """
        if not self._opened or self._over:
            return
        self._over = True
        if grace:
            self._wait_for_deaths(grace)
        self._kill_all(and_uploads=False)
        left = self._wait_for_deaths(_KILL_SECONDS)
        if left:
            logger.warning(
                "the processes of %s of trial %s could not be killed: they wait for a device or a disk",
                _ranks(left),
                self._spec.trial_id,
            )
            # The end of this thread's wait ends the connections.
            self._waiting = threading.Thread(
                target=self._end_later, name=f"dasktune-{self._spec.trial_id}-ranks", daemon=True
            )
            self._waiting.start()
        elif self._transfers.is_idle:
            self._close_link()

    def close(self) -> None:
        """End the connections: the trial has ended, and so has each upload."""
        self._transfers.close()
        if self._opened and not self.is_occupied:
            self._close_link()

    def _end_later(self) -> None:
        self._wait_for_deaths(None)
        self._transfers.wait_until_idle()
        self._close_link()

    def _close_link(self) -> None:
        with self._kill_lock:
            is_closed, self._is_link_closed = self._is_link_closed, True
        if not is_closed:
            self._link.close()

    # Messages

    def _receive(self, address: str, message: FromAgent) -> None:
        """Take a message; called by the threads of the connections."""
        if isinstance(message, ShardsStaged | ShardsUploaded):
            self._transfers.take(address, message)
            return
        if isinstance(message, AgentLost):
            self._transfers.lose(address, message.reason)
        self._inbox.put((address, message))

    def _next(self, deadline: float | None) -> tuple[str, Arrived] | None:
        """Return the next message with the address of its agent; None if none comes in time."""
        timeout = None if deadline is None else max(0.0, deadline - self._timer())
        try:
            return self._inbox.get(timeout=timeout)
        except queue.Empty:
            return None

    def _take(self, deadline: float | None) -> bool:
        """Handle one message; return whether one came in time."""
        arrived = self._next(deadline)
        if arrived is None:
            return False
        address, message = arrived
        match message:
            case FromRank(rank=rank, message=RankEnded(error=error)):
                self._ended[rank] = error
                if error is not None:
                    self._fail_first(rank, error)
            case FromRank(rank=rank, message=RendezvousLate()):
                self._fail_rendezvous(rank)
            case FromRank(rank=rank, message=told):
                self._handle_rank(rank, told)
            case RankDied(rank=rank):
                self._died[rank] = message.error
                if rank not in self._ended:
                    raise RankFailed(self._named(rank, message.error))
            case AgentLost(reason=reason):
                self._lose(address, reason)
            case _Killed():
                raise RanksKilled
            case StacksDumped(stacks=stacks):
                self._stacks.update(stacks)
            case PortHeld():
                # Taken by `_reserve_port`; this connection has no second one.
                raise TypeError(f"{message!r} was not asked for: a bug in dasktune")
        return True

    def _handle_rank(self, rank: int, message: WordOfRank) -> None:
        match message:
            case RankBegan(pid=pid):
                self._began[rank] = pid
            case RankReport(number=number):
                if number != self._number:
                    raise TypeError(
                        f"rank {rank} is at report {number}, not {self._number}: a bug in dasktune"
                    )
                now = self._timer()
                if not self._reports:
                    self._waiting_since = self._first_came = now
                self._last_came = rank, now
                self._reports[rank] = message
            case Reduced(error=ErrorInfo() as error):
                # The report is refused on all ranks, and counts on none. User code may catch it.
                self.release(self._number, error=error)
            case Reduced(metrics=metrics):
                self._add_report(self._unpack(0, metrics))
            case ShardWritten():
                self._written[rank] = message
            case AskCheckpoint():
                self._events.append(NewCheckpointAsked(rank))
            case CheckpointLoaded():
                self._loading.discard(rank)
                self._waiting_since = self._timer()
            case UnusableCheckpoint():
                self._events.append(UsableCheckpointLost(message))
            case RankEnded() | RendezvousLate():
                raise TypeError(f"`_take` handles {message!r}: a bug in dasktune")

    def _reserve_port(self, deadline: float) -> int:
        self._link.send(self._addresses[0], HoldPort())
        while True:
            arrived = self._next(deadline)
            if arrived is None:
                self._fail(f"worker {self._addresses[0]} did not answer in time (start_timeout_s)")
            address, message = arrived
            match message:
                case PortHeld(port=port):
                    return port
                case _Killed():
                    raise RanksKilled
                case AgentLost(reason=reason):
                    self._lost[address] = reason
                    raise WorkerGone(f"worker {address} could not be reached: {reason}")
                case RankDied(rank=rank, error=error):
                    # There is no port, so rank 0 cannot be started.
                    raise RankFailed(self._named(rank, error))
                case FromRank() | StacksDumped():
                    raise TypeError(f"{message!r} came before any rank was started: a bug in dasktune")

    # Reports

    def _complete_report(self) -> None:
        """Add the event of the report in which all ranks wait, once."""
        if len(self._reports) < self.world_size or self._reducing:
            return
        self._reducing = True
        packed = tuple(self._reports[rank].metrics for rank in range(self.world_size))
        match self._settings.reduction:
            case "rank0":
                self._add_report(self._unpack(0, packed[0]))
            case "mean":
                self._add_report(mean_metrics([self._unpack(rank, one) for rank, one in enumerate(packed)]))
            case "function":
                self._tell(ReduceMetrics(number=self._number, metrics=packed), 0)

    def _unpack(self, rank: int, packed: bytes) -> dict[str, Any]:
        """Unpickle the metrics of a rank in the trial's own thread, as this may run user code."""
        try:
            return unpack_metrics(packed)
        except Exception as error:  # whatever the user's objects raise
            cause = error_info(error)
            message = f"its metrics could not be unpickled on the trial's worker: {cause.message}"
            raise RankFailed(self._named(rank, replace(cause, message=message))) from error

    def _add_report(self, metrics: dict[str, Any]) -> None:
        offers = {rank: one for rank, one in sorted(self._reports.items()) if one.files}
        if not offers and self._reports[0].checkpoint is not None:
            offers = {0: self._reports[0]}  # A checkpoint without files, as in an ordinary trial.
        asks = any(one.asks_for_notices for one in self._reports.values())
        slowest, came = self._last_came
        self._events.append(
            FullReport(
                number=self._number,
                metrics=metrics,
                offers=offers,
                asks_for_notices=asks,
                slowest_rank=slowest,
                rank_wait_s=came - self._first_came,
            )
        )

    def _check_same_end(self) -> None:
        """Raise RankFailed if a rank has ended while others wait for it in a report."""
        if self._ended and self._reports:
            ended, waiting = sorted(self._ended), sorted(self._reports)
            self._fail(
                f"{_ranks(ended)} ended, but {_ranks(waiting)} called report() for the "
                f"{self._number}. time: all ranks must report equally often"
            )

    # Failures

    def _fail(self, message: str, traceback: str = "") -> NoReturn:
        raise RankFailed(ErrorInfo(message=message, traceback=traceback or f"{message}\n"))

    def _named(self, rank: int, error: ErrorInfo) -> ErrorInfo:
        """Return the error of a rank, which its message names; the traceback says where it ran."""
        message = error.message.replace("the trial's process", "its process", 1)
        message = f"rank {rank}: {message}"
        shown = f"Rank {rank} ran {self._where(rank)}.\n\n{error.traceback or message}"
        return replace(error, message=message, traceback=shown if shown.endswith("\n") else f"{shown}\n")

    def _where(self, rank: int) -> str:
        """Return where a rank runs."""
        place = self._places[rank]
        parts = [f"on worker {place.address}"]
        if rank in self._began:
            parts.append(f"in process {self._began[rank]}")
        devices = self._spec.bundle_devices[place.bundle] if self._spec.bundle_devices else None
        if devices:
            parts.append(f"with GPU {', '.join(devices)}")
        return " ".join(parts)

    def _lose(self, address: str, reason: str) -> NoReturn:
        """Note that a worker is out of contact, so that no end waits for its ranks."""
        self._lost[address] = reason
        raise WorkerGone(f"the connection to worker {address} was lost: {reason}")

    def _fail_first(self, rank: int, error: ErrorInfo) -> NoReturn:
        """Raise RankFailed with the error of a rank, or with the death of another one before it."""
        deadline = self._timer() + _SETTLE_SECONDS
        # An error unwinds the stack of its rank and closes connections there, so an error that it
        # causes on another rank may come first. The user needs to see both.
        errors = {rank: error}
        while (arrived := self._next(deadline)) is not None:
            match arrived[1]:
                case FromRank(rank=other, message=RankEnded(error=later)):
                    self._ended[other] = later
                    if later is not None:
                        errors.setdefault(other, later)
                case RankDied(rank=other, error=death):
                    self._died[other] = death
                    if other not in self._ended:
                        raise RankFailed(_with_others(self._named(other, death), errors))
                case AgentLost(reason=reason):
                    self._lose(arrived[0], reason)
                case _Killed():
                    raise RanksKilled
                case FromRank() | PortHeld() | StacksDumped():
                    pass  # The trial has failed, whatever they say.
        del errors[rank]
        raise RankFailed(_with_others(self._named(rank, error), errors))

    def _fail_late(self) -> NoReturn:
        """Raise RankFailed with the stacks of the ranks that did not come to a report."""
        missing = set(range(self.world_size)) - self._reports.keys() - self._ended.keys()
        # If all have come, rank 0 still reduces their metrics.
        late = sorted(missing) or [0]
        shown = self._ask_stacks(late)
        message = (
            f"no result for {self._limit:g} s (report_timeout_s): {_ranks(late)} did not come to report "
            f"{self._number}"
        )
        self._fail(message, f"{shown}{message}\n")

    def _fail_rendezvous(self, rank: int) -> None:
        """Raise RankFailed because a rank has waited in a rendezvous for too long, with all stacks.

        Parameters
        ----------
        rank : int
            The rank.
        """
        if self._rendezvous_failed:
            return  # Another rank says the same while the stacks are collected.
        self._rendezvous_failed = True
        shown = self._ask_stacks(sorted(self._began.keys() - self._ended.keys()))
        waiting = {rank} | {one for one, text in self._stacks.items() if is_in_rendezvous(text)}
        absent = sorted(set(range(self.world_size)) - waiting)
        message = (
            f"{_ranks(sorted(waiting))} waited for {self._settings.rendezvous_timeout_s:g} s in a rendezvous "
            "(rendezvous_timeout_s of with_ranks)"
        )
        if absent:
            message += f", and {_ranks(absent)} did not come to it. The stacks show where they are."
        else:
            message += (
                f" although all have come. Let all hosts of the trial connect to port {self._port} of "
                f"{host_of(self._places[0].address)} (MASTER_ADDR), and to each other's other ports."
            )
        self._fail(message, f"{shown}{message}\n")

    def _ask_stacks(self, ranks: Sequence[int]) -> str:
        """Return the stacks of ranks as text, as far as they come in time."""
        for address in self._addresses:
            self._link.send(address, DumpStacks(ranks=frozenset(ranks)))
        deadline = self._timer() + _STACKS_SECONDS
        while not self._stacks.keys() >= set(ranks) and self._take(deadline):
            pass
        return "".join(
            f"Rank {rank} {self._where(rank)}:\n{text}\n" for rank, text in sorted(self._stacks.items())
        )

    # Ends

    def _kill_all(self, *, and_uploads: bool) -> None:
        with self._kill_lock:
            for address in self._addresses if self._opened else ():
                self._link.send(address, KillRanks(and_uploads=and_uploads))

    def _wait_for_deaths(self, seconds: float | None) -> list[int]:
        """Wait until the ranks have ended; return those that have not, of workers in contact."""
        deadline = None if seconds is None else self._timer() + seconds
        while left := self._living():
            arrived = self._next(deadline)
            if arrived is None:
                return left
            address, message = arrived
            if isinstance(message, RankDied):
                self._died[message.rank] = message.error
            elif isinstance(message, AgentLost):
                self._lost[address] = message.reason
        return []

    def _living(self) -> list[int]:
        return [
            place.rank
            for place in self._places
            if place.rank in self._started - self._died.keys() and place.address not in self._lost
        ]

    def _tell(self, message: ToRank, rank: int | None = None) -> None:
        for address in self._addresses if rank is None else (self._places[rank].address,):
            self._link.send(address, TellRanks(message=message, rank=rank))


def owners_of_files(offers: Mapping[int, RankReport]) -> dict[int, frozenset[str]]:
    """Return which rank copies which files. Each file has one writer.

    Parameters
    ----------
    offers : mapping of int to RankReport
        The reports of the ranks that hand in files.

    Raises
    ------
    ConfigError
        If two ranks hand in different files of one name.
    """
    owners: dict[str, tuple[int, OfferedFile]] = {}
    for rank, report in sorted(offers.items()):
        for file in report.files:
            other, first = owners.setdefault(file.name, (rank, file))
            if first.identity != file.identity:
                raise ConfigError(
                    f"checkpoint must have each file from one rank, got {file.name!r} from ranks {other} "
                    f"and {rank}. Put the number of the rank into the name."
                )
    files: dict[int, set[str]] = {}
    for name, (rank, _) in owners.items():
        files.setdefault(rank, set()).add(name)
    return {rank: frozenset(names) for rank, names in files.items()}


def mean_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of rank 0, each number as the mean over the ranks that report a number.

    Examples
    --------
    >>> mean_metrics([{"loss": 1.0, "name": "a", "done": False}, {"loss": 2.0}, {}])
    {'loss': 1.5, 'name': 'a', 'done': False}
    """
    result = dict(metrics[0])
    for name, value in metrics[0].items():
        if _is_number(value):
            values = [one[name] for one in metrics if _is_number(one.get(name))]
            result[name] = sum(values) / len(values)
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ranks(ranks: Sequence[int]) -> str:
    """Return the ranks as text.

    Examples
    --------
    >>> _ranks([1]), _ranks([0, 2])
    ('rank 1', 'ranks 0, 2')
    """
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _with_others(error: ErrorInfo, others: Mapping[int, ErrorInfo]) -> ErrorInfo:
    """Return the error with those of other ranks, which may be its causes or follow from it."""
    texts = [
        f"At the same time rank {rank} failed:\n{one.traceback or one.message}\n"
        for rank, one in others.items()
    ]
    # The error itself comes last, because pages that are short of room show the end.
    return replace(error, traceback="\n".join([*texts, error.traceback]))
