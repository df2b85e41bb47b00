"""The policies' decisions about an event, read back from the journal for a replay.

A replay asks the policies again, so that they reach the same state, but the decisions in the
journal stand. A record holds all actions of its event in order, so that a decision is found by its
position: the number of actions that the event has led to so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dasktune.experiment.trial_actions import CommandAction, PolicyDecision, decision_of
from dasktune.schedulers.decision import Continue
from dasktune.stopper import NoopStopper
from dasktune.trial.actions import Action, EndExperiment, ExploitTrial, SetShare

#: ``find(recorded, proposed)`` returns the configuration of a recorded exploit. `proposed` is the
#: configuration that the scheduler proposes in the replay, if any.
ConfigFinder = Callable[[ExploitTrial, dict[str, Any] | None], dict[str, Any]]


def _recorded_config(recorded: ExploitTrial, proposed: dict[str, Any] | None) -> dict[str, Any]:
    return proposed if proposed == recorded.config else recorded.config


class RecordedDecisions:
    """The recorded actions of one event.

    Parameters
    ----------
    actions : sequence of Action or None
        In order. None replaces an action that no policy decides.
    find : callable, optional
        Returns the configuration of an exploit with its original Python values; by default the
        recorded one.

    Attributes
    ----------
    diverged_policy : str
        Name of the policy that has decided differently in the replay; empty if none has.

    Examples
    --------
    >>> from dasktune.trial.actions import StopTrial
    >>> recorded = RecordedDecisions([StopTrial(trial_id="a", incarnation=1, reason="bad")])
    >>> recorded.decision("a", position=0)
    Stop(reason='bad', commands=())
    >>> recorded.decision("b", position=0) == Continue()
    True
    """

    __slots__ = ("_actions", "_find", "_next_command", "diverged_policy")

    def __init__(self, actions: Sequence[Action | None], find: ConfigFinder = _recorded_config) -> None:
        self._actions = actions
        self._find = find
        self.diverged_policy = ""
        #: Commands before this position have been returned already.
        self._next_command = 0

    def decision(self, trial_id: str, position: int) -> PolicyDecision | None:
        """Return what was decided about a result.

        Parameters
        ----------
        trial_id : str
            The trial that reported it.
        position : int
            Position in the event's record: the number of its actions so far.

        Returns
        -------
        Decision, Fail or None
            None if the experiment ended here, because the record then does not show the decision.
        """
        action = self._at(position)
        if isinstance(action, EndExperiment):
            return None
        if action is None or isinstance(action, SetShare) or action.trial_id != trial_id:
            return Continue()
        return decision_of(action)

    def end_reason(self, position: int) -> str:
        """Return why a stopper ended the experiment at this position; empty if none did."""
        action = self._at(position)
        return action.reason if isinstance(action, EndExperiment) else ""

    def next_command(self, position: int) -> CommandAction | None:
        """Return the next recorded command, or None after the last one.

        Parameters
        ----------
        position : int
            Position in the event's record: the number of its actions so far.
        """
        if not self._actions:
            return None
        at = max(self._next_command, position)
        self._next_command = at + 1
        action = self._at(at)
        return action if isinstance(action, CommandAction) else None

    def config(self, trial_id: str, proposed: dict[str, Any] | None) -> dict[str, Any]:
        """Return the configuration that a trial got by a recorded exploit.

        Parameters
        ----------
        trial_id : str
            The trial. No event clones a trial twice.
        proposed : dict or None
            The configuration that the scheduler proposes in the replay, if any.
        """
        exploits = (one for one in self._actions if isinstance(one, ExploitTrial))
        return self._find(next(one for one in exploits if one.trial_id == trial_id), proposed)

    def note_divergence(self, *policies: object) -> None:
        """Record that one of these policies has decided differently from the journal."""
        names = [type(one).__name__ for one in policies if not isinstance(one, NoopStopper)]
        self.diverged_policy = self.diverged_policy or " or ".join(names)

    def _at(self, position: int) -> Action | None:
        return self._actions[position] if position < len(self._actions) else None
