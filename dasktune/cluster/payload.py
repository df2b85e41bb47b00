"""What an experiment sends to its workers: the trainable, and apart from it the large objects."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dasktune.cluster.code import by_value, local_modules, pack
from dasktune.errors import ConfigError
from dasktune.registry import registered_envs
from dasktune.trainable.interface import bound_parameters
from dasktune.trainable.remote_object import RemoteObject
from dasktune.trainable.shared_objects import Frames, frames_of, pickled_size

__all__ = ["Payload", "pack_envs", "pack_trainable"]

logger = logging.getLogger(__name__)

#: Bytes that an object may have when it is pickled to travel with the trainable.
_LARGE: Final = 1_000_000

#: Bytes of the pickled trainable at which the user is told where they should be instead.
_TOO_LARGE: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A pickled trainable, and the objects in it that are there by name only.

    Parameters
    ----------
    blob : bytes
        What :func:`dasktune.trainable.shared_objects.loads_with` opens.
    objects : mapping, default={}
        The user's own large objects, by the name that stands for each in `blob`.
    size : int, default=0
        What the objects have when they are pickled, in bytes.
    code : {"auto", "installed"}, default="auto"
        Whether local modules travel by value.
    """

    blob: bytes = field(repr=False)
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False)
    size: int = 0
    code: str = "auto"

    def frames(self) -> dict[str, Frames]:
        """Return the frames of each object that is here.

        It may take long, and copies no large buffers.
        """
        with _travelling(self.code):
            return {
                name: frames_of(thing)
                for name, thing in self.objects.items()
                if not isinstance(thing, RemoteObject)
            }

    @property
    def remote(self) -> dict[str, RemoteObject]:
        """The objects that are on the cluster already."""
        return {
            name: thing for name, thing in self.objects.items() if isinstance(thing, RemoteObject)
        }

    @property
    def patience(self) -> float:
        """Seconds that it may take to make them."""
        return sum(thing.patience for thing in self.remote.values())


def pack_trainable(trainable: Any, *, code: str = "auto") -> Payload:
    """Pickle a trainable, but not the large objects that were bound to it.

    The environments that are registered come along.

    Parameters
    ----------
    trainable : type or callable
        The user's code.
    code : {"auto", "installed"}, default="auto"
        Whether functions and classes of local modules travel by value.

    Returns
    -------
    Payload
        The pickle, and what is not in it.

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
    blob = pack(parts, code=code, apart=objects)
    if len(blob) > _TOO_LARGE:
        logger.warning(
            "the trainable has %d MB when it is pickled, which the scheduler and every worker "
            "keep; take large objects out of its closure, globals and defaults, and bind them with "
            "with_parameters()",
            len(blob) // 1_000_000,
        )
    return Payload(blob=blob, objects=objects, size=total, code=code)


def pack_envs(*, code: str = "auto") -> dict[str, bytes]:
    """Return the creators of all environments that are registered here, each pickled.

    Most experiments use none of them, so one that cannot travel costs a warning.

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
            envs[name] = pack({"env": creator}, code=code)
        except ConfigError as error:
            logger.warning("trials will not know the environment %r: %s", name, error)
    return envs


def _size(thing: Any, code: str) -> int:
    try:
        with _travelling(code):
            return pickled_size(thing)
    except Exception:
        # Packing the whole will fail as well, and say what is to blame.
        return 0


def _travelling(code: str) -> contextlib.AbstractContextManager[None]:
    return by_value(local_modules()) if code == "auto" else contextlib.nullcontext()
