"""What crosses the wire in a call to a worker: bytes that we pickle ourselves.

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

from dasktune.trainable.contents import Packed
from dasktune.trainable.messages import Answer
from dasktune.trainable.relay import Step
from dasktune.trainable.spec import TrialSpec

__all__ = [
    "Assignment",
    "Carriage",
    "News",
    "Note",
    "Refused",
    "Reply",
    "Request",
    "enveloped",
    "open_reply",
    "seal",
]

_Self = TypeVar("_Self")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A trial for a slot.

    Parameters
    ----------
    incarnation : str
        What the driver calls it.
    slot : str
        Key of the slot. A slot that is busy takes it as soon as it can.
    spec : TrialSpec
        The trial.
    config : bytes
        Its pickled configuration, opened in the trial's own thread: it may run the user's code.
    memory : str, default=""
        What its checkpoint is called on the worker, if that is kept in memory.
    """

    incarnation: str
    slot: str
    spec: TrialSpec
    config: bytes = field(repr=False)
    memory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What the driver has to say about one incarnation.

    Parameters
    ----------
    incarnation : str
        Which one; the worker ignores those that it does not know any more.
    ack : int
        Every message up to this number stands in the journal.
    have : int
        Every message up to this number has arrived.
    answers : tuple of Answer, default=()
        What was decided. An answer that comes late or twice is ignored.
    interrupt : bool, default=False
        Interrupt user code that did not obey the order to leave.
    """

    incarnation: str
    ack: int
    have: int
    answers: tuple[Answer, ...] = ()
    interrupt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every call to a worker carries: all that the driver has to say to it.

    Parameters
    ----------
    number : int
        Rises from call to call. One that is repeated, because no answer came, repeats its number.
    window : float, default=0.0
        Seconds for which the worker collects results before it rings.
    assignments : tuple of Assignment, default=()
        Trials to run. One that is known already is ignored.
    notes : tuple of Note, default=()
        What there is to say about the trials that run there.
    done : tuple of str, default=()
        Incarnations whose last message has arrived.
    """

    number: int
    window: float = 0.0
    assignments: tuple[Assignment, ...] = ()
    notes: tuple[Note, ...] = ()
    done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What the driver does not have of one incarnation.

    Parameters
    ----------
    incarnation : str
        Which one.
    messages : tuple of (int, bytes) or Rows
        All messages, in order; see :mod:`dasktune.trainable.contents`.
    seconds : float, default=0.0
        How long it has been running.
    occupied : bool, default=False
        Whether a cleanup that does not end holds its slot, beyond the trial's own end.
    hauls : tuple of int, default=()
        What waits to be carried between the worker and the storage, by number; the oldest first.
    """

    incarnation: str
    messages: Packed
    seconds: float = 0.0
    occupied: bool = False
    hauls: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Carriage:
    """A step of carrying something between a worker and the storage; it may be repeated.

    Parameters
    ----------
    incarnation : str
        Of the trial that wants it.
    number : int
        Of the haul.
    step : Step
        What to do; the answer is a haul, bytes or nothing.
    """

    incarnation: str
    number: int
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What every call brings back: all that the driver does not have.

    Parameters
    ----------
    news : tuple of News
        One for each incarnation that has some, in the order in which they were assigned.
    more : bool, default=False
        Whether there was too much news for one call.
    refused : tuple of (str, str), default=()
        Incarnations that cannot be run, and why.
    """

    news: tuple[News, ...]
    more: bool = False
    refused: tuple[tuple[str, str], ...] = ()


class Refused(Exception):
    """The worker could not do what it was asked; carries the worker's words."""


def seal(value: Any) -> bytes:
    """Pickle a request or a reply: our own values, which pickle by reference."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        # A milestone or storage option of the user's own making.
        return cloudpickle.dumps(value)  # type: ignore[no-any-return]


def open_reply(blob: bytes) -> Any:
    """Return what a call brought back.

    Raises
    ------
    Refused
        If the worker says that it could not.
    """
    verdict, value = pickle.loads(blob)
    if verdict == "refused":
        raise Refused(value)
    return value


def enveloped(
    method: Callable[[_Self, Any], Awaitable[Any]],
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
