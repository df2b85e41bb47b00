from __future__ import annotations

from progress_kit import Run

from dasktune.progress import Progress
from dasktune.progress.notebook import progress_html


def test_the_page_has_a_bar_a_line_a_table_and_what_else_there_is_to_say():
    run = Run()
    trial_id = run.start({"opt": "<script>"})
    html = progress_html(Progress(counts=run.trial_counts.counts, total=4), run.trial_counts, ["<b>", "end"])
    assert '<progress max="4" value="0"' in html
    assert "0/4 trials done" in html
    assert f"<td>{trial_id}</td>" in html
    assert "&lt;script&gt;" in html
    assert "<pre>&lt;b&gt;\nend</pre>" in html
    assert "<script" not in html


def test_there_is_no_table_without_trials_and_no_bar_without_a_total():
    html = progress_html(Progress(), Run().trial_counts)
    assert "<table" not in html
    assert "<progress" not in html
    assert "<pre" not in html
