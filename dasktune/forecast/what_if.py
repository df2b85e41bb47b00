"""`WhatIf`: what an experiment would have cost, and lost, under other trial schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import isfinite, sqrt
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.random import SeedSequence, default_rng

from dasktune.errors import ConfigError, check
from dasktune.forecast.curve_replay import CurveReplay
from dasktune.forecast.recorded_trial import CurveSelection, FullCurve
from dasktune.schedulers.metric_scheduler import MetricScheduler
from dasktune.schedulers.trial_scheduler import TrialScheduler
from dasktune.text.formatting import elapsed_unit, format_counts, plural
from dasktune.text.text_table import html_summary, table_text
from dasktune.trial.metrics import Mode, lookup, number

#: The part of a normal distribution above this many standard deviations is 5 %.
_Z: Final = 1.6448536269514722

#: A regret that is worth less than the iterations that it saves.
_SMALL_REGRET: Final = 0.05


class Interval(NamedTuple):
    """A value, and the bounds of its 90 % interval.

    Examples
    --------
    >>> Interval(0.2, 0.25, 0.4).value
    0.25
    """

    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """What one scheduler would have cost, each number with its 90 % interval.

    Shares are those of training all trials to their end, in the same order on the same workers. The
    intervals of all but `kept` are the 5 to 95 % ranges over the orders.

    Parameters
    ----------
    scheduler : str
        The label of the scheduler.
    iterations : Interval
        Share of the training iterations; the value is the median over the orders.
    time : Interval
        Share of the time; the value is the median.
    hours : Interval
        Hours that the run would have taken; the value is the median.
    kept : Interval
        Share of the orders in which the run reached the best value of all curves, with Wilson's
        interval.
    regret : Interval
        How much worse the best value of the run was: 0 is the best value of all curves, 1 the best
        value of the median trial. The value is the mean.

    Examples
    --------
    >>> half, sure = Interval(0.4, 0.5, 0.6), Interval(0.98, 1.0, 1.0)
    >>> row = WhatIfRow(scheduler="asha", iterations=half, time=half, hours=half, kept=sure,
    ...                 regret=Interval(0.0, 0.0, 0.0))
    >>> row.kept.low
    0.98
    """

    scheduler: str
    iterations: Interval
    time: Interval
    hours: Interval
    kept: Interval
    regret: Interval


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """What an experiment would have cost, and what it would have lost, under other schedulers.

    `dasktune.whatif` returns it. ``print`` shows a table and a recommendation.

    Parameters
    ----------
    rows : tuple of WhatIfRow
        A row for each scheduler. The first one trains all trials to their end.
    metric : str
        The metric by which trials are compared.
    mode : {"min", "max"}
        Whether lower or higher values are better.
    num_curves : int
        The number of full learning curves that were replayed.
    max_t : int
        Their last ``training_iteration``.
    orders : int
        The number of random orders.
    workers : int
        The number of trials that run at a time.
    censored : mapping of str to int
        The number of trials without a full curve, by reason.
    min_kept : float
        The least probability of keeping the best configuration for a recommendation.
    notes : tuple of str, default=()
        What limits the forecast of this experiment.

    Examples
    --------
    >>> half, sure = Interval(0.4, 0.5, 0.6), Interval(1.0, 1.0, 1.0)
    >>> none = Interval(0.0, 0.0, 0.0)
    >>> full = WhatIfRow(scheduler="FIFOScheduler", iterations=sure, time=sure, hours=sure,
    ...                  kept=sure, regret=none)
    >>> asha = WhatIfRow(scheduler="asha", iterations=half, time=half, hours=half, kept=sure,
    ...                  regret=none)
    >>> what_if = WhatIf(rows=(full, asha), metric="loss", mode="min", num_curves=50, max_t=81,
    ...                  orders=200, workers=4, censored={}, min_kept=0.9)
    >>> what_if.recommended.scheduler
    'asha'
    """

    rows: tuple[WhatIfRow, ...]
    metric: str
    mode: Mode
    num_curves: int
    max_t: int
    orders: int
    workers: int
    censored: Mapping[str, int] = field(default_factory=dict)
    min_kept: float
    notes: tuple[str, ...] = ()

    @property
    def recommended(self) -> WhatIfRow:
        """The scheduler with the fewest iterations of those that keep the best configuration.

        They keep it with a probability of at least `min_kept`. If none but full training does, the
        one with the least regret, if that is at most 0.05; otherwise full training, the first row.
        """
        full, *others = self.rows
        keeps = [row for row in others if row.kept.value >= self.min_kept]
        if keeps:
            return min(keeps, key=lambda row: row.iterations.value)
        closest = min(others, key=_by_loss)
        return closest if closest.regret.value <= _SMALL_REGRET else full

    @property
    def recommendation(self) -> str:
        """The recommended scheduler, and what the cheapest one would lose, in one sentence."""
        chosen, (full, *others) = self.recommended, self.rows
        if chosen is full:
            closest = min(others, key=_by_loss)
            return (
                f"Train all trials to their end: no scheduler keeps the best configuration with a "
                f"probability of {self.min_kept:.0%}; {closest.scheduler} comes closest with "
                f"{closest.kept.value:.0%} and a regret of {closest.regret.value:.2g}, and takes "
                f"{closest.iterations.value:.1%} of the iterations."
            )
        text = (
            f"Use {chosen.scheduler}: it takes {chosen.iterations.value:.1%} of the iterations and "
            f"{chosen.time.value:.1%} of the time, keeps the best configuration with a probability of "
            f"{chosen.kept.value:.0%}, and has a regret of {chosen.regret.value:.2g}"
        )
        cheapest = min(others, key=lambda row: row.iterations.value)
        if cheapest.iterations.value < chosen.iterations.value:
            text += (
                f"; {cheapest.scheduler} takes {cheapest.iterations.value:.1%} of the iterations, but "
                f"keeps it only with {cheapest.kept.value:.0%}, with a regret of {cheapest.regret.value:.2g}"
            )
        return f"{text}."

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat dict for each scheduler, with ``_low`` and ``_high`` for the intervals."""
        return [dict(_flat(row)) for row in self.rows]

    def to_dataframe(self) -> Any:
        """Return the same as a pandas DataFrame, one row for each scheduler. Needs pandas.

        Raises
        ------
        ConfigError
            If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ConfigError(
                "a DataFrame needs pandas, which is not installed. Run: pip install pandas. "
                "Without it, WhatIf.to_records() has the same rows."
            ) from error
        return pd.DataFrame(self.to_records())

    def to_text(self, width: int | None = None) -> str:
        """Return the table, the recommendation and all notes as text.

        Parameters
        ----------
        width : int, optional
            Columns of the terminal; no limit by default.
        """
        head, *rows = self._table()
        parts = [self._headline(), table_text(head, rows, width), self.recommendation, *self._notes()]
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return html_summary(self._headline(), self._table(), (self.recommendation, *self._notes()))

    def _headline(self) -> str:
        trials = plural("trial", self.workers)
        return (
            f"{self.num_curves} full curves of up to {self.max_t} iterations, {self.workers} {trials} at "
            f"a time, {self.orders} random orders; {self.metric} ({self.mode}). Ranges: 5 to 95 %"
        )

    def _table(self) -> list[list[str]]:
        unit, length = elapsed_unit(3600 * max(row.hours.high for row in self.rows))
        head = ["scheduler", "iterations", "time", _UNITS[unit], "best kept", "regret"]
        scales = (1.0, 1.0, 3600 / length, 1.0, 1.0)
        return [
            head,
            *([row.scheduler, *map(_text, _intervals(row), _STYLES, scales)] for row in self.rows),
        ]

    def _notes(self) -> tuple[str, ...]:
        if not self.censored:
            return self.notes
        left_out = f"Left out, because their curves are not full: {format_counts(self.censored)} trials."
        return (left_out, *self.notes)


def _by_loss(row: WhatIfRow) -> tuple[float, float]:
    return row.regret.value, row.iterations.value


_INTERVALS: Final = ("iterations", "time", "hours", "kept", "regret")
#: Headings of the durations, which the table has in the unit of the longest.
_UNITS: Final = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
#: How each of them is formatted in the table.
_STYLES: Final = (".1%", ".1%", ".3g", ".0%", ".3f")


def _intervals(row: WhatIfRow) -> tuple[Interval, ...]:
    return tuple(getattr(row, name) for name in _INTERVALS)


def _text(interval: Interval, style: str, scale: float) -> str:
    low, value, high = (format(one * scale, style) for one in interval)
    return value if low == high else f"{value} ({low} to {high})"


def _flat(row: WhatIfRow) -> Iterator[tuple[str, Any]]:
    yield "scheduler", row.scheduler
    for name, interval in zip(_INTERVALS, _intervals(row), strict=True):
        yield name, interval.value
        yield f"{name}_low", interval.low
        yield f"{name}_high", interval.high


def notes_of(selection: CurveSelection) -> tuple[str, ...]:
    """Return what limits the forecast of an experiment, as sentences.

    Parameters
    ----------
    selection : CurveSelection
        The curves that are replayed.
    """
    stopped = selection.censored.get("stopped by the scheduler", 0)
    if not stopped:
        return ()
    return (
        f"The experiment's scheduler has stopped {stopped} trials, so the full curves are those of the "
        "survivors. Among all configurations a scheduler would stop more trials and save more, and the "
        "best ones might be lost more often.",
    )


@dataclass(slots=True)
class _Samples:
    """One value for each order."""

    iterations: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    regret: list[float] = field(default_factory=list)


def replay_all(
    curves: Sequence[FullCurve],
    schedulers: Mapping[str, TrialScheduler],
    *,
    workers: int,
    orders: int,
    seed: int,
    progress: Callable[[int, int], object],
) -> tuple[WhatIfRow, ...]:
    """Replay curves in random orders under each scheduler.

    Parameters
    ----------
    curves : sequence of FullCurve
        The curves.
    schedulers : mapping of str to TrialScheduler
        The schedulers by label, with their metric and mode; they are not changed. The first one
        trains all trials to their end.
    workers : int
        The number of trials that run at a time.
    orders : int
        The number of random orders, the same for all schedulers.
    seed : int
        The seed of the orders and of the schedulers' random draws.
    progress : callable
        ``progress(done, total)`` is called after each replay.

    Raises
    ------
    ConfigError
        If a scheduler clones trials or changes their resources, or if its `time_attr` is in no
        result.
    """
    _check_time_attrs(curves, schedulers)
    samples = {label: _Samples() for label in schedulers}
    best = max(curve.best[-1] for curve in curves)
    scale = best - median(curve.best[-1] for curve in curves)
    total, done = orders * len(schedulers), 0
    for child in SeedSequence(seed).spawn(orders):
        of_order, of_scheduler = child.spawn(2)
        order = default_rng(of_order).permutation(len(curves))
        for label, scheduler in schedulers.items():
            own = deepcopy(scheduler)
            if isinstance(own, MetricScheduler) and isinstance(scheduler, MetricScheduler):
                own._warned = scheduler._warned  # Only the first replay warns.
            own.seed(of_scheduler)
            replay = CurveReplay(own, [curves[at] for at in order], workers)
            replay.run()
            lost = best - replay.best
            sample = samples[label]
            sample.iterations.append(replay.iterations)
            sample.seconds.append(replay.seconds)
            sample.kept.append(lost <= 0)
            sample.regret.append(lost / scale if scale > 0 and isfinite(lost) else float(lost > 0))
            done += 1
            progress(done, total)
    full = next(iter(samples.values()))
    return tuple(_row(label, sample, full) for label, sample in samples.items())


def _check_time_attrs(curves: Sequence[FullCurve], schedulers: Mapping[str, TrialScheduler]) -> None:
    for label, scheduler in schedulers.items():
        if isinstance(scheduler, MetricScheduler):
            name = scheduler.time_attr
            known = any(number(lookup(row, name)) is not None for curve in curves for row in curve.rows)
            hint = "Without it the scheduler stops no trial."
            check(known, f"time_attr of {label}", "a number that the trials report", name, hint)


def _row(label: str, sample: _Samples, full: _Samples) -> WhatIfRow:
    return WhatIfRow(
        scheduler=label,
        iterations=_spread(_quotients(sample.iterations, full.iterations)),
        time=_spread(_quotients(sample.seconds, full.seconds)),
        hours=_spread([seconds / 3600 for seconds in sample.seconds]),
        kept=_proportion(sum(sample.kept), len(sample.kept)),
        regret=_spread(sample.regret)._replace(value=fmean(sample.regret)),
    )


def _quotients(values: Sequence[float], of: Sequence[float]) -> list[float]:
    return [value / other if other else 1.0 for value, other in zip(values, of, strict=True)]


def _spread(values: Sequence[float]) -> Interval:
    """Return the median, and the 5 and 95 % quantiles."""
    return Interval(*map(float, np.quantile(values, [0.05, 0.5, 0.95])))


def _proportion(successes: int, of: int) -> Interval:
    """Return a proportion with Wilson's 90 % interval, which also holds at 0 and 1."""
    share, square = successes / of, _Z**2
    centre = (share + square / (2 * of)) / (1 + square / of)
    half = _Z / (1 + square / of) * sqrt(share * (1 - share) / of + square / (4 * of**2))
    return Interval(max(0.0, centre - half), share, min(1.0, centre + half))
