"""The log of one trial as a run of a tracking service, such as MLflow or Weights & Biases."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from dasktune.callback import TrialView
from dasktune.logger.trial_logger import TrialLog, read_results


class TrackedRun(TrialLog):
    """Sends each result of a trial once to a run of a tracking service.

    A trial that exploits another one may go back to an earlier iteration. From that iteration on,
    its results are sent again. A new driver asks the service for the newest iteration of the run.

    Parameters
    ----------
    trial : TrialView
        The trial.
    """

    def __init__(self, trial: TrialView) -> None:
        self._trial = trial
        #: Newest ``training_iteration`` that the service has; None before the run is open.
        self._sent: int | None = None
        #: The iterations at which the trial restarted since the last write.
        self._restarts: deque[int] = deque()
        self._is_over = False
        self._is_closed = False

    def on_restart(self) -> None:
        """Note the iteration at which the trial restarts."""
        self._restarts.append(int(self._trial.last_result.get("training_iteration", 0)))

    def end(self) -> None:
        """Note that the trial will have no further results."""
        self._is_over = True

    def write(self, retry: bool = False) -> None:
        """Send the new results to the service; the writer's thread calls this.

        Parameters
        ----------
        retry : bool, default=False
            Ignored: the clients of such services retry by themselves.
        """
        # The driver's thread may end or restart the trial during this write. The end of a trial
        # marks its log again, so a further write finishes the run. A restart after the loop below
        # is handled by the next write, which sends the results of the restarted trial (again).
        is_over = self._is_over
        if self._is_closed:
            return
        if self._sent is None:
            self._sent = self.open(self._trial)
        while self._restarts:
            self._sent = min(self._sent, self._restarts.popleft())
        for row in read_results(self._trial):
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
            self.suspend()

    @abstractmethod
    def open(self, trial: TrialView) -> int:
        """Begin the run, or resume the run of an earlier driver.

        Parameters
        ----------
        trial : TrialView
            The trial.

        Returns
        -------
        int
            The newest ``training_iteration`` of the run; 0 if it has none.
        """

    @abstractmethod
    def send(self, iteration: int, row: Mapping[str, Any]) -> None:
        """Send a result; it may be buffered until :meth:`flush`.

        Parameters
        ----------
        iteration : int
            Its ``training_iteration``.
        row : mapping
            The result.
        """

    def flush(self) -> None:
        """Send all buffered results."""

    @abstractmethod
    def finish(self, trial: TrialView) -> None:
        """End the run of an ended trial.

        Parameters
        ----------
        trial : TrialView
            The trial.
        """

    @abstractmethod
    def suspend(self) -> None:
        """End the run of an unfinished trial; a later driver may resume it."""


def run_key(trial: TrialView) -> str:
    """Return a globally unique key of a trial's run, the same for every driver of its experiment.

    Parameters
    ----------
    trial : TrialView
        The trial.
    """
    return key_of(trial.trial_id, trial.path)


def key_of(trial_id: str, place: str) -> str:
    """Return a globally unique key of a trial.

    Parameters
    ----------
    trial_id : str
        The trial's id, unique within its experiment.
    place : str
        A text that no other experiment has, such as the trial's directory.
    """
    return f"{trial_id}-{sha256(place.encode()).hexdigest()[:12]}"
