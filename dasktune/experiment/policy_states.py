"""The states of policies in snapshots, each with the policy that it belongs to.

A restored experiment may have another scheduler or other stoppers than the one that was saved. A
state says nothing about its policy, so the class and its goals are saved beside it:

- A policy of the same class and with the same goals gets the state.
- A scheduler or searcher of another class is refused if it depends on what the other one has
  learned, because it cannot use the state. One with other goals is refused, too: it would compare
  values of two metrics. A snapshot of another search space is ignored, and the journal is replayed.
- A stopper that the experiment did not have is shown all recorded results instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final

from dasktune.errors import ConfigError, StorageError, check
from dasktune.schedulers.trial_scheduler import TrialScheduler
from dasktune.search.search_algorithm import SearchAlgorithm
from dasktune.search.searcher import Searcher
from dasktune.stopper import CombinedStopper, Stopper
from dasktune.trial.metrics import with_nested_names
from dasktune.trial.trial import Trial

#: The name of a policy's class and its goals, followed by the policies inside it, such as
#: ``["ConcurrencyLimiter", {"metric": "loss"}, ["MySearcher", {"metric": "loss"}]]``.
Identity = list[Any]

_POLICIES: Final = (TrialScheduler, SearchAlgorithm, Searcher, Stopper)

#: The attributes that states depend on: by what a policy compares results, and where it searches.
_GOALS: Final = ("metric", "mode", "metrics", "modes", "time_attr", "searched_parameters")


def identity_of(policy: object) -> Identity:
    """Return the class and the goals of a policy, and those of the policies in its attributes.

    Classes are names without modules, because a module may be moved, and a script is ``__main__``.

    Parameters
    ----------
    policy : TrialScheduler, SearchAlgorithm, Searcher or Stopper
        The policy, with the experiment's metric, before it is used. It may be the user's own.

    Examples
    --------
    >>> from dasktune.schedulers import FIFOScheduler, ResourceChangingScheduler
    >>> identity_of(ResourceChangingScheduler(FIFOScheduler()))
    ['ResourceChangingScheduler', {}, ['FIFOScheduler', {}]]
    """
    return _names(policy, frozenset())


def _names(policy: object, outer: frozenset[int]) -> Identity:
    """Return the identity of a policy; `outer` has the ``id`` of each policy around it."""
    inner: list[object] = []
    for value in getattr(policy, "__dict__", {}).values():
        inner += value if isinstance(value, list | tuple) else [value]
    # A policy may refer to one that it is in.
    around = outer | {id(policy)}
    within = [one for one in inner if isinstance(one, _POLICIES) and id(one) not in around]
    goals = {name: goal for name in _GOALS if (goal := _texts(getattr(policy, name, None)))}
    return [type(policy).__name__, goals, *(_names(one, around) for one in within)]


def _texts(goal: object) -> str | list[str] | None:
    """Return a name or names as JSON returns them; None for anything else in a user's attribute."""
    if isinstance(goal, list | tuple):
        return list(goal) if all(isinstance(one, str) for one in goal) else None
    return goal if isinstance(goal, str) else None


def load_scheduler(
    scheduler: TrialScheduler,
    names: Identity,
    state: Mapping[str, Any],
    saved: Identity,
    unfinished: Iterable[str],
) -> None:
    """Restore the state of a scheduler.

    Another scheduler than the saved one may follow if it has no state, or if every trial has ended:
    then it begins with the trials to come.

    Parameters
    ----------
    scheduler : TrialScheduler
        The scheduler.
    names : list
        Its identity, of :func:`identity_of`.
    state : mapping
        The saved state.
    saved : list
        The identity that the state belongs to.
    unfinished : iterable of str
        The trials that have not ended.

    Raises
    ------
    ConfigError
        If the scheduler cannot use the state.
    """
    if saved != names:
        if not scheduler.state_dict():
            return
        _check_goals(saved, names)
        left = sorted(unfinished)
        if not left:
            return
        raise ConfigError(
            f"scheduler must be {_shown(saved)} as before, got {_shown(names)}, while trials are "
            f"unfinished ({len(left)}, the first is {left[0]}): another scheduler cannot use its "
            f"state. Restore with {_shown(saved)} until they have ended, or with FIFOScheduler(), "
            "which lets each of them run to its end."
        )
    _load("scheduler", scheduler.load_state_dict, names, state)


