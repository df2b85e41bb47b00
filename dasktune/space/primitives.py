"""The functions that users write search spaces with: uniform, choice, grid_search and so on."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from dasktune.errors import ConfigError, check
from dasktune.space.domain import Categorical, Function, ordered_values
from dasktune.space.ranges import Float, Integer
from dasktune.trial.metrics import number

__all__ = [
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
]


F = TypeVar("F", bound=Callable[..., Any])


def _explain_several_arguments(function: F) -> F:
    """Wrap `function` so that a call with the values themselves explains that it takes a list."""
    name = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            shown = ", ".join(map(repr, args))
            raise ConfigError(f"{name} must be one list, got {shown}. Write {function.__name__}([{shown}]).")
        return function(*args, **kwargs)

    return cast(F, call)


def _check_order(function: str, lower: Any, upper: Any, *others: Any) -> None:
    """Raise ConfigError with the right call if the bounds are swapped."""
    low, high = number(lower), number(upper)
    if low is not None and high is not None:
        right = ", ".join(map(repr, (upper, lower, *others)))
        check(not low > high, "lower", f"less than upper={upper!r}", lower, f"Write {function}({right}).")


def _warn_if_given(base: object) -> None:
    if base is not None:
        text = "the argument base has no effect on the drawn values: leave it out"
        warnings.warn(text, DeprecationWarning, stacklevel=3)


def uniform(lower: float, upper: float) -> Float:
    """Draw a float uniformly from ``[lower, upper)``.

    Parameters
    ----------
    lower, upper : float
        The bounds, finite, ``lower < upper``.

    Raises
    ------
    ConfigError
        If a bound is invalid.

    Examples
    --------
    >>> 0 <= uniform(0, 1).sample(random_state=1) < 1
    True
    """
    _check_order("uniform", lower, upper)
    return Float(lower, upper).uniform()


def quniform(lower: float, upper: float, q: float) -> Float:
    """Draw a multiple of `q` uniformly from ``[lower, upper]``.

    Parameters
    ----------
    lower, upper : float
        The bounds, both included, both multiples of `q`.
    q : float
        The quantum, > 0: the value is ``round(x / q) * q``.

    Raises
    ------
    ConfigError
        If a bound or `q` is invalid.

    Examples
    --------
    >>> quniform(0, 1, 0.25).sample(random_state=1)
    0.5
    """
    _check_order("quniform", lower, upper, q)
    return Float(lower, upper).uniform().quantized(q)


def loguniform(lower: float, upper: float, base: Any = None) -> Float:
    """Draw a float log-uniformly from ``[lower, upper)``.

    Parameters
    ----------
    lower, upper : float
        The bounds themselves, not their logarithms; ``0 < lower < upper``.
    base : object, optional
        Accepted for compatibility with Ray Tune; it has no effect, and a value gives a warning.

    Raises
    ------
    ConfigError
        If a bound is invalid.

    Examples
    --------
    >>> 1e-4 <= loguniform(1e-4, 1e-1).sample(random_state=1) < 1e-1
    True
    """
    _warn_if_given(base)
    _check_order("loguniform", lower, upper)
    return Float(lower, upper).loguniform()


def qloguniform(lower: float, upper: float, q: float, base: Any = None) -> Float:
    """Draw a multiple of `q` log-uniformly from ``[lower, upper]``.

    Parameters
    ----------
    lower, upper : float
        The bounds, both included, both multiples of `q`; ``0 < lower < upper``.
    q : float
        The quantum, > 0: the value is ``round(x / q) * q``.
    base : object, optional
        Accepted for compatibility with Ray Tune; it has no effect, and a value gives a warning.

    Raises
    ------
    ConfigError
        If a bound or `q` is invalid.

    Examples
    --------
    >>> 0.5 <= qloguniform(0.5, 8, 0.5).sample(random_state=1) <= 8
    True
    """
    _warn_if_given(base)
    _check_order("qloguniform", lower, upper, q)
    return Float(lower, upper).loguniform().quantized(q)


def randn(mean: float = 0.0, sd: float = 1.0) -> Float:
    """Draw a float from the normal distribution, without bounds.

    Parameters
    ----------
    mean : float, default=0.0
        Mean of the distribution.
    sd : float, default=1.0
        Standard deviation of the distribution, > 0.

    Raises
    ------
    ConfigError
        If a parameter is invalid.

    Examples
    --------
    >>> isinstance(randn(10, 2).sample(random_state=1), float)
    True
    """
    return Float(None, None).normal(mean, sd)


def qrandn(mean: float, sd: float, q: float) -> Float:
    """Draw a multiple of `q` from the normal distribution, without bounds.

    Parameters
    ----------
    mean, sd : float
        Mean and standard deviation, ``sd > 0``.
    q : float
        The quantum, > 0: the value is ``round(x / q) * q``.

    Raises
    ------
    ConfigError
        If a parameter is invalid.

    Examples
    --------
    >>> qrandn(10, 2, 0.5).sample(random_state=1) % 0.5
    0.0
    """
    return Float(None, None).normal(mean, sd).quantized(q)


def randint(lower: int, upper: int) -> Integer:
    """Draw an integer uniformly from ``[lower, upper)``.

    Parameters
    ----------
    lower, upper : int
        The bounds; `upper` is **not** included.

    Raises
    ------
    ConfigError
        If a bound is invalid.

    Examples
    --------
    >>> sorted(set(randint(1, 4).sample(size=100, random_state=1)))
    [1, 2, 3]
    """
    _check_order("randint", lower, upper)
    return Integer(lower, upper).uniform()


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """Draw a multiple of `q` uniformly from ``[lower, upper]``.

    Parameters
    ----------
    lower, upper : int
        The bounds; `upper` is included, except if ``q == 1``: then this is :func:`randint`.
    q : int, default=1
        The quantum, > 0; at least one multiple must lie within the bounds.

    Raises
    ------
    ConfigError
        If a bound or `q` is invalid.

    Examples
    --------
    >>> sorted(set(qrandint(8, 33, 8).sample(size=100, random_state=1)))
    [8, 16, 24, 32]
    """
    _check_order("qrandint", lower, upper, q)
    return Integer(lower, upper).uniform().quantized(q)


def lograndint(lower: int, upper: int, base: Any = None) -> Integer:
    """Draw an integer log-uniformly from ``[lower, upper)``.

    Parameters
    ----------
    lower, upper : int
        The bounds, ``0 < lower < upper``; `upper` is **not** included.
    base : object, optional
        Accepted for compatibility with Ray Tune; it has no effect, and a value gives a warning.

    Raises
    ------
    ConfigError
        If a bound is invalid.

    Examples
    --------
    >>> sorted(set(lograndint(1, 4).sample(size=100, random_state=1)))
    [1, 2, 3]
    """
    _warn_if_given(base)
    _check_order("lograndint", lower, upper)
    return Integer(lower, upper).loguniform()


def qlograndint(lower: int, upper: int, q: int, base: Any = None) -> Integer:
    """Draw a multiple of `q` log-uniformly from ``[lower, upper]``.

    Parameters
    ----------
    lower, upper : int
        The bounds, ``0 < lower < upper``; `upper` is included, except if ``q == 1``: then this
        is :func:`lograndint`.
    q : int
        The quantum, > 0; at least one multiple must lie within the bounds.
    base : object, optional
        Accepted for compatibility with Ray Tune; it has no effect, and a value gives a warning.

    Raises
    ------
    ConfigError
        If a bound or `q` is invalid.

    Examples
    --------
    >>> sorted(set(qlograndint(8, 32, 8).sample(size=100, random_state=1)))
    [8, 16, 24, 32]
    """
    _warn_if_given(base)
    _check_order("qlograndint", lower, upper, q)
    return Integer(lower, upper).loguniform().quantized(q)


@_explain_several_arguments
def choice(categories: Iterable[Any]) -> Categorical:
    """Draw one of several values uniformly.

    Parameters
    ----------
    categories : iterable of object
        The values, at least one. Domains inside a value are drawn when the value is drawn.

    Raises
    ------
    ConfigError
        If there are no values, or they are a set, which has no fixed order.

    Examples
    --------
    >>> choice(["relu", "tanh"]).sample(random_state=1)
    'relu'
    """
    return Categorical(categories).uniform()


def sample_from(func: Callable[..., Any]) -> Function:
    """Compute a value by a function, which may depend on the rest of the configuration.

    Parameters
    ----------
    func : callable
        ``func()`` or ``func(config)``. If it reads a value that has not been drawn yet, it is
        called again later. Whatever the parameter is named, ``.config`` of the argument is the
        configuration, too, as in Ray Tune: ``lambda spec: spec.config.width``.

    Raises
    ------
    ConfigError
        If the function needs more arguments.

    Examples
    --------
    >>> sample_from(lambda config: config["width"] // 2).sample({"width": 8})
    4
    """
    return Function(func)


@_explain_several_arguments
def grid_search(values: Iterable[Any]) -> dict[str, list[Any]]:
    """Try each of several values, in every combination with the values of other grids.

    Parameters
    ----------
    values : iterable of object
        The values, at least one. They may contain domains and further grids.

    Returns
    -------
    dict
        ``{"grid_search": [...]}``; you may also write this dict yourself.

    Raises
    ------
    ConfigError
        If there are no values, or they are a set, which has no fixed order.

    Examples
    --------
    >>> grid_search([1, 2])
    {'grid_search': [1, 2]}
    """
    return {"grid_search": ordered_values("grid_search", values)}
