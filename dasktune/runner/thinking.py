"""Who thinks about the questions of policies: a thread beside the loop, or nobody else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

__all__ = ["ThinkingAtOnce", "ThinkingThread"]

logger = logging.getLogger(__name__)


def _nobody() -> None:
    """Wake nobody."""


class ThinkingAtOnce:
    """Answers when it is asked for answers: in a simulation thinking takes no time.

    Parameters
    ----------
    wake : callable, optional
        Not called: nobody waits.
    """

    def __init__(self, wake: Callable[[], None] = _nobody) -> None:
        self._open: list[tuple[Hashable, Callable[[], Any]]] = []

    def ask(self, name: Hashable, question: Callable[[], Any]) -> None:
        """Take a question."""
        self._open.append((name, question))

    def answers(self) -> Sequence[tuple[Any, Any]]:
        """Think about all of them."""
        taken, self._open = self._open, []
        return [(name, _answer(name, question)) for name, question in taken]

    def close(self) -> None:
        """Forget the others."""
        self._open.clear()


class ThinkingThread:
    """Thinks about one question after the other in a thread, which is begun with the first.

    Parameters
    ----------
    wake : callable, optional
        Called by that thread after each answer, to wake whoever waits for it.
    """

    def __init__(self, wake: Callable[[], None] = _nobody) -> None:
        self._wake = wake
        self._questions: SimpleQueue[tuple[Hashable, Callable[[], Any]] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        # A single one: who is asked later may know what was answered before. And one that is left
        # alone at the end of the process: a pool's threads would be waited for.
        self._thread = Thread(target=self._think, name="dasktune-thinker", daemon=True)
        self._closed = False

    def ask(self, name: Hashable, question: Callable[[], Any]) -> None:
        """Take a question; returns at once."""
        self._questions.put((name, question))
        if self._thread.ident is None:
            self._thread.start()

    def answers(self) -> Sequence[tuple[Any, Any]]:
        """Return what was thought about since."""
        return [self._answers.get() for _ in range(self._answers.qsize())]

    def close(self) -> None:
        """Think about none of the others any more. Nobody waits for the one in hand."""
        self._closed = True
        self._questions.put(None)

    def _think(self) -> None:
        while (item := self._questions.get()) is not None and not self._closed:
            name, question = item
            self._answers.put((name, _answer(name, question)))
            self._wake()


def _answer(name: Hashable, question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception:
        logger.exception("question %s of the scheduler raised; its answer is None", name)
        return None
