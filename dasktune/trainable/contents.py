"""How a worker's messages travel to the driver.

Each is pickled on its own, so that one that cannot be read costs only itself, except for what is by
far the most: a result that streams and has none but plain values can always be read, and is left as
it is. Those that follow each other travel as rows below their names, in a third of the time and of
the bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import Any, Final

import cloudpickle

from dasktune.trainable.messages import Message, Reported

__all__ = [
    "Content",
    "Packed",
    "Rows",
    "content_of",
    "message_of",
    "pack",
    "size_of",
    "unpack",
    "weight_of",
]

#: A message's pickle, or the metrics of a streamed result.
Content = bytes | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """Streamed results whose numbers follow each other and that have the same names.

    Parameters
    ----------
    first : int
        Number of the first.
    names : tuple of str
        What they measure.
    rows : list of tuple
        The values of each, in the order of `names`.
    """

    first: int
    names: tuple[str, ...]
    rows: list[tuple[Any, ...]]


#: How numbered contents travel.
Packed = tuple[tuple[int, bytes] | Rows, ...]

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


def pack(contents: Iterable[tuple[int, Content]]) -> Packed:
    """Return numbered contents as they travel.

    Parameters
    ----------
    contents : iterable of (int, bytes or dict)
        With numbers that follow each other.

    Examples
    --------
    >>> pack([(1, b"started"), (2, {"loss": 0.5}), (3, {"loss": 0.25})])
    ((1, b'started'), Rows(first=2, names=('loss',), rows=[(0.5,), (0.25,)]))
    """
    packed: list[tuple[int, bytes] | Rows] = []
    open_rows: Rows | None = None
    for seq, content in contents:
        if isinstance(content, bytes):
            packed.append((seq, content))
            open_rows = None
            continue
        names = tuple(content)
        if open_rows is None or open_rows.names != names:
            open_rows = Rows(seq, names, [])
            packed.append(open_rows)
        open_rows.rows.append(tuple(content.values()))
    return tuple(packed)


def unpack(packed: Packed) -> Iterator[tuple[int, Content]]:
    """Yield what :func:`pack` was given. The names are interned: all results share them.

    Examples
    --------
    >>> list(unpack((Rows(2, ("loss",), [(0.5,), (0.25,)]),)))
    [(2, {'loss': 0.5}), (3, {'loss': 0.25})]
    """
    for part in packed:
        if isinstance(part, Rows):
            names = tuple(map(intern, part.names))
            for seq, row in enumerate(part.rows, part.first):
                yield seq, dict(zip(names, row, strict=True))
        else:
            yield part


def size_of(content: Content) -> int:
    """Return about how many bytes it is."""
    return len(content) if isinstance(content, bytes) else _BYTES_EACH * len(content)


def weight_of(packed: Packed) -> int:
    """Return about how many bytes they are."""
    return sum(
        _BYTES_EACH * len(part.names) * len(part.rows) if isinstance(part, Rows) else len(part[1])
        for part in packed
    )


def _is_plain(metrics: dict[str, Any]) -> bool:
    values = metrics.values()
    return (
        _PLAIN.issuperset(map(type, values))
        and all(type(name) is str for name in metrics)
        and all(len(value) <= _LONGEST for value in values if type(value) is str)
    )
