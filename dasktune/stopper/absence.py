"""What to say of a metric that a stopper waits for and a trial does not report."""

from __future__ import annotations

import logging

__all__ = ["AbsenceWarning"]

logger = logging.getLogger(__name__)


class AbsenceWarning:
    """Warns once for each metric.

    Parameters
    ----------
    consequence : str
        What follows from it, to be read after "so".
    """

    def __init__(self, consequence: str) -> None:
        self._consequence = consequence
        self._warned: set[str] = set()

    def warn(self, trial_id: str, metric: str) -> None:
        """Warn, unless it has been done.

        Parameters
        ----------
        trial_id : str
            The trial in whose result it is missing or no number.
        metric : str
            Its name.
        """
        if metric not in self._warned:
            self._warned.add(metric)
            logger.warning(
                "trial %s reports no number %r, so %s; check its spelling",
                trial_id,
                metric,
                self._consequence,
            )
