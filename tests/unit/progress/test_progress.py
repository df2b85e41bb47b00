from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.progress import Progress, render
from dasktune.progress.observer import usage_text
from dasktune.progress.progress import split_usage
from dasktune.trial.status import PublicStatus

_S = PublicStatus

FULL = Progress(
    counts={_S.RUNNING: 4, _S.TERMINATED: 8, _S.ERROR: 0},
    total=40,
    metric="accuracy",
    best_value=0.97131,
    best_trial_id="a1b2c_00007",
    elapsed_s=32.4,
)


def test_the_line_says_how_far_it_is():
    assert render(FULL) == (
        "8/40 trials done · 4 running · 0 errors · best accuracy 0.9713 (a1b2c_00007) · 00:32 · 02:09 left"
    )


def test_resources_are_shown_in_the_line_or_beside_it():
    full = Progress(counts={_S.RUNNING: 1}, workers=2, usage="2/4 CPUs")
    assert render(full) == "0 trials done · 1 running · 0 errors · 2 workers · 2/4 CPUs · 00:00"
    assert "CPU" not in render(full, 60)
    rest, usage = split_usage(full)
    assert usage == "Resources used: 2/4 CPUs on 2 workers"
    assert render(rest) == "0 trials done · 1 running · 0 errors · 00:00"
    assert split_usage(rest) == (rest, "")


def test_the_share_that_trials_wait_for_is_in_the_line_or_beside_it():
    waits = "waits for its share: experiment E2 holds 6 of 8 CPUs"
    waiting = Progress(counts={_S.RUNNING: 2, _S.PENDING: 3}, workers=2, usage="2/8 CPUs", waits_for=waits)
    assert f" · 3 pending · 0 errors · {waits} · 2 workers · " in render(waiting)
    rest, usage = split_usage(waiting)
    assert usage == f"Resources used: 2/8 CPUs on 2 workers · {waits}"
    assert "waits" not in render(rest)


@pytest.mark.parametrize(
    ("held", "offers", "told"),
    [
        ([], {}, ""),
        ([{"CPU": 1}], {}, ""),
        ([], {"a": {"CPU": 4, "GPU": 0, "TPU": 8}}, "0/4 CPUs"),
        ([{"GPU": 0.1}] * 3, {"a": {"CPU": 1, "GPU": 1}}, "0/1 CPU, 0.3/1 GPU"),
        ([{"TPU": 2}], {"a": {"CPU": 4, "TPU": 8}}, "0/4 CPUs, 2/8 TPU"),
        ([{"memory": 3 << 29}], {"a": {"memory": 1 << 33}}, "1.5/8 GiB memory"),
        ([{"memory": 1 << 30}], {"a": {"CPU": 1}}, "0/1 CPU, 1 GiB memory"),
    ],
)
def test_how_resources_are_shown(held, offers, told):
    assert usage_text(held, offers) == told


def test_what_waits_is_shown_only_if_something_does():
    line = render(Progress(counts={_S.PENDING: 2, _S.PAUSED: 1, _S.ERROR: 1}))
    assert line == "1 trial done · 0 running · 2 pending · 1 paused · 1 error · 00:00"


def test_before_there_is_a_best_value_the_results_are_counted():
    assert " · 1 result · " in render(Progress(results=1))
    assert " · 20 results · " in render(Progress(results=20))
    assert "result" not in render(Progress())


def test_a_single_trial_is_no_trials():
    assert render(Progress(counts={_S.RUNNING: 1}, total=1)).startswith("0/1 trial done · ")


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "00:00"), (59.9, "00:59"), (3599, "59:59"), (360_000, "100:00:00")]
)
def test_durations_read_like_a_clock(seconds, text):
    assert render(Progress(elapsed_s=seconds)).endswith(f" · {text}")


@pytest.mark.parametrize(
    ("progress", "remaining"),
    [
        (Progress(counts={_S.TERMINATED: 1, _S.ERROR: 1}, total=6, elapsed_s=10), 20),
        (Progress(counts={_S.TERMINATED: 4}, total=6, elapsed_s=10, finished_before=2), 10),
        (Progress(counts={_S.TERMINATED: 4}, total=6, elapsed_s=10, finished_before=4), None),
        (Progress(counts={_S.RUNNING: 4}, total=6, elapsed_s=10), None),
        (Progress(counts={_S.TERMINATED: 5, _S.RUNNING: 1}, total=6, elapsed_s=10), None),
        (Progress(counts={_S.TERMINATED: 6}, total=6, elapsed_s=10), None),
        (Progress(counts={_S.TERMINATED: 2}, elapsed_s=10), None),
    ],
)
def test_the_end_is_foretold_by_the_rate_of_this_run(progress, remaining):
    assert progress.remaining_s == remaining


def test_a_narrow_terminal_sees_what_matters_most():
    assert render(FULL, 80).endswith(" · 0 errors · best accuracy 0.9713 · 00:32")
    assert render(FULL, 60) == "8/40 trials done · 4 running · 0 errors"
    assert render(FULL, 30) == "8/40 trials done · 0 errors"
    assert render(FULL, 5) == "8/40…"


def test_escape_sequences_do_not_reach_the_terminal():
    line = render(Progress(metric="a\x1b[31m\nb", best_value=1.0))
    assert "best a?[31m?b 1" in line


@given(st.text(), st.integers(1, 200), st.floats(), st.integers(0, 10**6))
def test_the_line_is_printable_and_fits(metric, width, value, trials):
    line = render(
        Progress(counts={_S.RUNNING: trials}, metric=metric, best_value=value, best_trial_id=metric),
        width,
    )
    assert line.isprintable()
    assert len(line) <= width


def test_wide_characters_take_two_columns():
    progress = Progress(metric="精度" * 10, best_value=1.0)
    assert "精度" in render(progress, 120)
    assert "精度" not in render(progress, 70)