def load_search(
    load: Callable[[Mapping[str, Any]], None],
    names: Identity,
    state: Mapping[str, Any],
    saved: Identity,
) -> None:
    """Restore the state of a search algorithm.

    Parameters
    ----------
    load : callable
        Restores the state.
    names : list
        The identity of the search algorithm.
    state : mapping
        The saved state.
    saved : list
        As for :func:`load_scheduler`.

    Raises
    ------
    ConfigError
        If the search algorithm cannot use the state.
    """
    if saved != names:
        _check_goals(saved, names)
        raise ConfigError(
            f"search_alg must be {_shown(saved)} as before, got {_shown(names)}: another searcher "
            "cannot use its state. Restore with the same searcher, and set max_concurrent_trials "
            "if and only if it was set before; the searcher may be limited by it."
        )
    _load("search_alg", load, names, state)


def load_stopper(
    stopper: Stopper,
    names: Identity,
    state: Mapping[str, Any],
    saved: Identity,
    trials: Iterable[Trial],
) -> None:
    """Restore the state of a stopper, or show it all recorded results.

    Of several stoppers each gets the state of the first unused stopper of its class and goals.

    Parameters
    ----------
    stopper : Stopper
        The stopper, perhaps a :class:`~dasktune.stopper.CombinedStopper`.
    names : list
        The identity of the stopper.
    state : mapping
        The saved state.
    saved : list
        As for :func:`load_scheduler`.
    trials : iterable of Trial
        The trials with their results. They may have ended.

    Raises
    ------
    ConfigError
        If the stopper cannot use the state, or raises when it is shown the results.
    """
    if saved == names:
        _load("stop", stopper.load_state_dict, names, state)
        return
    states = _members(saved, state)
    members = [(stopper, names)]
    if type(stopper) is CombinedStopper:
        members = list(zip(stopper.stoppers, names[2:], strict=True))
    new: list[Stopper] = []
    for member, own in members:
        found = next((one for one in states if one[0] == own), None)
        if found is None:
            new.append(member)
        else:
            states.remove(found)
            _load("stop", member.load_state_dict, own, found[1])
    if new:
        _show_results(new, trials)


def _members(names: Identity, state: Mapping[str, Any]) -> list[tuple[Identity, Mapping[str, Any]]]:
    """Return the identities and the states of a saved stopper's members, or of itself."""
    if names[0] != CombinedStopper.__name__:
        return [(names, state)]
    try:
        return list(zip(names[2:], state["stoppers"], strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"the state of {_shown(names)} is damaged: {error!r}") from error


def _show_results(stoppers: list[Stopper], trials: Iterable[Trial]) -> None:
    """Show stoppers the recorded results, and ignore their answers: the decisions stand."""
    for trial in trials:
        for row in trial.history:
            result = with_nested_names(row)
            for stopper in stoppers:
                try:
                    stopper(trial.trial_id, result)
                except Exception as error:  # user code may raise anything
                    raise ConfigError(
                        f"stop must be able to follow the recorded results, got {error!r} from "
                        f"{type(stopper).__name__} at iteration {result.get('training_iteration')} "
                        f"of trial {trial.trial_id}. Restore with the stop criteria of before."
                    ) from error


def _check_goals(saved: Identity, names: Identity) -> None:
    """Refuse policies of the same classes with other goals."""
    then, now = _flat(saved), _flat(names)
    if [one[0] for one in then] != [one[0] for one in now]:
        return
    hint = "Its past decisions depend on it. Restore with the same, or begin a new experiment."
    for (kind, was), (_, own) in zip(then, now, strict=True):
        for goal in {**was, **own}:
            rule = f"{was.get(goal)!r} as at the start"
            check(was.get(goal) == own.get(goal), f"{goal} of {kind}", rule, own.get(goal), hint)


def _flat(names: Identity) -> list[Any]:
    """Return the names and goals from the inside out: a wrapper has the goals of what it wraps."""
    return [*chain.from_iterable(map(_flat, names[2:])), names[:2]]


def _load(
    argument: str, load: Callable[[Mapping[str, Any]], None], names: Identity, state: Mapping[str, Any]
) -> None:
    try:
        load(state)
    except ConfigError:
        raise
    except Exception as error:  # a policy may be the user's own, or of another class
        raise ConfigError(
            f"{argument} must be able to load its saved state, got {error!r} from {_shown(names)}. "
            "Restore with the class and the arguments of before."
        ) from error


def _shown(names: Identity) -> str:
    name, _, *inner = names
    return f"{name}({', '.join(map(_shown, inner))})" if inner else str(name)
