"""The death of a simulated worker."""

from __future__ import annotations

__all__ = ["WorkerDied"]


class WorkerDied(Exception):
    """What a simulated trainable raises to take its worker along, and all that runs there.

    Examples
    --------
    >>> def curve(config):
    ...     yield {"loss": 1.0}, 60.0
    ...     raise WorkerDied
    """
