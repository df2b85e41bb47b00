"""What came of an experiment, as its user reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from html import escape
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Final, overload

from dasktune.comparison import Scope, best_row, condense, rank
from dasktune.errors import ConfigError, TrialError, TuneError, check, without_passwords
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.metrics import Mode, flatten, lookup, number, score
from dasktune.trial.retention import Retention
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

    from dasktune.storage.checkpoint import Checkpoint

__all__ = ["AUTO_FILLED", "NoResultError", "Result", "ResultGrid", "Scope"]

#: Fields of each row that dasktune fills in; the user's own metrics are the others.
AUTO_FILLED: Final = frozenset(
    {
        "checkpoint_dir_name",
        "config",
        "date",
        "done",
        "episodes_total",
        "experiment_tag",
        "hostname",
        "iterations_since_restore",
        "node_ip",
        "pid",
        "should_checkpoint",
        "time_since_restore",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "timesteps_since_restore",
        "timesteps_total",
        "training_iteration",
        "trial_id",
    }
)

#: Rows of the table that a `ResultGrid` shows of itself.
_SHOWN: Final = 5

_brief = Repr()
_brief.maxstring = _brief.maxother = 40
_brief.maxdict = _brief.maxlist = _brief.maxtuple = 4
_brief.maxlevel = 2


class NoResultError(TuneError, RuntimeError):
    """No trial has a result that can be compared."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result:
    """What came of one trial.

    Parameters
    ----------
    trial_id : str
        The trial's name within the experiment.
    config : dict
        The configuration that it ran with.
    history : list of dict
        Its results, flat (nested names joined by ``/``), one for each ``training_iteration``.
    status : PublicStatus
        What it was doing when the experiment ended.
    path : str
        Its folder, below the experiment's.
    error : TrialError, optional
        Why it failed for good; None if it did not.
    reason : str, default=""
        Why it ended, in words; empty if it just came to its end.
    records : sequence of CheckpointRecord, default=()
        Its checkpoints that were kept, oldest first.
    retention : Retention, optional
        By what they were kept.
    load_checkpoint : callable
        Opens a record's checkpoint.
    """

    trial_id: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
    status: PublicStatus
    path: str
    error: TrialError | None = None
    reason: str = ""
    records: Sequence[CheckpointRecord] = ()
    retention: Retention = field(default_factory=Retention)
    load_checkpoint: Callable[[CheckpointRecord], Checkpoint] = field(repr=False)

    @classmethod
    def from_trial(
        cls,
        trial: Trial,
        path: str,
        load_checkpoint: Callable[[CheckpointRecord], Checkpoint],
        retention: Retention,
    ) -> Result:
        """Read it off the driver's books; the arguments are those of the class."""
        return cls(
            trial_id=trial.trial_id,
            config=trial.config,
            history=trial.history,
            status=trial.public_status,
            path=path,
            error=_error_of(trial),
            reason=trial.reason,
            records=tuple(trial.checkpoints),
            retention=retention,
            load_checkpoint=load_checkpoint,
        )

    @property
    def metrics(self) -> dict[str, Any]:
        """The last result, empty if there is none."""
        return self.history[-1] if self.history else {}

    @property
    def metrics_dataframe(self) -> pd.DataFrame:
        """The history as a table, one row for each ``training_iteration``. Needs pandas."""
        return _pandas().DataFrame([flatten(row) for row in self.history])

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, opened when first asked for; None if there is none."""
        return self.load_checkpoint(self.records[-1]) if self.records else None

    @cached_property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The best of the kept checkpoints, best first, each with the metrics of its result.

        Without ``checkpoint_score_attribute`` the newest are the best.
        """
        best = self.retention.best(self.records)
        return [(self.load_checkpoint(record), record.metrics) for record in best]

    def get_best_checkpoint(self, metric: str, mode: Mode) -> Checkpoint | None:
        """Return the kept checkpoint whose result was the best, or None if none has the metric.

        Parameters
        ----------
        metric : str
            What to compare; nested names are joined by ``/``.
        mode : {"min", "max"}
            Which way it is better.

        Raises
        ------
        ConfigError
            If `mode` is neither.
        """
        best = Retention(1, metric, _checked(mode)).best(self.records)
        if not best or score(best[0].metrics, metric, mode) is None:
            return None
        return self.load_checkpoint(best[0])

    def __repr__(self) -> str:
        own = {key: value for key, value in self.metrics.items() if not _is_auto_filled(key)}
        parts = [
            f"trial_id={self.trial_id!r}",
            f"status={self.status.value}",
            f"metrics={own!r}",
            f"path={without_passwords(self.path)!r}",
        ]
        if self.error is not None:
            parts.append(f"error={self.error.message!r}")
        if self.records:
            parts.append(f"checkpoint={self.records[-1].path!r}")
        return f"Result({', '.join(parts)})"


