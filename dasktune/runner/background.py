"""Background runners: compute the policies' answers in a thread, or at once in the caller's.

`BackgroundThread` has one thread and two queues. The runner's loop is the only caller of
:meth:`submit`, :meth:`answers` and :meth:`close`, so each queue has one producer and one consumer:

- An answer is put before the loop is woken, so the loop finds it when it wakes up. If the loop is
  not waiting, the wake-up ends its next wait.
- After :meth:`close`, the current question may still end. Its answer stays in the queue, and waking
  a loop that has ended has no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

logger = logging.getLogger(__name__)


def _noop() -> None:
    """Do nothing when woken."""


class RunInline:
    """Computes each answer when it is requested, as in a simulation, where this takes no time.

    Parameters
    ----------
    wake : callable, optional
        Never called, because no loop waits for an answer.
    """

    def __init__(self, wake: Callable[[], None] = _noop) -> None:
        self._questions: list[tuple[Hashable, Callable[[], Any]]] = []

    def submit(self, name: Hashable, question: Callable[[], Any]) -> None:
        """Queue a question."""
        self._questions.append((name, question))

    def answers(self) -> Sequence[tuple[Any, Any]]:
        """Answer all queued questions."""
        questions, self._questions = self._questions, []
        return [(name, _answer(name, question)) for name, question in questions]

    def close(self) -> None:
        """Discard the queued questions."""
        self._questions.clear()


class BackgroundThread:
    """Answers one question after the other in a thread, which starts with the first question.

    Parameters
    ----------
    wake : callable, optional
        Called by the thread after each answer, to wake the loop.
    """

    def __init__(self, wake: Callable[[], None] = _noop) -> None:
        self._wake = wake
        self._questions: SimpleQueue[tuple[Hashable, Callable[[], Any]] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        # A single thread, because a later question may depend on the effects of an earlier one. A
        # daemon, because a question may take long and the process would wait for a pool's threads.
        self._thread = Thread(target=self._run, name="dasktune-background", daemon=True)
        self._closed = False

    def submit(self, name: Hashable, question: Callable[[], Any]) -> None:
        """Queue a question; returns at once."""
        self._questions.put((name, question))
        if self._thread.ident is None:
            self._thread.start()

    def answers(self) -> Sequence[tuple[Any, Any]]:
        """Return the answers since the last call."""
        # Does not block: only this thread takes answers, so there are at least as many.
        return [self._answers.get() for _ in range(self._answers.qsize())]

    def close(self) -> None:
        """Discard the questions that have not begun; does not wait for the current one."""
        self._closed = True
        self._questions.put(None)

    def _run(self) -> None:
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
