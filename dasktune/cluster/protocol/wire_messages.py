"""The messages between the driver and its workers: requests, replies and notifications.

Requests and replies of actor calls travel as bytes that dasktune pickles itself. So what cannot be
pickled or unpickled, also an exception, reaches the other side as text and breaks no connection.

Notifications travel as Dask events through the scheduler, so they are encoded as plain values:
Dask sends them with msgpack, and the scheduler may lack dasktune.
"""

from __future__ import annotations

import functools
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import cloudpickle

from dasktune.trainable.checkpoints.relay import Step
from dasktune.trainable.reporting.encoding import Packed
from dasktune.trainable.reporting.trial_messages import Answer
from dasktune.trainable.spec import TrialSpec

_Self = TypeVar("_Self")

#: The operation of a worker that calls a method of an actor; see :func:`pickled_call`. It answers
#: None if there is no such actor. Dask's own operation sends the result in frames of its own, with
#: a header, which takes the driver a quarter longer.
ACTOR_CALL: Final = "dasktune-call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A trial to run on an actor.

    Parameters
    ----------
    incarnation : str
        The key of the trial's run, unique on the cluster.
    actor : str
        The key of the actor. An actor that is running a trial queues the new one.
    spec : TrialSpec
        The trial.
    config : bytes
        The pickled configuration. The trial's own thread unpickles it, as that may run user code.
    memory_key : str, default=""
        The key of the trial's checkpoint in the worker's memory; empty if it is in the storage.
    """

    incarnation: str
    actor: str
    spec: TrialSpec
    config: bytes = field(repr=False)
    memory_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialUpdate:
    """The driver's news for one incarnation of a trial.

    Parameters
    ----------
    incarnation : str
        The key of the run. The worker ignores runs that it does not have.
    durable_seq : int
        Every message up to this number is in the journal.
    received_seq : int
        Every message up to this number has reached the driver.
    answers : tuple of Answer, default=()
        The experiment's answers. The trial ignores one that arrives late or twice.
    interrupt : bool, default=False
        Whether to interrupt user code that has not obeyed its stop order.
    """

    incarnation: str
    durable_seq: int
    received_seq: int
    answers: tuple[Answer, ...] = ()
    interrupt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The argument of a poll: all that the driver has for one worker.

    Parameters
    ----------
    number : int
        Rises from poll to poll. A poll that is repeated because no reply came keeps its number.
    batch_window : float, default=0.0
        Seconds for which the worker collects results before it notifies the driver.
    assignments : tuple of Assignment, default=()
        Trials to run.
    updates : tuple of TrialUpdate, default=()
        News for the trials that run on the worker.
    ended : tuple of str, default=()
        Incarnations whose last message has reached the driver; the worker forgets them.
    """

    number: int
    batch_window: float = 0.0
    assignments: tuple[Assignment, ...] = ()
    updates: tuple[TrialUpdate, ...] = ()
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """The part of a reply about one incarnation.

    Parameters
    ----------
    incarnation : str
        The key of the run.
    messages : tuple of (int, bytes) or Rows
        The messages that the driver lacks, in order; see
        :mod:`dasktune.trainable.reporting.encoding`.
    seconds : float, default=0.0
        Seconds for which the trial has been running.
    occupied : bool, default=False
        Whether the trial has ended, but a cleanup that does not return still occupies its actor.
    transfers : tuple of int, default=()
        Numbers of the transfers that wait for the driver, the oldest first.
    """

    incarnation: str
    messages: Packed
    seconds: float = 0.0
    occupied: bool = False
    transfers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCall:
    """A step of a transfer between a worker and the storage. It may be repeated.

    Parameters
    ----------
    incarnation : str
        The key of the trial's run.
    number : int
        The number of the transfer.
    step : Step
        The step. Its result is a transfer, bytes or None.
    """

    incarnation: str
    number: int
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of a poll: the news of one worker's trials that the driver does not have.

    Parameters
    ----------
    reports : tuple of TrialReport
        One for each incarnation with something to report, in the order of assignment.
    more : bool, default=False
        Whether the reports did not fit into one reply, so that the driver should poll again.
    refused : tuple of (str, str), default=()
        Incarnations that the worker cannot run, each with the reason.
    """

    reports: tuple[TrialReport, ...]
    more: bool = False
    refused: tuple[tuple[str, str], ...] = ()


class ReportsReady(NamedTuple):
    """Notification: a worker has reports, so the driver should poll it.

    Parameters
    ----------
    worker : str
        The worker's address.
    """

    worker: str

    def encode(self) -> dict[str, Any]:
        """Return the notification as plain values."""
        return {"kind": "reports-ready", **self._asdict()}


class LeaseGranted(NamedTuple):
    """Notification: a worker holds the resources of a lease.

    Parameters
    ----------
    lease : str
        The key of the lease.
    devices : sequence of sequence of str
        The GPUs of each share of the lease's claim.
    """

    lease: str
    devices: list[tuple[str, ...]]

    def encode(self) -> dict[str, Any]:
        """Return the notification as plain values."""
        return {"kind": "lease-granted", **self._asdict()}


class ShareChanged(NamedTuple):
    """Notification of the scheduler: what the experiment may hold has changed, or has become free.

    The scheduler's plugin sends it as plain values, because the scheduler may lack dasktune.
    """

    def encode(self) -> dict[str, Any]:
        """Return the notification as plain values."""
        return {"kind": "share-changed"}


class WorkerNoticed(NamedTuple):
    """Notification: a worker was given notice of its end, so it accepts no trials.

    Parameters
    ----------
    worker : str
        The worker's address.
    seconds : float
        Seconds until its end.
    reason : str
        Why it ends.
    """

    worker: str
    seconds: float
    reason: str

    def encode(self) -> dict[str, Any]:
        """Return the notification as plain values."""
        return {"kind": "worker-noticed", **self._asdict()}


Notification = ReportsReady | LeaseGranted | ShareChanged | WorkerNoticed

_KINDS: dict[str, type[ReportsReady] | type[LeaseGranted] | type[ShareChanged] | type[WorkerNoticed]] = {
    "reports-ready": ReportsReady,
    "lease-granted": LeaseGranted,
    "share-changed": ShareChanged,
    "worker-noticed": WorkerNoticed,
}


def decode_notification(encoded: Mapping[str, Any]) -> Notification:
    """Return the notification that a worker encoded.

    Parameters
    ----------
    encoded : mapping
        The result of the notification's method ``encode``, as Dask's event carried it.

    Examples
    --------
    >>> decode_notification(ReportsReady("tcp://10.0.0.1:4000").encode())
    ReportsReady(worker='tcp://10.0.0.1:4000')
    >>> event = {**LeaseGranted("lease-1", []).encode(), "worker": "tcp://10.0.0.1:4000"}
    >>> decode_notification(event)
    LeaseGranted(lease='lease-1', devices=[])
    """
    kind = _KINDS[encoded["kind"]]
    # Dask adds the worker's address to the events that a worker logs.
    return kind(**{name: encoded[name] for name in kind._fields})


class Refused(Exception):
    """The worker raised an exception in the call; carries the worker's traceback as text."""


def dumps(value: Any) -> bytes:
    """Pickle a request or a reply. Its classes are dasktune's own, which pickle by reference."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        # A milestone or a storage option may hold an object of a class in the user's script.
        return cloudpickle.dumps(value)  # type: ignore[no-any-return]


def open_reply(blob: bytes) -> Any:
    """Return the result of a call to :func:`pickled_call`.

    Raises
    ------
    Refused
        If the call raised an exception on the worker.
    """
    outcome, value = pickle.loads(blob)
    if outcome == "refused":
        raise Refused(value)
    return value


def pickled_call(
    method: Callable[[_Self, Any], Awaitable[Any]],
) -> Callable[[_Self, bytes], Awaitable[bytes]]:
    """Wrap a coroutine method so that it takes and returns pickled bytes, and never raises."""

    @functools.wraps(method)
    async def wrapper(self: _Self, blob: bytes) -> bytes:
        try:
            return dumps(("ok", await method(self, pickle.loads(blob))))
        except BaseException as error:
            # BaseException: to Dask's client a CancelledError would look like a lost worker.
            text = "".join(traceback.format_exception(error))
            return dumps(("refused", text))

    return wrapper
