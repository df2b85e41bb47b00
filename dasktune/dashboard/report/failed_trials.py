"""Tracebacks of failed trials, the newest failure first."""

from __future__ import annotations

from itertools import count
from math import inf, isnan
from typing import Any, Final

from bokeh.layouts import column
from bokeh.models import Paragraph

from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.dashboard.report.trial_detail import text_box
from dasktune.text.formatting import format_duration, plural, printable_lines

#: Maximum number of failures that are shown.
MOST_ERRORS: Final = 200
#: Maximum number of characters shown of a traceback: its end.
_MOST_TRACEBACK: Final = 4_000
#: Possible numbers of text models. They grow in steps, so that few new failures need new models.
_SIZES: Final = (0, 8, 32, 128, MOST_ERRORS)


def failure_order(trial: TrialProjection) -> tuple[float, int]:
    """Return a sort key by which the newest failure comes last."""
    return -inf if isnan(trial.failed_at) else trial.failed_at, trial.index


class _FailureSlots:
    """The slot in which each failure is shown; a failure keeps its slot until it is left out."""

    def __init__(self) -> None:
        #: Index of the trial in each slot.
        self.places: list[int] = []
        #: Time and number of the failure, by index of the trial.
        self._known: dict[int, tuple[float, int]] = {}
        self._numbers = count()

    def update(self, failed: list[TrialProjection]) -> None:
        """Assign slots to failures, given in order; the last one is the newest."""
        before, self._known = self._known, {}
        for trial in failed:
            known = before.get(trial.index)
            if known is None or known[0] != trial.failed_at:
                known = trial.failed_at, next(self._numbers)
            self._known[trial.index] = known
        seated = set(self.places)
        coming = iter([trial.index for trial in reversed(failed) if trial.index not in seated])
        self.places = [place if place in self._known else next(coming, -1) for place in self.places]
        self.places = [place for place in [*self.places, *coming] if place >= 0]

    def number(self, place: int) -> int:
        """Return the number of a trial's failure; newer failures have higher numbers."""
        return self._known[place][1]


def failures_spec(projection: ExperimentProjection) -> FigureSpec:
    """Return the spec of the failures, one text for each trial.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    """
    failed = sorted((trial for trial in projection.trials if trial.error), key=failure_order)
    left_out = max(0, len(failed) - MOST_ERRORS)
    seats: _FailureSlots = projection.memo.setdefault("failures", _FailureSlots())
    seats.update(failed[left_out:])
    size = next(size for size in _SIZES if size >= len(seats.places))
    note = "No trial has failed."
    if failed:
        trials = f"{len(failed):,} {plural('trial', len(failed))}"
        note = f"{trials} failed; the newest failure comes first."
    if left_out:
        note = f"{note} The {left_out:,} oldest are left out."
    settings: dict[tuple[str, str], Any] = {("failures", "text"): note}
    for seat in range(size):
        name, is_taken = f"failure {seat}", seat < len(seats.places)
        place = seats.places[seat] if is_taken else -1
        text = _text(projection, projection.trials[place]) if is_taken else ""
        order = -seats.number(place) if is_taken else 0
        settings[name, "text"], settings[name, "visible"] = text, is_taken
        # CSS order: a new failure is shown first, and the others need not be sent again.
        settings[name, "styles"] = {"font-size": "12px", "order": str(order)}
    return FigureSpec(draw=_draw, structure=(size,), settings=settings)


def _text(projection: ExperimentProjection, trial: TrialProjection) -> str:
    more = [f"{trial.failures} failures"] if trial.failures > 1 else []
    last = trial.attempts[-1] if trial.attempts else None
    if last is not None and last.outcome == "failed" and last.end is not None:
        more.append(f"failed after it ran for {format_duration(last.end - last.start)}")
    if not isnan(trial.failed_at):
        more.append(f"{format_duration(trial.failed_at - projection.began)} after the experiment began")
    head = ", ".join([f"{trial.trial_id}: {trial.outcome}", *more])
    return printable_lines(f"{head}\n{(trial.traceback or trial.error)[-_MOST_TRACEBACK:]}")


def _draw(spec: FigureSpec) -> Any:
    [size] = spec.structure
    settings = spec.settings
    note = Paragraph(
        text=settings["failures", "text"],
        name="failures",
        disable_math=True,
        # Above all failures.
        styles={"order": "-2000000000"},
    )
    texts = [
        text_box(name=name, **{one: settings[name, one] for one in ("text", "visible", "styles")})
        for name in (f"failure {seat}" for seat in range(size))
    ]
    return column(note, *texts, sizing_mode="stretch_width")
