"""The interface of searchers, which users subclass for their own search methods."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isnan, nan
from typing import Any, ClassVar, Final, Literal, Protocol

from dasktune.errors import check
from dasktune.trial.metrics import Metric, Modes, check_goals, lookup, number


class EvaluatedTrial(Protocol):
    """A trial of an earlier experiment from which a searcher can learn, such as a `Result`."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the trial."""

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        """The results of the trial, oldest first."""

    @property
    def error(self) -> object:
        """The error that ended the trial; None if the trial did not fail."""

    @property
    def stopped_early(self) -> bool:
        """Whether a trial scheduler stopped the trial before its training was complete."""


class EvaluatedTrials(Protocol):
    """The trials of an earlier experiment, such as an `ExperimentAnalysis`."""

    @property
    def trials(self) -> Sequence[EvaluatedTrial]:
        """The trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPoint:
    """An evaluated configuration: the arguments of :meth:`Searcher.add_evaluated_point` as a value.

    Parameters
    ----------
    parameters : mapping
        The configuration, with or without the constants of the search space.
    value : float or list of float
        The final value of the metric; a list, one for each metric, if there are several. NaN is
        allowed only with `error`.
    error : bool, default=False
        Whether the evaluation failed.
    pruned : bool, default=False
        Whether the evaluation was stopped early.
    intermediate_values : tuple of float, default=()
        The values of the metric at steps 1, 2, 3 and so on.
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

    A searcher must use neither a clock nor a global random generator; its seed is an argument of
    :meth:`set_search_properties`. The driver calls :meth:`on_trial_complete` exactly once for each
    trial that the searcher suggested.

    Parameters
    ----------
    metric : str or list of str, optional
        The metric to optimise; a list for several objectives. By default the experiment's.
    mode : {"min", "max"} or list of them, optional
        Whether to minimise or maximise; if `metric` is a list, a list with a mode for each metric.
        By default the experiment's.

    Raises
    ------
    ConfigError
        If a mode is neither "min" nor "max", or the numbers of metrics and modes differ.

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

    #: Return value of :meth:`suggest` when there will be no more suggestions.
    FINISHED: ClassVar[Finished] = FINISHED

    metric: Metric = None
    mode: Modes = None

    #: Whether :meth:`suggest` takes only microseconds, so the driver can call it in its own loop.
    #: Otherwise the driver calls it in a background thread while trials run. Two threads never call
    #: a searcher at once: the driver holds back events until a running :meth:`suggest` returns. Set
    #: it to True also for a library that may be called by one thread only; the driver's loop then
    #: waits for each suggestion.
    answers_at_once: bool = False

    def __init__(self, *, metric: Metric = None, mode: Modes = None) -> None:
        check_goals(metric, mode)
        self.metric = metric
        self.mode = mode

    @abstractmethod
    def suggest(self, trial_id: str) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return a configuration for a new trial.

        Parameters
        ----------
        trial_id : str
            The name of the new trial.

        Returns
        -------
        dict, None or FINISHED
            The configuration. None if there is none now: the driver calls again after a trial has
            ended. :data:`FINISHED` if there will be no more.
        """

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:  # noqa: B027
        """Handle a result of a trial that continues.

        Parameters
        ----------
        trial_id : str
            The name of the trial.
        result : mapping
            The metrics, flat: nested names are joined by ``/``.
        """

    def on_trial_complete(  # noqa: B027
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Handle the end of a trial.

        Parameters
        ----------
        trial_id : str
            The name of the trial, as passed to :meth:`suggest`.
        result : mapping, optional
            The last result of the trial, flat; the metric may be missing or NaN. If a trial
            scheduler stopped the trial early, it contains the key :data:`STOPPED_EARLY`. None if
            the trial reported no result, or if the scheduler replaced the suggested configuration,
            as population based training does: the searcher gets no results of the new
            configuration.
        error : bool, default=False
            Whether the trial failed, after all retries.
        """

    def on_pause(self, trial_id: str) -> None:  # noqa: B027
        """Handle that a trial is paused at a rung, perhaps until other trials reach the rung.

        Those may include trials that are not suggested yet, so a paused trial must not count
        towards a limit of unfinished trials.

        Parameters
        ----------
        trial_id : str
            The name of the trial.
        """

    def on_unpause(self, trial_id: str) -> None:  # noqa: B027
        """Handle that a paused trial resumes.

        Parameters
        ----------
        trial_id : str
            The name of the trial.
        """

    def set_search_properties(
        self, metric: Metric, mode: Modes, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Set the experiment's metric, mode and space where the constructor got none.

        The driver calls it once, before the first suggestion.

        Parameters
        ----------
        metric : str, list of str or None
            The experiment's metric; a list for several objectives.
        mode : {"min", "max"}, list of them or None
            Whether to minimise or maximise; one for each metric if there are several.
        config : mapping
            The search space as the user wrote it.
        **spec
            ``seed`` (`SeedSequence`), the seed of all randomness; and ``num_samples`` (int), the
            number of samples, -1 for no limit.

        Returns
        -------
        bool
            Whether the searcher searches `config`; False if it has its own search space.

        Raises
        ------
        ConfigError
            If the searcher and the experiment both set metric or mode, to different values.
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
        """Ask the searcher to limit its number of unfinished trials itself.

        Parameters
        ----------
        max_concurrent : int
            The largest number of unfinished trials, at least 1.

        Returns
        -------
        bool
            Whether the searcher does so. If not, the driver wraps it in a `ConcurrencyLimiter`.
        """
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
            The configuration, with or without the constants of the search space.
        value : float or list of float
            The final value of the metric; a list, one for each metric, if there are several. NaN is
            allowed only with `error`.
        error : bool, default=False
            Whether the evaluation failed.
        pruned : bool, default=False
            Whether the evaluation was stopped early.
        intermediate_values : list of float, optional
            The values of `metric` at steps 1, 2, 3 and so on.

        Raises
        ------
        ConfigError
            If `parameters` is not a point of the search space, or `value` does not have one value
            for each metric. If the space is not set yet, :meth:`set_search_properties` raises it.
        NotImplementedError
            If this searcher cannot learn from evaluated points.
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
        """Learn from an evaluated point; searchers that can do so override this method.

        Parameters
        ----------
        point : EvaluatedPoint
            The arguments of :meth:`add_evaluated_point`.

        Raises
        ------
        ConfigError
            As in :meth:`add_evaluated_point`.
        NotImplementedError
            If this searcher cannot learn from evaluated points.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot learn from evaluated points")

    def add_evaluated_trials(
        self,
        trials: EvaluatedTrial | EvaluatedTrials | Iterable[EvaluatedTrial],
        metric: str | list[str] | None = None,
    ) -> None:
        """Learn from the last results of an earlier experiment's trials.

        A trial counts as failed if it failed or its last value is NaN, and as pruned if a trial
        scheduler stopped it early. A trial that did not fail and whose last result lacks the metric
        is left out.

        Parameters
        ----------
        trials : Result, iterable of Result or ExperimentAnalysis
            A trial, some trials, a :class:`~dasktune.ResultGrid` or an
            :class:`~dasktune.ExperimentAnalysis`.
        metric : str or list of str, optional
            The metric, by its name in the earlier experiment; by default this searcher's metric.

        Raises
        ------
        ConfigError
            If `trials` is none of these, if neither `metric` nor the searcher's metric is set, or
            if a configuration is not a point of the search space.
        NotImplementedError
            If this searcher cannot learn from evaluated points.
        """
        given = metric if metric is not None else self.metric
        hint = "Give it to add_evaluated_trials(), or to the searcher."
        check(given is not None, "metric", "the name of a reported metric", given, hint)
        names = given if isinstance(given, list) else [given or ""]
        for trial in _evaluated_trials(trials):
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

    def read_past(self, read: Callable[[str], Any]) -> None:  # noqa: B027
        """Read the earlier experiments that the constructor got as paths.

        The driver calls it before it stores the searcher, so that a restored search learns from
        the same data.

        Parameters
        ----------
        read : callable
            Returns the experiment at a path or URL: an object with the attributes `trials`, the
            results, `default_metric` and `default_mode`. Of each trial the history has only the
            last result, so that large experiments take little memory.
        """

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:  # noqa: B027
        """Replace the answer that :meth:`suggest` has just returned by the recorded one.

        When an experiment is restored, the driver calls :meth:`suggest` again for the trials that
        started after the last snapshot. It calls this method if the searcher's answer differs from
        the recorded one.

        Parameters
        ----------
        trial_id : str
            The name of the trial.
        config : mapping or None
            The trial's configuration, with the constants of the search space; None if the recorded
            answer has none.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON-serializable values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - no state, no work
        """Restore the state that :meth:`state_dict` returned."""

    def save(self, checkpoint_path: str) -> None:
        """Write the state into a file, for another experiment or a program of your own.

        An experiment never calls it: the snapshots of an experiment contain the searcher's state.

        Parameters
        ----------
        checkpoint_path : str
            The path of the file, which is replaced if it exists.

        Raises
        ------
        OSError
            If the file cannot be written.

        Examples
        --------
        >>> searcher.save("searcher.json")  # doctest: +SKIP
        """
        text = json.dumps({"searcher": type(self).__name__, "state": self.state_dict()})
        with open(checkpoint_path, "w", encoding="utf-8") as file:
            file.write(text)

    def restore(self, checkpoint_path: str) -> None:
        """Restore the state from a file that :meth:`save` has written.

        Call it before `Tuner.fit()` or before :meth:`suggest`. The state of `OptunaSearch` is a
        pickle, and unpickling may run code: restore only files that you trust.

        Parameters
        ----------
        checkpoint_path : str
            The path of the file.

        Raises
        ------
        ConfigError
            If the file was not written by a searcher of this class.
        OSError
            If the file cannot be read.

        Examples
        --------
        >>> searcher.restore("searcher.json")  # doctest: +SKIP
        """
        name = type(self).__name__
        try:
            with open(checkpoint_path, encoding="utf-8") as file:
                saved: Any = json.load(file)
        except ValueError:
            saved = None
        valid = isinstance(saved, dict) and saved.get("searcher") == name and "state" in saved
        check(valid, "checkpoint_path", f"a file that {name}.save() has written", checkpoint_path)
        self._restore_state(saved["state"])

    def _restore_state(self, state: Mapping[str, Any]) -> None:
        """Load the state now; searchers that first need their space keep it until they have one."""
        self.load_state_dict(state)


def _evaluated_trials(given: Any) -> list[EvaluatedTrial]:
    """Return the trials of an analysis, of an iterable, or the one trial given."""
    if hasattr(given, "history"):
        return [given]
    trials = getattr(given, "trials", given)
    rule = "a Result, a ResultGrid, an ExperimentAnalysis or a list of Results"
    valid = isinstance(trials, Iterable) and not isinstance(trials, str | bytes | Mapping)
    hint = "Open the directory of an experiment as ExperimentAnalysis(path)."
    check(valid, "trials", rule, given, hint)
    found = list(trials)
    check(all(hasattr(trial, "history") for trial in found), "trials", rule, given, hint)
    return found
