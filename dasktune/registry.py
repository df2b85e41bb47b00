"""Names for trainables and environments, within this process.

A name is resolved where the experiment is defined; what travels to workers is the object itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Final

from dasktune.errors import ConfigError

__all__ = ["RegistrationError", "get_env", "get_trainable", "register_env", "register_trainable"]

logger = logging.getLogger(__name__)

_trainables: Final[dict[str, Callable[..., Any]]] = {}
_envs: Final[dict[str, Callable[..., Any]]] = {}


class RegistrationError(ConfigError, TypeError):
    """A name that is no string, or a thing that cannot be called, was to be registered.

    Examples
    --------
    >>> try:
    ...     register_trainable("square", 4)
    ... except RegistrationError as error:
    ...     print(error)
    trainable 'square' must be callable, got 4
    """


def register_trainable(name: str, trainable: Callable[..., Any], warn: bool = True) -> None:
    """Let `trainable` be called by its name in this process.

    Parameters
    ----------
    name : str
        Its name; an earlier trainable of that name is replaced.
    trainable : callable
        A function, a class, or anything else that can be called.
    warn : bool, default=True
        Log a warning if the name stood for something else.

    Raises
    ------
    RegistrationError
        If `name` is no string, or `trainable` cannot be called. It is a TypeError, too.

    Examples
    --------
    >>> register_trainable("square", lambda config: {"loss": config["x"] ** 2})
    >>> get_trainable("square")({"x": 3})
    {'loss': 9}
    """
    _register(_trainables, name, trainable, kind="trainable", warn=warn)


def register_env(name: str, creator: Callable[..., Any]) -> None:
    """Let an environment be named in a configuration.

    Parameters
    ----------
    name : str
        Its name; an earlier environment of that name is replaced.
    creator : callable
        Gets the environment's configuration and returns the environment.

    Raises
    ------
    RegistrationError
        If `name` is no string, or `creator` cannot be called. It is a TypeError, too.

    Examples
    --------
    >>> register_env("pendulum", lambda config: ("a pendulum", config["length"]))
    """
    _register(_envs, name, creator, kind="env", warn=True)


def get_trainable(name: str) -> Callable[..., Any]:
    """Return the trainable that was registered as `name`.

    Parameters
    ----------
    name : str
        The name that it was registered by.

    Raises
    ------
    ConfigError
        If nothing was; the message lists what was.

    Examples
    --------
    >>> register_trainable("documented", max, warn=False)
    >>> get_trainable("documented") is max
    True
    """
    return _get(_trainables, name, kind="trainable")


def get_env(name: str) -> Callable[..., Any]:
    """Return the creator of the environment that was registered as `name`.

    Parameters
    ----------
    name : str
        The name that it was registered by.

    Raises
    ------
    ConfigError
        If nothing was; the message lists what was.

    Examples
    --------
    >>> register_env("maze", dict)
    >>> get_env("maze")({"size": 3})
    {'size': 3}
    """
    return _get(_envs, name, kind="env")


def _register(
    registry: dict[str, Callable[..., Any]], name: object, thing: object, *, kind: str, warn: bool
) -> None:
    if not isinstance(name, str) or not name:
        raise RegistrationError(f"name must be a non-empty str, got {name!r}")
    if not callable(thing):
        raise RegistrationError(f"{kind} {name!r} must be callable, got {thing!r}")
    if warn and registry.get(name, thing) is not thing:
        logger.warning("%s %r stands for another object from now on", kind, name)
    registry[name] = thing


def _get(registry: dict[str, Callable[..., Any]], name: str, *, kind: str) -> Callable[..., Any]:
    if name in registry:
        return registry[name]
    close = get_close_matches(name, registry, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Call register_{kind}({name!r}, ...) first."
    known = ", ".join(map(repr, sorted(registry))) or "nothing is registered"
    raise ConfigError(f"{kind} must be a registered name ({known}), got {name!r}. {hint}")
