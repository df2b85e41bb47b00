"""What a journal says was decided about an event.

In replay it stands, whatever the policies say now: one that looks at a clock, or draws from a
random generator of its own, cannot be asked to answer twice the same. All that the policies have a
say in are verdicts on results, orders to other trials, and the end of everything; what else is done
about an event follows from the event, and comes before the orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from dasktune.experiment.orders import Order
from dasktune.experiment.verdict import Fail, Verdict
from dasktune.schedulers.decision import Continue, Exploit, Pause, Resize, Stop
from dasktune.stopper import NoopStopper
from dasktune.trial.actions import (
    Action,
    ContinueTraining,
    EndExperiment,
    ExploitTrial,
    FailTrial,
    PauseTrial,
    ResizeTrial,
    SaveTrial,
    StopTrial,
)
from dasktune.trial.events import ErrorInfo

__all__ = ["Precedent"]

_CONTINUE: Final = Continue()

#: ``find(told, own)`` gives the configuration that an order tells of, where `own` is what the
#: policy says now, if anything.
ConfigFinder = Callable[[ExploitTrial, dict[str, Any] | None], dict[str, Any]]


def _as_told(told: ExploitTrial, own: dict[str, Any] | None) -> dict[str, Any]:
    return own if own == told.config else told.config


class Precedent:
    """The actions that one event led to.

    Parameters
    ----------
    told : sequence of Action or None
        In order. None stands for one in which no policy has a say.
    find : callable, optional
        Gives configurations as the user's code had them; by default as they are told.

    Attributes
    ----------
    done : list of Action
        What the event has led to so far now. So the next that the journal tells of is that at the
        end of this list.
    overruled : str
        Who has answered otherwise than it did; empty if nobody has.

    Examples
    --------
    >>> precedent = Precedent([StopTrial(trial_id="a", incarnation=1, reason="bad")])
    >>> precedent.verdict("a")
    Stop(reason='bad', commands=())
    >>> precedent.verdict("b") == Continue()
    True
    """

    __slots__ = ("_find", "_orders", "done", "overruled", "told")

    def __init__(self, told: Sequence[Action | None], find: ConfigFinder = _as_told) -> None:
        self.told = told
        self._find = find
        self.done: list[Action] = []
        self.overruled = ""
        #: Where the next order stands, or later.
        self._orders = 0

    def verdict(self, trial_id: str) -> Verdict | None:
        """Return what became of a trial; None if everything ended, so that nobody can tell.

        Parameters
        ----------
        trial_id : str
            Whose result it was.
        """
        action = self._at(len(self.done))
        if isinstance(action, EndExperiment):
            return None
        if action is None or action.trial_id != trial_id:
            return _CONTINUE
        match action:
            case StopTrial():
                return Stop(action.reason, early=action.early)
            case PauseTrial():
                return Pause(action.reason, save=action.save, kind=action.kind, hold=action.hold)
            case ResizeTrial():
                return Resize(
                    action.resources,
                    action.reason,
                    save=action.save,
                    kind=action.kind,
                    hold=action.hold,
                )
            case ExploitTrial():
                return Exploit(
                    action.donor, action.config, action.reason, iteration=action.donor_iteration
                )
            case FailTrial():
                return Fail(ErrorInfo(message=action.reason, traceback=action.traceback))
            case SaveTrial():
                return Continue(save=True, kind=action.kind, hold=action.hold)
            case ContinueTraining(hold=True):
                return Continue(hold=True)
            case _:
                return _CONTINUE

    def end(self) -> str:
        """Return why a stopper ended everything here; empty if none did."""
        action = self._at(len(self.done))
        return action.reason if isinstance(action, EndExperiment) else ""

    def order(self) -> Order | None:
        """Return the next order to a trial, each once; None if there is no other."""
        if not self.told:
            return None
        at = max(self._orders, len(self.done))
        self._orders = at + 1
        action = self._at(at)
        return action if isinstance(action, Order) else None

    def config(self, trial_id: str, own: dict[str, Any] | None) -> dict[str, Any]:
        """Return what a trial that is cloned here goes on with.

        Parameters
        ----------
        trial_id : str
            The trial. No event lets it be cloned twice.
        own : dict or None
            What the policy says now, if anything.
        """
        told = (one for one in self.told if isinstance(one, ExploitTrial))
        return self._find(next(one for one in told if one.trial_id == trial_id), own)

    def overrule(self, *policies: object) -> None:
        """Note that one of these has answered otherwise than it did."""
        names = [type(one).__name__ for one in policies if not isinstance(one, NoopStopper)]
        self.overruled = self.overruled or " or ".join(names)

    def _at(self, index: int) -> Action | None:
        return self.told[index] if index < len(self.told) else None
