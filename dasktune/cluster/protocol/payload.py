"""The experiment's objects for its workers: the pickled trainable, and separate large objects."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dasktune.cluster.protocol.pickling import dumps_user_code, local_modules, modules_by_value
from dasktune.errors import ConfigError
from dasktune.registry import registered_envs
from dasktune.trainable.api.binding import bound_parameters
from dasktune.trainable.data.shared_objects import Frames, RemoteObject, frames_of, pickled_size

logger = logging.getLogger(__name__)

#: Largest pickled size, in bytes, of an object that is pickled with the trainable.
_LARGE: Final = 1_000_000

#: Size of the pickled trainable, in bytes, from which on the user is warned.
_TOO_LARGE: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A pickled trainable, and the large objects that it contains only by name.

    Parameters
    ----------
    blob : bytes
        The pickle; :func:`dasktune.trainable.data.shared_objects.loads_with` opens it.
    objects : mapping, default={}
        The user's large objects, by their names in `blob`.
    size : int, default=0
        Total pickled size of the objects, in bytes.
    code : {"auto", "installed"}, default="auto"
        Whether local modules are pickled by value.
    """

    blob: bytes = field(repr=False)
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False)
    size: int = 0
    code: str = "auto"

    def frames(self) -> dict[str, Frames]:
        """Return the pickle frames of each object that is in this process.

        This may take seconds, but copies no large buffers.
        """
        with _local_by_value(self.code):
            return {
                name: frames_of(thing)
                for name, thing in self.objects.items()
                if not isinstance(thing, RemoteObject)
            }

    @property
    def remote(self) -> dict[str, RemoteObject]:
        """The objects that exist only on the cluster."""
        return {name: thing for name, thing in self.objects.items() if isinstance(thing, RemoteObject)}

    @property
    def rebuild_seconds(self) -> float:
        """Seconds that rebuilding the remote objects may take."""
        return sum(thing.rebuild_seconds for thing in self.remote.values())


def pack_trainable(trainable: Any, *, code: str = "auto") -> Payload:
    """Pickle a trainable without the large objects that are bound to it.

    The registered environments are pickled with it.

    Parameters
    ----------
    trainable : type or callable
        The user's code.
    code : {"auto", "installed"}, default="auto"
        Whether functions and classes of local modules are pickled by value.

    Returns
    -------
    Payload
        The pickle and the separate objects.

    Raises
    ------
    ConfigError
        If something cannot be pickled; the message names it.
    """
    objects: dict[str, Any] = {}
    total = 0
    for name, thing in bound_parameters(trainable):
        is_remote = isinstance(thing, RemoteObject)
        size = thing.size if is_remote else _size(thing, code)
        if (is_remote or size > _LARGE) and not any(thing is other for other in objects.values()):
            objects[f"{name}-{len(objects)}"] = thing
            total += size
    parts = {"trainable": trainable, "envs": pack_envs(code=code)}
    blob = dumps_user_code(parts, code=code, by_name=objects)
    if len(blob) > _TOO_LARGE:
        logger.warning(
            "the trainable has %d MB when it is pickled, which the scheduler and every worker "
            "keep; take large objects out of its closure, globals and defaults, and bind them with "
            "with_parameters()",
            len(blob) // 1_000_000,
        )
    return Payload(blob=blob, objects=objects, size=total, code=code)


def pack_envs(*, code: str = "auto") -> dict[str, bytes]:
    """Return the creators of all registered environments, each pickled.

    Most experiments use no environment, so one that cannot be pickled causes only a warning.

    Parameters
    ----------
    code : {"auto", "installed"}, default="auto"
        As for :func:`pack_trainable`.
    """
    envs: dict[str, bytes] = {}
    for name, creator in registered_envs().items():
        if isinstance(creator, bytes):
            envs[name] = creator
            continue
        try:
            envs[name] = dumps_user_code({"env": creator}, code=code)
        except ConfigError as error:
            logger.warning("trials cannot use the environment %r: %s", name, error)
    return envs


def _size(thing: Any, code: str) -> int:
    try:
        with _local_by_value(code):
            return pickled_size(thing)
    except Exception:
        # Pickling the trainable will fail as well, with an explanation.
        return 0


def _local_by_value(code: str) -> contextlib.AbstractContextManager[None]:
    return modules_by_value(local_modules()) if code == "auto" else contextlib.nullcontext()
