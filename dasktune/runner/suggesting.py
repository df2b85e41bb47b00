"""Requests suggestions of the search algorithm, in the background unless it answers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dasktune.runner.naming import Naming
from dasktune.runner.ports import BackgroundRunner, Clock
from dasktune.search import SearchAlgorithm
from dasktune.search.search_algorithm import Suggestion
from dasktune.storage.journal.json_lines import round_trips
from dasktune.trial.events import Suggested
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial


class Suggester:
    """Requests one suggestion at a time from a search algorithm, and turns answers into events.

    Parameters
    ----------
    search : SearchAlgorithm
        The search algorithm.
    background : BackgroundRunner
        Calls the search algorithm.
    clock : Clock
        The source of the events' times.
    resources_for : callable
        ``resources_for(config)`` returns a trial's resource request.
    naming : Naming, optional
        Calls the user's naming functions.
    """

    def __init__(
        self,
        search: SearchAlgorithm,
        background: BackgroundRunner,
        *,
        clock: Clock,
        resources_for: Callable[[dict[str, Any]], PlacementGroupFactory],
        naming: Naming | None = None,
    ) -> None:
        self._search = search
        self._background = background
        self._clock = clock
        self._resources_for = resources_for
        self._naming = naming

    def request(self, trial_id: str) -> None:
        """Request a suggestion; returns at once.

        Parameters
        ----------
        trial_id : str
            The name of the trial.
        """
        self._background.submit(trial_id, partial(_suggest, self._search, trial_id))

    def suggestions(self) -> Iterator[Suggested]:
        """Yield the suggestions since the last call, or raise the search algorithm's exception."""
        for trial_id, answer in self._background.answers():
            if isinstance(answer, BaseException):
                raise answer
            yield self._event(trial_id, answer)

    def close(self) -> None:
        """Discard requests that have not begun; does not wait for the current one."""
        self._background.close()

    def _event(self, trial_id: str, suggestion: Suggestion) -> Suggested:
        now, config, tag = self._clock.now(), suggestion.config, suggestion.tag
        if config is None:
            finished = suggestion.finished
            return Suggested(trial_id=trial_id, config=None, time=now, finished=finished, tag=tag)
        trial = Trial(trial_id=trial_id, config=config, resources=self._resources_for(config), tag=tag)
        if self._naming is not None:
            self._naming.name(trial)
        return Suggested(
            trial_id=trial_id,
            config=config,
            time=now,
            resources=trial.resources,
            finished=suggestion.finished,
            tag=tag,
            name=trial.name,
            dirname=trial.dirname,
            pickled=not round_trips(config),
        )


def _suggest(search: SearchAlgorithm, trial_id: str) -> Suggestion | BaseException:
    """Return the suggestion, or any exception, which `Suggester.suggestions` raises in the loop."""
    try:
        return search.next_trial(trial_id)
    except BaseException as error:
        return error
