"""Checks that nested dicts and lists end: that none of them contains itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dasktune.errors import ConfigError

#: Maximum number of containers inside each other. Functions that walk through spaces and metrics
#: are recursive, and Python allows about 1,000 nested calls.
_MAX_DEPTH: Final = 100


def check_nesting(value: object, name: str) -> None:
    """Check that mappings, lists and tuples do not contain themselves, and are not nested too deep.

    Takes O(n) time for n values in containers, without recursion.

    Parameters
    ----------
    value : object
        The value; only mappings, lists and tuples are opened.
    name : str
        The name of the value in error messages.

    Raises
    ------
    ConfigError
        If a container contains itself, or containers are nested more than 100 levels deep.

    Examples
    --------
    >>> space = {"model": {"layers": [1, 2]}}
    >>> check_nesting(space, "param_space")
    >>> space["model"]["parent"] = space
    >>> check_nesting(space, "param_space")
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: param_space['model']['parent'] must be a value that does not \
contain itself, got param_space, which contains it. Copy what is needed of it
    """
    if not isinstance(value, Mapping | list | tuple):
        return
    #: The open containers from the root on: their keys, their identities and their other children.
    keys: list[object] = []
    above = [id(value)]
    rest = [_children(value)]
    #: Containers without a cycle below them. `value` keeps all of them alive, so ids stay unique.
    checked: set[int] = set()
    while rest:
        for key, child in rest[-1]:
            number = id(child)
            if not isinstance(child, Mapping | list | tuple) or number in checked:
                continue
            if number in above:
                ancestor = _name(name, keys[: above.index(number)])
                raise ConfigError(
                    f"{_name(name, [*keys, key])} must be a value that does not contain itself, got "
                    f"{ancestor}, which contains it. Copy what is needed of it"
                )
            if len(above) >= _MAX_DEPTH:
                raise ConfigError(
                    f"{name} must be nested at most {_MAX_DEPTH} levels deep, got more below "
                    f"{_name(name, keys[:3])}"
                )
            keys.append(key)
            above.append(number)
            rest.append(_children(child))
            break
        else:
            rest.pop()
            checked.add(above.pop())
            if keys:
                keys.pop()


def _children(container: Any) -> Iterator[tuple[object, Any]]:
    pairs: Iterable[tuple[object, Any]]
    pairs = container.items() if isinstance(container, Mapping) else enumerate(container)
    return iter(pairs)


def _name(root: str, keys: Iterable[object]) -> str:
    return root + "".join(f"[{key!r}]" for key in keys)
