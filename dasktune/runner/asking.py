"""How the runner asks for trials: beside its loop, unless the search answers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dasktune.runner.naming import Naming
from dasktune.runner.ports import Clock, Thinker
from dasktune.search import SearchAlgorithm
from dasktune.search.searcher import Suggestion
from dasktune.storage.json_lines import is_exact
from dasktune.trial.events import Suggested
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

__all__ = ["Asker"]


class Asker:
    """Asks a search for one trial at a time, and makes an event of what it answers.

    Parameters
    ----------
    search : SearchAlgorithm
        Who is asked.
    thinker : Thinker
        Has it think.
    clock : Clock
        Stamps the answers.
    resources_for : callable
        ``resources_for(config)`` gives what a trial needs.
    naming : Naming, optional
        Calls trials what the user wants.
    """

    def __init__(
        self,
        search: SearchAlgorithm,
        thinker: Thinker,
        *,
        clock: Clock,
        resources_for: Callable[[dict[str, Any]], PlacementGroupFactory],
        naming: Naming | None = None,
    ) -> None:
        self._search = search
        self._thinker = thinker
        self._clock = clock
        self._resources_for = resources_for
        self._naming = naming

    def ask(self, trial_id: str) -> None:
        """Ask for a trial; returns at once.

        Parameters
        ----------
        trial_id : str
            What it will be called.
        """
        self._thinker.ask(trial_id, partial(_tried, self._search, trial_id))

    def answers(self) -> Iterator[Suggested]:
        """Give what was answered since, or raise what the search has raised."""
        for trial_id, answer in self._thinker.answers():
            if isinstance(answer, BaseException):
                raise answer
            yield self._event(trial_id, answer)

    def close(self) -> None:
        """Ask no more, and wait for nobody who thinks."""
        self._thinker.close()

    def _event(self, trial_id: str, suggestion: Suggestion) -> Suggested:
        now, config, tag = self._clock.now(), suggestion.config, suggestion.tag
        if config is None:
            finished = suggestion.finished
            return Suggested(trial_id=trial_id, config=None, time=now, finished=finished, tag=tag)
        trial = Trial(
            trial_id=trial_id, config=config, resources=self._resources_for(config), tag=tag
        )
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
            pickled=not is_exact(config),
        )


def _tried(search: SearchAlgorithm, trial_id: str) -> Suggestion | BaseException:
    """Ask, and return even what would end a thread unseen: it is to be raised in the loop."""
    try:
        return search.next_trial(trial_id)
    except BaseException as error:
        return error
