"""What crosses the wire in a call to a slot: bytes that we pickle ourselves.

Dask's ``ActorFuture`` hangs for ever on an argument, a result or an exception that cannot be
pickled or unpickled, so none but bytes are handed to it, and nothing but bytes comes back.
"""

from __future__ import annotations

import functools
import pickle
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import cloudpickle

from dasktune.cluster.bell import SHORTEST_WINDOW
from dasktune.trainable.messages import Answer
from dasktune.trainable.spec import TrialSpec

__all__ = ["Assignment", "Refused", "Reply", "Request", "enveloped", "open_reply", "seal"]

_Self = TypeVar("_Self")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every call carries.

    Parameters
    ----------
    incarnation : str
        Which incarnation of which trial it is about; the slot refuses what it does not run.
    number : int, default=0
        Counts the calls about this incarnation, from 1. A call that is repeated, because no answer
        came, repeats its number.
    ack : int, default=0
        Every message up to this number stands in the journal.
    have : int, default=0
        Every message up to this number has arrived.
    answers : tuple of Answer, default=()
        What was decided. An answer that comes late or twice is ignored.
    window_s : float, default=SHORTEST_WINDOW
        Seconds that streamed results are to gather before the slot rings for them.
    """

    incarnation: str
    number: int = 0
    ack: int = 0
    have: int = 0
    answers: tuple[Answer, ...] = ()
    window_s: float = SHORTEST_WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A trial for a slot.

    Parameters
    ----------
    incarnation : str
        What the driver calls it.
    spec : TrialSpec
        The trial.
    config : bytes
        Its pickled configuration, opened in the trial's own thread: it may run the user's code.
    window_s : float, default=SHORTEST_WINDOW
        Seconds that streamed results are to gather before the slot rings for them.
    """

    incarnation: str
    spec: TrialSpec
    config: bytes = field(repr=False)
    window_s: float = SHORTEST_WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What every call brings back.

    Parameters
    ----------
    messages : tuple of (int, bytes)
        Number and pickled message of everything that the driver does not have, in order. Each is
        pickled on its own, so that one that cannot be read costs only itself.
    occupied : bool, default=False
        Whether user code runs in the slot although its trial has ended: a cleanup that does not
        end. What the slot holds stays taken for so long, and it takes no further trial.
    """

    messages: tuple[tuple[int, bytes], ...]
    occupied: bool = False


class Refused(Exception):
    """The slot could not do what it was asked; carries the worker's words."""


def seal(value: Any) -> bytes:
    """Pickle a request, an assignment or a reply."""
    return cloudpickle.dumps(value)  # type: ignore[no-any-return]


def open_reply(blob: bytes) -> Reply:
    """Return the reply of a call.

    Raises
    ------
    Refused
        If the slot says that it could not.
    """
    verdict, value = pickle.loads(blob)
    if verdict == "refused":
        raise Refused(value)
    reply: Reply = value
    return reply


def enveloped(
    method: Callable[[_Self, Any], Awaitable[Reply]],
) -> Callable[[_Self, bytes], Awaitable[bytes]]:
    """Turn a coroutine method on values into one on bytes that never raises."""

    @functools.wraps(method)
    async def wrapper(self: _Self, blob: bytes) -> bytes:
        try:
            return seal(("ok", await method(self, pickle.loads(blob))))
        except BaseException as error:
            # BaseException: a CancelledError would look like a lost worker to Dask's client.
            text = "".join(traceback.format_exception(error))
            return seal(("refused", text))

    return wrapper
