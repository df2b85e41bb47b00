"""A worker plugin that does no harm to workers with another Python."""

from __future__ import annotations

import sys
from typing import Any, Final

from distributed import WorkerPlugin

from dasktune.cluster.connection.by_value import dumps_class_once

#: Returns the plugin on a worker, and one that does nothing if the worker has another Python. It is
#: source text, since compiled code is what another Python cannot run.
_UNPICKLE: Final = (
    "__import__('cloudpickle').loads(blob) if __import__('sys').version_info[:2] == python "
    "else __import__('distributed').WorkerPlugin()"
)


class PortablePlugin(WorkerPlugin):  # type: ignore[misc]
    """Carries a plugin to the workers, where it becomes that plugin again.

    Dask gives a plugin to every worker, and to each one that joins later, before dasktune can look
    at it. A plugin that is pickled by value has the bytecode of its methods. In a worker with
    another minor version of Python that bytecode crashes the process, and with it the tasks of
    other users.

    Parameters
    ----------
    plugin : WorkerPlugin
        The plugin, which has a name.

    Examples
    --------
    >>> import pickle
    >>> plugin = WorkerPlugin()
    >>> plugin.name = "mine"
    >>> carried = PortablePlugin(plugin)
    >>> carried.name, pickle.loads(pickle.dumps(carried)).name
    ('mine', 'mine')
    """

    def __init__(self, plugin: WorkerPlugin) -> None:
        self.name = plugin.name
        #: Whether Dask skips a worker that has a plugin of this name.
        self.idempotent = getattr(plugin, "idempotent", False)
        self._blob = dumps_class_once(plugin)

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (_UNPICKLE, {"blob": self._blob, "python": sys.version_info[:2]})
