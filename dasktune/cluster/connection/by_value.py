"""Makes functions that pickle by value, for schedulers and workers without dasktune.

Dask's scheduler unpickles whole tasks, not only their keys. A scheduler without dasktune could not
unpickle a function of dasktune, and the client would only learn that the task is lost.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, Final

import cloudpickle
from distributed import WorkerPlugin

#: Returns the plugin on a worker, and one that does nothing if the worker has another Python. It is
#: source text, since compiled code is what another Python cannot run.
_UNPICKLE: Final = (
    "__import__('cloudpickle').loads(blob) if __import__('sys').version_info[:2] == python "
    "else __import__('distributed').WorkerPlugin()"
)


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


class _PickledOnce:
    """A function that keeps its pickle, and unpickles as the function itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._blob = cloudpickle.dumps(function)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._function(*args, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return cloudpickle.loads, (self._blob,)


def pickled_once(make: Callable[[], Callable[..., Any]]) -> Callable[[], Callable[..., Any]]:
    """Decorate a function that returns a nested one, to make and pickle the nested one only once.

    Pickling a function by value takes up to a millisecond, because cloudpickle looks at all
    imported modules. The start of an experiment sends a dozen such functions.

    Parameters
    ----------
    make : callable
        Takes no arguments.

    Examples
    --------
    >>> @pickled_once
    ... def adder():
    ...     def add(first, second):
    ...         return first + second
    ...
    ...     return add
    >>> adder() is adder(), adder()(1, 2)
    (True, 3)
    """

    @functools.cache
    def made() -> Callable[..., Any]:
        return _PickledOnce(make())

    return functools.wraps(make)(made)


@functools.cache
def _pickled_class(kind: type) -> bytes:
    blob: bytes = cloudpickle.dumps(kind)
    return blob


class _ClassPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles an object whose class was pickled before."""

    def __init__(self, file: io.BytesIO, kind: type) -> None:
        super().__init__(file)
        self._kind = kind

    def reducer_override(self, obj: Any) -> Any:
        if obj is self._kind:
            return cloudpickle.loads, (_pickled_class(obj),)
        return super().reducer_override(obj)


def dumps_class_once(value: object) -> bytes:
    """Pickle an object with cloudpickle; its class is pickled only at the first call for it.

    Parameters
    ----------
    value : object
        The object. If its class pickles by value, it must not change after the first call.

    Examples
    --------
    >>> cloudpickle.loads(dumps_class_once(3 + 4j))
    (3+4j)
    """
    file = io.BytesIO()
    _ClassPickler(file, type(value)).dump(value)
    return file.getvalue()


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
