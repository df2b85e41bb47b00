"""Calls the callbacks of an experiment, in their order, and outlives each of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Final

from dasktune.callback.callback import Callback
from dasktune.callback.hooks import Hook, hooks_of
from dasktune.callback.missed import Missed
from dasktune.callback.stall import StallWatch
from dasktune.callback.trial_view import TrialPlaces, TrialView, TrialViews
from dasktune.errors import StorageError, check
from dasktune.experiment import Experiment
from dasktune.signatures import check_hooks
from dasktune.storage.setup_file import SetupFile, packed
from dasktune.trial.actions import Action
from dasktune.trial.events import ExperimentEvent

__all__ = ["CallbackList", "check_callbacks"]

logger = logging.getLogger(__name__)

_HOOKS: Final = tuple(name for name in vars(Callback) if name.startswith("on_"))


def check_callbacks(callbacks: Iterable[Any] | None) -> None:
    """Refuse what is no callback, or has hooks that do not take what they are given.

    Parameters
    ----------
    callbacks : iterable or None
        What the user gave.

    Raises
    ------
    ConfigError
        If one is not an object of a subclass of `Callback`, or cannot be called as one.
    """
    for one in callbacks or ():
        check(isinstance(one, Callback), "callbacks", "a list of objects of Callback", one)
        check_hooks("callbacks", one, Callback, ("setup", *_HOOKS), by_name=True)


class _Entry:
    """A callback, what it is called in snapshots, and which hooks it has."""

    def __init__(self, callback: Callback, name: str) -> None:
        self.callback = callback
        self.name = name
        #: Those that do nothing need not be called.
        self.hooks = {hook for hook in _HOOKS if _is_own(callback, hook)}
        #: Why it is not called any more; empty while it is.
        self.failure = ""
        self.has_lost_state = False


def _is_own(callback: Callback, hook: str) -> bool:
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)


class CallbackList:
    """Watches an experiment for its callbacks.

    One that raises is logged with its traceback and hears nothing more; the end tells of it again.

    Parameters
    ----------
    callbacks : sequence of Callback
        In the order in which they are called.
    experiment : Experiment
        What they hear of.
    places : TrialPlaces
        Where its trials keep things.
    stalls : StallWatch, optional
        Warns of those that take long.

    Examples
    --------
    >>> list(_names([Callback(), Callback()]))
    ['Callback', 'Callback-2']
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        experiment: Experiment,
        places: TrialPlaces,
        *,
        stalls: StallWatch | None = None,
    ) -> None:
        names = _names(callbacks)
        self._entries = [_Entry(*pair) for pair in zip(callbacks, names, strict=True)]
        self._trials = TrialViews(experiment.trials, places)
        self._stalls = StallWatch() if stalls is None else stalls
        self._iteration = 0
        self._has_ended = False
        self._wanted: set[str] = set().union(*(entry.hooks for entry in self._entries))

    def setup(self, **settings: Any) -> None:
        """Let the callbacks get ready.

        Parameters
        ----------
        **settings : object
            As for :meth:`Callback.setup`.
        """
        for entry in self._entries:
            self._guard(entry, "setup", partial(entry.callback.setup, **settings))

    def catch_up(self, missed: Missed) -> None:
        """Give the callbacks their states back, and tell them what has happened since.

        Parameters
        ----------
        missed : Missed
            Of the experiment before this session begins.
        """
        state = missed.state
        known = self._entries
        if state is not None:
            self._iteration = int(state.get("iteration", 0))
            states = SetupFile(state.get("states", {}))
            # What was added by this session hears only of this session.
            known = [entry for entry in self._entries if entry.name in states.entries]
            for entry in known:
                self._set_state(entry, states)
        for entry in known:
            entry.callback.replayed = True
        for hook in missed.hooks:
            self._tell(hook, self._trials.as_it_was(hook.trial), known)
        for entry in known:
            entry.callback.replayed = False

    def _set_state(self, entry: _Entry, states: SetupFile) -> None:
        try:
            state = states.load(entry.name)
        except StorageError as error:
            logger.warning("callback %s goes on without its state: %s", entry.name, error)
        else:
            if state is not None:
                self._guard(entry, "set_state", partial(entry.callback.set_state, state))

    def state_dict(self) -> dict[str, Any]:
        """Return what a snapshot is to hold: each state by itself, none that must be unpickled.

        Later events do not change what is returned.
        """
        states: dict[str, Any] = {}
        for entry in self._entries:
            if not entry.failure:
                self._guard(entry, "get_state", partial(self._get_state, entry, states))
            if entry.failure:
                states[entry.name] = {"lost": f"it had raised {entry.failure}"}
        told = {"iteration": self._iteration, "states": states, "ended": self._has_ended}
        return {"callbacks": told}

    def _get_state(self, entry: _Entry, states: dict[str, Any]) -> None:
        told = packed({entry.name: entry.callback.get_state()})
        if "lost" in told[entry.name] and not entry.has_lost_state:
            entry.has_lost_state = True
            why = told[entry.name]["lost"]
            logger.warning("the state of callback %s cannot be kept: %s", entry.name, why)
        # What stands there as it is may change before it is written.
        states.update(deepcopy(told))

    # What it sees as an observer

    def on_step_begin(self) -> None:
        """See that the runner begins a turn."""
        self._iteration += 1
        self._call("on_step_begin", iteration=self._iteration, trials=self._trials)

    def on_step_end(self) -> None:
        """See that the runner's turn is over."""
        self._call("on_step_end", iteration=self._iteration, trials=self._trials)

    def on_event(
        self, event: ExperimentEvent, actions: Sequence[Action], experiment: Experiment
    ) -> None:
        """See an event after it was handled."""
        for hook in hooks_of(event, actions, experiment):
            if hook.name in self._wanted:
                self._tell(hook, self._trials.named(hook.trial.trial_id), self._entries)

    def on_end(self, experiment: Experiment) -> None:
        """See the end, and say who was not there to see it."""
        self._call("on_experiment_end", trials=self._trials)
        self._has_ended = True
        self._stalls.close()
        failed = [f"{entry.name} ({entry.failure})" for entry in self._entries if entry.failure]
        if failed:
            logger.warning(
                "the experiment has ended without some of its callbacks, which had raised: %s",
                ", ".join(failed),
            )

    def _tell(self, hook: Hook, trial: TrialView, entries: Sequence[_Entry]) -> None:
        more: dict[str, Any] = {}
        if hook.result is not None:
            more["result"] = dict(hook.result)
        if hook.checkpoint is not None:
            more["checkpoint"] = self._trials.checkpoint(hook.checkpoint)
        arguments = {"iteration": self._iteration, "trials": self._trials, "trial": trial, **more}
        self._call(hook.name, entries, **arguments)

    def _call(self, hook: str, entries: Sequence[_Entry] | None = None, /, **told: Any) -> None:
        for entry in self._entries if entries is None else entries:
            if hook in entry.hooks:
                self._guard(entry, hook, partial(getattr(entry.callback, hook), **told))

    def _guard(self, entry: _Entry, what: str, call: Callable[[], None]) -> None:
        if entry.failure:
            return
        self._stalls.what = f"callback {entry.name} in {what}"
        try:
            with self._stalls:
                call()
        except Exception as error:  # the user's code may raise anything
            entry.failure = f"{type(error).__name__} in {what}"
            logger.exception("callback %s raised in %s: it hears nothing more", entry.name, what)


def _names(callbacks: Iterable[Callback]) -> Iterable[str]:
    """Yield what each is called, so that it finds its state again among others."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}"
