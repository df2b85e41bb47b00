"""The filter language for trials: ``loss < 0.1 and lr > 1e-4``, ``status:ERROR``, ``adam``.

This module defines the language. ``dasktune/dashboard/report/trial_filter.js`` implements the same
language for the table in a browser, which has no Python; one table of examples tests both. A filter
is parsed and interpreted, never evaluated as Python or JavaScript::

    filter      ::= all ("or" all)*
    all         ::= negation (["and"] negation)*
    negation    ::= "not" negation | "(" filter ")" | condition
    condition   ::= operand (comparison operand)+ | operand ["not"] "in" list | word
    list        ::= "[" operand ("," operand)* "]" | "(" operand ("," operand)* ")"
    comparison  ::= "<" | "<=" | ">" | ">=" | "==" | "=" | ":" | "!=" | "~"
    operand     ::= column | `column` | number | word | "text" | 'text'

Operands
    A word is a number, ``true``, ``false``, ``null`` (also ``none`` and ``nan``), a column, or else
    a text. A quoted text is a column only if it is the first operand of a condition. Each condition
    with a comparison needs a column. After ``:`` everything up to the next space is a text.

Words without a comparison
    A column by itself holds where its value is true. Any other word or quoted text is searched for
    in all texts of a trial.

Comparing values of different types
    Values are compared as they are spelled, so it does not matter whether a parameter is the number
    64 or the text "64". Spaces around a text do not count, nor does upper or lower case.

    - Nothing, NaN and the texts "", "null", "none" and "nan" are missing. A missing value equals
      only missing values; every other comparison with it is false, except ``!=``.
    - Numbers, and texts that are spelled like numbers, are compared as numbers, integers exactly.
    - All other texts are compared as texts, by UTF-16 code units; true and false are texts, too.
    - A number and a text are never equal, and neither is less than the other.
    - ``a ~ b`` holds if the text of ``a`` contains the text of ``b``; a missing value has no text.
    - A column may have several values for a trial, such as the status of a trial that was stopped
      early: STOPPED and TERMINATED. A comparison holds if it holds for one of them; ``!=`` is
      ``not ==``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from math import inf, isfinite, isnan
from typing import Any, Final, Generic, NoReturn, TypeVar

from dasktune.errors import ConfigError
from dasktune.text.formatting import first_few
from dasktune.trial.metrics import number

Row = TypeVar("Row")

#: Maximum length of a filter in characters, and maximum depth of its nesting.
_MAX_LENGTH: Final = 10_000
_MAX_DEPTH: Final = 50
#: Columns that a message lists, and characters that it quotes.
_MAX_LISTED: Final = 40
_MAX_QUOTED: Final = 40
#: An integer with more digits is compared as a float.
_MAX_DIGITS: Final = 400

# Python and JavaScript disagree about which characters are spaces, so the language lists its own.
_SPACES: Final = " \t\r\n\f\v\u00a0\ufeff"
_TOKEN: Final = re.compile(
    rf"""[{_SPACES}]*(?:"""
    r"""(?P<text>"[^"]*"|'[^']*')"""
    r"""|(?P<column>`[^`]+`)"""
    r"""|(?P<operator><=|>=|==|!=|=|<|>|~|:|\(|\)|\[|\]|,)"""
    rf"""|(?P<word>[^{_SPACES}<>=!~:()\[\],"'`]+))"""
)
# A value after a colon may contain operators, as addresses do.
_COLON_VALUE: Final = re.compile(rf"""[{_SPACES}]*([^{_SPACES}()"'`]+)""")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:e[+-]?[0-9]+)?")
_INFINITY: Final = re.compile(r"[+-]?inf(?:inity)?")
_MISSING: Final = frozenset({"", "null", "none", "nan"})
_KEYWORDS: Final = ("and", "or", "not", "in")

#: A value as it is compared: None if it is missing.
_Value = int | float | str | None


