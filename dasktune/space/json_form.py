"""Search spaces as JSON, for the journal, the dashboard and other languages.

Dicts, lists and plain values are written as they are, grids included. Anything else becomes a dict
with a key that begins with ``$``::

    {"$domain": "loguniform", "lower": 0.0001, "upper": 0.1}
    {"$tuple": [1, 2]}             {"$float": "nan"}
    {"$dict": [[1, "a"]]}          a dict whose keys are not plain strings
    {"$object": "<function f>"}    text for display: :func:`from_json` rejects it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

import numpy as np

from dasktune.errors import ConfigError, check
from dasktune.space.domain import Categorical, Domain
from dasktune.space.primitives import (
    choice,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    uniform,
)
from dasktune.space.ranges import Float, Integer
from dasktune.space.samplers import LogUniform, Normal, Quantized, Sampler
from dasktune.space.tree import Path, path_name

#: The function that builds each kind of domain; the first three kinds have no sampler.
_BUILDERS: Final[dict[str, Callable[..., Domain]]] = {
    "float": Float,
    "integer": Integer,
    "categorical": Categorical,
    "choice": choice,
    "uniform": uniform,
    "quniform": quniform,
    "loguniform": loguniform,
    "qloguniform": qloguniform,
    "randn": randn,
    "qrandn": qrandn,
    "randint": randint,
    "qrandint": qrandint,
    "lograndint": lograndint,
    "qlograndint": qlograndint,
}


def to_json(space: Any) -> Any:
    """Return a search space, or a part of one, as JSON-serializable values.

    Parameters
    ----------
    space : object
        The space. Functions and other objects are written as text, for display only.

    Examples
    --------
    >>> from dasktune.space import grid_search, uniform
    >>> to_json({"lr": uniform(0, 1), "depth": grid_search([1, 2])})
    {'lr': {'$domain': 'uniform', 'lower': 0.0, 'upper': 1.0}, 'depth': {'grid_search': [1, 2]}}
    """
    if isinstance(space, np.generic):
        return to_json(space.item())
    if isinstance(space, float) and not isfinite(space):
        return {"$float": str(space)}
    if space is None or isinstance(space, bool | int | float | str):
        return space
    if isinstance(space, Mapping):
        return _mapping_to_json(space)
    if isinstance(space, list):
        return [to_json(item) for item in space]
    if type(space) is tuple:
        return {"$tuple": [to_json(item) for item in space]}
    if isinstance(space, Categorical):
        kind = "categorical" if space.sampler is None else "choice"
        return {"$domain": kind, "categories": [to_json(item) for item in space.categories]}
    if isinstance(space, Float | Integer):
        return _range_to_json(space)
    return {"$object": repr(space)}


def from_json(data: Any) -> Any:
    """Return the search space that :func:`to_json` converted to `data`.

    Parameters
    ----------
    data : object
        The return value of `json.loads`.

    Raises
    ------
    ConfigError
        If `data` holds a function or another object that JSON cannot represent, or is not in the
        form that :func:`to_json` writes; the message names the path.

    Examples
    --------
    >>> from_json({"lr": {"$domain": "uniform", "lower": 0, "upper": 1}})
    {'lr': Float(lower=0.0, upper=1.0, sampler=Uniform())}
    """
    return _parse(data, ())


def _mapping_to_json(node: Mapping[Any, Any]) -> dict[str, Any]:
    if all(isinstance(key, str) and not key.startswith("$") for key in node):
        return {key: to_json(value) for key, value in node.items()}
    return {"$dict": [[to_json(key), to_json(value)] for key, value in node.items()]}


def _range_to_json(domain: Float | Integer) -> dict[str, Any]:
    data = {"lower": domain.lower, "upper": domain.upper}
    if domain.sampler is None:
        kind = "float" if isinstance(domain, Float) else "integer"
        open_ended = {name: bound if isfinite(bound) else None for name, bound in data.items()}
        return {"$domain": kind, **open_ended}
    sampler: Sampler = domain.sampler
    quantum: dict[str, float] = {}
    if isinstance(sampler, Quantized):
        quantum = {"q": sampler.q}
        sampler = sampler.sampler
    if isinstance(sampler, Normal):
        kind, data = "randn", {"mean": sampler.mean, "sd": sampler.sd}
    else:
        kind = "uniform" if isinstance(domain, Float) else "randint"
        kind = f"log{kind}" if isinstance(sampler, LogUniform) else kind
    return {"$domain": f"q{kind}" if quantum else kind, **data, **quantum}


def _parse(data: Any, path: Path) -> Any:
    if isinstance(data, list):
        return [_parse(item, (*path, index)) for index, item in enumerate(data)]
    if not isinstance(data, Mapping):
        return data
    if not any(key.startswith("$") for key in data):
        return {key: _parse(value, (*path, key)) for key, value in data.items()}
    name = f"the space at {path_name(path)!r}"
    hint = "JSON cannot represent functions and objects: set it again in the space."
    check("$object" not in data, name, "made of plain values and domains", data, hint)
    match data:
        case {"$domain": str(kind), **fields} if kind in _BUILDERS:
            return _parse_domain(kind, fields, path)
        case {"$tuple": list(items), **rest} if not rest:
            return tuple(_parse(items, path))
        case {"$dict": list(pairs), **rest} if not rest and all(map(_is_pair, pairs)):
            return {_parse(key, path): _parse(value, (*path, key)) for key, value in pairs}
        case {"$float": "nan" | "inf" | "-inf" as text, **rest} if not rest:
            return float(text)
        case _:
            raise ConfigError(f"{name} must be in the form that to_json writes, got {data!r}")


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2


def _parse_domain(kind: str, fields: dict[str, Any], path: Path) -> Domain:
    if "categories" in fields:
        fields["categories"] = _parse(fields["categories"], path)
    try:
        return _BUILDERS[kind](**fields)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{kind} at {path_name(path)!r}: {error}") from error
