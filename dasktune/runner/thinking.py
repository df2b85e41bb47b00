"""Who thinks about a scheduler's questions: a thread beside the loop, or nobody else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

__all__ = ["ThinkingAtOnce", "ThinkingThread"]

logger = logging.getLogger(__name__)


class ThinkingAtOnce:
    """Answers when it is asked for answers: in a simulation thinking takes no time."""

    def __init__(self) -> None:
        self._open: list[tuple[int, Callable[[], Any]]] = []

    def ask(self, number: int, question: Callable[[], Any]) -> None:
        """Take a question."""
        self._open.append((number, question))

    def answers(self) -> Sequence[tuple[int, Any]]:
        """Think about all of them."""
        taken, self._open = self._open, []
        return [(number, _answer(number, question)) for number, question in taken]

    def close(self) -> None:
        """Forget the others."""
        self._open.clear()


class ThinkingThread:
    """Thinks about one question after the other in a thread, which is begun with the first."""

    def __init__(self) -> None:
        # A single one: who is asked later may know what was answered before.
        self._pool = ThreadPoolExecutor(1, "dasktune-thinker")
        self._answers: SimpleQueue[tuple[int, Any]] = SimpleQueue()

    def ask(self, number: int, question: Callable[[], Any]) -> None:
        """Take a question; returns at once."""
        self._pool.submit(lambda: self._answers.put((number, _answer(number, question))))

    def answers(self) -> Sequence[tuple[int, Any]]:
        """Return what was thought about since."""
        return [self._answers.get() for _ in range(self._answers.qsize())]

    def close(self) -> None:
        """Think about none of the others any more. Nobody waits for the one in hand."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _answer(number: int, question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception:
        logger.exception("question %s of the scheduler raised; its answer is None", number)
        return None
