"""Commands of other threads to a running experiment.

Any thread adds a command and gets a future. The runner's loop carries commands out, in the order in
which they were added. An invalid command is refused before it reaches the experiment, so it cannot
end the run. The possible orders:

- A command is added under the lock, which also covers `close`. So it is either queued before
  `close`, which refuses it, or refused at once. No future stays unresolved.
- The loop is woken after a command was queued. If the loop tests the queue too early, the wake-up
  ends its next wait, and the command is carried out in the next step.
- A future may be cancelled until its command begins. Then the command has no effect.
- While a command waits, its trial may end. So the loop checks the command when its turn comes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar

from dasktune.config.validation import check_share
from dasktune.errors import ConfigError, ControlError, TuneError
from dasktune.experiment import ExperimentMachine
from dasktune.runner.measurement import RunMeasurement
from dasktune.runner.ports import Clock
from dasktune.storage.journal.json_lines import round_trips
from dasktune.text.formatting import one_line
from dasktune.trial import events
from dasktune.trial.metrics import number
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Maximum number of waiting commands; further ones are refused.
MOST_WAITING: Final = 256

#: Maximum number of commands that are carried out in one step of the loop.
_PER_STEP: Final = 16

#: Longest text that says who issued a command, in columns.
_LONGEST_ISSUER: Final = 300

#: Statuses of a trial that is leaving its worker because the user has paused it.
_LEAVING: Final = (TrialStatus.SUSPENDING, TrialStatus.SHELVING)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """The outcome of a command."""

    #: A short text for the user.
    message: str
    #: The command's trial; empty for a command about the whole experiment.
    trial_id: str = ""
    #: The public status of that trial. A running trial may take a while to leave its worker.
    status: str = ""


class Driver(Protocol):
    """The runner, as far as commands need it."""

    def apply_request(self, event: events.OtherEvent) -> None:
        """Handle a request of the user."""

    def measure(self, loop_lag: float) -> RunMeasurement:
        """Return numbers about the run, of which `loop_lag` is one."""


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The objects that commands use in the runner's loop.

    Parameters
    ----------
    experiment : ExperimentMachine
        The experiment.
    clock : Clock
        The source of the time.
    resources_for : callable
        ``resources_for(config)`` returns a trial's resource request.
    driver : Driver
        The runner.
    """

    experiment: ExperimentMachine
    clock: Clock
    resources_for: Callable[[dict[str, Any]], PlacementGroupFactory]
    driver: Driver

    def unfinished(self, trial_id: str) -> Trial:
        """Return a trial that has not ended.

        Raises
        ------
        ControlError
            If there is no trial of this name, or it has ended.
        """
        trial = self.experiment.trials.get(trial_id)
        if trial is None:
            raise ControlError(f"there is no trial {trial_id!r:.100}", "unknown")
        if trial.status.is_final:
            status = trial.public_status
            raise ControlError(f"trial {trial_id} is over already: it is {status}", "over")
        return trial

    def ending(self, trial: Trial) -> bool:
        """Whether a trial was requested to stop."""
        return trial.status in (TrialStatus.STOPPING, TrialStatus.FAILING)


