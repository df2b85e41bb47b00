"""Asks workers of which the scheduler has heard nothing for a while whether they are there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from math import inf
from typing import Any, Final

from dasktune.cluster.roll_call import call_roll

__all__ = ["Pings"]

logger = logging.getLogger(__name__)

#: Seconds for the first answer, and for the others after that.
_FIRST: Final = 5.0
_REST: Final = 1.0


class Pings:
    """Asks workers, one question at a time, and notes when they answered.

    All methods are for the client's event loop.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._answered: dict[str, float] = {}
        self._asking: asyncio.Task[None] | None = None

    def ask(self, addresses: Sequence[str]) -> None:
        """Ask the workers at these addresses, unless answers are still awaited."""
        if addresses and self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask(addresses))

    def answered(self, address: str) -> float:
        """Return when a worker last answered, on the loop's clock."""
        return self._answered.get(address, -inf)

    def close(self) -> None:
        """Wait for no answer any more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, addresses: Sequence[str]) -> None:
        # Not when the answers came: one may have been asked for long after another.
        asked_at = asyncio.get_running_loop().time()
        try:
            there = await call_roll(self._client, addresses, first_s=_FIRST, rest_s=_REST)
            # Of the others only what they said last may have been forgotten, which is old.
            self._answered = dict.fromkeys(there, asked_at)
        except Exception as error:  # whatever the scheduler or the connection has to say
            logger.info("nobody could be asked: %r", error)
        finally:
            self._asking = None