class ResultGrid(Sequence[Result]):
    """What came of an experiment: its trials' results, in the order in which the trials were made.

    Parameters
    ----------
    results : iterable of Result
        One for each trial.
    experiment_path : str
        Where the experiment is kept.
    metric : str, optional
        What was optimised.
    mode : {"min", "max"}, optional
        Which way it is better.

    Examples
    --------
    >>> from dasktune.trial.status import PublicStatus
    >>> def result(trial_id, loss):
    ...     return Result(trial_id=trial_id, config={"x": 1}, history=[{"loss": loss}],
    ...                   status=PublicStatus.TERMINATED, path="", load_checkpoint=print)
    >>> grid = ResultGrid([result("a", 0.5), result("b", 0.2)], "exp", metric="loss", mode="min")
    >>> grid.get_best_result().trial_id
    'b'
    """

    def __init__(
        self,
        results: Iterable[Result],
        experiment_path: str,
        metric: str | None = None,
        mode: Mode | None = None,
    ) -> None:
        self._results = list(results)
        self._metric = metric
        self._mode = mode
        #: Where the experiment is kept: a path or a URL.
        self.experiment_path = experiment_path

    @classmethod
    def from_trials(
        cls,
        trials: Iterable[Trial],
        experiment_path: str,
        metric: str | None,
        mode: Mode | None,
        load_checkpoint: Callable[[CheckpointRecord], Checkpoint],
        retention: Retention | None = None,
    ) -> ResultGrid:
        """Read it off the driver's books.

        Parameters
        ----------
        trials : iterable of Trial
            All trials of the experiment.
        experiment_path : str
            Where the experiment is kept.
        metric : str or None
            What was optimised.
        mode : {"min", "max"} or None
            Which way it is better.
        load_checkpoint : callable
            Opens a record's checkpoint. The results travel with it if it can be pickled.
        retention : Retention, optional
            By what checkpoints were kept.
        """
        base, kept = experiment_path.rstrip("/"), retention or Retention()
        results = [
            Result.from_trial(trial, f"{base}/trials/{trial.trial_id}", load_checkpoint, kept)
            for trial in trials
        ]
        return cls(results, experiment_path, metric, mode)

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        return self._results[index]

    @property
    def errors(self) -> list[TrialError]:
        """Why trials failed for good, in the order of the trials."""
        return [result.error for result in self if result.error is not None]

    @property
    def num_errors(self) -> int:
        """How many trials failed for good."""
        return self._count(PublicStatus.ERROR)

    @property
    def num_terminated(self) -> int:
        """How many trials came to their end, or were stopped."""
        return self._count(PublicStatus.TERMINATED)

    def _count(self, status: PublicStatus) -> int:
        return sum(result.status is status for result in self)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: Mode | None = None,
        scope: Scope = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """Return the trial that was best.

        Parameters
        ----------
        metric : str, optional
            What to compare; by default what was optimised. Nested names are joined by ``/``.
        mode : {"min", "max"}, optional
            Which way it is better; by default as it was optimised.
        scope : {"last", "all", "avg", "last-5-avg", "last-10-avg"}, default="last"
            What of a trial counts: its last value, its best one, or the mean of all, of the last 5
            or of the last 10 rows that have the metric.
        filter_nan_and_inf : bool, default=True
            Leave out what is NaN or infinite: under ``"all"`` such rows, otherwise trials that come
            to such a value. NaN is the worst value if it is not left out.

        Returns
        -------
        Result
            The first of the best; the only one there is, whatever it reported.

        Raises
        ------
        ConfigError
            If there is more than one trial, and it is open what to compare or which way.
        NoResultError
            If no trial has a value to compare. It is a RuntimeError, too.
        """
        if len(self) == 1:
            return self[0]
        if not self:
            raise NoResultError("there is no trial to take the best of")
        metric, mode = self._goal(metric, mode)
        ranked = _ranked(self._results, metric, mode, scope, finite=filter_nan_and_inf)
        if not ranked:
            raise NoResultError(self._why_none(metric))
        return ranked[0]

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: Mode | None = None
    ) -> pd.DataFrame:
        """Return a table with a row for each trial. Needs pandas.

        Parameters
        ----------
        filter_metric : str, optional
            Take each trial's row in which this metric was best; by default its last row.
        filter_mode : {"min", "max"}, optional
            Which way `filter_metric` is better; by default as the experiment was optimised.

        Returns
        -------
        DataFrame
            ``trial_id``, the metrics, and the configurations as ``config/a/b``.

        Raises
        ------
        ConfigError
            If pandas is missing, or if it is open what is best.
        """
        named = filter_metric is not None
        check(named or filter_mode is None, "filter_metric", "given with filter_mode", None)
        rows = []
        for result in self:
            row: Mapping[str, Any] = result.metrics
            if filter_metric is not None:
                mode = _checked(filter_mode or self._mode, "filter_mode")
                row = best_row(result.history, filter_metric, mode)
            own = {k: v for k, v in flatten(row).items() if k.split("/")[0] != "config"}
            config = flatten(result.config, "config/")
            rows.append({"trial_id": result.trial_id, **own, **config})
        return _pandas().DataFrame(rows)

    def _goal(self, metric: str | None, mode: Mode | None) -> tuple[str, Mode]:
        metric = metric or self._metric
        hint = ". Give it to get_best_result(), or to TuneConfig."
        if metric is None:
            raise ConfigError(f"metric must be the name of a reported metric, got None{hint}")
        return metric, _checked(mode or self._mode, hint=hint)

    def _why_none(self, metric: str) -> str:
        names = {name for r in self for row in r.history for name in flatten(row)}
        if metric in names:
            return f"{metric!r} is in no trial a number that counts (filter_nan_and_inf leaves out)"
        own = sorted(name for name in names if not _is_auto_filled(name))
        close = get_close_matches(metric, own, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        reported = ", ".join(own) or "nothing"
        return f"none of the {len(self)} trials reported {metric!r}; reported: {reported}{hint}"

    # How it shows itself

    def __repr__(self) -> str:
        head, *rows = self._table()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in (head, *rows)
        ]
        return "\n".join([self._headline(), *(line.rstrip() for line in lines if rows)])

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        body = "".join(_html_row(row, "td") for row in rows)
        table = f"<table><thead>{_html_row(head, 'th')}</thead><tbody>{body}</tbody></table>"
        return f"<div><p>{escape(self._headline())}</p>{table if rows else ''}</div>"

    def _headline(self) -> str:
        counts = [f"{n} {s.value}" for s in PublicStatus if (n := self._count(s))]
        noun = "trial" if len(self) == 1 else "trials"
        what = f": {', '.join(counts)}" if counts else ""
        place = without_passwords(self.experiment_path)
        return f"ResultGrid of {len(self)} {noun}{what}, in {place}"

    def _table(self) -> list[list[str]]:
        """Return cells: a head, and rows of the best trials, of the first ones if none is best."""
        shown = self._results
        columns = ["trial_id", "status", "training_iteration"]
        if self._metric is not None and self._mode is not None:
            columns.append(self._metric)
            ranked = _ranked(shown, self._metric, self._mode, "last", finite=True)
            shown = ranked or shown
        table = [[*columns, "config"]]
        for result in shown[:_SHOWN]:
            metrics = [_cell(lookup(result.metrics, name)) for name in columns[2:]]
            config = ", ".join(f"{k}={_cell(v)}" for k, v in flatten(result.config).items())
            table.append([result.trial_id, result.status.value, *metrics, _clip(config)])
        return table


