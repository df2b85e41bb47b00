"""Check that the methods of a user's derived class accept the arguments that dasktune passes.

Most schedulers that fail this check were written for Ray Tune, which passes its controller to their
methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dasktune.errors import ConfigError
from dasktune.schedulers import TrialScheduler
from dasktune.search import Searcher
from dasktune.stopper import CombinedStopper, Stopper

_POSITIONAL_KINDS: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def public_hooks(base: type) -> tuple[str, ...]:
    """Return the names of the public methods that a class itself defines.

    Parameters
    ----------
    base : type
        The class. Methods that it inherits are not included.

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
    instance: object,
    base: type,
    hooks: Iterable[str],
    *,
    by_name: bool = False,
    more: Mapping[str, tuple[str, ...]] | None = None,
    hint: str = "",
) -> None:
    """Raise ConfigError if a method does not accept the arguments of the base class's method.

    Without this check the method would fail in the middle of an experiment. A method that dasktune
    can call is never rejected.

    Parameters
    ----------
    name : str
        Name of the argument by which the user passed the object.
    instance : object
        The user's object, whose class is derived from `base`.
    base : type
        The base class, whose methods have the right arguments.
    hooks : iterable of str
        Names of the methods to check.
    by_name : bool, default=False
        Whether the methods are called with keyword arguments.
    more : mapping of str to tuple of str, optional
        Names of further keyword arguments, by the name of the method.
    hint : str, default=""
        Further sentences for the message.

    Raises
    ------
    ConfigError
        If a method does not accept its arguments. The message shows the right signature of each.

    Examples
    --------
    >>> class Base:
    ...     def on_result(self, trial, result): pass
    >>> class Mine(Base):
    ...     def on_result(self, runner, trial, result): pass
    >>> check_hooks("scheduler", Mine(), Base, ["on_result"])
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: scheduler must be an object whose methods accept the arguments \
that dasktune passes, got Mine with on_result(self, runner, trial, result). Write: \
def on_result(self, trial, result).
    """
    wrong = [
        hook
        for hook in hooks
        if not _accepts(instance, base, hook, by_name=by_name, more=(more or {}).get(hook, ()))
    ]
    if not wrong:
        return
    found = ", ".join(_signature_text(getattr(type(instance), hook), hook) for hook in wrong)
    expected = "; ".join(f"def {_signature_text(getattr(base, hook), hook)}" for hook in wrong)
    raise ConfigError(
        f"{name} must be an object whose methods accept the arguments that dasktune passes, got "
        f"{type(instance).__name__} with {found}. Write: {expected}.{' ' if hint else ''}{hint}"
    )


def _accepts(instance: object, base: type, hook: str, *, by_name: bool, more: tuple[str, ...]) -> bool:
    if getattr(type(instance), hook, None) is getattr(base, hook):
        return True
    parameters = list(inspect.signature(getattr(base, hook)).parameters.values())[1:]
    passed = [one.name for one in parameters if one.kind in _POSITIONAL_KINDS]
    try:
        signature = inspect.signature(getattr(instance, hook))
    except (AttributeError, TypeError, ValueError):
        return True  # a callable without a signature cannot be checked
    keywords: dict[str, Any] = dict.fromkeys(more)
    try:
        if by_name:
            signature.bind(**dict.fromkeys(passed), **keywords)
        else:
            signature.bind(*passed, **keywords)
    except TypeError:
        return False
    return True


def _signature_text(function: Any, name: str) -> str:
    """Return a method's name and arguments, without annotations."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return f"{name}(...)"
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    return f"{name}{inspect.Signature(plain)}"


_SCHEDULER_HOOKS: Final = public_hooks(TrialScheduler)
_STOPPER_HOOKS: Final = public_hooks(Stopper)
_SEARCHER_HOOKS: Final = (
    "set_search_properties",
    "suggest",
    "on_trial_result",
    "on_trial_complete",
    "on_pause",
    "on_unpause",
)

_SCHEDULER_HINT: Final = (
    "dasktune does not pass its runner to a scheduler: on_trial_result() returns Continue(), "
    'Pause("why") or Stop("why"), and choose_trial_to_run() returns one of waiting.pending or '
    "waiting.paused."
)


def check_scheduler(scheduler: TrialScheduler) -> None:
    """Check the methods of a scheduler, and of the scheduler that it wraps.

    Parameters
    ----------
    scheduler : TrialScheduler
        The user's scheduler.

    Raises
    ------
    ConfigError
        If one of its methods cannot be called as an experiment calls it.
    """
    check_hooks("scheduler", scheduler, TrialScheduler, _SCHEDULER_HOOKS, hint=_SCHEDULER_HINT)
    inner = getattr(scheduler, "base_scheduler", None)
    if isinstance(inner, TrialScheduler):
        check_scheduler(inner)


def check_searcher(searcher: Searcher) -> None:
    """Check the methods of a searcher, and of the searcher that it wraps.

    Parameters
    ----------
    searcher : Searcher
        The user's searcher.

    Raises
    ------
    ConfigError
        If one of its methods cannot be called as an experiment calls it.
    """
    more = {"set_search_properties": ("seed", "num_samples")}
    check_hooks("search_alg", searcher, Searcher, _SEARCHER_HOOKS, more=more)
    inner = getattr(searcher, "searcher", None)
    if isinstance(inner, Searcher):
        check_searcher(inner)


def check_stopper(stopper: Stopper) -> None:
    """Check the methods of a stopper, and of each stopper that it combines.

    Parameters
    ----------
    stopper : Stopper
        The user's stopper.

    Raises
    ------
    ConfigError
        If one of its methods cannot be called as an experiment calls it.
    """
    check_hooks("stop", stopper, Stopper, _STOPPER_HOOKS)
    if isinstance(stopper, CombinedStopper):
        for one in stopper.stoppers:
            check_stopper(one)
