"""Filters, rows and answers that hold for the Python and for the JavaScript implementation."""

from __future__ import annotations

from math import inf, nan

from dasktune.errors import ConfigError
from dasktune.results.trial_filter import parse_filter

#: Names of columns; a row need not have all of them.
COLUMNS = [
    *("loss", "lr", "opt", "name", "flag", "off", "bad", "net/depth", "odd name", "seed"),
    *("layers", "status", "worker", "config/lr", "gone", "or", "high", "l2"),
]

ROWS = {
    "a": {
        "loss": 0.05,
        "lr": 1e-3,
        "config/lr": 1e-3,
        "opt": "adam",
        "name": "Big Model",
        "flag": True,
        "off": False,
        "bad": nan,
        "net/depth": 3,
        "odd name": 1,
        "seed": str(2**60 + 1),
        "layers": "64",
        "status": ["STOPPED", "TERMINATED"],
        "worker": ["tcp://127.0.0.1:4000", "127.0.0.1:4000"],
        "or": 7,
        "high": inf,
        "l2": None,
    },
    "b": {
        "loss": 0.5,
        "lr": "0.001",
        "opt": "SGD",
        "name": "ÄRGER Straße",
        "flag": "false",
        "seed": 5,
        "layers": 64,
        "status": "TERMINATED",
        "worker": "",
        "high": "inf",
        "l2": "none",
    },
    "c": {
        "loss": 1e-7,
        "lr": 1e-05,
        "opt": "",
        "name": "x < 1",
        "flag": "True",
        "layers": "[64, 64]",
        "status": "ERROR",
        "l2": "l2",
        "high": -3,
    },
}

#: Filters and the rows for which they hold.
CASES = [
    ("loss < 0.1", "ac"),
    ("loss<0.1 and lr>1e-4", "a"),
    ("loss<0.1 lr>1e-4", "a"),
    ("loss > 1 or lr > 1e-4", "ab"),
    ("not loss > 0.1", "ac"),
    ("not (loss > 0.1 or lr > 1e-4)", "c"),
    ("loss > 1 and lr > 1 or opt == 'adam'", "a"),
    ("opt == 'adam' or loss > 1 and lr > 1", "a"),
    ("(opt == adam or loss > 1) and lr > 1", ""),
    ("0 < loss <= 0.05 < 1", "ac"),
    ("0.05 == loss", "a"),
    ("loss = 5e-2", "a"),
    ("loss:.05", "a"),
    ("loss != -.5", "abc"),
    ("loss != 0.5", "ac"),
    # A text that is spelled like a number is one, on either side.
    ("layers == 64", "ab"),
    ("layers == '64'", "ab"),
    ("layers:64.0", "ab"),
    ("layers = 6_4", "ab"),
    ("layers > 8", "ab"),
    ("layers > '8'", "ab"),
    ("layers in ['64', 128]", "ab"),
    ("layers == '[64, 64]'", "c"),
    ("layers ~ 64", "abc"),
    ("lr == 0.001", "ab"),
    ("lr == config/lr", "a"),
    ("config/lr = lr", "a"),
    ("net/depth >= 3", "a"),
    ("seed == 1152921504606846977", "a"),
    ("seed != 1152921504606846976", "abc"),
    ("seed > 1152921504606846976", "a"),
    ("seed < 1e30", "ab"),
    # Upper and lower case, and spaces around a text.
    ("opt in ['sgd', \"ADAM\"]", "ab"),
    ("opt in [sgd, adam]", "ab"),
    ("opt not in (sgd, lion)", "ac"),
    ("not opt in (sgd, lion)", "ac"),
    ("opt > 'a'", "ab"),
    ("opt < b", "a"),
    ("opt == ' adam '", "a"),
    ("name ~ 'big'", "a"),
    ("name ~ STRASSE or name ~ straße", "b"),
    ("name ~ ärger", "b"),
    ("name == 'x < 1'", "c"),
    ("opt < 3", ""),
    ("opt >= 3", ""),
    ("'adam' = opt", "a"),
    # Missing values.
    ("gone == null", "abc"),
    ("gone != 3", "abc"),
    ("gone < 3", ""),
    ("gone ~ n", ""),
    ("gone == opt", "c"),
    ("bad == nan", "abc"),
    ("bad != bad", ""),
    ("bad < 1 or bad >= 1", ""),
    ("opt == none", "c"),
    ("opt != null", "ab"),
    ("l2 == none", "ab"),
    ("l2 in [none, l1]", "ab"),
    ("l2 = l2", "abc"),
    ("l2 = 'l2'", "c"),
    # Truth.
    ("flag", "ac"),
    ("not flag", "b"),
    ("flag == true", "ac"),
    ("flag == 1", ""),
    ("flag > 0", ""),
    ("off = false", "a"),
    ("off", ""),
    ("opt", ""),
    ("true", "abc"),
    ("null or FALSE", ""),
    # Infinity.
    ("loss < inf and loss > -inf", "abc"),
    ("high == inf", "ab"),
    ("high < Infinity", "c"),
    ("high ~ infinity", "a"),
    # Several values.
    ("status:STOPPED", "a"),
    ("status = TERMINATED", "ab"),
    ("status != terminated", "c"),
    ("status in [stopped, error]", "ac"),
    ("worker:127.0.0.1:4000", "a"),
    ("worker:tcp://127.0.0.1:4000", "a"),
    ("(worker:127.0.0.1:4000)", "a"),
    ("worker ~ 127.0", "a"),
    # Numbers as texts.
    ("lr ~ 0.00001", "c"),
    ("loss ~ e-7", "c"),
    ("loss ~ '0.0'", "a"),
    # Names.
    ("`odd name` == 1", "a"),
    ("'odd name' >= 1", "a"),
    ("`or` = 7", "a"),
    ("'or' = 7", "a"),
    ("LOSS", ""),
    # Words that are searched for in all texts.
    ("adam", "a"),
    ("'x < 1'", "c"),
    ("model big", "a"),
    ("64", "abc"),
    ("`no column`", ""),
    ("loss < 1 64 or nothing-like-it", "abc"),
    ("__import__('os').system('true')", ""),
    ("constructor", ""),
    ("loss not 3", ""),
    ("NOT loss > 1 AND opt IN [adam] OR opt = none", "ac"),
    ("\u00a0loss\t<\n0.1\ufeff", "ac"),
    (f"loss < {'9' * 500}", "abc"),
]

