"""What other threads want of a running experiment: put by them, done by the thread that runs it.

Each command has a future, by which whoever gave it learns what came of it. Nothing that is put here
can end a run: what makes no sense is refused before the experiment hears of it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

from dasktune.errors import ConfigError, ControlError, TuneError
from dasktune.experiment import Experiment
from dasktune.runner.ports import Clock
from dasktune.storage.json_lines import is_exact
from dasktune.trial.events import (
    HoldRequested,
    OtherEvent,
    ReleaseRequested,
    StopRequested,
    TrialAddRequested,
    TrialPauseRequested,
    TrialStopRequested,
    TrialUnpauseRequested,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

__all__ = ["MOST_WAITING", "Commands", "Desk", "Outcome"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Commands that may wait at a time; more are refused at once.
MOST_WAITING: Final = 256

#: Commands that are done before trials are heard again.
_TURN: Final = 16

#: Who is on the way to where the user wants it.
_LEAVING: Final = (TrialStatus.SUSPENDING, TrialStatus.SHELVING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a command."""

    #: In a few words.
    message: str
    #: Whom it was about; empty if it was about the whole experiment.
    trial_id: str = ""
    #: What users see of that trial now: a trial that runs may take a while to leave its worker.
    status: str = ""


class Driver(Protocol):
    """What runs the experiment, as far as commands need it."""

    def take(self, event: OtherEvent) -> None:
        """Let the experiment hear what the user wants."""

    def interrupt(self) -> None:
        """End the run, with trials unfinished."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What commands are done with, in the thread that runs the experiment.

    Parameters
    ----------
    experiment : Experiment
        Whom it is about.
    clock : Clock
        Tells the time.
    resources_for : callable
        ``resources_for(config)`` gives what a trial needs.
    driver : Driver
        Lets the experiment hear.
    """

    experiment: Experiment
    clock: Clock
    resources_for: Callable[[dict[str, Any]], PlacementGroupFactory]
    driver: Driver

    def unfinished(self, trial_id: str) -> Trial:
        """Return a trial that has not ended.

        Raises
        ------
        ControlError
            If there is none of this name, or it is over.
        """
        trial = self.experiment.trials.get(trial_id)
        if trial is None:
            raise ControlError(f"there is no trial {trial_id!r:.100}", "unknown")
        if trial.status.is_final:
            status = trial.public_status
            raise ControlError(f"trial {trial_id} is over already: it is {status}", "over")
        return trial

    def ending(self, trial: Trial) -> bool:
        """Whether a trial is about to end without another word."""
        return trial.status in (TrialStatus.STOPPING, TrialStatus.FAILING)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a command comes to, once it is clear that it makes sense."""

    #: What the experiment hears; None if nothing is to change.
    event: OtherEvent | None
    #: Whom it is about.
    trial_id: str
    message: str


class _NotYet(Exception):
    """A command that is to be tried again in a while."""


class _Command:
    """A command that waits, or a question: what is looked at and changes nothing."""

    def __init__(self, prepare: Callable[[Desk], Any], *, is_question: bool) -> None:
        self._prepare = prepare
        self._is_question = is_question
        self._begun = False
        self.future: Future[Any] = Future()

    def carry_out(self, desk: Desk) -> bool:
        """Do it, and return whether it is done with."""
        if not (self._begun or self.future.set_running_or_notify_cancel()):
            return True
        self._begun = True
        try:
            plan = self._prepare(desk)
        except _NotYet:
            return False
        except Exception as error:  # whatever was asked, the run goes on
            self.future.set_exception(_refusal(error))
            return True
        if self._is_question:
            self.future.set_result(plan)
            return True
        try:
            self._change(desk, plan)
        except BaseException as error:
            # Not the command's fault: the run could not have gone on either way.
            self.future.set_exception(error)
            raise
        return True

    def refuse(self, error: ControlError) -> None:
        """Say that it will not be done, unless nobody wants to know."""
        if self._begun or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _change(self, desk: Desk, plan: _Plan) -> None:
        if plan.event is not None:
            logger.info("a command of the user: %s", plan.message)
            desk.driver.take(plan.event)
        trial = desk.experiment.trials.get(plan.trial_id)
        status = "" if trial is None else trial.public_status.value
        self.future.set_result(Outcome(message=plan.message, trial_id=plan.trial_id, status=status))


def _refusal(error: Exception) -> Exception:
    if isinstance(error, ControlError):
        return error
    if isinstance(error, TuneError):
        return ControlError(f"{error!s:.1000}", "invalid")
    logger.warning("a command could not be carried out", exc_info=error)
    return ControlError(f"it could not be carried out: {type(error).__name__}", "invalid")


class Commands:
    """A bounded queue of what is to be done; every method may be called in any thread.

    Each returns a future at once. It raises `ControlError` where a command is refused: the trial
    is not known or over, too many commands wait, or nothing runs any more. A future that is
    cancelled before it is its turn has done nothing.

    Parameters
    ----------
    wake : callable
        Wakes the thread that runs the experiment.

    Attributes
    ----------
    config_rule : callable
        ``config_rule(config)`` raises `ConfigError` for a configuration that no trial may have.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = Lock()
        self._waiting: deque[_Command] = deque()
        #: Those that were tried, and are to be tried again.
        self._later: list[_Command] = []
        self._closed = False
        self.config_rule: Callable[[Mapping[str, Any]], None] = lambda config: None

    # One trial

    def stop_trial(self, trial_id: str, reason: str = "stopped by the user") -> Future[Outcome]:
        """End one trial, wherever it is.

        Parameters
        ----------
        trial_id : str
            Which.
        reason : str, default="stopped by the user"
            Why, for the journal.
        """
        return self._put(partial(_stop_trial, trial_id=trial_id, reason=reason))

    def pause_trial(self, trial_id: str, reason: str = "paused by the user") -> Future[Outcome]:
        """Let one trial rest until `unpause_trial`: no policy starts it meanwhile.

        Parameters
        ----------
        trial_id : str
            Which.
        reason : str, default="paused by the user"
            Why, for the journal.
        """
        return self._put(partial(_pause_trial, trial_id=trial_id, reason=reason))

    def unpause_trial(self, trial_id: str) -> Future[Outcome]:
        """End the rest of a trial; if it has not left its worker yet, as soon as it has.

        Parameters
        ----------
        trial_id : str
            Which.
        """
        return self._put(partial(_unpause_trial, trial_id=trial_id))

    def add_trial(self, config: Mapping[str, Any]) -> Future[Outcome]:
        """Add a trial, which goes before the suggestions of the search.

        Parameters
        ----------
        config : mapping
            Its whole configuration; it is copied.
        """
        return self._put(partial(_add_trial, config=config, check=self.config_rule))

    # Everything

    def hold(self) -> Future[Outcome]:
        """Let no trial start, nor the search be asked, until `release`; what runs goes on."""
        return self._put(_hold)

    def release(self) -> Future[Outcome]:
        """Let trials start again."""
        return self._put(_release)

    def stop(self, reason: str = "stopped by the user") -> Future[Outcome]:
        """End the experiment: all trials are stopped, and count as finished.

        Parameters
        ----------
        reason : str, default="stopped by the user"
            Why, for the journal.
        """
        return self._put(partial(_stop, reason=reason))

    def cancel(self) -> Future[Outcome]:
        """End the run as Ctrl-C does: trials save what they can, and stay unfinished."""
        return self._put(_cancel)

    def ask(self, question: Callable[[Experiment, float], T]) -> Future[T]:
        """Look at the experiment between two of its events.

        Parameters
        ----------
        question : callable
            Called with the experiment and the time; it must be quick, and change nothing.
        """
        return self._put(lambda desk: question(desk.experiment, desk.clock.now()), is_question=True)

    # The thread that runs the experiment

    def handle(self, desk: Desk) -> None:
        """Do some of what waits, in the order in which it came.

        Parameters
        ----------
        desk : Desk
            What it is done with.
        """
        if not (self._waiting or self._later):
            return
        later, self._later = self._later, []
        self._later += [one for one in later if not one.carry_out(desk)]
        for _ in range(_TURN):
            with self._lock:
                command = self._waiting.popleft() if self._waiting else None
            if command is None:
                return
            if not command.carry_out(desk):
                self._later.append(command)
        self._wake()

    def close(self) -> None:
        """Refuse what waits, and what comes later."""
        with self._lock:
            self._closed = True
            left = [*self._later, *self._waiting]
            self._later, self._waiting = [], deque()
        for command in left:
            command.refuse(_over())

    def _put(self, prepare: Callable[[Desk], Any], *, is_question: bool = False) -> Future[Any]:
        command = _Command(prepare, is_question=is_question)
        with self._lock:
            closed = self._closed
            full = len(self._waiting) + len(self._later) >= MOST_WAITING
            if not (closed or full):
                self._waiting.append(command)
        if closed:
            command.future.set_exception(_over())
        elif full:
            message = f"{MOST_WAITING} commands wait already; try again in a while"
            command.future.set_exception(ControlError(message, "busy"))
        else:
            self._wake()
        return command.future


