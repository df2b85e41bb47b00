"""Conditions on trials, such as ``loss < 0.1 and lr > 1e-4``: parsed by hand, never evaluated.

::

    condition   ::= both ("or" both)*
    both        ::= negation ("and" negation)*
    negation    ::= "not" negation | "(" condition ")" | comparison
    comparison  ::= operand (("<" | "<=" | ">" | ">=" | "==" | "!=" | "~") operand)+
                  | operand ["not"] "in" "[" operand ("," operand)* "]"
                  | operand
    operand     ::= column | `column` | number | "text" | true | false | null | nan | inf

``~`` is "contains", in any case of letters. A comparison with what a trial does not have is false,
but for ``== null`` and ``!=``. An operand by itself holds if it is true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, nan
from typing import Any, Final, NoReturn

from dasktune.errors import ConfigError
from dasktune.trial.metrics import number

__all__ = ["Condition", "parse_condition"]

#: Characters of a condition, and how deep its parentheses may go.
_LONGEST: Final = 10_000
_DEEPEST: Final = 50

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<text>"[^"]*"|'[^']*')
    | (?P<quoted>`[^`]+`)
    | (?P<operator><=|>=|==|!=|=|<|>|~|\(|\)|\[|\]|,)
    | (?P<word>-?[^\W\d][\w./-]*)
    )""",
    re.VERBOSE,
)

_CONSTANTS: Final = {
    "true": True,
    "false": False,
    "null": None,
    "none": None,
    "nan": nan,
    "inf": inf,
    "-inf": -inf,
}

