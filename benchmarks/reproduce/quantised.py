"""Curves in few bytes: the logarithm of a loss in steps of 0.001, as differences along the curve.

A loss from `LOWEST` to 1e22 is stored with a relative error of at most 0.05 %. That is as exact as
float16, whose smallest losses have fewer digits. A lower loss is stored as `LOWEST`, and one that
is not finite as infinity. Shares of wrong rows are stored as numbers of rows, without an error.

Neighbours on a curve are nearly equal. Their differences are small numbers, which the compression
of an npz file shortens to less than a byte each, once the low and the high bytes are apart.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOWEST", "STEP", "loss_codes", "losses", "pack", "unpack"]

#: The step of the natural logarithm.
STEP = 0.001

LOWEST = 1e-6

#: The code of a loss that is not finite.
_INFINITE = 2**16 - 1


def loss_codes(loss: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Return the codes of losses; NaN counts as infinity."""
    finite = np.isfinite(loss)
    logarithms = np.log(np.maximum(np.where(finite, loss, 1.0), LOWEST))
    codes = np.rint((logarithms - log(LOWEST)) / STEP)
    return np.where(finite, np.minimum(codes, _INFINITE - 1), _INFINITE).astype(np.uint16)


def losses(codes: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Return the losses of codes."""
    values = np.exp(codes * STEP + log(LOWEST))
    return np.where(codes == _INFINITE, np.inf, values)


def pack(codes: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Return bytes that compress well, of shape (2, *codes.shape).

    Parameters
    ----------
    codes : ndarray
        Curves along the last axis.
    """
    start = np.zeros_like(codes[..., :1])
    # Differences modulo 2^16, so none is too large.
    signed = np.diff(codes, axis=-1, prepend=start).view(np.int16)
    # 0, -1, 1, -2, ... become 0, 1, 2, 3, ...: the high byte of a small difference is 0.
    folded = ((signed << 1) ^ (signed >> 15)).view(np.uint16)
    return np.stack([folded & 0xFF, folded >> 8]).astype(np.uint8)


def unpack(packed: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return the codes of packed curves."""
    low, high = packed.astype(np.uint16)
    folded = low | (high << 8)
    differences = (folded >> 1) ^ -(folded & 1)
    return np.cumsum(differences, axis=-1, dtype=np.uint16)
