"""Policies by name: ours, and those that other packages tell of as entry points."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any, TypeVar

from dasktune.errors import ConfigError, check

__all__ = ["create"]

_T = TypeVar("_T")


def create(
    what: str,
    kinds: tuple[type[_T], ...],
    ours: Mapping[str, Callable[..., _T]],
    name: str,
    arguments: Mapping[str, Any],
) -> _T:
    """Make a policy by its name.

    Parameters
    ----------
    what : str
        What it is, for messages: "scheduler". Other packages tell of theirs in the group of entry
        points ``dasktune.<what>s``, as ``name = "package.module:Class"``.
    kinds : tuple of type
        What it may be.
    ours : mapping of str to callable
        Those of dasktune. Nobody can take a name of theirs.
    name : str
        Its name.
    arguments : mapping of str to object
        What it is called with.

    Raises
    ------
    ConfigError
        If there is none of this name, another package's cannot be used, or an argument breaks its
        rule.

    Examples
    --------
    >>> create("number", (int,), {"integer": int}, "integer", {})
    0
    """
    make = ours.get(name) or _foreign(what, ours, name)
    _check_arguments(what, name, make, arguments)
    made = make(**arguments)
    rule = " or ".join(f"a {kind.__name__}" for kind in kinds)
    hint = "The package that tells of it is broken."
    says = f"what the entry point {name!r} makes"
    check(isinstance(made, kinds), says, rule, type(made).__name__, hint)
    return made


def _check_arguments(
    what: str, name: str, make: Callable[..., Any], given: Mapping[str, Any]
) -> None:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        return  # it has none that can be told: calling it will tell
    try:
        signature.bind(**given)
    except TypeError as error:
        raise ConfigError(
            f"the arguments of {what} {name!r} must be those that it takes "
            f"({', '.join(signature.parameters)}), got {given!r}: {error}"
        ) from error


def _foreign(what: str, ours: Mapping[str, Callable[..., _T]], name: str) -> Callable[..., _T]:
    # Looked for only when it is asked for: it takes milliseconds.
    found = {entry.name: entry for entry in entry_points(group=f"dasktune.{what}s")}
    known = [*ours, *sorted(found)]
    close = get_close_matches(str(name), known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else ""
    check(name in found, what, f"one of {', '.join(known)}", name, hint)
    try:
        make: Callable[..., _T] = found[name].load()
    except Exception as error:
        raise ConfigError(
            f"{what} {name!r} must be importable, got {type(error).__name__}: {error}. "
            f"It is told of by {found[name].value!r} of another package."
        ) from error
    return make
