"""Functions for tasks that pickle by value, so that a scheduler without dasktune can relay them.

Dask's scheduler unpickles whole tasks, not only their keys. It could not unpickle a function of
dasktune that it lacks, and the client would only learn that the task is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import cloudpickle

__all__ = ["by_value"]


def by_value(function: Callable[..., Any], *last: Any) -> Callable[..., Any]:
    """Return a function for a task that only the worker which runs the task unpickles.

    The outer function pickles by value and needs only the standard library and cloudpickle, which
    Dask itself needs.

    Parameters
    ----------
    function : callable
        The task's function, coroutine function or class.
    *last : object
        Its last arguments, after those that Dask passes. Objects of dasktune's classes belong here.
        Futures do not, because Dask must see them.

    Examples
    --------
    >>> by_value(divmod, 4)(11)
    (2, 3)
    """
    blob = cloudpickle.dumps((function, last))

    # Nested, because functions of modules pickle by reference. Neither uses a global.
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
