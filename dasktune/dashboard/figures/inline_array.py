"""`InlineArray`: a short array that is sent inside its message, not as a message of its own."""

from __future__ import annotations

import base64
import gzip
import sys
from typing import Any

import numpy as np
from bokeh.core.serialization import NDArrayRep, Serializer
from numpy.typing import ArrayLike


class InlineArray(np.ndarray[Any, Any]):
    """An array of numbers that Bokeh sends inside the message with its model.

    Bokeh sends each other array as two messages of the websocket. A figure of many curves has two
    arrays for each, and the messages cost server and browser more than the numbers.

    Examples
    --------
    >>> Serializer().serialize([InlineArray.of([1.0, 2.0])]).buffers
    []
    >>> len(Serializer().serialize([np.array([1.0, 2.0])]).buffers)
    1
    """

    @classmethod
    def of(cls, values: ArrayLike) -> InlineArray:
        """Return values in single precision, which suffices for a screen, as such an array.

        Parameters
        ----------
        values : array_like
            The values.
        """
        with np.errstate(over="ignore"):
            return np.asarray(values, dtype=np.float32).view(cls)


def _encode(array: InlineArray, serializer: Serializer) -> NDArrayRep:
    # A browser decompresses all such data. Without compression that is only a copy.
    packed = gzip.compress(array.tobytes(), compresslevel=0, mtime=1)
    return {
        "type": "ndarray",
        "array": {"type": "bytes", "data": base64.b64encode(packed).decode()},
        "shape": list(array.shape),
        "dtype": array.dtype.name,
        "order": sys.byteorder,
    }


Serializer.register(InlineArray, _encode)
