"""Gives slow workers more time to start a trial, and lets fewer trials start at a time.

A worker that answers late is not broken: it may share its machine with a hundred others that start
trials at the same moment. If each missed deadline counted as a failure, the experiment would end
although every worker would be ready a little later. And if all starts were repeated at once, with
the same deadline, they would miss it again.

Everything here runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Final

logger = logging.getLogger(__name__)

#: Largest factor of a worker's deadlines. More time does not help a worker that misses them even
#: so: a task may occupy its only thread.
_LONGEST: Final = 8.0

#: Seconds for which such a worker gets no trial: at first, and at most.
_FIRST_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 600.0

#: Smallest number of starts that may run at a time. It is more than one, so that a few workers that
#: never answer do not hold up all others.
_FEWEST: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """An attempt to start a trial on a worker.

    Parameters
    ----------
    address : str
        The address of the worker.
    factor : float
        By how much its usual deadlines are multiplied.
    begun_at : float
        When the attempt began, on the pacer's clock.
    """

    address: str
    factor: float
    begun_at: float


class StartPacer:
    """Adapts deadlines and the number of concurrent starts to how quickly the workers answer.

    A worker that has missed a deadline gets twice as long the next time, up to eight times as long.
    The number of concurrent starts is unlimited at first. It is halved when a deadline was missed,
    and grows by one with each start that succeeds, as the congestion window of TCP does.

    Parameters
    ----------
    usual_s : float
        Seconds in which a worker usually starts a trial. A slower start does not count in the
        number of concurrent starts any longer, since it may never end.
    timer : callable, default=time.monotonic
        Returns seconds on any monotonic clock.

    Notes
    -----
    Many deadlines are missed at the same time if many starts were made at the same time. They show
    one congestion and not many, so the limit is halved only by an attempt that began after it was
    halved before.
    """

    def __init__(self, usual_s: float, *, timer: Callable[[], float] = time.monotonic) -> None:
        self._usual_s = usual_s
        self._timer = timer
        #: The factor of each worker that has missed a deadline.
        self._factors: dict[str, float] = {}
        #: The last pause of each worker that has missed the longest deadline, and when it began.
        self._pauses: dict[str, tuple[float, float]] = {}
        #: When a warning last said that a worker does not grant resources.
        self._warned_at: dict[str, float] = {}
        #: How many starts may run at a time.
        self.limit = inf
        self._halved_at = -inf
        #: Starts that count, and all that have not ended.
        self._counted = self._under_way = 0
        #: Starts that wait for their turn, the first one first.
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[StartAttempt]:
        """Wait until a start may begin; the start is what runs inside the ``async with`` block.

        Parameters
        ----------
        address : str
            The address of the worker.
        """
        await self._wait_for_turn()
        self._under_way += 1
        counts = True

        def stop_counting() -> None:
            nonlocal counts
            if counts:
                counts = False
                self._counted -= 1
                self._admit()

        timer = asyncio.get_running_loop().call_later(self._usual_s, stop_counting)
        try:
            yield StartAttempt(address=address, factor=self.factor(address), begun_at=self._timer())
        finally:
            timer.cancel()
            self._under_way -= 1
            stop_counting()

    def factor(self, address: str) -> float:
        """Return the factor of a worker's deadlines."""
        return self._factors.get(address, 1.0)

    def on_missed(self, attempt: StartAttempt, address: str, *, pauses: bool = True) -> float:
        """Note that a deadline was missed, and return for how long the worker should get no trial.

        Parameters
        ----------
        attempt : StartAttempt
            The attempt.
        address : str
            The worker that was late. It is another one if it did not grant the resources of a
            further bundle.
        pauses : bool, default=True
            Whether the worker gets a pause after its longest deadline. A lease waits in Dask's
            queue for resources that another client holds, so a pause would only lose its place.

        Returns
        -------
        float
            Seconds; 0 while a longer deadline may help.
        """
        # Starts on one worker at the same time count once, as they had the same deadline.
        factor = attempt.factor if address == attempt.address else self.factor(address)
        self._factors[address] = max(self.factor(address), min(2 * factor, _LONGEST))
        if attempt.begun_at >= self._halved_at:
            self._halved_at = self._timer()
            self.limit = max(_FEWEST, min(self.limit, self._under_way) // 2)
            if factor < _LONGEST:
                logger.warning(
                    "worker %s is slow to start a trial: it gets up to %g times as long now, and at most "
                    "%d trials start at a time. Its machine may have too few CPUs for its workers",
                    address,
                    self._factors[address],
                    self.limit,
                )
        if factor < _LONGEST:
            return 0.0
        if not pauses:
            self._warn_of_contention(address)
            return 0.0
        return self._pause(attempt, address)

    def _warn_of_contention(self, address: str) -> None:
        now = self._timer()
        if now - self._warned_at.get(address, -inf) >= _LONGEST_PAUSE:
            self._warned_at[address] = now
            logger.warning(
                "worker %s does not grant the resources of a trial, although it had %g times as long as "
                "usual: tasks of other clients, or a thread that does not end, may occupy it. The trial "
                "starts on the next worker that has room",
                address,
                _LONGEST,
            )

    def _pause(self, attempt: StartAttempt, address: str) -> float:
        """Return the pause of a worker, twice as long as its last one.

        Attempts that began before the last pause have missed the same deadline and count once.
        """
        seconds, since = self._pauses.get(address, (0.0, -inf))
        if attempt.begun_at >= since:
            seconds = min(max(_FIRST_PAUSE, 2 * seconds), _LONGEST_PAUSE)
            self._pauses[address] = seconds, self._timer()
            logger.warning(
                "worker %s answers, but cannot start a trial, although it had %g times as long as usual: a "
                "task of another client, or a thread that does not end, may occupy it. Trials start on "
                "other workers; this one gets none for %.0f s",
                address,
                _LONGEST,
                seconds,
            )
        return seconds

    def rest_of_pause(self, address: str) -> float:
        """Return for how many seconds a worker should get no trial."""
        seconds, since = self._pauses.get(address, (0.0, -inf))
        return max(0.0, since + seconds - self._timer())

    def on_started(self, attempt: StartAttempt) -> None:
        """Note that a start was successful."""
        if self._timer() - attempt.begun_at < self._usual_s / 2:
            # It is quick again. A worker that needed long keeps its long deadline.
            self._factors.pop(attempt.address, None)
        self._pauses.pop(attempt.address, None)
        self.limit += 1
        self._admit()

    def forget_worker(self, address: str | None) -> None:
        """Forget a worker that was lost, or all workers if `address` is None."""
        for one in (self._factors, self._pauses, self._warned_at):
            if address is None:
                one.clear()
            else:
                one.pop(address, None)

    async def _wait_for_turn(self) -> None:
        if self._counted < self.limit and not self._waiting:
            self._counted += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # The trial was stopped or its worker lost. If its turn came in the same pass of the
            # loop, the next start takes it.
            if turn.done() and not turn.cancelled():
                self._counted -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        """Admit the starts that wait, in their order, while the limit allows."""
        while self._waiting and self._counted < self.limit:
            turn = self._waiting.popleft()
            # A start that was cancelled while it waited is passed over.
            if not turn.done():
                self._counted += 1
                turn.set_result(None)
