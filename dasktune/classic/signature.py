"""The signature and docstring of ``tune.run``, derived from those of the configurations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Any, Final, TypeVar

from dasktune.classic.options import FIELD_CONFIGS, OLD_NAMES

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: A parameter in a numpydoc docstring: ``name : type`` and the indented lines below it.
_PARAMETER: Final = r"^{indent}{name} :.*\n(?:^{indent}[ ]+.*\n|^\n(?=^{indent}[ ]+))*"

#: The placeholder for all options in a docstring.
_PLACEHOLDER: Final = "**options"

#: The paragraphs of arguments that are not fields of a configuration.
_EXTRA_DOCS: Final = """\
config : mapping, optional
    The search space: plain values, domains and ``grid_search``, in any nesting.
resources_per_trial : dict or PlacementGroupFactory, optional
    The resources of a trial, such as ``{"cpu": 2, "gpu": 1}``.
"""


def document_options(function: _Function) -> _Function:
    """Replace ``**options`` of a function by all options, in its signature and its docstring.

    Both are built from the configurations, so that each argument is documented in one place.

    Parameters
    ----------
    function : callable
        A function whose docstring has a paragraph ``**options`` among the parameters.
    """
    signature = inspect.signature(function)
    # `run` has its own parameter `name`; `run_experiments` has none, because each of its
    # experiments has a name.
    own = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    known = {"name", *(one.name for one in own)}
    more = [one for one in _parameters() if one.name not in known]
    function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    if function.__doc__ is not None:  # "python -OO" has none
        function.__doc__ = _with_paragraphs(function.__doc__, [one.name for one in more])
    return function


def _parameters() -> Iterator[Parameter]:
    for name in ("config", "resources_per_trial"):
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=None)
    for name, home in FIELD_CONFIGS.items():
        default = inspect.signature(home).parameters[name].default
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default)
    for name in OLD_NAMES:
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=None)


def _with_paragraphs(doc: str, names: list[str]) -> str:
    """Return a docstring with a paragraph for each option instead of the placeholder."""
    indent = " " * (4 if f"\n    {_PLACEHOLDER}" in doc else 0)  # Python 3.13 dedents docstrings
    paragraphs = "".join(_paragraph(name) for name in names)
    lines = [indent + line if line else line for line in paragraphs.splitlines()]
    rest = re.compile(rf"^{indent}\*\*options\n(?:^{indent}[ ]+.*\n)*", re.MULTILINE)
    return rest.sub(lambda match: "\n".join(lines) + "\n", doc, count=1)


def _paragraph(name: str) -> str:
    if name in OLD_NAMES:
        return f"{name} : optional\n    Ray Tune's older name for `{OLD_NAMES[name]}`.\n"
    docs = (
        inspect.cleandoc(FIELD_CONFIGS[name].__doc__ or "") + "\n" if name in FIELD_CONFIGS else _EXTRA_DOCS
    )
    pattern = _PARAMETER.format(indent="", name=re.escape(name))
    match = re.search(pattern, docs, re.MULTILINE)
    # A parameter that is documented together with others has no paragraph of its own.
    return f"{name} : optional\n    See `{FIELD_CONFIGS[name].__name__}`.\n" if match is None else match[0]
