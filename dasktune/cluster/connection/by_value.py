"""Makes task functions that pickle by value, so that a scheduler without dasktune can relay them.

Dask's scheduler unpickles whole tasks, not only their keys. A scheduler without dasktune could not
unpickle a function of dasktune, and the client would only learn that the task is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import cloudpickle

__all__ = ["by_value", "of_pickled"]


def by_value(function: Callable[..., Any], *last: Any) -> Callable[..., Any]:
    """Wrap a task's function so that only the worker that runs the task unpickles it.

    The wrapper pickles by value and needs only the standard library and cloudpickle, which Dask
    itself needs.

    Parameters
    ----------
    function : callable
        The task's function, coroutine function or class.
    *last : object
        The function's last arguments, after the arguments that Dask passes. Pass objects of
        dasktune's classes here, but no futures: Dask must see those.

    Examples
    --------
    >>> by_value(divmod, 4)(11)
    (2, 3)
    """
    blob = cloudpickle.dumps((function, last))

    # Nested, because functions of a module pickle by reference. Neither wrapper uses a global.
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


def of_pickled(function: Callable[..., Any]) -> Callable[[bytes], Any]:
    """Return a task's function that unpickles its arguments: a tuple, and a dict of the named ones.

    Like that of `by_value`, it pickles by value and only the worker that runs the task unpickles
    anything of dasktune. Several tasks may share it, each with its own arguments.

    Parameters
    ----------
    function : callable
        The task's function, coroutine function or class.

    Examples
    --------
    >>> of_pickled(int)(cloudpickle.dumps((("ff",), {"base": 16})))
    255
    """
    blob = cloudpickle.dumps(function)

    def call(pickled: bytes) -> Any:
        import cloudpickle

        args, named = cloudpickle.loads(pickled)
        return cloudpickle.loads(blob)(*args, **named)

    async def call_here(pickled: bytes) -> Any:
        import cloudpickle

        args, named = cloudpickle.loads(pickled)
        return await cloudpickle.loads(blob)(*args, **named)

    return call_here if iscoroutinefunction(function) else call