def _over() -> ControlError:
    return ControlError("the experiment does not run any more", "over")


def _stop_trial(desk: Desk, trial_id: str, reason: str) -> _Plan:
    trial = desk.unfinished(trial_id)
    if desk.ending(trial):
        return _Plan(None, trial_id, f"trial {trial_id} is being stopped already")
    event = TrialStopRequested(trial_id=trial_id, reason=reason, time=desk.clock.now())
    return _Plan(event, trial_id, f"trial {trial_id} is to stop")


def _pause_trial(desk: Desk, trial_id: str, reason: str) -> _Plan:
    trial = desk.unfinished(trial_id)
    if desk.ending(trial):
        raise ControlError(f"trial {trial_id} is being stopped", "conflict")
    if trial.status.is_resting or trial.status in _LEAVING:
        return _Plan(None, trial_id, f"trial {trial_id} is to rest already")
    event = TrialPauseRequested(trial_id=trial_id, reason=reason, time=desk.clock.now())
    return _Plan(event, trial_id, f"trial {trial_id} is to rest")


def _unpause_trial(desk: Desk, trial_id: str) -> _Plan:
    trial = desk.unfinished(trial_id)
    if trial.status in _LEAVING:
        raise _NotYet
    if not trial.status.is_resting:
        who = (
            "is paused by its scheduler" if trial.status is TrialStatus.PAUSED else "does not rest"
        )
        raise ControlError(
            f"trial {trial_id} {who}; only who was paused can be unpaused", "conflict"
        )
    event = TrialUnpauseRequested(trial_id=trial_id, time=desk.clock.now())
    return _Plan(event, trial_id, f"trial {trial_id} is to go on")