#: The events that commands lead to.
_Request = (
    events.StopRequested
    | events.InterruptRequested
    | events.TrialStopRequested
    | events.TrialPauseRequested
    | events.TrialUnpauseRequested
    | events.TrialAddRequested
    | events.TrialCheckpointRequested
    | events.HoldRequested
    | events.ReleaseRequested
    | events.ShareRequested
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The effect of a valid command."""

    #: The event for the experiment; None if nothing changes.
    event: _Request | None
    #: The command's trial; empty for a command about the whole experiment.
    trial_id: str
    message: str


class _NotYet(Exception):
    """Raised by a command that must be tried again in a later step."""


class _Command:
    """A queued command, or a question, which changes nothing."""

    def __init__(
        self, prepare: Callable[[CommandContext], Any], *, by: str = "", is_question: bool = False
    ) -> None:
        self._prepare, self._by = prepare, by
        self._is_question = is_question
        self._begun = False
        self.future: Future[Any] = Future()

    def carry_out(self, context: CommandContext) -> bool:
        """Carry the command out, and return whether it is finished."""
        if not (self._begun or self.future.set_running_or_notify_cancel()):
            return True
        self._begun = True
        try:
            plan = self._prepare(context)
        except _NotYet:
            return False
        except Exception as error:  # an invalid command must not end the run
            self.future.set_exception(_refusal(error))
            return True
        if self._is_question:
            self.future.set_result(plan)
            return True
        try:
            self._change(context, plan)
        except BaseException as error:
            # Raised by the experiment or a port: it ends the run, as after any other event.
            self.future.set_exception(error)
            raise
        return True

    def refuse(self, error: ControlError) -> None:
        """Resolve the future with an error, unless it was cancelled."""
        if self._begun or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _change(self, context: CommandContext, plan: _Plan) -> None:
        if plan.event is not None:
            logger.info("command of %s: %s", self._by or "the user", plan.message)
            context.driver.apply_request(replace(plan.event, by=self._by))
        trial = context.experiment.trials.get(plan.trial_id)
        status = "" if trial is None else trial.public_status.value
        self.future.set_result(CommandOutcome(message=plan.message, trial_id=plan.trial_id, status=status))


def _refusal(error: Exception) -> Exception:
    if isinstance(error, ControlError):
        return error
    if isinstance(error, TuneError):
        return ControlError(f"{error!s:.1000}", "invalid")
    logger.warning("a command could not be carried out", exc_info=error)
    return ControlError(f"the command could not be carried out: {type(error).__name__}", "invalid")


class Commands:
    """A bounded queue of commands, thread-safe except for `handle` and `close`.

    Each command method returns a future at once. The future raises `ControlError` if the command is
    refused: the trial does not exist or has ended, too many commands wait, or the run has ended. A
    command whose future is cancelled before its turn has no effect.

    Parameters
    ----------
    wake : callable
        Wakes the runner's loop.
    make_lock : callable, default=threading.Lock
        Makes the lock of the waiting commands.

    Attributes
    ----------
    config_rule : callable
        ``config_rule(config)`` raises `ConfigError` for an invalid configuration.
    """

    def __init__(
        self, wake: Callable[[], None], *, make_lock: Callable[[], AbstractContextManager[Any]] = Lock
    ) -> None:
        self._wake = wake
        self._lock = make_lock()
        self._waiting: deque[_Command] = deque()
        #: Commands to try again. Only the loop changes this list. Other threads read its length, so
        #: the limit of waiting commands may be off by a few.
        self._later: list[_Command] = []
        self._closed = False
        self.config_rule: Callable[[Mapping[str, Any]], None] = lambda config: None

    # One trial

    def stop_trial(
        self, trial_id: str, reason: str = "stopped by the user", *, by: str = ""
    ) -> Future[CommandOutcome]:
        """Stop one trial, whatever its status.

        Parameters
        ----------
        trial_id : str
            The trial.
        reason : str, default="stopped by the user"
            Why, for the journal.
        by : str, default=""
            Who issues it, for the journal.
        """
        return self._put(partial(_stop_trial, trial_id=trial_id, reason=reason), by=by)

    def pause_trial(
        self, trial_id: str, reason: str = "paused by the user", *, by: str = ""
    ) -> Future[CommandOutcome]:
        """Pause one trial until `unpause_trial`: no policy starts it in the meantime.

        Parameters
        ----------
        trial_id : str
            The trial.
        reason : str, default="paused by the user"
            Why, for the journal.
        by : str, default=""
            Who issues it, for the journal.
        """
        return self._put(partial(_pause_trial, trial_id=trial_id, reason=reason), by=by)

    def unpause_trial(self, trial_id: str, *, by: str = "") -> Future[CommandOutcome]:
        """End the pause of a trial. If it is still leaving its worker, wait until it has left.

        Parameters
        ----------
        trial_id : str
            The trial.
        by : str, default=""
            Who issues it, for the journal.
        """
        return self._put(partial(_unpause_trial, trial_id=trial_id), by=by)

    def checkpoint_trial(self, trial_id: str, *, by: str = "") -> Future[CommandOutcome]:
        """Request a checkpoint of one running trial; it is saved with one of its next results.

        Parameters
        ----------
        trial_id : str
            The trial.
        by : str, default=""
            Who issues it, for the journal.
        """
        return self._put(partial(_checkpoint_trial, trial_id=trial_id), by=by)

    def add_trial(self, config: Mapping[str, Any], *, by: str = "") -> Future[CommandOutcome]:
        """Add a trial, which starts before the suggestions of the search algorithm.

        Parameters
        ----------
        config : mapping
            The trial's whole configuration, which is copied.
        by : str, default=""
            Who issues it, for the journal.
        """
        return self._put(partial(_add_trial, config=config, check=self.config_rule), by=by)

    # The whole experiment

    def hold(self, *, by: str = "") -> Future[CommandOutcome]:
        """Start no trial and request no suggestion until `release`; running trials continue.

        Parameters
        ----------
        by : str, default=""
            Who issues it, for the journal.
        """
        return self._put(_hold_trials, by=by)

    def release(self, *, by: str = "") -> Future[CommandOutcome]:
        """Let trials start again.

        Parameters
        ----------
        by : str, default=""
            Who issues it, for the journal.
        """
        return self._put(_release, by=by)

    def set_share(
        self,
        weight: float | None = None,
        priority: float | None = None,
        yields_after: float | None = None,
        *,
        by: str = "",
    ) -> Future[CommandOutcome]:
        """Change the experiment's share of the cluster; later drivers keep it.

        Parameters
        ----------
        weight, priority, yields_after : float, optional
            The new values, as for :class:`~dasktune.RunConfig`. At least one is needed; the others
            stay as they are.
        by : str, default=""
            Who issues it, for the journal.
        """
        return self._put(
            partial(_set_share, weight=weight, priority=priority, yields_after=yields_after), by=by
        )

    def stop(self, reason: str = "stopped by the user", *, by: str = "") -> Future[CommandOutcome]:
        """End the experiment: all trials are stopped and count as finished.

        Parameters
        ----------
        reason : str, default="stopped by the user"
            Why, for the journal.
        by : str, default=""
            Who issues it, for the journal.
        """
        return self._put(partial(_stop, reason=reason), by=by)

    def cancel(self, *, by: str = "") -> Future[CommandOutcome]:
        """End the run as Ctrl-C does: trials save what they can and stay unfinished.

        Parameters
        ----------
        by : str, default=""
            Who issues it, for the journal.
        """
        return self._put(_cancel, by=by)

    def ask(self, question: Callable[[ExperimentMachine, float], T]) -> Future[T]:
        """Call a function with the experiment, between two of its events.

        Parameters
        ----------
        question : callable
            Called with the experiment and the time; it must be quick and change nothing.
        """
        return self._put(lambda context: question(context.experiment, context.clock.now()), is_question=True)

    def measure(self) -> Future[RunMeasurement]:
        """Return numbers about the run, read between two events of the experiment."""
        asked = perf_counter()
        return self._put(
            lambda context: context.driver.measure(loop_lag=perf_counter() - asked), is_question=True
        )

    # The thread that runs the experiment

    def handle(self, context: CommandContext) -> None:
        """Carry out some of the waiting commands, in their order. Only for the runner's loop.

        Parameters
        ----------
        context : CommandContext
            The objects that commands use.
        """
        if not (self._waiting or self._later):
            return
        later, self._later = self._later, []
        self._later += [one for one in later if not one.carry_out(context)]
        for _ in range(_PER_STEP):
            with self._lock:
                command = self._waiting.popleft() if self._waiting else None
            if command is None:
                return
            if not command.carry_out(context):
                self._later.append(command)
        self._wake()

    def close(self) -> None:
        """Refuse the waiting commands and all later ones. Only for the runner's loop."""
        with self._lock:
            self._closed = True
            refused = [*self._later, *self._waiting]
            self._later, self._waiting = [], deque()
        for command in refused:
            command.refuse(_over())

    def _put(
        self, prepare: Callable[[CommandContext], Any], *, by: str = "", is_question: bool = False
    ) -> Future[Any]:
        command = _Command(prepare, by=one_line(by, _LONGEST_ISSUER), is_question=is_question)
        with self._lock:
            closed = self._closed
            full = len(self._waiting) + len(self._later) >= MOST_WAITING
            if not (closed or full):
                self._waiting.append(command)
        if closed:
            command.future.set_exception(_over())
        elif full:
            message = f"{MOST_WAITING} commands are waiting already; try again later"
            command.future.set_exception(ControlError(message, "busy"))
        else:
            self._wake()
        return command.future


def _over() -> ControlError:
    return ControlError("the experiment does not run any more", "over")


def _stop_trial(context: CommandContext, trial_id: str, reason: str) -> _Plan:
    trial = context.unfinished(trial_id)
    if context.ending(trial):
        return _Plan(None, trial_id, f"trial {trial_id} is being stopped already")
    event = events.TrialStopRequested(trial_id=trial_id, reason=reason, time=context.clock.now())
    return _Plan(event, trial_id, f"trial {trial_id} will stop")


def _pause_trial(context: CommandContext, trial_id: str, reason: str) -> _Plan:
    trial = context.unfinished(trial_id)
    if context.ending(trial):
        raise ControlError(f"trial {trial_id} is being stopped", "conflict")
    if trial.status.is_paused_by_user or trial.status in _LEAVING:
        return _Plan(None, trial_id, f"trial {trial_id} is paused by the user already")
    event = events.TrialPauseRequested(trial_id=trial_id, reason=reason, time=context.clock.now())
    return _Plan(event, trial_id, f"trial {trial_id} will be paused")


def _unpause_trial(context: CommandContext, trial_id: str) -> _Plan:
    trial = context.unfinished(trial_id)
    if trial.status in _LEAVING:
        raise _NotYet
    if not trial.status.is_paused_by_user:
        by_scheduler = trial.status is TrialStatus.PAUSED
        status = "is paused by its scheduler" if by_scheduler else "is not paused"
        raise ControlError(
            f"trial {trial_id} {status}; only a trial that the user has paused can be unpaused", "conflict"
        )
    event = events.TrialUnpauseRequested(trial_id=trial_id, time=context.clock.now())
    return _Plan(event, trial_id, f"trial {trial_id} will continue")


def _checkpoint_trial(context: CommandContext, trial_id: str) -> _Plan:
    trial = context.unfinished(trial_id)
    if trial.status is TrialStatus.SAVING:
        return _Plan(None, trial_id, f"trial {trial_id} is saving a checkpoint already")
    if trial.status is not TrialStatus.RUNNING:
        status = "is leaving its worker" if trial.status.is_active else f"is {trial.public_status}"
        if trial.status in (TrialStatus.STARTING, TrialStatus.RESTORING):
            status = "is starting"
        message = f"trial {trial_id} {status}; only a running trial can save a checkpoint"
        raise ControlError(message, "conflict")
    event = events.TrialCheckpointRequested(trial_id=trial_id, time=context.clock.now())
    return _Plan(event, trial_id, f"trial {trial_id} will save a checkpoint, if its trainable can")


def _add_trial(
    context: CommandContext, config: Mapping[str, Any], check: Callable[[Mapping[str, Any]], None]
) -> _Plan:
    experiment = context.experiment
    if experiment.state.stop_reason:
        raise ControlError(f"the experiment ends: {experiment.state.stop_reason}", "over")
    given: object = config
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError("config must be a mapping of names to values")
    check(config)
    own = deepcopy(dict(config))
    event = events.TrialAddRequested(
        trial_id=experiment.free_trial_id,
        config=own,
        resources=context.resources_for(own),
        time=context.clock.now(),
        pickled=not round_trips(own),
    )
    return _Plan(event, event.trial_id, f"trial {event.trial_id} is added")


def _hold_trials(context: CommandContext) -> _Plan:
    event = None if context.experiment.state.on_hold else events.HoldRequested(time=context.clock.now())
    return _Plan(event, "", "no trial starts until release")


def _release(context: CommandContext) -> _Plan:
    event = events.ReleaseRequested(time=context.clock.now()) if context.experiment.state.on_hold else None
    return _Plan(event, "", "trials may start")


def _set_share(
    context: CommandContext,
    weight: float | None,
    priority: float | None,
    yields_after: float | None,
) -> _Plan:
    check_share(weight, priority, yields_after)
    new = {
        "weight": number(weight),
        "priority": number(priority),
        "yields_after": number(yields_after),
    }
    state = context.experiment.state
    changed = any(one is not None and getattr(state, name) != one for name, one in new.items())
    event = None
    if changed:
        event = events.ShareRequested(
            weight=new["weight"],
            priority=new["priority"],
            yields_after=new["yields_after"],
            time=context.clock.now(),
        )
    values = " and ".join(f"{name} {one:g}" for name, one in new.items() if one is not None)
    return _Plan(event, "", f"the experiment has {values} on the cluster")


def _stop(context: CommandContext, reason: str) -> _Plan:
    given = context.experiment.state.stop_reason
    event = None if given else events.StopRequested(reason=reason, time=context.clock.now())
    return _Plan(event, "", f"the experiment ends: {given or reason}")


def _cancel(context: CommandContext) -> _Plan:
    event = events.InterruptRequested(time=context.clock.now())
    return _Plan(event, "", "the run ends; continue it with Tuner.restore()")