def parse_filter(
    text: str, columns: Mapping[str, Callable[[Row], Any]], text_of: Callable[[Row], str]
) -> Callable[[Row], bool]:
    """Return a function that says whether a filter holds for a row.

    Parameters
    ----------
    text : str
        The filter, in the language that is described at the top of this module.
    columns : mapping of str to callable
        For each name of a column the function that returns its value for a row: None, a bool, a
        number, a text, or a list of several of them.
    text_of : callable
        Returns the texts of a row, in which words without a comparison are searched for.

    Raises
    ------
    ConfigError
        If the filter is not valid. The message says what was expected and where.

    Examples
    --------
    >>> columns = {name: lambda row, name=name: row.get(name) for name in ("loss", "lr", "opt")}
    >>> text = "loss < 0.1 and not (lr > 1e-4 or opt in [sgd, adam])"
    >>> holds = parse_filter(text, columns, str)
    >>> holds({"loss": 0.05, "lr": 1e-5, "opt": "lion"}), holds({"loss": 0.05, "opt": "SGD"})
    (True, False)
    """
    return _FilterParser(text, columns, text_of).parse()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Operand(Generic[Row]):
    values: Callable[[Row], Sequence[Any]]
    is_column: bool


class _FilterParser(Generic[Row]):
    """Recursive-descent parser: each method parses one rule of the grammar."""

    def __init__(
        self, text: str, columns: Mapping[str, Callable[[Row], Any]], text_of: Callable[[Row], str]
    ) -> None:
        if len(text) > _MAX_LENGTH:
            raise ConfigError(f"filter must have at most {_MAX_LENGTH} characters, got {len(text)}")
        self._text, self._columns, self._text_of = text, columns, text_of
        self._tokens = _tokenize(text)
        self._at = self._depth = 0

    def parse(self) -> Callable[[Row], bool]:
        test = self._any()
        if self._next.kind != "end":
            self._refuse("'and', 'or' or the end")
        return test

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _accept(self, *texts: str) -> str:
        """Consume the next token if it is one of these keywords or operators, and return it."""
        token = self._next
        if not _is_one_of(token, *texts):
            return ""
        self._at += 1
        return token.text.lower()

    def _refuse(self, wanted: str) -> NoReturn:
        token = self._next
        got = "the end" if token.kind == "end" else _quoted(token.text)
        raise ConfigError(f"filter must have {wanted} at character {token.start + 1}, got {got}")

    def _refuse_column(self, what: str, start: int, end: int, name: str) -> NoReturn:
        close = get_close_matches(name, self._columns, 1)
        hint = f" Did you mean {_quoted(close[0])}?" if close else ""
        raise ConfigError(
            f"filter must have {what} at character {start + 1}, "
            f"got {_quoted(self._text[start:end])}.{hint} "
            f"Columns: {first_few(list(self._columns), _MAX_LISTED)}"
        )

    def _any(self) -> Callable[[Row], bool]:
        tests = [self._all()]
        while self._accept("or"):
            tests.append(self._all())
        return tests[0] if len(tests) == 1 else lambda row: any(test(row) for test in tests)

    def _all(self) -> Callable[[Row], bool]:
        tests = [self._negation()]
        while self._accept("and") or not (self._next.kind == "end" or _is_one_of(self._next, "or", ")")):
            tests.append(self._negation())
        return tests[0] if len(tests) == 1 else lambda row: all(test(row) for test in tests)

    def _negation(self) -> Callable[[Row], bool]:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ConfigError(f"filter must be nested at most {_MAX_DEPTH} deep")
        try:
            if self._accept("not"):
                negated = self._negation()
                return lambda row: not negated(row)
            if self._accept("("):
                inner = self._any()
                if not self._accept(")"):
                    self._refuse("')'")
                return inner
            return self._condition()
        finally:
            self._depth -= 1

    def _condition(self) -> Callable[[Row], bool]:
        token = self._next
        if token.kind in ("operator", "end") or _is_one_of(token, *_KEYWORDS):
            self._refuse("a column or a word")
        following = self._tokens[self._at + 1]
        negates = _is_one_of(following, "not") and _is_one_of(self._tokens[self._at + 2], "in")
        if not (negates or _is_one_of(following, "in", *_COMPARISONS)):
            self._at += 1
            return self._word(token)
        left = self._operand(is_first=True)
        tests: list[Callable[[Row], bool]]
        if negates or _is_one_of(following, "in"):
            self._at += 2 if negates else 1
            members = self._members()
            operands, tests = [left, *members], [_membership(left, members, negates)]
        else:
            operands, tests = [left], []
            while self._next.kind == "operator" and self._next.text in _COMPARISONS:
                compare = _COMPARISONS[self._accept(self._next.text)]
                operands.append(self._operand())
                tests.append(_comparison(compare, operands[-2], operands[-1]))
        if not any(operand.is_column for operand in operands):
            end = self._tokens[self._at - 1].end
            self._refuse_column("a column in the comparison", token.start, end, token.text)
        return tests[0] if len(tests) == 1 else lambda row: all(test(row) for test in tests)

    def _word(self, token: _Token) -> Callable[[Row], bool]:
        if token.kind == "word" and _is_constant(token.text):
            is_true = token.text.lower() == "true"
            if is_true or not isinstance(_read(token.text), int | float):
                return lambda row: is_true
        elif token.kind in ("word", "column") and token.text in self._columns:
            value_of = self._columns[token.text]
            return lambda row: any(_read(value) == "true" for value in _as_list(value_of(row)))
        text, text_of = token.text.lower(), self._text_of
        return lambda row: text in text_of(row).lower()

    def _members(self) -> list[_Operand[Row]]:
        closing = {"[": "]", "(": ")"}.get(self._accept("[", "("), "")
        if not closing:
            self._refuse("a list such as ['a', 'b'] after 'in'")
        members = [self._operand()]
        while self._accept(","):
            members.append(self._operand())
        if not self._accept(closing):
            self._refuse(f"',' or '{closing}'")
        return members

    def _operand(self, *, is_first: bool = False) -> _Operand[Row]:
        token = self._next
        if token.kind in ("operator", "end") or _is_one_of(token, *_KEYWORDS):
            self._refuse("a column, a number or a text")
        self._at += 1
        may_be_column = {
            "column": True,
            "text": is_first,
            "word": not _is_constant(token.text),
        }[token.kind]
        if may_be_column and token.text in self._columns:
            value_of = self._columns[token.text]
            return _Operand(lambda row: _as_list(value_of(row)), is_column=True)
        if token.kind == "column":
            self._refuse_column("a column", token.start, token.end, token.text)
        return _Operand(lambda row: (token.text,), is_column=False)


