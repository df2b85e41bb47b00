"""What the callbacks of a restored experiment knew, and what they have missed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.callback.hooks import Hook, hooks_of
from dasktune.experiment import Experiment
from dasktune.trial.actions import Action
from dasktune.trial.events import ExperimentEvent

__all__ = ["Missed"]


class Missed:
    """Gathers, while a journal is replayed, what callbacks will have to be told.

    They are not called then: a replay may have to begin anew from an older snapshot, and a restored
    experiment may only be looked at.

    Parameters
    ----------
    callbacks : sequence or None
        Those that there will be; without any, nothing need be gathered.

    Attributes
    ----------
    state : mapping or None
        What the snapshot says of callbacks; None if there was none, and they knew nothing.
    hooks : list of Hook
        What happened since, oldest first.
    """

    def __init__(self, callbacks: Sequence[Any] | None) -> None:
        self._is_wanted = bool(callbacks)
        self.state: Mapping[str, Any] | None = None
        self.hooks: list[Hook] = []

    def begin(self, state: Mapping[str, Any] | None) -> None:
        """Forget what was gathered, and begin at a snapshot.

        Parameters
        ----------
        state : mapping or None
            The state of the whole experiment; None for its beginning.
        """
        self.state = None if state is None else state.get("callbacks", {})
        self.hooks = []

    @property
    def owes_end(self) -> bool:
        """Whether nobody has told callbacks of the experiment's end, if it has come to one.

        A driver notes it after they have heard of it, so one that dies in between tells it again.
        """
        return self._is_wanted and not (self.state or {}).get("ended", False)

    def on_event(
        self, event: ExperimentEvent, actions: Sequence[Action], experiment: Experiment
    ) -> None:
        """See an event after it was handled."""
        if self._is_wanted:
            self.hooks += [hook.kept() for hook in hooks_of(event, actions, experiment)]
