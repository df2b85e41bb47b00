"""Calls from clients to a driver that lives on the cluster, and its answers.

Both go through queues that Dask's scheduler keeps, so that a call finds the driver on whichever
worker it is, and waits where it is on its way to another one. One that the driver had taken when
its worker died is lost, and so is its answer: whoever waits for that is told so.
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

__all__ = ["answering", "call"]

logger = logging.getLogger(__name__)

#: Dask raises the second, which is the first only since Python 3.11.
_LATE: Final = (TimeoutError, asyncio.TimeoutError)

#: Calls that may wait at a time.
_MOST_WAITING: Final = 256

#: Seconds in which a driver that has ended stops to listen.
_INTERVAL: Final = 1.0

#: Seconds for a letter to find room.
_DEADLINE: Final = 10.0


class _Letters:
    """What is on its way to one reader, whom a bell tells of it.

    Dask's scheduler logs an error where a queue is waited at in vain; at an event it does not.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    name : str
        Nobody else's.
    """

    def __init__(self, client: Any, name: str) -> None:
        self._queue = Queue(f"{name}-letters", client=client, maxsize=_MOST_WAITING)
        self._bell = Event(f"{name}-bell", client=client)

    def post(self, content: object) -> None:
        """Send something."""
        # Where too many wait this waits, too, and Dask raises.
        self._queue.put(cloudpickle.dumps(content), timeout=_DEADLINE)
        self._bell.set()

    def receive(self, timeout_s: float) -> list[Any]:
        """Return what has come, waiting for the first; nothing after the time."""
        if not self._bell.wait(timeout=timeout_s):
            return []
        # Whoever posts from here on rings again.
        self._bell.clear()
        return [cloudpickle.loads(self._queue.get()) for _ in range(self._queue.qsize())]

    def close(self) -> None:
        """Let the scheduler forget it, if nobody else has it."""
        self._queue.close()


def call(client: Any, key: str, name: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
    """Have a driver do something, and return what came of it.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    key : str
        The driver's task.
    name : str
        What it is to do.
    arguments : tuple
        With what.
    timeout_s : float
        Seconds for which the answer is waited for.

    Returns
    -------
    object
        The answer.

    Raises
    ------
    ControlError
        If it was refused, or there is no answer.
    """
    number = uuid.uuid4().hex
    answers = _Letters(client, _answers(number))
    try:
        _Letters(client, _calls(key)).post((number, name, arguments))
        came = answers.receive(timeout_s)
    except _LATE:
        raise ControlError("too many calls wait for the driver already", "busy") from None
    finally:
        answers.close()
    if not came:
        raise ControlError(
            f"the driver has not answered within {timeout_s:g} s: it may have ended, or be on its "
            f"way to another worker, and may do it yet",
            "unreachable",
        )
    [(ok, value)] = came
    if not ok:
        raise value
    return value


@contextmanager
def answering(client: Any, key: str, do: Callable[..., Future[Any]]) -> Iterator[None]:
    """Answer calls for as long as the context lasts.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    key : str
        The task that this is.
    do : callable
        ``do(name, *arguments)`` gives the future of what was asked for, or raises.
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
    calls = _Letters(client, _calls(key))
    while not over.is_set():
        try:
            came = calls.receive(_INTERVAL)
        except (OSError, RuntimeError) as error:
            # The scheduler may be away for a while; a driver without it has other sorrows.
            logger.debug("cannot hear calls: %r", error)
            over.wait(_INTERVAL)
            continue
        for number, name, arguments in came:
            try:
                future = do(name, *arguments)
            except Exception as error:  # whatever was asked, the driver goes on
                future = Future()
                future.set_exception(error)
            future.add_done_callback(partial(_leave, client, number))


def _leave(client: Any, number: str, done: Future[Any]) -> None:
    """Leave an answer where it is waited for; not in the driver's thread, which has no time."""
    if done.cancelled():
        return
    error = done.exception()
    if error is not None and not isinstance(error, ControlError):
        error = ControlError(f"it could not be done: {error!r:.500}", "invalid")
    answer = (True, done.result()) if error is None else (False, error)

    def post() -> None:
        try:
            _Letters(client, _answers(number)).post(answer)
        except Exception:
            logger.debug("an answer could not be left", exc_info=True)

    threading.Thread(target=post, name="dasktune-answer", daemon=True).start()


def _calls(key: str) -> str:
    return f"dasktune-calls-{key}"


def _answers(number: str) -> str:
    return f"dasktune-answer-{number}"