def _tokenize(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at, end = 0, len(text.rstrip(_SPACES))
    while at < end:
        follows_colon = bool(tokens) and _is_one_of(tokens[-1], ":")
        found = _COLON_VALUE.match(text, at) if follows_colon else None
        if found is not None:
            tokens.append(_Token("text", found[1], found.start(1), found.end()))
        else:
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                _refuse_character(text, at)
            kind, token = found.lastgroup, found[found.lastgroup]
            start = found.start(found.lastgroup)
            if kind in ("text", "column"):
                token = token[1:-1]
            tokens.append(_Token(kind, token, start, found.end()))
        at = found.end()
    tokens.append(_Token("end", "", end, end))
    return tokens


def _refuse_character(text: str, at: int) -> NoReturn:
    rest = text[at:].lstrip(_SPACES)
    start = len(text) - len(rest)
    if rest[0] in "\"'`":
        raise ConfigError(f"filter must have a closing {rest[0]} for the quote at character {start + 1}")
    raise ConfigError(f"filter must have a comparison at character {start + 1}, got {_quoted(rest)}")


def _quoted(text: str) -> str:
    return f'"{text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 3] + "..."}"'


def _is_one_of(token: _Token, *texts: str) -> bool:
    return token.kind in ("word", "operator") and token.text.lower() in texts


def _is_constant(word: str) -> bool:
    value = _read(word)
    return value in ("true", "false", None) or isinstance(value, int | float)


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _read(value: Any) -> _Value:
    """Return a value as it is compared: a number, a text in lower case, or None if missing."""
    if isinstance(value, str):
        return _read_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    real = value if value is None or isinstance(value, int | float) else number(value)
    if real is None:
        return None if value is None else _read_text(str(value))
    return None if isnan(real) else real


@lru_cache(4096)
def _read_text(text: str) -> _Value:
    text = text.strip(_SPACES).lower()
    if text in _MISSING:
        return None
    if _INFINITY.fullmatch(text):
        return -inf if text[0] == "-" else inf
    if not _NUMBER.fullmatch(text):
        return text
    digits = text.replace("_", "")
    is_whole = digits.lstrip("+-").isdigit() and len(digits) <= _MAX_DIGITS
    return int(digits) if is_whole else float(digits)


def _text(value: Any) -> str | None:
    """Return the text of a value in lower case, None if the value is missing."""
    read = _read(value)
    if read is None or isinstance(read, str):
        return read
    return value.strip(_SPACES).lower() if isinstance(value, str) else number_text(read).lower()


def number_text(value: float) -> str:
    """Return a number as JavaScript writes it, so that a browser finds the same digits in it.

    Examples
    --------
    >>> [number_text(value) for value in (1.0, 0.05, 1e-05, 1e-07, 2.5e21, 2**60 + 1)]
    ['1', '0.05', '0.00001', '1e-7', '2.5e+21', '1152921504606846977']
    """
    if isinstance(value, int) or not isfinite(value):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), str(value))
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    significant = (whole + fraction).lstrip("0")
    # The number is 0.DIGITS times 10 to the power of `point`.
    point = len(whole) + int(power or 0) - (len(whole + fraction) - len(significant))
    digits = significant.rstrip("0") or "0"
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    if 0 < point <= 21:
        text = digits.ljust(point, "0")
        return f"{sign}{text[:point]}{'.' * (len(text) > point)}{text[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def _is_equal(left: Any, right: Any) -> bool:
    # A number never equals a text, and None equals None alone.
    return bool(_read(left) == _read(right))


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a comparison of two numbers or two texts; it is false for any other pair."""

    def compared(left: Any, right: Any) -> bool:
        one, other = _read(left), _read(right)
        if isinstance(one, str) and isinstance(other, str):
            return compare(_code_units(one), _code_units(other))
        if isinstance(one, int | float) and isinstance(other, int | float):
            return compare(one, other)
        return False

    return compared


def _code_units(text: str) -> bytes:
    """Return a key that orders texts as JavaScript does."""
    return text.encode("utf-16-be", "surrogatepass")


def _contains(left: Any, right: Any) -> bool:
    whole, part = _text(left), _text(right)
    return whole is not None and part is not None and part in whole


@dataclass(frozen=True, slots=True)
class _Comparison:
    compare: Callable[[Any, Any], bool]
    negates: bool = False


_COMPARISONS: Final[dict[str, _Comparison]] = {
    "<": _Comparison(_ordered(operator.lt)),
    "<=": _Comparison(_ordered(operator.le)),
    ">": _Comparison(_ordered(operator.gt)),
    ">=": _Comparison(_ordered(operator.ge)),
    "==": _Comparison(_is_equal),
    "=": _Comparison(_is_equal),
    ":": _Comparison(_is_equal),
    "!=": _Comparison(_is_equal, negates=True),
    "~": _Comparison(_contains),
}


def _comparison(comparison: _Comparison, left: _Operand[Row], right: _Operand[Row]) -> Callable[[Row], bool]:
    compare, negates = comparison.compare, comparison.negates

    def test(row: Row) -> bool:
        others = right.values(row)
        return negates is not any(compare(a, b) for a in left.values(row) for b in others)

    return test


def _membership(
    left: _Operand[Row], members: Sequence[_Operand[Row]], negates: bool
) -> Callable[[Row], bool]:
    def test(row: Row) -> bool:
        values = left.values(row)
        others = [value for member in members for value in member.values(row)]
        return negates is not any(_is_equal(a, b) for a in values for b in others)

    return test
