"""Messages of a distributed trial: values that pickle.

The trial's own worker runs the coordinator (`RankGroup`). An agent (`RankAgent`) on each worker of
the trial starts the ranks there and passes messages between them and the coordinator.

Coordinator to agent: `HoldPort` to the agent of rank 0, whose answer is `PortHeld`, or `RankDied`
of rank 0 without a port; then `StartRanks` once, `TellRanks` and `DumpStacks` any number of times,
and `KillRanks`, after which no rank of the agent lives. Agent to coordinator: `FromRank` for each
message of a rank, then `RankDied` once for each rank that was to start.

While the ranks wait in a report, `StageShards` lets an agent copy their files, and `UploadShards`
later lets it upload the copy, whether the ranks live or not. The answers are `ShardsStaged` and
`ShardsUploaded`, once to each, also after `DropShards`.

The event loops of workers unpickle these messages. So values that only user code knows, metrics and
errors, travel as bytes in them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from dasktune.storage.checkpoints.manifest import FileEntry
from dasktune.trainable.data.child_payload import ChildPayload
from dasktune.trainable.ranks import RankInfo
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.user_error import ErrorInfo

# From the agent to a rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRank:
    """The second message to a rank, after `InitChild`: call the user's function."""

    spec: TrialSpec
    info: RankInfo
    payload: ChildPayload
    #: Seconds without a `Ping` after which the rank exits.
    lost_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """The rank's worker runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceMetrics:
    """Reduce the metrics of all ranks by the user's function; only for rank 0."""

    #: Number of the report, from 1.
    number: int
    #: The packed metrics of each rank, see `pack_metrics`.
    metrics: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """All ranks have come to a report, and its result is recorded: continue or end."""

    number: int
    #: Whether user code ends at this report.
    leave: bool = False
    #: Why the result was refused; `report` raises it on every rank.
    error: ErrorInfo | None = None
    #: Whether user code should save in its next report. All ranks learn it at the same report.
    save_due: bool = False
    #: The seconds that a notice leaves, and its reason; None without one.
    notice: tuple[float, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteShard:
    """Copy files of the rank's checkpoint into the storage; the answer is `ShardWritten`."""

    #: The checkpoint's path below the experiment.
    path: str
    names: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestCheckpoint:
    """The answer to `AskCheckpoint`."""

    #: Without metrics; None if there is no checkpoint.
    record: CheckpointRecord | None


ToRank = Ping | ReduceMetrics | Release | WriteShard | NewestCheckpoint


# From a rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBegan:
    """The rank is about to call user code."""

    #: Its process id.
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedFile:
    """A file of a rank's checkpoint."""

    #: Path below the checkpoint.
    name: str
    #: Host, device and number of the file: two ranks of a host may hand in one file.
    identity: tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """User code has called `report` and waits for its release."""

    number: int
    #: The packed metrics, see `pack_metrics`.
    metrics: bytes = field(repr=False)
    #: The local directory of its checkpoint; None without one.
    checkpoint: str | None = None
    #: The files there.
    files: tuple[OfferedFile, ...] = ()
    #: Whether user code has asked for notices, so that it saves when it gets one.
    asks_for_notices: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWritten:
    """The answer to `WriteShard`."""

    entries: Mapping[str, FileEntry] = field(default_factory=dict)
    #: Why the files could not be copied; None if they were.
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The answer to `ReduceMetrics`."""

    number: int
    #: The packed metrics of the result; empty if there is an error.
    metrics: bytes = field(default=b"", repr=False)
    #: What the user's function has raised; None if it returned.
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCheckpoint:
    """User code has called `get_checkpoint`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoaded:
    """The rank no longer reads the checkpoint of `NewestCheckpoint`: it has it, or could not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusableCheckpoint:
    """The newest checkpoint is missing or damaged."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnded:
    """User code has ended; the rank exits."""

    #: The error of user code; None if it returned or was interrupted at a report.
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousLate:
    """User code has waited in a rendezvous for longer than `rendezvous_timeout_s`."""


WordOfRank = (
    RankBegan
    | RendezvousLate
    | RankReport
    | ShardWritten
    | Reduced
    | AskCheckpoint
    | CheckpointLoaded
    | UnusableCheckpoint
    | RankEnded
)


# From the coordinator to an agent


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldPort:
    """Hold a port for the rendezvous until the connection ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """A rank to start."""

    info: RankInfo
    environment: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRanks:
    """Start the ranks of the agent's worker."""

    spec: TrialSpec
    #: The pickled configuration.
    config: bytes = field(repr=False)
    ranks: tuple[RankStart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRanks:
    """Pass a message to one rank, or to all ranks of the worker."""

    message: ToRank
    #: None for all.
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpStacks:
    """Answer with the stacks of these ranks, as far as they run on the worker."""

    ranks: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRanks:
    """Kill all ranks of the worker, now and if they are still being started."""

    #: Whether what is being uploaded is dropped, too.
    and_uploads: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The files that a rank hands in."""

    #: The local directory.
    directory: str
    names: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShards:
    """Copy files of ranks to the local disk; the answer is `ShardsStaged`."""

    #: Number of the copy, from 1.
    number: int
    #: By rank.
    shards: Mapping[int, Shard]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadShards:
    """Upload a copy and delete it; the answer is `ShardsUploaded`."""

    number: int
    #: The checkpoint's path below the experiment.
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropShards:
    """Delete a copy, also while it is made or uploaded, if it is still there."""

    number: int


ToAgent = HoldPort | StartRanks | TellRanks | DumpStacks | KillRanks | StageShards | UploadShards | DropShards


# From an agent to the coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class PortHeld:
    """The answer to `HoldPort`."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FromRank:
    """A message of a rank."""

    rank: int
    message: WordOfRank


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDied:
    """A rank's process and its process group have ended, or it could not be started."""

    rank: int
    #: How, in case nothing else explains it.
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksDumped:
    """The answer to `DumpStacks`: the stacks of the threads of each rank."""

    stacks: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent on a worker leaves, or the connection to it has ended or was never made."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsStaged:
    """The answer to `StageShards`: the files may change from now on."""

    number: int
    #: Why there is no copy; None if there is.
    error: ErrorInfo | None = None
    #: Whether the disk is full.
    is_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsUploaded:
    """The answer to `UploadShards`."""

    number: int
    entries: Mapping[str, FileEntry] = field(default_factory=dict)
    #: Why the files could not be uploaded; None if they were.
    error: ErrorInfo | None = None


#: What the coordinator's thread handles; the other two answer the thread that uploads.
RankNews = PortHeld | FromRank | RankDied | StacksDumped | AgentLost

FromAgent = RankNews | ShardsStaged | ShardsUploaded


def pack_metrics(metrics: Mapping[str, Any]) -> bytes:
    """Return the pickled metrics, which may hold objects of classes that workers cannot import.

    Parameters
    ----------
    metrics : mapping of str to object
        The metrics.

    Examples
    --------
    >>> unpack_metrics(pack_metrics({"loss": 0.5}))
    {'loss': 0.5}
    """
    try:
        return pickle.dumps(metrics)
    except Exception:  # whatever the objects raise
        # Slower, so it is only for classes that are pickled by value.
        blob: bytes = cloudpickle.dumps(metrics)
        return blob


def unpack_metrics(blob: bytes) -> dict[str, Any]:
    """Return the metrics of :func:`pack_metrics`; this may run user code.

    Parameters
    ----------
    blob : bytes
        The pickled metrics.

    Raises
    ------
    Exception
        Any exception that unpickling raises.
    """
    metrics: dict[str, Any] = pickle.loads(blob)
    return metrics