#: Gives the value of a column, None if there is none.
Lookup = Callable[[str], Any]
_Test = Callable[[Lookup], bool]
_Operand = Callable[[Lookup], Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a trial.

    Parameters
    ----------
    holds : callable
        Whether it does, of a function that gives the values of columns.
    names : tuple of str
        The columns that it speaks of.
    """

    holds: Callable[[Lookup], bool]
    names: tuple[str, ...]


def parse_condition(text: str, resolve: Callable[[str], str] = str) -> Condition:
    """Return what a condition means.

    Parameters
    ----------
    text : str
        As the top of this module says.
    resolve : callable, optional
        Returns the full name of a column, or raises.

    Raises
    ------
    ConfigError
        If it is no condition. The message says where.

    Examples
    --------
    >>> condition = parse_condition("loss < 0.1 and not (lr > 1e-4 or opt in ['sgd', 'adam'])")
    >>> condition.names
    ('loss', 'lr', 'opt')
    >>> condition.holds({"loss": 0.05, "lr": 1e-5, "opt": "lion"}.get)
    True
    """
    parser = _Parser(text, resolve)
    return Condition(parser.whole(), tuple(dict.fromkeys(parser.names)))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            rest = text[at:].strip()
            raise ConfigError(f"filter must be a condition, got {text!r}: {rest[:20]!r} is none")
        yield _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup))
        at = found.end()
    yield _Token("end", "the end", end)


class _Parser:
    """Descends a condition once, from left to right."""

    def __init__(self, text: str, resolve: Callable[[str], str]) -> None:
        if len(text) > _LONGEST:
            raise ConfigError(f"filter must be at most {_LONGEST} characters, got {len(text)}")
        self._text, self._resolve = text, resolve
        self._tokens = list(_tokens(text))
        self._at = self._depth = 0
        #: Full names of the columns, as they come.
        self.names: list[str] = []

    def whole(self) -> _Test:
        """Return the test that the text is."""
        test = self._condition()
        if self._next.kind != "end":
            self._refuse("'and', 'or' or the end")
        return test

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _takes(self, *texts: str) -> str:
        """Take the next token if it is one of these, and return it; empty if it is not."""
        token = self._next
        word = token.text.lower() if token.kind == "word" else token.text
        if token.kind not in ("word", "operator") or word not in texts:
            return ""
        self._at += 1
        return word

    def _refuse(self, wanted: str) -> NoReturn:
        token = self._next
        raise ConfigError(
            f"filter must have {wanted} at character {token.at + 1}, got {token.text!r} in "
            f"{self._text!r}"
        )

    def _condition(self) -> _Test:
        tests = [self._both()]
        while self._takes("or"):
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda row: any(test(row) for test in tests)

    def _both(self) -> _Test:
        tests = [self._negation()]
        while self._takes("and"):
            tests.append(self._negation())
        return tests[0] if len(tests) == 1 else lambda row: all(test(row) for test in tests)

    def _negation(self) -> _Test:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ConfigError(f"filter must be nested at most {_DEEPEST} deep, got {self._text!r}")
        try:
            if self._takes("not"):
                denied = self._negation()
                return lambda row: not denied(row)
            if self._takes("("):
                inner = self._condition()
                if not self._takes(")"):
                    self._refuse("')'")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> _Test:
        left = self._operand()
        if self._takes("not"):
            if not self._takes("in"):
                self._refuse("'in' after 'not'")
            within = self._membership(left)
            return lambda row: not within(row)
        if self._takes("in"):
            return self._membership(left)
        tests: list[_Test] = []
        while operator := self._takes(*_COMPARISONS):
            right = self._operand()
            tests.append(_compared(_COMPARISONS[operator], left, right))
            left = right
        if not tests:
            return lambda row: left(row) is True
        return tests[0] if len(tests) == 1 else lambda row: all(test(row) for test in tests)

    def _membership(self, left: _Operand) -> _Test:
        closing = {"[": "]", "(": ")"}.get(self._takes("[", "("), "")
        if not closing:
            self._refuse("a list such as ['a', 'b'] after 'in'")
        members = [self._operand()]
        while self._takes(","):
            members.append(self._operand())
        if not self._takes(closing):
            self._refuse(f"',' or {closing!r}")
        return lambda row: any(_is_equal(left(row), member(row)) for member in members)

    def _operand(self) -> _Operand:
        token = self._next
        if token.kind in ("operator", "end") or token.text.lower() in ("and", "or", "not", "in"):
            self._refuse("a column, a number or a text")
        self._at += 1
        if token.kind == "number":
            whole = token.text.lstrip("+-").replace("_", "").isdigit()
            return _constant(int(token.text) if whole else float(token.text))
        if token.kind == "text":
            return _constant(token.text[1:-1])
        if token.kind == "word" and token.text.lower() in _CONSTANTS:
            return _constant(_CONSTANTS[token.text.lower()])
        name = self._resolve(token.text.strip("`"))
        self.names.append(name)
        return lambda row: row(name)


def _constant(value: Any) -> _Operand:
    return lambda row: value


def _compared(compare: Callable[[Any, Any], bool], left: _Operand, right: _Operand) -> _Test:
    return lambda row: compare(left(row), right(row))


def _is_equal(one: Any, other: Any) -> bool:
    # To Python True is 1.
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Let numbers be compared with numbers and texts with texts; all else is false."""

    def compared(one: Any, other: Any) -> bool:
        if isinstance(one, str) and isinstance(other, str):
            return compare(one, other)
        real, imposed = _real(one), _real(other)
        return real is not None and imposed is not None and compare(real, imposed)

    return compared


def _real(value: Any) -> float | None:
    return None if isinstance(value, bool | str) else number(value)


def _contains(one: Any, other: Any) -> bool:
    return isinstance(one, str) and str(other).casefold() in one.casefold()


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": _ordered(lambda one, other: bool(one < other)),
    "<=": _ordered(lambda one, other: bool(one <= other)),
    ">": _ordered(lambda one, other: bool(one > other)),
    ">=": _ordered(lambda one, other: bool(one >= other)),
    "==": _is_equal,
    "=": _is_equal,
    "!=": lambda one, other: not _is_equal(one, other),
    "~": _contains,
}
