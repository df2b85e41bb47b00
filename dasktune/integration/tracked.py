"""The run of a tracking service that stands for one trial."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from dasktune.callback import TrialView
from dasktune.logger.trial_logger import TrialLog

__all__ = ["TrackedTrial", "key_of", "run_key"]


class TrackedTrial(TrialLog):
    """Sends the results of a trial to a run of a tracking service, each once.

    A trial that becomes the clone of another one goes back; what it reports from there on is sent
    again for the same iterations. After a driver's death the service says how far its run has come.

    Parameters
    ----------
    trial : TrialView
        Whose results.
    """

    def __init__(self, trial: TrialView) -> None:
        self._trial = trial
        #: Newest ``training_iteration`` that the service has; None before the run is open.
        self._sent: int | None = None
        #: Where the trial goes on from, if that has changed since.
        self._from: int | None = None
        self._is_over = False
        self._is_closed = False

    def renew(self) -> None:
        """Hear that the trial starts again."""
        self._from = int(self._trial.last_result.get("training_iteration", 0))

    def end(self) -> None:
        """Hear that there will be no more results."""
        self._is_over = True

    def write(self, patient: bool = False) -> None:
        """Send what the service does not know.

        Parameters
        ----------
        patient : bool, default=False
            Of no use here: the clients of such services try again by themselves.
        """
        is_over = self._is_over
        if self._is_closed:
            return
        if self._sent is None:
            self._sent = self.open(self._trial)
        back, self._from = self._from, None
        if back is not None:
            self._sent = min(self._sent, back)
        for row in self._trial.history_since():
            iteration = int(row["training_iteration"])
            if iteration > self._sent:
                self.send(iteration, row)
                self._sent = iteration
        self.flush()
        if is_over:
            self._is_closed = True
            self.finish(self._trial)

    def close(self) -> None:
        """End the run of a trial that has not ended."""
        if self._sent is not None and not self._is_closed:
            self._is_closed = True
            self.leave()

    @abstractmethod
    def open(self, trial: TrialView) -> int:
        """Begin the run, or go on with it.

        Parameters
        ----------
        trial : TrialView
            The trial.

        Returns
        -------
        int
            The newest ``training_iteration`` that it knows; 0 if none.
        """

    @abstractmethod
    def send(self, iteration: int, row: Mapping[str, Any]) -> None:
        """Take a result; it may be kept back until :meth:`flush`.

        Parameters
        ----------
        iteration : int
            Its ``training_iteration``.
        row : mapping
            The result.
        """

    def flush(self) -> None:
        """Send what was kept back."""

    @abstractmethod
    def finish(self, trial: TrialView) -> None:
        """End the run, as the trial has ended.

        Parameters
        ----------
        trial : TrialView
            The trial.
        """

    @abstractmethod
    def leave(self) -> None:
        """End the run for now; a later driver may go on with it."""


def run_key(trial: TrialView) -> str:
    """Return what tells the run of a trial from all others, for every driver of its experiment.

    Parameters
    ----------
    trial : TrialView
        The trial.
    """
    return key_of(trial.trial_id, trial.path)


def key_of(trial_id: str, place: str) -> str:
    """Return a key of a trial that no trial of another experiment has.

    Parameters
    ----------
    trial_id : str
        The trial's id, unique within its experiment.
    place : str
        Something that no other experiment has, such as the trial's directory.
    """
    return f"{trial_id}-{sha256(place.encode()).hexdigest()[:12]}"
