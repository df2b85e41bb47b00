"""Finds trials that report more results than anything can use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from dasktune.trial.trial import Trial

#: Seconds between two looks at the trials.
_INTERVAL: Final = 10.0
#: Results per second of one trial that are too many. Schedulers decide at rungs and intervals, and
#: a display refreshes a few times a second. At this rate a trial fills a gigabyte of the journal in
#: a day, and two hundred such trials take half a core of the driver.
_TOO_MANY: Final = 100.0
#: Results of a trial below which no rate is too high: they take about a megabyte of the journal. No
#: figure has room to show as many.
_FEW: Final = 10_000
#: Results per second that the message recommends.
_ENOUGH: Final = 10.0
#: Number of trials that one message names.
_NAMED: Final = 3


class ReportRates:
    """Counts the results of running trials, and says once for each trial that it reports too many.

    Examples
    --------
    >>> rates, trial = ReportRates(), Trial(trial_id="a", config={}, resources=None)
    >>> rates.message(0.0, {"a": trial}, ["a"])
    ''
    >>> trial.history.extend({"training_iteration": step} for step in range(1, 20_001))
    >>> rates.message(10.0, {"a": trial}, ["a"])[:44]
    'trial a reports 2,000 results per second, 20'
    """

    def __init__(self) -> None:
        self._looked = float("-inf")
        #: The number of results at the last look, by trial.
        self._counts: dict[str, int] = {}
        self._named: set[str] = set()

    def message(self, now: float, trials: Mapping[str, Trial], running: Collection[str]) -> str:
        """Return a warning about running trials that report too fast; empty without such trials.

        Each trial is part of one warning at most. Trials are looked at every 10 s.

        Parameters
        ----------
        now : float
            Seconds on the runner's clock.
        trials : mapping of str to Trial
            All trials.
        running : collection of str
            The trials that run.
        """
        seconds = now - self._looked
        if seconds < _INTERVAL:
            return ""
        before, self._looked = self._counts, now
        self._counts = {key: len(trials[key].history) for key in running}
        rates = {
            key: (count - before[key]) / seconds
            for key, count in self._counts.items()
            if count >= _FEW and key in before and key not in self._named
        }
        fast = sorted((key for key, rate in rates.items() if rate > _TOO_MANY), key=lambda key: -rates[key])
        self._named.update(fast)
        return _message(((key, rates[key], self._counts[key]) for key in fast), len(fast)) if fast else ""


def _message(fast: Iterable[tuple[str, float, int]], number: int) -> str:
    (key, rate, count), *others = fast
    also = ""
    if others:
        names = ", ".join(name for name, _, _ in others[: _NAMED - 1])
        rest = number - _NAMED
        also = f". So do {names}{f' and {rest:,} others' if rest > 0 else ''}"
    return (
        f"trial {key} reports {rate:,.0f} results per second, {count:,} so far{also}. No scheduler, figure "
        "or reader needs so many, and each takes about 100 bytes of the journal and 20 microseconds of the "
        f"driver. Report every {round(rate / _ENOUGH):,}th of them, or the mean of several: "
        f"`if step % {round(rate / _ENOUGH)} == 0: tune.report(...)`, or more steps in each call of `step`"
    )
