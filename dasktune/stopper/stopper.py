"""The contract of a stopper: when a trial, or everything, has trained enough."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from dasktune.trial.milestone import EVERY_RESULT, Milestone

__all__ = ["NoopStopper", "Stopper"]


class Stopper(ABC):
    """Decides at each result whether its trial has had enough, and at any time whether all have.

    A stopper knows no clock: the time is told to it. It is asked once for each result.

    Examples
    --------
    >>> class Diverged(Stopper):
    ...     def __call__(self, trial_id, result):
    ...         return result["loss"] > 100
    >>> Diverged()("a_00000", {"loss": 101})
    True
    """

    @abstractmethod
    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return whether the trial must stop with this result, its last.

        Parameters
        ----------
        trial_id : str
            Whose result it is.
        result : mapping
            Flat metrics (nested names joined by ``/``) with the auto-filled fields.
        """

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return why the trial was stopped, for the journal and the user.

        Asked only after a call with the same arguments has said so; changes nothing.
        """
        return f"{type(self).__name__} said so"

    def stop_all(self) -> bool:
        """Return whether the whole experiment must end; asking changes nothing."""
        return False

    def stop_all_reason(self) -> str:
        """Return why the experiment ends; asked only after :meth:`stop_all` has said so."""
        return f"{type(self).__name__} said so"

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Return where a trial must wait until this stopper has judged; ``()`` is never.

        Asked at the start of a trial and after each decision on it. A stopper that states fewer
        milestones than every result lets results stream, and hears of those in between late.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        return EVERY_RESULT

    def on_time(self, now: float) -> None:  # noqa: B027 - an optional hook
        """Hear what time it is: before each result, and now and then while nothing happens.

        Parameters
        ----------
        now : float
            Seconds on the runner's clock. Only differences within one session mean anything.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all that it has learnt, as plain values that JSON can hold."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - no state, no work
        """Take back what :meth:`state_dict` gave."""


class NoopStopper(Stopper):
    """Never stops anything.

    Examples
    --------
    >>> NoopStopper()("a_00000", {"loss": 0.0})
    False
    """

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Never."""
        return ()

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Go on."""
        return False
