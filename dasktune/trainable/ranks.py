"""The processes (ranks) of a distributed trial: what the user requests, and who a process is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

#: How the metrics of all ranks become those of one result.
Reduction = Literal["rank0", "mean", "function"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """The place of a process among the processes of its trial."""

    world_rank: int = 0
    world_size: int = 1
    #: Its number among the ranks on its host, and how many there are.
    local_rank: int = 0
    local_world_size: int = 1
    #: The number of its host among the hosts of the trial, and how many there are.
    node_rank: int = 0
    num_nodes: int = 1


#: An ordinary trial is one process.
SOLE_RANK: Final = RankInfo()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """How the worker runs a distributed trial; the number of ranks is that of its bundles."""

    reduction: Reduction = "rank0"
    #: Seconds until user code must have begun on all ranks.
    start_timeout_s: float = 300.0
    #: Seconds that a rank may take to come to a report; None for `FailureConfig`'s limit.
    report_timeout_s: float | None = None
    #: Environment variables of all ranks.
    env: Mapping[str, str] = field(default_factory=dict)
    #: Seconds of silence after which a connection between the workers, or a worker that does not
    #: run, counts as lost.
    lost_after_s: float = 60.0
    #: Modules that each worker imports once, before it forks the ranks; None for ranks that are
    #: fresh interpreters.
    preload: tuple[str, ...] | None = ()
    #: The fewest ranks with which a trial starts; None for all of them.
    min_ranks: int | None = None
    #: Seconds for which a trial waits for all of its ranks while there is room for the fewest.
    wait_for_ranks_s: float = 10.0
    #: Seconds for which a trial runs with fewer ranks at least, before it starts again with all.
    grow_after_s: float = 60.0
    #: Seconds that a rank may wait in the rendezvous of its training package; None for no limit.
    rendezvous_timeout_s: float | None = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """What :func:`~dasktune.with_ranks` has attached to a trainable."""

    settings: RankSettings
    #: The user's function for the reduction ``"function"``.
    reduce: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None


def log_files_of_rank(files: tuple[str, str], rank: int) -> tuple[str, str]:
    """Return the names of a rank's files for output; rank 0 has those of the trial.

    Parameters
    ----------
    files : tuple of str
        The names of the trial's files, for stdout and stderr.
    rank : int
        Number of the rank.

    Examples
    --------
    >>> log_files_of_rank(("stdout", "stderr"), 3)
    ('rank_3_stdout', 'rank_3_stderr')
    """
    first, second = files
    return (f"rank_{rank}_{first}", f"rank_{rank}_{second}") if rank else files
