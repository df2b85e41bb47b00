"""The metrics of a driver, in the text format that Prometheus reads.

The text format needs no package: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Final, Literal

from dasktune.runner.measurement import Durations, RunMeasurement
from dasktune.version import __version__

#: The media type of the format.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: The value of a sample's label, or the end of its name, and the value of the sample.
Sample = tuple[str, float]

#: Least seconds for which an answer is given again, and the same as a multiple of the time that the
#: answer took. So scrapes take less than a two hundredth of the driver's time, however many come.
_LEAST_AGE: Final = 0.5
_TIMES: Final = 200.0
#: Most seconds of that: the driver may have been suspended while it answered.
_MOST_AGE: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric of the driver."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    #: What it counts or measures.
    help: str
    #: Returns the samples.
    samples: Callable[[RunMeasurement], Iterable[Sample]]
    #: The name of the label, if samples have one. Samples of a histogram have names of their own.
    label: str = ""


def _one(read: Callable[[RunMeasurement], float | None]) -> Callable[[RunMeasurement], list[Sample]]:
    """Return a function that returns one sample without a label, or none for None."""

    def samples(measurement: RunMeasurement) -> list[Sample]:
        value = read(measurement)
        return [] if value is None else [("", value)]

    return samples


def _histogram(read: Callable[[RunMeasurement], Durations]) -> Callable[[RunMeasurement], list[Sample]]:
    """Return a function that returns the samples of a histogram, each with the end of its name."""

    def samples(measurement: RunMeasurement) -> list[Sample]:
        durations = read(measurement)
        buckets = {f"{limit:g}": number for limit, number in durations.cumulative().items()}
        rows: list[Sample] = [
            (f'_bucket{{le="{limit}"}}', number)
            for limit, number in {**buckets, "+Inf": durations.count}.items()
        ]
        return [*rows, ("_sum", durations.seconds), ("_count", durations.count)]

    return samples


METRICS: Final = (
    Metric(
        name="dasktune_trials",
        kind="gauge",
        help="Trials of the experiment by status.",
        label="status",
        samples=lambda one: [(status.value, count) for status, count in one.trials.items()],
    ),
    Metric(
        name="dasktune_expected_trials",
        kind="gauge",
        help="Trials that the search will suggest in total; absent if that is not known.",
        samples=_one(lambda one: one.total_trials),
    ),
    Metric(
        name="dasktune_results",
        kind="gauge",
        help="Results in the histories of all trials; a trial that is cloned or restarted loses some.",
        samples=_one(lambda one: one.results),
    ),
    Metric(
        name="dasktune_decisions_total",
        kind="counter",
        help="Decisions about trials since this driver began, by kind.",
        label="decision",
        samples=lambda one: list(one.decisions.items()),
    ),
    Metric(
        name="dasktune_stopped_early_trials",
        kind="gauge",
        help="Trials that a scheduler has stopped before their training was complete.",
        samples=_one(lambda one: one.stopped_early),
    ),
    Metric(
        name="dasktune_checkpoints_total",
        kind="counter",
        help="Checkpoints that trials have saved, including those that were deleted since.",
        samples=_one(lambda one: one.saves),
    ),
    Metric(
        name="dasktune_checkpoint_write_seconds",
        kind="histogram",
        help="Time that workers took to write checkpoints into the storage, since this driver began.",
        samples=_histogram(lambda one: one.saving),
    ),
    Metric(
        name="dasktune_failures_total",
        kind="counter",
        help="Failures of trials' own code.",
        samples=_one(lambda one: one.failures),
    ),
    Metric(
        name="dasktune_losses_total",
        kind="counter",
        help="Trials that were lost together with their worker, each time counted.",
        samples=_one(lambda one: one.losses),
    ),
    Metric(
        name="dasktune_journal_records_total",
        kind="counter",
        help="Records of the journal: results and all other events.",
        samples=_one(lambda one: one.journal_records),
    ),
    Metric(
        name="dasktune_journal_queue_records",
        kind="gauge",
        help="Records of the journal that the storage does not have yet.",
        samples=_one(lambda one: one.journal_queue),
    ),
    Metric(
        name="dasktune_hold",
        kind="gauge",
        help="1 while the user lets no trial start, otherwise 0.",
        samples=_one(lambda one: one.on_hold),
    ),
    Metric(
        name="dasktune_loop_lag_seconds",
        kind="gauge",
        help="Time that the driver's loop took to answer the request for these metrics.",
        samples=_one(lambda one: one.loop_lag),
    ),
    Metric(
        name="dasktune_build_info",
        kind="gauge",
        help="The version of dasktune; the value is always 1.",
        label="version",
        samples=lambda one: [(__version__, 1)],
    ),
)


def exposition(measurement: RunMeasurement) -> str:
    """Return the metrics in Prometheus's text format.

    Parameters
    ----------
    measurement : RunMeasurement
        The numbers.
    """
    lines = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for value_of_label, value in metric.samples(measurement):
            labels = f'{{{metric.label}="{value_of_label}"}}' if metric.label else value_of_label
            lines.append(f"{metric.name}{labels} {float(value):.15g}")
    return "\n".join(lines) + "\n"


class ExpositionCache:
    """Keeps the last answer for a short time, so that many requests do not slow the driver down.

    Used by one thread.

    Parameters
    ----------
    timer : callable, default=time.perf_counter
        Returns seconds.

    Examples
    --------
    >>> now = 0.0
    >>> cache = ExpositionCache(timer=lambda: now)
    >>> cache.store("text", seconds=0.01)
    >>> now = 1.9
    >>> cache.text
    'text'
    >>> now = 2.1
    >>> cache.text
    """

    def __init__(self, timer: Callable[[], float] = perf_counter) -> None:
        self._timer = timer
        self._text, self._until = "", -inf

    @property
    def text(self) -> str | None:
        """The last answer; None if it is too old."""
        return self._text if self._timer() < self._until else None

    def store(self, text: str, *, seconds: float) -> None:
        """Keep an answer.

        Parameters
        ----------
        text : str
            The answer.
        seconds : float
            How long the driver took for it.
        """
        self._text, self._until = text, self._timer() + min(max(_LEAST_AGE, _TIMES * seconds), _MOST_AGE)
