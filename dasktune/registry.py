"""Names for trainables and environments.

The name of a trainable is resolved where the experiment is defined, and what travels to workers is
the object itself. Names of environments are resolved by the trials, so that they travel along.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

from dasktune.errors import ConfigError

__all__ = [
    "RegistrationError",
    "get_env",
    "get_trainable",
    "offer_envs",
    "register_env",
    "register_trainable",
    "registered_envs",
]

logger = logging.getLogger(__name__)

_trainables: Final[dict[str, Callable[..., Any]]] = {}
_envs: Final[dict[str, Callable[..., Any]]] = {}

#: The pickled creators of the experiment whose code runs here. Others may use the same names.
_offered: ContextVar[dict[str, bytes] | None] = ContextVar("dasktune_envs", default=None)


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

    What is registered when an experiment begins is known to all its trials, by :func:`get_env`.

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
    # What a trial registers itself is newer.
    (_offered.get() or {}).pop(name, None)


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
    found: Callable[..., Any] = _get(_trainables, name, kind="trainable")
    return found


def get_env(name: str) -> Callable[..., Any]:
    """Return the creator of the environment that was registered as `name`.

    In a trial, it was registered before its experiment began, in the process that drives it.

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
    >>> register_env("pendulum", lambda config: ("a pendulum", config["length"]))
    >>> get_env("pendulum")({"length": 2})
    ('a pendulum', 2)
    """
    found: Callable[..., Any] | bytes = _get(registered_envs(), name, kind="env")
    return _opened(found) if isinstance(found, bytes) else found


def registered_envs() -> dict[str, Callable[..., Any] | bytes]:
    """Return all creators that are known here, those pickled that came with an experiment.

    Examples
    --------
    >>> register_env("lake", dict)
    >>> registered_envs()["lake"]
    <class 'dict'>
    """
    return {**_envs, **(_offered.get() or {})}


def offer_envs(envs: Mapping[str, bytes]) -> None:
    """Let :func:`get_env` know creators in this thread and in what inherits its context.

    Parameters
    ----------
    envs : mapping of str to bytes
        Each pickled as ``{"env": creator}``. It is opened when it is asked for, as it may need what
        is not installed here.

    Examples
    --------
    >>> offer_envs({"cave": pickle.dumps({"env": dict})})
    >>> get_env("cave")({"depth": 2})
    {'depth': 2}
    >>> offer_envs({})
    """
    _offered.set(dict(envs))


@lru_cache(maxsize=64)
def _opened(blob: bytes) -> Callable[..., Any]:
    creator: Callable[..., Any] = pickle.loads(blob)["env"]
    return creator


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


def _get(registry: Mapping[str, Any], name: str, *, kind: str) -> Any:
    if name in registry:
        return registry[name]
    close = get_close_matches(name, registry, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Call register_{kind}({name!r}, ...) first."
    known = ", ".join(map(repr, sorted(registry))) or "nothing is registered"
    raise ConfigError(f"{kind} must be a registered name ({known}), got {name!r}. {hint}")
