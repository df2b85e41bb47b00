"""How long to stay away from what somebody else holds."""

from __future__ import annotations

from random import Random
from typing import Final

__all__ = ["Backoff"]

#: Seconds to stay away at first, and at most.
_FIRST: Final = 0.5
_LONGEST: Final = 15.0


class Backoff:
    """Waits that grow, and that no two drivers share.

    Parameters
    ----------
    seed : str
        Unique to the experiment, so that its waits are its own and can be repeated.

    Examples
    --------
    >>> Backoff("one").next() == Backoff("one").next() != Backoff("other").next()
    True
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)
        self._longest = _FIRST

    def next(self) -> float:
        """Return the next wait in seconds: up to twice as long as the last one."""
        longest, self._longest = self._longest, min(2 * self._longest, _LONGEST)
        return self._random.uniform(longest / 2, longest)

    def reset(self) -> None:
        """Begin with short waits again."""
        self._longest = _FIRST
