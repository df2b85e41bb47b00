"""The interface of stoppers, which users subclass for their own stop rules."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from dasktune.trial.milestone import EVERY_RESULT, Milestone

logger = logging.getLogger(__name__)


class Stopper(ABC):
    """Decides at each result whether the trial stops, and at any time whether the experiment ends.

    The driver calls a stopper once for each result. A stopper must not read a clock;
    :meth:`on_time` passes the time.

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
        """Return whether the trial stops; this result is then its last one.

        Parameters
        ----------
        trial_id : str
            The trial that reported the result.
        result : mapping
            Flat metrics (nested names joined by ``/``) with the auto-filled fields.
        """

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return why the trial was stopped, for the journal and the user.

        It is called only after `__call__` returned True for the same arguments. It must not change
        the stopper.
        """
        return f"{type(self).__name__} said so"

    def stop_all(self) -> bool:
        """Return whether the whole experiment ends; this must not change the stopper."""
        return False

    def stop_all_reason(self) -> str:
        """Return why the experiment ends; called only after :meth:`stop_all` returned True."""
        return f"{type(self).__name__} said so"

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Return the milestones at which a trial waits for this stopper; ``()`` means none.

        It is called at the start of a trial and after each decision on it. Between milestones a
        trial reports results without waiting, so the stopper gets them after the trial has
        continued.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        return EVERY_RESULT

    def on_time(self, now: float) -> None:
        """Handle the current time; called before each result, and periodically between results.

        By default the stoppers among the attributes of this one get the time.

        Parameters
        ----------
        now : float
            Seconds on the runner's clock; only differences within one session have a meaning.
        """
        for member in tuple(vars(self).values()):
            if isinstance(member, Stopper):
                member.on_time(now)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON-serializable values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - no state, no work
        """Restore the state that :meth:`state_dict` returned."""


class NoopStopper(Stopper):
    """A stopper that never stops anything.

    Examples
    --------
    >>> NoopStopper()("a_00000", {"loss": 0.0})
    False
    """

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Return no milestones."""
        return ()

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return False."""
        return False


class MissingMetricWarner:
    """Logs a warning, once for each metric, that results lack a metric that a stopper needs.

    Parameters
    ----------
    consequence : str
        The effect on the stopper, which follows "so" in the message.
    """

    def __init__(self, consequence: str) -> None:
        self._consequence = consequence
        self._warned: set[str] = set()

    def warn(self, trial_id: str, metric: str) -> None:
        """Log the warning, unless it was logged for this metric before.

        Parameters
        ----------
        trial_id : str
            The trial in whose result the metric is missing or not a number.
        metric : str
            The name of the metric.
        """
        if metric not in self._warned:
            self._warned.add(metric)
            logger.warning(
                "trial %s reports no number %r, so %s; check its spelling",
                trial_id,
                metric,
                self._consequence,
            )
