"""The state of an experiment apart from its policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dasktune.experiment.trial_index import TrialIndex
from dasktune.experiment.trial_state import StoredHistories
from dasktune.trial.rows.row_blocks import IN_MEMORY, BlockStore
from dasktune.trial.trial import Trial

#: Numbers of starts in one session: more than a trial can start while the storage fails.
_STARTS: Final = 100_000


@dataclass(slots=True, kw_only=True)
class ExperimentState:
    """The trials of an experiment and how far it has come. Only `ExperimentMachine` changes it.

    Parameters
    ----------
    prefix : str
        The beginning of every trial's name.
    """

    prefix: str
    trial_index: TrialIndex = field(default_factory=TrialIndex)
    #: Whether the search algorithm will suggest no more trials.
    search_finished: bool = False
    #: Whether the search algorithm had no suggestion when it was last asked. A trial that ends or
    #: pauses resets this, and so does a new session.
    search_waits: bool = False
    #: Why the experiment ends; empty while it continues.
    stop_reason: str = ""
    #: The failed trial that ended the experiment.
    first_failed: Trial | None = None
    #: Whether the user has held the experiment: no trial starts.
    on_hold: bool = False
    #: The share of the cluster that the user has set at run time; None is that of the settings.
    weight: float | None = None
    priority: float | None = None
    yields_after: float | None = None
    #: Number of the session of a driver that has taken over; 0 in the first session.
    session: int = 0

    @property
    def finished(self) -> bool:
        """Whether every trial has ended and no other will be added."""
        return self.search_finished and not self.trial_index.unfinished

    @property
    def waits_for_user(self) -> bool:
        """Whether the user has held the experiment or paused a trial."""
        return self.on_hold or bool(self.trial_index.paused_by_user)

    def next_incarnation(self, trial: Trial) -> int:
        """Return the number of the next start of a trial.

        It differs from the numbers of all starts by earlier drivers, even of those that are missing
        in the journal: a driver may die before the record of a start is durable, and the worker of
        that start may still write checkpoints. So each session has its own numbers.

        Examples
        --------
        >>> from dasktune.trial.resources import PlacementGroupFactory
        >>> trial = Trial(trial_id="a", config={}, resources=PlacementGroupFactory([{"CPU": 1}]))
        >>> ExperimentState(prefix="x").next_incarnation(trial)
        1
        >>> ExperimentState(prefix="x", session=2).next_incarnation(trial)
        200001
        """
        return max(trial.incarnation, self.session * _STARTS) + 1

    def reopen(self) -> None:
        """Forget why the experiment ended: the search algorithm is asked again."""
        self.search_finished = False
        self.stop_reason = ""
        self.first_failed = None

    def state_dict(self, *, rows: bool = True, clones: bool = False) -> dict[str, Any]:
        """Return plain values for a snapshot; for `rows` and `clones` see :class:`TrialIndex`."""
        return {
            "stop_reason": self.stop_reason,
            "first_error": None if self.first_failed is None else self.first_failed.trial_id,
            "prefix": self.prefix,
            "search_finished": self.search_finished,
            "search_waits": self.search_waits,
            "on_hold": self.on_hold,
            "weight": self.weight,
            "priority": self.priority,
            "yields_after": self.yields_after,
            "session": self.session,
            **self.trial_index.state_dict(rows=rows, clones=clones),
        }

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        histories: StoredHistories | None = None,
        blocks: BlockStore = IN_MEMORY,
    ) -> None:
        """Restore what :meth:`state_dict` returned.

        Parameters
        ----------
        state : mapping
            The state.
        histories, blocks
            As for :func:`~dasktune.experiment.trial_state.trial_from_state`.
        """
        self.prefix = state["prefix"]
        self.search_finished = state["search_finished"]
        self.search_waits = state["search_waits"]
        self.on_hold = state["on_hold"]
        self.weight, self.priority = state["weight"], state["priority"]
        self.yields_after = state["yields_after"]
        self.session = state["session"]
        self.trial_index.load_state_dict(state, histories, blocks)
        self.stop_reason = state["stop_reason"]
        self.first_failed = self.trial_index.trials.get(state["first_error"])
