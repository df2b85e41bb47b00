"""What ``help(tune.run)`` shows: every argument, in the words of its configuration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Any, Final, TypeVar

from dasktune.classic.options import HOMES, OLDER

__all__ = ["listing_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: A parameter in a docstring of numpydoc: ``name : type``, and the lines below that stand deeper.
_PARAMETER: Final = r"^{indent}{name} :.*\n(?:^{indent}[ ]+.*\n|^\n(?=^{indent}[ ]+))*"

#: What stands for all of them where they are not listed.
_REST: Final = "**options"

#: What no configuration has a field for.
_OWN: Final = """\
config : mapping, optional
    The search space: plain values, domains and ``grid_search``, nested as you like.
resources_per_trial : dict or PlacementGroupFactory, optional
    What a trial needs, such as ``{"cpu": 2, "gpu": 1}``.
"""


def listing_options(function: _Function) -> _Function:
    """Let a function that takes ``**options`` show in their place what they may be.

    Its signature and its docstring are built from the configurations, so that an argument is told
    of in one place.

    Parameters
    ----------
    function : callable
        Whose docstring has a paragraph ``**options`` among the parameters.
    """
    signature = inspect.signature(function)
    # A single experiment takes a name, several have theirs.
    own = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    known = {"name", *(one.name for one in own)}
    more = [one for one in _parameters() if one.name not in known]
    function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    if function.__doc__ is not None:  # "python -OO" has none
        function.__doc__ = _told(function.__doc__, [one.name for one in more])
    return function


def _parameters() -> Iterator[Parameter]:
    for name in ("config", "resources_per_trial"):
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=None)
    for name, home in HOMES.items():
        default = inspect.signature(home).parameters[name].default
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default)
    for name in OLDER:
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=None)


def _told(doc: str, names: list[str]) -> str:
    """Return a docstring in which every argument has its paragraph."""
    indent = " " * (4 if f"\n    {_REST}" in doc else 0)  # Python 3.13 dedents docstrings
    paragraphs = "".join(_paragraph(name) for name in names)
    lines = [indent + line if line else line for line in paragraphs.splitlines()]
    rest = re.compile(rf"^{indent}\*\*options\n(?:^{indent}[ ]+.*\n)*", re.MULTILINE)
    return rest.sub(lambda match: "\n".join(lines) + "\n", doc, count=1)


def _paragraph(name: str) -> str:
    if name in OLDER:
        return f"{name} : optional\n    Ray Tune's older name for `{OLDER[name]}`.\n"
    told = inspect.cleandoc(HOMES[name].__doc__ or "") + "\n" if name in HOMES else _OWN
    pattern = _PARAMETER.format(indent="", name=re.escape(name))
    match = re.search(pattern, told, re.MULTILINE)
    # Some are told of together with others.
    return f"{name} : optional\n    See `{HOMES[name].__name__}`.\n" if match is None else match[0]
