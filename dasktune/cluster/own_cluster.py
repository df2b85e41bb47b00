"""The cluster on this machine that an experiment starts when it is given none."""

from __future__ import annotations

import warnings
from typing import Any, Final

import dask
from distributed import LocalCluster

__all__ = ["OwnCluster"]

#: Longer than any experiment.
_NEVER: Final = "1000 days"


class OwnCluster(LocalCluster):  # type: ignore[misc]
    """A local cluster that does not give up its workers.

    Their nannies restart them however often they die. But Dask's cluster looks 15 s after each loss
    whether the worker is there at that moment, and if it is not, because it is still starting or
    has died again, closes its nanny for good. Trials that kill their workers would use up all.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            # Its dashboard then has another port, which the user is told in any case.
            warnings.filterwarnings("ignore", message="Port .* is already in use")
            super().__init__(*args, **kwargs)

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # Read in there, and nowhere else; the user's own clusters keep what the user has set.
        with dask.config.set({"distributed.deploy.lost-worker-timeout": _NEVER}):
            super()._update_worker_status(op, msg)
