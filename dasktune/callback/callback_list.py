"""The list of an experiment's callbacks: it calls their hooks and disables callbacks that raise."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Final

from dasktune.callback.callback import Callback
from dasktune.callback.hooks import Hook, MissedEvents, hooks_of
from dasktune.callback.stall import StallWatch
from dasktune.callback.trial_view import TrialStorage, TrialView, TrialViews
from dasktune.config.signatures import check_hooks
from dasktune.errors import StorageError, check
from dasktune.experiment import ExperimentMachine, HandleResult
from dasktune.storage.experiment.tuner_json import TunerFile, entries_of
from dasktune.trial.events import ExperimentEvent
from dasktune.trial.metrics import with_nested_names
from dasktune.trial.result_keys import SHOULD_CHECKPOINT

logger = logging.getLogger(__name__)

_HOOKS: Final = tuple(name for name in vars(Callback) if name.startswith("on_"))


def check_callbacks(callbacks: Iterable[Any] | None) -> None:
    """Check that all callbacks are `Callback` objects whose hooks accept their arguments.

    Parameters
    ----------
    callbacks : iterable or None
        The user's callbacks.

    Raises
    ------
    ConfigError
        If an object is not a `Callback`, or a hook has a wrong signature.
    """
    for one in callbacks or ():
        check(isinstance(one, Callback), "callbacks", "a list of objects of Callback", one)
        check_hooks("callbacks", one, Callback, ("setup", *_HOOKS), by_name=True)


class _CallbackEntry:
    """A callback with its name in snapshots and the hooks that it overrides."""

    def __init__(self, callback: Callback, name: str) -> None:
        self.callback = callback
        self.name = name
        #: The overridden hooks; the others do nothing and are not called.
        self.hooks = {hook for hook in _HOOKS if _overrides(callback, hook)}
        #: Why the callback was disabled; empty while it is called.
        self.failure = ""
        self.has_lost_state = False


def _overrides(callback: Callback, hook: str) -> bool:
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)


class CallbackList:
    """Observes an experiment and calls the hooks of its callbacks, in the driver's thread.

    A callback that raises is logged with its traceback and disabled. At the end of the experiment,
    the names of the disabled callbacks are logged again.

    Parameters
    ----------
    callbacks : sequence of Callback
        The callbacks, in the order of their calls.
    experiment : ExperimentMachine
        The experiment.
    trial_storage : TrialStorage
        The storage of its trials.
    stalls : StallWatch, optional
        Warns of slow hooks.

    Examples
    --------
    >>> list(_names([Callback(), Callback()]))
    ['Callback', 'Callback-2']
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        experiment: ExperimentMachine,
        trial_storage: TrialStorage,
        *,
        stalls: StallWatch | None = None,
    ) -> None:
        names = _names(callbacks)
        self._entries = [_CallbackEntry(*pair) for pair in zip(callbacks, names, strict=True)]
        self._trials = TrialViews(experiment.trials, trial_storage)
        self._stalls = StallWatch() if stalls is None else stalls
        self._iteration = 0
        self._has_ended = False
        #: Trials for whose results a callback has requested a checkpoint, in the order of requests.
        self._checkpoint_requests: dict[str, None] = {}
        self._wanted: set[str] = set().union(*(entry.hooks for entry in self._entries))

    @property
    def failures(self) -> dict[str, str]:
        """The disabled callbacks by name, each with its error and the hook that raised it."""
        return {entry.name: entry.failure for entry in self._entries if entry.failure}

    def setup(self, **settings: Any) -> None:
        """Call ``setup`` of all callbacks.

        Parameters
        ----------
        **settings : object
            The arguments of :meth:`Callback.setup`.
        """
        for entry in self._entries:
            self._guard(entry, "setup", partial(entry.callback.setup, **settings))

    def replay_missed(self, missed: MissedEvents) -> None:
        """Restore the states of the callbacks, then call the hooks for the events since then.

        Parameters
        ----------
        missed : MissedEvents
            The state in the last snapshot, and the hooks for the events since then.
        """
        state = missed.state
        known = self._entries
        if state is not None:
            self._iteration = int(state.get("iteration", 0))
            states = TunerFile(state.get("states", {}))
            # A callback that is new in this session gets only the events of this session.
            known = [entry for entry in self._entries if entry.name in states.entries]
            for entry in known:
                self._set_state(entry, states)
        for entry in known:
            entry.callback.replayed = True
        for hook in missed.hooks:
            self._call_hook(hook, self._trials.past_view(hook.trial), known)
        for entry in known:
            entry.callback.replayed = False

    def _set_state(self, entry: _CallbackEntry, states: TunerFile) -> None:
        try:
            state = states.load(entry.name)
        except StorageError as error:
            logger.warning("callback %s continues without its state: %s", entry.name, error)
        else:
            if state is not None:
                self._guard(entry, "set_state", partial(entry.callback.set_state, state))

    def take_checkpoint_requests(self) -> tuple[str, ...]:
        """Return the trials for which callbacks have requested a checkpoint since the last call."""
        requests = tuple(self._checkpoint_requests)
        self._checkpoint_requests.clear()
        return requests

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all callbacks for a snapshot.

        Each callback's state is packed separately, so a state that cannot be unpickled later
        affects only its own callback. The returned value is a copy that later events do not change.
        """
        states: dict[str, Any] = {}
        for entry in self._entries:
            if not entry.failure:
                self._guard(entry, "get_state", partial(self._get_state, entry, states))
            if entry.failure:
                states[entry.name] = {"lost": f"it had raised {entry.failure}"}
        state = {"iteration": self._iteration, "states": states, "ended": self._has_ended}
        return {"callbacks": state}

    def _get_state(self, entry: _CallbackEntry, states: dict[str, Any]) -> None:
        packed = entries_of({entry.name: entry.callback.get_state()})
        if "lost" in packed[entry.name] and not entry.has_lost_state:
            entry.has_lost_state = True
            reason = packed[entry.name]["lost"]
            logger.warning("the state of callback %s cannot be stored: %s", entry.name, reason)
        # Plain values are packed without a copy. The callback may change them before the snapshot
        # is written, so copy them now.
        states.update(deepcopy(packed))

    # Methods of an observer of the runner

    def on_step_begin(self) -> None:
        """Call the hook at the beginning of a step of the runner."""
        self._iteration += 1
        self._call("on_step_begin", iteration=self._iteration, trials=self._trials)

    def on_step_end(self) -> None:
        """Call the hook at the end of a step of the runner."""
        self._call("on_step_end", iteration=self._iteration, trials=self._trials)

    def on_event(self, event: ExperimentEvent, handled: HandleResult, experiment: ExperimentMachine) -> None:
        """Call the hooks for an event that the experiment has handled."""
        for hook in hooks_of(event, handled, experiment):
            if hook.name in self._wanted:
                result = self._call_hook(hook, self._trials.named(hook.trial.trial_id), self._entries)
                if _requests_checkpoint(hook, result):
                    self._checkpoint_requests[hook.trial.trial_id] = None

    def on_end(self, experiment: ExperimentMachine) -> None:
        """Call the hook at the end of the experiment, and log the disabled callbacks."""
        self._call("on_experiment_end", trials=self._trials)
        self._has_ended = True
        self._stalls.close()
        failed = [f"{name} ({failure})" for name, failure in self.failures.items()]
        if failed:
            logger.warning(
                "the experiment has ended with disabled callbacks, which had raised: %s", ", ".join(failed)
            )

    def _call_hook(
        self, hook: Hook, trial: TrialView, entries: Sequence[_CallbackEntry]
    ) -> Mapping[str, Any]:
        """Call a hook of the callbacks, and return its result as they have left it."""
        extra: dict[str, Any] = {}
        if hook.result is not None:
            extra["result"] = with_nested_names(hook.result)
        if hook.checkpoint is not None:
            extra["checkpoint"] = self._trials.checkpoint(hook.checkpoint)
        arguments = {"iteration": self._iteration, "trials": self._trials, "trial": trial, **extra}
        self._call(hook.name, entries, **arguments)
        left: dict[str, Any] = extra.get("result", {})
        return left

    def _call(self, hook: str, entries: Sequence[_CallbackEntry] | None = None, /, **info: Any) -> None:
        for entry in self._entries if entries is None else entries:
            if hook in entry.hooks:
                self._guard(entry, hook, partial(getattr(entry.callback, hook), **info))

    def _guard(self, entry: _CallbackEntry, what: str, call: Callable[[], None]) -> None:
        if entry.failure:
            return
        self._stalls.what = f"callback {entry.name} in {what}"
        try:
            with self._stalls:
                call()
        except Exception as error:  # the user's code may raise anything
            entry.failure = f"{type(error).__name__} in {what}"
            logger.exception("callback %s raised in %s and is disabled", entry.name, what)


def _requests_checkpoint(hook: Hook, result: Mapping[str, Any]) -> bool:
    """Whether a callback has set the key that requests a checkpoint in a result without one."""
    reported = hook.result or {}
    return bool(result.get(SHOULD_CHECKPOINT)) and not reported.get(SHOULD_CHECKPOINT)


def _names(callbacks: Iterable[Callback]) -> Iterable[str]:
    """Yield a unique name for each callback; snapshots store its state under this name."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}"
