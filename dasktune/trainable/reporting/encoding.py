"""Encodes a worker's messages for the driver.

Each message is pickled alone, so one that cannot be unpickled does not affect the others. The
exception is the most frequent message: a streamed result of plain values stays a dict. Consecutive
results with equal names are sent as a table, which takes a third of the time and of the bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import Any, Final

import cloudpickle

from dasktune.trainable.reporting.trial_messages import Message, Reported

#: A message's pickle, or the metrics of a streamed result.
Content = bytes | dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResultBatch:
    """Streamed results with consecutive numbers and the same metric names.

    Parameters
    ----------
    first : int
        Number of the first result.
    names : tuple of str
        The metric names.
    rows : list of tuple
        The values of each result, in the order of `names`.
    """

    first: int
    names: tuple[str, ...]
    rows: list[tuple[Any, ...]]


#: Numbered messages as they are sent.
Packed = tuple[tuple[int, bytes] | ResultBatch, ...]

_PLAIN: Final = frozenset({bool, float, int, str, type(None)})

#: Largest length of a string that counts as plain, in characters.
_LONGEST: Final = 64
#: Approximate size of a plain value with its name, in bytes.
_BYTES_EACH: Final = 64


def encode(message: Message) -> Content:
    """Return a streamed result of plain values as a dict, any other message as its pickle.

    Parameters
    ----------
    message : Message
        The message, which must not change any more.

    Examples
    --------
    >>> encode(Reported(seq=3, metrics={"loss": 0.5}))
    {'loss': 0.5}
    """
    if isinstance(message, Reported) and not message.awaits and message.checkpoint is None:
        metrics = message.metrics
        if type(metrics) is dict and _is_plain(metrics):
            return metrics
    try:
        return pickle.dumps(message)
    except Exception:
        # cloudpickle is only the fallback: for plain data, as in nearly all messages, it is slower.
        blob: bytes = cloudpickle.dumps(message)
        return blob


def decode(seq: int, content: Content) -> Message:
    """Return the decoded message.

    Parameters
    ----------
    seq : int
        The number of the message.
    content : bytes or dict
        The result of :func:`encode`.

    Raises
    ------
    Exception
        Any exception that unpickling raises.
    """
    if isinstance(content, dict):
        return Reported(seq=seq, metrics=content)
    message: Message = pickle.loads(content)
    return message


def pack(contents: Iterable[tuple[int, Content]]) -> Packed:
    """Return numbered messages as they are sent.

    Parameters
    ----------
    contents : iterable of (int, bytes or dict)
        Encoded messages with consecutive numbers.

    Examples
    --------
    >>> pack([(1, b"started"), (2, {"loss": 0.5}), (3, {"loss": 0.25})])
    ((1, b'started'), ResultBatch(first=2, names=('loss',), rows=[(0.5,), (0.25,)]))
    """
    packed: list[tuple[int, bytes] | ResultBatch] = []
    open_rows: ResultBatch | None = None
    for seq, content in contents:
        if isinstance(content, bytes):
            packed.append((seq, content))
            open_rows = None
            continue
        names = tuple(content)
        if open_rows is None or open_rows.names != names:
            open_rows = ResultBatch(seq, names, [])
            packed.append(open_rows)
        open_rows.rows.append(tuple(content.values()))
    return tuple(packed)


def unpack(packed: Packed) -> Iterator[tuple[int, Content]]:
    """Yield the messages that were given to :func:`pack`, with interned metric names.

    Examples
    --------
    >>> list(unpack((ResultBatch(2, ("loss",), [(0.5,), (0.25,)]),)))
    [(2, {'loss': 0.5}), (3, {'loss': 0.25})]
    """
    for part in packed:
        if isinstance(part, ResultBatch):
            names = tuple(map(intern, part.names))
            for seq, row in enumerate(part.rows, part.first):
                yield seq, dict(zip(names, row, strict=True))
        else:
            yield part


def size_of(content: Content) -> int:
    """Return the approximate size of a message in bytes."""
    return len(content) if isinstance(content, bytes) else _BYTES_EACH * len(content)


def size_of_packed(packed: Packed) -> int:
    """Return the approximate size of packed messages in bytes."""
    return sum(
        _BYTES_EACH * len(part.names) * len(part.rows) if isinstance(part, ResultBatch) else len(part[1])
        for part in packed
    )


def _is_plain(metrics: dict[str, Any]) -> bool:
    values = metrics.values()
    return (
        _PLAIN.issuperset(map(type, values))
        and all(type(name) is str for name in metrics)
        and all(len(value) <= _LONGEST for value in values if type(value) is str)
    )
