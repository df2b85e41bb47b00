"""The report that a grid of results writes."""

from __future__ import annotations

from dasktune.tuner.result_grid import ResultGrid


def test_a_report_that_is_written_to_a_file_fills_no_notebook(tmp_path):
    results = ResultGrid([], "exp", metric="loss", mode="min")
    assert results.to_html(tmp_path / "report.html") is None
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert results.to_html().startswith("<!DOCTYPE html>")