def _error_of(trial: Trial) -> TrialError | None:
    if trial.public_status is not PublicStatus.ERROR:
        return None
    info = trial.error
    if info is not None and info.message == trial.reason:
        return TrialError(trial.trial_id, info.message, info.traceback)
    # It was given up for its lost workers; an earlier failure of its code is not why.
    return TrialError(trial.trial_id, trial.reason)


def _checked(mode: Mode | None, name: str = "mode", hint: str = "") -> Mode:
    if mode is None or mode not in ("min", "max"):
        raise ConfigError(f"{name} must be 'min' or 'max', got {mode!r}{hint}")
    return mode


def _is_auto_filled(name: str) -> bool:
    return name.split("/")[0] in AUTO_FILLED


def _ranked(
    results: Iterable[Result], metric: str, mode: Mode, scope: Scope, *, finite: bool
) -> list[Result]:
    """Return the trials that can be compared, best first; equal ones in their order."""
    condensed = (
        (condense(result.history, metric, mode, scope, finite=finite), result) for result in results
    )
    scored = [(value, result) for value, result in condensed if value is not None]
    scored.sort(key=lambda pair: rank(pair[0], mode), reverse=True)
    return [result for _, result in scored]


def _cell(value: object) -> str:
    if value is None:
        return ""
    real = None if isinstance(value, bool) else number(value)
    return _brief.repr(value) if real is None else f"{real:.6g}"


def _clip(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _html_row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise ConfigError(
            "a dataframe must be made by pandas, which is not installed. "
            "Run: pip install dasktune[pandas]. Without it, Result.history holds the same rows."
        ) from error
    return pd
