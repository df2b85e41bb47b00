"""Tasks that a scheduler passes on without understanding them.

Dask's scheduler unpickles whole tasks, not only their keys. What a module of dasktune has defined
could not be run through one that lacks dasktune, and Dask would tell only that the task is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import cloudpickle

__all__ = ["opaque"]


def opaque(function: Callable[..., Any], *last: Any) -> Callable[..., Any]:
    """Return a function for a task that only the worker which runs it looks into.

    It travels by value and needs nothing but the standard library and cloudpickle, which Dask
    itself needs, to be unpickled.

    Parameters
    ----------
    function : callable
        What the task is to do: a function, a coroutine function or a class.
    *last : object
        What it is called with after what Dask gives it. Objects of classes of dasktune belong here,
        and what Dask has to know, such as futures, does not.

    Examples
    --------
    >>> opaque(divmod, 4)(11)
    (2, 3)
    """
    blob = cloudpickle.dumps((function, last))

    # Nested, as functions of modules are pickled as references. Neither uses anything global.
    def call(*first: Any, **named: Any) -> Any:
        import cloudpickle

        function, last = cloudpickle.loads(blob)
        return function(*first, *last, **named)

    async def call_here(*first: Any, **named: Any) -> Any:
        import cloudpickle

        function, last = cloudpickle.loads(blob)
        return await function(*first, *last, **named)

    # Dask runs coroutine functions on the worker's event loop.
    return call_here if iscoroutinefunction(function) else call
