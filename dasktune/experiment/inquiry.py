"""What the search is asked, and what it is told only when it has answered.

A search may think for seconds, in a thread beside the driver's loop, and nobody may call it then.
So whatever happens between question and answer waits, in order, and the search hears of it after
the answer: in the order of the journal, which tells of both, and which a replay therefore repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.errors import InvalidTransition
from dasktune.search.searcher import SearchAlgorithm

__all__ = ["Inquiry"]


class Inquiry:
    """Tells a search what happens to its trials: at once, or when it has answered.

    Parameters
    ----------
    search : SearchAlgorithm
        Who is asked and told.

    Attributes
    ----------
    trial_id : str
        The trial for which it is being asked now; empty if it is not.
    """

    def __init__(self, search: SearchAlgorithm) -> None:
        self._search = search
        self.trial_id = ""
        #: What happened since it was asked: what, and what it is to be told about it.
        self._untold: list[tuple[str, tuple[Any, ...]]] = []
        self._tellers: dict[str, Callable[..., None]] = {
            "result": search.on_trial_result,
            "pause": search.on_trial_pause,
            "unpause": search.on_trial_unpause,
            "end": search.on_trial_complete,
        }

    @property
    def is_open(self) -> bool:
        """Whether the search is being asked."""
        return bool(self.trial_id)

    def open(self, trial_id: str) -> None:
        """Note that the search is being asked; until it has answered it is told nothing.

        Parameters
        ----------
        trial_id : str
            What the trial will be called.

        Raises
        ------
        InvalidTransition
            If it is being asked already.
        """
        if self.is_open:
            raise InvalidTransition(f"{trial_id} was asked for before {self.trial_id} was answered")
        self.trial_id = trial_id

    def close(self) -> bool:
        """Note that it has answered, or never will, and tell it what has happened meanwhile.

        Returns
        -------
        bool
            Whether it may have something to offer now that it did not have when it was asked: a
            trial has ended, or waits for others.
        """
        self.trial_id = ""
        untold, self._untold = self._untold, []
        for what, told in untold:
            self._tellers[what](*told)
        return any(what in ("pause", "end") for what, _ in untold)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Tell of a result."""
        self._tell("result", trial_id, result)

    def on_trial_pause(self, trial_id: str) -> None:
        """Tell of a trial that waits for others."""
        self._tell("pause", trial_id)

    def on_trial_unpause(self, trial_id: str) -> None:
        """Tell of one that goes on."""
        self._tell("unpause", trial_id)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None, error: bool
    ) -> None:
        """Tell of one that has ended."""
        self._tell("end", trial_id, result, error)

    def _tell(self, what: str, *told: Any) -> None:
        if self.is_open:
            self._untold.append((what, told))
        else:
            self._tellers[what](*told)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the search, and what it has not heard.

        A search that is asked is taken to be as it was before, for it is asked again; so this must
        not be called while it thinks.
        """
        return {
            "search": self._search.state_dict(),
            "asked": self.trial_id,
            "untold": [[what, list(told)] for what, told in self._untold],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._search.load_state_dict(state["search"])
        self.trial_id = state["asked"]
        self._untold = [(what, tuple(told)) for what, told in state["untold"]]
