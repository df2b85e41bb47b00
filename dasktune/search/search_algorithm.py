"""`SearchAlgorithm`, the interface through which the experiment gets configurations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.random import SeedSequence

from dasktune.trial.metrics import Metric, Modes


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """The search problem that an experiment passes to :meth:`SearchAlgorithm.setup`.

    Parameters
    ----------
    space : mapping
        The search space as the user wrote it.
    num_samples : int
        The number of samples; -1 for no limit.
    metric : str, list of str or None
        The metric to optimise; a list for several objectives.
    mode : {"min", "max"}, list of them or None
        Whether to minimise or maximise; one for each metric if there are several.
    seed : SeedSequence
        The seed of all randomness of this search.
    max_concurrent : int, default=0
        The largest number of unfinished trials; 0 for no limit.

    Examples
    --------
    >>> from numpy.random import SeedSequence
    >>> spec = SearchSpec(
    ...     space={}, num_samples=10, metric="loss", mode="min", seed=SeedSequence(1)
    ... )
    >>> spec.max_concurrent
    0
    """

    space: Mapping[str, Any]
    num_samples: int
    metric: Metric
    mode: Modes
    seed: SeedSequence
    max_concurrent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """The return value of :meth:`SearchAlgorithm.next_trial`.

    Parameters
    ----------
    config : dict or None
        The configuration of the new trial. None with ``finished=False`` means that there is none
        now: call again after a trial has ended.
    finished : bool, default=False
        Whether there will be no more configurations; `config` is then None.
    tag : str, default=""
        A short description of the configuration, such as ``"0_lr=0.1,depth=3"``.

    Examples
    --------
    >>> Suggestion(config={"lr": 0.1}).finished, Suggestion(config=None, finished=True).finished
    (False, True)
    """

    config: dict[str, Any] | None
    finished: bool = False
    tag: str = ""


class SearchAlgorithm(ABC):
    """Returns the configurations of an experiment's trials and receives their results.

    :meth:`on_trial_complete` is called exactly once for each trial, however the trial ends.

    Examples
    --------
    >>> from dasktune.search import BasicVariantGenerator
    >>> isinstance(BasicVariantGenerator(), SearchAlgorithm)
    True
    """

    #: How many configurations the driver may request before there are resources to run them.
    lookahead: int = 1

    #: Whether :meth:`next_trial` takes only microseconds, so the driver can call it in its own
    #: loop. Otherwise a background thread calls it. The driver's thread holds back events until
    #: that call returns, so two threads never call an algorithm at once.
    answers_at_once: bool = False

    @abstractmethod
    def setup(self, spec: SearchSpec) -> None:
        """Receive the search problem; called once, before any other method.

        Raises
        ------
        ConfigError
            If this algorithm cannot search the space.
        """

    @property
    @abstractmethod
    def total_samples(self) -> int | None:
        """The largest number of trials, or None if there is no limit."""

    @abstractmethod
    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the configuration for a new trial named `trial_id`."""

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:  # noqa: B027
        """Handle a flat result of a trial that continues."""

    def on_trial_complete(  # noqa: B027
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Handle the end of a trial; `result` is its last result, None if it never reported.

        `result` is also None if the scheduler changed the trial's configuration after its start.
        """

    def on_trial_pause(self, trial_id: str) -> None:  # noqa: B027
        """Handle that a trial is paused; concurrency limits ignore it until it resumes."""

    def on_trial_unpause(self, trial_id: str) -> None:  # noqa: B027
        """Handle that a paused trial resumes."""

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:  # noqa: B027
        """Replace the answer that :meth:`next_trial` has just returned by the recorded one.

        When an experiment is restored, the driver calls :meth:`next_trial` again for the trials
        that started after the last snapshot. It calls this method if the answer differs from the
        recorded one. `config` is None if the recorded answer has no configuration.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON-serializable values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restore the state that :meth:`state_dict` returned."""
