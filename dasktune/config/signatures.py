"""Check that the methods of a user's derived class accept the arguments that dasktune passes.

Most policies that fail this check were written for Ray Tune, which passes its controller to
schedulers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dasktune.errors import ConfigError
from dasktune.schedulers import TrialScheduler
from dasktune.search import Searcher
from dasktune.stopper import CombinedStopper, Stopper

__all__ = [
    "check_hooks",
    "check_scheduler",
    "check_searcher",
    "check_stopper",
    "public_hooks",
]

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def public_hooks(base: type) -> tuple[str, ...]:
    """Return the names of the public methods that a class defines.

    Parameters
    ----------
    base : type
        The class; inherited methods are left out.

    Examples
    --------
    >>> class Base:
    ...     def on_start(self): pass
    ...     def _own(self): pass
    >>> public_hooks(Base)
    ('on_start',)
    """
    return tuple(
        name
        for name, value in vars(base).items()
        if inspect.isfunction(value) and (name == "__call__" or not name.startswith("_"))
    )


def check_hooks(
    name: str,
    thing: object,
    base: type,
    hooks: Iterable[str],
    *,
    by_name: bool = False,
    more: Mapping[str, tuple[str, ...]] | None = None,
    hint: str = "",
) -> None:
    """Raise ConfigError if a method of a derived class does not accept the arguments of its base.

    Such a method would fail in the middle of an experiment. A method that would not fail is never
    rejected.

    Parameters
    ----------
    name : str
        The argument as the user typed it.
    thing : object
        The user's object.
    base : type
        The base class, whose methods have the right arguments.
    hooks : iterable of str
        Names of the methods to check.
    by_name : bool, default=False
        Whether the methods are called with keyword arguments.
    more : mapping of str to tuple of str, optional
        Further keyword arguments of a method, by its name.
    hint : str, default=""
        Further sentences for the message.

    Raises
    ------
    ConfigError
        If there is such a method; the message has the right arguments of each.

    Examples
    --------
    >>> class Base:
    ...     def on_result(self, trial, result): pass
    >>> class Mine(Base):
    ...     def on_result(self, runner, trial, result): pass
    >>> check_hooks("scheduler", Mine(), Base, ["on_result"])
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: scheduler must be an object whose methods take what they are \
given, got Mine with on_result(self, runner, trial, result). Write: \
def on_result(self, trial, result).
    """
    wrong = [
        hook
        for hook in hooks
        if not _takes(thing, base, hook, by_name=by_name, more=(more or {}).get(hook, ()))
    ]
    if not wrong:
        return
    theirs = ", ".join(_shown(getattr(type(thing), hook), hook) for hook in wrong)
    ours = "; ".join(f"def {_shown(getattr(base, hook), hook)}" for hook in wrong)
    raise ConfigError(
        f"{name} must be an object whose methods take what they are given, got "
        f"{type(thing).__name__} with {theirs}. Write: {ours}.{' ' if hint else ''}{hint}"
    )


def _takes(thing: object, base: type, hook: str, *, by_name: bool, more: tuple[str, ...]) -> bool:
    if getattr(type(thing), hook, None) is getattr(base, hook):
        return True
    parameters = list(inspect.signature(getattr(base, hook)).parameters.values())[1:]
    given = [one.name for one in parameters if one.kind in _BY_POSITION]
    try:
        signature = inspect.signature(getattr(thing, hook))
    except (AttributeError, TypeError, ValueError):
        return True  # a callable without a signature cannot be checked
    named: dict[str, Any] = dict.fromkeys(more)
    try:
        if by_name:
            signature.bind(**dict.fromkeys(given), **named)
        else:
            signature.bind(*given, **named)
    except TypeError:
        return False
    return True


def _shown(function: Any, name: str) -> str:
    """Return a method's name and arguments, without annotations."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return f"{name}(...)"
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    return f"{name}{inspect.Signature(plain)}"


_OF_SCHEDULERS: Final = public_hooks(TrialScheduler)
_OF_STOPPERS: Final = public_hooks(Stopper)
_OF_SEARCHERS: Final = (
    "set_search_properties",
    "suggest",
    "on_trial_result",
    "on_trial_complete",
    "on_pause",
    "on_unpause",
)

_VALUES: Final = (
    'A scheduler does not get the runner: on_trial_result() returns Continue(), Pause("why") or '
    'Stop("why"), and choose_trial_to_run() one of waiting.pending or waiting.paused.'
)


def check_scheduler(scheduler: TrialScheduler) -> None:
    """Check a scheduler and those that it wraps.

    Parameters
    ----------
    scheduler : TrialScheduler
        The user's.

    Raises
    ------
    ConfigError
        If one of its methods cannot be called as an experiment calls it.
    """
    check_hooks("scheduler", scheduler, TrialScheduler, _OF_SCHEDULERS, hint=_VALUES)
    inner = getattr(scheduler, "base_scheduler", None)
    if isinstance(inner, TrialScheduler):
        check_scheduler(inner)


def check_searcher(searcher: Searcher) -> None:
    """Check a searcher and those that it wraps.

    Parameters
    ----------
    searcher : Searcher
        The user's.

    Raises
    ------
    ConfigError
        If one of its methods cannot be called as an experiment calls it.
    """
    more = {"set_search_properties": ("seed", "num_samples")}
    check_hooks("search_alg", searcher, Searcher, _OF_SEARCHERS, more=more)
    inner = getattr(searcher, "searcher", None)
    if isinstance(inner, Searcher):
        check_searcher(inner)


def check_stopper(stopper: Stopper) -> None:
    """Check a stopper, or all that it combines.

    Parameters
    ----------
    stopper : Stopper
        The user's.

    Raises
    ------
    ConfigError
        If one of its methods cannot be called as an experiment calls it.
    """
    check_hooks("stop", stopper, Stopper, _OF_STOPPERS)
    if isinstance(stopper, CombinedStopper):
        for one in stopper.stoppers:
            check_stopper(one)
