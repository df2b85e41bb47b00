"""The registry of names of trainables and environments.

The process that defines an experiment looks up its trainable and sends the object to the workers.
Trials look up environments, so their creators are sent to the workers with the experiment.
"""

from __future__ import annotations

import logging
import pickle
import sys
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

#: The pickled creators of the experiment that runs in this context. It is a context variable
#: because trials of several experiments, with other creators of the same names, share a worker.
_offered: ContextVar[dict[str, bytes] | None] = ContextVar("dasktune_envs", default=None)


class RegistrationError(ConfigError, TypeError):
    """A name is not a string, or a registered object cannot be what it is registered as.

    Examples
    --------
    >>> try:
    ...     register_trainable("square", 4)
    ... except RegistrationError as error:
    ...     print(error)
    trainable 'square' must be a function or a subclass of Trainable, got 4
    """


def register_trainable(name: str, trainable: Callable[..., Any], warn: bool = True) -> None:
    """Register a trainable under a name in this process.

    Parameters
    ----------
    name : str
        The name; an earlier trainable of this name is replaced.
    trainable : callable
        A function, another callable, or a subclass of `Trainable`.
    warn : bool, default=True
        Log a warning if the name was registered for another object.

    Raises
    ------
    RegistrationError
        If `name` is not a string, or `trainable` is neither. It is also a TypeError.

    Examples
    --------
    >>> register_trainable("square", lambda config: {"loss": config["x"] ** 2})
    >>> get_trainable("square")({"x": 3})
    {'loss': 9}
    """
    given: object = trainable
    fits = _is_trainable_class(given) if isinstance(given, type) else callable(given)
    _register(_trainables, name, trainable, kind="trainable", warn=warn, rule=_TRAINABLE_RULE, fits=fits)


def register_env(name: str, creator: Callable[..., Any]) -> None:
    """Register the creator of an environment under a name.

    All trials of an experiment can get the creators that were registered when it began, with
    :func:`get_env`.

    Parameters
    ----------
    name : str
        The name; an earlier environment of this name is replaced.
    creator : callable
        A function of the environment's configuration that returns the environment.

    Raises
    ------
    RegistrationError
        If `name` is not a string, or `creator` is not callable. It is also a TypeError.

    Examples
    --------
    >>> register_env("pendulum", lambda config: ("a pendulum", config["length"]))
    """
    _register(_envs, name, creator, kind="env", warn=True, rule="callable", fits=callable(creator))
    # A creator that a trial registers replaces the one of its experiment.
    (_offered.get() or {}).pop(name, None)


def get_trainable(name: str) -> Callable[..., Any]:
    """Return the trainable that was registered as `name`.

    Parameters
    ----------
    name : str
        The registered name.

    Raises
    ------
    ConfigError
        If the name is not registered; the message lists the registered ones.

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

    A trial gets the creators that were registered in the driver's process before the experiment
    began.

    Parameters
    ----------
    name : str
        The registered name.

    Raises
    ------
    ConfigError
        If the name is not registered; the message lists the registered ones.

    Examples
    --------
    >>> register_env("pendulum", lambda config: ("a pendulum", config["length"]))
    >>> get_env("pendulum")({"length": 2})
    ('a pendulum', 2)
    """
    found: Callable[..., Any] | bytes = _get(registered_envs(), name, kind="env")
    return _opened(found) if isinstance(found, bytes) else found


def registered_envs() -> dict[str, Callable[..., Any] | bytes]:
    """Return this process's creators and the experiment's creators, the latter pickled.

    Examples
    --------
    >>> register_env("lake", dict)
    >>> registered_envs()["lake"]
    <class 'dict'>
    """
    return {**_envs, **(_offered.get() or {})}


def offer_envs(envs: Mapping[str, bytes]) -> None:
    """Make creators available to :func:`get_env` in this thread and in copies of its context.

    Parameters
    ----------
    envs : mapping of str to bytes
        The pickle of ``{"env": creator}`` by name. `get_env` unpickles it at the first use, because
        a creator may need packages that are not installed here.

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


#: The module of `Trainable`, which is of a higher layer than this one.
_TRAINABLE_MODULE: Final = "dasktune.trainable.api.trainable"

_TRAINABLE_RULE: Final = "a function or a subclass of Trainable"


def _is_trainable_class(kind: type) -> bool:
    # A class that derives from Trainable has imported its module.
    module = sys.modules.get(_TRAINABLE_MODULE)
    return module is not None and issubclass(kind, module.Trainable)


def _register(
    registry: dict[str, Callable[..., Any]],
    name: object,
    thing: Callable[..., Any],
    *,
    kind: str,
    warn: bool,
    rule: str,
    fits: bool,
) -> None:
    if not isinstance(name, str) or not name:
        raise RegistrationError(f"name must be a non-empty str, got {name!r}")
    if not fits:
        raise RegistrationError(f"{kind} {name!r} must be {rule}, got {thing!r}")
    if warn and registry.get(name, thing) is not thing:
        logger.warning("%s %r now refers to another object", kind, name)
    registry[name] = thing


def _get(registry: Mapping[str, Any], name: str, *, kind: str) -> Any:
    if name in registry:
        return registry[name]
    close = get_close_matches(name, registry, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Call register_{kind}({name!r}, ...) first."
    known = ", ".join(map(repr, sorted(registry))) or "nothing is registered"
    raise ConfigError(f"{kind} must be a registered name ({known}), got {name!r}. {hint}")
