"""Reads metrics from results, by flat names and by nested ones."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from math import inf, isnan, nan
from numbers import Real
from sys import intern
from typing import Any, Literal

from dasktune.errors import check

#: Whether smaller or larger values of a metric are better.
Mode = Literal["min", "max"]

#: The metrics to optimise: none, one, or several at once.
Metric = str | list[str] | None
#: The modes of the metrics; for several metrics a list with one for each, in the same order.
Modes = Mode | list[Mode] | None


#: Types of most metrics. A test with isinstance(value, Mapping) takes far longer.
_LEAVES = frozenset({bool, float, int, str, type(None)})


@lru_cache(1024)
def _interned(names: tuple[str, ...]) -> tuple[str, ...]:
    # The rows of a trial mostly have the same names.
    return tuple(intern(str(name)) for name in names)


def flatten(result: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested metrics as one level, with ``/`` between the names.

    The names are interned: the rows of a trial's history share them.

    Examples
    --------
    >>> flatten({"loss": 1.0, "eval": {"acc": 0.5}})
    {'loss': 1.0, 'eval/acc': 0.5}
    """
    if prefix or not _LEAVES.issuperset(map(type, result.values())):
        return _flattened(result, prefix)
    return dict(zip(_interned(tuple(result)), result.values(), strict=True))


def _flattened(result: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in result.items():
        name = intern(f"{prefix}{key}")
        if type(value) not in _LEAVES and isinstance(value, Mapping) and value:
            flat.update(_flattened(value, f"{name}/"))
        else:
            flat[name] = value
    return flat


def lookup(result: Mapping[str, Any], name: str) -> Any:
    """Return the metric `name`, which may be a path with ``/``, or None if it is not there.

    Examples
    --------
    >>> lookup({"eval": {"acc": 0.5}}, "eval/acc")
    0.5
    """
    if name in result:
        return result[name]
    value: Any = result
    for part in name.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def number(value: object) -> float | None:
    """Return a number, bool or numpy scalar as a float; None for any other value.

    Examples
    --------
    >>> number(True), number(Decimal("0.5")), number("0.5")
    (1.0, 0.5, None)
    """
    if isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:  # integers and fractions have no largest value
            return inf if value > 0 else -inf  # type: ignore[operator]
    if isinstance(value, Decimal):  # no `Real`, because it does not mix with floats
        return nan if value.is_nan() else float(value)
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        return number(item())
    return None


def score(result: Mapping[str, Any], metric: str, mode: Mode) -> float | None:
    """Return the metric, negated for mode ``"min"``, so that higher is better.

    None if it is missing, no number, or NaN: an undefined value is never the better one.

    Examples
    --------
    >>> score({"loss": 2.0}, "loss", "min")
    -2.0
    """
    value = number(lookup(result, metric))
    if value is None or isnan(value):
        return None
    return value if mode == "max" else -value


def check_goals(metric: object, mode: object) -> None:
    """Check a metric and a mode, or several of each.

    Parameters
    ----------
    metric : str, list of str or None
        The metric, or several different ones.
    mode : {"min", "max"}, list of them or None
        The mode; a list with one for each metric if `metric` is a list. None leaves it open.

    Raises
    ------
    ConfigError
        If they are malformed or do not match.

    Examples
    --------
    >>> check_goals(["error", "seconds"], ["min"])
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: mode must be given once for each metric of ['error', 'seconds'], \
got ['min']
    """
    metrics = metric if isinstance(metric, list) else [metric]
    modes = mode if isinstance(mode, list) else [mode]
    named = metric is None or all(isinstance(name, str) and name for name in metrics)
    rule = "the name of a reported metric, or a list of different ones"
    check(named and 0 < len(metrics) == len(set(metrics)), "metric", rule, metric)
    known = mode is None or all(each in ("min", "max") for each in modes)
    rule = "a list of 'min' and 'max'" if isinstance(metric, list) else "'min' or 'max'"
    check(known, "mode", rule, mode)
    alike = isinstance(metric, list) == isinstance(mode, list) and len(metrics) == len(modes)
    check(mode is None or alike, "mode", f"given once for each metric of {metric!r}", mode)


class NestedMetrics(dict[str, Any]):
    """Metrics with flat names, which also returns nested ones by the first part of their names.

    Iteration, equality and length are those of the flat dict.

    Examples
    --------
    >>> metrics = NestedMetrics({"loss": 0.5, "eval/acc": 0.9})
    >>> metrics["eval/acc"], metrics["eval"]["acc"], metrics["eval"]
    (0.9, 0.9, {'acc': 0.9})
    >>> "eval" in metrics, list(metrics)
    (True, ['loss', 'eval/acc'])
    """

    def __missing__(self, name: str) -> dict[str, Any]:
        """Return a new dict of the metrics below `name`."""
        nested = self._below(name)
        if not nested:
            raise KeyError(name)
        return nested

    def __contains__(self, name: object) -> bool:
        """Whether there is a metric of this name, or metrics below it."""
        return super().__contains__(name) or any(key.startswith(f"{name}/") for key in self)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a metric, or the metrics below a name; `default` if there are none."""
        try:
            return self[name]
        except KeyError:
            return default

    def copy(self) -> NestedMetrics:
        """Return a copy of the same kind."""
        return NestedMetrics(self)

    def _below(self, name: str) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        start = f"{name}/"
        for key, value in self.items():
            if not key.startswith(start):
                continue
            *parents, last = key[len(start) :].split("/")
            level = nested
            for parent in parents:
                inner = level.setdefault(parent, {})
                if not isinstance(inner, dict):
                    break  # the same name has a value of its own
                level = inner
            else:
                level[last] = value
        return nested


def with_nested_names(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of flat metrics that can also be read as they were reported.

    Parameters
    ----------
    metrics : mapping
        Flat metrics, with ``/`` between the parts of nested names.

    Examples
    --------
    >>> with_nested_names({"n/a": 1})["n"]["a"]
    1
    >>> type(with_nested_names({"loss": 1}))
    <class 'dict'>
    """
    return NestedMetrics(metrics) if any("/" in name for name in metrics) else dict(metrics)