def _add_trial(
    desk: Desk, config: Mapping[str, Any], check: Callable[[Mapping[str, Any]], None]
) -> _Plan:
    experiment = desk.experiment
    if experiment.stop_reason:
        raise ControlError(f"the experiment ends: {experiment.stop_reason}", "over")
    given: object = config
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError("config must be a mapping of names to values")
    check(config)
    own = deepcopy(dict(config))
    event = TrialAddRequested(
        trial_id=experiment.free_trial_id,
        config=own,
        resources=desk.resources_for(own),
        time=desk.clock.now(),
        pickled=not is_exact(own),
    )
    return _Plan(event, event.trial_id, f"trial {event.trial_id} is added")


def _hold(desk: Desk) -> _Plan:
    event = None if desk.experiment.on_hold else HoldRequested(time=desk.clock.now())
    return _Plan(event, "", "nothing starts until release")


def _release(desk: Desk) -> _Plan:
    event = ReleaseRequested(time=desk.clock.now()) if desk.experiment.on_hold else None
    return _Plan(event, "", "trials may start")


def _stop(desk: Desk, reason: str) -> _Plan:
    told = desk.experiment.stop_reason
    event = None if told else StopRequested(reason=reason, time=desk.clock.now())
    return _Plan(event, "", f"the experiment ends: {told or reason}")


def _cancel(desk: Desk) -> _Plan:
    desk.driver.interrupt()
    return _Plan(None, "", "the run ends; Tuner.restore() goes on with it")
