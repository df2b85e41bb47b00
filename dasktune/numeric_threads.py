"""How many threads the numerical libraries of the driver use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from threading import RLock  # noqa: TID251 - it guards a setting of the process
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Held while the number of threads is changed: see :func:`single_threaded`.
_LOCK: Final = RLock()


def single_threaded(*modules: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let the numerical libraries use one thread while a function runs.

    Parameters
    ----------
    *modules : str
        The names of the modules by which the function uses numerical libraries (BLAS, OpenMP). They
        are imported before its first call, as only libraries that are loaded can be limited.

    Returns
    -------
    callable
        A decorator.

    Notes
    -----
    The threads of a library wait for each other in busy loops. A searcher's matrices are small, and
    trials often keep all processors of the driver's machine busy. There a second thread does harm:
    on 2 processors with 12 busy processes, 200 products and factorisations of matrices with 160
    rows took 1.7 to 27 s with two threads and 0.3 s with one (2026-11-26).

    Without ``threadpoolctl``, which scikit-learn installs, the number of threads stays as it is.

    The number holds for the whole process. If two threads changed it at the same time, the second
    one could find the 1 of the first one and restore that at the end, after the first one has
    restored the original number. So they take turns. A trial that runs in a thread of the driver's
    process may get one thread for a moment.

    Examples
    --------
    >>> @single_threaded("numpy.linalg")
    ... def norm(vector):
    ...     return float(numpy.linalg.norm(vector))
    >>> import numpy
    >>> norm([3, 4])
    5.0
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            controller = _controller(modules)
            if controller is None:
                return function(*args, **kwargs)
            with _LOCK, controller.limit(limits=1):
                return function(*args, **kwargs)

        return limited

    return decorate


@cache
def _controller(modules: tuple[str, ...]) -> Any:
    """Return the controller of the libraries that these modules have loaded; None without one."""
    for name in modules:
        import_module(name)
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
