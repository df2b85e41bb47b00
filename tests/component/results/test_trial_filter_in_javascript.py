"""The filter of the report, in JavaScript, is that of the command line."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from importlib.resources import files

import pytest
from filter_cases import CASES, COLUMNS, ERRORS, ROWS, answer, text_of

from dasktune.results.trial_filter import number_text

#: Reads filters and rows as JSON, and writes for each filter its rows or its error.
SCRIPT = """
const {parseFilter, FilterError} = new Function(
  require("fs").readFileSync(process.argv[1], "utf8") + "; return {parseFilter, FilterError}")()
const {texts, names, rows} = JSON.parse(require("fs").readFileSync(0, "utf8"))
const value = (one) => one?.number === undefined ? one : Number(one.number)
const columns = new Map(names.map((name) => [name, (row) => value(row.values[name])]))
console.log(JSON.stringify(texts.map((text) => {
  try {
    const holds = parseFilter(text, columns, (row) => row.text)
    return rows.filter(holds).map((row) => row.key).join("")
  } catch (error) {
    if (!(error instanceof FilterError)) throw error
    return error.message
  }
})))
"""


@pytest.fixture
def in_javascript():
    """Return what answers filters in the JavaScript implementation."""
    node = shutil.which("node")
    if node is None:
        assert not os.environ.get("CI") or shutil.which("chromium"), "node or chromium is needed"
        pytest.skip("needs node; tests/browser has the same test for a browser")
    path = str(files("dasktune.dashboard.report").joinpath("trial_filter.js"))

    def encoded(value):
        return {"number": str(value)} if type(value) is float else value

    def answers(texts):
        rows = [
            {
                "key": key,
                "values": {name: encoded(value) for name, value in row.items()},
                "text": text_of(row),
            }
            for key, row in ROWS.items()
        ]
        told = json.dumps({"texts": texts, "names": COLUMNS, "rows": rows})
        told = told.replace('"inf"}', '"Infinity"}').replace('"nan"}', '"NaN"}')
        ended = subprocess.run(
            [node, "-e", SCRIPT, path], input=told, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return answers


def test_both_implementations_give_the_same_answers(in_javascript):
    texts = [text for text, _ in CASES]
    assert dict(zip(texts, in_javascript(texts), strict=True)) == dict(CASES)
    for (text, message), told in zip(ERRORS, in_javascript([e[0] for e in ERRORS]), strict=True):
        assert told.startswith(message), text


def test_both_implementations_give_the_same_answers_to_any_text(in_javascript):
    chance = random.Random(0)
    tokens = [
        *COLUMNS[:12],
        *("`odd name`", "'odd name'", "and", "or", "not", "in", "(", ")", "[", "]", ",", ":"),
        *("<", "<=", ">", ">=", "==", "=", "!=", "~", "!", "'", "`", "64", "'64'", "1e-5", "-.5"),
        *(
            "adam",
            "'adam'",
            "null",
            "true",
            "nan",
            "inf",
            "+",
            "0x10",
            "1_0",
            "_1",
            "é",
            "\U0001f600",
        ),
        *("5.", ".", "1e400", "-0", "tcp://127.0.0.1:4000", str(2**60 + 1), "İ", "\u2003"),
    ]
    texts = []
    for _ in range(6_000):
        some = [chance.choice(tokens) for _ in range(chance.randint(1, 7))]
        texts.append("".join(one + chance.choice(("", " ", " ")) for one in some))
    for _ in range(4_000):
        left, middle, right = (chance.choice(tokens) for _ in range(3))
        texts.append(f"{left} {chance.choice(['<', '<=', '==', '!=', '~', ':'])} {middle} {right}")
    valid = 0
    for text, told in zip(texts, in_javascript(texts), strict=True):
        here = answer(text)
        valid += not here.startswith("filter must")
        # Only Python suggests a similar name.
        assert told.split(". ")[0] == here.split(". ")[0], text
    assert valid > 1_000


def test_numbers_are_written_as_javascript_writes_them(in_javascript):
    chance = random.Random(0)
    numbers = [chance.uniform(-1, 1) * 10.0 ** chance.randint(-30, 30) for _ in range(500)]
    numbers += [0.0, -0.0, 1.0, 1e21, 1e20, 123456789012345680000.0, 1e-6, 1e-7, 5e-324, 0.1 + 0.2]
    node = shutil.which("node")
    script = f"console.log(JSON.stringify({json.dumps(numbers)}.map(String)))"
    ended = subprocess.run([node, "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == [number_text(value) for value in numbers]
