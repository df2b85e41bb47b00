"""The contract of search: a `SearchAlgorithm` is what the experiment talks to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.random import SeedSequence

from dasktune.trial.metrics import Metric, Modes

__all__ = ["SearchAlgorithm", "SearchSpec", "Suggestion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """What the experiment tells its search algorithm once, before it asks.

    Parameters
    ----------
    space : mapping
        The search space as the user wrote it.
    num_samples : int
        How many samples the user wants; -1 is without end.
    metric : str, list of str or None
        What is to be optimised, perhaps several goals at once.
    mode : {"min", "max"}, list of them or None
        Which way it is better; one for each if there are several metrics.
    seed : SeedSequence
        The source of all randomness of this search.
    max_concurrent : int, default=0
        Most trials that may be unfinished at a time; 0 is no limit.

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
    """An answer of a search algorithm.

    A configuration; or None with ``finished=False``: no slot now, ask again when a trial has ended;
    or None with ``finished=True``: there will be no more.

    Examples
    --------
    >>> Suggestion(config={"lr": 0.1}).finished, Suggestion(config=None, finished=True).finished
    (False, True)
    """

    config: dict[str, Any] | None
    finished: bool = False
    #: What a variant calls itself, ``"0_lr=0.1,depth=3"``.
    tag: str = ""


class SearchAlgorithm(ABC):
    """What the experiment asks for configurations and tells of everything that came of them.

    Each trial is told exactly once that it has ended, on whatever path.

    Examples
    --------
    >>> from dasktune.search import BasicVariantGenerator
    >>> isinstance(BasicVariantGenerator(), SearchAlgorithm)
    True
    """

    #: How many trials may be asked for before there is a place to run them.
    lookahead: int = 1

    #: Whether :meth:`next_trial` takes but microseconds, so that the driver can ask in its own
    #: loop. Else it is asked in a thread; what happens meanwhile it is told afterwards, by another
    #: thread, but never by two at once.
    answers_at_once: bool = False

    @abstractmethod
    def setup(self, spec: SearchSpec) -> None:
        """Take the task; called once, before anything else.

        Raises
        ------
        ConfigError
            If the space is one that this algorithm cannot search.
        """

    @property
    @abstractmethod
    def total_samples(self) -> int | None:
        """How many trials there will be at most, or None if there is no end."""

    @abstractmethod
    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the configuration of the next trial, which will be called `trial_id`."""

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:  # noqa: B027
        """Hear of a result, flat."""

    def on_trial_complete(  # noqa: B027
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Hear that a trial has ended; `result` is its last, None if it never reported.

        It is None, too, if the scheduler gave the trial another configuration after it had begun.
        """

    def on_trial_pause(self, trial_id: str) -> None:  # noqa: B027
        """Hear that a trial waits for others: until it goes on it counts in no limit."""

    def on_trial_unpause(self, trial_id: str) -> None:  # noqa: B027
        """Hear that a trial that was paused goes on."""

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:  # noqa: B027
        """Hear that a trial has another configuration than :meth:`next_trial` has just returned.

        So it is where an experiment is resumed and the answers are not what they were; `config` is
        None if there was none then.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all that it has learnt, as plain values that JSON can hold."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Take back what :meth:`state_dict` gave."""
