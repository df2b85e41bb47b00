"""The interface of searchers, which users subclass for their own search methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isnan, nan
from typing import Any, Final, Literal, Protocol

from dasktune.errors import check
from dasktune.trial.metrics import Metric, Modes, check_goals, lookup, number

__all__ = ["FINISHED", "STOPPED_EARLY", "EvaluatedPoint", "EvaluatedTrial", "Finished", "Searcher"]


class EvaluatedTrial(Protocol):
    """A trial of an earlier experiment from which a searcher can learn, such as a `Result`."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Its configuration."""

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        """Its results, oldest first."""

    @property
    def error(self) -> object:
        """The reason of its final failure; None if it has not failed."""

    @property
    def stopped_early(self) -> bool:
        """Whether a trial scheduler has ended it though it had further to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPoint:
    """A configuration that was evaluated elsewhere, as :meth:`Searcher.add_evaluated_point` has it.

    Parameters
    ----------
    parameters : mapping
        The configuration, perhaps with constants of the search space.
    value : float or list of float
        Its value of each metric; NaN only with `error`.
    error : bool, default=False
        Whether it failed.
    pruned : bool, default=False
        Whether it was stopped early.
    intermediate_values : tuple of float, default=()
        The values of the metric on the way, in order.
    """

    parameters: Mapping[str, Any]
    value: float | list[float]
    error: bool = False
    pruned: bool = False
    intermediate_values: tuple[float, ...] = ()

    def add_to(self, searcher: Searcher) -> None:
        """Add this point to another searcher."""
        searcher.add_evaluated_point(
            self.parameters,
            self.value,
            error=self.error,
            pruned=self.pruned,
            intermediate_values=list(self.intermediate_values) or None,
        )


class Finished(Enum):
    """The type of :data:`FINISHED`."""

    FINISHED = "finished"


#: Return value of :meth:`Searcher.suggest` when there will be no more suggestions.
FINISHED: Final = Finished.FINISHED

#: Key of the last result that a searcher gets; True if a trial scheduler stopped the trial early.
STOPPED_EARLY: Final = "stopped_early"


class Searcher(ABC):
    """Suggests configurations and learns from their results.

    A searcher uses neither a clock nor a global random generator; :meth:`set_search_properties`
    passes its seed. :meth:`on_trial_complete` is called exactly once for each trial that it
    suggested.

    Parameters
    ----------
    metric : str or list of str, optional
        What is to be optimised; a list for several goals at once. Left out, it is the experiment's.
    mode : {"min", "max"} or list of them, optional
        Which way it is better; a list, one for each, if `metric` is one. Likewise.

    Raises
    ------
    ConfigError
        If a mode is not known, or metrics and modes do not match in number.

    Examples
    --------
    >>> class Countdown(Searcher):
    ...     left = 2
    ...
    ...     def suggest(self, trial_id):
    ...         self.left -= 1
    ...         return {"x": self.left} if self.left >= 0 else FINISHED
    >>> countdown = Countdown()
    >>> [countdown.suggest(name) for name in ("a_00000", "a_00001", "a_00002")]
    [{'x': 1}, {'x': 0}, <Finished.FINISHED: 'finished'>]
    """

    metric: Metric = None
    mode: Modes = None

    #: Whether :meth:`suggest` takes only microseconds, so the driver can call it in its own loop.
    #: Any other searcher is called in a background thread while trials run. Two threads never call
    #: it at once: events during a call of :meth:`suggest` are passed afterwards. Set it to True for
    #: a library that must be called by one thread only; then the driver's loop waits for each
    #: suggestion.
    answers_at_once: bool = False

    def __init__(self, *, metric: Metric = None, mode: Modes = None) -> None:
        check_goals(metric, mode)
        self.metric = metric
        self.mode = mode

    @abstractmethod
    def suggest(self, trial_id: str) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return a configuration for a new trial.

        None means that there is none now; it is called again when a trial has ended.
        :data:`FINISHED` means that there will be no more.
        """

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:  # noqa: B027
        """Handle a flat result of a trial that continues."""

    def on_trial_complete(  # noqa: B027
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Handle the end of a trial.

        Parameters
        ----------
        trial_id : str
            A name that :meth:`suggest` was given.
        result : mapping, optional
            Its last result, flat, where the metric may be missing or NaN. None if there is none, or
            if it is not one of the suggested configuration: the scheduler may have given the trial
            another one since, as population based training does. Nor are results of that told.
            :data:`STOPPED_EARLY` is in it if a trial scheduler has ended the trial early.
        error : bool, default=False
            Whether it failed, after all retries.
        """

    def on_pause(self, trial_id: str) -> None:  # noqa: B027
        """Handle that a trial is paused at a rung; it may wait for trials not suggested yet."""

    def on_unpause(self, trial_id: str) -> None:  # noqa: B027
        """Handle that a paused trial resumes."""

    def set_search_properties(
        self, metric: Metric, mode: Modes, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take what the constructor left open from the experiment; called once, before all else.

        Parameters
        ----------
        metric : str, list of str or None
            What is to be optimised.
        mode : {"min", "max"}, list of them or None
            Which way it is better; one for each if there are several metrics.
        config : mapping
            The search space as the user wrote it.
        **spec
            ``seed`` (`SeedSequence`, the source of all randomness) and ``num_samples`` (int, -1 is
            without end).

        Returns
        -------
        bool
            Whether `config` was taken as the space to search; False if the searcher has its own.

        Raises
        ------
        ConfigError
            If metric or mode is given in both places, and they differ.
        """
        for name, given in (("metric", metric), ("mode", mode)):
            own = getattr(self, name)
            agrees = own is None or given is None or own == given
            check(
                agrees or (isinstance(own, list) and given in own),
                f"{type(self).__name__}({name}=...)",
                f"equal to TuneConfig({name}={given!r})",
                own,
                f"Set {name} in one place.",
            )
            if own is None:
                setattr(self, name, given)
        return False

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Return whether this searcher itself will keep at most so many trials unfinished."""
        return False

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: float | list[float],
        *,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        """Learn from a configuration that was evaluated elsewhere.

        Parameters
        ----------
        parameters : mapping
            The configuration, perhaps with constants of the search space.
        value : float or list of float
            Its value of each metric; NaN only with `error`.
        error : bool, default=False
            Whether it failed.
        pruned : bool, default=False
            Whether it was stopped early.
        intermediate_values : list of float, optional
            The values of `metric` on the way, in order.

        Raises
        ------
        ConfigError
            If it is no point of the search space, or has not one value for each metric. If the
            space is not known yet, that shows when it is.
        NotImplementedError
            If this searcher cannot.
        """
        self.learn_point(
            EvaluatedPoint(
                parameters=dict(parameters),
                value=value,
                error=error,
                pruned=pruned,
                intermediate_values=tuple(intermediate_values or ()),
            )
        )

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Learn from a point: what a searcher overrides that can.

        Raises
        ------
        ConfigError
            As :meth:`add_evaluated_point`.
        NotImplementedError
            If this searcher cannot.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot learn from evaluated points")

    def add_evaluated_trials(
        self, trials: Iterable[EvaluatedTrial], metric: str | list[str] | None = None
    ) -> None:
        """Learn from the trials of an earlier experiment, by their last results.

        Trials that failed or whose value is NaN count as failed. Trials that did not fail and never
        reported the metric are left out. Trials that a trial scheduler stopped early count as
        pruned.

        Parameters
        ----------
        trials : iterable of Result
            A :class:`~dasktune.ResultGrid`, or some of its results.
        metric : str or list of str, optional
            What to learn, by the names of then; by default this searcher's own metric.

        Raises
        ------
        ConfigError
            If it is open what to learn.
        NotImplementedError
            If this searcher cannot.
        """
        given = metric if metric is not None else self.metric
        hint = "Give it to add_evaluated_trials(), or to the searcher."
        check(given is not None, "metric", "the name of a reported metric", given, hint)
        names = given if isinstance(given, list) else [given or ""]
        for trial in trials:
            rows = [[number(lookup(row, name)) for name in names] for row in trial.history]
            last = rows[-1] if rows else [None] * len(names)
            values = [nan if value is None else value for value in last]
            failed = trial.error is not None
            if None in last and not failed:
                continue
            steps = [row[0] for row in rows if row[0] is not None]
            self.add_evaluated_point(
                trial.config,
                values if isinstance(given, list) else values[0],
                error=failed or any(map(isnan, values)),
                pruned=trial.stopped_early and not failed,
                intermediate_values=None if isinstance(given, list) else steps,
            )

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:  # noqa: B027
        """Handle that a trial has another configuration than :meth:`suggest` has just returned.

        This happens when an experiment is restored and the searcher's answers differ.

        Parameters
        ----------
        trial_id : str
            The trial.
        config : mapping or None
            Its configuration, constants of the search space included; None if there was none.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON-serializable values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - no state, no work
        """Restore the state that :meth:`state_dict` returned."""
