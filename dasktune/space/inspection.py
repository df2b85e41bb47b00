"""Functions that read search spaces: config checks, scales and varied parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final

from dasktune.errors import check
from dasktune.space.ranges import Float, Integer
from dasktune.space.samplers import LogUniform, Quantized
from dasktune.space.tree import Variable
from dasktune.trial.metrics import flatten

_ABSENT: Final = object()


def check_config(space: Mapping[str, Any], config: Mapping[str, Any], where: str = "config") -> None:
    """Check that a configuration has all parameters of a search space, with numbers for ranges.

    Values outside the range of a domain and names that the space does not have are accepted.

    Parameters
    ----------
    space : mapping
        The search space as the user wrote it.
    config : mapping
        The configuration.
    where : str, default="config"
        Name of the configuration in error messages.

    Raises
    ------
    ConfigError
        If a parameter is missing or has a value of the wrong type.

    Examples
    --------
    >>> from dasktune.space import uniform
    >>> check_config({"lr": uniform(0, 1)}, {"lr": "fast"})
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: config['lr'] must be a finite number, got 'fast'
    """
    missing = [name for name in space if name not in config]
    hint = f"Missing: {missing}."
    check(not missing, where, "a complete configuration of the search space", dict(config), hint)
    for name, wanted in space.items():
        given, place = config[name], f"{where}[{name!r}]"
        if isinstance(wanted, Float | Integer):
            is_int = isinstance(given, int) and not isinstance(given, bool)
            if isinstance(wanted, Integer):
                check(is_int, place, "an int", given)
            else:
                fits = is_int or isinstance(given, float)
                check(fits and isfinite(given), place, "a finite number", given)
        elif isinstance(wanted, Mapping) and "grid_search" not in wanted:
            check(isinstance(given, Mapping), place, "a mapping", given)
            check_config(wanted, given, place)


def parameter_scales(space: Mapping[str, Any]) -> dict[str, str]:
    """Return ``"log"`` or ``"linear"`` for each parameter that is drawn from a range.

    Parameters
    ----------
    space : mapping
        A search space. Nested names are joined by ``/``; parameters inside lists are left out.

    Examples
    --------
    >>> from dasktune.space import choice, loguniform, uniform
    >>> space = {"lr": loguniform(1e-4, 1), "net": {"p": uniform(0, 1)}, "opt": choice(["a"])}
    >>> parameter_scales(space)
    {'lr': 'log', 'net/p': 'linear'}
    """
    return {
        name: "log" if _is_log(domain) else "linear"
        for name, domain in flatten(space).items()
        if isinstance(domain, Float | Integer)
    }


def _is_log(domain: Float | Integer) -> bool:
    sampler = domain.sampler
    if isinstance(sampler, Quantized):
        sampler = sampler.sampler
    return isinstance(sampler, LogUniform)


def varied_parameters(space: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration that may differ between trials.

    These values are drawn, taken from a grid, suggested by a searcher with its own space, or
    changed by a scheduler. Constants of the search space are left out.

    Parameters
    ----------
    space : mapping
        The search space as the user wrote it.
    config : mapping
        A configuration of the space.

    Returns
    -------
    dict
        Values by path, with ``/`` between the names.

    Examples
    --------
    >>> from dasktune.space import uniform
    >>> space = {"net": {"lr": uniform(0, 1), "depth": 3}}
    >>> varied_parameters(space, {"net": {"lr": 0.5, "depth": 3}})
    {'net/lr': 0.5}
    """
    return dict(_walk(space, config, ""))


def _walk(node: Any, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    below = f"{path}/" if path else ""
    if node is _ABSENT and isinstance(value, Mapping):
        yield from flatten(value, below).items()
    elif isinstance(node, Mapping) and "grid_search" not in node and isinstance(value, Mapping):
        for key, part in value.items():
            yield from _walk(node.get(key, _ABSENT), part, f"{below}{key}")
    elif _are_lists(node, value) and len(node) == len(value):
        for index, (inner, part) in enumerate(zip(node, value, strict=True)):
            yield from _walk(inner, part, f"{below}{index}")
    elif isinstance(node, Variable | Mapping) or (node is not value and _differs(node, value)):
        yield path, value


def _are_lists(*values: object) -> bool:
    return all(isinstance(value, list | tuple) for value in values)


def _differs(node: Any, value: Any) -> bool:
    try:
        return bool(node != value)
    except Exception:  # arrays have no single truth value, and users' classes may raise anything
        return False
