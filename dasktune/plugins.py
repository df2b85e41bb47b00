"""Create schedulers and searchers by name, including the ones that other packages declare."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any, TypeVar

from dasktune.errors import ConfigError, check

_T = TypeVar("_T")


def create(
    what: str,
    kinds: tuple[type[_T], ...],
    own: Mapping[str, Callable[..., _T]],
    name: str,
    arguments: Mapping[str, Any],
) -> _T:
    """Return a new policy, given by its name.

    Parameters
    ----------
    what : str
        The kind of policy for messages, such as "scheduler". Other packages declare theirs as entry
        points ``name = "package.module:Class"`` of the group ``dasktune.<what>s``.
    kinds : tuple of type
        The allowed types.
    own : mapping of str to callable
        The policies of dasktune. An entry point cannot replace one of them.
    name : str
        The policy's name.
    arguments : mapping of str to object
        The arguments of its constructor.

    Raises
    ------
    ConfigError
        If no policy has this name, an entry point cannot be used, or an argument breaks its rule.

    Examples
    --------
    >>> create("number", (int,), {"integer": int}, "integer", {})
    0
    """
    make = own.get(name) or _from_entry_point(what, own, name)
    _check_arguments(what, name, make, arguments)
    made = make(**arguments)
    rule = " or ".join(f"a {kind.__name__}" for kind in kinds)
    hint = "The entry point is wrong."
    check(isinstance(made, kinds), f"entry point {name!r}", rule, type(made).__name__, hint)
    return made


def _check_arguments(what: str, name: str, make: Callable[..., Any], given: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        return  # a callable without a signature can only be called
    try:
        signature.bind(**given)
    except TypeError as error:
        raise ConfigError(
            f"the arguments of {what} {name!r} must be among "
            f"({', '.join(signature.parameters)}), got {given!r}: {error}"
        ) from error


def _from_entry_point(what: str, own: Mapping[str, Callable[..., _T]], name: str) -> Callable[..., _T]:
    # Reading entry points takes milliseconds, so it is done for unknown names only.
    found = {entry.name: entry for entry in entry_points(group=f"dasktune.{what}s")}
    known = [*own, *sorted(found)]
    # The documentation names policies by their classes.
    alike = {_plain(getattr(make, "__name__", key)): key for key, make in own.items()}
    alike |= {_plain(key): key for key in reversed(known)}
    close = [alike[_plain(name)]] if _plain(name) in alike else get_close_matches(str(name), known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else ""
    check(name in found, what, f"one of {', '.join(known)}", name, hint)
    try:
        make: Callable[..., _T] = found[name].load()
    except Exception as error:
        raise ConfigError(
            f"{what} {name!r} must be importable, got {type(error).__name__}: {error}. "
            f"It is the entry point {found[name].value!r} of another package."
        ) from error
    return make


def _plain(name: object) -> str:
    """Return what the name of a policy and that of its class have in common."""
    return str(name).lower().replace("_", "").removesuffix("scheduler").removesuffix("search")
