"""The local cluster that an experiment starts if the user names none."""

from __future__ import annotations

import warnings
from typing import Any, Final

import dask
from distributed import LocalCluster

#: Longer than any experiment takes.
_NEVER: Final = "1000 days"


class StartedLocalCluster(LocalCluster):  # type: ignore[misc]
    """A local cluster that never abandons its workers.

    The nannies restart the workers however often they die. But 15 s after each loss Dask's
    ``LocalCluster`` checks whether the worker is there. If not, because the worker is still
    starting or has died again, the cluster closes the nanny. If trials kill their workers, no
    worker would be left in the end.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            # The dashboard then gets another port, which the user is shown in any case.
            warnings.filterwarnings("ignore", message="Port .* is already in use")
            super().__init__(*args, **kwargs)

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # Only this method reads the setting. The user's own clusters keep the user's value.
        with dask.config.set({"distributed.deploy.lost-worker-timeout": _NEVER}):
            super()._update_worker_status(op, msg)