#: Invalid filters, and what both implementations say about them.
ERRORS = [
    ("", "filter must have a column or a word at character 1, got the end"),
    ("loss <", "filter must have a column, a number or a text at character 7, got the end"),
    ("loss < and", 'filter must have a column, a number or a text at character 8, got "and"'),
    ("loss < 1 and", "filter must have a column or a word at character 13, got the end"),
    ("(loss < 0.1", "filter must have ')' at character 12, got the end"),
    ("loss < 1)", "filter must have 'and', 'or' or the end at character 9, got \")\""),
    ("> 1", 'filter must have a column or a word at character 1, got ">"'),
    (
        "loss in 3",
        "filter must have a list such as ['a', 'b'] after 'in' at character 9, got \"3\"",
    ),
    ("loss in [3", "filter must have ',' or ']' at character 11, got the end"),
    ("loss in (3]", "filter must have ',' or ')' at character 11, got \"]\""),
    ("opt = 'adam", "filter must have a closing ' for the quote at character 7"),
    ("`opt", "filter must have a closing ` for the quote at character 1"),
    ("loss ! 1", 'filter must have a comparison at character 6, got "! 1"'),
    ("and", 'filter must have a column or a word at character 1, got "and"'),
    (
        "los < 1",
        'filter must have a column in the comparison at character 1, got "los < 1".'
        ' Did you mean "loss"? Columns: ',
    ),
    (
        "`ops` = adam",
        'filter must have a column at character 1, got "`ops`". Did you mean "opt"? Columns: ',
    ),
    (
        "zzz = 1",
        'filter must have a column in the comparison at character 1, got "zzz = 1". Columns: ',
    ),
    (
        "0 < los < 1",
        'filter must have a column in the comparison at character 1, got "0 < los < 1".',
    ),
    ("1 = 1", 'filter must have a column in the comparison at character 1, got "1 = 1".'),
    ("constructor:1", "filter must have a column in the comparison at character 1, got"),
    ("loss < `x`", 'filter must have a column at character 8, got "`x`".'),
    (
        "\U0001f600 x = 1",
        'filter must have a column in the comparison at character 3, got "x = 1".',
    ),
    ("(" * 60 + "loss" + ")" * 60, "filter must be nested at most 50 deep"),
    ("not " * 60 + "loss", "filter must be nested at most 50 deep"),
    ("a" * 20_000, "filter must have at most 10000 characters, got 20000"),
]


def text_of(row):
    """Return the text of a row in which words are searched for."""
    return " ".join(str(row[name]) for name in ("opt", "name", "layers"))


READERS = {name: (lambda row, name=name: row.get(name)) for name in COLUMNS}


def answer(text):
    """Return the rows for which a filter holds, or its error."""
    try:
        holds = parse_filter(text, READERS, text_of)
    except ConfigError as error:
        return str(error)
    return "".join(key for key, row in ROWS.items() if holds(row))
