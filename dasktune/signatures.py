"""Whether what a user has derived from a class of ours can be called as we call it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from dasktune.errors import ConfigError

__all__ = ["check_hooks", "public_hooks"]

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def public_hooks(base: type) -> tuple[str, ...]:
    """Return the names of the methods that a class has for others to call and to override.

    Parameters
    ----------
    base : type
        The class; what it inherits is left out.

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
    """Refuse an object of a derived class if one of its methods cannot be called as we call it.

    What fails here would fail in the midst of an experiment. What would not is never refused.

    Parameters
    ----------
    name : str
        The argument as the user typed it.
    thing : object
        What the user gave.
    base : type
        The class that it is derived from, whose methods have the right arguments.
    hooks : iterable of str
        Names of the methods.
    by_name : bool, default=False
        Whether they are called with arguments by name.
    more : mapping of str to tuple of str, optional
        Names of arguments that a method is given besides, by the name of the method.
    hint : str, default=""
        What else differs, as sentences.

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
        return True  # nobody can tell
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
    """Return a method as it is written, without its types."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return f"{name}(...)"
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    return f"{name}{inspect.Signature(plain)}"
