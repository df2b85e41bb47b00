"""The text of a call, with which people see how an object was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import Repr
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

#: What a class inherits that says nothing about its objects.
_NO_REPR: Final[Any] = object.__repr__


class _ArgumentRepr(Repr):
    """Bounded texts of arguments, without the addresses of objects in memory."""

    def repr_instance(self, x: Any, level: int) -> str:  # named by `Repr`
        if isinstance(x, type | FunctionType | BuiltinFunctionType | MethodType):
            return x.__qualname__
        if type(x).__repr__ is _NO_REPR:
            return f"<{type(x).__qualname__}>"
        return super().repr_instance(x, level)


_argument: Final = _ArgumentRepr()
_argument.maxstring = _argument.maxother = 100
_argument.maxdict = _argument.maxlist = _argument.maxtuple = 12
_argument.maxlevel = 4


def call_text(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the call of `name` with these arguments as one text.

    Parameters
    ----------
    name : str
        The name of what is called.
    args : sequence
        The positional arguments.
    kwargs : mapping of str to object
        The keyword arguments. Long values are shortened; functions and classes are named.

    Examples
    --------
    >>> call_text("range", (1, 5), {})
    'range(1, 5)'
    >>> call_text("sorted", ([3, 1],), {"key": abs})
    'sorted([3, 1], key=abs)'
    """
    shown = [_argument.repr(value) for value in args]
    shown += [f"{key}={_argument.repr(value)}" for key, value in kwargs.items()]
    return f"{name}({', '.join(shown)})"
