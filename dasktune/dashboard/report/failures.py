"""The trials whose code has failed, with their tracebacks, the newest first."""

from __future__ import annotations

from itertools import count
from math import inf, isnan
from typing import Any, Final

from bokeh.layouts import column
from bokeh.models import Paragraph

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.sketch import Sketch
from dasktune.dashboard.report.trial_detail import detail
from dasktune.dashboard.text import duration, printable
from dasktune.dashboard.trial_log import TrialLog

__all__ = ["MOST_ERRORS", "failed_last", "failures_sketch"]

#: Failures that are shown.
MOST_ERRORS: Final = 200
#: Characters of the traceback of each, whose end tells most.
_MOST_TRACEBACK: Final = 4_000
#: For how many failures models are made at a time, so that a new one needs none mostly.
_SIZES: Final = (0, 8, 32, 128, MOST_ERRORS)


def failed_last(log: TrialLog) -> tuple[float, int]:
    """Return by what trials are sorted so that the one whose code failed last comes last."""
    return -inf if isnan(log.failed_at) else log.failed_at, log.index


class _Seats:
    """Where each failure is shown: it stays there until it is left out."""

    def __init__(self) -> None:
        #: By seat: the trial's place.
        self.places: list[int] = []
        #: By place: when it failed, and the number of the failure.
        self._known: dict[int, tuple[float, int]] = {}
        self._numbers = count()

    def update(self, failed: list[TrialLog]) -> None:
        """Seat those that are shown, the last of which is the newest."""
        before, self._known = self._known, {}
        for log in failed:
            known = before.get(log.index)
            if known is None or known[0] != log.failed_at:
                known = log.failed_at, next(self._numbers)
            self._known[log.index] = known
        seated = set(self.places)
        coming = iter([log.index for log in reversed(failed) if log.index not in seated])
        self.places = [place if place in self._known else next(coming, -1) for place in self.places]
        self.places = [place for place in [*self.places, *coming] if place >= 0]

    def number(self, place: int) -> int:
        """Return the number of a trial's failure; a newer one has a higher one."""
        return self._known[place][1]


def failures_sketch(chronicle: Chronicle) -> Sketch:
    """Return the failures as texts, one for each trial.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    """
    failed = sorted((log for log in chronicle.trials if log.error), key=failed_last)
    left_out = max(0, len(failed) - MOST_ERRORS)
    seats: _Seats = chronicle.memo.setdefault("failures", _Seats())
    seats.update(failed[left_out:])
    size = next(size for size in _SIZES if size >= len(seats.places))
    note = "No trial has failed."
    if failed:
        note = f"{len(failed):,} trials have failed, the last one comes first."
    if left_out:
        note = f"{note} The first {left_out:,} are left out."
    settings: dict[tuple[str, str], Any] = {("failures", "text"): note}
    for seat in range(size):
        name, is_taken = f"failure {seat}", seat < len(seats.places)
        place = seats.places[seat] if is_taken else -1
        text = _text(chronicle, chronicle.trials[place]) if is_taken else ""
        order = -seats.number(place) if is_taken else 0
        settings[name, "text"], settings[name, "visible"] = text, is_taken
        # So a new failure can be seen first and the others need not be sent again.
        settings[name, "styles"] = {"font-size": "12px", "order": str(order)}
    return Sketch(draw=_draw, form=(size,), settings=settings)


def _text(chronicle: Chronicle, log: TrialLog) -> str:
    when = "" if isnan(log.failed_at) else f" after {duration(log.failed_at - chronicle.began)}"
    more = f"{log.failures} failures, the last one{when}" if log.failures > 1 else f"failed{when}"
    head = f"{log.trial_id} ({log.outcome}, {more})"
    return printable(f"{head}\n{(log.traceback or log.error)[-_MOST_TRACEBACK:]}")


def _draw(sketch: Sketch) -> Any:
    [size] = sketch.form
    told = sketch.settings
    note = Paragraph(
        text=told["failures", "text"],
        name="failures",
        disable_math=True,
        # Whatever the numbers of the failures are.
        styles={"order": "-2000000000"},
    )
    texts = [
        detail(name=name, **{one: told[name, one] for one in ("text", "visible", "styles")})
        for name in (f"failure {seat}" for seat in range(size))
    ]
    return column(note, *texts, sizing_mode="stretch_width")
