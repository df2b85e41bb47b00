"""The progress of an experiment, and its one-line summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dasktune.text.formatting import column_width, format_clock, plural, printable, truncate
from dasktune.trial.status import PublicStatus

_SEPARATOR: Final = " · "

_NOUNS: Final = {
    PublicStatus.RUNNING: "running",
    PublicStatus.PENDING: "pending",
    PublicStatus.PAUSED: "paused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of an experiment.

    Parameters
    ----------
    counts : mapping of PublicStatus to int
        The number of trials with each status; a status that is missing counts 0.
    total : int, optional
        The total number of trials; None if unknown.
    results : int, default=0
        The number of reported results.
    metric : str, optional
        The metric to optimise.
    best_value : float, optional
        The best value of `metric` so far.
    best_trial_id : str, default=""
        The trial that reported it.
    elapsed_s : float, default=0.0
        Seconds since the experiment started, or was resumed.
    finished_before : int, default=0
        The number of trials that had ended before the experiment was resumed; `elapsed_s` does not
        contain their time.
    stopped_early : int, default=0
        The number of trials that a scheduler has stopped early.
    workers : int, default=0
        The number of workers that run trials.
    usage : str, default=""
        The resources held and available, as `usage_text` formats them.
    waits_for : str, default=""
        Which other experiments hold what, while trials wait for them.
    """

    counts: Mapping[PublicStatus, int] = field(default_factory=dict)
    total: int | None = None
    results: int = 0
    metric: str | None = None
    best_value: float | None = None
    best_trial_id: str = ""
    elapsed_s: float = 0.0
    finished_before: int = 0
    stopped_early: int = 0
    workers: int = 0
    usage: str = ""
    waits_for: str = ""

    @property
    def errors(self) -> int:
        """The number of trials that failed permanently."""
        return self.counts.get(PublicStatus.ERROR, 0)

    @property
    def finished(self) -> int:
        """The number of trials that have ended."""
        return self.errors + self.counts.get(PublicStatus.TERMINATED, 0)

    @property
    def remaining_s(self) -> float | None:
        """Estimated seconds until the end if trials keep ending at this rate; None if unknown.

        It is None once all remaining trials run: with early stopping, the last trials run much
        longer than the others did.
        """
        finished = self.finished - self.finished_before
        running = self.counts.get(PublicStatus.RUNNING, 0)
        if self.total is None or finished <= 0 or self.total - self.finished <= running:
            return None
        return self.elapsed_s / finished * (self.total - self.finished)


def split_usage(progress: Progress) -> tuple[Progress, str]:
    """Return the progress without its resources, and these as a separate line.

    Parameters
    ----------
    progress : Progress
        The progress.

    Examples
    --------
    >>> split_usage(Progress(usage="2/4 CPUs", workers=2))[1]
    'Resources used: 2/4 CPUs on 2 workers'
    """
    if not progress.usage:
        return progress, ""
    count = progress.workers
    where = f" on {count} {plural('worker', count)}" if count else ""
    waits = f"{_SEPARATOR}{progress.waits_for}" if progress.waits_for else ""
    rest = replace(progress, usage="", workers=0, waits_for="")
    return rest, printable(f"Resources used: {progress.usage}{where}{waits}")


def render(progress: Progress, width: int | None = None) -> str:
    """Return the progress as one line of printable characters.

    Parameters
    ----------
    progress : Progress
        The progress.
    width : int, optional
        Maximum number of columns, at least 1; the least important parts are left out first. No
        limit by default.

    Examples
    --------
    >>> counts = {PublicStatus.RUNNING: 4, PublicStatus.TERMINATED: 8}
    >>> progress = Progress(counts=counts, total=40, metric="acc", best_value=0.9713, elapsed_s=32)
    >>> render(progress)
    '8/40 trials done · 4 running · 0 errors · best acc 0.9713 · 00:32 · 02:08 left'
    >>> render(progress, 60)
    '8/40 trials done · 4 running · 0 errors · best acc 0.9713'
    """
    parts = [(rank, printable(text)) for rank, text in _parts(progress)]
    line = _join(parts)
    if width is None:
        return line
    while len(parts) > 1 and column_width(line) > width:
        parts.remove(max(parts))
        line = _join(parts)
    return truncate(line, width)


def _parts(progress: Progress) -> Iterator[tuple[int, str]]:
    """Yield each part of the line with a rank; the part with the highest rank is left out first."""
    counts, errors, left = progress.counts, progress.errors, progress.remaining_s
    done = progress.finished
    trials = str(done) if progress.total is None else f"{done}/{progress.total}"
    yield 0, f"{trials} {plural('trial', progress.total or done)} done"
    for rank, (status, noun) in enumerate(_NOUNS.items(), start=2):
        count = counts.get(status, 0)
        # 0 running is shown, too: then the experiment has ended, or something is wrong.
        if count or status is PublicStatus.RUNNING:
            yield rank, f"{_SEPARATOR}{count} {noun}"
    if progress.stopped_early:
        yield 9, f"{_SEPARATOR}{progress.stopped_early} stopped early"
    yield 1, f"{_SEPARATOR}{errors} {plural('error', errors)}"
    if progress.waits_for:
        yield 10, f"{_SEPARATOR}{progress.waits_for}"
    if progress.workers:
        yield 11, f"{_SEPARATOR}{progress.workers} {plural('worker', progress.workers)}"
    if progress.usage:
        yield 12, f"{_SEPARATOR}{progress.usage}"
    if progress.best_value is not None:
        yield 5, f"{_SEPARATOR}best {progress.metric or 'value'} {progress.best_value:.4g}"
        if progress.best_trial_id:
            yield 7, f" ({progress.best_trial_id})"
    elif progress.results:
        yield 5, f"{_SEPARATOR}{progress.results} {plural('result', progress.results)}"
    yield 6, f"{_SEPARATOR}{format_clock(progress.elapsed_s)}"
    if left is not None:
        yield 8, f"{_SEPARATOR}{format_clock(left)} left"


def _join(parts: list[tuple[int, str]]) -> str:
    return "".join(text for _, text in parts)
