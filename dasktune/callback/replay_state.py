"""Collect the callbacks' state and missed events while a restored experiment is replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.callback.hooks import Hook, hooks_of
from dasktune.experiment import ExperimentMachine, HandleResult
from dasktune.trial.events import ExperimentEvent


class MissedEvents:
    """Collects the hooks to call for replayed events, while a journal is replayed.

    The hooks are not called during the replay: it may restart from an older snapshot, and the user
    may only look at the restored experiment.

    Parameters
    ----------
    callbacks : sequence or None
        The callbacks of the session; without any, nothing is collected.

    Attributes
    ----------
    state : mapping or None
        The callbacks' state in the snapshot; None without a snapshot.
    hooks : list of Hook
        The hooks for all events since the snapshot, oldest first.
    """

    def __init__(self, callbacks: Sequence[Any] | None) -> None:
        self._is_wanted = bool(callbacks)
        self.state: Mapping[str, Any] | None = None
        self.hooks: list[Hook] = []

    def reset(self, state: Mapping[str, Any] | None) -> None:
        """Discard the collected hooks, and start from a snapshot.

        Parameters
        ----------
        state : mapping or None
            The experiment's state in the snapshot; None to begin without a snapshot.
        """
        self.state = None if state is None else state.get("callbacks", {})
        self.hooks = []

    @property
    def is_end_missed(self) -> bool:
        """Whether the callbacks may have missed the end of the experiment, if it has ended.

        A driver records the end in its snapshot after the callbacks were called. If it dies in
        between, the next driver calls them again.
        """
        return self._is_wanted and not (self.state or {}).get("ended", False)

    def on_event(self, event: ExperimentEvent, handled: HandleResult, experiment: ExperimentMachine) -> None:
        """Collect the hooks for an event that the experiment has handled."""
        if self._is_wanted:
            self.hooks += [hook.kept() for hook in hooks_of(event, handled, experiment)]
