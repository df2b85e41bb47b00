"""What an experiment wants next: to ask for a trial, or to start one, or nothing any more."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from dasktune.experiment.inquiry import Inquiry
from dasktune.experiment.roster import Roster
from dasktune.experiment.setbacks import why_all_ends
from dasktune.experiment.settings import ExperimentSettings
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.search.searcher import SearchAlgorithm
from dasktune.trial.trial import Trial

__all__ = ["Agenda"]


class Agenda:
    """The trials of an experiment, and what may be done for them now; asking changes nothing.

    Parameters
    ----------
    settings : ExperimentSettings
        Limits and goals.
    search : SearchAlgorithm
        Proposes configurations.
    scheduler : TrialScheduler
        Prioritises trials.
    prefix : str
        What the names of the trials begin with.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        search: SearchAlgorithm,
        scheduler: TrialScheduler,
        prefix: str,
    ) -> None:
        self.settings = settings
        self.search = search
        self.scheduler = scheduler
        self.roster = Roster()
        #: What the search is asked, and told.
        self.inquiry = Inquiry(search)
        self._prefix = prefix
        self._search_finished = False
        #: Whether it had nothing to offer when it was last asked, and nothing has happened since.
        self._search_waits = False
        #: Why everything ends now; empty while it goes on.
        self.stop_reason = ""
        #: The failure that everything was ended for.
        self.first_error: Trial | None = None
        #: Whether the user lets nothing start.
        self.on_hold = False
        #: Whether the last event was neither of a past incarnation nor a repetition.
        self.heeded = False
        #: Whether it brought a result that its trial had not had before.
        self.brought_result = False

    @property
    def trials(self) -> Mapping[str, Trial]:
        """All trials that were ever added, in order."""
        return self.roster.trials

    @property
    def finished(self) -> bool:
        """Whether every trial has ended and no more will come."""
        return self._search_finished and not self.roster.unfinished

    @property
    def is_cut_off(self) -> bool:
        """Whether a failure has ended everything, and would again."""
        return self.first_error is not None and self._why_all_ends(self.first_error) != ""

    def _why_all_ends(self, failed: Trial) -> str:
        return why_all_ends(self.settings, self.trials.values(), failed)

    @property
    def may_ask(self) -> bool:
        """Whether the search algorithm may have a trial to offer, now or when it has answered."""
        return not (self._search_finished or self._search_waits)

    @property
    def wants_suggestion(self) -> bool:
        """Whether the search algorithm should be asked now."""
        enough = len(self.roster.pending) >= self.search.lookahead
        waits = self.on_hold or self.inquiry.is_open or enough
        return self.may_ask and not waits and self.room > 0

    @property
    def room(self) -> float:
        """How many more trials the user lets run now; infinite without a limit.

        The search algorithm sees to most of it, but knows of no trial that was opened again.
        """
        limit = self.settings.max_concurrent
        return limit - len(self.roster.active) if limit else inf

    @property
    def hands_ahead(self) -> bool:
        """Whether trials may be given to a worker that is still busy, to follow by themselves.

        Not where a result may change which trial is next: one that is on a worker stays there.
        """
        return self.scheduler.starts_in_order and self.search.lookahead > 1

    @property
    def next_trial_id(self) -> str:
        """What the search's next trial will be called."""
        return self.inquiry.trial_id or self.free_trial_id

    @property
    def free_trial_id(self) -> str:
        """A name that no trial has, nor the one about which the search is asked."""
        number = len(self.roster)
        while (name := f"{self._prefix}_{number:05d}") in self.trials or (
            name == self.inquiry.trial_id
        ):
            number += 1
        return name

    @property
    def waits_for_user(self) -> bool:
        """Whether the user has to say how it goes on: lets nothing start, or some trial rest."""
        return self.on_hold or bool(self.roster.resting)

    def _go_on(self) -> None:
        """Forget the end: its cause may have been changed, and there may be more to ask."""
        self._search_finished = False
        self.stop_reason = ""
        self.first_error = None

    def state_dict(self) -> dict[str, Any]:
        """Return what a snapshot is to hold."""
        first_error = self.first_error
        return {
            "stop_reason": self.stop_reason,
            "first_error": None if first_error is None else first_error.trial_id,
            "prefix": self._prefix,
            "search_finished": self._search_finished,
            "search_waits": self._search_waits,
            "on_hold": self.on_hold,
            **self.roster.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._prefix = state["prefix"]
        self._search_finished = state["search_finished"]
        self._search_waits = state["search_waits"]
        self.on_hold = state["on_hold"]
        self.roster.load_state_dict(state)
        self.stop_reason = state["stop_reason"]
        self.first_error = self.roster.trials.get(state["first_error"])

    def next_trial(self) -> Trial | None:
        """Return the trial that should get the next free place; asking changes nothing."""
        roster = self.roster
        if self.on_hold or self.room <= 0 or not (roster.pending or roster.paused):
            return None
        return self.scheduler.choose_trial_to_run(Waiting(roster.pending, roster.paused))
