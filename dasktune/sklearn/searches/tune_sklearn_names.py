"""The names and values by which tune-sklearn's users give the arguments of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from numbers import Integral, Real
from typing import Any, Final

from dasktune.callback import Callback
from dasktune.errors import check
from dasktune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback
from dasktune.space import loguniform, randint, uniform

#: The name of an argument here, and in tune-sklearn.
_NAMES: Final[Mapping[str, str]] = {
    "n_iter": "n_trials",
    "scheduler": "early_stopping",
    "search_alg": "search_optimization",
    "stop": "stopper",
    "storage_path": "local_dir",
}

_SCHEDULERS: Final[Mapping[str, str]] = {
    "ASHAScheduler": "asha",
    "AsyncHyperBandScheduler": "asha",
    "HyperBandForBOHB": "hb_bohb",
    "HyperBandScheduler": "hyperband",
    "MedianStoppingRule": "median_stopping_rule",
    "PopulationBasedTraining": "pbt",
}

#: "random" is the default: candidates are drawn as scikit-learn draws them. tune-sklearn's
#: "bayesian" takes lists of values, which the searcher "bayesopt" refuses, and Optuna's does not.
_SEARCHERS: Final[Mapping[str, str | None]] = {"bayesian": "optuna", "random": None}


def _mlflow_logger() -> Callback:
    # The import needs no MLflow, but takes time.
    from dasktune.integration.mlflow import MLflowLoggerCallback

    return MLflowLoggerCallback()


_LOGGERS: Final[Mapping[str, Callable[[], Callback]]] = {
    "csv": CSVLoggerCallback,
    "json": JsonLoggerCallback,
    "mlflow": _mlflow_logger,
    "tensorboard": TBXLoggerCallback,
}


def own_argument(search: Any, name: str) -> Any:
    """Return an argument of a search, which may be given by tune-sklearn's name.

    Parameters
    ----------
    search : estimator
        The search.
    name : str
        The name of the argument here.

    Raises
    ------
    ConfigError
        If the argument is given by both names.
    """
    peer = _NAMES[name]
    own, other = getattr(search, name), getattr(search, peer)
    if other is None:
        return own
    default = signature(type(search)).parameters[name].default
    check(
        own is default or (isinstance(own, int) and own == default),
        f"{name} and {peer}",
        "two names of one argument, of which only one is given",
        (own, other),
    )
    if name == "scheduler" and isinstance(other, str):
        return _SCHEDULERS.get(other, other)
    if name == "search_alg" and isinstance(other, str):
        return _SEARCHERS.get(other.lower(), other.lower())
    return other


def logger_callbacks(loggers: Iterable[Any]) -> list[Callback]:
    """Return the callbacks that write the logs of a search.

    Parameters
    ----------
    loggers : iterable of str or Callback
        "csv", "json", "tensorboard", "mlflow" or a callback.

    Raises
    ------
    ConfigError
        If there is no logger of a name.

    Examples
    --------
    >>> [type(one).__name__ for one in logger_callbacks(["csv", "json"])]
    ['CSVLoggerCallback', 'JsonLoggerCallback']
    """
    found = []
    for one in loggers:
        is_known = isinstance(one, Callback) or (isinstance(one, str) and one in _LOGGERS)
        check(is_known, "loggers", f"names in {list(_LOGGERS)}, or callbacks", one)
        found.append(one if isinstance(one, Callback) else _LOGGERS[one]())
    return found


def ranges_as_domains(distributions: Any) -> Any:
    """Return distributions in which tuples have become domains.

    For tune-sklearn's searchers a tuple is a range: its two ends, and perhaps the word
    "log-uniform".

    Parameters
    ----------
    distributions : mapping or list of mapping
        As tune-sklearn takes them.

    Examples
    --------
    >>> space = ranges_as_domains({"depth": (2, 5), "penalty": ["l1", "l2"]})
    >>> space["depth"] == randint(2, 6), space["penalty"]
    (True, ['l1', 'l2'])
    """
    if isinstance(distributions, Mapping):
        return {name: _as_domain(name, value) for name, value in distributions.items()}
    return [ranges_as_domains(one) for one in distributions]


def _as_domain(name: str, value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    low, high, prior = (*value, "uniform")[:3] if len(value) == 2 else (*value, None, None, None)[:3]
    check(
        len(value) in (2, 3)
        and isinstance(low, Real)
        and isinstance(high, Real)
        and prior in ("uniform", "log-uniform"),
        f"param_distributions[{name!r}]",
        "a tuple of two numbers, with 'uniform' or 'log-uniform' as the third item, with search_optimization",
        value,
        "Give a list for a choice of values.",
    )
    if prior == "log-uniform":
        return loguniform(float(low), float(high))
    if isinstance(low, Integral) and isinstance(high, Integral):
        return randint(int(low), int(high) + 1)
    return uniform(float(low), float(high))
