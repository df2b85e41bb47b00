"""The suggestion that a search algorithm is computing, and the calls to it that wait meanwhile.

A search algorithm may take seconds for a suggestion. It computes in a background thread and must
not be called then. What happens to its trials between the question and the answer is therefore
kept, in order, and reported to it after the answer. The journal has the question and the answer as
events of their own, so that a replay makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.errors import InvalidTransition
from dasktune.search.search_algorithm import SearchAlgorithm


class PendingSuggestion:
    """Reports trials to a search algorithm, at once or after its pending suggestion.

    All methods are called by the driver's loop. While `is_open`, the search algorithm belongs to
    the background thread. The loop closes the suggestion after it has taken the answer from that
    thread's queue, so the two never call the search algorithm at the same time.

    Parameters
    ----------
    search : SearchAlgorithm
        The search algorithm.

    Attributes
    ----------
    search : SearchAlgorithm
        The search algorithm.
    trial_id : str
        The name of the trial that is being suggested; empty if there is none.
    """

    def __init__(self, search: SearchAlgorithm) -> None:
        self.search = search
        self.trial_id = ""
        #: Calls deferred since the question, in order: a name in `_callbacks` and the arguments.
        self._deferred: list[tuple[str, tuple[Any, ...]]] = []
        self._callbacks: dict[str, Callable[..., None]] = {
            "result": search.on_trial_result,
            "pause": search.on_trial_pause,
            "unpause": search.on_trial_unpause,
            "end": search.on_trial_complete,
        }

    @property
    def is_open(self) -> bool:
        """Whether the search algorithm is computing a suggestion."""
        return bool(self.trial_id)

    def open(self, trial_id: str) -> None:
        """Begin a suggestion: calls to the search algorithm are deferred until it is closed.

        Parameters
        ----------
        trial_id : str
            The name of the trial.

        Raises
        ------
        InvalidTransition
            If another suggestion is pending.
        """
        if self.is_open:
            raise InvalidTransition(
                f"a suggestion for {trial_id} was requested while that for {self.trial_id} was pending"
            )
        self.trial_id = trial_id

    def close(self) -> bool:
        """End the suggestion, answered or abandoned, and make the deferred calls.

        Returns
        -------
        bool
            Whether a trial has ended or paused in the meantime, so that the search algorithm may
            have a suggestion now even if it had none.
        """
        self.trial_id = ""
        deferred, self._deferred = self._deferred, []
        for name, arguments in deferred:
            self._callbacks[name](*arguments)
        return any(name in ("pause", "end") for name, _ in deferred)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Call or defer ``on_trial_result``."""
        self._call("result", trial_id, result)

    def on_trial_pause(self, trial_id: str) -> None:
        """Call or defer ``on_trial_pause``."""
        self._call("pause", trial_id)

    def on_trial_unpause(self, trial_id: str) -> None:
        """Call or defer ``on_trial_unpause``."""
        self._call("unpause", trial_id)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None, error: bool) -> None:
        """Call or defer ``on_trial_complete``."""
        self._call("end", trial_id, result, error)

    def _call(self, name: str, *arguments: Any) -> None:
        if self.is_open:
            self._deferred.append((name, arguments))
        else:
            self._callbacks[name](*arguments)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the search algorithm and the deferred calls.

        Must not be called while the background thread computes a suggestion, which may change the
        state. A restored driver asks for a pending suggestion again, so the state from before the
        question is the right one.
        """
        return {
            "search": self.search.state_dict(),
            "asked": self.trial_id,
            "untold": [[name, list(arguments)] for name, arguments in self._deferred],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.search.load_state_dict(state["search"])
        self.trial_id = state["asked"]
        self._deferred = [(name, tuple(arguments)) for name, arguments in state["untold"]]
