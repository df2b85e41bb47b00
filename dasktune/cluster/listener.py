"""Who hears what comes of the trials on a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dasktune.trial.events import AnyTrialEvent

if TYPE_CHECKING:
    from dasktune.cluster.line import Line
    from dasktune.cluster.run import Run
    from dasktune.trainable.messages import Committed, Returned

__all__ = ["Listener"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """What a line calls, on the client's loop.

    Parameters
    ----------
    emit : callable
        Takes events of a trial that goes on, in order.
    on_end : callable
        Called with the line, a run that has come to its end, and the event that says how; None if
        that was told before.
    on_haul : callable
        Called with the line, a run and the number of something that its worker wants carried.
    on_memory : callable
        Called with a run and what it says of a checkpoint in memory: that it has left one on the
        worker, or that the one that it should have gone on from is not there.
    """

    emit: Callable[[Sequence[AnyTrialEvent]], None]
    on_end: Callable[[Line, Run, AnyTrialEvent | None], None]
    on_haul: Callable[[Line, Run, int], None]
    on_memory: Callable[[Run, Committed | Returned], None]
