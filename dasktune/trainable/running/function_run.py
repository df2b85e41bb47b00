"""Runs a function trainable and reports what it returns or yields."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from types import GeneratorType
from typing import Any, Final

from dasktune.errors import ReportError
from dasktune.trainable.reporting.plain_metrics import is_numpy_scalar

#: Name of the metric of a function that returns or yields a bare number.
DEFAULT_METRIC: Final = "_metric"

Report = Callable[[dict[str, Any]], None]


def run_function(function: Callable[[Any], Any], config: dict[str, Any], report: Report) -> None:
    """Call the user's function and report what it returns or yields.

    Parameters
    ----------
    function : callable
        A function of the configuration. It may be a generator function.
    config : dict
        The configuration.
    report : callable
        Reports metrics.

    Raises
    ------
    ReportError
        If the function returns or yields anything but a dict, a number or None.

    Examples
    --------
    >>> run_function(lambda config: config["x"] * 2, {"x": 0}, print)
    {'_metric': 0}
    """
    output = function(config)
    if isinstance(output, GeneratorType):
        _drain(output, report)
    else:
        _emit(output, "returned", report)


def _drain(generator: GeneratorType[Any, None, Any], report: Report) -> None:
    try:
        while True:
            try:
                output = next(generator)
            except StopIteration as end:
                _emit(end.value, "returned", report)
                return
            _emit(output, "yielded", report)
    finally:
        # Run the user's ``finally`` blocks now and not in a later garbage collection.
        generator.close()


def _emit(output: Any, verb: str, report: Report) -> None:
    # Not `if output`: 0.0 is a result too.
    if output is None:
        return
    if isinstance(output, dict):
        report(output)
    elif isinstance(output, Number) or is_numpy_scalar(output):
        report({DEFAULT_METRIC: output})
    else:
        raise ReportError(
            f"what a trainable function {verb} must be a dict, a number or None, got {type(output).__name__}"
        )
