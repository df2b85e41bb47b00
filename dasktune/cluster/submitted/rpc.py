"""Remote procedure calls from clients to a driver that runs on the cluster.

Calls and answers use queues on Dask's scheduler. So a call reaches the driver on any worker, and
waits while the driver moves to another one. If the driver's worker dies after the driver has taken
a call from the queue, the call and its answer are lost, and the caller gets an error.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import cloudpickle
from distributed import Event, Queue

from dasktune.errors import ControlError

logger = logging.getLogger(__name__)

#: The exceptions of a timeout. Dask raises the second one, which is the same class as the first
#: only since Python 3.11.
_LATE: Final = (TimeoutError, asyncio.TimeoutError)

#: Largest number of messages that wait in a queue.
_MOST_WAITING: Final = 256

#: Seconds between two checks of whether the driver has ended.
_INTERVAL: Final = 1.0

#: Seconds to wait for room in a full queue.
_DEADLINE: Final = 10.0


class _Mailbox:
    """A queue of messages to one reader, with an event that is set when there are messages.

    The reader waits for the event, because Dask's scheduler logs an error if waiting for a queue
    times out.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    name : str
        A unique name.
    """

    def __init__(self, client: Any, name: str) -> None:
        self._queue = Queue(f"{name}-letters", client=client, maxsize=_MOST_WAITING)
        self._arrived = Event(f"{name}-bell", client=client)

    def post(self, content: object) -> None:
        """Put a message into the queue."""
        # If the queue stays full for that long, Dask raises a timeout.
        self._queue.put(cloudpickle.dumps(content), timeout=_DEADLINE)
        self._arrived.set()

    def receive(self, timeout_s: float) -> list[Any]:
        """Return the messages, waiting for the first one; an empty list after the timeout."""
        if not self._arrived.wait(timeout=timeout_s):
            return []
        # Cleared before the queue is read, so that a later message sets the event again. If this
        # call already reads that message, the next call finds the event set and the queue empty.
        self._arrived.clear()
        return [cloudpickle.loads(self._queue.get()) for _ in range(self._queue.qsize())]

    def close(self) -> None:
        """Make the scheduler forget the queue, if no other client uses it."""
        self._queue.close()


def call(client: Any, key: str, name: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
    """Call a command of a driver, and return its answer.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    key : str
        The key of the driver's task.
    name : str
        The name of the command.
    arguments : tuple
        The arguments of the command.
    timeout_s : float
        Seconds to wait for the answer.

    Returns
    -------
    object
        The answer.

    Raises
    ------
    ControlError
        If the driver refused the call, or has not answered.
    """
    number = uuid.uuid4().hex
    answers = _Mailbox(client, _answers(number))
    try:
        _Mailbox(client, _calls(key)).post((number, name, arguments))
        came = answers.receive(timeout_s)
    except _LATE:
        raise ControlError("too many calls wait for the driver already", "busy") from None
    finally:
        answers.close()
    if not came:
        raise ControlError(
            f"the driver has not answered within {timeout_s:g} s: it may have ended or be moving "
            "to another worker, and may still execute the call",
            "unreachable",
        )
    [(ok, value)] = came
    if not ok:
        raise value
    return value


@contextmanager
def serving_calls(client: Any, key: str, do: Callable[..., Future[Any]]) -> Iterator[None]:
    """Answer calls inside the ``with`` block.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    key : str
        The key of this task.
    do : callable
        ``do(name, *arguments)`` returns the future of the answer, or raises.
    """
    over = threading.Event()
    thread = threading.Thread(
        target=_listen, args=(client, key, do, over), name="dasktune-calls", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _listen(client: Any, key: str, do: Callable[..., Future[Any]], over: threading.Event) -> None:
    calls = _Mailbox(client, _calls(key))
    while not over.is_set():
        try:
            came = calls.receive(_INTERVAL)
        except (OSError, RuntimeError) as error:
            # The scheduler may be away for a while. The driver notices that by itself.
            logger.debug("calls cannot be received: %r", error)
            over.wait(_INTERVAL)
            continue
        for number, name, arguments in came:
            try:
                future = do(name, *arguments)
            except Exception as error:  # a call must not end the driver
                future = Future()
                future.set_exception(error)
            future.add_done_callback(partial(_send_answer, client, number))


def _send_answer(client: Any, number: str, done: Future[Any]) -> None:
    """Send an answer to the caller in another thread, so that the driver's thread does not wait."""
    if done.cancelled():
        return
    error = done.exception()
    if error is not None and not isinstance(error, ControlError):
        error = ControlError(f"the call failed: {error!r:.500}", "invalid")
    answer = (True, done.result()) if error is None else (False, error)

    def post() -> None:
        try:
            _Mailbox(client, _answers(number)).post(answer)
        except Exception:
            logger.debug("an answer could not be sent", exc_info=True)

    threading.Thread(target=post, name="dasktune-answer", daemon=True).start()


def _calls(key: str) -> str:
    return f"dasktune-calls-{key}"


def _answers(number: str) -> str:
    return f"dasktune-answer-{number}"
