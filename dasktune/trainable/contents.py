"""How a worker's messages travel to the driver.

Each is pickled on its own, so that one that cannot be read costs only itself, except for what is by
far the most: a result that streams and has none but plain values can always be read, and is left as
it is. Many of them in one pickle take a third of the time and of the bytes, as they share their
names.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

import cloudpickle

from dasktune.trainable.messages import Message, Reported

__all__ = ["Content", "content_of", "message_of", "size_of"]

#: A message's pickle, or the metrics of a streamed result.
Content = bytes | dict[str, Any]

_PLAIN: Final = frozenset({bool, float, int, str, type(None)})

#: Characters of the longest string that is plain.
_LONGEST: Final = 64
#: About what a plain value and its name weigh.
_BYTES_EACH: Final = 64


def content_of(message: Message) -> Content:
    """Return what is to travel.

    Parameters
    ----------
    message : Message
        Any; nobody may change it any more.

    Examples
    --------
    >>> content_of(Reported(seq=3, metrics={"loss": 0.5}))
    {'loss': 0.5}
    """
    if isinstance(message, Reported) and not message.awaits and message.checkpoint is None:
        metrics = message.metrics
        if type(metrics) is dict and _is_plain(metrics):
            return metrics
    try:
        return pickle.dumps(message)
    except Exception:
        # Nearly all are plain data, on which cloudpickle spends far more time.
        blob: bytes = cloudpickle.dumps(message)
        return blob


def message_of(seq: int, content: Content) -> Message:
    """Return the message again.

    Parameters
    ----------
    seq : int
        Its number.
    content : bytes or dict
        Of :func:`content_of`.

    Raises
    ------
    Exception
        Whatever its pickle raises here.
    """
    if isinstance(content, dict):
        return Reported(seq=seq, metrics=content)
    message: Message = pickle.loads(content)
    return message


def size_of(content: Content) -> int:
    """Return about how many bytes it is."""
    return len(content) if isinstance(content, bytes) else _BYTES_EACH * len(content)


def _is_plain(metrics: dict[str, Any]) -> bool:
    values = metrics.values()
    return (
        _PLAIN.issuperset(map(type, values))
        and all(type(name) is str for name in metrics)
        and all(len(value) <= _LONGEST for value in values if type(value) is str)
    )
