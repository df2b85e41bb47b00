"""`NestedMetrics`: flat metrics that can also be read as they were reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
