"""How far an experiment is, and how to say so in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dasktune.progress.text import columns, crop, duration, plural, printable
from dasktune.trial.status import PublicStatus

__all__ = ["Progress", "render", "split_usage"]

_SEPARATOR: Final = " · "

_NOUNS: Final = {
    PublicStatus.RUNNING: "running",
    PublicStatus.PENDING: "pending",
    PublicStatus.PAUSED: "paused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an experiment is.

    Parameters
    ----------
    counts : mapping of PublicStatus to int
        How many trials stand at each status; what is missing is 0.
    total : int, optional
        How many trials there will be; None if nobody knows.
    results : int, default=0
        How many results were reported.
    metric : str, optional
        What is optimised.
    best_value : float, optional
        The best value of `metric` so far.
    best_trial_id : str, default=""
        Whose it is.
    elapsed_s : float, default=0.0
        Seconds since the experiment started, or was resumed.
    finished_before : int, default=0
        How many trials had ended when it was resumed: those took none of these seconds.
    stopped_early : int, default=0
        How many of those that have ended a scheduler has ended before their time.
    workers : int, default=0
        On how many workers trials run.
    usage : str, default=""
        What they hold of what the cluster has, as `told_usage` tells it.
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

    @property
    def errors(self) -> int:
        """How many trials failed for good."""
        return self.counts.get(PublicStatus.ERROR, 0)

    @property
    def finished(self) -> int:
        """How many trials have ended for good."""
        return self.errors + self.counts.get(PublicStatus.TERMINATED, 0)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the end if trials go on ending at this rate; None if nobody knows.

        The last trials tell nothing: under early stopping the survivors run much longer than the
        others did.
        """
        finished = self.finished - self.finished_before
        running = self.counts.get(PublicStatus.RUNNING, 0)
        if self.total is None or finished <= 0 or self.total - self.finished <= running:
            return None
        return self.elapsed_s / finished * (self.total - self.finished)


def split_usage(progress: Progress) -> tuple[Progress, str]:
    """Return the progress without what trials hold and where, and that as a line of its own.

    Parameters
    ----------
    progress : Progress
        How far it is.

    Examples
    --------
    >>> split_usage(Progress(usage="2/4 CPUs", workers=2))[1]
    'Resources used: 2/4 CPUs on 2 workers'
    """
    if not progress.usage:
        return progress, ""
    count = progress.workers
    where = f" on {count} {plural('worker', count)}" if count else ""
    rest = replace(progress, usage="", workers=0)
    return rest, printable(f"Resources used: {progress.usage}{where}")


def render(progress: Progress, width: int | None = None) -> str:
    """Return the progress as one line of printable characters.

    Parameters
    ----------
    progress : Progress
        How far it is.
    width : int, optional
        Columns that it may take, at least 1; what matters least is left out first. No limit by
        default.

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
    while len(parts) > 1 and columns(line) > width:
        parts.remove(max(parts))
        line = _join(parts)
    return crop(line, width)


def _parts(progress: Progress) -> Iterator[tuple[int, str]]:
    """Give what there is to say in its order, each with a rank; the highest is left out first."""
    counts, errors, left = progress.counts, progress.errors, progress.remaining_s
    done = progress.finished
    trials = str(done) if progress.total is None else f"{done}/{progress.total}"
    yield 0, f"{trials} {plural('trial', progress.total or done)} done"
    for rank, (status, noun) in enumerate(_NOUNS.items(), start=2):
        count = counts.get(status, 0)
        # That none runs is news: something is wrong, or it is over.
        if count or status is PublicStatus.RUNNING:
            yield rank, f"{_SEPARATOR}{count} {noun}"
    if progress.stopped_early:
        yield 9, f"{_SEPARATOR}{progress.stopped_early} stopped early"
    yield 1, f"{_SEPARATOR}{errors} {plural('error', errors)}"
    if progress.workers:
        yield 10, f"{_SEPARATOR}{progress.workers} {plural('worker', progress.workers)}"
    if progress.usage:
        yield 11, f"{_SEPARATOR}{progress.usage}"
    if progress.best_value is not None:
        yield 5, f"{_SEPARATOR}best {progress.metric or 'value'} {progress.best_value:.4g}"
        if progress.best_trial_id:
            yield 7, f" ({progress.best_trial_id})"
    elif progress.results:
        yield 5, f"{_SEPARATOR}{progress.results} {plural('result', progress.results)}"
    yield 6, f"{_SEPARATOR}{duration(progress.elapsed_s)}"
    if left is not None:
        yield 8, f"{_SEPARATOR}{duration(left)} left"


def _join(parts: list[tuple[int, str]]) -> str:
    return "".join(text for _, text in parts)
