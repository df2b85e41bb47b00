"""Where the ranks of a distributed trial run, and which of them the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dasktune.placement import host_of

#: The names of the values of :meth:`RankPlaces.rows`.
RANK_COLUMNS: Final = ("rank", "host", "worker", "GPUs", "step", "times slowest", "others waited, s")


@dataclass(slots=True, eq=False)
class RankPlaces:
    """The ranks of the present or last attempt of a trial.

    Parameters
    ----------
    places : sequence of (str, sequence of str)
        The worker and the GPUs of each rank, in the order of the ranks.
    max_ranks : int, default=0
        With how many ranks the trial trains if there is room; 0 unless it may train with fewer.

    Examples
    --------
    >>> ranks = RankPlaces([("tcp://10.0.0.1:4000", ["0"]), ("tcp://10.0.0.2:4000", ["0"])], 4)
    >>> ranks.number
    '2 of 4'
    >>> ranks.count({"training_iteration": 3, "slowest_rank": 1, "rank_wait_s": 0.25})
    >>> list(ranks.rows())[1]
    (1, '10.0.0.2', 'tcp://10.0.0.2:4000', '0', 3, 1, 0.25)
    """

    places: Sequence[tuple[str, Sequence[str]]]
    max_ranks: int = 0
    #: ``training_iteration`` of the last report, which all ranks have reached.
    step: int = 0
    #: How often each rank came last to a report, and the seconds for which the first one waited.
    slowest: Counter[int] = field(default_factory=Counter)
    waited: dict[int, float] = field(default_factory=dict)

    def count(self, metrics: Mapping[str, Any]) -> None:
        """Count a result of the trial.

        Parameters
        ----------
        metrics : mapping
            The result.
        """
        self.step = int(metrics["training_iteration"])
        rank, seconds = metrics.get("slowest_rank"), metrics.get("rank_wait_s")
        # User code may report other values under these names.
        if isinstance(rank, int) and 0 <= rank < len(self.places) and isinstance(seconds, int | float):
            self.slowest[rank] += 1
            self.waited[rank] = self.waited.get(rank, 0.0) + seconds

    @property
    def number(self) -> str:
        """The number of ranks, "4", or with all of them that it may have, "2 of 4"."""
        number = len(self.places)
        return f"{number} of {self.max_ranks}" if self.max_ranks > number else f"{number}"

    def rows(self) -> Iterator[tuple[int, str, str, str, int, int, float]]:
        """Yield the values of each rank; see `RANK_COLUMNS`."""
        for rank, (worker, gpus) in enumerate(self.places):
            seconds = round(self.waited.get(rank, 0.0), 3)
            shown = ", ".join(gpus)
            yield rank, host_of(worker), worker, shown, self.step, self.slowest[rank], seconds
